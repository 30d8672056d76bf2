"""Runs in use on files of every kind: tables, and arrays whose rows are read as they are used."""

import importlib
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import microtrain as mt
from microtrain.cli.main import main
from microtrain.data import FunctionSource
from microtrain.distributed import in_process
from microtrain.errors import DataError
from microtrain.inference import model as inference
from microtrain.inference.evaluate import evaluate_run

RUN = """
name: run
run_dir: runs
data: {{standardize: true, {data}}}
model: {model}
loss: {loss}
optimizer: {{type: sgd, lr: 0.1}}
train: {{duration: 2 epochs, batch_size: 32, compile: off}}
"""


def write_npy(name, x, y):
    np.save(f"x_{name}.npy", x)
    np.save(f"y_{name}.npy", y)


def write_hdf5(name, x, y):
    h5py = pytest.importorskip("h5py")
    with h5py.File(f"{name}.h5", "w") as file:
        file[f"{name}/x"] = x
        file.create_dataset(f"{name}/y", data=y, chunks=(16, *y.shape[1:]))


def write_zarr(name, x, y):
    group = pytest.importorskip("zarr").open_group(f"{name}.zarr", mode="w")
    group["x"], group["y"] = x, y


def write_zip(name, x, y):
    zarr = pytest.importorskip("zarr")
    with zarr.storage.ZipStore(f"{name}.zip", mode="w") as store:
        group = zarr.open_group(store, mode="w")
        group["x"], group["y"] = x, y


def write_npz(name, x, y):
    np.savez(f"{name}.npz", x=x, y=y)


def write_csv(name, x, y):
    lines = [",".join(map(repr, row)) for row in np.concatenate([x, y], 1).tolist()]
    Path(f"{name}.csv").write_text("\n".join(["a,b,c,y", *lines]))


def write_parquet(name, x, y):
    table = dict(zip("abc", x.T, strict=False)) | {"y": y.reshape(-1)}
    pyarrow = pytest.importorskip("pyarrow")
    importlib.import_module("pyarrow.parquet").write_table(
        pyarrow.table(table), f"{name}.parquet", row_group_size=32
    )


# How it is written, data of the configuration, and what names the rows of other files.
KINDS = {
    "npy": (
        write_npy,
        "type: npy, inputs: x_train.npy, target: y_train.npy, split: {train: 0.8, test: 0.2, "
        "val: {inputs: x_val.npy, target: y_val.npy}}",
        "{inputs: x_val.npy, target: y_val.npy}",
    ),
    "hdf5": (
        write_hdf5,
        "type: hdf5, path: train.h5, inputs: train/x, target: train/y, "
        "split: {train: 0.8, test: 0.2, val: {path: val.h5, inputs: val/x, target: val/y}}",
        "{path: val.h5, inputs: val/x, target: val/y}",
    ),
    "zarr": (
        write_zarr,
        "type: zarr, path: train.zarr, split: {train: 0.8, test: 0.2, val: val.zarr}",
        "val.zarr",
    ),
    "npz": (
        write_npz,
        "type: npz, path: train.npz, in_memory: false, "
        "split: {train: 0.8, test: 0.2, val: val.npz}",
        "val.npz",
    ),
    "parquet": (
        write_parquet,
        "type: parquet, path: train.parquet, target: y, in_memory: false, "
        "split: {train: 0.8, test: 0.2, val: val.parquet}",
        "val.parquet",
    ),
}


@pytest.fixture(params=KINDS)
def kind(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return KINDS[request.param]


def rows(count, seed):
    x = np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32) * 3 + 1
    return x, x @ np.float32([[1], [-2], [0.5]])


def trained(kind, model="linear_regression", loss="mse", target=lambda y: y):
    """Train a run, and give the rows of validation."""
    write, data, _ = kind
    if write is write_parquet and loss == "cross_entropy":
        data = f"{data}, categorical: true"
    write("train", *(part(a) for part, a in zip((np.asarray, target), rows(300, 0), strict=True)))
    x, y = rows(70, 1)
    write("val", x, target(y))
    with open("run.yaml", "w") as file:
        file.write(RUN.format(data=data, model=model, loss=loss))
    assert main(["train", "run.yaml"]) == 0
    return x, target(y)


def test_a_part_of_its_own_and_other_rows_are_measured_alike(kind, capsys):
    trained(kind)
    capsys.readouterr()
    assert main(["check", "run.yaml"]) == 0
    assert main(["evaluate", "runs/run", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    parts = json.loads(lines[-1])["parts"]
    assert parts["val"]["rows"] == 70
    assert parts["val"]["recorded"] and not parts["val"]["differs"]

    def on(comm):
        return evaluate_run("runs/run", comm=comm, warn=print, data_file=kind[2]).parts[kind[2]]

    for ranks in (1, 2):
        for part in in_process.run(ranks, on):
            assert part.rows == 70
            assert part.values["loss"] == pytest.approx(parts["val"]["values"]["loss"], rel=1e-6)


def test_predictions_are_those_of_arrays(kind, monkeypatch):
    x, _ = trained(kind)
    expected = mt.load("runs/run").predict(x)
    # More than one block of rows, which begins where a pass over an array does.
    monkeypatch.setattr(inference, "ROWS", 32)
    monkeypatch.setattr(inference, "BLOCK", 1)
    expected_by_32 = mt.load("runs/run").predict(x)
    np.testing.assert_allclose(expected, expected_by_32, rtol=1e-5)
    for out in ("o.csv", "o.npz"):
        assert main(["predict", "runs/run", "--input", kind[2], "--output", out]) == 0
    np.testing.assert_array_equal(np.load("o.npz")["prediction"], expected_by_32)
    found = np.loadtxt("o.csv", skiprows=1, dtype=np.float32)
    np.testing.assert_array_equal(found, expected_by_32)


def test_classes_and_their_probabilities(kind, monkeypatch, capsysbinary):
    x, _ = trained(
        kind, "logistic_regression", "cross_entropy", lambda y: (y[:, 0] > 0).astype(np.int64)
    )
    monkeypatch.setattr(inference, "ROWS", 32)
    monkeypatch.setattr(inference, "BLOCK", 1)
    model = mt.load("runs/run")
    arguments = ["predict", "runs/run", "--input", kind[2], "--proba"]
    assert main([*arguments, "--output", "o.npz"]) == 0
    with np.load("o.npz") as found:
        np.testing.assert_array_equal(found["prediction"], model.predict(x))
        np.testing.assert_array_equal(found["probability"], model.predict_proba(x))
        assert found["classes"].tolist() == [0, 1]
    capsysbinary.readouterr()
    assert main([*arguments, "--output", "-"]) == 0
    lines = capsysbinary.readouterr().out.splitlines()
    assert lines[0].endswith(b",probability_0,probability_1")
    assert [int(line.partition(b",")[0]) for line in lines[1:]] == model.predict(x).tolist()
    kind[0]("wrong", x, np.full(70, 2))
    wrong = kind[2].replace("val", "wrong")
    assert main(["evaluate", "runs/run", "--data", kind[2]]) == 0
    assert main(["evaluate", "runs/run", "--data", wrong]) == 3
    message = b"row 0 is 2, expected a code from 0 to 1"
    if wrong.endswith(".parquet"):
        message = b'row 0, column "y": "2" is not one of the 2 classes of the model'
    assert message in capsysbinary.readouterr().err


@pytest.mark.parametrize("kind", ["npy", "hdf5", "zarr", "npz"], indirect=True)
def test_what_is_wrong_with_other_files(kind, capsys):
    x, y = trained(kind)
    capsys.readouterr()
    write, _, val = kind

    def refused(change, message, commands=("evaluate", "predict"), code=3):
        for command in commands:
            options = ["--data", change]
            if command == "predict":
                options = ["--input", change, "--output", "o.csv"]
            assert main([command, "runs/run", *options]) == code
            assert message in capsys.readouterr().err

    write("narrow", x[:, :2], y)
    place = {write_npy: "x_narrow.npy", write_hdf5: 'narrow.h5, data set "narrow/x"'}.get(
        write, '"x"'
    )
    refused(
        val.replace("val", "narrow"), f"{place}: the input has shape (70, 2), expected (rows, 3)"
    )
    holes = x.copy()
    holes[65, 1] = np.nan
    write("holes", holes, y)
    refused(val.replace("val", "holes"), "row 65, column 1 is nan, expected a finite number")
    write("wide", x, np.concatenate([y, y], 1))
    refused(val.replace("val", "wide"), "of shape (2,), but the model", commands=["evaluate"])
    write("whole", x, y.astype(np.int64))
    refused(
        val.replace("val", "whole"),
        "int64 of shape (1,), but the model predicts floats",
        commands=["evaluate"],
    )
    if "{" in val:
        refused(val.replace("inputs", "imputs"), "did you mean inputs?", code=2)
        refused(val.replace("x_val", "x_no").replace("val/x", "no/x"), "no")
    else:
        suffix = Path(val).suffix
        refused(f"no{suffix}", f"there is no file no{suffix}")
        refused(f"{{path: {val}, inputs: z}}", 'has no array "z"')
    assert not [*Path().glob("*o.csv*")]


FILES = {
    write_csv: "val.csv",
    write_parquet: "val.parquet",
    write_npy: "{inputs: x_val.npy, target: y_val.npy}",
    write_npz: "{path: val.npz, inputs: x, target: y}",
    write_hdf5: "{path: val.h5, inputs: val/x, target: val/y}",
    write_zarr: "{path: val.zarr, inputs: x, target: y}",
    write_zip: "{path: val.zip, inputs: x, target: y}",
}
CSV = (write_csv, "type: csv, path: train.csv, target: y")
RUNS = {
    "csv": (*CSV, [*FILES]),
    "npy": (*KINDS["npy"][:2], [*FILES][2:]),
    "row groups": (*KINDS["parquet"][:2], [*FILES]),
    "a zip": (write_zip, "type: zarr, path: train.zip", [write_zip]),
    "a function": (write_npz, "type: 'read.py:rows', path: train.npz", [*FILES][2:]),
}


@pytest.mark.daily("a function-", "csv-")
@pytest.mark.parametrize(("run", "write"), [(run, write) for run in RUNS for write in RUNS[run][2]])
def test_a_run_takes_files_of_every_kind(run, write, tmp_path, monkeypatch, capsys):
    """What it was trained on is not asked, and need not be there any more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    Path("read.py").write_text(
        "import numpy as np\n\ndef rows(path):\n    file = np.load(path)\n"
        "    return file['x'], file['y']\n"
    )
    x, y = trained(RUNS[run])
    for file in Path().glob("*train*"):
        file.unlink()
    Path("read.py").write_text("def rows(path):\n    raise SystemExit\n")
    write("val", x, y)
    expected = mt.load("runs/run", trust=True).predict(x)
    arguments = ["--input", FILES[write], "--output", "o.npz", "--trust"]
    assert main(["predict", "runs/run", *arguments]) == 0
    np.testing.assert_array_equal(np.load("o.npz")["prediction"], expected)
    assert measured(FILES[write], capsys)["values"]["loss"] == loss(expected, y)


def measured(file, capsys):
    capsys.readouterr()
    assert main(["evaluate", "runs/run", "--data", file, "--json", "--trust"]) == 0
    (part,) = json.loads(capsys.readouterr().out)["parts"].values()
    return part


def loss(predicted, y):
    return pytest.approx(np.mean((predicted.astype(np.float64) - y[:, 0]) ** 2), rel=1e-4)


@pytest.mark.parametrize("write", [write_npy, write_npz, write_hdf5])
def test_integers_are_floats_for_a_model_of_floats(write, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained((*CSV, ""))
    assert main(["train", "run.yaml", "data.standardize=false"]) == 0
    x = np.arange(60).reshape(20, 3)
    y = x[:, :1] * 0.5
    write("val", x, y)
    expected = mt.load("runs/run").predict(x)
    assert measured(FILES[write], capsys)["values"]["loss"] == loss(expected, y)


@pytest.mark.parametrize(
    ("command", "options"),
    [("predict", ["--output", "o.csv", "--input"]), ("evaluate", ["--data"])],
)
def test_an_input_that_the_model_does_not_take_is_refused(
    command, options, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    trained(KINDS["npy"])
    files = "{inputs: [x_val.npy, x_val.npy], target: y_val.npy}"
    assert main([command, "runs/run", *options, files]) == 3
    assert "the model takes 1 input, got 2" in capsys.readouterr().err


@pytest.mark.parametrize("write", [write_npy, write_npz, write_hdf5])
def test_classes_of_a_table_are_found_by_name_in_arrays(write, tmp_path, monkeypatch, capsys):
    """They are 1.0 and 2.0, of which the codes are 0 and 1."""
    monkeypatch.chdir(tmp_path)
    x, y = trained(
        (write_csv, f"{CSV[1]}, categorical: true", ""),
        "logistic_regression", "cross_entropy", lambda y: (y > 0) + 1,
    )  # fmt: skip
    write("val", x, y[:, 0])
    predicted = mt.load("runs/run").predict(x).astype(float)
    counts = [[int(np.sum((y[:, 0] == a) & (predicted == b))) for b in (1, 2)] for a in (1, 2)]
    assert measured(FILES[write], capsys)["classes"]["confusion"] == counts
    write("val", x, y[:, 0] * 0)
    assert main(["evaluate", "runs/run", "--data", FILES[write]]) == 3
    said = capsys.readouterr().err
    assert "row 0, column" in said and '"0" is not one of the 2 classes of the model' in said


def test_rows_that_count_by_a_weight_are_measured_by_it_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x, y = rows(40, 0)
    lines = [",".join(map(repr, [*row, 1.0])) for row in np.concatenate([x, y], 1).tolist()]
    Path("t.csv").write_text("\n".join(["a,b,c,y,w", *lines]))
    data = "type: csv, path: t.csv, target: y, weight: w"
    Path("run.yaml").write_text(RUN.format(data=data, model="linear_regression", loss="mse"))
    assert main(["train", "run.yaml"]) == 0
    write_npy("val", x, y)
    write_npz("val", x, y)
    for file, code, message in [
        (FILES[write_npy], 2, "the run counts rows by a weight; name one, too"),
        (FILES[write_npz], 3, 'val.npz has no array "w"'),
    ]:
        assert main(["evaluate", "runs/run", "--data", file]) == code
        assert message in capsys.readouterr().err
    weights = np.arange(40) % 2.0
    np.save("w.npy", weights)
    predicted, (x, y) = mt.load("runs/run").predict(x), (x[1::2], y[1::2])
    file = "{inputs: x_val.npy, target: y_val.npy, weight: w.npy}"
    assert measured(file, capsys)["values"]["loss"] == loss(predicted[1::2], y)


def test_a_weight_of_arrays_is_found_by_name_in_a_table(tmp_path, monkeypatch, capsys):
    """It is used, so nothing says that it is not."""
    monkeypatch.chdir(tmp_path)
    np.save("w.npy", np.ones(300))
    data = f"{KINDS['npy'][1].partition(', split')[0]}, weight: w.npy, features: [a, b, c]"
    x, y = trained((write_npy, data, ""))
    with open("val.csv", "w") as file:
        print("a,b,c,y_train,w", file=file)
        for i, row in enumerate(np.concatenate([x, y], 1).tolist()):
            print(*row, i % 2, sep=",", file=file)
    capsys.readouterr()
    assert main(["evaluate", "runs/run", "--data", "val.csv", "--json"]) == 0
    out, err = capsys.readouterr()
    (part,) = json.loads(out)["parts"].values()
    assert part["values"]["loss"] == loss(mt.load("runs/run").predict(x[1::2]), y[1::2])
    assert err == ""
    for weight, message in [
        (0, "bad.csv: the weights of all rows are 0"),
        (-1, 'bad.csv, line 2, column "w": expected a weight of at least 0'),
    ]:
        Path("bad.csv").write_text(f"a,b,c,y_train,w\n1,2,3,4,{weight}\n")
        assert main(["evaluate", "runs/run", "--data", "bad.csv"]) == 3
        assert message in capsys.readouterr().err


def test_a_prediction_from_a_file_enters_few_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = "type: csv, path: t.csv, target: y, columns: {a: {missing: 1.0}, b: date, c: category}"
    lines = [f"{i},2024-01-{i + 1:02},{i % 3},{i / 2}" for i in range(20)]
    Path("t.csv").write_text("\n".join(["a,b,c,y", *lines]))
    Path("run.yaml").write_text(RUN.format(data=data, model="linear_regression", loss="mse"))
    assert main(["train", "run.yaml"]) == 0
    arguments = ["predict", "runs/run", "--input", "t.csv", "--output", "o.csv", "--force"]
    assert main(arguments) == 0
    homes = [Path(mt.__file__).parent / name for name in ("data", "inference")]
    entered, before = set(), sys.getprofile()

    def enter(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and {*homes} & {*path.parents} and frame.f_code.co_name != "<module>":
            entered.add(path.name)

    sys.setprofile(enter)
    try:
        assert main(arguments) == 0
    finally:
        sys.setprofile(before)
    assert {"csv.py", "files.py", "model.py"} < entered
    assert len(entered) <= 12, entered


@pytest.mark.parametrize("kind", ["parquet"], indirect=True)
def test_columns_by_row_groups_are_found_by_name(kind, capsys, monkeypatch):
    """And kept, told of and refused as those of a table that is read whole."""
    x, y = trained(kind)
    monkeypatch.setattr(inference, "ROWS", 32)  # in several blocks
    monkeypatch.setattr(inference, "BLOCK", 1)
    table = pytest.importorskip("pyarrow").table
    write = importlib.import_module("pyarrow.parquet").write_table
    columns = dict(zip("cba", x.T[::-1], strict=True))
    names = [f"row {i}" for i in range(len(x))]
    write(table(columns | {"name": names, "y": y[:, 0]}), "other.parquet", row_group_size=16)
    options = ["runs/run", "--input", "other.parquet", "--output", "o.csv"]
    assert main(["predict", *options, "--keep", "name", "--keep", "y"]) == 0
    assert "columns that the model does not use" not in capsys.readouterr().err
    rows = Path("o.csv").read_text().splitlines()
    expected = mt.load("runs/run").predict(x)
    assert rows[0] == "name,y,predicted_y"
    assert [float(row.split(",")[2]) for row in rows[1:]] == pytest.approx(expected.tolist())
    assert [row.split(",")[0] for row in rows[1:]] == names
    assert main(["predict", *options, "--force"]) == 0
    said = capsys.readouterr().err
    assert "columns that the model does not use: name" in said
    assert 'the target "y" is also there' in said
    assert main(["evaluate", "runs/run", "--data", "other.parquet"]) == 0
    for change, message in [
        ({"a": None}, 'has no column "a"'),
        ({"b": names}, 'column "b": expected numbers, found string'),
        ({"c": np.where(np.arange(70) == 5, np.nan, x[:, 2])}, 'row 5, column "c"'),
    ]:
        changed = {
            name: a for name, a in {**columns, "y": y[:, 0], **change}.items() if a is not None
        }
        write(table(changed), "wrong.parquet", row_group_size=16)
        for command, option in [("evaluate", "--data"), ("predict", "--input")]:
            more = ["--output", "p.csv"] if command == "predict" else []
            assert main([command, "runs/run", option, "wrong.parquet", *more]) == 3
            assert message in capsys.readouterr().err
    assert not Path("p.csv").exists()


@pytest.mark.parametrize("kind", ["npy"], indirect=True)
def test_inputs_alone_and_parts_that_share_a_file(kind, capsys):
    trained(kind)
    capsys.readouterr()
    assert main(["predict", "runs/run", "--input", "x_val.npy", "--output", "o.csv"]) == 0
    for change, code, message in [
        ("x_val.npy", 2, "npy takes: inputs, target"),
        ("{inputs: x_val.npy, tarket: y_val.npy}", 2, "did you mean target?"),
        ("{inputs: x_train.npy}", 2, "is the file that the model is trained on (data.inputs)"),
        ("{inputs: x_val.npy}", 3, "different numbers of rows"),
        ("{target: y_train.npy, inputs: x_again.npy}", 3, "y_train.npy is what the model is"),
    ]:
        np.save("x_again.npy", np.load("x_train.npy"))
        assert main(["train", "run.yaml", f"data.split.val={change}"]) == code
        assert message in capsys.readouterr().err
    assert main(["evaluate", "runs/run", "--data", "x_val.npy"]) == 2
    assert "--data '{inputs: x_val.npy, target: y.npy}'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["npy"], indirect=True)
def test_a_source_and_a_memory_map_are_read_by_blocks(kind, monkeypatch):
    x, _ = trained(kind)
    model, read = mt.load("runs/run"), []

    def some(numbers):
        read.append(len(numbers))
        return (x[numbers], x[numbers, :1])

    monkeypatch.setattr(inference, "ROWS", 32)
    monkeypatch.setattr(inference, "BLOCK", 1)
    expected = model.predict(x)
    np.testing.assert_array_equal(model.predict(FunctionSource(some, len(x))), expected)
    assert read == [0, 32, 32, 6]
    mapped = np.load("x_val.npy", mmap_mode="r")
    np.testing.assert_array_equal(model.predict(mapped), expected)
    with pytest.raises(DataError, match=r"the input has shape \(70, 1\)"):
        model.predict(FunctionSource(lambda numbers: (x[numbers, :1],), len(x)))


@pytest.mark.parametrize("kind", ["npy", "hdf5", "npz", "parquet"], indirect=True)
def test_a_value_that_is_none_is_named_where_it_stands(kind, capsys):
    """Not where the row of the other array is."""
    write, _, val = kind
    x, y = trained(kind)
    for name, at in [("input", 1), ("target", 0)]:
        arrays = [x.copy(), y.copy()]
        arrays[name == "target"][7, at] = np.nan
        write(f"no_{name}", *arrays)
        assert main(["evaluate", "runs/run", "--data", val.replace("val", f"no_{name}")]) == 3
        said = capsys.readouterr().err.splitlines()[0]
        assert f"{name} at " in said and said.count("row 7") == 1
        place = {write_npy: "xy"[at == 0], write_parquet: 'column "' + "by"[at == 0]}
        assert place.get(write, "xy"[at == 0]) in said


def test_arrays_in_groups_of_a_store_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    group = pytest.importorskip("zarr").open_group("a.zarr", mode="w")
    group.create_group("fields")["velocity"] = np.ones((20, 3))
    group["fields"]["drag"] = np.ones((20, 1))
    data = "type: zarr, path: a.zarr, inputs: fields/velocit, target: fields/drag"
    Path("run.yaml").write_text(RUN.format(data=data, model="linear_regression", loss="mse"))
    assert main(["train", "run.yaml"]) == 3
    said = capsys.readouterr().err
    assert "fields/velocity" in said and "fields/drag" in said


@pytest.mark.parametrize("kind", ["npz", "parquet"], indirect=True)
def test_files_of_the_other_kind_are_read_whole(kind, capsys):
    """A run on arrays knows no columns; of one on columns an npz file may be compressed."""
    x, y = trained(kind)
    if kind[0] is write_npz:
        write_parquet("other", x, y)
        assert main(["predict", "runs/run", "--input", "other.parquet", "--output", "o.csv"]) == 3
        assert "was trained on arrays without column names" in capsys.readouterr().err
    else:
        np.savez_compressed("other.npz", x=x)
        assert main(["predict", "runs/run", "--input", "other.npz", "--output", "o.npz"]) == 0
        expected = mt.load("runs/run").predict(x)
        np.testing.assert_array_equal(np.load("o.npz")["prediction"], expected)


@pytest.mark.parametrize("codes", [[0, 1, 7], [0, -1, 1], [2**40, 1, 2]])
@pytest.mark.parametrize("file", ["other.npz", "{inputs: x_other.npy, target: y_other.npy}"])
def test_a_code_of_no_class_is_refused(file, codes, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((30, 3))
    write_npz("d", x, np.arange(30) % 3)
    run = RUN.format(
        data="type: npz, path: d.npz", model="logistic_regression", loss="cross_entropy"
    )
    Path("run.yaml").write_text(run)
    assert main(["train", "run.yaml"]) == 0
    for write in (write_npz, write_npy):
        write("other", x[:3], np.array(codes))
    assert main(["evaluate", "runs/run", "--data", file]) == 3
    assert re.search(r"codes? from 0 to 2", capsys.readouterr().err)


def test_standard_input_is_read_by_one_rank_for_all_hosts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained((write_csv, "type: csv, path: train.csv, target: y", ""))

    def measure(comm, file):
        comm.node_rank = comm.rank  # each rank on a host of its own
        return evaluate_run("runs/run", comm=comm, warn=print, data_file=file).parts[file].values

    expected = in_process.run(2, measure, "val.csv")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("val.csv").read_bytes())))
    assert in_process.run(2, measure, "-") == expected
