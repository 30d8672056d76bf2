"""Rows of mapped files: the same batches as of arrays in memory, and the rows asked for."""

import itertools
import math

import numpy as np
import pytest

from microtrain.data import ArrayDataset, DataLoader, Rows, npy
from microtrain.data.readers.npy import _take
from microtrain.distributed.single import SingleCommunicator

N = 1003
X = np.arange(3.0 * N, dtype=np.float32).reshape(N, 3)
Y = np.arange(N, dtype=np.float32)[:, None]


class OneOf(SingleCommunicator):
    """A rank of several, for what needs no other."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


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


@pytest.mark.parametrize("kind", ["mapped", "parts"])
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
def test_batches_are_those_of_memory(tmp_path, kind, how):
    source = mapped(tmp_path)
    memory = ArrayDataset(X, Y)
    if kind == "parts":
        chosen = np.random.default_rng(0).permutation(N)[:700]
        source, memory = Rows(source, chosen), ArrayDataset(X[chosen], Y[chosen])
    how = dict(how, seed=3)
    if "comm" in how:
        how["comm"] = OneOf(*how["comm"])
    both = itertools.zip_longest(steps_of(memory, **how), steps_of(source, **how))
    for (size, offset, expected), (its_size, its_offset, found) in both:
        assert (its_size, its_offset) == (size, offset)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
            assert other.flags.writeable
            assert other.flags.c_contiguous


def test_a_batch_in_use_is_not_overwritten(tmp_path):
    batches = iter(DataLoader(mapped(tmp_path), 16))
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
