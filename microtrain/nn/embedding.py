"""Embedding: tables of vectors that are learned, read by row number, one by one or in bags."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Self

from ..autograd import no_grad
from ..creation import empty
from ..errors import need
from ..ops.arguments import want_tensors
from ..ops.nn.embedding import check_unsupported, normal_padding
from ..tensor import Tensor
from . import functional as F
from . import init
from .module import Module
from .parameter import Parameter

__all__ = ["Embedding", "EmbeddingBag"]


class _Table(Module):
    """A table of vectors, `weight`, with perhaps one of zeros."""

    weight: Parameter
    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    _shown = ("*num_embeddings", "*embedding_dim")
    _unless: Mapping[str, Any] = {"padding_idx": None}

    def _make(self, rows: int, size: int, padding: int | None, device: Any, dtype: Any) -> None:
        self.num_embeddings, self.embedding_dim = rows, size
        self.padding_idx = normal_padding(padding, rows)
        self.weight = Parameter(empty(rows, size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].zero_()

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, *args: Any, **options: Any
    ) -> Self:
        """A layer over the memory of a table (num_embeddings, embedding_dim).

        Args:
            embeddings: the table.
            freeze: whether it is left as it is: False to learn it.
            args, options: what the class takes behind the sizes. A row `padding_idx` gets no
                gradient, and is not set to zeros.

        Raises TypeError for anything but a Tensor, AssertionError for one that is no matrix.
        """
        want_tensors("from_pretrained", embeddings=embeddings)
        matrix = embeddings.ndim == 2
        need(matrix, "from_pretrained", "expected a matrix", embeddings, error=AssertionError)
        rows, size = embeddings.shape
        given = inspect.signature(cls).bind(0, size, *args, **options)  # nothing is drawn
        padding = given.arguments.pop("padding_idx", None)
        found = cls(*given.args, **given.kwargs)
        found.num_embeddings, found.padding_idx = rows, normal_padding(padding, rows)
        found.weight = Parameter(embeddings, requires_grad=not freeze)
        return found


class Embedding(_Table):
    """Row numbers to rows of a learned table (num_embeddings, embedding_dim).

    The table starts normal with mean 0 and deviation 1, the row `padding_idx` as zeros.

    Args:
        num_embeddings: the number of rows.
        embedding_dim: the size of a row.
        padding_idx: a row that gets no gradient; a negative one counts from the end.
        max_norm, norm_type, scale_grad_by_freq, sparse: not supported: leave them as they are.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises AssertionError for a `padding_idx` that is no row, ValueError for what is not supported.

    Example:
        >>> table = mt.nn.Embedding(10, 3)
        >>> table(mt.tensor([[1, 2, 4, 5], [4, 3, 2, 9]])).shape
        (2, 4, 3)
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
        sparse: bool = False, *, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_unsupported("Embedding", max_norm, norm_type, scale_grad_by_freq, sparse)
        self._make(num_embeddings, embedding_dim, padding_idx, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """The rows that `input`, int64 of any shape, names: (*input.shape, embedding_dim)."""
        return F.embedding(input, self.weight, self.padding_idx)


class EmbeddingBag(_Table):
    """Sums, means or maxima of rows of a learned table, one for each bag of row numbers.

    Args:
        num_embeddings, embedding_dim: the rows of the table and their size.
        max_norm, norm_type, scale_grad_by_freq, sparse: not supported: leave them as they are.
        mode: "sum", "mean" or "max".
        include_last_offset: whether the last offset is the end of the last bag.
        padding_idx: a row that does not count and gets no gradient.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises what `Embedding` raises.

    Example:
        >>> bags = mt.nn.EmbeddingBag(10, 3, mode="sum")
        >>> bags(mt.tensor([1, 2, 4, 5, 4]), mt.tensor([0, 2])).shape
        (2, 3)
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
        sparse: bool = False, include_last_offset: bool = False, padding_idx: int | None = None,
        *, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_unsupported("EmbeddingBag", max_norm, norm_type, scale_grad_by_freq, sparse)
        self.mode = mode
        self.include_last_offset = include_last_offset
        self._make(num_embeddings, embedding_dim, padding_idx, device, dtype)

    def forward(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """One row for each bag; see `functional.embedding_bag`."""
        return F.embedding_bag(
            input, self.weight, offsets, mode=self.mode, per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset, padding_idx=self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """The sizes, the mode and the padding."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}{padding}"
