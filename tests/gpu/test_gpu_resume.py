"""A run on the GPU that is killed is taken up again and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_cupy  # noqa: F401 - skips where there is no CuPy
from resuming import write_run

from microtrain.runs.checkpoint import list_checkpoints, load_checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def microtrain(*arguments: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "microtrain", *map(str, arguments)]
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_killed_run_is_resumed_on_the_gpu(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    train = ("train", config, "device=cuda", "--trust")
    whole = microtrain(*train, "name=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    dying = "callbacks=[./net.py:Slow, {type: './net.py:Die', step: 20}]"
    killed = microtrain(*train, "name=killed", dying, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    runs = [next((tmp_path / "runs" / name).glob("2*")) for name in ("whole", "killed")]
    assert list_checkpoints(runs[1] / "checkpoints")  # of which step, the disk decides
    # It dies once: the step it died in comes again.
    text = (tmp_path / "net.py").read_text()
    (tmp_path / "net.py").write_text(text.replace("os.kill(os.getpid(), signal.SIGKILL)", "pass"))
    resumed = microtrain("resume", runs[1], "--trust", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    infos = [json.loads((run / "run.json").read_text()) for run in runs]
    assert [(info["status"], info["steps"]) for info in infos] == [("finished", 23)] * 2
    found, expected = (load_checkpoint(list_checkpoints(r / "checkpoints")[-1]).model for r in runs)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6)
