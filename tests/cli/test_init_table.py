"""`microtrain init csv FILE`: a configuration for a table of one's own, with reasons."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from customers import customers, write

from microtrain.cli import init_table
from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.data.readers import csv as csv_reader
from microtrain.runs.directory import newest_run

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_what_every_column_seems_to_be_and_why(capsys):
    write(Path("customers.csv"), customers(400))
    assert main(["init", "csv", "customers.csv"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == (
        "churned target by its name; 2 classes: no (86%), yes (14%)".split()
    )
    assert out.endswith("wrote customers.yaml\nnext: microtrain train customers.yaml\n")
    text = Path("customers.yaml").read_text()
    for line in (
        "  target: churned  # by its name; 2 classes: no (86%), yes (14%)",
        "  standardize: true  # numbers and dates",
        "  drop: [comment]  # comment: free text: 400 different values",
        "  # in split, in place of stratify: `time: signed_up` tests on the latest rows",
    ):
        assert line in text.splitlines()
    assert main(["check", "customers.yaml"]) == 0
    assert main(["init", "csv", "customers.csv"]) == 2
    assert "customers.yaml already exists; choose another name with --output FILE" in (
        capsys.readouterr().err
    )
    assert Path("customers.yaml").read_text() == text


def test_it_points_out_a_rare_text_that_is_a_slip(capsys):
    soils = ["clay", "loam", "sand1"] * 12
    rows = [f"{soil},{i},{'yes' if i % 2 else 'no'}" for i, soil in enumerate(soils)]
    rows += ["caly,3,no", "sand11,4,Yes ", ",5,no"]
    Path("soil.csv").write_text("\n".join(["soil,depth,target", *rows]) + "\n")
    assert main(["init", "csv", "soil.csv"]) == 0
    out = capsys.readouterr().out
    assert 'caly, clay, loam, sand1, sand11; "caly" (1 row) may mean "clay"' in out
    assert 'Yes (3%); "Yes" (1 row) may mean "yes"' in out
    assert out.count("may mean") == 2


def test_short_codes_and_empty_targets_are_not_slips(capsys):
    rows = [f"{'AB' if i else 'A'},{i % 7},{'x' if i % 2 else 'n'}" for i in range(40)]
    Path("blood.csv").write_text("\n".join(["group,age,target", *rows, "AB,3,"]) + "\n")
    assert main(["init", "csv", "blood.csv"]) == 0
    out = capsys.readouterr().out
    assert "2 texts: A, AB" in out and "may mean" not in out


TABLES = {
    "regression": ("a;b;price\n" + "".join(f"{i % 7};{i % 5};{i}.5\n" for i in range(40)), (
        "  delimiter: \";\"", "loss: mse", "metrics: [r2, rmse, mae]", *init_table._OF_TARGET,
    )),
    "codes": ("a,b,label\n" + "".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(40)), (
        "  categorical: true  # each text is the name of a class", "loss: cross_entropy",
        "metrics: [accuracy, balanced_accuracy, {type: f1, average: macro}]",
    )),
    "towns": ("a,town,y\n" + "".join(f"{i},t{i % 40},{i % 90 / 7}\n" for i in range(400)), (
        "    town: category  # 40 texts: t0, t1, t10, t11, ...", "model: linear_regression",
    )),
    "many rows of towns": (
        "a,town,y\n" + "".join(f"{i % 9},t{i % 40},{i % 90 / 7}\n" for i in range(10_000)), (
        "    town: {type: category, encode: embedding}  # 40 texts: t0, t1, t10, t11, ...",
        "model: {type: mlp, hidden: [64, 64]}",
    )),
    "many rows, not all with a value to predict": (
        "town,a,y\n" + "".join(f"t{i % 40},{i % 9},{i / 7 if i % 40 < 22 else ''}\n"
                               for i in range(10_000)), (
        "    town: category  # 22 texts: t0, t1, t10, t11, ...", "model: linear_regression",
    )),
    "dates of a regression": (
        "day,a,y\n" + "".join(f"2024-01-{i % 28 + 1:02},{i % 9},{i / 7}\n" for i in range(60)), (
        "  # in split: `time: day` tests on the latest rows",
    )),
    "odd names": ('"a: b",<<,"y y"\n' + "".join(f"{i % 7},{i % 5},{i}\n" for i in range(40)), (
        '    "a: b": number  # numbers from 0 to 6', '  target: y y  # the last column; numbers '
        "from 0 to 39",
    )),
}  # fmt: skip


def test_decimal_commas_are_seen(capsys):
    rows = "".join(f"{i % 7},5;{i % 5};1.{i:03},25\n" for i in range(40))
    Path("t.csv").write_text("a;b;y\n" + rows)
    assert main(["init", "csv", "t.csv"]) == 0
    assert "a  number  numbers from 0.5 to 6.5" in capsys.readouterr().out
    text = Path("t.yaml").read_text()
    assert '  delimiter: ";"\n  decimal: ","  # as in' in text
    assert "numbers from 1000.25 to 1039.25" in text
    assert main(["train", "t.yaml", "train.duration=2 epochs", "train.compile=off"]) == 0
    Path("new.csv").write_text("a;b\n0,5;1\n")
    Path("point.csv").write_text("a;b\n0.5;1\n")
    capsys.readouterr()
    assert main(["predict", "runs/t", "--input", "new.csv", "--output", "-"]) == 0
    capsys.readouterr()
    assert main(["predict", "runs/t", "--input", "point.csv", "--output", "-"]) == 3
    assert 'point.csv, line 2, column "a": expected a number, found the text "0.5"' in (
        capsys.readouterr().err
    )


def lines(names, row, rows=60):
    return "\n".join([names, *map(row, range(rows))]) + "\n"


# Tables as they come: what is proposed for each trains, and its lines say what was seen. The target
# depends on what was read with difficulty, so that a wrong value would show.
AS_THEY_COME = {
    "row numbers with gaps": (
        lines(",a,y", lambda i: f"{i * 3 % 181},{i % 7}.5,{i % 7 * 2}.5"), [], ['    "": id']),
    "names of rows": (
        lines("rownames,a,y", lambda i: f"Player {i},{i % 7}.5,{i % 7}"), [], ["    rownames: id"]),
    "no target in some rows": (
        lines("a,b,Salary", lambda i: f"{i % 7},{i % 5},{i * 1.5 if i % 6 else 'NA'}"), [],
        ["  missing_target: drop  # 10 rows without a value in \"Salary\" left out"]),
    "no class in some rows": (
        lines("a,b,kind", lambda i: f"{i % 7},{i % 5},{('x', 'y', 'NA')[i % 3]}"), [],
        ["  na_values: [NA]", "  missing_target: drop"]),
    "one odd text among few values": (
        lines("doors,price", lambda i: f"{(4, 6, 8, 'rotary')[i % 4]},{i % 4}.25"), [],
        ["    doors: category"]),
    "a text among the numbers of a target": (
        lines("a,gears", lambda i: f"{i / 7},{(4, 6, 8, 'none')[i % 4]}"), [],
        ["  categorical: true"]),
    "one odd text among many values": (
        lines("a,price", lambda i: f"{i * i / 8 if i != 50 else 'unknown'},{i % 4}.25"), [],
        ["  na_values: [unknown]", "    a: {missing: median}"]),
    "numbers in another form among many": (
        lines("a,y", lambda i: f"{i / 8 if i % 9 else f'({i})'},{i}.5"), [],
        ['  na_values: ["(0)", "(18)", "(27)", "(36)", "(45)", "(54)", "(9)"]  # stand for no '
         'value, in every column; if "(0)" is one, correct the file', "    a: {missing: median}"]),
    "points and angles for no value": (
        lines("a,b,y", lambda i: f"{i / 7 if i % 5 else '.'},{i / 3 if i % 9 else '<NA>'},{i}.5"),
        [], ["    a: {missing: median}", "    b: {missing: median}"]),
    "thousands, percent and currency": (
        lines("pop,growth,rent,y", lambda i: (
            f'"{i % 9 + 1},{i:03},567",{i % 7}.5%,$ {i / 4},{i}.5')), [],
        ['  thousands: ","', '  units: ["$", "%"]', "    pop: number", "    growth: number"]),
    "apostrophes between thousands": (
        lines("a;y", lambda i: f"{1 + i}'{i:03}.5;{i}.5"), [],
        ["  thousands: \"'\"", "    a: number"]),
    "a blank before a unit": (
        lines("a;y", lambda i: f"{1 + i}.{i:03},50 €;{i},5"), [],
        ['  units: ["€"]  # as in 1.000,50 €: no', '  decimal: ","', "    a: number"]),
    "numbers with and without a unit": (
        lines("a,y", lambda i: f"{i % 7 / 7 if i % 5 else f'{i}%'},{i}.5"), [],
        ["  units: [\"%\"]  # as in 5%: no part of the number; but column a has 5% "
         "and 0.14285714285714285: on the same scale?"]),
    "names over several lines": (
        lines('"height\n(cm)","a, b",y', lambda i: f'{i / 7},"{i % 7}\n",{i}.5'), [],
        ['    "height\\n(cm)": number']),
    "blanks before quotes": (
        lines('"a", "town, country", "y"', lambda i: f'{i / 7}, "{"AB"[i % 2]}, x", {i}.5'), [],
        ['    "town, country": category  # 2 texts: "A, x", "B, x"']),
    "columns without names": (
        lines("a,,flow,,", lambda i: f"{i / 7},,{i}.5,,"), [],
        ["  target: flow", '  drop: [""]  # "": 3 columns without a name']),
    "a unit in every row": (lines("a,y", lambda i: f"{i} kg,{i}.5"), [], ["  units: [kg]"]),
    "dates as numbers": (
        lines("date,co2", lambda i: f"{1990 + i // 12}{1 + i % 12:02}15,{i}.5"), [],
        ['    date: {type: date, format: "%Y%m%d", parts: [year, month, days]}']),
    "dates with times": (
        lines("date,temp", lambda i: f"2010/01/{1 + i // 24:02} {i % 24:02}:00,{i % 24}.5"), [],
        ['    date: {type: date, format: "%Y/%m/%d %H:%M", parts: [day_of_week, hour, days]}']),
    "names of months": (
        lines("date,temp", lambda i: f'"Jan {1 + i % 28}, {2000 + i}",{i}.5'), [],
        ['    date: {type: date, format: "%b %d, %Y", parts: [year, day_of_week, days]}']),
    "months": (
        lines("date,y", lambda i: f"{2000 + i // 12}-{1 + i % 12:02},{i}.5"), [],
        ['    date: {type: date, format: "%Y-%m", parts: [year, month, days]}']),
    "quarters": (
        lines("date,y", lambda i: f"{2000 + i // 4}Q{1 + i % 4},{i}.5"), [],
        ['    date: {type: date, format: "%YQ%q", parts: [year, month, days]}']),
    "codes": (
        lines("zip,store_id,month,y", lambda i: (
            f"{(501, 2139, 94110)[i % 3]:05},{101 + i % 4},{1 + i % 12},{i}.5")), [],
        ["    zip: category", "    store_id: category", "    month: category"]),
    "Windows": (
        lines("Stadt;Tag;Umsatz;Gebühr;Gewinn", lambda i: (
            f"{('Köln', 'Zürich')[i % 2]};{1 + i % 28:02}.01.2020;{1 + i % 7}.{i:03},77;€ {i};{i},5"
        )).encode("cp1252"), [],
        ["  encoding: cp1252", '  delimiter: ";"', '  decimal: ","', '  units: ["€"]',
         "    Stadt: category"]),
    "UTF-16": (
        lines("Größe\tname\ty", lambda i: f"{i / 7}\t{'äß'[i % 2]}\t{i}.5").encode("utf-16"), [],
        ["  encoding: utf-16", '  delimiter: "\\t"', '    "Größe": number']),
    "blanks": (
        lines("OBS GPA  TUCE y", lambda i: f" {i}  {i % 7}.5 {i % 5}   {i}.5 "), [],
        ["  delimiter: whitespace", "    OBS: id"]),
    "an hour as the last column": (
        lines("delay,carrier,when", lambda i: (
            f"{i * 7 % 60}.5,{'AB'[i % 2]},2013-01-01T{i % 24:02}:00:00Z")),
        ["--target", "delay"], ["    when: {type: date, parts: [hour, days]}"]),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_THEY_COME)
def test_tables_as_they_come_train(name, capsys):
    content, options, expected = AS_THEY_COME[name]
    Path("t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["init", "csv", "t.csv", *options]) == 0
    text = Path("t.yaml").read_text()
    assert [line for line in expected if f"\n{line}" not in text] == []
    changes = ["train.duration=2 epochs", "train.compile=off"]
    assert main(["train", "t.yaml", *changes]) == 0, capsys.readouterr().err
    assert main(["predict", "runs/t", "--input", "t.csv", "--output", "p.csv"]) == 0
    assert len(Path("p.csv").read_text().splitlines()) == 61
    capsys.readouterr()
    assert main(["evaluate", "runs/t", "--data", "t.csv"]) == 0, capsys.readouterr().err


def test_new_files_are_read_as_the_table_was(capsys):
    """Words of absence, units, encoding, delimiter and parts of dates hold for every file."""
    import microtrain as mt

    row = lambda i: f"{i}.2.2020;{i % 9},5 €;{'?' if i % 7 == 0 else 'ü'};{i % 4}"  # noqa: E731
    rows = [row(1 + i % 28) for i in range(60)]
    Path("t.csv").write_bytes("\n".join(["Tag;Gebühr;Ort;y", *rows]).encode("cp1252"))
    Path("t.yaml").write_text(
        "name: t\ndata:\n  type: csv\n  path: t.csv\n  delimiter: ';'\n  decimal: ','\n"
        "  encoding: cp1252\n  units: [€]\n  na_values: ['?']\n  target: y\n  columns:\n"
        "    Tag: {type: date, format: '%d.%m.%Y', parts: [day_of_week, days]}\n"
        "    Ort: {type: category, missing: none}\n  split: {train: 0.8, val: 0.2}\n"
        "model: linear_regression\nloss: mse\noptimizer: {type: adam, lr: 0.01}\n"
        "train: {duration: 3 steps, batch_size: 16, compile: off}\n"
    )
    assert main(["train", "t.yaml"]) == 0
    new = "Tag;Gebühr;Ort\n3.2.2020;4,5;?\n4.2.2020;5 €;ü\n"
    Path("new.csv").write_bytes(new.encode("cp1252"))
    assert main(["predict", "runs/t", "--input", "new.csv", "--output", "p.csv"]) == 0
    model = mt.load("runs/t")
    columns = {"Tag": ["3.2.2020", "4.2.2020"], "Gebühr": [4.5, 5.0]}
    expected = model.predict(columns | {"Ort": [None, "ü"]})
    assert Path("p.csv").read_text().split()[1:] == [*map(str, expected)]
    assert model.predict(columns | {"Ort": ["?", "ü"]}).tolist() == expected.tolist()


@pytest.mark.parametrize("arrow", [True, False])
def test_a_file_has_one_proposal_whatever_is_installed(arrow, monkeypatch):
    found = []
    for size in (1 << 30, 0):  # of files that another reader reads
        monkeypatch.setattr(csv_reader, "LARGE", size)
        monkeypatch.setattr(csv_reader, "ROWS", 1000 if size else 20)
        if not arrow:
            monkeypatch.setitem(sys.modules, "pyarrow", None)
        for name, (content, options, _) in AS_THEY_COME.items():
            Path("t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
            Path("t.yaml").unlink(missing_ok=True)
            assert main(["init", "csv", "t.csv", *options]) == 0, name
            found.append(Path("t.yaml").read_text())
    assert found[: len(AS_THEY_COME)] == found[len(AS_THEY_COME) :]


def test_a_target_that_is_a_date_is_asked_for(capsys):
    content = AS_THEY_COME["an hour as the last column"][0]
    Path("t.csv").write_text(content)
    assert main(["init", "csv", "t.csv"]) == 3
    assert "init csv t.csv --target carrier\n  microtrain init csv t.csv --target delay" in (
        capsys.readouterr().err
    )
    assert not Path("t.yaml").exists()


def test_codes_with_leading_zeros_are_categories_and_classes(capsys):
    rows = "".join(f"{i % 4:02},{i},{i % 3:03}\n" for i in range(60))
    Path("t.csv").write_text("region,size,y\n" + rows)
    assert main(["init", "csv", "t.csv"]) == 0
    shown = capsys.readouterr().out
    assert "4 texts: 00, 01, 02, 03, codes with leading zeros" in shown
    assert "3 classes: 000 (33%), 001 (33%), 002 (33%)" in shown
    text = Path("t.yaml").read_text()
    assert "categorical: true" in text and "    region: category" in text
    rows = "".join(f"{i % 97},{i % 30:03}\n" for i in range(300))
    Path("u.csv").write_text("size,y\n" + rows)
    assert main(["init", "csv", "u.csv"]) == 0
    assert "30 classes: 000 (3%)" in capsys.readouterr().out


def test_the_index_of_a_data_frame_is_proposed_for_nothing(capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    content = {"a": [i % 7 for i in range(40)], "b": [i / 3 for i in range(40)]}
    content["__index_level_0__"] = [3 * i % 41 for i in range(40)]
    parquet.write_table(pyarrow.table(content), "t.parquet")
    assert main(["init", "csv", "t.parquet"]) == 0
    assert "target: b  # the last column" in Path("t.yaml").read_text()
    assert "drop: [__index_level_0__]" in Path("t.yaml").read_text()


def test_texts_of_digits_in_a_parquet_file_are_texts():
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    content = {"zip": ["94110", "10001", None, "60601"] * 10, "a": [1, None, 3, 4] * 10}
    content |= {"when": ["20130614", "20130615", "20130716", "20140101"] * 10, "y": [1.5, 2.5] * 20}
    parquet.write_table(pyarrow.table(content), "t.parquet")
    assert main(["init", "csv", "t.parquet"]) == 0
    text = Path("t.yaml").read_text()
    assert "    zip: {type: category, missing: none}" in text
    assert "    a: {missing: median}" in text
    assert (
        '    when: {type: date, format: "%Y%m%d", parts: [year, month, day_of_week, days]}' in text
    )
    assert main(["train", "t.yaml", "train.duration=2 epochs", "train.compile=off"]) == 0


@pytest.mark.parametrize("name", TABLES)
def test_what_is_proposed_trains(name):
    content, lines = TABLES[name]
    Path("my table.csv").write_text(content)
    assert main(["init", "csv", "my table.csv", "--output", "t.yaml"]) == 0
    for line in lines:
        assert line in Path("t.yaml").read_text().splitlines()
    assert main(["train", "t.yaml", "train.duration=2 epochs", "train.compile=off"]) == 0


def test_the_target_can_be_named(capsys):
    Path("t.csv").write_text("label,b,c\n" + "".join(f"{i % 2},{i % 5},{i}.5\n" for i in range(40)))
    assert main(["init", "csv", "t.csv", "--target", "c", "--output", "c.yaml"]) == 0
    assert (
        "  target: c  # given by --target; numbers from 0.5 to 39.5" in Path("c.yaml").read_text()
    )
    capsys.readouterr()
    assert main(["init", "csv", "t.csv", "--target", "lable"]) == 3
    assert 'has no column "lable"; did you mean label?' in capsys.readouterr().err
    assert not Path("t.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["csv", "none.csv"], 3, "there is no file none.csv"),
        (["csv", "here", "--target", "y"], 2, "go with a table: microtrain init csv FILE"),
        (["digits", "here", "--output", "y"], 2, "go with a table: microtrain init csv FILE"),
        (["csv", "t.csv", "--output", "none/t.yaml"], 5, "cannot write none/t.yaml"),
        (["csv", "rows.csv"], 3, "rows.csv: the first line holds numbers as the rows below it"),
        (["csv", "packed.csv.gz"], 3, "is compressed by gzip, not a CSV file; unpack it first"),
        (["csv", "old.xls"], 3, "old.xls is a spreadsheet, not a CSV file; save the sheet as"),
        (["csv", "wide.csv"], 3, "wide.csv has a NUL in every second byte, as UTF-16"),
        (
            ["csv", "report.csv"],
            3,
            "line 2: a blank line, expected 1 cell as in the header\n"
            "hint: delete blank lines, and those above the line with the column names",
        ),
        (["csv", "one.csv", "--target", "y"], 3, '"y": "5" in every row, so there is nothing'),
        (["csv", "same.csv"], 3, 'nothing left to predict y from: a ("1" in every row)'),
        (
            ["csv", "blanks.csv"],
            3,
            "Obs  TUCE GRADE from: there is no other column\nhint: are its cells separated by bl",
        ),
    ],
)
def test_mistakes(arguments, code, message, capsys):
    Path("t.csv").write_text("a,y\n1,2\n2,3\n")
    Path("one.csv").write_text("a,y\n1,5\n2,5\n3,5\n")
    Path("same.csv").write_text("a,y\n1,2\n1,3\n")
    Path("blanks.csv").write_text("Obs  TUCE GRADE\n1\n2\n")
    Path("rows.csv").write_text("5.1,3.5,1.4,setosa\n4.9,3.1,1.2,setosa\n5.5,3.6,1.7,other\n")
    Path("packed.csv.gz").write_bytes(gzip.compress(b"a,y\n1,2\n"))
    Path("old.xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16))
    Path("wide.csv").write_bytes("a,y\n1,2\n".encode("utf-16-le"))
    Path("report.csv").write_text("Report of sales\n\na,y\n1,2\n")
    assert main(["init", *arguments]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("names", ["1990,1995,2000", "900.5,800,700.5", "1,10,2", "0,pop,3"])
def test_numbers_may_be_names(names):
    Path("t.csv").write_text(lines(f"{names},y", lambda i: f"{i}.5,{i % 7},{3 + i % 5},{i}"))
    assert main(["init", "csv", "t.csv"]) == 0


@pytest.mark.parametrize("name", ["t.tsv", "t.TXT", "t.dat"])
def test_a_run_reads_files_that_are_called_as_its_own(name, capsys):
    Path(name).write_text(lines("a\tb\ty", lambda i: f"{i / 7}\t{i % 7}\t{i}.5"))
    assert main(["init", "csv", name]) == 0
    assert main(["train", "t.yaml", "train.duration=1 steps", "optimizer.l2=1"]) == 0
    assert main(["predict", "runs/t", "--input", name, "--output", "p.csv"]) == 0
    assert len(Path("p.csv").read_text().splitlines()) == 61
    assert main(["evaluate", "runs/t", "--data", name]) == 0
    assert main(["predict", "runs/t", "--input", "t.other", "--output", "-"]) == 2
    assert "expected a name that ends in .csv, .tsv, .txt, .parquet," in capsys.readouterr().err


def table_of(rows, curved):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((rows, 3)).round(4)
    y = x @ [1.0, -2.0, 0.5] + rng.standard_normal(rows)
    if curved:
        y = 4 * np.sin(2 * x[:, 0]) + 0.1 * y
    cells = [f"{a},{b},{c},{d:.4f}\n" for (a, b, c), d in zip(x.tolist(), y, strict=True)]
    return "a,b,c,y\n" + "".join(cells)


@pytest.mark.daily("True-mlp")
@pytest.mark.parametrize(("curved", "better"), [(False, "linear_regression"), (True, "mlp")])
def test_trying_writes_the_model_that_validates_better(capsys, directory, curved, better):
    Path("t.csv").write_text(table_of(300, curved))
    assert main(["init", "csv", "t.csv", "--try"]) == 0
    shown = capsys.readouterr()
    figures = {
        line.split(":")[0]: float(line.split()[2])
        for line in shown.out.splitlines()
        if "val/loss" in line
    }
    assert list(figures) == ["linear_regression", "mlp"]
    assert (figures["mlp"] < 0.9 * figures["linear_regression"]) is curved
    assert shown.err == "training linear_regression ...\ntraining mlp ...\n"
    assert sorted(path.name for path in directory.iterdir()) == ["t.csv", "t.yaml"]
    config = load_config("t.yaml")
    assert config.model.type == better
    assert main(["train", "t.yaml"]) == 0
    best = json.loads((newest_run(Path("runs/t")) / "run.json").read_text())["best"]["value"]
    assert best == pytest.approx(figures[better], rel=1e-4)


def test_what_is_not_proposed_stands_in_a_comment_and_works(capsys):
    Path("t.csv").write_text(table_of(60, False))
    assert main(["init", "csv", "t.csv"]) == 0
    text = Path("t.yaml").read_text()
    before, _, other = text.partition(
        "# Or, in place of these keys (init csv --try trains both):\n"
    )
    keys = yaml.safe_load(other.replace("# ", "", 1).replace("\n# ", "\n"))
    assert keys["model"] == {"type": "mlp", "hidden": [64, 64]}
    Path("m.yaml").write_text(yaml.safe_dump({**yaml.safe_load(before), **keys}))
    assert main(["check", "t.yaml"]) == main(["check", "m.yaml"]) == 0


def test_a_template_is_not_tried(capsys):
    assert main(["init", "linreg", "here", "--try"]) == 2
    assert "--try go with a table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "split"),
    [
        (999, {"train": 0.85, "val": 0.15}),
        (1000, {"train": 0.7, "val": 0.15, "test": 0.15}),
    ],
)
@pytest.mark.parametrize("classes", [False, True])
def test_few_rows_are_not_spent_on_a_test(rows, split, classes):
    targets = [("no", "yes")[i % 2] if classes else i / 7 for i in range(rows)]
    cells = [f"{i % 7},{i % 5},{y}\n" for i, y in enumerate(targets)]
    Path("t.csv").write_text("a,b,y\n" + "".join(cells))
    assert main(["init", "csv", "t.csv", "--target", "y"]) == 0
    found = yaml.safe_load(Path("t.yaml").read_text())
    assert found["data"]["split"] == {**split, **({"stratify": True} if classes else {})}
    penalties = found["optimizer"]["l2"]
    assert found["train"]["duration"] == f"{len(penalties)} steps"
    assert penalties[0] == (300 if rows < 1000 else 1000) and penalties[-1] == 0.1


@pytest.mark.parametrize("rows", [2, 3, 6, 7])
def test_what_is_proposed_for_a_handful_of_rows_trains(rows, capsys):
    Path("t.csv").write_text("a,y\n" + "".join(f"{i},{i / 7}\n" for i in range(rows)))
    assert main(["init", "csv", "t.csv", "--target", "y"]) == 0
    assert main(["train", "t.yaml"]) == 0, capsys.readouterr().err
    assert f"{rows - max(1, rows // 2) if rows < 7 else 6} train" in capsys.readouterr().out
