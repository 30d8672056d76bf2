"""Pictures: files that show what they should, without pyplot, and a run without matplotlib."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from pace import daily
from test_plot_command import make_run

from microtrain.errors import ConfigError, DataError, LaunchError, install
from microtrain.report.chart import draw, picture, write
from microtrain.report.curves import choose, curves
from microtrain.report.page import write_plots
from microtrain.report.predictions import Predictions, fit
from microtrain.runs.run import Run

pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n\x1a\n"


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def drawn(tmp_path, losses, **info):
    """The axes of the loss curve of a run."""
    run = make_run(tmp_path, losses=losses, **info)
    (axes,) = draw(curves([Run.read(run)], ["loss"]), "$line$").axes
    return axes


def test_the_loss_curve(tmp_path):
    axes = drawn(tmp_path, [3, 2, 2.5])
    assert legend(axes) == ["train", "validation", "best: 2.2500 at step 2"]
    assert axes.get_title(loc="left") == "$line$: loss"
    assert not axes.title.get_parse_math() or axes.title.get_text() == ""
    assert axes.get_yscale() == "linear"
    train, validation, best = axes.lines
    np.testing.assert_array_equal(train.get_xydata(), [[1, 3], [2, 2], [3, 2.5]])
    np.testing.assert_array_equal(validation.get_ydata(), [3.25, 2.25, 2.75])
    np.testing.assert_array_equal(best.get_xydata(), [[2, 2.25]])


def test_the_ticks_are_those_of_the_page(tmp_path):
    run = make_run(tmp_path, losses=[3, 0.2])
    (chart,) = curves([Run.read(run)], ["loss"])
    (axes,) = draw([chart]).axes
    assert axes.get_yscale() == "log"
    for axis, ticks in ((axes.xaxis, chart.x_ticks()), (axes.yaxis, chart.y_ticks())):
        assert [text.get_text() for text in axis.get_ticklabels()] == [text for _, text in ticks]
        assert axis.get_ticklocs().tolist() == [value for value, _ in ticks]
        assert len(axis.get_ticklocs(minor=True)) == 0


def test_a_run_that_went_astray_says_where(tmp_path):
    assert "not finite from step 3" in legend(drawn(tmp_path, [1.0, 2.0, math.nan, math.nan]))
    never = drawn(tmp_path, [math.nan, math.nan])
    assert legend(never) == ["train", "validation", "not finite from step 1"]
    diverged = drawn(tmp_path, [1.0, math.nan], status="diverged")
    assert "diverged at step 3" in legend(diverged)


def many(tmp_path, count, seeds=1):
    """Records of so many runs, of which `seeds` neighbors differ in their seed alone."""
    records = []
    for i in range(count):
        run = make_run(
            tmp_path, f"r{i}", losses=[3, 2, 1 + i / 7], lr=f"{i // seeds}.5  # x.yaml:1"
        )
        (run / "config.yaml").write_text((run / "config.yaml").read_text() + f"seed: {i % seeds}\n")
        records.append(Run.read(run))
    return records


@pytest.mark.parametrize("count", daily([7, 20, 32], 7, 20))
def test_many_runs_are_told_apart_by_color_and_line(tmp_path, count):
    figure = draw(curves(many(tmp_path, count), ["loss"]))
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "loss, validation"
    drawn = [line for line in axes.lines if line.get_label() == "validation"]
    looks = [(line.get_color(), str(line.get_linestyle()), line._dash_pattern) for line in drawn]
    assert len(drawn) == len(set(map(str, looks))) == count
    (legend,) = figure.legends
    picture(figure)
    box, whole = legend.get_window_extent(), figure.bbox
    assert axes.bbox.x1 < box.x0 and box.x1 < whole.x1  # beside the axes
    assert box.y0 > 0 and box.y1 < whole.y1
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:count] == [f"r{i}" for i in range(count)]
    for line, handle in zip(drawn, legend.get_lines(), strict=False):
        assert (line.get_color(), line.get_linestyle()) == (
            handle.get_color(), handle.get_linestyle()
        )  # fmt: skip


def test_one_of_many_that_has_measured_nothing_is_named_too(tmp_path):
    records = many(tmp_path, 7)
    records.append(Run.read(make_run(tmp_path, "empty", losses=(), status="running")))
    (legend,) = draw(curves(records, ["loss"])).legends
    assert "empty (running)" in {text.get_text() for text in legend.get_texts()}


def test_runs_that_differ_in_their_seed_alone_are_one_curve_with_a_band(tmp_path):
    records = many(tmp_path, 6, seeds=3)
    (chart,) = curves(records, ["val/loss"], group=True)
    assert [curve.run for curve in chart.curves] == ["lr=0.5 (3 runs)", "lr=1.5 (3 runs)"]
    last = np.array([1.25, 1.25 + 1 / 7, 1.25 + 2 / 7])
    np.testing.assert_allclose(chart.curves[0].points, [[1, 2, 3], [3.25, 2.25, last.mean()]])
    low, high = chart.curves[0].band
    np.testing.assert_allclose([low[-1], high[-1]], last.mean() + last.std(ddof=1) * np.r_[-1, 1])
    (axes,) = draw([chart]).axes
    assert len(axes.collections) == 2
    assert len(axes.lines) == 2


def test_a_moving_average_stands_before_the_values(tmp_path):
    record = Run.read(make_run(tmp_path, losses=[4.0, 2.0, math.nan, 1.0]))
    (chart,) = curves([record], ["train/loss"], smooth=0.5)
    raw, smooth = chart.curves
    assert raw.faint and not smooth.faint
    np.testing.assert_array_equal(raw.points[1], [4, 2, math.nan, 1])
    # (4/4 + 2/2) / (3/4) and, after a value that is not finite, (4/8 + 2/4 + 1/2) / (7/8)
    np.testing.assert_allclose(smooth.points[1], [4, 8 / 3, math.nan, 12 / 7])
    axes = draw([chart]).axes[0]
    assert [line.get_alpha() for line in axes.lines[:2]] == [0.25, None]
    assert "train" in legend(axes)


@pytest.mark.parametrize(
    "x, places, words",
    [("epoch", [1 / 3, 2 / 3, 1.0], "epoch"), ("samples", [8, 16, 24], "samples seen"),
     ("time", [0.5, 1.0, 1.5], "seconds of training")],
)  # fmt: skip
def test_the_horizontal_axis_can_be_chosen(tmp_path, x, places, words):
    record = Run.read(make_run(tmp_path))
    (chart,) = curves([record], ["train/loss"], x)
    np.testing.assert_allclose(chart.curves[0].points, [places, [3, 2, 1.5]])
    assert chart.x == words
    (best,) = chart.marks
    assert (best.x, best.words) == (pytest.approx(places[-1]), "best: 1.5000 at step 3")


def test_an_axis_that_was_not_written_down_is_an_error(tmp_path):
    record = Run.read(make_run(tmp_path))
    with pytest.raises(DataError, match="the row of step 1 has no time"):
        curves([record], ["val/loss"], "time")


def test_a_rate_that_stays_is_not_drawn_unless_asked_for(tmp_path):
    run = make_run(tmp_path)
    rows = (run / "metrics.jsonl").read_text().splitlines()
    rows = [{**json.loads(row), "lr": 0.1} if "train" in row else json.loads(row) for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert choose([Run.read(run)], []) == ["loss", "r2"]
    assert choose([Run.read(run)], ["lr"]) == ["lr"]


def test_data_and_line_of_one_feature():
    x = np.linspace(0, 5, 40)
    y = 2 * x + 3
    names = ("price ($) and tax ($)", "y")
    chart = fit(x, y, 2.5 * x + 3, names, learned=([2.5], 3.0), true=([2.0], 3.0))
    figure = draw([chart], "linreg", "checkpoint of step 4, the best")
    (axes,) = figure.axes
    assert legend(axes) == ["data", "predicted: y = 2.5 x + 3", "true: y = 2 x + 3"]
    assert axes.get_legend().get_title().get_text() == "checkpoint of step 4, the best"
    data, predicted, true = (line.get_data() for line in axes.lines)
    np.testing.assert_allclose(data, [x, y])
    np.testing.assert_allclose(predicted[1], 2.5 * predicted[0] + 3)
    np.testing.assert_allclose(true[1], 2 * true[0] + 3)
    assert not axes.xaxis.label.get_parse_math()


def test_the_pictures_of_a_run(tmp_path):
    run = make_run(tmp_path)
    x = np.arange(4.0)
    predictions = Predictions("rows", fit=fit(x, x, x))
    record, plots = Run.read(run), run / "plots"
    assert write_plots(record) == [plots / "loss.png"]
    assert write_plots(record, predictions) == [plots / "loss.png", plots / "fit.png"]
    assert sorted(path.name for path in (run / "plots").iterdir()) == ["fit.png", "loss.png"]
    for path in (run / "plots").iterdir():
        assert path.read_bytes().startswith(PNG)


def test_nothing_to_draw_is_no_file(tmp_path):
    run = make_run(tmp_path, losses=())
    assert write_plots(Run.read(run)) == []
    assert not (run / "plots").exists()


def test_a_file_in_the_way_is_named(tmp_path):
    run = make_run(tmp_path)
    (run / "plots").write_text("mine")
    with pytest.raises(LaunchError, match=r"cannot write the plot .*loss\.png"):
        write_plots(Run.read(run))


def test_another_ending_is_refused(tmp_path):
    figure = draw(curves([Run.read(make_run(tmp_path))], ["loss"]))
    with pytest.raises(ConfigError, match=r"must end in \.png, \.svg, \.pdf"):
        write(figure, tmp_path / "x.jpg")


AT_THE_END = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None  # what an import finds where it is not installed
from pathlib import Path
import numpy as np
from microtrain.data import ArrayDataset, prepare
from microtrain.nn import Linear
from microtrain.report.page import final_report
loaded = {"matplotlib", "jinja2"} & {name for name, module in sys.modules.items() if module}
x = np.ones((4, 1))
data = prepare(ArrayDataset(x, x), split={"train": 1.0}, standardize=False)
print(final_report(Path(sys.argv[1]), Linear(1, 1), data))
print(loaded, "matplotlib.pyplot" in sys.modules)
if artist := sys.modules.get("matplotlib.artist"):  # it is left as it was found
    assert "linewidth" in artist.kwdoc(sys.modules["matplotlib.lines"].Line2D)
"""


@pytest.mark.daily("absent1")
@pytest.mark.parametrize(
    "absent, expected, files",
    [
        ([], "None", ["fit.png", "loss.png", "report.html"]),
        (
            ["matplotlib"],
            f"no plots: matplotlib is not installed; {install('plot')}",
            ["report.html"],
        ),
        (
            ["jinja2"],
            f"no report: jinja2 is not installed; {install('plot')}",
            ["fit.png", "loss.png"],
        ),
    ],
)
def test_the_extra_plot_is_imported_late_and_missed_in_a_line(tmp_path, absent, expected, files):
    run = make_run(tmp_path)
    command = [sys.executable, "-c", AT_THE_END, str(run), *absent]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.returncode) == (f"{expected}\nset() False\n", 0), result.stderr
    assert sorted(p.name for p in run.rglob("*") if p.suffix in (".png", ".html")) == files
