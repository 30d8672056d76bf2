"""Charts: scales for any values, high values high, and few points that keep every extreme."""

import json
import math

import numpy as np
import pytest

from microtrain.report.chart import MOST_POINTS, Chart, Curve, Mark, thinned


def chart_of(values, **options):
    y = np.array(values, np.float64)
    points = np.arange(1.0, len(y) + 1), y
    return Chart("t", "x", [Curve("c", "train", points)], **options)


@pytest.mark.parametrize(
    "values",
    [
        [], [1.0], [0.0, 0.0], [1e-300, 1e300], [-1e308, 1e308], [np.nan], [1.0, np.nan, 2.0],
        [np.inf, 1.0], [5e-324, 1.0], [1.0, 1.0 + 2**-52], [123456789.0, 123456790.0], [0.0, 1e9],
        [5e-324, 9e299],
    ],
)  # fmt: skip
def test_any_values_can_be_drawn(values):
    chart = chart_of(values)
    assert len(chart.y_ticks()) + len(chart.x_ticks()) < 60
    path = chart.path(chart.curves[0])
    assert "nan" not in path and "inf" not in path
    json.dumps([chart.range, chart.curves[0].pairs()], allow_nan=False)


@pytest.mark.parametrize("values, log", [([100.0, 10.0, 1.0], True), ([3.0, 2.0, 1.0], False)])
def test_high_values_are_high_and_far_steps_far(values, log):
    chart = chart_of(values, marks=[Mark("b", 3.0, values[-1]), Mark("e", 3.0)])
    assert chart.log is log
    path = chart.path(chart.curves[0]).removeprefix("M")
    places = np.array([list(map(float, pair.split())) for pair in path.split("L")])
    assert (np.diff(places[:, 0]) > 100).all()
    assert (np.diff(places[:, 1]) > 100).all()  # from the top
    np.testing.assert_allclose(places[1], places[[0, 2]].mean(axis=0), atol=0.2)
    mark = chart.left(3.0), chart.top(values[-1])
    np.testing.assert_allclose(mark, places[-1] / 1000, atol=1e-4)
    ticks = chart.y_ticks()
    assert len(ticks) >= 3
    for value, text in ticks:
        assert float(text.replace(",", "")) == pytest.approx(value)
        if value in values:
            at = places[values.index(value), 1]
            assert chart.top(value) == pytest.approx(at / 1000, abs=1e-4)


@pytest.mark.parametrize(
    "losses, log",
    [
        ([5.0, 0.4], True),
        ([1e8, 1e-8], True),
        ([5.0, 1.0], False),
        ([5.0, 0.0], False),  # zero has no logarithm
        ([5.0, -4.0], False),
        ([5.0, math.nan, 0.1], True),
        ([0.1], False),
    ],
)
def test_the_scale_is_logarithmic_where_values_span_a_decade(losses, log):
    assert chart_of(losses).log is log
    assert chart_of(losses, linear=True).log is False


def test_what_has_no_place_on_the_scale_interrupts_the_line():
    path = chart_of([1.0, np.nan, 2.0, 3.0]).path(chart_of([1.0, np.nan, 2.0, 3.0]).curves[0])
    assert (path.count("M"), path.count("L")) == (2, 1)
    huge = chart_of([10.0, 1e301, 2.0])
    np.testing.assert_array_equal(huge.drawn(huge.curves[0])[1], [10.0, np.nan, 2.0])


def test_a_long_curve_is_thinned_and_keeps_its_peaks():
    losses = np.ones(100_000)
    losses[[12_345, 77_777]] = 5.0, 0.25
    losses[500] = np.nan
    x, y = thinned(np.arange(100_000.0), losses)
    assert len(x) <= MOST_POINTS
    assert (np.diff(x) > 0).all()
    assert (x[0], x[-1]) == (0, 99_999)
    assert {(12_345.0, 5.0), (77_777.0, 0.25)} <= set(zip(x.tolist(), y.tolist(), strict=True))
