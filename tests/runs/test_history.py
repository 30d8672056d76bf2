"""Metrics as columns: what the reader of single rows says, of a million rows as of three."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from microtrain.errors import DataError
from microtrain.report.compare import first_difference
from microtrain.runs.metrics import History, read_metrics


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def irregular(count):
    """Rows as runs write them, and some fields that only some rows have."""
    random.seed(3)
    rows = []
    for step in range(1, count):
        place = {"step": step, "epoch": step / 7, "samples": 2**40 * step}
        loss = random.choice(
            [random.random(), 10.0 ** random.randint(-300, 300), -0.0, None, 5e-324]
        )
        rows.append({"split": "train", **place, "loss": loss})
        if step % 3 == 0:
            rows[-1] |= {"lr": 0.1 / step}
        if step % 4 == 0:
            rows.append({"split": "val", **place, "loss": loss, "r2": random.random()})
    return rows


def same(one, two):
    return np.asarray(one, np.float64).tobytes() == np.asarray(two, np.float64).tobytes()


def test_columns_are_the_rows_to_the_last_bit(tmp_path):
    path = written(tmp_path / "metrics.jsonl", irregular(300))
    rows, found = read_metrics(path), History.read(path)
    assert (found.rows, found.last_step) == (len(rows), 299)
    assert found.fields == ["epoch", "samples", "loss", "lr", "r2"]
    assert found.splits.keys() == {"train", "val"}
    for split, fields in found.splits.items():
        mine = [row for row in rows if row["split"] == split]
        for name, (steps, values) in fields.items():
            assert steps.tolist() == [row["step"] for row in mine if name in row]
            assert same(values, [row[name] for row in mine if name in row])
    assert found.at("train", 6).keys() == {"epoch", "samples", "loss", "lr"}
    assert found.at("train", 7).keys() == {"epoch", "samples", "loss"}
    assert found.at("test", 7) == {}


GOOD = '{"split": "val", "step": 1, "loss": 1.0}'


def test_arrays_stand_side_by_side_over_all_steps(tmp_path):
    rows = irregular(60)
    found = History.read(written(tmp_path / "metrics.jsonl", rows)).arrays()
    assert [*found] == ["step", "epoch", "samples", "train/loss", "val/loss", "train/lr", "val/r2"]
    assert found["step"].tolist() == [*range(1, 60)]
    np.testing.assert_array_equal(found["epoch"], found["step"] / 7)
    for row in rows:
        at = row["step"] - 1
        for name in ("loss", "lr", "r2"):
            if f"{row['split']}/{name}" in found:
                value = np.nan if row.get(name) is None else row[name]
                assert same(found[f"{row['split']}/{name}"][at], value)
    assert {*History().arrays()} == {"step"}


@pytest.mark.parametrize(
    "lines, words",
    [
        ([GOOD, '{"split": "val"}'], "metrics.jsonl:2: a row has a split and a whole step"),
        ([GOOD, GOOD, '{"split": "val", "step": 1.0}'], "metrics.jsonl:3: a row has a split"),
        ([f'{{"split": "val", "step": {2**63}}}'], "metrics.jsonl:1: a row has a split"),
        ([GOOD, '{"split": "val", "step": 1, "loss": true}'], "jsonl:2: loss: expected a number"),
        ([GOOD, '{"split": "val", "step": 1, "loss": "1"}'], "jsonl:2: loss: expected a number"),
        ([GOOD, '{"split": "val", "step": 1, "loss": 1e999}'], "jsonl:2: loss: expected a number"),
        ([GOOD, '{"split": "val", "step": 1, "loss": [1]}'], "jsonl:2: loss: expected a number"),
        ([GOOD, "[1]"], "metrics.jsonl:2: not a JSON object"),
        ([GOOD, ""], "metrics.jsonl:2: not a JSON object"),
        # Two rows in a line and one in two lines are as many as lines, and none is whole.
        ([f"{GOOD},{GOOD}", GOOD[:16], f'"step": {GOOD[-1]}'], "jsonl:1: not a JSON object"),
        ([f"{GOOD},{GOOD}", '{"split": "val"', '"step": 2}'], "jsonl:1: not a JSON object"),
        (['{"split": "val", "x": [{}', "{}]}", f"{GOOD},{GOOD}"], "jsonl:1: not a JSON object"),
        (['{"a": 1,' + "b" * 2**21], "metrics.jsonl:1: not a JSON object"),
    ],
)
def test_a_damaged_line_is_named_by_both_readers(tmp_path, lines, words):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    said = []
    for read in (History.read, read_metrics):
        with pytest.raises(DataError) as caught:
            read(path)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert words in said[0]


@pytest.mark.parametrize("reader", [History.read, read_metrics], ids=["columns", "rows"])
def test_the_error_of_a_long_line_is_short(tmp_path, reader):
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"split": "val", "step": 1, "x" * 900_000: "a"}) + "\n")
    with pytest.raises(DataError, match=r":1: x{60}: expected a number$") as caught:
        reader(path)
    assert len(str(caught.value)) < 200 + len(str(path))


def test_a_line_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{GOOD}\n{GOOD[:20]}")
    assert (History.read(path).rows, len(read_metrics(path))) == (1, 1)
    path.write_text("")
    assert History.read(path) == History()


@pytest.mark.parametrize(
    "text, losses",
    [
        (f"{GOOD}\r\n{GOOD}\r\n", [1.0, 1.0]),
        (f"\ufeff{GOOD}\n{GOOD}\n", [1.0, 1.0]),
        (f"{GOOD}\n{GOOD[:-4]}NaN}}\n", [1.0, math.nan]),
        (f"{GOOD}\n{GOOD[:-4]}2.0}}\n", [1.0, 2.0]),  # a step twice: both are rows
    ],
    ids=["crlf", "byte order mark", "nan", "step twice"],
)
def test_what_editors_and_resumes_leave_is_read_the_same_by_both(tmp_path, text, losses):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(text.encode())
    assert same(History.read(path).series("val", "loss")[1], losses)
    assert same([row["loss"] for row in read_metrics(path)], losses)


def test_a_field_that_begins_late_is_absent_before(tmp_path):
    rows = [{"split": "val", "step": step, "loss": 1.0} for step in range(30_000)]
    rows[25_000]["r2"] = 0.5
    found = History.read(written(tmp_path / "metrics.jsonl", rows))
    assert found.series("val", "r2") == ([25_000], [0.5])
    assert len(found.series("val", "loss")[0]) == len(found.series("val", "step")[0]) == 30_000
    assert len(found.series("test", "loss")[0]) == 0


# Numbers as JSON has them, and texts that are none.
NUMBERS = """
0 -0 0.0 -0.0 0.1 -1.5 null 1e-05 1E5 -2.5e+300 5e-324 0.30000000000000004 1234567890123456789
9223372036854775807 9007199254740991 9007199254740992 9007199254740993 -9007199254740993
18446744073709551615 18446744073709551616 9007199254740993.5 0.0043493413745041434
4503599627370497.5 12345678901234567890.5 NaN
""".split()
NONE = (
    """01 -01 +1 00.5 .5 5. 1.2.3 1..2 -.5 -- - 1_0 0x1 1e 1e999 Infinity -Infinity true [1] {} "1"
nan inf 1: 1} {1""".split()
    + ["", "1 0", "9" * 310, "9" * 5000, '"a', 'b"', "[1", "2]", "1, 2", "\u0661"]
)


def with_loss(path, text):
    path.write_text(f'{GOOD}\n{{"split": "val", "step": 2, "loss": {text}}}\n')
    return path


@given(st.one_of(st.sampled_from(NUMBERS), st.floats().map(json.dumps), st.integers().map(str)))
def test_a_number_is_read_as_python_reads_it(tmp_path_factory, text):
    path = with_loss(tmp_path_factory.mktemp("run") / "metrics.jsonl", text)
    value = json.loads(text)
    assume(value is None or not math.isinf(value))
    value = math.nan if value is None else value
    assert same(read_metrics(path)[1]["loss"], value)
    assert same(History.read(path).series("val", "loss")[1][1], value)


@pytest.mark.parametrize("text", NONE)
def test_what_is_not_a_number_is_refused_with_its_line(tmp_path, text):
    path = with_loss(tmp_path / "metrics.jsonl", text)
    for read in (History.read, read_metrics):
        with pytest.raises(DataError, match=r"metrics\.jsonl:2: "):
            read(path)


def by_rows(paths):
    """`first_difference`, said in rows."""
    tables = [{(row["step"], row["split"]): row for row in read_metrics(path)} for path in paths]
    clock = ("time", "samples_per_s", "comm_share", "split", "step")
    shared = set(tables[0]).intersection(*tables[1:])
    for step, split in sorted(shared):
        rows = [{k: str(v) for k, v in t[step, split].items() if k not in clock} for t in tables]
        fields = {name for row in rows for name in row}
        other = {f"{split}/{n}" for n in fields if len({row.get(n) for row in rows}) > 1}
        if other:
            return step, other
    lacking = set().union(*tables) - shared
    return (min(lacking)[0], set()) if lacking else None


def changed(rows, choice):
    rows = [dict(row) for row in rows]
    at = random.randrange(len(rows))
    row = rows[at]
    match choice:
        case "value":
            row["loss"] = math.nextafter(row["loss"] or 1.0, 9e99)
        case "null":
            row["loss"] = 0.5 if row["loss"] is None else None
        case "gone":
            del row["loss"]
        case "more":
            row["new"] = 1.0
        case "row":
            del rows[at]
        case "end":
            del rows[at:]
        case "twice":
            rows.append(row | {"loss": 3.0})
        case "clock":
            row["time"] = 3.0
    return rows


@pytest.mark.parametrize(
    "choice", ["value", "null", "gone", "more", "row", "end", "twice", "clock", "none"]
)
def test_the_first_difference_is_that_of_rows(tmp_path, choice):
    class OfFile:
        def __init__(self, path):
            self.history = History.read(path)

    random.seed(len(choice))
    rows = irregular(60)
    for number in range(6):
        texts = (rows, changed(rows, choice), changed(rows, "none" if number % 2 else choice))
        paths = [written(tmp_path / f"{i}", text) for i, text in enumerate(texts)]
        found = first_difference([*map(OfFile, paths)])
        assert (found and (found["step"], {*found["columns"]})) == by_rows(paths)
