"""The examples run as they stand, alone and on ranks, with the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOOP = ROOT / "examples" / "custom_loop.py"


def test_the_custom_loop_learns_and_prints_the_same_on_two_ranks(mpirun):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(
        [sys.executable, LOOP], env=environment, capture_output=True, text=True, timeout=60
    )
    assert alone.returncode == 0, alone.stderr
    losses = [float(line.split()[-1]) for line in alone.stdout.splitlines()]
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 4
    job = mpirun(2, LOOP)
    assert job.returncode == 0, job.stderr
    for line, loss in zip(job.stdout.splitlines(), losses, strict=True):
        assert abs(float(line.split()[-1]) - loss) < 2e-4


def test_the_readme_shows_the_files_that_are_there():
    readme = (ROOT / "README.md").read_text()
    code = LOOP.read_text().split('"""\n\n', 1)[1].rstrip()
    assert code in readme
    assert (ROOT / "configs" / "linreg.yaml").read_text().rstrip() in readme
