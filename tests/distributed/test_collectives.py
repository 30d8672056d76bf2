"""Collectives on Tensors: values, gradients of both orders over all ranks, replays, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from finite_differences import check_over_ranks

import microtrain as mt
from microtrain.distributed import (
    Communicator,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gather,
    in_process,
    reduce_scatter,
)
from microtrain.errors import CaptureError

ROWS = {"reduce_scatter", "reduce_scatter max", "reduce_scatter min", "all_to_all"}
CALLS: dict[str, Any] = {
    "all_reduce": lambda x, comm: all_reduce(x, comm=comm),
    "all_reduce max": lambda x, comm: all_reduce(x, "max", comm),
    "all_reduce min": lambda x, comm: all_reduce(x, "min", comm),
    "all_gather": all_gather,
    "reduce_scatter": lambda x, comm: reduce_scatter(x, comm=comm),
    "reduce_scatter max": lambda x, comm: reduce_scatter(x, "max", comm),
    "reduce_scatter min": lambda x, comm: reduce_scatter(x, "min", comm),
    "all_to_all": all_to_all,
    "broadcast": lambda x, comm: broadcast(x, comm.size - 1, comm),
    "gather": gather,
}
TRUTH: dict[str, Any] = {
    "all_reduce": lambda all_, rank: all_.sum(0),
    "all_reduce max": lambda all_, rank: all_.max(0),
    "all_reduce min": lambda all_, rank: all_.min(0),
    "all_gather": lambda all_, rank: all_,
    "reduce_scatter": lambda all_, rank: all_[:, rank].sum(0),
    "reduce_scatter max": lambda all_, rank: all_[:, rank].max(0),
    "reduce_scatter min": lambda all_, rank: all_[:, rank].min(0),
    "all_to_all": lambda all_, rank: all_[:, rank],
    "broadcast": lambda all_, rank: all_[-1],
    "gather": lambda all_, rank: np.concatenate(list(all_)),
}


def values(name: str, comm: Communicator, rank: int, rest: tuple[int, ...] = (2,)) -> np.ndarray:
    """What `rank` gives to the call `name`."""
    shape = (comm.size, *rest) if name in ROWS else (3, *rest)
    return np.random.default_rng(rank).standard_normal(shape)


@pytest.mark.parametrize("name", CALLS)
def test_values_are_the_communicators_and_new(comm: Communicator, name: str) -> None:
    for rest in [(2,), (0, 3), (2, 1)]:
        everyone = np.stack([values(name, comm, rank, rest) for rank in range(comm.size)])
        mine = mt.from_numpy(everyone[comm.rank].copy())
        found = CALLS[name](mine, comm)
        np.testing.assert_allclose(
            found.numpy(), TRUTH[name](everyone, comm.rank), rtol=1e-14, strict=True
        )
        found.fill_(7.0)
        np.testing.assert_array_equal(mine.numpy(), everyone[comm.rank])


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_both_orders_are_those_of_all_ranks_together(
    comm: Communicator, name: str
) -> None:
    check_over_ranks(comm, lambda x: CALLS[name](x * x + x, comm), values(name, comm, comm.rank))


def test_uneven_rows_come_back_in_order_with_their_gradients(comm: Communicator) -> None:
    check_over_ranks(comm, lambda x: gather(x.exp(), comm), np.ones((comm.rank * 2 % 3, 2)))


@pytest.mark.parametrize("name", ["all_reduce max", "reduce_scatter min"])
def test_ties_share_the_gradient_evenly(comm: Communicator, name: str) -> None:
    ones = np.ones((comm.size, 2))
    if comm.rank and comm.rank == comm.size - 1:  # not an extremum, so it gets nothing
        ones[...] = 0 if "max" in name else 2
    x = mt.tensor(ones, requires_grad=True)
    CALLS[name](x, comm).sum().backward()
    tied = max(1, comm.size - 1)
    loser = comm.size > 1 and comm.rank == comm.size - 1
    outputs = comm.size if "reduce_scatter" not in name else 1  # ranks that have each result
    expected = np.full(ones.shape, 0.0 if loser else outputs / tied)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-15)


def test_integers_and_booleans_pass_without_a_gradient(comm: Communicator) -> None:
    assert all_reduce(mt.tensor([comm.rank, 1]), comm=comm).tolist()[1] == comm.size
    flags = mt.tensor([comm.rank == 0, False])
    assert all_reduce(flags, "max", comm).tolist() == [True, False]
    assert not all_gather(mt.tensor([1]), comm).requires_grad


def test_memory_order_and_zero_dimensions_do_not_matter(comm: Communicator) -> None:
    x = mt.arange(6.0).reshape(2, 3).T
    np.testing.assert_array_equal(all_reduce(x, comm=comm).numpy(), x.numpy() * comm.size)
    assert all_reduce(mt.tensor(2.0), comm=comm).shape == ()
    assert broadcast(x, 0, comm).tolist() == x.tolist()


CAPTURED = [(name, "numpy") for name in CALLS if name != "gather"]


@pytest.mark.parametrize(("name", "executor"), [*CAPTURED, ("all_reduce max", "native")])
def test_a_captured_step_repeats_them(comm: Communicator, name: str, executor: str) -> None:
    if executor == "native":
        needs_compiler()

    def step(x: Any) -> Any:
        inner = (x * 2).requires_grad_() if not x.requires_grad else x * 2
        out = CALLS[name](inner, comm)
        return out, mt.autograd.grad((out * out).sum(), inner)[0]

    compiled = mt.compile(step, executor=executor)
    for number in range(5):
        array = np.random.default_rng(10 * number + comm.rank).standard_normal((comm.size, 3))
        for found, expected in zip(
            compiled(mt.from_numpy(array)), step(mt.from_numpy(array)), strict=True
        ):
            np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=1e-14)
    assert len(compiled.programs) == 1


def test_gather_is_refused_in_a_captured_step(comm: Communicator) -> None:
    with pytest.raises(CaptureError, match="gather"):
        mt.compile(lambda x: gather(x, comm))(mt.ones(2, 2))


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 11])
def test_gather_brings_a_loaders_rows_back_in_sample_order(comm: Communicator, rows: int) -> None:
    data = mt.data.ArrayDataset(np.arange(rows * 2.0).reshape(rows, 2), np.arange(rows))
    if not rows:
        np.testing.assert_array_equal(gather(mt.zeros(0, 2), comm).numpy(), np.zeros((0, 2)))
        return
    found = [
        (gather(x, comm), gather(y, comm))
        for x, y in mt.data.DataLoader(data, 4, shuffle=False, comm=comm)
    ]
    for number, array in enumerate(data.arrays):
        together = np.concatenate([part[number].numpy() for part in found])
        np.testing.assert_array_equal(together, array, strict=True)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda comm: all_reduce(np.ones(2), comm=comm), TypeError, "methods of a communicator"),
        (lambda comm: gather([1.0], comm), TypeError, "expected a Tensor, got list"),
        (lambda comm: all_reduce(mt.ones(2), "mean", comm), ValueError, "sum, max or min"),
        (lambda comm: all_reduce(mt.ones(2, dtype=mt.float16), comm=comm), TypeError, "float32"),
        (lambda comm: all_to_all(mt.ones(comm.size + 1), comm), ValueError, "a row for each"),
        (lambda comm: reduce_scatter(mt.tensor(1.0), comm=comm), ValueError, "a row for each"),
        (
            lambda comm: broadcast(mt.ones(2), comm.size, comm),
            ValueError,
            "root to be a rank from 0",
        ),
        (lambda comm: gather(mt.tensor(1.0), comm), ValueError, "no dimension"),
    ],
)
def test_mistakes_are_named(comm: Communicator, call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call(comm)


@pytest.mark.parametrize("theirs", [(1, 3, "float32"), (1, 2, "float64")])
def test_rows_that_do_not_fit_together_are_refused_everywhere(theirs: Any) -> None:
    def main(comm: Communicator) -> None:
        *shape, dtype = theirs if comm.rank else (1, 2, "float32")
        rows = mt.ones(*shape, dtype=dtype)
        with pytest.raises(RuntimeError, match=r"rank 0 has float32\[1, 2\], rank 1 has float"):
            gather(rows, comm)

    in_process.run(2, main)


def test_the_communicator_is_the_world_unless_given(comm: Communicator) -> None:
    assert all_reduce(mt.ones(1)).item() == comm.size
    assert len(gather(mt.ones(1))) == comm.size
