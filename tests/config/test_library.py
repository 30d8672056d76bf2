"""`Trainer(model, data, ...)`: the run that a YAML file would be, from Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from from_python import X, Y, made, quiet

import microtrain as mt
from microtrain import backend
from microtrain.data import synthetic_linear
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError, DataError, LaunchError
from microtrain.runs.checkpoint import load_checkpoint
from microtrain.runs.metrics import read_metrics
from microtrain.train import run_data as assembly
from microtrain.train.trainer import Trainer

YAML = """
name: line
data:
  {type: synthetic_linear, samples: 200, weights: [2], bias: 3, noise: 0.5,
   split: {train: 0.8, val: 0.2}}
model: linear_regression
loss: mse
metrics: [r2]
optimizer: {type: sgd, lr: 0.1, momentum: 0.5}
train: {duration: 3 epochs, batch_size: 16}
"""


def left(path: Path) -> tuple[Any, ...]:
    rows = [
        {k: v for k, v in row.items() if k not in ("time", "samples_per_s", "comm_share")}
        for row in read_metrics(path / "metrics.jsonl")
    ]
    return rows, json.loads((path / "run.json").read_text())["params_sha256"]


def test_the_same_run_as_from_yaml(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(YAML)
    config = mt.train.load_config(tmp_path / "line.yaml", [f"run_dir={tmp_path}/yaml"])
    from_yaml = Trainer.from_config(config, SingleCommunicator(), quiet())
    assert from_yaml.train() == 0

    mt.manual_seed(0)
    model = mt.nn.Linear(1, 1)
    model.load_state_dict({"weight": mt.zeros(1, 1), "bias": mt.zeros(1)})
    named = [*Trainer.from_config(config, SingleCommunicator(), quiet()).model.named_parameters()]
    model.load_state_dict(dict(zip(("weight", "bias"), (p for _, p in named), strict=True)))
    data = synthetic_linear(samples=200, weights=[2], bias=3, noise=0.5, seed=0)
    settings = {
        "metrics": ["r2"], "split": {"train": 0.8, "val": 0.2}, "duration": "3 epochs",
        "batch_size": 16, "optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.5},
    }  # fmt: skip
    from_python = made(tmp_path / "python", model, data, **settings)
    assert from_python.history["step"].size == 0
    with pytest.raises(DataError, match="has not trained"):
        from_python.plot()
    assert from_python.train() == 0
    mine, read = from_python.history, mt.history(tmp_path / "python" / from_python.config.name)
    assert mine.keys() == read.keys() >= {"step", "epoch", "train/loss", "val/loss", "val/r2"}
    assert mine["step"][-1] == 30
    for name, values in read.items():
        np.testing.assert_array_equal(mine[name], values)
    assert [axes.get_ylabel() for axes in from_python.plot("val/r2").axes] == ["val/r2"]
    rows, _ = left(from_python.path)
    assert rows == left(from_yaml.path)[0]


def test_objects_in_place_of_names(tmp_path: Path) -> None:
    def half(prediction: mt.Tensor, target: mt.Tensor) -> mt.Tensor:
        return ((prediction - target) ** 2).mean() / 2

    trainer = made(
        tmp_path, loss=half, optimizer=lambda params: mt.optim.Adam(params, lr=0.05), name="own"
    )
    assert trainer.train() == 0
    assert type(trainer.optimizer) is mt.optim.Adam
    text = (trainer.path / "config.yaml").read_text()
    for name in ("python:Linear", "python:tuple", "python:half", "python:<lambda>"):
        assert name in text
    # The values are read with a model of the same kind; nothing else can make it again.
    loaded = mt.load(trainer.path, model=mt.nn.Linear(1, 1), checkpoint="last")
    expected = trainer.model(mt.tensor(X)).detach().numpy()[:, 0]
    np.testing.assert_array_equal(loaded.predict(X), expected)
    with pytest.raises(ConfigError, match=r"model Linear was given to Trainer\(\.\.\.\) in Python"):
        mt.load(trainer.path)
    with pytest.raises(DataError, match="does not fit"):
        mt.load(trainer.path, model=mt.nn.Linear(2, 1))


def test_a_training_step_of_another_shape(tmp_path: Path) -> None:
    class Absolute(Trainer):
        def train_step(self, batch: tuple[mt.Tensor, ...]) -> mt.Tensor:
            x, y = batch
            return (self.model(x) - y).abs().mean() + 0.1 * self.model.module.weight.square().sum()

    mt.manual_seed(0)
    plain = made(tmp_path / "a", name="a")
    mt.manual_seed(0)
    settings = {"comm": SingleCommunicator(), "output": quiet(), "run_dir": str(tmp_path / "b")}
    other = Absolute(
        mt.nn.Linear(1, 1), (X, Y), loss="mse", optimizer={"type": "sgd", "lr": 0.1},
        duration="4 epochs", batch_size=8, **settings,
    )  # fmt: skip
    assert plain.train() == other.train() == 0
    assert left(plain.path)[1] != left(other.path)[1]


def test_more_ranks_give_the_same(tmp_path: Path) -> None:
    def run(comm: Any) -> str:
        mt.manual_seed(0)
        trainer = made(
            tmp_path / str(comm.size), mt.nn.Linear(1, 1), comm=comm, output=quiet(comm.rank),
            distributed={"reproducible": "world", "shards": 4},
        )  # fmt: skip
        trainer.train()
        return left(trainer.path)[1]

    hashes = {sha for size in (1, 2, 4) for sha in in_process.run(size, run)}
    assert len(hashes) == 1


def test_what_is_tried_before_the_first_step_leaves_no_trace(tmp_path: Path) -> None:
    model = mt.nn.Sequential(mt.nn.Linear(1, 4), mt.nn.BatchNorm1d(4), mt.nn.Linear(4, 1))
    norm: Any = model[1]
    trainer = made(tmp_path, model, duration="3 steps")
    assert (norm.num_batches_tracked.item(), norm.running_mean.tolist()) == (0, [0.0] * 4)
    assert all(part.training for part in model.modules())
    trainer.train()
    assert norm.num_batches_tracked.item() == 3


class Halving(mt.train.Schedule):
    def after_warmup(self, step: int, base: float) -> float:
        return np.float32(base) / np.float32(2**step)  # type: ignore[return-value]


def test_the_rates_of_a_schedule_may_be_numpys(tmp_path: Path) -> None:
    trainer = made(tmp_path, schedule=Halving(), duration="3 steps", checkpoint={"every": "1 step"})
    assert trainer.train() == 0
    kept = load_checkpoint(trainer.path / "checkpoints" / "last").state["options"]
    assert kept[0]["lr"] == np.float32(0.1) / 4


def test_resume_auto(tmp_path: Path) -> None:
    mt.manual_seed(0)
    first = made(tmp_path, duration="2 epochs")
    first.train()
    assert made(tmp_path, duration="2 epochs", resume="auto").train() == 0  # nothing is left to do
    longer = made(tmp_path, resume="auto")
    assert longer.train() == 0
    assert longer.path == first.path and longer.step == 20
    mt.manual_seed(0)
    whole = made(tmp_path / "whole")
    whole.train()
    assert left(whole.path)[1] == left(longer.path)[1]
    with pytest.raises(ConfigError, match=r"optimizer\.lr: 0\.1 in the run, 0\.2 now"):
        made(
            tmp_path, duration="9 epochs", resume="auto", optimizer={"type": "sgd", "lr": 0.2}
        ).train()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"durtion": "4 epochs"}, "did you mean train.duration"),
        ({"loss": "mze"}, "did you mean mse"),
        ({"batch_size": 0}, "a whole number of at least 1, or all, got 0"),
        ({"metrics": ["acuracy"]}, "did you mean accuracy"),
        ({"train": {"clip_norm": "much"}}, "a number greater than 0, or null, got"),
        ({"seed": object()}, "seed is not a plain value"),
        ({"train": {"batch_size": 4}}, "batch_size is given twice"),
        ({"loss": 3}, "loss is of type int; expected a name, .* or a function of prediction"),
        (
            {"optimizer": mt.optim.SGD([mt.nn.Parameter(mt.ones(1))], lr=0.1)},
            "optimizer is of type SGD; expected a name, .* or a function that creates one",
        ),
        ({"checkpoint": {"monitor": "val/loss"}}, "needs validation data"),
    ],
)
def test_mistakes_are_those_of_yaml(tmp_path: Path, settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_it_trains_once(tmp_path: Path) -> None:
    trainer = made(tmp_path)
    trainer.train()
    with pytest.raises(RuntimeError, match=r"has already trained, in .*resume="):
        trainer.train()
    assert len(list(tmp_path.glob("run/*/run.json"))) == 2  # one, and the link to it


@pytest.mark.parametrize("returned", [None, 3.0])
def test_a_training_step_returns_the_loss(tmp_path: Path, returned: Any) -> None:
    class Forgetful(Trainer):
        def train_step(self, batch: Any) -> Any:
            return returned

    given: dict[str, Any] = {"duration": "1 epoch", "batch_size": 8, "output": quiet()}
    trainer = Forgetful(
        mt.nn.Linear(1, 1), (X, Y), loss="mse", optimizer="sgd", run_dir=str(tmp_path), **given
    )
    with pytest.raises(TypeError, match=f"train_step returned a {type(returned).__name__}"):
        trainer.train()


def test_a_configuration_is_taken_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(YAML)
    config = mt.train.load_config(tmp_path / "line.yaml")
    with pytest.raises(TypeError, match=r"Trainer\.from_config"):
        Trainer(config, SingleCommunicator(), loss="mse", optimizer="sgd")


def test_data_whose_ranks_wait_for_each_other_are_not_begun_without_a_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as a download by rank 0: a rank that has no GPU must not leave the others in it."""
    load = assembly.load_data

    def use_gpu(index: int) -> None:
        if index:
            raise RuntimeError("no GPU here")

    def load_together(config: Any) -> Any:
        mt.distributed.world().barrier()
        return load(config)

    monkeypatch.setattr(backend, "cuda_device_count", lambda: 2)
    monkeypatch.setattr(backend, "use_gpu", use_gpu)
    monkeypatch.setattr(assembly, "load_data", load_together)
    with pytest.raises(LaunchError, match="no GPU here"):
        in_process.run(2, lambda comm: made(tmp_path, comm=comm, device="cuda"))


def test_other_settings_on_one_rank_are_an_error_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    caught: dict[int, str] = {}

    def settle(comm: Any, make: Any) -> None:
        with pytest.raises(ConfigError) as error:
            make(comm)
        assert error.value.agreed
        caught[comm.rank] = str(error.value)

    def from_python(comm: Any) -> None:
        rate = {"type": "sgd", "lr": 0.1 if comm.rank != 1 else 0.2}
        Trainer(mt.nn.Linear(2, 1), (X, Y), loss="mse", optimizer=rate, comm=comm)

    def from_yaml(comm: Any) -> None:
        config = mt.train.load_config("line.yaml", [f"seed={comm.rank % 2}"])
        Trainer.from_config(config, comm)

    in_process.run(3, settle, from_python)
    assert "optimizer differs: {'type': 'sgd', 'lr': 0.1} on ranks 0, 2" in caught[0]
    assert len({*caught.values()}) == 1
    assert "'lr': 0.2} on rank 1" in caught[0]
    (tmp_path / "line.yaml").write_text(YAML)
    in_process.run(3, settle, from_yaml)
    assert "configurations differs: seed: 0 on ranks 0, 2, seed: 1 on rank 1" in caught[0]
    assert not (tmp_path / "runs").exists()
