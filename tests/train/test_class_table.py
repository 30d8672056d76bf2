"""The end of a run with classes: how well each is told from the others."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.common.files import typed
from microtrain.common.words import number
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.inference.evaluate import evaluate_run
from microtrain.runs.metrics import ClassCounts
from microtrain.runs.run import Run
from microtrain.train import Trainer
from microtrain.train.console import Output
from microtrain.train.metrics.classification import class_lines, never_predicted, not_better


def rows(classes: int = 3, weights: bool = False, target: str = "classes") -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    codes = np.digitize(x[:, 0], [-0.5, 2.0][: classes - 1])
    if target == "column":
        return mt.data.ArrayDataset(x, codes[:, None].astype(float))
    return mt.data.ArrayDataset(
        x, codes, classes=[f"class {name}" for name in "abc"[:classes]],
        weights=rng.random(200) if weights else None,
    )  # fmt: skip


def run(path: Path, data: Any, comm: Any = None, **settings: Any) -> tuple[Trainer, str, str]:
    """The trainer, what it said and what it warned of."""
    said, warned = io.StringIO(), io.StringIO()
    comm = comm or SingleCommunicator()
    settings = {
        "model": {"type": "mlp", "hidden": [5]}, "loss": "cross_entropy", "duration": "2 epochs",
        "optimizer": {"type": "adam", "lr": 0.05}, "batch_size": 20, "run_dir": str(path),
        "split": {"train": 0.6, "val": 0.2, "test": 0.2}, **settings,
    }  # fmt: skip
    output = Output(comm.rank, stream=said, errors=warned)
    trainer = Trainer(data=data, comm=comm, output=output, **settings)
    assert trainer.train() == 0
    return trainer, said.getvalue(), warned.getvalue()


def scikit_learns_report(path: Path, part: Any) -> Any:
    """Of the best checkpoint."""
    from sklearn.metrics import classification_report, confusion_matrix

    model = mt.load(path)
    scores = model.module(*map(mt.from_numpy, part.inputs)).detach().numpy()
    named = scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] >= 0).astype(int)
    truth = part.target.reshape(-1).astype(int)
    labels = [*range(max(scores.shape[1], 2))]
    given: Any = {"labels": labels, "sample_weight": part.weights}
    matrix = confusion_matrix(truth, named, **given)
    report = classification_report(truth, named, output_dict=True, zero_division=0, **given)
    return matrix, [report[str(label)] for label in labels]


@pytest.mark.daily("-3]")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", ["classes", "weighted", "column"])
@pytest.mark.parametrize("part", ["val", "test"])
def test_the_table_is_scikit_learns_report_of_the_best_model(
    ranks: int, kind: str, part: str, tmp_path: Path
) -> None:
    data = rows(2 if kind == "column" else 3, kind == "weighted", kind)
    settings: dict[str, Any] = {"loss": "bce"} if kind == "column" else {}
    if part == "val":
        settings["split"] = {"train": 0.7, "val": 0.3}
    trainer, said, _ = in_process.run(ranks, lambda c: run(tmp_path, data, c, **settings))[0]
    matrix, report = scikit_learns_report(trainer.path, getattr(trainer.data, part))
    counts = Run.read(trainer.path).info.classes
    assert counts is not None and counts.split == part
    assert counts.names == ["0", "1"] if kind == "column" else ["class a", "class b", "class c"]
    np.testing.assert_allclose(counts.confusion, matrix, rtol=1e-6)
    np.testing.assert_allclose(counts.support, [each["support"] for each in report], rtol=1e-6)
    for found, each in zip(counts.figures, report, strict=True):
        expected = [each["precision"], each["recall"], each["f1-score"]]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    for line in class_lines(counts, "step 12, the best"):
        heading = line.startswith("class ")
        assert (line.rpartition("  (")[0] if heading else line) in said
    assert said.count("baseline (always") == 1
    assert "baseline (always" in (trainer.path / "log.txt").read_text()


def test_counts_are_whole_numbers_where_rows_have_no_weights(tmp_path: Path) -> None:
    trainer, _, _ = run(tmp_path, rows())
    stored = json.loads((trainer.path / "run.json").read_text())["classes"]
    assert all(type(n) is int for n in (*stored["support"], *stored["confusion"][0]))
    assert sum(stored["support"]) == len(trainer.data.test)  # type: ignore[arg-type]


def test_a_class_that_is_never_predicted_is_named(tmp_path: Path) -> None:
    _, said, warned = run(tmp_path, rows(), optimizer={"type": "sgd", "lr": 1e-9}, seed=3)
    assert "warning: never predicted in the test data: class " in warned
    assert "class_weight: balanced" in warned
    assert "baseline (always class b): " in said
    loss = {"type": "cross_entropy", "class_weight": [9.0, 1.0, 1.0]}
    _, _, warned = run(
        tmp_path / "weighted", rows(), optimizer={"type": "sgd", "lr": 1e-9}, seed=3, loss=loss
    )
    assert "never predicted" in warned and "hint" not in warned


def test_it_is_said_where_no_more_rows_are_right_than_of_always_one_class(tmp_path: Path) -> None:
    _, said, warned = run(tmp_path, rows(), optimizer={"type": "sgd", "lr": 1e-9}, seed=3)
    share = said.split("baseline (always class b): ")[1].split("%")[0]
    assert "not better than always predicting class b: " in warned
    assert f"accuracy instead of {share}%  (test, step 6" in warned
    assert "not better" not in run(tmp_path / "longer", rows(), duration="20 epochs")[2]


@pytest.mark.parametrize(("log_loss", "said"), [(0.49, False), (0.51, True), (np.inf, True)])
def test_chances_better_than_the_shares_of_classes_are_better(log_loss: float, said: bool) -> None:
    counts = ClassCounts("val", ["no", "yes"], [80, 20], [[80, 0], [20, 0]])
    assert -0.8 * np.log(0.8) - 0.2 * np.log(0.2) == pytest.approx(0.5004, abs=1e-4)
    assert bool(not_better(counts, log_loss, "the best")) is said


@pytest.mark.daily("weighted-val-3", "as it is-test-1", "standardized-val-1")
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("part", ["val", "test"])
@pytest.mark.parametrize("how", ["as it is", "standardized", "weighted"])
def test_a_regression_is_told_beside_the_mean_of_its_training_rows(
    how: str, part: str, ranks: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    y = 2e4 + 8e3 * x[:, :1] + rng.normal(size=(200, 1))
    data = mt.data.ArrayDataset(x, y, weights=rng.random(200) if how == "weighted" else None)
    settings: dict[str, Any] = {"loss": "mse", "dtype": "float64", "duration": "10 epochs"}
    if part == "val":
        settings["split"] = {"train": 0.7, "val": 0.3}
    settings["standardize_target"] = how != "as it is"
    made = in_process.run(ranks, lambda comm: run(tmp_path, data, comm, **settings))[0]
    trainer, said, warned = made
    rows, model = getattr(trainer.data, part), mt.load(trainer.path)
    scaling = trainer.data.target_scaling
    truth, known = (
        each.target if scaling is None else scaling.inverse(each.target)
        for each in (rows, trainer.data.train)
    )
    found = model.decide(model.scores([*rows.inputs], 0))
    mine, means = (
        np.sqrt(np.average(np.square(guess - truth[:, 0]), weights=rows.weights))
        for guess in (found, known.mean())
    )
    line = f"better than always predicting the mean: rmse {number(mine)} instead of {number(means)}"
    line += f"  ({part}, step "
    if how == "as it is":
        assert f"warning: not {line}" in warned and "data.standardize_target: true" in warned
        assert line not in said
    else:
        assert line in said and "not better" not in warned


@pytest.mark.parametrize(
    "settings",
    [{"split": {"train": 1.0}}, {"loss": "mse"}],
    ids=["no other rows", "numbers"],
)
def test_where_there_is_nothing_to_count_nothing_is_said(settings: Any, tmp_path: Path) -> None:
    data = rows(2, target="column") if "loss" in settings else rows()
    trainer, said, _ = run(tmp_path, data, **settings)
    assert "baseline (always" not in said
    assert Run.read(trainer.path).info.classes is None


def own(prediction: Any, target: Any) -> Any:
    return mt.nn.functional.cross_entropy(prediction, target)


def test_of_a_loss_of_ones_own_a_metric_says_what_a_prediction_is(tmp_path: Path) -> None:
    assert "baseline (always" not in run(tmp_path / "a", rows(), loss=own)[1]
    assert "baseline (always" in run(tmp_path / "b", rows(), loss=own, metrics=["accuracy"])[1]


def test_evaluate_counts_every_part(tmp_path: Path) -> None:
    x, codes = rows().arrays
    np.savez(tmp_path / "rows.npz", x=x, y=codes)
    data = {"type": "npz", "path": str(tmp_path / "rows.npz")}
    trainer, _, _ = run(tmp_path, data, metrics=["accuracy"])
    evaluation = evaluate_run(str(trainer.path), comm=SingleCommunicator(), warn=str)
    parts = json.loads(evaluation.to_json())["parts"]
    assert [part["classes"]["split"] for part in parts.values()] == ["train", "val", "test"]
    for name, part in evaluation.parts.items():
        assert part.classes is not None
        right = np.trace(part.classes.confusion) / part.rows
        assert right == pytest.approx(part.values["accuracy"])
        assert f"({name})" in "\n".join(evaluation.lines())
    assert (
        parts["test"]["classes"] == json.loads((trainer.path / "run.json").read_text())["classes"]
    )


def counts_of(classes: int, named: int) -> ClassCounts:
    matrix = np.zeros((classes, classes), int)
    matrix[:, :named] = np.arange(1, classes + 1)[:, None]
    return ClassCounts(
        "val", [f"k{i}" for i in range(classes)], matrix.sum(1).tolist(), matrix.tolist()
    )


def test_of_many_classes_those_of_lowest_f1_are_shown() -> None:
    counts = counts_of(40, 20)
    heading, *lines, _ = class_lines(counts)
    assert heading.endswith("(val, the 20 of lowest f1 of 40)")
    assert [line.split()[0] for line in lines] == [f"k{i}" for i in range(20, 40)]
    assert never_predicted(counts) == counts.names[20:]


def test_a_class_without_rows_is_not_missed() -> None:
    counts = ClassCounts("val", ["a", "b"], [3, 0], [[3, 0], [0, 0]])
    assert never_predicted(counts) == []
    assert counts.figures == [(1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]
    assert class_lines(counts)[-1] == "baseline (always a): 100.0% accuracy"


@pytest.mark.parametrize(
    "change", [{"support": [1]}, {"confusion": [[1, 2]]}, {"confusion": [[1], [2]]}]
)
def test_counts_that_do_not_fit_together_are_refused(change: dict[str, Any]) -> None:
    fields = {
        "split": "val",
        "names": ["a", "b"],
        "support": [1, 1.5],
        "confusion": [[1, 0], [0, 1.5]],
    }
    assert typed(ClassCounts, fields).support == [1, 1.5]
    with pytest.raises(ValueError, match="counts of 2 classes"):
        typed(ClassCounts, fields | change)
