"""`backward` and `grad`: what the user asks for, checked, and handed to the engine as one pass.

Models in `DataParallel` are listeners: a `backward` that reaches their parameters is run by them
(`_run_with_listeners`), so that they can scale its seeds and reduce its gradients. Post-accumulate
hooks are called after that, when every gradient is final.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ..backend import LISTENERS, MODES, XP
from ..errors import need, wrong
from ..tensor import TENSORS, Tensor, as_array, wrap
from .engine import run
from .graph import edge_of, next_seq, reaches

_F = TypeVar("_F", bound=Callable[..., Any])


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
        grad_tensors: the gradient of each root, in its shape and dtype; None means 1.
        retain_graph: keep what was saved for another pass; default `create_graph`.
        create_graph: record the pass itself, for higher derivatives.
        inputs: accumulate into these Tensors only.

    Raises:
        RuntimeError: a root does not require grad, is not a scalar and has no gradient, a gradient
            has another shape or dtype, the graph was freed, a saved Tensor was modified in place.
        TypeError: something is not a Tensor.

    Example:
        >>> x = mt.tensor(3.0, requires_grad=True)
        >>> mt.autograd.backward(x**2)
        >>> x.grad
        tensor(6.)
    """
    retain = create_graph if retain_graph is None else retain_graph
    wanted = None
    if inputs is not None:
        wanted = _differentiated(inputs)
        need(wanted, "backward", "inputs must not be empty")
    edges: tuple[Any, ...]
    roots: tuple[Tensor, ...]
    if isinstance(tensors, Tensor) and (grad_tensors is None or isinstance(grad_tensors, Tensor)):
        roots, seeds = (tensors,), (_seed(0, tensors, grad_tensors, create_graph),)
        edges = (tensors._edge or tensors,)  # the usual case, faster
    else:
        roots = as_tuple(tensors)
        seeds = _seeds(roots, grad_tensors, create_graph)
        edges = tuple(root._edge or root for root in roots)
    if not LISTENERS.refs:
        touched = run(edges, seeds, retain, create_graph, wanted, True)[1]
    else:
        touched = _run_with_listeners(roots, edges, seeds, retain, create_graph, wanted)[1]
    if touched:
        _finish(touched)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """The gradients of the sum of `outputs` with respect to `inputs`; `.grad` stays untouched.

    Args:
        outputs: the roots; each a scalar unless its gradient is given.
        inputs: Tensors of the graph, leaves or computed ones.
        grad_outputs: the gradient of each output, in its shape and dtype; None means 1.
        retain_graph: keep what was saved for another pass; default `create_graph`.
        create_graph: record the pass itself, for higher derivatives.
        only_inputs, is_grads_batched: PyTorch's switches, which can only be as they are.
        allow_unused: None for an input that the outputs do not depend on, instead of an error.
        materialize_grads: zeros for such an input.

    Raises:
        RuntimeError: as `backward`; an input does not require grad, or is not used.
        TypeError: something is not a Tensor.
        NotImplementedError: `only_inputs` or `is_grads_batched` is not the default.

    Example:
        >>> x = mt.tensor(3.0, requires_grad=True)
        >>> (first,) = mt.autograd.grad(x**3, x, create_graph=True)
        >>> mt.autograd.grad(first, x)
        (tensor(18.),)
    """
    text = "only_inputs=False and is_grads_batched=True are not supported"
    plain = only_inputs and not is_grads_batched
    need(plain, "grad", f"{text}; call grad() once for each", error=NotImplementedError)
    text = "materialize_grads=True needs allow_unused to be None or True"
    fits = not materialize_grads or allow_unused is not False
    need(fits, "grad", text, error=ValueError)
    roots = as_tuple(outputs)
    wanted = _differentiated(inputs)
    need(wanted, "grad", "inputs must not be empty")
    seeds = _seeds(roots, grad_outputs, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    edges = [root._edge or root for root in roots]
    first = next_seq() if create_graph else 0
    captured, _ = run(edges, seeds, retain, create_graph, wanted, False)
    if create_graph and LISTENERS.refs:
        derived(edges, first, [*captured.values()])
    found: list[Any] = []
    for number, tensor in enumerate(wanted):
        value = captured.get(edge_of(tensor))
        if value is not None:
            # A copy: the array may be a constant, or the gradient of another input as well.
            found.append(value if create_graph else wrap(as_array(value).copy()))
        elif materialize_grads:
            found.append(wrap(XP[type(tensor._array)].zeros_like(tensor._array)))
        elif allow_unused:
            found.append(None)
        else:
            text = f"input {number} was not used in the graph of the outputs"
            raise wrong("grad", f"{text}; pass allow_unused=True to get None for it")
    return tuple(found)


@contextmanager
def messages_set_aside() -> Iterator[None]:
    """Hide earlier messages between ranks from the passes inside, which this rank runs alone."""
    outer, MODES.messages = MODES.messages, []
    try:
        yield
    finally:
        MODES.messages = [*outer, *MODES.messages]


def setting_messages_aside(function: _F) -> _F:
    """Call the function in a block of `messages_set_aside`."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with messages_set_aside():
            return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def _run_with_listeners(
    roots: Any, edges: Any, seeds: Any, retain: bool, create_graph: bool, wanted: Any
) -> Any:
    """`engine.run` with `accumulate`, by the first of the listeners that it reaches."""
    # A rank without a loss of its own may have a part in another rank's, through messages.
    edges = (*edges, *(node for one in MODES.messages if (node := one.node()) is not None))
    reached = [
        one
        for one in LISTENERS
        if (reaches(edges, one.members) if wanted is None else one.members & {*wanted})
    ]
    if reached:
        return reached[0].backward(reached, roots, edges, seeds, retain, create_graph, wanted)
    first = next_seq() if create_graph else 0
    found = run(edges, seeds, retain, create_graph, wanted, True)
    if create_graph:
        derived(edges, first, [*found[1]])
    return found


def derived(edges: Any, first: int, results: Any) -> None:
    """Tell listeners that a pass with `create_graph` has made the nodes from number `first` on."""
    for one in LISTENERS:
        if reaches(edges, one.members):  # other threads may be calling other models meanwhile
            one.derived(edges, first, results)


def as_tuple(tensors: Any) -> tuple[Any, ...]:
    """A Tensor, or several, as a tuple."""
    return (tensors,) if type(tensors) in TENSORS else tuple(tensors)


def _differentiated(inputs: Any) -> tuple[Tensor, ...]:
    wanted = as_tuple(inputs)
    for number, tensor in enumerate(wanted):
        kind = type(tensor)
        need(kind in TENSORS, f"input {number}", "expected a Tensor", kind, error=TypeError)
        text = "does not require grad; set requires_grad=True before the computation"
        need(tensor._rg, f"the differentiated input {number}", text)
    return wanted


def _seeds(roots: tuple[Tensor, ...], grads: Any, create_graph: bool) -> tuple[Any, ...]:
    """The gradient that the pass starts with at each root."""
    if grads is None:
        grads = (None,) * len(roots)
    elif type(grads) in TENSORS:
        grads = (grads,)
    same = len(roots) == len(grads)
    need(same, "backward", "got {} tensors and {} gradients", len(roots), len(grads))
    pairs = zip(roots, grads, strict=True)
    return tuple(_seed(number, *pair, create_graph) for number, pair in enumerate(pairs))


def _seed(number: int, root: Any, given: Any, create_graph: bool) -> Any:
    """The gradient of root `number`: an array, or a Tensor to record."""
    if type(root) not in TENSORS:
        raise wrong("backward", "expected a Tensor", type(root), error=TypeError)
    if not root._rg:
        text = f"element {number} of tensors does not require grad and does not have a grad_fn"
        raise RuntimeError(text)
    array = root._array
    if given is None:
        if array.size != 1:
            text = "grad can be implicitly created only for scalar outputs, got {}: pass gradient= "
            raise wrong("backward", f"{text}of that shape, or reduce it with sum() or mean()", root)
        seed = XP[type(array)].ones_of(array.shape, array.dtype)
        return wrap(seed) if create_graph else seed
    if type(given) not in TENSORS:
        raise wrong("gradient", "expected a Tensor or None", type(given), error=TypeError)
    if given._array.shape != array.shape or given._array.dtype != array.dtype:
        text = "Mismatch in shape or dtype of grad_output[{}]: {}, dtype {} for {}, dtype {}"
        raise wrong("backward", text, number, given, given.dtype, root, root.dtype)
    return given if create_graph else given._array


def _finish(touched: dict[Tensor, None]) -> None:
    """Post-accumulate hooks, when every gradient is final; nothing in them is recorded."""
    MODES.capture.refuse_hook("a hook of a Tensor")
    before = MODES.grad
    try:
        MODES.switch(False)
        for leaf in touched:
            for hook in tuple((leaf.extra().post_hooks or {}).values()):
                text = "must return None: write into the gradient instead"
                need(hook(leaf) is None, "a hook of register_post_accumulate_grad_hook", text)
    finally:
        MODES.grad = before
