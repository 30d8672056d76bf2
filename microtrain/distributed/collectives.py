"""Collectives on Tensors that gradients pass through, and rows gathered in sample order.

The objective is the *sum over the ranks* of each rank's scalar. So the gradient of a collective is
the transposed collective: what all ranks received from this rank comes back and is added up. Each
is made of the others, and therefore has derivatives of every order.

All of them are collective twice: every rank calls them in the same order, and every rank runs the
backward pass (in the same order, and with inputs that require grad on all ranks or on none). A step
that is captured repeats them at every replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..autograd.function import Function
from ..backend import MODES, XP, to_host
from ..errors import need
from ..ops.pointwise.elementwise import eq
from ..ops.shape.joining import cat
from ..tensor import TENSORS, Tensor, wrap
from .communicator import Array, Communicator, Op
from .connection import ranks_of


def _reduce(comm: Communicator, array: Array, root: int) -> Array:
    total = comm.all_reduce(array.copy())
    return total if comm.rank == root else np.zeros_like(total)


# What each does to the values (a new array), and the one that its gradient goes through. The last
# argument is the op, or the root.
_LINEAR: Final[dict[str, tuple[Callable[[Communicator, Array, Any], Array], str]]] = {
    "all_reduce": (lambda comm, a, op: comm.all_reduce(a.copy(), op), "all_reduce"),
    "all_gather": (lambda comm, a, _: comm.all_gather(a), "reduce_scatter"),
    "reduce_scatter": (lambda comm, a, op: comm.reduce_scatter(a, op), "all_gather"),
    "all_to_all": (lambda comm, a, _: comm.all_to_all(a), "all_to_all"),
    "broadcast": (lambda comm, a, root: comm.broadcast(a.copy(), root), "reduce"),
    "reduce": (_reduce, "broadcast"),
}


def exchange(label: str, function: Callable[[Array], Array], array: Any) -> Any:
    """`function(array)`, which talks to the other ranks and returns a new array.

    `function` gets a C-contiguous NumPy array that it must not write to. In a step that is captured
    it is called at every replay, and has to return the same shape and dtype each time.
    """
    if MODES.capture.on:
        return MODES.capture.exchange(label, function, array)
    if MODES.answers:
        found = MODES.answers.pop(0)
    else:
        found = function(np.asarray(to_host(array), order="C"))
    return found if type(array) is np.ndarray else XP[type(array)].asarray(found)


class Collective(Function):
    """A collective that is linear: the sums, and those that only move values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, comm: Communicator, how: Any = "sum") -> Tensor:
        ctx.kind, ctx.comm, ctx.how = name, comm, how
        function = _LINEAR[name][0]
        return wrap(exchange(name, lambda array: function(comm, array, how), x._array))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        transposed = _LINEAR[ctx.kind][1]
        return Collective.apply(g, transposed, ctx.comm, ctx.how), None, None, None


class Extremum(Function):
    """The largest or smallest values over the ranks; equal ones share the gradient evenly."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, comm: Communicator, op: Op) -> Tensor:
        function, ctx.spread = _LINEAR[name]  # what brings a gradient to where x is
        result = wrap(exchange(f"{name} {op}", lambda a: function(comm, a, op), x._array))
        ctx.comm = comm
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, best = ctx.saved_tensors
        if ctx.spread == "all_gather":  # this rank has a row of the results, and all rows of x
            best = Collective.apply(best.detach(), "all_gather", ctx.comm)
        mine = eq(x, best).to(g.dtype)
        share = mine / Collective.apply(mine, "all_reduce", ctx.comm)
        return Collective.apply(g, ctx.spread, ctx.comm) * share, None, None, None


def _apply(call: str, tensor: Any, comm: Communicator | Any, how: Any = "sum") -> Tensor:
    need_tensor(call, tensor)
    linear = how == "sum" or call == "broadcast"
    return (Collective if linear else Extremum).apply(tensor, call, ranks_of(comm), how)


def need_tensor(call: str, x: Any) -> None:
    """TypeError for what is not a Tensor."""
    text = "expected a Tensor, got {}; what takes arrays are the methods of a communicator"
    need(type(x) in TENSORS, call, text, type(x), error=TypeError)


def all_reduce(tensor: Tensor, op: Op = "sum", comm: Communicator | Any = None) -> Tensor:
    """The sum (max, min) of the ranks' Tensors, element by element: a new Tensor, on every rank.

    Its gradient is the sum of the ranks' gradients; under max and min it goes to the rank with the
    extremum, in equal parts where several have it. Collective, and so is its backward pass.

    Args:
        tensor: of the same shape and dtype on all ranks: float32, float64, an integer; bool for max
            (any) and min (all).
        op: "sum", "max" or "min".
        comm: who takes part; None is `world()`.

    Raises TypeError for what is not a Tensor and for another dtype, ValueError for another op.

    Example:
        >>> total = mt.distributed.all_reduce(x.sum(0)) / mt.distributed.all_reduce(rows)
    """
    return _apply("all_reduce", tensor, comm, op)


def all_gather(tensor: Tensor, comm: Communicator | Any = None) -> Tensor:
    """The ranks' Tensors, of equal shape and dtype, stacked: shape (size, *shape), on every rank.

    For rows of different numbers see `gather`. Collective, and so is its backward pass, which adds
    up what the ranks' gradients say of this rank's row.

    Raises TypeError for what is not a Tensor.
    """
    return _apply("all_gather", tensor, comm)


def reduce_scatter(tensor: Tensor, op: Op = "sum", comm: Communicator | Any = None) -> Tensor:
    """Row `rank` of the sum (max, min) of the ranks' Tensors.

    Collective, and so is its backward pass. The gradient as in `all_reduce`.

    Args:
        tensor: of shape (size, *shape), the same on all ranks; the result has `shape`.
        op: "sum", "max" or "min".
        comm: who takes part; None is `world()`.

    Raises TypeError for what is not a Tensor and for dtypes that `all_reduce` does not take,
    ValueError for another number of rows and another op.
    """
    return _apply("reduce_scatter", tensor, comm, op)


def all_to_all(tensor: Tensor, comm: Communicator | Any = None) -> Tensor:
    """Row r goes to rank r; row r of the result came from rank r. Shape (size, *shape) on all.

    Collective, and so is its backward pass, which sends every row's gradient back.

    Raises TypeError for what is not a Tensor, ValueError for another number of rows.
    """
    return _apply("all_to_all", tensor, comm)


def broadcast(tensor: Tensor, root: int = 0, comm: Communicator | Any = None) -> Tensor:
    """The Tensor of rank `root`, on every rank; what others pass gives shape and dtype only.

    Collective, and so is its backward pass: the root's gradient is the sum of the ranks' gradients,
    the others' is zero.

    Raises TypeError for what is not a Tensor, ValueError for a root that is not a rank.
    """
    return _apply("broadcast", tensor, comm, root)


def gather(tensor: Tensor, comm: Communicator | Any = None) -> Tensor:
    """The rows of all ranks in rank order, which is the order of the samples; collective.

    A loader gives the ranks contiguous slices of every batch, so predictions of a batch that is not
    shuffled come out in the order of the data set, each once, however many rows each rank has. The
    gradient of a row goes back to the rank that it came from.

    Args:
        tensor: of shape (rows, ...): any number of rows, also none, and otherwise the same shape
            and dtype on all ranks.
        comm: who takes part; None is `world()`.

    Raises (on every rank) RuntimeError for shapes or dtypes that do not fit together, ValueError
    for a Tensor without rows; CaptureError in a captured step, where the number of rows would be
    fixed.

    Example:
        >>> with mt.no_grad():
        ...     predictions = [mt.distributed.gather(model(x)) for x, y in loader]
    """
    need_tensor("gather", tensor)
    comm = ranks_of(comm)
    MODES.capture.refuse(
        "gather: how many rows the other ranks have may change from call to call; gather outside "
        "the captured step"
    )
    everyone = comm.all_gather_object((tuple(tensor.shape), tensor.dtype.name))
    for rank, (shape, dtype) in enumerate(everyone):
        text = f"expected rows, but rank {rank} has a Tensor of no dimension"
        need(shape, "gather", text, error=ValueError)
        first, text = everyone[0], "rows that do not fit together: rank 0 has "
        fits = (shape[1:], dtype) == (first[0][1:], first[1])
        text += f"{first[1]}{[*first[0]]}, rank {rank} has {dtype}{[*shape]}"
        need(fits, "gather", text)
    counts = [shape[0] for shape, _ in everyone]
    missing = max(counts) - counts[comm.rank]
    if missing:
        xp = XP[type(tensor._array)]
        padding = wrap(xp.zeros((missing, *tensor.shape[1:]), tensor.dtype))
        tensor = cat([tensor, padding])
    rows = all_gather(tensor, comm)
    return cat([rows[rank, :count] for rank, count in enumerate(counts)])
