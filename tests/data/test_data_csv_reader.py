"""CSV files: every way to read them gives what Python's csv and float give, in little memory."""

import contextlib
import csv as python_csv
import io
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pace import examples

from microtrain.data import csv
from microtrain.data.readers import csv as csv_reader
from microtrain.data.readers.csv import read_csv
from microtrain.data.tables.columns import Column, read_target, texts
from microtrain.data.tables.frame import Frame, OnFile
from microtrain.data.tables.notation import Notation
from microtrain.data.tables.table import Encoder
from microtrain.errors import DataError

NUMBERS = ["1", "-2.5", "0.123456", "123456.75"]
ODD = [
    "1.", ".5", "+4", "1e5", "1E-5", "5e-324", "1e400", "9007199254740993", "0.30000000000000004",
    "0.1234567890123456789", "12345678901234567890123", "-0", "01", "0x10", "1_000", "١", "inf",
    "nan", "-nan", "TRUE", "NA", "null", "-", "?", "", " ", " 1 ", "\xa02", "1\0", "caf\xe9",
    '""', ' "1,5"', '"a""b"', '"a\nb"', '"1.5"', '"1,5"', "1,5", "1.234,5", '5" p', '"q"r', "+-1",
    "0.5", "0,5", "1.500", "0.125", "1.500,25", "01.500", "1,5e3", ",5", "1,234,567", "007",
    "\r", "\ufeff1", '"', "-0.0", "-.5", "-.", ".", "--5.1", "5.-1", "5.1-", "-.0", "000.250",
    "1.2.3", "9007199254740.993", "-9223372036854775.808", "0.00000000000000000000001",
]  # fmt: skip
# Rows that csv reads first, bytes that others read, and whether there is pyarrow.
WAYS = [(10_000, 1, False), (1, 1, True), (2, 16, True), (1, 1, False), (2, 16, False)]


@contextlib.contextmanager
def by(rows, block, arrow):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_reader, "ROWS", rows)
        patch.setattr(csv_reader, "LARGE", 0)
        patch.setattr(csv_reader, "BLOCK", block)
        patch.setattr(csv_reader, "SMALL", block)
        if not arrow:
            patch.setitem(sys.modules, "pyarrow", None)
        yield


def outcome(function):
    try:
        found = function()
    except DataError as error:
        return str(error)
    parts = found if isinstance(found, tuple) else (found,)
    return [(str(x.dtype), x.tolist()) if isinstance(x, np.ndarray) else x for x in parts]


def all_of(read):
    """Whatever can be asked of a table, also what is wrong with it."""
    try:
        frame = read()
    except DataError as error:
        return str(error)
    found = [frame.names, len(frame), list(frame.lines)]
    for name in dict.fromkeys(frame.names):
        questions = (
            lambda name: frame.numbers(name),
            lambda name: frame.numbers(name, gaps=True),
            lambda name: read_target(frame, name),
            lambda name: read_target(frame, name, categorical=True),
            lambda name: texts(frame, name, Column(type="id")),
            lambda name: frame.column(name),
        )
        found += [outcome(partial(ask, name)) for ask in questions]
    return repr(found)  # which tells -0.0 from 0.0, and has one NaN


def by_python(content, delimiter, notation):
    """Every cell a text; rows of the right length only."""
    text = content.decode("utf-8-sig")
    reader = python_csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter != " ",
        strict=True,
    )  # fmt: skip
    rows, lines = [], [1]
    for row in reader:
        rows.append([cell.strip() for cell in row])
        lines.append(reader.line_num + 1)
    while not rows[-1]:
        rows.pop()
    names, *rows = rows
    columns = [np.array(column, object) for column in zip(*rows, strict=True)]
    return Frame("t.csv", names, columns, lines[1 : 1 + len(rows)], notation=notation)


@st.composite
def files(draw):
    width = draw(st.integers(1, 3))
    cell = st.sampled_from(NUMBERS * draw(st.sampled_from([1, 30])) + ODD)
    rows = draw(st.lists(st.lists(cell, min_size=width, max_size=width), min_size=1, max_size=12))
    delimiter, end = draw(st.sampled_from(",;\t §")), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines = [delimiter.join("abc"[:width]), *map(delimiter.join, rows)]
    text = end.join(lines) + draw(st.sampled_from(["", end, end * 3]))
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text.encode(), delimiter


NOTATIONS = [
    Notation(), Notation(), Notation(","), Notation(","), Notation(thousands=","),
    Notation(",", " "), Notation(na_values=("1", "x")), Notation(na_values=("-2.5",)),
    Notation(units=("p", "%"), na_values=("0.5",)),
]  # fmt: skip


@given(file=files(), notation=st.sampled_from(NOTATIONS))
@example(file=(b"a,b\n0x10,\r\n1,1", ","), notation=Notation())  # a block of one empty number
@settings(deadline=None, max_examples=examples(150))
def test_every_way_reads_the_same(file, notation):
    content, delimiter = file
    found = []
    for way in WAYS:
        with by(*way):
            found.append(all_of(lambda: read_csv("t.csv", delimiter, notation, content=content)))
    assert found[1:] == found[:-1]
    try:
        expected = by_python(content, delimiter, notation)
    except (ValueError, python_csv.Error):  # ragged, or not CSV
        assert "t.csv" in found[0]
    else:
        assert found[0] == all_of(lambda: expected)


@given(
    st.lists(
        st.from_regex(r"[+-]?[0-9]{1,24}(\.[0-9]{1,24})?", fullmatch=True)
        | st.from_regex(r"[0-9]{1,3}\.[0-9]{14,17}", fullmatch=True)
        | st.integers(1 << 51, 1 << 53).map(lambda n: f"{n}.{'5' if n % 2 else '25'}"),
        min_size=2,
        max_size=40,
    )
)
@settings(deadline=None, max_examples=examples(200))
def test_decimals_are_those_of_python(cells):
    content = ("a,b\n" + "".join(f"{c},{c}\n" for c in cells)).encode()
    for way in WAYS:
        with by(*way):
            frame = read_csv("t.csv", content=content)
        assert frame.floats("a").tobytes() == np.array([float(c) for c in cells]).tobytes()


@pytest.mark.parametrize("way", WAYS)
def test_halves_between_two_numbers_are_rounded_as_python_does(way):
    cells = [f"{n}.{tail}" for n in range(1 << 52, (1 << 52) + 40) for tail in ("5", "50000", "25")]
    cells += [str((1 << 54) + k) for k in range(40)]
    with by(*way):
        frame = read_csv("t.csv", content=("a,b\n" + "".join(f"{c},1\n" for c in cells)).encode())
    assert frame.floats("a").tolist() == [float(c) for c in cells]


def test_a_column_that_goes_on_as_text_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_reader, "ROWS", 5)
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "01,1\n" * 20 + "x,2\n")
    frame = read_csv(path)
    assert frame.column("a").tolist() == ["01"] * 20 + ["x"]
    assert isinstance(frame._columns["b"][0], OnFile)
    assert frame.column("b").tolist() == ["1"] * 20 + ["2"]
    path.write_text("a,b\n" + "01,1\n" * 21)
    frame = read_csv(path)
    path.write_text("a,b\n" + "2,1\n" * 30)
    with pytest.raises(DataError, match=r"t\.csv was changed while it was read; start again"):
        frame.column("a")


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_reader, "ROWS", 1)
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n0.1")

    def grow(name):
        with path.open("a") as file:
            file.write("25\n")
        return True

    with pytest.raises(DataError, match=r"t\.csv was changed while it was read; start again"):
        read_csv(path, wanted=grow)


@pytest.mark.parametrize("way", WAYS)
def test_an_integer_that_is_larger_than_all_floats_is_no_number(way):
    with by(*way):
        frame = read_csv("t.csv", content=b"a,b\n1,2\n" + b"1" * 400 + b",3\n")
        assert frame.column("a").tolist() == ["1", "1" * 400]
        with pytest.raises(DataError, match=r't\.csv, line 3, column "a": expected a number'):
            frame.numbers("a")


def test_the_byte_that_is_no_text_is_named_behind_a_byte_order_mark():
    with pytest.raises(DataError, match="line 2: byte 0xe9 is not UTF-8"):
        read_csv("t.csv", content=b"\xef\xbb\xbfa,y\ncaf\xe9,2\n")


def test_columns_that_are_dropped_hold_anything(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,note,a,y\nr1,x,1,2\nr2,,3,4\n")
    data = csv(path, "y", drop=["id", "note"])
    assert [array.tolist() for array in data.arrays] == [[[1.0], [3.0]], [[2.0], [4.0]]]


MEMORY = """
import contextlib
import sys
with contextlib.suppress(ImportError):
    import pyarrow.csv
from pathlib import Path
from microtrain.data import csv

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

csv(Path(sys.argv[1]), "y")  # what is imported on the way
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
data = csv(Path(sys.argv[2]), "y")
print((status("VmHWM") - before) / sum(array.nbytes for array in data.arrays))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_memory_is_at_most_two_and_a_half_times_the_numbers(tmp_path):
    header = ",".join([*(f"x{i}" for i in range(9)), "y"]) + "\n"
    row = ",".join(["0.123456"] * 10) + "\n"
    (tmp_path / "small.csv").write_text(header + row * 60_000)
    (tmp_path / "large.csv").write_text(header + row * 500_000)  # 40 MB of numbers
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path / "small.csv", tmp_path / "large.csv"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2.5


def test_inputs_lie_side_by_side_whoever_has_read_them(tmp_path):
    rows = [f"{i}.5,{'é' if i % 3 else 'b '},{i}" for i in range(40)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,y,c", *rows[:20], '"-1.5",b,7', *rows[20:], ""]), "utf-8")
    numbers = [[i + 0.5, i] for i in range(40)]
    numbers.insert(20, [-1.5, 7])
    for way in WAYS:
        with by(*way):
            data = csv(path, "y")
        assert data.inputs[0].tolist() == numbers
        assert data.inputs[0].flags.c_contiguous and data.inputs[0].flags.writeable
        assert data.classes == ("b", "é")
        assert data.target.tolist() == [int(i % 3 > 0) for i in [*range(20), 0, *range(20, 40)]]
        assert csv(path, "y", features=["c", "a"]).inputs[0].tolist() == [x[::-1] for x in numbers]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", ["a", "b", "c", "d"])
def test_inputs_are_the_columns_around_the_target(tmp_path, way, target):
    rows = np.arange(120.0).reshape(30, 4) + 0.25
    path = tmp_path / "t.csv"
    path.write_text("a,b,c,d\n" + "".join(f"{','.join(map(str, row))}\n" for row in rows.tolist()))
    with by(*way):
        data = csv(path, target)
        frame = read_csv(path)
    at = "abcd".index(target)
    assert data.inputs[0].tolist() == np.delete(rows, at, axis=1).tolist()
    assert data.target.tolist() == rows[:, [at]].tolist()
    for names, expected in (("ba", [1, 0]), ("ac", [0, 2]), ("aa", [0, 0]), ("bcd", [1, 2, 3])):
        found = Encoder.of_numbers(names).encode(frame)[0]
        assert found.tolist() == rows[:, expected].tolist()


def test_a_byte_order_mark_where_a_block_begins_is_a_text():
    for way in WAYS:
        with by(*way):
            frame = read_csv("t.csv", content=b"a,b\n" + b"1,22222\n" + b"\xef\xbb\xbf1,2\n" * 3)
        assert frame.floats("a") is None
        assert frame.column("a").tolist() == ["1"] + ["\ufeff1"] * 3
