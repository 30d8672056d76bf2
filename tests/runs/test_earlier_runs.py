"""Run directories of an earlier version (0.1.0, November 2026): every command still reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import microtrain as mt
from microtrain.cli.main import main

EARLIER = Path(__file__).with_name("earlier")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Copies of a finished classification (iris) and of a regression stopped at step 204."""
    shutil.copytree(EARLIER, tmp_path / "runs", symlinks=True)
    return tmp_path / "runs"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints; it must succeed."""

    def run(*words: object) -> str:
        assert main([*map(str, words)]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def test_evaluate(runs: Path, command: Any) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    said = command("evaluate", runs / "iris")
    assert "checkpoint of step 210, the best (val/loss 0.22017)" in said
    assert "test          22 rows  loss 0.16362  accuracy 0.90909  as recorded" in said


def test_load_and_predict(runs: Path, command: Any, tmp_path: Path) -> None:
    model = mt.load(runs / "iris")
    rows = [[5.1, 3.5, 1.4, 0.2], [6.0, 2.7, 4.5, 1.4], [6.9, 3.1, 5.8, 2.1]]
    species = ["setosa", "versicolor", "virginica"]
    assert model.predict(np.array(rows)).tolist() == species
    header = ",".join(model.feature_names)
    text = "\n".join([header, *(",".join(map(str, row)) for row in rows)])
    (tmp_path / "rows.csv").write_text(text)
    command(
        "predict", runs / "iris", "--input", tmp_path / "rows.csv", "--output", tmp_path / "o.csv"
    )
    assert (tmp_path / "o.csv").read_text().split() == ["class", *species]


def test_resume_goes_on_to_the_values_of_the_earlier_version(runs: Path, command: Any) -> None:
    said = command("resume", runs / "linear")
    assert "480 steps" in said
    manifest = json.loads((runs / "linear" / "run.json").read_text())
    assert (manifest["status"], manifest["steps"]) == ("finished", 480)
    last = load_file(runs / "linear" / "checkpoints" / "step-000480" / "model.safetensors")
    weight = [[0.9950109720230103, -2.006004571914673, 0.5032172799110413]]
    np.testing.assert_allclose(last["weight"], weight, rtol=1e-6)
    np.testing.assert_allclose(last["bias"], [2.993962049484253], rtol=1e-6)
    rows = [json.loads(row) for row in (runs / "linear" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["split"] == "val"] == [*range(8, 481, 8)]
    np.testing.assert_allclose(rows[-1]["loss"], 0.01209027340519242, rtol=1e-5)


def test_report_and_compare(runs: Path, command: Any) -> None:
    for run in ("iris", "linear"):
        command("report", runs / run)
    page = (runs / "iris" / "report.html").read_text()
    assert "0.16362" in page and "optimizer" in page
    said = command("compare", runs / "iris", runs / "linear")
    assert (
        "optimizer.lr" in said and "0.02 (iris.yaml:6)" in said and "0.01 (linear.yaml:5)" in said
    )
    assert "0.011242" in said
