"""Instructions on single elements, as expressions of Python that numba compiles, or of CUDA's C++.

`{0}` and `{1}` are the operands, already in the type that NumPy computes in, and `{t}` is that
type. What has no expression here is left to NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

DTYPES = {
    np.dtype(name): name
    for name in ("bool", "uint8", "uint32", "int8", "int16", "int32", "int64", "float32", "float64")
}

_OF_NUMBERS = {
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "negative": "-{0}",
    "square": "{0} * {0}",
    "absolute": "abs({0})",
    # The first where it is NaN; where the second is, no comparison holds; of two zeros the second.
    "maximum": "{0} if {0} > {1} or {0} != {0} else {1}",
    "minimum": "{0} if {0} < {1} or {0} != {0} else {1}",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
}
# numba takes it that signed integers do not overflow; in NumPy they wrap around, as unsigned do.
_OF_INTEGERS = {
    "add": "uint64({0}) + uint64({1})",
    "subtract": "uint64({0}) - uint64({1})",
    "multiply": "uint64({0}) * uint64({1})",
    "square": "uint64({0}) * uint64({0})",
}
_OF_FLOATS = {
    "divide": "{0} / {1}",
    "reciprocal": "{t}(1) / {0}",
    "sqrt": "math.sqrt({0})",
    "floor": "math_floor({0})",
    "ceil": "math_ceil({0})",
    "sign": "{0} if {0} != {0} else {t}({0} > 0) - {t}({0} < 0)",
    "isnan": "{0} != {0}",
    "isinf": "abs({0}) == math.inf",
    "isfinite": "abs({0}) < math.inf",
}
# Functions of a library of mathematics, one element at a time: NumPy does many at once.
_SLOW = {
    name: f"math.{name}({{0}})"
    for name in ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sinh", "cosh", "erf",
                 "erfc")
} | {
    "arctan": "math.atan({0})",
    "power": "{0} ** {1}",
}  # fmt: skip
_OF_TRUTHS = {
    "logical_and": "{0} and {1}",
    "logical_or": "{0} or {1}",
    "logical_xor": "{0} != {1}",
    "logical_not": "not {0}",
    "bitwise_and": "{0} and {1}",
    "bitwise_or": "{0} or {1}",
    "bitwise_xor": "{0} != {1}",
    "invert": "not {0}",
    "add": "{0} or {1}",
    "multiply": "{0} and {1}",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "maximum": "{0} or {1}",
    "minimum": "{0} and {1}",
}
SLOW_FROM = 1024  # elements: from here NumPy is faster, its call included


_IN_C_OF_FLOATS = {
    name: f"{function}({{0}})"
    for name, function in {
        **{same: same for same in ("exp", "expm1", "log", "log1p", "log2", "log10", "sin", "cos",
                                   "tan", "tanh", "sinh", "cosh", "sqrt", "floor", "ceil", "trunc",
                                   "rint", "erf", "erfc", "isfinite", "isinf", "signbit")},
        "arctan": "atan", "arcsin": "asin", "arccos": "acos", "absolute": "fabs",
    }.items()
} | {
    "divide": "{0} / {1}",
    "reciprocal": "{t}(1) / {0}",
    "sign": "({0} < 0 || {0} > 0) ? copysign({t}(1), {0}) : {0} - {0}",
    "isnan": "{0} != {0}",
    "maximum": "({0} != {0} || {1} != {1}) ? {t}({nan}) : max({0}, {1})",
    "minimum": "({0} != {0} || {1} != {1}) ? {t}({nan}) : min({0}, {1})",
    "power": "{pow}({0}, {1})",
    "copysign": "copysign({0}, {1})",
}  # fmt: skip
_IN_C_OF_NUMBERS = {name: text for name, text in _OF_NUMBERS.items() if " if " not in text} | {
    "absolute": "{0} > 0 ? {0} : -{0}",
    "maximum": "max({0}, {1})",
    "minimum": "min({0}, {1})",
}
_IN_C_OF_TRUTHS = {
    name: text.replace(" and ", " && ").replace(" or ", " || ").replace("not ", "!")
    for name, text in _OF_TRUTHS.items()
}


class Language(NamedTuple):
    """The templates by the kind of what they take, and those that NumPy does faster when large."""

    floats: dict[str, str]
    numbers: dict[str, str]
    integers: dict[str, str]
    truths: dict[str, str]
    slow: dict[str, str]
    where: str


PYTHON = Language(
    _OF_FLOATS, _OF_NUMBERS, _OF_INTEGERS, _OF_TRUTHS, _SLOW, "{1} if {0} else {2}"
)  # fmt: skip
C = Language(_IN_C_OF_FLOATS, _IN_C_OF_NUMBERS, {}, _IN_C_OF_TRUTHS, {}, "{0} ? {1} : {2}")


class Expression(NamedTuple):
    """How one element is computed.

    Attributes:
        text: the template.
        taken: the dtypes that the operands are converted to.
        given: the dtype of the result, before it is converted to that of the array.
    """

    text: str
    taken: tuple[Any, ...]
    given: Any


def expression(
    language: Language, name: str, args: tuple[Any, ...], attrs: dict[str, Any], size: int
) -> Any:
    """The Expression of a ufunc called with `args`; None where the library has to do it."""
    if name in ("erf", "erfc"):
        dtype = args[0].dtype
        text = language.floats.get(name) or (language.slow[name] if size < SLOW_FROM else None)
        fits = not attrs and dtype.kind == "f" and dtype in DTYPES
        return Expression(text, (dtype,), dtype) if fits and text else None
    ufunc = getattr(np, name, None)
    if not isinstance(ufunc, np.ufunc) or ufunc.nout != 1 or attrs.keys() - {"dtype"}:
        return None
    kinds = [type(a) if type(a) in (int, float) else _dtype_of(a) for a in args]
    wanted = attrs.get("dtype")
    how: dict[str, Any] = {}
    if wanted is not None:
        how["signature"] = (*(None for _ in args), np.dtype(wanted))
    try:
        *taken, given = ufunc.resolve_dtypes((*kinds, None), **how)
    except TypeError:
        return None
    if any(dtype not in DTYPES for dtype in (*taken, given)):
        return None
    kind = taken[0].kind
    text = None
    if kind == "b":
        text = language.truths.get(name)
    elif kind == "f" and name in language.slow:
        text = language.slow[name] if size < SLOW_FROM else None
    elif kind == "f" and name in language.floats:
        text = language.floats[name]
    elif kind != "f" and name in language.integers:
        text = language.integers[name]
    else:
        text = language.numbers.get(name)
    return None if text is None else Expression(text, tuple(taken), given)


def _dtype_of(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype


def converted(text: str, old: Any, new: Any) -> str:
    """`text`, a value of dtype `old`, as one of `new`."""
    if old == new:
        return text
    if new.kind == "b":
        return f"{text} != 0"
    return f"{DTYPES[new]}({text})"


def literal(value: Any, dtype: Any) -> str:
    """A number as a constant of `dtype`."""
    if dtype.kind == "b":
        return repr(bool(value))
    if dtype.kind == "f":
        number = float(dtype.type(value))
        text = repr(number)
        text = (
            text if np.isfinite(number) else f"math.{text}" if number >= 0 else f"-math.{text[1:]}"
        )
        text = "math.nan" if number != number else text
        return f"{DTYPES[dtype]}({text})"
    return f"{DTYPES[dtype]}({int(value)})"
