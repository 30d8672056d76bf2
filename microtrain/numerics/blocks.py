"""Functions of real numbers, block by block, and quotients of polynomials.

Blocks that fit in the cache go through all steps before the next block begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

BLOCK = 8192  # elements


def blockwise(function: Callable[..., Any], x: Any, out: Any) -> Any:
    """`function(block, its result)` over all blocks of `x`; float16 is computed in float32."""
    x = np.asarray(x)
    flat = x.reshape(-1)
    if out is None:
        out = np.empty(x.shape, x.dtype)
    direct = out.flags.c_contiguous
    result = out.reshape(-1) if direct else np.empty(flat.shape, x.dtype)
    wide = np.promote_types(x.dtype, np.float32)
    for start in range(0, flat.shape[0], BLOCK):
        block = flat[start : start + BLOCK].astype(wide, copy=False)
        function(block, result[start : start + BLOCK])
    if not direct:
        out[...] = result.reshape(x.shape)
    return out


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """`f(x, ..., out=None)` that computes with float64 inside, without warnings of what is NaN."""

    @functools.wraps(function)
    def call(x: Any, *numbers: Any, out: Any = None) -> Any:
        def of_block(block: Any, result: Any) -> None:
            with np.errstate(all="ignore"):
                result[...] = function(block.astype(np.float64, copy=False), *numbers)

        return blockwise(of_block, x, out)

    return call


def quotient(polynomials: Any, s: Any, *outs: Any) -> Any:
    above, below = map(horner, polynomials, (s, s), outs or (None, None))
    above /= below
    return above


def horner(coefficients: tuple[float, ...], s: Any, out: Any = None) -> Any:
    result = np.multiply(s, coefficients[-1], out=out)
    for c in coefficients[-2:0:-1]:
        result += c
        result *= s
    result += coefficients[0]
    return result
