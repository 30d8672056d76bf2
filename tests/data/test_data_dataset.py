"""ArrayDataset: rows that belong together, checked when it is made."""

import numpy as np
import pytest

from microtrain.data import ArrayDataset
from microtrain.data.source import named_as


@pytest.fixture
def x():
    return np.arange(12.0).reshape(6, 2)


@pytest.fixture
def y():
    return np.arange(6)


def test_length_and_memory_are_those_of_the_arrays(x, y):
    data = ArrayDataset(x, y)
    assert len(data) == 6
    assert all(np.shares_memory(a, b) for a, b in zip(data.arrays, (x, y), strict=True))
    assert repr(data) == "ArrayDataset(float64[6, 2], int64[6])"


@pytest.mark.parametrize(
    "rows",
    [
        slice(1, 4),
        slice(None, None, -1),
        [4, 1, 1],
        np.array([5, 0]),
        np.array([True, False, True, False, False, False]),
        np.array([], np.intp),
        3,
        -1,
    ],
)
def test_rows_are_taken_from_every_array(x, y, rows):
    taken = ArrayDataset(x, y)[rows]
    assert type(taken) is tuple
    for got, array in zip(taken, (x, y), strict=True):
        assert type(got) is np.ndarray
        np.testing.assert_array_equal(got, array[rows])


def test_a_slice_shares_memory_and_an_index_array_copies(x):
    data = ArrayDataset(x)
    assert np.shares_memory(data[1:3][0], x)
    assert not np.shares_memory(data[[1, 2]][0], x)


def test_indexing_mistakes(x, y):
    data = ArrayDataset(x, y)
    with pytest.raises(TypeError, match=r"data\[rows\], not data\[i, j\]"):
        data[0, 1]
    with pytest.raises(IndexError):
        data[6]
    assert len(list(data)) == 6  # the loop over rows ends


def test_a_memory_map_stays_on_disk(tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    (array,) = ArrayDataset(mapped).arrays
    assert type(array) is np.ndarray
    assert np.shares_memory(array, mapped)


class HasNumpy:
    """What a Tensor shows to a data set."""

    def __init__(self, array):
        self.array = array

    def numpy(self):
        return self.array


def test_tensors_are_taken_by_their_memory(x):
    (array,) = ArrayDataset(HasNumpy(x)).arrays
    assert np.shares_memory(array, x)


def test_names_go_along_with_other_arrays(x, y):
    data = ArrayDataset(
        x,
        y,
        feature_names=["a", "b"],
        target_name="kind",
        classes=list("uvwxyz"),
        truth={"bias": 1.0},
    )
    part = named_as(data, data[:2])
    assert len(part) == 2
    for name in ("feature_names", "target_name", "classes", "truth"):
        assert getattr(part, name) == getattr(data, name)
    assert part.feature_names == ("a", "b")


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: ArrayDataset(), ValueError, "at least one array"),
        (
            lambda: ArrayDataset(np.ones((3, 2)), np.ones(4), np.ones(3)),
            ValueError,
            r"different numbers of rows; their shapes are \(3, 2\), \(4,\), \(3,\)",
        ),
        (lambda: ArrayDataset(np.ones(3), [1, 2, 3]), TypeError, r"argument 1 is a list.*asarray"),
        (lambda: ArrayDataset(np.array(["a"])), TypeError, "argument 0 has dtype <U1"),
        (lambda: ArrayDataset(np.array([{}])), TypeError, "argument 0 has dtype object"),
        (lambda: ArrayDataset(np.ones(2, complex)), TypeError, "dtype complex128"),
        (lambda: ArrayDataset(np.ma.masked_equal([1, 2], 2)), TypeError, "masked array"),
        (lambda: ArrayDataset(np.array(1.0)), ValueError, "0-d; the first dimension is rows"),
        (
            lambda: ArrayDataset(np.ones((3, 2)), feature_names=["a"]),
            ValueError,
            r"1 feature_names for a first input in rows of \(2,\)",
        ),
        (
            lambda: ArrayDataset(np.ones(3), np.ones(3), classes=["a", "b"]),
            ValueError,
            r"integer codes of shape \(n,\), but the target is float64",
        ),
        (
            lambda: ArrayDataset(np.ones(3), np.array([0, 1, 2]), classes=["a", "b"]),
            ValueError,
            "2 classes need codes from 0 to 1, found 0 to 2",
        ),
        (
            lambda: ArrayDataset(np.ones(2), np.array([-1, 1]), classes=["a", "b"]),
            ValueError,
            "found -1 to 1",
        ),
    ],
)
def test_mistakes(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_weights_stand_after_the_target_and_stay_with_their_rows(x, y):
    weights = np.arange(6.0)
    data = ArrayDataset(x, y, weights=weights)
    assert data.inputs[0] is data.arrays[0]
    assert np.shares_memory(data.target, y)
    assert np.shares_memory(data.weights, weights)
    assert [len(array) for array in data[1:3]] == [2, 2, 2]
    half = named_as(data, data[::2])
    np.testing.assert_array_equal(half.weights, [0, 2, 4])
    np.testing.assert_array_equal(half.target, [0, 2, 4])
    plain = ArrayDataset(x, y)
    assert plain.weights is None
    assert plain.target is plain.arrays[-1]


@pytest.mark.parametrize("weights", [np.arange(6), np.ones((6, 1)), np.array([1.0] * 5 + [-2])])
def test_weights_are_floats_one_a_row_and_not_negative(x, y, weights):
    with pytest.raises(ValueError, match=r"weights must be (floats of shape \(n,\)|at least 0)"):
        ArrayDataset(x, y, weights=weights)
