"""Evaluation over ranks: every row once, sums that are exact, predictions in sample order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.data import ArrayDataset, contiguous_slice, prepare
from microtrain.distributed import Communicator, gather
from microtrain.distributed.single import SingleCommunicator
from microtrain.train import evaluation
from microtrain.train.evaluation import evaluate
from microtrain.train.importance import columns_of, importance, quick
from microtrain.train.metrics.base import R2, MeanAbsoluteError

F = mt.nn.functional


def rows(count: int) -> ArrayDataset:
    rng = np.random.default_rng(count)
    return ArrayDataset(rng.standard_normal((count, 3)), rng.standard_normal((count, 2)))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("count", [1, 3, 4, 13])
def test_every_row_counts_once_however_many_ranks(
    comm: Communicator, count: int, reduction: str
) -> None:
    model = mt.nn.Sequential(mt.nn.Linear(3, 2), mt.nn.BatchNorm1d(2)).double()
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = mt.linspace(0.5, 1, tensor.numel(), dtype=mt.float64).reshape(
                tensor.shape
            )
    seen: list[Any] = []

    def watched(x: Any) -> Any:
        seen.append(x.numpy().copy())
        return model(x)

    model.eval()
    loss = mt.nn.MSELoss(reduction=reduction)
    data = rows(count)
    with np.errstate(all="ignore"):
        found = evaluate(watched, loss, [R2(), MeanAbsoluteError()], data, comm)
        mine = np.concatenate(seen)
        whole = evaluate(model, loss, [R2(), MeanAbsoluteError()], data, SingleCommunicator())
    np.testing.assert_array_equal(gather(mt.from_numpy(mine), comm).numpy(), data.arrays[0])
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        assert found[name] == pytest.approx(value, rel=1e-12, nan_ok=True), name
    everyone = comm.all_gather_object(repr(found))
    assert everyone == everyone[:1] * comm.size


@pytest.mark.parametrize("whole", [True, False])
def test_a_part_that_does_not_learn_stays_in_evaluation_mode(whole: bool) -> None:
    model = mt.nn.Sequential(mt.nn.Linear(3, 2), mt.nn.BatchNorm1d(2), mt.nn.Dropout(0.5)).double()
    model.train(whole)
    model[1].eval()
    model[2].train()
    modes = [part.training for part in model.modules()]
    found = [evaluate(model, F.mse_loss, [], rows(8), SingleCommunicator()) for _ in range(2)]
    assert found[0] == found[1]
    assert [part.training for part in model.modules()] == modes == [whole, whole, False, True]


def test_predictions_come_in_sample_order_also_from_many_passes(
    comm: Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "ROWS", 2)
    data = rows(11)
    start, stop = contiguous_slice(len(data), comm.size, comm.rank)
    predicted: list[Any] = []

    def model(x: Any) -> Any:
        predicted.append(x[:, :2] * 2)
        return predicted[-1]

    evaluate(model, F.mse_loss, [], data, comm)
    mine = mt.cat(predicted)
    assert len(mine) == stop - start
    np.testing.assert_array_equal(gather(mine, comm).numpy(), data.arrays[0][:, :2] * 2)


@pytest.mark.parametrize("wide, passes", [(2**19, 600), (2**14, 5), (8, 1)])
def test_a_pass_takes_fewer_rows_where_a_row_of_output_is_wide(
    comm: Communicator, monkeypatch: pytest.MonkeyPatch, wide: int, passes: int
) -> None:
    monkeypatch.setattr(evaluation, "OUTPUT", 2**17 * 8)
    data = ArrayDataset(np.zeros((600 * comm.size, 1)), np.zeros((600 * comm.size, 1)))
    seen: list[int] = []

    def model(x: Any) -> Any:
        seen.append(len(x))
        return x.expand(len(x), wide // 8 * 8)

    def loss(prediction: Any, target: Any) -> Any:
        return (prediction[:, :1] - target).mean()

    evaluate(model, loss, [], data, comm)
    rows = max(1, min(4096, 2**17 // wide))
    assert seen[0] == 1
    assert seen[1:] == [min(rows, 600 - first) for first in range(0, 600, rows)]


@pytest.mark.parametrize("metric", ["loss", "r2"])
def test_the_importance_of_a_column_is_what_its_weight_says(
    comm: Communicator, metric: str
) -> None:
    """Shuffled, w x differs from itself by 2 w^2 var(x) in the mean square."""
    rng, weights = np.random.default_rng(1), np.array([[0.0], [3.0], [-1.0]])
    x = rng.standard_normal((4000, 3)) * [1.0, 1.0, 5.0]
    y = x @ weights
    model = mt.nn.Linear(3, 1, bias=False).double()
    model.weight.data = mt.from_numpy(weights.T)
    dataset = ArrayDataset(x, y, feature_names=["none", "three", "wide"])
    prepared = prepare(dataset, dtype="float64")

    def measure(rows: Any) -> Any:
        return evaluate(model, mt.nn.MSELoss(), [R2()], rows, comm)

    columns = columns_of(prepared, dataset)
    found = importance("val", dataset, columns, measure, metric, metric == "r2", seed=0)
    assert (found.names, found.worse[2]) == (["wide", "three", "none"], 0.0)
    scale = y.var() if metric == "r2" else 1.0
    np.testing.assert_allclose(found.worse[:2], np.array([50.0, 18.0]) / scale, rtol=0.05)


def test_importance_is_measured_unasked_where_there_is_little_to_count() -> None:
    columns = {name: [(0, slice(0, 1))] for name in "abcdefgh"}
    assert quick(columns, 2000, 100)
    assert not quick(columns, 2000, 100_000)
    assert not quick(columns, 10**6, 100)
    assert not quick({"a": columns["a"]}, 10, 2)
