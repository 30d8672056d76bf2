"""`microtrain plot` and `compare`: runs read back, drawn together, explained; nothing executed."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from microtrain.cli.main import main
from microtrain.errors import ConfigError, DataError, install
from microtrain.report import chart
from microtrain.report.compare import compare, lines
from microtrain.report.curves import choose, curves, run_names
from microtrain.runs.directory import RunDirectory
from microtrain.runs.run import Run

ROOT = Path(__file__).resolve().parents[2]
SVG, PDF, PNG = b"<?xml", b"%PDF", b"\x89PNG"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI", "MPI_", "SLURM_")):
            monkeypatch.delenv(name)


def make_run(parent, name="line", *, losses=(3.0, 2.0, 1.5), lr="0.1  # line.yaml:3", **info):
    """A run directory as the trainer leaves it, without training."""
    with RunDirectory.create(parent, name) as run:
        run.write(
            "config.yaml",
            f"name: {json.dumps(name)}  # command line\n"
            "loss:\n  type: mse  # line.yaml:2\n"
            f"optimizer:\n  type: sgd  # default\n  lr: {lr}\n"
            f'note: "one  # two"  # line.yaml:9\nrun_dir: {json.dumps(str(parent))}\n',
        )
        for step, loss in enumerate(losses, start=1):
            row = {"step": step, "epoch": step / 3, "samples": 8 * step}
            run.log_metrics({"split": "train", **row, "loss": loss, "time": 0.5 * step})
            run.log_metrics({"split": "val", **row, "loss": loss + 0.25, "r2": 1 - loss / 10})
        ended = {"status": "finished", "exit_code": 0, "steps": len(losses)}
        run.update(**ended | {"higher_is_better": {"loss": False, "r2": True}} | info)
    return run.path


def test_a_record_has_settings_with_their_origins_and_curves(tmp_path):
    record = Run.read(make_run(tmp_path, best={"name": "val/loss", "value": 1.75, "step": 3}))
    assert record.config["optimizer.lr"][:2] == (0.1, "line.yaml:3")
    assert record.config["note"][:2] == ("one  # two", "line.yaml:9")
    assert record.config["run_dir"].origin == ""
    assert record.columns == ["train/loss", "val/loss", "val/r2"]
    np.testing.assert_array_equal(record.curve("val/loss"), [[1, 2, 3], [3.25, 2.25, 1.75]])
    assert record.best("val/loss") == (1.75, 3)
    assert record.best("val/r2") == (0.85, 3)


def test_the_direction_of_a_column_is_what_the_run_has_written_down(tmp_path):
    said = {"loss": False, "far": True, "near": False, "own": None}
    best = {"name": "val/own", "value": 1.0, "step": 3}
    record = Run.read(make_run(tmp_path, higher_is_better=said, best=best))
    columns = ("train/loss", "val/far", "test/near", "val/own", "train/own", "val/r2")
    assert [record.direction(column) for column in columns] == [-1, 1, -1, -1, 0, 0]
    record = Run.read(make_run(tmp_path, higher_is_better={}, best=best))
    assert record.direction("val/far") == 0


@pytest.mark.parametrize(
    "file, text, words",
    [
        ("run.json", '{"status": 3}', "run.json: status: Input should be a valid string"),
        ("run.json", '{"status": "x", "best": {"name": 1}}', "best.name: Input should be"),
        ("run.json", '{"status": "x", "hosts": "vm"}', "hosts: Input should be a valid array"),
        ("run.json", "[]", "not a JSON object"),
        ("metrics.jsonl", '{"split": "val"}\n', "metrics.jsonl:1: a row has a split and a whole"),
        ("metrics.jsonl", '{"split": "x", "step": 1}\n', "metrics.jsonl:1: a row has a split"),
        ("metrics.jsonl", '{"split": "val", "step": 1, "loss": "a"}\n', "loss: expected a number"),
        (
            "metrics.jsonl",
            '{"split": "val", "step": 1, "loss": 1%s}\n' % ("0" * 400),
            "metrics.jsonl:1: loss: expected a number",
        ),
        ("config.yaml", "a: [", "config.yaml: "),
        ("config.yaml", "- a", "expected keys and values"),
        ("config.yaml", "a: !!python/object:os.system x", "config.yaml: "),
    ],
)
@pytest.mark.parametrize("command", ["plot", "compare"])
def test_a_damaged_run_is_one_message_and_exit_3(tmp_path, capsys, command, file, text, words):
    path = make_run(tmp_path)
    (path / file).write_text(text)
    assert main([command, str(path), str(path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert words in err


# ---------------------------------------------------------------------------------------- plot


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn."""
    pytest.importorskip("matplotlib")
    made = []
    draw = chart.draw

    def keep(*arguments):
        made.append(draw(*arguments))
        return made[-1]

    monkeypatch.setattr(chart, "draw", keep)
    return made


@pytest.mark.daily("svg")
@pytest.mark.parametrize("suffix, start", [(".png", PNG), (".svg", SVG), (".pdf", PDF)])
def test_plot_writes_the_format_of_the_name(tmp_path, capsys, drawn, suffix, start):
    output = tmp_path / f"a picture{suffix}"
    assert main(["plot", str(make_run(tmp_path)), "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert output.read_bytes().startswith(start)
    assert [axes.get_ylabel() for axes in drawn[0].axes] == ["loss", "r2"]


def test_a_run_alone_is_drawn_into_its_plots(tmp_path, capsys, drawn):
    path = make_run(tmp_path, best={"name": "val/loss", "value": 1.75, "step": 3})
    assert main(["plot", str(tmp_path / "line"), "--metric", "loss"]) == 0
    assert (path / "plots" / "curves.png").read_bytes().startswith(PNG)
    (axes,) = drawn[0].axes
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["train", "validation", "best: 1.7500 at step 3"]


def test_several_runs_share_panels_and_the_diverged_one_is_named(tmp_path):
    pytest.importorskip("matplotlib")
    paths = [
        make_run(tmp_path, "$a$"),
        make_run(tmp_path, "<b>", losses=(3.0, math.nan), status="diverged"),
        make_run(tmp_path, "c", losses=(), status="running", steps=None),
    ]
    figure = chart.draw(curves([Run.read(path) for path in paths], ["loss"]))
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    expected = ["$a$", "<b> (diverged at step 3)", "c (running)", "train", "validation"]
    assert texts == expected
    assert not any(text.get_parse_math() for text in legend.get_texts())
    assert len({line.get_color() for line in figure.axes[0].lines}) == 3


@pytest.mark.parametrize("losses, scale", [((9.0, 0.1), "log"), ((9.0, 3.0), "linear")])
def test_the_scale_follows_the_values_and_not_the_marks(tmp_path, losses, scale):
    path = make_run(tmp_path, losses=losses, status="diverged")
    (chart,) = curves([Run.read(path)], ["train/loss"])
    assert chart.log is (scale == "log")


def test_runs_are_called_by_what_differs(tmp_path):
    a, b = make_run(tmp_path), make_run(tmp_path, lr="0.2  # command line")
    names = run_names([Run.read(a), Run.read(b)])
    assert names == ["optimizer.lr=0.1", "optimizer.lr=0.2"]
    again = make_run(tmp_path)
    names = run_names([Run.read(a), Run.read(again)])
    assert names == [f"line/{a.name}", f"line/{again.name}"]
    assert len(set(run_names([Run.read(a), Run.read(a)]))) == 1
    other = make_run(tmp_path, "other")
    assert run_names([Run.read(a), Run.read(other)]) == ["line", "other"]


def test_what_cannot_be_drawn_is_said(tmp_path):
    run = Run.read(make_run(tmp_path))
    empty = Run.read(make_run(tmp_path, losses=(), status="failed"))
    with pytest.raises(ConfigError, match='the metric "los"; did you mean loss'):
        choose([run], ["los"])
    with pytest.raises(DataError, match="no row of metrics was written in"):
        choose([empty], [])


def test_without_matplotlib_one_message_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["plot", str(make_run(tmp_path))]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: matplotlib is not installed; {install('plot')}\n"


def test_an_output_that_cannot_be_written(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    run = str(make_run(tmp_path))
    assert main(["plot", run, "--output", str(tmp_path / "absent" / "x.png")]) == 5
    assert "cannot write the plot" in capsys.readouterr().err


# ------------------------------------------------------------------------------------- compare


def compared(*paths):
    return compare([Run.read(path) for path in paths])


def test_the_same_run_twice_is_bit_for_bit_the_same(tmp_path):
    same = {"params_sha256": "ab", "ranks": 1}
    found = compared(*(make_run(tmp_path, **same, data_hash="cd") for _ in range(3)))
    assert found["identical"]
    assert found["config"] == found["environment"] == {}
    text = "\n".join(lines(found))
    assert "bit for bit the same runs: all rows of metrics and the hash of the parameters" in text
    assert "configuration: equal\ndata: equal\nenvironment: equal" in text


@pytest.mark.parametrize(
    "change, words",
    [
        ({"losses": (3.0, 2.0, 1.6)}, "differ from step 3 on (train/loss); the parameters"),
        ({"losses": (3.0, math.nextafter(2, 3), 1.5)}, "differ from step 2 on (train/loss)"),
        ({"losses": (3.0, 2.0)}, "equal in all shared rows; at step 3 some runs have no row"),
        ({"losses": ()}, "B: no row of metrics was written"),
        ({"params_sha256": "xx"}, "all rows of metrics are equal; the parameters at the end are d"),
        ({"params_sha256": None}, "at the end are unknown (not every run has finished)"),
    ],
)
def test_the_first_difference_is_found(tmp_path, change, words):
    same = {"params_sha256": "ab"}
    found = compared(make_run(tmp_path, **same), make_run(tmp_path, **same | change))
    assert not found["identical"]
    assert words in "\n".join(lines(found))


def test_missing_values_are_equal_to_missing_values(tmp_path):
    runs = [make_run(tmp_path, losses=(1.0, math.nan), params_sha256="ab") for _ in range(2)]
    assert compared(*runs)["identical"]


def test_the_sign_of_zero_is_a_difference(tmp_path):
    runs = [make_run(tmp_path, losses=(zero,), params_sha256="ab") for zero in (0.0, -0.0)]
    assert compared(*runs)["first_difference"] == {"step": 1, "columns": ["train/loss"]}


def test_configuration_environment_and_metrics_side_by_side(tmp_path):
    a = make_run(tmp_path, ranks=1, hosts=["vm"], data_hash="x")
    b = make_run(
        tmp_path,
        "other",
        lr="0.2  # command line",
        losses=(3.0, 1.0),
        ranks=2,
        hosts=["vm", "n\x1b[31m"],
        data_hash="y",
        versions={"numpy": "1.0"},
        git=None,
    )
    found = compared(a, b)
    both = [s["value"] for s in found["config"]["optimizer.lr"]]
    assert both == [0.1, 0.2]
    assert found["environment"]["ranks"] == [1, 2]
    assert found["data"]["equal"] is False
    assert found["metrics"]["val/r2"]["best"] == [pytest.approx(0.85), pytest.approx(0.9)]
    assert {column["better"] for column in found["metrics"].values()} == {None}
    text = lines(found)
    assert not any(" by " in line for line in text)
    assert any(line.split() == ["optimizer.lr", "0.1", "(line.yaml:3)", "0.2", "(command",
                                "line)"] for line in text)  # fmt: skip
    assert "data: different rows" in text
    assert "the rows differ, so no run is called better; data.split.seed keeps a split" in text
    same = compared(a, make_run(tmp_path, "third", losses=(3.0, 1.0), data_hash="x"))["metrics"]
    assert (same["val/r2"]["better"], same["val/r2"]["by"]) == (1, pytest.approx(0.05))
    assert not any("\x1b" in line for line in text)


def test_values_of_other_losses_are_not_judged(tmp_path):
    a, b = make_run(tmp_path), make_run(tmp_path, losses=(1.0, 0.5))
    config = (b / "config.yaml").read_text()
    (b / "config.yaml").write_text(config.replace("type: mse", "type: mae"))
    metrics = compared(a, b)["metrics"]
    assert metrics["val/loss"]["better"] is None
    assert metrics["val/r2"]["better"] == 1


def test_compare_prints_json(tmp_path, capsys):
    a, b = make_run(tmp_path), make_run(tmp_path, losses=(math.nan,), status="diverged")
    assert main(["compare", str(a), str(b), "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["runs"][1]["status"] == "diverged"
    assert found["first_difference"] == {"step": 1, "columns": ["train/loss"]}


def test_compare_wants_two(tmp_path, capsys):
    assert main(["compare", str(make_run(tmp_path))]) == 2
    assert "name two different runs or more to compare" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "line"), str(tmp_path / "absent")]) == 3


@pytest.mark.daily("plot")
@pytest.mark.parametrize("command", ["plot", "compare"])
def test_seeing_loads_neither_mpi_nor_cupy_nor_the_code_of_a_run(tmp_path, command):
    path, other = make_run(tmp_path), make_run(tmp_path, "other")
    with open(path / "config.yaml", "a") as file:
        file.write("model:\n  type: ./evil.py:Net\n")
    (path / "evil.py").write_text("raise SystemExit(99)")
    code = (
        "import sys; from microtrain.cli.main import main; code = main(sys.argv[1:])\n"
        "heavy = {'mpi4py', 'cupy', 'sklearn', 'rich', 'evil'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command, str(path), str(other)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
