"""Optimizers over flat storage."""

from . import lr_scheduler
from .adadelta import Adadelta
from .adagrad import Adagrad
from .adam import Adam, AdamW
from .adamax import Adamax
from .asgd import ASGD
from .flat import FlatStorage
from .lbfgs import LBFGS
from .nadam import NAdam
from .optimizer import Optimizer
from .radam import RAdam
from .rmsprop import RMSprop
from .rprop import Rprop
from .sgd import SGD

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "FlatStorage",
    "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
