"""Which argument, mode or attribute makes every call of a step another capture, for the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .guard import MODES_OF_KEY
from .tree import Layout

# Names for what a `Layout` says, and what to do about each.
TENSOR = {
    "shape": "Give batches a few shapes, by padding or bucketing",
    "dtype": "Cast it before the call",
    "requires_grad": "Set it before the first call",
    "memory order": "Pass contiguous()",
    "overlap with other arguments": "Pass a clone()",
}
VALUE = "Pass what varies as a Tensor"
OUTSIDE = "Keep it as it is between calls, or do not compile this step"


def varying(keys: Sequence[tuple[Any, ...]], names: Sequence[str], structures: Any) -> str:
    """What differs most among captures, with its last two values, and the way out.

    Args:
        keys: of all captures, oldest first, as `Compiled` makes them.
        names: of the arguments.
        structures: for each capture, by name, the values that modules and gradients had.
    """
    found = []
    for number in range(max(map(len, keys))):
        name = (*MODES_OF_KEY, *names)[number] if number < len(MODES_OF_KEY) + len(names) else ""
        parts = [key[number] for key in keys if len(key) > number]
        found.append(_most(parts, name if number < len(MODES_OF_KEY) else f"argument {name}"))
    for name in dict.fromkeys(name for each in structures for name in each):
        values = [each[name] for each in structures if name in each]
        found.append((len(set(values)), name, *_last(values), OUTSIDE))
    _, name, before, last, hint = max(found, key=lambda one: one[0])
    return f"{name} varies most: {before}, then {last}. {hint}"


def _most(parts: Sequence[Any], name: str) -> tuple[int, str, str, str, str]:
    """How many different `parts` there are, of what, the last two, and the way out."""
    if all(type(part) is Layout for part in parts):
        fields = [*zip(TENSOR, zip(*parts, strict=True), strict=True)]
        field, values = max(fields, key=lambda one: len(set(one[1])))
        return len(set(parts)), f"the {field} of {name}", *_last(values), TENSOR[field]
    kinds = {(part[0], len(part)) for part in parts if type(part) is tuple}
    if len(kinds) == 1 and all(type(part) is tuple for part in parts):
        kind, length = kinds.pop()
        inner = [[part[n] for part in parts] for n in range(1, length)]
        if isinstance(kind, str):  # an argument given by its name
            return _most(inner[0], f"argument {kind}")
        if kind in (tuple, list) and inner:
            found = [_most(values, f"{name}[{n}]") for n, values in enumerate(inner)]
            return (len(set(parts)), *max(found, key=lambda one: one[0])[1:])
    return len(set(parts)), name, *_last(parts), VALUE


def _last(values: Sequence[Any]) -> tuple[str, str]:
    """The last value, and the one before that which was another."""
    last = values[-1] if values else None
    before = next((value for value in reversed(values) if value != last), last)
    return _said(before), _said(last)


def _said(value: Any) -> str:
    if type(value) is tuple and len(value) == 2 and isinstance(value[0], type):
        value = value[1]  # of a certain kind
    return value if isinstance(value, str) else repr(value)
