"""One model, one score: what is told of a finished run is of the model that is used afterwards."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from pace import daily
from resuming import metrics, write_run

import microtrain as mt
from microtrain.cli.main import main
from microtrain.common.words import number
from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.inference.evaluate import evaluate_run
from microtrain.runs.arrays import params_sha256
from microtrain.train.callbacks.checkpoints import Checkpoints
from microtrain.train.console import Output
from microtrain.train.model_state import model_arrays
from microtrain.train.trainer import Trainer

# The best validation is long before the end.
RISES = ("data.split={train: 0.75, val: 0.125, test: 0.125}", "optimizer.lr=0.3")
CASES = {
    "the best": ((), "best"),
    "the best of a metric": (("checkpoint={monitor: val/r2, mode: max}",), "best"),
    "the best is the last": (("optimizer.lr=0.001",), "best"),
    "none is kept": (("checkpoint={keep_best: 0, keep_last: 1}",), "last"),
    "nothing is validated": (("data.split={train: 0.75, test: 0.25}", "metrics=[]"), "best"),
    "shards": (("distributed={reproducible: world, shards: 4}",), "best"),
    "stopped by a callback": (
        ("callbacks=[{type: early_stopping, patience: 3}]", "train.eval_every=1 steps"), "best",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr("microtrain.report.page.write_plots", lambda *_: None)


def train(tmp_path, *overrides, ranks=1):
    config, said = write_run(tmp_path), io.StringIO()

    def on(comm):
        given = [f"run_dir={tmp_path / 'runs'}", *RISES, *overrides]
        settings = load_config(config, given, trust=True)
        output = Output(comm.rank, stream=said if comm.rank == 0 else io.StringIO())
        trainer = Trainer.from_config(settings, comm, output)
        trainer.train()
        return trainer, params_sha256(model_arrays(trainer.model))

    return *in_process.run(ranks, on)[0], said.getvalue()


def test_a_run_whose_monitored_value_is_never_finite_says_so(tmp_path):
    """Of one row there is no r2, so there is no best checkpoint, and the last stands for it."""
    given = ("data.split={train: 0.98, val: 0.02}", "train.duration=9 steps")
    trainer, *_ = train(tmp_path, *given, "checkpoint={monitor: val/r2, mode: max}")
    assert len(trainer.data.val) == 1
    text = (trainer.path / "log.txt").read_text()
    assert "val/r2 was never finite, so no checkpoint is the best" in text
    assert json.loads((trainer.path / "run.json").read_text())["best"] is None


@pytest.mark.filterwarnings("ignore:DataParallel. .* is a batch norm")
def test_running_statistics_of_each_rank_are_measured_as_they_are_kept(tmp_path):
    """Validation and test are of rank 0's, which checkpoints have."""
    trainer, *_ = train(tmp_path, "distributed.sync_batchnorm=false", "optimizer.lr=0.05", ranks=2)
    assert any(name.endswith("running_mean") for name, _ in trainer.model.module.named_buffers())
    evaluation = evaluate_run(
        str(trainer.path), trust=True, comm=SingleCommunicator(), warn=lambda text: None
    )
    assert not any(part.differs for part in evaluation.parts.values())


@pytest.mark.daily("shards-1", "the best-1", "none is kept", "the best is the last")
@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize(
    ("case", "ranks"),
    daily(
        itertools.product(CASES, [1, 2]),
        *((case, 1) for case in CASES),
        *(("the best", 2), ("shards", 2)),
    ),
)
def test_all_that_is_told_is_of_one_checkpoint(tmp_path, case, ranks, capsys):
    overrides, which = CASES[case]
    trainer, sha, said = train(tmp_path, *overrides, ranks=ranks)
    run, info = trainer.path, json.loads((trainer.path / "run.json").read_text())
    test = dict(info["test"])
    step = test.pop("step")
    if which == "best":
        assert step == info["best"]["step"]
        assert (step < trainer.step) == (case != "the best is the last")
    else:
        assert step == trainer.step
    (row,) = (row for row in metrics(run) if row["split"] == "test")
    assert (row["step"], row["epoch"]) == (step, step / trainer.steps_per_epoch)
    assert {name: row[name] for name in test} == test
    (line,) = (line for line in said.splitlines() if line.startswith("test "))
    assert line.endswith(f"(step {step}, the {which})")

    def warn(text):
        assert "was not kept" in text and case == "none is kept"

    found = in_process.run(
        ranks, lambda comm: evaluate_run(str(run), trust=True, comm=comm, warn=warn)
    )
    evaluation = found[0]
    assert evaluation.step == step
    assert evaluation.parts["test"].values == test  # to the bit
    assert "as recorded" in evaluation.lines()[-1]
    model = mt.load(run, trust=True, checkpoint="best" if which == "best" else "last")
    x, y = trainer.data.test.arrays
    mse = float(np.mean((model.module(mt.from_numpy(x)).detach().numpy() - y) ** 2))
    assert mse == pytest.approx(test["loss"], rel=1e-5)
    # The model in hand is that of the last step, as the hash in run.json.
    assert sha == info["params_sha256"]
    html = (run / "report.html").read_text()
    assert f"at step {step}" in html and f"step {step}, the {which}" in html
    assert main(["report", str(run), "--trust"]) == 0
    assert (run / "report.html").read_text() == html


def test_samples_of_the_row_are_those_of_its_step(tmp_path):
    trainer, _, _ = train(tmp_path)
    (test,) = (row for row in metrics(trainer.path) if row["split"] == "test")
    (val,) = (
        row for row in metrics(trainer.path) if (row["split"], row["step"]) == ("val", test["step"])
    )
    assert test["samples"] == val["samples"]


def test_a_best_checkpoint_that_is_damaged_gives_way_to_the_last(tmp_path, monkeypatch, capfd):
    """As `evaluate` would do; and the run says so."""
    save = Checkpoints.on_end

    def damaging(checkpoints, run, ending):
        save(checkpoints, run, ending)
        best = run.path / "checkpoints" / "best" / "model.safetensors"
        best.write_bytes(best.read_bytes()[:-1])

    monkeypatch.setattr(Checkpoints, "on_end", damaging)
    trainer, _, said = train(tmp_path)
    assert f"(step {trainer.step}, the last)" in said
    assert "cannot be used (damaged checkpoint" in capfd.readouterr().err
    assert json.loads((trainer.path / "run.json").read_text())["test"]["step"] == trainer.step


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize("standardized", ["false", "true"])
def test_the_learned_line_is_of_that_model_too(tmp_path, monkeypatch, standardized):
    shown = []
    monkeypatch.setattr("microtrain.report.page.write_plots", lambda _, seen: shown.append(seen))
    config, said = Path(__file__).parents[2] / "configs" / "linreg.yaml", io.StringIO()
    more = ["train.duration=4 epochs", f"data.standardize_target={standardized}"]
    settings = load_config(config, [f"run_dir={tmp_path}", *more])
    trainer = Trainer.from_config(settings, output=Output(stream=said))
    trainer.train()
    model = mt.load(trainer.path)
    assert model.step < trainer.step
    (predictions,) = shown
    weight, bias = model.module.weight.item(), model.module.bias.item()
    if (scaling := model.target_scaling) is not None:
        unit, zero = scaling.affine.scale.item(), scaling.affine.mean.item()
        weight, bias = weight * unit, bias * unit + zero
        assert abs(weight - 2) < 0.05 and abs(bias - 3) < 0.05
    assert predictions.model.startswith(f"checkpoint of step {model.step}, the best")
    line = predictions.fit.curves[1]
    assert line.name == f"predicted: y = {weight:.5g} x + {bias:.5g}"
    heading, x, *_ = said.getvalue().partition("weight  ")[2].splitlines()
    assert heading.endswith(f"(step {model.step}, the best)")
    assert x.split()[1] == number(weight)
