"""Every operation: its kernel beside its gradient."""

from . import methods as methods
from .elementwise import (
    abs,
    clamp,
    clone,
    eq,
    exp,
    ge,
    gt,
    isfinite,
    isnan,
    le,
    log,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    neg,
    pow,
    relu,
    sigmoid,
    sign,
    sqrt,
    tanh,
    where,
)
from .elementwise import add_scaled as add
from .elementwise import div_scaled as div
from .elementwise import sub_scaled as sub
from .linear_algebra import matmul, mm
from .losses import cross_entropy, mse_loss
from .reductions import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    log_softmax,
    max,
    mean,
    min,
    softmax,
    std,
    sum,
    var,
)
from .registry import REGISTRY
from .shapes import (
    broadcast_to,
    cat,
    flatten,
    permute,
    reshape,
    squeeze,
    stack,
    t,
    transpose,
    unsqueeze,
)

__all__ = [
    "REGISTRY", "abs", "add", "all", "amax", "amin", "any", "argmax", "argmin", "broadcast_to",
    "cat", "clamp", "clone", "cross_entropy", "div", "eq", "exp", "flatten", "ge", "gt", "isfinite",
    "isnan", "le", "log", "log_softmax", "logical_and", "logical_not", "logical_or", "lt", "matmul",
    "max", "maximum", "mean", "methods", "min", "minimum", "mm", "mse_loss", "mul", "ne", "neg",
    "permute", "pow", "relu", "reshape", "sigmoid", "sign", "softmax", "sqrt", "squeeze", "stack",
    "std", "sub", "sum", "t", "tanh", "transpose", "unsqueeze", "var", "where",
]  # fmt: skip
