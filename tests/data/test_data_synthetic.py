"""Synthetic data: functions of their arguments, equal to the truth written beside them."""

import numpy as np
import pytest

from microtrain.data import prepare, synthetic_linear, synthetic_random, synthetic_relu
from microtrain.errors import DataError

MAKERS = {
    "linear": lambda samples=50, **k: synthetic_linear(samples, [2.0, -1.0], 3.0, 0.5, **k),
    "random": lambda samples=50, **k: synthetic_random(samples, 4, 2, **k),
    "relu": lambda samples=50, **k: synthetic_relu(samples, 4, 8, 2, 0.1, **k),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_decides_the_data(name):
    make = MAKERS[name]
    for a, b, c in zip(make(seed=1).arrays, make(seed=1).arrays, make(seed=2).arrays, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not np.isclose(a, c).any()


@pytest.mark.parametrize("name", ["linear", "random"])
def test_more_samples_only_add_rows(name):
    few, many = MAKERS[name](20), MAKERS[name](60)
    for a, b in zip(few.arrays, many.arrays, strict=True):
        np.testing.assert_array_equal(a, b[:20])


def test_linear_has_normal_inputs_and_the_line_it_says():
    data = synthetic_linear(4000, [2.0], bias=3.0, noise=0.5, seed=0)
    x, y = data.arrays
    assert (x.shape, y.shape, x.dtype, y.dtype) == ((4000, 1), (4000, 1), "float64", "float64")
    assert abs(x.mean()) < 5 / np.sqrt(4000)
    assert x.std() == pytest.approx(1.0, rel=0.05)
    assert data.truth == {"weights": [2.0], "bias": 3.0, "noise": 0.5}
    assert (data.feature_names, data.target_name) == (("x",), "y")
    residual = y - 2.0 * x - 3.0
    assert abs(residual.mean()) < 5 * 0.5 / np.sqrt(4000)
    assert residual.std() == pytest.approx(0.5, rel=0.05)


def test_linear_without_noise_is_exact_and_noise_leaves_inputs_alone():
    x, y = synthetic_linear(100, [1.5, -2.0, 0.0], bias=-1.0).arrays
    np.testing.assert_allclose(y[:, 0], x @ [1.5, -2.0, 0.0] - 1.0, rtol=1e-14, atol=1e-14)
    noisy = synthetic_linear(100, [1.5, -2.0, 0.0], bias=-1.0, noise=9.0)
    np.testing.assert_array_equal(noisy.arrays[0], x)
    assert noisy.feature_names == ("x1", "x2", "x3")


def test_random_is_the_two_layer_tutorials_data():
    x, y = synthetic_random(64, 1000, 10).arrays
    assert (x.shape, y.shape) == ((64, 1000), (64, 10))
    assert abs(x.mean()) < 0.03
    assert x.std() == pytest.approx(1.0, abs=0.03)
    assert abs(np.corrcoef(x[:, :10].ravel(), y.ravel())[0, 1]) < 0.2


def test_relu_targets_lie_on_a_two_layer_network():
    data = synthetic_relu(200, features=1, hidden=3, targets=2)
    x, y = data.arrays
    # Without bias the teacher is linear on each side of 0, and not the same on both.
    slopes = y / x
    for side in (x[:, 0] > 0, x[:, 0] < 0):
        np.testing.assert_allclose(slopes[side], np.broadcast_to(slopes[side][0], (side.sum(), 2)))
    assert not np.allclose(slopes[x[:, 0] > 0][0], slopes[x[:, 0] < 0][0])


def test_relu_targets_have_mean_square_1_and_the_noise_asked_for():
    squares = [(synthetic_relu(200, 30, 60, 5, seed=s).arrays[1] ** 2).mean() for s in range(30)]
    assert np.mean(squares) == pytest.approx(1.0, rel=0.2)
    clean, noisy = (synthetic_relu(500, 5, 7, 2, noise=n).arrays[1] for n in (0.0, 0.3))
    assert (noisy - clean).std() == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: synthetic_linear(0, [2.0]), "the data set is empty"),
        (lambda: synthetic_linear(5, []), "an array has no columns"),
        (lambda: synthetic_linear(5, [float("nan")]), 'target at row 0, column "y" is nan'),
        (lambda: synthetic_random(5, 0, 1), "an array has no columns"),
        (lambda: synthetic_relu(5, 1, 1, 1, noise=float("inf")), 'target at row 0, column "y" is'),
    ],
)
def test_what_makes_no_data_is_refused_where_it_is_prepared(make, message):
    """In a configuration it is refused before; see the annotations."""
    with pytest.raises(DataError, match=message):
        prepare(make())
