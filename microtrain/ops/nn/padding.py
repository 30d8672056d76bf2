"""Borders: `pad` with a constant, mirrored, repeated or wrapped around."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from ...tensor import Tensor
from ..fronts import Ints, T, need, one_of, public
from ..index.indexing import part
from ..pointwise.elementwise import clone
from ..registry import primitive
from ..shape.joining import cat
from ..shape.shapes import expand_to


def padded(xp, x, pads, value=0):
    """`x` with (before, after) elements added to its last dimensions, or taken away where negative.

    `x` itself where there is nothing to do.
    """
    if not any(map(any, pads)):
        return x
    lead = len(x.shape) - len(pads)
    ends = tuple(zip(x.shape[lead:], pads, strict=True))
    if all(low <= 0 and high <= 0 for low, high in pads):
        part = xp.getitem(x, (*(slice(None),) * lead, *(slice(-a, n + b) for n, (a, b) in ends)))
        return xp.copy(part)
    shape = (*x.shape[:lead], *(n + sum(pad) for n, pad in ends))
    out = xp.full(shape, value, x.dtype) if value else xp.zeros(shape, x.dtype)
    theirs = tuple(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in ends)
    ours = tuple(slice(max(a, 0), a + n + min(b, 0)) for n, (a, b) in ends)
    front = (slice(None),) * lead
    xp.setitem(out, (*front, *ours), xp.getitem(x, (*front, *theirs)))
    return out


@primitive(
    "constant_pad",
    input=lambda g, pads: constant_pad(g, tuple((-low, -high) for low, high in pads)),
    node_name="constant_pad_nd",
)
def constant_pad(xp, input, *, pads, value=0):
    result = padded(xp, input, pads, value)
    return xp.copy(result) if result is input else result


def _extended(x: Any, dim: int, low: int, high: int, mode: str) -> Any:
    """One dimension with `low` elements before and `high` after it, made of its own."""
    n = x.shape[dim]
    if mode == "circular":
        before, after = part(x, dim, n - low, n), part(x, dim, 0, high)
    elif mode == "reflect":
        before = part(x, dim, low, 0, -1)
        after = part(x, dim, n - 2, n - 2 - high if n - 2 - high >= 0 else None, -1)
    else:
        before, after = (
            expand_to(part(x, dim, at, at + 1), (*x.shape[:dim], count, *x.shape[dim + 1 :]))
            for at, count in ((0, low), (n - 1, high))
        )
    parts = [some for some, count in ((before, low), (x, 1), (after, high)) if count]
    return cat(parts, dim) if len(parts) > 1 else x


# The largest border that a dimension of n elements can give, of which `left` are not cut off.
_MOST = {
    "reflect": lambda n, left: n - 1,
    "replicate": lambda n, left: math.inf,
    "circular": lambda n, left: left,
}


_Mode = Annotated[str, one_of("constant", *_MOST)]


def _check_pads(input: Any, pad: Any, mode: str, value: Any) -> None:
    text = f"expected two numbers for each dimension to pad, at most {2 * input.ndim}"
    need(not len(pad) % 2 and len(pad) <= 2 * input.ndim, "pad", text, pad)
    if value is None:
        return
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    need(number, "pad", "argument 'value' must be a number", value, error=TypeError)
    need(mode == "constant", "pad", "mode {} doesn't take a value", mode)
    fits = input.dtype.kind == "f" or value == int(value)
    need(fits, "pad", "{} cannot be written into {}", value, input.dtype)


@public
def pad(input: T, pad: Ints, mode: _Mode = "constant", value: float | None = None) -> Tensor:
    """`input` with a border.

    Args:
        input: any shape; for other modes than "constant" with one or two dimensions before the
            padded ones.
        pad: two numbers for each padded dimension, before and after, the last dimension first:
            (left, right, top, bottom, ...). Negative ones cut off, from what is wrapped around
            before and from what is mirrored or repeated after that is made.
        mode: "constant"; "reflect" mirrors without repeating the edge; "replicate" repeats the
            edge; "circular" wraps around.
        value: of a constant border, 0 if not given.

    Raises:
        TypeError: `pad` or `value` of a wrong kind.
        RuntimeError: a number of pads that does not fit, a border wider than the mode can make, an
            unknown mode.

    Example:
        >>> mt.nn.functional.pad(mt.tensor([[1.0, 2.0, 3.0]]), (2, 1), mode="reflect")
        tensor([[3., 2., 1., 2., 3., 2.]])
    """
    _check_pads(input, pad, mode, value)
    pairs = tuple((pad[i], pad[i + 1]) for i in range(0, len(pad), 2))[::-1]
    lead = input.ndim - len(pairs)
    ends = tuple(zip(range(lead, input.ndim), input.shape[lead:], pairs, strict=True))
    if mode == "constant":
        for dim, n, (low, high) in ends:
            left = n + min(low, 0) + min(high, 0) >= 0 and n + low + high >= 0
            need(left, "pad", "{} cuts more than the {} of dimension {}", (low, high), n, dim)
        return constant_pad(input, pairs, 0 if value is None else value)
    fits = len(pairs) in (1, 2, 3) and lead in (1, 2)
    text = "mode {} pads the last 1 to 3 dimensions behind 1 or 2 others, got {} for {}"
    need(fits, "pad", text, mode, pad, input)
    result = input
    for dim, n, pair in ends:
        added, cut = (tuple(end(count, 0) for count in pair) for end in (max, min))
        most = _MOST[mode](n, n + sum(cut))
        text = f"mode {mode!r} cannot pad dimension {dim} of size {n} by {{}}: at most {most}"
        left = n > 0 and n + sum(pair) > 0
        need(max(pair) <= most and left, "pad", f"{text}, and something left", pair)
        cuts = (cut, *((0, 0),) * (input.ndim - 1 - dim)) if any(cut) else ()
        if cuts and mode == "circular":
            result = constant_pad(result, cuts)
        result = _extended(result, dim, added[0], added[1], mode)
        if cuts and mode != "circular":
            result = constant_pad(result, cuts)
    return clone(result) if result is input else result
