"""Optimizers over flat storage."""

import importlib
from typing import Any

from ..common.missing_names import missing
from . import lr_scheduler, optimizers
from .flat import FlatStorage
from .lbfgs import LBFGS
from .optimizer import Optimizer
from .optimizers import *  # noqa: F403  its __all__ is the one list of their names

__all__ = ["LBFGS", "FlatStorage", "Optimizer", "lr_scheduler"]
__all__ += optimizers.__all__


def __getattr__(name: str) -> Any:
    if name == "swa_utils":  # it needs modules, which need flat storage
        return importlib.import_module(f"{__name__}.{name}")
    raise missing(__name__, name)


def __dir__() -> list[str]:
    return [*__all__, "swa_utils"]
