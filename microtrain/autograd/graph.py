"""The graph: one node per recorded call, pointing back at what its inputs came from.

An edge says where the gradient of an input goes: to a node, to `(node, output number)` of a node
with several outputs, to a leaf Tensor that requires grad, or nowhere (None). Edges to leaves hold
the leaf itself, so no accumulator object is made per step; `next_functions` shows it as
`AccumulateGrad`, as in PyTorch.

Nodes never hold their own output, so there are no reference cycles, and dropping a result frees its
graph by reference counting alone.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from ..backend import MODES
from ..errors import need, wrong
from ..tensor import TENSORS, Tensor, as_array, wrap
from .hooks import NodeHooks, RemovableHandle

# Creation order is a topological order: a node is younger than everything it points to.
next_seq = itertools.count(1).__next__
# Operations whose nodes know what a loss was divided by, which data parallelism asks them. A loss
# adds its operation when it is first used, so that nobody searches a graph for none.
MEANS: set[Any] = set()
# Counts what data parallelism would look for inside a forward call: nodes of MEANS, results of
# compiled steps, rows selected by a mask. Where the count stays the same it need not look.
MARKS = [0]


class Backward:
    """An operation as the engine sees it: the base of everything in the `_op` of a node.

    Attributes:
        node_name: PyTorch's name for its nodes, such as `MulBackward0`.
        saves_arrays: whether its nodes save anything that a pass should free.
        backward_arrays: `backward_arrays(node, g)`: the gradients of the inputs, as arrays, from
            `g`, the gradient of the output. Of several outputs `g` is a list, with None for those
            without a gradient.
        backward_tensors: the same from Tensors to Tensors, recorded: for `create_graph`.
        always: whether they are called even where no gradient came (messages between ranks).
    """

    always = False
    node_name: str
    saves_arrays: bool
    backward_arrays: Callable[..., Any]
    backward_tensors: Callable[..., Any]


class Node:
    """One recorded call of an operation.

    Attributes are private, as the node of a Function is its `ctx`, where users set their own.

    Attributes:
        _op: the `Backward` that runs the gradient rules over `_saved`.
        _edges: for each input where its gradient goes.
        _saved: what the rules read; None once freed.
        _versions: the version counters of the saved inputs at that time; None where all were 0.
        _shape: the shape of the output, to which incoming gradients are reduced.
        _seq: the creation number.
        _hooks: the user's hooks, None while there are none.

    Example:
        >>> x = mt.tensor(3.0, requires_grad=True)
        >>> isinstance((x**2).grad_fn, mt.autograd.Node)
        True
    """

    __slots__ = ("__weakref__", "_edges", "_hooks", "_op", "_saved", "_seq", "_shape", "_versions")

    _op: Any
    _edges: tuple[Any, ...]
    _saved: Any
    _versions: Any
    _shape: tuple[int, ...]
    _seq: int
    _hooks: NodeHooks | None

    def name(self) -> str:
        """PyTorch's name for this node, such as `MulBackward0`."""
        return str(self._op.node_name)

    def __repr__(self) -> str:
        return f"<{self._op.node_name} at {id(self):#x}>"

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """For each input: the node it came from and that node's output number."""
        return tuple(_function_of(edge) for edge in self._edges)

    def __call__(self, *grads: Tensor | None) -> Any:
        """The gradients of the inputs from those of the outputs: a Tensor, or a tuple of several.

        Raises TypeError for another number of gradients, RuntimeError for another shape or where
        the saved values were freed.
        """
        shapes = getattr(self, "_shapes", None) or (self._shape,)
        name = self._op.node_name
        same = len(grads) == len(shapes)
        need(same, name, "expected {} gradients, got {}", len(shapes), len(grads), error=TypeError)
        for g, shape in zip(grads, shapes, strict=True):
            fits = g is None or g.shape == shape
            need(fits, name, "expected a gradient of shape {}, got {}", shape, g)
        if self._saved is None:
            raise freed(self)
        found = self._gradients(grads)
        return found[0] if len(found) == 1 else found

    def _gradients(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients of the inputs, as Tensors; recorded where one of `grads` requires grad."""
        record = bool(MODES.grad) and any(g is not None and g._rg for g in grads)
        values = [g if g is None or record else g._array for g in grads]
        arguments = values if hasattr(self, "_shapes") else values[0]
        before = MODES.grad, MODES.direct
        try:
            MODES.switch(record)
            MODES.direct = False
            op = self._op
            rules = op.backward_tensors if record else op.backward_arrays
            found = [
                g if g is None or edge is None else unbroadcast(g, shape_of(edge), self)
                for edge, g in zip(self._edges, rules(self, arguments), strict=True)
            ]
        finally:
            MODES.grad, MODES.direct = before
        return tuple(g if g is None or record else wrap(as_array(g).copy()) for g in found)

    apply = __call__

    # Hooks ------------------------------------------------------------------------------------

    def _some_hooks(self) -> NodeHooks:
        if self._hooks is None:
            self._hooks = NodeHooks()
        return self._hooks

    def _add_hook(self, hook: Callable[..., Any], output_nr: int = 0) -> RemovableHandle:
        """Call `hook(grad)` when the gradient of output `output_nr` is complete."""
        return RemovableHandle(self._some_hooks().outputs.setdefault(output_nr, {}), hook)

    def _retain(self, tensor: Tensor, wanted: bool = True) -> None:
        """Let a pass put the gradient of `tensor`, an output, into its `.grad`, after all hooks."""
        retained = self._some_hooks().retained
        retained.pop(tensor.output_nr, None)
        if wanted:
            retained[tensor.output_nr] = weakref.ref(tensor)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before the node runs; a tuple returned replaces them."""
        return RemovableHandle(self._some_hooks().pre, hook)

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after the node ran; a tuple replaces the first."""
        return RemovableHandle(self._some_hooks().post, hook)


class NodeOfMany(Node):
    """The node of a call with several outputs: edges to it are `(node, output number)`.

    Attributes:
        _shapes: those of the outputs.
    """

    __slots__ = ("_shapes",)

    _shapes: tuple[tuple[int, ...], ...]


def record(
    node: Node, op: Backward, edges: tuple[Any, ...], saved: tuple[Any, ...], *shapes: Any
) -> None:
    """Fill in a new `node`: the call of `op` with outputs of these shapes.

    Registered operations do the same in their generated code, without a call.
    """
    node._op = op
    node._edges = edges
    node._saved = saved
    node._versions = node._hooks = None
    node._shape = shapes[0]
    if isinstance(node, NodeOfMany):
        node._shapes = shapes
    node._seq = next_seq()
    if MODES.anomaly is not None:
        MODES.anomaly.remember(node)


class Underived(Backward):
    """Stands in the graph for a function that has no derivative: a gradient raises `text`.

    With `open` a gradient of 0 passes.
    """

    saves_arrays = False

    def __init__(self, name: str, text: str, open: bool = False) -> None:
        self.name = self.node_name = name
        self.text, self.open = text, open

    def backward_arrays(self, node: Node, g: Any) -> tuple[None, ...]:
        if self.open:
            MODES.capture.examine(g._array if type(g) in TENSORS else g, self._refuse)
        else:
            self._refuse(g)
        return (None,) * len(node._edges)

    def _refuse(self, g: Any) -> None:
        need(self.open and not g.any(), self.name, self.text)

    backward_tensors = backward_arrays


def without_derivative(result: Tensor, op: Underived, edges: tuple[Any, ...]) -> Tensor:
    """`result` as the output of a node of `op`, with `edges` to its inputs.

    Without that node a pass would take the derivative of `result` for zero and say nothing.
    """
    out = wrap(result._array)
    out._rg, out._edge = True, Node()
    record(out._edge, op, edges, (), out._array.shape)
    return out


class AccumulateGrad:
    """How a leaf shows up in `next_functions`: equal for the same leaf.

    Example:
        >>> x = mt.tensor(3.0, requires_grad=True)
        >>> (x * 2).grad_fn.next_functions[0][0] == mt.autograd.AccumulateGrad(x)
        True
    """

    __slots__ = ("variable",)

    def __init__(self, variable: Tensor) -> None:
        self.variable = variable

    next_functions: tuple[()] = ()

    def name(self) -> str:
        """`AccumulateGrad`."""
        return "AccumulateGrad"

    def __eq__(self, other: object) -> bool:
        return type(other) is AccumulateGrad and other.variable is self.variable

    def __hash__(self) -> int:
        return id(self.variable)

    def __repr__(self) -> str:
        return f"<AccumulateGrad at {id(self.variable):#x}>"


def modified(node: Node, what: str, now: int, then: int) -> RuntimeError:
    """The error for a saved value that was written to before backward."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: {node._op.node_name} saved {what}, which is at version {now}; expected "
        f"version {then} instead. Clone it before writing to it."
    )


def freed(node: Node) -> RuntimeError:
    """The error of a second pass over a graph that the first has freed."""
    return RuntimeError(
        f"Trying to backward through the graph a second time ({node._op.node_name}): saved values "
        "were freed by the first pass. Specify retain_graph=True there."
    )


def shape_of(edge: Any) -> tuple[int, ...]:
    """The shape of the value at `edge`."""
    if type(edge) in TENSORS:
        return edge.shape
    return edge[0]._shapes[edge[1]] if type(edge) is tuple else edge._shape


def source_of(edge: Any) -> Any:
    """The leaf or node that `edge` leads to, whichever of its outputs it is."""
    return edge[0] if type(edge) is tuple else edge


def _function_of(edge: Any) -> tuple[Any, int]:
    if edge is None:
        return None, 0
    if type(edge) in TENSORS:
        return AccumulateGrad(edge), 0
    return edge if type(edge) is tuple else (edge, 0)


def edge_of(tensor: Tensor) -> Any:
    """Where the gradient of `tensor` goes; None where it needs none."""
    return (tensor._edge or tensor) if tensor._rg else None


def walk(edges: Any) -> Iterator[Any]:
    """What a backward pass from `edges` comes to: each node once, leaves once for each edge.

    Depth first, so a search for any parameter ends early: at one of the last layer.
    """
    seen: set[Any] = set()
    stack = [*edges]
    while stack:
        edge = stack.pop()
        if type(edge) in TENSORS:
            yield edge
        elif edge is not None:
            node = edge[0] if type(edge) is tuple else edge
            if node not in seen:
                seen.add(node)
                stack += node._edges
                yield node


def reaches(edges: Any, leaves: frozenset[Tensor]) -> bool:
    """Whether a backward pass from `edges` comes to one of `leaves`."""
    return any(found in leaves for found in walk(edges))


def leaves_of(edges: Any) -> Counter[Tensor]:
    """The leaves that a backward pass from `edges` can reach, and how often."""
    return Counter(found for found in walk(edges) if type(found) in TENSORS)


def nodes_between(edges: Any, targets: set[Any]) -> set[Any]:
    """The nodes on the ways from `edges` to any of `targets` (nodes or leaves)."""
    parents: dict[Any, list[Any]] = {}
    reached: list[Any] = []
    seen: set[Any] = set()
    stack: list[tuple[Any, Any]] = [(edge, None) for edge in edges if edge is not None]
    while stack:
        edge, parent = stack.pop()
        key = edge[0] if type(edge) is tuple else edge
        if parent is not None:
            parents.setdefault(key, []).append(parent)
        if key in seen:
            continue
        seen.add(key)
        if key in targets:
            reached.append(key)
        if type(key) not in TENSORS:
            stack.extend((e, key) for e in key._edges if e is not None)
    needed: set[Any] = set()
    while reached:
        for parent in parents.get(reached.pop(), ()):
            if parent not in needed:
                needed.add(parent)
                reached.append(parent)
    return needed


# Un-broadcasting: a gradient is summed to the shape of what was broadcast -------------------------


# The one operation that the engine needs, `sum_to(grad, shape)`; set when `ops` is imported.
_sum_to: Any = None


def unbroadcast(g: Any, shape: tuple[int, ...], node: Any) -> Any:
    """`g`, which `node` returned (None: the caller of backward), summed to `shape`.

    Raises RuntimeError, which names the node, for a gradient that does not fit.
    """
    mine = g.shape
    lead = len(mine) - len(shape)
    if lead < 0 or any(s not in (m, 1) for s, m in zip(shape, mine[lead:], strict=True)):
        name = "backward" if node is None else node._op.node_name
        text = "returned a gradient of {}; expected a shape that reduces to {}"
        raise wrong(name, text, g, shape)
    return _sum_to(g, shape)
