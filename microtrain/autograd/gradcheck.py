"""`gradcheck` and `gradgradcheck`: is a gradient right? The answer of central finite differences.

Each entry of an input is moved by `eps` in place and put back to the last bit, as in PyTorch: the
function may reach its inputs through a closure as well, as a module reaches its parameters.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..backend import XP, to_host
from ..errors import need
from ..tensor import TENSORS, Tensor, wrap
from .differentiate import as_tuple, grad
from .grad_mode import enable_grad

_Func = Callable[..., Any]
_Tensors = tuple[Tensor, ...]


class GradcheckError(RuntimeError):
    """A gradient that finite differences do not confirm."""


def gradcheck(
    func: _Func,
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    entries: int | None = None,
) -> bool:
    """Whether autograd and central differences agree on the Jacobian of `func` at `inputs`.

    Args:
        func: takes `inputs`, returns a Tensor or a tuple of Tensors of any shape. Outputs that do
            not require grad are left out; where none does, all have to be constant.
        inputs: a Tensor, or a tuple of Tensors and anything else that `func` takes. Checked are the
            Tensors that require grad; float64, or a UserWarning names the input.
        eps: how far an entry is moved to either side.
        atol: agreement is |analytical - numerical| <= atol + rtol * |numerical|.
        rtol: see `atol`.
        raise_exception: False returns False instead of raising GradcheckError.
        entries: of an input with more than so many, only so many are moved, always the same.

    Raises:
        GradcheckError: the Jacobians differ (names output, input and the first such entry), a
            backward ignores the gradient it is given, `eps` is lost in the precision of an entry.
        RuntimeError: entries of an input share memory.
        TypeError: `func` returns something that is not a Tensor.
        ValueError: no input requires grad.

    Example:
        >>> x = mt.randn(3, 2, dtype=mt.float64, requires_grad=True)
        >>> mt.autograd.gradcheck(lambda x: (x * x).exp(), x)
        True
    """
    given = as_tuple(inputs)
    with _told(raise_exception):
        _check(func, given, _names(given), "output {}".format, (eps, atol, rtol), entries, False)
        return True
    return False


def _told(raise_exception: bool) -> contextlib.suppress:
    return contextlib.suppress(*() if raise_exception else (GradcheckError,))


def _names(given: tuple[Any, ...], what: str = "input") -> list[str]:
    return [f"{what} {number}" for number in range(len(given))]


def gradgradcheck(
    func: _Func,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Whether autograd and central differences agree on the second derivatives of `func`.

    Checks the gradients of the inputs as functions of the inputs and of `grad_outputs`. A gradient
    that autograd takes for a constant, because a backward left the graph, has to be one.

    Args:
        func: as `gradcheck`.
        inputs: as `gradcheck`.
        grad_outputs: the gradient of each output that requires grad, in its shape and dtype, itself
            requiring grad if it is to be checked; default fixed numbers from [-1, 1).
        eps: as `gradcheck`.
        atol: as `gradcheck`.
        rtol: as `gradcheck`.
        raise_exception: as `gradcheck`.

    Raises:
        GradcheckError: as `gradcheck`; no output of `func` requires grad.
        RuntimeError: as `gradcheck`; a backward on the way is marked `once_differentiable`.
        TypeError: as `gradcheck`.
        ValueError: as `gradcheck`.

    Example:
        >>> x = mt.randn(3, dtype=mt.float64, requires_grad=True)
        >>> mt.autograd.gradgradcheck(lambda x: x**3, x)
        True
    """
    given = as_tuple(inputs)
    wanted, names = _wanted(given), _names(given)

    def gradients(*args: Any) -> tuple[Any, ...]:
        outputs, seeds = _differentiable(_outputs(func, args[: len(given)])), args[len(given) :]
        inputs = tuple(wanted.values())
        return grad(outputs, inputs, seeds, create_graph=True, materialize_grads=True)

    with _told(raise_exception):
        with enable_grad():
            outputs = _differentiable(_outputs(func, given))
        text = "no output of func requires grad; it has no gradient to check"
        need(outputs, "gradgradcheck", text, error=GradcheckError)
        seeds = _random_like(outputs) if grad_outputs is None else as_tuple(grad_outputs)
        of = [f"gradient of {names[number]}" for number in wanted].__getitem__
        labels = [*names, *_names(seeds, "grad_output")]
        _check(gradients, (*given, *seeds), labels, of, (eps, atol, rtol), None, True)
        return True
    return False


def _check(
    func: _Func, inputs: Any, names: list[str], label: Any, limits: Any, entries: Any, every: bool
) -> None:
    """Compare the two Jacobians of each pair of an output and an input that requires grad."""
    wanted, (eps, atol, rtol) = _wanted(inputs), limits
    for number, x in wanted.items():
        if x.dtype != np.float64:
            text = f"gradcheck: {names[number]} requires grad and is {x.dtype.name}"
            text += "; the check will likely fail, finite differences need float64"
            warnings.warn(text, UserWarning, stacklevel=3)
        shared = x.numel() > 1 and 0 in x._array.strides
        text = f"entries of {names[number]} share memory: none can be moved alone; pass its clone()"
        need(not shared, "gradcheck", text)
    tensors = tuple(wanted.values())
    with enable_grad():
        outputs = _outputs(func, inputs)
        every = every or not _differentiable(outputs)
        analytical = [_analytical(out, tensors) for out in outputs]
        moved = {number: _chosen(x.numel(), entries) for number, x in wanted.items()}
        run = partial(_outputs, func, inputs)
        numerical = [
            _numerical(run, x, moved[number], names[number], outputs, eps)
            for number, x in wanted.items()
        ]
        for n, out in enumerate(outputs):
            if not (every or out.requires_grad):
                continue
            for i, (number, x) in enumerate(wanted.items()):
                a, b = analytical[n][i][:, moved[number]], numerical[i][n]
                places = np.argwhere(~np.isclose(a, b, rtol=rtol, atol=atol))
                if len(places):
                    row, column = places[0]
                    raise GradcheckError(
                        f"Jacobian mismatch for {label(n)} with respect to {names[number]}, "
                        f"{len(places)} of {a.size} entries; the first at entry "
                        f"{_entry(row, out)} of the output, "
                        f"{_entry(moved[number][column], x)} of the input: "
                        f"numerical {b[row, column]:.9g}, analytical {a[row, column]:.9g} "
                        f"(eps={eps:g}, atol={atol:g}, rtol={rtol:g})"
                    )
            _check_zero(out, tensors, label(n), [names[number] for number in wanted])


def _chosen(count: int, entries: int | None) -> Any:
    """The numbers of the entries to move, of so many."""
    if entries is None or entries >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, entries, replace=False))


def _numerical(
    run: Callable[[], _Tensors], x: Tensor, moved: Any, name: str, outputs: _Tensors, eps: float
) -> list[Any]:
    """For each output its Jacobian with respect to `x`: (entries of the output, `moved` of x)."""

    def moved_to(value: float) -> tuple[float, list[Any]]:
        x._array[index] = value
        found = [_host(out).ravel() for out in run()]
        return x._array[index].item(), found  # what the dtype of x has made of `value`

    jacobians = [np.zeros((out.numel(), len(moved))) for out in outputs]
    for column, number in enumerate(moved):
        index = _entry(number, x)
        here = x._array[index].item()
        try:
            above, high = moved_to(here + eps)
            below, low = moved_to(here - eps)
        finally:
            x._array[index] = here
        text = f"{name}, entry {index}: eps={eps:g} is lost beside {here:g} in {x.dtype.name}"
        moves = above != below
        need(moves, "gradcheck", f"{text}; use float64 or a larger eps", error=GradcheckError)
        with np.errstate(invalid="ignore"):  # of infinite outputs; the comparison will tell
            for jacobian, a, b in zip(jacobians, high, low, strict=True):
                jacobian[:, column] = (a - b) / (above - below)
    return jacobians


def _analytical(out: Tensor, inputs: _Tensors) -> list[Any]:
    """For each input the Jacobian of `out`, one backward pass for each of its rows."""
    jacobians = [np.zeros((out.numel(), x.numel())) for x in inputs]
    if out.requires_grad:
        for row, index in enumerate(np.ndindex(out.shape)):
            pulled = _pulled_back(out, inputs, index)
            if not row:
                _check_same(pulled, _pulled_back(out, inputs, index))
            for jacobian, found in zip(jacobians, pulled, strict=True):
                if found is not None:
                    jacobian[row] = _host(found).ravel()
    return jacobians


def _check_same(first: tuple[Any, ...], again: tuple[Any, ...]) -> None:
    """A backward that changes what it has saved is right once."""
    for one, two in zip(first, again, strict=True):
        same = one is None or np.array_equal(_host(one), _host(two), equal_nan=True)
        text = "is not reentrant: the same pass gave two gradients"
        need(same, "backward", text, error=GradcheckError)


def _pulled_back(out: Tensor, inputs: _Tensors, index: Any = None) -> tuple[Any, ...]:
    """The gradients for a gradient of `out` that is one at `index` and zero elsewhere."""
    seed = XP[type(out._array)].zeros(out.shape, out.dtype)
    if index is not None:
        seed[index] = 1
    return grad(out, inputs, wrap(seed), retain_graph=True, allow_unused=True)


def _check_zero(out: Tensor, inputs: _Tensors, name: str, names: list[str]) -> None:
    """A backward that forgets `* grad_output` is right for a scalar until its gradient is not 1."""
    if not out.requires_grad:
        return
    for x, input_name, found in zip(inputs, names, _pulled_back(out, inputs), strict=True):
        places = np.flatnonzero(0 if found is None else _host(found))
        if len(places):
            raise GradcheckError(
                f"backward not multiplied by grad_output: with a gradient of zero for {name}, "
                f"{input_name} gets {_host(found).flat[places[0]]:.9g} at entry "
                f"{_entry(places[0], x)}; expected 0"
            )


def _wanted(inputs: tuple[Any, ...]) -> dict[int, Tensor]:
    """The Tensors that require grad, by their number."""
    found = {n: x for n, x in enumerate(inputs) if type(x) in TENSORS and x.requires_grad}
    text = "no input requires grad: there is no gradient to check; set it on float64 Tensors"
    need(found, "gradcheck", text, error=ValueError)
    return found


def _outputs(func: _Func, inputs: tuple[Any, ...]) -> _Tensors:
    returned = func(*inputs)
    outputs = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    for number, out in enumerate(outputs):
        text = f"func returned {{}} as output {number}; expected a Tensor or a tuple of Tensors"
        need(type(out) in TENSORS, "gradcheck", text, type(out), error=TypeError)
    return outputs


def _differentiable(outputs: _Tensors) -> _Tensors:
    return tuple(out for out in outputs if out.requires_grad)


def _random_like(outputs: _Tensors) -> _Tensors:
    """Always the same numbers: a check that fails fails again."""
    generator = np.random.default_rng(0)
    return tuple(
        wrap(
            XP[type(out._array)].asarray(generator.uniform(-1, 1, out.shape), out.dtype)
        ).requires_grad_()
        for out in outputs
    )


def _host(tensor: Tensor) -> Any:
    """A float64 copy: the output may be an input, which is about to change."""
    return np.array(to_host(tensor._array), np.float64)


def _entry(number: Any, tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(number, tensor.shape))
