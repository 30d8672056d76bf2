"""Real jobs that are killed, stopped, and run out of disk, and what they come to when resumed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time

import mpi_run
import numpy as np
import pytest
from resuming import RUN, differences, facts, train, write_run

from microtrain.errors import ConfigError, DataError, LaunchError
from microtrain.runs.checkpoint import list_checkpoints, load_checkpoint
from microtrain.runs.directory import RunDirectory, newest_run

LONG = RUN.replace("23 steps", "300 steps").replace("every: 3 steps", "every: 20 steps")
SLOWLY = "callbacks=[./net.py:Count, ./net.py:Slow]"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
OPEN_MPI = mpi_run.find_mpirun() is not None and "Open MPI" in subprocess.run(
    [mpi_run.find_mpirun(), "--version"], capture_output=True, text=True, check=False
).stdout  # fmt: skip


class Job:
    """A run as a user starts it, in a folder that `write_run` has filled."""

    def __init__(self, folder, *arguments, ranks=1, command="train", limit=None):
        self.folder, self.ranks = folder, ranks
        line = [sys.executable, "-m", "microtrain", command]
        line += ["run.yaml", f"run_dir={folder / 'runs'}"] if command == "train" else []
        if ranks > 1:
            line = [mpi_run.find_mpirun(), "-n", str(ranks), *line]
        self.process = subprocess.Popen(
            [*line, *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
            env=mpi_run.clean_environment(mpi_run.open_mpi_settings(crowded=True)),
            preexec_fn=limit,
        )  # fmt: skip

    def at_step(self, step):
        """Wait until metrics have come to a step; returns the run's directory."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            run = newest_run(self.folder / "runs" / "small")
            if run is not None and (run / "metrics.jsonl").exists():
                rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
                whole = [json.loads(row)["step"] for row in rows if row.endswith("\n")]
                if max(whole, default=0) >= step:
                    return run.resolve()
            time.sleep(0.02)
        raise AssertionError(f"step {step} did not come:\n{self.end()}")

    def end(self):
        """Exit code and what was written, in good order."""
        try:
            out, err = self.process.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        assert not CONTROL.search(out + err), repr(out + err)
        assert "Traceback" not in err, err
        # A launcher that tells of a killed rank draws lines.
        lines = [line for line in out.splitlines() if line.strip(" =")]
        assert len(set(lines)) == len(lines)
        return self.process.returncode, out, err

    def pids(self):
        """Of the ranks, as far as run.json has them yet."""
        run = newest_run(self.folder / "runs" / "small")
        return (
            [] if run is None else json.loads((run / "run.json").read_text()).get("processes", [])
        )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The facts of runs that nobody interrupted, at any number of ranks."""
    found = {}

    def of(ranks=1, *arguments):
        if (ranks, arguments) not in found:
            folder = tmp_path_factory.mktemp("whole")
            write_run(folder, LONG)
            assert Job(folder, *arguments, ranks=ranks).end()[0] == 0
            found[ranks, arguments] = facts(newest_run(folder / "runs" / "small"))
        return found[ranks, arguments]

    return of


def resumed(folder, *arguments, ranks=1):
    code, out, err = Job(folder, "--resume", "auto", *arguments, ranks=ranks).end()
    assert code == 0, err
    assert out.count("resuming ") == 1
    return facts(newest_run(folder / "runs" / "small"))


# Stopped in good order ----------------------------------------------------------------------------

STOPS = {
    "a file": lambda job, run: (run / "STOP").touch(),
    "SIGUSR1": lambda job, run: os.kill(random.choice(job.pids()), signal.SIGUSR1),
    "SIGTERM": lambda job, run: job.process.terminate(),
    "SIGINT": lambda job, run: job.process.send_signal(signal.SIGINT),
}


@pytest.mark.daily("SIGTERM")
@pytest.mark.parametrize(
    ("how", "ranks"),
    [("a file", 1), ("SIGTERM", 1)]
    + [
        pytest.param(how, ranks, marks=pytest.mark.slow)
        for how, ranks in (
            ("a file", 2),
            ("SIGTERM", 2),
            ("SIGUSR1", 1),
            ("SIGUSR1", 2),
            ("SIGINT", 1),
            ("SIGINT", 2),
        )
    ],
)
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path, whole, how, ranks, request):
    if ranks > 1:
        request.getfixturevalue("mpirun")
    write_run(tmp_path, LONG)
    job = Job(tmp_path, SLOWLY, ranks=ranks)
    run = job.at_step(10)
    STOPS[how](job, run)
    code, out, err = job.end()
    if not (OPEN_MPI and ranks > 1 and how in ("SIGTERM", "SIGINT")):
        assert code == 75, err
        info = json.loads((run / "run.json").read_text())
        assert (info["status"], info["exit_code"]) == ("stopped", 75)
        assert list_checkpoints(run / "checkpoints")[-1].name == f"step-{info['steps']:06d}"
        assert out.count("stopped (") == 1
        assert f"resume {run}" in out
    assert differences(resumed(tmp_path, ranks=ranks), whole(ranks)) == {}


@pytest.mark.slow
def test_max_time_ends_a_run_again_and_again(tmp_path, whole):
    write_run(tmp_path, LONG)
    limit = ("train.max_time=0.02 min", SLOWLY)
    assert Job(tmp_path, *limit).end()[0] == 75
    first = newest_run(tmp_path / "runs" / "small")
    before = json.loads((first / "run.json").read_text())["steps"]
    assert Job(tmp_path, *limit, "--resume", "auto").end()[0] == 75
    assert before < json.loads((first / "run.json").read_text())["steps"] < 300
    assert differences(resumed(tmp_path, "train.max_time=null"), whole()) == {}


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(tmp_path, whole):
    write_run(tmp_path, LONG)
    with open(tmp_path / "net.py", "a") as file:
        file.write(
            "class Stuck(mt.train.Callback):\n    interval = '30 steps'\n"
            "    def on_step(self, trainer):\n        print('stuck', flush=True)\n"
            "        time.sleep(60)\n"
        )
    job = Job(tmp_path, "callbacks=[./net.py:Count, ./net.py:Stuck]")
    while "stuck" not in job.process.stdout.readline():
        assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert job.process.poll() is None  # it waits for the step to end
    for _ in range(20):  # one that comes before the first has been dealt with is no second one
        job.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.process.wait(1)
            break
    code, out, _ = job.end()
    assert code == 130
    assert "interrupted after step 30" in out
    assert differences(resumed(tmp_path), whole()) == {}


# Killed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "victim"),
    [(1, 0), *(pytest.param(2, victim, marks=pytest.mark.slow) for victim in (0, 1))],
)
def test_a_killed_rank(tmp_path, whole, ranks, victim, request):
    if ranks > 1:
        request.getfixturevalue("mpirun")
    write_run(tmp_path, LONG)
    die = f"callbacks=[./net.py:Count, {{type: ./net.py:Die, step: 137, rank: {victim}}}]"
    assert Job(tmp_path, die, ranks=ranks).end()[0] != 0
    assert differences(resumed(tmp_path, ranks=ranks), whole(ranks)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("compile", ["off", "numpy"])
def test_another_number_of_ranks_goes_on_with_the_same_bits(tmp_path, mpirun, whole, compile):
    world = ("distributed={reproducible: world, shards: 4}", f"train.compile={compile}")
    write_run(tmp_path, LONG)
    for ranks, step in ((2, 90), (4, 170), (1, 250)):
        die = f"callbacks=[./net.py:Count, {{type: ./net.py:Die, step: {step}}}]"
        code, _, err = Job(tmp_path, *world, die, "--resume", "auto", ranks=ranks).end()
        assert code not in (0, 2, 3, 75), err
    assert differences(resumed(tmp_path, *world, ranks=2), whole(1, *world)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ranks", [1, 2])
def test_runs_killed_at_random_moments(tmp_path, whole, ranks, seed, request):
    if ranks > 1:
        request.getfixturevalue("mpirun")
    draw = random.Random(f"{ranks} {seed}")
    write_run(tmp_path, LONG)
    for _ in range(draw.choice([1, 1, 2, 3])):
        job = Job(tmp_path, SLOWLY, "--resume", "auto", ranks=ranks)
        time.sleep(draw.uniform(0.5, 5))
        ids = [*job.pids(), job.process.pid] if job.process.poll() is None else []
        living = [pid for pid in ids if _runs_here(pid, tmp_path)]
        if living:
            os.kill(draw.choice(living), signal.SIGKILL)
        job.process.communicate(timeout=90)
    code, _, err = Job(tmp_path, "--resume", "auto", ranks=ranks).end()
    assert code == 0, err
    found = facts(newest_run(tmp_path / "runs" / "small"))
    assert differences(found, whole(ranks)) == {}


def _runs_here(pid, folder):
    """Whether a process is still one of this test's: its id may be another's by now."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return str(folder).encode() in file.read()
    except OSError:
        return False


LOOP = """
import os, signal, sys
import numpy as np
import microtrain as mt

comm = mt.distributed.world()
die, place = int(sys.argv[1]), sys.argv[2]
mt.manual_seed(0)
model = mt.distributed.DataParallel(
    mt.nn.Sequential(mt.nn.Linear(3, 8), mt.nn.Dropout(0.2), mt.nn.Linear(8, 1)), comm)
optimizer = mt.optim.Adam(model.parameters(), lr=0.01)
x = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
loader = mt.data.DataLoader(mt.data.ArrayDataset(x, x.sum(1, keepdims=True)), 20, comm=comm)
state = mt.restore(place, model=model, optimizer=optimizer, loader=loader)
step = state["step"] if state else 0
for epoch in range(state["epoch"] + 1 if state else 0, 12):
    for xb, yb in loader:
        optimizer.zero_grad()
        mt.nn.functional.mse_loss(model(xb), yb).backward()
        optimizer.step()
        step += 1
        if step == die and comm.rank == comm.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    mt.save(place, step, model=model, optimizer=optimizer, state={"epoch": epoch})
if comm.rank == 0:
    print(step, [p.detach().numpy().tobytes().hex() for p in model.parameters()])
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_loop_of_ones_own_is_taken_up(tmp_path, ranks, request):
    (tmp_path / "loop.py").write_text(LOOP)

    def run(die, place):
        line = [sys.executable, tmp_path / "loop.py", str(die), tmp_path / place]
        if ranks > 1:
            return request.getfixturevalue("mpirun")(ranks, *line[1:])
        return mpi_run.run_job(line)

    expected = run(0, "whole")
    assert expected.returncode == 0, expected.stderr
    for die in (2, 17, 30):
        assert run(die, "cut").returncode != 0
    again = run(0, "cut")
    assert (again.returncode, again.stdout) == (0, expected.stdout), again.stderr


# Disks that are full ------------------------------------------------------------------------------


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


@pytest.mark.slow
def test_metrics_that_cannot_grow_end_the_run_and_spare_its_checkpoints(tmp_path, whole):
    write_run(tmp_path, LONG)
    code, _, err = Job(tmp_path, limit=small_files).end()
    assert code == 5
    assert err.count("cannot write metrics.jsonl") == 1 or err.count("cannot write log.txt") == 1
    run = newest_run(tmp_path / "runs" / "small")
    kept = list_checkpoints(run / "checkpoints")
    assert kept
    assert [load_checkpoint(path).step for path in kept]
    assert differences(resumed(tmp_path), whole()) == {}


FULL = """
mount -t tmpfs -o size=240k none disk || exit 99
python -m microtrain train run.yaml run_dir=disk; echo "code $?"
mount -o remount,size=4m disk
python -m microtrain train run.yaml run_dir=disk --resume auto; echo "code $?"
cp -r disk/. runs
"""


@pytest.mark.usefixtures("reports")
def test_a_full_disk_is_survived(tmp_path, whole):
    write_run(tmp_path, LONG)
    for name in ("disk", "runs"):
        (tmp_path / name).mkdir()
    script = FULL.replace("python", sys.executable)
    job = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], cwd=tmp_path, env=mpi_run.clean_environment(),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if job.returncode == 99 or "unshare" in job.stderr:
        pytest.skip("needs the right to mount a small file system of its own")
    assert re.findall(r"code (\d+)", job.stdout) in (["5", "0"], ["0", "0"]), job.stderr
    assert "No space left on device" in job.stderr
    assert "Traceback" not in job.stderr
    assert "damaged" not in job.stderr
    assert differences(facts(newest_run(tmp_path / "runs" / "small")), whole()) == {}


# What a resume refuses ----------------------------------------------------------------------------


def test_a_run_that_someone_else_writes_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("microtrain.train.trainer.LOCK_WAIT", 0.3)
    config = write_run(tmp_path)
    run = train(config, crash=7).path
    with RunDirectory(run), pytest.raises(LaunchError) as caught:
        train(config, resume=run)
    assert f"host {socket.gethostname()}, pid {os.getpid()}" in str(caught.value)
    assert train(config, resume=run).step == 23


def test_settings_that_would_make_it_another_run_are_listed(tmp_path):
    config = write_run(tmp_path)
    run = train(config, crash=7).path
    with pytest.raises(ConfigError) as caught:
        train(config, "optimizer.lr=0.1", "seed=3", "log.every=1 steps", resume=run)
    text = str(caught.value)
    assert "optimizer.lr: 0.05 in the run, 0.1 now" in text and "seed: 0 in the run" in text
    assert "log" not in text.partition("\n" + "start")[0].partition("free")[0].split("\n", 1)[1]
    free = ("log.every=2 steps", "checkpoint.keep_last=5", "train.max_time=5 min",
            "distributed.warn_s=20", "distributed.overlap=false")  # fmt: skip
    assert train(config, *free, resume=run).step == 23


def test_a_project_may_lie_elsewhere_when_it_goes_on(tmp_path):
    before = train(write_run(tmp_path / "before"), crash=7).path
    (tmp_path / "before").rename(tmp_path / "after")
    run = tmp_path / "after" / before.relative_to(tmp_path / "before")
    config = tmp_path / "after" / "run.yaml"
    with open(config.with_name("net.py"), "a") as file:
        file.write("\nclass Other(Net):\n    pass\n")
    with pytest.raises(ConfigError, match=r"model.type: .*before/net.py:Net\" in the run"):
        train(config, f"model.type={tmp_path}/after/net.py:Other", resume=run)
    train(config, resume=run)
    assert differences(facts(run), facts(train(write_run(tmp_path / "whole")).path)) == {}


@pytest.mark.parametrize("what", ["ranks", "compression", "nothing"])
def test_a_resume_that_cannot_be_bit_for_bit_says_so(tmp_path, capfd, what):
    config = write_run(tmp_path)
    more = ("distributed.compression=fp16",) if what == "compression" else ()
    run = train(config, *more, crash=7).path
    info = json.loads((run / "run.json").read_text())
    ranks = 2 if what == "ranks" else 1
    (run / "run.json").write_text(json.dumps({**info, "ranks": ranks}))
    train(config, *more, resume=run)
    said = capfd.readouterr().err
    assert ("the run started on 2 ranks and continues on 1" in said) == (what == "ranks")
    assert ("what compression has kept back" in said) == (what == "compression")


@pytest.mark.slow
def test_a_resume_that_is_refused_leaves_the_run_as_it_was(tmp_path):
    config = write_run(tmp_path)
    run = train(config).path
    files = ("run.json", "config.yaml", "metrics.jsonl", "log.txt")
    before = [(run / name).read_bytes() for name in files]
    with pytest.raises(ConfigError, match="has taken 23 steps, which is more than"):
        train(config, "train.duration=5 steps", resume=run)
    assert [(run / name).read_bytes() for name in files] == before
    code, _, err = Job(tmp_path, str(run), "--trust", "name=other", command="resume").end()
    assert code == 2
    assert "the name and directory of a run cannot change; omit name=other" in err
    assert Job(tmp_path, str(run), "--trust", command="resume").end()[0] == 0


@pytest.mark.slow
def test_other_data_and_a_diverged_run_are_refused(tmp_path):
    config = write_run(tmp_path)
    run = train(config, crash=7).path
    before = (run / "run.json").read_text(), (run / "metrics.jsonl").read_text()
    found = json.loads(before[0])
    assert (found["status"], found["exit_code"], found["best"]["step"]) == ("failed", 1, 4)
    with np.load(tmp_path / "data.npz") as data:
        x, y = data["x"], data["y"]
    np.savez(tmp_path / "data.npz", x=x, y=y + 1)
    with pytest.raises(DataError, match="the data have changed since step 6"):
        train(config, resume=run)
    assert ((run / "run.json").read_text(), (run / "metrics.jsonl").read_text()) == before
    done = Job(tmp_path, "optimizer.lr=1e30").end()
    assert done[0] == 4
    code, _, err = Job(tmp_path, "optimizer.lr=1e30", "--resume", "auto").end()
    assert (code, "has diverged and would diverge again" in err) == (3, True)


@pytest.mark.slow
def test_a_run_that_was_killed_before_its_page_is_resumed_to_write_it(tmp_path, reports):
    config = write_run(tmp_path, RUN.replace("23 steps", "8 steps"))
    (tmp_path / "net.py").write_text(
        f"{(tmp_path / 'net.py').read_text()}\n"
        "class DieAtEnd(mt.train.Callback):\n"
        "    def on_stop(self, trainer):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    whole = facts(train(config).path)
    code, _, _ = Job(tmp_path, "callbacks=[./net.py:Count, ./net.py:DieAtEnd]").end()
    run = newest_run(tmp_path / "runs" / "small")
    assert (code, json.loads((run / "run.json").read_text())["status"]) == (-9, "running")
    (run / "report.html").unlink()  # killed a moment earlier
    code, out, err = Job(tmp_path, str(run), "--trust", "callbacks=[./net.py:Count]",
                         command="resume").end()  # fmt: skip
    assert (code, out.count("resuming ")) == (0, 1), err
    assert "finished</span>" in (run / "report.html").read_text()
    assert (run / "plots" / "loss.png").exists()
    assert differences(facts(run), whole) == {}


@pytest.mark.slow
def test_a_finished_run_says_so(tmp_path):
    config = write_run(tmp_path)
    run = train(config).path
    before = facts(run)
    code, out, _ = Job(tmp_path, "--resume", "auto").end()
    assert (code, out.count("has finished; nothing is left to do")) == (0, 1)
    code, out, err = Job(tmp_path, str(run), "--trust", command="resume").end()
    assert (code, out.count("has finished; nothing is left to do")) == (0, 1), err
    assert facts(run) == before
