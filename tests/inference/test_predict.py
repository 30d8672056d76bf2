"""`predict` and `evaluate` as they are typed: files in, files out, and all ways to get it wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_trained_model import IRIS, ROOT, train

import microtrain as mt
from microtrain.cli.main import main

TABLE = ROOT / "configs/data/iris.csv"


@pytest.fixture(scope="module")
def iris(tmp_path_factory):
    parent = tmp_path_factory.mktemp("iris")
    return train("csv.yaml", parent, "train.duration=6 epochs", "train.compile=off")[1]


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    parent = tmp_path_factory.mktemp("line")
    return train("linreg.yaml", parent, "train.duration=20 steps", "train.compile=off")[1]


@pytest.fixture(scope="module")
def expected(iris):
    """Labels and probabilities of every row of the table."""
    with open(TABLE) as file:
        rows = [[float(row[name]) for name in IRIS] for row in csv.DictReader(file)]
    model = mt.load(iris, checkpoint="last")
    return model.predict(rows), model.predict_proba(rows)


def predict(run: Path, source: object, output: object, *options: str) -> int:
    arguments = ["predict", run, "--input", source, "--output", output, "--checkpoint", "last"]
    return main([str(each) for each in (*arguments, *options)])


def columns(path: Path) -> dict[str, list[str]]:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_a_csv_that_is_written_in_another_way_than_that_of_the_run(
    iris, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = TABLE.read_text()
    other = text.replace(",", ";").replace(".", ",").replace("setosa", "Süd")
    Path("other.csv").write_bytes(other.encode("cp1252"))
    Path("commas.csv").write_text(text.replace(",", ";"))
    assert predict(iris, "commas.csv", "out.csv") == 3
    hint = """Set delimiter: ";", under data or, of a file on the command line, as '{path: FILE, """
    assert hint in capsys.readouterr().err
    keys = "{path: other.csv, delimiter: ';', decimal: ',', encoding: cp1252}"
    assert predict(iris, TABLE, "expected.csv") == predict(iris, keys, "out.csv") == 0
    assert Path("out.csv").read_text() == Path("expected.csv").read_text()
    evaluated = [main(["evaluate", str(iris), "--data", each]) for each in (str(TABLE), keys)]
    assert evaluated == [0, 3]
    assert 'line 2, column "species"' in capsys.readouterr().err  # Süd is no class of the run's


def test_a_threshold_is_for_two_classes(iris, tmp_path, capsys):
    assert predict(iris, TABLE, tmp_path / "out.csv", "--threshold", "0.3") == 2
    assert "has 3 classes" in capsys.readouterr().err
    assert predict(iris, TABLE, tmp_path / "out.csv", "--threshold", "1.3") == 2
    assert "--threshold" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_a_csv_is_predicted_row_by_row(iris, expected, tmp_path, capsys):
    assert predict(iris, TABLE, tmp_path / "out.csv", "--proba") == 0
    out, err = capsys.readouterr()
    assert "150 rows predicted by the checkpoint of step 42, the last" in out
    assert err == 'note: the target "species" is also there; it is not used\n'
    found = columns(tmp_path / "out.csv")
    labels, chances = expected
    assert found["species"] == list(labels)
    names = [f"probability_{name}" for name in ("setosa", "versicolor", "virginica")]
    assert list(found) == ["species", *names]
    texts = np.array([found[n] for n in names]).T
    np.testing.assert_allclose(texts.astype(float), chances, rtol=5.1e-6)
    assert all(len(text.replace(".", "").lstrip("0").partition("e")[0]) <= 6 for text in texts.flat)


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_any_file_in_a_table_or_arrays_out(iris, expected, tmp_path, suffix):
    given = columns(TABLE)
    x = {name: np.array(given[name], float) for name in reversed(IRIS)}
    source = tmp_path / f"in{suffix}"
    if suffix == ".csv":
        rows = [",".join(x), *(",".join(map(str, row)) for row in zip(*x.values(), strict=True))]
        source.write_text("\ufeff" + "\r\n".join(rows) + "\r\n\r\n", newline="")
    elif suffix == ".npz":
        np.savez(source, x=np.stack([x[name] for name in IRIS], axis=1))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(x), source)
    labels, chances = expected
    assert predict(iris, source, tmp_path / "out.npz", "--proba") == 0
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["prediction"], labels)
        np.testing.assert_array_equal(found["probability"], chances)
        assert list(found["classes"]) == ["setosa", "versicolor", "virginica"]
    assert predict(iris, source, tmp_path / "out.csv") == 0
    assert columns(tmp_path / "out.csv")["species"] == list(labels)


def test_a_regression_gives_numbers_that_read_back_to_the_same_bits(line, tmp_path):
    (tmp_path / "in.csv").write_text("note,x\na,0.1\nb,-2\nc,1e3\n")
    assert predict(line, tmp_path / "in.csv", tmp_path / "out.csv") == 0
    model = mt.load(line, checkpoint="last")
    (name,) = model.target_names
    found = np.array(columns(tmp_path / "out.csv")[name], np.float32)
    np.testing.assert_array_equal(found, model.predict([[0.1], [-2], [1e3]]))


def test_the_target_in_an_npz_is_not_used(line, tmp_path, capsys):
    x = np.arange(5.0)
    np.savez(tmp_path / "array.npz", x=x[:, None], y=x, z=np.array([{}]))
    assert predict(line, tmp_path / "array.npz", tmp_path / "out.csv") == 0
    assert capsys.readouterr().err == ""
    assert len(columns(tmp_path / "out.csv")["y"]) == 5


def test_no_rows_give_a_table_without_rows(iris, tmp_path):
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 4)))
    assert predict(iris, tmp_path / "none.npz", tmp_path / "out.csv", "--proba") == 0
    (header,) = (tmp_path / "out.csv").read_text().splitlines()
    assert header.startswith("species,probability_setosa,")


def test_a_target_that_is_one_number_is_refused(line, tmp_path, capsys):
    np.savez(tmp_path / "one.npz", x=np.arange(5.0)[:, None], y=3.0)
    assert main(["evaluate", str(line), "--data", str(tmp_path / "one.npz")]) == 3
    assert 'one.npz, array "y" is not an array of rows' in capsys.readouterr().err


# file content (or name) -> exit code and what the message says
MISTAKES: dict[str, tuple[str | None, int, list[str]]] = {
    "missing columns": (
        "sepal_lenght,petal_length,petal_width\n1,2,3\n",
        3,
        ['lacks 2 columns', '"sepal_length"; did you mean sepal_lenght?', '"sepal_width"'],
    ),
    "no header": ("5.1,3.5,1.4,0.2\n4,3,1,0.1\n", 3, ["the first line holds numbers"]),
    "a text": (",".join(IRIS) + "\n1,2,3,4\n1,2,x,4\n", 3, ["in.csv, line 3", "petal", '"x"']),
    "an empty cell": (",".join(IRIS) + "\n1,2,,4\n", 3, ["line 2", "an empty cell"]),
    "no rows": (",".join(IRIS) + "\n", 3, ["has a header but no rows"]),
    "empty": ("", 3, ["the first line is empty"]),
    "twice": (",".join(IRIS) + ",sepal_width\n1,2,3,4,5\n", 3, ['2 columns named "sepal_width"']),
    "other delimiter": (";".join(IRIS) + "\n1;2;3;4\n", 3, ["sepal_length", 'separated by ";"']),
    "no such file": (None, 3, ["there is no file", "in.csv"]),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_the_input_is_named_and_nothing_is_written(iris, tmp_path, capsys, case):
    text, code, words = MISTAKES[case]
    if text is not None:
        (tmp_path / "in.csv").write_text(text)
    assert predict(iris, tmp_path / "in.csv", tmp_path / "out.csv") == code
    err = capsys.readouterr().err
    for word in words:
        assert word in err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("source", "output", "options", "words"),
    [
        ("in.csv", "old.csv", [], "old.csv exists; --force replaces it"),
        ("in.csv", "in.csv", ["--force"], "is the input itself"),
        ("in.csv", "out.txt", [], "ends in .csv or .npz"),
        ("in.csv", "out.parquet", [], "ends in .csv or .npz"),
        ("in.xlsx", "out.csv", [], ".tsv, .txt, .parquet, .npy, .npz, .h5, .hdf5, .zarr or .zip"),
        ("in.csv", "gone/out.csv", [], "there is no directory"),
        ("in.csv", "directory.csv", ["--force"], "is not a file"),
        ("{path: in.csv, delimiter: ab}", "out.csv", [], "delimiter must be one character"),
        ("{path: in.csv, decimal: x}", "out.csv", [], "decimal is 'x' and thousands None"),
        ("{path: in.csv, encoding: utf-9}", "out.csv", [], "utf-9"),
        ("{path: in.npz, encoding: utf-8}", "out.csv", [], "encoding is a key of a CSV alone"),
        ("{inputs: in.npy, decimal: '.'}", "out.csv", [], "decimal is a key of a CSV alone"),
        ("in.csv", "out.csv", ["--checkpoint", "latest"], "expected best, last or a step"),
    ],
)  # fmt: skip
def test_mistakes_in_the_options(
    iris, tmp_path, capsys, monkeypatch, source, output, options, words
):
    monkeypatch.chdir(tmp_path)
    Path("old.csv").write_text("mine")
    Path("directory.csv").mkdir()
    shutil.copy(TABLE, "in.csv")
    assert predict(iris, source, output, *options) == 2
    assert words in capsys.readouterr().err
    assert Path("old.csv").read_text() == "mine"
    assert sorted(os.listdir()) == ["directory.csv", "in.csv", "old.csv"]


def test_an_output_that_the_system_refuses(iris, capsys):
    assert predict(iris, TABLE, "/proc/out.csv") == 5
    assert "cannot write /proc/out.csv: " in capsys.readouterr().err


def test_probabilities_of_a_regression(line, tmp_path, capsys):
    (tmp_path / "in.csv").write_text("x\n1\n")
    assert predict(line, tmp_path / "in.csv", tmp_path / "out.csv", "--proba") == 2
    assert "is a regression" in capsys.readouterr().err


def test_force_replaces_and_keeps_mode_and_link(iris, tmp_path):
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "real.csv").chmod(0o640)
    (tmp_path / "link.csv").symlink_to("real.csv")
    assert predict(iris, TABLE, tmp_path / "link.csv", "--force") == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert len(columns(tmp_path / "real.csv")["species"]) == 150
    assert (tmp_path / "real.csv").stat().st_mode & 0o777 == 0o640


def test_through_pipes(iris, expected):
    arguments = [sys.executable, "-m", "microtrain", "predict", str(iris), "--input", "-"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"capture_output": True, "text": True, "env": environment, "timeout": 60}
    done = subprocess.run([*arguments, "--output", "-"], input=TABLE.read_text(), **options)
    assert done.returncode == 0, done.stderr
    assert [row["species"] for row in csv.DictReader(io.StringIO(done.stdout))] == list(expected[0])
    assert "150 rows predicted" in done.stderr
    command = f"{' '.join(arguments)} --output - < {TABLE} > /dev/full"
    full = subprocess.run(command, shell=True, **options)
    assert full.returncode == 5
    assert "cannot write to standard output: No space left" in full.stderr
    assert "Traceback" not in full.stderr


# evaluate -----------------------------------------------------------------------------------------


def evaluate(capsys, *arguments: object) -> dict:
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluation_equals_the_record_and_says_where_it_does_not(iris, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(next(p for p in iris.iterdir() if p.name != "latest"), run)
    found = evaluate(capsys, run, "--checkpoint", "last")
    assert found["step"] == 42
    assert {name: part["rows"] for name, part in found["parts"].items()} == {
        "train": 105, "val": 15, "test": 30,
    }  # fmt: skip
    for name in ("val", "test"):
        part = found["parts"][name]
        assert part["values"] == pytest.approx(part["recorded"], rel=1e-6)
        assert set(part["recorded"]) == {"loss", "accuracy"} and part["differs"] == []
    metrics = run / "metrics.jsonl"
    rows = [json.loads(row) for row in metrics.read_text().splitlines()]
    rows[-1]["accuracy"] -= 0.5
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["evaluate", str(run), "--checkpoint", "last"]) == 0
    out, err = capsys.readouterr()
    (test,) = (row for row in out.splitlines() if row.startswith("test"))
    assert "as recorded" not in test
    assert "test differs from what the run recorded at step 42: accuracy" in err
    assert "sha256" not in err and "data have changed" not in err


def test_evaluation_says_that_data_or_parameters_are_others_now(iris, tmp_path, capsys):
    shutil.copytree(next(p for p in iris.iterdir() if p.name != "latest"), run := tmp_path / "run")
    config, info = run / "config.yaml", run / "run.json"
    config.write_text(config.read_text().replace(str(TABLE), str(tmp_path / "now.csv")))
    (tmp_path / "now.csv").write_text("\n".join(TABLE.read_text().splitlines()[:-1]))
    info.write_text(json.dumps({**json.loads(info.read_text()), "params_sha256": "0"}))
    assert main(["evaluate", str(run), "--checkpoint", "last"]) == 0
    err = capsys.readouterr().err
    assert "the data have changed since the run" in err
    assert "the parameters are not those of which run.json has the sha256" in err


def test_evaluation_of_another_file(iris, tmp_path, capsys):
    text = TABLE.read_text().splitlines()
    shutil.copy(TABLE, tmp_path / "all.csv")
    (part,) = evaluate(capsys, iris, "--data", tmp_path / "all.csv")["parts"].values()
    own = evaluate(capsys, iris)["parts"].values()
    assert part["rows"] == 150
    mean = sum(p["rows"] * p["values"]["accuracy"] for p in own) / 150
    assert part["values"]["accuracy"] == pytest.approx(mean)
    (tmp_path / "odd.csv").write_text("\n".join([*text[:3], "1,2,3,4,setosaa"]))
    assert main(["evaluate", str(iris), "--data", str(tmp_path / "odd.csv")]) == 3
    err = capsys.readouterr().err
    assert 'odd.csv, line 4, column "species": "setosaa" is not one of the 3 classes' in err
    assert "did you mean setosa?" in err


def test_data_whose_columns_have_changed_are_refused(tmp_path, capsys):
    shutil.copy(TABLE, tmp_path / "iris.csv")
    path = f"data.path='{tmp_path}/iris.csv'"
    _, run = train("csv.yaml", tmp_path, "train.duration=2 steps", path)
    rows = [row.split(",") for row in TABLE.read_text().splitlines()]
    swapped = "\n".join(",".join([row[1], row[0], *row[2:]]) for row in rows)
    (tmp_path / "iris.csv").write_text(swapped)
    assert main(["evaluate", str(run)]) == 3
    assert "the columns are not those that the model was trained on" in capsys.readouterr().err


def test_values_that_overflow_are_shown_without_warnings(line, tmp_path, capsys):
    (tmp_path / "far.csv").write_text("x,y\n1e30,0\n")
    (part,) = evaluate(capsys, line, "--data", tmp_path / "far.csv")["parts"].values()
    assert part["values"]["loss"] is None  # of float32: infinite


@pytest.mark.daily("[2]")
@pytest.mark.parametrize("ranks", [2, 3])
def test_evaluation_over_ranks_says_the_same(iris, mpirun, capsys, ranks):
    alone = evaluate(capsys, iris)["parts"]
    job = mpirun(ranks, "-m", "microtrain", "evaluate", iris, "--json")
    assert job.returncode == 0, job.stderr
    found = json.loads(job.stdout)["parts"]
    for name, part in alone.items():
        assert found[name]["values"] == pytest.approx(part["values"], rel=1e-6)
        assert found[name]["differs"] == []


@pytest.mark.slow
def test_under_mpirun_a_mistake_is_told_once(iris, mpirun, tmp_path):
    (tmp_path / "bad.csv").write_text("a\n1\n")
    job = mpirun(3, "-m", "microtrain", "evaluate", iris, "--data", tmp_path / "bad.csv")
    assert job.returncode == 3, job.stderr
    assert job.stderr.count("error: ") == 1
    assert "Traceback" not in job.stderr and not job.left_behind


@pytest.mark.slow
def test_neither_command_loads_mpi_or_cupy(iris, tmp_path):
    code = (
        "import sys\nfrom microtrain.cli.main import main\ncode = main(sys.argv[1:])\n"
        "sys.exit(code or sum(name in sys.modules for name in ('mpi4py', 'cupy', 'matplotlib')))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI"))}
    for command in (["evaluate"], ["predict", "--input", TABLE, "--output", tmp_path / "out.csv"]):
        done = subprocess.run(
            [sys.executable, "-c", code, command[0], iris, *command[1:]],
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
