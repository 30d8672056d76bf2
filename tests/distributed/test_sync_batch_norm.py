"""Batch norm over ranks: the numbers of one process, whoever has which rows."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import time
import weakref
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from exactness import relative
from finite_differences import check_over_ranks
from hypothesis import given, settings
from hypothesis import strategies as st

import microtrain as mt
from microtrain.config.load import load_config
from microtrain.data import ArrayDataset, DataLoader
from microtrain.distributed import Communicator, in_process
from microtrain.distributed.batch_norm import batch_norm
from microtrain.distributed.data_parallel import DataParallel
from microtrain.distributed.single import SingleCommunicator
from microtrain.nn import functional as F
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

nn = mt.nn
SHAPES = [(3,), (2, 4), (2, 3, 2)]  # of a row: channels first


def mine(comm: Communicator, rows: int, shape: tuple[int, ...]) -> tuple[np.ndarray, slice]:
    """All rows, and which are this rank's: cut so that some ranks have many and others none."""
    x = np.random.default_rng(rows).standard_normal((rows, *shape)) * 3 + 5
    cuts = np.random.default_rng(comm.size + rows).integers(0, rows + 1, comm.size - 1)
    edges = [0, *sorted(cuts.tolist()), rows]
    return x, slice(edges[comm.rank], edges[comm.rank + 1])


def apply(layer: Any, x: np.ndarray, weights: np.ndarray, comm: Any) -> dict[str, np.ndarray]:
    """Outputs, gradients and running statistics of one training step of `layer`."""
    tensor = mt.tensor(x, requires_grad=True)
    running = layer.running_mean, layer.running_var
    out = batch_norm(tensor, *running, layer.weight, layer.bias, 0.3, layer.eps, comm)
    (out * out * mt.from_numpy(weights)).sum().backward()
    return {
        "out": out.detach().numpy(),
        "x": tensor.grad.numpy(),
        "weight": layer.weight.grad.numpy(),
        "bias": layer.bias.grad.numpy(),
        "mean": layer.running_mean.numpy(),
        "var": layer.running_var.numpy(),
    }


def some_layer(shape: tuple[int, ...], dtype: Any = mt.float64) -> Any:
    layer = (nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d)(shape[0], dtype=dtype)
    rng = np.random.default_rng(4)
    for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
        tensor.data = mt.tensor(rng.uniform(0.5, 2, shape[0]), dtype=dtype)
    return layer


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [4, 5, 11])
def test_everything_is_that_of_one_process_with_all_rows(
    comm: Communicator, rows: int, shape: tuple[int, ...]
) -> None:
    x, part = mine(comm, rows, shape)
    weights = np.random.default_rng(1).standard_normal(x.shape)
    layer = some_layer(shape)
    tensor = mt.tensor(x, requires_grad=True)
    running = layer.running_mean, layer.running_var
    out = F.batch_norm(tensor, *running, layer.weight, layer.bias, True, 0.3, layer.eps)
    (out * out * mt.from_numpy(weights)).sum().backward()
    found = apply(some_layer(shape), x[part], weights[part], comm)

    assert relative(found["mean"], layer.running_mean.numpy()) <= 1e-12
    assert relative(found["var"], layer.running_var.numpy()) <= 1e-12
    statistics = np.stack([found["mean"], found["var"]])
    assert all(one.tobytes() == statistics.tobytes() for one in comm.all_gather(statistics))
    for name, expected in (("out", out.detach()), ("x", tensor.grad)):
        scale = np.abs(expected.numpy()).max()
        np.testing.assert_allclose(found[name], expected.numpy()[part], rtol=0, atol=1e-12 * scale)
    for name in ("weight", "bias"):  # what DataParallel adds up
        assert relative(comm.all_reduce(found[name].copy()), getattr(layer, name).grad) <= 1e-12


@pytest.mark.daily("shape0")
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_both_orders_are_those_of_all_ranks_together(
    comm: Communicator, shape: tuple[int, ...]
) -> None:
    weight, bias = np.full(shape[0], 1.5), np.arange(shape[0]) * 0.1
    x, part = mine(comm, 3, shape)

    def function(x: Any, by_rank: Any) -> Any:
        # Equal weights on all ranks, which is what the formula relies on, that are learned too.
        w = mt.distributed.all_reduce(by_rank, comm=comm) + mt.from_numpy(weight)
        b = mt.from_numpy(bias) * w
        return batch_norm(x, None, None, w, b, 0.1, 0.1, comm)

    check_over_ranks(comm, function, x[part] - 5, np.full(shape[0], 0.1))


def test_sums_over_ranks_are_what_they_are_told_together(comm: Communicator) -> None:
    rng = np.random.default_rng(comm.rank)
    width = 2500 // comm.size  # beyond `WHOLE` with five times as many channels
    x = rng.standard_normal((7 + comm.rank, 5 * width)) + 1e7
    found = batch_norm(mt.from_numpy(x), None, None, None, None, 0.1, 1e-30, comm).numpy()
    for start in range(0, x.shape[1], width // 2):
        part = np.ascontiguousarray(x[:, start : start + width // 2])
        few = batch_norm(mt.from_numpy(part), None, None, None, None, 0.1, 1e-30, comm).numpy()
        np.testing.assert_allclose(found[:, start : start + width // 2], few, rtol=0, atol=1e-7)


def test_ranks_without_rows_are_no_part_of_sums(comm: Communicator) -> None:
    x = np.random.default_rng(0).standard_normal((9, 12_500 // comm.size))
    mine = x if comm.rank == 0 else x[:0]
    mean, var = mt.zeros(x.shape[1], dtype=mt.float64), mt.ones(x.shape[1], dtype=mt.float64)
    batch_norm(mt.from_numpy(mine), mean, var, None, None, 1.0, 1e-5, comm)
    np.testing.assert_allclose(mean.numpy(), x.mean(0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(var.numpy(), x.var(0, ddof=1), rtol=1e-12)
    batch_norm(mt.from_numpy(x[:0]), mean, var, None, None, 1.0, 1e-5, comm)
    np.testing.assert_allclose(mean.numpy(), x.mean(0), rtol=1e-12, atol=1e-14)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        batch_norm(mt.from_numpy(mine[:1]), None, None, None, None, 0.1, 1e-5, comm)


def test_a_large_mean_costs_no_digits(comm: Communicator) -> None:
    x = np.random.default_rng(comm.rank).standard_normal((50, 2)) + 1e7
    found = batch_norm(mt.from_numpy(x), None, None, None, None, 0.1, 1e-30, comm).numpy()
    everyone = comm.all_gather(x).reshape(-1, 2)
    expected = (x - everyone.mean(0)) / everyone.std(0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", [mt.float16, mt.float32])
def test_small_dtypes(comm: Communicator, dtype: Any) -> None:
    everyone = np.random.default_rng(0).standard_normal((comm.size * 4, 3)).astype(dtype)
    layers = some_layer((3,), dtype), some_layer((3,), dtype)
    arguments = [(m.running_mean, m.running_var, m.weight, m.bias) for m in layers]
    part = everyone[4 * comm.rank :][:4]
    found = batch_norm(mt.from_numpy(part), *arguments[0], 0.1, 1e-5, comm)
    expected = F.batch_norm(mt.from_numpy(everyone), *arguments[1], True, 0.1, 1e-5)
    atol = 4 * float(np.finfo(dtype).eps)
    assert found.dtype == dtype
    for a, b in zip(
        (found, *arguments[0]), (expected[4 * comm.rank :][:4], *arguments[1]), strict=True
    ):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=atol, atol=atol)


def test_ranks_without_any_rows_change_nothing(comm: Communicator) -> None:
    layer = some_layer((3,))
    before = layer.running_mean.numpy().copy(), layer.running_var.numpy().copy()
    found = apply(layer, np.zeros((0, 3)), np.zeros((0, 3)), comm)
    np.testing.assert_array_equal(layer.running_mean.numpy(), before[0])
    np.testing.assert_array_equal(layer.running_var.numpy(), before[1])
    np.testing.assert_array_equal(found["weight"], 0)


def test_one_value_in_all_is_refused_everywhere(comm: Communicator) -> None:
    x = mt.zeros(1 if comm.rank == 0 else 0, 3)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        batch_norm(x, None, None, None, None, 0.1, 1e-5, comm)


@pytest.mark.usefixtures("fake_gpu")
def test_arrays_of_a_gpu_are_staged_through_the_host() -> None:
    found = []
    for device in ("cpu", "cuda"):
        x = mt.from_numpy(np.random.default_rng(0).standard_normal((5, 3))).to(device)
        weight, bias, mean = (mt.full((3,), v, dtype=mt.float64).to(device) for v in (2, 1, 0))
        var = mean + 1
        x.requires_grad_()
        weight.requires_grad_()
        out = batch_norm(x, mean, var, weight, bias, 0.1, 1e-5, SingleCommunicator())
        (out * out * out).sum().backward()
        found.append([t.cpu().numpy() for t in (out.detach(), x.grad, weight.grad, mean, var)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


# In DataParallel ----------------------------------------------------------------------------------


def network(kind: str) -> Any:
    """Batch norms of several kinds, dropout, and a layer that is normalized twice."""
    if kind == "dense":
        norms = nn.BatchNorm1d(6), nn.BatchNorm1d(5, momentum=0.4, affine=False)
        layers = [nn.Linear(4, 6), norms[0], nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 5), norms[1]]
        return nn.Sequential(*layers, nn.Linear(5, 2))
    layers = [nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.BatchNorm2d(3)]
    layers += [nn.ReLU(), nn.Flatten(2), nn.BatchNorm1d(3, track_running_stats=False)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(27, 2))


def train(
    comm: Any, kind: str, batch: int, accumulate: int, wrap: Any, steps: int = 7
) -> dict[str, Any]:
    """Losses and the state after some steps; 23 rows, so that the last batch is a smaller one."""
    rng = np.random.default_rng(0)
    data = ArrayDataset(rng.normal(size=(23, 4)), rng.normal(size=(23, 2)))
    mt.manual_seed(1)
    model = DataParallel(network(kind).double(), comm)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(data, batch, seed=0, comm=comm, accumulate=accumulate)

    def one(x: Any, y: Any) -> None:
        F.mse_loss(model(x), y).backward()

    one = wrap(one)
    losses: list[Any] = []
    with np.errstate(all="ignore"):
        while len(losses) < steps:
            for micro_batches in loader.steps():
                optimizer.zero_grad()
                for number, (x, y) in enumerate(micro_batches):
                    last = number == len(micro_batches) - 1
                    with contextlib.nullcontext() if last else model.no_sync():
                        one(x, y)
                optimizer.step()
                losses.append(model.loss)
    return {"losses": losses, **{k: v.numpy().copy() for k, v in model.state_dict().items()}}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert relative(found[name], value) <= 1e-12, name


CASES = [
    (kind, *sizes, how)
    for kind in ("dense", "convolutional")
    for sizes in [(8, 1), (9, 2), (3, 1)]
    for how in ("eager", "numpy")
]


@pytest.mark.daily("convolutional-8-1")
@pytest.mark.parametrize(
    ("kind", "batch", "accumulate", "how"),
    [*CASES, pytest.param("dense", 9, 2, "native", marks=pytest.mark.slow)],
)
def test_training_is_the_same_at_every_number_of_ranks(
    comm: Communicator, kind: str, batch: int, accumulate: int, how: str
) -> None:
    if how == "native":
        needs_compiler()
    wrap = (lambda step: step) if how == "eager" else mt.compile(executor=how)
    found = train(comm, kind, batch, accumulate, wrap)
    assert_same(found, train(SingleCommunicator(), kind, batch, accumulate, lambda step: step))
    everyone = comm.all_gather_object({name: np.asarray(v).tobytes() for name, v in found.items()})
    assert all(theirs == everyone[0] for theirs in everyone)


def steps(comm: Any, cuts: list[list[int]], wrap: Any, **options: Any) -> Any:
    """The model and its losses after a step for each entry of `cuts`: how many rows a rank has."""
    mt.manual_seed(0)
    layers = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1), nn.BatchNorm1d(1)
    model = DataParallel(nn.Sequential(*layers).double(), comm, **options)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> None:
        optimizer.zero_grad()
        ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
        optimizer.step()

    step, losses = wrap(step), []
    with np.errstate(all="ignore"):
        for number, counts in enumerate(cuts):
            rows = np.random.default_rng(number).standard_normal((sum(counts), 3))
            start = sum(counts[: comm.rank]) if comm.size > 1 else 0
            stop = start + counts[comm.rank] if comm.size > 1 else len(rows)
            step(mt.from_numpy(rows[start:stop]))
            losses.append(model.loss)
    return model, losses


def state(model: Any, losses: Any) -> dict[str, Any]:
    return {"losses": losses, **{k: v.numpy().copy() for k, v in model.state_dict().items()}}


@pytest.mark.daily("numpy")
@pytest.mark.parametrize("executor", ["numpy", "native"])
def test_captures_take_the_counts_of_the_other_ranks_anew(executor: str) -> None:
    """One rank keeps its number of rows, and so its capture, while the others' change."""
    if executor == "native":
        needs_compiler()
    cuts = [[4, 2], [4, 2], [4, 2], [4, 5], [4, 0], [4, 2]]
    expected = state(*steps(SingleCommunicator(), cuts, lambda step: step))
    compiled = []

    def wrap(step: Any) -> Any:
        compiled.append(mt.compile(step, executor=executor))
        return compiled[-1]

    for found in in_process.run(2, lambda comm: state(*steps(comm, cuts, wrap))):
        assert_same(found, expected)
    assert sorted(len(one.programs) for one in compiled) == [1, 1]  # others were seen once


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.integers(1, 4).flatmap(
        lambda size: st.lists(
            st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(
                lambda counts: sum(counts) > 2
            ),
            min_size=1,
            max_size=4,
        )
    ),
    compiled=st.booleans(),
)
def test_any_rows_on_any_rank(cuts: list[list[int]], compiled: bool) -> None:
    expected = state(*steps(SingleCommunicator(), cuts, lambda step: step))
    wrap = mt.compile if compiled else lambda step: step
    for found in in_process.run(len(cuts[0]), lambda comm: state(*steps(comm, cuts, wrap))):
        assert_same(found, expected)


def test_it_is_off_where_the_layer_is_not_of_this_batch(comm: Communicator) -> None:
    """Evaluation, copies and pickles, and a layer whose wrapper is gone do not communicate."""
    layer = nn.BatchNorm1d(2)
    model = DataParallel(layer, comm)
    names = list(layer.state_dict())
    assert list(model.state_dict()) == names == [*nn.BatchNorm1d(2).state_dict()]
    x = mt.from_numpy(np.random.default_rng(comm.rank).standard_normal((4, 2)).astype("f4"))
    with mt.no_grad():
        together = model(x)
        assert model.module.num_batches_tracked.item() == 1
        alone = F.batch_norm(x, None, None, training=True)
        assert np.allclose(together.numpy(), alone.numpy()) == (comm.size == 1)
        copies = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
        if comm.rank == 0:  # the others are not there
            for other in copies:
                np.testing.assert_array_equal(other(x).numpy(), alone.numpy())
            model.eval()(x)
        model.train()
        comm.barrier()
        wrapper = weakref.ref(model)
        del model
        while wrapper() is not None:  # for as long as a thread looks at what this one was doing
            time.sleep(0.01)
        if comm.rank == 0:
            np.testing.assert_array_equal(layer(x).numpy(), alone.numpy())


def test_one_process_has_the_bits_it_had() -> None:
    layer = nn.BatchNorm1d(3)
    DataParallel(layer, SingleCommunicator())
    assert layer.across is None


def test_it_goes_beside_reductions_that_run_meanwhile(comm: Communicator) -> None:
    """The reducing thread has a communicator of its own, so calls of the two never meet."""
    cuts = [[4] * comm.size] * 5
    expected = state(*steps(SingleCommunicator(), cuts, lambda step: step))
    options = {"overlap": "on", "bucket_mb": 1e-5} if comm.size > 1 else {}
    for wrap in (lambda step: step, mt.compile):
        assert_same(state(*steps(comm, cuts, wrap, **options)), expected)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "captured"])
def test_its_collectives_count_as_communication(comm: Communicator, compiled: bool) -> None:
    model = DataParallel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), comm, overlap="off")
    noted: list[tuple[str, float]] = []
    model.on_reduced = lambda what, start, end: noted.append((what, end - start))

    def step(x: Any) -> None:
        model(x).square().mean().backward()

    each = mt.compile(step) if compiled else step
    for _ in range(4):
        each(mt.ones(2, 2))
    expected = ["batch norm", "batch norm", "reduce"] * 4 if comm.size > 1 else []
    assert [what for what, _ in noted] == expected
    assert model.comm_seconds == sum(seconds for _, seconds in noted)


def test_shards_have_statistics_of_their_own(comm: Communicator) -> None:
    model = DataParallel(nn.BatchNorm1d(2), comm, shards=12)
    assert model.module.across is None and not model.local_batch_norm


def test_without_it_statistics_are_local_and_that_is_said() -> None:
    cuts = [[3, 4, 2]] * 3

    def rank_main(comm: Communicator) -> Any:
        model, _ = steps(comm, cuts, lambda step: step, sync_batchnorm=False)
        return model.local_batch_norm, model.module[1].running_mean.numpy().copy()

    (said, first), (_, second), _ = in_process.run(3, rank_main)
    assert said
    assert not np.array_equal(first, second)
    assert not in_process.run(1, rank_main)[0][0]


# In a run -----------------------------------------------------------------------------------------

MODEL = """
import microtrain as mt

def net(in_features, out_features):
    layers = mt.nn.Linear(in_features, 6), mt.nn.BatchNorm1d(6), mt.nn.ReLU()
    return mt.nn.Sequential(*layers, mt.nn.Linear(6, out_features))
"""
YAML = """
name: norm
dtype: float64
data: {type: synthetic_relu, samples: 101, features: 4, hidden: 8, targets: 2, noise: 0.1}
model: ./model.py:net
loss: mse
optimizer: {type: sgd, lr: 0.05}
train: {duration: 20 steps, batch_size: 34, accumulate: 2}
"""


def run(comm: Any, directory: Any, *settings: str) -> tuple[dict[str, Any], str]:
    """The final weights of a run, and what it prints."""
    if comm.rank == 0:
        directory.mkdir(exist_ok=True)
        (directory / "model.py").write_text(MODEL)
        (directory / "norm.yaml").write_text(YAML)
    comm.barrier()
    config = load_config(directory / "norm.yaml", [*settings, f"run_dir={directory}/runs"])
    printed = io.StringIO()
    trainer = Trainer.from_config(config, comm, Output(comm.rank, stream=printed))
    trainer.train()
    weights = {name: t.numpy().copy() for name, t in trainer.model.state_dict().items()}
    return weights, comm.broadcast_object(printed.getvalue())


def test_a_yaml_run_is_the_same_at_every_number_of_ranks(
    comm: Communicator, shared_tmp_path: Any
) -> None:
    expected, _ = run(SingleCommunicator(), shared_tmp_path / f"alone-{comm.rank}")
    found, printed = run(comm, shared_tmp_path / "shared")
    assert_same(found, expected)
    assert "sync_batchnorm" not in printed


def test_the_header_says_that_local_statistics_depend_on_the_ranks(tmp_path: Any) -> None:
    setting = "distributed.sync_batchnorm=false"
    (_, printed), _ = in_process.run(2, run, tmp_path / "two", setting)
    assert "(sync_batchnorm: false): results depend on the number of ranks" in printed
    _, printed = run(SingleCommunicator(), tmp_path / "one", setting)
    assert "sync_batchnorm" not in printed
