"""Orders by arithmetic: every row once, no trace of how they are made, and no memory for them."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_data_loader import Ranks, all_rows, loaders

from microtrain.data import ArrayDataset, DataLoader, epoch_order, prepare
from microtrain.data.loading.order import CHUNK, TABLE, Permutation
from microtrain.data.preparation.split import split_rows, split_sizes

SIZES = [320, 1000, 10**7 + 1, 10**9, 2**32 + 15, 10**15]


def assert_uniform(counts, evener=False):
    """Pearson's chi-square of equally likely cells, within five standard deviations.

    `evener`: what is drawn from strata may be nearer to its expectation than chance.
    """
    counts = np.asarray(counts).reshape(-1)
    expected = counts.sum() / len(counts)
    assert expected >= 10
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    beyond = (statistic - freedom) / math.sqrt(2 * freedom)
    assert (beyond if evener else abs(beyond)) < 5


# A permutation --------------------------------------------------------------------------------


@given(rows=st.integers(0, 5000), seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_every_row_comes_once(rows, seed, epoch):
    order = Permutation(rows, seed, "shuffle", epoch)
    assert len(order) == rows
    assert np.sort(order[:]).tolist() == list(range(rows))


def test_every_row_of_many_comes_once():
    order = Permutation(3 * 2**20 + 7, 0, "shuffle")[:]
    assert order.dtype == np.intp
    assert (np.bincount(order) == 1).all()


@settings(deadline=None)
@given(data=st.data(), rows=st.sampled_from([1, 10, 40_000, *SIZES]))
def test_slices_and_index_arrays_read_the_same_rows(data, rows):
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start, min(rows, start + CHUNK + 5)))
    order = Permutation(rows, 0, "shuffle")
    piece = order[start:stop]
    np.testing.assert_array_equal(piece, order[np.arange(start, stop)])
    backwards = np.arange(start, stop, dtype=np.int64)[::-1].reshape(1, -1)
    np.testing.assert_array_equal(order[backwards], piece[None, ::-1])


def test_golden_rows():
    """The rows of earlier versions: changing them changes every run on much data, and its split."""
    assert Permutation(10**9, 0, "shuffle", 3)[:5].tolist() == GOLDEN[0]
    assert epoch_order(10**9, 0, 3)[:5].tolist() == GOLDEN[0]
    assert Permutation(10, 0, "shuffle", 3)[:].tolist() == GOLDEN[1]
    parts = split_rows(TABLE + 1, {"train": 0.8, "test": 0.2}, 0, "data")
    assert parts["test"][:5].tolist() == GOLDEN[2]


GOLDEN = [
    [530590831, 486999090, 912237197, 629108231, 58402688],
    [7, 1, 2, 4, 6, 3, 9, 5, 8, 0],
    [555, 879, 831, 320, 94],
]


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 9])
def test_small_permutations_are_equally_frequent(rows):
    """Of nine rows, all 84 sets of the first three, and even permutations as often as odd ones."""
    some = min(rows, 5) if rows < 9 else 3
    tried = 12_000
    order = Permutation(rows, 1, "shuffle")
    family = np.repeat(np.arange(tried, dtype=np.uint64), rows)
    drawn = order.among(np.tile(np.arange(rows, dtype=np.uint64), tried), family)
    drawn = drawn.reshape(tried, rows).astype(int)
    codes = (drawn[:, :some] * rows ** np.arange(some)).sum(1)
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == math.perm(rows, some)
    assert_uniform(counts)
    pairs = itertools.combinations(range(rows), 2)
    assert_uniform(np.bincount(sum(drawn[:, i] > drawn[:, j] for i, j in pairs) % 2, minlength=2))


def test_all_orders_of_four_rows_are_equally_frequent_over_epochs_and_seeds():
    for orders in (
        [Permutation(4, seed, "shuffle", 0)[:] for seed in range(1000)],
        [Permutation(4, 0, "shuffle", epoch)[:] for epoch in range(1000)],
    ):
        found, counts = np.unique(orders, axis=0, return_counts=True)
        assert len(found) == 24
        assert_uniform(counts)


@pytest.mark.parametrize("rows", SIZES)
def test_rows_are_where_chance_puts_them(rows):
    """Where a position leads to is uniform, over positions, epochs and seeds, and so is what lies
    between neighbors and between two epochs."""
    count, epochs = min(rows, 50_000), max(1, 50_000 // rows)

    def drawn(seed, epoch):
        orders = [Permutation(rows, seed, "s", epoch, i)[:count] for i in range(epochs)]
        return np.stack(orders)

    def cells(found):
        return np.bincount((found.reshape(-1) % rows) // -(-rows // 40), minlength=40)

    first, second, other = drawn(0, 0), drawn(0, 1), drawn(1, 0)
    for one in (first, second, other):
        if rows > count:  # of all rows every cell has the same number
            assert_uniform(cells(one))
            assert_uniform(cells(np.diff(one)))  # neighbors
        assert_uniform(cells(one - np.arange(count)))  # how far a row is from its place
    for left, right in ((first, second), (first, other)):
        assert_uniform(cells(left - right))
        joint = (left // -(-rows // 20)) * 20 + right // -(-rows // 20)
        assert_uniform(np.bincount(joint.reshape(-1), minlength=400))
    if epochs > 1:
        assert_uniform(cells(np.diff(first, axis=0)))


def test_each_position_over_many_epochs():
    rows, epochs = 10**9, 800
    found = np.array([Permutation(rows, 0, "shuffle", e)[:64] for e in range(epochs)])
    for position in range(64):
        assert_uniform(np.bincount(found[:, position] // (rows // 20), minlength=20))
    # One position and the next, over epochs.
    pairs = (found[:, :-1] // (rows // 10)) * 10 + found[:, 1:] // (rows // 10)
    assert_uniform(np.bincount(pairs.reshape(-1), minlength=100))


def test_more_rows_than_32_bits_count_are_all_reached():
    rows = 2**40 + 3
    order = Permutation(rows, 0, "shuffle")
    found = order[np.linspace(0, rows - 1, 200_000, dtype=np.int64)]
    assert len(np.unique(found)) == 200_000
    assert 0 <= found.min() < rows // 10_000
    assert rows - rows // 10_000 < found.max() < rows
    assert_uniform(np.bincount(found % 64, minlength=64))


@pytest.mark.parametrize(
    "positions, message",
    [
        (np.array([3, 10]), "from 3 to 10 of an order of 10 rows, which has 0 to 9"),
        (np.array([-1]), "positions from -1 to -1"),
        (np.array([0.5]), "positions must be integers, got an array of float64"),
        (np.ones(10, bool), "got an array of bool"),
    ],
    ids=["beyond", "negative", "floats", "mask"],
)
def test_positions_that_are_none(positions, message):
    with pytest.raises(IndexError, match=message):
        Permutation(10, 0, "shuffle")[positions]


# The loader -----------------------------------------------------------------------------------


@pytest.mark.parametrize("world, accumulate, batch_size", [(1, 1, 3000), (3, 2, 50_000)])
def test_batches_of_many_rows_are_the_order_cut_over_the_ranks(world, accumulate, batch_size):
    rows = TABLE + 100
    order = epoch_order(rows, 0, 2)
    ranks = loaders(rows, batch_size, world, accumulate=accumulate)
    for loader in ranks:
        loader.epoch = 2
    begin = len(ranks[0]) - 12  # in the middle of the pass, to its smaller last batch
    steps = zip(*(loader.steps(begin) for loader in ranks), strict=True)
    for number, step in enumerate(steps, begin):
        found = [row for parts in zip(*step, strict=True) for row in all_rows(parts)]
        assert found == order[number * batch_size :][:batch_size].tolist()
    assert number == len(ranks[0]) - 1


def test_a_thousand_million_rows_need_no_table(tmp_path):
    rows = 10**9
    x = np.memmap(tmp_path / "sparse", np.uint8, "w+", shape=(rows,))  # takes no space on the disk
    order = epoch_order(rows, 0, 0)
    x[order[:8]] = np.arange(1, 9)
    tracemalloc.start()
    try:
        loader = DataLoader(ArrayDataset(x), 8, comm=Ranks())
        (batch,) = next(iter(loader))
        loader.kinds(3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch.tolist() == list(range(1, 9))
    assert peak < 4e6


def test_the_table_stays_for_few_rows():
    assert isinstance(epoch_order(TABLE, 0, 0), np.ndarray)
    assert isinstance(epoch_order(TABLE + 1, 0, 0), Permutation)


# The split ------------------------------------------------------------------------------------

SPLITS = {
    "two": {"train": 0.75, "test": 0.25},
    "three": {"train": 0.8, "val": 0.13, "test": 0.07},
    "few to test": {"train": 0.99999, "test": 0.00001},
    "few to train": {"train": 0.00001, "val": 0.5, "test": 0.49999},
}


@pytest.mark.parametrize("rows", [TABLE + 1, 1_500_000])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_every_row_of_many_is_in_one_part(rows, split):
    parts = split_rows(rows, split, 3, "data")
    assert {name: len(part) for name, part in parts.items()} == split_sizes(rows, split)
    together = np.concatenate([part[:] for part in parts.values()])
    assert (np.bincount(together, minlength=rows) == 1).all()


def test_a_part_goes_through_the_data_once():
    part = split_rows(2 * 10**6, SPLITS["three"], 0, "data")["val"]
    regions = part[:] // 1024
    assert (np.diff(regions[:-300]) >= 0).all()  # the last region is larger
    counts = np.bincount(regions)[:-2]
    assert 132 <= counts.min() <= counts.max() <= 134  # of 1024 rows 133.12


def test_every_row_has_the_same_chance_to_be_in_a_part():
    """Also in a part that has less than a row of each region."""
    rows, split = TABLE + 1, {"train": 0.9998, "test": 0.0002}
    found = np.concatenate(
        [split_rows(rows, split, seed, "data")["test"][:] for seed in range(100)]
    )
    assert_uniform(np.bincount(found // -(-rows // 1000), minlength=1000), evener=True)
    assert_uniform(np.bincount(found % 64, minlength=64))


def test_a_thousand_million_rows_are_split_without_a_table():
    tracemalloc.start()
    try:
        part = split_rows(10**9, SPLITS["three"], 0, "data")["train"]
        found = part[np.array([0, 10**8, 8 * 10**8 - 1])]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16e6
    assert np.abs(found / [1, 1.25e8, 1e9] - 1)[1:].max() < 1e-3


def test_parts_of_arrays_in_memory_are_in_the_order_of_the_data():
    x = np.arange(TABLE + 50, dtype=np.float64)[:, None]
    whole = prepare((x, x), split=SPLITS["two"], dtype=np.float64)
    assert len(whole.train) == TABLE + 50 - len(whole.test.inputs[0])
    assert (np.diff(whole.train.inputs[0][:, 0]) > 0).all()
