"""Rows with weights: the loss, its gradients and the metrics are of `sum(w l) / sum(w)`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pace import daily

import microtrain as mt
from microtrain.config.load import load_config
from microtrain.data import ArrayDataset
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError
from microtrain.runs.metrics import read_metrics
from microtrain.train import Trainer
from microtrain.train.console import Output
from microtrain.train.metrics.base import Metric

ROWS = 61


def data_of(loss: Any, repeated: bool = False, zeros: slice = slice(0, 0)) -> ArrayDataset:
    """Rows for a loss, whole numbers as their weights; or as many copies of them."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, 4))
    truth = x @ rng.normal(size=(4, 3)) + rng.normal(size=(ROWS, 3))
    target: Any = truth
    if "cross_entropy" in str(loss) or "own" in str(loss):
        target = truth.argmax(axis=1)
    elif "bce" in str(loss):
        target = (truth > 0).astype(float)
    weights = rng.integers(0, 4, ROWS).astype(float)
    weights[zeros] = 0.0
    if repeated:
        copies = weights.astype(int)
        return ArrayDataset(np.repeat(x, copies, 0), np.repeat(target, copies, 0))
    return ArrayDataset(x, target, weights=weights)


def train(comm: Any, path: Path, loss: Any, data: Any = None, **settings: Any) -> tuple[Any, Any]:
    """Losses of all rows of metrics.jsonl, and the parameters that were learned."""
    trainer = Trainer(
        {"type": "mlp", "hidden": [5]}, data or data_of(loss), loss=loss,
        optimizer={"type": "sgd", "lr": 0.1, "momentum": 0.9}, comm=comm,
        output=Output(stream=io.StringIO()),
        **{"run_dir": str(path), "dtype": "float64", "duration": "4 epochs", "batch_size": 20,
           "compile": "off", "log": {"every": "1 steps"}, **settings},
    )  # fmt: skip
    assert trainer.train() == 0
    rows = [] if comm.rank else read_metrics(trainer.path / "metrics.jsonl")
    names = [m.name for m in trainer.metrics]
    values = [row[name] for row in rows for name in ("loss", *names) if name in row]
    return values, [p.detach().numpy().copy() for p in trainer.model.parameters()]


def assert_same(found: Any, expected: Any, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=rtol, atol=1e-12)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12)


def own_loss(prediction: Any, target: Any, weight: Any) -> Any:
    losses = mt.nn.functional.cross_entropy(prediction, target, reduction="none")
    return (losses * weight).sum(), weight.sum()


def own_sum(prediction: Any, target: Any, weight: Any) -> Any:
    losses = mt.nn.functional.cross_entropy(prediction, target, reduction="none")
    return (losses * weight).sum()


own_sum.reduction = "sum"  # type: ignore[attr-defined]


def called(case: Any) -> str:
    """Of a case of a test."""
    if isinstance(case, dict):
        return "-".join(map(str, case.values()))
    return case if isinstance(case, str) else getattr(case, "__name__", str(len(str(case))))


LOSSES: list[Any] = [
    "mse", "mae", "huber", "bce", "cross_entropy", own_loss,
    {"type": "mse", "reduction": "sum"},
    {"type": "bce", "pos_weight": "balanced"},
    {"type": "cross_entropy", "class_weight": "balanced", "label_smoothing": 0.1},
    {"type": "cross_entropy", "weight": [0.2, 1.0, 5.0], "reduction": "sum"},
    {"type": "cross_entropy", "ignore_index": 1},
]  # fmt: skip
QUICK = "mse", "bce", own_loss, {"type": "cross_entropy", "ignore_index": 1}


def metrics_of(loss: Any) -> list[str]:
    if "cross_entropy" in str(loss) or "own" in str(loss):
        return ["accuracy", "log_loss", "roc_auc"]
    return ["mse", "r2", "median_absolute_error", "explained_variance"]


@pytest.mark.daily("cross_entropy", "own_loss")
@pytest.mark.parametrize("loss", daily(LOSSES, *QUICK), ids=called)
def test_a_weighted_run_is_the_same_on_any_ranks(loss: Any, tmp_path: Path) -> None:
    settings = {"metrics": metrics_of(loss), "split": {"train": 0.8, "val": 0.2}}
    if "sum" in str(loss):
        settings["clip_norm"] = 0.1
    alone = train(SingleCommunicator(), tmp_path / "1", loss, **settings)
    assert np.isfinite(alone[0]).all() and len(alone[0]) >= 20
    for ranks in (2, 4):
        path = tmp_path / str(ranks)
        found = in_process.run(ranks, lambda c, p=path: train(c, p, loss, **settings))
        assert_same(found[0], alone)


@pytest.mark.parametrize("loss", daily(LOSSES, *QUICK), ids=called)
def test_a_weight_is_a_number_of_copies(loss: Any, tmp_path: Path) -> None:
    """Of all rows in one batch; `balanced` counts copies, too."""
    settings: Any = {"metrics": metrics_of(loss), "batch_size": 1000, "shuffle": False}
    weighted = train(SingleCommunicator(), tmp_path / "a", loss, **settings)
    plain = own_loss_unweighted if loss is own_loss else loss
    repeated = train(
        SingleCommunicator(), tmp_path / "b", plain, data_of(loss, repeated=True), **settings
    )
    assert_same(weighted, repeated)


def own_loss_unweighted(prediction: Any, target: Any) -> Any:
    return mt.nn.functional.cross_entropy(prediction, target)


@pytest.mark.daily("cross_entropy")
@pytest.mark.parametrize(
    "loss", ["mse", {"type": "cross_entropy", "class_weight": "balanced"}], ids=called
)
def test_shards_give_the_same_bits(loss: Any, tmp_path: Path) -> None:
    shared = {"reproducible": "world", "shards": 4}
    settings: Any = {"distributed": shared, "metrics": metrics_of(loss), "accumulate": 2}
    alone = train(SingleCommunicator(), tmp_path / "1", loss, **settings)
    for ranks in (2, 4):
        path = tmp_path / str(ranks)
        found = in_process.run(ranks, lambda c, p=path: train(c, p, loss, **settings))[0]
        assert repr(found) == repr(alone)


@pytest.mark.daily("mse-numpy", "own_loss-numpy", "cross_entropy-[0.2, 1.0, 5.0]-sum-numpy")
@pytest.mark.parametrize(
    ("loss", "executor"),
    [(loss, "numpy") for loss in LOSSES]
    + daily([(loss, "native") for loss in LOSSES], ("cross_entropy", "native")),
    indirect=["executor"],
    ids=called,
)
def test_captured_steps_weigh_alike(loss: Any, executor: str, tmp_path: Path) -> None:
    eager = train(SingleCommunicator(), tmp_path / "a", loss, clip_norm=0.1)
    captured = train(SingleCommunicator(), tmp_path / "b", loss, compile=executor, clip_norm=0.1)
    assert_same(captured, eager)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("loss", ["mse", "cross_entropy", own_loss], ids=called)
def test_a_batch_in_which_nothing_counts_changes_nothing(
    loss: Any, ranks: int, tmp_path: Path
) -> None:
    settings: Any = {"shuffle": False, "batch_size": 10, "duration": "1 epochs"}
    data = data_of(loss, zeros=slice(0, 25))
    (values, learned), *_ = in_process.run(
        ranks, lambda c: train(c, tmp_path, loss, data, **settings)
    )
    assert all(np.isfinite(array).all() for array in learned)
    assert np.isnan(values[:2]).all() and np.isfinite(values[2:]).all()


def no_weight(prediction: Any, target: Any) -> Any:
    return (prediction - target).square().mean()


def one_number(prediction: Any, target: Any, weight: Any) -> Any:
    return ((prediction - target).square().mean(1) * weight).sum() / weight.sum()


class Plain(Metric):
    name = "plain"

    def sums(self, prediction: Any, target: Any) -> Any:
        return np.array([float(len(target))])

    def value(self, sums: Any) -> float:
        return 1.0


@pytest.mark.parametrize(
    "loss, metrics, message",
    [
        (no_weight, [], "no_weight cannot weigh rows.* a third argument, weight"),
        (mt.nn.functional.mse_loss, [], "mse_loss cannot weigh rows"),
        (mt.nn.functional.cross_entropy, [], "cross_entropy cannot weigh rows"),
        (one_number, [], r"one_number returned one number .* \(losses \* weight\).sum\(\)"),
        ("mse", [Plain()], "metric plain cannot measure rows with weights"),
    ],
    ids=["no_weight", "mse_loss", "cross_entropy", "one_number", "metric"],
)
def test_what_cannot_weigh_is_refused(
    loss: Any, metrics: Any, message: str, tmp_path: Path
) -> None:
    data = data_of(loss) if "cross" in str(loss) else data_of("mse")
    with pytest.raises(ConfigError, match=message):
        train(SingleCommunicator(), tmp_path, loss, data, metrics=metrics)


# Weights of classes -------------------------------------------------------------------------------

YAML = """
name: balanced
data: {{type: ./data.py:rows, split: {{train: 0.8, val: 0.2}}}}
model: {{type: mlp, hidden: [5]}}
loss: {loss}
optimizer: {{type: sgd, lr: 0.1}}
train: {{duration: 2 epochs, batch_size: 30}}
"""
DATA = """
from pathlib import Path

import numpy as np

def rows(seed=0):
    assert not Path(__file__).with_name("gone").exists()
    rng = np.random.default_rng(3)
    x = rng.normal(size=(101, 4))
    return x, np.digitize(x[:, 0], [-1.0, 1.0]){target}
"""


def configured(tmp_path: Path, loss: str, target: str = "", *overrides: str) -> Any:
    (tmp_path / "data.py").write_text(DATA.format(target=target))
    (tmp_path / "run.yaml").write_text(YAML.format(loss=loss))
    return load_config(tmp_path / "run.yaml", [f"run_dir={tmp_path / 'runs'}", *overrides])


def test_balanced_is_scikit_learns_weight_of_the_training_rows(tmp_path: Path) -> None:
    from sklearn.utils.class_weight import compute_class_weight

    balanced = "{type: cross_entropy, class_weight: balanced}"
    config = configured(tmp_path, balanced)
    trainer = Trainer.from_config(config, SingleCommunicator(), Output(stream=io.StringIO()))
    codes = trainer.data.train.target
    expected = compute_class_weight("balanced", classes=np.arange(3), y=codes)
    np.testing.assert_allclose(trainer.loss.weight.numpy(), expected, rtol=1e-6)
    exact = configured(
        tmp_path, "{type: cross_entropy, class_weight: balanced}", "", "dtype=float64"
    )
    loss = Trainer.from_config(exact, SingleCommunicator(), Output(stream=io.StringIO())).loss
    np.testing.assert_allclose(loss.weight.numpy(), expected, rtol=1e-15)  # not of float32
    trainer.train()
    text = (trainer.path / "config.yaml").read_text()
    (line,) = [line for line in text.splitlines() if "class_weight" in line]
    assert line.endswith("# balanced, from the training rows")
    stored = load_config(trainer.path / "config.yaml", trust=True).loss.arguments["class_weight"]
    np.testing.assert_allclose(stored, expected, rtol=1e-12)


def test_balanced_counts_weights(tmp_path: Path) -> None:
    from sklearn.utils.class_weight import compute_class_weight

    data = data_of("cross_entropy")
    trainer = Trainer(
        {"type": "mlp", "hidden": [5]}, data, run_dir=str(tmp_path), duration="1 steps",
        batch_size=9, optimizer="adam", output=Output(stream=io.StringIO()),
        loss={"type": "cross_entropy", "class_weight": "balanced"},
    )  # fmt: skip
    expected = compute_class_weight(
        "balanced", classes=np.arange(3), y=data.target, sample_weight=data.weights
    )
    np.testing.assert_allclose(trainer.loss.weight.numpy(), expected, rtol=1e-6)


def test_balanced_positives(tmp_path: Path) -> None:
    config = configured(tmp_path, "{type: bce, pos_weight: balanced}", ".clip(0, 1).astype(float)")
    trainer = Trainer.from_config(config, SingleCommunicator(), Output(stream=io.StringIO()))
    target = trainer.data.train.target
    expected = (target == 0).sum() / (target == 1).sum()
    assert trainer.loss.pos_weight.item() == pytest.approx(expected, rel=1e-6)


def test_a_balanced_run_goes_on_and_is_used_without_its_training_data(tmp_path: Path) -> None:
    from microtrain.inference.evaluate import evaluate_run

    config = configured(tmp_path, "{type: cross_entropy, class_weight: balanced}")
    first = Trainer.from_config(config, SingleCommunicator(), Output(stream=io.StringIO()))
    first.train()
    longer = configured(
        tmp_path, "{type: cross_entropy, class_weight: balanced}", "", "train.duration=3 epochs"
    )
    again = Trainer.from_config(
        longer, SingleCommunicator(), Output(stream=io.StringIO()), resume=first.path
    )
    assert again.train() == 0 and again.path == first.path
    x, codes = first.data.val.arrays  # type: ignore[union-attr]
    np.savez(tmp_path / "new.npz", x=x, y=codes)
    (tmp_path / "gone").touch()
    evaluation = evaluate_run(
        str(first.path), comm=SingleCommunicator(), warn=lambda text: None, trust=True,
        checkpoint="last", data_file=str(tmp_path / "new.npz"),
    )  # fmt: skip
    (part,) = evaluation.parts.values()
    recorded = read_metrics(first.path / "metrics.jsonl")
    expected = [row["loss"] for row in recorded if row["split"] == "val"][-1]
    assert part.values["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_class_without_training_rows_cannot_be_balanced(tmp_path: Path) -> None:
    from microtrain.errors import DataError

    config = configured(tmp_path, "{type: cross_entropy, class_weight: balanced}", " * 2")
    with pytest.raises(DataError, match="class 1 has none"):
        Trainer.from_config(config, SingleCommunicator(), Output(stream=io.StringIO()))


@pytest.mark.parametrize(
    "loss, target, message",
    [
        ("{type: bce, pos_weight: balanced}", "", "compares numbers"),
        ("{type: cross_entropy, class_weight: balanced}", " * 1.0", "compares classes"),
    ],
)
def test_balanced_does_not_hide_what_does_not_fit(
    loss: str, target: str, message: str, tmp_path: Path
) -> None:
    config = configured(tmp_path, loss, target)
    with pytest.raises(ConfigError, match=message):
        Trainer.from_config(config, SingleCommunicator(), Output(stream=io.StringIO()))


def test_weights_of_classes_are_given_once(tmp_path: Path) -> None:
    loss = "{type: cross_entropy, class_weight: balanced, weight: [1, 2, 3]}"
    config = configured(tmp_path, loss)
    with pytest.raises(ConfigError, match=r"loss: .*weight is the same as class_weight"):
        Trainer.from_config(config, SingleCommunicator(), Output(stream=io.StringIO()))
    with pytest.raises(ConfigError, match="expected balanced"):
        configured(tmp_path, "{type: cross_entropy, class_weight: balance}")
