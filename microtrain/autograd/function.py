"""`Function`: an operation of your own, with `forward` and `backward` as PyTorch users know them.

The `ctx` that both receive is the node of the call. Both compute on Tensors: `forward` without
recording, `backward` with recording only under `create_graph`, which is how a custom backward gets
derivatives of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..backend import MODES, XP
from ..tensor import TENSORS, Tensor, normalise, wrap
from .graph import NUMBERING, Node, edge_of, next_seq

NUMBERING.append(globals())


class _UserOperation:
    """What the engine needs to know of a Function class: its name, and how to run its nodes."""

    __slots__ = ("node_name",)
    saves_arrays = True

    def __init__(self, name: str) -> None:
        self.node_name = name

    @staticmethod
    def backward_arrays(node: FunctionCtx, g: Any) -> tuple[Any, ...]:
        """The gradients of the inputs as arrays."""
        return node.run(g, False)

    @staticmethod
    def backward_tensors(node: FunctionCtx, g: Any) -> tuple[Any, ...]:
        """The gradients of the inputs as Tensors, recorded."""
        return node.run(g, True)


class FunctionCtx(Node):
    """The node of one call of a `Function`; any attribute may be set on it."""

    # No __slots__: `ctx.anything = ...` is part of the interface.

    def __init__(self, function: type[Function], args: tuple[Any, ...]) -> None:
        self.op = function._operation
        self.hooks = None
        self.versions = None
        self.saved = ()
        self.shapes: tuple[Any, ...] = ()  # of the outputs; None for what is not a Tensor
        self.needs_input_grad = tuple(type(x) in TENSORS and x._rg for x in args)
        self._function = function
        self._inputs = tuple(_kind(x) for x in args)
        self._outputs: tuple[Any, ...] = ()
        self._to_save: tuple[Any, ...] = ()
        self._non_differentiable: tuple[Tensor, ...] = ()
        self._materialize = True

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
        """Say that these outputs have no gradient; integer outputs never have."""
        self._non_differentiable = outputs

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
                tensor._edge = self if number < 0 else (self, number)
                tensor._rg = True
            found.append(tensor)
        return tuple(found)

    def apply(self, *grads: Tensor) -> Any:
        """What the class's own `backward` returns for these gradients, unchecked.

        `node(*grads)` is what the engine makes of it: None for inputs that need no gradient.
        """
        return self._function.backward(self, *grads)

    def run(self, g: Any, create_graph: bool) -> tuple[Any, ...]:
        """Call the user's `backward` on Tensors and check what it returns."""
        given = [
            v if v is None or type(v) in TENSORS else wrap(normalise(v))
            for v in (g if type(g) is list else [g])
        ]
        if self._materialize:
            for number, (v, like) in enumerate(zip(given, self._outputs, strict=True)):
                if v is None and like is not None:
                    kind, shape, dtype = like
                    given[number] = wrap(XP[kind].zeros(shape, dtype))
        returned = self._function.backward(self, *given)
        grads = returned if type(returned) is tuple else (returned,)
        name, count = self._function.__name__, len(self._inputs)
        if len(grads) > count and all(v is None for v in grads[count:]):
            grads = grads[:count]
        if len(grads) != count:
            raise RuntimeError(
                f"{name}.backward returned an incorrect number of gradients (expected {count}, "
                f"one for each input of forward, got {len(grads)})"
            )
        found: list[Any] = []
        for number, (v, like) in enumerate(zip(grads, self._inputs, strict=True)):
            if v is not None and type(v) not in TENSORS:
                raise TypeError(
                    f"{name}.backward returned {type(v).__name__} as gradient {number}; expected "
                    "a Tensor or None"
                )
            if v is None or self.edges[number] is None:
                found.append(None)
                continue
            _, shape, dtype = like
            if not _reduces(v._array.shape, shape):
                raise RuntimeError(
                    f"{name}.backward returned an invalid gradient at index {number}: got shape "
                    f"{v._array.shape}, expected {shape}"
                )
            if v._array.dtype != dtype:
                v = v.to(dtype)
            found.append(v if create_graph else v._array)
        return tuple(found)


def _kind(x: Any) -> Any:
    """The array type, shape and dtype of a Tensor; None for anything else."""
    return (type(x._array), x._array.shape, x._array.dtype) if type(x) in TENSORS else None


def _reduces(have: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether summing over broadcast dimensions brings shape `have` to `shape`."""
    lead = len(have) - len(shape)
    return lead >= 0 and all(s in (h, 1) for s, h in zip(shape, have[lead:], strict=True))


def _alias(tensor: Tensor) -> Tensor:
    out = wrap(tensor._array)
    out._version = tensor.version
    return out


class Function:
    """Base of operations of your own; use `YourFunction.apply(...)`.

    `forward(ctx, ...)` gets what `apply` was given and returns a Tensor or a tuple. `backward(ctx,
    ...)` gets one gradient for each output and returns one for each argument of `apply`, None
    where there is none.

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

    _operation = _UserOperation("FunctionBackward")

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._operation = _UserOperation(f"{cls.__name__}Backward")

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
        """Run `forward` and record the call; keyword arguments get no gradient.

        Raises TypeError where forward returns no Tensor.
        """
        ctx = FunctionCtx(cls, args)
        before = MODES.grad
        MODES.grad = False
        try:
            returned = cls.forward(ctx, *args, **kwargs)
        finally:
            MODES.grad = before
        outputs = returned if type(returned) is tuple else (returned,)
        if not any(type(out) in TENSORS for out in outputs):
            raise TypeError(
                f"{cls.__name__}.forward returned {type(returned).__name__}; expected a Tensor or "
                "a tuple with Tensors"
            )
        if not (before and any(ctx.needs_input_grad)):
            return returned
        ctx.edges = tuple(edge_of(x) if type(x) in TENSORS else None for x in args)
        ctx.seq = next_seq()
        ctx._outputs = tuple(_kind(out) for out in outputs)
        ctx.shapes = tuple(None if kind is None else kind[1] for kind in ctx._outputs)
        ctx.shape = ctx.shapes[0]
        results = _differentiable(ctx, outputs)
        alone = type(returned) is not tuple
        _save(ctx, args, outputs, results, alone)
        for number, (out, fresh) in enumerate(zip(outputs, results, strict=True)):
            if fresh is not None:
                fresh._edge = ctx if alone else (ctx, number)
                fresh._rg = True
            else:
                results[number] = out
        return results[0] if alone else tuple(results)


def _differentiable(ctx: FunctionCtx, outputs: Any) -> list[Any]:
    """The outputs that get a place in the graph; None for the others.

    Each is another Tensor over the same memory: an output may be an input, or a Tensor that
    forward keeps somewhere, and neither must change.
    """
    excluded = {id(x) for x in ctx._non_differentiable}
    return [
        _alias(out)
        if type(out) in TENSORS and out._array.dtype.kind == "f" and id(out) not in excluded
        else None
        for out in outputs
    ]


def _save(ctx: FunctionCtx, args: Any, outputs: Any, results: Any, alone: bool) -> None:
    """Move what `save_for_backward` was given into the node, which must not hold its outputs."""
    inputs = {id(x) for x in args}
    places = {id(out): n for n, out in enumerate(outputs) if results[n] is not None}
    saved = []
    for tensor in ctx._to_save:
        number = None if id(tensor) in inputs else places.get(id(tensor))
        kept = tensor if number is None else _alias(tensor)
        version = 0 if kept is None or kept._version is None else kept._version.n
        saved.append((kept, version, -1 if alone and number is not None else number))
    ctx.saved = tuple(saved)
    ctx._to_save = ctx._non_differentiable = ()


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that computes outside the graph: a second derivative raises.

    Inside, nothing is recorded, so NumPy or SciPy may be used on `.numpy()`.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        before = MODES.grad
        MODES.grad = False
        try:
            given = (g.detach() if type(g) in TENSORS else g for g in grads)
            returned = backward(ctx, *given)
        finally:
            MODES.grad = before
        if not before:
            return returned
        sources = (*ctx.edges, *(edge_of(g) for g in grads if type(g) in TENSORS))
        if type(returned) is tuple:
            return tuple(_once(v, sources) for v in returned)
        return _once(returned, sources)

    return wrapper


def _once(value: Any, sources: tuple[Any, ...]) -> Any:
    """`value` with a node behind it that raises when it is differentiated.

    It points to all that `value` was computed from: a pass towards one of these alone would
    otherwise leave the node out, and take the second derivative for zero.
    """
    if type(value) not in TENSORS:
        return value
    leaf = wrap(value._array)
    leaf._rg = True
    result = _Once.apply(leaf)
    result.grad_fn.edges += sources
    return result


class _Once(Function):
    """An identity whose gradient is an error; marks results of once-differentiable code."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )
