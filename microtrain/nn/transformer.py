"""Transformers and their layers: Vaswani et al., "Attention is all you need", 2017."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar

from ..creation import full
from ..errors import need
from ..ops.shape.rearranging import triu
from ..tensor import Tensor
from . import functional as F
from . import init
from .attention import MultiheadAttention
from .container import ModuleList
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .normalization import LayerNorm

__all__ = [
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
    "TransformerEncoderLayer",
]  # fmt: skip


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
        if isinstance(activation, str):
            need(activation in ("relu", "gelu"), "activation", "should be relu/gelu", activation)
            activation = getattr(F, activation)
        self.activation: Any = activation

    def _feed(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

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


class TransformerStack(Module):
    """Copies of a layer, one after the other, and a module for the result."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm


class TransformerEncoder(TransformerStack):
    """Copies of an encoder layer, one after the other.

    The copies start with equal values, as in PyTorch; initialize them anew where that matters.

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


# The decoder, and a whole one ---------------------------------------------------------------------


class TransformerDecoderLayer(TransformerLayer):
    """Self-attention, attention to the encoder's result, and two linear layers.

    Each with a residual sum and a LayerNorm. Arguments and errors are those of
    TransformerEncoderLayer.
    """

    _attentions = ("self_attn", "multihead_attn")
    multihead_attn: MultiheadAttention

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None, tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Decode `tgt` (batch, targets, d_model) beside `memory` (batch, sources, d_model).

        Both in the order of `batch_first`, or both without a batch. The masks are `attn_mask` and
        `key_padding_mask` of the two MultiheadAttentions: of `tgt`, and of `memory`.
        """
        swap = tgt.ndim == 3 and not self.batch_first
        x, memory = (tgt.transpose(0, 1), memory.transpose(0, 1)) if swap else (tgt, memory)

        def attend(x: Tensor) -> Any:
            return self.self_attn(
                x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal
            )[0]

        def look(x: Tensor) -> Any:
            mask, causal = memory_key_padding_mask, memory_is_causal
            return self.multihead_attn(
                x, memory, memory, mask, False, memory_mask, is_causal=causal
            )[0]

        x = self._through(x, attend, look, self._feed)
        return x.transpose(0, 1) if swap else x


class TransformerDecoder(TransformerStack):
    """Copies of a decoder layer, one after the other; they start with equal values.

    Args:
        decoder_layer: what is copied; it is no part of the decoder itself.
        num_layers: the number of copies.
        norm: a module for the result, such as a LayerNorm.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None, tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Decode `tgt` beside `memory`; masks and shapes as in the layer."""
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """An encoder, and a decoder that looks at its result.

    Args:
        d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias, device, dtype: as of the layers.
        num_encoder_layers, num_decoder_layers: the numbers of layers.
        custom_encoder, custom_decoder: modules to use instead.

    Matrices start as Glorot and Bengio, 2010. Raises what the layers raise.
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6,
        num_decoder_layers: int = 6, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        custom_encoder: Module | None = None, custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        options: Any = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias, device, dtype,
        )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, True, bias, device, dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*options), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*options), num_decoder_layers, norm()
        )
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None, tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None, src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Encode `src`, and decode `tgt` beside the result; shapes and masks as of the layers.

        Raises RuntimeError where the batches or the sizes do not fit.
        """
        batch = 0 if self.batch_first else 1
        same = src.ndim != 3 or src.shape[batch] == tgt.shape[batch]
        need(same, "Transformer", "the batch number of src and tgt must be equal", src, tgt)
        same = src.shape[-1] == tgt.shape[-1] == self.d_model
        text = f"the feature number of src and tgt must be equal to d_model, {self.d_model}"
        need(same, "Transformer", text, src, tgt)
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal, memory_is_causal=memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """A mask (sz, sz) to add: -inf for what comes later, else 0."""
        return triu(full((sz, sz), -math.inf, device=device, dtype=dtype), 1)
