"""The data sets of scikit-learn's wheel, and what is said where it is missing."""

import sys

import numpy as np
import pytest

from microtrain.data import sklearn
from microtrain.errors import ConfigError, DataError


@pytest.mark.parametrize(
    "name, features, targets, classes",
    [
        ("digits", (1797, 64), (1797,), 10),
        ("breast_cancer", (569, 30), (569,), 2),
        ("wine", (178, 13), (178,), 3),
        ("iris", (150, 4), (150,), 3),
        ("diabetes", (442, 10), (442, 1), None),
        ("linnerud", (20, 3), (20, 3), None),
    ],
)
def test_the_data_sets(name, features, targets, classes):
    pytest.importorskip("sklearn")
    data = sklearn(name)
    x, y = data.arrays
    assert (x.shape, y.shape) == (features, targets)
    assert x.dtype == np.float64
    assert len(data.feature_names) == features[1]
    assert {type(text) for text in data.feature_names} == {str}
    assert data.target_name
    if classes is None:
        assert (y.dtype, data.classes) == (np.float64, None)
    else:
        assert y.dtype == np.int64
        assert len(data.classes) == classes == len(np.unique(y))


def test_digits_are_pixels_from_0_to_16():
    pytest.importorskip("sklearn")
    x = sklearn("digits").arrays[0]
    assert (x.min(), x.max()) == (0.0, 16.0)


def test_where_scikit_learn_is_missing_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # what `import sklearn` then raises is real
    with pytest.raises(DataError, match=r"pip install -e '\.\[data\]'") as caught:
        sklearn("wine")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_two_come_with_microtrain_as_scikit_learn_has_them(name, monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = getattr(datasets, f"load_{name}")()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    data = sklearn(name)
    np.testing.assert_array_equal(data.arrays[0], bunch.data, strict=True)
    np.testing.assert_array_equal(data.arrays[1].reshape(-1), bunch.target, strict=True)
    assert [*data.feature_names] == bunch.feature_names


def test_another_name():
    with pytest.raises(ConfigError, match="there is no 'mnist'; there are digits, diabetes"):
        sklearn("mnist")
