"""Optimizers over flat storage."""

import importlib
from typing import Any

from ..common.missing_names import missing
from . import lr_scheduler
from .flat import FlatStorage
from .lbfgs import LBFGS
from .optimizer import Optimizer
from .optimizers import (
    ASGD,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Formula,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)  # fmt: skip

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "FlatStorage",
    "Formula", "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "swa_utils":  # it needs modules, which need flat storage
        return importlib.import_module(f"{__name__}.{name}")
    raise missing(__name__, name)


def __dir__() -> list[str]:
    return [*__all__, "swa_utils"]
