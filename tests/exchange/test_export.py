"""`microtrain export --to safetensors|npz`: a run's weights in files that others read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import microtrain as mt
from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.distributed.single import SingleCommunicator
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def iris(tmp_path_factory) -> Path:
    parent = tmp_path_factory.mktemp("runs")
    overrides = [f"run_dir={parent}", "train.duration=2 epochs", "train.compile=off"]
    overrides.append("model={type: mlp, hidden: [8]}")
    with open(os.devnull, "w") as nowhere:
        settings = load_config(CONFIGS / "csv.yaml", overrides)
        output = Output(stream=nowhere, errors=nowhere)
        Trainer.from_config(settings, SingleCommunicator(), output).train()
    return parent / settings.name


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_the_weights_are_those_of_the_run(iris: Path, here: Path, kind: str, capsys) -> None:
    file = f"iris.{kind}"
    assert main(["export", str(iris), "--to", kind]) == 0
    said = capsys.readouterr()
    model = mt.load(iris)
    assert said.out == f"exported the {model.chosen}: {file}\n"
    mean = model.preprocessing.mean.tolist()
    assert f"expect standardized inputs, (x - mean) / scale: mean {mean}, scale [" in said.err
    weights, expected = mt.load(file), model.module.state_dict()
    assert list(weights) == list(expected)
    assert all(mt.equal(weights[name], expected[name]) for name in expected)


def test_it_is_said_that_a_target_was_standardized(here: Path, capsys) -> None:
    x = np.random.default_rng(0).random((40, 2))
    np.savez("d.npz", x=x, y=100 * x[:, 0])
    keys = "standardize_target: true, log_target: true, clip: true"
    Path("a.yaml").write_text(
        f"name: a\ndata: {{type: npz, path: d.npz, {keys}}}\nmodel: linear_regression\nloss: mse\n"
        "optimizer: adam\ntrain: {duration: 2 steps, batch_size: 8, compile: off}\n"
    )
    assert main(["train", "a.yaml"]) == 0
    capsys.readouterr()
    assert main(["export", "runs/a", "--to", "npz"]) == 0
    said, affine = capsys.readouterr().err, mt.load("runs/a").target_scaling.affine
    expected = f"mean {affine.mean.tolist()}, scale {affine.scale.tolist()}"
    assert f"the weights give (log(1 + target) - mean) / scale: {expected}" in said
    assert "clip them" in said


def test_torch_predicts_with_them(iris: Path, here: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    assert main(["export", str(iris), "--to", "safetensors"]) == 0
    model = mt.load(iris)
    theirs = load_file("iris.safetensors")
    x = np.random.default_rng(0).uniform(0, 8, (20, 4))
    h = torch.from_numpy(model.prepare(x)[0])
    names = [name.removesuffix(".weight") for name in theirs if name.endswith(".weight")]
    for name in names:
        h = torch.nn.functional.linear(h, theirs[f"{name}.weight"], theirs[f"{name}.bias"])
        h = h if name == names[-1] else torch.relu(h)
    assert np.abs(torch.softmax(h, 1).numpy() - model.predict_proba(x)).max() < 1e-6


WRONG = {
    "another suffix": (["--to", "npz", "--output", "x.np"], "a name that ends in .npz for"),
    "a pickle of torch": (
        ["--to", "safetensors", "--output", "x.pt"],
        "ends in .safetensors for --to safetensors; pickles of PyTorch are not written; write "
        "x.safetensors, which PyTorch reads: model.load_state_dict(safetensors.torch.load_file("
        '"x.safetensors"))',
    ),
    "a directory": (["--to", "npz", "--output", "d.npz"], "--output d.npz is not a file"),
    "nowhere": (["--to", "npz", "--output", "no/x.npz"], "there is no directory no"),
    "taken": (["--to", "npz", "--output", "taken.npz"], "exists; --force replaces it"),
    "no format": ([], "Missing option '--to'"),
    "an unknown format": (["--to", "onx"], "is not one of"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_commands_are_one_message(iris: Path, here: Path, name: str, capsys) -> None:
    (here / "d.npz").mkdir()
    (here / "taken.npz").write_bytes(b"mine")
    words, message = WRONG[name]
    assert main(["export", str(iris), *words]) == 2
    assert message in capsys.readouterr().err
    assert (here / "taken.npz").read_bytes() == b"mine"
    assert main(["export", str(iris), "--to", "npz", "--output", "taken.npz", "--force"]) == 0
    assert list(mt.load("taken.npz")) == list(mt.load(iris).module.state_dict())
