"""Losses that do not average over rows: class weights, ignored rows, masks, sample weights.

The truth is one process without any wrapper that has the rows of all ranks and micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.distributed import Communicator, DataParallel

F = mt.nn.functional
CLASSES, STEPS = 3, 3
WEIGHT = mt.tensor([0.2, 1.0, 5.0], dtype=mt.float64)


class Net(mt.nn.Module):
    """Scores, and what a second loss may be of; `first` has batch norm behind it or not."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first = mt.nn.Linear(4, 5, dtype=mt.float64)
        self.norm: mt.nn.Module = mt.nn.Identity()
        if norm:
            self.norm = mt.nn.BatchNorm1d(5, dtype=mt.float64)
        self.scores = mt.nn.Linear(5, CLASSES, dtype=mt.float64)
        self.other = mt.nn.Linear(4, CLASSES, dtype=mt.float64)
        self.uncertainty = mt.nn.Parameter(mt.tensor(0.3, dtype=mt.float64))

    def forward(self, x: Any) -> tuple[Any, Any]:
        return self.scores(self.norm(self.first(x)).tanh()), self.other(x)


def _tokens(scores: Any, batch: Any) -> Any:
    """Every row as a sequence of two tokens."""
    stacked = mt.stack([scores, scores * 2], 2)
    return F.cross_entropy(stacked, batch["pairs"], weight=WEIGHT)


# What the model says and the batch -> a loss that divides by what counts.
COUNTED: dict[str, Callable[[Any, Any], Any]] = {
    "class weights": lambda s, b: F.cross_entropy(s, b["y"].clamp(min=0), weight=WEIGHT),
    "ignore_index": lambda s, b: F.cross_entropy(s, b["y"]),
    "both": lambda s, b: F.cross_entropy(s, b["y"], weight=WEIGHT),
    "another index": lambda s, b: F.cross_entropy(s, b["y"].clamp(min=0), ignore_index=0),
    "smoothed": lambda s, b: F.cross_entropy(s, b["y"], label_smoothing=0.1),
    "nll": lambda s, b: F.nll_loss(F.log_softmax(s, 1), b["y"], weight=WEIGHT),
    "nll, ignored": lambda s, b: F.nll_loss(F.log_softmax(s, 1), b["y"]),
    "tokens": _tokens,
    "sample weights": lambda s, b: F.mse_loss(s, b["t"], weight=b["w"]),
    "absolute": lambda s, b: F.l1_loss(s, b["t"], weight=b["w"]),
    "mask": lambda s, b: F.weighted_mean((s - b["t"]).abs().sqrt(), b["mask"]),
    "module": lambda s, b: mt.nn.CrossEntropyLoss(WEIGHT)(s, b["y"]),
}
# Arrangements of one such loss: factors, and penalties that do not depend on the rows.
ONE: dict[str, Callable[[Any, Any, Net], Any]] = {
    "alone": lambda loss, other, net: loss,
    "factor": lambda loss, other, net: 3 * loss / 7 - 0.5,
    "penalty": lambda loss, other, net: loss + 0.1 * (net.first.weight**2).sum(),
    "mean penalty": lambda loss, other, net: (net.scores.bias.abs().mean() + loss) * 2.0,
    "learned": lambda loss, other, net: (-net.uncertainty).exp() * loss + net.uncertainty,
    "divided": lambda loss, other, net: loss / (net.uncertainty**2) + net.uncertainty.log(),
    "stacked": lambda loss, other, net: mt.stack([loss, net.uncertainty]).sum(),
    "shaped": lambda loss, other, net: loss.reshape(1, 1).squeeze().clone(),
}
# Arrangements with another mean in the same root: of other weights, or of the rows.
SEVERAL: dict[str, Callable[[Any, Any, Net], Any]] = {
    "sum": lambda loss, other, net: 0.7 * loss + other,
    "means": lambda loss, other, net: mt.stack([loss, other]).mean() + net.uncertainty**2,
    "learned": lambda loss, other, net: (-net.uncertainty).exp() * loss - other / 2,
}
SECOND: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda o, b: F.mse_loss(o, b["t"]),
    "by hand": lambda o, b: (o * b["t"]).square().sum(1).mean(),
    "ignored": lambda o, b: F.cross_entropy(o, b["y2"]),
    "weighted": lambda o, b: F.weighted_mean(o.abs(), b["w"]),
}


def batch_of(step: int, micro: int, rank: int, rows: int) -> dict[str, Any]:
    """The rows of a rank as NumPy arrays; of every third batch nothing counts."""
    rng = np.random.default_rng([7, step, micro, rank])
    y, y2 = (rng.integers(0, CLASSES, rows) for _ in range(2))
    y[rng.random(rows) < 0.4] = -100
    y2[rng.random(rows) < 0.3] = -100
    y[:1], y2[:1] = 1, 2
    pairs = np.stack([y, y2], 1)
    w = rng.random((rows, CLASSES)) + 0.1
    mask = rng.random((rows, CLASSES)) < 0.6
    if (step + micro + rank) % 3 == 1 and (micro or rank):  # nothing counts here
        y[:], y2[:], pairs[:], w[:], mask[:] = -100, -100, -100, 0.0, False
    x, t = rng.normal(size=(rows, 4)), rng.normal(size=(rows, CLASSES))
    return {"x": x, "y": y, "y2": y2, "pairs": pairs, "t": t, "w": w, "mask": mask}


class Case:
    """What a seed stands for; the same on every rank."""

    def __init__(self, seed: int, world: int, several: bool) -> None:
        rng = np.random.default_rng([seed, world, several])
        self.loss = COUNTED[[*COUNTED][seed % len(COUNTED)]]
        self.second = SECOND[[*SECOND][int(rng.integers(len(SECOND)))]]
        table = SEVERAL if several else ONE
        self.root = table[[*table][int(rng.integers(len(table)))]]
        self.micro = 1 if several else int(rng.integers(1, 4))
        self.executor = (None, "numpy")[int(rng.integers(2))]
        self.overlap = ("on", "off")[int(rng.integers(2))]
        self.norm = bool(rng.integers(2)) and self.micro == 1  # of the whole batch
        self.rows = rng.integers(0, 5, (STEPS, self.micro, world))
        self.rows[:, 0] += 1
        self.rows[:, 0, 0] += 1  # two rows for batch norm

    def batch(self, step: int, micro: list[int], ranks: list[int]) -> dict[str, Any]:
        """The rows of these ranks and micro-batches together, as Tensors."""
        parts = [batch_of(step, m, r, self.rows[step, m, r]) for m in micro for r in ranks]
        return {name: mt.from_numpy(np.concatenate([p[name] for p in parts])) for name in parts[0]}

    def value(self, model: Any, net: Net, batch: dict[str, Any]) -> Any:
        """What backward starts from."""
        scores, other = model(batch["x"])
        loss = self.loss(scores, batch)
        F.cross_entropy(scores, batch["y"].clamp(min=0), ignore_index=2)  # beside: changes nothing
        return self.root(loss, self.second(other, batch), net)


def truth(case: Case, world: int) -> list[Any]:
    """Gradients and losses of one process without a wrapper that has all rows at once."""
    mt.manual_seed(2)
    net = Net(case.norm)
    optimizer = mt.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    found: list[Any] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        value = case.value(net, net, case.batch(step, [*range(case.micro)], [*range(world)]))
        value.backward()
        found += [p.grad.numpy().copy() for p in net.parameters() if p.grad is not None]
        found.append(value.item())
        optimizer.step()
    return found


def trained(case: Case, comm: Communicator) -> list[Any]:
    """The same by a wrapped model whose ranks have their rows."""
    mt.manual_seed(2)
    net = Net(case.norm)
    model = DataParallel(net, comm, overlap=case.overlap, bucket_mb=1e-4)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step_of(batch: dict[str, Any]) -> None:
        case.value(model, net, batch).backward()

    run: Any = step_of
    if case.executor is not None:
        run = mt.compile(step_of, executor=case.executor, state=[WEIGHT])  # type: ignore[call-overload]
    found: list[Any] = []
    with np.errstate(all="ignore"):
        for step in range(STEPS):
            optimizer.zero_grad()
            for micro in range(case.micro):
                batch = case.batch(step, [micro], [comm.rank])
                if micro < case.micro - 1:
                    with model.no_sync():
                        run(batch)
                else:
                    run(batch)
            found += [p.grad.numpy().copy() for p in net.parameters() if p.grad is not None]
            found.append(model.loss)
            optimizer.step()
    return found


def check(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert np.abs(a - b).max() <= 1e-12 * max(np.abs(b).max(), 1e-2), number


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
@pytest.mark.parametrize("seed", range(2 * len(COUNTED)))
def test_any_number_of_ranks_and_micro_batches(
    comm: Communicator, seed: int, several: bool
) -> None:
    case = Case(seed, comm.size, several)
    check(trained(case, comm), truth(case, comm.size))
