"""`--trace`: what each rank did when, in Chrome's format."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from microtrain.train.callbacks import order as trace

YAML = """
name: traced
data: {type: synthetic_linear, samples: 200, weights: [2], split: {train: 0.8, val: 0.1, test: 0.1}}
model: linear_regression
loss: mse
optimizer: {type: sgd, lr: 0.1}
train: {duration: 12 steps, batch_size: 16, accumulate: 2, eval_every: 6 steps}
run_dir: runs
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_leaves_a_timeline_of_every_rank(mpirun: Any, tmp_path: Path, ranks: int) -> None:
    (tmp_path / "traced.yaml").write_text(YAML)
    job = mpirun(ranks, "-m", "microtrain", "train", "traced.yaml", "--trace", cwd=tmp_path)
    assert job.returncode == 0, job.stderr
    files = sorted((tmp_path / "runs" / "traced" / "latest" / "trace").iterdir())
    assert [file.name for file in files] == [f"rank-{rank}.json" for rank in range(ranks)]
    for rank, file in enumerate(files):
        first, *events = json.loads(file.read_text())["traceEvents"]
        assert first["args"]["name"].startswith(f"rank {rank} on ")
        assert {event["pid"] for event in events} == {rank}
        # Two evaluations of the validation data, and one of the test data after the last step.
        expected = {"pass": 24, "evaluate": 3} | ({"reduce": 12} if ranks > 1 else {})
        assert Counter(event["name"] for event in events) == expected
        passes = [event for event in events if event["name"] == "pass"]
        for one, other in pairwise(passes):
            assert 0 <= one["ts"] <= one["ts"] + one["dur"] <= other["ts"]
        for reduction in (event for event in events if event["name"] == "reduce"):
            end = reduction["ts"] + reduction["dur"]
            assert any(p["ts"] <= reduction["ts"] and end <= p["ts"] + p["dur"] for p in passes)


@pytest.mark.slow
def test_without_being_asked_there_is_none(mpirun: Any, tmp_path: Path) -> None:
    (tmp_path / "traced.yaml").write_text(YAML)
    assert mpirun(1, "-m", "microtrain", "train", "traced.yaml", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "runs" / "traced" / "latest" / "trace").exists()


def test_a_long_run_stays_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MOST", 3)
    made = trace.Timeline()
    assert [made.timed("one", lambda x: x)(n) for n in range(5)] == list(range(5))
    made.write(tmp_path / "deep" / "er", 0)
    written = (tmp_path / "deep" / "er" / "rank-0.json").read_text()
    assert len(json.loads(written)["traceEvents"]) == 4
