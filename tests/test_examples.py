"""The examples run as they stand, alone and on ranks, with the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOOP = ROOT / "examples" / "custom_loop.py"


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def losses(printed: str) -> list[float]:
    """The loss that each line ends with."""
    return [float(line.split()[-1]) for line in printed.splitlines()]


def test_the_custom_loop_learns_and_prints_the_same_on_two_ranks(mpirun, tmp_path):
    (tmp_path / "two").mkdir()
    given = {"env": ENVIRONMENT, "cwd": tmp_path, "capture_output": True, "text": True}
    alone = subprocess.run([sys.executable, LOOP], timeout=60, **given)
    assert alone.returncode == 0, alone.stderr
    first = losses(alone.stdout)
    assert len(first) == 10
    assert first[-1] < first[0] / 4
    job = mpirun(2, LOOP, cwd=tmp_path / "two")
    assert job.returncode == 0, job.stderr
    for found, loss in zip(losses(job.stdout), first, strict=True):
        assert abs(found - loss) < 2e-4


def test_the_custom_loop_goes_on_where_it_was_killed(tmp_path):
    command = [sys.executable, "-u", LOOP]
    given = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "text": True}
    (tmp_path / "whole").mkdir()
    whole = subprocess.run(command, cwd=tmp_path / "whole", timeout=60, **given).stdout
    with subprocess.Popen(command, cwd=tmp_path, **given) as process:
        for _ in range(5):
            process.stdout.readline()
        process.kill()
    again = subprocess.run(command, cwd=tmp_path, timeout=60, **given).stdout
    assert 0 < len(again.splitlines()) <= 7
    assert whole.endswith(again)


def test_the_readme_shows_the_files_that_are_there():
    readme = (ROOT / "README.md").read_text()
    code = LOOP.read_text().split('"""\n\n', 1)[1].rstrip()
    assert code in readme
    assert (ROOT / "configs" / "linreg.yaml").read_text().rstrip() in readme


def test_the_custom_loop_says_that_it_was_done_before(mpirun, tmp_path):
    given = {"env": ENVIRONMENT, "cwd": tmp_path, "capture_output": True, "text": True}
    first = subprocess.run([sys.executable, LOOP], timeout=60, **given)
    assert (first.returncode, first.stderr) == (0, "")
    again = mpirun(2, LOOP, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("all 10 epochs are already done")
    told = f"restored {Path('checkpoints') / 'step-000010'}, step 10\n"
    assert again.stderr.count(told) == 1
