"""`microtrain launch --restarts`: a job that ends by a fault goes on by itself, bit for bit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mpi_run
import pytest
from pace import daily
from resuming import differences, facts, write_run

from microtrain.cli import restarts
from microtrain.cli.main import main
from microtrain.cli.mpirun import find_mpirun as mpirun_of_here
from microtrain.common import job
from microtrain.runs.directory import newest_run

# What one rank does after a step; once, where it makes a file before.
FAULTS = """
def parent_of(process):
    with open(f"/proc/{process}/stat") as file:
        return int(file.read().split()[3])

class Fault(mt.train.Callback):
    interval = "1 step"

    def __init__(self, step, does, rank=1, seconds=0.01):
        self.step, self.does, self.rank, self.seconds = step, does, rank, seconds

    def on_step(self, trainer):
        time.sleep(self.seconds)
        jump = {"is_killed_as_the_clock_jumped": -86400.0, "is_killed_a_day_later": 86400.0}
        if trainer.step == 40 and self.does in jump:
            now = time.time
            time.time = lambda: now() + jump[self.does]
        full = self.does == "is_killed_where_memory_is_full" and not os.path.exists("fault")
        if trainer.step == 60 and full and trainer.comm.rank == 0:
            with contextlib.suppress(OSError), open("/dev/shm/full", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        if trainer.comm.rank == self.rank:
            if trainer.step == self.step:
                getattr(self, self.does, self.nothing)(trainer)
            if trainer.step == self.step + 1 and self.does == "stops":
                self.is_killed(trainer)

    def on_start(self, trainer):
        if os.path.exists("fault") and self.does == "is_killed_again" and trainer.comm.rank == 1:
            if not os.path.exists("again"):
                open("again", "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
        if self.does == "needs_three" and trainer.comm.size < 3:
            raise mt.errors.ConfigError("three ranks, please")

    def first(self):
        try:
            open("fault", "x").close()
        except FileExistsError:
            return False
        return True

    def nothing(self, trainer):
        pass

    def is_killed(self, trainer):
        if self.first():
            os.kill(os.getpid(), signal.SIGKILL)

    is_killed_again = needs_three = is_killed_as_the_clock_jumped = is_killed
    is_killed_where_memory_is_full = is_killed_a_day_later = is_killed

    def is_killed_as_memory_is_removed(self, trainer):
        shutil.rmtree(job.place())
        os.kill(os.getpid(), signal.SIGKILL)

    def kills_a_spare(self, trainer):
        if self.first():
            here = f"/proc/{os.getppid()}/task/{os.getppid()}/children"
            ranks = [int(p) for p in open(here).read().split()]
            os.kill(max(p for p in ranks if b"microtrain" in open(f"/proc/{p}/cmdline", "rb").read()
                        and b"monitor" not in open(f"/proc/{p}/cmdline", "rb").read()),
                    signal.SIGKILL)

    def is_killed_and_asks_for_the_end(self, trainer):
        if self.first():
            os.kill(parent_of(os.getppid()), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGKILL)

    def kills_all(self, trainer):
        if self.first():
            group = [p for p in os.listdir("/proc") if p.isdigit() and parent_of(p) == os.getppid()]
            for process in sorted(map(int, group), key=lambda p: p == os.getpid()):
                os.kill(process, signal.SIGKILL)

    def is_killed_always(self, trainer):
        os.kill(os.getpid(), signal.SIGKILL)

    def is_stopped(self, trainer):
        if self.first():
            os.kill(os.getpid(), signal.SIGSTOP)

    def loses_mpirun(self, trainer):
        if self.first():
            process = os.getppid()
            while re.search("mpirun|prterun", os.readlink(f"/proc/{parent_of(process)}/exe")):
                process = parent_of(process)
            os.kill(process, signal.SIGKILL)

    def raises(self, trainer):
        raise ValueError("a bug")

    def stops(self, trainer):
        trainer.stop("enough")

    def only_stops(self, trainer):
        trainer.stop("enough")

    def asks_for_ranks(self, trainer):
        if self.first():
            (trainer.path / "RANKS").write_text("3")

    def asks_for_nonsense(self, trainer):
        if self.first():
            (trainer.path / "RANKS").write_text("many")

    def asks_for_too_many(self, trainer):
        if self.first():
            (trainer.path / "RANKS").write_text("9")

    def damages_rows(self, trainer):
        if self.first():
            (rows,) = (job.place() / "rows").glob("*/train-0.npy")
            with open(rows, "r+b") as file:
                file.seek(-2, 2)
                file.write(b"xx")
            os.kill(os.getpid(), signal.SIGKILL)

    def fills_memory(self, trainer):
        if self.first():
            (states,) = (job.place() / "states").iterdir()
            states.rename(states.with_name("moved"))
            states.touch()

"""
WORLD = "distributed={reproducible: world, shards: 8, warn_s: 1, timeout_s: 20}"
STEPS = "train.duration=120 steps"
SMALL = ("train.batch_size=32", "checkpoint.every=1000 steps")  # so the state is that in memory


@pytest.fixture
def folder(tmp_path: Path, mpirun: Callable[..., mpi_run.Job]) -> Path:
    write_run(tmp_path)
    net = tmp_path / "net.py"
    text = net.read_text().replace(
        "import os\n", "import contextlib, os, re, shutil\nfrom microtrain.common import job\n", 1
    )
    net.write_text(text + FAULTS)
    return tmp_path


def launch(
    folder: Path, does: str, *words: str, ranks: int = 2, runs: str = "runs", step: int = 75,
    times: int | None = 3, rank: int = 1, seconds: float = 0.01, more: Sequence[str] = (),
    before: Sequence[str] = (),
) -> mpi_run.Job:  # fmt: skip
    """A run that is started again, in which something happens after a step."""
    fault = f"callbacks=[{{type: ./net.py:Fault, step: {step}, does: {does}, rank: {rank}"
    fault += f", seconds: {seconds}}}]"
    how = [] if times is None else ["--restarts", str(times)]
    line = ["launch", "-n", str(ranks), *how, *more, "train", "run.yaml", f"run_dir={runs}"]
    line += [STEPS, WORLD, *SMALL, fault, *words]
    line += ["distributed.timeout_s=2"] if does == "is_stopped" else []
    found = mpi_run.run_job(
        [*before, sys.executable, "-m", "microtrain", *line], cwd=folder, timeout=100,
        env={"MICROTRAIN_TIMEOUT_S": None},
    )  # fmt: skip
    assert found.left_behind == ()
    left = [path for path in job.left_behind() if (path / "run").resolve().is_relative_to(folder)]
    assert left == []
    return found


def info(folder: Path, runs: str = "runs") -> dict[str, Any]:
    run = newest_run(folder / runs / "small")
    assert run is not None
    return dict(json.loads((run / "run.json").read_text()))


def same(folder: Path, *words: str, does: str = "nothing", ranks: int = 2, **how: Any) -> Any:
    """What differs from a run that nothing happened to, which nobody would have started again."""
    whole = launch(folder, does, *words, ranks=ranks, runs="whole", times=None, **how)
    assert whole.returncode == 0, whole.stderr
    found, expected = (newest_run(folder / runs / "small") for runs in ("runs", "whole"))
    assert found is not None and expected is not None
    assert len(list((folder / "runs/small").glob("2*"))) == 1
    return differences(facts(found), facts(expected))


# the fault, the rank, how the job ended
ENDS = {
    "is_killed": (1, r"signal 9"),
    "is_killed_as_the_clock_jumped": (1, r"signal 9"),
    "is_killed_a_day_later": (1, r"signal 9"),
    "loses_mpirun": (0, r"signal 9"),
    "is_stopped": (1, r"exit code 1"),
}


@pytest.mark.parametrize("does", daily(ENDS, "is_killed"))
def test_a_fault_costs_no_bit(folder: Path, does: str) -> None:
    rank, how = ENDS[does]
    found = launch(folder, does, ranks=3, rank=rank)
    assert found.returncode == 0, found.stderr
    assert re.search(rf"ended with {how} after .*starting it again with 3 ranks, restart 1 of 3",
                     found.stderr)  # fmt: skip
    step = re.search(r"resuming .* after step (\d+)", found.stdout)
    assert step and 0 < int(step[1]) < 75, found.stdout
    said = rf"started again \d\S* s after the job ended \({how}\); the last \d\S* s before that"
    assert re.search(said, found.stdout), found.stdout
    assert info(folder)["resumed_at"] == [int(step[1])]
    assert same(folder, ranks=1) == {}


@pytest.mark.slow
def test_an_error_of_the_program_is_not_tried_again(folder: Path) -> None:
    found = launch(folder, "raises")
    assert (found.returncode, "starting it again" in found.stderr) == (1, False)
    end = info(folder)
    assert (end["status"], end["exit_code"]) == ("failed", 1)
    assert re.fullmatch(r"rank 1 of 2 \(host .*\) failed at .*net.py:\d+: ValueError: a bug",
                        end["error"])  # fmt: skip


@pytest.mark.slow
def test_a_fault_that_comes_again_is_not_tried_for_ever(folder: Path) -> None:
    found = launch(folder, "is_killed_always", times=10, step=70)
    assert found.returncode == 137
    assert found.stderr.count("starting it again") == 2
    assert "ended with signal 9, 3 times at the same state: not started again" in found.stderr
    end = info(folder)
    assert end["status"] == "failed"
    assert end["exit_code"] in (137, 1)  # where mpirun was faster to ask how the rank has ended


@pytest.mark.slow
def test_restarts_end(folder: Path) -> None:
    found = launch(folder, "is_killed_always", "distributed.restarts=1", times=None)
    assert found.returncode == 137
    assert found.stderr.count("starting it again") == 1
    assert "ended with signal 9 after 1 restarts: not started again" in found.stderr


@pytest.mark.slow
def test_another_number_of_ranks(folder: Path) -> None:
    found = launch(folder, "asks_for_ranks", ranks=2)
    assert found.returncode == 0, found.stderr
    assert "going on with 3 ranks: " in found.stderr
    assert "ranks    3 on 1 host" in found.stdout
    assert same(folder) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("asks_for_nonsense", "going on with 2 ranks: .*RANKS asks for 'many'"),
        ("asks_for_too_many", "cannot go on with 9 ranks: going on with 2"),
        ("damages_rows", "starting it again with 2 ranks"),
    ],
)
def test_what_cannot_be_had_is_no_end(folder: Path, does: str, said: str) -> None:
    found = launch(folder, does)
    assert found.returncode == 0, found.stderr
    assert re.search(said, found.stderr), found.stderr
    assert not list(folder.glob("runs/small/2*/RANKS"))
    assert same(folder) == {}


@pytest.mark.slow
def test_a_stop_that_another_rank_has_asked_for(folder: Path) -> None:
    """Steps are so slow that each has a state: not the one that does not know of the request."""
    how: dict[str, Any] = {"step": 30, "seconds": 0.2}
    words = ("train.duration=50 steps",)
    found = launch(folder, "stops", *words, **how)
    assert found.returncode == 0, found.stderr
    assert "starting it again" in found.stderr
    assert info(folder)["steps"] == 31
    assert same(folder, *words, does="only_stops", **how) == {}


@pytest.mark.slow
def test_members_of_a_sweep_have_rows_of_their_own(folder: Path) -> None:
    (folder / "sweep.yaml").write_text(SWEEP)
    hashes = []
    for how in ("0", "2"):
        line = ["launch", "-n", "1", "--restarts", how, "train", "sweep.yaml", f"run_dir=r{how}"]
        found = mpi_run.run_job([sys.executable, "-m", "microtrain", *line], cwd=folder)
        assert found.returncode == 0, found.stderr
        members = sorted(folder.glob(f"r{how}/seeds/2*/members/*/run.json"))
        hashes.append([json.loads(path.read_text())["params_sha256"] for path in members])
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 3


@pytest.mark.slow
def test_no_room_in_memory(folder: Path) -> None:
    found = launch(folder, "fills_memory", rank=0)
    assert found.returncode == 0, found.stderr
    assert "no state in memory, only checkpoints on the disk" in found.stdout + found.stderr
    assert same(folder) == {}


@pytest.mark.slow
def test_memory_that_is_removed(folder: Path) -> None:
    """As some systems do when a user logs out: no further run is begun from the first step."""
    found = launch(folder, "is_killed_as_memory_is_removed", times=3)
    assert found.returncode == 137
    said = r"ended with signal 9, and /dev/shm/microtrain-job-\S+, which knew .*: not started again"
    assert re.search(said, found.stderr), found.stderr
    assert info(folder)["status"] == "failed"


# How full /dev/shm is at first, ranks, the fault, exit code, what is said
FULL = {
    "at first": (100, 1, "is_killed", 0, "the data again: no room.*\nwarning: no state in memory.*"
                 "No space left on device\n[^w ]"),
    "in the middle": (0, 2, "is_killed_where_memory_is_full", 0, "warning .rank 0.: no state in "
                      "memory, only .*No space left on device\nmicrotrain: rank 1"),
    "no room for a link": (100, 1, "nothing", 5, "error: a further start would not find the run by "
                           "/dev/shm/.*No space left on device.*\nmake room there, or"),
    "no room for MPI": (100, 2, "nothing", 135, r"by signal 7 \(Bus error\), as /dev/shm is full, "
                        "through which ranks share memory: make room there; the job ends\n"),
}  # fmt: skip
SHELL = """
head -c {}m /dev/zero >/dev/shm/full 2>/dev/null
"$@"; code=$?
ls -A /dev/shm >left; exit $code
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL)
def test_memory_that_is_full(folder: Path, in_a_container: tuple[str, ...], case: str) -> None:
    """The launcher's own directory, states and rows: all lie in a file system of 64 MB."""
    full, ranks, does, code, said = FULL[case]
    if code == 135 and mpirun_of_here().kind != "mpich":
        pytest.skip("other MPIs go on without")
    before = [*in_a_container, "sh", "-c", SHELL.format(full), "sh"]
    runs = "runs" * 40 if code == 5 else "runs"  # a short link takes no room
    found = launch(folder, does, ranks=ranks, rank=ranks - 1, times=1, runs=runs, before=before)
    assert found.returncode == code, found.stderr
    assert re.search(said, found.stderr), found.stderr
    assert found.stderr.count("starting it again") == (code != 5)
    left = (folder / "left").read_text().split()
    assert "full" in left and not [name for name in left if name.startswith("microtrain")]
    if not code:
        assert same(folder, ranks=1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_an_asked_end_is_an_end(folder: Path, number: signal.Signals) -> None:
    words = ["-n", "2", "--restarts", "3", "train", "run.yaml", WORLD, *SMALL]
    words += ["train.duration=100000 steps", "callbacks=[]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "microtrain", "launch", *words], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=mpi_run.clean_environment(),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(folder.glob("runs/small/2*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    os.kill(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert "starting it again" not in said
    assert info(folder)["status"] == "stopped"


# the fault, the rank, spares; ranks that go on, and starts by the launcher after that
IN_PLACE = {
    "rank 1": ("is_killed", 1, 0, [2], 0),
    "rank 0": ("is_killed", 0, 0, [2], 0),
    "with a spare": ("is_killed", 1, 1, [3], 0),
    "a spare": ("kills_a_spare", 0, 1, [], 0),
    "another while it begins again": ("is_killed_again", 2, 1, [3, 2], 0),
    "too few are left": ("needs_three", 1, 0, [2], 1),
    "stopped": ("is_stopped", 1, 0, [], 1),
    "all": ("kills_all", 1, 0, [], 1),
    "mpirun": ("loses_mpirun", 0, 0, [], 1),
}


@pytest.mark.parametrize("case", IN_PLACE)
def test_in_place(folder: Path, case: str) -> None:
    does, rank, spares, left, restarts_ = IN_PLACE[case]
    if mpirun_of_here().kind != "openmpi":
        pytest.skip("MPICH cannot go on without a rank")
    more = ("--in-place", "--spares", str(spares))
    found = launch(folder, does, ranks=3, rank=rank, more=more)
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("starting it again") == restarts_, found.stderr
    assert [int(n) for n in re.findall(r"ranks    (\d) on", found.stdout)][1:] == (
        left + restarts_ * [3]
    )
    said = re.findall(r"going on \d\S* s after rank \d of \d was lost; the last \d", found.stdout)
    assert len(said) == len(left), found.stdout
    assert same(folder, ranks=1) == {}


def test_a_sweep_in_place_is_started_again(folder: Path) -> None:
    """Its ranks train apart: they do not hear of each other in time."""
    if mpirun_of_here().kind != "openmpi":
        pytest.skip("MPICH cannot go on without a rank")
    words = "sweep.seeds=3", "distributed.timeout_s=60"
    found = launch(folder, "is_killed", *words, ranks=2, rank=0, more=["--in-place"])
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("starting it again") == 1, found.stderr
    members = folder.glob("runs/small/2*/members/*/run.json")
    assert [json.loads(path.read_text())["status"] for path in members] == 3 * ["finished"]


def test_an_end_that_is_asked_for_as_a_rank_dies(folder: Path) -> None:
    if mpirun_of_here().kind != "openmpi":
        pytest.skip("MPICH cannot go on without a rank")
    found = launch(folder, "is_killed_and_asks_for_the_end", ranks=3, more=["--in-place"])
    assert found.returncode == 75, found.stderr
    assert info(folder)["status"] == "stopped"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--in-place", "--spares", "1"], "--in-place needs --restarts"),
        (["--restarts", "1", "--spares", "1"], "--spares needs --in-place"),
    ],
)
def test_what_in_place_needs(
    words: list[str], said: str, mpirun: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "-n", "2", *words, "train", "run.yaml"]) == 2
    assert said in capsys.readouterr().err


SWEEP = """
name: seeds
data: {type: synthetic_linear, samples: 400, weights: [2, 1], noise: 1, split: {train: 1.0}}
model: linear_regression
loss: mse
optimizer: {type: sgd, lr: 0.1}
train: {duration: 20 steps, batch_size: 32}
sweep: {seeds: 3}
"""
LOOP = """
import os, signal
import numpy as np
import microtrain as mt

comm = mt.distributed.world()
mt.manual_seed(0)
model = mt.distributed.DataParallel(mt.nn.Linear(3, 1), comm)
optimizer = mt.optim.Adam(model.parameters(), lr=0.01)
data = mt.data.ArrayDataset(np.ones((8, 3), "f4"), np.ones((8, 1), "f4"))
loader = mt.data.DataLoader(data, 4, seed=0, comm=comm)
mt.restore("net", model=model, optimizer=optimizer, loader=loader)
for epoch in range(loader.epoch, 6):
    for x, y in loader:
        optimizer.zero_grad()
        mt.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    mt.save("net", epoch, model=model, optimizer=optimizer, state={"epoch": epoch})
    if epoch == 3 and comm.rank == 1 and not os.path.exists("died"):
        open("died", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
if comm.rank == 0:
    print("weights", model.module.weight.detach().numpy().tobytes().hex())
"""


@pytest.mark.slow
def test_a_loop_of_your_own(folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP)
    line = [sys.executable, "-m", "microtrain", "launch", "-n", "2", "--restarts", "1", "loop.py"]
    found = [mpi_run.run_job(line, cwd=folder, timeout=60)]
    (folder / "net").rename(folder / "net-before")
    found.append(mpi_run.run_job(line, cwd=folder, timeout=60))
    assert [each.returncode for each in found] == [0, 0], found[0].stderr
    assert ["starting it again" in each.stderr for each in found] == [True, False]
    assert found[0].stdout == found[1].stdout


def test_hosts_that_are_gone_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "_reachable", lambda host: host != "b")
    lines: list[Any] = []
    found = restarts.Job(lambda *each: lines.append(each), 8, 1, ["a", "b", "c"], 5, False)
    assert found._find_ranks()
    assert (found.ranks, found.hosts) == (5, ["a", "c"])  # of 3, 3 and 2
    found = restarts.Job(lambda *each: lines.append(each), 8, 1, ["a", "b", "c"], 6, False)
    assert not found._find_ranks()
    found = restarts.Job(lambda *each: lines.append(each), 8, 1, ["a", "b", "c"], None, False)
    assert found._find_ranks()  # nobody has said that fewer will do
    assert found.ranks == 8


def test_fewer_ranks_are_of_several_hosts() -> None:
    assert main(["launch", "-n", "2", "--min-ranks", "1", "--restarts", "1", "train", "x"]) == 2


def test_what_a_killed_job_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_MEMORY", tmp_path)
    monkeypatch.setattr(job, "_HELD", [])
    monkeypatch.setattr(job, "_GIVEN", {job.NAME: "", job.AGAIN: ""})
    assert job.enter() is None
    job._GIVEN[job.NAME] = "../x"  # no name of ours
    assert job.enter() is None
    job._GIVEN[job.NAME] = "abc"
    place = job.enter()
    assert place is not None and place.parent == tmp_path
    assert job.left_behind() == []  # this process holds it
    (place / "states" / "1f").mkdir(parents=True)
    os.close(job._HELD.pop())
    assert (job.left_behind(), job.states_of("1f")) == ([place], [place / "states" / "1f"])
    place.chmod(0o755)  # anybody could have made it
    assert (job.left_behind(), job.states_of("1f")) == ([], [])
    place.chmod(0o700)
    job.forget_states("1f")
    assert list(tmp_path.iterdir()) == []
