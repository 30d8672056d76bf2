"""Decimal texts as float64, many at once in NumPy, and exactly as Python's float() reads them.

A text such as -123.4567 is two runs of digits. Eight digits are one word of 64 bits, and three
multiplications make the number of it (D. Lemire, "Quickly parsing eight digits", 2022). A quotient
of integers below 2**53 is rounded once and so exact (W. Clinger, "How to read floating point
numbers accurately", 1990); a longer one is computed in twice the digits (T. Dekker, 1971), unless
even these leave open to which side it is rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BEFORE", "decimals"]

Array = NDArray[Any]
BEFORE = 24  # bytes that must stand in the buffer before the first text
_DIGITS = 19  # that fit into 64 bits
_TENS = 10 ** np.arange(_DIGITS + 1, dtype=np.uint64)
_FLOATS = _TENS.astype(np.float64)  # exactly


def decimals(data: bytes, starts: Array, points: Array, ends: Array) -> tuple[Array, Array]:
    """Numbers whose digits stand in `data` from `starts` to `ends`, with decimals behind `points`.

    Args:
        data: ASCII or not, with `BEFORE` bytes before the first text.
        starts: offsets, int64 of shape (n,).
        points: those of the decimal points; where there is none, the end.
        ends: those behind the last character.

    Returns the numbers, float64 of shape (n,), and which of the texts are such: a sign or none, up
    to 19 digits, and digits on both sides of a point. For others the number is any.
    """
    first = np.frombuffer(data, np.uint8)[np.minimum(starts, len(data) - 1)]
    minus = first == ord("-")
    signed = minus | (first == ord("+"))
    whole = points - starts - signed
    part = ends - points - 1
    fine = (whole > 0) & (part != 0)
    part = np.maximum(part, 0)
    fine &= whole + part <= _DIGITS
    part = np.minimum(part, _DIGITS)
    left, odd_left = _integers(data, points, whole)
    right, odd_right = _integers(data, ends, part)
    fine &= (odd_left | odd_right) == 0
    integers = left * _TENS[part] + right
    values = integers.astype(np.float64)
    values /= _FLOATS[part]
    large = np.flatnonzero(fine & (integers > 1 << 53))
    if len(large):
        values[large], fine[large] = _quotients(integers[large], _FLOATS[part[large]])
    np.negative(values, out=values, where=minus)
    return values, fine


def _integers(data: bytes, ends: Array, counts: Array) -> tuple[Array, Array]:
    """Runs of `counts` digits up to `ends` as uint64, and what is not 0 where one is none."""
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))  # from every byte on
    total = np.zeros(len(ends), np.uint64)
    odd = np.zeros(len(ends), np.uint64)
    longest = min(int(counts.max(initial=0)), BEFORE)
    for k in range(0, longest, 8):
        word = words[ends - (8 + k)]
        word ^= np.uint64(0x3030303030303030)
        unused = (64 - 8 * np.clip(counts - k, 0, 8)).astype(np.uint64)
        word >>= unused  # what stands before the run
        word <<= unused
        odd |= (word + np.uint64(0x7676767676767676)) | word
        word *= np.uint64(2561)
        word >>= np.uint64(8)
        word &= np.uint64(0x00FF00FF00FF00FF)
        word *= np.uint64(6553601)
        word >>= np.uint64(16)
        word &= np.uint64(0x0000FFFF0000FFFF)
        word *= np.uint64(42949672960001)
        word >>= np.uint64(32)
        total += word * np.uint64(10**k) if k else word
    return total, odd & np.uint64(0x8080808080808080)


def _quotients(integers: Array, divisors: Array) -> tuple[Array, Array]:
    """integers / divisors, rounded once, and which of them are surely so."""
    high = (integers & ~np.uint64(0x7FF)).astype(np.float64)
    low = (integers & np.uint64(0x7FF)).astype(np.float64)
    quotient = high / divisors
    product, error = _product(quotient, divisors)
    rest = (((high - product) - error) + low) / divisors
    rounded = quotient + rest
    beyond = np.abs(rest - (rounded - quotient))
    # In the middle between two numbers the last bits decide; below a power of 2 they lie closer.
    sure = (beyond < 0.499999 * np.spacing(rounded)) & (np.frexp(rounded)[0] != 0.5)
    return rounded, sure


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b rounded, and what that left out, exactly."""
    product = a * b
    a_high, b_high = _upper(a), _upper(b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _upper(x: Array) -> Array:
    """The upper half of the digits."""
    scaled = x * 134217729.0  # 2**27 + 1
    upper: Array = scaled - (scaled - x)
    return upper
