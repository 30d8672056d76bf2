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
    run = _Run("vjp", func, inputs, create_graph, strict)
    found = run.gradients(run.ys, run.vector(v, run.ys, "output"), create_graph)
    found = run.filled(found, run.xs, create_graph, _BY_INPUT)
    return run.result(run.ys, run.one_output), run.result(found, run.one_input)


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
    run = _Run("jvp", func, inputs, create_graph, strict)
    found = run.tangents(run.ys, run.vector(v, run.xs, "input"), "output")
    return run.result(run.ys, run.one_output), run.result(found, run.one_output)


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
    run = _Run("vhp", func, inputs, create_graph, strict)
    found = run.gradients(run.gradient(), run.vector(v, run.xs, "input"), create_graph)
    what = "the derivative of the gradient with respect to input {}"
    found = run.filled(found, run.xs, create_graph, what)
    return run.result(run.ys, True), run.result(found, run.one_input)


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
    run = _Run("hvp", func, inputs, create_graph, strict)
    found = run.tangents(run.gradient(), run.vector(v, run.xs, "input"), "gradient")
    return run.result(run.ys, True), run.result(found, run.one_input)


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
    run = _Run("jacobian", func, inputs, create_graph, strict)
    found = []
    for number, y in enumerate(run.ys):
        what = f"the derivative of output {number} with respect to input {{}}"
        rows = [run.filled(row, run.xs, create_graph, what) for row in run.rows(y)]
        blocks = tuple(_stacked([row[j] for row in rows], y, x) for j, x in enumerate(run.xs))
        found.append(run.result(blocks, run.one_input))
    return found[0] if run.one_output else tuple(found)


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
    one_input, xs = _tensors(inputs, "hessian: inputs")

    def gradient(*xs: Tensor) -> _Tensors:
        return _Run("hessian", func, xs, True, strict).gradient()

    blocks = jacobian(gradient, xs, create_graph, strict, vectorize, outer_jacobian_strategy)
    return blocks[0][0] if one_input else blocks


class _Run:
    """A function that has run once, on other Tensors over the memory of its inputs.

    So what it captures itself stays a constant.

    Attributes:
        xs, ys: its inputs and outputs.
        one_input, one_output: whether these are Tensors by themselves, not tuples.
    """

    def __init__(
        self, name: str, func: _Func, inputs: Any, create_graph: bool, strict: bool
    ) -> None:
        text = "inside inference_mode nothing is recorded; call it outside, or in "
        need(not MODES.inference, name, text + "inference_mode(False)")
        self.name, self.create_graph, self.strict = name, create_graph, strict
        self.one_input, xs = _tensors(inputs, f"{name}: inputs")
        self.xs = _fresh(xs, create_graph, True)
        with enable_grad():
            self.one_output, self.ys = _tensors(func(*self.xs), f"{name}: outputs of func")
        what = "the derivative of output {} with respect to the inputs"
        self.filled([y if y.requires_grad else None for y in self.ys], self.ys, False, what)

    def gradient(self) -> _Tensors:
        """The recorded gradient of the one number that the function returned."""
        one, text = self.one_output, "func has to return one Tensor with one element"
        need(one, self.name, f"{text}, got a tuple of {len(self.ys)}")
        need(self.ys[0].numel() == 1, self.name, text, self.ys[0])
        return self.filled(self.gradients(self.ys, (None,), True), self.xs, True, _BY_INPUT)

    def vector(self, v: Any, like: _Tensors, what: str) -> tuple[Any, ...]:
        """`v` as a tuple that fits `like`; (None,) for the 1 that may be left out."""
        if v is None:
            one = len(like) == 1 and like[0].numel() == 1
            need(one, self.name, f"v may be None only for one {what} with one element")
            return (None,)
        vs = _tensors(v, f"{self.name}: v")[1]
        have, expected = [x.shape for x in vs], [x.shape for x in like]
        text = f"v has to match the {what}s: expected shapes {{}}, got {{}}"
        need(have == expected, self.name, text, expected, have)
        return _fresh(vs, self.create_graph, False)

    def gradients(
        self, ys: _Tensors, seeds: tuple[Any, ...], create_graph: bool, retain: bool | None = None
    ) -> tuple[Any, ...]:
        """Those of the inputs, from `ys` that require grad; None where nothing depends."""
        pairs = [(y, seed) for y, seed in zip(ys, seeds, strict=True) if y.requires_grad]
        if not pairs:
            return (None,) * len(self.xs)
        ys, vs = zip(*pairs, strict=True)
        return grad(ys, self.xs, vs, retain, create_graph, allow_unused=True)

    def rows(self, y: Tensor) -> list[tuple[Any, ...]]:
        """The gradients of each element of `y`, in the order of its elements."""
        found = []
        for number in range(y.numel()):
            seed = XP[type(y._array)].zeros((y.numel(),), y.dtype)
            seed[number] = 1
            seeds = (wrap(seed.reshape(y.shape)),)
            found.append(self.gradients((y,), seeds, self.create_graph, True))
        return found

    def tangents(self, ys: _Tensors, vs: tuple[Any, ...], noun: str) -> _Tensors:
        """The product of the Jacobian of `ys` and `vs`, in one forward pass."""
        xs, edges, since = self.xs, [edge_of(y) for y in ys], next_seq()
        reached = {*walk(edges)} if self.strict else {edge_of(x) for x in xs}
        what = f"the derivative of the {noun} with respect to input {{}}"
        self.filled([x if edge_of(x) in reached else None for x in xs], xs, False, what)
        known = {edge_of(x): _ones(x) if v is None else v for x, v in zip(xs, vs, strict=True)}
        with set_grad_enabled(self.create_graph):
            found = push(edges, known, 0)
            found = [t if t is None else full(t, y.shape) for t, y in zip(found, ys, strict=True)]
        if self.create_graph:
            tell(edges, since, [t for t in found if t is not None])
        what = f"the derivative of {noun} {{}} with respect to the inputs"
        return self.filled(found, ys, self.create_graph, what)

    def filled(
        self, grads: Sequence[Any], like: _Tensors, create_graph: bool, what: str
    ) -> _Tensors:
        """Zeros for None; in strict mode an error, under `create_graph` for a constant as well."""
        for number, g in enumerate(grads if self.strict else ()):
            if g is None or (create_graph and not g.requires_grad):
                kind = "zero: nothing connects them" if g is None else "a constant: it has no graph"
                text = "strict=True does not allow that, strict=False does"
                raise RuntimeError(f"{what.format(number)} is {kind}; {text}")
        return tuple(_zeros(x) if g is None else g for g, x in zip(grads, like, strict=True))

    def result(self, found: _Tensors, alone: bool) -> Any:
        """What the user gets."""
        result = found if self.create_graph else tuple(x.detach() for x in found)
        return result[0] if alone else result


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
    """Other Tensors over the same memory."""
    with enable_grad():
        return tuple(
            x.view(x.shape)
            if create_graph and x.requires_grad
            else x.detach().requires_grad_(requires_grad)
            for x in tensors
        )


def _zeros(like: Tensor) -> Tensor:
    return wrap(XP[type(like._array)].zeros(like.shape, like.dtype))


def _ones(like: Tensor) -> Tensor:
    return wrap(XP[type(like._array)].ones_of(like.shape, like.dtype))
