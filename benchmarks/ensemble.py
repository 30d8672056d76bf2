"""Many small models: microseconds of CPU for one step of one member, beside the peers.

A network with 16 rows, 8 inputs, 16 hidden units and SGD (`--momentum` for 0.9), for 1 to 1,000
members with learning rates of their own, where the peer can have them. Sides take turns; figures
are medians. Each side sees the same rows in the same number of steps.

    python benchmarks/ensemble.py
    python benchmarks/ensemble.py --members 1 100 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

if "numpy" not in sys.modules:  # before NumPy and the peers start their threads
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np

BATCH, INPUTS, HIDDEN, BATCHES = 16, 8, 16, 64
MUST, AIM = 1.2, 0.9  # us, native, 1,000 members
Side = Callable[[], int]  # trains for a while; how many steps of a member these were


def rows() -> tuple[np.ndarray, np.ndarray]:
    """The data: `BATCHES` batches."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH * BATCHES, INPUTS), np.float32)
    return x, x.sum(1, keepdims=True)


def rates(members: int) -> np.ndarray:
    """A learning rate for each member."""
    return 0.01 * (1 + np.arange(members, dtype=np.float32) % 5)


def ours(members: int, executor: str, momentum: float) -> Side:
    import microtrain as mt

    def make(member: int) -> Any:
        mt.manual_seed(member)
        nn = mt.nn
        model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        lr = float(rates(members)[member])
        return model, mt.optim.SGD(model.parameters(), lr=lr, momentum=momentum)

    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = mt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    ensemble = mt.Ensemble(make, step, members, executor=executor)
    loader = mt.data.DataLoader(mt.data.ArrayDataset(*rows()), BATCH, shuffle=True)
    epochs = 16 if executor == "native" else 1

    def side() -> int:
        ensemble.train(loader, epochs)
        return members * BATCHES * epochs

    return side


def torch_one_by_one(members: int, momentum: float) -> Side:
    import torch

    torch.set_num_threads(1)
    x, y = map(torch.from_numpy, rows())
    nn = torch.nn
    made = []
    for rate in rates(members)[:3]:  # more cost the same each
        model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        made.append((model, torch.optim.SGD(model.parameters(), lr=float(rate), momentum=momentum)))

    def side() -> int:
        for model, optimizer in made:
            for start in range(0, len(x), BATCH):
                optimizer.zero_grad()
                part = slice(start, start + BATCH)
                nn.functional.mse_loss(model(x[part]), y[part]).backward()
                optimizer.step()
        return len(made) * BATCHES

    return side


def torch_vmap(members: int, momentum: float) -> Side:
    """`torch.func.vmap` of the gradient, and the update of all members at once."""
    import torch

    torch.set_num_threads(1)
    x, y = map(torch.from_numpy, rows())
    weights = [torch.from_numpy(array) for array in stacked(members)]
    velocities = [torch.zeros_like(weight) for weight in weights]
    lr = torch.from_numpy(rates(members))

    def loss(w: Any, xb: Any, yb: Any) -> Any:
        return ((torch.relu(xb @ w[0] + w[1]) @ w[2] + w[3] - yb) ** 2).mean()

    gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None, None))

    def side() -> int:
        for start in range(0, len(x), BATCH):
            part = slice(start, start + BATCH)
            for w, v, g in zip(
                weights, velocities, gradient(weights, x[part], y[part]), strict=True
            ):
                v.mul_(momentum).add_(g)
                w.sub_(lr.view(-1, *[1] * (w.ndim - 1)) * v)
        return members * BATCHES

    return side


def jax_vmap(members: int, momentum: float) -> Side:
    """`jax.jit(vmap)` over members, of a `scan` over the batches."""
    import jax
    import jax.numpy as jnp

    x, y = (jnp.asarray(a).reshape(BATCHES, BATCH, -1) for a in rows())

    def loss(w: Any, xb: Any, yb: Any) -> Any:
        return jnp.mean((jnp.maximum(xb @ w[0] + w[1], 0) @ w[2] + w[3] - yb) ** 2)

    def train(w: Any, v: Any, lr: Any) -> Any:
        def one(state: Any, batch: Any) -> Any:
            w, v = state
            value, g = jax.value_and_grad(loss)(w, *batch)
            v = [momentum * a + b for a, b in zip(v, g, strict=True)]
            return ([a - lr * b for a, b in zip(w, v, strict=True)], v), value

        return jax.lax.scan(one, (w, v), (x, y))

    run = jax.jit(jax.vmap(train))
    state: list[Any] = [[jnp.asarray(a) for a in stacked(members)], None]
    state[1] = [jnp.zeros_like(a) for a in state[0]]
    lr = jnp.asarray(rates(members))

    def side() -> int:
        found, losses = run(*state, lr)
        losses.block_until_ready()
        state[:] = found
        return members * BATCHES

    return side


def stacked(members: int) -> list[np.ndarray]:
    """First weights of all members."""
    rng = np.random.default_rng(1)
    shapes = [(INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)]
    return [rng.uniform(-0.3, 0.3, (members, *s)).astype(np.float32) for s in shapes]


def stacked_numpy(members: int, momentum: float) -> Side:
    """All members in one array, written by hand."""
    x, y = rows()
    w1, b1, w2, b2 = weights = stacked(members)
    velocities = [np.zeros_like(w) for w in weights]
    lr = rates(members)

    def side() -> int:
        for start in range(0, len(x), BATCH):
            xb, yb = x[start : start + BATCH], y[start : start + BATCH]
            hidden = np.maximum(xb @ w1 + b1[:, None], 0)
            error = (hidden @ w2 + b2[:, None] - yb) * np.float32(2 / BATCH)
            back = (error @ w2.transpose(0, 2, 1)) * (hidden > 0)
            gradients = (
                xb.T @ back, back.sum(1), hidden.transpose(0, 2, 1) @ error, error.sum(1),
            )  # fmt: skip
            for w, v, g in zip(weights, velocities, gradients, strict=True):
                v *= np.float32(momentum)
                v += g
                w -= lr.reshape(-1, *[1] * (w.ndim - 1)) * v
        return members * BATCHES

    return side


SIDES: dict[str, Callable[[int, float], Side]] = {
    "native": lambda members, momentum: ours(members, "native", momentum),
    "numpy": lambda members, momentum: ours(members, "numpy", momentum),
    "stacked NumPy": stacked_numpy,
    "PyTorch one by one": torch_one_by_one,
    "torch.func.vmap": torch_vmap,
    "jax.jit(vmap)": jax_vmap,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--momentum", type=float, default=0.0)
    options = parser.parse_args()
    print(f"{'us of CPU a member and step':28}" + "".join(f"{n:>20}" for n in SIDES))
    for members in options.members:
        sides, found = {}, {}
        for name, build in SIDES.items():
            try:
                sides[name] = build(members, options.momentum)
                sides[name]()  # what is compiled at first
            except ImportError as error:
                print(f"{name}: left out, {error}")
                sides.pop(name, None)
        for _ in range(options.rounds):
            for name, side in sides.items():
                start = time.process_time()
                steps = side()
                found.setdefault(name, []).append((time.process_time() - start) / steps * 1e6)
        middle = {name: statistics.median(values) for name, values in found.items()}
        cells = (f"{middle[n]:20.2f}" if n in middle else f"{'-':>20}" for n in SIDES)
        print(f"{members:>6} members{'':14}" + "".join(cells), flush=True)
        if members == 1000 and "native" in middle:
            print(f"native: {middle['native']:.2f} us; must {MUST}, aim {AIM}")


if __name__ == "__main__":
    main()
