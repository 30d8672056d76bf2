"""The split has a seed of its own: runs over seeds share their rows; those of before do as then."""

from __future__ import annotations

import json

import numpy as np
import pytest
from resuming import train, write_run

from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.errors import ConfigError
from microtrain.report.compare import compare
from microtrain.runs.run import Run

THREE = "data.split={train: 0.75, val: 0.125, test: 0.125}"


def rows(trainer):
    return [part.arrays for part in (trainer.data.train, trainer.data.val, trainer.data.test)]


@pytest.mark.slow
def test_runs_over_seeds_share_their_rows(tmp_path):
    config = write_run(tmp_path)
    runs = [train(config, THREE, f"seed={seed}") for seed in range(3)]
    for one in runs[1:]:
        np.testing.assert_equal(rows(one), rows(runs[0]))
    infos = [json.loads((run.path / "run.json").read_text()) for run in runs]
    assert len({info["params_sha256"] for info in infos}) == 3
    found = compare([Run.read(run.path) for run in runs])
    assert found["data"]["equal"] is True
    assert found["metrics"]["test/loss"]["better"] is not None


def test_another_split_is_other_rows_and_no_run_is_called_better(tmp_path, capsys):
    config = write_run(tmp_path)
    runs = [train(config, THREE, f"data.split.seed={seed}") for seed in (0, 1)]
    (*_, first), (*_, second) = map(rows, runs)
    assert not np.array_equal(first[0], second[0])
    assert main(["compare", *(str(run.path) for run in runs)]) == 0
    said = capsys.readouterr().out
    assert "data: different rows" in said and "no run is called better" in said
    assert " by " not in said


@pytest.mark.parametrize("seed", ["1.5", "-1", "null", "many"])
def test_a_seed_that_is_none_is_refused(tmp_path, seed):
    with pytest.raises(ConfigError, match=r"data\.split"):
        load_config(write_run(tmp_path), [f"data.split.seed={seed}"], trust=True)
