"""Dropout layers; the masks are those of the global batch, whatever the number of ranks."""

from __future__ import annotations

from typing import Any, ClassVar

from ..ops.dropout import check_probability
from ..tensor import Tensor
from . import functional
from .module import Module


class Dropout(Module):
    """Elements set to 0 with probability `p` while training, the others divided by 1 - p.

    Args:
        p: from 0 to 1.
        inplace: only False.

    Raises ValueError for another probability.
    """

    _function: ClassVar[Any] = staticmethod(functional.dropout)

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        check_probability(type(self).__name__, p)
        if inplace:
            raise ValueError(f"{type(self).__name__}: inplace=True is not supported")
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply it to an input whose leading dimension is samples."""
        found: Tensor = self._function(input, self.p, self.training)
        return found

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout):
    """Whole channels of (N, C, L) set to 0 together; arguments as `Dropout`."""

    _function = staticmethod(functional.dropout1d)


class Dropout2d(Dropout):
    """Whole channels of (N, C, H, W) set to 0 together; arguments as `Dropout`."""

    _function = staticmethod(functional.dropout2d)
