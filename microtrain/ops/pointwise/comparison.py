"""Comparison, logic, tests of numbers and of integers: elementwise, without a gradient."""

from __future__ import annotations

from ..registry import comparison

__all__ = [
    "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "eq", "gcd", "ge", "greater", "greater_equal", "gt", "isfinite", "isinf",
    "isnan", "lcm", "le", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lt", "ne", "not_equal",
]  # fmt: skip

eq = comparison("eq", "equal", "`x == y`")
ne = comparison("ne", "not_equal", "`x != y`")
lt = comparison("lt", "less", "`x < y`")
le = comparison("le", "less_equal", "`x <= y`")
gt = comparison("gt", "greater", "`x > y`")
ge = comparison("ge", "greater_equal", "`x >= y`")
logical_and = comparison("logical_and", "logical_and", "Whether both are true (not 0)")
logical_or = comparison("logical_or", "logical_or", "Whether one is true (not 0)")
logical_xor = comparison("logical_xor", "logical_xor", "Whether exactly one is true (not 0)")
logical_not = comparison("logical_not", "logical_not", "Whether `x` is false (0)", ("x",))
bitwise_and = comparison("bitwise_and", "bitwise_and", "`x & y` for booleans and integers")
bitwise_or = comparison("bitwise_or", "bitwise_or", "`x | y` for booleans and integers")
bitwise_xor = comparison("bitwise_xor", "bitwise_xor", "`x ^ y` for booleans and integers")
bitwise_not = comparison("bitwise_not", "invert", "`~x` for booleans and integers", ("x",))
bitwise_left_shift = comparison("bitwise_left_shift", "left_shift", "`x << y` for integers")
bitwise_right_shift = comparison("bitwise_right_shift", "right_shift", "`x >> y` for integers")
gcd = comparison("gcd", "gcd", "The greatest common divisor of integers")
lcm = comparison("lcm", "lcm", "The least common multiple of integers")
isnan = comparison("isnan", "isnan", "Whether `x` is NaN", ("x",))
isinf = comparison("isinf", "isinf", "Whether `x` is infinite", ("x",))
isfinite = comparison("isfinite", "isfinite", "Whether `x` is neither infinite nor NaN", ("x",))

greater, greater_equal, less, less_equal, not_equal = gt, ge, lt, le, ne
