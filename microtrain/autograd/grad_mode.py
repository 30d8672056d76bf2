"""Switches for recording: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`.

Each is a context manager and a decorator, and acts on the calling thread only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..backend import MODES

_F = TypeVar("_F", bound=Callable[..., Any])


class _Switch:
    """Sets the grad mode while a block or a decorated function runs."""

    __slots__ = ("_before", "_mode")

    def __init__(self, mode: bool) -> None:
        self._mode = mode
        self._before: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._before.append((MODES.grad, MODES.inference))
        MODES.grad = self._mode

    def __exit__(self, *exc: object) -> None:
        MODES.grad, MODES.inference = self._before.pop()

    def __call__(self, function: _F) -> _F:
        mode, kind = self._mode, type(self)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            switch = kind.__new__(kind)
            _Switch.__init__(switch, mode)
            with switch:
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


class no_grad(_Switch):
    """Operations inside are not recorded; results do not require grad.

    Example:
        >>> with mt.no_grad():
        ...     w -= 0.1 * w.grad
    """

    def __init__(self) -> None:
        super().__init__(False)

    def __new__(cls, function: Any = None) -> Any:  # @no_grad without parentheses
        self = super().__new__(cls)
        if function is None:
            return self
        _Switch.__init__(self, False)
        return self(function)


class enable_grad(_Switch):
    """Operations inside are recorded again, inside a `no_grad` block."""

    def __init__(self) -> None:
        super().__init__(True)

    def __new__(cls, function: Any = None) -> Any:
        self = super().__new__(cls)
        if function is None:
            return self
        _Switch.__init__(self, True)
        return self(function)


class set_grad_enabled(_Switch):
    """Switch recording on or off, at once and, used as a context manager, until its end."""

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._at_call = MODES.grad
        MODES.grad = self._mode

    __slots__ = ("_at_call",)

    def __enter__(self) -> None:
        self._before.append((self._at_call, MODES.inference))
        MODES.grad = self._mode

    def __call__(self, function: _F) -> _F:
        MODES.grad = self._at_call  # as a decorator it acts inside the function only
        return super().__call__(function)


class inference_mode(_Switch):
    """`no_grad` whose results raise when they are used in a recorded operation."""

    def __init__(self, mode: bool = True) -> None:
        super().__init__(not mode)

    def __enter__(self) -> None:
        self._before.append((MODES.grad, MODES.inference))
        if not self._mode:
            MODES.grad, MODES.inference = False, True


def is_grad_enabled() -> bool:
    """Whether operations are being recorded in this thread."""
    return MODES.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return MODES.inference
