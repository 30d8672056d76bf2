"""The backward pass: nodes by descending creation number, a heap, no recursion.

A node runs once everything younger has run, so its gradient is complete. The engine does the three
things that no gradient rule does for itself: it reduces a gradient to the shape it belongs to
(un-broadcasting), adds up gradients that meet, and accumulates into leaves.

Without `create_graph` the rules get raw arrays; with it they get Tensors and what they compute is
recorded like any other computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from ..backend import MODES, XP
from ..tensor import TENSORS, Tensor, normalise, wrap
from .graph import Node, edge_of, leaves_of, nodes_towards, run_hooks

# The one operation that the engine needs, `sum_to(grad, shape)`; set when `ops` is imported.
_sum_to: Any = None


def set_sum_to(operation: Any) -> None:
    """Tell the engine the operation that reduces a broadcast gradient."""
    global _sum_to
    _sum_to = operation


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Accumulate the gradient of `tensors` into the `.grad` of the leaves they depend on.

    Args:
        tensors: the roots; each a scalar unless its gradient is given.
        grad_tensors: the gradient of each root, in its shape; None means 1.
        retain_graph: keep what was saved for another pass; default `create_graph`.
        create_graph: record the pass itself, for higher derivatives.
        inputs: accumulate into these Tensors only.

    Raises:
        RuntimeError: a root does not require grad, is not a scalar and has no gradient, a gradient
            has another shape, the graph was freed, a saved Tensor was modified in place.
    """
    roots = (tensors,) if type(tensors) in TENSORS else tuple(tensors)
    grads = (grad_tensors,) if grad_tensors is None or type(grad_tensors) in TENSORS else None
    grads = tuple(grad_tensors) if grads is None else grads * (len(roots) if grads == (None,) else 1)  # type: ignore[arg-type]
    seeds = _seeds(roots, grads, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    edges = [edge_of(root) for root in roots]
    wanted = None
    if inputs is not None:
        wanted = (inputs,) if type(inputs) in TENSORS else tuple(inputs)
        if not wanted:
            raise RuntimeError("backward: inputs must not be empty")
    if not MODES.listeners:
        _finish(_run(edges, seeds, retain, create_graph, wanted, True)[1])
        return
    leaves = leaves_of(edges)
    told = [one for ref in MODES.listeners if (one := ref()) and one.concerns(leaves)]
    for one in told:
        scale = one.begin(roots, create_graph)
        if scale is not None:
            seeds = [seed * scale for seed in seeds]
            seeds = seeds if create_graph else [normalise(seed) for seed in seeds]
    touched = _run(edges, seeds, retain, create_graph, wanted, True)[1]
    for one in told:
        one.end()
    _finish(touched)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor, ...]:
    """The gradients of the sum of `outputs` with respect to `inputs`; `.grad` stays untouched.

    Args:
        outputs: the roots; each a scalar unless its gradient is given.
        inputs: Tensors of the graph, leaves or computed ones.
        grad_outputs: the gradient of each output, in its shape; None means 1.
        retain_graph: keep what was saved for another pass; default `create_graph`.
        create_graph: record the pass itself, for higher derivatives.
        allow_unused: None for an input that the outputs do not depend on, instead of an error.
        materialize_grads: zeros for such an input.

    Example:
        >>> x = mt.tensor(3.0, requires_grad=True)
        >>> (first,) = mt.autograd.grad(x**3, x, create_graph=True)
        >>> mt.autograd.grad(first, x)
        (tensor(18.),)
    """
    roots = (outputs,) if type(outputs) in TENSORS else tuple(outputs)
    wanted: tuple[Any, ...] = (inputs,) if type(inputs) in TENSORS else tuple(inputs)
    given = (grad_outputs,) if grad_outputs is None or type(grad_outputs) in TENSORS else None
    given = tuple(grad_outputs) if given is None else given * (len(roots) if given == (None,) else 1)  # type: ignore[arg-type]
    for number, tensor in enumerate(wanted):
        if not tensor._rg:
            raise RuntimeError(
                f"grad: input {number} does not require grad; set requires_grad=True before the "
                "computation"
            )
    if materialize_grads and allow_unused is False:
        raise ValueError("grad: materialize_grads=True needs allow_unused to be None or True")
    seeds = _seeds(roots, given, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    edges = [edge_of(root) for root in roots]
    captured, _ = _run(edges, seeds, retain, create_graph, wanted, False)
    found: list[Any] = []
    for number, tensor in enumerate(wanted):
        key = edge_of(tensor)
        value = captured.get(key)
        if value is None:
            if not (allow_unused or materialize_grads):
                raise RuntimeError(
                    f"grad: input {number} was not used in the graph of the outputs; pass "
                    "allow_unused=True to get None for it"
                )
            if materialize_grads:
                value = XP[type(tensor._array)].zeros_like(tensor._array)
                value = wrap(value) if create_graph else value
        found.append(value if create_graph or value is None else wrap(value))
    return tuple(found)


def _seeds(roots: Any, grads: Any, create_graph: bool) -> list[Any]:
    """The gradient that the pass starts with at each root: arrays, or Tensors to record."""
    if len(roots) != len(grads):
        raise RuntimeError(f"got {len(roots)} tensors and {len(grads)} gradients")
    seeds = []
    for number, (root, given) in enumerate(zip(roots, grads, strict=True)):
        if type(root) not in TENSORS:
            raise TypeError(f"backward: expected a Tensor, got {type(root).__name__}")
        if not root._rg:
            raise RuntimeError(
                f"element {number} of tensors does not require grad and does not have a grad_fn"
            )
        array = root._array
        if given is None:
            if array.size != 1:
                raise RuntimeError(
                    "grad can be implicitly created only for scalar outputs; this one has shape "
                    f"{array.shape}: pass gradient= of that shape, or reduce it with sum() or "
                    "mean()"
                )
            seed = XP[type(array)].ones_of(array.shape, array.dtype)
            seeds.append(wrap(seed) if create_graph else seed)
            continue
        if type(given) not in TENSORS:
            raise TypeError(f"gradients are Tensors or None, got {type(given).__name__}")
        if given._array.shape != array.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[{number}] has a shape of {given._array.shape} and "
                f"output[{number}] has a shape of {array.shape}"
            )
        if given._array.dtype != array.dtype:
            raise RuntimeError(
                f"grad_output[{number}] has dtype {given._array.dtype.name} and output[{number}] "
                f"has dtype {array.dtype.name}"
            )
        seeds.append(given if create_graph else given._array)
    return seeds


def _run(
    roots: list[Any],
    seeds: list[Any],
    retain: bool,
    create_graph: bool,
    wanted: tuple[Tensor, ...] | None,
    accumulate: bool,
) -> tuple[dict[Any, Any], dict[Tensor, None]]:
    """One pass. Returns gradients by edge for the `wanted` Tensors, and the leaves with hooks.

    With `accumulate`, leaves (all, or the wanted ones) get their `.grad`; without it nothing is
    written and the gradients of `wanted` are returned.
    """
    pending: dict[Any, Any] = {}  # node -> its gradient, or a list where it has several outputs
    heap: list[tuple[int, Any]] = []
    held: dict[Tensor, Any] = {}  # gradients of leaves that must be complete before they are used
    touched: dict[Tensor, None] = {}
    captured: dict[Any, Any] = {}
    needed: set[Any] | None = None
    keys: set[Any] = set()
    capture_nodes: set[Any] = set()
    if wanted is not None:
        keys = {edge_of(tensor) for tensor in wanted}
        capture_nodes = {k[0] if type(k) is tuple else k for k in keys}
        needed = nodes_towards(roots, capture_nodes)
    before = MODES.grad
    MODES.grad = create_graph
    try:
        node: Any = None
        edges: Any = roots
        grads: Any = seeds
        while True:
            for edge, g in zip(edges, grads, strict=True):
                if edge is None or g is None:
                    continue
                kind = type(edge)
                if kind in TENSORS:
                    shape = edge._array.shape
                    if g.shape != shape:
                        g = _reduce(g, shape, node)
                    extra = edge._extra
                    if (
                        wanted is None
                        and not create_graph
                        and (extra is None or (extra.hooks is None and extra.post_hooks is None))
                    ):
                        _accumulate(edge, g)
                    elif wanted is None or edge in keys:
                        held[edge] = held[edge] + g if edge in held else g
                elif kind is tuple:
                    target, number = edge
                    if g.shape != target.shapes[number]:
                        g = _reduce(g, target.shapes[number], node)
                    slots = pending.get(target)
                    if slots is None:
                        slots = pending[target] = [None] * len(target.shapes)
                        heappush(heap, (-target.seq, target))
                    slots[number] = g if slots[number] is None else slots[number] + g
                else:
                    if g.shape != edge.shape:
                        g = _reduce(g, edge.shape, node)
                    if edge in pending:
                        pending[edge] = pending[edge] + g
                    else:
                        pending[edge] = g
                        heappush(heap, (-edge.seq, edge))
            if not heap:
                break
            node = heappop(heap)[1]
            g = pending.pop(node)
            if node.hooks is not None:
                g = _before(node, g, create_graph)
            if wanted is not None:
                if node in capture_nodes:
                    _capture(node, g, keys, captured)
                if node not in needed:  # type: ignore[operator]
                    edges = grads = ()
                    continue
            if node.saved is None:
                raise RuntimeError(
                    f"Trying to backward through the graph a second time ({node.name()}): saved "
                    "values were freed by the first pass. Specify retain_graph=True there."
                )
            grads = node.run(g, create_graph)
            if node.hooks is not None and node.hooks.post:
                grads = _after(node, g, grads, create_graph)
            if not retain:
                node.release()
            edges = node.edges
        for leaf, g in held.items():
            extra = leaf._extra
            if extra is not None and extra.hooks:
                g = run_hooks(extra.hooks, g, create_graph)
            if not accumulate:
                captured[leaf] = g
            else:
                _accumulate_graph(leaf, g) if create_graph else _accumulate(leaf, g)
                if extra is not None and extra.post_hooks:
                    touched[leaf] = None
        if accumulate and captured:
            _accumulate_computed(wanted, captured, create_graph)
    finally:
        MODES.grad = before
    return captured, touched


def _reduce(g: Any, shape: tuple[int, ...], node: Any) -> Any:
    """Un-broadcast `g` to `shape`; an error names the node whose gradient does not fit."""
    mine = g.shape
    lead = len(mine) - len(shape)
    if lead < 0 or any(s not in (m, 1) for s, m in zip(shape, mine[lead:], strict=True)):
        name = "backward" if node is None else node.name()
        raise RuntimeError(
            f"{name} returned a gradient of shape {tuple(mine)}; expected a shape that reduces to "
            f"{shape}"
        )
    return _sum_to(g, shape)


def _accumulate(leaf: Tensor, g: Any) -> None:
    """Add the array `g` to the `.grad` of a leaf, into its flat slot where it has one."""
    extra = leaf._extra
    if extra is not None and extra.slot is not None:
        extra.slot.add(g)
        return
    have = leaf._grad
    if have is None:
        # A copy: `g` may be the saved value of a node, or on its way to another leaf as well.
        leaf._grad = wrap(XP[type(g)].asarray(g, leaf._array.dtype).copy())
    elif have._edge is None:
        have._array += g
    else:
        leaf._grad = wrap(normalise(have._array + g))


def _accumulate_graph(leaf: Tensor, g: Tensor) -> None:
    extra = leaf._extra
    if extra is not None and extra.slot is not None:
        extra.slot.add_graph(g)
    else:
        leaf._grad = g if leaf._grad is None else leaf._grad + g


def _accumulate_computed(wanted: Any, captured: dict[Any, Any], create_graph: bool) -> None:
    for tensor in wanted:
        if tensor._edge is not None and tensor._edge in captured:
            g = captured[tensor._edge]
            _accumulate_graph(tensor, g) if create_graph else _accumulate(tensor, g)


def _finish(touched: dict[Tensor, None]) -> None:
    """Post-accumulate hooks, when every gradient is final."""
    for leaf in touched:
        for hook in tuple(leaf._extra.post_hooks.values()):  # type: ignore[union-attr]
            hook(leaf)


def _before(node: Any, g: Any, create_graph: bool) -> Any:
    """Hooks on the outputs' gradients, then the node's pre-hooks."""
    hooks = node.hooks
    many = type(g) is list
    values = g if many else [g]
    for number, found in hooks.outputs.items():
        if values[number] is not None:
            values[number] = run_hooks(found, values[number], create_graph)
    for hook in tuple(hooks.pre.values()):
        shown = tuple(v if v is None or create_graph else wrap(v) for v in values)
        new = hook(shown)
        if new is not None:
            values = [v if v is None or create_graph else v._array for v in new]
    return values if many else values[0]


def _after(node: Any, g: Any, grads: Any, create_graph: bool) -> Any:
    """The node's post-hooks, which may replace the gradients of its inputs."""
    given = g if type(g) is list else [g]
    for hook in tuple(node.hooks.post.values()):
        outputs = tuple(v if v is None or create_graph else wrap(v) for v in given)
        inputs = tuple(v if v is None or create_graph else wrap(normalise(v)) for v in grads)
        new = hook(inputs, outputs)
        if new is not None:
            grads = tuple(v if v is None or create_graph else v._array for v in new)
    return grads


def _capture(node: Any, g: Any, keys: set[Any], captured: dict[Any, Any]) -> None:
    if type(g) is list:
        for number, value in enumerate(g):
            if (node, number) in keys and value is not None:
                captured[node, number] = value
    elif node in keys:
        captured[node] = normalise(g) if type(g) not in TENSORS else g


def call_node(node: Node, grads: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """The gradients of a node's inputs as Tensors, for `node(grad)`."""
    if node.saved is None:
        raise RuntimeError(f"{node.name()}: its saved values were freed by a backward pass")
    record = MODES.grad and any(g._rg for g in grads)
    if len(grads) == 1 and not hasattr(node, "shapes"):
        g = grads[0] if record else grads[0]._array
    else:
        g = list(grads) if record else [g._array for g in grads]
    found = node.run(g, record)
    return tuple(v if v is None or record else wrap(normalise(v)) for v in found)
