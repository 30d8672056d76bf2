"""Tables as people have them: columns of all kinds become numbers by the training part alone."""

import contextlib
import json
import sys
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microtrain.data import ArrayDataset, Column, Encoder, Table, csv, parquet, prepare
from microtrain.data.preparation.match_schema import match_schema
from microtrain.data.tables.columns import texts
from microtrain.data.tables.frame import Frame
from microtrain.data.tables.notation import Notation
from microtrain.errors import ConfigError, DataError

preprocessing = pytest.importorskip("sklearn.preprocessing")
impute = pytest.importorskip("sklearn.impute")


def table(columns, specs, **options):
    rows = len(next(iter(columns.values())))
    columns = {**columns, "y": np.arange(float(rows))}
    return Table(columns, "y", specs, **options)


def encoded(columns, specs, rows=slice(None), **options):
    """Inputs, scaled as a run does, of a table fitted to `rows`."""
    made = table(columns, specs)
    encoder, scaling = made.fit(rows, **options)
    x, *codes = encoder.encode(made.frame)
    return encoder.feature_names, scaling.apply(x), codes


# Kinds of columns -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "spec", "names", "expected"),
    [
        ([1, 2, 3], "number", ["c"], [[1], [2], [3]]),
        (["b", "a", "b"], "category", ["c=a", "c=b"], [[0, 1], [1, 0], [0, 1]]),
        (["b", None, "b"], {"type": "category", "missing": "none"}, ["c=b", "c=none"],
         [[1, 0], [0, 1], [1, 0]]),
        (["b", "", "b"], {"type": "category", "missing": "most_frequent"}, ["c=b"],
         [[1], [1], [1]]),
        ([1.0, np.nan, 5.0], {"missing": "mean"}, ["c"], [[1], [3], [5]]),
        ([1.0, None, 2.0, 9.0], {"missing": "median"}, ["c"], [[1], [2], [2], [9]]),
        ([1.0, None, 1.0, 9.0], {"missing": "most_frequent"}, ["c"], [[1], [1], [1], [9]]),
        ([1.0, None], {"missing": -1, "indicator": True}, ["c", "c missing"], [[1, 0], [-1, 1]]),
        (["1970-01-02", "1970-01-01T12:00"], {"type": "date", "scale": "none"}, ["c"],
         [[1], [0.5]]),
        ([date(1970, 1, 3), datetime(1969, 12, 31)], {"type": "date", "scale": "none"}, ["c"],
         [[2], [-1]]),
        (np.array(["1970-01-02", "NaT"], "datetime64[D]"),
         {"type": "date", "scale": "none", "missing": "1970-01-05"}, ["c"], [[1], [4]]),
        (["31/01/1970"], {"type": "date", "scale": "none", "format": "%d/%m/%Y"}, ["c"], [[30]]),
        (["1970-01-01T02:00+02:00"], {"type": "date", "scale": "none"}, ["c"], [[0]]),
        (["1970-01-02", "1970-01-04"], "date", ["c"], [[-1], [1]]),
        ([0.0, 5.0, 10.0], {"scale": "minmax"}, ["c"], [[0], [0.5], [1]]),
        ([0.0, 1.0, 2.0, 3.0, 100.0], {"scale": "robust"}, ["c"],
         [[-1], [-0.5], [0], [0.5], [49]]),
        ([1.0, 3.0], {"scale": "standard"}, ["c"], [[-1], [1]]),
        (np.array([1.0, np.nan, 2.0]), {"type": "category", "missing": "none"},
         ["c=1", "c=2", "c=none"], [[1, 0, 0], [0, 0, 1], [0, 1, 0]]),
    ],
)  # fmt: skip
def test_kinds_of_columns(cells, spec, names, expected):
    got, x, _ = encoded({"c": cells}, {"c": spec})
    assert list(got) == names
    np.testing.assert_allclose(x, expected, rtol=1e-15, atol=1e-15)


def test_texts_of_a_file_without_a_value_are_missing(tmp_path):
    cells = ["1", "", "NA", "n/a", "NaN", "null", "?", "3"]
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))
    made = csv(path, "y", columns={"a": {"missing": "mean"}})
    encoder, _ = made.fit()
    assert encoder.encode(made.frame)[0][:, 0].tolist() == [1, 2, 2, 2, 2, 2, 2, 3]
    with pytest.raises(DataError, match=r'line 3, column "a": expected a number, found an empty'):
        csv(path, "y")


def test_columns_that_do_not_say_are_filled(tmp_path):
    path, new = tmp_path / "t.csv", tmp_path / "new.csv"
    path.write_text("a,d,c,s,y\n1,2024-01-01,u,1,1\n2,2024-01-02,v,1,2\n9,2024-01-09,v,1,3\n")
    new.write_text("a,d,c,s,y\n,,,,1\n")
    columns = {"d": {"type": "date", "scale": "none"}, "c": "category", "s": {"missing": 7}}
    encoder, _ = csv(path, "y", columns=columns, missing="fill").fit()
    rows = csv(new, "y", columns=columns, missing="fill")
    assert encoder.encode(rows.frame, lambda _: None)[0].tolist() == [[2, 19724, 0, 0, 7]]
    encoder, _ = csv(path, "y", columns=columns).fit()
    with pytest.raises(DataError, match='column "a": expected a number, found an empty cell'):
        encoder.encode(rows.frame)
    assert csv(path, "y", features=["a"], missing="fill").fit()[0].feature_names == ("a",)


@pytest.mark.parametrize(
    ("cells", "gap"),
    [
        (["a", "", "b"], "none"),
        (["none", "", "b"], "missing"),
        (["None", "", "Missing"], "missing 2"),
        (["a", "", "none"], "missing"),  # of a row that is not trained on
    ],
)
def test_gaps_that_are_filled_are_no_real_category(cells, gap):
    columns = {"c": cells, "y": [0.5, 1.5, 2.5]}
    made = Table(columns, "y", columns={"c": "category"}, missing="fill")
    encoder, _ = made.fit(slice(0, 2))
    assert encoder.columns[0].fill == gap
    assert encoder.columns[0].categories == tuple(sorted([cells[0], gap]))
    x = encoder.encode(made.frame)[0]
    assert x[1].tolist() == [each == gap for each in encoder.columns[0].categories]


def test_standardize_is_for_numbers_and_dates_that_do_not_say_how():
    columns = {
        "n": [1.0, 3.0], "m": [1.0, 3.0], "d": ["1970-01-02", "1970-01-04"], "c": ["a", "b"],
    }  # fmt: skip
    names, x, _ = encoded(
        columns, {"m": {"scale": "none"}, "d": "date", "c": "category"}, standardize=True
    )
    assert names == ("n", "m", "d", "c=a", "c=b")
    assert x.tolist() == [[-1, 1, -1, 1, 0], [1, 3, 1, 0, 1]]


def test_embedded_columns_are_codes_of_their_own():
    columns = {"plan": ["b", "a", "b"], "size": [1.0, 2.0, 3.0], "town": ["x", "y", "z"]}
    embedding = {"type": "category", "encode": "embedding"}
    names, x, codes = encoded(columns, {"plan": embedding, "town": embedding})
    assert names == ("size",)
    assert x.tolist() == [[1], [2], [3]]
    assert codes[0].tolist() == [[2, 1], [1, 2], [2, 3]]
    made = table({"plan": ["b", "a", "b"]}, {"plan": embedding})
    encoder, _ = made.fit()
    assert encoder.categories == (3,)
    assert encoder.in_features == 0
    assert [each.tolist() for each in encoder.encode(made.frame)] == [[[2], [1], [2]]]


# Only the training part -------------------------------------------------------------------------


def test_no_table_needs_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    columns = {"n": [1.0, np.nan, 2.0, 9.0], "c": ["a", "", "b", "b"]}
    specs = {
        "n": {"missing": "median", "scale": "robust"},
        "c": {"type": "category", "missing": "most_frequent"},
    }
    assert encoded(columns, specs)[1][1].tolist() == [0, 0, 1]


def test_all_that_is_fitted_comes_from_the_training_rows():
    columns = {
        "n": [1.0, 3.0, 1000.0, np.nan], "c": ["a", "b", "z", "a"], "s": [0.0, 2.0, 9.0, 9.0],
    }  # fmt: skip
    specs = {"n": {"missing": "mean"}, "c": "category", "s": {"scale": "standard"}}
    names, x, _ = encoded(columns, specs, slice(0, 2))
    assert names == ("n", "c=a", "c=b", "s")
    assert x.tolist() == [[1, 1, 0, -1], [3, 0, 1, 1], [1000, 0, 0, 8], [2, 1, 0, 8]]


cells = st.lists(
    st.tuples(
        st.one_of(st.none(), st.floats(-1e6, 1e6)),
        st.sampled_from(["", "a", "b", "c", "long name"]),
    ),
    min_size=4,
    max_size=40,
)


@given(rows=cells, statistic=st.sampled_from(["mean", "median", "most_frequent"]))
def test_as_scikit_learn_does(rows, statistic):
    numbers, texts = zip(*rows, strict=True)
    numbers = np.array([np.nan if x is None else x for x in numbers])
    train = slice(0, len(rows) // 2)
    filled = {text for text in texts[train] if text}
    if np.isnan(numbers[train]).all() or not filled:
        return
    names, x, _ = encoded(
        {"n": numbers, "c": list(texts)},
        {"n": {"missing": statistic, "scale": "robust"},
         "c": {"type": "category", "missing": "most_frequent"}},
        train,
    )  # fmt: skip
    imputer = impute.SimpleImputer(strategy=statistic).fit(numbers[train, None])
    complete = imputer.transform(numbers[:, None])
    scaler = preprocessing.RobustScaler().fit(complete[train])
    np.testing.assert_allclose(x[:, :1], scaler.transform(complete), rtol=1e-12, atol=1e-12)
    words = np.array(texts, object)[:, None]
    words = (
        impute.SimpleImputer(missing_values="", strategy="most_frequent")
        .fit(words[train])
        .transform(words)
    )
    hot = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    assert x[:, 1:].tolist() == hot.fit(words[train]).transform(words).tolist()
    assert list(names[1:]) == [f"c={each}" for each in hot.categories_[0]]


def test_what_was_fitted_survives_json_to_the_last_bit():
    rng = np.random.default_rng(0)
    columns = {
        "n": rng.standard_normal(50), "c": rng.choice(["ü", "b,", '"'], 50),
        "d": rng.integers(0, 9999, 50).astype("datetime64[D]"),
    }  # fmt: skip
    columns["n"][::7] = np.nan
    specs = {"n": {"missing": "mean", "indicator": True}, "c": "category", "d": "date"}
    made = table(columns, specs)
    encoder, _ = made.fit(standardize=True)
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    assert again == encoder
    np.testing.assert_array_equal(again.encode(made.frame)[0], encoder.encode(made.frame)[0])


# Categories that the training part does not have --------------------------------------------------


def test_an_unknown_category_is_none_of_them_and_is_told():
    made = table({"c": ["a", "b"], "e": ["x", "y"]}, {
        "c": "category", "e": {"type": "category", "encode": "embedding"},
    })  # fmt: skip
    encoder, _ = made.fit()
    notes = []
    new = Frame("new.csv", ["c", "e"], [["b", "q", "q"], ["x", "x", "new"]])
    x, codes = encoder.encode(new, notes.append)
    assert x.tolist() == [[0, 1], [0, 0], [0, 0]]
    assert codes.tolist() == [[1], [1], [0]]
    assert notes == [
        'column "c": 2 rows with categories not seen in training: "q"; treated as unknown '
        "(seen: a, b)",
        'column "e": 1 row with categories not seen in training: "new"; treated as unknown '
        "(seen: x, y)",
    ]


def test_many_unknown_categories_are_told_by_the_first_three_in_order():
    encoder, _ = table({"c": ["a", "b"]}, {"c": "category"}).fit()
    notes = []
    cells = [f"q{i % 1002}" for i in range(1200, 0, -1)]
    encoder.encode(Frame("new.csv", ["c"], [["b", *cells]]), notes.append)
    assert notes == [
        'column "c": 1,200 rows with categories not seen in training: "q0", "q1", "q10" and 999 '
        "more; treated as unknown (seen: a, b)"
    ]


def test_an_unknown_category_is_refused_if_so_asked():
    made = table({"c": ["a", "b"]}, {"c": {"type": "category", "unknown": "error"}})
    encoder, _ = made.fit()
    with pytest.raises(DataError, match=r'row 1, column "c": expected one of a, b, found the text'):
        encoder.encode(Frame("new.csv", ["c"], [["b", "q"]]))


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("catgory", 'there is no type "catgory"; did you mean category?'),
        ({"missing": "medain"}, 'got "medain"; did you mean median?'),
        ({"type": "category", "missing": "mean"}, "categories have no mean"),
        ({"type": "category", "missing": 3}, "missing stands for a category: expected a text"),
        ({"type": "category", "scale": "minmax"}, "scale does not apply to a category"),
        ({"encode": "embedding"}, "encode does not apply to a number"),
        ({"type": "id", "missing": "x"}, "missing does not apply to a id: nothing more"),
        ({"type": "date", "missing": 3.0}, "missing: expected a date as text, got 3.0"),
        ({"type": "date", "missing": "soon"}, 'or a date, got "soon"'),
        ({"indicator": True}, "indicator needs missing"),
        ({"fill": 3}, "got an unexpected keyword argument 'fill'"),
        ({"type": "Category"}, 'there is no type "Category"; did you mean category?'),
        ({"scale": "standrad"}, 'there is no scale "standrad"; did you mean standard?'),
        ({"type": "category", "encode": "onehot"}, 'there is no encode "onehot"'),
        ({"type": "category", "unknown": "refuse"}, 'there is no unknown "refuse"'),
        ({"missing": 1, "indicator": "no"}, "indicator: expected true or false, got 'no'"),
        ({"missing": [1]}, "missing: expected a number or a text, got [1]"),
        ({"missing": float("nan")}, "missing: expected a number or a text, got nan"),
        (None, "expected number, category, date, id or a dict, got None"),
    ],
)
def test_specifications_that_cannot_be(spec, message):
    with pytest.raises(ConfigError) as caught:
        table({"c": [1.0, 2.0]}, {"c": spec})
    assert str(caught.value).startswith("columns:\n  c: ")
    assert message in str(caught.value)


def test_every_bad_column_is_named_with_the_line_to_write(tmp_path):
    path = tmp_path / "t.csv"
    plans = ["Basic", "Pro"] * 10
    lines = [
        f"C{i:03},{plan},2024-01-{i + 1:02},{'' if i == 4 else i},{i % 7},same,{i}"
        for i, plan in enumerate(plans)
    ]
    path.write_text("\n".join(["key,plan,since,age,visits,const,y", *lines]) + "\n")
    with pytest.raises(DataError) as caught:
        csv(path, "y")
    assert str(caught.value).splitlines() == [
        f"{path}: 5 columns cannot be read",
        '  line 2, column "key": expected a number, found the text "C000" (19 more in this column)',
        '  line 2, column "plan": expected a number, found the text "Basic" (19 more in this '
        "column)",
        '  line 2, column "since": expected a number, found the text "2024-01-01" (19 more in this '
        "column)",
        '  line 6, column "age": expected a number, found an empty cell',
        '  line 2, column "const": expected a number, found the text "same" (19 more in this '
        "column)",
        "hint: correct the cells, or say under data what they are",
        "columns:",
        "  key: id",
        "  plan: category",
        "  since: {type: date, parts: [day_of_week, days]}",
        "  age: {missing: median}",
        "drop: [const]",
    ]
    specs = {"key": "id", "plan": "category", "since": "date", "age": {"missing": "median"}}
    made = csv(path, "y", columns=specs, drop=["const"])
    assert made.fit()[0].feature_names == ("plan=Basic", "plan=Pro", "since", "age", "visits")
    assert made.ids == ("key",)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"columns": {"agee": "category"}}, DataError, 'has no column "agee"; did you mean age?'),
        ({"drop": ["plan", "nothing"]}, DataError, 'has no column "nothing"'),
        ({"drop": ["y"]}, ConfigError, "the target 'y' is also in drop"),
        ({"columns": {"plan": "category"}, "drop": ["plan"]}, ConfigError, "plan in drop and used"),
        ({"columns": {"plan": "category"}, "features": ["age"]}, ConfigError,
         "plan in columns, but not in features"),
        ({"weight": "y"}, ConfigError, "the target 'y' is also in weight"),
        ({"columns": {"plan": "id", "age": "id"}}, DataError, "has no column beside the target"),
    ],
)  # fmt: skip
def test_names_that_do_not_go_together(options, error, message):
    with pytest.raises(error) as caught:
        table({"plan": ["a", "b"], "age": [1.0, 2.0]}, options.pop("columns", None), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "spec", "message"),
    [
        (["2024-13-01"], "date", "expected a date such as 2024-12-31 or 2024-12-31T23:59, found"),
        (["20241231"], "date", "expected a date"),
        (["1/2/24"], {"type": "date", "format": "%d/%m/%Y"}, "expected a date such as %d/%m/%Y"),
        (["", "2024-01-01"], "date", "expected a date, found an empty cell"),
        (["", "a"], "category", "expected a category, found an empty cell"),
        ([np.inf, 1.0], {"missing": "mean"}, "expected a number, found"),
        ([None, None], {"missing": "mean"}, "no training row has a value"),
        ([str(i) for i in range(1001)], "category", "1,001 categories would be as many inputs"),
        (["x", None], {"missing": "mean"}, 'expected a number, found the text "x"'),
        ([1e308, -1e308], {"scale": "robust"}, "too large to scale"),
        ([1e308, -1e308], {"scale": "minmax"}, "too large to scale"),
    ],
)
def test_cells_that_are_not_what_the_column_holds(cells, spec, message):
    with pytest.raises(DataError) as caught:
        encoded({"c": cells}, {"c": spec})
    assert message in str(caught.value)


def test_a_table_is_made_of_named_columns():
    with pytest.raises(ConfigError, match="expected named columns, such as a dict, got a list"):
        Table([1, 2], "y")


# Weights, splits, and parts of their own ----------------------------------------------------------


def test_a_mask_is_not_lost():
    masked = np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False])
    with pytest.raises(DataError, match=r'the table, column "a" is a masked array, .*filled'):
        Table({"a": masked, "y": [1.0, 2.0, 3.0]}, target="y")


def test_weights_come_from_a_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,w,y\n1,2,5\n3,0.5,7\n")
    data = csv(path, "y", weight="w")
    assert isinstance(data, ArrayDataset)
    assert data.feature_names == ("a",)
    assert data.weights.tolist() == [2, 0.5]
    path.write_text("a,w,y\n1,2,5\n3,-0.5,7\n")
    with pytest.raises(DataError, match=r'line 3, column "w": expected a weight of at least 0'):
        csv(path, "y", weight="w")
    path.write_text("a,w,y\n1,0,5\n3,0,7\n")
    with pytest.raises(DataError, match="weights of all training rows are 0"):
        prepare(csv(path, "y", weight="w"))


def test_texts_of_a_cell_do_not_depend_on_the_others():
    made = table({"c": [1.0, 2.0, None, 1.0]}, {"c": {"type": "category", "missing": "none"}})
    encoder, _ = made.fit()
    assert encoder.feature_names == ("c=1", "c=2", "c=none")
    (x,) = encoder.encode(Frame("t", ["c"], [np.array([2.0, 2.5])]))
    assert x.tolist() == [[0, 1, 0], [0, 0, 0]]
    (x,) = encoder.encode(Frame("t", ["c"], [np.array([Decimal("1"), "2"], object)]))
    assert x.tolist() == [[1, 0, 0], [0, 1, 0]]


KINDS = {  # the same values as a CSV file has them, and of other types
    "whole": (["1", "2", "1"], [[1, 2, 1], [1.0, 2.0, 1.0], np.float32([1, 2, 1])]),
    "whole, of floats": (["1.0", "2.0", "1.0"], [[1, 2, 1], [1.0, 2.0, 1.0]]),
    "short": (["0.1", "2.5", "0.1"], [[0.1, 2.5, 0.1], np.float32([0.1, 2.5, 0.1])]),
    "truths": (["True", "False", "True"], [[True, False, True]]),
    "truths of Arrow": (["true", "false", "true"], [[True, False, True]]),
    "days": (
        ["2024-01-01", "2024-12-31", "2024-01-01"],
        [[date(2024, 1, 1), date(2024, 12, 31), date(2024, 1, 1)],
         np.array(["2024-01-01", "2024-12-31", "2024-01-01"], "datetime64[ns]"),
         ["2024-01-01 00:00:00", "2024-12-31T00:00", "2024-01-01 00:00:00"]],
    ),
    "times": (
        ["2024-01-01T12:30", "2024-01-01 00:00:00", "2024-01-01T12:30"],
        [np.array(["2024-01-01T12:30", "2024-01-01", "2024-01-01T12:30"], "datetime64[us]")],
    ),
    "bytes": (["a", "é", "a"], [[b"a", "é".encode(), b"a"], ["a", "é", "a"]]),
    "decimals": (["1.50", "2.25", "1.50"], [[Decimal("1.50"), Decimal("2.25"), Decimal("1.50")]]),
    "no numbers": (["007", "01", "007"], [["007", "01", "007"]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_the_same_category_in_every_kind_of_file(tmp_path, kind):
    cells, others = KINDS[kind]
    path = tmp_path / "t.csv"
    path.write_text("c,y\n" + "".join(f"{cell},1\n" for cell in cells), encoding="utf-8")
    specs = {"c": {"type": "category", "unknown": "error"}}
    frames = [csv(path, "y", columns=specs).frame]
    frames += [Frame("memory", ["c"], [np.array(column)]) for column in others]
    with contextlib.suppress(ImportError):
        import pyarrow
        from pyarrow.parquet import write_table

        for column in others:
            write_table(pyarrow.table({"c": column, "y": [1.0] * 3}), tmp_path / "t.parquet")
            frames.append(parquet(tmp_path / "t.parquet", "y", columns=specs).frame)
    for one in frames:
        made = Table({"c": one.column("c"), "z": [0.0] * 3}, "z", specs)
        encoder = made.encoder()
        codes = {tuple(encoder.encode(other)[0][:, 0]) for other in frames}
        assert codes in ({(1.0, 0.0, 1.0)}, {(0.0, 1.0, 0.0)})
        with pytest.raises(DataError, match="expected one of"):
            encoder.encode(Frame("new", ["c"], [["0" + cells[0], "1", "7"]]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_the_same_class_in_every_kind_of_file(tmp_path, kind):
    cells, others = KINDS[kind]
    if kind in ("short", "decimals"):
        pytest.skip("fractions are no classes")
    path = tmp_path / "t.csv"
    path.write_text("c,x\n" + "".join(f"{cell},1\n" for cell in cells), encoding="utf-8")
    data = csv(path, "c", categorical=True)
    for column in others:
        other = Table({"c": np.array(column), "x": [1.0] * 3}, "c", categorical=True)
        names = [other.classes[code] for code in other.target]
        same = match_schema(
            ArrayDataset(np.ones((3, 1)), other.target, classes=other.classes), data, "t"
        )
        codes = same.read(slice(0, 3))[1]
        assert codes.tolist() == data.target.tolist(), (names, data.classes)


def test_two_spellings_of_a_number_are_two_categories():
    made = table({"c": ["1", "01", "1.0", "1e0"]}, {"c": {"type": "category", "unknown": "error"}})
    encoder, _ = made.fit()
    assert encoder.feature_names == ("c=01", "c=1", "c=1.0", "c=1e0")
    assert encoder.encode(made.frame)[0].argmax(axis=1).tolist() == [1, 0, 2, 3]
    with pytest.raises(DataError, match="expected one of"):  # 1 or 1.0?
        encoder.encode(Frame("t", ["c"], [["1.00"]]))


def test_dates_as_texts_are_dates_whatever_their_unit():
    nanoseconds = np.array(["2024-01-02T03:04", "NaT"], "datetime64[ns]")
    cells = texts(Frame("t", ["d"], [nanoseconds]), "d", Column(type="id"))
    assert cells == ["2024-01-02 03:04:00", ""]


def test_the_first_and_last_dates_have_time_zones():
    cells = ["0001-01-01T00:00+02:00", "9999-12-31T23:59-12:00", "1970-01-01T12:00+12:00"]
    assert encoded({"c": cells}, {"c": {"type": "date", "scale": "none"}})[1].tolist() == [
        [-719162 - 2 / 24], [2932896 + 1439 / 1440 + 0.5], [0.0],
    ]  # fmt: skip


def test_large_whole_numbers_of_parquet_keep_their_digits_beside_gaps(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    large = 2**53 + 1
    prices = pyarrow.array([Decimal("1.50"), Decimal("2.25")], pyarrow.decimal128(9, 2))
    content = {"key": [large, None], "n": [7, None], "price": prices, "y": [1.0, 2.0]}
    write_table(pyarrow.table(content), tmp_path / "t.parquet")
    columns = {"key": "id", "n": {"missing": 3}}
    made = parquet(tmp_path / "t.parquet", "y", columns=columns)
    for frame in (made.frame, Frame.of(pyarrow.table(content))):
        assert texts(frame, "key", Column(type="id")) == [str(large), ""]
    assert made.fit()[0].encode(made.frame)[0].tolist() == [[7.0, 1.5], [3.0, 2.25]]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"time": "plan"}, 'column "plan": expected a number, found the text "a"'),
        ({"time": "since"}, 'row 2, column "since": expected a date, found an empty cell'),
    ],
)
def test_rows_without_an_order_are_not_split_by_time(split, message):
    columns = {
        "plan": ["a", "b"] * 4,
        "since": ["2024-01-01", "2024-01-02", ""] + ["2024-02-01"] * 5,
    }
    specs = {
        "plan": {"type": "category", "encode": "embedding"},
        "since": {"type": "date", "missing": "median"},
    }
    with pytest.raises(DataError) as caught:
        prepare(table(columns, specs), split={"train": 0.5, "test": 0.5}, **split)
    assert message in str(caught.value)


def test_a_column_that_is_no_input_splits_where_it_is_named():
    arrays = ArrayDataset(np.ones((4, 1)), np.ones((4, 1)), feature_names=["a"])
    with pytest.raises(ConfigError, match=r"data\.columns, such as columns: \{since: date\}"):
        prepare(arrays, split={"train": 0.5, "test": 0.5}, time="since")


def test_parquet_has_columns_of_all_kinds(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    columns = {
        "plan": pa.array(["a", None, "b", "a"]).dictionary_encode(),
        "since": pa.array([date(1970, 1, 2), None, date(1970, 1, 4), date(1970, 1, 5)]),
        "age": pa.array([1, None, 3, 8]),
        "ok": pa.array([True, False, True, True]),
        "y": pa.array([0, 1, 0, 1]),
    }
    writer.write_table(pa.table(columns), tmp_path / "t.parquet")
    specs = {
        "plan": {"type": "category", "missing": "none"}, "since": {"type": "date",
        "missing": "median"}, "age": {"missing": "mean"}, "ok": "category",
    }  # fmt: skip
    made = parquet(tmp_path / "t.parquet", "y", columns=specs, categorical=True)
    encoder, _ = made.fit()
    assert made.classes == ("0", "1")
    assert encoder.encode(made.frame)[0].tolist() == [
        [1, 0, 0, 1, 1, 0, 1], [0, 0, 1, 3, 4, 1, 0], [0, 1, 0, 3, 3, 0, 1], [1, 0, 0, 4, 8, 0, 1]
    ]  # fmt: skip
    in_memory = encoder.encode(Frame.of(pa.table(columns)))[0]
    np.testing.assert_array_equal(in_memory, encoder.encode(made.frame)[0])


def test_large_whole_numbers_of_pandas_keep_their_digits_beside_gaps():
    pandas = pytest.importorskip("pandas")
    large = 2**53 + 1
    keys = [pandas.array([large, None], dtype="Int64"), pandas.Categorical([large, None])]
    for key in keys:
        frame = Frame.of(pandas.DataFrame({"key": key, "y": [1.0, 2.0]}))
        assert texts(frame, "key", Column(type="id")) == [str(large), ""]


def test_words_and_targets_that_are_absent_from_a_parquet_file(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    columns = {"a": [1, -99, 3, 4], "b": ["x", "none", "x", "y"], "y": [1.5, 2.5, None, 3.5]}
    writer.write_table(pa.table(columns), tmp_path / "t.parquet")
    specs = {"a": {"missing": 0.0}, "b": {"type": "category", "missing": "other"}}
    keys = {"na_values": [-99, "NONE"], "missing_target": "drop"}
    made = parquet(tmp_path / "t.parquet", "y", columns=specs, **keys)
    encoder, _ = made.fit()
    assert encoder.feature_names == ("a", "b=other", "b=x", "b=y")
    x, y = made.arrays(encoder).arrays
    assert x.tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [4, 0, 0, 1]]
    assert y[:, 0].tolist() == [1.5, 2.5, 3.5]
    with pytest.raises(ConfigError, match="for rows in memory"):
        parquet(tmp_path / "t.parquet", "y", in_memory=False, **keys)


@pytest.mark.parametrize(
    "cells",
    [
        np.array([1.5, -99.9, np.nan]),
        np.array([1.5, -99.9, np.nan], np.float32),
        np.array([1.5, -99.9, None], object),
        np.array([Decimal("1.5"), Decimal("-99.9"), None], object),
    ],
    ids=["float64", "float32", "objects", "decimals"],
)
def test_a_number_is_absent_whatever_the_type_of_its_column(cells):
    frame = Frame.of({"a": cells}, Notation(na_values=("-99.9",)))
    np.testing.assert_array_equal(frame.numbers("a", gaps=True), [1.5, np.nan, np.nan])
    assert frame.texts("a") == ["1.5", "", ""]


@pytest.mark.parametrize("kind", ["datetime64[D]", "datetime64[ns]"])
def test_a_date_is_absent_in_a_column_of_dates(kind):
    cells = np.array(["1900-01-01", "2024-01-02", "NaT"], kind)
    made = Table({"d": cells, "y": [1.0, 2.0, 3.0]}, "y", {"d": {"type": "date"}})
    frame = Frame.of({"d": cells}, Notation(na_values=("1900-01-01", "x", "20240102")))
    assert np.isnat(frame.column("d")).tolist() == [True, False, True]
    assert frame.texts("d") == ["", "2024-01-02", ""]
    assert made.frame.texts("d")[0] == "1900-01-01"


def test_a_date_becomes_its_parts():
    cells = ["2024-12-31T23:59", "1969-07-20T20:17", "2000-02-29", ""]
    parts = ["year", "month", "day_of_week", "hour", "days"]
    spec = {"type": "date", "parts": parts, "missing": "2001-01-01T06:00", "indicator": True}
    made = Table({"d": np.array(cells, object), "y": [0.5] * 4}, "y", {"d": spec})
    encoder, scaling = made.fit()
    names = list(encoder.feature_names)
    assert names[0] == "d year"
    assert names[-2:] == ["d days", "d missing"]
    assert len(names) == 1 + 12 + 7 + 24 + 1 + 1
    x, *_ = Encoder.from_json(json.loads(json.dumps(encoder.to_json()))).encode(made.frame)
    hot = [[names[i] for i in np.flatnonzero(row[1:-2]) + 1] for row in x]
    assert hot == [
        ["d month=12", "d day_of_week=1", "d hour=23"],
        ["d month=7", "d day_of_week=6", "d hour=20"],
        ["d month=2", "d day_of_week=1", "d hour=0"],
        ["d month=1", "d day_of_week=0", "d hour=6"],
    ]
    assert x[:, 0].tolist() == [2024, 1969, 2000, 2001]
    epoch = datetime(1970, 1, 1)
    days = [(datetime.fromisoformat(c) - epoch).total_seconds() / 86400 for c in cells[:3]]
    np.testing.assert_allclose(x[:3, -2], days, rtol=1e-14)
    assert x[:, -1].tolist() == [0, 0, 0, 1]
    # Numbers are standardized, as dates are; what is 0 or 1 stays.
    scaled = [name for name, scale in zip(names, scaling.scale, strict=True) if scale != 1]
    assert scaled == ["d year", "d days"]


@pytest.mark.parametrize("parts", [[], "month", ["week"], ["month", "month"]])
def test_parts_of_a_date_that_cannot_be(parts):
    with pytest.raises(ConfigError, match="parts: expected"):
        Table({"d": ["2024-01-01"], "y": [1.0]}, "y", {"d": {"type": "date", "parts": parts}})


def test_a_table_is_prepared_by_its_training_rows():
    rng = np.random.default_rng(1)
    columns = {
        "id": [f"r{i}" for i in range(60)], "plan": rng.choice(["a", "b"], 60),
        "x": rng.standard_normal(60), "left": rng.choice(["no", "yes"], 60),
    }  # fmt: skip
    made = Table(columns, "left", {"id": "id", "plan": "category"})
    split = {"train": 0.6, "val": 0.2, "test": 0.2}
    parts = prepare(made, split=split, standardize=True, dtype=np.float64)
    assert parts.in_features == 3
    assert parts.classes == ("no", "yes")
    assert parts.train.feature_names == ("plan=a", "plan=b", "x")
    np.testing.assert_allclose(parts.train.arrays[0][:, 2].mean(), 0, atol=1e-15)
    np.testing.assert_allclose(parts.train.arrays[0][:, 2].std(), 1)
    again = prepare(
        made, split=split, dtype=np.float64, preprocessing=parts.preprocessing,
        encoder=Encoder.from_json(json.loads(json.dumps(parts.encoder.to_json()))),
    )  # fmt: skip
    for one, other in zip(parts.test.arrays, again.test.arrays, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_part_of_its_own_is_read_by_the_names_of_columns_and_classes(tmp_path):
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("a,b,kind\n1,2,x\n3,4,y\n5,6,z\n")
    test.write_text("kind,b,a\nz,60,50\ny,40,30\n")
    parts = prepare(csv(train, "kind"), others={"test": csv(test, "kind")}, dtype=np.float64)
    assert parts.test.arrays[0].tolist() == [[50, 60], [30, 40]]
    assert parts.test.target.tolist() == [2, 1]
    assert len(parts.train) == 3
    test.write_text("kind,b,a\nzz,60,50\ny,40,30\n")
    with pytest.raises(DataError, match=r"have no class zz; did you mean z\?; they have x, y, z"):
        prepare(csv(train, "kind"), others={"test": csv(test, "kind")})
    test.write_text("kind,b,c\nz,60,50\ny,40,30\n")
    with pytest.raises(DataError, match='test has no column "a"'):
        prepare(csv(train, "kind"), others={"test": csv(test, "kind")})


def test_a_column_says_what_it_takes():
    assert Column(type="number", missing=0.0).missing == 0.0
    with pytest.raises(ValueError, match="format does not apply to a number: indicator, missing"):
        Column(format="%Y")


def test_one_long_cell_does_not_make_all_others_long() -> None:
    """Of fixed width they would take 80 GB."""
    cells = np.array(["x" * 10**6, *["a"] * 20_000], object)
    table = Table({"kind": cells, "y": np.arange(20_001.0)}, "y", {"kind": "category"})
    (x,) = table.arrays(table.encoder()).inputs
    assert x.sum(axis=0).tolist() == [20_000, 1]


LARGE = 2**53 + 1  # which is no float64


@pytest.mark.parametrize("first", [LARGE, -LARGE, 2**62 + 1])
@pytest.mark.parametrize("absent", [-99, LARGE + 1, 2**63 - 1])
def test_large_whole_numbers_keep_their_digits_beside_one_that_is_absent(first, absent):
    cells = np.array([first, absent, 5, LARGE])
    frame = Frame.of({"a": cells, "b": cells[::-1]}, Notation(na_values=(str(absent),)))
    assert frame.texts("a") == [str(first), "", "5", str(LARGE)]
    assert frame.texts("b") == frame.texts("a")[::-1]
    np.testing.assert_array_equal(frame.numbers("a", gaps=True), [first, np.nan, 5, LARGE])
    with pytest.raises(DataError, match="an empty cell"):
        frame.numbers("a")
    none = Frame.of({"a": cells[[0, 2]]}, Notation(na_values=(str(absent),)))
    assert none.column("a").dtype == np.int64 and none.texts("a") == [str(first), "5"]


def test_large_unsigned_numbers_keep_their_digits_beside_one_that_is_absent():
    cells = np.array([2**64 - 1, 2**64 - 2, 0], np.uint64)
    frame = Frame.of({"a": cells}, Notation(na_values=(str(2**64 - 1), "0.0")))
    assert frame.texts("a") == ["", str(2**64 - 2), ""]
