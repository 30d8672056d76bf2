"""Optimizers over flat storage."""

import importlib
from typing import Any

from ..missing_names import missing
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


def __getattr__(name: str) -> Any:
    if name == "swa_utils":  # it needs modules, which need flat storage
        return importlib.import_module(f"{__name__}.{name}")
    raise missing(__name__, name)


def __dir__() -> list[str]:
    return [*__all__, "swa_utils"]
