"""Optimizers over flat storage."""

from .flat import FlatStorage
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["SGD", "FlatStorage", "Optimizer"]
