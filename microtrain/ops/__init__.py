"""Every operation: its kernel beside its gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..backend import XP
from ..tensor import TENSORS
from . import elementwise, extrema, norms, reductions, shapes
from . import methods as methods
from .coercion import REGISTRY
from .comparison import (
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    eq,
    ge,
    gt,
    isfinite,
    isinf,
    isnan,
    le,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    lt,
    ne,
)
from .elementwise import (
    abs,
    ceil,
    clone,
    exp,
    floor,
    floor_divide,
    log,
    maximum,
    minimum,
    mul,
    neg,
    pow,
    reciprocal,
    relu,
    remainder,
    round,
    sigmoid,
    sign,
    sqrt,
    square,
    tanh,
    trunc,
    where,
)
from .elementwise import add_scaled as add
from .elementwise import div_rounded as div
from .elementwise import sub_scaled as sub
from .linear_algebra import matmul, mm
from .losses import cross_entropy, mse_loss
from .shapes import cat, stack


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` that says so when its first argument is no Tensor, for use as `mt.function(x)`."""

    @functools.wraps(function)
    def checked(input: Any, *args: Any, **kwargs: Any) -> Any:
        if type(input) not in TENSORS and type(input) not in XP:
            raise TypeError(
                f"{function.__name__}(): argument 'input' must be a Tensor, not "
                f"{type(input).__name__}; mt.tensor(...) makes one"
            )
        return function(input, *args, **kwargs)

    return checked


all = _checked(reductions.all)
amax = _checked(extrema.amax)
amin = _checked(extrema.amin)
any = _checked(reductions.any)
argmax = _checked(extrema.argmax)
argmin = _checked(extrema.argmin)
broadcast_to = _checked(shapes.broadcast_to)
clamp = _checked(elementwise.clamp)
flatten = _checked(shapes.flatten)
log_softmax = _checked(reductions.log_softmax)
max = _checked(extrema.max)
mean = _checked(reductions.mean)
min = _checked(extrema.min)
norm = _checked(norms.norm)
permute = _checked(shapes.permute)
reshape = _checked(shapes.reshape)
softmax = _checked(reductions.softmax)
squeeze = _checked(shapes.squeeze)
std = _checked(reductions.std)
sum = _checked(reductions.sum)
t = _checked(shapes.t)
transpose = _checked(shapes.transpose)
unsqueeze = _checked(shapes.unsqueeze)
var = _checked(reductions.var)

__all__ = [
    "REGISTRY", "abs", "add", "all", "amax", "amin", "any", "argmax", "argmin", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_to", "cat", "ceil", "clamp", "clone",
    "cross_entropy", "div", "eq", "exp", "flatten", "floor", "floor_divide", "ge", "gt", "isfinite",
    "isinf", "isnan", "le", "log", "log_softmax", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lt", "matmul", "max", "maximum", "mean", "methods", "min", "minimum", "mm",
    "mse_loss", "mul", "ne", "neg", "norm", "permute", "pow", "reciprocal", "relu", "remainder",
    "reshape", "round", "sigmoid", "sign", "softmax", "sqrt", "square", "squeeze", "stack", "std",
    "sub", "sum", "t", "tanh", "transpose", "trunc", "unsqueeze", "var", "where",
]  # fmt: skip
