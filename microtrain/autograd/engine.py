"""The backward pass: nodes by descending creation number, a heap, no recursion.

A node runs when every younger node has run: by then its gradient is complete. The engine does the
three things that no gradient rule does for itself: it reduces a gradient to the shape of the value
it belongs to (un-broadcasting), adds up the gradients that meet at a node, and accumulates into
leaves. `run` is long, as a call per node or leaf would be a large part of a small step.

Without `create_graph` the rules get raw arrays; with it they get Tensors, and what they compute is
recorded like any other computation.

Messages are Tensors that one rank sends to another (`distributed/messages.py`). Each of their nodes
takes part in the next pass, whatever that starts from, as another rank waits for its gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from heapq import heappop, heappush, heappushpop
from typing import Any

from ..backend import MODES, XP
from ..tensor import TENSORS, Tensor, as_array, wrap
from .graph import edge_of, freed, nodes_between, unbroadcast
from .hooks import run_hooks
from .locks import COMMON, acquire, lock_of, release, release_after_error


class Scaling:
    """What data parallelism multiplied the seeds of a pass by, for its parameters alone.

    Attributes:
        leaves: the parameters, whose gradients stay multiplied; None: the seeds were not scaled.
        home: the flat buffer that most of these are in, which is faster to ask than `leaves`.
        scale: the factor, a number; a 0-d array while a step is captured.
        ready: called with a leaf whenever a gradient has been added to it, so that it can be sent
            while others are computed; or None.
    """

    __slots__ = ("home", "leaves", "ready", "scale")

    def __init__(self, leaves: frozenset[Tensor] | None, home: Any, scale: Any, ready: Any) -> None:
        self.leaves, self.home, self.scale, self.ready = leaves, home, scale, ready

    def undone(self, leaf: Tensor, g: Any) -> Any:
        """`g` as it would be without the factor, unless `leaf` is one of the parameters."""
        if self.leaves is None or leaf in self.leaves:
            return g
        xp, scale = XP[type(g)], self.scale
        if type(scale) in XP:
            scale = xp.where(xp.equal(scale, 0), xp.constant(1, scale.dtype), scale)
        elif not scale:
            return xp.zeros_like(g)  # a factor of 0 is a rank without samples
        return xp.divide(g, scale)


class _Absent:
    """The gradient of a message whose receiver did not use it: 0, so no rule is run for it.

    Leaves behind it get zeros, as they would if the zeros had been sent.
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
    """One pass from the edges `roots`, whose gradients are `seeds`.

    With `accumulate`, leaves (all, or the wanted ones) get their `.grad`; without it nothing is
    written. `scaling` says what data parallelism has multiplied the seeds by. Returns the gradients
    of the `wanted` Tensors by edge, and the leaves whose post-accumulate hooks are to be called.
    """
    pending: dict[Any, Any] = {}  # node -> its gradient, or a list where it has several outputs
    # The nodes of `pending`: one in `first`, the others in `heap`. So a chain needs no heap.
    first: Any = None
    heap: list[tuple[int, Any]] = []
    held: dict[Tensor, Any] = {}  # gradients of leaves that are added to `.grad` at the end only
    touched: dict[Tensor, None] = {}
    found: dict[Any, Any] = {}
    needed: Any = None
    wanted_edges: Any = ()
    wanted_nodes: Any = ()
    modes = MODES.__dict__  # this thread's: looked up once
    noted, messages = modes["messages"], []
    zeros: dict[Any, None] = {}  # leaves and wanted nodes that an absent gradient has come to
    if noted:
        modes["messages"] = []  # those sent during this pass are for the next one
        messages = [(one, its) for one in noted if (its := one.node()) is not None]
        _spread([its for _, its in messages], pending, heap, zeros)
    scaled, home, ready = scaling.leaves, scaling.home, scaling.ready
    if wanted is not None:
        wanted_edges = {edge_of(tensor) for tensor in wanted}
        wanted_nodes = {k[0] if type(k) is tuple else k for k in wanted_edges}
        if messages:
            needed = {its for _, its in messages}
            needed |= nodes_between([*roots, *needed], wanted_nodes | needed)
        else:
            needed = nodes_between(roots, wanted_nodes)
    at_once = wanted is None and not create_graph  # leaves without hooks need not wait in `held`
    locks: list[Any] = []  # held until the pass ends: of the gradients that it adds to
    recording, direct = modes["grad"], modes["direct"]
    anomaly, capture = modes["anomaly"], modes["capture"]
    recorded = capture.on
    plain = not create_graph and anomaly is None and not recorded
    usual = at_once and not recorded
    if recorded:
        capture.differentiate(roots, wanted)
    try:
        modes["grad"] = create_graph if anomaly is None else anomaly.modes[create_graph]
        # Rules may write into a flat gradient whose lock is held.
        modes["direct"] = locks if wanted is None and direct is not False else False
        node: Any = None
        edges: Any = roots
        grads: Any = seeds
        while True:
            # The gradients of the inputs of `node`, and where they go: as many of each, as rules
            # are generated so, and what users return is checked. Python's own check (strict=True)
            # would take 7 % of a step of small operations.
            for edge, g in zip(edges, grads):  # noqa: B905
                if edge is None or g is None:
                    continue
                kind = type(edge)
                if kind in TENSORS:
                    if not edge._rg:  # frozen or detached since the forward pass
                        continue
                    extra = edge._extra
                    slot = None if extra is None else extra.slot
                    # A rule may have written into the slot itself: then the shape is right.
                    if (slot is None or g is not slot.array) and g.shape != edge._array.shape:
                        g = unbroadcast(g, edge._array.shape, node)
                    if (  # the usual case, without a further call
                        usual
                        and slot is not None
                        and extra.hooks is None
                        and extra.post_hooks is None
                        and slot.buffer.lock in locks
                        and (scaled is None or slot.buffer is home)
                    ):
                        slot.add(g)
                        if ready is not None:
                            ready(edge)
                    elif (
                        at_once
                        and (extra is None or not extra.hooks)
                        and (scaled is None or edge in scaled)
                        and _accumulated(edge, g, slot, locks, recorded)
                    ):
                        if ready is not None:
                            ready(edge)
                        if extra is not None and extra.post_hooks:
                            touched[edge] = None
                    elif wanted is None or edge in wanted_edges:
                        held[edge] = held[edge] + g if edge in held else g
                elif kind is tuple:
                    target, number = edge
                    if g.shape != target._shapes[number]:
                        g = unbroadcast(g, target._shapes[number], node)
                    outputs = pending.get(target)
                    if type(outputs) is not list:
                        queued = outputs is ABSENT  # the node is in the heap already
                        outputs = pending[target] = [None] * len(target._shapes)
                        if queued:
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
                if node in wanted_nodes:
                    zeros[node] = None
                if not node._op.always:
                    edges = grads = ()
                    if needed is None or node in needed:
                        _spread(_without_rules(node, retain), pending, heap, zeros)
                    continue
                hooks = None
            if hooks is not None:
                if hooks.users:
                    capture.refuse_hook("a hook of a Tensor or node")
                if locks:
                    release(locks)  # a hook may wait for another thread, or start a pass that does
                g = hooks.before(g, create_graph)
                if hooks.post:  # they may replace what a rule would have written to its place
                    modes["direct"] = False
            if wanted is not None:
                if node in wanted_nodes and g is not ABSENT:
                    _keep_wanted(node, g, wanted_edges, found)
                if node not in needed:
                    if node._op.always and node._saved is None:
                        raise freed(node)  # a message whose gradient an earlier pass has sent
                    edges = grads = ()
                    continue
            saved = node._saved
            if saved is None:
                raise freed(node)
            op = node._op
            grads = op.backward_arrays(node, g) if plain else _rules(node, g, create_graph, anomaly)
            if hooks is not None and hooks.post:
                modes["direct"] = locks if wanted is None and direct is not False else False
                grads = hooks.after(g, grads, create_graph)
            if saved and not retain and op.saves_arrays:
                node._saved = None
            edges = node._edges
            if grads is ABSENT:
                _spread(edges, pending, heap, zeros)
                edges = grads = ()
        if locks:
            release(locks)  # before it waits for locks of other threads
        # With `ready`, data parallelism finds unused parameters itself, and may be sending others.
        if zeros and ready is None:
            for tensor in zeros if wanted is None else wanted:
                key = edge_of(tensor)
                if (key[0] if type(key) is tuple else key) in zeros and key not in found:
                    g = XP[type(tensor._array)].zeros_like(tensor._array)
                    g = wrap(g) if create_graph else g
                    (held if key is tensor else found).setdefault(key, g)
        for leaf, g in held.items():
            g = scaling.undone(leaf, g)
            extra = leaf._extra
            if extra is not None and extra.hooks:
                capture.refuse_hook("a hook of a Tensor")
                g = run_hooks(extra.hooks, g, create_graph)
            if not accumulate:
                found[leaf] = g
                continue
            accumulate_into(leaf, g, create_graph)
            if extra is not None and extra.post_hooks:
                touched[leaf] = None
        if accumulate and found:  # backward(inputs=...) of computed Tensors
            for tensor in dict.fromkeys(wanted or ()):
                if tensor._edge in found and not tensor.retains_grad:  # which have added it
                    g = scaling.undone(tensor, found[tensor._edge])
                    accumulate_into(tensor, g, create_graph)
    finally:
        try:
            if locks:
                release_after_error(locks)
        finally:
            if locks:  # a Ctrl-C has interrupted the first call
                release_after_error(locks)
            modes["grad"], modes["direct"] = recording, direct
            if retain and messages:
                modes["messages"] = [*(one for one, _ in messages), *modes["messages"]]
    return found, touched


def _spread(edges: Any, pending: dict[Any, Any], heap: list[Any], zeros: dict[Any, None]) -> None:
    """Send an absent gradient to `edges`: nodes join the heap, leaves are noted in `zeros`."""
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


def _without_rules(node: Any, retain: bool) -> Any:
    """The edges of a node whose gradient is absent; what it saved is freed as after its rules."""
    if node._saved is None:
        raise freed(node)
    if node._saved and not retain and node._op.saves_arrays:
        node._saved = None
    return node._edges


def _rules(node: Any, g: Any, create_graph: bool, anomaly: Any) -> Any:
    """What the rules of `node` return under `create_graph`, anomaly detection or capture."""
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
        lock = lock_of(tensor)
        with lock:
            if lock is not lock_of(tensor):  # another thread has given it a different one
                continue
            if extra is not None and extra.slot is not None:
                extra.slot.add_graph(g) if create_graph else extra.slot.add(g)
            elif not create_graph:
                _accumulate(tensor, g)
            else:
                tensor._grad = g.clone() if tensor._grad is None else tensor._grad + g
            return


def _accumulated(leaf: Tensor, g: Any, slot: Any, locks: list[Any], recorded: bool) -> bool:
    """Add `g` to the `.grad` of `leaf`; False if that would wait for another thread's lock."""
    if recorded:
        accumulate_into(leaf, g, False)
        return True
    if slot is not None:
        if not acquire(locks, slot.buffer.lock):
            return False
        slot.add(g)
        return True
    version = leaf._version
    if version is None or version.lock is None:
        with COMMON:
            if lock_of(leaf) is COMMON:
                _accumulate(leaf, g)
                return True
    if not acquire(locks, lock_of(leaf)):
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


def _keep_wanted(node: Any, g: Any, wanted_edges: set[Any], found: dict[Any, Any]) -> None:
    if type(g) is not list:
        found[node] = g
        return
    for number, value in enumerate(g):
        if value is not None and (node, number) in wanted_edges:
            found[node, number] = value
