"""Pictures: files that show what they should, without pyplot, and a run without matplotlib."""

import math
import subprocess
import sys

import numpy as np
import pytest
from test_plot_command import make_run

from microtrain.errors import ConfigError, LaunchError, install
from microtrain.report.curves import curves
from microtrain.report.figures import draw, write
from microtrain.report.page import write_plots
from microtrain.report.predictions import Predictions, fit
from microtrain.report.record import Record

pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n\x1a\n"


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def drawn(tmp_path, losses, **info):
    """The axes of the loss curve of a run."""
    run = make_run(tmp_path, losses=losses, **info)
    (axes,) = draw(curves([Record.read(run)], ["loss"]), "$line$").axes
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
    (chart,) = curves([Record.read(run)], ["loss"])
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
    assert write_plots(run) == [run / "plots" / "loss.png"]
    assert write_plots(run, predictions) == [run / "plots" / "loss.png", run / "plots" / "fit.png"]
    assert sorted(path.name for path in (run / "plots").iterdir()) == ["fit.png", "loss.png"]
    for path in (run / "plots").iterdir():
        assert path.read_bytes().startswith(PNG)


def test_nothing_to_draw_is_no_file(tmp_path):
    run = make_run(tmp_path, losses=())
    assert write_plots(run) == []
    assert not (run / "plots").exists()


def test_a_file_in_the_way_is_named(tmp_path):
    run = make_run(tmp_path)
    (run / "plots").write_text("mine")
    with pytest.raises(LaunchError, match=r"cannot write the plot .*loss\.png"):
        write_plots(run)


def test_another_ending_is_refused(tmp_path):
    figure = draw(curves([Record.read(make_run(tmp_path))], ["loss"]))
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
"""


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
