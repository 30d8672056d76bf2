"""`backward` and `grad`: what the user asks for, checked, and handed to the engine as one pass.

Listeners (data parallelism) hear of a `backward` before it starts and when it has filled the
gradients; post-accumulate hooks run after them, when every gradient is final.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backend import LISTENERS, MODES, XP
from ..tensor import TENSORS, Tensor, normalise, wrap
from .engine import run
from .graph import edge_of, leaves_of


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
    """
    retain = create_graph if retain_graph is None else retain_graph
    wanted = None
    if inputs is not None:
        wanted = _differentiated(inputs)
        if not wanted:
            raise RuntimeError("backward: inputs must not be empty")
    roots = _tuple(tensors)
    edges: tuple[Any, ...]
    loss = tensors
    if isinstance(loss, Tensor) and grad_tensors is None and loss._rg and loss._array.size == 1:
        edges, seeds = (loss._edge or loss,), (_one(loss, create_graph),)  # the usual case, faster
    else:
        seeds = _seeds(roots, grad_tensors, create_graph)
        edges = tuple(root._edge or root for root in roots)
    if not LISTENERS:
        touched = run(edges, seeds, retain, create_graph, wanted, True)[1]
    else:
        touched = _announced(roots, edges, seeds, retain, create_graph, wanted)
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
    if is_grads_batched or not only_inputs:
        raise NotImplementedError(
            "grad: only_inputs=False and is_grads_batched=True are not supported; call backward() "
            "for the gradients of all leaves, and grad() once for each of several gradients"
        )
    if materialize_grads and allow_unused is False:
        raise ValueError("grad: materialize_grads=True needs allow_unused to be None or True")
    roots = _tuple(outputs)
    wanted = _differentiated(inputs)
    seeds = _seeds(roots, grad_outputs, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    edges = [root._edge or root for root in roots]
    captured, _ = run(edges, seeds, retain, create_graph, wanted, False)
    found: list[Any] = []
    for number, tensor in enumerate(wanted):
        value = captured.get(edge_of(tensor))
        if value is not None:
            # A copy: the array may be a constant, or the gradient of another input as well.
            found.append(value if create_graph else wrap(normalise(value).copy()))
        elif materialize_grads:
            found.append(wrap(XP[type(tensor._array)].zeros_like(tensor._array)))
        elif allow_unused:
            found.append(None)
        else:
            raise RuntimeError(
                f"grad: input {number} was not used in the graph of the outputs; pass "
                "allow_unused=True to get None for it"
            )
    return tuple(found)


def _tuple(tensors: Any) -> tuple[Tensor, ...]:
    return (tensors,) if type(tensors) in TENSORS else tuple(tensors)


def _differentiated(inputs: Any) -> tuple[Tensor, ...]:
    wanted = _tuple(inputs)
    for number, tensor in enumerate(wanted):
        if type(tensor) not in TENSORS:
            raise TypeError(f"inputs are Tensors, got {type(tensor).__name__} at position {number}")
        if not tensor._rg:
            raise RuntimeError(
                f"one of the differentiated Tensors does not require grad: input {number}; set "
                "requires_grad=True before the computation"
            )
    return wanted


def _one(root: Tensor, create_graph: bool) -> Any:
    array = root._array
    seed = XP[type(array)].ones_of(array.shape, array.dtype)
    return wrap(seed) if create_graph else seed


def _seeds(roots: tuple[Tensor, ...], grads: Any, create_graph: bool) -> tuple[Any, ...]:
    """The gradient that the pass starts with at each root: arrays, or Tensors to record."""
    if grads is None:
        grads = (None,) * len(roots)
    elif type(grads) in TENSORS:
        grads = (grads,)
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
            seeds.append(_one(root, create_graph))
            continue
        if type(given) not in TENSORS:
            raise TypeError(f"gradients are Tensors or None, got {type(given).__name__}")
        if given._array.shape != array.shape or given._array.dtype != array.dtype:
            raise RuntimeError(
                f"Mismatch in shape or dtype: grad_output[{number}] has shape "
                f"{given._array.shape} and dtype {given._array.dtype.name}, output[{number}] has "
                f"shape {array.shape} and dtype {array.dtype.name}"
            )
        seeds.append(given if create_graph else given._array)
    return tuple(seeds)


def _announced(
    roots: Any, edges: Any, seeds: Any, retain: bool, create_graph: bool, wanted: Any
) -> dict[Tensor, None]:
    """A pass that the listeners concerned are told of; they may scale what it starts with."""
    means: list[Any] = []
    leaves: dict[Tensor, Any] = leaves_of(edges, means)
    if wanted is not None:
        leaves = dict.fromkeys(wanted)
    told = [one for ref in tuple(LISTENERS) if (one := ref()) and one.concerns(leaves)]
    if not told:
        return run(edges, seeds, retain, create_graph, wanted, True)[1]
    shared = None  # terms of the root that ranks have to weigh together
    try:
        recorder = MODES.recorder
        weights: Sequence[Any] = (None,) * len(told)
        if means:
            forwards = [numbers for one in told for numbers in one.forwards()]
            weights = [one.denominators(edges, means, forwards) for one in told]
        listening = zip(told, weights, strict=True)
        if recorder is None:
            scales = [one.begin(roots, create_graph, weight) for one, weight in listening]
        else:
            scales = [recorder.listen(one, roots, create_graph, w) for one, w in listening]
        scale = scales[0]
        if len(told) > 1 and any(other is not scale and other != scale for other in scales):
            raise RuntimeError(
                "one backward reaches several DataParallel models that count differently "
                f"({', '.join(sorted(map(str, scales)))}): it is unclear what its loss is "
                "a mean over; give all the same model.count(n) and reduction"
            )
        if means:
            shared = _share(told, weights)
        given = seeds
        others: dict[Tensor, Tensor | None] = {}
        if scale is not None and (type(scale) in XP or scale != 1):
            seeds = [XP[type(seed)].multiply(seed, scale) for seed in seeds]
            outside: Any = leaves
            for one in told:
                outside = one.outside(outside)
            others = {leaf: _set_aside(leaf) for leaf in outside}
        alone = len(told) == 1 and wanted is None and not create_graph
        ready = told[0].readiness(leaves) if alone else None
        touched = run(edges, seeds, retain, create_graph, wanted, True, ready)[1]
        if shared is not None:
            for one in told:
                one.correct(shared, given[0])
        for leaf, earlier in others.items():
            _unscale(leaf, scale, earlier)
        for one in told:
            one.end() if recorder is None else recorder.heard(one)
    except BaseException:
        for one in told:
            one.cancel()
        raise
    finally:
        if shared is not None:
            shared.end()
    return touched


def _share(told: Sequence[Any], weights: Sequence[Any]) -> Any:
    """Let the listeners weigh the terms of a root together; what they did, or None."""
    taking = [one for one, weight in zip(told, weights, strict=True) if one.shares(weight)]
    if not taking:
        return None
    if len(taking) < len(told):
        raise RuntimeError(
            "one backward with losses of several denominators reaches several DataParallel "
            "models, and not all may take part in weighing them: give all the same ranks, "
            "and none or all model.count(n)"
        )
    told[0].share(weights[0])
    return weights[0]


def _set_aside(leaf: Tensor) -> Tensor | None:
    """The gradient that a leaf has, taken away from it; a copy where its memory is a slot."""
    earlier = leaf.grad
    if earlier is not None and leaf._extra is not None and leaf._extra.slot is not None:
        earlier = earlier.detach().clone()
    leaf.grad = None
    return earlier


def _unscale(leaf: Tensor, scale: Any, earlier: Tensor | None) -> None:
    """Undo the scale for a leaf outside the listeners' models, and add what it had before."""
    found = leaf.grad
    if found is not None:
        array = found._array
        xp = XP[type(array)]
        if type(scale) in XP:  # of a step that is captured
            scale = xp.where(xp.equal(scale, 0), xp.constant(1, scale.dtype), scale)
        if type(scale) in XP or scale:
            xp.divide(array, scale, out=array)
        else:
            xp.copyto(array, 0)  # nothing was counted: the pass contributes nothing
        if earlier is not None:
            xp.add(earlier._array, array, out=earlier._array)
    if earlier is not None:
        leaf.grad = earlier


def _finish(touched: dict[Tensor, None]) -> None:
    """Post-accumulate hooks, when every gradient is final; nothing in them is recorded."""
    if MODES.recorder is not None:
        MODES.recorder.refuse_hook("a hook of a Tensor")
    before = MODES.grad
    MODES.switch(False)
    try:
        for leaf in touched:
            for hook in tuple((leaf.extra().post_hooks or {}).values()):
                hook(leaf)
    finally:
        MODES.grad = before
