"""`Function`: an operation of your own, with `forward` and `backward` as PyTorch users know them.

The `ctx` that both receive is the node of the call. Both compute on Tensors: `forward` without
recording, `backward` with recording only under `create_graph`, which is how a custom backward gets
derivatives of its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from ..backend import ARRAYS, MODES, XP
from ..errors import need, wrong
from ..tensor import TENSORS, Tensor, Version, as_array, with_history, wrap
from .differentiate import messages_set_aside
from .graph import Backward, Node, Underived, edge_of, modified, next_seq, without_derivative
from .locks import release


class FunctionCtx(Node):
    """The node of one call of a `Function`; any attribute may be set on it.

    Every Function has a subclass of its own. Values that most calls share are class attributes,
    which hide the slots of `Node`; a call sets the others.
    """

    # No __slots__: `ctx.anything = ...` is part of the interface.

    _hooks = None
    _versions = None
    _saved: Any = ()
    _shapes: tuple[Any, ...]  # of several outputs, None for what is not a Tensor
    _function: type[Function]
    _inputs: tuple[Any, ...]  # the dtype of each input that requires grad, None for others
    _outputs: tuple[Any, ...]  # array type, shape and dtype of each output that is a Tensor
    _to_save: tuple[Any, ...] = ()
    _non_differentiable: tuple[Tensor, ...] = ()
    _materialize = True

    @functools.cached_property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """For each argument of `apply`, whether it is a Tensor that requires grad."""
        return tuple(like is not None for like in self._inputs)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep Tensors (inputs, outputs or others) for backward, checked for in-place writes."""
        for tensor in tensors:
            fits = tensor is None or type(tensor) in TENSORS
            text = "takes Tensors, got {}; keep other values as attributes: ctx.value = ..."
            need(fits, "save_for_backward", text, type(tensor), error=TypeError)
        self._to_save = tensors

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Mark outputs as having no gradient; integer outputs never have one."""
        self._non_differentiable = outputs

    def mark_dirty(self, *tensors: Tensor) -> NoReturn:
        """Not supported: NotImplementedError that says what to write instead."""
        text = "writing to inputs is not supported; write to x.clone() in forward"
        raise wrong(self._op.node_name, text, error=NotImplementedError)

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward gets zeros (default) or None for outputs that got no gradient."""
        self._materialize = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` kept; RuntimeError if it was freed or modified in place."""
        text = "its saved tensors were freed; specify retain_graph=True in the first backward"
        need(self._saved is not None, self._op.node_name, text)
        found = []
        for kept, version, then, number in self._saved:
            if number is None and kept is not None:
                version = kept._version
            if version is not None and version.n != then:
                raise modified(self, f"a tensor of shape {kept.shape}", version.n, then)
            if number is not None:  # an output: give it back its place in the graph
                kept = with_history(kept, version, self if number < 0 else (self, number))
            found.append(kept)
        return tuple(found)

    def apply(self, *grads: Tensor | None) -> Any:
        """What the class's own `backward` returns for these gradients, unchecked.

        `node(*grads)` is what the engine makes of it: None for inputs that need no gradient.
        """
        return self._function.backward(self, *grads)


def _run(node: FunctionCtx, g: Any, create_graph: bool = False) -> tuple[Any, ...]:
    """Call the user's `backward` on Tensors and check what it returns."""
    if MODES.messages:  # they belong to this pass, not to one that the user's code may start
        with messages_set_aside():
            return _run(node, g, create_graph)
    function, held = node._function, MODES.direct
    if type(held) is list:
        release(held)  # it may wait for another thread, or start a pass that does
    if type(g) is list or g is None:
        returned = function.backward(node, *_given(node, g))
    else:
        returned = function.backward(
            node, g if create_graph else wrap(g if type(g) in ARRAYS else as_array(g))
        )
    grads = returned if type(returned) is tuple else (returned,)
    if len(grads) != len(node._inputs):
        grads = _as_many(node, grads)
    found: list[Any] = []
    for v, like in zip(grads, node._inputs, strict=True):
        if v is not None and type(v) not in TENSORS:
            text = "returned {} as gradient {}; expected a Tensor or None"
            name = f"{function.__name__}.backward"
            raise wrong(name, text, type(v), len(found), error=TypeError)
        if v is None or like is None:
            found.append(None)
            continue
        if v._array.dtype != like:
            v = v.to(like)
        found.append(v if create_graph else v._array)
    return tuple(found)


def _given(node: FunctionCtx, g: Any) -> list[Any]:
    """The arguments of `backward` where there are several outputs, or a gradient is missing."""
    given = []
    for v, like in zip(g if type(g) is list else [g], node._outputs, strict=True):
        if v is None and like is not None and node._materialize:
            kind, shape, dtype = like
            v = XP[kind].zeros(shape, dtype)
        given.append(v if v is None or type(v) in TENSORS else wrap(as_array(v)))
    return given


def _as_many(node: FunctionCtx, grads: tuple[Any, ...]) -> tuple[Any, ...]:
    """`grads` without surplus Nones at the end; RuntimeError for any other number."""
    count = len(node._inputs)
    if len(grads) > count and all(v is None for v in grads[count:]):
        return grads[:count]
    text = f"returned an incorrect number of gradients (expected {count}, got {len(grads)})"
    raise wrong(f"{node._function.__name__}.backward", text)


class _UserOperation(Backward):
    """The operation that a subclass of `Function` defines."""

    saves_arrays = True
    backward_arrays = staticmethod(_run)
    backward_tensors = staticmethod(functools.partial(_run, create_graph=True))

    def __init__(self, name: str) -> None:
        self.node_name = name


def _kind(x: Any) -> Any:
    """The array type, shape and dtype of a Tensor; None for anything else."""
    return (type(x._array), x._array.shape, x._array.dtype) if type(x) in TENSORS else None


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

    _node: type[FunctionCtx] = FunctionCtx
    _separate = False  # whether the class defines setup_context, and forward gets no ctx

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name = f"{cls.__name__}Backward"
        cls._separate = cls.setup_context is not Function.setup_context
        cls._node = type(name, (FunctionCtx,), {"_op": _UserOperation(name), "_function": cls})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        text = "instances are the legacy way; write forward and backward as static methods and call"
        raise wrong(name, f"{text} {name}.apply(...)")

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs from the inputs."""
        raise NotImplementedError("a Function must define a static method forward(ctx, ...)")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Where a class defines this, `forward` gets no ctx, and this does all that needs it."""
        raise NotImplementedError("setup_context is not defined")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradient of each input from the gradient of each output."""
        raise NotImplementedError("a Function must define a static method backward(ctx, ...)")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward` and record the call; keyword arguments get no gradient.

        Raises TypeError where forward returns no Tensor.
        """
        if cls._separate:  # what setup_context gets as `inputs`: defaults are among them
            bound = inspect.signature(cls.forward).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        ctx = cls._node()
        edges: list[Any] = []
        likes: list[Any] = []
        wanted = False
        for x in args:
            if type(x) in TENSORS and x._rg:
                wanted = True
                edges.append(x._edge or x)
                likes.append(x._array.dtype)
            else:
                edges.append(None)
                likes.append(None)
        ctx._inputs = tuple(likes)
        before, anomaly = MODES.grad, MODES.anomaly
        try:
            MODES.grad = False if anomaly is None else anomaly.modes[False]
            if cls._separate:
                returned = cls.forward(*args, **kwargs)
                cls.setup_context(ctx, args, returned)
            else:
                returned = cls.forward(ctx, *args, **kwargs)
        finally:
            MODES.grad = before
        alone = type(returned) in TENSORS
        outputs = returned if type(returned) is tuple else (returned,)
        some = alone or any(type(out) in TENSORS for out in outputs)
        text = "returned {}; expected a Tensor or a tuple with Tensors"
        need(some, f"{cls.__name__}.forward", text, type(returned), error=TypeError)
        if anomaly is not None:
            anomaly.check(cls.__name__, outputs, args)
        if not (before and wanted):
            return returned
        ctx._edges = tuple(edges)
        ctx._seq = next_seq()
        if anomaly is not None:
            anomaly.remember(ctx)
        if alone:
            array = returned._array
            ctx._shape = array.shape
            ctx._outputs = ((type(array), array.shape, array.dtype),)
            results = (_result(returned, ctx, ctx),)
        else:
            ctx._outputs = tuple(_kind(out) for out in outputs)
            ctx._shapes = tuple(None if kind is None else kind[1] for kind in ctx._outputs)
            ctx._shape = ctx._shapes[0]
            results = tuple(_result(out, ctx, (ctx, n)) for n, out in enumerate(outputs))
        if ctx._to_save:
            _save(ctx, args, outputs, results)
        if ctx._non_differentiable:
            ctx._non_differentiable = ()
        return results[0] if alone else results


def _result(out: Any, ctx: FunctionCtx, edge: Any) -> Any:
    """A Tensor over the memory of `out` whose `grad_fn` is `ctx`; `out` itself without a gradient.

    It is a new Tensor, as an output may be an input, or be kept elsewhere by forward, and neither
    of these may change.
    """
    if type(out) not in TENSORS or out._array.dtype.kind != "f":
        return out
    if ctx._non_differentiable and any(out is one for one in ctx._non_differentiable):
        return out
    version = out._version
    if version is None:
        version = out._version = Version(out)
    return with_history(out._array, version, edge)


def _save(ctx: FunctionCtx, args: Any, outputs: Any, results: Any) -> None:
    """Save in the node what `save_for_backward` was given; of outputs the array: no cycles."""
    saved = []
    for tensor in ctx._to_save:
        number = None
        for place, out in enumerate(outputs):
            if out is tensor is not results[place]:
                number = place if type(results[place]._edge) is tuple else -1
        for x in args:
            if x is tensor:  # an input that forward returned is saved as the input
                number = None
        version = None if tensor is None else tensor._version
        then = 0 if version is None else version.n
        saved.append((tensor if number is None else tensor._array, version, then, number))
    ctx._saved = tuple(saved)
    ctx._to_save = ()


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that computes outside the graph: a second derivative raises.

    Inside, nothing is recorded, so NumPy or SciPy may be used on `.numpy()`.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        before = MODES.grad
        try:
            MODES.switch(False)
            given = (g.detach() if type(g) in TENSORS else g for g in grads)
            returned = backward(ctx, *given)
        finally:
            MODES.grad = before
        if not before:
            return returned
        sources = (*ctx._edges, *(edge_of(g) for g in grads if type(g) in TENSORS))
        text = "trying to differentiate twice a function that was marked with @once_differentiable"
        refusal = Underived(ctx.name(), text)
        many = type(returned) is tuple
        found = tuple(
            without_derivative(v, refusal, sources) if type(v) in TENSORS else v
            for v in (returned if many else (returned,))
        )
        return found if many else found[0]

    return wrapper
