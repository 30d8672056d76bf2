"""Small steps that the tests of capture try things with."""

from __future__ import annotations

from typing import Any

import numpy as np

import microtrain as mt
from microtrain.data import ArrayDataset, DataLoader
from microtrain.distributed.data_parallel import DataParallel

nn, F = mt.nn, mt.nn.functional


def shared(comm: Any, wrap: Any) -> Any:
    """Uneven batches, a tail, dropout; losses and weights."""
    data = np.random.default_rng(0)
    mt.manual_seed(1)
    hidden = nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.2)
    model = DataParallel(nn.Sequential(*hidden, nn.Linear(7, 2)).double(), comm)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    rows = ArrayDataset(data.standard_normal((103, 5)), data.standard_normal((103, 2)))

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    step = wrap(step)
    losses = []
    with np.errstate(all="ignore"):
        for _ in range(8):
            for x, y in DataLoader(rows, 33, comm=comm):
                step(x, y)
                losses.append(model.loss)
    return losses, [p.detach().numpy().copy() for p in model.parameters()]


class Setting:
    """A linear model, its optimizer and a step."""

    def __init__(self, lr: float = 0.1, momentum: float = 0.0) -> None:
        mt.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = mt.optim.SGD(self.model.parameters(), lr=lr, momentum=momentum)
        self.runs = 0

    def step(self, x: Any) -> Any:
        self.runs += 1
        self.optimizer.zero_grad()
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        return loss


def batch(i: int, rows: int = 4) -> Any:
    return mt.tensor(np.random.default_rng(i).standard_normal((rows, 3)).astype(np.float32))


def call(step: Any, times: int = 9) -> None:
    for i in range(times):
        step(batch(i))


def follow(
    change: Any, steps: int = 12, executor: str = "numpy", **options: Any
) -> tuple[Any, Any, Any]:
    """Losses of the eager and of the compiled step, with `change(setting, i)` before call i."""
    results = []
    for compiled in (False, True):
        setting = Setting(**options)
        step = mt.compile(setting.step, executor=executor) if compiled else setting.step
        losses = []
        for i in range(steps):
            change(setting, i)
            losses.append(step(batch(i)).item())
        results.append(losses)
    return results[0], results[1], step


LAYERS = ["linear", "relu", "tanh", "dropout", "norm", "gelu", "softmax"]


def bits(value: Any) -> Any:
    """`value` with Tensors as bytes, for comparison."""
    if isinstance(value, list | tuple):
        return [bits(v) for v in value]
    if isinstance(value, mt.Tensor):
        array = value.detach().numpy()
        return array.dtype.name, array.shape, array.tobytes()
    return value


def both(program: Any) -> tuple[Any, Any]:
    """What the generator `program(wrap)` yields eagerly and compiled."""
    results = []
    for wrap in (lambda step: step, mt.compile):
        mt.manual_seed(0)
        mt.random.begin_batch(0)
        results.append([bits(value) for value in program(wrap)])
    return results[0], results[1]


class Parts(nn.Module):
    """A layer, a buffer, a plain Tensor, something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.middle = nn.Dropout(0.5)
        self.mask = mt.ones(3)
        self.register_buffer("shift", mt.ones(3))

    def forward(self, x: Any) -> Any:
        x = self.layer(x) * self.mask + self.shift
        self.last = x if self.middle is None else self.middle(x)
        return self.last * 1
