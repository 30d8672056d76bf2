"""What a rank may say and do in each phase of a run, and that more ranks do not make it more.

`benchmarks/collectives.py` counts; the figures here are what it found when they were written.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pace import daily

import microtrain as mt
from microtrain.distributed import Communicator, DataParallel, in_process
from microtrain.train.model_state import save

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"

# Collectives, those of pickled objects, and bytes that a rank receives, each time.
BUDGET = {
    "start": (19, 2, 900),
    "step": (1, 0, 600),
    "evaluation": (2, 0, 100),
    "checkpoint": (2, 0, 8),
    "resume": (3, 1, 11_000),
    "rest": (11, 4, 450),  # of a whole run: directory, id, hosts, native code for all, results
}


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("collectives")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_keeps_to_its_budget(collectives: Any, tmp_path: Path, ranks: int) -> None:
    for phase, cost in collectives.run(tmp_path, ranks).items():
        times = max(cost.times, 1)
        found = cost.collectives / times, cost.objects / times, cost.received / times
        assert all(a <= b for a, b in zip(found, BUDGET[phase], strict=True)), (phase, found)


@pytest.mark.slow
@pytest.mark.parametrize("most", daily([24, 64], 24))
def test_more_ranks_are_no_more_for_one(collectives: Any, tmp_path: Path, most: int) -> None:
    few, many = (collectives.run(tmp_path, ranks, profile=True) for ranks in (4, most))
    for phase, cost in many.items():
        before = few[phase]
        assert (cost.times, cost.collectives) == (before.times, before.collectives), phase
        assert cost.received <= before.received + most * 16, phase  # a few numbers of each rank
        # log2(64) / log2(4) is 3; what is computed with its rows is less.
        assert cost.calls <= 1.5 * before.calls + 200, (phase, before.calls, cost.calls)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_resume_puts_large_arrays_where_they_lie(tmp_path: Path, frozen: bool) -> None:
    """Weights (whose memory is transposed), buffers and states; small ones come in one object."""

    def made(seed: int, comm: Communicator) -> tuple[DataParallel, mt.optim.Optimizer]:
        mt.manual_seed(seed)
        module = mt.nn.Sequential(mt.nn.Linear(40, 60), mt.nn.BatchNorm1d(60), mt.nn.Linear(60, 2))
        module.register_buffer("table", mt.randn(60, 40).t())  # neither way of the two
        module[0].bias.requires_grad_(not frozen)
        model = DataParallel(module, comm)
        return model, mt.optim.Adam(model.parameters(), lr=0.1)

    def state(model: DataParallel, optimizer: mt.optim.Optimizer) -> dict[str, Any]:
        found = {name: value._array for name, value in model.state_dict().items()}
        for name, param in model.named_parameters():
            for kind, array in optimizer.state_of(param).items():
                found[f"{name}.{kind}"] = array
        return found

    def work(comm: Communicator) -> None:
        model, optimizer = made(1, comm)
        for _ in range(2):
            optimizer.zero_grad()
            (model(mt.randn(8, 40)) ** 2).sum().backward()
            optimizer.step()
        expected = {name: array.copy() for name, array in state(model, optimizer).items()}
        save(tmp_path, 2, model=model, optimizer=optimizer, comm=comm)
        other, fresh = made(comm.rank + 2, comm)
        sent: list[Any] = []
        broadcast = comm._broadcast
        comm._broadcast = lambda array, root: (sent.append(array), broadcast(array, root))[1]
        mt.restore(tmp_path, model=other, optimizer=fresh, comm=comm)
        found = state(other, fresh)
        assert list(found) == list(expected)
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])
        there = [n for n, a in found.items() if any(np.shares_memory(a, one) for one in sent)]
        large = ("0.weight", "0.weight.exp_avg", "0.weight.exp_avg_sq")
        assert there == [*large]
        assert len(sent) == len(large) + 1  # and the table

    in_process.run(3, work)


def test_costs_are_continued_by_a_line(collectives: Any) -> None:
    assert collectives.line([2, 4, 8], [5.0, 7.0, 11.0], 100) == pytest.approx(103.0)
    assert collectives.line([2, 4, 8], [3.0, 2.0, 1.0], 100) == 1.0
    found = {
        size: {phase: collectives.Cost(2, 4, 0, 8 * size, 0, 0.5) for phase in collectives.PHASES}
        for size in (2, 4)
    }
    one = collectives.predict(found, 1024, latency=1e-6, bandwidth=1e6)[0]
    assert (one.collectives, one.received, one.cpu) == pytest.approx((2.0, 4096.0, 0.25))
    assert one.network == pytest.approx(2 * 10e-6 + 4096e-6)
