"""Rows that are read for many batches at once: the same batches as of arrays in memory."""

import itertools
import math

import numpy as np
import pytest

from microtrain.data import ArrayDataset, BlockShuffle, DataLoader, Rows, loader, npy
from microtrain.data.mapped import Stored, _take
from microtrain.data.stores import Chunked
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import DataError

N = 1003
X = np.arange(3.0 * N, dtype=np.float32).reshape(N, 3)
Y = np.arange(N, dtype=np.float32)[:, None]


class OneOf(SingleCommunicator):
    """A rank of several, for what needs no other."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


def in_chunks(loads):
    """The arrays in chunks; `loads` counts how often each is decoded."""

    def column(array):
        def load(first, stop):
            loads.append(first)
            return array[first:stop]

        bounds = [*range(0, N, 50), N]
        return Chunked("x", array.shape, array.dtype, bounds, load)

    return Stored([column(X), column(Y)])


def mapped(folder):
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return npy(folder / "x.npy", folder / "y.npy")


def steps_of(source, start=0, **how):
    """Every array of every micro-batch of two passes, and where it stands."""
    made = DataLoader(source, **how)
    return [
        (made.global_size, batch.offset, [tensor.numpy() for tensor in batch])
        for step in made.steps(start, passes=2)
        for batch in step
    ]


@pytest.mark.parametrize("kind", ["mapped", "chunks", "parts"])
@pytest.mark.parametrize(
    "shuffle",
    [True, BlockShuffle(block=7, window=13), BlockShuffle(block=64, window=2)],
    ids=["all", "windows of 91", "windows of 128"],
)
@pytest.mark.parametrize(
    "how",
    [
        {"batch_size": 32},
        {"batch_size": 32, "drop_last": True, "start": 5},
        {"batch_size": 50, "comm": (1, 3), "start": 19},
        {"batch_size": 40, "comm": (0, 2), "shards": 4, "accumulate": 3},
        {"batch_size": 100, "comm": (2, 3), "drop_last": True},
        {"batch_size": 2, "comm": (3, 4)},
        {"batch_size": 600, "accumulate": 2},
    ],
    ids=str,
)
def test_batches_are_those_of_memory(tmp_path, monkeypatch, kind, shuffle, how):
    for name, rows in [("OF_MAPS", 100), ("OF_CHUNKS", 200), ("OF_WINDOW", 100)]:
        monkeypatch.setattr(loader, name, rows * 16)
    source = mapped(tmp_path) if kind == "mapped" else in_chunks([])
    memory = ArrayDataset(X, Y)
    if kind == "parts":
        chosen = np.random.default_rng(0).permutation(N)[:700]
        source, memory = Rows(source, chosen), ArrayDataset(X[chosen], Y[chosen])
    how = dict(how, shuffle=shuffle, seed=3)
    if "comm" in how:
        how["comm"] = OneOf(*how["comm"])
    both = itertools.zip_longest(steps_of(memory, **how), steps_of(source, **how))
    for (size, offset, expected), (its_size, its_offset, found) in both:
        assert (its_size, its_offset) == (size, offset)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
            assert other.flags.writeable
            assert other.flags.c_contiguous


def test_a_chunk_is_decoded_once_for_a_window(monkeypatch):
    monkeypatch.setattr("microtrain.data.stores.KEPT", 1)
    loads = []
    # Windows of the rows of 4 chunks; batches that end in the middle of them.
    shuffle = BlockShuffle(block=50, window=4)
    for _ in DataLoader(in_chunks(loads), 32, shuffle=shuffle):
        pass
    chunks = -(-N // 50)
    # The short last block shifts the windows behind it: each has a part of one more chunk.
    assert 2 * chunks <= len(loads) <= 2 * (chunks + 6)


@pytest.mark.parametrize("rank", range(4))
def test_a_window_may_be_all_of_other_ranks(rank):
    how = {"batch_size": 64, "shuffle": BlockShuffle(block=3, window=2), "comm": OneOf(rank, 4)}
    found, expected = (steps_of(each, **how) for each in (in_chunks([]), ArrayDataset(X, Y)))
    np.testing.assert_equal(found, expected)


def test_what_reading_in_chunks_takes(tmp_path):
    """All chunks, for they are few, and the rows of a window twice: in use, and read ahead."""
    row, window = 16, BlockShuffle(block=50, window=4)
    for source, shuffle, expected in [
        (in_chunks([]), window, N * row + 2 * 200 * row),
        (in_chunks([]), True, N * row + 2 * N * row),
        (in_chunks([]), False, 0),
        (mapped(tmp_path), window, 0),
        (ArrayDataset(X, Y), window, 0),
    ]:
        assert DataLoader(source, 32, shuffle=shuffle).buffered == expected
    halves = DataLoader(in_chunks([]), 32, shuffle=window, comm=OneOf(0, 2))
    assert halves.buffered == N * row + 2 * 100 * row


def test_the_first_batch_is_read_alone(tmp_path, monkeypatch):
    read = []
    source = mapped(tmp_path)
    monkeypatch.setattr(
        source, "read", lambda rows, old=source.read: read.append(rows) or old(rows)
    )
    batches = iter(DataLoader(source, 10))
    read.clear()
    for expected in ([10], [10, 20], [10, 20], [10, 20, 40]):
        next(batches)
        assert [len(rows) for rows in read if not isinstance(rows, slice)] == expected


def test_a_batch_in_use_is_not_overwritten(tmp_path):
    for source in (mapped(tmp_path), in_chunks([])):
        batches = iter(DataLoader(source, 16))
        kept = [(x, x.numpy().copy()) for x, _ in batches]
        for x, copy in kept:
            np.testing.assert_array_equal(x.numpy(), copy)


def test_a_row_beyond_a_map_is_refused(tmp_path):
    source = mapped(tmp_path)
    with pytest.raises(IndexError, match=f"index {N} is out of bounds"):
        source.read(np.array([0, N]))
    np.testing.assert_array_equal(source.read(np.array([-1, 4]))[0], X[[-1, 4]])


SHAPES = [(N,), (N, 3), (N, 1), (N, 0), (N, 2, 3), (N, 300)]


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "i8", "?"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_of_a_map_are_those_of_its_array(shape, dtype, order):
    array = np.asarray(np.arange(math.prod(shape)).reshape(shape).astype(dtype), order=order)
    unaligned = np.ndarray(shape, dtype, bytearray(array.nbytes + 1), 1, order=order)
    unaligned[...] = array
    for rows in ([5, 0, N - 1, 5], [], [-1, 2]):
        numbers = np.array(rows, np.intp)
        for each in (array, unaligned):
            found = _take(each, numbers)
            np.testing.assert_array_equal(found, array.take(numbers, 0), strict=True)
            assert found.flags.aligned
    for each in (array, unaligned):
        with pytest.raises(IndexError):
            _take(each, np.array([N]))


def test_a_chunk_that_cannot_be_read_is_an_error_of_the_batch():
    def broken(first, stop):
        raise DataError(f"row {first} is gone")

    column = Chunked("x", X.shape, X.dtype, [0, N], broken)
    batches = iter(DataLoader(Stored([column, column]), 16))
    with pytest.raises(DataError, match="row 0 is gone"):
        next(batches)
