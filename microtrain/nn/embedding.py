"""Embedding: a table of vectors that are learned, read by row number."""

from __future__ import annotations

from typing import Any, Self

from ..autograd import no_grad
from ..creation import empty
from ..ops.nn.embedding import check_unsupported, normal_padding
from ..tensor import TENSORS, Tensor
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter


class Embedding(Module):
    """Row numbers to rows of a learned table (num_embeddings, embedding_dim).

    The table starts normal with mean 0 and deviation 1, the row `padding_idx` as zeros.

    Args:
        num_embeddings: the number of rows.
        embedding_dim: the size of a row.
        padding_idx: a row that gets no gradient; a negative one counts from the end.
        max_norm, norm_type, scale_grad_by_freq, sparse: not supported: leave them as they are.
        dtype: default float type if not given.

    Raises AssertionError for a `padding_idx` that is no row, ValueError for what is not supported.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_unsupported("Embedding", max_norm, norm_type, scale_grad_by_freq, sparse)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = normal_padding(padding_idx, num_embeddings)
        self.weight = Parameter(empty(num_embeddings, embedding_dim, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].zero_()

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Self:
        """A layer over the memory of a table (num_embeddings, embedding_dim).

        Args:
            embeddings: the table.
            freeze: whether it is left as it is: False to learn it.
            padding_idx: a row that gets no gradient; it is not set to zeros.

        Raises TypeError for anything but a Tensor, AssertionError for one that is no matrix.
        """
        if type(embeddings) not in TENSORS:
            kind = type(embeddings).__name__
            raise TypeError(f"from_pretrained(): embeddings must be a Tensor, got {kind}")
        if embeddings.ndim != 2:
            raise AssertionError(f"from_pretrained: expected a matrix, got {embeddings.ndim}D")
        rows, size = embeddings.shape
        found = cls(0, size)
        found.num_embeddings, found.padding_idx = rows, normal_padding(padding_idx, rows)
        found.weight = Parameter(embeddings, requires_grad=not freeze)
        return found

    def forward(self, input: Tensor) -> Tensor:
        """The rows that `input`, int64 of any shape, names: (*input.shape, embedding_dim)."""
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """The sizes and the padding."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
