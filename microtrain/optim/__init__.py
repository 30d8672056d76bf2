"""Optimizers over flat storage."""

from .adam import Adam, AdamW
from .flat import FlatStorage
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "FlatStorage", "Optimizer"]
