"""The DataLoader: global batches, each row on exactly one rank, in an order that never changes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from microtrain.data import (
    ArrayDataset,
    DataLoader,
    contiguous_slice,
    contiguous_slices,
    epoch_order,
)
from microtrain.distributed import world
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError
from microtrain.nn import functional
from microtrain.random import begin_batch
from microtrain.tensor import Tensor


class Ranks(SingleCommunicator):
    """As much of a communicator as a loader asks for."""

    def __init__(self, rank=0, size=1):
        self.rank, self.size = rank, size


def numbered(rows):
    """Row i holds i, in both arrays."""
    return ArrayDataset(np.arange(rows, dtype=float).reshape(rows, 1), np.arange(rows))


def loaders(rows, batch_size, world, **options):
    data = numbered(rows)
    return [
        DataLoader(data, batch_size, comm=Ranks(rank, world), **options) for rank in range(world)
    ]


def rows_of(batch):
    x, y = batch
    np.testing.assert_array_equal(x.numpy()[:, 0], y.numpy())
    return y.numpy().tolist()


def all_rows(batches):
    return [row for batch in batches for row in rows_of(batch)]


# Slices ---------------------------------------------------------------------------------------


@given(rows=st.integers(0, 10**6), parts=st.integers(1, 50))
def test_slices_tile_the_rows_with_the_larger_first(rows, parts):
    slices = contiguous_slices(rows, parts)
    assert len(slices) == parts
    assert (slices[0][0], slices[-1][1]) == (0, rows)
    assert all(left[1] == right[0] for left, right in pairwise(slices))
    sizes = [stop - start for start, stop in slices]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    assert slices == [contiguous_slice(rows, parts, part) for part in range(parts)]


# The order of an epoch ------------------------------------------------------------------------


def test_golden_order():
    """The order of earlier versions: changing it changes every run, and every resume."""
    assert epoch_order(20, seed=0, epoch=0).tolist() == GOLDEN_ORDER
    (loader,) = loaders(20, 20, world=1)
    assert rows_of(next(iter(loader))) == GOLDEN_ORDER


GOLDEN_ORDER = [1, 10, 5, 3, 0, 4, 7, 13, 12, 11, 17, 8, 6, 19, 15, 16, 18, 2, 14, 9]


@given(rows=st.integers(1, 200), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_an_order_is_a_permutation_that_differs_by_seed_and_epoch(rows, seed, epoch):
    order = epoch_order(rows, seed, epoch).tolist()
    assert sorted(order) == list(range(rows))
    assert order == epoch_order(rows, seed, epoch).tolist()
    if rows > 20:
        assert order != epoch_order(rows, seed + 1, epoch).tolist()
        assert order != epoch_order(rows, seed, epoch + 1).tolist()


def test_the_nth_pass_is_epoch_n():
    (loader,) = loaders(30, 7, world=1, seed=5)
    for epoch in range(3):
        assert loader.epoch == epoch
        seen = []
        for batch in loader:
            assert loader.epoch == epoch
            seen += rows_of(batch)
        assert seen == epoch_order(30, 5, epoch).tolist()
    assert loader.epoch == 3


def test_another_seed_gives_an_epoch_another_order():
    (loader,) = loaders(30, 7, world=1, seed=5)
    assert all_rows(loader) == epoch_order(30, 5, 0).tolist()
    loader.epoch, loader.seed = 0, 6
    assert all_rows(loader) == epoch_order(30, 6, 0).tolist()


def test_a_pass_left_early_counts():
    (loader,) = loaders(30, 7, world=1)
    for _ in loader:
        break
    assert loader.epoch == 0
    assert all_rows(loader) == epoch_order(30, 0, 1).tolist()
    assert loader.epoch == 2


def test_the_epoch_may_be_set():
    (loader,) = loaders(30, 7, world=1)
    loader.epoch = 4
    assert all_rows(loader) == epoch_order(30, 0, 4).tolist()
    assert loader.epoch == 5
    loader.epoch = 4
    seen = []
    for batch in loader:
        seen += rows_of(batch)
        loader.epoch = 9  # this pass goes on as it was
    assert seen == epoch_order(30, 0, 4).tolist()
    assert loader.epoch == 9
    assert all_rows(loader) == epoch_order(30, 0, 9).tolist()


def test_restoring_the_epoch_continues_where_a_finished_pass_left_off():
    (first,) = loaders(30, 7, world=1)
    for _ in range(2):
        list(first)
    (again,) = loaders(30, 7, world=1)
    again.epoch = first.epoch
    assert [rows_of(b) for b in again] == [rows_of(b) for b in first]


def test_two_passes_side_by_side_are_two_epochs():
    (loader,) = loaders(10, 10, world=1)
    one, other = iter(loader), iter(loader)
    assert rows_of(next(other)) == epoch_order(10, 0, 1).tolist()
    assert rows_of(next(one)) == epoch_order(10, 0, 0).tolist()


def test_without_shuffle_rows_come_as_they_are_in_every_epoch():
    (loader,) = loaders(10, 4, world=1, shuffle=False)
    for _ in range(2):
        assert [rows_of(b) for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


# Ranks and micro-batches ----------------------------------------------------------------------


@settings(deadline=None)
@given(
    rows=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    world=st.integers(1, 5),
    accumulate=st.integers(1, 4),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_ranks_and_micro_batches_together_are_the_global_batches(
    rows, batch_size, world, accumulate, shuffle, drop_last, epoch
):
    assume(batch_size <= rows or not drop_last)
    order = list(range(rows))
    if shuffle:
        order = epoch_order(rows, 0, epoch)[:].tolist()
    expected = [order[i : i + batch_size] for i in range(0, rows, batch_size)]
    if drop_last:
        expected = [batch for batch in expected if len(batch) == batch_size]

    ranks = loaders(
        rows, batch_size, world, accumulate=accumulate, shuffle=shuffle, drop_last=drop_last
    )
    for loader in ranks:
        assert len(loader) == len(expected)
        loader.epoch = epoch

    # The plain loop: rank slices laid end to end are the global batch.
    for batch, parts in zip(expected, zip(*ranks, strict=True), strict=True):
        assert all_rows(parts) == batch
        sizes = [len(part[0]) for part in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1
        for part in parts:
            assert part.global_size == len(batch)
            assert rows_of(part) == batch[part.offset :][: len(part[0])]

    # Optimizer steps: the same global batches, cut into micro-batches before ranks.
    for loader in ranks:
        loader.epoch = epoch
    for batch, steps in zip(
        expected, zip(*(loader.steps() for loader in ranks), strict=True), strict=True
    ):
        assert {len(step) for step in steps} == {min(accumulate, len(batch))}
        micro_batches = list(zip(*steps, strict=True))
        assert [row for parts in micro_batches for row in all_rows(parts)] == batch
        sizes = [parts[0].global_size for parts in micro_batches]
        assert sum(sizes) == len(batch)
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
        for parts in micro_batches:
            assert {part.global_size for part in parts} == {sum(len(part[0]) for part in parts)}
            for part in parts:
                assert rows_of(part) == batch[part.offset :][: len(part[0])]


def test_more_ranks_than_rows_give_batches_of_zero_rows():
    ranks = loaders(3, 64, world=5)
    batches = [list(loader) for loader in ranks]
    assert [len(b) for b in batches] == [1] * 5
    x, y = batches[4][0]
    assert (x.shape, y.shape) == ((0, 1), (0,))
    assert (x.dtype, y.dtype) == (np.float64, np.int64)


def test_the_loader_says_where_the_current_batch_stands():
    loader = loaders(10, 4, world=3)[1]
    seen = [(loader.offset, loader.global_size) for _ in loader]
    assert seen == [(2, 4), (2, 4), (1, 2)]
    loader = loaders(10, 7, world=2, accumulate=2)[1]
    seen = [
        (loader.offset, loader.global_size, [(b.offset, b.global_size) for b in step])
        for step in loader.steps()
    ]
    assert seen == [(2, 7, [(2, 4), (6, 3)]), (1, 3, [(1, 2), (3, 1)])]


@pytest.mark.parametrize("start", [0, 2])
def test_several_passes_are_one_after_another(start):
    one, many = loaders(10, 4, world=2, accumulate=2)[1], loaders(10, 4, world=2, accumulate=2)[1]
    expected = [(rows_of(batch), *step.position) for step in one.steps(start) for batch in step]
    for _ in range(2):
        expected += [(rows_of(batch), *step.position) for step in one.steps() for batch in step]
    found = [(rows_of(b), *step.position) for step in many.steps(start, passes=3) for b in step]
    assert found == expected
    assert many.epoch == one.epoch == 3
    endless = many.steps(passes=None)
    assert [next(endless).position for _ in range(7)][-1] == (5, 0)
    assert many.epoch == 5
    endless.close()
    next(many.steps())
    assert many.epoch == 6  # the pass before was left early


def test_what_is_drawn_belongs_to_the_micro_batch_however_it_is_taken():
    draw = functional.dropout
    ones = [np.ones((10, 4))]
    (step,) = DataLoader(ArrayDataset(*ones), 10, comm=Ranks(), accumulate=3).steps()
    drawn = [draw(x, 0.5).tolist() for (x,) in step]
    assert drawn[0][:3] != drawn[1]
    assert [draw(step[number][0], 0.5).tolist() for number in range(-3, 3)] == 2 * drawn
    assert [draw(x, 0.5).tolist() for (x,) in reversed(step)] == drawn[::-1]
    assert [draw(x, 0.5).tolist() for (x,) in step[1:]] == drawn[1:]
    begin_batch(0)


def test_no_comm_is_the_world():
    loader = DataLoader(numbered(4), 2)
    assert loader.comm is world()


# Memory ---------------------------------------------------------------------------------------


def test_batches_are_tuples_of_tensors_of_the_data_sets_types():
    data = ArrayDataset(
        np.ones((4, 3), np.float32), np.ones((4, 2, 2)), np.arange(4, dtype=np.int8)
    )
    for batch in DataLoader(data, 3, comm=Ranks()):
        assert isinstance(batch, tuple)
        assert all(type(tensor) is Tensor for tensor in batch)
        assert [tensor.dtype for tensor in batch] == [np.float32, np.float64, np.int8]
        assert [tensor.shape[1:] for tensor in batch] == [(3,), (2, 2), ()]


def test_a_shuffled_batch_is_a_copy_and_a_plain_one_a_read_only_view():
    x = np.arange(6.0).reshape(6, 1)
    data = ArrayDataset(x, x)
    (copy, _) = next(iter(DataLoader(data, 6, comm=Ranks())))
    copy.numpy()[:] = -1
    assert x.min() == 0
    (view, _) = next(iter(DataLoader(data, 6, comm=Ranks(), shuffle=False)))
    assert np.shares_memory(view.numpy(), x)
    with pytest.raises(ValueError, match="read-only"):
        view.numpy()[:] = -1
    x[0] = 5.0  # the owner of the data may still write


def test_strided_arrays_give_contiguous_batches():
    x = np.asfortranarray(np.arange(24.0).reshape(6, 4))
    y = np.arange(12)[::2]
    for shuffle in (True, False):
        loader = DataLoader(ArrayDataset(x, y), 4, comm=Ranks(), shuffle=shuffle)
        for xb, yb in loader:
            assert xb.numpy().flags.c_contiguous
            assert yb.numpy().flags.c_contiguous
            np.testing.assert_array_equal(xb.numpy(), x[yb.numpy() // 2])


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dataset": (np.ones(3), np.ones(3))}, TypeError, r"dataset is a tuple.*ArrayDataset\(x"),
        ({"dataset": ArrayDataset(np.ones(3, ">f4"))}, TypeError, r"not a dtype of Tensors.*'>f4'"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": -3}, ValueError, "batch_size must be at least 1, got -3"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be a whole number, got 2.0"),
        ({"batch_size": "2"}, TypeError, "batch_size must be a whole number, got '2'"),
        ({"batch_size": True}, TypeError, "batch_size must be a whole number, got True"),
        ({"batch_size": None}, TypeError, "batch_size must be a whole number, got None"),
        ({"accumulate": 0}, ValueError, "accumulate must be at least 1, got 0"),
        ({"seed": 0.5}, TypeError, "seed must be a whole number, got 0.5"),
        ({"shuffle": "no"}, TypeError, "shuffle must be True or False, got 'no'"),
        ({"drop_last": 1}, TypeError, "drop_last must be True or False, got 1"),
        ({"batch_size": 11, "drop_last": True}, ConfigError, "10 rows and drop_last leaves out "
         "those below 11, so no batch would ever come"),
        ({"dataset": numbered(0)}, ConfigError, "has 0 rows, so no batch would ever come"),
    ],
)  # fmt: skip
def test_mistakes(arguments, error, message):
    arguments = {"dataset": numbered(10), "batch_size": 4, "comm": Ranks(), **arguments}
    with pytest.raises(error, match=message):
        DataLoader(arguments.pop("dataset"), arguments.pop("batch_size"), **arguments)


@pytest.mark.parametrize("epoch, error", [(-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_an_epoch_is_a_whole_number_from_0_up(epoch, error):
    (loader,) = loaders(4, 2, world=1)
    with pytest.raises(error, match="epoch must be"):
        loader.epoch = epoch
    assert loader.epoch == 0


def test_numpy_integers_are_whole_numbers():
    loader = DataLoader(numbered(10), np.int64(4), seed=np.uint8(1), comm=Ranks())
    assert type(loader.batch_size) is int
    assert all_rows(loader) == epoch_order(10, 1, 0).tolist()


def test_repr_says_what_is_loaded():
    assert repr(loaders(10, 4, world=3)[2]) == (
        "DataLoader(ArrayDataset(float64[10, 1], int64[10]), batch_size=4, seed=0, shuffle=True, "
        "drop_last=False, accumulate=1, rank 2 of 3, epoch 0)"
    )
