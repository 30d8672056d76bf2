"""`microtrain init csv FILE`: a configuration for a table of one's own, with reasons."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from customers import customers, write

from microtrain.cli import init_table
from microtrain.cli.main import main
from microtrain.config.load import load_config
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
        "churned target by its name; 2 classes: no 86%, yes 14%".split()
    )
    assert out.endswith("wrote customers.yaml\nnext: microtrain train customers.yaml\n")
    text = Path("customers.yaml").read_text()
    for line in (
        "  target: churned  # by its name; 2 classes: no 86%, yes 14%",
        "    customer_id: id                          # another text in every row",
        "    plan: category                           # 3 texts: Basic, Plus, Pro",
        "  drop: [comment]  # comment: free text: 400 different ones",
        "  # in split, in place of stratify: `time: signed_up` tests on the latest rows",
    ):
        assert line in text.splitlines()
    assert main(["check", "customers.yaml"]) == 0
    assert main(["init", "csv", "customers.csv"]) == 2
    assert "customers.yaml already exists; choose another name with --output FILE" in (
        capsys.readouterr().err
    )
    assert Path("customers.yaml").read_text() == text


TABLES = {
    "regression": ("a;b;price\n" + "".join(f"{i % 7};{i % 5};{i}.5\n" for i in range(40)), (
        "  delimiter: \";\"", "loss: mse", "metrics: [r2, rmse, mae]", *init_table._OF_TARGET,
    )),
    "codes": ("a,b,label\n" + "".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(40)), (
        "  categorical: true  # whole numbers that name classes", "loss: cross_entropy",
        "metrics: [accuracy, balanced_accuracy, {type: f1, average: macro}, log_loss]",
    )),
    "towns": ("a,town,y\n" + "".join(f"{i},t{i % 40},{i % 90 / 7}\n" for i in range(400)), (
        "    town: {type: category, encode: embedding}  # 40 texts: t0, t1, t10, t11, ...",
        "model: {type: mlp, hidden: [64, 64]}",
    )),
    "odd names": ('"a: b","#c","y y"\n' + "".join(f"{i % 7},{i % 5},{i}\n" for i in range(40)), (
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
    assert '  delimiter: ";"\n  decimal: ","\n' in text
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


def test_commas_that_may_be_of_thousands_are_no_decimals(capsys):
    rows = "".join(f'"{i % 3 + 1},{i:03}",{i % 5},{i % 2}\n' for i in range(40))
    Path("t.csv").write_text("a,b,y\n" + rows)
    assert main(["init", "csv", "t.csv"]) == 0
    assert '40 cells such as "1,000" not a number: correct them' in capsys.readouterr().out
    assert "decimal" not in Path("t.yaml").read_text()
    assert main(["train", "t.yaml", "run_dir=runs"]) == 3
    assert "thousands separators: is it 1000, or 1.000?" in capsys.readouterr().err


def test_codes_with_leading_zeros_are_categories_and_classes(capsys):
    rows = "".join(f"{i % 4:02},{i},{i % 3:03}\n" for i in range(60))
    Path("t.csv").write_text("region,size,y\n" + rows)
    assert main(["init", "csv", "t.csv"]) == 0
    shown = capsys.readouterr().out
    assert "4 texts: 00, 01, 02, 03, codes with leading zeros" in shown
    assert "3 classes: 000 33%, 001 33%, 002 33%" in shown
    text = Path("t.yaml").read_text()
    assert "categorical: true" in text and "    region: category" in text
    rows = "".join(f"{i % 97},{i % 30:03}\n" for i in range(300))
    Path("u.csv").write_text("size,y\n" + rows)
    assert main(["init", "csv", "u.csv"]) == 0
    assert "30 classes: 000 3%" in capsys.readouterr().out


def test_the_index_of_a_data_frame_is_proposed_for_nothing(capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    content = {"a": [i % 7 for i in range(40)], "b": [i / 3 for i in range(40)]}
    content["__index_level_0__"] = [3 * i % 41 for i in range(40)]
    parquet.write_table(pyarrow.table(content), "t.parquet")
    assert main(["init", "csv", "t.parquet"]) == 0
    assert "target: b  # the last column" in Path("t.yaml").read_text()
    assert "drop: [__index_level_0__]" in Path("t.yaml").read_text()


@pytest.mark.parametrize("name", TABLES)
def test_what_is_proposed_trains(name):
    content, lines = TABLES[name]
    Path("my table.csv").write_text(content)
    assert main(["init", "csv", "my table.csv", "--output", "t.yaml"]) == 0
    for line in lines:
        assert line in Path("t.yaml").read_text().splitlines()
    assert main(["train", "t.yaml", "train.duration=2 epochs", "train.compile=off"]) == 0


def test_it_says_that_it_reads_a_large_file(capsys, monkeypatch):
    monkeypatch.setattr(init_table, "_LARGE", 10)
    Path("few.csv").write_text("a,b,y\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(40)))
    assert main(["init", "csv", "few.csv", "--target", "y"]) == 0
    assert capsys.readouterr().err.startswith("reading few.csv, ")


def test_the_target_can_be_named(capsys):
    Path("t.csv").write_text("label,b,c\n" + "".join(f"{i % 2},{i % 5},{i}.5\n" for i in range(40)))
    assert main(["init", "csv", "t.csv", "--target", "c", "--output", "c.yaml"]) == 0
    assert "  target: c  # as you said; numbers from 0.5 to 39.5" in Path("c.yaml").read_text()
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
        (["csv", "same.csv"], 3, "no column but y seems to be an input"),
        (
            ["csv", "blanks.csv"],
            3,
            "GRADE seems to be an input\nhint: are its cells separated by bl",
        ),
    ],
)
def test_mistakes(arguments, code, message, capsys):
    Path("t.csv").write_text("a,y\n1,2\n2,3\n")
    Path("same.csv").write_text("a,y\n1,2\n1,3\n")
    Path("blanks.csv").write_text("Obs  TUCE GRADE\n1  20 1\n2  21 0\n")
    assert main(["init", *arguments]) == code
    assert message in capsys.readouterr().err


def table_of(rows, curved):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((rows, 3)).round(4)
    y = x @ [1.0, -2.0, 0.5] + rng.standard_normal(rows)
    if curved:
        y = 4 * np.sin(2 * x[:, 0]) + 0.1 * y
    cells = [f"{a},{b},{c},{d:.4f}\n" for (a, b, c), d in zip(x.tolist(), y, strict=True)]
    return "a,b,c,y\n" + "".join(cells)


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
