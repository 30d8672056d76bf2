"""A training step of recurrent layers, eager and captured, against PyTorch eager.

64 sequences of 50 steps and 32 inputs, hidden size 64, a linear layer over the last state, mean
squared error; forward, loss, backward and update. All sides begin with PyTorch's weights and must
have its losses; then they run interleaved, pinned to one core. The table shows medians in
microseconds and their ratios to PyTorch. The captured LSTM step must take at most 0.7.

    python benchmarks/recurrent.py
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from step import measure  # first: it pins the process and limits threads

# isort: split

import numpy as np

import microtrain as mt

SAMPLES, STEPS, INPUTS, HIDDEN = 64, 50, 32, 64
SIDES = ("eager", "numpy", "native", "torch")
ROWS = [(cell, optimizer) for cell in ("LSTM", "GRU", "RNN") for optimizer in ("SGD", "Adam")]


def training_step(library: Any, cell: str, optimizer: str, state: Any = None) -> Any:
    """A function that takes one step and returns the loss, and the model."""

    class Net(library.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cells = getattr(library.nn, cell)(INPUTS, HIDDEN, batch_first=True)
            self.last = library.nn.Linear(HIDDEN, 1)

        def forward(self, x: Any) -> Any:
            return self.last(self.cells(x)[0][:, -1])

    library.manual_seed(0)
    net = Net()
    if state is not None:
        net.load_state_dict({name: mt.tensor(value.numpy()) for name, value in state.items()})
    update = getattr(library.optim, optimizer)(net.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    x = library.from_numpy(rng.standard_normal((SAMPLES, STEPS, INPUTS), np.float32))
    y = library.from_numpy(rng.standard_normal((SAMPLES, 1), np.float32))

    def step(x: Any, y: Any) -> Any:
        update.zero_grad()
        loss = library.nn.functional.mse_loss(net(x), y)
        loss.backward()
        update.step()
        return loss

    return step, (x, y), net


def sides(torch: Any, cell: str, optimizer: str) -> dict[str, Any]:
    """The steps, each of which has made PyTorch's first losses."""
    found, losses = {}, {}
    _, _, net = training_step(torch, cell, optimizer)
    for side in SIDES:
        ours = side != "torch"
        library, state = (mt, net.state_dict()) if ours else (torch, None)
        step, given, _ = training_step(library, cell, optimizer, state)
        if side in ("numpy", "native"):
            step = mt.compile(step, executor=side)
        losses[side] = [float(step(*given)) for _ in range(6)]
        found[side] = lambda step=step, given=given: step(*given)
    for side in SIDES:
        np.testing.assert_allclose(losses[side], losses["torch"], rtol=1e-4, err_msg=side)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row (default 10)")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("torch is not installed (pip install torch==2.13.0)")
        return 1
    torch.set_num_threads(1)
    heads = "".join(f"{side:>9}" for side in SIDES)
    ratios = "".join(f"{side + '/torch':>13}" for side in SIDES[:-1])
    print(f"{'step':<12}{heads}{ratios}")
    for cell, optimizer in ROWS:
        name = f"{cell} {optimizer}"
        if options.only not in name:
            continue
        found = measure(sides(torch, cell, optimizer), options.seconds)
        times = "".join(f"{found[side]:>9,.0f}" for side in SIDES)
        shares = "".join(f"{found[side] / found['torch']:>13.2f}" for side in SIDES[:-1])
        print(f"{name:<12}{times}{shares}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
