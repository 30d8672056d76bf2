"""What `init csv` proposes for a column, and why."""

import json

import numpy as np
import pytest

from microtrain.data import Table
from microtrain.data.readers.csv import read_csv
from microtrain.data.tables.dates import format_of
from microtrain.data.tables.frame import Frame
from microtrain.data.tables.propose import propose
from microtrain.data.tables.targets import describe, guess_target
from microtrain.errors import DataError


def frame(name, cells, first=False):
    """A table with a column of these cells, the first one or not."""
    rows = "".join(f"0.5,{cell},{i}\n" for i, cell in enumerate(map(json.dumps, cells)))
    if first:
        rows = "".join(f"{cell},0.5,{i}\n" for i, cell in enumerate(map(json.dumps, cells)))
    names = (name, "other") if first else ("other", name)
    return read_csv("t.csv", content=f"{','.join(names)},y\n{rows}".encode())


CASES = [
    ("x", ["1", "2.5", "2"], "", "numbers from 1 to 2.5"),
    ("x", ["10", "20", "77"] * 30, "category", "only 3 different whole numbers; number, if"),
    ("x", ["1", "", "2", "2"], "{missing: median}", "numbers from 1 to 2, 1 of 4 cells empty"),
    ("x", ["1", "NA", "2", "2"], "{missing: median}", "1 of 4 cells empty"),
    ("x", ["1", "-", "2", "null"], "{missing: median}", "from 1 to 2, 2 of 4 cells empty"),
    ("when", ["2024-01-02", "null", "2023-01-02"],
     "{type: date, parts: [year, days], missing: median}", "1 of 3 cells empty"),
    ("ill", ["none", "mild", "none"], "category", "2 texts: mild, none"),
    ("ill", ["none", "", "mild", "none"], "{type: category, missing: missing}",
     '1 of 4 cells empty (as "missing", for "none" is one of the texts)'),
    ("ill", ["None", "", "missing", "None"], "{type: category, missing: missing 2}", "1 of 4"),
    ("doors", ["4", "rotary", "", "none"] * 9, "{type: category, missing: missing}",
     '(as "missing", for "none" is one of the texts)'),
    ("x", ["1", "2", "12 kg", "2"], "{missing: median}", 'such as "12 kg" is not a number'),
    ("doors", ["4", "6", "8", "rotary"] * 9, "category", 'which "rotary" is not a number'),
    ("x", ["1.5", ".", "2", "<NA>"], "{missing: median}", "from 1.5 to 2, 2 of 4 cells empty"),
    ("x", ["1", "1", "1"], "drop", '"1" in every row'),
    ("x", ["", "", ""], "drop", "no cell has a value"),
    ("customer_id", ["7", "3", "9"], "id", "a different whole number in every row"),
    ("row", [str(i) for i in range(10)], "id", "a different whole number in every row"),
    ("width", ["7", "3", "9"], "", "numbers from 3 to 9"),
    ("key", ["a1", "b2", "c3"], "id", "a different text in every row"),
    ("plan", ["a", "b", "a"], "category", "2 texts: a, b"),
    ("plan", ["a", "", "a", "b"], "{type: category, missing: none}", "1 of 4 cells empty"),
    ("ok", ["true", "false", "true"], "category", "2 texts: false, true"),
    ("region", ["007", "01", "007"], "category", "2 texts: 007, 01, codes with leading zeros"),
    ("post", ["01", "", "10", "01"], "{type: category, missing: none}", "leading zeros"),
    ("share", ["0", "0.5", "1", "00"], "", "numbers from 0 to 1"),
    ("when", ["2024-01-02", "2023-01-02"], "{type: date, parts: [year, days]}",
     "dates from 2023-01-02 to 2024-01-02"),
    ("when", ["31/12/2024", "01/02/2023"],
     '{type: date, format: "%d/%m/%Y", parts: [year, month, day_of_week, days]}', "01/02/2023"),
    ("born", ["2-Feb-45", "3-Mar-71"], '{type: date, format: "%d-%b-%y", parts: [year, month, '
     'day_of_week, days]}', "from 3-Mar-71 to 2-Feb-45; of years of two digits, 69 to 99 are"),
    ("at", ["09:52:21", "17:05:00", "10:00:59"],
     '{type: date, format: "%H:%M:%S", parts: [hour, days]}', "times from 09:52:21 to 17:05:00"),
    ("at", ["9:52 AM", "12:05 PM"], '{type: date, format: "%I:%M %p", parts: [hour, days]}',
     "times from 9:52 AM to 12:05 PM"),
    ("at", ["2024-01-02 09:52", "2024-01-02 10:52"], "{type: date, parts: [hour, days]}",
     "dates from 2024-01-02 09:52 to 2024-01-02 10:52"),
    ("when", ["20130614", "20130621", "20130628"],
     '{type: date, format: "%Y%m%d"}', "dates from 20130614 to 20130628"),
    ("store", ["101", "102", "104", "101"] * 5, "category", "seem to be codes, by the name"),
    ("statefips", [str(1 + i % 50) for i in range(400)], "category", "50 whole numbers that seem"),
    ("countyid", [str(i % 40) for i in range(400)], "category", "codes, by the name; number, if"),
    ("State_Code", [str(i % 12) for i in range(90)], "category", "12 whole numbers that seem"),
    ("zip", [str(10_000 + 7 * (i % 40)) for i in range(10_000)],
     "{type: category, encode: embedding}", "40 whole numbers that seem"),
    ("statefips", [str(1 + i % 50) for i in range(90)], "", "numbers from 1 to 50"),
    ("barcode", [str(10**7 + i % 40) for i in range(400)], "", "numbers from 10,000,000"),
    ("bid", [str(i % 40) for i in range(400)], "", "numbers from 0 to 39"),
    ("at", [str(1_500_000_000 + 977 * (i // 2)) for i in range(60)], "",
     "seconds since 1970 that rise"),
    ("at", [str(1_500_000_000_123 + 977 * (i // 2)) for i in range(60)], "",
     "milliseconds since 1970 that rise"),
    ("account", [str(10**17 + i % 40) for i in range(400)], "category", "40 texts: 10000000"),
    ("card", [str(10**17 + i % 2) for i in range(400)], "category", "2 texts: 1000000000000000"),
    ("time", [f"{1999 + i / 24:.3f}" for i in range(60)], "", "from 1999 to 2001.46, years that"),
    ("dist", [f"{1999 + i * 7 % 11 / 24:.3f}" for i in range(60)], "", "from 1999 to 1999.42"),
    ("subject", [str(i // 3) for i in range(120)], "id", "40 different whole numbers, and"),
    ("year", [str(i) for i in range(1950, 2000)], "", "numbers from 1950 to 1999"),
    ("pupilNR", ["7", "3", "9"], "id", "a different whole number in every row"),
    ("classNR", [str(i // 3) for i in range(120)], "id", "40 different whole numbers, and"),
    ("PID", ["7", "3", "9"], "id", "a different whole number in every row"),
    ("FINR", ["7", "3", "9"], "", "numbers from 3 to 9"),
    ("density", ["0.05", "54058.8"], "", "numbers from 0.05 to 54,059"),
    ("salary", ["1136.36", "197000"], "", "numbers from 1136.36 to 197,000"),
    ("drive", ["2-Wheel Drive, Front", "All", "All"], "category",
     '2 texts: "2-Wheel Drive, Front", All'),
    ("town", [f"t{i % 40}" for i in range(400)], "category", "40 texts: t0, t1, t10, t11, ..."),
    ("town", [f"t{i % 40}" for i in range(10_000)], "{type: category, encode: embedding}",
     "40 texts: t0, t1, t10, t11, ..."),
    ("text", [f"t{i % 200}" for i in range(400)], "drop", "200 different texts in 400 rows"),
    ("mass", [f"{i // 2}.5{'*' * (i % 5 == 0)}" for i in range(200)], "drop",
     'different texts in 200 rows; 40 cells such as "0.5*" are not a number, unlike all others'),
    ("mass", [f"{i}.5{'*' * (i % 5 == 0)}" for i in range(200)], "id", '"0.5*" are not a number'),
    ("part", [f"{i},{i % 7}" for i in range(40)], "drop", 'but decimal is "." in this file'),
    ("user_id", [f"u{i % 200}" for i in range(400)], "id", "200 different texts, and the name"),
    ("text", [f"{i} {'word ' * 9}" for i in range(30)], "drop", "free text: 30 different values"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "cells", "spec", "why"), CASES)
def test_proposals(name, cells, spec, why):
    found = propose(frame(name, cells), name)
    assert (found.spec, found.name) == (spec, name)
    assert why in found.why


@pytest.mark.parametrize(("name", "cells", "spec", "why"), CASES)
def test_a_proposal_can_be_followed(name, cells, spec, why):
    import yaml

    if "12 kg" in cells:
        return  # which needs na_values, too
    read = frame(name, cells)
    filler = np.array([str(i % 3) for i in range(len(cells))], object)
    columns = {name: read.column(name), "filler": filler, "y": read.column("y")}
    made = Frame("t.csv", columns.keys(), columns.values(), read.lines)
    given = yaml.safe_load(spec) if spec else "number"
    if spec == "drop":
        Table(made, "y", drop=[name]).fit()
    else:
        Table(made, "y", {name: given}).fit()


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["2024-01-02", "2024-01-31"], None),
        (["2024-01-02T10:00:00Z", "2024-01-31 10:00+01:00"], None),
        (["2013/02/27 10:00", "2013/12/27 23:59"], "%Y/%m/%d %H:%M"),
        (["Jan 1 2000", "May 31 2001"], "%b %d %Y"),
        (["May 1 2000", "January 31 2001"], "%B %d %Y"),
        (["Jun-08-2013", "Dec-31-2013"], "%b-%d-%Y"),
        (["26 March 2014", "1 May 2014"], "%d %B %Y"),
        (["01JAN2000", "31DEC2000"], "%d%b%Y"),
        (["Friday, May 3, 2013", "Monday, May 13, 2013"], "%A, %b %d, %Y"),
        (["20130614", "20131231"], "%Y%m%d"),
        (["11/10/15", "12/31/15"], "%m/%d/%y"),
        (["31.12.2015 10:00:30", "01.02.2016 23:00:00"], "%d.%m.%Y %H:%M:%S"),
        (["1/31/2013 3:04 PM", "2/1/2013 11:04 AM"], "%m/%d/%Y %I:%M %p"),
        (["2013-02", "2013-12"], "%Y-%m"),
        (["Aug-2013", "May-2013"], "%b-%Y"),
        (["2013Q2", "2014Q1"], "%YQ%q"),
        (["Q2 2013", "Q1 2014"], "Q%q %Y"),
        (["09:00", "23:59"], "%H:%M"),
        # Each of day and month may come first, but by one of them the rows are in order,
        (["03/01/2020", "04/01/2020", "05/01/2020", "01/02/2020"], "%d/%m/%Y"),
        (["01/03/2020", "01/04/2020", "01/05/2020", "02/01/2020"], "%m/%d/%Y"),
        # or all are of the first of a month.
        (["03/01/2020", "05/01/2020", "01/01/2020"], "%m/%d/%Y"),
        (["10-12", "15-17"], "no dates"),
        (["t12", "q1"], "no dates"),
        (["12/15", "1/2"], "no dates"),
        (["2013-02-30", "2013-02-01"], "no dates"),
    ],
)
def test_the_format_of_dates(cells, form):
    found = format_of(cells)
    assert (found and found[0]) == {None: "", "no dates": None}.get(form, form)
    if found is None:
        return
    spec = {"type": "date", "format": found[0] or None, "parts": ["year", "month", "days"]}
    table = Table({"d": np.array(cells, object), "y": [0.5] * len(cells)}, "y", {"d": spec})
    x, *_ = table.fit()[0].encode(table.frame)
    assert (x[:, 1:13].sum(axis=1) == 1).all()


def test_dates_that_may_be_of_two_formats_are_named():
    cells = ["03/04/2020", "07/09/2020", "01/02/2020", "05/04/2020"]
    found = propose(frame("when", cells), "when")
    assert '"%d/%m/%Y"' in found.spec
    assert "%m/%d/%Y" in found.why


@pytest.mark.parametrize("name", ["", "index", "rownames", "Nr", "No", "id", "Unnamed: 0", "plain"])
@pytest.mark.parametrize("cells", [range(30), [*range(0, 90, 3)], [7 * i % 31 for i in range(30)]])
def test_row_numbers_are_no_inputs(name, cells):
    table = frame(name, [str(i) for i in cells], first=True)
    assert propose(table, name).spec == "id"


def test_times_that_rise_are_no_row_numbers():
    times = [str(1_500_000_000 + 60 * i) for i in range(30)]
    assert propose(frame("at", times, first=True), "at").spec == ""
    assert propose(frame("id", times, first=True), "id").spec == "id"


def test_whole_numbers_that_are_the_one_input_are_numbers():
    table = read_csv("t.csv", content=b"a,y\n" + b"".join(b"%d,1\n" % i for i in range(30)))
    assert propose(table, "a").spec == ""


COLUMNS = {
    "size": [i / 7 for i in range(60)],
    "lat": [i / 9 for i in range(60)],
    "plan": ["a", "b"] * 30,
    "churned": ["yes", "no"] * 30,
    "Species": ["x", "y", "z"] * 20,
    "when": [f"2024-01-{1 + i % 30:02}" for i in range(60)],
    "key": [f"k{i}" for i in range(60)],
    "x": [i / 3 for i in range(60)],
    "y": [i / 5 for i in range(60)],
    "z": [i / 11 for i in range(60)],
    "at": [1_500_000_000 + 977 * i for i in range(60)],
    "time": [round(1999 + i / 24, 3) for i in range(60)],
    "statefips": [i % 10 for i in range(60)],
}


@pytest.mark.parametrize(
    ("names", "target"),
    [
        (["size", "churned", "plan"], "churned"),
        (["size", "Species"], "Species"),
        (["plan", "size"], "size"),
        (["size", "y", "plan"], "y"),
        (["x", "y", "z", "size"], "size"),
        (["size", "plan", "when"], ["plan", "size"]),
        (["size", "plan", "key"], ["plan", "size"]),
        (["size", "plan", "lat"], ["plan", "size"]),
        (["size", "plan", "statefips"], ["plan", "size"]),
        (["size", "plan", "at"], ["plan", "size", "at"]),  # which may be it, after all
        (["size", "plan", "time"], ["plan", "size", "time"]),
        (["at", "time"], "time"),
    ],
)
def test_the_target_is_guessed_or_asked_for(names, target):
    table = Frame("t", names, [COLUMNS[name] for name in names])
    proposals = {name: propose(table, name) for name in names}
    if isinstance(target, str):
        assert guess_target(table, proposals, "init")[0] == target
        return
    with pytest.raises(DataError) as caught:
        guess_target(table, proposals, "init")
    lines = str(caught.value).splitlines()
    assert lines[2:] == [f"  init --target {name}" for name in target]


@pytest.mark.parametrize("rare", [0, 1, 2, 9])
@pytest.mark.parametrize("name", ["late", "fraud"])
def test_a_class_that_nearly_all_rows_have_is_asked_for_unless_its_name_says_so(name, rare):
    cells = [*["no"] * (400 - rare), *["yes"] * rare]
    table = Frame("t", ["size", name], [[i / 7 for i in range(400)], cells])
    proposals = {each: propose(table, each) for each in table.names}
    if rare == 9 or (rare and name == "fraud"):
        assert guess_target(table, proposals, "init")[0] == name
        return
    with pytest.raises(DataError) as caught:
        guess_target(table, proposals, "init")
    first, _, *ways = str(caught.value).splitlines()
    why = f'"no" in {400 - rare} of 400 rows' if rare else '"no" in every row'
    assert first.endswith(f'The last one, "{name}", does not seem to be it ({why})')
    assert ways == ["  init --target size", *[f"  init --target {name}"] * bool(rare)]


GOALS = [0] * 30 + [1] * 25 + [2] * 12 + [3] * 6 + [4, 5]


@pytest.mark.parametrize(
    ("name", "cells", "kind"),
    [
        ("goals", GOALS, "not classes"),
        ("label", GOALS, "classes"),
        ("y", [0, 1] * 30, "classes"),
        ("y", [0, 1, 2] * 30, "classes"),
        ("y", [*range(10)] * 6, "classes"),
        ("y", [*range(50)], "numbers"),
        ("y", ["a", "b"] * 30, "classes"),
        ("y", [1, 2, "b"] * 30, "classes"),
    ],
)
def test_what_a_target_holds(name, cells, kind):
    content = f"a,{name}\n" + "".join(f"1,{cell}\n" for cell in cells)
    found = describe(read_csv("t.csv", content=content.encode()), name)
    assert kind in found.found
    assert found.is_classes == (kind == "classes")
