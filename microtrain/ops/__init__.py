"""Every operation: its kernel beside its gradient."""

from __future__ import annotations

from . import (
    activations,
    dropout,  # noqa: F401
    einstein,
    elementwise,
    extrema,
    factorisations,
    gathering,
    masking,
    normalization,
    norms,
    products,
    rearranging,
    reductions,
    sampling,
    scans,
    shapes,
    sorting,
    special,
    splitting,
    triangles,
)
from . import methods as methods
from .activations import *  # noqa: F403
from .classification_losses import cross_entropy
from .coercion import REGISTRY, public
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
from .einstein import *  # noqa: F403
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
)
from .elementwise import add_scaled as add
from .elementwise import div_rounded as div
from .elementwise import sub_scaled as sub
from .factorisations import *  # noqa: F403
from .gathering import *  # noqa: F403
from .linear_algebra import matmul, mm
from .masking import *  # noqa: F403
from .normalization import *  # noqa: F403
from .products import *  # noqa: F403
from .rearranging import *  # noqa: F403
from .regression_losses import mse_loss
from .sampling import *  # noqa: F403
from .scans import *  # noqa: F403
from .shapes import cat, stack
from .sorting import *  # noqa: F403

# Each of these lists its public names itself.
from .special import *  # noqa: F403
from .splitting import *  # noqa: F403
from .triangles import *  # noqa: F403

all = public(reductions.all)
amax = public(extrema.amax)
amin = public(extrema.amin)
any = public(reductions.any)
argmax = public(extrema.argmax)
argmin = public(extrema.argmin)
broadcast_to = public(shapes.broadcast_to)
clamp = public(elementwise.clamp)
flatten = public(shapes.flatten)
log_softmax = public(reductions.log_softmax)
max = public(extrema.max)
mean = public(reductions.mean)
min = public(extrema.min)
norm = public(norms.norm)
permute = public(shapes.permute)
reshape = public(shapes.reshape)
softmax = public(reductions.softmax)
squeeze = public(shapes.squeeze)
std = public(reductions.std)
sum = public(reductions.sum)
t = public(shapes.t)
transpose = public(shapes.transpose)
unsqueeze = public(shapes.unsqueeze)
var = public(reductions.var)

__all__ = [
    "REGISTRY", "abs", "add", "all", "amax", "amin", "any", "argmax", "argmin", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "broadcast_to", "cat", "ceil", "clamp", "clone",
    "cross_entropy", "div", "eq", "exp", "flatten", "floor", "floor_divide", "ge", "gt", "isfinite",
    "isinf", "isnan", "le", "log", "log_softmax", "logical_and", "logical_not", "logical_or",
    "logical_xor", "lt", "matmul", "max", "maximum", "mean", "methods", "min", "minimum", "mm",
    "mse_loss", "mul", "ne", "neg", "norm", "permute", "pow", "reciprocal", "relu", "remainder",
    "reshape", "round", "sigmoid", "sign", "softmax", "sqrt", "square", "squeeze", "stack", "std",
    "sub", "sum", "t", "tanh", "transpose", "trunc", "unsqueeze", "var",
]  # fmt: skip
__all__ += special.__all__
__all__ += activations.__all__
__all__ += sampling.__all__
__all__ += scans.__all__
__all__ += sorting.__all__
__all__ += gathering.__all__
__all__ += masking.__all__
__all__ += products.__all__
__all__ += rearranging.__all__
__all__ += factorisations.__all__
__all__ += einstein.__all__
__all__ += triangles.__all__
__all__ += splitting.__all__
__all__ += normalization.__all__
