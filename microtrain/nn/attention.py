"""Attention with several heads: Vaswani et al., 2017."""

from __future__ import annotations

import math
from typing import Any

from ..creation import empty, zeros
from ..errors import need
from ..ops.nn.dropout import dropout as drop
from ..ops.pointwise.elementwise import where
from ..tensor import Tensor
from . import functional as F
from . import init
from .linear import Linear
from .module import Module
from .parameter import Parameter

_NAME = "MultiheadAttention"


class MultiheadAttention(Module):
    """Attention of `num_heads` heads, each over its part of the projected embeddings.

    Args:
        embed_dim: the size of queries and outputs.
        num_heads: a divisor of `embed_dim`.
        dropout: the probability of an attention weight to become 0 in training.
        bias: whether the projections add a vector.
        add_bias_kv, add_zero_attn: not supported: leave them as they are.
        kdim, vdim: the sizes of keys and values; None is `embed_dim`.
        batch_first: whether inputs are (batch, sequence, size), not (sequence, batch, size).
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises ValueError for sizes below 1 and for what is not supported, AssertionError where the
    heads do not divide `embed_dim`.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
        vdim: int | None = None, batch_first: bool = False, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        sizes = embed_dim > 0 and num_heads > 0
        text = "embed_dim and num_heads must be greater than 0"
        need(sizes, _NAME, text, embed_dim, num_heads, error=ValueError)
        text = "add_bias_kv and add_zero_attn are not supported"
        need(not add_bias_kv and not add_zero_attn, _NAME, text, error=ValueError)
        text = "embed_dim={} must be divisible by num_heads={}"
        need(not embed_dim % num_heads, _NAME, text, embed_dim, num_heads, error=AssertionError)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.dropout = dropout
        self.batch_first = batch_first
        one_weight = self.kdim == self.vdim == embed_dim
        shapes = {"q": embed_dim, "k": self.kdim, "v": self.vdim}
        for name, size in shapes.items():
            weight = None if one_weight else Parameter(empty(embed_dim, size, **kind))
            setattr(self, f"{name}_proj_weight", weight)
        whole = Parameter(empty(3 * embed_dim, embed_dim, **kind)) if one_weight else None
        self.in_proj_weight: Parameter | None = whole
        self.in_proj_bias = Parameter(zeros(3 * embed_dim, **kind)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, **kind)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the projections anew, as Glorot and Bengio, 2010; the biases are zeros."""
        for weight in self.parameters(recurse=False):
            if weight.ndim == 2:
                bound = math.sqrt(6 / sum(weight.shape))
                init.uniform_(weight, -bound, bound)
        self.out_proj.reset_parameters()
        if self.in_proj_bias is not None and self.out_proj.bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The attended values, and the attention weights.

        Args:
            query: (batch, targets, embed_dim), or (targets, batch, embed_dim) unless `batch_first`,
                or (targets, embed_dim).
            key, value: likewise, with sources, and kdim and vdim.
            key_padding_mask: (batch, sources); True for a source that nobody may look at, or
                floats that are added.
            need_weights: False gives None for the weights, which is faster.
            attn_mask: (targets, sources) or (batch * num_heads, targets, sources); True where a
                target may not look, or floats that are added.
            average_attn_weights: False gives the weights of every head.
            is_causal: says that `attn_mask` is causal; the mask is what counts.

        Returns the output in the shape of `query`, and the weights as (batch, targets, sources),
        after batch (batch, num_heads, ...) unless averaged, or None.

        Raises AssertionError and RuntimeError, as PyTorch, for shapes and dtypes that do not fit
        and for `is_causal` without a mask.
        """
        known = attn_mask is not None or not is_causal
        need(known, _NAME, "is_causal needs the attn_mask that it describes")
        _check_dims(query, key, value, key_padding_mask)
        text = "expected queries of size embed_dim={}, got {}"
        fits = query.shape[-1] == self.embed_dim
        need(fits, _NAME, text, self.embed_dim, query, error=AssertionError)
        batched = query.ndim == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._project(query, key, value)
        mask = self._mask(q, k, attn_mask, key_padding_mask)
        p = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(self.head_dim))
            weights = F.softmax(scores if mask is None else scores + mask, -1)
            if p > 0:
                weights = drop(weights, p, training=True)
            attended = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            attended = F.scaled_dot_product_attention(q, k, v, mask, p)
        out = self.out_proj(attended.transpose(1, 2).flatten(2))
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if self.batch_first else out.transpose(0, 1), weights

    def _project(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of all heads, (batch, num_heads, sequence, head_dim)."""
        e = self.embed_dim
        found = []
        for number, (name, x) in enumerate(zip("qkv", inputs, strict=True)):
            part = slice(number * e, (number + 1) * e)
            whole, bias = self.in_proj_weight, self.in_proj_bias
            weight = getattr(self, f"{name}_proj_weight") if whole is None else whole[part]
            y = F.linear(x, weight, None if bias is None else bias[part])
            found.append(y.reshape(*y.shape[:2], self.num_heads, self.head_dim).transpose(1, 2))
        return tuple(found)

    def _mask(self, q: Tensor, k: Tensor, attn: Any, padding: Any) -> Tensor | None:
        """Both masks as floats to add, broadcast to (batch, num_heads, targets, sources)."""
        batch, heads, targets, sources = *q.shape[:3], k.shape[2]
        mask = None
        if attn is not None:
            full = (batch * heads, targets, sources)
            fits = attn.shape in (full, full[1:])
            text = "attn_mask must have the shape {} or {}, got {}"
            need(fits, _NAME, text, full[1:], full, attn)
            attn = _added("attn_mask", attn, q)
            mask = attn if attn.ndim == 2 else attn.reshape(batch, heads, targets, sources)
        if padding is not None:
            fits = padding.shape in ((batch, sources), (sources,))
            text = f"key_padding_mask must have the shape {(batch, sources)}"
            need(fits, _NAME, text, padding, error=AssertionError)
            padding = _added("key_padding_mask", padding, q).reshape(batch, 1, 1, sources)
            mask = padding if mask is None else mask + padding
        return mask


def _check_dims(query: Tensor, key: Tensor, value: Tensor, padding: Any) -> None:
    fits = query.ndim in (2, 3) and query.ndim == key.ndim == value.ndim
    text = "expected query, key and value of 3 dimensions each, or of 2 each without a batch"
    need(fits, _NAME, text, query, key, value, error=AssertionError)
    fits = padding is None or padding.ndim == query.ndim - 1
    text = "expected a key_padding_mask with one dimension less than the query"
    need(fits, _NAME, text, padding, query, error=AssertionError)
    text = "key and value must have the same length and batch"
    need(key.shape[:-1] == value.shape[:-1], _NAME, text, key, value, error=AssertionError)


def _added(name: str, mask: Tensor, like: Tensor) -> Tensor:
    """A mask as floats of the dtype of `like`: -inf where a boolean one is True."""
    if mask.dtype.kind == "b":
        zero = zeros((), dtype=like.dtype, device=like.device)
        return where(mask, -math.inf, zero)
    text = f"only bool and floating types of {name} are supported"
    need(mask.dtype.kind == "f", _NAME, text, mask.dtype, error=AssertionError)
    return mask.to(like.dtype)
