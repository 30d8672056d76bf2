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
from typing import Any, Final

import numpy as np

from .communicator import Array, Communicator

__all__ = ["COMPRESSIONS", "Compressor"]

COMPRESSIONS: Final = ("none", "fp16", "bf16")
_HIGHEST: Final = 14  # the largest value of a float16 message is scaled to at most 2 to this
_HEAD: Final = 8  # bytes of a message before its elements: the scale


class Compressor:
    """A compressed all_reduce for one flat gradient, with what it still owes.

    Args:
        comm: who takes part.
        kind: "fp16" or "bf16".
        size: elements of the gradient.
        dtype: float32 or float64.
    """

    def __init__(self, comm: Communicator, kind: str, size: int, dtype: Any) -> None:
        self.comm = comm
        self.half = kind == "fp16"
        self.size = size
        self.part = -(-size // comm.size)
        # What was cut off: of this rank's gradient, and of the sums of its part.
        self.owed = np.zeros(comm.size * self.part, dtype)
        self.owed_sum = np.zeros(self.part, dtype)

    def all_reduce(self, gradient: Array, lane: list[float] | None = None) -> Any:
        """Add up `gradient` over the ranks, in place; the same bits on every rank. Collective.

        `lane`: a few numbers that are added up exactly as they are, with no messages of their own;
        their sums are returned.
        """
        extra = np.asarray([] if lane is None else lane, np.float64)
        ranks, part = self.comm.size, self.part
        self.owed[: self.size] += gradient
        lane_at = _HEAD + 2 * part
        sent = np.empty((ranks, lane_at + 8 * extra.size), np.uint8)
        self._pack(self.owed.reshape(ranks, part), sent[:, :lane_at])
        sent[:, lane_at:] = extra.view(np.uint8)
        received = self.comm.all_to_all(sent)
        total = self.owed_sum.reshape(1, part)
        for values in self._unpacked(received[:, :lane_at]):  # in rank order
            total += values
        packed = np.empty((1, lane_at), np.uint8)
        self._pack(total, packed)
        gradient[...] = self._unpacked(self.comm.all_gather(packed[0])).reshape(-1)[: self.size]
        if lane is None:
            return None
        lanes = np.ascontiguousarray(received[:, lane_at:]).view(np.float64)
        return lanes.sum(axis=0)

    def _pack(self, values: Array, messages: Array) -> None:
        """Write rows of `values` in 16 bits; what that cuts off stays in `values`."""
        scales = np.ones(len(values))
        if self.half:
            highest = np.abs(values).max(axis=1, initial=0.0).astype(np.float64)
            # Values that are not finite go as they are: all ranks must see them.
            there = (highest > 0) & (highest < math.inf)
            halves, exponents = np.frexp(highest[there])  # 2**(e - 1) <= highest < 2**e
            exponents = _HIGHEST - exponents + (halves == 0.5)
            scales[there] = np.ldexp(1.0, np.minimum(1000, exponents))
        messages[:, :_HEAD].view(np.float64)[:, 0] = scales
        with np.errstate(all="ignore"):
            if self.half:
                short = (values * scales.astype(values.dtype)[:, None]).astype(np.float16)
            else:
                short = to_bfloat16(values)
        messages[:, _HEAD:].view(short.dtype)[...] = short
        with np.errstate(all="ignore"):
            values -= self._unpacked(messages)
        np.copyto(values, 0, where=~np.isfinite(values))  # nothing is owed of inf and NaN

    def _unpacked(self, messages: Array) -> Array:
        dtype, body = self.owed.dtype, messages[:, _HEAD:]
        if self.half:
            scales = messages[:, :_HEAD].view(np.float64).astype(dtype)
            values: Array = body.view(np.float16).astype(dtype) / scales
            return values
        return from_bfloat16(body.view(np.uint16)).astype(dtype)


def to_bfloat16(values: Array) -> Array:
    """The nearest bfloat16, ties to even, as 16-bit words."""
    words = values.astype(np.float32).view(np.uint32)
    rounded = (words + (0x7FFF + ((words >> 16) & 1))) >> 16
    quiet = (words >> 16) | 0x40  # rounding could make a NaN an infinity
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)


def from_bfloat16(words: Array) -> Array:
    """The float32 values of 16-bit words."""
    return (words.astype(np.uint32) << 16).view(np.float32)
