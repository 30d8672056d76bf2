"""Decimal texts as float64, many at once in NumPy, and exactly as Python's float() reads them.

A text such as -123.4567 is two runs of digits. Eight digits are one word of 64 bits, and three
multiplications make the number of it (D. Lemire, "Quickly parsing eight digits", 2022). A quotient
of integers below 2**53 is rounded once and so exact (W. Clinger, "How to read floating point
numbers accurately", 1990); a longer one is computed in twice the digits (T. Dekker, 1971), unless
even these leave open to which side it is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BEFORE", "decimals", "words_before"]

Array = NDArray[Any]
BEFORE = 24  # bytes that must stand in the buffer before the first text
_DIGITS = 19  # that fit into 64 bits
_TENS = 10 ** np.arange(_DIGITS + 1, dtype=np.uint64)
_FLOATS = _TENS.astype(np.float64)  # exactly
# By word of eight bytes and length of a run: the bytes of the word that are of the run.
_UNUSED = 64 - 8 * np.clip(np.arange(BEFORE + 1) - [[0], [8], [16]], 0, 8)
_KEPT = np.uint64(2**64 - 1) << _UNUSED.astype(np.uint64)


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
    total = np.zeros(len(ends), np.uint64)
    odd = np.zeros(len(ends), np.uint64)
    counts = np.minimum(np.maximum(counts, 0), BEFORE)
    words = words_before(data, ends, -(-int(counts.max(initial=0)) // 8))
    for k, word in zip(range(0, BEFORE, 8), words, strict=False):
        word ^= np.uint64(0x3030303030303030)
        word &= _KEPT[k // 8].take(counts)  # not what stands before the run
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


def words_before(data: bytes, ends: Array, count: int) -> Iterator[Array]:
    """The eight bytes before `ends` as uint64, then those before them, and so on.

    NumPy takes what is aligned eight times as fast as what is not, so a word is made of two.
    """
    data += bytes(-len(data) % 8)  # no copy where there is nothing to add
    words = np.frombuffer(data, "<u8")
    at = ends - 8
    places = at >> 3
    down = (at & 7).astype(np.uint64) << np.uint64(3)
    up = np.uint64(64) - down
    high = words.take(places + 1, mode="clip")  # behind the last is nothing, and none of it needed
    for k in range(count):
        low = words.take(places - k, mode="clip")
        yield low >> down | high << up
        high = low


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
