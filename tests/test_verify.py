"""`microtrain verify`: it says ok of what holds, and finds what does not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import mpi_run
import pytest
from resuming import RUN, write_run

LINREG = Path(__file__).parent.parent / "configs" / "linreg.yaml"


def verify(folder, *arguments, timeout=120):
    return subprocess.run(
        [sys.executable, "-m", "microtrain", "verify", *map(str, arguments)],
        cwd=folder, env=mpi_run.clean_environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=timeout, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_with_draws_and_statistics_is_proven(tmp_path):
    write_run(tmp_path)
    done = verify(tmp_path, "run.yaml", "--resume", "--grad")
    assert (done.returncode, done.stderr) == (0, "")
    grad, resume = done.stdout.splitlines()
    assert re.fullmatch(r"grad     ok        \d+ entries of 6 parameters agree .*", grad)
    words = r"kill -9 after step (\d+) of 23, resumed after step (\d+): the same bits \(.*\)"
    killed, resumed = map(int, re.fullmatch(f"resume   ok        {words}", resume).groups())
    assert 1 <= resumed < killed < 23
    assert not (tmp_path / "runs").exists()


FORGETFUL = """
class Forgetful(Net):  # what it has counted is in no checkpoint
    def __init__(self, in_features):
        super().__init__(in_features)
        self.calls = 0
    def forward(self, x):
        self.calls += self.training
        return super().forward(x) + 0.001 * self.calls
"""


@pytest.mark.slow
def test_a_resume_that_is_not_exact_is_found(tmp_path):
    write_run(tmp_path)
    with open(tmp_path / "net.py", "a") as file:
        file.write(FORGETFUL)
    done = verify(tmp_path, "run.yaml", "--resume", "model=./net.py:Forgetful")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("resume   FAILED    kill -9 after step ")
    assert "different parameters, optimizer states, metrics (from step" in done.stdout


WRONG = """
class Twice(mt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0
    @staticmethod
    def backward(ctx, grad):
        return grad * 2.0

class Wrong(Net):
    def forward(self, x):
        return self.last(Twice.apply(self.first(x)).relu())
"""


def test_a_wrong_gradient_is_found_and_its_parameter_named(tmp_path):
    write_run(tmp_path)
    with open(tmp_path / "net.py", "a") as file:
        file.write(WRONG)
    done = verify(tmp_path, "run.yaml", "--grad", "model=./net.py:Wrong")
    assert done.returncode == 1, done.stderr
    assert (
        "FAILED    the gradient of first.weight and 1 more is not that of the loss" in done.stdout
    )


NOISY = """
class Noisy(Net):
    def forward(self, x):
        h = self.first(x).relu()
        return self.last(h + mt.randn_like(h))
"""


def test_a_model_that_draws_noise_has_the_gradient_of_its_loss(tmp_path):
    write_run(tmp_path)
    with open(tmp_path / "net.py", "a") as file:
        file.write(NOISY)
    done = verify(tmp_path, "run.yaml", "--grad", "model=./net.py:Noisy")
    assert (done.returncode, done.stdout[:13]) == (0, "grad     ok  "), done.stdout


MASKED = """
def masked(prediction, target):
    known = (target > 0).to(prediction.dtype) + 0.1
    return ((prediction - target).square() * known).sum() / known.sum()
"""


@pytest.mark.slow
def test_a_loss_that_divides_by_what_nobody_knows_is_found(tmp_path):
    if why := mpi_run.missing():
        pytest.skip(why)
    write_run(tmp_path)
    with open(tmp_path / "net.py", "a") as file:
        file.write(MASKED)
    arguments = "--ranks", "1,2", "loss=./net.py:masked", "train.batch_size=8"
    done = verify(tmp_path, "run.yaml", *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "net.py:masked divide by something other than the rows" in done.stdout
    assert "return losses.sum(), weights.sum()" in done.stdout


@pytest.mark.slow
def test_a_run_that_fails_is_told(tmp_path):
    write_run(tmp_path)
    done = verify(tmp_path, "run.yaml", "--resume", "optimizer.lr=1e30")
    assert done.returncode == 1
    assert "a run ended with exit code 4: error: training diverged at step" in done.stdout


@pytest.mark.daily("arguments1")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--ranks", "1"], 2, "expected different numbers such as 1,2,4"),
        (["--ranks", "2,two"], 2, "expected different numbers such as 1,2,4"),
        (["train.batchsize=3"], 2, "did you mean batch_size?"),
        (
            ["--resume", "--steps", "5", "schedule={type: cosine, warmup: 9 steps}"],
            *(2, "verify shortens the run to 5 steps (--steps sets another number)"),
        ),
    ],
)
def test_mistakes(tmp_path, arguments, code, words):
    write_run(tmp_path)
    done = verify(tmp_path, "run.yaml", *arguments)
    assert done.returncode == code
    assert words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["1,2,4", "distributed={reproducible: world, shards: 2}"],
            "4 left out, more than the shards",
        ),
        pytest.param(
            ["1,2"],
            "rounding; distributed.reproducible: world gives the same bits",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_numbers_of_ranks(tmp_path, mpirun, arguments, words):
    write_run(tmp_path, RUN)
    done = verify(tmp_path, "run.yaml", "--ranks", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ranks    ok        1")
    assert words in done.stdout
    assert ("the same bits;" in done.stdout) == bool(arguments[1:])


@pytest.mark.slow
def test_it_is_not_started_by_mpirun(tmp_path, mpirun):
    job = mpirun(2, "-m", "microtrain", "verify", LINREG, cwd=tmp_path)
    assert job.returncode == 5
    assert job.stderr.count("each rank would launch a job of its own") == 1
