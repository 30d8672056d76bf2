"""The same optimizer step in microtrain and in each of its peers, as a user would write it there.

A ReLU network, the mean squared error, SGD with momentum 0.9; float32. Every builder is given the
same data and the same first weights and returns a `Run`; `check` raises where one computes
something else than another. A peer that cannot be built raises; the caller names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

RATE, MOMENTUM = 0.01, 0.9
AGREE = 10  # steps after which all must have done the same


class Net(NamedTuple):
    """A network and its batch: `widths` from the inputs to the outputs."""

    batch: int
    widths: list[int]


class Run(NamedTuple):
    """One side: `step()` returns the loss, `weights()` kernels (in, out) and biases in order."""

    step: Callable[[], Any]
    weights: Callable[[], list[np.ndarray]]


def arrays(net: Net) -> tuple[np.ndarray, np.ndarray]:
    """A batch and its targets."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((net.batch, net.widths[0]), np.float32)
    return x, rng.standard_normal((net.batch, net.widths[-1]), np.float32)


def initial(net: Net) -> list[np.ndarray]:
    """The first kernels (in, out) and biases."""
    rng = np.random.default_rng(1)
    return [
        rng.uniform(-1, 1, shape).astype(np.float32) / np.float32(math.sqrt(m))
        for m, n in pairwise(net.widths)
        for shape in ((m, n), (n,))
    ]


# microtrain and torch -----------------------------------------------------------------------------


def training_step(
    library: Any,
    net: Net,
    wrap: Callable[[Any], Any] = lambda step: step,
    forward: Callable[[Any], Any] = lambda loss_of: loss_of,
    start: Sequence[np.ndarray] = (),
) -> Run:
    """microtrain and torch have the same names for all of it.

    Args:
        wrap: what is done with the whole step (`mt.compile`).
        forward: what is done with the function from batch and targets to the loss
            (`torch.compile`, which does not take backward and the optimizer's step along).
        start: the first weights; the library's own where there are none.
    """
    layers: list[Any] = []
    for inputs, outputs in pairwise(net.widths):
        layers += [library.nn.Linear(inputs, outputs), library.nn.ReLU()]
    model = library.nn.Sequential(*layers[:-1])
    params = list(model.parameters())
    with library.no_grad():
        for param, array in zip(params, start, strict=False):
            param.copy_(library.from_numpy(np.ascontiguousarray(array.T)))
    optimizer = library.optim.SGD(params, lr=RATE, momentum=MOMENTUM)
    x, y = map(library.from_numpy, arrays(net))
    mse_loss = library.nn.functional.mse_loss
    loss_of = forward(lambda x, y: mse_loss(model(x), y))

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    return Run(lambda: run(x, y), lambda: [p.detach().numpy().T.copy() for p in params])


def torch_eager(net: Net) -> Run:
    import torch

    torch.set_num_threads(1)
    return training_step(torch, net, start=initial(net))


def torch_compile(net: Net) -> Run:
    import torch

    torch.set_num_threads(1)
    torch._dynamo.reset()  # or the shapes of the last network make it compile dynamic ones
    return training_step(torch, net, forward=torch.compile, start=initial(net))


# Functions of weights: jax, HIPS autograd ---------------------------------------------------------


def _loss_of(xp: Any) -> Callable[..., Any]:
    def loss(weights: list[Any], x: Any, y: Any) -> Any:
        for number in range(0, len(weights), 2):
            x = xp.dot(x, weights[number]) + weights[number + 1]
            if number + 2 < len(weights):
                x = xp.maximum(x, 0)
        return xp.mean((x - y) ** 2)

    return loss


def jax_jit(net: Net) -> Run:
    """The whole step is one compiled function, which may reuse the memory of what it replaces."""
    import jax

    gradient = jax.value_and_grad(_loss_of(jax.numpy))

    def update(weights: Any, velocity: Any, x: Any, y: Any) -> Any:
        loss, found = gradient(weights, x, y)
        velocity = [MOMENTUM * v + g for v, g in zip(velocity, found, strict=True)]
        return [w - RATE * v for w, v in zip(weights, velocity, strict=True)], velocity, loss

    compiled = jax.jit(update, donate_argnums=(0, 1))
    x, y = map(jax.numpy.asarray, arrays(net))
    weights = [jax.numpy.array(w) for w in initial(net)]
    velocity = [jax.numpy.zeros_like(w) for w in weights]

    def step() -> Any:
        nonlocal weights, velocity
        weights, velocity, loss = compiled(weights, velocity, x, y)
        return loss.block_until_ready()

    return Run(step, lambda: [np.array(w) for w in weights])


def hips_autograd(net: Net) -> Run:
    import autograd
    import autograd.numpy

    gradient = autograd.value_and_grad(_loss_of(autograd.numpy))
    weights, (x, y) = initial(net), arrays(net)
    velocity = [np.zeros_like(w) for w in weights]

    def step() -> Any:
        loss, found = gradient(weights, x, y)
        for w, v, g in zip(weights, velocity, found, strict=True):
            v *= MOMENTUM
            v += g
            w -= RATE * v
        return loss

    return Run(step, lambda: [w.copy() for w in weights])


# By hand ------------------------------------------------------------------------------------------


def numpy_by_hand(net: Net) -> Run:
    """Every array is there before the first step; nothing is allocated in one."""
    weights, (x, y) = initial(net), arrays(net)
    kernels, biases = weights[::2], weights[1::2]
    grads, velocity, scratch = ([np.zeros_like(w) for w in weights] for _ in range(3))
    results = [np.empty((net.batch, n), np.float32) for n in net.widths[1:]]
    deltas = [np.empty_like(r) for r in results]
    masks = [np.empty(r.shape, bool) for r in results]
    ones = np.ones(net.batch, np.float32)
    rate, momentum = np.float32(RATE), np.float32(MOMENTUM)
    scale = np.float32(2 / y.size)
    last = len(kernels) - 1

    def step() -> Any:
        given = x
        for i, out in enumerate(results):
            np.dot(given, kernels[i], out=out)
            np.add(out, biases[i], out=out)
            if i < last:
                np.maximum(out, 0, out=out)
            given = out
        g = deltas[last]
        np.subtract(given, y, out=g)
        flat = g.reshape(-1)
        loss = np.dot(flat, flat) / y.size
        np.multiply(g, scale, out=g)
        for i in range(last, -1, -1):
            np.dot((results[i - 1] if i else x).T, g, out=grads[2 * i])
            np.dot(ones, g, out=grads[2 * i + 1])
            if i:
                np.dot(g, kernels[i].T, out=deltas[i - 1])
                np.greater(results[i - 1], 0, out=masks[i - 1])
                g = deltas[i - 1]
                np.multiply(g, masks[i - 1], out=g)
        for w, v, d, work in zip(weights, velocity, grads, scratch, strict=True):
            np.multiply(v, momentum, out=v)
            np.add(v, d, out=v)
            np.multiply(v, rate, out=work)
            np.subtract(w, work, out=w)
        return loss

    return Run(step, lambda: [w.copy() for w in weights])


def numba_by_hand(net: Net) -> Run:
    """The whole step is one native function over flat memory: loops, and BLAS for what is large."""
    step_of = _native_step()
    (x, y), start = arrays(net), initial(net)
    params = np.concatenate([w.reshape(-1) for w in start])
    velocity, grads = np.zeros_like(params), np.zeros_like(params)
    hidden, deltas = np.zeros((2, net.batch * sum(net.widths[1:])), np.float32)
    widths = tuple(net.widths)

    def step() -> Any:
        return step_of(x, y, params, velocity, grads, hidden, deltas, widths)

    def weights() -> list[np.ndarray]:
        ends = np.cumsum([w.size for w in start])[:-1]
        parts = zip(np.split(params, ends), start, strict=True)
        return [part.reshape(w.shape).copy() for part, w in parts]

    return Run(step, weights)


def _native_step() -> Any:
    from numba import njit

    rate, momentum = np.float32(RATE), np.float32(MOMENTUM)
    zero = np.float32(0)

    @njit(fastmath=True)
    def product(a: Any, b: Any, out: Any) -> None:  # a @ b
        (m, k), n = a.shape, b.shape[1]
        if m * k * n > 8192:
            np.dot(a, b, out)
            return
        for i in range(m):
            for j in range(n):
                out[i, j] = 0
            for p in range(k):
                for j in range(n):
                    out[i, j] += a[i, p] * b[p, j]

    @njit(fastmath=True)
    def first_transposed(a: Any, b: Any, out: Any) -> None:  # a.T @ b
        (k, m), n = a.shape, b.shape[1]
        if m * k * n > 8192:
            np.dot(a.T, b, out)
            return
        out[:] = 0
        for p in range(k):
            for i in range(m):
                for j in range(n):
                    out[i, j] += a[p, i] * b[p, j]

    @njit(fastmath=True)
    def second_transposed(a: Any, b: Any, out: Any) -> None:  # a @ b.T
        (m, k), n = a.shape, b.shape[0]
        if m * k * n > 8192:
            np.dot(a, b.T, out)
            return
        for i in range(m):
            for j in range(n):
                total = zero
                for p in range(k):
                    total += a[i, p] * b[j, p]
                out[i, j] = total

    @njit(fastmath=True)
    def step(
        x: Any, y: Any, params: Any, velocity: Any, grads: Any, hidden: Any, deltas: Any,
        widths: Any,
    ) -> Any:  # fmt: skip
        batch, layers = x.shape[0], len(widths) - 1
        given, start, at = x, 0, 0
        for i in range(layers):
            m, n = widths[i], widths[i + 1]
            out = hidden[at : at + batch * n].reshape((batch, n))
            product(given, params[start : start + m * n].reshape((m, n)), out)
            bias = params[start + m * n : start + m * n + n]
            for r in range(batch):
                for j in range(n):
                    value = out[r, j] + bias[j]
                    out[r, j] = max(value, zero) if i < layers - 1 else value
            given, start, at = out, start + m * n + n, at + batch * n
        n = widths[layers]
        g = deltas[at - batch * n : at].reshape((batch, n))
        loss, scale = zero, np.float32(2) / np.float32(y.size)
        for r in range(batch):
            for j in range(n):
                difference = given[r, j] - y[r, j]
                loss += difference * difference
                g[r, j] = scale * difference
        for i in range(layers - 1, -1, -1):
            m, n = widths[i], widths[i + 1]
            start -= m * n + n
            at -= batch * n
            given = hidden[at - batch * m : at].reshape((batch, m)) if i else x
            first_transposed(given, g, grads[start : start + m * n].reshape((m, n)))
            bias = grads[start + m * n : start + m * n + n]
            bias[:] = 0
            for r in range(batch):
                for j in range(n):
                    bias[j] += g[r, j]
            if i:
                below = deltas[at - batch * m : at].reshape((batch, m))
                second_transposed(g, params[start : start + m * n].reshape((m, n)), below)
                for r in range(batch):
                    for j in range(m):
                        if given[r, j] <= zero:
                            below[r, j] = zero
                g = below
        for i in range(params.size):
            velocity[i] = momentum * velocity[i] + grads[i]
            params[i] -= rate * velocity[i]
        return loss / np.float32(y.size)

    return step


# name -> (builder, how to install it)
PEERS: dict[str, tuple[Callable[[Net], Run], str]] = {
    "torch": (torch_eager, "pip install torch==2.13.0"),
    "torch.compile": (torch_compile, "pip install torch==2.13.0, and a C++ compiler"),
    "jax.jit": (jax_jit, "pip install jax"),
    "autograd": (hips_autograd, "pip install autograd"),
    "NumPy by hand": (numpy_by_hand, ""),
    "numba by hand": (numba_by_hand, "pip install numba"),
}


class Way(NamedTuple):
    """What the first `AGREE` steps did: their losses, and the differences of the weights."""

    losses: list[float]
    moved: list[np.ndarray]


def first_steps(run: Run) -> Way:
    """Take them."""
    before = run.weights()
    losses = [run.step() for _ in range(AGREE)]
    moved = [now - then for now, then in zip(run.weights(), before, strict=True)]
    return Way([float(x.detach() if hasattr(x, "detach") else x) for x in losses], moved)


def check(name: str, found: Way, expected: Way) -> None:
    """Compare what `name` did with what it should have done.

    Raises:
        RuntimeError: its losses, or the ways its weights went, are others.
    """
    if not np.allclose(found.losses, expected.losses, rtol=1e-4, atol=1e-6):
        raise RuntimeError(f"{name} has the losses {found.losses}, not {expected.losses}")
    for way, wanted in zip(found.moved, expected.moved, strict=True):
        if not np.linalg.norm(way - wanted) <= 1e-3 * np.linalg.norm(wanted):
            raise RuntimeError(f"{name} moves the weights of shape {wanted.shape} elsewhere")
