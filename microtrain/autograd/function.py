"""`Function`: an operation of your own, with `forward` and `backward` as PyTorch users know them.

The `ctx` that both receive is the node of the call. Both compute on Tensors: `forward` without
recording, `backward` with recording only under `create_graph`, which is how a custom backward gets
derivatives of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..backend import MODES
from ..tensor import TENSORS, Tensor, wrap
from .graph import Node, edge_of, next_seq


class _UserOperation:
    """What a node needs to know of a Function class: its name."""

    __slots__ = ("node_name", "saves_arrays")

    def __init__(self, name: str) -> None:
        self.node_name = name
        self.saves_arrays = True


class FunctionCtx(Node):
    """The node of one call of a `Function`; any attribute may be set on it."""

    # No __slots__: `ctx.anything = ...` is part of the interface.

    def __init__(self, function: type[Function], inputs: tuple[Any, ...]) -> None:
        self.op = _operation_of(function)
        self.hooks = None
        self.versions = None
        self.saved = ()
        self.shapes: tuple[tuple[int, ...], ...] = ()
        self._function = function
        self._numbers: tuple[int, ...] = ()
        self._to_save: tuple[Any, ...] = ()
        self._non_differentiable: tuple[int, ...] = ()
        self._materialize = True
        self._outputs_like: tuple[Any, ...] = ()
        self.needs_input_grad = tuple(type(x) in TENSORS and x._rg for x in inputs)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep Tensors (inputs, outputs or others) for backward, checked for in-place writes."""
        for tensor in tensors:
            if tensor is not None and type(tensor) not in TENSORS:
                raise TypeError(
                    f"save_for_backward takes Tensors, got {type(tensor).__name__}; keep other "
                    "values as attributes: ctx.value = ..."
                )
        self._to_save = tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Say that these outputs have no gradient."""
        self._non_differentiable = tuple(id(t) for t in outputs)

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (default) or None for outputs that got no gradient."""
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` kept; RuntimeError if it was freed or modified in place."""
        if self.saved is None:
            raise RuntimeError(
                f"{self.name()}: its saved tensors were freed; specify retain_graph=True in the "
                "first backward"
            )
        found = []
        for tensor, version, number in self.saved:
            if tensor is not None and tensor._version is not None:
                now = tensor._version.n
                if now != version:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified "
                        f"by an inplace operation: a tensor of shape {tensor.shape} saved by "
                        f"{self.name()} is at version {now}; expected version {version} instead"
                    )
            if number is not None:  # an output: give it back its place in the graph
                tensor = _alias(tensor)
                tensor._edge = self if len(self.shapes) == 1 else (self, number)
                tensor._rg = True
            found.append(tensor)
        return tuple(found)

    def run(self, grad: Any, create_graph: bool) -> tuple[Any, ...]:
        """Call the user's `backward` on Tensors and check what it returns."""
        many = type(grad) is list
        given = [
            None if g is None else (g if type(g) in TENSORS else wrap(g))
            for g in (grad if many else [grad])
        ]
        if self._materialize:
            for number, g in enumerate(given):
                if g is None:
                    given[number] = wrap(self._outputs_like[number]())
        before = MODES.grad
        MODES.grad = create_graph
        try:
            returned = self._function.backward(self, *given)
        finally:
            MODES.grad = before
        grads = returned if type(returned) is tuple else (returned,)
        name = self._function.__name__
        count = len(self.needs_input_grad)
        if len(grads) > count and all(g is None for g in grads[count:]):
            grads = grads[:count]
        if len(grads) != count:
            raise RuntimeError(
                f"function {name}.backward returned an incorrect number of gradients (expected "
                f"{count}, one for each input of forward, got {len(grads)})"
            )
        for number, (g, edge) in enumerate(zip(grads, self.edges, strict=True)):
            if g is None:
                continue
            if type(g) not in TENSORS:
                raise TypeError(
                    f"function {name}.backward returned {type(g).__name__} as gradient {number}; "
                    "expected a Tensor or None"
                )
            shape = self._input_shapes[number]
            if edge is not None and g._array.shape != shape:
                lead = g._array.ndim - len(shape)
                tail = g._array.shape[lead:] if lead >= 0 else ()
                if lead < 0 or any(s not in (m, 1) for s, m in zip(shape, tail, strict=True)):
                    raise RuntimeError(
                        f"function {name}.backward returned an invalid gradient at index "
                        f"{number}: got shape {g._array.shape}, expected {shape}"
                    )
        return tuple(g if g is None or create_graph else g._array for g in grads)

    def release(self) -> None:
        """Drop what was saved for backward; a node that saved nothing may run again."""
        if self.saved:
            self.saved = None


def _alias(tensor: Tensor) -> Tensor:
    out = wrap(tensor._array)
    out._version = tensor._version
    return out


@functools.lru_cache(maxsize=None)
def _operation_of(function: type) -> _UserOperation:
    return _UserOperation(f"{function.__name__}Backward")


class Function:
    """Base of operations of your own; use `YourFunction.apply(...)`.

    Example:
        >>> class Square(mt.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...     @staticmethod
        ...     def backward(ctx, grad_output):
        ...         (x,) = ctx.saved_tensors
        ...         return 2 * x * grad_output
        >>> x = mt.tensor(3.0, requires_grad=True)
        >>> Square.apply(x).backward()
        >>> x.grad
        tensor(6.)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            f"{type(self).__name__}: instances of Function are the legacy way; write forward and "
            f"backward as static methods and call {type(self).__name__}.apply(...)"
        )

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs from the inputs."""
        raise NotImplementedError("a Function must define a static method forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradient of each input from the gradient of each output."""
        raise NotImplementedError("a Function must define a static method backward(ctx, ...)")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and record the call; keyword arguments get no gradient."""
        ctx = FunctionCtx(cls, args)
        ctx._input_shapes = tuple(x._array.shape if type(x) in TENSORS else None for x in args)
        record = MODES.grad and any(ctx.needs_input_grad)
        before = MODES.grad
        MODES.grad = False
        try:
            returned = cls.forward(ctx, *args, **kwargs)
        finally:
            MODES.grad = before
        outputs = returned if type(returned) is tuple else (returned,)
        if not record:
            return returned
        if not any(type(out) in TENSORS for out in outputs):
            raise TypeError(
                f"{cls.__name__}.forward returned {type(returned).__name__}; expected a Tensor or "
                "a tuple with Tensors"
            )
        ctx.edges = tuple(edge_of(x) if type(x) in TENSORS else None for x in args)
        ctx.seq = next_seq()
        given = {id(x): x for x in args if type(x) in TENSORS}
        results: list[Any] = []
        numbers: dict[int, int] = {}
        shapes, likes = [], []
        for out in outputs:
            if type(out) not in TENSORS:
                results.append(out)
                continue
            fresh = _alias(out) if id(out) in given else out
            if id(out) in ctx._non_differentiable:
                results.append(fresh)
                continue
            numbers[id(out)] = len(shapes)
            shapes.append(out._array.shape)
            likes.append(functools.partial(_zeros, type(out._array), out._array.shape, out.dtype))
            results.append(fresh)
        ctx.shapes = tuple(shapes)
        ctx._outputs_like = tuple(likes)
        single = len(shapes) == 1
        if single:
            ctx.shape = shapes[0]
        saved = []
        for tensor in ctx._to_save:
            number = None if tensor is None or id(tensor) in given else numbers.get(id(tensor))
            kept = tensor
            if number is not None:  # an output: hold an alias, or the node would hold itself
                tensor.version  # noqa: B018  (makes the counter that the alias shares)
                kept = _alias(tensor)
            version = 0 if tensor is None or tensor._version is None else tensor._version.n
            saved.append((kept, version, number))
        ctx.saved = tuple(saved)
        ctx._to_save = ()
        for out, fresh in zip(outputs, results, strict=True):
            if type(fresh) in TENSORS and id(out) in numbers:
                fresh._edge = ctx if single else (ctx, numbers[id(out)])
                fresh._rg = True
        return tuple(results) if type(returned) is tuple else results[0]


def _zeros(kind: type, shape: tuple[int, ...], dtype: Any) -> Any:
    from ..backend import XP

    return XP[kind].zeros(shape, dtype)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that computes outside the graph: a second derivative raises.

    Inside, nothing is recorded, so NumPy or SciPy may be used on `.numpy()`.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        before = MODES.grad
        MODES.grad = False
        try:
            returned = backward(ctx, *grads)
        finally:
            MODES.grad = before
        if not before:
            return returned
        values = returned if type(returned) is tuple else (returned,)
        marked = tuple(_Once.mark(v) if type(v) in TENSORS else v for v in values)
        return marked if type(returned) is tuple else marked[0]

    return wrapper


class _Once(Function):
    """An identity whose gradient is an error; marks results of once-differentiable code."""

    @staticmethod
    def mark(value: Tensor) -> Tensor:
        """`value` with a node behind it that raises."""
        leaf = wrap(value._array)
        leaf._rg = True
        return _Once.apply(leaf)  # type: ignore[no-any-return]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return wrap(x._array)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )
