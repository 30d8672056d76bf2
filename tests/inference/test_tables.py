"""A model of a table in use: raw rows in, whatever their columns hold."""

import contextlib
import csv
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import microtrain as mt
from microtrain.cli.main import main
from microtrain.distributed import in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import DataError
from microtrain.inference.evaluate import evaluate_run
from microtrain.runs.run import Run
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

pytest.importorskip("sklearn")
pytestmark = pytest.mark.filterwarnings("ignore:.*treated as unknown")

ROWS = "".join(
    f"r{i},{'abc'[i % 3]},{'' if i % 9 == 4 else i % 7},2024-01-{i % 28 + 1:02},{1 + i % 2},"
    f"{'yes' if i % 3 == 0 else 'no'}\n"
    for i in range(90)
)
FILE = """
name: t
data:
  type: csv
  path: t.csv
  target: ok
  columns: {key: id, plan: category, since: date, size: {missing: mean}}
  weight: w
  standardize: true
  split: {train: 0.8, val: 0.2, stratify: true}
model: MODEL
loss: cross_entropy
optimizer: {type: adam, lr: 0.05}
train: {duration: 10 epochs, batch_size: 16, compile: "off"}
"""
MODELS = {
    "linear": ("logistic_regression", []),
    "embedded": ("{type: mlp, hidden: [8]}",
                 ["data.columns.plan={type: category, encode: embedding}"]),
}  # fmt: skip


@pytest.fixture(scope="module", params=["linear", "embedded"])
def run(request, tmp_path_factory):
    here = tmp_path_factory.mktemp("run")
    model, more = MODELS[request.param]
    (here / "t.csv").write_text("key,plan,size,since,w,ok\n" + ROWS)
    (here / "t.yaml").write_text(FILE.replace("MODEL", model))
    assert main(["train", str(here / "t.yaml"), f"run_dir={here / 'runs'}", *more]) == 0
    return here / "runs/t"


def predict(run, tmp_path, text, *options, code=0):
    (tmp_path / "new.csv").write_text(text)
    out = tmp_path / "out.csv"
    arguments = ["--input", str(tmp_path / "new.csv"), "--output", str(out), "--force", *options]
    assert main(["predict", str(run), *arguments]) == code
    if code:
        return None
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


NEW = "since,plan,key,size,note\n2024-02-01,a,x1,3,hello\n2024-03-01,b,x2,,\n"


def test_ids_and_kept_columns_stand_before_the_predictions(run, tmp_path, capsys):
    rows = predict(run, tmp_path, NEW, "--keep", "note, size")
    assert [*rows[0]] == ["key", "note", "size", "ok"]
    assert [(row["key"], row["note"], row["size"]) for row in rows] == [
        ("x1", "hello", "3"), ("x2", "", ""),
    ]  # fmt: skip
    assert capsys.readouterr().err == ""
    assert predict(run, tmp_path, NEW, "--keep", "note", "--keep", "size") == rows
    predict(run, tmp_path, NEW)
    assert capsys.readouterr().err == "note: columns that the model does not use: note\n"


def test_texts_that_look_like_numbers_come_back_as_they_were(tmp_path, capsys):
    """An id, a category and classes, in a file with decimal commas."""
    rows = [
        f"{1000 + i:,}".replace(",", ".") + f";{i / 7:.3f}".replace(".", ",")
        + f";{('2,5', '2.500', '2500')[i % 3]};{('1.000', '2.000')[i % 2]}"
        for i in range(40)
    ]  # fmt: skip
    (tmp_path / "t.csv").write_text("id;x;size;version\n" + "\n".join(rows) + "\n")
    (tmp_path / "t.yaml").write_text(
        "name: t\ndata: {type: csv, path: t.csv, target: version, categorical: true, "
        'delimiter: ";", decimal: ",", columns: {id: id, size: category}, '
        "split: {train: 0.8, val: 0.2}}\nmodel: logistic_regression\nloss: cross_entropy\n"
        "metrics: [{type: recall, positive: '2.000'}]\noptimizer: adam\n"
        'train: {duration: 1 epochs, batch_size: 8, compile: "off"}\n'
    )
    assert main(["train", str(tmp_path / "t.yaml"), f"run_dir={tmp_path / 'runs'}"]) == 0
    assert "recall_2.000" in capsys.readouterr().out
    out, run = tmp_path / "o.csv", str(tmp_path / "runs" / "t")
    command = ["predict", run, "--input", str(tmp_path / "t.csv"), "--output", str(out)]
    assert main([*command, "--proba", "--keep", "size,x"]) == 0
    assert "probability_1.000,probability_2.000" in out.read_text()
    with out.open(newline="") as file:
        found = [*csv.DictReader(file)]
    for row, line in zip(found, rows, strict=True):
        assert [row["id"], row["x"], row["size"]] == line.split(";")[:3]
        assert row["version"] in ("1.000", "2.000")
    assert main(["evaluate", run, "--data", str(tmp_path / "t.csv")]) == 0
    assert "1.000 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("classes", "others"),
    [
        (["007", "7"], []),
        (["01", "02"], []),
        (["1e3", "1000"], []),
        (["1.0", "2.0"], [[1, 2], [1.0, 2.0]]),
        (["1", "2"], [[1, 2], [1.0, 2.0], ["1.0", "2.0"]]),
        (["False", "True"], [[False, True], ["false", "true"]]),
    ],
)
def test_a_model_of_one_file_measures_another_by_the_classes_as_written(tmp_path, classes, others):
    def write(name, cells):
        content = "x,c\n" + "".join(f"{i % 2},{cells[i % 2]}\n" for i in range(40))
        (tmp_path / name).write_text(content)

    write("t.csv", classes)
    (tmp_path / "t.yaml").write_text(
        "name: t\ndata: {type: csv, path: t.csv, target: c, categorical: true, "
        "split: {train: 0.8, val: 0.2}}\nmodel: logistic_regression\nloss: cross_entropy\n"
        "metrics: [accuracy]\noptimizer: {type: adam, lr: 0.5}\n"
        'train: {duration: 9 epochs, batch_size: 8, compile: "off"}\n'
    )
    assert main(["train", str(tmp_path / "t.yaml"), f"run_dir={tmp_path / 'runs'}"]) == 0
    run, given = str(tmp_path / "runs/t"), {"comm": SingleCommunicator(), "warn": print}
    model = mt.load(run)
    assert list(map(str, model.predict([[0.0], [1.0]]))) == classes
    for i, cells in enumerate(others):
        files = [f"{i}.csv", f"{i}.npz"]
        write(files[0], cells)
        if not isinstance(cells[0], str):
            np.savez(tmp_path / files[1], x=np.array([[0.0], [1.0]] * 20), c=np.array(cells * 20))
            with contextlib.suppress(ImportError):
                import pyarrow
                from pyarrow.parquet import write_table

                files.append(f"{i}.parquet")
                columns = {"x": [0.0, 1.0] * 20, "c": cells * 20}
                write_table(pyarrow.table(columns), tmp_path / files[2])
        for file in [str(tmp_path / name) for name in files if (tmp_path / name).exists()]:
            part = evaluate_run(run, data_file=file, **given).parts[file]
            assert part.values["accuracy"] == 1.0
            assert part.classes.names == classes
    write("strange.csv", ["0" + classes[0], classes[1]])
    with pytest.raises(DataError, match=f'"0{classes[0]}" is not one of the 2 classes'):
        evaluate_run(run, data_file=str(tmp_path / "strange.csv"), **given)


def test_classes_of_true_and_false_are_measured_again(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    content = {"x": np.arange(40.0), "c": ["u", "v"] * 20, "ok": [i % 3 == 0 for i in range(40)]}
    for name in ("t", "v"):
        write_table(pyarrow.table(content), tmp_path / f"{name}.parquet")
    (tmp_path / "t.yaml").write_text(
        "name: t\ndata: {type: parquet, path: t.parquet, target: ok, categorical: true, "
        "columns: {c: category}, split: {train: 0.8, val: v.parquet, test: 0.2}}\n"
        "model: logistic_regression\nloss: cross_entropy\noptimizer: adam\n"
        'train: {duration: 1 epochs, batch_size: 8, compile: "off"}\n'
    )
    assert main(["train", str(tmp_path / "t.yaml"), f"run_dir={tmp_path / 'runs'}"]) == 0
    file = str(tmp_path / "t.parquet")
    given = {"comm": SingleCommunicator(), "warn": print}
    again = evaluate_run(str(tmp_path / "runs/t"), data_file=file, **given).parts[file]
    whole = evaluate_run(str(tmp_path / "runs/t"), part="val", **given).parts["val"]
    assert again.values == pytest.approx(whole.values)
    assert again.classes.support == [26, 14]


def test_a_kept_target_keeps_its_name(run, tmp_path):
    rows = predict(run, tmp_path, "since,plan,size,ok\n2024-02-01,a,3,no\n", "--keep", "ok")
    assert [*rows[0]] == ["ok", "predicted_ok"]
    assert rows[0]["ok"] == "no"


@pytest.mark.parametrize(
    ("name", "out", "options"),
    [
        ("predicted_ok", "o.csv", ["--keep", "ok,predicted_ok"]),
        ("probability_yes", "o.csv", ["--proba", "--keep", "probability_yes"]),
        ("prediction", "o.npz", ["--keep", "prediction"]),
        ("file", "o.npz", ["--keep", "file"]),
    ],
)
def test_a_kept_column_is_not_lost_to_a_prediction(run, tmp_path, capsys, name, out, options):
    (tmp_path / "new.csv").write_text(f"since,plan,size,ok,{name}\n2024-02-01,a,3,no,7\n")
    given = ["--input", str(tmp_path / "new.csv"), "--output", str(tmp_path / out)]
    assert main(["predict", str(run), *given, *options]) == 2
    assert f"{name} of the input cannot be kept beside predictions" in capsys.readouterr().err
    assert not (tmp_path / out).exists()


def test_a_table_and_a_file_give_the_same(run, tmp_path):
    rows = predict(run, tmp_path, NEW, "--proba")
    model = mt.load(run)
    table = {
        "plan": ["a", "b"], "since": np.array(["2024-02-01", "2024-03-01"], "datetime64[D]"),
        "size": [3, None],
    }  # fmt: skip
    chance = model.predict_proba(table)
    written = [[float(row["probability_no"]), float(row["probability_yes"])] for row in rows]
    np.testing.assert_allclose(written, chance, rtol=5.1e-6)


def test_a_warning_is_of_the_line_that_predicts(run):
    table = {"plan": ["new"], "since": ["2024-02-01"], "size": [3.0]}
    with pytest.warns(UserWarning, match="treated as unknown") as caught:
        mt.load(run).predict(table)
    assert caught[0].filename == __file__


def test_a_file_is_not_predicted_by_its_name(run):
    with pytest.raises(mt.errors.DataError, match="the input is a text, expected rows"):
        mt.load(run).predict("new.csv")
    with pytest.raises(mt.errors.DataError, match=r"; give the columns of a table|2 inputs"):
        mt.load(run).predict([[3.0, 1.0]])


def test_an_empty_cell_of_a_column_without_any_says_the_way_out(run, tmp_path, capsys):
    predict(run, tmp_path, "since,plan,size\n2024-02-01,,3\n", code=3)
    assert "hint: a column may have empty cells where `missing` of its training says so" in (
        capsys.readouterr().err
    )


def test_unknown_categories_are_told(run, tmp_path, capsys):
    predict(run, tmp_path, NEW.replace(",a,", ",new,"), "--keep", "note")
    assert capsys.readouterr().err == (
        'note: column "plan": 1 row with categories not seen in training: "new"; treated as '
        "unknown (seen: a, b, c)\n"
    )


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("plan,size,since\n,3,2024-01-01\na,x,2024-01-01\na,1,soon\n", [
            "3 columns cannot be read",
            'line 2, column "plan": expected a category, found an empty cell',
            'line 3, column "size": expected a number, found the text "x"',
            'line 4, column "since": expected a date such as 2024-12-31 or 2024-12-31T23:59, '
            'found the text "soon"',
        ]),
        ("plan\na\n", ["lacks 2 columns", '"size"', '"since"']),
    ],
)  # fmt: skip
def test_all_bad_columns_are_told_at_once(run, tmp_path, capsys, text, lines):
    predict(run, tmp_path, text, code=3)
    error = capsys.readouterr().err
    for line in lines:
        assert line in error


def test_keep_needs_columns(run, tmp_path, capsys):
    predict(run, tmp_path, NEW, "--keep", "notes", code=3)
    assert 'has no column "notes"; did you mean note?' in capsys.readouterr().err
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3)))
    given = ["--input", str(tmp_path / "x.npz"), "--output", str(tmp_path / "o.csv"), "--keep", "a"]
    assert main(["predict", str(run), *given]) == 2
    assert "has arrays, not columns" in capsys.readouterr().err


def test_evaluate_reads_the_raw_file_and_its_weights(run, tmp_path, capsys):
    whole = tmp_path / "whole.csv"
    whole.write_text("key,plan,size,since,w,ok\n" + ROWS)
    assert main(["evaluate", str(run), "--data", str(whole)]) == 0
    assert "90 rows" in capsys.readouterr().out
    whole.write_text(whole.read_text().replace("since,w,", "since,ww,"))
    assert main(["evaluate", str(run), "--data", str(whole)]) == 3
    assert 'has no column "w"' in capsys.readouterr().err
    assert main(["evaluate", str(run)]) == 0
    assert "as recorded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda table: table.pop("ids"), "preprocessing or table: KeyError('ids')"),
        (lambda table: table["columns"].pop(), "table makes different features from feature_names"),
        (lambda table: table["columns"][0]["column"].update(type="x"), "in its state"),
    ],
)
def test_a_damaged_table_is_named(run, tmp_path, damage, message, capsys):
    checkpoint = sorted(run.glob("latest/checkpoints/step-*"))[-1]
    copy = shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    state = json.loads((copy / "state.json").read_text())
    damage(state["table"])
    content = json.dumps(state).encode()
    (copy / "state.json").write_bytes(content)
    renew(copy, content)
    with pytest.raises(mt.errors.DataError) as caught:
        mt.load(copy)
    assert message in str(caught.value)


def renew(checkpoint: Path, content: bytes) -> None:
    """The manifest, for a state that was changed."""
    import hashlib

    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    entry = manifest["files"]["state.json"]
    entry.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    path.write_text(json.dumps(manifest))


def test_embedded_columns_alone(tmp_path):
    rng = np.random.default_rng(0)
    town = rng.choice([f"t{i}" for i in range(5)], 200)
    spec = {"type": "category", "encode": "embedding"}
    table = mt.data.Table({"town": town, "y": (town > "t2") * 1.0}, "y", {"town": spec})
    trainer = Trainer(
        {"type": "mlp", "hidden": [8], "embedding": 3}, table, loss="mse", name="towns",
        optimizer={"type": "adam", "lr": 0.05}, duration="40 epochs", batch_size=50,
        split={"train": 0.8, "val": 0.2}, run_dir=str(tmp_path), comm=SingleCommunicator(),
        output=Output(0, stream=io.StringIO()),
    )  # fmt: skip
    assert trainer.train() == 0
    model = mt.load(trainer.path)
    np.testing.assert_allclose(model.predict({"town": ["t0", "t4"]}), [0, 1], atol=0.05)
    embedding = trainer.model.module.embeddings[0].weight
    assert tuple(embedding.shape) == (6, 3)
    assert (embedding.detach().numpy()[0] == 0).all()  # of an unknown category


def test_a_linear_model_takes_no_embedding(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("key,plan,size,since,w,ok\n" + ROWS)
    (tmp_path / "t.yaml").write_text(FILE.replace("MODEL", "logistic_regression"))
    more = "data.columns.plan={type: category, encode: embedding}"
    assert main(["train", str(tmp_path / "t.yaml"), more, f"run_dir={tmp_path}"]) == 2
    assert "model logistic_regression takes no embedded categories: choose mlp" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_validation_and_test_from_files_of_their_own(tmp_path, capsys, ranks):
    header, lines = "key,plan,size,since,w,ok\n", ROWS.splitlines(keepends=True)
    for name, rows in (("t", lines[:60]), ("val", lines[60:75]), ("test", lines[75:])):
        (tmp_path / f"{name}.csv").write_text(header + "".join(rows))
    text = FILE.replace("MODEL", "logistic_regression").replace("  weight: w\n", "  drop: [w]\n")
    split = "split: {train: 1.0, val: val.csv, test: test.csv}"
    text = text.replace("split: {train: 0.8, val: 0.2, stratify: true}", split)
    (tmp_path / "t.yaml").write_text(text + "metrics: [accuracy]\n")
    config = mt.train.load_config(tmp_path / "t.yaml", [f"run_dir={tmp_path}"])

    def on(comm):
        trainer = Trainer.from_config(config, comm, Output(comm.rank, stream=io.StringIO()))
        assert trainer.train() == 0
        return trainer

    trainer, *_ = in_process.run(ranks, on)
    parts = trainer.data
    assert (len(parts.train), len(parts.val), len(parts.test)) == (60, 15, 15)
    assert main(["evaluate", str(trainer.path)]) == 0
    out = capsys.readouterr().out
    assert len(re.findall("as recorded", out)) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.split={train: 0.5, val: v.csv}", "adds up to 0.5; expected 1"),
        (
            "data.split={train: 1.0, stratify: true, time: since}",
            "cannot be combined with stratify",
        ),
        ("data.split={train: 1.0, val: 2}", "expected a fraction above 0, at most 1, or the path"),
        ("data.columns.plan=catgory", "did you mean category?"),
        ("data.columns.size={missing: medain}", "did you mean median?"),
        ("data.columns.size={missin: mean}", "unknown key; did you mean missing?"),
        ("data.columns=[plan]", "expected keys and values"),
    ],
)
def test_mistakes_of_the_configuration_are_told_with_their_place(tmp_path, change, message, capsys):
    (tmp_path / "t.yaml").write_text(FILE.replace("MODEL", "logistic_regression"))
    assert main(["check", str(tmp_path / "t.yaml"), change]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "command line" in error


def test_the_training_file_is_no_test_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("t.yaml").write_text(FILE.replace("MODEL", "logistic_regression"))
    assert main(["check", "t.yaml", "data.split={train: 1.0, test: t.csv}"]) == 2
    assert "is the file that the model is trained on (data.path)" in capsys.readouterr().err


def test_data_of_no_file_have_no_file_for_a_part(tmp_path, capsys):
    text = FILE.replace("MODEL", "logistic_regression")
    start, end = text.index("data:"), text.index("model:")
    data = "data: {type: sklearn, name: iris, split: {train: 1.0, val: v.csv}}\n"
    (tmp_path / "t.yaml").write_text(text[:start] + data + text[end:])
    assert main(["check", str(tmp_path / "t.yaml")]) == 2
    error = capsys.readouterr().err
    assert "data.split.val.path" in error and "^^^^^ unknown key" in error


def test_the_column_that_decides_matters_most_on_any_ranks(run, monkeypatch, tmp_path, capsys):
    """All inputs that a category has become, codes or one-hot, are shuffled together."""
    monkeypatch.setenv("MICROTRAIN_REPORT", "on")
    assert main(["train", str(run / "latest/config.yaml"), f"run_dir={tmp_path}"]) == 0
    written = Run.read(tmp_path / "t").info.importance
    assert written.names[0] == "plan"
    assert {*written.names} == {"plan", "size", "since"}
    assert written.worse[0] > 3 * max(map(abs, written.worse[1:]))

    def measure(comm):
        return evaluate_run(str(run), comm=comm, warn=print, importance=True).importance

    for found in (*in_process.run(2, measure), measure(SingleCommunicator())):
        assert found.names == written.names
        assert (found.part, found.field, found.rows) == ("val", "loss", 18)
        np.testing.assert_allclose(found.worse, written.worse, 1e-5, 1e-6)
    assert main(["evaluate", str(run), "--importance", "--part", "train"]) == 0
    assert "plan" in capsys.readouterr().out.splitlines()[-3]


COUNTS = """
name: goals
data: {type: csv, path: t.csv, target: goals, split: {train: 1.0}}
model: linear_regression
loss: poisson
optimizer: {type: sgd, lr: 0.01}
train: {duration: 2 steps, batch_size: 8}
"""


@pytest.mark.parametrize("where", ["val", "evaluate"])
@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_counts_below_0_are_refused_by_row_and_value(kind, where, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y = np.arange(20.0)[:, None] / 20, np.arange(20.0) % 4
    for name, target in (("t", y), ("new", np.where(np.arange(20) == 7, -2, y))):
        np.savez(f"{name}.npz", x=x, goals=target)
        cells = [f"{a:g},{b:g}" for a, b in zip(x[:, 0], target, strict=True)]
        Path(f"{name}.csv").write_text("\n".join(["x,goals", *cells, ""]))
    keys = "target: goals" if kind == "csv" else "inputs: x, target: goals"
    text = COUNTS.replace("csv", kind).replace("target: goals", keys)
    Path("t.yaml").write_text(text)
    if where == "val":
        assert main(["train", "t.yaml", f"data.split.val=new.{kind}"]) == 2
    else:
        assert main(["train", "t.yaml"]) == 0
        assert main(["evaluate", "runs/goals", "--data", f"new.{kind}"]) == 3
    error = capsys.readouterr().err
    assert "target at row 7 is -2" in error
    assert "loss poisson needs counts, targets of at least 0" in error
