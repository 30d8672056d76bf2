"""Six networks as people train them, each written for microtrain and torch, and for jax.

Every builder of `PEERS` is given a `Network` and returns a `Run` that begins with the same weights
and the same batch. A peer that cannot be built raises; the caller names it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gpu import convolutional, jax_convolutional, jax_linear, jax_transformer
from peers import Run

Make = Callable[[Any], Any]


# The networks: torch's names are microtrain's, so one text makes both.


def mlp(nn: Any) -> Any:
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def resnet(nn: Any) -> Any:
    class Block(nn.Module):  # type: ignore[misc] # either library's, so no type is known
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            self.norm1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(outputs)
            self.short = nn.Sequential()
            if stride > 1:
                shorter = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                self.short = nn.Sequential(shorter, nn.BatchNorm2d(outputs))

        def forward(self, x: Any) -> Any:
            inner = self.norm1(self.conv1(x)).relu()
            return (self.norm2(self.conv2(inner)) + self.short(x)).relu()

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def transformer(nn: Any) -> Any:
    layer = functools.partial(nn.TransformerEncoderLayer, 128, 4, 512, 0.0, batch_first=True)
    return nn.Sequential(nn.Embedding(64, 128), layer(), layer(), nn.Linear(128, 64))


def autoencoder(nn: Any) -> Any:
    return nn.Sequential(
        nn.Linear(64, 32), nn.LayerNorm(32), nn.GELU(),
        nn.Linear(32, 16), nn.LayerNorm(16), nn.GELU(),
        nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(),
        nn.Linear(32, 64),
    )  # fmt: skip


def pinn(nn: Any) -> Any:
    return nn.Sequential(
        nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    )


# Losses of a model and a batch.


def cross_entropy(library: Any, model: Any, x: Any, y: Any) -> Any:
    """Of the rows, which may be tokens of sequences."""
    return library.nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


def reconstruction(library: Any, model: Any, x: Any) -> Any:
    return library.nn.functional.mse_loss(model(x), x)


def oscillation(library: Any, model: Any, t: Any) -> Any:
    """u'' + u = 0 with u(0) = 0 and u'(0) = 1."""
    t = t.detach().requires_grad_()
    u = model(t)
    (du,) = library.autograd.grad(u.sum(), t, create_graph=True)
    (ddu,) = library.autograd.grad(du.sum(), t, create_graph=True)
    return ((ddu + u) ** 2).mean() + (u[0] ** 2 + (du[0] - 1) ** 2).sum()


def oscillation_forward(library: Any, model: Any, t: Any) -> Any:
    """The same, with derivatives in one forward pass where the library has them."""
    if not hasattr(library.func, "laplacian"):
        return oscillation(library, model, t)
    u, du, ddu = library.func.laplacian(model, t, with_grad=True)
    return ((ddu + u) ** 2).mean() + (u[0] ** 2 + (du[0, :, 0] - 1) ** 2).sum()


# The same for jax: functions of the weights `w`, which have the names of the state dict. What a
# network keeps beside its weights (the means and variances of batch norm) it writes there.


def jax_mlp(jax: Any, w: Any, x: Any, activation: str = "relu") -> Any:
    for name in ("0.", "2."):
        x = getattr(jax.nn, activation)(jax_linear(w, x, name))
    return jax_linear(w, x, "4.")


def jax_resnet(jax: Any, w: Any, x: Any) -> Any:
    def convolved(x: Any, name: str, norm: str, stride: int = 1) -> Any:
        padding = [(size // 2, size // 2) for size in w[f"{name}.weight"].shape[2:]]
        dims = ("NCHW", "OIHW", "NCHW")
        x = jax.lax.conv_general_dilated(
            x, w[f"{name}.weight"], (stride, stride), padding, dimension_numbers=dims
        )
        axes, count = (0, 2, 3), x.size // x.shape[1]
        found = {"mean": x.mean(axes), "var": x.var(axes)}
        for key, new in (("mean", found["mean"]), ("var", found["var"] * count / (count - 1))):
            w[f"{norm}.running_{key}"] = 0.9 * w[f"{norm}.running_{key}"] + 0.1 * new
        w[f"{norm}.num_batches_tracked"] += 1
        scale = w[f"{norm}.weight"] / jax.numpy.sqrt(found["var"] + 1e-5)
        shift = w[f"{norm}.bias"] - found["mean"] * scale
        return x * scale[:, None, None] + shift[:, None, None]

    def block(x: Any, name: str, stride: int) -> Any:
        inner = jax.nn.relu(convolved(x, f"{name}.conv1", f"{name}.norm1", stride))
        inner = convolved(inner, f"{name}.conv2", f"{name}.norm2")
        if stride > 1:
            x = convolved(x, f"{name}.short.0", f"{name}.short.1", stride)
        return jax.nn.relu(inner + x)

    x = jax.nn.relu(convolved(x, "0", "1"))
    for name, stride in (("3", 1), ("4", 2), ("5", 2)):
        x = block(x, name, stride)
    return jax_linear(w, x.mean((2, 3)), "8.")


def jax_encoder(jax: Any, w: Any, x: Any) -> Any:
    x = w["0.weight"][x]
    for prefix in ("1.", "2."):
        layer = {key.removeprefix(prefix): w[key] for key in w if key.startswith(prefix)}
        x = jax_transformer(jax, layer, x, heads=4)
    return jax_linear(w, x, "3.")


def jax_autoencoder(jax: Any, w: Any, x: Any) -> Any:
    for i in (0, 3, 6):
        x = jax_linear(w, x, f"{i}.")
        x = (x - x.mean(-1, keepdims=True)) / jax.numpy.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = jax.nn.gelu(x * w[f"{i + 1}.weight"] + w[f"{i + 1}.bias"], approximate=False)
    return jax_linear(w, x, "9.")


def jax_cross_entropy(jax: Any, model: Make, x: Any, y: Any) -> Any:
    chances = jax.nn.log_softmax(model(x))
    return -jax.numpy.take_along_axis(chances, y[..., None], -1).mean()


def jax_reconstruction(jax: Any, model: Make, x: Any) -> Any:
    return ((model(x) - x) ** 2).mean()


def jax_oscillation(jax: Any, model: Make, t: Any) -> Any:
    def first(t: Any) -> Any:
        return jax.jvp(model, (t,), (jax.numpy.ones_like(t),))

    (u, du), (_, ddu) = jax.jvp(first, (t,), (jax.numpy.ones_like(t),))
    return ((ddu + u) ** 2).mean() + (u[0] ** 2 + (du[0] - 1) ** 2).sum()


class Network(NamedTuple):
    """One row: what is trained, on what, and by what.

    make, loss: the model of a library's `nn`, and its loss of a batch; in jax, `jax_make` and
        `jax_loss`.
    batch: from a generator to the arrays of the step.
    must: what `RATIOS` must reach; None: reported only. The limits to the floor and to torch belong
        together: when they were set the floor was 0.25, 0.33, 0.64, 0.32 and 0.012 of torch.
    """

    make: Make
    jax_make: Callable[..., Any]
    loss: Callable[..., Any]
    jax_loss: Callable[..., Any]
    batch: Callable[[Any], tuple[np.ndarray, ...]]
    optimizer: str
    settings: dict[str, float]
    must: tuple[float | None, ...]


def classes(*shape: int) -> Callable[[Any], tuple[np.ndarray, ...]]:
    """Normal numbers of a shape, and one of ten classes for each row."""

    def batch(rng: Any) -> tuple[np.ndarray, ...]:
        return rng.standard_normal(shape, np.float32), rng.integers(0, 10, shape[0])

    return batch


MOMENTUM = {"lr": 0.01, "momentum": 0.9}
NETS = {
    "MLP 128x64-256-256-10": Network(
        mlp, jax_mlp, cross_entropy, jax_cross_entropy, classes(128, 64),
        "AdamW", {"lr": 1e-3}, (1.3, 0.33, 0.95, None),
    ),
    "CNN 64x1x28x28": Network(
        convolutional, jax_convolutional, cross_entropy, jax_cross_entropy,
        classes(64, 1, 28, 28), "SGD", MOMENTUM, (1.5, 0.50, 0.95, None),
    ),
    "ResNet 32x3x32x32": Network(
        resnet, jax_resnet, cross_entropy, jax_cross_entropy, classes(32, 3, 32, 32),
        "SGD", MOMENTUM, (1.2, 0.77, 0.95, None),
    ),
    "transformer 16x64x128": Network(
        transformer, jax_encoder, cross_entropy, jax_cross_entropy,
        lambda rng: tuple(rng.integers(0, 64, (2, 16, 64))),
        "AdamW", {"lr": 1e-3}, (1.4, 0.45, 0.95, None),
    ),
    "autoencoder 64x64": Network(
        autoencoder, jax_autoencoder, reconstruction, jax_reconstruction,
        lambda rng: (rng.standard_normal((64, 64), np.float32),),
        "Adam", {"lr": 1e-3}, (3.0, 0.036, 0.95, None),
    ),
    "PINN 256x1": Network(
        pinn, functools.partial(jax_mlp, activation="tanh"), oscillation, jax_oscillation,
        lambda rng: (np.linspace(0, 6, 256, dtype=np.float32)[:, None],),
        "Adam", {"lr": 1e-3}, (None, None, 0.95, None),
    ),
}  # fmt: skip
NETS["PINN 256x1, mt.func"] = NETS["PINN 256x1"]._replace(
    loss=oscillation_forward, must=(None, 0.10, 0.95, None)
)


def weights(net: Network) -> dict[str, np.ndarray]:
    """The first ones of all sides, by the names of the state dict."""
    import microtrain as mt

    mt.manual_seed(0)
    return {name: value.numpy().copy() for name, value in net.make(mt.nn).state_dict().items()}


def training_step(
    library: Any, net: Network, wrap: Make = lambda step: step, forward: Make = lambda loss: loss
) -> Run:
    """The step in microtrain or torch.

    wrap: what is done with the whole step (`mt.compile`).
    forward: what is done with the function from the batch to the loss (`torch.compile`).
    """
    model = net.make(library.nn)
    model.load_state_dict({name: library.tensor(array) for name, array in weights(net).items()})
    optimizer = getattr(library.optim, net.optimizer)(model.parameters(), **net.settings)
    batch = [library.from_numpy(array) for array in net.batch(np.random.default_rng(0))]
    loss_of = forward(functools.partial(net.loss, library, model))

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    return Run(lambda: run(*batch), list)


def torch_eager(net: Network, **how: Any) -> Run:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch._dynamo.reset()
    return training_step(torch, net, **how)


def torch_compile(net: Network) -> Run:
    import torch

    return torch_eager(net, forward=torch.compile)


def jax_jit(net: Network) -> Run:
    """The whole step is one compiled function, which may reuse the memory of what it replaces."""
    import jax

    np_, settings = jax.numpy, net.settings
    start = {name: np_.array(array) for name, array in weights(net).items()}
    parts = ("running_mean", "running_var", "num_batches_tracked")
    kept = {name: start.pop(name) for name in list(start) if name.endswith(parts)}
    moments = [{name: np_.zeros_like(array) for name, array in start.items()} for _ in range(2)]
    state = [start, kept, moments, np_.zeros(())]
    batch = [np_.asarray(array) for array in net.batch(np.random.default_rng(0))]

    def loss_of(w: Any, kept: Any, *batch: Any) -> Any:
        now = w | kept
        loss = net.jax_loss(jax, functools.partial(net.jax_make, jax, now), *batch)
        return loss, {name: now[name] for name in kept}

    def moved(w: Any, g: Any, m: Any, v: Any, steps: Any) -> Any:
        """The optimizer's update of one array."""
        rate = settings["lr"]
        if net.optimizer == "SGD":
            m = settings["momentum"] * m + g
            return w - rate * m, m, v
        if net.optimizer == "AdamW":
            w = w * (1 - rate * 0.01)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        scale = np_.sqrt(v / (1 - 0.999**steps)) + 1e-8
        return w - rate / (1 - 0.9**steps) * m / scale, m, v

    @functools.partial(jax.jit, donate_argnums=(0, 1, 2, 3))
    def update(w: Any, kept: Any, moments: Any, steps: Any, *batch: Any) -> Any:
        (loss, kept), g = jax.value_and_grad(loss_of, has_aux=True)(w, kept, *batch)
        steps, (m, v) = steps + 1, moments
        new = {key: moved(w[key], g[key], m[key], v[key], steps) for key in w}
        w, m, v = ({key: each[i] for key, each in new.items()} for i in range(3))
        return loss, w, kept, [m, v], steps

    def step() -> Any:
        loss, *state[:] = update(*state, *batch)
        return loss.block_until_ready()

    return Run(step, list)


PEERS: dict[str, tuple[Callable[[Network], Run], str]] = {
    "torch": (torch_eager, "pip install torch==2.13.0"),
    "torch.compile": (torch_compile, "pip install torch==2.13.0, and a C++ compiler"),
    "jax.jit": (jax_jit, "pip install jax"),
}
