"""Layers that are a function and its arguments, and families of layers that differ in constants.

A class of the first kind names its function and lists the function's further arguments as fields:
they become the arguments of the constructor, attributes, and part of the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform

from ..common.stack_frames import LAYER
from .module import Module


@dataclass_transform(eq_default=False)
class Applied(Module):
    """`function(*inputs, **fields)`, for subclasses made with `function=`.

    Attributes:
        _inputs: the parameters of `forward`.
        _state: attributes that the function takes beside the fields.
        _shown: the fields that stand in the text, those with a star without their names; "*" alone
            for all, `inplace` only where it is set.
    """

    _inputs: ClassVar[str] = "input"
    _state: ClassVar[tuple[str, ...]] = ()
    _shown: ClassVar[tuple[str, ...]] = ("*",)

    def __init_subclass__(cls, function: Callable[..., Any] | None = None) -> None:
        super().__init_subclass__()
        if function is not None:  # a user's subclass of ReLU inherits
            dataclasses.dataclass(repr=False, eq=False)(cls)
            cls.forward = _forward(function, cls)  # type: ignore[method-assign]

    def extra_repr(self) -> str:
        """The fields."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        names = [f.name for f in fields if f.name != "inplace" or getattr(self, f.name)]
        names = names if self._shown == ("*",) else list(self._shown)
        values = {name: repr(getattr(self, name.strip("*"))) for name in names}
        return ", ".join(v if n[0] == "*" else f"{n}={v}" for n, v in values.items())


def _forward(function: Callable[..., Any], cls: Any) -> Callable[..., Any]:
    """`forward` of a module with these fields, as fast as if it were written out."""
    fields = [*(field.name for field in dataclasses.fields(cls)), *cls._state]
    arguments = ", ".join([cls._inputs, *(f"{name}=self.{name}" for name in fields)])
    scope: dict[str, Any] = {"function": function}
    text = f"def forward(self, {cls._inputs}):\n    return function({arguments})"
    exec(compile(text, f"{LAYER}{cls.__name__}>", "exec"), scope)
    forward: Callable[..., Any] = scope["forward"]
    forward.__doc__ = f"Apply `{function.__name__}` with the fields as further arguments."
    forward.__qualname__ = f"{cls.__qualname__}.forward"
    forward.__module__ = cls.__module__
    return forward


class Family(Module):
    """A layer whose subclasses differ in constants: `class ZeroPad1d(_Pad, dims=1)`."""

    def __init_subclass__(cls, **constants: Any) -> None:
        super().__init_subclass__()
        for name, value in constants.items():
            setattr(cls, name, staticmethod(value) if callable(value) else value)
