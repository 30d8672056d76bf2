"""Define-by-run automatic differentiation: the graph, the engine and user extension."""

from . import function as function
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
from .graph import AccumulateGrad, Node
from .hooks import RemovableHandle

__all__ = [
    "AccumulateGrad",
    "Function",
    "Node",
    "RemovableHandle",
    "backward",
    "enable_grad",
    "function",
    "grad",
    "inference_mode",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "no_grad",
    "set_grad_enabled",
]
