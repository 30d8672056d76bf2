"""Gradients in 16 bits on slow networks: half the bytes, and what is lost now is sent later.

An all_reduce whose messages are float16 or bfloat16 and whose sums are not: every rank gets all
ranks' version of its part of the elements, adds them up in the gradient's own dtype, and sends the
sum to all. What rounding has cut off, of the own values before and of the sums after, is kept and
added to the next step's (error feedback: Seide et al. 2014, "1-Bit Stochastic Gradient Descent";
for both directions Tang et al. 2019, "DoubleSqueeze"). So over many steps nothing is lost.

float16 has 11 significant bits and a small range: every message has a power of two as its scale.
bfloat16 has 8 bits and the range of float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from .communicator import Array, Communicator

COMPRESSIONS: Final = ("none", "fp16", "bf16")
_HIGHEST: Final = 14  # the largest value of a float16 message is scaled to at most 2 to this
_HEAD: Final = 4  # words of a message before its elements: the scale


def nothing_owed(comm: Communicator, gradient: Array) -> Array:
    """What `all_reduce` of such a flat gradient owes at first, float32 or float64 as it is.

    A row for each rank's part of the elements, and one for the sums of this rank's own part.
    """
    return np.zeros((comm.size + 1, -(-gradient.size // comm.size)), gradient.dtype)


def all_reduce(
    comm: Communicator, kind: str, gradient: Array, owed: Array, footer: Sequence[float] = ()
) -> Any:
    """Add up `gradient` over the ranks, in place; the same bits on every rank. Collective.

    Args:
        kind: "fp16" or "bf16".
        owed: what earlier calls have cut off, from `nothing_owed` on; it changes.
        footer: a few numbers that are added up exactly as they are, with no messages of their own;
            their sums are returned.
    """
    own, total = owed[:-1], owed[-1:]
    own.reshape(-1)[: gradient.size] += gradient
    stop = _HEAD + owed.shape[1]
    received = comm.all_to_all(_packed(kind, own, footer))
    for values in _unpacked(kind, received[:, :stop], owed.dtype):  # in rank order
        total += values
    sums = comm.all_gather(_packed(kind, total)[0])
    gradient[...] = _unpacked(kind, sums, owed.dtype).reshape(-1)[: gradient.size]
    return np.ascontiguousarray(received[:, stop:]).view(np.float64).sum(axis=0)


def _packed(kind: str, values: Array, footer: Sequence[float] = ()) -> Array:
    """A message for each row of `values`, in 16-bit words; what that cuts off stays in `values`."""
    scales = np.ones((len(values), 1))
    with np.errstate(all="ignore"):
        if kind == "fp16":
            highest = np.abs(values).max(axis=1, initial=0.0, keepdims=True).astype(np.float64)
            # Values that are not finite go as they are: all ranks must see them.
            there = (highest > 0) & (highest < math.inf)
            halves, exponents = np.frexp(highest[there])  # 2**(e - 1) <= highest < 2**e
            exponents = _HIGHEST - exponents + (halves == 0.5)
            scales[there] = np.ldexp(1.0, np.minimum(1000, exponents))
            short = (values * scales.astype(values.dtype)).astype(np.float16).view(np.uint16)
        else:
            short = to_bfloat16(values)
        exact = np.tile(np.asarray(footer, np.float64).view(np.uint16), (len(values), 1))
        message = np.hstack([scales.view(np.uint16), short, exact])
        values -= _unpacked(kind, message[:, : _HEAD + values.shape[1]], values.dtype)
    np.copyto(values, 0, where=~np.isfinite(values))  # nothing is owed of inf and NaN
    return message


def _unpacked(kind: str, words: Array, dtype: Any) -> Array:
    scales, short = words[:, :_HEAD].view(np.float64).astype(dtype), words[:, _HEAD:]
    values: Array = from_bfloat16(short) if kind == "bf16" else short.view(np.float16)
    return values.astype(dtype) / scales


def to_bfloat16(values: Array) -> Array:
    """The nearest bfloat16, ties to even, as 16-bit words."""
    words = values.astype(np.float32).view(np.uint32)
    rounded = (words + (0x7FFF + ((words >> 16) & 1))) >> 16
    quiet = (words >> 16) | 0x40  # rounding could make a NaN an infinity
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def from_bfloat16(words: Array) -> Array:
    """The float32 values of 16-bit words."""
    return (words.astype(np.uint32) << 16).view(np.float32)
