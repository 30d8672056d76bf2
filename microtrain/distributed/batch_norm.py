"""Batch norm with the statistics of the global batch, however its rows lie on the ranks.

Forward is one collective: every rank gives its count, mean and sum of squared deviations, and all
combine them alike (Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing
sample variances", 1979), in float64. Where that would be much from many ranks it is two, which cost
no more with more ranks: a sum of counts and of counts times means, then one of the squared
deviations from the mean of all. No difference of large numbers is taken, and a rank without rows
has a count of zero. Backward is one collective, of two numbers a channel.
"""

from __future__ import annotations

import functools
import math
import time
import weakref
from typing import Any

import numpy as np

from ..autograd.function import Function
from ..backend import MODES, XP, float16, float32
from ..errors import need
from ..ops.coercion import cast
from ..ops.nn.normalization import batch_norm as local_batch_norm
from ..ops.nn.normalization import check_batch
from ..ops.shape.joining import cat
from ..ops.shape.shapes import reshape_to, sum_to
from ..tensor import TENSORS, Tensor, wrap
from .collectives import Collective, exchange
from .communicator import Array, Communicator, Op

# Rows of what a rank knows after the exchange, each in the shape of the statistics: its distance to
# the global mean, 1 / standard deviation, mean, unbiased variance, 1 / count, and whether there are
# any rows at all.
WHOLE = 2**15  # bytes of all ranks up to which each is told what every other has
_SHIFT, _SCALE, _MEAN, _VARIANCE, _SHARE, _ANY = range(6)


class Across:
    """Batch norm over the rows of all ranks, for the layers of a wrapped model (SyncBatchNorm).

    It holds as long as the wrapper lives. Copies of the layer have rows of their own only.
    """

    def __init__(self, owner: Any) -> None:
        self._owner, self._comm = weakref.ref(owner), owner.comm
        self.rank, self.size = owner.comm.rank, owner.comm.size

    def __call__(
        self, input: Any, mean: Any, var: Any, weight: Any, bias: Any, momentum: Any, eps: float
    ) -> Any:
        """`batch_norm` of a batch that all of the wrapper's ranks have a part of; collective."""
        if self._owner() is None:
            return local_batch_norm(input, mean, var, weight, bias, True, momentum, eps)
        return batch_norm(input, mean, var, weight, bias, momentum, eps, self)

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()

    # The ranks, to which the time in these collectives is communication.

    def all_gather(self, array: Array) -> Array:
        return self._timed(self._comm.all_gather, array)

    def all_reduce(self, array: Array, op: Op = "sum") -> Array:
        return self._timed(self._comm.all_reduce, array, op)

    def _timed(self, collective: Any, *args: Any) -> Array:
        started = time.perf_counter()
        found: Array = collective(*args)
        if (owner := self._owner()) is not None:
            owner.communicated(started, "batch norm")
        return found


def batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, momentum: Any,
    eps: float, comm: Communicator | Across,
) -> Any:  # fmt: skip
    """`functional.batch_norm` in training, of the rows of all ranks together; collective.

    So is its backward pass where `input` requires grad, on all ranks or on none. Weights are taken
    to be equal on all ranks. Running statistics get the same bits on every rank.

    Raises what `functional.batch_norm` raises, and on every rank ValueError where all of them
    together have one value per channel.
    """
    channels = check_batch(input, running_mean, running_var, weight, bias, eps, True)
    dtype = input.dtype
    if dtype == float16:  # computed in single, as in PyTorch
        input, weight, bias = (x if x is None else cast(x, float32) for x in (input, weight, bias))
    shape = (1, channels, *(1,) * (input.ndim - 2))
    weight, bias = (x if x is None else reshape_to(x, shape) for x in (weight, bias))
    found: list[Any] = []
    result = _BatchNorm.apply(input, weight, bias, eps, comm, found)
    if running_mean is not None:
        _track((running_mean, running_var), found[0], momentum)
    return cast(result, dtype)


class _BatchNorm(Function):
    """The normalized rows of this rank; `found` is given what `_combined` returns."""

    @staticmethod
    def forward(
        ctx: Any, input: Any, weight: Any, bias: Any, eps: float, comm: Any, found: list[Any]
    ) -> Tensor:
        x = input._array
        xp = XP[type(x)]
        shape = (1, x.shape[1], *(1,) * (x.ndim - 2))
        count = x.shape[0] * math.prod(x.shape[2:])
        mean = xp.divide(sum_to(x, shape), xp.constant(count or 1, x.dtype))
        values = xp.subtract(x, mean)
        work = xp.multiply(values, values)
        local = xp.concatenate((mean, sum_to(work, shape)))
        combine = functools.partial(_combined, comm, count, eps)
        stats = exchange("batch norm statistics", combine, local)
        found.append(stats)
        xp.subtract(values, stats[_SHIFT], out=values)
        normal = xp.multiply(values, stats[_SCALE], out=values)
        if weight is None:
            xp.copyto(work, normal)
        else:
            xp.multiply(normal, weight._array, out=work)
        if bias is not None:
            work = xp.add(work, bias._array, out=work)
        ctx.eps, ctx.comm = eps, comm
        ctx.save_for_backward(input, weight, wrap(normal), wrap(stats))
        return wrap(work)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        input, weight, normal, stats = ctx.saved_tensors
        shape = tuple(stats.shape[1:])
        scale, share = stats[_SCALE], stats[_SHARE]
        if MODES.grad:  # create_graph: what was computed from the input is so again, in the graph
            normal, scale = _standardized(input, share, ctx.eps, ctx.comm)
        along_one, along_normal = sum_to(g, shape), sum_to(g * normal, shape)
        for_input = None
        if ctx.needs_input_grad[0]:
            sums = Collective.apply(cat([along_one, along_normal]), "all_reduce", ctx.comm)
            sums = sums * -share
            parts = (normal * sums[1:]).add_(g).add_(sums[:1])
            for_input = parts * (scale if weight is None else scale * weight)
        return for_input, along_normal, along_one, None, None, None


def _standardized(x: Any, share: Any, eps: float, comm: Any) -> tuple[Any, Any]:
    """The normalized values and 1 / standard deviation as functions of `x` on all ranks."""

    def mean(values: Any) -> Any:
        return Collective.apply(sum_to(values, share.shape), "all_reduce", comm) * share

    values = x - mean(x)
    scale = (mean(values * values) + eps) ** -0.5
    return values * scale, scale


def _combined(comm: Any, count: int, eps: float, local: Array) -> Array:
    """What all ranks' means and sums of squared deviations, stacked, make together."""
    own, deviations = local.reshape(2, -1).astype(np.float64)  # which has room for the count
    size = own.size
    # A rank without rows says nothing, whatever its mean is.
    if 8 * comm.size * (1 + 2 * size) <= WHOLE:
        everyone = comm.all_gather(np.concatenate(([count], own, deviations)))
        counts, means, squares = np.split(everyone, [1, 1 + size], axis=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / (total or 1)
        sums = squares.sum(0) + (counts * (means - mean) ** 2).sum(0)
    else:
        added = comm.all_reduce(np.concatenate(([count], count * own)))
        total, mean = added[0], added[1:] / (added[0] or 1)
        sums = comm.all_reduce(deviations + count * (own - mean) ** 2)
    text = "expected more than 1 value per channel when training, got one value on all "
    need(total != 1, "batch_norm", f"{text}{comm.size} ranks together", error=ValueError)
    found = np.zeros((6, size))
    if total:
        found[:] = [
            *(mean - own, 1 / np.sqrt(sums / total + eps), mean, sums / (total - 1)),
            *np.broadcast_to([[1 / total], [1.0]], (2, mean.size)),
        ]
    return found.reshape(6, *local.shape[1:])[:, None].astype(local.dtype)


def _track(running: tuple[Any, Any], stats: Any, momentum: Any) -> None:
    """Move the running mean and variance towards those of the batch, where it has rows."""
    for old, row in zip(running, (_MEAN, _VARIANCE), strict=True):
        array = old._array
        xp = XP[type(array)]
        rate = cast(momentum, old.dtype)._array if type(momentum) in TENSORS else momentum
        new, there = (xp.reshape(stats[number], array.shape) for number in (row, _ANY))
        xp.add(array, xp.multiply(xp.subtract(new, array), xp.multiply(there, rate)), out=array)
        old.version.n += 1
