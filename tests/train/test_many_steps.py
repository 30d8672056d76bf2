"""Steps that a run takes many of in one native call leave what single ones leave."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from from_python import made, quiet
from resuming import facts

import microtrain as mt
from microtrain.capture.c_compiler import absent
from microtrain.capture.scan import Scan
from microtrain.errors import DivergedError
from microtrain.train.step import executor

pytestmark = pytest.mark.skipif(bool(absent()), reason="needs a C compiler")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 4)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5], [0.1]]) + 0.1).astype(np.float32)
CLASSES = (X @ RNG.standard_normal((4, 3))).argmax(1)
IGNORED = np.where(np.arange(200) < 180, 0, CLASSES)
WORDS = RNG.integers(0, 7, (200, 3))


class Words(mt.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = mt.nn.Embedding(7, 4)
        self.last = mt.nn.Linear(12, 1)

    def forward(self, x: Any) -> Any:
        return self.last(self.embedding(x).flatten(1))


class Noise(mt.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 0.1 * mt.randn_like(x)


def net(out: int = 1, *more: Any) -> mt.nn.Module:
    return mt.nn.Sequential(mt.nn.Linear(4, 6), *more, mt.nn.Tanh(), mt.nn.Linear(6, out))


def halved(step: int, total: int) -> float:
    return 0.5 ** (step // 7)


def of_some(prediction: Any, target: Any) -> Any:
    return ((prediction[:5] - target[:5]) ** 2).mean()


class Epochs(mt.train.Callback):
    """Keeps what the run's batches say of their epoch."""

    interval = "9 steps"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step(self, trainer: Any) -> None:
        self.seen.append(trainer.loader.epoch)

    def state_dict(self) -> Any:
        return {"seen": self.seen}


class Seeds(Epochs):
    """Sets another seed for the passes to come."""

    def on_step(self, trainer: Any) -> None:
        trainer.loader.seed = trainer.step


class Enough(mt.train.Callback):
    """Asks for the end after the next step."""

    interval = "35 steps"

    def on_step(self, trainer: Any) -> None:
        trainer.stop("enough")


class Another(Epochs):
    """Begins a pass of its own over the run's batches."""

    def on_step(self, trainer: Any) -> None:
        super().on_step(trainer)
        ((x, _),) = next(iter(trainer.loader.steps()))
        self.seen.append(x.numpy().sum().item())


SGD: dict[str, Any] = {"optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9}}
TINY: dict[str, Any] = {"optimizer": {"type": "sgd", "lr": 1e-3}}
ADAM: dict[str, Any] = {"optimizer": {"type": "adam", "lr": 0.01}}
CROSS: dict[str, Any] = {"loss": "cross_entropy", "metrics": ["accuracy"]}
# name -> model, data, settings, and whether many steps are taken at once.
RUNS: dict[str, tuple[Any, Any, dict[str, Any], bool]] = {
    "sgd": (net, (X, Y), SGD, True),
    "adam": (net, (X, Y), ADAM, True),
    "nadam": (net, (X, Y), {"optimizer": {"type": "nadam", "lr": 0.01}}, True),
    "whole batches": (net, (X, Y), {**ADAM, "batch_size": 20}, True),
    "cosine": (net, (X, Y), {**ADAM, "schedule": {"type": "cosine", "warmup": "5 steps"}}, True),
    "linear to 0": (net, (X, Y), {**SGD, "schedule": {"type": "linear"}}, True),
    "own schedule": (net, (X, Y), {**SGD, "schedule": halved}, True),
    "classes": (lambda: net(3), (X, CLASSES), {**ADAM, **CROSS}, True),
    "class weights": (
        lambda: net(3), (X, CLASSES),
        {**SGD, "loss": {"type": "cross_entropy", "weight": [1.0, 2.0, 0.5]}}, True,
    ),
    "batches of which nothing counts": (
        lambda: net(3), (X, IGNORED),
        {**SGD, "loss": {"type": "cross_entropy", "ignore_index": 0}, "batch_size": 4}, True,
    ),
    "batch norm": (lambda: net(1, mt.nn.BatchNorm1d(6)), (X, Y), SGD, True),
    "embedding": (Words, (WORDS, Y), ADAM, True),
    "in order": (net, (X, Y), {**SGD, "shuffle": False, "drop_last": True}, True),
    "itself": (lambda: net(4), (X, X), {**SGD, "shuffle": False}, True),
    "rare looks": (net, (X, Y), {**SGD, "eval_every": "17 steps"}, True),
    "look at all": (net, (X, Y), {**SGD, "eval_every": "1 steps"}, True),
    "micro-batches": (net, (X, Y), {**SGD, "accumulate": 2}, False),
    "clipped": (net, (X, Y), {**SGD, "clip_norm": 0.5}, False),
    "dropout": (lambda: net(1, mt.nn.Dropout(0.3)), (X, Y), SGD, True),
    "two dropouts, whole batches": (
        lambda: net(3, mt.nn.Dropout(0.3), mt.nn.AlphaDropout(0.2)), (X, CLASSES),
        {**ADAM, **CROSS, "batch_size": 20, "eval_every": "17 steps"}, True,
    ),
    "noise": (lambda: net(1, Noise()), (X, Y), SGD, False),
    "a loss of some rows": (net, (X, Y), {**SGD, "loss": of_some}, True),
    "epochs": (net, (X, Y), {**SGD, "callbacks": [Epochs]}, True),
    "another pass": (net, (X, Y), {**SGD, "callbacks": [Another]}, True),
    "seeds": (net, (X, Y), {**SGD, "callbacks": [Seeds]}, True),
    "stopped": (net, (X, Y), {**SGD, "callbacks": [Enough]}, True),
    "passes of one batch": (
        net, (X[:20], Y[:20]), {**ADAM, "duration": "90 epochs", "eval_every": "17 steps"}, True,
    ),
    "sums": (net, (X, Y), {**TINY, "loss": mt.nn.MSELoss(reduction="sum")}, False),
}  # fmt: skip


class Spy:
    """How many steps were taken at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, call = 0, Scan.__call__

        def counted(scan: Scan, *arguments: Any) -> Any:
            found = call(scan, *arguments)
            self.steps += len(found[0])
            return found

        monkeypatch.setattr(Scan, "__call__", counted)


def trained(place: Path, name: str, **more: Any) -> mt.train.Trainer:
    make, data, settings, _ = RUNS[name]
    mt.manual_seed(1)
    settings = {"batch_size": 16, "split": {"train": 0.8, "val": 0.2}, **settings, **more}
    settings = {"duration": "20 epochs", **settings}
    settings["callbacks"] = [
        one() if isinstance(one, type) else one for one in settings.get("callbacks", ())
    ]
    return made(place, make(), data, compile="native", **settings)


@pytest.mark.daily(
    *("adam", "cosine", "class weights", "nothing counts", "batch norm", "embedding", "itself"),
    *("micro-batches", "two dropouts", "some rows", "epochs", "another pass", "stopped"),
)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch)
    many = trained(tmp_path / "many", name)
    many.train()
    assert (spy.steps > 10) is RUNS[name][-1]
    monkeypatch.setattr(executor, "MOST", 0)
    before = spy.steps
    single = trained(tmp_path / "single", name)
    single.train()
    assert spy.steps == before
    assert facts(many.path) == facts(single.path)


def test_a_run_of_many_steps_is_resumed(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", "cosine")
    whole.train()
    settings: dict[str, Any] = {"checkpoint": {"every": "11 steps", "keep_last": 9}}
    part = trained(tmp_path / "part", "cosine", **settings)
    part.callbacks.append(Stop())
    assert part.train() == 75
    rest = trained(tmp_path / "part", "cosine", resume=part.path, **settings)
    rest.train()
    found, expected = facts(rest.path), facts(whole.path)
    for key in ("params_sha256", "optimizer", "metrics", "state of random", "state of progress"):
        assert found[key] == expected[key]


class Stop(mt.train.Callback):
    """Asks for the end after step 22, as SIGUSR1 does."""

    def due(self, trainer: Any, step: int) -> float:
        return 22 if step < 22 else float("inf")

    def on_pause(self, trainer: Any, event: Any) -> None:
        if event.step == 22:
            os.kill(os.getpid(), signal.SIGUSR1)


class Worse(mt.train.Callback):
    """Puts a number that is not finite among the rows, which batches are copies of."""

    def on_start(self, trainer: Any) -> None:
        x = trainer.loader._arrays[0]
        x.flags.writeable = True
        x[77] = np.nan


@pytest.mark.parametrize("name", ["sgd", "classes", "batch norm"])
def test_divergence_between_looks_is_told_as_of_single_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, left = [], []
    spy = Spy(monkeypatch)
    for most in (4096, 0):
        monkeypatch.setattr(executor, "MOST", most)
        run = trained(tmp_path / str(most), name, eval_every="50 steps", callbacks=[Worse()])
        with pytest.raises(DivergedError) as caught:
            run.train()
        told.append(re.sub(r"rank 0 .*", "", str(caught.value)))
        left.append([one.numpy().tobytes() for one in run.model.state_dict().values()])
    assert spy.steps
    assert told[0] == told[1]
    assert left[0] == left[1]


def test_an_index_out_of_bounds_is_told_as_of_single_steps(tmp_path: Path) -> None:
    wrong = WORDS.copy()
    wrong[77, 1] = 9
    run = made(
        tmp_path, Words(), (wrong, Y), compile="native", duration="3 epochs", batch_size=16,
        output=quiet(), **ADAM,
    )  # fmt: skip
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 7"):
        run.train()


def test_draws_behind_many_steps_are_those_of_the_last_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[Any]] = []

    class Draw(mt.train.Callback):
        interval = "9 steps"

        def on_step(self, trainer: Any) -> None:
            drawn[-1].append(mt.rand(trainer.loader.global_size).tolist())

    for most in (4096, 0):
        monkeypatch.setattr(executor, "MOST", most)
        drawn.append([])
        trained(tmp_path / str(most), "sgd", callbacks=[Draw()]).train()
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 22
