"""Data from csv and npz files: what is read, and that every defect is named where it is."""

import bz2
import gzip
import lzma
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtrain as mt
from microtrain.data import DataLoader, Table, csv, npz, parquet, prepare
from microtrain.data.readers import csv as csv_reader
from microtrain.data.readers.csv import read_csv
from microtrain.data.tables.frame import Frame
from microtrain.data.tables.table import Encoder
from microtrain.errors import ConfigError, DataError

IRIS = Path(__file__).parents[2] / "configs" / "data" / "iris.csv"


@pytest.fixture
def table(tmp_path):
    """Writes a csv file and reads it back: table(text, target=..., ...)."""

    def read(content, target="y", **options):
        path = tmp_path / "table.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return csv(path, target, **options)

    return read


# What is read ---------------------------------------------------------------------------------


def test_iris_in_the_repository_is_fishers():
    data = csv(IRIS, "species")
    x, y = data.arrays
    assert (x.shape, y.dtype) == ((150, 4), np.int64)
    assert data.classes == ("setosa", "versicolor", "virginica")
    np.testing.assert_array_equal(y, np.repeat([0, 1, 2], 50))
    np.testing.assert_allclose(x.mean(axis=0), [5.843333, 3.057333, 3.758, 1.199333], atol=1e-6)
    assert data.feature_names == ("sepal_length", "sepal_width", "petal_length", "petal_width")
    assert data.target_name == "species"


def test_iris_in_the_repository_is_that_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = datasets.load_iris()
    x, y = csv(IRIS, "species").arrays
    np.testing.assert_array_equal(x, bunch.data)
    np.testing.assert_array_equal(y, bunch.target)


def test_a_number_target_is_a_column_of_floats(table):
    data = table("a,y,b\n1,2,3\n-4e0, 5.5 ,6\n")
    x, y = data.arrays
    np.testing.assert_array_equal(x, [[1, 3], [-4, 6]])
    np.testing.assert_array_equal(y, [[2.0], [5.5]])
    assert (data.classes, data.feature_names) == (None, ("a", "b"))


def test_features_choose_columns_and_their_order(table):
    data = table("id,a,y,b\nrow one,1,2,3\nrow two,4,5,6\n", features=["b", "a"])
    np.testing.assert_array_equal(data.arrays[0], [[3, 1], [6, 4]])
    assert data.feature_names == ("b", "a")


@pytest.mark.parametrize(
    "cells, options, classes, codes",
    [
        (["b", "a", "b"], {}, ("a", "b"), [1, 0, 1]),
        (["b ", "a", " b"], {}, ("a", "b"), [1, 0, 1]),
        (["10", "9", "10"], {"categorical": True}, ("9", "10"), [1, 0, 1]),
        (["1.0", "-1", "1"], {"categorical": True}, ("-1", "1", "1.0"), [2, 0, 1]),
        (["1", "a", "1"], {"categorical": True}, ("1", "a"), [0, 1, 0]),
        (["größer", "kleiner", "größer"], {}, ("größer", "kleiner"), [0, 1, 0]),
    ],
)
def test_classes_are_sorted_names_or_sorted_numbers(table, cells, options, classes, codes):
    data = table("a,y\n" + "".join(f"1,{cell}\n" for cell in cells), **options)
    assert data.classes == classes
    assert data.arrays[1].dtype == np.int64
    np.testing.assert_array_equal(data.arrays[1], codes)


@pytest.mark.parametrize(
    "cells",
    [
        ["007", "01", "02", "7"],
        ["0", "00"],
        ["1", "1.0", "01"],
        ["1000", "1e3"],
        ["+1", "-1", "1"],
        ["9007199254740992", "9007199254740993"],
        ["1.000", "1000"],
        ["2,5", "2.5x"],
        ["1.000,5", "x"],
    ],
)
@pytest.mark.parametrize("decimal", [".", ","])
def test_classes_are_the_texts_as_they_are_written(table, cells, decimal):
    content = "a;y\n" + "".join(f"1;{cell}\n" for cell in [*cells, *reversed(cells)])
    data = table(content, categorical=True, delimiter=";", decimal=decimal)
    assert data.classes == tuple(sorted(cells))
    codes = data.arrays[1].tolist()
    assert [data.classes[code] for code in codes] == [*cells, *reversed(cells)]


@pytest.mark.parametrize(
    "content, options, x",
    [
        ("a,y\n1,2\nx,3\n", {"na_values": ["X"]}, [1, None]),
        ("a,y\n1,2\n-99.0,3\n", {"na_values": [-99]}, [1, None]),
        (
            "a;y\n1,5;2\n-99,5;3\n",
            {"na_values": [-99.5], "decimal": ",", "delimiter": ";"},
            [1.5, None],
        ),
        ("a,y\n1,2\n.,3\n<NA>,4\n", {}, [1, None, None]),
        ('a,y\n"1,234,567.5",2\n12,3\n', {"thousands": ","}, [1234567.5, 12]),
        (
            "a;y\n1 234,5;2\n1\u202f234;3\n",
            {"thousands": " ", "decimal": ",", "delimiter": ";"},
            [1234.5, 1234],
        ),
        ("a;y\n1'234.5;2\n", {"thousands": "'", "delimiter": ";"}, [1234.5]),
        ("a,y\n12%,2\n-3 %,3\n4,5\n", {"units": ["%"]}, [12, -3, 4]),
        ("a,y\n$5,2\n-$6.5,3\n$ 7,4\n", {"units": ["$"]}, [5, -6.5, 7]),
        ("a y\n 1   2\n2\t3 \n", {"delimiter": "whitespace"}, [1, 2]),
        ('a "y y"\n"1"  2\n', {"delimiter": "whitespace", "target": "y y"}, [1]),
        ("ä,y\n1,2\n".encode("cp1252"), {"encoding": "cp1252"}, [1]),
        ("ä,y\n1,2\n".encode("utf-16"), {"encoding": "utf-16"}, [1]),
        ("a,y\n1,2\n2,\n3,4\n", {"missing_target": "drop"}, [1, 3]),
        ("a,y\n1,2\n2,NA\n3,4\n", {"missing_target": "drop"}, [1, 3]),
        ("a,y\n1,n\n2,\n3,m\n", {"missing_target": "drop"}, [1, 3]),
        ("a,y\n1,n\n2,?\n3,m\n", {"missing_target": "drop", "na_values": ["?"]}, [1, 3]),
    ],
)
@pytest.mark.parametrize("large", [True, False])
def test_keys_say_how_cells_are_read(tmp_path, monkeypatch, content, options, x, large):
    if large:
        monkeypatch.setattr(csv_reader, "LARGE", 0)
        monkeypatch.setattr(csv_reader, "ROWS", 1)
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    name = "ä" if "encoding" in options else "a"
    data = csv(path, **{"target": "y", "columns": {name: {"missing": 0.0}}} | options)
    found = data.arrays(data.fit()[0])
    np.testing.assert_array_equal(
        found.arrays[0][:, 0], [0 if each is None else each for each in x]
    )
    assert len(found) == len(x)
    left_out = ('1 row without a value in "y" left out',) * ("missing_target" in options)
    assert data.notes == left_out


@pytest.mark.parametrize(
    "content, options, error, message",
    [
        (
            "ä,y\n1,2\n".encode("cp1252"),
            {},
            DataError,
            "is not UTF-8 text; save the file as UTF-8, or",
        ),
        (
            b"a,y\n1,2\n\x81,3\n",
            {"encoding": "cp1252"},
            DataError,
            "line 3: byte 0x81 is not cp1252",
        ),
        (b"a,y\n1,2\n", {"encoding": "utf-99"}, ConfigError, "encoding: unknown encoding: utf-99"),
        (b"a,y\n1,2\n", {"thousands": "."}, ConfigError, "thousands and decimal are both"),
        (b"a,y\n1,\n", {"missing_target": "drop"}, DataError, "no cell of the target has a value"),
        (b"a,y\n12 kg,2\n", {"units": ["%"]}, DataError, 'found the text "12 kg"'),
        (b"a;y\n1.5;2\n", {"delimiter": ";", "decimal": ",", "thousands": " "}, DataError, "1.5"),
    ],
)
def test_keys_that_do_not_fit_the_cells(tmp_path, content, options, error, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(error) as caught:
        csv(path, "y", **options)
    assert message in str(caught.value)


COMMAS = {  # None: no number
    "0,5": 0.5, "1,5": 1.5, "1.500": 1500, "1.500,25": 1500.25, "12.345.678,9": 12345678.9,
    "-1.000": -1000, "1,5e3": 1500, "1e3": 1000, ",5": 0.5, "5,": 5, "007": 7, "+3,0": 3,
    "1.500,": 1500, "0.5": None, "0.125": None, "1.5": None, "235.78": None, "1.50": None,
    "1.5000": None,
    "01.500": None, "1500.250": None, "1.500.25": None, "1,500.5": None, "1,2,3": None,
    "1.500e3": None, "1.": None, ".5": None, ".500": None, "1_0": None, "-0.125": None,
}  # fmt: skip


@pytest.mark.parametrize("cell", COMMAS)
@pytest.mark.parametrize("form", ["{}", '"{}"', "\u00a0{} "])
def test_with_a_decimal_comma_a_point_has_one_meaning(table, cell, form):
    content = "a;y\n1,5;2\n" + form.format(cell) + ";3\n1.250;4\n"
    if (value := COMMAS[cell]) is not None:
        data = table(content, delimiter=";", decimal=",")
        assert data.arrays[0].tolist() == [[1.5], [value], [1250]]
        return
    with pytest.raises(DataError) as caught:
        table(content, delimiter=";", decimal=",")
    where = f'table.csv, line 3, column "a": expected a number, found the text "{cell}"'
    assert where in str(caught.value)


def test_a_point_before_decimals_in_a_target_with_a_decimal_comma_is_named(table):
    with pytest.raises(DataError) as caught:
        table("a;y\n1;2.5\n2;3.5\n", delimiter=";", decimal=",")
    assert 'line 2, column "y": expected a number or a name, found the text "2.5"' in str(
        caught.value
    )


@pytest.mark.parametrize(
    "content, options",
    [
        (b"\xef\xbb\xbfa,y\n1,2\n", {}),
        (b"a,y\r\n1,2\r\n", {}),
        (b"a,y\r1,2\r", {}),
        (b"a,y\n1,2", {}),
        (b"a,y\n1,2\n\n\n", {}),
        (b" a , y \n 1 , 2 \n", {}),
        (b'"a","y"\n"1","2"\n', {}),
        (b"a;y\n1;2\n", {"delimiter": ";"}),
        (b"a\ty\n1\t2\n", {"delimiter": "\t"}),
        (b'"a","y","text\nof two lines"\n1,2,"x\ny"\n', {"features": ["a"]}),
    ],
    ids=["bom", "crlf", "cr", "no-end", "blank-end", "spaces", "quotes", ";", "tab", "multiline"],
)
def test_the_ways_files_are_written(table, content, options):
    data = table(content, **options)
    assert data.feature_names == ("a",)
    assert [array.tolist() for array in data.arrays] == [[[1.0]], [[2.0]]]


@given(
    values=st.lists(
        st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 3), min_size=1, max_size=8
    )
)
def test_every_finite_float_comes_back_to_the_last_bit(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "bits.csv"
    path.write_text("a,b,y\n" + "".join(",".join(map(repr, row)) + "\n" for row in values))
    x, y = csv(path, "y").arrays
    np.testing.assert_array_equal(np.hstack([x, y]), np.array(values))


# What is wrong in a file ----------------------------------------------------------------------

MANY = "a,y\n" + "".join(f"{i},2026-01-{i:02}\n" for i in range(1, 29))


@pytest.mark.parametrize(
    "content, options, message",
    [
        ("a,y\n1,2\nabc,3\n", {}, 'table.csv, line 3, column "a": expected a number, found the '
         'text "abc"\nhint: correct the cells, or say under data what they are\nna_values: ["abc'),
        ("a,y\n1,2\n,3\nx,3\n", {}, 'line 3, column "a": expected a number, found an empty cell '
         "(1 more in this column)\nhint: fill it in or leave the row out"),
        ("a,y\n1,2\n \t,3\n", {}, "found an empty cell"),
        ("a,y\nnan,2\n", {}, 'line 2, column "a": expected a number, found "nan"'),
        ("a,y\n1,2\n2,-inf\n", {}, 'line 3, column "y": expected a number, found "-inf"'),
        ("a,y\n1e999,2\n", {}, 'found "1e999"'),
        ("a,y\n1_000,2\n", {}, 'found the text "1_000"'),
        ("a,y\n1,2\n١,3\n", {}, 'line 3, column "a": expected a number, found the text "١"'),
        ("a,y\n1,2\n3,１\n", {}, 'line 3, column "y": expected a number, found the text "１"'),
        ("a\0,y\n1,2\n", {}, "the name of column 1 has a NUL in it: 'a\\x00'"),
        ('a;y\n1,5;2\n', {"delimiter": ";"}, 'found the text "1,5"\nhint: numbers are written '
         "with a decimal point"),
        ('a;y\n1;2,5\n2;3,5\n', {"delimiter": ";"}, 'line 2, column "y": expected a number or a '
         'name, found the text "2,5" (1 more in this column)\nhint: numbers are written'),
        ('a,note,y\n1,"two\nlines",2\nbad,"",3\n', {"features": ["a"]}, 'line 4, column "a"'),
        ('"a\nb",a,y\n1,bad,3\n', {"features": ["a"]}, 'line 3, column "a"'),
        ("a,y\r\n1,2\r\nbad,3\r\n", {}, "line 3"),
        ("a,y\rbad,2\r", {}, "line 2"),
        ("a,y\n" + "x" * 99 + ",2\n", {}, '"' + "x" * 37 + '..."'),
        # a target column
        ("a,y\n1,2\n2,x\n", {}, 'line 3, column "y": expected a number, found the text "x"\n'
         "hint: categorical: true reads every cell"),
        ("a,y\n1,cat\n2,\n", {}, 'line 3, column "y": expected a number or a name, found an empty'),
        ("a,y\n1,cat\n2,nan\n", {}, 'expected a number or a name, found "nan"'),
        ("a,y\n1,cat\n2,nan\n", {"categorical": True}, 'line 3, column "y"'),
        ("a,y\n1,1\n2,1.5\n", {"categorical": True}, 'line 3, column "y": expected a whole number '
         'as the code of a class, found "1.5"'),
        (MANY, {}, 'column "y": 28 different texts in 28 rows; is "2026-01-01" the name of a '
         "class?\nhint: categorical: true reads every cell of the target as the name"),
        ('a,y\n"1,234",2\n', {}, 'found the text "1,234"\nhint: is it 1234? '
         'thousands: "," reads it so; or 1.234? decimal: "," reads it as that'),
        ('a,y\n"1,234,567.5",2\n', {}, 'hint: thousands: "," reads a comma'),
        ('a,y\n1,"1,234"\n2,"2,345"\n', {}, "(1 more in this column)\nhint: is it 1234?"),
        ('a;y\n1,234.5;2\n', {"delimiter": ";", "decimal": ","}, 'hint: with decimal: "," a point'),
        ("a;y\n1.5,3;2\n", {"delimiter": ";", "decimal": ","}, 'line 2, column "a": expected a '
         'number, found the text "1.5,3"\nhint: with decimal: "," a number is written as 1234,5'),
        ("a;y\n2;1 234,5\n3;2\n", {"delimiter": ";", "decimal": ","}, 'column "y": expected a '
         'number, found the text "1 234,5"\nhint: with decimal: "," a number is written as'),
        ("a,y\n1 234.5,2\n", {}, 'hint: with decimal: "." a number is written as 1234.5'),
        ("a  y\n1  2\n", {}, 'no column "y"\ncolumns: a  y\nhint: are its cells separated by blan'),
        ("a  y\n1  2\n", {"delimiter": " "}, 'column 2 has no name'),
        ("a,b,y\n,1,2\n,3,4\n", {}, "found an empty cell (1 more in this column)\nhint: no cell of "
         "this column has a value; leave the column out\n"),
        # columns
        ("a,label\n1,2\n", {"target": "labels"}, 'has no column "labels"; did you mean label?\n'
         "columns: a, label"),
        ("a,Y\n1,2\n", {}, 'has no column "y"; did you mean Y?'),
        ("a,y\n1,2\n", {"features": ["b"]}, 'has no column "b"\ncolumns: a, y'),
        (",".join(f"c{i}" for i in range(30)) + "\n" + ",".join("1" * 30), {"target": "zz"},
         "c19 ... (30 in all)"),
        ("1.5,2\n3,4\n", {}, "the first line holds numbers (1.5, 2)"),
        ("a;y\n1;2\n", {}, 'has no column "y"\ncolumns: a;y\nhint: are its cells separated by '
         '";"? Set delimiter'),
        ("a\ty\n1\t2\n", {}, r'hint: are its cells separated by "\t"? Set delimiter'),
        (",a,y\n0,1,2\n", {}, "column 1 has no name. Is it a row number (pandas: to_csv(index="),
        ("a,a,y\n1,2,3\n", {}, 'has 2 columns named "a"\nhint: rename them in the file, or leave'),
        ("a,y,y\n1,2,3\n", {}, 'has 2 columns named "y"'),
        ("y\n1\n", {}, 'has no column beside the target "y"'),
        # rows
        ("", {}, "the first line is empty; expected the names of the columns"),
        ("\na,y\n1,2\n", {}, "the first line is empty"),
        ("a,y\n", {}, "has a header but no rows: the data set is empty"),
        ("a,y\n\n\n", {}, "has a header but no rows"),
        ("a,y\n1,2\n3\n", {}, "line 3: 1 cell, expected 2 cells as in the header"),
        ("a;y\n1,5;2,5\n", {}, '1 cell as in the header\nhint: are its cells separated by ";"?'),
        ("a,y\n1,2,3\n", {}, "line 2: 3 cells, expected 2"),
        ("a,y\n1,2\n\n3,4\n", {}, "line 3: a blank line, expected 2"),
        ('a,y\n1,2\n"3,4\n5,6\n', {}, "line 3: unexpected end of data"),
        ('a,y\n1,"2"3\n', {}, "line 2: "),
        (b"a,y\n1,2\n1,caf\xe9\n", {}, "line 3: byte 0xe9 is not UTF-8 text"),
        *((f"sep=;\n{rows}", {"delimiter": each}, "line 1: sep=; tells a spreadsheet what "
           "separates cells, and is not a header; delete this line, and write delimiter: ';'")
          for rows, each in (("a;y\n1;2\n", ","), ("a;y\n1;2\n", ";"), ("a,y\n1,2\n", ","))),
        (gzip.compress(b"a,y\n1,2\n", mtime=0), {}, "is compressed by gzip, not a CSV file"),
        (bz2.compress(b"a,y\n1,2\n"), {}, "is compressed by bzip2"),
        (lzma.compress(b"a,y\n1,2\n"), {}, "is compressed by xz"),
        (b"PK\x03\x04\x14\0\x06\0", {}, "is a zip archive or a spreadsheet, not a CSV file"),
        (b"\x89HDF\r\n\x1a\n\0\0", {}, "an HDF5 file, not a CSV file; use data of type hdf5"),
        (b"\x93NUMPY\1\0", {}, "an array of NumPy, not a CSV file; use data of type npy"),
        (
            b"# June\n# a y\n1  2\n",
            {"delimiter": "whitespace"},
            "3 cells, expected 2 cells as in the header\nhint: delete blank lines, and those above",
        ),
        ("a,y\n1,2\n".encode("utf-16"), {}, "line 1: byte 0xff is not UTF-8"),
    ],
)  # fmt: skip
def test_defects_of_csv_files(table, content, options, message):
    with pytest.raises(DataError) as caught:
        table(content, **options)
    assert message in str(caught.value)
    assert "table.csv" in str(caught.value)
    assert "delete the rows" not in str(caught.value) or str(caught.value).count("hint: ") == 1
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "options, message",
    [
        ({"delimiter": ""}, "delimiter must be one character"),
        ({"delimiter": "\\t"}, r'a tab is written "\t", in double quotes'),
        ({"delimiter": '"'}, "delimiter must be one character"),
        ({"features": []}, "features must name columns, each once"),
        ({"features": ["a", "a"]}, "features must name columns, each once"),
        ({"features": ["a", "y"]}, "the target 'y' is also in features"),
    ],
)
def test_arguments_that_fit_no_csv_file(table, options, message):
    with pytest.raises(ConfigError) as caught:
        table("a,y\n1,2\n", **options)
    assert message in str(caught.value)


def test_many_classes_are_taken_when_asked_for(table):
    assert len(table(MANY, categorical=True).classes) == 28


class Looked(list):
    """Names that are not gone through for every column: a table may have 100,000."""

    def __contains__(self, _):
        raise AssertionError

    count = index = __contains__


def test_a_column_is_found_without_a_search(tmp_path):
    (tmp_path / "wide.csv").write_text("a,b,y\n1,2,3\n")
    frame = read_csv(tmp_path / "wide.csv")
    frame.names = Looked(frame.names)
    assert [frame.texts(name) for name in ("a", "b", "y")] == [["1"], ["2"], ["3"]]
    assert Encoder.of_numbers(["b", "a"]).encode(frame)[0].tolist() == [[2.0, 1.0]]


# Tables in memory -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column, message",
    [
        ([1, None, 2], 'row 1, column "a": expected a number, found an empty cell\n'
         "hint: rows count from 0; fill it in"),
        (np.array([1, " "], object), 'row 1, column "a": expected a number, found an empty cell'),
        (["1", "2"], 'row 0, column "a": expected a number, found the text "1" (1 more in this'),
        ([1.0, np.nan, np.inf], 'row 1, column "a": expected a number, found "nan" (1 more'),
        (np.array([1, 10**400, {}]), 'row 1, column "a": expected a number, found "1000'),
        (np.array([{}, "b"]), 'row 0, column "a": expected a number, found "{}" (1 more'),
        (np.zeros(2, "M8[s]"), 'row 0, column "a": expected a number, found "1970-01-01T00:00:00"'),
        (np.zeros(2, "m8[ns]"), 'row 0, column "a": expected a number'),
        (np.ones(2, complex), 'row 0, column "a": expected a number'),
        (np.ones((2, 3)), 'column "a" has shape (2, 3), expected one value a row'),
        ([[1], [2, 3]], 'column "a": '),
    ],
)  # fmt: skip
def test_values_in_memory_that_are_no_numbers(column, message):
    with pytest.raises(DataError) as caught:
        Frame("here", ["a"], [column]).numbers("a")
    assert str(caught.value).startswith("here, ") and message in str(caught.value)


def test_numbers_in_memory_are_taken_of_any_kind():
    for column in ([1, 2.5], [True, 2], np.array([1, 2.5], object), np.arange(2, dtype=np.uint8)):
        found = Frame("here", ["a"], [column]).numbers("a")
        assert found.dtype == np.float64
        assert found.tolist() == [float(value) for value in column]


@pytest.mark.parametrize("read", [lambda path: csv(path, "y"), npz])
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_data_are_files(tmp_path, read, kind):
    path = tmp_path / "data"
    os.mkfifo(path) if kind == "a pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(DataError, match=f"cannot read .*: {kind}, not a file"):
        read(path)


@pytest.mark.parametrize("read", [lambda path: csv(path, "y"), npz])
def test_files_that_cannot_be_opened(tmp_path, monkeypatch, read):
    (tmp_path / "iris.csv").write_text("a,y\n1,2\n")
    with pytest.raises(DataError) as caught:
        read(tmp_path / "irs.csv")
    text = str(caught.value)
    assert text == f"there is no file {tmp_path / 'irs.csv'}; did you mean iris.csv?"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        read(Path("none") / "x.csv")
    where = tmp_path / "none" / "x.csv"
    assert str(caught.value) == f"there is no file none/x.csv (looked for {where})"
    with pytest.raises(DataError, match=r"cannot read .*: Is a directory"):
        read(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,y\n1,2\n")
    path.chmod(0)
    with pytest.raises(DataError, match=r"cannot read .*: Permission denied"):
        csv(path, "y")


# Parquet --------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    """Writes a Parquet file and reads it back: stored({...}, target=..., ...)."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    def read(columns, target="y", **options):
        writer.write_table(pyarrow.table(columns), tmp_path / "table.parquet")
        return parquet(tmp_path / "table.parquet", target, **options)

    return read


def test_parquet_numbers_are_regressed_on_and_texts_are_classes(stored):
    data = stored({"a": [1, 2], "b": [True, False], "y": [0.5, 2.0]})
    assert [array.tolist() for array in data.arrays] == [[[1, 1], [2, 0]], [[0.5], [2.0]]]
    data = stored({"a": [1, 2], "note": ["x", "y"], "y": ["2", "1"]}, features=["a"])
    assert (data.classes, data.feature_names) == (("1", "2"), ("a",))
    np.testing.assert_array_equal(data.arrays[1], [1, 0])


@pytest.mark.parametrize(
    "columns, options, message",
    [
        ({"a": [1, None], "y": [1, 2]}, {}, 'row 1, column "a": expected a number, found an empty'),
        ({"a": ["1"], "y": [1]}, {}, 'row 0, column "a": expected a number, found the text "1"'),
        ({"a": [[1]], "y": [1]}, {}, 'row 0, column "a": expected a number, found "[1]"'),
        ({"a": [1, 2], "y": ["b", None]}, {}, 'row 1, column "y": expected a number or a name'),
        ({"a": [1], "y": [b"b"]}, {}, 'row 0, column "y": expected a number or a name'),
        ({"a": [1], "y": [1]}, {"target": "Y"}, 'has no column "Y"; did you mean y?\ncolumns: a'),
        ({"a": [1], "y": [1]}, {"features": ["b", "c"]}, 'lacks 2 columns\n  "b"\n  "c"\ncolumns'),
        ({"y": [1]}, {}, 'has no column beside the target "y"'),
        ({"a": np.zeros(0), "y": np.zeros(0)}, {}, "has no rows: the data set is empty"),
    ],
)  # fmt: skip
def test_defects_of_parquet_files(stored, columns, options, message):
    with pytest.raises(DataError) as caught:
        stored(columns, **options)
    assert message in str(caught.value)
    assert "table.parquet" in str(caught.value)


PANDAS = '{{"index_columns": {}, "columns": []}}'


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("__index_level_0__", '["__index_level_0__"]'),
        ("key", '["key"]'),
        ("__index_level_0__", None),  # by a program that has lost what pandas wrote
        (None, '[{"kind": "range", "name": null, "start": 0, "stop": 3, "step": 1}]'),
        (None, "5"),
    ],
)
@pytest.mark.parametrize("in_memory", [True, False])
def test_the_index_of_a_data_frame_is_no_input(tmp_path, named, told, in_memory):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as writer

    content = {"a": [1.0, 2, 3], "y": [1.0, 2, 4]} | ({named: [17, 4, 99]} if named else {})
    meta = {} if told is None else {b"pandas": PANDAS.format(told).encode()}
    made = pyarrow.table(content).replace_schema_metadata(meta)
    path = tmp_path / "table.parquet"
    writer.write_table(made, path)
    data = parquet(path, "y", in_memory=in_memory)
    assert tuple(data.feature_names) == ("a",)
    assert list(Table(made, "y").columns) == ["a"]
    if named:  # where it is asked for it is a column as others are
        data = parquet(path, "y", features=["a", named], in_memory=in_memory)
        assert tuple(data.feature_names) == ("a", named)
        assert list(Table(made, "y", {named: "number"}).columns) == ["a", named]
        assert parquet(path, named).target_name == named


# npz ------------------------------------------------------------------------------------------


@pytest.fixture
def arrays(tmp_path):
    """Writes an npz file: arrays(x=..., y=...) returns its path."""

    def write(**named):
        path = tmp_path / "arrays.npz"
        np.savez_compressed(path, **named)
        return path

    return write


def test_npz_arrays_are_as_they_were_saved(arrays):
    x, z, y = np.ones((4, 2), np.float32), np.arange(4), np.array([0, 1, 1, 0], np.uint8)
    data = npz(arrays(x=x, z=z, y=y))
    assert [a.dtype for a in data.arrays] == [np.float32, np.uint8]
    data = npz(arrays(x=x, z=z, y=y), inputs=["z", "x"], target="y")
    for got, saved in zip(data.arrays, (z, x, y), strict=True):
        np.testing.assert_array_equal(got, saved)
    assert data.target_name == "y"


def test_npz_names(arrays):
    path = arrays(images=np.ones((2, 3)), labels=np.ones(2))
    with pytest.raises(DataError) as caught:
        npz(path)
    assert str(caught.value) == f'{path} has no array "x"\narrays: images, labels'
    with pytest.raises(DataError, match='"label"; did you mean labels'):
        npz(path, inputs="images", target="label")
    with pytest.raises(ConfigError, match="at least one array"):
        npz(path, inputs=[])
    with pytest.raises(ConfigError, match="must be different arrays"):
        npz(path, inputs=["images", "labels"], target="labels")


def test_npz_defects(arrays, tmp_path):
    x = np.ones((3, 2))
    with pytest.raises(DataError, match=r'different numbers of rows: .*"x" \(3, 2\), .*"y" \(4,\)'):
        npz(arrays(x=x, y=np.ones(4)))
    with pytest.raises(DataError, match=r'array "y" has shape \(3,\) and dtype <U1'):
        npz(arrays(x=x, y=np.array(["a", "b", "c"])))
    with pytest.raises(DataError, match=r'array "y" is not an array of rows'):
        npz(arrays(x=x, y=np.array(1.0)))
    with pytest.raises(DataError, match=r'array "y" cannot be read: Object arrays .*allow_pickle'):
        npz(arrays(x=x, y=np.array([{}, {}, {}])))
    np.save(tmp_path / "one.npy", x)
    with pytest.raises(DataError, match=r"one\.npy is not a readable npz file \(numpy\.savez"):
        npz(tmp_path / "one.npy")


@pytest.mark.parametrize("content", [b"", b"a,y\n1,2\n", b"PK\x03\x04 not a zip file", b"\x80\x04"])
def test_npz_files_that_are_something_else(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.npz is not a readable npz file") as caught:
        npz(tmp_path / "x.npz")
    assert "unsafe" not in str(caught.value)


def test_npz_cut_short_or_damaged(arrays):
    path = arrays(x=np.random.default_rng(0).random((100, 10)), y=np.zeros(100))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a readable npz file"):
        npz(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    with pytest.raises(DataError, match='array "x" cannot be read'):
        npz(path)


def test_a_table_that_is_trained_on_enters_few_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{i % 3}.5\n" for i in range(20)))
    home, entered, before = Path(mt.data.__file__).parent, set(), sys.getprofile()

    def enter(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and home in path.parents and frame.f_code.co_name != "<module>":
            entered.add(path.name)

    sys.setprofile(enter)
    try:
        data = prepare(csv(Path("t.csv"), "y"), split={"train": 0.8, "val": 0.2}, standardize=True)
        for _ in DataLoader(data.train, batch_size=4):
            pass
    finally:
        sys.setprofile(before)
    assert {"csv.py", "prepare.py", "loader.py"} < entered
    assert len(entered) <= 12, entered
