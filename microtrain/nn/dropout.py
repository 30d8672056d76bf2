"""Dropout layers; the masks are those of the global batch, whatever the number of ranks."""

from __future__ import annotations

from ..common.missing_names import namespace
from ..errors import need
from ..ops.nn.dropout import check_probability
from . import functional as F
from .applied import Applied


class Dropout(Applied, function=F.dropout):
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

    _shown = ("p", "inplace")
    _state = ("training",)
    p: float = 0.5
    inplace: bool = False

    def __post_init__(self) -> None:
        name, text = type(self).__name__, "inplace=True is not supported"
        check_probability(name, self.p)
        need(not self.inplace, name, text, error=ValueError)


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
