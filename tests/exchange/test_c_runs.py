"""`microtrain export RUN --to c`: raw rows in, the user's units out, as `predict` has them."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_c import CC, SANITIZED, STRICT, Library, differ, tried
from test_c_step import Learner

import microtrain as mt
from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import DataError
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

CONFIGS = Path(__file__).parents[2] / "configs"
pytestmark = pytest.mark.skipif(not CC, reason="no C compiler")


def trained(path: Path, *overrides: str) -> None:
    with open(os.devnull, "w") as nowhere:
        settings = load_config(path, [*overrides, "train.compile=off"])
        output = Output(stream=nowhere, errors=nowhere)
        Trainer.from_config(settings, SingleCommunicator(), output).train()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def exported(run: str, *words: str) -> None:
    assert main(["export", run, "--to", "c", *words]) == 0


def compared(folder: Path, name: str, model: Any, rows: Any) -> None:
    """The library beside Python, row by row."""
    expected = model.predict(rows)
    outputs: list[Any] = [(model.config.dtype, ())]
    if model.classes is not None:
        outputs = [(np.int64, ()), (np.float64, (len(model.classes),))]
        chances, labels = (
            model.predict_proba(rows),
            {str(c): n for n, c in enumerate(model.classes)},
        )
        expected = np.array([labels[str(label)] for label in expected])
    elif expected.ndim > 1:
        outputs = [(model.config.dtype, expected.shape[1:])]
    call = Library(folder / f"{name}.c", "predict", outputs)
    found = []
    for row in np.asarray(rows, np.float64):
        found.append(call(row))
        assert call.status == 0
    first = np.array([each[0] for each in found])
    if model.classes is None:
        assert differ(first, expected) <= 1e-5
        return
    second = np.array([each[1] for each in found])
    assert differ(second, chances) <= 1e-5
    clear = np.ptp(np.sort(chances, 1)[:, -2:], axis=1) > 1e-5  # no two are equal
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(first[clear], expected[clear])


@pytest.mark.daily("digits")
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_every_configuration(name: str, count: int, here: Path) -> None:
    few = ["sweep=null"] if "sweep:" in (CONFIGS / f"{name}.yaml").read_text() else []
    trained(CONFIGS / f"{name}.yaml", "train.duration=10 steps", f"run_dir={here}/runs", *few)
    (run,) = (here / "runs").iterdir()
    exported(str(run), "--trust", "--output", "net.c")
    done = tried(here, "net", CC, *STRICT, *SANITIZED)
    assert not done.returncode, done.stdout + done.stderr
    model = mt.load(run, trust=True)
    scaling, rng = model.preprocessing, np.random.default_rng(1)
    rows = scaling.mean + scaling.scale * rng.standard_normal((count, *scaling.mean.shape))
    compared(here, "net", model, rows)


NAMES = ['say "hi"', "back\\slash", "what??/", "größe", "two\twords", "int"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on numbers, dates and categories of all kinds, with gaps."""
    folder = tmp_path_factory.mktemp("table")
    rng, count = np.random.default_rng(0), 240
    columns = {
        "int": rng.normal(50, 10, count).round(2).astype(str),
        "a gap": np.where(
            rng.random(count) < 0.2, "", rng.normal(3, 1, count).round(2).astype(str)
        ),
        "kind": np.array(["red", "gr\u00fcn", "b,l", ""])[rng.integers(0, 4, count)],
        "strict": np.array(["x", "y"])[rng.integers(0, 2, count)],
        "place": np.array([f"p{n}" for n in range(9)])[rng.integers(0, 9, count)],
        "day": np.array([f"2024-01-{n + 1:02}" for n in rng.integers(0, 28, count)]),
        "class": np.array(NAMES)[rng.integers(0, len(NAMES), count)],
    }
    import csv

    with open(folder / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    (folder / "t.yaml").write_text(
        "name: t-1\ndata:\n  type: csv\n  path: t.csv\n  target: class\n  standardize: true\n"
        "  columns:\n    a gap: {missing: mean, indicator: true}\n"
        "    kind: {type: category, missing: none, indicator: true}\n"
        "    strict: {type: category, unknown: error}\n"
        "    place: {type: category, encode: embedding}\n    day: date\n"
        "model: {type: mlp, hidden: [12]}\nloss: cross_entropy\noptimizer: adam\n"
        "train: {duration: 3 epochs, batch_size: 16}\n"
    )
    trained(folder / "t.yaml", f"run_dir={folder}/runs")
    return folder


def test_a_table(table: Path, here: Path, capsys) -> None:
    exported(str(table / "runs" / "t-1"))
    assert "beside it: t_1.h, t_1.f90, t_1.mk, t_1_vectors.h, test_t_1.c" in capsys.readouterr().err
    done = tried(here, "t_1", CC, *STRICT, *SANITIZED)
    assert not done.returncode, done.stdout + done.stderr
    model = mt.load(table / "runs" / "t-1")
    call = Library(here / "t_1.c", "predict", [(np.int64, ()), (np.float64, (len(NAMES),))])
    category, label = call.library["t_1_category"], call.library["t_1_class"]
    category.restype, category.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_char_p]
    label.restype, label.argtypes = ctypes.c_char_p, [ctypes.c_int64]
    assert model.classes is not None
    found = [label(n) for n in range(-1, len(NAMES) + 1)]
    assert found == [None, *(name.encode() for name in model.classes), None]
    assert sorted(model.classes) == sorted(NAMES)
    rows = {
        "int": [50.0, 40.5, 61.25], "a gap": [3.5, None, 2.0], "kind": ["gr\u00fcn", "", "blue"],
        "strict": ["x", "y", "y"], "place": ["p3", "elsewhere", "p0"],
        "day": ["2024-01-05", "2024-02-01", "2023-12-31"],
    }  # fmt: skip
    with pytest.warns(UserWarning, match="not seen in training"):
        expected, labels = model.predict_proba(rows), model.predict(rows)
    names = list(rows)
    for n in range(3):
        row = []
        for at, (name, column) in enumerate(rows.items()):
            value: Any = column[n]
            if name in ("kind", "strict", "place"):
                row.append(category(at, value.encode()))
            elif name == "day":
                row.append((np.datetime64(value) - np.datetime64("1970-01-01")).astype(float))
            else:
                row.append(np.nan if value is None else value)
        chosen, chances = call(np.array(row))
        assert call.status == 0
        assert differ(chances, expected[n]) <= 1e-5
        assert label(int(chosen)).decode() == labels[n]
    assert category(names.index("kind"), b"") != category(names.index("kind"), b"")  # NaN
    assert category(names.index("place"), b"elsewhere") == 0
    good = np.array(row)
    for name, value in [
        ("int", np.nan), ("int", np.inf), ("a gap", -np.inf), ("strict", 0), ("strict", np.nan),
        ("place", 10), ("place", -1), ("place", 0.5), ("kind", 1e300), ("day", np.nan),
    ]:  # fmt: skip
        bad = good.copy()
        bad[names.index(name)] = value
        call(bad)
        assert call.status == 2, (name, value)
    call(good)
    assert call.status == 0


@pytest.mark.skipif(not shutil.which("gfortran"), reason="no gfortran")
def test_fortran_has_classes_and_categories(table: Path, here: Path) -> None:
    import subprocess

    exported(str(table / "runs" / "t-1"), "--output", "t.c")
    exported(str(table / "runs" / "t-1"), "--step", "--output", "s.c")
    for name, verbs in {"t": ("predict",), "s": ("step", "init", "rate")}.items():
        words = ["gfortran", "-std=f2018", "-Wall", "-Werror", "-fsyntax-only", f"{name}.f90"]
        done = subprocess.run(words, cwd=here, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        text = (here / f"{name}.f90").read_text()
        for verb in (*verbs, "class", "category"):
            assert re.search(rf"(function|subroutine) {name}_{verb}\(", text)
        assert max(map(len, text.splitlines())) <= 132


@pytest.mark.daily("standardize_target: true")
@pytest.mark.parametrize(
    "keys",
    ["standardize_target: true, log_target: true, clip: true", "log_target: true", "clip: true"],
)
def test_a_target_in_its_own_unit(keys: str, here: Path) -> None:
    x = np.random.default_rng(0).random((80, 2))
    np.savez("d.npz", x=x, y=100 * x[:, 0])
    Path("a.yaml").write_text(
        f"name: a\ndata: {{type: npz, path: d.npz, {keys}}}\nmodel: linear_regression\nloss: mse\n"
        "optimizer: {type: adam, lr: 0.1}\ntrain: {duration: 20 steps, batch_size: 8}\n"
    )
    trained(Path("a.yaml"))
    exported("runs/a")
    assert tried(here, "a", CC, *STRICT, *SANITIZED).returncode == 0
    compared(here, "a", mt.load("runs/a"), 3 * np.random.default_rng(1).standard_normal((50, 2)))


@pytest.mark.parametrize("loss", ["bce", "poisson"])
def test_links(loss: str, here: Path) -> None:
    x = np.random.default_rng(0).random((80, 2))
    np.savez("d.npz", x=x, y=np.round(x[:, 0]))
    Path("a.yaml").write_text(
        "name: a\ndtype: float64\ndata: {type: npz, path: d.npz}\nmodel: linear_regression\n"
        f"loss: {loss}\noptimizer: adam\ntrain: {{duration: 20 steps, batch_size: 8}}\n"
    )
    trained(Path("a.yaml"))
    exported("runs/a")
    done = tried(here, "a", CC, *STRICT, *SANITIZED)
    assert done.returncode == 0
    assert "bound 1e-10" in done.stdout
    compared(here, "a", mt.load("runs/a"), np.random.default_rng(1).standard_normal((50, 2)))


def test_a_result_that_is_not_finite_is_a_status(here: Path) -> None:
    trained(CONFIGS / "linreg.yaml", "train.duration=2 steps", f"run_dir={here}/runs")
    exported("runs/linreg")
    call = Library(here / "linreg.c", "predict", [(np.float32, ())])
    for value, status in [(1.0, 0), (1e300, 3), (np.nan, 2), (-np.inf, 2)]:
        call(np.array([value]))
        assert call.status == status


LINEAR = "data: {type: npz, path: d.npz, standardize: true, clip: true}\nmodel: linear_regression"
SQUASHED = "data: {type: npz, path: d.npz}\nmodel: {type: mlp, hidden: [4], activation: tanh}"


@pytest.mark.parametrize(
    "text", [f"{LINEAR}\nloss: mse", f"{SQUASHED}\nloss: mse", f"{SQUASHED}\nloss: bce"]
)
def test_what_python_refuses_is_a_status_also_where_the_result_is_finite(
    text: str, here: Path
) -> None:
    """Where it is clipped, or squashed on the way."""
    x = np.random.default_rng(0).random((80, 2))
    np.savez("d.npz", x=x, y=np.round(x[:, :1]))
    Path("a.yaml").write_text(
        f"name: a\n{text}\noptimizer: adam\ntrain: {{duration: 2 steps, batch_size: 8}}\n"
    )
    trained(Path("a.yaml"))
    exported("runs/a")
    model = mt.load("runs/a")
    call = Library(here / "a.c", "predict", [(np.float64 if "bce" in text else np.float32, ())])
    call(np.array([1e30, 0.5]))
    assert call.status == 0
    row = np.array([-1e300, 0.5])
    with pytest.raises(DataError, match="do not fit float32"):
        model.predict(row[None])
    call(row)
    assert call.status == 3


def test_an_empty_cell_that_stands_for_an_unknown_category(here: Path) -> None:
    Path("d.csv").write_text("kind,y\n" + "a,1\nb,2\nc,4\n" * 20)
    Path("d.yaml").write_text(
        "name: d\ndata: {type: csv, path: d.csv, target: y, columns: {kind: {type: category, "
        "missing: none, unknown: error}}}\nmodel: linear_regression\nloss: mse\noptimizer: adam\n"
        "train: {duration: 2 steps, batch_size: 8}\n"
    )
    trained(Path("d.yaml"))
    exported("runs/d")
    with pytest.raises(DataError, match="found an empty cell"):
        mt.load("runs/d").predict({"kind": [""]})
    assert tried(here, "d", CC, *STRICT, *SANITIZED).returncode == 0
    call = Library(here / "d.c", "predict", [(np.float32, ())])
    for code, status in [(np.nan, 2), (0, 2), (1, 0), (3, 0), (4, 2)]:
        call(np.array([float(code)]))
        assert call.status == status


def refused(capsys, *words: str) -> str:
    assert main(["export", *words]) != 0
    return str(capsys.readouterr().err)


def test_what_the_command_refuses(here: Path, capsys) -> None:
    trained(CONFIGS / "linreg.yaml", "train.duration=2 steps", f"run_dir={here}/runs")
    run = "runs/linreg"
    assert "--output a.h: expected a name that ends in .c" in refused(
        capsys, run, "--to", "c", "--output", "a.h"
    )
    assert "must be a letter and then" in refused(capsys, run, "--to", "c", "--output", "2.c")
    assert "there is no directory" in refused(capsys, run, "--to", "c", "--output", "no/a.c")
    assert "'cpp' is not one of" in refused(capsys, run, "--to", "cpp")
    assert "--weights-file is for --to c" in refused(capsys, run, "--to", "npz", "--weights-file")
    assert "runs/nothing" in refused(capsys, "runs/nothing", "--to", "c")
    (here / "linreg.mk").touch()
    assert "linreg.mk exists; --force replaces it" in refused(capsys, run, "--to", "c")
    assert not (here / "linreg.c").exists()
    assert main(["export", run, "--to", "c", "--force", "--weights-file"]) == 0
    assert (here / "linreg.weights").stat().st_size > 0
    assert re.search(r"\bLINREG_WEIGHTS \d+", (here / "linreg.h").read_text())


def test_parts_of_a_date_are_refused(here: Path, capsys) -> None:
    days = [f"2024-{n % 12 + 1:02}-{n % 28 + 1:02}" for n in range(60)]
    lines = [f"{day},{n}.5" for n, day in enumerate(days)]
    Path("d.csv").write_text("\n".join(["day,y", *lines]))
    Path("d.yaml").write_text(
        "name: d\ndata: {type: csv, path: d.csv, target: y, columns: {day: {type: date, parts: "
        "[month]}}}\nmodel: linear_regression\nloss: mse\noptimizer: adam\n"
        "train: {duration: 2 steps, batch_size: 8}\n"
    )
    trained(Path("d.yaml"))
    said = refused(capsys, "runs/d", "--to", "c")
    assert 'column "day": the parts of a date have no form in C' in said


# Steps of training --------------------------------------------------------------------------------

STEPS = {
    "regression": (
        "data: {type: csv, path: d.csv, target: y, drop: [w, k], standardize: true, "
        "standardize_target: true}\nmodel: {type: mlp, hidden: [8], activation: tanh}\nloss: mse\n"
        "optimizer: {type: adam, lr: 0.01}\nschedule: {type: step, every: 5 steps, gamma: 0.5}\n",
        "clip_norm: 0.05",
    ),
    "weights": (
        "data: {type: csv, path: d.csv, target: y, weight: w, drop: [k], log_target: true}\n"
        "model: linear_regression\nloss: huber\noptimizer: {type: sgd, lr: 0.01, momentum: 0.9}\n",
        "nan: skip",
    ),
    "classes": (
        "data: {type: csv, path: d.csv, target: k, drop: [w, y], standardize: true}\n"
        "model: {type: mlp, hidden: [6]}\nloss: {type: cross_entropy, class_weight: balanced}\n"
        "optimizer: {type: adamw, lr: 0.02}\n",
        "accumulate: 3",
    ),
    "sum": (
        "data: {type: csv, path: d.csv, target: y, drop: [w, k]}\nmodel: linear_regression\n"
        "loss: {type: mse, reduction: sum}\noptimizer: {type: rmsprop, lr: 0.001}\n",
        "compile: off",
    ),
}


@pytest.mark.daily("regression", "classes")
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_a_run_goes_on_as_the_run(name: str, here: Path) -> None:
    """Rows and target as they are in the file; clipped, weighted, with the rates of a schedule."""
    rng = np.random.default_rng(0)
    x, w, k = rng.normal(5, 3, (60, 2)), rng.integers(1, 4, 60), rng.integers(0, 3, 60)
    y = 20 + 3 * x[:, 0] + x[:, 1] ** 2
    table = np.column_stack([x, y, w, k])
    kept = "a,b,y,w,k\n" + "".join(f"{a!r},{b!r},{c!r},{d:g},c{e:g}\n" for a, b, c, d, e in
                                   table.tolist())  # fmt: skip
    Path("d.csv").write_text(kept)
    Path("a.yaml").write_text(
        f"name: a\ndtype: float64\n{STEPS[name][0]}checkpoint: {{every: 10 steps}}\n"
        f"train: {{duration: 20 steps, batch_size: all, {STEPS[name][1]}}}\n"
    )
    trained(Path("a.yaml"))
    exported("runs/a", "--step", "--checkpoint", "last", "--output", "net.c")
    done = tried(here, "net", CC, *STRICT, *SANITIZED)
    assert not done.returncode, done.stdout + done.stderr
    learner = Learner(here / "net.c", 2)
    target = k if name == "classes" else y[:, None]
    given = [x, target, *([w.astype(float)] if name == "weights" else [])]
    for number in range(20, 30):
        if name == "regression":
            learner.rate(learner.state.ctypes.data, 0, 0.01 * 0.5 ** (number // 5))
        learner.step(*given)
    trained(Path("a.yaml"), "train.duration=30 steps", "name=b")
    expected = [
        p.detach().numpy() for p in mt.load("runs/b", checkpoint="last").module.parameters()
    ]
    for mine, right in zip(learner.parameters, expected, strict=True):
        assert differ(mine, right) <= 1e-9
    header = (here / "net.h").read_text()
    said = {"regression": "schedule, step", "weights": "weighted mean", "classes": "weighted mean"}
    assert said.get(name, "leaves the sum, not the mean") in header
    bad = given[0].copy()
    bad[3, 1] = np.nan
    before = learner.state.copy()
    with pytest.raises(AssertionError):
        learner.step(bad, *given[1:])
    np.testing.assert_array_equal(learner.state, before)


@pytest.mark.daily("csv")
@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_the_step_of_every_configuration(name: str, here: Path) -> None:
    few = ["sweep=null"] if "sweep:" in (CONFIGS / f"{name}.yaml").read_text() else []
    trained(CONFIGS / f"{name}.yaml", "train.duration=4 steps", f"run_dir={here}/runs", *few)
    (run,) = (here / "runs").iterdir()
    exported(str(run), "--trust", "--step", "--output", "net.c")
    done = tried(here, "net", CC, *STRICT, *SANITIZED)
    assert not done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_step_on_a_table(table: Path, here: Path) -> None:
    exported(str(table / "runs" / "t-1"), "--step", "--rows", "5", "--output", "t.c")
    done = tried(here, "t", CC, *STRICT, *SANITIZED)
    assert not done.returncode, done.stdout + done.stderr
    header = (here / "t.h").read_text()
    assert "in0: double[5][6], the rows, raw values" in header
    assert "in1: int64_t[5], the target, the number of the class" in header
    assert "in0[row][2]: kind, the number of a category, NAN where it is empty" in header
    learner = Learner(here / "t.c", 2)
    category = learner.library["t_category"]
    category.restype, category.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_char_p]
    row = [50.0, 3.5, category(2, b"b,l"), category(3, b"x"), category(4, b"p3"), 19000.0]
    rows, labels = np.array([row] * 5), np.zeros(5, np.int64)
    losses = [learner.step(rows, labels) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    rows[4, 3] = 0.0  # an unknown one, where that was an error
    with pytest.raises(AssertionError):
        learner.step(rows, labels)
    with pytest.raises(AssertionError):
        learner.step(np.array([row] * 5), labels + len(NAMES))


def test_steps_that_have_no_form_are_refused_by_name(here: Path, capsys) -> None:
    np.savez("d.npz", x=np.random.default_rng(0).random((40, 3)), y=np.arange(40.0)[:, None])
    Path("own.py").write_text(
        "import microtrain as mt\n\n\nclass Own(mt.train.Trainer):\n"
        "    def train_step(self, batch):\n        return super().train_step(batch)\n\n\n"
        "def dropping(in_features, out_features):\n    return mt.nn.Sequential("
        "mt.nn.Dropout(0.5), mt.nn.Linear(in_features, out_features))\n\n\n"
        "def normed(in_features, out_features):\n    return mt.nn.Sequential("
        "mt.nn.Linear(in_features, 4), mt.nn.BatchNorm1d(4), mt.nn.Linear(4, out_features))\n"
    )
    model, batch = "linear_regression", "batch_size: 8"
    for words, message in {
        ("own.py:dropping", "adam", batch): "random numbers have no form",
        (model, "nadam", batch): "the rates of NAdam have no form in C",
        (model, "lbfgs", "batch_size: all"): "lbfgs computes its loss several times in a step",
        (
            "own.py:normed",
            "sgd",
            f"{batch}, accumulate: 2",
        ): "batch norms have the statistics of micro-batches",
        (
            model,
            "sgd",
            f"{batch}}}\ntrainer: own.py:Own\ndistributed: {{share_gpu: true",
        ): "of its own",
    }.items():
        Path("a.yaml").write_text(
            f"name: a\ndata: {{type: npz, path: d.npz}}\nmodel: {words[0]}\nloss: mse\n"
            f"optimizer: {words[1]}\ntrain: {{duration: 2 steps, {words[2]}}}\n"
        )
        trained(Path("a.yaml"))
        said = refused(capsys, "runs/a", "--to", "c", "--step", "--trust")
        assert "the step cannot be written as C" in said
        assert message in said
    assert "use --to c, not --to npz" in refused(
        capsys, "runs/a", "--to", "npz", "--step", "--trust"
    )
    words = ["runs/a", "--to", "c", "--trust"]
    assert "leave out --weights-file" in refused(capsys, *words, "--step", "--weights-file")
    assert "--rows is for --step" in refused(capsys, *words, "--rows", "3")
    assert not [*here.glob("*.c")]
