"""Models that return several Tensors, and trainers whose `eval_step` says what is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pytest
from from_python import made

import microtrain as mt
from microtrain.cli.main import main
from microtrain.data import ArrayDataset
from microtrain.distributed import Communicator, in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError
from microtrain.train import evaluation
from microtrain.train.evaluation import evaluate, own_step
from microtrain.train.metrics.base import FunctionMetric
from microtrain.train.metrics.classification import Accuracy
from microtrain.train.models_and_losses import described, joined, leaves, mapped

F = mt.nn.functional
CODE = next(block for block in pages.blocks("docs/your-loop.md") if block.file == "vae.py").text
FILES = {b.file: b.text for b in pages.blocks("docs/your-loop.md") if b.language == "yaml"}


class Heads(mt.nn.Module):
    """Scores of three classes and a number, as a dict of a tuple and a Tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.number = mt.nn.Linear(4, 3), mt.nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return {"scores": (self.scores(x),), "number": self.number(x)}


WEIGHT = mt.tensor([1.0, 3.0, 0.5], dtype=mt.float64)


class Both(mt.nn.Module):
    """A mean over what counts beside a mean over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", WEIGHT.clone())

    def forward(self, outputs: Any, target: Any) -> Any:
        loss = F.cross_entropy(outputs["scores"][0], target, weight=self.weight)
        return loss + 0.5 * outputs["number"].square().mean()


both = Both()


def median_margin(outputs: Any, target: Any) -> float:
    (scores,) = outputs["scores"]
    return float(np.median(scores[np.arange(len(target)), target] - outputs["number"][:, 0]))


class Own(mt.train.Trainer):
    kind = ""

    def eval_step(self, batch: Any) -> Any:
        x, target = batch
        outputs = self.model(x)
        (scores,) = outputs["scores"]
        loss: Any = Both()(outputs, target)  # a run makes its own loss float32
        if self.kind == "a sum and a count":
            each = F.cross_entropy(scores, target, reduction="none")
            weight = WEIGHT[target]
            loss = (each * weight).sum(), weight.sum()
        elif self.kind == "without a graph":
            errors = scores.detach().numpy()[np.arange(len(target)), target.numpy()]
            known = errors > 0
            loss = mt.tensor(errors[known].sum()), mt.tensor(float(known.sum()))
        elif self.kind == "through a part":
            again = self.model.module.scores(x)
            loss = F.cross_entropy(again, target, weight=WEIGHT) + scores.mean()
        return scores, loss


def rows(count: int) -> ArrayDataset:
    rng = np.random.default_rng(count)
    return ArrayDataset(rng.standard_normal((count, 4)), rng.integers(0, 3, count))


KINDS = ["", "a sum and a count", "without a graph", "through a part"]


@pytest.mark.parametrize("kind", ["loss of all", *KINDS])
def test_every_row_counts_once_however_many_ranks_and_passes(
    comm: Communicator, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "ROWS", 5)
    mt.manual_seed(0)
    model, both, data = Heads().double(), Both(), rows(33)
    own: Any = None if kind == "loss of all" else object.__new__(Own)
    metric: Any = Accuracy() if own else FunctionMetric(median_margin)
    if own:
        own.kind, own.model = kind, None
    found = evaluate(model, both, [metric], data, comm, step=own and own_step(own))
    x, target = map(mt.from_numpy, data[:])
    with mt.no_grad():
        outputs = model(x)
        if own:
            own.model = lambda x: outputs
            own.model.module = model
        _, expected = own.eval_step((x, target)) if own else (None, both(outputs, target))
    if isinstance(expected, tuple):
        expected = expected[0] / expected[1]
    assert found["loss"] == pytest.approx(float(expected), rel=1e-12)
    arrays = mapped(lambda tensor: tensor.numpy(), outputs)
    if own:
        assert found["accuracy"] == np.mean(arrays["scores"][0].argmax(axis=1) == data.target)
    else:
        assert found["median_margin"] == median_margin(arrays, data.target)


def test_shapes_of_outputs() -> None:
    outputs = ({"a": 1, "b": [2, 3]}, 4)
    assert leaves(outputs) == [1, 2, 3, 4]
    assert mapped(lambda n: n * 2, outputs) == ({"a": 2, "b": [4, 6]}, 8)
    assert joined(sum, [outputs, outputs]) == ({"a": 2, "b": [4, 6]}, 8)
    assert described((mt.ones(2, 3), None)) == "a tuple of a Tensor (2, 3) of float32, None"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "vae.py").write_text(CODE)
    for name in ("vae.yaml", "denoising.yaml"):
        (tmp_path / name).write_text(FILES[name])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.daily("[vae]")
@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize("name", ["vae", "denoising"])
def test_a_variational_autoencoder_from_yaml(
    place: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{name}.yaml"]) == 0
    assert "(parts of your own were tried on 8 rows)" in capsys.readouterr().out
    assert main(["train", f"{name}.yaml"]) == 0
    (run,) = Path("runs", name).glob("2*")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines if '"val"' in line]
    assert losses[-1] < 0.5 * losses[0]
    assert "There are no predictions to show" in (run / "report.html").read_text()
    capsys.readouterr()
    assert main(["evaluate", str(run), "--trust"]) == 0
    out, err = capsys.readouterr()
    assert ("as recorded" in out, err) == (True, "")
    Path("new.csv").write_text("0,0\n")
    model = mt.load(run, trust=True)
    x = np.zeros((3, 8), np.float32)
    with pytest.raises(ConfigError, match="returns a tuple of a Tensor"):
        model.predict(x)
    recon, mu, logvar = model(mt.from_numpy(x))
    assert (recon.shape, mu.shape, logvar.shape) == ((3, 8), (3, 3), (3, 3))


@pytest.mark.parametrize("compile", ["off", "numpy"])
def test_from_python_on_several_ranks_and_captured(tmp_path: Path, compile: str) -> None:
    data = rows(40)

    def train(comm: Communicator) -> list[Any]:
        mt.manual_seed(0)
        trainer = made(
            tmp_path / compile, Heads(), data, loss=Both(), metrics=[median_margin], comm=comm,
            split={"train": 0.8, "val": 0.2}, dtype="float64", duration="20 steps",
            train={"compile": compile}, checkpoint={"monitor": "val/median_margin", "mode": "max"},
        )  # fmt: skip
        assert trainer.train() == 0
        assert trainer.execution.name == compile
        return [p.tolist() for p in trainer.model.parameters()]

    alone, *others = in_process.run(1, train) + in_process.run(3, train)
    for each in others:
        for mine, theirs in zip(alone, each, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("trainer", "loss", "words"),
    [
        (mt.train.Trainer, "cross_entropy", "compares one Tensor with the target, but model"),
        (Own, "cross_entropy", ""),
    ],
)
def test_a_loss_of_one_tensor(tmp_path: Path, trainer: Any, loss: str, words: str) -> None:
    def build() -> Any:
        return trainer(
            Heads(), rows(20), loss=loss, optimizer={"type": "sgd", "lr": 0.1}, duration="1 epochs",
            batch_size=5, run_dir=str(tmp_path), comm=SingleCommunicator(), dtype="float64",
        )  # fmt: skip

    if words:
        with pytest.raises(ConfigError, match=words):
            build()
    else:  # which it is not asked for
        assert build().data.classes == ("0", "1", "2")


class MeanAndSpread(mt.nn.Linear):
    """A guess and how far it may be off, in two columns or apart."""

    def __init__(self, apart: bool) -> None:
        super().__init__(4, 2)
        self.apart = apart

    def forward(self, x: Any) -> Any:
        both = super().forward(x)
        return (both[:, :1], both[:, 1:]) if self.apart else both


def likelihood(outputs: Any, target: Any) -> Any:
    mean, log = outputs if isinstance(outputs, tuple) else (outputs[:, :1], outputs[:, 1:])
    return (log + (mean - target).square() * (-log).exp()).mean()


@pytest.mark.parametrize(
    ("apart", "words"),
    [
        (False, r"rows of shape \(1,\), but the model gives rows of shape \(2,\)"),
        (True, "gives tuple"),
    ],
)
def test_a_prediction_in_no_unit_is_refused_where_the_target_is_standardized(
    apart: bool, words: str, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(20, 4))
    settings: dict[str, Any] = {"loss": likelihood, "data": (x, x[:, :1])}
    assert made(tmp_path, MeanAndSpread(apart), **settings).data.target_scaling is None
    with pytest.raises(ConfigError, match=words):
        made(tmp_path, MeanAndSpread(apart), clip=True, **settings)


PATH = "microtrain.nn.functional"


@pytest.mark.parametrize("key", ["standardize_target", "log_target", "clip"])
@pytest.mark.parametrize(
    ("loss", "refused"),
    [
        (mt.nn.functional.poisson_nll_loss, True),
        (f"{PATH}:poisson_nll_loss", True),
        ({"type": f"{PATH}:poisson_nll_loss", "full": True}, True),
        (f"{PATH}:binary_cross_entropy_with_logits", True),
        (f"{PATH}:mse_loss", False),
        ({"type": f"{PATH}:huber_loss", "delta": 2.0}, False),
        (mt.nn.functional.l1_loss, False),
    ],
)
def test_a_function_that_is_a_loss_in_no_unit_is_refused_as_its_module_is(
    loss: Any, refused: bool, key: str, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).random((20, 4))
    settings: dict[str, Any] = {"loss": loss, "data": (x, x[:, :1]), key: True}
    if refused:
        with pytest.raises(ConfigError, match=f"data.{key}: the loss .* in a unit"):
            made(tmp_path, mt.nn.Linear(4, 1), **settings)
    else:
        assert made(tmp_path, mt.nn.Linear(4, 1), **settings).data.target_scaling is not None


class Forgets(mt.train.Trainer):
    def eval_step(self, batch: Any) -> Any:  # type: ignore[override]
        return self.model(batch[0])["number"]


def test_an_eval_step_that_forgets_the_loss(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eval_step of Forgets returned a Tensor"):
        Forgets(
            Heads(), rows(20), loss=both, optimizer={"type": "sgd", "lr": 0.1}, duration="1 epochs",
            batch_size=5, run_dir=str(tmp_path), comm=SingleCommunicator(),
        )  # fmt: skip
