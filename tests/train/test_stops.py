"""What was decided outlives a kill: the end of a run, and of one that was asked to stop.

A run is forked and killed after every n-th thing that it does to a file at its end; what a resume
then makes of it is what the run that nobody killed has left.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

import pytest
from pace import daily
from resuming import RUN, Crash, CrashAt, facts, metrics, write_run

from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import LaunchError
from microtrain.runs.checkpoint import list_checkpoints
from microtrain.runs.directory import RunDirectory, newest_run
from microtrain.train.callbacks import checkpoints
from microtrain.train.callbacks.base import Callback
from microtrain.train.callbacks.checkpoints import contents
from microtrain.train.console import Output
from microtrain.train.resume import choose_run
from microtrain.train.trainer import Trainer

TESTED = "data.split={train: 0.75, val: 0.125, test: 0.125}"
SYSTEM = {"rename", "replace", "unlink", "mkdir", "rmdir", "symlink", "ftruncate"}

CODE = """
class Asks(mt.train.Callback):
    interval = "1 step"

    def __init__(self, step, rank=None, hook="on_step"):
        self.step, self.rank, self.hook = step, rank, hook

    def _ask(self, hook, trainer):
        if (trainer.step, hook) == (self.step, self.hook):
            if self.rank in (None, trainer.comm.rank):
                trainer.stop("good enough")

    def on_step(self, trainer):
        self._ask("on_step", trainer)

    def on_eval(self, trainer, measured):
        self._ask("on_eval", trainer)

    def on_save(self, trainer, path):
        self._ask("on_save", trainer)
"""

KILLED_AT_SIX = """
class Killed(mt.train.Callback):
    def on_save(self, trainer, path):
        if trainer.step == 6:
            while not path.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
"""

STOPPING = {"type": "microtrain.train.callbacks.early_stopping:EarlyStopping", "patience": 2}
#: settings, and from which step on the run is killed
CASES = {
    "the last step": (["train.duration=7 steps"], 6),
    "early stopping": (
        [f"callbacks=[{json.dumps(STOPPING)}]", "optimizer.lr=0.3", "train.eval_every=2 steps"], 1,
    ),
    "a callback, at a checkpoint": (["callbacks=[{type: HERE/net.py:Asks, step: 6}]"], 6),
    "a callback, between them": (["callbacks=[{type: HERE/net.py:Asks, step: 7}]"], 6),
    "a callback, at an evaluation": (
        ["callbacks=[{type: HERE/net.py:Asks, step: 8, hook: on_eval}]"], 6,
    ),
    "one rank's callback": (["callbacks=[{type: HERE/net.py:Asks, step: 6, rank: 1}]"], 6),
}  # fmt: skip
STEPS = {"the last step": 7, "early stopping": 6, "a callback, between them": 8,
         "a callback, at an evaluation": 8}  # fmt: skip


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """A killed process leaves all that it had written: waiting for the disk changes nothing."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr("microtrain.report.page.write_plots", lambda *_: None)


class Kill(Callback):
    """Counts what is done to files from a step on; kills this process after the n-th."""

    def __init__(self, step, n):
        self.at, self.left = step, n
        self.done = 0
        self.lock = threading.Lock()

    def due(self, trainer, step):
        return self.at

    def on_pause(self, trainer, event):
        if event.step == self.at and trainer.comm.rank == 0:
            threading.setprofile(self._seen)  # of the saver
            sys.setprofile(self._seen)

    def _seen(self, frame, event, function):
        if event != "c_return":
            return
        name, owner = function.__name__, getattr(function, "__self__", None)
        file = isinstance(owner, io.IOBase) and isinstance(getattr(owner, "name", 0), str | Path)
        if not ((name == "flush" and file) or (name in SYSTEM and function.__module__ == "posix")):
            return
        with self.lock:
            self.done += 1
            if self.done == self.left:
                os.kill(os.getpid(), signal.SIGKILL)


def configuration(folder, case):
    config = write_run(folder, RUN)
    with open(folder / "net.py", "a") as file:
        file.write(CODE)
    more = [each.replace("HERE", str(folder)) for each in CASES[case][0]]
    return config, (f"run_dir={folder / 'runs'}", TESTED, *more)


def run(config, settings, ranks, extra=None):
    """`train --resume auto` in this process; its Trainer, or None where nothing was left to do."""

    def on(comm):
        given = load_config(config, settings, trust=True)
        place, _, code = choose_run(given, "auto", comm)
        if code is not None:
            return None
        with open(os.devnull, "w") as nowhere:
            trainer = Trainer.from_config(
                given, comm, Output(comm.rank, stream=nowhere), resume=place
            )
            if extra is not None:
                trainer.callbacks.insert(0, extra())
            trainer.train()
        return trainer

    return on(SingleCommunicator()) if ranks == 1 else in_process.run(ranks, on)[0]


def killed(config, settings, ranks, step, n):
    """A run in a process of its own, killed; how much it had done to files if it was not."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            kills = []

            def kill():
                mine = Kill(step, n)
                kills.append(mine)
                return mine

            run(config, settings, ranks, kill)
            os.write(writes, str(sum(each.done for each in kills)).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writes)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reads) as pipe:
        done = pipe.read()
    assert os.WIFSIGNALED(status) == (not done), (status, done)
    return int(done) if done else None


def differences(found, expected):
    return {key: (value, expected[key]) for key, value in found.items() if value != expected[key]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The facts of runs that nobody killed, and how often they touch files; each made once."""
    made = {}

    def of(case, ranks):
        if (case, ranks) not in made:
            config, settings = configuration(tmp_path_factory.mktemp("whole"), case)
            points = killed(config, settings, ranks, CASES[case][1], 0)
            made[case, ranks] = facts(newest_run(config.parent / "runs" / "small")), points
        return made[case, ranks]

    return of


@pytest.mark.daily("some-2-early stopping")
@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize("case", daily(CASES, "early stopping", "a callback, between them"))
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "every", [pytest.param(23, id="some"), pytest.param(1, id="each", marks=pytest.mark.slow)]
)
def test_a_kill_at_the_end_changes_nothing(tmp_path, whole, case, ranks, every):
    if case == "one rank's callback" and ranks == 1:
        pytest.skip("there is no rank 1")
    expected, points = whole(case, ranks)
    assert expected["status"] == "finished" and points > 20
    assert expected["steps"] == STEPS.get(case, 7)
    tests = [row for row in expected["metrics"] if row["split"] == "test"]
    assert len(tests) == 1
    for n in range(1, points + 1, every):
        config, settings = configuration(tmp_path / str(n), case)
        if killed(config, settings, ranks, CASES[case][1], n) is not None:
            continue  # a thread was faster this time
        run(config, settings, ranks)
        found = facts(newest_run(config.parent / "runs" / "small"))
        assert differences(found, expected) == {}, f"killed at {n} of {points}"


def test_a_disk_that_is_full_for_the_last_file(tmp_path, whole, monkeypatch):
    """Nothing but run.json is missing: the resumed run takes no further step."""
    expected, _ = whole("early stopping", 1)
    config, settings = configuration(tmp_path, "early stopping")
    update = RunDirectory.update

    def full(self, **fields):
        if fields.get("status", "running") != "running":
            raise LaunchError(f"cannot write run.json in {self.path}: {os.strerror(errno.ENOSPC)}")
        update(self, **fields)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "update", full)
        with pytest.raises(LaunchError, match=r"cannot write run\.json .*No space left"):
            run(config, settings, 1)
    found = newest_run(tmp_path / "runs" / "small")
    assert json.loads((found / "run.json").read_text())["status"] == "running"
    run(config, settings, 1)
    assert differences(facts(found), expected) == {}


@pytest.mark.parametrize("ended", [True, False])
def test_a_time_that_has_run_out_is_not_begun_again(tmp_path, monkeypatch, ended):
    """`duration` in minutes: the end is kept, and what is over before a resume ends it at once."""
    monkeypatch.setattr("microtrain.train.run.POLL", 0.001)
    config, settings = configuration(tmp_path, "the last step")
    settings = (*settings[:-1], f"callbacks=[{tmp_path}/net.py:Slow]", "train.duration=0.002 min")
    monkeypatch.setattr(
        "microtrain.train.callbacks.results.Results._write_down", crash_before_run_json
    )
    with pytest.raises(ArithmeticError):
        run(config, settings, 1)
    monkeypatch.undo()
    found = newest_run(tmp_path / "runs" / "small")
    last = list_checkpoints(found / "checkpoints")[-1]
    state = json.loads((last / "state.json").read_text())
    told = state["stop"], state["ended"], state["duration"]
    assert told == ("duration", True, "0.002 min")
    if ended:
        assert run(config, settings, 1).step == state["step"]
        return
    more = state["step"] + 2  # it was decided under another duration
    longer = (*settings[:-1], f"train.duration={more} steps")
    assert run(config, longer, 1).step == more


def crash_before_run_json(_, run, *__):
    run.checkpoints.save(contents(run))
    raise ArithmeticError


def test_a_stop_of_a_callback_that_hears_of_a_checkpoint_is_in_it(tmp_path):
    config, settings = configuration(tmp_path, "the last step")
    asks = f"callbacks=[{{type: {tmp_path}/net.py:Asks, step: 6, hook: on_save}}]"
    settings = (*settings[:2], asks)
    with pytest.raises(Crash):
        run(config, settings, 1, lambda: CrashAt(7))
    assert run(config, settings, 1).step == 7


def test_a_longer_duration_goes_on_where_a_callback_had_enough(tmp_path):
    config, settings = configuration(tmp_path, "a callback, between them")
    assert run(config, settings, 1).step == 8
    assert run(config, settings, 1) is None
    assert run(config, (*settings, "train.duration=25 steps"), 1).step == 25


@pytest.mark.parametrize(("patience", "steps"), [(2, 6), (99, 25)])
def test_early_stopping_is_asked_anew_where_the_duration_is_another(tmp_path, patience, steps):
    config, settings = configuration(tmp_path, "early stopping")
    assert run(config, settings, 1).step == 6
    again = f"callbacks=[{json.dumps({**STOPPING, 'patience': patience})}]"
    assert run(config, (*settings, again, "train.duration=25 steps"), 1).step == steps


def test_a_checkpoint_of_before_that_does_not_tell_of_a_stop(tmp_path, monkeypatch):
    """Early stopping looks at its own count at once, not at the next evaluation."""
    config, settings = configuration(tmp_path, "early stopping")
    monkeypatch.setattr(
        "microtrain.train.callbacks.results.Results._write_down", crash_before_run_json
    )
    taken = checkpoints.contents

    def without_stop(run):
        found = taken(run)
        return found | {"state": found["state"] | {"stop": ""}}

    monkeypatch.setattr(checkpoints, "contents", without_stop)
    with pytest.raises(ArithmeticError):
        run(config, settings, 1)
    monkeypatch.undo()
    assert run(config, settings, 1).step == 6


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_stop_is_in_the_checkpoint_of_its_step_over_real_ranks(tmp_path, mpirun, rank):
    """Rank 0 is killed as soon as the checkpoint of the step is on disk."""
    configuration(tmp_path, "the last step")
    with open(tmp_path / "net.py", "a") as file:
        file.write(KILLED_AT_SIX)
    line = ["-m", "microtrain", "train", "run.yaml", "run_dir=runs", TESTED, "--resume", "auto"]
    asks = f"{{type: ./net.py:Asks, step: 6, rank: {rank}}}"
    assert mpirun(2, *line, f"callbacks=[{asks}, ./net.py:Killed]", cwd=tmp_path).returncode != 0
    found = newest_run(tmp_path / "runs" / "small")
    assert list_checkpoints(found / "checkpoints")[-1].name == "step-000006"
    again = mpirun(2, *line, f"callbacks=[{asks}]", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "finished (good enough)" in again.stdout
    info = json.loads((found / "run.json").read_text())
    assert (info["status"], info["steps"]) == ("finished", 7)
    assert [row["split"] for row in metrics(found)].count("test") == 1
