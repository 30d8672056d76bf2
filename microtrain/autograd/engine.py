"""The backward pass: nodes by descending creation number, a heap, no recursion.

A node runs once everything younger has run, so its gradient is complete. The engine does the three
things that no gradient rule does for itself: it reduces a gradient to the shape it belongs to
(un-broadcasting), adds up gradients that meet, and accumulates into leaves.

Without `create_graph` the rules get raw arrays; with it they get Tensors and what they compute is
recorded like any other computation.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from heapq import heappop, heappush, heappushpop
from typing import Any

from ..backend import MODES, XP
from ..tensor import TENSORS, Tensor, as_array, wrap
from .graph import edge_of, freed, nodes_towards, unbroadcast
from .hooks import run_hooks
from .turns import COMMON, broken_off, let_go, take, turn_of


class Scaling:
    """What the seeds of a pass were multiplied by, to the gradients of some leaves alone.

    Attributes:
        leaves: those whose gradients stay multiplied; None: nothing was.
        home: where most of these gradients lie, a buffer: known without a look at `leaves`.
        scale: a number; while a step is captured a 0-d array.
        ready: called with a leaf whenever a gradient has been added to it, so that it can be sent
            while others are computed; or None.
    """

    __slots__ = ("home", "leaves", "ready", "scale")

    def __init__(self, leaves: frozenset[Tensor] | None, home: Any, scale: Any, ready: Any) -> None:
        self.leaves, self.home, self.scale, self.ready = leaves, home, scale, ready

    def undone(self, leaf: Tensor, g: Any) -> Any:
        """The gradient `g` of another leaf as if nothing had been multiplied."""
        if self.leaves is None or leaf in self.leaves:
            return g
        xp, scale = XP[type(g)], self.scale
        if type(scale) in XP:
            scale = xp.where(xp.equal(scale, 0), xp.constant(1, scale.dtype), scale)
        elif not scale:
            return xp.zeros_like(g)  # nothing was counted: the pass contributes nothing
        return xp.divide(g, scale)


class _Absent:
    """A gradient that is 0 because another rank has said so: nothing is computed with it.

    Leaves get zeros, as where they would have been told numbers.
    """

    def __add__(self, g: Any) -> Any:
        return g


ABSENT = _Absent()
UNSCALED = Scaling(None, None, None, None)


def run(
    roots: Sequence[Any],
    seeds: Sequence[Any],
    retain: bool,
    create_graph: bool,
    wanted: tuple[Tensor, ...] | None,
    accumulate: bool,
    scaling: Scaling = UNSCALED,
) -> tuple[dict[Any, Any], dict[Tensor, None]]:
    """One pass from the edges `roots`, which start with the gradients `seeds`.

    With `accumulate`, leaves (all, or the wanted ones) get their `.grad`; without it nothing is
    written. `scaling` says what data parallelism has multiplied the seeds by. Returns the gradients
    of the `wanted` Tensors by edge, and the leaves that have hooks to be run when all is done.
    """
    pending: dict[Any, Any] = {}  # node -> its gradient, or a list where it has several outputs
    # Of the nodes that wait the first to come, and all others: a chain needs no heap.
    first: Any = None
    heap: list[tuple[int, Any]] = []
    held: dict[Tensor, Any] = {}  # gradients of leaves that must be complete before they are used
    touched: dict[Tensor, None] = {}
    captured: dict[Any, Any] = {}
    needed: Any = None
    keys: Any = ()
    targets: Any = ()
    # Messages of the ranks go back in every pass; those of this one are for the next.
    modes = MODES.__dict__  # this thread's: asked for once
    noted, messages = modes["messages"], []
    zeros: dict[Any, None] = {}  # what messages lead to: leaves, and nodes that are wanted
    if noted:
        modes["messages"] = []
        messages = [(one, its) for one in noted if (its := one.node()) is not None]
        _spread([its for _, its in messages], pending, heap, zeros)
    scaled, home, ready = scaling.leaves, scaling.home, scaling.ready
    if wanted is not None:
        keys = {edge_of(tensor) for tensor in wanted}
        targets = {k[0] if type(k) is tuple else k for k in keys}
        if messages:
            needed = {its for _, its in messages}
            needed |= nodes_towards([*roots, *needed], targets | needed)
        else:
            needed = nodes_towards(roots, targets)
    at_once = wanted is None and not create_graph
    turns: list[Any] = []  # of the leaves that this pass adds to, until it ends
    recording, direct = modes["grad"], modes["direct"]
    anomaly, capture = modes["anomaly"], modes["capture"]
    recorded = capture.on
    plain = not create_graph and anomaly is None and not recorded
    usual = at_once and not recorded and scaling is UNSCALED
    if recorded:
        capture.passes += 1
    try:
        modes["grad"] = create_graph if anomaly is None else anomaly.modes[create_graph]
        modes["direct"] = turns if wanted is None and direct is not False else False
        node: Any = None
        edges: Any = roots
        grads: Any = seeds
        while True:
            # As many of each: rules are generated so, and what users return is checked. Python's
            # own check (strict=True) would take 7 % of a step of small operations.
            for edge, g in zip(edges, grads):  # noqa: B905
                if edge is None or g is None:
                    continue
                kind = type(edge)
                if kind in TENSORS:
                    if not edge._rg:  # frozen, or detached, since
                        continue
                    extra = edge._extra
                    slot = None if extra is None else extra.slot
                    # What a rule has written into the slot itself has its shape.
                    if (slot is None or g is not slot.array) and g.shape != edge._array.shape:
                        g = unbroadcast(g, edge._array.shape, node)
                    if (  # the usual case, faster
                        usual
                        and slot is not None
                        and extra.hooks is None
                        and extra.post_hooks is None
                        and slot.buffer.turn in turns
                    ):
                        slot.add(g)
                    elif (
                        at_once
                        and (extra is None or not extra.hooks)
                        and (
                            scaled is None
                            or (slot is not None and slot.buffer is home)
                            or edge in scaled
                        )
                        and (
                            (slot is not None and slot.buffer.turn in turns)
                            or recorded
                            or (
                                _added(edge, g, turns)
                                if slot is None
                                else take(turns, slot.buffer.turn)
                            )
                        )
                    ):
                        if recorded:
                            accumulate_into(edge, g, False)
                        elif slot is not None:
                            slot.add(g)
                        if ready is not None:
                            ready(edge)
                        if extra is not None and extra.post_hooks:
                            touched[edge] = None
                    elif wanted is None or edge in keys:
                        held[edge] = held[edge] + g if edge in held else g
                elif kind is tuple:
                    target, number = edge
                    if g.shape != target._shapes[number]:
                        g = unbroadcast(g, target._shapes[number], node)
                    outputs = pending.get(target)
                    if type(outputs) is not list:
                        waits = outputs is ABSENT
                        outputs = pending[target] = [None] * len(target._shapes)
                        if waits:
                            pass
                        elif first is None:
                            first = target
                        else:
                            heappush(heap, (-target._seq, target))
                    outputs[number] = g if outputs[number] is None else outputs[number] + g
                else:
                    if g.shape != edge._shape:
                        g = unbroadcast(g, edge._shape, node)
                    if edge in pending:
                        pending[edge] = pending[edge] + g
                    else:
                        pending[edge] = g
                        if first is None:
                            first = edge
                        else:
                            heappush(heap, (-edge._seq, edge))
            if not heap:
                if first is None:
                    break
                node = first
            elif first is None:
                node = heappop(heap)[1]
            else:
                node = heappushpop(heap, (-first._seq, first))[1]
            first = None
            g = pending.pop(node)
            hooks = node._hooks
            if g is ABSENT:
                if node in targets:
                    zeros[node] = None
                if not node._op.always:
                    edges = grads = ()
                    if needed is None or node in needed:
                        _spread(_seen_off(node, retain), pending, heap, zeros)
                    continue
                hooks = None
            if hooks is not None:
                if hooks.users:
                    capture.refuse_hook("a hook of a Tensor or node")
                if turns:
                    let_go(turns)  # a hook may wait for another thread, or begin a pass that does
                g = hooks.before(g, create_graph)
                if hooks.post:  # which come before what a rule writes is in its place
                    modes["direct"] = False
            if wanted is not None:
                if node in targets and g is not ABSENT:
                    _capture(node, g, keys, captured)
                if node not in needed:
                    if node._op.always and node._saved is None:
                        raise freed(node)  # a message that an earlier pass has seen off
                    edges = grads = ()
                    continue
            saved = node._saved
            if saved is None:
                raise freed(node)
            op = node._op
            grads = op.backward_arrays(node, g) if plain else _other(node, g, create_graph, anomaly)
            if hooks is not None and hooks.post:
                modes["direct"] = turns if wanted is None and direct is not False else False
                grads = hooks.after(g, grads, create_graph)
            if saved and not retain and op.saves_arrays:
                node._saved = None
            edges = node._edges
            if grads is ABSENT:
                _spread(edges, pending, heap, zeros)
                edges = grads = ()
        if turns:
            let_go(turns)  # before it waits for those that others have
        # Data parallelism sees what is unused by itself, and may be sending what is not.
        if zeros and ready is None:
            for tensor in zeros if wanted is None else wanted:
                key = edge_of(tensor)
                if (key[0] if type(key) is tuple else key) in zeros and key not in captured:
                    g = XP[type(tensor._array)].zeros_like(tensor._array)
                    g = wrap(g) if create_graph else g
                    (held if key is tensor else captured).setdefault(key, g)
        for leaf, g in held.items():
            g = scaling.undone(leaf, g)
            extra = leaf._extra
            if extra is not None and extra.hooks:
                capture.refuse_hook("a hook of a Tensor")
                g = run_hooks(extra.hooks, g, create_graph)
            if not accumulate:
                captured[leaf] = g
                continue
            accumulate_into(leaf, g, create_graph)
            if extra is not None and extra.post_hooks:
                touched[leaf] = None
        if accumulate and captured:  # backward(inputs=...) of computed Tensors
            for tensor in dict.fromkeys(wanted or ()):
                if tensor._edge in captured and not tensor.retains_grad:  # else it has it already
                    g = scaling.undone(tensor, captured[tensor._edge])
                    accumulate_into(tensor, g, create_graph)
    finally:
        try:
            if turns:
                broken_off(turns)
        finally:
            if turns:  # a Ctrl-C has come into the first one
                broken_off(turns)
            modes["grad"], modes["direct"] = recording, direct
            if retain and messages:
                modes["messages"] = [*(one for one, _ in messages), *modes["messages"]]
    return captured, touched


def _spread(edges: Any, pending: dict[Any, Any], heap: list[Any], zeros: dict[Any, None]) -> None:
    """Let a gradient that is absent come to `edges`."""
    for edge in edges:
        if edge is None:
            continue
        if type(edge) in TENSORS:
            zeros[edge] = None
            continue
        node = edge[0] if type(edge) is tuple else edge
        if node not in pending:
            pending[node] = ABSENT
            heappush(heap, (-node._seq, node))


def _seen_off(node: Any, retain: bool) -> Any:
    """The edges of a node whose rules a gradient that is absent does not need."""
    if node._saved is None:
        raise freed(node)
    if node._saved and not retain and node._op.saves_arrays:
        node._saved = None
    return node._edges


def _other(node: Any, g: Any, create_graph: bool, anomaly: Any) -> Any:
    """What the rules of `node` return: under `create_graph`, watched for anomalies, captured."""
    op, capture = node._op, MODES.capture
    backward = op.backward_tensors if create_graph else op.backward_arrays
    if capture.on and not create_graph:
        backward = functools.partial(capture.backward, backward)
    return backward(node, g) if anomaly is None else anomaly.watch(backward, node, g)


def accumulate_into(tensor: Tensor, g: Any, create_graph: bool) -> None:
    """Add `g` to `.grad`: an array, or under `create_graph` a Tensor that keeps its graph."""
    extra = tensor._extra
    if MODES.capture.on and MODES.capture.accumulates(tensor, g, create_graph):
        return
    while True:
        turn = turn_of(tensor)
        with turn:
            if turn is not turn_of(tensor):  # it has got another one meanwhile
                continue
            if extra is not None and extra.slot is not None:
                extra.slot.add_graph(g) if create_graph else extra.slot.add(g)
            elif not create_graph:
                _accumulate(tensor, g)
            else:
                tensor._grad = g.clone() if tensor._grad is None else tensor._grad + g
            return


def _added(leaf: Tensor, g: Any, turns: list[Any]) -> bool:
    """Whether `g` could be added at once to the `.grad` of a leaf without a flat slot.

    Not while another thread has its turn.
    """
    version = leaf._version
    if version is None or version.turn is None:
        with COMMON:
            if turn_of(leaf) is COMMON:
                _accumulate(leaf, g)
                return True
    if not take(turns, turn_of(leaf)):
        return False
    _accumulate(leaf, g)
    return True


def _accumulate(leaf: Tensor, g: Any) -> None:
    """Add the array `g` to the `.grad` of a leaf without a flat slot."""
    have = leaf._grad
    if have is None:
        # A copy: `g` may be the saved value of a node, or on its way to another leaf as well.
        leaf._grad = wrap(XP[type(g)].asarray(g, leaf._array.dtype).copy())
    elif have._edge is None:
        have._array += g
        have.version.n += 1
    else:
        leaf._grad = wrap(as_array(have._array + g))


def _capture(node: Any, g: Any, keys: set[Any], captured: dict[Any, Any]) -> None:
    if type(g) is not list:
        captured[node] = g
        return
    for number, value in enumerate(g):
        if value is not None and (node, number) in keys:
            captured[node, number] = value
