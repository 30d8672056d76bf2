"""What arguments must be: the checks that operations share. Their words are those of `wrong`."""

from __future__ import annotations

import contextlib
from operator import index as whole
from typing import Any

import numpy as np

from ..backend import XP, int32, int64
from ..errors import need as need
from ..errors import wrong as wrong
from ..tensor import TENSORS, kind_of, wrap
from .coercion import NUMBERS, cast, examine


class _Unset:
    """The kind of `UNSET`, which stands for an argument that was not given."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset()


def only_one(name: str, argument: str, value: Any, alias: str, other: Any) -> Any:
    """`other`, the argument under NumPy's name; TypeError where both names were given."""
    text = f"got both {argument}= and {alias}=, which mean the same"
    need(value is UNSET, name, text, error=TypeError)
    return (other,) if argument == "dims" and alias == "axis" and type(other) is int else other


def missing(name: str, argument: str) -> TypeError:
    """The error for a call without `argument`, in Python's words."""
    return TypeError(f"{name}() missing 1 required positional argument: {argument!r}")


def not_a_tensor(name: str, argument: str, value: Any) -> Exception:
    """The error for a `value` that is not a Tensor."""
    hint = "" if hasattr(value, "numpy") else "; mt.tensor(...) makes one"
    text = f"argument {argument!r} must be a Tensor, not {kind_of(value)}{hint}"
    return wrong(name, text, error=TypeError)


def want_tensors(name: str, arrays: bool = False, **arguments: Any) -> None:
    """TypeError for an argument that is not a Tensor (nor, with `arrays`, an array)."""
    for argument, value in arguments.items():
        if type(value) not in TENSORS and not (arrays and type(value) in XP):
            raise not_a_tensor(name, argument, value)


IS_FLOAT = "input dtype must be a floating point type, got {}; convert it, such as with .float()"
SAME_DTYPE = "input and {} must have the same dtype, got {} and {}; convert one of them"
IS_SQUARE = "expected a square matrix or a batch (..., n, n)"


def want_float(name: str, x: Any) -> None:
    """RuntimeError unless `x` is of a float type."""
    need(x.dtype.kind == "f", name, IS_FLOAT, x.dtype)


def want_same_dtype(name: str, argument: str, source: Any, x: Any) -> None:
    """RuntimeError unless `source` has the dtype of `x`."""
    need(source.dtype == x.dtype, name, SAME_DTYPE, argument, x.dtype, source.dtype)


def want_shape(
    name: str, what: str, x: Any, shape: Any, error: type[Exception] = RuntimeError
) -> None:
    """`error` unless `x` has this shape."""
    if x.shape != tuple(shape):
        raise wrong(name, f"expected {what} of shape {tuple(shape)}", x.shape, error=error)


def integer(name: str, what: str, value: Any) -> int:
    """`value` as an int; TypeError unless it is one."""
    if type(value) is int:
        return value
    with contextlib.suppress(TypeError):
        if type(value) is not bool:
            return whole(value)
    raise wrong(name, "argument {} must be an int, got {}", what, type(value), error=TypeError)


def integers(name: str, what: str, values: Any) -> tuple[int, ...]:
    """`values` as a tuple of ints; TypeError unless it is a list or tuple of such."""
    text = "argument {} must be a tuple of ints, got {}"
    need(isinstance(values, tuple | list), name, text, what, type(values), error=TypeError)
    return tuple(integer(name, what, value) for value in values)


def numbers(name: str, what: str, value: Any, count: int) -> tuple[int, ...]:
    """`value`, a whole number or a sequence of `count` of them (or of one for all), as a tuple.

    Raises TypeError for other kinds, RuntimeError for another count.
    """
    if type(value) is int:
        return (value,) * count
    found = tuple(value) if isinstance(value, tuple | list) else (value,) * count
    ints = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in found)
    text = "{} must be an int or a tuple of ints, got {}"
    need(ints, name, text, what, value, error=TypeError)
    if len(found) == 1:
        found *= count
    text = "expected {} to be one int or {} of them, got {}"
    need(len(found) == count, name, text, what, count, value)
    return tuple(whole(n) for n in found)


# Losses -------------------------------------------------------------------------------------------

REDUCTIONS = ("none", "mean", "sum")


def check_reduction(
    reduction: str, size_average: Any = None, reduce: Any = None,
    known: tuple[str, ...] = REDUCTIONS,
) -> None:  # fmt: skip
    """ValueError unless `reduction` is one of none, mean, sum; TypeError for its old spelling."""
    names = ", ".join(known)
    if size_average is not None or reduce is not None:
        text = "size_average and reduce are the old spelling of reduction; write reduction= one of "
        raise TypeError(text + names)
    if reduction not in known:
        raise ValueError(f"{reduction!r} is not a reduction; there are {names}")


def check_pair(name: str, input: Any, target: Any, error: type[Exception] = RuntimeError) -> None:
    """TypeError unless both are Tensors, `error` unless they have one shape."""
    want_tensors(name, input=input, target=target)
    text = "input of {} and target of {} must have one shape; reshape the target, for instance "
    same = input.shape == target.shape
    need(same, name, f"{text}target.view(-1, 1)", input, target, error=error)


# Indices and values ------------------------------------------------------------------------------


def want_integers(name: str, index: Any) -> Any:
    """The index as int64; TypeError or RuntimeError for what is no Tensor of int32 or int64."""
    want_tensors(name, index=index)
    need(index.dtype in (int64, int32), name, "expected an index of int64 or int32", index.dtype)
    return cast(index, int64)


def want_in_range(
    name: str, array: Any, dim: int, low: int, size: int, error: type[Exception]
) -> None:
    """`error` for an index below `low` or not below `size`, where that is known without waiting."""

    def check(array: Any) -> None:
        # One pass, counted from the lowest: a negative is a large unsigned number.
        shifted = array.astype(int64, copy=False)
        shifted = shifted - low if low else shifted
        if array.size and np.maximum.reduce(shifted.view(np.uint64), None) >= size - low:
            found = array[(array < low) | (array >= size)][0]
            text = f"index {found} is out of bounds for dimension {dim} with size {size}"
            raise wrong(name, text, error=error)

    vars(check)["bounds"] = low, size  # for native code, which then needs no Python
    examine(array, check)


def scalar_like(name: str, x: Any, value: Any) -> Any:
    """A number or 0-d Tensor as one in the dtype of `x`; RuntimeError if that cannot hold it."""
    kind = x.dtype.kind
    if type(value) in TENSORS:
        need(not value.ndim, name, "expected a number or a 0-d Tensor as value", value)
        if "biuf".index(value.dtype.kind) <= "biuf".index(kind):
            return cast(value, x.dtype)
    else:
        text = "value must be a number or a Tensor"
        need(isinstance(value, NUMBERS), name, text, type(value), error=TypeError)
        with np.errstate(all="ignore"):
            held = np.asarray(value).astype(x.dtype)
        if np.isinf(held) == np.isinf(float(value)) if kind == "f" else held == value:
            return wrap(XP[type(x._array)].operand(held.item(), x.dtype))
    raise wrong(name, "value {} cannot be stored as {}", value, x.dtype)
