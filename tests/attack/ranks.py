"""Random models, losses and batches over 1 to 4 ranks: what one rank does, to 1e-12 or to the bit.

A difference above 1e-12 counts only where it is far above what a change of the data in their last
place does to one rank: some models are ill conditioned, and Adam divides what is only rounding by
itself. Every fourth trial is a case of
test_exactness_property, which knows more of uneven ranks and of parameters used on some.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import mpi_run
import numpy as np
import pytest
import test_exactness_property as law

import microtrain as mt
from attack.campaign import Defect, Kind
from attack.models import CLASSES, LAYERS, LOSSES, WEIGHTED, loss_of, targets_of
from microtrain.data import ArrayDataset, DataLoader
from microtrain.distributed import in_process, world
from microtrain.distributed.data_parallel import DataParallel
from microtrain.distributed.single import SingleCommunicator

nn = mt.nn
STEPS = 4
ENABLED = [*LOSSES, *WEIGHTED]


class Case:
    """What a seed stands for; the same on every rank."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)

        def one(*choices: Any) -> Any:
            return choices[draw.integers(len(choices))]

        self.seed = seed
        self.loss = one(*ENABLED)
        self.reduction = one("mean", "mean", "mean", "sum")
        self.penalty = one(0.0, 0.3) if self.reduction == "mean" else 0.0
        self.accumulate = one(1, 1, 2, 3)
        self.shards = one(None, None, None, 2, 4, 6)
        self.world = one(*(w for w in (2, 3, 4) if not self.shards or self.shards % w == 0))
        self.layers = [one(*LAYERS) for _ in range(draw.integers(0, 5))]
        self.clip, self.adam, self.compiled = one(None, 0.3), one(False, True), one(False, True)
        # A look at some rows that nothing is differentiated from, on some ranks, at some steps.
        calm = {"dropout", "batch norm"}.isdisjoint(self.layers)
        self.looks = float(one(0.0, 0.0, 0.5)) if calm else 0.0
        self.overlap = "off" if self.shards or self.compiled else one("off", "on")
        self.rows, self.batch = int(draw.integers(5, 50)), int(draw.integers(1, 20))
        if "batch norm" in self.layers:  # at least two rows wherever statistics are taken
            self.batch = max(self.batch, 3 * self.accumulate * (self.shards or 1))
            self.rows = max(self.rows, self.batch)
        self.x = draw.standard_normal((self.rows, 3))
        self.y = targets_of(self.loss, draw, self.rows)
        self.moved = self.x * np.where(draw.random(self.x.shape) < 0.5, 1 - 2.0**-52, 1 + 2.0**-52)

    def __str__(self) -> str:
        return ", ".join(f"{k} {v}" for k, v in vars(self).items() if k not in ("x", "y", "moved"))


class Net(nn.Module):
    """A layer used twice, one that is not used, and those of the case."""

    def __init__(self, layers: list[str]) -> None:
        super().__init__()
        self.first, self.twice, self.unused = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(2, 2)
        self.middle = nn.Sequential(*(LAYERS[name](6) for name in layers))
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.last(self.middle(self.twice(self.twice(self.first(x)).tanh())))


def train(comm: Any, case: Case, moved: bool = False, compiled: bool = False) -> list[Any]:
    """Losses and gradients of some steps, then the state."""
    mt.manual_seed(case.seed % 1000)
    net = Net(case.layers).double()
    model = DataParallel(net, comm, case.reduction, shards=case.shards, overlap=case.overlap,
                         bucket_mb=2e-4)  # fmt: skip
    optimizer = (
        mt.optim.Adam(model.parameters(), lr=0.01)
        if case.adam
        else mt.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01)
    )
    loader = DataLoader(
        ArrayDataset(case.moved if moved else case.x, case.y), case.batch, seed=case.seed % 7,
        drop_last="batch norm" in case.layers, comm=comm, accumulate=case.accumulate,
        shards=case.shards,
    )  # fmt: skip

    def run(x: Any, y: Any) -> None:
        loss = loss_of(case.loss, model(x), y, case.reduction)
        if case.penalty:
            loss = loss + case.penalty * (net.first.weight**2).sum()
        loss.backward()

    run = mt.compile(run, executor="numpy") if compiled else run
    found: list[Any] = []
    looking = np.random.default_rng([case.seed, comm.rank])
    with np.errstate(all="ignore"):  # a mean over no rows
        for _, batches in zip(range(STEPS), loader.steps(passes=STEPS), strict=False):
            optimizer.zero_grad()
            if looking.random() < case.looks:
                model(batches[0][0][: looking.integers(1, 3)])
            for x, y in batches[:-1]:
                with model.no_sync():
                    run(x, y)
            run(*batches[-1])
            found += [None if p.grad is None else p.grad.numpy().copy() for p in net.parameters()]
            found.append(model.loss)
            if case.clip:
                found.append(nn.utils.clip_grad_norm_(model.parameters(), case.clip).numpy())
            optimizer.step()
    return found + [value.numpy().copy() for value in model.state_dict().values()]


def under_mpirun(case: Case, file: Path) -> list[Any]:
    """`train` by this file as a program."""
    try:
        job = mpi_run.run_mpi(case.world, "-m", "attack.ranks", str(case.seed), file, timeout=100,
                              env={"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    except pytest.fail.Exception as error:
        raise Defect("hung", str(error)) from None
    if job.returncode or job.left_behind:
        raise Defect("tracebacks" if "Traceback" in job.stderr else "lost", str(job))
    with np.load(file, allow_pickle=True) as arrays:
        return list(arrays["found"])


def trial(seed: int, folder: Path) -> None:
    alone = SingleCommunicator()
    if seed % 4 == 0:
        ranks = list(range(1 + seed // 4 % 4))
        known = law.Case(seed, len(ranks))
        print("test_exactness_property", vars(known))
        expected = law.train(known, alone, ranks)
        found = in_process.run(len(ranks), lambda comm: law.train(known, comm, [comm.rank]))[-1]
        return compare(found, expected, expected)
    case = Case(seed)
    mpi = seed % 16 == 1 and not mpi_run.missing()
    print(case, ", under mpirun" if mpi else "")
    if mpi:
        found = under_mpirun(case, folder / "found.npz")
    else:
        found = in_process.run(case.world, train, case, False, case.compiled)[-1]
    moved = train(alone, case, moved=True)
    return compare(found, train(alone, case), moved, exact=case.shards is not None)


def compare(found: Any, expected: Any, moved: Any, exact: bool = False) -> None:
    if [each is None for each in found] != [each is None for each in expected]:
        raise Defect("different", "other gradients are None")
    for number, values in enumerate(zip(found, expected, moved, strict=True)):
        a, b, c = (np.asarray(0 if each is None else each, dtype=float) for each in values)
        off = np.abs(a - b).max()
        allowed = max(1e-12 * max(np.abs(b).max(), 1e-3), 1000 * np.abs(c - b).max())
        if a.tobytes() != b.tobytes() and (exact or not off <= allowed):
            raise Defect("different", f"value {number} is off by {off:.3g}\n{a}\nfor\n{b}")


if __name__ == "__main__":
    chosen = Case(int(sys.argv[1]))
    values = train(world(), chosen, False, chosen.compiled)
    if world().rank == world().size - 1:
        np.savez(sys.argv[2], found=np.array([*values, None], dtype=object)[:-1])

KIND = Kind(trial, limit=150)
