"""The encoder of a transformer: Vaswani et al., "Attention is all you need", 2017."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

from ..errors import need
from ..tensor import Tensor
from . import functional as F
from .attention import MultiheadAttention
from .container import ModuleList
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .normalization import LayerNorm

__all__ = ["TransformerEncoder", "TransformerEncoderLayer"]


class TransformerLayer(Module):
    """What the layers of encoder and decoder share; see there.

    Attributes:
        _attentions: the names of its attentions.
    """

    _attentions: ClassVar[tuple[str, ...]] = ("self_attn",)
    self_attn: MultiheadAttention

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu", layer_norm_eps: float = 1e-5,
        batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kind: Any = {"bias": bias, "device": device, "dtype": dtype}
        for name in self._attentions:
            # Batch first inside: the masks of dropout take the first dimension as samples.
            heads = MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=True, **kind)
            setattr(self, name, heads)
        self.linear1 = Linear(d_model, dim_feedforward, **kind)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **kind)
        self.batch_first = batch_first
        self.norm_first = norm_first
        parts = range(1, len(self._attentions) + 2)
        for part in parts:
            setattr(self, f"norm{part}", LayerNorm(d_model, eps=layer_norm_eps, **kind))
        for part in parts:
            setattr(self, f"dropout{part}", Dropout(dropout))
        self.activation: Any = activation_of(activation)

    def _feed(self, x: Tensor) -> Tensor:
        fed: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return fed

    def _through(self, x: Tensor, *parts: Callable[[Tensor], Tensor]) -> Tensor:
        """`x` through the parts, each with its dropout, residual sum and norm."""
        for number, part in enumerate(parts, 1):
            norm, drop = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
            x = x + drop(part(norm(x))) if self.norm_first else norm(x + drop(part(x)))
        return x


class TransformerEncoderLayer(TransformerLayer):
    """Self-attention and two linear layers, each with a residual sum and a LayerNorm.

    Args:
        d_model: the size of inputs and outputs.
        nhead: the number of heads, a divisor of `d_model`.
        dim_feedforward: the size between the two linear layers.
        dropout: the probability for attention weights and the results of the parts.
        activation: "relu", "gelu" or a function, between the linear layers.
        layer_norm_eps: added to the variances.
        batch_first: whether inputs are (batch, sequence, d_model), not (sequence, batch, d_model).
        norm_first: whether a LayerNorm comes before its part, not after the sum.
        bias: whether linear layers and LayerNorms add a vector.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises RuntimeError for an unknown activation, and what MultiheadAttention raises.
    """

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None, is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Encode (batch, sequence, d_model), in the order of `batch_first`, or (sequence, d_model).

        The masks are `attn_mask` and `key_padding_mask` of MultiheadAttention.
        """
        swap = src.ndim == 3 and not self.batch_first
        x = src.transpose(0, 1) if swap else src
        masks = {"attn_mask": src_mask, "key_padding_mask": src_key_padding_mask}

        def attend(x: Tensor) -> Any:
            return self.self_attn(x, x, x, need_weights=False, is_causal=is_causal, **masks)[0]

        x = self._through(x, attend, self._feed)
        return x.transpose(0, 1) if swap else x


def activation_of(given: str | Callable[[Tensor], Tensor]) -> Any:
    """The function that `given` names, or is; RuntimeError for an unknown name."""
    if not isinstance(given, str):
        return given
    need(given in ("relu", "gelu"), "activation", "should be relu/gelu", given)
    return getattr(F, given)


class TransformerStack(Module):
    """Copies of a layer, one after the other, and a module for the result."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm


class TransformerEncoder(TransformerStack):
    """Copies of an encoder layer, one after the other.

    The copies start with equal values, as in PyTorch; initialise them anew where that matters.

    Args:
        encoder_layer: what is copied; it is no part of the encoder itself.
        num_layers: the number of copies.
        norm: a module for the result, such as a LayerNorm.
        enable_nested_tensor, mask_check: about PyTorch's fast path of evaluation, which sets what
            is padding to 0. There is none here, and nothing to choose.
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """Encode `src`; masks, shapes and `is_causal` as in the layer."""
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return src if self.norm is None else self.norm(src)
