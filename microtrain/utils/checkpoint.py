"""Gradient checkpointing: what lies between inputs and outputs is computed anew for the gradient.

T. Chen et al., "Training deep nets with sublinear memory cost", 2016. The function runs once with
its graph, to learn which parameters it reaches; the graph is dropped, and one node takes its place
whose edges lead to the arguments and to these. A backward pass through that node runs the function
again, with the random numbers of the first time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ..autograd import Function, grad
from ..autograd.grad_mode import enable_grad
from ..autograd.graph import MEANS, next_seq, walk
from ..backend import ARRAYS, LISTENERS, MODES
from ..common.missing_names import namespace
from ..errors import need
from ..nn import Module
from ..ops.coercion import version_of
from ..optim.optimizer import refuse_switches
from ..random import go_to, standing
from ..tensor import TENSORS, Tensor


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Any = None,
    determinism_check: str = "default",
    debug: bool = False,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """What `function(*args, **kwargs)` returns, with no memory kept for its gradient.

    The backward pass calls the function again, so it must compute the same. Random numbers, as of
    dropout, are those of the first time, but a counter in it counts twice, and so do the running
    statistics of batch norm. Gradients reach the arguments that are Tensors and the parameters that
    the function uses; other Tensors with a graph have to be arguments.

    Args:
        function: returns a Tensor, or a tuple with Tensors.
        use_reentrant: PyTorch's other implementation; None or False.
        determinism_check: "default": the second time must do as many operations as the first, on
            arrays of the same shapes and dtypes, and its results must have the same sums; "none":
            not looked at.
        preserve_rng_state: False: the second time draws other random numbers.
        context_fn, debug: PyTorch's switches, which can only be off.

    Raises:
        ValueError: a switch that is not supported.
        RuntimeError: a Tensor with a graph that is no argument; an argument written in place; a
            DataParallel that is called inside, or a loss whose denominator it has to see; the
            second time is not like the first.

    Example:
        >>> from microtrain.utils.checkpoint import checkpoint
        >>> block = mt.nn.Sequential(mt.nn.Linear(4, 64), mt.nn.ReLU(), mt.nn.Linear(64, 1))
        >>> loss = checkpoint(block, mt.ones(8, 4), use_reentrant=False).sum()
        >>> loss.backward()    # computes the 64 hidden values once more
    """
    switches = {"use_reentrant": use_reentrant, "context_fn": context_fn, "debug": debug}
    refuse_switches("checkpoint", **switches)
    known, text = determinism_check in ("default", "none"), "determinism_check is default or none"
    need(known, "checkpoint", text, determinism_check, error=ValueError)
    if not MODES.grad:
        return function(*args, **kwargs)
    call = _Call(function, args, kwargs, preserve_rng_state, determinism_check == "default")
    return call.first()


def checkpoint_sequential(
    functions: Any,
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    *,
    preserve_rng_state: bool = True,
) -> Any:
    """A `Sequential`, or a list of functions, in `segments` parts, each but the last checkpointed.

    Raises ValueError for more parts than functions, or less than one; else as `checkpoint`.

    Example:
        >>> net = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 1))
        >>> mt.utils.checkpoint.checkpoint_sequential(net, 2, mt.ones(5, 4)).shape
        (5, 1)
    """
    chain = list(functions.children()) if isinstance(functions, Module) else list(functions)
    text = f"segments must be from 1 to the number of functions, {len(chain)}"
    fits = 1 <= segments <= len(chain)
    need(fits, "checkpoint_sequential", text, segments, error=ValueError)
    size = len(chain) // segments
    for number in range(segments - 1):
        part = functools.partial(_one_by_one, chain[number * size : (number + 1) * size])
        input = checkpoint(
            part, input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state
        )
    return _one_by_one(chain[(segments - 1) * size :], input)


def _one_by_one(functions: Sequence[Callable[..., Any]], input: Any) -> Any:
    for function in functions:
        input = function(input)
    return input


class _Call:
    """A call that can be repeated.

    Attributes:
        given: the Tensors among its arguments that require grad.
        outside: the leaves beside them that it reaches.
    """

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: Any, same_draws: bool, check: bool
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.check = check
        self.given = [v for v in (*args, *kwargs.values()) if type(v) in TENSORS and v._rg]
        self.draws = standing() if same_draws else None
        self.outside: list[Tensor] = []
        self.sums: list[Any] | None = None

    def run(self, stand_ins: Sequence[Tensor]) -> tuple[Any, ...]:
        """Call the function with these in place of `given`; its results as a tuple."""
        places = iter(stand_ins)

        def put(value: Any) -> Any:
            return next(places) if type(value) in TENSORS and value._rg else value

        args = [put(value) for value in self.args]
        kwargs = {name: put(value) for name, value in self.kwargs.items()}
        with enable_grad():
            found = self.function(*args, **kwargs)
        self.alone = type(found) is not tuple
        results = (found,) if self.alone else found
        for value in results:
            flat = not isinstance(value, list | tuple | dict | set)
            text = "the function has to return a Tensor or a tuple with Tensors"
            need(flat, "checkpoint", text, type(value), error=TypeError)
        return results

    def first(self) -> Any:
        """The results, at their place in the graph."""
        versions = [version_of(tensor) for tensor in self.given]
        forwards, begin = _forwards(), next_seq()
        stand_ins = [tensor.detach().requires_grad_() for tensor in self.given]
        results = self.run(stand_ins)
        text = "the function writes to an argument in place, so the second time it would get other "
        same = [version_of(tensor) for tensor in self.given] == versions
        need(same, "checkpoint", text + "values; let it work on x.clone()")
        self.outside, self.graph = _outside(results, stand_ins, begin)
        now, members = _forwards(), {*self.outside}
        called = any(now[one] != forwards.get(one) and one.members & members for one in now)
        text = "the function calls a DataParallel, which would count its rows twice; call "
        need(not called, "checkpoint", text + "checkpoint inside the model that is wrapped")
        self.kinds = [_kind(value) for value in results]
        self.learns = [type(value) in TENSORS and value._rg for value in results]
        if self.check and self.draws is not None:  # new draws give new values
            self.sums = self._sums(results)
        detached = tuple(v.detach() if type(v) in TENSORS else v for v in results)
        if not any(self.learns):
            return detached[0] if self.alone else detached
        del results, stand_ins
        found = _Checkpoint.apply(self, detached, *self.given, *self.outside)
        return found[0] if self.alone else found

    def gradients(self, *values: Tensor) -> tuple[Any, ...]:
        """Those of the arguments and of the leaves outside, from those of the results.

        Args:
            values: stand-ins for the arguments, and behind them the gradients of the results.
        """
        stand_ins, seeds = values[: len(self.given)], values[len(self.given) :]
        now, begin = standing(), next_seq()
        try:
            if self.draws is not None:
                go_to(self.draws)
            results = self.run(stand_ins)
        finally:
            if self.draws is not None:
                go_to(now)
        if self.check:
            self._compare(results, begin)
        roots = [value for value, learns in zip(results, self.learns, strict=True) if learns]
        wanted = [*stand_ins, *self.outside]
        return grad(roots, wanted, list(seeds), create_graph=MODES.grad, materialize_grads=True)

    def _compare(self, results: Any, begin: int) -> None:
        """RuntimeError where the second time is not like the first."""
        kinds, (_, graph) = [_kind(value) for value in results], _outside(results, (), begin)
        text = "the function did not compute the same again, so its gradient would not be that of "
        text += "the results: expected {}: {}, got {}. It must not depend on what changes meanwhile"
        for what, before, now in ("results", self.kinds, kinds), ("operations", self.graph, graph):
            for first, second in zip_longest(before, now):
                need(first == second, "checkpoint", text, what, first, second)
        sums = [] if self.sums is None else zip(self.sums, self._sums(results), strict=True)
        for (first, size, error), (second, *_) in sums:
            near = abs(first - second) <= error * size or first == second
            both_nan = first != first and second != second
            need(near or both_nan, "checkpoint", text, "values with the sum", first, second)

    def _sums(self, results: Any) -> list[tuple[float, float, float]]:
        """Of each result with a gradient the sum, that of sizes, and what may be rounding.

        Of none while a step is captured, which replays one and the same call, nor of a GPU, which
        would have to be waited for.
        """
        arrays = [v._array for v, learns in zip(results, self.learns, strict=True) if learns]
        if MODES.capture.on or any(type(a) is not np.ndarray for a in arrays):
            return []
        with np.errstate(all="ignore"):
            return [
                (
                    float(a.sum(dtype=np.float64)),
                    float(np.abs(a).sum(dtype=np.float64)),
                    math.sqrt(np.finfo(a.dtype).eps),
                )
                for a in arrays
            ]


class _Checkpoint(Function):
    """The node in place of a call's graph."""

    @staticmethod
    def forward(ctx: Any, call: _Call, results: Any, *inputs: Tensor) -> Any:
        ctx.call = call
        ctx.save_for_backward(*inputs)
        pairs = zip(results, call.learns, strict=True)
        ctx.mark_non_differentiable(
            *(v for v, learns in pairs if type(v) in TENSORS and not learns)
        )
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        call: _Call = ctx.call
        given = ctx.saved_tensors[: len(call.given)]
        seeds = [g for g, learns in zip(grads, call.learns, strict=True) if learns]
        if MODES.grad:  # for higher derivatives: a function of arguments and gradients like any
            return None, None, *checkpoint(call.gradients, *given, *seeds)
        with_graph = [tensor.detach().requires_grad_() for tensor in given]
        return None, None, *call.gradients(*with_graph, *seeds)


def _kind(value: Any) -> Any:
    """What the second time has to have in common with the first."""
    if type(value) in TENSORS:
        return tuple(value._array.shape), value._array.dtype.name
    return type(value).__name__


def _forwards() -> dict[Any, Any]:
    """The forward calls that data parallelism has counted, also that of other threads' ranks."""
    return {one: [*one.forwards()] for one in LISTENERS}


def _saved(value: Any) -> Any:
    """The shapes and dtypes of the arrays that a node keeps."""
    if isinstance(value, tuple | list):
        return [kind for each in value for kind in _saved(each)]
    array = getattr(value, "_array", value)
    return [(tuple(array.shape), array.dtype.name)] if type(array) in ARRAYS else []


def _outside(
    results: Any, stand_ins: Sequence[Tensor], begin: int
) -> tuple[list[Tensor], list[Any]]:
    """The leaves that the graph of `results` reaches, without the stand-ins; and its operations.

    These with what they keep, in the order in which they were done. Raises RuntimeError for what a
    gradient would not find its way through.
    """
    found: dict[Tensor, None] = {}
    nodes = []
    for node in walk([v._edge or v for v in results if type(v) in TENSORS and v._rg]):
        if type(node) in TENSORS:
            found[node] = None
            continue
        nodes.append(node)
        text = "the function uses a Tensor that was computed outside, by {}; pass it as an argument"
        need(node._seq >= begin, "checkpoint", text, node._op.node_name)
        text = "the function computes a loss that divides by what counts of its elements, which a "
        text += "DataParallel has to see; compute the loss outside"
        need(node._op not in MEANS, "checkpoint", text)
    nodes.sort(key=lambda node: node._seq)
    operations = [(node._op.node_name, _saved(node._saved)) for node in nodes]
    return [leaf for leaf in found if not any(leaf is one for one in stand_ins)], operations


namespace(globals())
