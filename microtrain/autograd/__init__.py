"""Define-by-run automatic differentiation: the graph, the engine and user extension."""

from typing import NoReturn

from . import function as function
from . import functional as functional
from .anomaly import (
    detect_anomaly,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)
from .differentiate import backward, grad
from .function import Function
from .grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .gradcheck import GradcheckError, gradcheck, gradgradcheck
from .graph import AccumulateGrad, Node
from .hooks import RemovableHandle


def Variable(*args: object, **kwargs: object) -> NoReturn:
    """Gone since Tensors record by themselves; calling it says what to write instead.

    A function, so that `from microtrain.autograd import Variable` gets as far as that message.
    Raises RuntimeError.
    """
    raise RuntimeError(
        "autograd.Variable is the legacy way; Tensors record by themselves: write "
        "mt.tensor(data, requires_grad=True), or tensor.requires_grad_(). For volatile=True "
        "compute inside `with mt.no_grad():`"
    )


__all__ = [
    "AccumulateGrad",
    "Function",
    "GradcheckError",
    "Node",
    "RemovableHandle",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "function",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
]


def __dir__() -> list[str]:
    return __all__
