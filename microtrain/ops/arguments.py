"""What arguments must be: the checks that operations share, and their words."""

from __future__ import annotations

from operator import index as whole
from typing import Any

import numpy as np

from ..backend import XP
from ..tensor import TENSORS
from .coercion import NUMBERS


def want_tensors(name: str, arrays: bool = False, **arguments: Any) -> None:
    """TypeError for an argument that is not a Tensor (nor, with `arrays`, an array)."""
    for argument, value in arguments.items():
        if type(value) not in TENSORS and not (arrays and type(value) in XP):
            raise TypeError(
                f"{name}(): argument {argument!r} must be a Tensor, not {type(value).__name__}"
            )


def want_float(name: str, x: Any) -> None:
    """RuntimeError unless `x` is of a float type."""
    if x.dtype.kind != "f":
        raise RuntimeError(
            f"{name}(): input dtype must be a floating point type, got {x.dtype.name}; convert it, "
            "such as with .float()"
        )


def want_number(name: str, what: str, value: Any) -> None:
    """TypeError unless `value` is a number."""
    if not isinstance(value, NUMBERS):
        raise TypeError(f"{name}(): {what} must be a number, got {type(value).__name__}")


def want_flag(name: str, what: str, value: Any) -> None:
    """TypeError unless `value` is True or False."""
    if type(value) is not bool:
        raise TypeError(f"{name}(): {what} must be True or False, got {value!r}")


def one_of(name: str, what: str, value: Any, *known: Any) -> None:
    """RuntimeError unless `value` is one of those known."""
    if value not in known:
        raise RuntimeError(f"{name}: {what} must be {' or '.join(map(repr, known))}, got {value!r}")


def integer(name: str, what: str, value: Any) -> int:
    """`value` as an int; TypeError unless it is one."""
    try:
        return whole(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}(): {what} must be an int, got {kind}") from None


def integers(name: str, what: str, values: Any) -> tuple[int, ...]:
    """`values` as a tuple of ints; TypeError unless it is a list or tuple of such."""
    if not isinstance(values, tuple | list):
        kind = type(values).__name__
        raise TypeError(f"{name}(): {what} must be a tuple of ints, got {kind}")
    return tuple(integer(name, what, value) for value in values)


def numbers(name: str, what: str, value: Any, count: int) -> tuple[int, ...]:
    """`value`, a whole number or a sequence of `count` of them (or of one for all), as a tuple.

    Raises TypeError for other kinds, RuntimeError for another count.
    """
    if type(value) is int:
        return (value,) * count
    found = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    if any(isinstance(n, bool) or not isinstance(n, int | np.integer) for n in found):
        raise TypeError(f"{name}(): {what} must be an int or a tuple of ints, got {value!r}")
    if len(found) == 1:
        found *= count
    if len(found) != count:
        raise RuntimeError(
            f"{name}: expected {what} to be one int or {count} of them, got {value!r}"
        )
    return tuple(whole(n) for n in found)
