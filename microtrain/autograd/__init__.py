"""Define-by-run automatic differentiation: the graph, the engine and user extension."""

from typing import Any

from ..tensor import TENSORS, Tensor, kind_of
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


class _AnyTensor(type):
    """So that `isinstance(x, Variable)` asks whether it is a Tensor."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type(instance) in TENSORS


class Variable(metaclass=_AnyTensor):
    """The legacy name of a Tensor: `Variable(data)` is a new leaf over the memory of `data`.

    New code needs none of this: Tensors record by themselves.

    Raises TypeError for what is no Tensor and for `volatile`, RuntimeError for integers that should
    require grad.

    Example:
        >>> x = mt.autograd.Variable(mt.ones(2), requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad
        tensor([2., 2.])
    """

    def __new__(cls, data: Any = None, requires_grad: bool = False, volatile: Any = None) -> Any:
        if volatile is not None:
            raise TypeError(
                "Variable(): volatile is the legacy way; compute inside `with mt.no_grad():`, "
                "where nothing is recorded"
            )
        data = Tensor() if data is None else data
        if type(data) not in TENSORS:
            raise TypeError(
                f"Variable(): data must be a Tensor, got {kind_of(data)}; write "
                "mt.tensor(data, requires_grad=...)"
            )
        return data.detach().requires_grad_(requires_grad)


__all__ = [
    "AccumulateGrad",
    "Function",
    "GradcheckError",
    "Node",
    "RemovableHandle",
    "Variable",
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
