"""Arguments and results of a step: Tensors in tuples, lists and dicts, and what a key says of them.

A key tells calls apart that need captures of their own: by layouts in place of Tensors, and by all
other values as they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..backend import ARRAYS, LIBRARIES, MODES, is_plain
from ..errors import CaptureError
from ..nn.module import Module
from ..tensor import TENSORS, Tensor, wrap
from .program import copies_like, one_place


class Layout(NamedTuple):
    """What the key says of a Tensor.

    Attributes:
        order: True for row-major and aligned memory, else strides and whether it is aligned: in
            another memory order sums are other sums.
        place: the number of the first Tensor that begins at the same address; None for itself.
    """

    shape: tuple[int, ...]
    dtype: Any
    requires_grad: bool
    order: Any
    place: int | None


class Again(NamedTuple):
    """What the key says of a Tensor that is also an earlier one."""

    number: int


def key_of(value: Any, tensors: list[Tensor]) -> Any:
    """What the key says of an argument; its Tensors are appended to `tensors`."""
    kind = type(value)
    if kind in TENSORS:
        array, place = value._array, None
        for number, other in enumerate(tensors):
            if other is value:
                tensors.append(value)
                return Again(number)
            if place is None and one_place(other._array, array):
                place = number
        tensors.append(value)
        order = is_plain(array) or (array.strides, getattr(array.flags, "aligned", True))
        return Layout(array.shape, array.dtype, value._rg, order, place)
    if kind is tuple or kind is list or isinstance(value, tuple):
        return (kind, *[key_of(v, tensors) for v in value])
    if kind is dict:
        return (kind, *[(key_of(k, tensors), key_of(v, tensors)) for k, v in value.items()])
    if kind is float:
        return (kind, repr(value))  # 0.0 is not -0.0, and NaN is NaN
    if isinstance(value, Module):
        return (kind, weakref.ref(value))
    if isinstance(value, tuple(LIBRARIES)):
        how = "a NumPy array; pass mt.from_numpy(array)"
        how = (
            how
            if getattr(LIBRARIES.get(kind), "kind", "cpu") == "cpu"
            else "an array of CuPy; pass a Tensor"
        )
        raise CaptureError(f"compile: an argument is {how}")
    return (kind, value)


def copies(tensors: list[Tensor]) -> list[Any]:
    """Copies of the arguments, laid out as they are; two that begin at one address still do."""
    found: dict[int, Any] = {}
    unique = {id(tensor): tensor._array for tensor in tensors}
    for array in unique.values():
        group = {key: a for key, a in unique.items() if a is array or one_place(a, array)}
        if not group.keys() & found.keys():
            found |= zip(group, copies_like([*group.values()]), strict=True)
    return [found.pop(id(tensor), tensor._array.copy()) for tensor in tensors]


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` of what is in its tuples, lists and dicts."""
    if isinstance(value, tuple | list):
        parts = [replaced(v, change) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict:
        return {k: replaced(v, change) for k, v in value.items()}
    return change(value)


@dataclass(frozen=True, slots=True)
class Output:
    """What stands for a Tensor in a result.

    Attributes:
        number: that of its array.
        place: its number among those that may be differentiated, if it is one of them.
    """

    number: int
    place: int | None


def taken(value: Any, outputs: list[Any], recorder: Any, roots: list[Tensor]) -> Any:
    """`value` with an Output in place of each Tensor, whose array is appended to `outputs`.

    Those that may be differentiated are appended to `roots`.
    """

    def output(value: Any) -> Any:
        kind = type(value)
        if kind in ARRAYS:
            raise CaptureError("compile: the step returns an array; return the Tensor")
        if kind not in TENSORS:
            return value
        outputs.append(recorder.host(value._array))
        if not value._rg or not MODES.grad or recorder.passes:
            return Output(len(outputs) - 1, None)
        roots.append(value)
        return Output(len(outputs) - 1, len(roots) - 1)

    return replaced(value, output)


def rebuilt(structure: Any, outputs: list[Any], node: Any) -> Any:
    """What `taken` took apart, with new Tensors; `node` is behind those to be differentiated."""

    def tensor(value: Any) -> Any:
        if type(value) is not Output:
            return value
        found = wrap(outputs[value.number].copy())
        if value.place is not None:
            found._rg, found._edge = True, (node, value.place)
        return found

    return replaced(structure, tensor)
