"""Every operation: its kernel beside its gradient."""

from __future__ import annotations

from . import methods as methods
from . import sampling
from .coercion import REGISTRY as REGISTRY
from .fronts import public
from .index import gathering, masking, reducing
from .index.gathering import *  # noqa: F403
from .index.masking import *  # noqa: F403
from .index.reducing import *  # noqa: F403
from .loss.classification_losses import cross_entropy
from .loss.regression_losses import mse_loss
from .matrix import (
    decompositions,
    determinants,
    distances,
    einstein,
    factorisations,
    products,
    systems,
)
from .matrix.decompositions import *  # noqa: F403
from .matrix.determinants import *  # noqa: F403
from .matrix.distances import *  # noqa: F403
from .matrix.einstein import *  # noqa: F403
from .matrix.factorisations import *  # noqa: F403
from .matrix.linear_algebra import matmul, mm
from .matrix.products import *  # noqa: F403
from .matrix.systems import *  # noqa: F403
from .nn import dropout, normalization  # noqa: F401
from .nn.normalization import *  # noqa: F403
from .pointwise import comparison, elementwise, gamma, pairs, special
from .pointwise.comparison import *  # noqa: F403
from .pointwise.elementwise import *  # noqa: F403
from .pointwise.elementwise import add_scaled as add
from .pointwise.elementwise import div_rounded as div
from .pointwise.elementwise import sub_scaled as sub

# Each of these lists its public names itself.
from .pointwise.gamma import *  # noqa: F403
from .pointwise.pairs import *  # noqa: F403
from .pointwise.special import *  # noqa: F403
from .reduce import extrema, integrals, norms, reductions, scans, sorting, statistics
from .reduce.integrals import *  # noqa: F403
from .reduce.scans import *  # noqa: F403
from .reduce.sorting import *  # noqa: F403
from .reduce.statistics import *  # noqa: F403
from .sampling import *  # noqa: F403
from .shape import combining, joining, rearranging, shapes, splitting, triangles
from .shape.combining import *  # noqa: F403
from .shape.joining import *  # noqa: F403
from .shape.rearranging import *  # noqa: F403
from .shape.splitting import *  # noqa: F403
from .shape.triangles import *  # noqa: F403

all = public(reductions.all)
amax = public(extrema.amax)
amin = public(extrema.amin)
any = public(reductions.any)
argmax = public(extrema.argmax)
argmin = public(extrema.argmin)
broadcast_to = public(shapes.broadcast_to)
cat = concat = concatenate = public(joining.cat)
clamp = public(elementwise.clamp)
flatten = public(shapes.flatten)
log_softmax = public(reductions.log_softmax)
max = public(extrema.max)
mean = public(reductions.mean)
min = public(extrema.min)
norm = public(norms.norm)
permute = public(shapes.permute)
renorm = norms.renorm
reshape = public(shapes.reshape)
softmax = public(reductions.softmax)
squeeze = public(shapes.squeeze)
stack = public(joining.stack)
std = public(reductions.std)
sum = public(reductions.sum)
t = public(shapes.t)
transpose = public(shapes.transpose)
unsqueeze = public(shapes.unsqueeze)
var = public(reductions.var)

__all__ = [
    "add", "all", "amax", "amin", "any", "argmax", "argmin", "broadcast_to",
    "clamp", "cross_entropy", "div", "flatten", "log_softmax", "matmul", "max", "mean",
    "min", "mm", "mse_loss", "norm", "permute", "renorm", "reshape", "softmax", "squeeze", "std",
    "sub", "sum", "t", "transpose", "unsqueeze", "var",
]  # fmt: skip
__all__ += comparison.__all__
__all__ += elementwise.__all__
__all__ += special.__all__
__all__ += gamma.__all__
__all__ += pairs.__all__
__all__ += sampling.__all__
__all__ += scans.__all__
__all__ += sorting.__all__
__all__ += statistics.__all__
__all__ += integrals.__all__
__all__ += distances.__all__
__all__ += gathering.__all__
__all__ += masking.__all__
__all__ += reducing.__all__
__all__ += combining.__all__
__all__ += products.__all__
__all__ += rearranging.__all__
__all__ += determinants.__all__
__all__ += factorisations.__all__
__all__ += decompositions.__all__
__all__ += systems.__all__
__all__ += einstein.__all__
__all__ += triangles.__all__
__all__ += splitting.__all__
__all__ += joining.__all__
__all__ += normalization.__all__


def __dir__() -> list[str]:
    return __all__
