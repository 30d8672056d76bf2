"""The graph: one node per recorded call, pointing back at what its inputs came from.

An edge is a node, `(node, output number)` for a node with several outputs, a leaf Tensor that
requires grad, or None. Edges to leaves hold the leaf itself, so no accumulator object is made per
step; `next_functions` shows it as `AccumulateGrad`, as in PyTorch.

Nodes never hold their own output, so there are no reference cycles, and dropping a result frees its
graph by reference counting alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from ..tensor import TENSORS, Tensor, wrap

# Creation order is a topological order: a node is younger than everything it points to.
next_seq = itertools.count(1).__next__
_next_hook = itertools.count(1).__next__


class RemovableHandle:
    """Returned by every `register_*hook`; `remove()` takes the hook out again."""

    __slots__ = ("_hooks", "id")

    def __init__(self, hooks: dict[int, Any], hook: Any) -> None:
        self._hooks = hooks
        self.id = _next_hook()
        hooks[self.id] = hook

    def remove(self) -> None:
        """Take the hook out; a second call does nothing."""
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class NodeHooks:
    """The hooks of one node: on the gradient of an output, before it runs, after it ran."""

    __slots__ = ("outputs", "post", "pre")

    def __init__(self) -> None:
        self.outputs: dict[int, dict[int, Any]] = {}
        self.pre: dict[int, Any] = {}
        self.post: dict[int, Any] = {}


class Node:
    """One recorded call of an operation.

    Attributes:
        op: the `Operation`; knows how to run the gradient rules over `saved`.
        edges: where each input's gradient goes.
        saved: what the rules read; None once freed.
        versions: the in-place counters of the saved inputs when they were saved, None for all 0.
        shape: the shape of the output, to which incoming gradients are reduced.
        seq: creation number.
    """

    __slots__ = ("__weakref__", "edges", "hooks", "op", "saved", "seq", "shape", "versions")

    op: Any
    edges: tuple[Any, ...]
    saved: Any
    versions: Any
    shape: tuple[int, ...]
    seq: int
    hooks: NodeHooks | None

    def name(self) -> str:
        """The field's name for this node, such as `MulBackward0`."""
        return str(self.op.node_name)

    def __repr__(self) -> str:
        return f"<{self.name()} at {id(self):#x}>"

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """For each input: the node it came from and that node's output number."""
        return tuple(_function_of(edge) for edge in self.edges)

    def run(self, grad: Any, create_graph: bool) -> tuple[Any, ...]:
        """The gradients of the inputs: arrays from an array, Tensors under `create_graph`."""
        op = self.op
        return op.backward_tensors(self, grad) if create_graph else op.backward_arrays(self, grad)  # type: ignore[no-any-return]

    def release(self) -> None:
        """Drop what was saved for backward."""
        if self.op.saves_arrays:
            self.saved = None

    def __call__(self, *grads: Tensor) -> Any:
        """Apply this node to the gradient of its output; one Tensor, or a tuple of several."""
        from .engine import call_node

        found = call_node(self, grads)
        return found[0] if len(found) == 1 else found

    apply = __call__

    # Hooks ------------------------------------------------------------------------------------

    def add_hook(self, hook: Callable[..., Any], output_nr: int = 0) -> RemovableHandle:
        """Call `hook(grad)` when the gradient of output `output_nr` is complete."""
        if self.hooks is None:
            self.hooks = NodeHooks()
        return RemovableHandle(self.hooks.outputs.setdefault(output_nr, {}), hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before the node runs; a tuple returned replaces them."""
        if self.hooks is None:
            self.hooks = NodeHooks()
        return RemovableHandle(self.hooks.pre, hook)

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after the node ran; a tuple replaces the first."""
        if self.hooks is None:
            self.hooks = NodeHooks()
        return RemovableHandle(self.hooks.post, hook)


class AccumulateGrad:
    """How a leaf shows up in `next_functions`: equal for the same leaf."""

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


def _function_of(edge: Any) -> tuple[Any, int]:
    if edge is None:
        return None, 0
    if type(edge) in TENSORS:
        return AccumulateGrad(edge), 0
    return edge if type(edge) is tuple else (edge, 0)


def edge_of(tensor: Tensor) -> Any:
    """Where the gradient of `tensor` goes; None where it needs none."""
    return (tensor._edge or tensor) if tensor._rg else None


def leaves_of(edges: Any) -> dict[Tensor, None]:
    """The leaves that a backward pass from `edges` can reach, without recursion."""
    found: dict[Tensor, None] = {}
    seen: set[Any] = set()
    stack = [edge for edge in edges if edge is not None]
    while stack:
        edge = stack.pop()
        if type(edge) in TENSORS:
            found[edge] = None
            continue
        node = edge[0] if type(edge) is tuple else edge
        if node not in seen:
            seen.add(node)
            stack.extend(e for e in node.edges if e is not None)
    return found


def nodes_towards(edges: Any, targets: set[Any]) -> set[Any]:
    """The nodes between `edges` and any of `targets` (nodes or leaves), without recursion."""
    parents: dict[Any, list[Any]] = {}
    reached: list[Any] = []
    seen: set[Any] = set()
    stack = [(edge, None) for edge in edges if edge is not None]
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
            stack.extend((e, key) for e in key.edges if e is not None)
    needed: set[Any] = set()
    while reached:
        for parent in parents.get(reached.pop(), ()):
            if parent not in needed:
                needed.add(parent)
                reached.append(parent)
    return needed


def run_hooks(hooks: dict[int, Any], grad: Any, create_graph: bool) -> Any:
    """`grad` after each of `hooks` has seen it and perhaps replaced it."""
    for hook in tuple(hooks.values()):
        tensor = grad if create_graph else wrap(grad)
        new = hook(tensor)
        if new is not None:
            if type(new) not in TENSORS:
                raise TypeError(
                    f"a gradient hook returned {type(new).__name__}; expected a Tensor or None"
                )
            if new._array.shape != tensor._array.shape:
                raise RuntimeError(
                    f"a gradient hook changed the shape of the gradient: {tensor._array.shape} "
                    f"became {new._array.shape}"
                )
            grad = new if create_graph else new._array
    return grad
