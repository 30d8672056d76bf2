"""One rank goes wrong in the middle of training: the job ends in time, and says who and why.

Every fault is injected into rank 1 of a real job, in a script with a loop of its own and in a run
from YAML, with eager and with captured steps, at 2 and at 4 ranks. Each has a promised time, and
may take ten times as long. `test_abort.py` has the other ways out of a Python program, and
`test_watchdog.py` what is said while ranks wait.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mpi_run
import pytest

from microtrain.cli.mpirun import mpiruns, open_mpi_settings

Mpirun = Callable[..., mpi_run.Job]
AT_ONCE, WARN, TIMEOUT = 5.0, 0.5, 1.5

COMMON = """\
import math, os, signal, sys, time
import numpy as np
import microtrain as mt

comm = mt.distributed.world()
odd = comm.rank == 1

def go_wrong(x):
    {fault}
    return x
"""

SCRIPT = COMMON + """
model = mt.distributed.DataParallel(mt.nn.Linear({features}, 1), comm)
optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

{decorator}
def step(x):
    optimizer.zero_grad()
    loss = mt.nn.functional.mse_loss(model(x), mt.zeros(3, 1))
    loss.backward()
    optimizer.step()
    return loss

for number in range(1, 9):
    x = mt.ones(3, 2)
    if odd and number == 5:
        x = go_wrong(x)
        if x is None:
            continue
    loss = step(x)
    if not math.isfinite(model.loss):
        if not math.isfinite(loss.item()):
            words = f"rank {{comm.rank}}: the loss of step {{number}} is {{loss.item()}}"
            print(words, file=sys.stderr)
        mt.distributed.agreed_exit(4)
print("the end")
"""  # fmt: skip

# The file of a model. Python of the model runs at the first two steps only where these are
# captured, the loader's at every step.
MODEL = (
    COMMON
    + """
class Net(mt.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mt.nn.Linear({features}, 1)

    def forward(self, x):
        return self.inner(x)

ordinary = mt.data.DataLoader.steps

def steps(loader, *start):
    for number, batches in enumerate(ordinary(loader, *start), 1):
        if odd and number == 5:
            (batch,) = batches
            bad = mt.data.Batch([go_wrong(batch[0]), batch[1]])
            bad.offset, bad.global_size = batch.offset, batch.global_size
            batches = type(batches)([bad], batches.position)
        yield batches

mt.data.DataLoader.steps = steps

def unseeded():
    rng = np.random.default_rng()
    return rng.standard_normal((64, 2)), rng.standard_normal((64, 1))
"""
)

RUN = """\
name: faulty
data: {data}
model: ./model.py:Net
loss: mse
optimizer: {{type: sgd, lr: 0.01}}
train: {{duration: 8 steps, batch_size: 8, compile: {compile}}}
"""
DATA = "{type: synthetic_linear, samples: 64, weights: [2, -1], noise: 0.1, split: {train: 1}}"


@dataclass(frozen=True)
class Fault:
    """What rank 1 does, and how the job must end.

    Attributes:
        does: the body of a function of the batch x; "pass" where rank 1 is odd from the start.
        code: the exit code; None: the launcher chooses, and it is not 0.
        says: regular expressions for what a script's job says; {size}, {waits} (the line where the
            others wait) and {processes} (the ranks') are filled in.
        in_run: the same for a run from YAML; empty: it is as in a script and not tried again.
        run_code: its exit code where that is another.
        waited_for: the others wait in vain, until the watchdog ends the job.
        features, data: further ways to be odd.
        in_a_step: whether it happens in a step, which may be captured.
    """

    does: str
    code: int | None
    says: tuple[str, ...]
    in_run: tuple[str, ...] = ()
    run_code: int | None = None
    waited_for: bool = False
    features: str = "2"
    data: str = DATA
    in_a_step: bool = True


FAILED = r"microtrain: rank 1 of {size} \(host \S+\) failed; aborting the job\nTraceback"
LEFT = r"microtrain: rank 1 of {size} \(host \S+\) left with exit code 3; aborting the job"
WAITS = (
    r"rank 0 of {size} has waited \d+ s in all_reduce of shape \S+, float32 at {waits} in step "
    r"{step}\n"
)
LIMIT = (
    r"after 1\.5 s the job ends(.|\n)*1\.5 s are over \(distributed\.timeout_s\); aborting the job"
)
ENDED = r"rank 1: its program has ended"
STOPPED = r"rank 1: no sign of life for \d+ s \(stopped, or its machine is gone\)"
# The launcher's words. Open MPI's names the rank (and at times no process); MPICH's a process whose
# rank run.json says, and at times that of one of the others, which it has killed by then.
KILLED = r"(rank 1 with PID|PID ({processes})\b)(.|\n)*[Ss]ignal 9"

FAULTS = {
    "raises": Fault(
        "raise ValueError('a bug')", 1,
        (FAILED, r"ValueError: a bug"),
        in_run=(FAILED, r"model\.py.*in go_wrong", r"ValueError: a bug"),
    ),
    "sys.exit": Fault("sys.exit(3)", 3, (LEFT,), in_run=(LEFT,)),
    "SIGKILL": Fault(
        "os.kill(os.getpid(), signal.SIGKILL)",
        None, (KILLED,), in_run=(KILLED,),
    ),
    "SIGSTOP": Fault(
        "os.kill(os.getpid(), signal.SIGSTOP)", 1,
        (WAITS, STOPPED, LIMIT), in_run=(WAITS, STOPPED, LIMIT), waited_for=True,
    ),
    "NaN": Fault(
        "x = x * math.nan", 4,
        (r"^rank 1: the loss of step 5 is nan\n",),
        in_run=(
            r"^error: training diverged at step 5: the loss is nan\n"
            r"the batch itself contains non-finite values on rank 1\n",
            r"first parameter with a gradient that is not finite: inner\.weight \(layer inner\), "
            r"2 of 2 values",
        ),
    ),
    "skips a collective": Fault("return None", 1, (WAITS, ENDED), waited_for=True),
    "makes another call": Fault(
        "comm.all_gather(np.ones(4, 'f4'))", 1,
        (WAITS, r"rank 1: in another call: all_gather.* at script\.py:9 in step 4", LIMIT),
        waited_for=True,
    ),
    # Both through the memory of the host, where each rank sees what the others call.
    "makes another small call": Fault(
        "comm.barrier()", 1, (r"all_reduce: the ranks are not at the same call: sum of",),
    ),
    # MPI notices and ends the job (MPICH), or raises here (Open MPI), or the ranks wait.
    "calls with another shape": Fault(
        "comm.all_reduce(np.ones(4, 'f4'))", None,
        (r"truncated|MICROTRAIN_DEBUG=comm|rank 1: in another call",), waited_for=True,
    ),
    "loops": Fault(
        "while True: time.sleep(0.01)", 1,
        (WAITS, r"rank 1: missing: last seen at script\.py:9 in step 4", LIMIT), waited_for=True,
    ),
    "leaves": Fault("sys.exit(0)", 1, (WAITS, ENDED), in_run=(WAITS, ENDED), waited_for=True),
    "another model": Fault(
        "pass", 1,
        (r"RuntimeError: DataParallel\(\): the models of the ranks differ: weight is "
         r"float32\[1, 2\] on ranks? 0(, \d)*, float32\[1, 3\] on ranks? 1",),
        in_run=(
            r"^error: model \S+model\.py:Net: inner\.weight is float32\[1, 2\] on ranks? 0(, \d)*, "
            r"float32\[1, 3\] on ranks? 1(, \d)*; every rank must build the same",
        ),
        run_code=2, features="3 if odd else 2", in_a_step=False,
    ),
    "other data": Fault(
        "pass", None, (), in_run=(r"^error: data .*: rank 1 loaded different data from rank 0",),
        run_code=3, data="./model.py:unseeded", in_a_step=False,
    ),
}  # fmt: skip

# Those of every day, by the number of ranks, what is started and how steps are executed: one of
# each kind (an end of its own, one from outside, a wait, wrong numbers, a wrong start).
DAILY = {
    (2, "script", "captured"): ("SIGSTOP", "NaN", "skips a collective", "loops"),
    (2, "script", "eager"): ("SIGKILL", "another model"),
    (2, "run", "captured"): ("raises", "NaN"),
    (2, "run", "eager"): ("SIGKILL", "other data"),
    (4, "script", "captured"): ("raises",),
}


def cases(kind: str) -> list[object]:
    """Fault, number of ranks, how steps are executed; slow where it is not in `DAILY`."""
    return [
        pytest.param(
            *(name, size, steps),
            id=f"{name}, {size} ranks, {steps}",
            marks=[pytest.mark.slow] * (name not in DAILY.get((size, kind, steps), ())),
        )
        for name, fault in FAULTS.items()
        if (fault.says if kind == "script" else fault.in_run)
        for size in (2, 4)
        for steps in (("eager", "captured") if fault.in_a_step else ("eager",))
    ]


@pytest.mark.daily("SIGKILL", "another model")
@pytest.mark.parametrize(("name", "size", "steps"), cases("script"))
def test_a_script_ends(mpirun: Mpirun, name: str, size: int, steps: str) -> None:
    fault = FAULTS[name]
    decorator = "@mt.compile" if steps == "captured" else ""
    text = SCRIPT.format(fault=fault.does, features=fault.features, decorator=decorator)
    limits = {"MICROTRAIN_WARN_S": str(WARN), "MICROTRAIN_TIMEOUT_S": str(TIMEOUT)}
    job = mpirun(size, text, env=limits if fault.waited_for else None, timeout=time_out(fault))
    line = text[: text.index("loss.backward()")].count("\n") + 1
    skips = name == "skips a collective"  # then the others notice at the end, which it comes to
    judge(
        job, fault.code, fault.says,
        size=size, waits=rf"script\.py:{line}", step=7 if skips else 4,
        processes=r"\d+",
    )  # fmt: skip
    if WAITS in fault.says:  # all that wait say where they are, each place once
        who = rf"ranks?( \d(?:-\d)?(?:, \d(?:-\d)?)*) of {size} (?:is|are) here:\nthread MainThread"
        shown = [each for ranks in re.findall(who, job.stderr) for each in numbers(ranks)]
        assert set(shown) >= {0, *range(2, size)}, job.stderr
        assert len(shown) == len(set(shown)), job.stderr
    assert job.stdout.count("the end") <= skips


@pytest.mark.daily("raises")
@pytest.mark.parametrize(("name", "size", "steps"), cases("run"))
def test_a_run_ends(mpirun: Mpirun, tmp_path: Path, name: str, size: int, steps: str) -> None:
    fault = FAULTS[name]
    compile = "numpy" if steps == "captured" else "off"
    (tmp_path / "model.py").write_text(MODEL.format(fault=fault.does, features=fault.features))
    (tmp_path / "run.yaml").write_text(RUN.format(data=fault.data, compile=compile))
    limits = [f"distributed={{warn_s: {WARN}, timeout_s: {TIMEOUT}}}"] if fault.waited_for else []
    run = ("-m", "microtrain", "train", "run.yaml", *limits)
    job = mpirun(size, *run, cwd=tmp_path, timeout=time_out(fault))
    info = [json.loads(path.read_text()) for path in tmp_path.glob("runs/faulty/2*/run.json")]
    code = fault.code if fault.run_code is None else fault.run_code
    processes = "|".join(str(process) for process in (info[0]["processes"] if info else []))
    judge(job, code, fault.in_run, size=size, waits=r"\w+\.py:\d+", step=4, processes=processes)
    # Noticed before anything was written, settled by all, or told by another than its writer.
    status = [] if not fault.in_a_step else ["diverged" if code == 4 else "failed"]
    assert [one["status"] for one in info] == status, info
    for one in info if code != 4 else ():
        assert one["exit_code"], info
        assert re.match(rf"rank \d of {size} ", one["error"]), info


def numbers(ranks: str) -> list[int]:
    """0, 2 and 3 for "0, 2-3"."""
    parts = [[int(rank) for rank in part.split("-")] for part in ranks.split(",")]
    return [rank for part in parts for rank in range(part[0], part[-1] + 1)]


def time_out(fault: Fault) -> float:
    """Ten times what is promised."""
    return 10 * (TIMEOUT + 4 if fault.waited_for else AT_ONCE)


def judge(job: mpi_run.Job, code: int | None, says: tuple[str, ...], **filled: object) -> None:
    """Exit code and words of a job are right, and none of its processes is left."""
    assert job.returncode == code if code is not None else job.returncode != 0, job
    assert job.left_behind == ()
    for pattern in says:
        for name, value in filled.items():
            pattern = pattern.replace(f"{{{name}}}", str(value))
        found = re.findall(pattern, job.stdout + job.stderr, re.MULTILINE)
        assert found, f"{pattern}\nin\n{job.stdout}{job.stderr}"
        if code in (2, 3, 4):  # all ranks leave, and one speaks
            assert len(found) == 1
    assert ("Traceback" in job.stderr) <= (code in (None, 1)), job.stderr


# An mpirun of another MPI, imitated: what it tells its ranks.
FOREIGN_MPIRUN = """
import os, subprocess, sys
_, kind, size, *command = sys.argv

def told(rank):
    names = {"mpich": "PMI_{}", "openmpi": "OMPI_COMM_WORLD_{}"}[kind]
    return os.environ | {names.format("RANK"): str(rank), names.format("SIZE"): size}

ranks = [subprocess.Popen(command, env=told(rank)) for rank in range(int(size))]
codes = {rank.wait() for rank in ranks}
sys.exit(max(codes))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size"),
    [("script", 2), *(pytest.param(*more, marks=pytest.mark.slow)
                      for more in (("script", 4), ("run", 2), ("run", 4)))],
)  # fmt: skip
def test_the_mpirun_of_another_mpi_is_refused(
    mpirun: Mpirun, tmp_path: Path, kind: str, size: int
) -> None:
    found = mpiruns()
    there = {one.kind: one.path for one in found}
    own = next(one.kind for one in found if one.path.samefile(mpi_run.find_mpirun()))
    other = "mpich" if own == "openmpi" else "openmpi"
    (tmp_path / "imitation.py").write_text(FOREIGN_MPIRUN)
    (tmp_path / "script.py").write_text(SCRIPT.format(fault="pass", features="2", decorator=""))
    (tmp_path / "model.py").write_text(MODEL.format(fault="pass", features="2"))
    (tmp_path / "run.yaml").write_text(RUN.format(data=DATA, compile="off"))
    program = ["script.py"] if kind == "script" else ["-m", "microtrain", "train", "run.yaml"]
    start = [there[other], "-n"] if other in there else [sys.executable, "imitation.py", other]
    job = mpi_run.run_job(
        [*start, str(size), sys.executable, *program],
        env=open_mpi_settings(crowded=True), cwd=tmp_path, timeout=10 * AT_ONCE,
    )  # fmt: skip
    launcher = {"mpich": "MPICH's mpirun", "openmpi": "Open MPI's mpirun"}[other]
    says = rf"error: {launcher} started this process as rank \d of {size}, but mpi4py has loaded "
    judge(job, 5, (says, r"start it with the mpirun (of that MPI|that came with)"))
    assert "the end" not in job.stdout
    assert not (tmp_path / "runs").exists()
