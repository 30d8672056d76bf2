"""Questions about Tensors and dtypes: is_tensor, numel, is_signed, allclose, finfo, iinfo."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import MODES, XP, as_dtype, bool_, get_default_dtype, int64, looks_at, promote_dtypes
from ..common.missing_names import namespace
from ..tensor import TENSORS, Tensor, kind_of


def is_tensor(obj: Any) -> bool:
    """Whether `obj` is a Tensor (a Parameter is one)."""
    return type(obj) in TENSORS


def is_floating_point(input: Tensor) -> bool:
    """Whether the dtype is a float type."""
    return input.is_floating_point()


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()


def promote_types(type1: Any, type2: Any) -> np.dtype[Any]:
    """The dtype that Tensors of these two have together."""
    return promote_dtypes([(as_dtype(type1), 2), (as_dtype(type2), 2)])


def result_type(tensor1: Any, tensor2: Any) -> np.dtype[Any]:
    """The dtype of arithmetic of two Tensors or numbers: 0-d ones and numbers only count if higher.

    Raises TypeError for other arguments.
    """
    kinds = {bool: bool_, int: int64, float: MODES.default_dtype}
    found = []
    for value in (tensor1, tensor2):
        if type(value) in TENSORS:
            found.append((value.dtype, 2 if value.ndim else 1))
        elif type(value) in kinds:
            found.append((kinds[type(value)], 0))
        else:
            raise TypeError(f"result_type(): expected Tensors or numbers, got {kind_of(value)}")
    return promote_dtypes(found)


def can_cast(from_: Any, to: Any) -> bool:
    """Whether a dtype may become another one of the same kind or a higher one: bool, int, float."""
    kinds = "biuf".replace("iu", "i")
    before, after = (kinds.index(as_dtype(d).kind.replace("u", "i")) for d in (from_, to))
    return before <= after


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements agree within `atol + rtol * |other|`.

    Raises RuntimeError for two dtypes, or a tolerance below 0.
    """
    if input.dtype != other.dtype or not (rtol >= 0 and atol >= 0):
        raise RuntimeError(
            "allclose: expected one dtype and tolerances that are not negative, got "
            f"{input.dtype.name} and {other.dtype.name}, rtol={rtol} and atol={atol}"
        )
    xp = _module("allclose()", input)
    return bool(xp.allclose(input._array, other._array, rtol=rtol, atol=atol, equal_nan=equal_nan))


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two Tensors have the same shape and the same elements."""
    xp = _module("equal()", input)
    return input.shape == other.shape and bool(xp.all(input._array == other._array))


def is_complex(input: Tensor) -> bool:
    """Whether the dtype is complex: no Tensor here is."""
    return False


def is_signed(input: Tensor) -> bool:
    """Whether the dtype holds negative numbers."""
    return input.dtype.kind in "if"


def is_nonzero(input: Tensor) -> bool:
    """Whether the only element is not 0; RuntimeError where there is not exactly one."""
    return bool(input)


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether two Tensors have one shape."""
    return input.shape == other.shape


def _module(what: str, input: Tensor) -> Any:
    """The library of the array of `input`; an error while a step is captured."""
    looks_at(input, what)
    return XP[type(input._array)].module


class finfo:
    """What a float dtype can hold, as Python numbers.

    Attributes:
        bits: the size of a number.
        eps: the distance from 1 to the next number.
        max, min: the largest and the smallest number.
        tiny, smallest_normal: the smallest positive number of full precision.
        dtype: the dtype's name.

    Raises TypeError for a dtype that is not a float.

    Example:
        >>> mt.finfo(mt.float64).eps
        2.220446049250313e-16
    """

    def __init__(self, dtype: Any = None) -> None:
        wanted = get_default_dtype() if dtype is None else as_dtype(dtype)
        if wanted.kind != "f":
            raise TypeError(f"finfo(): expected a float dtype, got {wanted.name}; see iinfo")
        found = np.finfo(wanted)
        self.bits = found.bits
        self.dtype = wanted.name
        self.eps, self.max, self.min = float(found.eps), float(found.max), float(found.min)
        self.tiny = self.smallest_normal = float(found.tiny)


class iinfo:
    """What an integer dtype can hold, as Python numbers: bits, max, min, dtype.

    Raises TypeError for a dtype that is not an integer.
    """

    def __init__(self, dtype: Any) -> None:
        wanted = as_dtype(dtype)
        if wanted.kind not in "iu":
            raise TypeError(f"iinfo(): expected an integer dtype, got {wanted.name}; see finfo")
        found = np.iinfo(wanted)
        self.bits, self.max, self.min = found.bits, int(found.max), int(found.min)
        self.dtype = wanted.name


namespace(globals())
