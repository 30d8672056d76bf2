"""Instructions on single elements, as expressions of C: of the host's, or of CUDA's.

`{0}` and `{1}` are the operands, already in the type that NumPy computes in, `{t}` is that type,
and `{f}` is what the functions of C for it end with (`{p}`: pow). What has no expression here is
left to NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

DTYPES = {
    np.dtype(name): name
    for name in ("bool", "uint8", "uint32", "int8", "int16", "int32", "int64", "float32", "float64")
}

# Functions of functions.c, which a loop computes many of at once.
OWN = ("exp", "expm1", "log", "log1p", "tanh", "erf")
# And those which it computes for float32; for float64 they are as the next ones.
OWN_OF_FLOAT32 = ("sin", "cos", "power")
# Those of a library of mathematics, one element at a time: NumPy does many at once.
SLOW = {
    **{name: name for name in ("log2", "log10", "exp2", "sin", "cos", "tan", "sinh", "cosh")},
    "erfc": "erfc", "arctan": "atan", "arcsin": "asin", "arccos": "acos", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip
SLOW_OF_TWO = {"arctan2": "atan2", "hypot": "hypot", "fmod": "fmod"}
# As NumPy has them, of functions.c.
DIVISIONS = "floor_divide", "remainder"
# Elements from which NumPy is faster, another pass over memory included; and own code, in Python.
SLOW_FROM, SLOW_FROM_OF_ERFC = 256, 1024

NUMBERS = {
    "add": "{0} + {1}",
    "subtract": "{0} - {1}",
    "multiply": "{0} * {1}",
    "negative": "-{0}",
    "square": "{0} * {0}",
    "absolute": "{0} > 0 ? {0} : -{0}",
    "maximum": "{0} > {1} ? {0} : {1}",
    "minimum": "{0} < {1} ? {0} : {1}",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "sign": "{0} > 0 ? 1 : -({0} != 0)",
    "logical_and": "({0} != 0) & ({1} != 0)",
    "logical_or": "({0} != 0) | ({1} != 0)",
    "logical_xor": "({0} != 0) != ({1} != 0)",
    "logical_not": "{0} == 0",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "invert": "~{0}",
    **{name: f"mt_{name}_{{t}}({{0}}, {{1}})" for name in (*DIVISIONS, "fmod")},
}
FLOATS = {
    **NUMBERS,
    # The first where it is NaN; where the second is, no comparison holds; of two zeros the second.
    "maximum": "(({0} > {1}) | ({0} != {0})) ? {0} : {1}",
    "minimum": "(({0} < {1}) | ({0} != {0})) ? {0} : {1}",
    **{name: f"mt_{name}{{f}}({{0}})" for name in OWN},
    **{name: f"{function}{{f}}({{0}})" for name, function in SLOW.items()},
    **{name: f"mt_{name}_{{t}}({{0}}, {{1}})" for name in DIVISIONS},
    **{name: f"{function}{{f}}({{0}}, {{1}})" for name, function in SLOW_OF_TWO.items()},
    "sin": "mt_sin{f}({0})",
    "cos": "mt_cos{f}({0})",
    "power": "mt_pow{p}({0}, {1})",
    **{name: f"{name}{{f}}({{0}})" for name in ("sqrt", "floor", "ceil", "trunc", "rint")},
    "absolute": "fabs{f}({0})",
    "copysign": "copysign{f}({0}, {1})",
    "divide": "{0} / {1}",
    "reciprocal": "1 / {0}",
    "sign": "{0} != {0} ? {0} : ({0} > 0) - ({0} < 0)",
    "signbit": "signbit({0})",
    "isnan": "{0} != {0}",
    "isfinite": "{0} - {0} == 0",
    "isinf": "({0} == {0}) & ({0} - {0} != 0)",
}
# What CuPy's kernels do: the larger zero, and a NaN of its own.
FLOATS_OF_CUDA = FLOATS | {
    **{name: f"{name}({{0}})" for name in (*OWN, "sin", "cos")},
    "power": "pow{p}({0}, {1})",
    "exp2": "pow(({t})2, {0})",
    "maximum": "({0} != {0} || {1} != {1}) ? ({t})NaN : max({0}, {1})",
    "minimum": "({0} != {0} || {1} != {1}) ? ({t})NaN : min({0}, {1})",
}
TRUTHS = {
    **dict.fromkeys(("logical_and", "bitwise_and", "multiply", "minimum"), "{0} & {1}"),
    **dict.fromkeys(("logical_or", "bitwise_or", "add", "maximum"), "{0} | {1}"),
    **dict.fromkeys(("logical_xor", "bitwise_xor", "not_equal"), "{0} != {1}"),
    **dict.fromkeys(("logical_not", "invert"), "!{0}"),
    "equal": "{0} == {1}",
}


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
    name: str, args: tuple[Any, ...], attrs: dict[str, Any], size: int, cuda: bool
) -> Any:
    """The Expression of a ufunc called with `args`; None where the library has to do it."""
    floats = FLOATS_OF_CUDA if cuda else FLOATS
    if name in ("erf", "erfc"):  # no functions of NumPy
        dtype = args[0].dtype
        small = name == "erf" or size < SLOW_FROM_OF_ERFC or cuda
        fits = small and not attrs and dtype.kind == "f" and dtype in DTYPES
        return Expression(floats[name], (dtype,), dtype) if fits else None
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
    fast = cuda or (name in OWN_OF_FLOAT32 and given == np.float32)
    if name in SLOW.keys() | SLOW_OF_TWO | {"power"} and size >= SLOW_FROM and not fast:
        return None
    text = {"b": TRUTHS, "f": floats}.get(taken[0].kind, NUMBERS).get(name)
    if text is None or (cuda and "mt_" in text):
        return None
    return Expression(text, tuple(taken), given)


_SIGMOID, _LOWEST = "mt_sigmoidf({0})", "(-3.4028234663852886e+38f)"


def meant(text: str, args: list[str], made: dict[str, tuple[str, ...]]) -> tuple[str, list[str]]:
    """A template and its operands, or the function of functions.c that they come to: a sigmoid, or
    a product with it, is rounded once there, and four times by the instructions that it is made of.

    Args:
        args: the names of the operands, of float32.
        made: by name of a value, the template and the names that it was made of.
    """
    if len(args) != 2:
        return text, args
    a, b = (made.get(name, ("",)) for name in args)
    if text == FLOATS["divide"] and (a[0], b) == (FLOATS["exp"], (FLOATS["add"], args[0], "1.0f")):
        bounded = made.get(a[1], ("",))
        if bounded[::2] == (FLOATS["minimum"], "88.0f"):
            return _SIGMOID, [bounded[1]]
    if text == FLOATS["multiply"] and b[0] == _SIGMOID and a == (FLOATS["maximum"], b[1], _LOWEST):
        return "mt_siluf({0})", [b[1]]
    return text, args


def _dtype_of(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype


def literal(value: Any, dtype: Any) -> str:
    """A number as a constant of `dtype`."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind != "f":
        text = f"{int(value)}LL" if value > -(2**63) else f"({int(value) + 1}LL - 1)"
        return f"(({DTYPES[dtype]}){text})"
    number = float(dtype.type(value))
    text = f"{number!r}{'f' if dtype.itemsize == 4 else ''}"
    if not np.isfinite(number):
        text = f"({DTYPES[dtype]}){'NaN' if number != number else 'Inf' if number > 0 else '-Inf'}"
    return f"({text})" if text[0] in "-(" else text
