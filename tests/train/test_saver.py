"""Checkpoints written beside the training: when, in which order, and what a failure does."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from microtrain.errors import LaunchError
from microtrain.runs.checkpoint import list_checkpoints, prune, save_checkpoint
from microtrain.runs.directory import Gone
from microtrain.runs.metrics import Unwritten
from microtrain.train.callbacks import checkpoints as saver
from microtrain.train.callbacks.checkpoints import Saver

MONITOR = "val/loss", "min"


class Disk:
    """A disk that is as slow as `free` says, and remembers what was written."""

    def __init__(self):
        self.written, self.error, self.memory = [], None, []
        self.began, self.free = threading.Event(), threading.Event()
        self.free.set()

    def save(self, directory, step, model=None, optimizer=None):
        self.began.set()
        assert self.free.wait(10)
        if model:
            self.memory.append(model["w"])
            step = float(model["w"][0])
        if self.error is not None:
            raise self.error
        self.written.append(step)


def state(step, **arrays):
    return {"step": step, "model": arrays, "optimizer": {}}


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(saver, "save_checkpoint", disk.save)
    return disk


def saver_in(place, warnings=None, epoch=None, ahead=1):
    """Of a run of epochs of `epoch` steps; None: others say when."""
    keep = SimpleNamespace(every="auto" if epoch else "9 steps", keep_last=2, keep_best=1)
    nothing = SimpleNamespace(checkpoints=place, sync=lambda: None, note_checkpoint=lambda: None)
    run = SimpleNamespace(
        directory=nothing, config=SimpleNamespace(checkpoint=keep), steps_per_epoch=epoch or 9,
        comm=SimpleNamespace(size=1 + ahead), state=SimpleNamespace(monitor=MONITOR),
        output=SimpleNamespace(warn=pytest.fail if warnings is None else warnings.append),
    )  # fmt: skip
    return Saver(run)


def test_the_newest_takes_the_place_of_what_waits_unless_that_is_a_best_one(tmp_path, disk):
    saver = saver_in(tmp_path)
    disk.free.clear()
    saver.submit(state(1), best=False)
    assert disk.began.wait(10)
    for step, best in ((2, False), (3, True), (4, True), (5, False), (6, False)):
        saver.submit(state(step), best)
    disk.free.set()
    saver.wait()
    assert disk.written == [1, 4, 6]


def test_auto_is_due_at_the_ends_of_epochs_while_the_disk_is_free(tmp_path, disk):
    saver = saver_in(tmp_path, epoch=25)
    assert [saver.next_step(step) for step in (0, 23, 24, 48, 49)] == [24, 24, 49, 49, 74]
    assert [step for step in range(100) if saver.due(step)] == [24, 49, 74, 99]
    disk.free.clear()
    saver.submit(state(25), best=False)
    time.sleep(0.05)
    assert not saver.due(49)
    before = time.monotonic()
    disk.free.set()
    saver.wait()
    assert saver._free_at - before > 0.9  # nineteen times what it took, from then on
    saver._free_at = time.monotonic() + 600
    assert not saver.due(49)
    saver._free_at = time.monotonic()
    assert saver.due(49)


def test_auto_asks_of_short_epochs_every_few_and_others_are_not_asked(tmp_path, disk):
    assert saver_in(tmp_path).next_step(7) == math.inf
    assert not saver_in(tmp_path).due(7)
    for epoch, every in ((1, 16), (5, 20), (16, 16), (17, 17)):
        saver = saver_in(tmp_path, epoch=epoch)
        assert next(step for step in range(50) if saver.due(step)) == every - 1


def test_without_other_ranks_auto_is_asked_at_the_ends_themselves(tmp_path, disk):
    saver = saver_in(tmp_path, epoch=25, ahead=0)
    assert [saver.next_step(step) for step in (0, 24, 25, 49, 50)] == [25, 25, 50, 50, 75]
    assert [step for step in range(1, 101) if saver.due(step)] == [25, 50, 75, 100]


@pytest.mark.parametrize("epoch", [20, None])
def test_the_best_is_written_with_the_next_checkpoint_and_before_it(tmp_path, disk, epoch):
    saver = saver_in(tmp_path, epoch=epoch)
    for step in (2, 3):  # only the better one is ever written
        saver.submit(state(step), best=True, save=False)
    assert not disk.began.wait(0.1)
    saver.submit(state(4), best=False)
    saver.wait()
    assert disk.written == [3, 4]
    saver.submit(state(5), best=True, save=False)
    saver.save(state(6))
    assert disk.written == [3, 4, 5, 6]


def test_a_checkpoint_that_waits_is_written_where_a_better_state_takes_its_place(tmp_path, disk):
    saver = saver_in(tmp_path)
    disk.free.clear()
    saver.submit(state(1), best=False)
    assert disk.began.wait(10)
    saver.submit(state(2), best=False)
    saver.submit(state(3), best=True, save=False)
    disk.free.set()
    saver._thread.join()  # nobody asks for the best
    assert disk.written == [1, 3]


def test_what_is_written_is_the_state_as_it_was_submitted(tmp_path, disk):
    saver, live = saver_in(tmp_path), np.array([1.0, 0.0])
    disk.free.clear()
    saver.submit(state(1, w=live), best=True)
    live[0] = 2.0  # the next step of the training
    saver.submit(state(2, w=live), best=True)
    live[0] = 3.0
    disk.free.set()
    saver.wait()
    saver.save(state(3, w=live))  # nobody trains any more: no copy
    assert disk.written in ([1.0, 2.0, 3.0], [2.0, 3.0])
    assert disk.memory[-1] is live


def test_a_failure_is_told_once_and_the_end_of_the_directory_ends_the_run(tmp_path, disk):
    warnings = []
    saver = saver_in(tmp_path, warnings)
    disk.error = LaunchError("no space")
    for step in (1, 2):
        saver.submit(state(step), best=False)
        saver.wait()
    assert warnings == ["the run continues without a new checkpoint: no space"]
    with pytest.raises(LaunchError, match="no space"):
        saver.save(state(3))
    disk.error = Gone("it is gone")
    saver.submit(state(4), best=False)
    saver.wait()
    with pytest.raises(Gone):
        saver.submit(state(5), best=False)
    assert disk.written == []


def test_a_row_that_cannot_be_written_is_no_failure_of_a_checkpoint(tmp_path, disk):
    """The run ends with one message, its own."""
    saver = saver_in(tmp_path)  # any warning fails
    disk.error = Unwritten("cannot write metrics.jsonl")
    saver.submit(state(1), best=False)
    saver.wait()
    with pytest.raises(LaunchError, match=r"cannot write metrics\.jsonl"):
        saver.submit(state(2), best=False)


def test_the_newest_and_the_best_stay_and_have_links(tmp_path):
    for step, value in ((1, 0.5), (2, 0.1), (3, 0.1), (4, 0.3), (5, None)):
        kept = {"monitor": list(MONITOR), "monitored": value}
        save_checkpoint(tmp_path, step, model={}, optimizer={}, state=kept, config_text="")
    prune(tmp_path, 2, 1, MONITOR)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["2", "4", "5"]
    assert (tmp_path / "best").readlink().name == "step-000002"
    assert (tmp_path / "last").readlink().name == "step-000005"
