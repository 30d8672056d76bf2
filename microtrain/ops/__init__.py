"""Every operation: its kernel beside its gradient."""

from __future__ import annotations

from ..common.missing_names import own_names
from . import methods as methods
from . import tangents as tangents
from .coercion import REGISTRY as REGISTRY
from .fronts import public as _public

# Each of these lists its public names itself.
from .index.gathering import *  # noqa: F403
from .index.reducing import *  # noqa: F403
from .loss.classification_losses import cross_entropy as cross_entropy
from .loss.losses import mse_loss as mse_loss
from .matrix.decompositions import *  # noqa: F403
from .matrix.einstein import *  # noqa: F403
from .matrix.factorizations import *  # noqa: F403
from .matrix.linear_algebra import *  # noqa: F403
from .nn.normalization import *  # noqa: F403
from .pointwise import elementwise
from .pointwise.elementwise import *  # noqa: F403
from .pointwise.gamma import *  # noqa: F403
from .pointwise.special import *  # noqa: F403
from .reduce import norms, reductions
from .reduce.norms import *  # noqa: F403
from .reduce.scans import *  # noqa: F403
from .reduce.sorting import *  # noqa: F403
from .reduce.statistics import *  # noqa: F403
from .sampling import *  # noqa: F403
from .shape import joining, shapes
from .shape.joining import *  # noqa: F403
from .shape.rearranging import *  # noqa: F403

add, div, sub = elementwise.add_scaled, elementwise.div_rounded, elementwise.sub_scaled
all, any = _public(reductions.all), _public(reductions.any)
amax, amin = _public(reductions.amax), _public(reductions.amin)
argmax, argmin = _public(reductions.argmax), _public(reductions.argmin)
broadcast_to = _public(shapes.broadcast_to)
cat = concat = concatenate = _public(joining.cat)
clamp = _public(elementwise.clamp)
flatten, reshape = _public(shapes.flatten), _public(shapes.reshape)
log_softmax, softmax = _public(reductions.log_softmax), _public(reductions.softmax)
max, min = _public(reductions.max), _public(reductions.min)
mean, sum = _public(reductions.mean), _public(reductions.sum)
norm, renorm = _public(norms.norm), norms.renorm
permute, transpose = _public(shapes.permute), _public(shapes.transpose)
t, squeeze, unsqueeze = _public(shapes.t), _public(shapes.squeeze), _public(shapes.unsqueeze)
stack = _public(joining.stack)
std, var = _public(reductions.std), _public(reductions.var)

__all__ = own_names(globals())
