"""Learning-rate schedules, step by step as in PyTorch: each rate is made from the one before.

They write `lr` into the optimizer's groups, which keep their first rate as `initial_lr`.
"""

from .composed import ChainedScheduler, LambdaLR, MultiplicativeLR, SequentialLR
from .cosine import CosineAnnealingLR, CosineAnnealingWarmRestarts
from .cyclic import CyclicLR
from .factors import ConstantLR, ExponentialLR, LinearLR, MultiStepLR, PolynomialLR, StepLR
from .one_cycle import OneCycleLR
from .plateau import ReduceLROnPlateau
from .scheduler import LRScheduler

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR",
    "MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
