"""Losses as modules; the functions of `nn.functional` say what they compute and refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, ClassVar

from ..common.missing_names import namespace
from ..ops.arguments import REDUCTIONS, check_reduction
from ..tensor import Tensor
from . import functional as F
from .applied import Applied
from .module import want_buffer
from .normalization import PairwiseDistance


class _Loss(Applied):
    """A loss with a reduction: mean, sum or none; ValueError for anything else.

    `size_average` and `reduce`, the old spelling of `reduction`, are a TypeError.
    """

    _inputs = "input, target"
    _shown = ()
    _reductions: ClassVar[tuple[str, ...]] = REDUCTIONS
    _weights: ClassVar[tuple[str, ...]] = ()  # fields that are buffers
    reduction: str

    def __post_init__(self, size_average: Any = None, reduce: Any = None) -> None:
        check_reduction(self.reduction, size_average, reduce, self._reductions)
        for name in self._weights:
            want_buffer(name, getattr(self, name))
        self._buffers = self._weights


@dataclass(repr=False, eq=False)
class _Reduced(_Loss):
    """A loss whose first arguments are those of its reduction."""

    size_average: InitVar[Any] = None
    reduce: InitVar[Any] = None
    reduction: str = "mean"


@dataclass(repr=False, eq=False)
class _Weighted(_Loss):
    """A loss with a factor for each class or element, a buffer."""

    _weights: ClassVar[tuple[str, ...]] = ("weight",)
    weight: Tensor | None = None
    size_average: InitVar[Any] = None
    reduce: InitVar[Any] = None
    reduction: str = "mean"


@dataclass(repr=False, eq=False)
class _OfIndices(_Loss):
    """A loss of class indices."""

    _weights: ClassVar[tuple[str, ...]] = ("weight",)
    weight: Tensor | None = None
    size_average: InitVar[Any] = None
    ignore_index: int = -100
    reduce: InitVar[Any] = None
    reduction: str = "mean"


# Numbers ------------------------------------------------------------------------------------------


class MSELoss(_Reduced, function=F.mse_loss):
    """The squared difference of two Tensors of one shape, averaged or summed.

    Example:
        >>> mt.nn.MSELoss()(mt.tensor([1.0, 5.0]), mt.tensor([2.0, 2.0]))
        tensor(5.)
    """


class L1Loss(_Reduced, function=F.l1_loss):
    """The absolute difference of two Tensors of one shape, averaged or summed."""


class SmoothL1Loss(_Reduced, function=F.smooth_l1_loss):
    """The absolute difference, rounded off below `beta`."""

    beta: float = 1.0


class HuberLoss(_Loss, function=F.huber_loss):
    """The squared difference halved within `delta`, beyond it `delta` times the absolute one."""

    reduction: str = "mean"
    delta: float = 1.0


class GaussianNLLLoss(_Loss, function=F.gaussian_nll_loss):
    """The negative log-likelihood of a normal distribution: of means, targets and variances."""

    _inputs = "input, target, var"
    _: KW_ONLY
    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"


class PoissonNLLLoss(_Loss, function=F.poisson_nll_loss):
    """The negative log-likelihood of a Poisson distribution: of (logarithms of) rates, counts."""

    log_input: bool = True
    full: bool = False
    size_average: InitVar[Any] = None
    eps: float = 1e-8
    reduce: InitVar[Any] = None
    reduction: str = "mean"


# Classes and probabilities ------------------------------------------------------------------------


class NLLLoss(_OfIndices, function=F.nll_loss):
    """The negative log-likelihood of class indices, given logarithms of probabilities."""


class CrossEntropyLoss(_OfIndices, function=F.cross_entropy):
    """The cross entropy of scores (n, classes, ...) with class indices (n, ...) or probabilities.

    Args:
        weight: (classes,), a factor for each class.
        size_average, reduce: the old spelling of `reduction`, refused.
        ignore_index: a class index whose samples are ignored.
        reduction: "mean", "sum" or "none".
        label_smoothing: how much of the target is spread evenly over all classes.

    Example:
        >>> scores = mt.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
        >>> mt.nn.CrossEntropyLoss()(scores, mt.tensor([0, 1]))
        tensor(0.1672)
    """

    label_smoothing: float = 0.0


class BCELoss(_Weighted, function=F.binary_cross_entropy):
    """The binary cross entropy of probabilities."""


class BCEWithLogitsLoss(_Weighted, function=F.binary_cross_entropy_with_logits):
    """The binary cross entropy of scores; `weight` and `pos_weight` are buffers.

    Example:
        >>> mt.nn.BCEWithLogitsLoss()(mt.tensor([2.0, -1.0]), mt.tensor([1.0, 0.0]))
        tensor(0.2201)
    """

    _weights = ("weight", "pos_weight")
    pos_weight: Tensor | None = None


class KLDivLoss(_Reduced, function=F.kl_div):
    """The Kullback-Leibler divergence; its definition is `reduction="batchmean"`."""

    _reductions = (*REDUCTIONS, "batchmean")
    log_target: bool = False


# Pairs and triples --------------------------------------------------------------------------------


class SoftMarginLoss(_Reduced, function=F.soft_margin_loss):
    """`log(1 + exp(-target * input))` for targets of -1 or 1."""


@dataclass(repr=False, eq=False)
class _PairLoss(_Loss):
    """A loss of two Tensors, with a margin."""

    _inputs = "input1, input2, target"
    margin: float = 0.0
    size_average: InitVar[Any] = None
    reduce: InitVar[Any] = None
    reduction: str = "mean"


class HingeEmbeddingLoss(_PairLoss, function=F.hinge_embedding_loss):
    """A distance where the target is 1, `max(margin - distance, 0)` where it is -1."""

    _inputs = "input, target"
    margin: float = 1.0


class MarginRankingLoss(_PairLoss, function=F.margin_ranking_loss):
    """`max(margin - target * (input1 - input2), 0)` for targets of -1 or 1."""


class CosineEmbeddingLoss(_PairLoss, function=F.cosine_embedding_loss):
    """How far the cosine of two vectors is from 1 (target 1) or above the margin (target -1)."""


class TripletMarginLoss(_Loss, function=F.triplet_margin_loss):
    """`max(margin + |anchor - positive| - |anchor - negative|, 0)` over vectors."""

    _inputs = "anchor, positive, negative"
    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    size_average: InitVar[Any] = None
    reduce: InitVar[Any] = None
    reduction: str = "mean"


class TripletMarginWithDistanceLoss(_Loss, function=F.triplet_margin_with_distance_loss):
    """`TripletMarginLoss` with any distance of two Tensors, a function or a module."""

    _inputs = "anchor, positive, negative"
    _: KW_ONLY
    distance_function: Callable[[Any, Any], Any] = field(default_factory=PairwiseDistance)
    margin: float = 1.0
    swap: bool = False
    reduction: str = "mean"


# Classes with margins -----------------------------------------------------------------------------


class MultiMarginLoss(_Loss, function=F.multi_margin_loss):
    """How far the score of the class is from being the largest by a margin."""

    _weights = ("weight",)
    p: int = 1
    margin: float = 1.0
    weight: Tensor | None = None
    size_average: InitVar[Any] = None
    reduce: InitVar[Any] = None
    reduction: str = "mean"


class MultiLabelMarginLoss(_Reduced, function=F.multilabel_margin_loss):
    """How far the scores of all labels are from being larger than the others by 1."""


class MultiLabelSoftMarginLoss(_Weighted, function=F.multilabel_soft_margin_loss):
    """The binary cross entropy of the scores of several labels, averaged over classes."""


namespace(globals())
