"""Derivatives of functions in forward mode, in the words of `torch.func` and JAX.

A function runs once, and tangents follow it through its graph (`autograd.forward`). Everything here
works inside a captured step. Results can be differentiated again, by `backward` or by these
functions themselves; under `no_grad` they are constants, as any result is.

What an output does not depend on has the derivative 0, and so has what a function computes under
`no_grad` or from detached Tensors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .autograd import differentiate
from .autograd.forward import full, push, push_twice, tell, without
from .autograd.grad_mode import enable_grad, set_grad_enabled
from .autograd.graph import edge_of, next_seq
from .backend import MODES
from .capture.arguments_and_results import replaced
from .common.spelling import did_you_mean
from .creation import eye, zeros
from .errors import need
from .nn.module import Module, places_of
from .ops.pointwise.elementwise import zeros_like
from .ops.shape.rearranging import diagonal, movedim
from .ops.shape.shapes import normal_dims
from .tensor import TENSORS, Tensor, kind_of

_Func = Callable[..., Any]


def jvp(func: _Func, primals: Any, tangents: Any, *, has_aux: bool = False) -> tuple[Any, ...]:
    """The product of the Jacobian of `func` and a vector: one forward pass.

    Args:
        func: takes `primals`; returns a Tensor, or Tensors in tuples, lists and dicts.
        primals: the tuple of arguments: Tensors of float dtypes and any shapes, or tuples, lists
            and dicts of them.
        tangents: the vector, in the structure, shapes and dtypes of `primals`.
        has_aux: `func` returns a tuple `(output, aux)`, and `aux` is handed on as it is.

    Returns:
        `(output, product)`, the product in the structure and shapes of the output; with `has_aux`
        `(output, product, aux)`.

    Raises:
        TypeError: `primals` or `tangents` is not a tuple; something in them or in the output is
            not a Tensor; an input is not of a float dtype.
        ValueError: the tangents do not fit the primals.
        RuntimeError: an operation cannot be differentiated twice and has no rule of its own; inside
            `inference_mode`.

    Example:
        >>> x = mt.tensor([1.0, 2.0])
        >>> mt.func.jvp(lambda x: (x * x).sum(), (x,), (mt.ones(2),))
        (tensor(5.), tensor(6.))
    """
    return _jvp("jvp", func, primals, tangents, has_aux)


@differentiate.setting_messages_aside
def hvp(func: _Func, x: Any, v: Any) -> Any:
    """The product of the Hessian of a scalar `func` and a vector: forward over reverse.

    Args:
        func: takes `x`, returns a Tensor with one element; differentiable twice.
        x: a Tensor of a float dtype and any shape, or Tensors in tuples, lists and dicts.
        v: the vector, in the structure, shapes and dtypes of `x`.

    Returns:
        The product, in the structure and shapes of `x`.

    Raises:
        RuntimeError: `func` returns several elements; else as `jvp`.
        TypeError, ValueError: as `jvp`.

    Example:
        >>> x = mt.tensor([1.0, 2.0])
        >>> mt.func.hvp(lambda x: (x**3).sum(), x, mt.ones(2))
        tensor([ 6., 12.])
    """

    def gradient(x: Any) -> Any:
        y, inputs = func(x), _flat(x)
        need(type(y) in TENSORS, "hvp", "func has to return a Tensor", type(y), error=TypeError)
        need(y.numel() == 1, "hvp", "func has to return one element", y)
        if not y.requires_grad:
            return replaced(x, zeros_like)
        gradients = differentiate.grad(y, inputs, create_graph=True, materialize_grads=True)
        found = iter(gradients)
        return replaced(x, lambda _: next(found))

    return _jvp("hvp", gradient, (x,), (v,), False)[1]


def jacfwd(func: _Func, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> _Func:
    """A function that computes the Jacobian of `func`: all columns in one forward pass.

    For functions with fewer inputs than outputs; for many inputs and few outputs
    `autograd.functional.jacobian` goes backwards, row by row.

    Args:
        func: as of `jvp`.
        argnums: which arguments to differentiate by, Tensors; the others may be anything.
        has_aux: as of `jvp`.

    Returns:
        A function of the arguments of `func` that returns a Tensor of shape
        `output.shape + x.shape` in the place of every output; for a tuple of `argnums` a tuple of
        these. With `has_aux` it returns `(jacobian, aux)`.

    Raises:
        IndexError: there is no such argument. Else, when called, as `jvp`.

    Example:
        >>> x = mt.tensor([1.0, 2.0])
        >>> mt.func.jacfwd(lambda x: x * x)(x)
        tensor([[2., 0.],
                [0., 4.]])
    """
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)

    @functools.wraps(func)
    def jacobian(*args: Any) -> Any:
        fits = all(-len(args) <= number < len(args) for number in numbers)
        need(fits, "jacfwd", f"argnums {argnums} of {len(args)} arguments", error=IndexError)

        def of_chosen(*chosen: Any) -> Any:
            given = [*args]
            for number, x in zip(numbers, chosen, strict=True):
                given[number] = x
            return func(*given)

        run = _Run("jacfwd", of_chosen, tuple(args[number] for number in numbers), has_aux)
        ends = [0, *itertools.accumulate(x.numel() for x in run.inputs)]
        parts = [*zip(run.inputs, ends, ends[1:], strict=False)]
        columns = [
            eye(ends[-1], dtype=x.dtype, device=x.device)[:, a:b].reshape(ends[-1], *x.shape)
            for x, a, b in parts
        ]
        found = run.first(columns, (ends[-1],))
        blocks = (
            [
                movedim(t[a:b], 0, -1).reshape(*y.shape, *x.shape)
                for y, t in zip(run.outputs, found, strict=True)
            ]
            for x, a, b in parts
        )
        by_input = run.results(*blocks)
        by_output = zip(*map(_flat, by_input), strict=True)
        many = replaced(by_input[0], lambda _: next(by_output))
        result = many if type(argnums) is tuple else by_input[0]
        return (result, *run.aux) if has_aux else result

    return jacobian


def laplacian(
    func: _Func, x: Tensor, *, dims: int | Sequence[int] | None = None, with_grad: bool = False
) -> Any:
    """The Laplacian of `func` at every point of `x`: the sum of the second derivatives.

    One forward pass for all points, with the d first derivatives and a single second one, which is
    the sum already (collapsed Taylor mode; Dangel et al., 2025).

    Args:
        func: takes points of shape (..., d), returns a Tensor of shape (...), or (..., m) for m
            functions; each row from its own point, as networks do. Differentiable three times, but
            for the operations that come in the usual networks.
        x: the points, of a float dtype.
        dims: the coordinates to sum over; None for all.
        with_grad: also return values and first derivatives, which are computed on the way.

    Returns:
        The Laplacian, in the shape of the result of `func`. With `with_grad` a tuple
        `(value, gradient, laplacian)`; the gradient, by all coordinates, has one dimension more,
        the last, of size d.

    Raises:
        IndexError, RuntimeError: a coordinate does not exist, or is named twice.
        RuntimeError: the result has not a row for each point; else as `jvp`.
        TypeError: as `jvp`.

    Example:
        The Laplacian of x^2 y is 2 y.

        >>> points = mt.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> mt.func.laplacian(lambda p: p[:, 0] ** 2 * p[:, 1], points)
        tensor([4., 8.])
    """
    run, y = _points("laplacian", func, x)
    size = x.shape[-1]
    chosen = [*(normal_dims(dims, x.ndim and size) or range(size))]
    unit = eye(size, dtype=x.dtype, device=x.device)
    mask = unit[chosen].sum(0) if with_grad and len(chosen) < size else None
    if not with_grad and dims is not None:
        unit, chosen = unit[chosen], [*range(len(chosen))]
    first, second = run.second(_everywhere(unit, x), chosen, mask)
    if not with_grad:
        return run.results(second)[0]
    return run.results([y], [movedim(first[0], 0, -1)], second)


def divergence(func: _Func, x: Tensor) -> Tensor:
    """The divergence of a vector field at every point of `x`: the trace of its Jacobian.

    Args:
        func: takes points of shape (..., d), returns vectors of that shape, each of its own point.
        x: the points, of a float dtype.

    Returns:
        A Tensor of shape (...).

    Raises:
        RuntimeError: the result has another shape; else as `jvp`.
        TypeError: as `jvp`.

    Example:
        >>> points = mt.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> mt.func.divergence(lambda p: p * p, points)
        tensor([ 6., 14.])
    """
    run, y = _points("divergence", func, x)
    need(y.shape == x.shape, "divergence", "expected vectors in the shape of the points {}", x, y)
    size = x.shape[-1]
    (t,) = run.first([_everywhere(eye(size, dtype=x.dtype, device=x.device), x)], (size,))
    return run.results([diagonal(t, 0, 0, -1).sum(-1)])[0]


class _Run:
    """A function that has run once, on inputs of its own.

    Attributes:
        inputs, outputs: the Tensors in its arguments and in what it returned.
        aux: what else it returned, in a tuple.
    """

    def __init__(self, name: str, func: _Func, arguments: tuple[Any, ...], has_aux: bool) -> None:
        text = "inside inference_mode nothing is recorded; call it outside of it"
        need(not MODES.inference, name, text)
        self._name, self._record, self._since = name, bool(MODES.grad), next_seq()
        self.inputs: list[Tensor] = []
        with enable_grad():
            given = replaced(arguments, self._fresh)
            self._returned = func(*given)
        self.aux: tuple[Any, ...] = ()
        if has_aux:
            two = type(self._returned) is tuple and len(self._returned) == 2
            need(two, name, "with has_aux=True func has to return (output, aux)", error=TypeError)
            self._returned, *rest = self._returned
            self.aux = tuple(rest)
        self.outputs: list[Tensor] = _flat(self._returned)
        for y in self.outputs:
            text = f"func has to return Tensors, got {kind_of(y)}"
            need(type(y) in TENSORS, name, text, error=TypeError)
        self._edges = [edge_of(y) for y in self.outputs]

    def _fresh(self, x: Any) -> Tensor:
        """Another Tensor over the same memory: what `func` captures itself stays a constant."""
        text = "expected inputs that are Tensors of a float dtype"
        need(type(x) in TENSORS, self._name, f"{text}, got {kind_of(x)}", error=TypeError)
        need(x.dtype.kind == "f", self._name, text, x.dtype, error=TypeError)
        keep = self._record and x.requires_grad
        self.inputs.append(x.view(x.shape) if keep else x.detach().requires_grad_())
        return self.inputs[-1]

    def first(self, tangents: Sequence[Tensor], lead: tuple[int, ...]) -> list[Tensor]:
        """The tangents of the outputs from those of the inputs, in `lead` directions."""
        known = dict(zip(map(edge_of, self.inputs), tangents, strict=True))
        with set_grad_enabled(self._record):
            found = push(self._edges, known, self._since, lead)
            return self._filled(found, lead)

    def second(
        self, tangent: Tensor, chosen: list[int], mask: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Derivatives in all directions of `tangent`, and the sum of second ones: `push_twice`."""
        known = {edge_of(self.inputs[0]): tangent}
        first, second = push_twice(self._edges, known, self._since, chosen, mask)
        return self._filled(first, (len(tangent),)), self._filled(second, ())

    def _filled(self, found: list[Any], lead: tuple[int, ...]) -> list[Tensor]:
        shapes = [(*lead, *y.shape) for y in self.outputs]
        return [
            zeros(shape, dtype=y.dtype, device=y.device) if t is None else full(t, shape)
            for y, t, shape in zip(self.outputs, found, shapes, strict=True)
        ]

    def results(self, *rows: Sequence[Tensor]) -> tuple[Any, ...]:
        """Tensors for all outputs, row by row, in the structure of what the function returned."""
        flat = [t for row in rows for t in row]
        if self._record:
            tell(self._edges, self._since, flat)
            flat = without([x for x in self.inputs if x.is_leaf], flat, self._since)
        else:
            flat = [t.detach() for t in flat]
        each = iter(flat)
        return tuple(replaced(self._returned, lambda _: next(each)) for _ in rows)


def _jvp(name: str, func: _Func, primals: Any, tangents: Any, has_aux: bool) -> tuple[Any, ...]:
    for word, value in (("primals", primals), ("tangents", tangents)):
        text = f"{word} must be a tuple, one for each argument"
        need(type(value) is tuple, name, text, type(value), error=TypeError)
    run = _Run(name, func, primals, has_aux)
    form, other = (replaced(each, lambda _: None) for each in (primals, tangents))
    need(form == other, name, "the vector must have the structure of the inputs", error=ValueError)
    given = _flat(tangents)
    for x, t in zip(run.inputs, given, strict=True):
        text = f"expected Tensors in the vector, got {kind_of(t)}"
        need(type(t) in TENSORS, name, text, error=TypeError)
        text = "expected a vector of shape {} and dtype {}, got shape {} and dtype {}"
        fits = t.shape == x.shape and t.dtype == x.dtype
        need(fits, name, text, x.shape, x.dtype, t.shape, t.dtype, error=ValueError)
    return (*run.results(run.outputs, run.first(given, ())), *run.aux)


def _points(name: str, func: _Func, x: Any) -> tuple[_Run, Tensor]:
    """`func` at the points `x`, and what it returned."""
    run = _Run(name, func, (x,), False)
    need(x.ndim, name, "expected points of shape (..., d)", x)
    alone = type(run._returned) in TENSORS
    need(alone, name, "func has to return one Tensor", type(run._returned), error=TypeError)
    (y,), rows = run.outputs, x.shape[:-1]
    text = "expected a result of func for each point of {}, got {}"
    need(y.shape[: len(rows)] == rows, name, text, x, y)
    return run, y


def _everywhere(directions: Tensor, x: Tensor) -> Tensor:
    """These directions (k, d), the same at every point of `x`."""
    return directions.reshape(-1, *(1,) * (x.ndim - 1), x.shape[-1])


def _flat(value: Any) -> list[Any]:
    """What is in the tuples, lists and dicts of `value`."""
    found: list[Any] = []
    replaced(value, found.append)
    return found


def functional_call(
    module: Module, parameters_and_buffers: Mapping[str, Tensor], args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """What `module` returns with these Tensors in place of its parameters and buffers.

    Gradients reach the Tensors that are given. A forward that writes a buffer writes into the one
    that is given; the module's own are as before. Those that are not named stay.

    Args:
        module: any module; its own parameters are there again afterwards, also after an error.
        parameters_and_buffers: by the names of `module.state_dict()`; of several names of one
            Tensor each stands for all.
        args: the argument, or a tuple of them.
        kwargs: arguments by name.

    Raises:
        TypeError: not a module, or what is given is not a Tensor.
        KeyError: the module has nothing of a name.

    Example:
        >>> model = mt.nn.Linear(2, 1)
        >>> weights = {name: mt.zeros_like(p) for name, p in model.named_parameters()}
        >>> mt.func.functional_call(model, weights, mt.ones(3, 2)).shape
        (3, 1)
    """
    is_module, text = isinstance(module, Module), "expected a module"
    need(is_module, "functional_call", text, type(module), error=TypeError)
    places = {place.name: place for place in places_of(module, "")}
    found: dict[int, Tensor] = {}
    for name, tensor in parameters_and_buffers.items():
        if name not in places:
            raise KeyError(f"functional_call: no {name!r} here{did_you_mean(name, places)}")
        fits = type(tensor) in TENSORS
        need(
            fits, "functional_call", f"expected a Tensor as {name!r}", type(tensor), error=TypeError
        )
        found[id(places[name].tensor)] = tensor
    changed = [place for place in places.values() if id(place.tensor) in found]
    try:
        for place in changed:
            vars(place.owner)[place.attribute] = found[id(place.tensor)]
        return module(*(args if isinstance(args, tuple) else (args,)), **(kwargs or {}))
    finally:
        for place in changed:
            vars(place.owner)[place.attribute] = place.tensor
