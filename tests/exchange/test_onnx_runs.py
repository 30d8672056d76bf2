"""`microtrain export --to onnx`: onnxruntime gives what predict gives for the same raw rows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pages
import pytest

import microtrain as mt
from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.distributed.single import SingleCommunicator
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
CONFIGS = Path(__file__).parents[2] / "configs"


def trained(parent: Path, config: str | Path, *overrides: str) -> Path:
    more = [f"run_dir={parent}", "train.duration=20 steps", "train.compile=off", *overrides]
    settings = load_config(config if isinstance(config, Path) else CONFIGS / config, more)
    with open(os.devnull, "w") as nowhere:
        output = Output(stream=nowhere, errors=nowhere)
        Trainer.from_config(settings, SingleCommunicator(), output).train()
    return parent / settings.name


def exported(run: Path, path: Path):
    assert main(["export", str(run), "--to", "onnx", "--output", str(path), "--force"]) == 0
    return onnxruntime.InferenceSession(path)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("standardize", ["true", "false"])
def test_classes_and_their_probabilities(tmp_path: Path, dtype: str, standardize: str) -> None:
    run = trained(tmp_path, "csv.yaml", f"dtype={dtype}", f"data.standardize={standardize}")
    session, model = exported(run, tmp_path / "iris.onnx"), mt.load(run)
    for rows in (1, 7):
        x = np.random.default_rng(rows).uniform(0, 8, (rows, 4)).astype(dtype)
        prediction, probability = session.run(["prediction", "probability"], {"input": x})
        assert prediction.tolist() == model.predict(x).tolist()
        assert np.abs(probability - model.predict_proba(x)).max() < 1e-6
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == list(model.classes)
    assert json.loads(facts["feature_names"]) == list(model.feature_names)


def test_a_regression_of_one_target_is_one_number_a_row(tmp_path: Path) -> None:
    run = trained(tmp_path, "linreg.yaml", "data.standardize=true")
    session, model = exported(run, tmp_path / "m.onnx"), mt.load(run)
    x = np.linspace(-3, 3, 9, dtype=np.float32)[:, None]
    (prediction,) = session.run(None, {"input": x})
    assert prediction.shape == (9,)
    assert np.abs(prediction - model.predict(x)).max() < 1e-6


@pytest.mark.parametrize("log", ["true", "false"])
@pytest.mark.parametrize("clip", ["true", "false"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_target_that_was_standardized_is_in_its_own_unit(
    tmp_path: Path, dtype: str, clip: str, log: str
) -> None:
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(dtype)
    y = 1000 * np.exp(x[:, :1] / 2)
    config = npz_config(tmp_path, "mse", x, y, "{type: mlp, hidden: [4]}")
    keys = ["data.standardize_target=true", f"data.log_target={log}", f"data.clip={clip}"]
    run = trained(tmp_path, config, f"dtype={dtype}", *keys)
    (prediction,) = exported(run, tmp_path / "m.onnx").run(None, {"input": x * 5})
    expected = mt.load(run).predict(x * 5)
    assert prediction.dtype == expected.dtype
    np.testing.assert_allclose(prediction, expected, rtol=1e-6 if dtype == "float32" else 1e-12)


def npz_config(tmp_path: Path, loss: str, x: np.ndarray, y: np.ndarray, model: str) -> Path:
    np.savez(tmp_path / "data.npz", x=x, y=y)
    (tmp_path / "c.yaml").write_text(
        f"name: net\ndata: {{type: npz, path: {tmp_path}/data.npz}}\nmodel: {model}\n"
        f"loss: {loss}\noptimizer: {{type: adam, lr: 0.01}}\n"
        "train: {duration: 20 steps, batch_size: 16}\n"
    )
    return tmp_path / "c.yaml"


def test_the_loss_bce_gives_the_probability(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    y = (x[:, :1] > 0).astype(np.float32)
    config = npz_config(tmp_path, "bce", x, y, "{type: mlp, hidden: [4]}")
    run = trained(tmp_path, config)
    (prediction,) = exported(run, tmp_path / "m.onnx").run(None, {"input": x})
    assert np.abs(prediction - mt.load(run).predict(x)).max() < 1e-6


def test_a_convolution_of_images_named_by_whole_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 1, 8, 8)).astype(np.float32)
    y = rng.integers(0, 3, 60)
    (tmp_path / "net.py").write_text(
        "import microtrain as mt\n\n\nclass Net(mt.nn.Sequential):\n"
        "    def __init__(self, out_features):\n"
        "        nn = mt.nn\n"
        "        super().__init__(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),\n"
        "                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, out_features))\n"
    )
    config = npz_config(tmp_path, "cross_entropy", x, y, f"{tmp_path}/net.py:Net")
    run = trained(tmp_path, config)
    path = tmp_path / "m.onnx"
    assert main(["export", str(run), "--to", "onnx", "--output", str(path)]) == 2
    assert main(["export", str(run), "--to", "onnx", "--output", str(path), "--trust"]) == 0
    prediction, probability = onnxruntime.InferenceSession(path).run(None, {"input": x[:5]})
    model = mt.load(run, trust=True)
    assert prediction.dtype == np.int64
    assert prediction.tolist() == model.predict(x[:5]).tolist()
    assert np.abs(probability - model.predict_proba(x[:5])).max() < 1e-6


@pytest.mark.timeout(300)
def test_the_page_about_other_files_is_right_about_onnx(tmp_path: Path) -> None:
    assert pages.walk("docs/exchange.md", tmp_path, ("needs onnx and onnxruntime",)) > 5
