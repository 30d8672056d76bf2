"""What arguments must be: the checks that operations share, and their words."""

from __future__ import annotations

import contextlib
from operator import index as whole
from typing import Any

import numpy as np

from ..backend import XP, int32, int64
from ..tensor import TENSORS, kind_of, wrap
from .coercion import NUMBERS, cast, examine


class _Unset:
    """The kind of `UNSET`, which stands for an argument that was not given."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()


def only_one(name: str, argument: str, value: Any, alias: str, other: Any) -> Any:
    """`other`, the argument under NumPy's name; TypeError where both names were given."""
    if value is not UNSET:
        raise TypeError(f"{name}(): got both {argument}= and {alias}=, which mean the same")
    return (other,) if argument == "dims" and alias == "axis" and type(other) is int else other


def missing(name: str, argument: str) -> TypeError:
    """The error for a call without `argument`, in Python's words."""
    return TypeError(f"{name}() missing 1 required positional argument: {argument!r}")


def not_a_tensor(name: str, argument: str, value: Any) -> TypeError:
    """The error for a `value` that is no Tensor."""
    hint = "" if hasattr(value, "numpy") else "; mt.tensor(...) makes one"
    return TypeError(
        f"{name}(): argument {argument!r} must be a Tensor, not {kind_of(value)}{hint}"
    )


def want_tensors(name: str, arrays: bool = False, **arguments: Any) -> None:
    """TypeError for an argument that is not a Tensor (nor, with `arrays`, an array)."""
    for argument, value in arguments.items():
        if type(value) not in TENSORS and not (arrays and type(value) in XP):
            raise not_a_tensor(name, argument, value)


def want_float(name: str, x: Any) -> None:
    """RuntimeError unless `x` is of a float type."""
    if x.dtype.kind != "f":
        raise RuntimeError(
            f"{name}(): input dtype must be a floating point type, got {x.dtype.name}; convert it, "
            "such as with .float()"
        )


def want_numbers(name: str) -> None:
    """RuntimeError: what was passed holds booleans."""
    raise RuntimeError(f"{name}(): not defined for booleans; cast them, such as with .long()")


def want_dims(name: str, argument: str, x: Any, least: int, most: int | None) -> None:
    """RuntimeError: `x` has another number of dimensions."""
    ndim = f"{least}-d" if most in (None, least) else f"{least}-d to {most}-d"
    at_least = "at least " if most is None else ""
    raise RuntimeError(
        f"{name}(): argument {argument!r} must be {at_least}{ndim}, got shape {x.shape}"
    )


def want_square(name: str, x: Any) -> None:
    """RuntimeError unless `x` is a square matrix or a batch of such."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise RuntimeError(
            f"{name}: expected a square matrix or a batch (..., n, n), got shape {x.shape}"
        )


def want_number(name: str, what: str, value: Any) -> None:
    """TypeError unless `value` is a number."""
    if not isinstance(value, NUMBERS):
        raise TypeError(f"{name}(): argument {what!r} must be a number, got {type(value).__name__}")


def want_flag(name: str, what: str, value: Any) -> None:
    """TypeError unless `value` is True or False."""
    if type(value) is not bool:
        raise TypeError(f"{name}(): argument {what!r} must be True or False, got {value!r}")


def one_of(name: str, what: str, value: Any, *known: Any) -> None:
    """RuntimeError unless `value` is one of those known."""
    if value not in known:
        raise RuntimeError(
            f"{name}(): argument {what!r} must be {' or '.join(map(repr, known))}, got {value!r}"
        )


def integer(name: str, what: str, value: Any) -> int:
    """`value` as an int; TypeError unless it is one."""
    if type(value) is int:
        return value
    with contextlib.suppress(TypeError):
        if type(value) is not bool:
            return whole(value)
    kind = type(value).__name__
    raise TypeError(f"{name}(): argument {what!r} must be an int, got {kind}")


def integers(name: str, what: str, values: Any) -> tuple[int, ...]:
    """`values` as a tuple of ints; TypeError unless it is a list or tuple of such."""
    if not isinstance(values, tuple | list):
        kind = type(values).__name__
        raise TypeError(f"{name}(): argument {what!r} must be a tuple of ints, got {kind}")
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


# Losses -------------------------------------------------------------------------------------------

REDUCTIONS = ("none", "mean", "sum")


def check_reduction(
    reduction: str, size_average: Any = None, reduce: Any = None,
    known: tuple[str, ...] = REDUCTIONS,
) -> None:  # fmt: skip
    """ValueError unless `reduction` is one of none, mean, sum; TypeError for its old spelling."""
    if size_average is not None or reduce is not None:
        raise TypeError(
            "size_average and reduce are the old spelling of reduction; write "
            f"reduction= one of {', '.join(known)}"
        )
    if reduction not in known:
        raise ValueError(f"{reduction!r} is not a reduction; there are {', '.join(known)}")


def check_pair(name: str, input: Any, target: Any, error: type[Exception] = RuntimeError) -> None:
    """TypeError unless both are Tensors, `error` unless they have one shape."""
    want_tensors(name, input=input, target=target)
    if input.shape != target.shape:
        raise error(
            f"{name}: input of shape {input.shape} and target of shape {target.shape} must have "
            "one shape; reshape the target, for instance target.view(-1, 1)"
        )


# Indices and values ------------------------------------------------------------------------------


def want_integers(name: str, index: Any) -> Any:
    """The index as int64; TypeError or RuntimeError for what is no Tensor of int32 or int64."""
    want_tensors(name, index=index)
    if index.dtype not in (int64, int32):
        raise RuntimeError(f"{name}(): expected an index of int64 or int32, got {index.dtype.name}")
    return cast(index, int64)


def want_mask(name: str, mask: Any) -> None:
    """RuntimeError: `mask` does not hold booleans."""
    raise RuntimeError(f"{name}(): expected a boolean mask, got {mask.dtype.name}; use .bool()")


def want_in_range(
    name: str, array: Any, dim: int, low: int, size: int, error: type[Exception]
) -> None:
    """`error` for an index below `low` or not below `size`, where that is known without waiting."""

    def check(array: Any) -> None:
        # One pass, counted from the lowest: a negative is a large unsigned number.
        shifted = array.astype(int64, copy=False)
        shifted = shifted - low if low else shifted
        if array.size and np.maximum.reduce(shifted.view(np.uint64), None) >= size - low:
            wrong = array[(array < low) | (array >= size)][0]
            raise error(
                f"{name}(): index {wrong} is out of bounds for dimension {dim} with size {size}"
            )

    examine(array, check)


def want_same_dtype(name: str, argument: str, source: Any, x: Any) -> None:
    """RuntimeError unless `source` has the dtype of `x`."""
    if source.dtype != x.dtype:
        raise RuntimeError(
            f"{name}(): input and {argument} must have the same dtype, got {x.dtype.name} and "
            f"{source.dtype.name}; convert one of them"
        )


def scalar_like(name: str, x: Any, value: Any) -> Any:
    """A number or 0-d Tensor as one in the dtype of `x`; RuntimeError if that cannot hold it."""
    kind = x.dtype.kind
    if type(value) in TENSORS:
        if value.ndim:
            raise RuntimeError(
                f"{name}(): expected a number or a 0-d Tensor as value, got one of shape "
                f"{value.shape}"
            )
        if "biuf".index(value.dtype.kind) <= "biuf".index(kind):
            return cast(value, x.dtype)
    elif not isinstance(value, NUMBERS):
        raise TypeError(f"{name}(): value must be a number or a Tensor, not {type(value).__name__}")
    else:
        with np.errstate(all="ignore"):
            held = np.asarray(value).astype(x.dtype)
        if np.isinf(held) == np.isinf(float(value)) if kind == "f" else held == value:
            return wrap(XP[type(x._array)].operand(held.item(), x.dtype))
    raise RuntimeError(f"{name}(): value {value} cannot be stored as {x.dtype.name}")
