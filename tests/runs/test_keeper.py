"""Checkpoints written beside the training: when, in which order, and what a failure does."""

from __future__ import annotations

import math
import threading
import time

import pytest

from microtrain.errors import LaunchError
from microtrain.runs import keeper
from microtrain.runs.checkpoint import list_checkpoints, save_checkpoint
from microtrain.runs.directory import Gone
from microtrain.runs.keeper import Saver, prune

MONITOR = "val/loss", "min"


class Disk:
    """A disk that is as slow as `free` says, and remembers what was written."""

    def __init__(self):
        self.written, self.free, self.error = [], threading.Event(), None
        self.began = threading.Event()
        self.free.set()

    def save(self, directory, step):
        self.began.set()
        assert self.free.wait(10)
        if self.error is not None:
            raise self.error
        self.written.append(step)


@pytest.fixture
def disk(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(keeper, "save_checkpoint", disk.save)
    return disk


def saver_in(place, warnings=None, epoch=None):
    warn = pytest.fail if warnings is None else warnings.append
    return Saver(place, 2, 1, MONITOR, warn, lambda: None, epoch)


def test_the_newest_takes_the_place_of_what_waits_unless_that_is_a_best_one(tmp_path, disk):
    saver = saver_in(tmp_path)
    disk.free.clear()
    saver.submit({"step": 1}, best=False)
    assert disk.began.wait(10)
    for step, best in ((2, False), (3, True), (4, False), (5, False)):
        saver.submit({"step": step}, best)
    disk.free.set()
    saver.wait()
    assert disk.written == [1, 3, 5]


def test_auto_is_due_at_the_ends_of_epochs_while_the_disk_is_free(tmp_path, disk):
    saver = saver_in(tmp_path, epoch=25)
    assert [saver.next_step(step) for step in (0, 23, 24, 48, 49)] == [24, 24, 49, 49, 74]
    assert [step for step in range(100) if saver.due(step)] == [24, 49, 74, 99]
    disk.free.clear()
    saver.submit({"step": 25}, best=False)
    time.sleep(0.05)
    assert not saver.due(49)
    disk.free.set()
    saver.wait()
    left = saver._free_at - time.monotonic()
    assert left > 0.8  # nineteen times what it took
    assert not saver.due(49)
    saver._free_at -= left
    assert saver.due(49)


def test_auto_asks_of_short_epochs_every_few_and_others_are_not_asked(tmp_path, disk):
    assert saver_in(tmp_path).next_step(7) == math.inf
    assert not saver_in(tmp_path).due(7)
    for epoch, every in ((1, 16), (5, 20), (16, 16), (17, 17)):
        saver = saver_in(tmp_path, epoch=epoch)
        assert next(step for step in range(50) if saver.due(step)) == every - 1


def test_a_best_one_waits_for_its_time_unless_the_run_ends(tmp_path, disk):
    saver = saver_in(tmp_path, epoch=20)
    saver._free_at = time.monotonic() + 1000
    saver.submit({"step": 3}, best=True)
    assert not disk.began.wait(0.1)
    assert not saver.due(19)
    saver.wait()
    assert disk.written == [3]


def test_a_failure_is_told_once_and_the_end_of_the_directory_ends_the_run(tmp_path, disk):
    warnings = []
    saver = saver_in(tmp_path, warnings)
    disk.error = LaunchError("no space")
    for step in (1, 2):
        saver.submit({"step": step}, best=False)
        saver.wait()
    assert warnings == ["the run continues without a new checkpoint: no space"]
    with pytest.raises(LaunchError, match="no space"):
        saver.save({"step": 3})
    disk.error = Gone("it is gone")
    saver.submit({"step": 4}, best=False)
    saver.wait()
    with pytest.raises(Gone):
        saver.submit({"step": 5}, best=False)
    assert disk.written == []


def test_the_newest_and_the_best_stay_and_have_links(tmp_path):
    for step, value in ((1, 0.5), (2, 0.1), (3, 0.1), (4, 0.3), (5, None)):
        state = {"monitor": list(MONITOR), "monitored": value}
        save_checkpoint(tmp_path, step, model={}, optimizer={}, state=state, config_text="")
    prune(tmp_path, 2, 1, MONITOR)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["2", "4", "5"]
    assert (tmp_path / "best").readlink().name == "step-000002"
    assert (tmp_path / "last").readlink().name == "step-000005"
