"""Plots: PNG files that show what they should, without pyplot, and a run without matplotlib."""

import math
import subprocess
import sys

import numpy as np
import pytest

from microtrain.errors import LaunchError
from microtrain.report.plots import Plots, line_label

pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n\x1a\n"


class Drawn(Plots):
    """Keeps the last figure, so that a test can ask what was drawn."""

    def _write(self, figure, name):
        self.axes = figure.axes[0]
        return super()._write(figure, name)


@pytest.fixture
def plots(tmp_path):
    return Drawn(tmp_path / "plots", pytest.fail, "linreg")


def rows(losses, split="train"):
    return [{"split": split, "step": i + 1, "loss": loss} for i, loss in enumerate(losses)]


def legend(plots):
    return [text.get_text() for text in plots.axes.get_legend().get_texts()]


def test_loss_curve(plots, tmp_path):
    path = plots.loss([*rows([3, 2, 1]), *rows([4.0, 2.5, 2.75], "val"), *rows([9], "test")])
    assert path == tmp_path / "plots" / "loss.png"
    assert path.read_bytes().startswith(PNG)
    assert [p.name for p in path.parent.iterdir()] == ["loss.png"]
    assert legend(plots) == ["train", "validation", "best: 2.5000 at step 2"]
    assert plots.axes.get_title(loc="left") == "linreg: loss"
    assert plots.axes.get_yscale() == "linear"


@pytest.mark.parametrize(
    "losses, scale",
    [
        ([5.0, 0.4], "log"),
        ([1e8, 1e-8], "log"),
        ([5.0, 1.0], "linear"),
        ([5.0, 0.0], "linear"),  # zero has no logarithm
        ([5.0, -4.0], "linear"),
        ([5.0, math.nan, 0.1], "log"),
        ([0.1], "linear"),
    ],
)
def test_the_scale_is_logarithmic_where_losses_span_a_decade(plots, losses, scale):
    assert plots.loss(rows(losses), monitor="train/loss") is not None
    assert plots.axes.get_yscale() == scale


def test_only_the_monitored_loss_has_a_best_mark(plots):
    curves = [*rows([3, 1]), *rows([4, 2], "val")]
    for monitor, expected in [("train/loss", ["best: 1.0000 at step 2"]), ("val/r2", [])]:
        plots.loss(curves, monitor=monitor)
        assert [text for text in legend(plots) if text.startswith("best")] == expected


def test_a_diverged_run_says_where(plots):
    plots.loss(rows([1.0, 2.0, math.nan, math.nan]), monitor="train/loss")
    assert "not finite from step 3" in legend(plots)
    assert plots.loss(rows([math.nan, math.nan]), monitor="train/loss") is not None
    assert legend(plots) == ["train", "not finite from step 1"]


def test_nothing_to_draw_is_no_file(plots):
    assert plots.loss([]) is None
    assert plots.loss([{"split": "train", "step": 1, "r2": 0.5}]) is None
    assert plots.fit([], [], lambda x: x) is None
    assert not plots.directory.exists()


def test_a_long_curve_is_thinned_and_keeps_its_peaks(plots):
    losses = np.ones(100_000)
    losses[[12_345, 77_777]] = 5.0, 0.25
    losses[500] = np.nan
    plots.loss(rows(losses), monitor="train/loss")
    x, y = plots.axes.lines[0].get_data()
    assert len(x) <= 2000
    assert (np.diff(x) > 0).all()
    assert (x[0], x[-1]) == (1, 100_000)
    assert {(12_346.0, 5.0), (77_778.0, 0.25)} <= set(zip(x.tolist(), y.tolist(), strict=True))
    assert "best: 0.25000 at step 77,778" in legend(plots)


def test_fit_shows_data_line_and_truth(plots, tmp_path):
    x = np.linspace(0, 5, 40)[:, None]
    path = plots.fit(
        x,
        2 * x + 3,
        lambda places: 2.5 * places[:, None] + 3,
        lambda places: 2 * places + 3,
        fitted_label=line_label("fitted", 2.5, 3.0),
        true_label=line_label("true", 2.0, -3.0),
        feature="price ($) and tax ($)",
    )
    assert path == tmp_path / "plots" / "fit.png"
    assert path.read_bytes().startswith(PNG)
    assert legend(plots) == ["data", "fitted: y = 2.5 x + 3", "true: y = 2 x - 3"]
    fitted, true = (line.get_data() for line in plots.axes.lines)
    np.testing.assert_allclose(fitted[1], 2.5 * fitted[0] + 3)
    np.testing.assert_allclose(true[1], 2 * true[0] + 3)
    assert (fitted[0][0], fitted[0][-1]) == (0, 5)
    assert not plots.axes.xaxis.label.get_parse_math()


def test_many_points_are_sampled_and_the_same_ones_each_time(plots):
    x = np.random.default_rng(0).random(50_000)
    places = []
    for _ in range(2):
        plots.fit(x, x, lambda places: places)
        places.append(plots.axes.collections[0].get_offsets())
        assert legend(plots)[0] == "data (2,000 of 50,000 points)"
    np.testing.assert_array_equal(*places)


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "plots").write_text("mine")
    with pytest.raises(LaunchError, match=r"cannot write the plot .*loss\.png"):
        Plots(tmp_path / "plots", pytest.fail).loss(rows([1.0]))


ONE_RUN = """
import sys
if sys.argv[2] == "absent":
    sys.modules["matplotlib"] = None  # what an import finds where it is not installed
from microtrain.report.plots import Plots
plots = Plots(sys.argv[1], print)
loaded = "matplotlib" in sys.modules and sys.modules["matplotlib"] is not None
paths = [plots.loss([{"split": "train", "step": 1, "loss": 1.0}]), plots.fit([1], [1], lambda x: x)]
print(loaded, "matplotlib.pyplot" in sys.modules, [path and path.name for path in paths])
"""


@pytest.mark.parametrize(
    "matplotlib, expected",
    [
        ("present", "False False ['loss.png', 'fit.png']\n"),
        (
            "absent",
            "no plots: matplotlib is not installed; pip install 'microtrain[plot]'\n"
            "False False [None, None]\n",
        ),
    ],
)
def test_matplotlib_is_imported_late_and_missed_once(tmp_path, matplotlib, expected):
    command = [sys.executable, "-c", ONE_RUN, str(tmp_path), matplotlib]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.returncode) == (expected, 0), result.stderr
