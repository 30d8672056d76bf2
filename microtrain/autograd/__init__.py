"""Define-by-run automatic differentiation: the graph, the engine and user extension."""

from typing import Any

from ..common.missing_names import own_names
from ..errors import need
from ..tensor import TENSORS, Tensor, kind_of
from . import function as function
from . import functional as functional
from .anomaly import detect_anomaly as detect_anomaly
from .anomaly import is_anomaly_check_nan_enabled as is_anomaly_check_nan_enabled
from .anomaly import is_anomaly_enabled as is_anomaly_enabled
from .anomaly import set_detect_anomaly as set_detect_anomaly
from .differentiate import backward as backward
from .differentiate import grad as grad
from .function import Function as Function
from .grad_mode import enable_grad as enable_grad
from .grad_mode import inference_mode as inference_mode
from .grad_mode import is_grad_enabled as is_grad_enabled
from .grad_mode import is_inference_mode_enabled as is_inference_mode_enabled
from .grad_mode import no_grad as no_grad
from .grad_mode import set_grad_enabled as set_grad_enabled
from .gradcheck import GradcheckError as GradcheckError
from .gradcheck import gradcheck as gradcheck
from .gradcheck import gradgradcheck as gradgradcheck
from .graph import AccumulateGrad as AccumulateGrad
from .graph import Node as Node
from .hooks import RemovableHandle as RemovableHandle


class _AnyTensor(type):
    """So that `isinstance(x, Variable)` asks whether it is a Tensor."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type(instance) in TENSORS


class Variable(metaclass=_AnyTensor):
    """The legacy name of a Tensor: `Variable(data)` is a new leaf over the memory of `data`.

    New code needs none of this: Tensors record by themselves.

    Raises TypeError for what is not a Tensor and for `volatile`, RuntimeError for integers that
    should require grad.

    Example:
        >>> x = mt.autograd.Variable(mt.ones(2), requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad
        tensor([2., 2.])
    """

    def __new__(cls, data: Any = None, requires_grad: bool = False, volatile: Any = None) -> Any:
        text = "volatile is the legacy way; compute inside `with mt.no_grad():`"
        need(volatile is None, "Variable", text, error=TypeError)
        data = Tensor() if data is None else data
        text = f"data must be a Tensor, got {kind_of(data)}; mt.tensor(data, requires_grad=...)"
        need(type(data) in TENSORS, "Variable", f"{text} makes one", error=TypeError)
        return data.detach().requires_grad_(requires_grad)


__all__ = ["function", "functional", *own_names(globals())]
