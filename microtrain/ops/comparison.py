"""Comparison, logic and tests of numbers: elementwise operations without a gradient."""

from __future__ import annotations

from .registry import comparison

eq = comparison("eq", "equal", "`x == y`, elementwise.")
ne = comparison("ne", "not_equal", "`x != y`, elementwise.")
lt = comparison("lt", "less", "`x < y`, elementwise.")
le = comparison("le", "less_equal", "`x <= y`, elementwise.")
gt = comparison("gt", "greater", "`x > y`, elementwise.")
ge = comparison("ge", "greater_equal", "`x >= y`, elementwise.")
logical_and = comparison(
    "logical_and", "logical_and", "Whether both are true (not 0), elementwise."
)
logical_or = comparison("logical_or", "logical_or", "Whether one is true (not 0), elementwise.")
logical_xor = comparison(
    "logical_xor", "logical_xor", "Whether exactly one is true (not 0), elementwise."
)
logical_not = comparison(
    "logical_not", "logical_not", "Whether `x` is false (0), elementwise.", ("x",)
)
bitwise_and = comparison(
    "bitwise_and", "bitwise_and", "`x & y` for booleans and integers, elementwise."
)
bitwise_or = comparison(
    "bitwise_or", "bitwise_or", "`x | y` for booleans and integers, elementwise."
)
bitwise_xor = comparison(
    "bitwise_xor", "bitwise_xor", "`x ^ y` for booleans and integers, elementwise."
)
bitwise_not = comparison(
    "bitwise_not", "invert", "`~x` for booleans and integers, elementwise.", ("x",)
)
isnan = comparison("isnan", "isnan", "Whether `x` is NaN, elementwise.", ("x",))
isinf = comparison("isinf", "isinf", "Whether `x` is infinite, elementwise.", ("x",))
isfinite = comparison(
    "isfinite", "isfinite", "Whether `x` is neither infinite nor NaN, elementwise.", ("x",)
)
