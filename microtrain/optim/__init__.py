"""Optimizers over flat storage."""

from . import lr_scheduler
from .adam import Adam, AdamW
from .flat import FlatStorage
from .optimizer import Optimizer
from .rmsprop import RMSprop
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "FlatStorage", "Optimizer", "RMSprop", "lr_scheduler"]


def __dir__() -> list[str]:
    return __all__
