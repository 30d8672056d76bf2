"""The report in a real Chromium: nothing loaded or broken, at any width, in light and dark."""

import json
import math
import os
from pathlib import Path

import browser as chromium
import numpy as np
import pytest
from test_plot_command import make_run

from microtrain.common.threads import LAUNCH
from microtrain.report.page import report_html, runs_html, write_page
from microtrain.report.predictions import Predictions, fit
from microtrain.report.record import read_records
from microtrain.runs.run import Run

pytest.importorskip("jinja2")

pytestmark = [
    pytest.mark.skipif(bool(chromium.missing()), reason=chromium.missing() or "-"),
    pytest.mark.skipif(LAUNCH.parallel, reason="looks at one page, so it runs on one process"),
]

NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'</style>"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium.Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


def line(rng):
    x = rng.normal(size=60)
    y = 2 * x + 3
    return Predictions(NASTY, fit=fit(x, y, 1.1 * y, (NASTY, "y"), true=([2.0], 3.0)))


@pytest.fixture(scope="module", params=["digits", "line", "diverged", "nothing"])
def report(request, tmp_path_factory):
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp(request.param)
    losses = (10 * 0.8 ** np.arange(40)).tolist()
    info = {
        "ranks": 4,
        "hosts": ["a-very-long-host-name-of-a-cluster.example.org"] * 4,
        "best": {"name": "val/loss", "value": 0.25, "step": 40},
        "test": {"loss": 0.5, "accuracy": None},
        "timings": {"train_s": 12.5, "comm_s": 4.0},
        "params_sha256": "ab" * 32,
        "git": {"commit": "cd" * 20, "dirty": True},
    }
    predictions = line(rng) if request.param == "line" else None
    if request.param == "digits":
        counts = {"support": [14, 13, 13], "confusion": [[12, 1, 1], [0, 13, 0], [2, 0, 11]]}
        info["classes"] = {"split": "test", "names": ["0", NASTY, "2"], **counts}
    if request.param == "diverged":
        losses[20:] = [math.nan] * 20
        info |= {"status": "diverged", "error": f"the loss is not finite {NASTY}", "exit_code": 4}
    if request.param == "nothing":
        losses, info = [], {"status": "running", "exit_code": None, "steps": None}
    name = NASTY.replace("/", "-")
    run = make_run(folder, name, losses=losses, lr=f"{json.dumps(NASTY)}  # {NASTY}", **info)
    return write_page(report_html(Run.read(run), predictions), folder / "report.html")


def requests(page):
    for entry in page.logged("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            yield message["params"]["request"]["url"]


@pytest.mark.parametrize("width, dark", [(360, False), (360, True), (1200, False), (1200, True)])
def test_it_renders_without_errors_requests_or_horizontal_scroll(page, report, width, dark):
    page.emulate(width, dark=dark)
    page.logged("browser"), page.logged("performance")
    page.open(report)
    size = page.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert size == [width, width]
    assert page.run("return document.querySelector('h1').textContent") == NASTY.replace("/", "-")
    assert page.logged("browser") == []
    asked = [url for url in requests(page) if not url.startswith("data:")]
    assert asked == [report.as_uri()]
    paper = page.run("return getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, paper[4:-1].split(",")))
    assert light < 150 if dark else light > 600
    if folder := os.environ.get("MICROTRAIN_SCREENSHOTS"):  # to look at them
        name = f"{report.parent.name}-{width}-{'dark' if dark else 'light'}.png"
        page.screenshot(Path(folder) / name)


def test_curves_have_points_and_the_pointer_shows_their_values(page, report):
    page.emulate(1200)
    page.open(report)
    if "nothing" in str(report):
        assert page.run("return document.querySelectorAll('figure.chart').length") == 0
        assert "No row of metrics" in page.run("return document.body.textContent")
        return
    lines = page.run(
        "return [...document.querySelectorAll('figure.chart')[0].querySelectorAll('path.line')]"
        ".map(p => p.getTotalLength())"
    )
    assert len(lines) == 2
    assert min(lines) > 300
    box = page.run(
        "const b = document.querySelector('.area').getBoundingClientRect();"
        "return [b.left, b.top, b.width, b.height]"
    )
    page.point(box[0] + box[2] * 0.02, box[1] + box[3] / 2)
    assert tip(page) == ["step 1", "train 10.000", "validation 10.250"]
    assert page.run("return document.querySelectorAll('.area .point').length") == 2
    page.point(box[0] + box[2] * 0.99, box[1] + box[3] / 2)
    if "diverged" in str(report):
        assert tip(page) == ["step 40", "train not finite", "validation not finite"]
        assert "diverged at step 41" in page.run("return document.body.textContent")
    else:
        last = 10 * 0.8**39
        shown = ["step 40", f"train {last:.7f}", f"validation {last + 0.25:.5f}"]
        assert tip(page) == shown
    inside = page.run(
        "const t = document.querySelector('.tip').getBoundingClientRect();"
        "const a = document.querySelector('.area').getBoundingClientRect();"
        "return t.left >= a.left - 1 && t.right <= a.right + 1"
    )
    assert inside
    page.point(1, 1)
    assert page.run("return document.querySelectorAll('.tip, .point, .cross').length") == 0


def tip(page):
    return page.run(
        "return [...document.querySelector('.tip').children].map(n => n.children.length"
        " ? [...n.children].map(c => c.textContent).join(' ') : n.textContent)"
    )


def test_keys_walk_through_the_steps_and_a_click_hides_a_curve(page, report):
    page.emulate(1200)
    page.open(report)
    if "nothing" in str(report):
        assert page.run("return document.querySelector('.area')") is None
        return
    page.run(
        "const area = document.querySelector('.area'); area.focus();"
        "for (let i = 0; i < 3; i++)"
        " area.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))"
    )
    assert tip(page)[0] == "step 3"
    page.run("document.querySelector('.legend button').click()")
    page.run(
        "document.querySelector('.area').dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))"
    )
    assert [text.split()[0] for text in tip(page)] == ["step", "validation"]
    shown = "return getComputedStyle(document.querySelector('path.line')).display"
    assert page.run(shown) == "none"


def test_paper_is_white_and_without_scripts_the_curves_are_there(page, report):
    page.emulate(1200, dark=True, print_=True)
    page.open(report)
    assert page.run("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    text = report.read_text()
    static = text[: text.index("<script>")]
    assert ("<path class=" in static) is ("nothing" not in str(report))
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


# ------------------------------------------------------------------------ several runs


def moved(page, x=0.5):
    """What the tip says at that part of the first chart's width."""
    box = page.run(
        "const a = document.querySelector('.area'); a.scrollIntoView();"
        "const b = a.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]"
    )
    page.point(box[0] + box[2] * x, box[1] + box[3] / 2)
    return tip(page)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    names = [NASTY.replace("/", "-"), "b", "c"]
    losses = [[3.0, 2.0, i] for i in (1.0, 0.5, 0.25)]
    made = [make_run(folder, n, losses=x) for n, x in zip(names, losses, strict=True)]
    return write_page(runs_html(read_records(made)), folder / "report.html")


@pytest.mark.parametrize("width, dark", [(360, True), (1200, False)])
def test_several_runs_have_a_color_each_and_can_be_hidden(page, runs, width, dark):
    page.emulate(width, dark=dark)
    page.logged("browser"), page.logged("performance")
    page.open(runs)
    size = page.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert size == [width, width]
    assert page.logged("browser") == []
    assert [url for url in requests(page) if not url.startswith("data:")] == [runs.as_uri()]
    lines = "[...document.querySelectorAll('figure')[0].querySelectorAll('path.line')]"
    colors = page.run(f"return {lines}.map(p => getComputedStyle(p).stroke)")
    assert len(colors) == 6  # training and validation of each
    assert len(set(colors)) == 3
    assert [text.split(",")[0] for text in moved(page)[1:]] == [NASTY.replace("/", "-")] * 2 + [
        *"bbcc"
    ]
    page.run("document.querySelector('.legend.every button').click()")
    hidden = page.run(f"return {lines}.map(p => getComputedStyle(p).display)")
    assert hidden == ["none"] * 2 + ["inline"] * 4
    assert len(moved(page)) == 5
