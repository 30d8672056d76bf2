"""Callbacks: when each hook is called, on which ranks, and what a checkpoint keeps of them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

X = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
Y = 2 * X + 3


def trainer(place: Path, *callbacks: Any, comm: Any = None, **settings: Any) -> Trainer:
    """20 steps in 4 epochs of 5, evaluated after each epoch."""
    given = {"duration": "4 epochs", "batch_size": 6, "split": {"train": 0.75, "val": 0.25}}
    mt.manual_seed(0)
    return Trainer(
        mt.nn.Linear(1, 1),
        (X, Y),
        loss="mse",
        optimizer={"type": "sgd", "lr": 0.05},
        comm=comm or SingleCommunicator(),
        output=Output(stream=io.StringIO(), errors=io.StringIO()),
        run_dir=str(place),
        callbacks=list(callbacks),
        **{**given, **settings},
    )


class Noting(mt.train.Callback):
    def __init__(self, interval: str = "1000 steps", main_only: bool = False) -> None:
        self.interval, self.main_only = interval, main_only
        self.seen: list[Any] = []

    def on_start(self, trainer: Trainer) -> None:
        self.seen.append(("start", trainer.step))

    def on_step(self, trainer: Trainer) -> None:
        self.seen.append(("step", trainer.step))

    def on_epoch(self, trainer: Trainer) -> None:
        self.seen.append(("epoch", trainer.step))

    def on_eval(self, trainer: Trainer, measured: dict[str, float]) -> None:
        self.seen.append(("eval", trainer.step, *measured))

    def on_save(self, trainer: Trainer, path: Path) -> None:
        self.seen.append(("save", trainer.step, path.name))

    def on_error(self, trainer: Trainer, error: BaseException) -> None:
        self.seen.append(("error", trainer.step, type(error).__name__))

    def on_stop(self, trainer: Trainer) -> None:
        self.seen.append(("stop", trainer.step))

    def state_dict(self) -> dict[str, Any]:
        return {"seen": len(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = [("resumed", state["seen"])]


def test_every_hook_is_called_when_it_is_due(tmp_path: Path) -> None:
    noting = Noting("7 steps")
    assert trainer(tmp_path, noting).train() == 0
    at = {}
    for what, *when in noting.seen:
        at.setdefault(what, []).append(when[0])
    assert at["start"] == [0] and at["stop"] == [20] and "error" not in at
    assert at["step"] == [7, 14]
    assert at["epoch"] == at["eval"] == [5, 10, 15, 20]
    assert set(at["save"]) == {5, 10, 15, 20}
    assert ("eval", 20, "train/loss", "val/loss") in noting.seen
    assert noting.seen[-2:] == [("save", 20, "step-000020"), ("stop", 20)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_on_log_gets_every_row_that_is_written_on_rank_0_alone(tmp_path: Path, ranks: int) -> None:
    heard: list[tuple[int, dict[str, Any]]] = []

    class Hearing(mt.train.Callback):
        def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
            heard.append((trainer.comm.rank, row))

    split = {"train": 0.6, "val": 0.2, "test": 0.2}
    in_process.run(ranks, lambda comm: trainer(tmp_path, Hearing(), comm=comm, split=split).train())
    (metrics,) = tmp_path.glob("run/2*/metrics.jsonl")
    written = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row for _, row in heard] == written
    assert {row["split"] for row in written} == {"train", "val", "test"}
    assert {rank for rank, _ in heard} == {0}


def test_a_collective_in_on_log_is_an_error_and_no_hang(tmp_path: Path) -> None:
    class Asking(mt.train.Callback):
        def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
            trainer.comm.barrier()

    with pytest.raises(Exception, match="on_log is called on rank 0 alone"):
        in_process.run(2, lambda comm: trainer(tmp_path, Asking(), comm=comm).train())


@pytest.mark.parametrize(("interval", "steps"), [("1 epoch", 5), ("50%", 10), ("3 steps", 3)])
def test_intervals(tmp_path: Path, interval: str, steps: int) -> None:
    noting = Noting(interval)
    trainer(tmp_path, noting).train()
    called = [seen[1] for seen in noting.seen if seen[0] == "step"]
    assert called == list(range(steps, 21, steps))


def test_a_function_and_its_interval(tmp_path: Path) -> None:
    losses = []

    @mt.train.every("10 steps")
    def note(trainer: Trainer) -> None:
        losses.append(trainer.model.loss)

    trainer(tmp_path, note).train()
    assert len(losses) == 2 and losses[1] < losses[0]


def test_main_only_is_rank_0_and_refuses_collectives(tmp_path: Path) -> None:
    def run(comm: Any) -> list[Any]:
        everywhere, main = Noting("5 steps"), Noting("5 steps", main_only=True)
        trainer(tmp_path, everywhere, main, comm=comm).train()
        return [[s for s in each.seen if s[0] != "save"] for each in (everywhere, main)]

    (first, main), (second, nothing) = in_process.run(2, run)
    assert first == second == main and main and not nothing

    class Talks(mt.train.Callback):
        interval, main_only = "5 steps", True

        def on_step(self, trainer: Trainer) -> None:
            trainer.comm.barrier()

    with pytest.raises(RuntimeError, match=r"barrier\(\): the other ranks .* Talks is main_only"):
        trainer(tmp_path, Talks()).train()  # on one rank already


def test_stop_ends_the_run_as_finished(tmp_path: Path) -> None:
    class Enough(mt.train.Callback):
        def on_eval(self, trainer: Trainer, measured: dict[str, float]) -> None:
            if trainer.step == 10:
                trainer.stop("enough")

    run = trainer(tmp_path, Enough())
    assert run.train() == 0
    assert run.step == 10
    info = (run.path / "run.json").read_text()
    assert '"status": "finished"' in info and '"exit_code": 0' in info


def test_a_stop_before_the_first_step_ends_the_run_after_it(tmp_path: Path) -> None:
    class Enough(mt.train.Callback):
        def on_build(self, trainer: Trainer) -> None:
            trainer.stop("enough")

    run = trainer(tmp_path, Enough())
    assert (run.train(), run.step) == (0, 1)
    assert '"status": "finished"' in (run.path / "run.json").read_text()


def test_one_rank_can_stop_all(tmp_path: Path) -> None:
    def run(comm: Any) -> int:
        class Enough(mt.train.Callback):
            interval, main_only = "1 step", True

            def on_step(self, trainer: Trainer) -> None:
                if trainer.step == 7:
                    trainer.stop("enough")

        found = trainer(tmp_path, Enough(), comm=comm)
        assert found.train() == 0
        return found.step

    assert in_process.run(3, run) == [8, 8, 8]  # told with the gradient of the next step


def test_an_error_is_told_and_stays(tmp_path: Path) -> None:
    class Fails(mt.train.Callback):
        interval = "3 steps"

        def on_step(self, trainer: Trainer) -> None:
            raise ZeroDivisionError("here")

    noting = Noting()
    run = trainer(tmp_path, noting, Fails())
    with pytest.raises(ZeroDivisionError, match="here"):
        run.train()
    assert noting.seen[-1] == ("error", 3, "ZeroDivisionError")
    assert '"status": "failed"' in (run.path / "run.json").read_text()


def test_run_json_has_the_exit_code_of_the_process(tmp_path: Path) -> None:
    def leave(trainer: Trainer) -> None:
        sys.exit(3)

    run = trainer(tmp_path, mt.train.every("3 steps")(leave))
    with pytest.raises(SystemExit):
        run.train()
    found = json.loads((run.path / "run.json").read_text())
    assert (found["status"], found["exit_code"]) == ("failed", 3)


def test_state_goes_through_a_checkpoint(tmp_path: Path) -> None:
    first = Noting()
    run = trainer(tmp_path, first, duration="2 epochs")
    run.train()
    kept = next(n for n, seen in enumerate(first.seen) if seen[0] == "stop") - 1
    second = Noting()
    again = trainer(tmp_path, second, resume=run.path)
    again.train()
    assert second.seen[0] == ("resumed", kept)
    assert second.seen[1] == ("start", 10) and again.step == 20


class At(mt.train.Callback):
    """Has a state from a step on."""

    interval = "1 step"

    def __init__(self, step: int) -> None:
        self.step, self.seen = step, 0

    def on_step(self, trainer: Trainer) -> None:
        self.seen += trainer.step == self.step

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen} if self.seen else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_a_callback_that_has_no_state_yet_does_not_get_that_of_another_of_its_class(
    tmp_path: Path,
) -> None:
    run = trainer(tmp_path, At(18), At(3), duration="2 epochs")
    run.train()
    callbacks = At(18), At(3)
    trainer(tmp_path, *callbacks, resume=run.path).train()
    assert [each.seen for each in callbacks] == [1, 1]


class Never(mt.train.Callback):
    def on_step(self, trainer: Any) -> None:
        raise AssertionError("called")


class Elsewhere(mt.train.Callback):
    def on_epoch_end(self, trainer: Any) -> None:
        raise AssertionError("called")


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (object(), "object is not a callback: derive it from microtrain.train.Callback"),
        (Noting("5 min"), "expected an interval in steps or epochs"),
        (Noting("often"), "not a duration"),
        (Noting(5), "in steps or epochs such as `100 steps`, got 5"),  # type: ignore[arg-type]
        (Noting, "callback Noting is a class; give an instance"),
        (Never(), "Never: on_step has no interval"),
        (Elsewhere(), "Elsewhere: on_epoch_end is not one of the hooks .*; did you mean on_epoch"),
    ],
)
def test_what_is_no_callback_is_refused(tmp_path: Path, callback: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        trainer(tmp_path, callback)
    assert not list(tmp_path.iterdir())


def test_every_refuses_minutes() -> None:
    with pytest.raises(ValueError, match="in steps or epochs"):
        mt.train.every("5 min")
    with pytest.raises(ValueError, match="in steps or epochs such as `100 steps`, got <function"):

        @mt.train.every  # type: ignore[arg-type]
        def watch(trainer: Any) -> None: ...


def test_what_on_step_does_to_the_model_is_measured_at_that_step(tmp_path: Path) -> None:
    measured: list[float] = []

    class Zero(mt.train.Callback):
        interval = "1 step"

        def on_step(self, trainer: Trainer) -> None:
            for parameter in trainer.model.parameters():
                parameter._array[...] = 0

        def on_eval(self, trainer: Trainer, values: dict[str, float]) -> None:
            measured.append(values["val/loss"])

    run = trainer(tmp_path, Zero(), eval_every="5 steps")
    run.train()
    val = run.data.val
    assert val is not None and len(measured) == 4
    np.testing.assert_allclose(measured, np.mean(np.square(val.arrays[1])), rtol=1e-6)
