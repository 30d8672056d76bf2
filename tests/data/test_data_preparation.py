"""Preparation: no unseen row reaches training, and nothing is cast silently."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microtrain.data import (
    ArrayDataset,
    FunctionSource,
    Preprocessing,
    TargetScaling,
    prepare,
    split_sizes,
    synthetic_linear,
)
from microtrain.errors import ConfigError, DataError
from microtrain.train.evaluation import target_mean

THREE = {"train": 0.6, "val": 0.2, "test": 0.2}


def numbered(rows, features=2):
    """Inputs whose first column is the number of the row."""
    x = np.random.default_rng(0).random((rows, features))
    x[:, 0] = np.arange(rows)
    return ArrayDataset(x, np.arange(rows, dtype=float))


def row_numbers(part):
    return part.arrays[0][:, 0].astype(int).tolist()


# The split ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows, split, sizes",
    [
        (10000, {"train": 0.8, "val": 0.2}, {"train": 8000, "val": 2000}),
        (442, {"train": 0.8, "test": 0.2}, {"train": 354, "test": 88}),
        (100, {"train": 0.71, "val": 0.29}, {"train": 71, "val": 29}),  # 0.29 * 100 < 29 in floats
        (3, {"train": 2 / 3, "val": 1 / 3}, {"train": 2, "val": 1}),
        (11, THREE, {"train": 7, "val": 2, "test": 2}),
        (7, {"train": 1}, {"train": 7}),
        (2, {"test": 0.5, "train": 0.5}, {"train": 1, "test": 1}),
    ],
)
def test_sizes_are_floors_and_train_gets_the_rest(rows, split, sizes):
    assert split_sizes(rows, split) == sizes


@given(st.integers(10, 300), st.floats(0.1, 0.5), st.floats(0.1, 0.4), st.integers())
def test_every_row_is_in_exactly_one_part_and_in_order(rows, val, test, seed):
    split = {"train": 1 - val - test, "val": val, "test": test}
    found = prepare(numbered(rows), split=split, seed=seed)
    parts = [row_numbers(part) for part in (found.train, found.val, found.test)]
    assert sorted([*parts[0], *parts[1], *parts[2]]) == list(range(rows))
    assert all(part == sorted(part) for part in parts)
    for part in (found.train, found.val, found.test):
        np.testing.assert_array_equal(part.arrays[0][:, 0], part.arrays[1][:, 0])


def test_the_split_depends_on_the_seed_alone():
    def test_rows(seed, data, **options):
        return row_numbers(prepare(data, split=THREE, seed=seed, **options).test)

    data = numbered(50)
    other = ArrayDataset(data.arrays[0] * [1, 9], -data.arrays[1])
    assert test_rows(0, data) == test_rows(0, other) == test_rows(0, data, dtype="float64")
    assert test_rows(0, data) != test_rows(1, data)
    keys_in_another_order = dict(reversed(THREE.items()))
    assert test_rows(0, data) == row_numbers(prepare(data, split=keys_in_another_order).test)
    assert test_rows(0, data) == GOLDEN_TEST_ROWS


# Rows 0 to 49, seed 0: a change would move rows between training and test in every old run.
GOLDEN_TEST_ROWS = [8, 9, 10, 23, 25, 30, 31, 32, 33, 41]


def test_without_a_split_all_rows_train_in_their_own_memory():
    x, y = np.ones((4, 2), np.float32), np.arange(4)
    found = prepare((x, y))
    assert (found.val, found.test) == (None, None)
    assert np.shares_memory(found.train.arrays[0], x)
    assert np.shares_memory(found.train.arrays[1], y)


@pytest.mark.parametrize(
    "split, message",
    [
        ({"train": 0.8, "valid": 0.2}, "split has no part 'valid'; there are train, val, test"),
        ({"val": 1.0}, "split needs a train part, got {val: 1.0}"),
        ({}, "split needs a train part"),
        ({"train": 0.8, "val": 0.3}, "{train: 0.8, val: 0.3} adds up to 1.1, expected 1"),
        ({"train": 0.8}, "adds up to 0.8"),
        ({"train": 1.0, "val": 0.0}, "split val is a fraction of the rows, above 0"),
        ({"train": 1.2, "val": -0.2}, "split train is a fraction"),
        ({"train": float("nan")}, "split train is a fraction"),
        (
            {"train": "all"},
            "split train is a fraction of the rows, above 0 and at most 1; got 'all'",
        ),
        ({"train": True}, "got True"),
    ],
)
def test_fractions_that_are_none(split, message):
    with pytest.raises(ConfigError) as caught:
        prepare(numbered(10), split=split, origin="data")
    assert message in str(caught.value)


@pytest.mark.parametrize("rows, part", [(4, "val"), (1, "val")])
def test_a_part_without_rows(rows, part):
    with pytest.raises(DataError, match=f"of {rows} rows leaves {part} empty; give it a larger"):
        prepare(numbered(rows), split=THREE)


# Standardization ------------------------------------------------------------------------------


def test_the_training_part_gets_mean_0_and_deviation_1():
    x = np.random.default_rng(1).normal([5.0, -3.0, 1e6], [0.1, 20.0, 1.0], (200, 3))
    found = prepare((x, x[:, 0]), split=THREE, standardize=True, dtype="float64")
    z = found.train.arrays[0]
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(z.std(axis=0), 1, rtol=1e-12)
    assert found.preprocessing.mean.shape == found.preprocessing.scale.shape == (3,)
    # The other parts go through the same map, so theirs are only near.
    assert abs(found.val.arrays[0].mean(axis=0)).max() > 1e-3


@given(st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=20), st.sampled_from(["val", "test"]))
def test_leak_changing_unseen_rows_changes_no_statistic(values, part):
    data = numbered(50)
    before = prepare(data, split=THREE, standardize=True)
    x = data.arrays[0].copy()
    unseen = row_numbers(getattr(prepare(data, split=THREE), part))
    x[unseen] = np.resize(values, (len(unseen), 2))
    after = prepare(ArrayDataset(x, data.arrays[1]), split=THREE, standardize=True)
    np.testing.assert_array_equal(before.preprocessing.mean, after.preprocessing.mean)
    np.testing.assert_array_equal(before.preprocessing.scale, after.preprocessing.scale)
    np.testing.assert_array_equal(before.train.arrays[0], after.train.arrays[0])


@pytest.mark.parametrize("constant", [0.0, 0.1, -7.3e5, 1e-310])
def test_a_constant_column_becomes_zero(constant):
    """The mean of six times 0.1 is not 0.1 in floats: the deviation is 1e-17, not 0."""
    x = np.full((6, 1), constant)
    found = prepare((x, x), standardize=True, dtype="float64")
    np.testing.assert_array_equal(found.train.arrays[0], 0.0)
    assert found.preprocessing.scale.tolist() == [1.0]


def test_a_column_whose_deviation_underflows_is_not_divided_by_zero():
    x = np.array([[0.0], [5e-324]])
    found = prepare((x, x), standardize=True, dtype="float64")
    assert found.preprocessing.scale.tolist() == [1.0]


def test_targets_are_never_standardized():
    data = synthetic_linear(50, [2.0], 3.0)
    found = prepare(data, standardize=True, dtype="float64")
    np.testing.assert_array_equal(found.train.arrays[1], data.arrays[1])


HOW = [
    {"standardize_target": True},
    {"log_target": True},
    {"clip": True},
    {"standardize_target": True, "log_target": True, "clip": True},
]


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "read"])
@pytest.mark.parametrize("targets", [(), (2,)], ids=["one", "two"])
@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("how", HOW, ids=" ".join)
def test_a_target_is_mapped_by_the_training_part_and_back(how, weighted, targets, lazy):
    rng = np.random.default_rng(0)
    y = rng.gamma(2, 1000, (60, *targets))
    x = np.stack([np.arange(60.0), rng.random(60)], axis=1)
    weights = rng.integers(0, 4, 60).astype(float) if weighted else np.ones(60)
    arrays = (x, y, weights)[: 2 + weighted]
    data = ArrayDataset(x, y, weights=weights if weighted else None)
    if lazy:
        data = FunctionSource(lambda rows: [a[rows] for a in arrays], 60, weighted=weighted)
    found = prepare(data, split=THREE, dtype=float, **how)
    parts = [each.read(slice(None)) for each in (found.train, found.val, found.test)]
    which = [part[0][:, 0].astype(int) for part in parts]
    own = [y[rows].reshape(len(rows), -1) for rows in which]
    wanted = [np.log1p(each) if "log_target" in how else each for each in own]
    if "standardize_target" in how:
        mean = np.average(wanted[0], 0, weights[which[0]])
        deviation = np.sqrt(np.average((wanted[0] - mean) ** 2, 0, weights[which[0]]))
        wanted = [(each - mean) / deviation for each in wanted]
    scaling = TargetScaling.from_json(json.loads(json.dumps(found.target_scaling.to_json())))
    counted = own[0][weights[which[0]] > 0]
    for (_, target, *_), expected, raw in zip(parts, wanted, own, strict=True):
        np.testing.assert_allclose(target, expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(scaling.inverse(target), raw, rtol=1e-12)
        far = scaling.predictions(np.concatenate([target - 50.0, target + 50.0]))
        within = (far >= counted.min(axis=0)) & (far <= counted.max(axis=0))
        assert within.all() == ("clip" in how)
    for part, raw in zip((found.train, found.val), own, strict=False):
        np.testing.assert_allclose(target_mean(part, scaling), raw.mean(axis=0), rtol=1e-12)
    again = prepare(
        ArrayDataset(x, y), dtype=float, preprocessing=found.preprocessing, target_scaling=scaling
    )
    np.testing.assert_array_equal(again.train.target[which[1]], parts[1][1])


def test_a_constant_target_becomes_zero():
    found = prepare(ArrayDataset(np.eye(4), np.full(4, 0.1)), standardize_target=True)
    assert not found.train.target.any()
    assert found.target_scaling.predictions(np.zeros((2, 1))).tolist() == [[0.1], [0.1]]


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "read"])
def test_a_target_without_weight_leaves_a_constant_constant(lazy):
    y, weights = np.array([0.1, 0.1, 0.1, 9.0]), np.array([1.0, 2.0, 4.0, 0.0])
    data = ArrayDataset(np.eye(4), y, weights=weights)
    if lazy:
        arrays = (np.eye(4), y, weights)
        data = FunctionSource(lambda rows: [a[rows] for a in arrays], 4, weighted=True)
    scaling = prepare(data, standardize_target=True, clip=True).target_scaling
    assert (scaling.affine.mean.tolist(), scaling.affine.scale.tolist()) == ([0.1], [1.0])
    assert scaling.predictions(np.array([[-8.0], [8.0]])).tolist() == [[0.1], [0.1]]


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "read"])
@pytest.mark.parametrize(
    "how, y, error, message",
    [
        ("log_target", [0.0, 1.0, 2.0, -0.5], DataError,
         r"target at row 3 is -0.5, expected a number of at least 0: data.log_target"),
        ("standardize_target", [0, 1, 1, 0], ConfigError, "data.standardize_target: is for"),
        ("clip", [0, 1, 1, 0], ConfigError, "data.clip: is for a target of numbers"),
        ("standardize_target", [1e308, -1e308, 0.0, 0.0], DataError, "target values are too"),
        ("log_target", [0.0, np.nan, 2.0, 1.0], DataError, "target at row 1 is nan"),
    ],
)  # fmt: skip
def test_targets_that_cannot_be_mapped(how, y, error, message, lazy):
    y = np.array(y)
    data = FunctionSource(lambda rows: (np.eye(4)[rows], y[rows]), 4) if lazy else (np.eye(4), y)
    with pytest.raises(error, match=message):
        prepare(data, split={"train": 0.75, "val": 0.25}, **{how: True})


def test_images_are_standardized_per_pixel_and_integers_become_floats():
    x = np.random.default_rng(0).integers(0, 255, (40, 3, 5), np.uint8)
    found = prepare((x, np.zeros(40)), standardize=True)
    assert found.preprocessing.mean.shape == (3, 5)
    assert found.train.arrays[0].dtype == np.float32
    np.testing.assert_allclose(found.train.arrays[0].mean(axis=0), 0, atol=1e-6)


def test_without_standardize_the_map_is_the_identity():
    found = prepare(numbered(5))
    assert found.preprocessing.is_identity
    assert found.preprocessing.mean.shape == (2,)
    x = np.arange(4)
    assert found.preprocessing.apply(x) is x


def test_the_map_survives_json_and_is_applied_to_other_data():
    found = prepare(numbered(40), split=THREE, standardize=True, dtype="float64")
    stored = Preprocessing.from_json(json.loads(json.dumps(found.preprocessing.to_json())))
    np.testing.assert_array_equal(stored.mean, found.preprocessing.mean)
    np.testing.assert_array_equal(stored.scale, found.preprocessing.scale)
    other = prepare(numbered(9), preprocessing=stored, dtype="float64").train.arrays[0]
    np.testing.assert_array_equal(other, stored.apply(numbered(9).arrays[0]))
    with pytest.raises(DataError, match=r"inputs have \(3,\) features a row, but the stored"):
        prepare(numbered(9, features=3), preprocessing=stored)


# Types, shapes and what a model is told -------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", np.float64])
def test_floats_get_the_dtype_and_integers_int64(dtype):
    floats = [np.ones((3, 2), t) for t in (np.float16, np.float32, np.float64, ">f8")]
    whole = [np.ones((3, 2), t) for t in (bool, np.uint8, np.int32, ">i8", np.uint64)]
    found = prepare((*floats, *whole), dtype=dtype)
    kinds = [array.dtype for array in found.train.arrays]
    assert kinds == [np.dtype(dtype)] * 4 + [np.dtype(np.int64)] * 5


def test_one_dimensional_floats_become_columns_so_that_no_loss_broadcasts():
    found = prepare((np.arange(4.0), np.arange(4.0)))
    assert [array.shape for array in found.train.arrays] == [(4, 1), (4, 1)]
    assert (found.in_features, found.out_features, found.classes) == (1, 1, None)


@pytest.mark.parametrize(
    "arrays, in_features, out_features, classes",
    [
        ((np.ones((9, 5)), np.ones((9, 3))), 5, 3, None),
        ((np.ones((9, 5)), np.arange(9) % 3), 5, 3, ("0", "1", "2")),
        ((np.ones((9, 5)), np.arange(9) % 2 == 0), 5, 2, ("0", "1")),
        ((np.ones((9, 5)), np.ones((9, 3), int)), 5, 3, None),
        ((np.ones((9, 4, 4)), np.ones(9)), None, 1, None),
        ((np.arange(9), np.ones(9)), None, 1, None),
        ((np.ones((9, 5)), np.ones((9, 2)), np.ones(9)), None, 1, None),
        ((np.ones((9, 5)), np.ones((9, 2, 2))), 5, None, None),
    ],
)
def test_what_a_model_is_told(arrays, in_features, out_features, classes):
    found = prepare(arrays)
    assert (found.in_features, found.out_features) == (in_features, out_features)
    assert found.classes == classes


def test_names_and_truth_reach_every_part():
    data = ArrayDataset(
        np.ones((10, 1)), np.arange(10) % 2, feature_names=["a"], classes=["no", "yes"], truth={}
    )
    found = prepare(data, split=THREE)
    assert found.classes == ("no", "yes")
    for part in (found.train, found.val, found.test):
        assert part.feature_names == ("a",)
        assert part.classes == ("no", "yes")
        assert part.truth == {}


# What is refused ------------------------------------------------------------------------------

GOOD = np.ones((4, 2))


def with_value(value, at, shape=(4, 2)):
    array = np.zeros(shape)
    array[at] = value
    return array


@pytest.mark.parametrize(
    "data, message",
    [
        (None, "my:load returned nothing; expected arrays (inputs..., target) or an ArrayDataset"),
        (GOOD, "my:load returned an ndarray; expected arrays"),
        ({"x": GOOD}, "my:load returned a dict; expected arrays"),
        ((GOOD,), "my:load: rows have 1 arrays; expected at least an input and a target"),
        ((), "my:load: ArrayDataset needs at least one array"),
        ((GOOD, [1, 2, 3, 4]), "my:load: ArrayDataset: argument 1 is a list"),
        ((GOOD, np.ones(3)), "my:load: ArrayDataset: arrays have different numbers of rows"),
        ((GOOD[:0], np.ones(0)), "my:load: the data set is empty; its arrays are float64 (0, 2)"),
        ((GOOD[:, :0], np.ones(4)), "an array has no columns; its arrays are float64 (4, 0)"),
        ((with_value(np.nan, (2, 1)), np.ones(4)), "input at row 2, column 1 is nan, expected"),
        ((with_value(np.inf, (slice(1, 3), 0)), np.ones(4)), "input at row 1, column 0 is inf, "
         "expected a finite number\nhint: rows count from 0"),
        ((GOOD, with_value(-np.inf, 3, (4,))), "target at row 3 is -inf"),
        ((GOOD, with_value(np.nan, (3, 0, 1), (4, 2, 2)), GOOD),
         "input 1 at row 3, column (0, 1) is nan"),
        (ArrayDataset(with_value(np.nan, (0, 1)), np.ones(4), feature_names=["age", "bmi"]),
         'input at row 0, column "bmi" is nan'),
        ((GOOD, np.array([0, 1, -1, 0])), "the target holds integers from -1 to 1 in 4 rows"),
        ((GOOD, np.array([1999, 2001, 2002, 2003])), "floats are values to regress on\nhint: "),
        ((GOOD * 1e39, np.ones(4)), "values up to 1e+39 do not fit float32; rescale the data"),
        ((GOOD, np.full((4, 1), 2**63, np.uint64)), "the integer 9223372036854775808 does not fit"),
    ],
)  # fmt: skip
def test_what_is_no_data(data, message):
    with pytest.raises(DataError) as caught:
        prepare(data, origin="my:load")
    assert message in str(caught.value)
    assert str(caught.value).startswith("my:load")


def test_several_inputs_pass_through_the_identity_again():
    found = prepare((GOOD, GOOD, GOOD))
    again = prepare((GOOD, GOOD, GOOD), preprocessing=found.preprocessing)
    assert len(again.train.arrays) == 3


def test_standardizing_several_inputs_or_values_beyond_floats():
    with pytest.raises(ConfigError, match="one input array, this data has 2"):
        prepare((GOOD, GOOD, GOOD), standardize=True)
    x = np.array([[1e308], [-1e308]])
    with pytest.raises(DataError, match="too large to standardize"):
        prepare((x, x), standardize=True, dtype="float64")


def test_weights_are_cut_with_the_rows_and_cast():
    x, y, weights = np.ones((10, 2)), np.arange(10.0), np.arange(10.0)
    data = ArrayDataset(x, y, weights=weights)
    parts = prepare(data, split={"train": 0.7, "val": 0.3}, seed=3)
    for part in (parts.train, parts.val):
        assert part.weights.dtype == np.float32
        assert part.target.shape == (len(part), 1)
        np.testing.assert_array_equal(part.weights, part.target[:, 0])
