"""Attention: averages of values, weighted by how well their keys fit a query."""

from __future__ import annotations

import math
from typing import Annotated, Any

from ...backend import XP, bool_, float16, float32
from ...tensor import Tensor, wrap
from ..coercion import cast
from ..fronts import FloatOnly, Probability, SameDtype, TensorOnly, need, of_dims, public
from ..matrix.linear_algebra import matmul
from ..pointwise.elementwise import logical_not, where
from ..reduce.reductions import any as any_of
from ..reduce.reductions import softmax_dim
from ..shape.shapes import expand_to, reshape_to, transpose, unsqueeze
from .dropout import dropout

_NAME = "scaled_dot_product_attention"
_Query = Annotated[FloatOnly, of_dims(2)]
_Key = Annotated[SameDtype, of_dims(2)]


@public
def scaled_dot_product_attention(
    query: _Query, key: _Key, value: _Key, attn_mask: TensorOnly | None = None,
    dropout_p: Probability = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """`softmax(query @ key.T * scale + mask) @ value`: Vaswani et al., 2017.

    Args:
        query: (..., targets, size), such as (batch, heads, targets, size).
        key: (..., sources, size); leading dimensions broadcast.
        value: (..., sources, value size).
        attn_mask: broadcast to (..., targets, sources). Booleans: True where a target may look;
            floats: added to the products. A target that may look nowhere gets zeros.
        dropout_p: the probability of a weight to become 0, whether training or not.
        is_causal: target i looks at the sources 0 to i only.
        scale: None is 1 / sqrt(size).
        enable_gqa: whether fewer heads of key and value serve several heads of the query each.

    Raises RuntimeError for shapes and dtypes that do not fit, for a probability outside 0 to 1 and
    for a mask together with `is_causal`, TypeError for anything but Tensors.
    """
    known = attn_mask is None or attn_mask.dtype in (bool_, float32, query.dtype)
    need(known, _NAME, "expected attn_mask of bool, float32 or the dtype of the query", attn_mask)
    if query.dtype == float16:  # computed in single, as in PyTorch: rounded once, at the end
        q, k, v = (cast(x, float32) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == float16:
            attn_mask = cast(attn_mask, float32)
        options: Any = attn_mask, dropout_p, is_causal, scale, enable_gqa
        return cast(scaled_dot_product_attention(q, k, v, *options), float16)
    if enable_gqa:
        key, value = (_repeat_heads(x, query.shape[-3]) for x in (key, value))
    scale = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale
    scores = matmul(query * scale, transpose(key, -2, -1))
    blind = None
    if is_causal:
        need(attn_mask is None, _NAME, "give attn_mask or is_causal, not both")
        xp, (targets, sources) = XP[type(scores._array)], scores.shape[-2:]
        rows = xp.reshape(xp.arange(targets), (-1, 1))
        attn_mask = wrap(xp.greater_equal(rows, xp.arange(sources)))  # on and below the diagonal
    elif attn_mask is not None:
        # A target that may look nowhere looks everywhere, and its result is replaced.
        seen = attn_mask if attn_mask.dtype.kind == "b" else attn_mask != -math.inf
        blind = logical_not(any_of(seen, -1, True))
        attn_mask = where(blind, 0, attn_mask) if seen is not attn_mask else attn_mask | blind
    if attn_mask is not None and attn_mask.dtype.kind == "b":
        scores = where(attn_mask, scores, -math.inf)
    elif attn_mask is not None:
        scores = scores + cast(attn_mask, scores.dtype)
    weights = softmax_dim(scores, scores.ndim - 1)
    if dropout_p > 0:
        weights = dropout(weights, dropout_p, training=True)
    result = matmul(weights, value)
    return result if blind is None else where(blind, 0, result)


def _repeat_heads(x: Any, heads: int) -> Any:
    """`x` of (..., fewer heads, sources, size) with each head as often as makes `heads`."""
    *batch, fewer, sources, size = x.shape
    fits = fewer and not heads % fewer
    need(fits, _NAME, "{} heads of key or value must divide the {} of the query", fewer, heads)
    several = (*batch, fewer, heads // fewer, sources, size)
    return reshape_to(expand_to(unsqueeze(x, -3), several), (*batch, heads, sources, size))
