"""Hooks: the user's functions that see, and may replace, gradients during a pass.

The engine calls them only where a node or a leaf has some; everything here is off its hot path.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

from ..errors import need
from ..tensor import TENSORS, Tensor, as_array, wrap

_next_hook = itertools.count(1).__next__


class RemovableHandle:
    """Returned by every `register_*hook`; `remove()` takes the hook out again.

    Example:
        >>> with x.register_hook(lambda g: 2 * g):      # removed when the block ends
        ...     loss.backward()
    """

    __slots__ = ("_hooks", "id")

    def __init__(self, hooks: dict[int, Any], hook: Callable[..., Any]) -> None:
        need(callable(hook), "register_hook", "a hook is a function", type(hook), error=TypeError)
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


def add_hook(
    owner: Any, kind: str, hook: Callable[..., Any], prepend: bool = False
) -> RemovableHandle:
    """Add `hook` to the hooks in the attribute `kind` of `owner`, as the last or the first."""
    hooks = vars(owner).setdefault(kind, {})
    before = list(hooks)
    handle = RemovableHandle(hooks, hook)
    for number in before if prepend else ():
        hooks[number] = hooks.pop(number)
    return handle


class NodeHooks:
    """The hooks of one node.

    Attributes:
        outputs: by output number, the hooks on the complete gradient of that output.
        retained: by output number, weakly, the Tensor whose `retain_grad` asks for this gradient.
        pre, post: hooks called before the node runs and after.
        weigh: `weigh(before, g)`, data parallelism's own hook on the one output, an array before
            the user's hooks and after them: the gradient to go on with; or None.
    """

    __slots__ = ("outputs", "post", "pre", "retained", "weigh")

    def __init__(self) -> None:
        self.outputs: dict[int, dict[int, Any]] = {}
        self.retained: dict[int, weakref.ref[Tensor]] = {}
        self.pre: dict[int, Any] = {}
        self.post: dict[int, Any] = {}
        self.weigh: Callable[[Any, Any], Any] | None = None

    @property
    def users(self) -> bool:
        """Whether the user has added any."""
        return bool(self.outputs or self.retained or self.pre or self.post)

    def before(self, g: Any, create_graph: bool) -> Any:
        """What all hooks but `post` make of `g`, the output's gradient or a list of several."""
        many = type(g) is list
        values = g if many else [g]
        for number, found in self.outputs.items():
            if values[number] is not None:
                values[number] = run_hooks(found, values[number], create_graph)
        for hook in tuple(self.pre.values()):
            new = hook(_shown(values, create_graph))
            if new is not None:
                values = _taken(new, len(values), "pre-hook", create_graph)
        for number, alive in self.retained.items():
            tensor = alive()
            if tensor is not None and values[number] is not None:
                _keep(tensor, values[number])
        if self.weigh is not None:
            return self.weigh(g, values[0])
        return values if many else values[0]

    def after(self, g: Any, grads: Any, create_graph: bool) -> Any:
        """What the `post` hooks make of `grads`, the gradients of the node's inputs."""
        outputs = g if type(g) is list else [g]
        for hook in tuple(self.post.values()):
            new = hook(_shown(grads, create_graph), _shown(outputs, create_graph))
            if new is not None:
                grads = _taken(new, len(grads), "hook", create_graph)
        return grads


def _shown(values: Any, create_graph: bool) -> tuple[Any, ...]:
    return tuple(v if v is None or create_graph else wrap(as_array(v)) for v in values)


def _taken(new: Any, count: int, what: str, create_graph: bool) -> list[Any]:
    values = [new] if type(new) in TENSORS else list(new)
    fits = len(values) == count and all(v is None or type(v) in TENSORS for v in values)
    text = f"must return None or a tuple of {count} Tensors or None"
    need(fits, f"a node's {what}", text, error=TypeError)
    return [v if v is None or create_graph else v._array for v in values]


def _keep(tensor: Tensor, g: Any) -> None:
    """`retain_grad`: add `g` to the `.grad` of a computed Tensor, with its graph if it has one."""
    have = tensor._grad
    if type(g) in TENSORS:
        tensor._grad = g if have is None else have + g
    elif have is None:
        tensor._grad = wrap(as_array(g).copy())
    else:
        tensor._grad = wrap(as_array(have._array + g))


def run_hooks(hooks: dict[int, Any], grad: Any, create_graph: bool) -> Any:
    """`grad` after each of `hooks` has seen it and perhaps replaced it.

    Raises TypeError for a replacement that is not a Tensor, RuntimeError for one of another shape
    or dtype.
    """
    for hook in tuple(hooks.values()):
        tensor = grad if create_graph else wrap(as_array(grad))
        new = hook(tensor)
        if new is None:
            continue
        name = f"hook {getattr(hook, '__name__', type(hook).__name__)!r}"
        text = "returned {}, expected Tensor or None"
        need(type(new) in TENSORS, name, text, type(new), error=TypeError)
        mine, other = tensor._array, new._array
        fits = mine.shape == other.shape and mine.dtype == other.dtype
        text = "has changed the gradient from {} and dtype {} to {} and dtype {}"
        need(fits, name, text, tensor, mine.dtype, new, other.dtype)
        grad = new if create_graph else other
    return grad
