"""What a rank may say and do in each phase of a run, and that more ranks do not make it more.

`benchmarks/collectives.py` counts; the figures here are what it found when they were written.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"

# Collectives, those of pickled objects, and bytes that a rank receives, each time.
BUDGET = {
    "start": (19, 2, 900),
    "step": (1, 0, 600),
    "evaluation": (2, 0, 100),
    "checkpoint": (2, 0, 8),
    "resume": (19, 1, 10_000),
    "rest": (7, 3, 400),  # of a whole run: its directory, hosts, the end
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


def test_more_ranks_are_no_more_for_one(collectives: Any, tmp_path: Path) -> None:
    few, many = (collectives.run(tmp_path, ranks, profile=True) for ranks in (4, 64))
    for phase, cost in many.items():
        before = few[phase]
        assert (cost.times, cost.collectives) == (before.times, before.collectives), phase
        assert cost.received <= before.received + 64 * 16, phase  # a few numbers of each rank
        # log2(64) / log2(4) is 3; what is computed with its rows is less.
        assert cost.calls <= 1.5 * before.calls + 200, (phase, before.calls, cost.calls)


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
