"""Which rows go where: by shares of the classes, by groups that stay together, by time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microtrain.data import ArrayDataset, Table, prepare
from microtrain.data.preparation.split import PartRows, split_rows, split_sizes
from microtrain.errors import ConfigError, DataError

THREE = {"train": 0.7, "val": 0.15, "test": 0.15}


@given(
    codes=st.lists(st.integers(0, 3), min_size=20, max_size=200),
    seed=st.integers(0, 5),
)
def test_every_part_has_its_share_of_every_class(codes, seed):
    strata = np.array(codes)
    parts = split_rows(len(strata), THREE, seed, "data", strata=strata)
    assert sorted(np.concatenate([*parts.values()])) == list(range(len(strata)))
    sizes = split_sizes(len(strata), THREE)
    assert {name: len(rows) for name, rows in parts.items()} == sizes
    for code, count in zip(*np.unique(strata, return_counts=True), strict=True):
        for name, rows in parts.items():
            share = count * sizes[name] / len(strata)
            assert abs((strata[rows] == code).sum() - share) <= len(set(codes))
            if len(set(codes)) <= 2:
                assert abs((strata[rows] == code).sum() - share) < 1.6


@given(
    units=st.lists(st.integers(0, 30), min_size=30, max_size=200),
    seed=st.integers(0, 5),
)
def test_groups_stay_together(units, seed):
    units = np.array(units)
    try:
        parts = split_rows(len(units), THREE, seed, "data", units=units)
    except DataError:  # too few groups
        assert len(set(units.tolist())) < 12
        return
    assert sorted(np.concatenate([*parts.values()])) == list(range(len(units)))
    of_parts = [set(units[rows].tolist()) for rows in parts.values()]
    assert not of_parts[0] & of_parts[1]
    assert not of_parts[1] & of_parts[2]
    assert not of_parts[0] & of_parts[2]
    largest = np.unique(units, return_counts=True)[1].max()
    for name, size in split_sizes(len(units), THREE).items():
        assert abs(len(parts[name]) - size) <= largest


def test_groups_are_drawn_by_the_seed():
    units = np.repeat(np.arange(20), 3)
    first, second = (
        split_rows(60, {"train": 0.5, "test": 0.5}, seed, "data", units=units) for seed in (0, 1)
    )
    assert first["test"].tolist() != second["test"].tolist()


def test_in_time_the_latest_rows_test():
    when = np.array([5.0, 1, 4, 2, 3, 3, 9, 8, 7, 6])
    parts = split_rows(10, {"train": 0.5, "val": 0.3, "test": 0.2}, 7, "data", units=when,
                       in_order=True)  # fmt: skip
    assert when[parts["train"]].max() < when[parts["val"]].min()
    assert when[parts["val"]].max() < when[parts["test"]].min()
    assert sorted(when[parts["test"]]) == [8, 9]


def test_one_group_cannot_be_two_parts():
    with pytest.raises(DataError, match=r"no rows are left for val and test: of 10 rows, 10 share"):
        split_rows(10, THREE | {"val": 0.15}, 0, "data", units=np.zeros(10))


def test_columns_say_how_to_split():
    rng = np.random.default_rng(0)
    days = rng.permutation(40)
    columns = {
        "who": [f"p{i % 8}" for i in range(40)], "when": days.astype("datetime64[D]"),
        "x": rng.standard_normal(40), "y": rng.choice(["a", "b"], 40, p=[0.75, 0.25]),
    }  # fmt: skip
    made = Table(columns, "y", {"who": "id", "when": "date"})
    half = {"train": 0.5, "test": 0.5}
    parts = prepare(made, split=half, time="when", dtype=np.float64)
    assert parts.train.arrays[0][:, 0].max() < parts.test.arrays[0][:, 0].min()
    grouped = prepare(made, split=half, group="who", dtype=np.float64)
    row = {x: i for i, x in enumerate(columns["x"])}
    who = [
        {columns["who"][row[x]] for x in part.arrays[0][:, 1]}
        for part in (grouped.train, grouped.test)
    ]
    assert len(who[0]) == len(who[1]) == 4
    assert not who[0] & who[1]
    stratified = prepare(made, split=half, stratify=True)
    assert abs(int(stratified.train.target.sum()) - int(stratified.test.target.sum())) <= 1


def test_arrays_are_split_by_a_named_column():
    x = np.arange(20.0).reshape(10, 2)[::-1]
    data = ArrayDataset(x, np.arange(10.0), feature_names=["a", "b"])
    parts = prepare(data, split={"train": 0.8, "test": 0.2}, time="b", dtype=np.float64)
    assert parts.test.arrays[0][:, 1].tolist() == [19, 17]


@pytest.mark.parametrize(
    ("way", "error", "message"),
    [
        (
            {"stratify": True},
            ConfigError,
            "split.stratify needs classes, but the target is numbers",
        ),
        ({"group": "c"}, ConfigError, 'split.group has no column "c"'),
        ({"time": "bb"}, ConfigError, 'split.time has no column "bb"; did you mean b?'),
        ({"group": "a", "time": "b"}, ConfigError, "one of stratify, group and time"),
    ],
)
def test_ways_that_the_data_do_not_allow(way, error, message):
    data = ArrayDataset(np.ones((10, 2)), np.arange(10.0), feature_names=["a", "b"])
    with pytest.raises(error) as caught:
        prepare(data, split={"train": 0.8, "test": 0.2}, **way)
    assert message in str(caught.value)


def test_a_text_is_no_time():
    table = Table({"who": ["a", "b"], "x": [1.0, 2.0], "y": [0.0, 1.0]}, "y", {"who": "id"})
    with pytest.raises(DataError, match='"who": expected a number, found the text "a"') as caught:
        prepare(table, split={"train": 0.5, "test": 0.5}, time="who")
    assert "split.time takes numbers, and dates such as 2024-12-31" in str(caught.value)


def test_a_row_without_a_group_is_refused():
    made = Table({"who": ["a", "", "b", "b"], "x": [1.0, 2.0, 3.0, 4.0], "y": [0.0, 1.0, 0.0, 1.0]},
                 "y", {"who": "id"})  # fmt: skip
    with pytest.raises(
        DataError, match=r'row 1, column "who": expected a category, found an empty'
    ):
        prepare(made, split={"train": 0.5, "test": 0.5}, group="who")


@pytest.mark.parametrize("how", ["at random", "by class", "by group"])
@given(codes=st.lists(st.integers(0, 9), min_size=30, max_size=200), folds=st.integers(2, 6))
def test_every_training_row_is_held_out_in_one_fold(how, codes, folds):
    values = np.array(codes)
    way = {"at random": {}, "by class": {"strata": values}, "by group": {"units": values}}[how]
    shares = {"train": 0.8, "test": 0.2}
    try:
        found = [
            split_rows(len(codes), shares, 1, "data", fold=(k, folds), **way) for k in range(folds)
        ]
    except DataError:  # too few groups
        assert how == "by group"
        return
    held_out = np.concatenate([parts["val"] for parts in found])
    assert sorted(np.concatenate([held_out, found[0]["test"]])) == [*range(len(codes))]
    for parts in found:
        assert np.array_equal(parts["test"], found[0]["test"])
        assert sorted(np.concatenate([*parts.values()])) == [*range(len(codes))]
        if how == "by group":
            assert not set(values[parts["val"]]) & set(values[parts["train"]])
        else:
            assert len(parts["val"]) - len(held_out) // folds in (0, 1)
        if how == "by class":
            for code in set(codes):
                share = (values[held_out] == code).sum() / folds
                assert abs((values[parts["val"]] == code).sum() - share) <= len(set(codes))


def test_folds_of_all_rows_without_a_test_part_and_of_more_than_a_table_holds(monkeypatch):
    monkeypatch.setattr("microtrain.data.preparation.split.TABLE", 10)
    found = [split_rows(50, None, 0, "data", fold=(k, 3)) for k in range(3)]
    assert sorted(np.concatenate([parts["val"] for parts in found])) == [*range(50)]
    with pytest.raises(DataError, match="60 folds of 50 training rows; take fewer"):
        split_rows(50, None, 0, "data", fold=(3, 60))


def test_prepare_standardizes_by_the_training_rows_of_a_fold():
    x = np.arange(30.0)[:, None]
    prepared = prepare((x, x[:, 0] * 2), fold=(1, 3), standardize=True, dtype=np.float64)
    assert (len(prepared.train), len(prepared.val)) == (20, 10)
    assert abs(prepared.train.arrays[0].mean()) < 1e-12
    with pytest.raises(ConfigError, match="folds or time, not both"):
        prepare((x, x[:, 0]), fold=(1, 3), time="x")


@pytest.mark.parametrize("kept", [True, False])
def test_row_numbers_of_a_table_are_those_worked_out(monkeypatch, kept):
    rows = 5000
    monkeypatch.setattr("microtrain.data.preparation.split.KEPT", rows - (not kept))
    part = PartRows(rows, {"train": 4500, "val": 500}, "train", 3)
    expected, positions = part[:], np.random.default_rng(0).permutation(4500)
    table = part.table(sort=False)
    np.testing.assert_array_equal(part.table(sort=True), np.sort(expected))
    assert isinstance(table, np.ndarray) == kept
    np.testing.assert_array_equal(table[positions], expected[positions])
    np.testing.assert_array_equal(table[7:40], expected[7:40])
    for wrong in (-1, 4500):
        with pytest.raises(IndexError, match="of an order of 4500 rows"):
            part[np.append(positions, wrong)]
