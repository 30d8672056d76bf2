"""Whole derivatives of a function: Jacobians, Hessians and their products with vectors.

Products with a vector from the left, and rows, are built from `grad`; those with a vector from the
right are tangents (`forward`). `mt.func` has more in forward mode.

Names, arguments and shapes are PyTorch's. A single Tensor stands for itself, a tuple gives a tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..backend import MODES, XP
from ..errors import need
from ..tensor import TENSORS, Tensor, wrap
from . import forward
from .differentiate import grad, setting_messages_aside
from .forward import full, push, tell
from .grad_mode import enable_grad, set_grad_enabled
from .graph import edge_of, next_seq, walk

_Func = Callable[..., Any]
_Tensors = tuple[Tensor, ...]

# What strict mode speaks of.
_BY_INPUT = "the derivative of the output with respect to input {}"


@setting_messages_aside
def vjp(
    func: _Func, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The product of `v` and the Jacobian of `func`: one backward pass.

    Args:
        func: takes `inputs`, returns a Tensor or a tuple of Tensors of any shape.
        inputs: a Tensor or a tuple of Tensors, floats of any shape; need not require grad.
        v: in the shapes of the outputs; None means 1 for a single output with one element.
        create_graph: record outputs and result, so that they can be differentiated.
        strict: raise where an output does not depend on an input, instead of giving zeros; with
            `create_graph` also where the result does not.

    Returns:
        The outputs of `func`, and the product in the shapes of the inputs.

    Raises:
        RuntimeError: `v` is missing or has another shape; `strict` finds an independence; inside
            `inference_mode`.
        TypeError: inputs, outputs or `v` are not Tensors.

    Example:
        >>> x = mt.tensor([1.0, 2.0])
        >>> mt.autograd.functional.vjp(lambda x: x * x, x, mt.ones(2))
        (tensor([1., 4.]), tensor([2., 4.]))
    """
    single, xs = _inputs(inputs, create_graph, "vjp")
    single_output, ys = _outputs(func, xs, strict, "vjp")
    vs = _vector(v, ys, create_graph, "vjp", "output")
    found = _grad(ys, xs, vs, create_graph)
    found = _filled(found, xs, strict, create_graph, _BY_INPUT)
    return _result(ys, single_output, create_graph), _result(found, single, create_graph)


def jvp(
    func: _Func, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The product of the Jacobian of `func` and `v`: one forward pass.

    Args:
        func: as `vjp`.
        inputs: as `vjp`.
        v: in the shapes of the inputs; None means 1 for a single input with one element.
        create_graph: as `vjp`.
        strict: as `vjp`.

    Returns:
        The outputs of `func`, and the product in the shapes of the outputs.

    Raises:
        RuntimeError: as `vjp`.
        TypeError: as `vjp`.

    Example:
        >>> x = mt.tensor([1.0, 2.0])
        >>> mt.autograd.functional.jvp(lambda x: (x * x).sum(), x, mt.ones(2))
        (tensor(5.), tensor(6.))
    """
    xs = _inputs(inputs, create_graph, "jvp")[1]
    vs = _vector(v, xs, create_graph, "jvp", "input")
    single_output, ys = _outputs(func, xs, strict, "jvp")
    found = _pushed_forward(ys, xs, vs, create_graph, strict, "output")
    return _result(ys, single_output, create_graph), _result(found, single_output, create_graph)


@setting_messages_aside
def vhp(
    func: _Func, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The product of `v` and the Hessian of a scalar `func`: two backward passes.

    Args:
        func: takes `inputs`, returns a Tensor with one element; differentiable twice.
        inputs: as `vjp`.
        v: in the shapes of the inputs; None means 1 for a single input with one element.
        create_graph: as `vjp`.
        strict: as `vjp`, of the output and of its gradient.

    Returns:
        The output of `func`, and the product in the shapes of the inputs.

    Raises:
        RuntimeError: as `vjp`; `func` returns several Tensors or several elements.
        TypeError: as `vjp`.

    Example:
        >>> x = mt.tensor([1.0, 2.0])
        >>> mt.autograd.functional.vhp(lambda x: (x**3).sum(), x, mt.ones(2))
        (tensor(9.), tensor([ 6., 12.]))
    """
    single, xs = _inputs(inputs, create_graph, "vhp")
    vs = _vector(v, xs, create_graph, "vhp", "input")
    y, gradient = _scalar_and_gradient(func, xs, strict, "vhp")
    found = _grad(gradient, xs, vs, create_graph)
    what = "the derivative of the gradient with respect to input {}"
    found = _filled(found, xs, strict, create_graph, what)
    return _result((y,), True, create_graph), _result(found, single, create_graph)


@setting_messages_aside
def hvp(
    func: _Func, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """The product of the Hessian of a scalar `func` and `v`: forward over reverse.

    Where the second derivatives are continuous the Hessian is symmetric, and `vhp` gives the same.

    Args:
        func: as `vhp`.
        inputs: as `vjp`.
        v: in the shapes of the inputs; None means 1 for a single input with one element.
        create_graph: as `vjp`.
        strict: as `vhp`.

    Returns:
        The output of `func`, and the product in the shapes of the inputs.

    Raises:
        RuntimeError: as `vhp`.
        TypeError: as `vjp`.

    Example:
        >>> x = mt.tensor([1.0, 2.0])
        >>> mt.autograd.functional.hvp(lambda x: (x**3).sum(), x, mt.ones(2))
        (tensor(9.), tensor([ 6., 12.]))
    """
    single, xs = _inputs(inputs, create_graph, "hvp")
    vs = _vector(v, xs, create_graph, "hvp", "input")
    y, gradient = _scalar_and_gradient(func, xs, strict, "hvp")
    found = _pushed_forward(gradient, xs, vs, create_graph, strict, "gradient")
    return _result((y,), True, create_graph), _result(found, single, create_graph)


@setting_messages_aside
def jacobian(
    func: _Func, inputs: Any, create_graph: bool = False, strict: bool = False,
    vectorize: bool = False, strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """All derivatives of all outputs: one backward pass for each element of the outputs.

    Args:
        func: as `vjp`.
        inputs: as `vjp`.
        create_graph: record the result, so that it can be differentiated.
        strict: as `vjp`.
        vectorize: PyTorch's other way to the same values; here there is one.
        strategy: only "reverse-mode".

    Returns:
        For a single output and a single input a Tensor of shape `output.shape + input.shape`. A
        tuple of outputs gives a tuple of these, a tuple of inputs a tuple inside of it:
        `jacobian[i][j]` is of output i with respect to input j.

    Raises:
        RuntimeError: `strict` finds an independence; inside `inference_mode`.
        TypeError: inputs or outputs are not Tensors.
        ValueError: another strategy.

    Example:
        >>> x = mt.tensor([1.0, 2.0])
        >>> mt.autograd.functional.jacobian(lambda x: x * x, x)
        tensor([[2., 0.],
                [0., 4.]])
    """
    text = "strategy must be 'reverse-mode', as gradients are computed; columns are mt.func.jacfwd"
    need(strategy == "reverse-mode", "jacobian", text, strategy, error=ValueError)
    single, xs = _inputs(inputs, create_graph, "jacobian")
    single_output, ys = _outputs(func, xs, strict, "jacobian")
    found = []
    for number, y in enumerate(ys):
        what = f"the derivative of output {number} with respect to input {{}}"
        rows = [_filled(row, xs, strict, create_graph, what) for row in _rows(y, xs, create_graph)]
        blocks = tuple(_stacked([row[j] for row in rows], y, x) for j, x in enumerate(xs))
        found.append(_result(blocks, single, create_graph))
    return found[0] if single_output else tuple(found)


@setting_messages_aside
def hessian(
    func: _Func, inputs: Any, create_graph: bool = False, strict: bool = False,
    vectorize: bool = False, outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """All second derivatives of a scalar `func`: one pass for each element of the inputs.

    Args:
        func: as `vhp`.
        inputs: as `vjp`.
        create_graph: record the result, so that it can be differentiated.
        strict: as `vhp`.
        vectorize, outer_jacobian_strategy: as of `jacobian`.

    Returns:
        For a single input a Tensor of shape `input.shape + input.shape`. For a tuple a tuple of
        tuples: `hessian[i][j]` has shape `inputs[i].shape + inputs[j].shape`.

    Raises:
        RuntimeError: as `jacobian`; `func` returns several Tensors or several elements.
        TypeError: as `jacobian`.

    Example:
        >>> x = mt.tensor([1.0, 2.0])
        >>> mt.autograd.functional.hessian(lambda x: x[0] * x[1], x)
        tensor([[0., 1.],
                [1., 0.]])
    """
    single, xs = _tensors(inputs, "hessian: inputs")

    def gradient(*xs: Tensor) -> _Tensors:
        return _scalar_and_gradient(func, xs, strict, "hessian")[1]

    blocks = jacobian(gradient, xs, create_graph, strict, vectorize, outer_jacobian_strategy)
    return blocks[0][0] if single else blocks


def _stacked(rows: list[Tensor], y: Tensor, x: Tensor) -> Tensor:
    """The derivatives of each element of `y` with respect to `x` in one Tensor."""
    shape = y.shape + x.shape
    if not rows:
        return wrap(XP[type(x._array)].zeros(shape, x.dtype))
    with enable_grad():
        return forward.stack(rows).reshape(shape)


def _tensors(given: Any, what: str) -> tuple[bool, _Tensors]:
    """Whether it is a single Tensor, and the tuple."""
    found = given if isinstance(given, tuple) else (given,)
    for number, x in enumerate(found):
        where = f" at position {number}" if isinstance(given, tuple) else ""
        text = f"expected a Tensor or a tuple of Tensors, got {{}}{where}"
        need(type(x) in TENSORS, what, text, type(x), error=TypeError)
    return not isinstance(given, tuple), found


def _fresh(tensors: _Tensors, create_graph: bool, requires_grad: bool) -> _Tensors:
    """Other Tensors over the same memory, so that what `func` captures itself stays a constant."""
    with enable_grad():
        return tuple(
            x.view(x.shape)
            if create_graph and x.requires_grad
            else x.detach().requires_grad_(requires_grad)
            for x in tensors
        )


def _inputs(inputs: Any, create_graph: bool, name: str) -> tuple[bool, _Tensors]:
    text = "inside inference_mode nothing is recorded; call it outside, or in inference_mode(False)"
    need(not MODES.inference, name, text)
    single, xs = _tensors(inputs, f"{name}: inputs")
    return single, _fresh(xs, create_graph, True)


def _outputs(func: _Func, xs: _Tensors, strict: bool, name: str) -> tuple[bool, _Tensors]:
    with enable_grad():
        single, ys = _tensors(func(*xs), f"{name}: outputs of func")
    what = "the derivative of output {} with respect to the inputs"
    _filled([y if y.requires_grad else None for y in ys], ys, strict, False, what)
    return single, ys


def _scalar_and_gradient(
    func: _Func, xs: _Tensors, strict: bool, name: str
) -> tuple[Tensor, _Tensors]:
    """What `func` returns, one number, and its recorded gradient."""
    single, ys = _outputs(func, xs, strict, name)
    one, text = single and ys[0].numel() == 1, "func has to return one Tensor with one element"
    need(single, name, f"{text}, got a tuple of {len(ys)}")
    need(one, name, text, ys[0])
    found = _grad(ys, xs, (None,), True)
    return ys[0], _filled(found, xs, strict, True, _BY_INPUT)


def _vector(v: Any, like: _Tensors, create_graph: bool, name: str, what: str) -> tuple[Any, ...]:
    """`v` as a tuple that fits `like`; (None,) for the 1 that may be left out."""
    if v is None:
        one = len(like) == 1 and like[0].numel() == 1
        need(one, name, f"v may be None only for one {what} with one element")
        return (None,)
    vs = _tensors(v, f"{name}: v")[1]
    have, expected = [x.shape for x in vs], [x.shape for x in like]
    text = f"v has to match the {what}s: expected shapes {{}}, got {{}}"
    need(have == expected, name, text, expected, have)
    return _fresh(vs, create_graph, False)


def _grad(
    outputs: _Tensors,
    inputs: _Tensors,
    seeds: tuple[Any, ...],
    create_graph: bool,
    retain_graph: bool | None = None,
) -> tuple[Any, ...]:
    """`grad` that leaves out the outputs that do not require grad; None where nothing depends."""
    pairs = [(y, seed) for y, seed in zip(outputs, seeds, strict=True) if y.requires_grad]
    if not pairs:
        return (None,) * len(inputs)
    ys, vs = zip(*pairs, strict=True)
    return grad(ys, inputs, vs, retain_graph, create_graph, allow_unused=True)


def _pushed_forward(
    ys: _Tensors, xs: _Tensors, vs: tuple[Any, ...], create_graph: bool, strict: bool, noun: str
) -> _Tensors:
    """The product of the Jacobian of `ys` and `vs`, in one forward pass."""
    edges, since = [edge_of(y) for y in ys], next_seq()
    reached = {*walk(edges)} if strict else {edge_of(x) for x in xs}
    what = f"the derivative of the {noun} with respect to input {{}}"
    _filled([x if edge_of(x) in reached else None for x in xs], xs, strict, False, what)
    known = {edge_of(x): _ones(x) if v is None else v for x, v in zip(xs, vs, strict=True)}
    with set_grad_enabled(create_graph):
        found = push(edges, known, 0)
        found = [t if t is None else full(t, y.shape) for t, y in zip(found, ys, strict=True)]
    if create_graph:
        tell(edges, since, [t for t in found if t is not None])
    what = f"the derivative of {noun} {{}} with respect to the inputs"
    return _filled(found, ys, strict, create_graph, what)


def _rows(y: Tensor, xs: _Tensors, create_graph: bool) -> list[tuple[Any, ...]]:
    """The gradients of each element of `y`, in the order of its elements."""
    found = []
    for number in range(y.numel()):
        seed = XP[type(y._array)].zeros((y.numel(),), y.dtype)
        seed[number] = 1
        found.append(_grad((y,), xs, (wrap(seed.reshape(y.shape)),), create_graph, True))
    return found


def _filled(
    grads: Sequence[Any], like: _Tensors, strict: bool, create_graph: bool, what: str
) -> _Tensors:
    """Zeros for None. In strict mode that is an error, under `create_graph` a constant as well."""
    for number, g in enumerate(grads if strict else ()):
        if g is None or (create_graph and not g.requires_grad):
            kind = "zero: nothing connects them" if g is None else "a constant: it has no graph"
            text = "strict=True does not allow that, strict=False does"
            raise RuntimeError(f"{what.format(number)} is {kind}; {text}")
    return tuple(_zeros(x) if g is None else g for g, x in zip(grads, like, strict=True))


def _zeros(like: Tensor) -> Tensor:
    return wrap(XP[type(like._array)].zeros(like.shape, like.dtype))


def _ones(like: Tensor) -> Tensor:
    return wrap(XP[type(like._array)].ones_of(like.shape, like.dtype))


def _result(found: _Tensors, single: bool, create_graph: bool) -> Any:
    result = found if create_graph else tuple(x.detach() for x in found)
    return result[0] if single else result
