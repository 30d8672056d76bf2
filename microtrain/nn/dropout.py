"""Dropout layers; the masks are those of the global batch, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from ..common.missing_names import namespace
from ..errors import need
from ..ops.nn.dropout import check_probability
from ..tensor import Tensor
from . import functional as F
from .applied import Family


class Dropout(Family, function=F.dropout):
    """Elements set to 0 with probability `p` while training, the others divided by 1 - p.

    Args:
        p: from 0 to 1.
        inplace: only False.

    Raises ValueError for another probability.

    Example:
        >>> dropout = mt.nn.Dropout(p=0.5)
        >>> dropout(mt.ones(1000)).unique()
        tensor([0., 2.])
        >>> dropout.eval()(mt.ones(3))
        tensor([1., 1., 1.])
    """

    function: ClassVar[Callable[..., Tensor]]
    _shown = ("p", "inplace")

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        check_probability(type(self).__name__, p)
        need(not inplace, type(self).__name__, "inplace=True is not supported", error=ValueError)
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Apply it to an input whose leading dimension is samples."""
        return self.function(input, self.p, self.training)


class AlphaDropout(Dropout, function=F.alpha_dropout):
    """Dropout for `SELU`, which leaves mean and variance unchanged; arguments as for `Dropout`."""


class FeatureAlphaDropout(Dropout, function=F.feature_alpha_dropout):
    """`AlphaDropout` of whole channels of (N, C, ...); arguments as for `Dropout`."""


class Dropout1d(Dropout, function=F.dropout1d):
    """Whole channels of (N, C, L) set to 0 together; arguments as for `Dropout`."""


class Dropout2d(Dropout, function=F.dropout2d):
    """Whole channels of (N, C, H, W) set to 0 together; arguments as for `Dropout`."""


class Dropout3d(Dropout, function=F.dropout3d):
    """Whole channels of (N, C, D, H, W) set to 0 together; arguments as for `Dropout`."""


namespace(globals())
