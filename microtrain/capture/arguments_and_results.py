"""What a call gives to a step and gets from it: copies of arguments, new Tensors for results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..backend import ARRAYS, LIBRARIES, MODES, address, is_plain, owner_of, uint8
from ..errors import CaptureError
from ..tensor import TENSORS, Tensor, wrap
from .program import ALIGNED

SEQUENCES = tuple, list  # a union would be made at every call


@dataclass(frozen=True, slots=True)
class Output:
    """What stands for a Tensor in a result.

    Attributes:
        number: that of its array.
        place: its number among those that may be differentiated, if it is one of them.
    """

    number: int
    place: int | None


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change` of what is in its tuples, lists and dicts."""
    if isinstance(value, SEQUENCES):
        parts = [replaced(v, change) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict:
        return {k: replaced(v, change) for k, v in value.items()}
    return change(value)


def rebuilt(structure: Any, outputs: list[Any], node: Any) -> Any:
    """`structure` with new Tensors for its Outputs; `node` is behind those to be differentiated."""

    def tensor(value: Any) -> Any:
        if type(value) is not Output:
            return value
        found = wrap(outputs[value.number].copy("K"))
        if value.place is not None:
            found._rg, found._edge = True, (node, value.place)
        return found

    return replaced(structure, tensor)


def one_place(a: Any, b: Any) -> bool:
    """Whether two arrays begin at one address: NumPy has a way of its own for `x @ x.T`."""
    return owner_of(a) is owner_of(b) and address(a) == address(b)


def copies_like(arrays: Sequence[Any]) -> list[Any]:
    """Copies of `arrays`, which begin at one address, laid out as they are, gaps and all.

    What NumPy and BLAS do, and so the bits, depends on strides, also on negative ones and on 0.
    """
    if len(arrays) == 1 and (is_plain(arrays[0]) or not arrays[0].size):
        return [arrays[0].copy()]
    low = high = 0
    for array in arrays:
        steps = [s * (n - 1) for s, n in zip(array.strides, array.shape, strict=True) if array.size]
        low = min(low, sum(step for step in steps if step < 0))
        high = max(high, sum(step for step in steps if step > 0) + array.itemsize)
    xp, aligned = LIBRARIES[type(arrays[0])], getattr(arrays[0].flags, "aligned", True)
    start = -low // ALIGNED * ALIGNED + ALIGNED + (not aligned)
    memory = xp.empty(start + high, uint8)
    found = [xp.view_of(memory, start, array) for array in arrays]
    for copy, array in zip(found, arrays, strict=True):
        copy[...] = array
    return found


def copies(tensors: list[Tensor]) -> list[Any]:
    """Copies of the arguments, laid out as they are; two that begin at one address still do."""
    found: dict[int, Any] = {}
    unique = {id(tensor): tensor._array for tensor in tensors}
    for array in unique.values():
        group = {key: a for key, a in unique.items() if a is array or one_place(a, array)}
        if not group.keys() & found.keys():
            found |= zip(group, copies_like([*group.values()]), strict=True)
    return [found.pop(id(tensor), tensor._array.copy()) for tensor in tensors]


def taken(value: Any, outputs: list[Any], recorder: Any, roots: list[Tensor]) -> Any:
    """`value` with an Output in place of each Tensor, whose array is appended to `outputs`.

    Those that may be differentiated are appended to `roots`.
    """

    def output(value: Any) -> Any:
        if type(value) in ARRAYS:
            raise CaptureError("compile: the step returns an array; return the Tensor")
        if type(value) not in TENSORS:
            return value
        outputs.append(recorder.host(value._array))
        root = value._rg and MODES.grad and not recorder.passes
        roots.extend([value] if root else [])
        return Output(len(outputs) - 1, len(roots) - 1 if root else None)

    return replaced(value, output)
