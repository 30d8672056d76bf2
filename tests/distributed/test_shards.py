"""World mode: the same bits at every number of ranks up to that of the shards."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import microtrain as mt
from microtrain.data import ArrayDataset, DataLoader
from microtrain.distributed import Communicator, DataParallel, in_process
from microtrain.distributed.shards import WHOLE, contiguous_slice, tree_sum
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError


def tournament(values: list[Any]) -> Any:
    """The sum as it is defined: neighbors in pairs, until one is left."""
    while len(values) > 1:
        pairs = [values[i] + values[i + 1] for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def own(parts: Any, comm: Communicator) -> list[Any]:
    """A rank's of what all shards have."""
    return [
        part.copy() for part in parts[slice(*contiguous_slice(len(parts), comm.size, comm.rank))]
    ]


@given(
    shards=st.integers(1, 12),
    size=st.sampled_from([0, 1, 7, 70_001]),
    dtype=st.sampled_from(["f4", "f8"]),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_a_tree_has_the_same_bits_at_every_number_of_ranks(
    shards: int, size: int, dtype: str, data: st.DataObject
) -> None:
    world = data.draw(st.integers(1, min(shards, 5)))
    parts = [np.random.default_rng(s).standard_normal(size).astype(dtype) for s in range(shards)]
    expected = tournament(list(parts))

    def work(comm: Communicator) -> bytes:
        return tree_sum(comm, own(parts, comm), shards).tobytes()

    assert set(in_process.run(world, work)) == {expected.tobytes()}


def test_a_tree_over_these_ranks(comm: Communicator) -> None:
    for shards in (comm.size, 2 * comm.size, 3 * comm.size, 3 * comm.size + 1, 4 * comm.size - 1):
        for size in (5, 70_001):
            parts = [np.random.default_rng(s).standard_normal(size) for s in range(shards)]
            found = tree_sum(comm, own(parts, comm), shards)
            np.testing.assert_array_equal(found, tournament(list(parts)))


@pytest.mark.daily("[1.5", "[3")
@pytest.mark.parametrize("each", [1, 1.5, 2, 2.7, 3, 4])
def test_a_tree_of_many_ranks(each: float) -> None:
    for ranks in (*range(2, 20), 64):
        parts = np.random.default_rng(ranks).standard_normal((int(ranks * each), 2))

        def work(comm: Communicator, parts: Any = parts) -> Any:
            return tree_sum(comm, own(parts, comm), len(parts))

        for found in in_process.run(ranks, work):
            np.testing.assert_array_equal(found, tournament(list(parts)))


@pytest.mark.parametrize("size", [5, 1_000, 10_000])
def test_a_rank_receives_as_much_however_many_there_are(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(comm: Communicator) -> int:
        received = 0

        def counted(method: Any) -> Any:
            def call(array: Any) -> Any:
                nonlocal received
                found = method(array)
                received += found.nbytes
                return found

            return call

        for name in ("_all_gather", "_all_to_all"):
            monkeypatch.setattr(comm, name, counted(getattr(comm, name)))
        tree_sum(comm, [np.ones(size, "f4")], comm.size)
        return received

    for ranks in (2, 8, 32):
        whole = 4 * size * ranks <= WHOLE
        # Few bytes of every rank; else a part of every rank's, and the sums of all parts.
        assert max(in_process.run(ranks, work)) <= (WHOLE if whole else 8 * (size + ranks))


def network(norm: bool) -> Any:
    mt.manual_seed(3)
    layers: list[Any] = [mt.nn.Linear(6, 8)]
    if norm:
        layers += [mt.nn.BatchNorm1d(8)]
    layers += [mt.nn.ReLU(), mt.nn.Dropout(0.3), mt.nn.Linear(8, 2)]
    return mt.nn.Sequential(*layers)


def train(
    comm: Communicator, *, accumulate: int, norm: bool, compiled: bool, steps: int
) -> tuple[str, list[float | None]]:
    """A hash of all that was learned, and the losses; there is a tail batch."""
    # A batch norm needs two rows in every shard.
    batch, rows = (96, 250) if norm else (16, 50)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 6)).astype("f4")
    y = rng.standard_normal((rows, 2)).astype("f4")
    model = DataParallel(network(norm), comm, shards=7)  # 4 and 3 of 2 ranks, 2, 2, 2 and 1 of 4
    optimizer = mt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(
        ArrayDataset(x, y), batch, seed=1, comm=comm, accumulate=accumulate, shards=7
    )

    def run(xb: Any, yb: Any) -> Any:
        loss = mt.nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        return loss

    if compiled:
        run = mt.compile(run, executor="numpy")
    losses = []
    while len(losses) < steps:
        for batches in loader.steps():
            optimizer.zero_grad()
            for number, batch in enumerate(batches, 1):
                if number == len(batches):
                    run(*batch)
                else:
                    with model.no_sync():
                        run(*batch)
            optimizer.step()
            losses.append(model.loss)
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return digest.hexdigest(), losses


@pytest.mark.daily("2-batch norm-eager")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batch norm"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_has_the_same_bits(
    comm: Communicator, accumulate: int, norm: bool, compiled: bool
) -> None:
    options: Any = {"accumulate": accumulate, "norm": norm, "steps": 12}
    alone = train(SingleCommunicator(), compiled=False, **options)
    assert train(comm, compiled=compiled, **options) == alone
    assert all(np.isfinite(loss) for loss in alone[1])  # type: ignore[arg-type]


def test_the_objective_is_the_same_as_without_shards(comm: Communicator) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((7, 6)), rng.standard_normal((7, 2))
    expected = None
    for shards in (None, 12):
        mt.manual_seed(0)
        with_bias = mt.nn.Linear(6, 2, dtype=mt.float64)
        model = DataParallel(with_bias, comm, shards=shards)
        loader = DataLoader(ArrayDataset(x, y), 7, shuffle=False, comm=comm, shards=shards)
        for batches in loader.steps():
            for xb, yb in batches:
                mt.nn.functional.mse_loss(model(xb), yb).backward()
        found = [p.grad.numpy() for p in model.parameters()]
        if expected is None:
            expected = found, model.loss
        for a, b in zip(found, expected[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        assert (model.loss, model.samples) == (pytest.approx(expected[1], rel=1e-12), 7)


def test_running_statistics_are_the_mean_of_the_shards(comm: Communicator) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((24, 3))
    norm = mt.nn.BatchNorm1d(3, momentum=0.5, dtype=mt.float64)
    model = DataParallel(norm, comm, shards=12)
    loader = DataLoader(ArrayDataset(x), 24, shuffle=False, comm=comm, shards=12)
    for batches in loader.steps():
        for (xb,) in batches:
            model(xb).sum().backward()
    means = np.array([x[2 * s : 2 * s + 2].mean(0) for s in range(12)])
    variances = np.array([x[2 * s : 2 * s + 2].var(0, ddof=1) for s in range(12)])
    np.testing.assert_allclose(norm.running_mean.numpy(), 0.5 * means.mean(0), rtol=1e-12)
    np.testing.assert_allclose(norm.running_var.numpy(), 0.5 + 0.5 * variances.mean(0), rtol=1e-12)
    assert norm.num_batches_tracked.item() == 1


@pytest.mark.parametrize("teacher", [False, True], ids=["twice", "a teacher without grad"])
def test_several_forward_passes_of_a_shard_have_the_same_bits(
    comm: Communicator, teacher: bool
) -> None:
    x = np.random.default_rng(0).standard_normal((72, 3)).astype("f4")

    def learn(ranks: Communicator) -> list[bytes]:
        mt.manual_seed(0)
        net = mt.nn.Sequential(mt.nn.Linear(3, 4), mt.nn.BatchNorm1d(4), mt.nn.Dropout(0.2))
        model = DataParallel(net, ranks, shards=12)
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
        for batches in DataLoader(ArrayDataset(x), 36, comm=ranks, shards=12).steps():
            optimizer.zero_grad()
            for (xb,) in batches:
                with mt.no_grad() if teacher else contextlib.nullcontext():
                    target = model(xb * 2)
                (model(xb) - target).square().mean().backward()
            optimizer.step()
        assert net[1].num_batches_tracked.item() == 4
        return [np.ascontiguousarray(t.numpy()).tobytes() for t in model.state_dict().values()]

    assert learn(comm) == learn(SingleCommunicator())


def test_shards_that_zero_grad_would_discard_are_missed(comm: Communicator) -> None:
    data = ArrayDataset(np.ones((24, 2), "f4"), np.ones((24, 1), "f4"))
    model = DataParallel(mt.nn.Linear(2, 1), comm, shards=24)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

    def learn(clear: bool) -> None:
        for x, y in DataLoader(data, 24, comm=comm, shards=24):
            if clear:
                optimizer.zero_grad()
            mt.nn.functional.mse_loss(model(x), y).backward()

    with pytest.raises(RuntimeError, match=r"discarded the passes of some shards.*steps\(\)"):
        learn(clear=True)
    with model.no_sync():  # whole micro-batches may be
        learn(clear=False)
    optimizer.zero_grad()
    learn(clear=False)
    assert model.samples == 24


def test_an_unused_parameter_has_no_gradient(comm: Communicator) -> None:
    model = DataParallel(
        mt.nn.ModuleList([mt.nn.Linear(1, 1), mt.nn.Linear(1, 1)]), comm, shards=12
    )
    model.count(1)
    for shard in range(12 // comm.size):
        model.count(1)
        weight = model.module[0].weight
        (weight * float(comm.rank + shard)).sum().backward()
    grads = [p.grad for p in model.parameters()]
    assert grads[0] is not None
    assert [g is None for g in grads] == [False, True, True, True]


class Communicates(mt.nn.Linear):
    """Takes its input relative to the mean over all ranks."""

    def forward(self, x: mt.Tensor) -> mt.Tensor:
        return super().forward(x - mt.distributed.all_reduce(x.mean(), comm=self.comm))


def test_a_model_that_communicates_needs_ranks_that_divide_the_shards(comm: Communicator) -> None:
    """Ranks with fewer shards than others would not come to its calls."""
    for shards in (comm.size, comm.size + 1):
        layer = Communicates(1, 1)
        layer.comm = comm
        model, x = DataParallel(layer, comm, shards=shards), mt.ones(2, 1)
        if shards % comm.size == 0:
            model(x).sum().backward()
        else:
            with pytest.raises(RuntimeError, match=r"all_reduce.*divides the shards for a model"):
                model(x)
            assert comm.all_reduce(np.ones(1))[0] == comm.size  # outside of it


def test_more_ranks_than_shards_are_refused(comm: Communicator) -> None:
    shards = comm.size - 1
    data = ArrayDataset(np.zeros((9, 1)))
    with pytest.raises((ConfigError, ValueError), match="shards"):
        DataLoader(data, 3, comm=comm, shards=shards)
    with pytest.raises(ConfigError, match=f"at most {shards} ranks"):
        DataParallel(mt.nn.Linear(1, 1), comm, shards=shards)
