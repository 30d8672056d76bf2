"""Exact resume: what was interrupted and resumed has the bits of what was not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from resuming import facts, train, write_run

CASES: dict[str, list[str]] = {
    "dropout, batch norm, tail batch, momentum": [],
    "adam": ["optimizer={type: adam, lr: 0.02, amsgrad: true}"],
    "accumulate": ["train.accumulate=3"],
    "schedule and clipping": [
        "schedule={type: cosine, warmup: 5 steps}",
        "train.clip_norm=0.5",
        "optimizer={type: adamw, lr: 0.02}",
    ],
    "reproducible: world": [
        "distributed={reproducible: world, shards: 4}",
        "optimizer={type: adam, lr: 0.02}",
    ],
    "early stopping": [
        "callbacks=[{type: microtrain.train.early_stopping:EarlyStopping, patience: 2}]",
        "optimizer.lr=0.3",
        "train.eval_every=2 steps",
    ],
    "compiled": ["train.compile=numpy"],
    "compiled, accumulate": ["train.compile=numpy", "train.accumulate=3"],
    "compiled, world": ["train.compile=numpy", "distributed={reproducible: world, shards: 4}"],
    "skipping": ["train.nan=skip"],
    "no order": ["train.shuffle=false", "train.drop_last=true"],
    "by the epoch": ["train.eval_every=1 epoch", "checkpoint.every=1 epoch", "log.every=2 steps"],
    "best kept apart": ["checkpoint={every: 7 steps, keep_last: 1, keep_best: 2}"],
}


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Pictures and waiting for the disk take longer than these runs."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr("microtrain.train.trainer.draw", lambda *_: None)
    monkeypatch.setattr("microtrain.train.report.final_report", lambda *_: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, native_code):
    """The facts of uninterrupted runs, each made once."""
    found = {}

    def of(case):
        if case not in found:
            config = write_run(tmp_path_factory.mktemp("whole"))
            trainer = train(config, *ALL[case])
            found[case] = facts(trainer.path), trainer.step
        return found[case]

    return of


SLOW_CASES: dict[str, list[str]] = {
    "native": ["train.compile=numba"],
    "native, accumulate": ["train.compile=numba", "train.accumulate=3", "train.nan=skip"],
    "native, world": ["train.compile=numba", *CASES["compiled, world"][1:]],
    "native, clipped": ["train.compile=numba", *CASES["schedule and clipping"]],
}
ALL = {**CASES, **SLOW_CASES}


def differences(found, expected):
    return {key: (value, expected[key]) for key, value in found.items() if value != expected[key]}


@pytest.mark.parametrize(
    ("case", "crashes"),
    [(case, (4,)) for case in CASES]
    + [pytest.param(case, range(1, 99), marks=pytest.mark.slow) for case in ALL],
)
def test_a_crash_after_any_step_is_as_if_it_had_not_been(tmp_path, whole, case, crashes):
    expected, steps = whole(case)
    config = write_run(tmp_path)
    for crash in (step for step in crashes if step < steps):
        first = train(config, *ALL[case], crash=crash)
        assert first.step == crash
        resumed = train(config, *ALL[case], resume=first.path)
        assert differences(facts(resumed.path), expected) == {}, f"step {crash}"


def test_native_code_is_compiled_once_for_all_runs_of_a_configuration(tmp_path, native_code):
    """Its text names nothing that differs between processes: ranks and resumed runs find it."""
    pytest.importorskip("numba")
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "microtrain"
    config = write_run(tmp_path)
    found = []
    for _ in range(4):
        keep = [bytearray(n * 1000) for n in range(1, 200)]  # other addresses than before
        train(
            config,
            "train.compile=numba",
            "model=linear_regression",
            "optimizer={type: adam, lr: 0.1}",
        )
        found.append(len(list(cache.glob("*.py"))))
        del keep
    assert found[0] == found[-1]
