"""The law of data parallelism: any number of ranks does what one process does.

Each seed is another case: how many rows every rank gets in every micro-batch (none at all, often),
how many micro-batches, mean or sum, a penalty in the loss, parameters that are tied, used twice,
unused, or used on some ranks only, buckets or one reduction, eager or captured. The rank that has
all rows is the truth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler

import microtrain as mt
from microtrain.distributed import Communicator, DataParallel
from microtrain.distributed.single import SingleCommunicator

F = mt.nn.functional
STEPS = 4


class Net(mt.nn.Module):
    """`sometimes` works on the rows that `mask` names; with none of them it is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = mt.nn.Linear(3, 4, dtype=mt.float64)
        self.square = mt.nn.Linear(4, 4, dtype=mt.float64)
        self.tied = mt.nn.Linear(4, 4, dtype=mt.float64)
        self.tied.weight = self.square.weight
        self.sometimes = mt.nn.Linear(3, 4, dtype=mt.float64)
        self.never = mt.nn.Linear(2, 2, dtype=mt.float64)
        self.last = mt.nn.Linear(4, 2, dtype=mt.float64)

    def forward(self, x: Any, mask: Any, some: bool) -> Any:
        h = self.first(x)
        if some:
            h = h + self.sometimes(x) * mask
        h = self.square(F.gelu(self.square(F.relu(h))))
        return self.last(self.tied(h).tanh())


class Case:
    """What a seed stands for; the same on every rank."""

    def __init__(self, seed: int, world: int) -> None:
        rng = np.random.default_rng([seed, world])
        self.reduction = "sum" if seed % 4 == 3 else "mean"
        self.penalty = 0.1 if self.reduction == "mean" and seed % 2 else 0.0
        # Every other number of rows is another capture, which is compiled.
        self.executor = "native" if seed == 8 else (None, "numpy")[seed // 2 % 2]
        self.overlap = "on" if seed % 5 < 2 else "off"
        self.micro = int(rng.integers(1, 4))
        self.optimizer = ("SGD", "Adam")[seed % 2]
        # rows of [step, micro-batch, rank]
        self.rows = rng.integers(0, 4, (STEPS, self.micro, world))
        self.rows[rng.random(self.rows.shape) < 0.2] = 0
        self.rows[:, 0, rng.integers(world)] += 1  # some rows in every step
        if self.executor == "native":
            self.micro, self.rows = 1, np.full((STEPS, 1, world), 2)


def train(case: Case, comm: Communicator, ranks: list[int]) -> list[Any]:
    """What is learned where this process has the rows of `ranks`."""
    mt.manual_seed(2)
    model = DataParallel(
        Net(),
        comm,
        case.reduction,
        overlap=case.overlap,
        bucket_mb=1e-4,  # type: ignore[arg-type]
    )
    make = {"SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}, "Adam": {"lr": 0.01}}
    optimizer = getattr(mt.optim, case.optimizer)(model.parameters(), **make[case.optimizer])

    def run(x: Any, y: Any, mask: Any, some: bool) -> Any:
        loss = F.mse_loss(model(x, mask, some), y, reduction=case.reduction)
        if case.penalty:
            loss = loss + case.penalty * (model.module.first.weight**2).sum()
        loss.backward()
        return loss

    if case.executor is not None and ranks != list(range(case.rows.shape[2])):
        run = mt.compile(run, executor=case.executor)
    found: list[Any] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(case.micro):
            parts = []
            for rank in ranks:
                rng = np.random.default_rng([step, micro, rank])
                n = case.rows[step, micro, rank]
                mask = np.full((n, 1), float((rank + step) % 2))
                parts.append((rng.standard_normal((n, 3)), rng.standard_normal((n, 2)), mask))
            x, y, mask = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            batch = [mt.from_numpy(a) for a in (x, y, mask)]
            if micro < case.micro - 1:
                with model.no_sync():
                    run(*batch, bool(mask.any()))
            else:
                run(*batch, bool(mask.any()))
        found += [None if p.grad is None else p.grad.numpy().copy() for p in model.parameters()]
        found += [model.loss, model.samples]
        optimizer.step()
    return found + [p.detach().numpy() for p in model.parameters()]


@pytest.mark.daily("-2]", "-7]", "-1]", "-5]", "-18]")
@pytest.mark.parametrize("seed", range(24))
def test_any_number_of_ranks_does_what_one_does(comm: Communicator, seed: int) -> None:
    case = Case(seed, comm.size)
    if case.executor == "native":
        if comm.size > 2:
            return  # another number of ranks is nothing new to native code, and takes its time
        needs_compiler()
    expected = train(case, SingleCommunicator(), list(range(comm.size)))
    found = train(case, comm, [comm.rank])
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert (a is None) == (b is None), number
        if a is not None:
            a, b = np.asarray(a), np.asarray(b)
            assert np.abs(a - b).max() <= 1e-12 * max(np.abs(b).max(), 1e-3), number
