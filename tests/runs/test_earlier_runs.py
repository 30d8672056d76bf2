"""A run directory of before the first release: every command that needs its model says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from microtrain.cli.main import main

EARLIER = Path(__file__).with_name("earlier")


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_a_checkpoint_of_another_format_is_one_error_with_a_way_out(tmp_path, capsys, command):
    shutil.copytree(EARLIER, tmp_path / "runs", symlinks=True)
    assert main([command, str(tmp_path / "runs" / "linear")]) == 3
    said = capsys.readouterr().err
    assert "step-000204 has checkpoint format 1; this microtrain reads format 4" in said
    assert "use it with the version that wrote it (see its run.json)" in said


def test_its_rows_are_still_shown(tmp_path, capsys):
    runs = [str(tmp_path / name / "linear") for name in "ab"]
    for run in runs:
        shutil.copytree(EARLIER / "linear", run, symlinks=True)
    assert main(["compare", *runs]) == 0
    assert "0.01" in capsys.readouterr().out
