"""The list of callbacks is what is done between steps; one more is one class and one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from resuming import Crash, CrashAt, write_run

from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.runs.checkpoint import list_checkpoints
from microtrain.train.callbacks.base import Callback, Ending, Event
from microtrain.train.callbacks.order import CALLBACKS
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer


class Journal(Callback):
    """Notes every call, and counts the pauses over a resume."""

    state_name = "journal"

    def __init__(self):
        self.calls, self.pauses = [], 0

    def on_build(self, trainer):
        trainer.journal = self

    def due(self, trainer, step):
        return (step // 7 + 1) * 7

    def on_start(self, trainer):
        self.calls.append("start")

    def on_pause(self, trainer, event: Event):
        self.pauses += 1
        self.calls.append((event.step, event.last, sorted(event.measured)))

    def on_end(self, trainer, ending: Ending):
        self.calls.append(("end", ending.finished))

    def on_error(self, trainer, error):
        self.calls.append(type(error).__name__)

    def state_dict(self):
        return {"pauses": self.pauses}

    def load_state_dict(self, state):
        self.pauses = state["pauses"]


def trainer_of(
    folder: Path, comm=None, resume=None, kinds=(*CALLBACKS, Journal), crash=None
) -> Trainer:
    class Observed(Trainer):
        callback_types = kinds

    settings = load_config(folder / "run.yaml", [f"run_dir={folder / 'runs'}"], trust=True)
    comm = comm or SingleCommunicator()
    output = Output(comm.rank, progress="off")
    trainer = Observed.from_config(settings, comm, output, resume=resume)
    if crash is not None:
        trainer.callbacks.insert(0, CrashAt(crash))
    return trainer


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_called_on_every_rank_at_equal_points(tmp_path, ranks):
    write_run(tmp_path)

    def on(comm):
        trainer = trainer_of(tmp_path, comm)
        trainer.train()
        return trainer.journal.calls

    calls = in_process.run(ranks, on)
    assert calls == calls[:1] * ranks
    assert calls[0][0] == "start" and calls[0][-1] == ("end", True)
    steps = {step: (last, measured) for step, last, measured in calls[0][1:-1]}
    assert {7, 14, 21} <= {*steps}  # as it asked to
    assert steps[23] == (True, ["val/loss", "val/r2"])  # what those before it have found
    assert steps[4] == (False, ["val/loss", "val/r2"]) and steps[7] == (False, [])


def test_its_state_is_in_the_checkpoint_under_its_name(tmp_path):
    write_run(tmp_path)
    first = (Journal, *CALLBACKS)  # before the one that writes the checkpoint
    whole = trainer_of(tmp_path, kinds=first)
    whole.train()
    trainer = trainer_of(tmp_path, kinds=first, crash=11)
    with pytest.raises(Crash):
        trainer.train()
    assert trainer.journal.calls[-1] == "Crash"
    newest = list_checkpoints(trainer.path / "checkpoints")[-1]
    assert json.loads((newest / "state.json").read_text())["journal"]["pauses"] > 0
    again = trainer_of(tmp_path, resume=trainer.path, kinds=first)
    again.train()
    assert again.journal.pauses == whole.journal.pauses


def test_one_that_the_run_did_not_have_before_starts_afresh(tmp_path):
    write_run(tmp_path)
    trainer = trainer_of(tmp_path, kinds=CALLBACKS, crash=11)
    with pytest.raises(Crash):
        trainer.train()
    again = trainer_of(tmp_path, resume=trainer.path)
    again.train()
    assert again.journal.calls[-1] == ("end", True)
