"""Modules that change the shape, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import need
from ..ops.shape.shapes import flatten
from ..tensor import Tensor
from .applied import Applied
from .module import Module

__all__ = ["Flatten", "Identity", "Unflatten"]


class Identity(Module):
    """Returns its input; takes any arguments and keeps none, to stand in for another module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """Return input."""
        return input


class Flatten(Applied, function=flatten):
    """Joins dimensions `start_dim` to `end_dim` into one: by default all but the batch.

    Example:
        >>> mt.nn.Flatten()(mt.zeros(2, 3, 4)).shape
        (2, 12)
    """

    start_dim: int = 1
    end_dim: int = -1


class Unflatten(Module):
    """Splits dimension `dim` into dimensions of the sizes `unflattened_size`; one may be -1.

    Example:
        >>> mt.nn.Unflatten(1, (3, 4))(mt.zeros(2, 12)).shape
        (2, 3, 4)
    """

    _shown = ("dim", "unflattened_size")

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        listed, text = (
            isinstance(unflattened_size, tuple | list),
            "unflattened_size must be a tuple",
        )
        need(listed, "Unflatten", f"{text} of ints", type(unflattened_size), error=TypeError)
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """A view of input where its memory allows one; RuntimeError where the sizes do not fit."""
        return input.unflatten(self.dim, self.unflattened_size)
