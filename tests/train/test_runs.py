"""Runs from YAML as a user starts them: results that must be reached, files, endings, mistakes."""

from __future__ import annotations

import gc
import io
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from pace import daily

from microtrain.config.load import load_config
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.runs.arrays import params_sha256
from microtrain.runs.checkpoint import list_checkpoints, load_checkpoint
from microtrain.runs.metrics import read_metrics
from microtrain.train.console import Output
from microtrain.train.evaluation import evaluate
from microtrain.train.trainer import Trainer

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"


def train(name: str, tmp_path: Path, *overrides: str) -> Trainer:
    config = load_config(CONFIGS / name, [f"run_dir={tmp_path}", *overrides])
    with open(os.devnull, "w") as nowhere:
        trainer = Trainer.from_config(config, SingleCommunicator(), Output(stream=nowhere))
        trainer.train()
    return trainer


def command(*arguments: object, cwd: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """`python -m microtrain ...` as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "microtrain", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def run_of(tmp_path: Path, name: str) -> Path:
    (run,) = (p for p in (tmp_path / name).iterdir() if p.name != "latest")
    return run


@pytest.mark.parametrize("executor", ["off", "numpy", "auto"])
def test_a_trained_trainer_and_its_model_need_no_collector(tmp_path, monkeypatch, executor):
    monkeypatch.setenv("MICROTRAIN_REPORT", "off")  # matplotlib's import keeps who began it
    gc.collect()
    gc.disable()
    try:
        trainer = train("linreg.yaml", tmp_path, f"train.compile={executor}")
        model = weakref.ref(trainer.model.module)
        assert model() is not None
        del trainer
        assert model() is None
    finally:
        gc.enable()


# What the shipped configurations must reach ------------------------------------------------------


@pytest.mark.daily("[0]")
@pytest.mark.parametrize("seed", range(3))
def test_linreg_recovers_the_line(tmp_path, seed):
    model = train("linreg.yaml", tmp_path, f"seed={seed}").model
    weight, bias = model.module.weight.item(), model.module.bias.item()
    assert abs(weight - 2) <= 0.05  # the noise is 0.5
    assert abs(bias - 3) <= 0.05


@pytest.mark.slow
def test_diabetes_reaches_its_r2_over_ten_seeds(tmp_path):
    pytest.importorskip("sklearn")
    found = []
    for seed in range(10):
        trainer = train("diabetes.yaml", tmp_path / str(seed), f"seed={seed}")
        found.append(measured(trainer, "test")["r2"])
    assert np.mean(found) >= 0.40, found


@pytest.mark.slow
def test_digits_reaches_its_accuracy_over_five_seeds(tmp_path):
    pytest.importorskip("sklearn")
    found = []
    for seed in range(5):
        trainer = train("digits.yaml", tmp_path / str(seed), f"seed={seed}")
        found.append(measured(trainer, "test")["accuracy"])
    assert np.mean(found) >= 0.95, found


def measured(trainer: Trainer, part: str) -> dict[str, float]:
    dataset = getattr(trainer.data, part)
    module = trainer.model.module
    return evaluate(module, trainer.loss, trainer.metrics, dataset, trainer.comm)


@pytest.mark.slow
def test_two_layer_relu_learns_its_targets_by_heart(tmp_path):
    trainer = train("two_layer_relu.yaml", tmp_path, "log.every=1 steps")
    rows = read_metrics(run_of(tmp_path, "two_layer_relu") / "metrics.jsonl")
    losses = [row["loss"] for row in rows if row["split"] == "train"]
    assert len(losses) == trainer.step == 500
    assert losses[0] / losses[-1] > 1e8


@pytest.mark.daily("custom_model")
@pytest.mark.parametrize("name", ["csv.yaml", "custom_model.yaml"])
def test_the_other_configurations_learn(tmp_path, name):
    trainer = train(name, tmp_path)
    found = measured(trainer, "val")
    assert found.get("r2", found.get("accuracy")) > 0.9


# What a run leaves -----------------------------------------------------------------------------


@pytest.mark.usefixtures("reports")
def test_a_run_directory_is_complete_and_can_be_evaluated(tmp_path):
    done = command("train", CONFIGS / "linreg.yaml", "train.duration=3 epochs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path / "runs", "linreg")
    names = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    expected = {"config.yaml", "run.json", "metrics.jsonl", "log.txt", "run.lock"}
    inside = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
    expected |= {f"checkpoints/step-000375/{name}" for name in (*inside, "config.yaml")}
    assert expected <= names
    info = json.loads((run / "run.json").read_text())
    assert (info["status"], info["exit_code"], info["steps"]) == ("finished", 0, 375)
    assert info["best"]["name"] == "val/loss"
    assert (info["ranks"], info["hosts"]) == (1, [socket.gethostname()])
    assert info["timings"]["train_s"] > 0 and info["timings"]["comm_s"] == 0
    assert {"microtrain", "python", "numpy"} <= info["versions"].keys() and "git" in info
    checkpoint = load_checkpoint(list_checkpoints(run / "checkpoints")[-1])
    named = list(checkpoint.model.items())
    assert info["params_sha256"] == params_sha256(named)
    assert list(checkpoint.model) == ["weight", "bias"]
    assert checkpoint.model["weight"].shape == (1, 1)
    assert (run / "log.txt").read_text() in done.stdout
    assert "\x1b" not in done.stdout
    assert "learned" in done.stdout and "truth" in done.stdout

    again = command("evaluate", "runs/linreg", "--checkpoint", "last", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    last = [row for row in read_metrics(run / "metrics.jsonl") if row["split"] == "val"][-1]
    (line,) = (line for line in again.stdout.splitlines() if line.startswith("val"))
    assert f"{last['loss']:.5g}" in line


@pytest.mark.usefixtures("reports")
def test_pictures_are_drawn_without_being_asked(tmp_path):
    pytest.importorskip("matplotlib")
    train("linreg.yaml", tmp_path, "train.duration=2 epochs")
    plots = run_of(tmp_path, "linreg") / "plots"
    for name in ("loss.png", "fit.png"):
        assert (plots / name).read_bytes().startswith(b"\x89PNG")


def test_momentum_is_in_the_checkpoint_by_parameter_name(tmp_path):
    trainer = train("custom_model.yaml", tmp_path, "train.duration=3 steps")
    (path,) = list_checkpoints(run_of(tmp_path, "custom_model") / "checkpoints")
    names = [name for name, _ in trainer.model.named_parameters()]
    assert list(load_checkpoint(path).optimizer) == [f"{n}.momentum_buffer" for n in names]


@pytest.mark.parametrize("name, betas", [("adam", "[0.8, 0.9]"), ("adamw", "[0.9, 0.999]")])
def test_adam_goes_on_from_a_checkpoint_as_if_nothing_had_been(tmp_path, name, betas):
    overrides = (f"optimizer={{type: {name}, lr: 0.01, amsgrad: true, betas: {betas}}}",
                 "train.duration=7 steps")  # fmt: skip
    trainer = train("custom_model.yaml", tmp_path, *overrides)
    (path,) = list_checkpoints(run_of(tmp_path, "custom_model") / "checkpoints")
    saved = load_checkpoint(path)
    first = next(name for name, _ in trainer.model.named_parameters())
    names = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    assert list(saved.optimizer)[:4] == [f"{first}.{state}" for state in names]
    assert saved.optimizer[f"{first}.step"] == 7

    twin = Trainer.from_config(trainer.config, SingleCommunicator(), Output(stream=io.StringIO()))
    twin.model.load_state_dict(saved.model)
    for param_name, param in twin.model.named_parameters():
        state = {n: saved.optimizer[f"{param_name}.{n}"] for n in names}
        twin.optimizer.load_state_of(param, state)
    for batch in list(trainer.loader)[:3]:
        for one in (trainer, twin):
            one.optimizer.zero_grad()
            one.train_step(batch).backward()
            one.optimizer.step()
    for a, b in zip(trainer.model.parameters(), twin.model.parameters(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


@pytest.mark.daily("adam-{type: huber")
@pytest.mark.parametrize("loss", ["mae", "{type: huber, delta: 0.5}"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_other_losses_and_optimizers_learn_the_line(tmp_path, loss, optimizer):
    chosen = (f"loss={loss}", f"optimizer={{type: {optimizer}, lr: 0.1}}")
    model = train("linreg.yaml", tmp_path, *chosen).model
    assert model.module.weight.item() == pytest.approx(2, abs=0.1)
    assert model.module.bias.item() == pytest.approx(3, abs=0.1)


def test_bce_learns_which_side_of_a_line_a_point_is_on(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 2)).astype(np.float32)
    y = (x[:, :1] > x[:, 1:]).astype(np.float32)
    np.savez(tmp_path / "side.npz", x=x, y=y)
    (tmp_path / "side.yaml").write_text(
        "data: {type: npz, path: side.npz, split: {train: 0.5, val: 0.5}}\n"
        "model: linear_regression\nloss: bce\noptimizer: {type: adam, lr: 0.1}\n"
        "train: {duration: 20 epochs, batch_size: 10}\n"
    )
    trainer = train(str(tmp_path / "side.yaml"), tmp_path)
    assert measured(trainer, "val")["loss"] < 0.2


@pytest.mark.slow
def test_rows_are_bounded(tmp_path):
    done = command(
        "train", CONFIGS / "two_layer_relu.yaml", "train.duration=1000 steps", cwd=tmp_path
    )
    rows = [line for line in done.stdout.splitlines() if line.lstrip()[:1].isdigit()]
    assert 50 < len(rows) <= 201


# Endings ------------------------------------------------------------------------------------------


def test_a_diverging_run_stops_before_the_update_and_says_where(tmp_path):
    done = command("train", CONFIGS / "linreg.yaml", "optimizer.lr=1e30", cwd=tmp_path)
    assert done.returncode == 4
    assert "diverged at step" in done.stderr
    assert "of weight (layer Linear)" in done.stderr or "of bias (layer Linear)" in done.stderr
    assert "Traceback" not in done.stderr
    run = run_of(tmp_path / "runs", "linreg")
    assert json.loads((run / "run.json").read_text())["status"] == "diverged"
    assert not list_checkpoints(run / "checkpoints")


NOT_FINITE = """
import microtrain as mt
class Net(mt.nn.Module):
    def __init__(self, in_features):
        super().__init__()
        self.first = mt.nn.Linear(in_features, 1)
        self.last = mt.nn.Linear(1, 1)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        h = self.first(x)
        return self.last(h * float("inf") * 0 if self.calls > 5 else h)
"""


def test_the_first_parameter_that_is_not_finite_is_named(tmp_path):
    (tmp_path / "net.py").write_text(NOT_FINITE)
    (tmp_path / "run.yaml").write_text(
        (CONFIGS / "linreg.yaml").read_text().replace("linear_regression", "./net.py:Net")
    )
    done = command("train", "run.yaml", cwd=tmp_path)
    assert done.returncode == 4
    assert "not finite: first.weight (layer first), 1 of 1 values" in done.stderr


CRASHING = """
import microtrain as mt
class Net(mt.nn.Module):
    def __init__(self, in_features):
        super().__init__()
        self.inner = mt.nn.Linear(in_features, 1)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls > 5:
            raise ZeroDivisionError("a bug of the user's own")
        return self.inner(x)
"""


def test_the_users_own_error_keeps_its_traceback(tmp_path):
    (tmp_path / "net.py").write_text(CRASHING)
    (tmp_path / "run.yaml").write_text(
        (CONFIGS / "linreg.yaml").read_text().replace("linear_regression", "./net.py:Net")
    )
    done = command("train", "run.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "ZeroDivisionError: a bug of the user's own" in done.stderr
    assert "net.py" in done.stderr
    run = run_of(tmp_path / "runs", "linreg")
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "failed"
    assert info["error"] == "ZeroDivisionError: a bug of the user's own"
    assert "net.py" in (run / "log.txt").read_text()


# Mistakes -------------------------------------------------------------------------------------

# name -> (overrides or YAML text, exit code, words that the message has)
MISTAKES: dict[str, tuple[list[str] | str, int, list[str]]] = {
    "unknown key": (["train.batchsize=3"], 2, ["did you mean batch_size?"]),
    "wrong type": (["optimizer.lr=fast"], 2, ["optimizer.lr", '"fast"']),
    "batch size zero": (["train.batch_size=0"], 2, ["train.batch_size", "at least 1"]),
    "import path absent": (["model=nowhere:Net"], 2, ["there is no module nowhere"]),
    "no such backend": (["distributed.backend=gloo"], 2, ["expected auto, none, mpi or nccl"]),
    "missing data file": (
        ["data={type: csv, path: gone.csv, target: y}"],
        3,
        ["gone.csv"],
    ),
    "loss does not fit": (["loss=cross_entropy"], 2, ["compares classes", "categorical: true"]),
    "classes are absent": (["model=logistic_regression"], 2, ["classes", "categorical: true"]),
    "one class only": (
        ["data={type: csv, path: one.csv, target: y}", "model=logistic_regression"],
        3,
        ["all rows have one class, yes; expected two or more"],
    ),
    "targets beyond 0 and 1": (["loss=bce"], 2, ["needs targets from 0 to 1", "use mse"]),
    "a target without a unit": (
        ["loss=bce", "data.standardize_target=true"],
        2,
        ["data.standardize_target: the loss bce does not compare"],
    ),
    "sizes do not fit": (["model={type: linear_regression, out_features: 2}"], 2, ["do not fit"]),
    "metric does not fit": (["metrics=[accuracy]"], 2, ["metric accuracy"]),
    "GPU absent": (["device=cuda"], 5, ["cuda", "no usable GPU"]),
    "second document": ("name: a\n---\nname: b\n", 2, ["one file is one run"]),
    "duplicate key": ("name: a\nname: b\n", 2, ["name"]),
}


# Each is a process of its own; tests/config finds all of the first kind.
@pytest.mark.daily("unknown key", "missing data file")
@pytest.mark.parametrize(
    "case",
    daily(
        MISTAKES,
        *("unknown key", "missing data file", "loss does not fit", "one class only"),
        *("GPU absent", "second document"),
    ),
)
def test_a_mistake_gets_one_message_and_leaves_nothing(tmp_path, case):
    given, code, words = MISTAKES[case]
    if case == "GPU absent":
        from microtrain.backend import cuda_device_count

        if cuda_device_count():
            pytest.skip("this machine has a GPU")
    path = CONFIGS / "linreg.yaml"
    (tmp_path / "one.csv").write_text("a,y\n1,yes\n2,yes\n")
    if isinstance(given, str):
        path = tmp_path / "bad.yaml"
        path.write_text(given)
        given = []
    done = command("train", path, *given, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_an_unwritable_run_directory_is_found_before_training(tmp_path):
    (tmp_path / "taken").write_text("a file")
    done = command("train", CONFIGS / "linreg.yaml", "run_dir=taken", cwd=tmp_path)
    assert done.returncode == 5
    assert "taken" in done.stderr and "Traceback" not in done.stderr


CSV_MISTAKES = {
    "text cell": ("a,y\n1,2\n3,oops\n", ["3", "y", "oops"]),
    "nan cell": ("a,y\n1,2\nnan,3\n", ["3", "a", "nan"]),
    "no rows": ("a,y\n", ["empty"]),
}


@pytest.mark.daily("text cell")
@pytest.mark.parametrize("case", CSV_MISTAKES)
def test_a_bad_csv_names_file_row_and_column(tmp_path, case):
    text, words = CSV_MISTAKES[case]
    (tmp_path / "bad.csv").write_text(text)
    data = "data={type: csv, path: bad.csv, target: y}"
    done = command("train", CONFIGS / "linreg.yaml", data, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    for word in ["bad.csv", *words]:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_evaluate_refuses_foreign_code_without_trust(tmp_path):
    train("custom_model.yaml", tmp_path, "train.duration=3 steps")
    run = run_of(tmp_path, "custom_model")
    refused = command("evaluate", run, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--trust" in refused.stderr
    trusted = command("evaluate", run, "--trust", cwd=tmp_path)
    assert trusted.returncode == 0, trusted.stderr
    assert "r2" in trusted.stdout


PARTS = """
import microtrain as mt
import numpy as np

class Random(mt.nn.Module):  # random values that are no parameters
    def __init__(self, in_features):
        super().__init__()
        self.fixed = mt.randn(in_features, 4)
        self.out = mt.nn.Linear(4, 1)
    def forward(self, x):
        return self.out(x @ self.fixed)

class Wrong(mt.nn.Module):
    def __init__(self, in_features):
        super().__init__()
        self.inner = mt.nn.Linear(in_features, 1)
    def forward(self, x):
        return self.inner(x), None

class Frozen(mt.nn.Module):
    def __init__(self, in_features):
        super().__init__()
        self.inner = mt.nn.Linear(in_features, 1).requires_grad_(False)
    def forward(self, x):
        return self.inner(x)

class Breaks(mt.nn.Module):  # on the 2,000 rows of a report, which no batch has
    def __init__(self, in_features):
        super().__init__()
        self.inner = mt.nn.Linear(in_features, 1)
    def forward(self, x):
        assert len(x) != 2000
        return self.inner(x)

def float_loss():
    return lambda prediction, target: 1.0

def vector_loss():
    return lambda prediction, target: (prediction - target) ** 2

class Named(mt.train.Metric):
    name = "step"
    def sums(self, prediction, target):
        return np.zeros(1)
    def value(self, sums):
        return 0.0
"""


@pytest.mark.daily("Frozen")
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model=./parts.py:Wrong", "a tuple of a Tensor (2, 1) of float32, None;"),
        ("model=./parts.py:Frozen", "no parameter requires grad"),
        ("loss=./parts.py:float_loss", "returned float; expected one number"),
        ("loss=./parts.py:vector_loss", "expected one number"),
        ("metrics=[./parts.py:Named]", "the name step is taken"),
    ],
)
def test_parts_of_the_wrong_kind_are_refused_before_training(tmp_path, override, words):
    (tmp_path / "parts.py").write_text(PARTS)
    done = command("train", CONFIGS / "linreg.yaml", override, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_evaluate_makes_the_same_model_again(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    arguments = (CONFIGS / "linreg.yaml", "model=./parts.py:Random", "seed=3")
    done = command("train", *arguments, "train.duration=1 epochs", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path / "runs", "linreg")
    last = [row for row in read_metrics(run / "metrics.jsonl") if row["split"] == "val"][-1]
    again = command("evaluate", run, "--trust", cwd=tmp_path)
    assert f"loss {last['loss']:.5g}" in again.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("reports")
def test_a_model_that_fails_on_rows_of_the_report_does_not_fail_the_run(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    arguments = ("model=./parts.py:Breaks", "train.duration=1 epochs", "data.samples=3000")
    done = command(
        "train", CONFIGS / "linreg.yaml", *arguments, "data.split={train: 1}", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path / "runs", "linreg")
    assert "no predictions to show: AssertionError" in (run / "report.html").read_text()
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


@pytest.mark.usefixtures("reports")
def test_a_picture_that_cannot_be_drawn_does_not_fail_the_run(tmp_path, monkeypatch, capsys):
    def fails(*_):
        raise AssertionError("of matplotlib")

    monkeypatch.setattr("microtrain.report.page.write_plots", fails)
    train("linreg.yaml", tmp_path, "train.duration=1 epochs")
    info = json.loads((run_of(tmp_path, "linreg") / "run.json").read_text())
    assert info["status"] == "finished"
    said = "no plots: AssertionError: of matplotlib"
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_without_a_checkpoint_is_named_by_its_status(tmp_path):
    command("train", CONFIGS / "linreg.yaml", "optimizer.lr=1e30", cwd=tmp_path)
    done = command("evaluate", "runs/linreg", cwd=tmp_path)
    assert done.returncode == 3
    assert "has no checkpoint; its status is diverged" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", daily(["2024", "null", "a: b", "x # y", " blank"], "a: b"))
def test_run_dir_is_taken_as_it_is_written(tmp_path, name):
    arguments = ("train", CONFIGS / "linreg.yaml", "train.duration=2 steps", "--run-dir", name)
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name / "linreg").is_dir()


def test_classes_under_mse_are_refused_with_the_right_advice(tmp_path):
    done = command("train", CONFIGS / "csv.yaml", "loss=mse", "metrics=[]", cwd=tmp_path)
    assert done.returncode == 2
    assert "use cross_entropy" in done.stderr


@pytest.mark.daily("[4]")
@pytest.mark.parametrize("scores", [2, 4])
def test_another_number_of_scores_than_classes_is_refused_whatever_the_first_rows_hold(
    tmp_path, scores
):
    model = f"model={{type: logistic_regression, classes: {scores}}}"
    done = command("train", CONFIGS / "csv.yaml", model, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "3 classes" in done.stderr
    assert not (tmp_path / "runs").exists()


# Under MPI ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("reports")
def test_under_mpirun_only_rank_0_speaks(mpirun, tmp_path):
    job = mpirun(
        2, "-m", "microtrain", "train", CONFIGS / "linreg.yaml", "train.duration=2 epochs",
        cwd=tmp_path,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("train/loss") == 1
    assert "ranks    2" in job.stdout
    assert "\x1b" not in job.stdout
    assert len(list((tmp_path / "runs" / "linreg").glob("2*"))) == 1


@pytest.mark.daily("did you mean batch_size")
@pytest.mark.parametrize(
    ("override", "code", "word"),
    [
        ("train.batchsize=1", 2, "did you mean batch_size?"),
        pytest.param(
            *("data={type: csv, path: gone.csv, target: y}", 3, "gone.csv"), marks=pytest.mark.slow
        ),
        ("optimizer.lr=1e30", 4, "diverged"),
        ("run_dir=/proc/nowhere", 5, "/proc/nowhere"),
        pytest.param(
            *("distributed.backend=nccl", 2, "those of this model are on the CPU"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_under_mpirun_all_ranks_leave_together_with_one_message(
    mpirun, tmp_path, override, code, word
):
    job = mpirun(3, "-m", "microtrain", "train", CONFIGS / "linreg.yaml", override, cwd=tmp_path)
    assert job.returncode == code, job.stderr
    assert job.stderr.count("error: ") == 1
    assert word in job.stderr
    assert "Traceback" not in job.stderr
    assert not job.left_behind


@pytest.mark.parametrize(
    ("asked", "ranks", "gpus", "share", "outcome"),
    [
        ("cpu", 4, 8, False, None),
        ("auto", 4, 0, False, None),
        ("auto", 2, 2, False, 1),
        ("cuda", 2, 4, False, 1),
        ("cuda", 2, 1, True, 0),
        ("auto", 2, 1, False, "2 ranks on host"),
    ],
)
def test_each_local_rank_gets_a_gpu_of_its_own(monkeypatch, asked, ranks, gpus, share, outcome):
    """The choice alone, as arithmetic: this machine need not have the GPUs."""
    from types import SimpleNamespace

    from microtrain import backend
    from microtrain.errors import LaunchError
    from microtrain.train import build_run as assembly

    monkeypatch.setattr(backend, "cuda_device_count", lambda: gpus)
    monkeypatch.setattr(backend, "use_gpu", use_gpu if gpus else no_gpu)
    config = SimpleNamespace(device=asked, distributed=SimpleNamespace(share_gpu=share))

    def choose(comm):
        return assembly.choose_device(config, comm, pytest.fail)

    if isinstance(outcome, str):
        with pytest.raises(LaunchError, match=outcome):
            in_process.run(ranks, choose)
    else:
        assert in_process.run(ranks, choose)[1] == outcome


def use_gpu(index):
    return index


def no_gpu(index):
    raise RuntimeError("no usable GPU: CuPy is not installed")


@pytest.mark.daily("arguments2")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(["--help"], 0, marks=pytest.mark.slow),
        pytest.param(["train", "--nonsense"], 2, marks=pytest.mark.slow),
        (["check", "gone.yaml"], 2),
        (["evaluate", "gone"], 3),
    ],
)
def test_what_every_rank_meets_is_said_once_and_without_an_abort(mpirun, tmp_path, arguments, code):
    job = mpirun(3, "-m", "microtrain", *arguments, cwd=tmp_path)
    said = job.stdout + job.stderr
    assert job.returncode == code, said
    assert "abort" not in said.lower()
    assert said.count("Usage" if code == 0 else "error: ") == 1


@pytest.mark.slow
def test_a_csv_file_to_a_trained_model_enters_few_files(tmp_path):
    import microtrain

    home, entered = Path(microtrain.__file__).parent, set()
    upper = ("config", "data", "runs", "train", "inference", "report", "sweep", "cli", "exchange")

    def enter(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and home in path.parents:
            entered.add(path.relative_to(home))

    train("csv.yaml", tmp_path, "train.duration=1 epochs")  # what is imported late is there
    before = sys.getprofile(), threading.getprofile()
    sys.setprofile(enter)
    threading.setprofile(enter)
    try:
        train("csv.yaml", tmp_path, "train.duration=3 epochs")
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    found = sorted(str(path) for path in entered if path.parts[0] in upper)
    assert {"data/readers/csv.py", "train/trainer.py", "runs/checkpoint.py"} < {*found}
    assert len(found) <= 45, found
