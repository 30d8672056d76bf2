"""Reports: everything escaped, nothing loaded, predictions of every kind, damage survived."""

import base64
import hashlib
import io
import json
import os
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from test_plot_command import make_run

import microtrain as mt
from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.data import ArrayDataset, prepare
from microtrain.errors import DataError, DivergedError, LaunchError
from microtrain.report.chart import Chart, Curve
from microtrain.report.page import final_report, report_html, write_report
from microtrain.report.samples import Samples, take_samples
from microtrain.report.samples_html import png, samples_html
from microtrain.runs.record import Record
from microtrain.train.trainer import Trainer

VOID = {"meta", "br", "img", "input"}
NASTY = "<script>alert(1)</script>\"'&</style>-->"


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("PMI", "OMPI", "MPI_", "SLURM_")):
            monkeypatch.delenv(name)


class Checked(HTMLParser):
    """Counts tags and texts; fails where an element is closed that is not open."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page_of(run, samples=None, **options):
    return report_html(Record.read(run), samples, **options)


def test_every_text_of_a_run_is_escaped(tmp_path):
    run = make_run(
        tmp_path,
        NASTY.replace("/", "-"),
        lr=f"{json.dumps(NASTY)}  # {NASTY}",
        hosts=[NASTY],
        status="failed",
        error=NASTY,
        started=NASTY,
        git={"commit": NASTY, "dirty": True},
        versions={NASTY: NASTY, "microtrain": NASTY},
        best={"name": NASTY, "value": 1.0, "step": 1},
        test={NASTY: 1.0},
        timings={NASTY: 1.0, "train_s": 2.0},
        compile={"executor": NASTY, "reason": NASTY},
        params_sha256=NASTY,
        data_hash=NASTY,
    )
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"split": "val", "step": 4, NASTY: 0.5, "loss": 1.0}) + "\n")
    samples = Samples(
        "val", 9, np.ones((4, 1)), np.zeros(4, int), np.eye(4)[:, :2], (NASTY, "b"), (NASTY,),
        NASTY, None,
    )  # fmt: skip
    x = np.arange(4.0)[:, None]
    line = Samples("val", 4, x, x, x, None, (NASTY,), NASTY, None)
    for seen in (samples, line, None):
        page = Checked(page_of(run, seen, note="" if seen else NASTY))
        assert page.tags.count("script") == 2
        assert page.tags.count("style") == 1
        assert page.text.count("alert(1)") > 20
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in
                       page.attributes)  # fmt: skip


def test_only_its_own_script_may_run_and_nothing_may_be_loaded(tmp_path):
    page = page_of(make_run(tmp_path))
    policy = dict(Checked(page).attributes)["content"]
    assert "default-src 'none'" in page
    own = re.search(r"script-src 'sha256-([^']+)'", page)[1]
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == own
    assert policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_header_configuration_and_environment_are_there(tmp_path):
    run = make_run(
        tmp_path,
        best={"name": "val/loss", "value": 1.75, "step": 3},
        timings={"train_s": 125.0, "comm_s": 25.0, "save_s": 0.5},
        ranks=2,
        hosts=["n1", "n1"],
        git={"commit": "abc", "dirty": True},
    )
    text = " ".join(Checked(page_of(run)).text.split())
    for words in (
        "line finished",
        "best val/loss 1.7500 at step 3",
        "duration 2 min 05 s 3 steps".replace(" ", ""),
        "communication20%",
        "lr0.1line.yaml:3",
        "typesgddefault",
        "n1(2ranks)",
        "abc,withchanges",
        "save_s0.50s",
    ):
        assert words.replace(" ", "") in text.replace(" ", ""), words


@pytest.mark.parametrize("status", ["running", "stopped", "failed", "diverged"])
def test_a_run_at_any_moment_has_a_report(tmp_path, status):
    run = make_run(tmp_path, losses=(), status=status, steps=None, exit_code=None)
    assert "No row of metrics was written" in page_of(run)
    (run / "metrics.jsonl").unlink()
    assert status in page_of(run)


# --------------------------------------------------------------------------------- predictions


def prepared(x, y, **about):
    return prepare(ArrayDataset(x, y, **about), split={"train": 0.5, "val": 0.5}, standardize=True)


def test_samples_are_in_the_units_of_the_file_and_the_model_trains_on():
    x = np.random.default_rng(0).normal(5, 3, (40, 2))
    data = prepared(x, x[:, :1] * 2)
    model = mt.nn.Sequential(mt.nn.Linear(2, 1), mt.nn.Dropout(0.9))
    samples = take_samples(model, data)
    assert model.training
    assert (samples.part, samples.total, len(samples)) == ("val", 20, 20)
    np.testing.assert_allclose(samples.inputs[:, :1] * 2, samples.truth, rtol=1e-5)
    assert samples.classes is None
    np.testing.assert_array_equal(take_samples(model, data).prediction, samples.prediction)


def test_samples_are_bounded():
    x = np.zeros((9000, 1))
    samples = take_samples(mt.nn.Linear(1, 1), prepared(x, x))
    assert (len(samples), samples.total) == (2000, 4500)


@pytest.mark.parametrize(
    "y, outputs, names",
    [
        (np.arange(20) % 3, 3, ("0", "1", "2")),
        (np.arange(20) % 3, 4, ("0", "1", "2", "3")),
        (np.arange(20.0)[:, None], 1, None),
        (np.ones((20, 2)), 2, None),
    ],
)
def test_kinds_of_predictions(y, outputs, names):
    samples = take_samples(mt.nn.Linear(2, outputs), prepared(np.eye(20)[:, :2], y))
    assert samples.classes == names


@pytest.mark.parametrize("y, outputs", [(np.ones((20, 2)), 3), (np.ones((20, 2, 2)), 2)])
def test_what_cannot_be_shown_is_not_guessed(y, outputs):
    assert take_samples(mt.nn.Linear(2, outputs), prepared(np.eye(20)[:, :2], y)) is None


@pytest.mark.parametrize(
    "names, shape",
    [
        ([f"pixel_{i}_{j}" for i in range(2) for j in range(3)], (2, 3)),
        ([f"pixel_{j}_{i}" for i in range(2) for j in range(3)], None),
        ([*(f"pixel_0_{i}" for i in range(5)), "age"], None),
        (None, None),
    ],
)
def test_pictures_are_known_by_the_names_of_their_columns(names, shape):
    data = prepared(np.eye(20)[:, :6], np.ones((20, 1)), feature_names=names)
    assert take_samples(mt.nn.Linear(6, 1), data).picture == shape


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_standardised_inputs_are_shown_in_the_units_of_the_file(tmp_path, dtype):
    """To the bit where they were whole: not 2.9999998, and not 3.8e-08 for 0."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 17, (50, 64)).astype(float)
    x[:, 0], x[:, 1] = 0, rng.standard_normal(50)
    names = [f"pixel_{i}_{j}" for i in range(8) for j in range(8)]
    given = ArrayDataset(x, np.arange(50) % 10, feature_names=names)
    classes = tuple("0123456789")
    data = prepare(given, standardize=True, dtype=np.dtype(dtype), seed=0, origin="test")
    assert abs(data.train.arrays[0][:, 2:].mean()) < 1e-6
    seen = take_samples(mt.nn.Linear(64, 10, dtype=mt.from_numpy(data.train.arrays[0]).dtype), data)
    np.testing.assert_array_equal(np.delete(seen.inputs, 1, axis=1), np.delete(x, 1, axis=1))
    np.testing.assert_allclose(seen.inputs, x, rtol=1e-5, atol=1e-6)
    record = Record.read(make_run(tmp_path))
    html, _ = samples_html(record, seen)
    drawn = [base64.b64decode(found) for found in re.findall(r"base64,([^\"]*)", html)]
    shades = (x - x.min()) / (x.max() - x.min()) * 255
    assert png(shades[:1].reshape(1, 8, 8).astype(np.uint8)) in drawn
    table, _ = samples_html(record, replace(seen, picture=None, classes=classes))
    cells = [re.findall("<td>(.*?)</td>", row) for row in table.split("<tr>")]
    shown = {tuple(row[3:]) for row in cells if len(row) == 7}
    assert {row[0] for row in shown} == {"0"}
    assert {row[2:] for row in shown} <= {(f"{a:.0f}", f"{b:.0f}") for a, b in x[:, 2:4]}


def samples_of(truth, scores, **changes):
    about = {"classes": tuple("abc"), "features": None, "target": "t", "picture": None}
    about |= changes
    x = about.pop("inputs", np.zeros((len(truth), 2)))
    return Samples("test", len(truth), x, np.asarray(truth), np.asarray(scores, float), **about)


def test_the_confusion_matrix_counts(tmp_path):
    record = Record.read(make_run(tmp_path))
    html, charts = samples_html(record, samples_of([0, 0, 1, 2], np.eye(3)[[0, 1, 1, 2]]))
    assert charts == []
    rows = re.findall(r"<tr><th>([abc])</th>(.*?)</tr>", html)
    counts = {name: re.findall(r"<td[^>]*>(\d*)</td>", row) for name, row in rows}
    assert counts == {"a": ["1", "1", ""], "b": ["", "1", ""], "c": ["", "", "1"]}
    assert "The 4 test rows: 75.0% are right, 1 row wrong." in html
    assert "1 row of a predicted as b" in html


def test_many_classes_are_told_by_their_confusions(tmp_path):
    classes = tuple(f"c{i}" for i in range(30))
    truth = np.arange(30)
    html, _ = samples_html(
        Record.read(make_run(tmp_path)),
        samples_of(truth, np.eye(30)[(truth + (truth == 7)) % 30], classes=classes),
    )
    assert "matrix" not in html
    assert "<td>c7</td><td>c8</td><td>1</td>" in html


def test_two_classes_by_the_sign_of_a_score(tmp_path):
    run = make_run(tmp_path)
    config = (run / "config.yaml").read_text().replace("type: mse", "type: bce")
    (run / "config.yaml").write_text(config)
    samples = samples_of([[0.0], [1.0]], [[-5.0], [-1.0]], classes=None)
    html, charts = samples_html(Record.read(run), samples)
    assert "50.0% are right" in html
    assert charts == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_predictions_that_are_not_finite_are_shown_all_the_same(tmp_path, bad):
    run = Record.read(make_run(tmp_path))
    samples_html(run, samples_of([0, 1], [[bad, 0, 0], [0, bad, bad]]))
    picture = {"inputs": np.full((2, 4), bad), "picture": (2, 2)}
    samples_html(run, samples_of([0, 1], [[bad, 0, 0], [0, 1, 0]], **picture))
    for width in (1, 2):
        x = np.linspace(0, 1, 4)[:, None] * np.ones(width)
        values = samples_of([[1.0]] * 4, [[bad]] * 4, classes=None, inputs=x)
        Checked(report_html(run, values))


@pytest.mark.parametrize("channels", [1, 3])
def test_png(channels):
    pixels = np.arange(channels * 6, dtype=np.uint8).reshape(channels, 2, 3)
    file = png(pixels)
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    start = file.index(b"IDAT") + 4
    raw = zlib.decompress(file[start : file.index(b"IEND") - 8])
    rows = np.frombuffer(raw, np.uint8).reshape(2, 1 + 3 * channels)
    np.testing.assert_array_equal(rows[:, 0], 0)
    np.testing.assert_array_equal(rows[:, 1:].reshape(2, 3, channels), np.moveaxis(pixels, 0, -1))
    image = pytest.importorskip("matplotlib.image")
    assert image.imread(io.BytesIO(file)).shape[:2] == (2, 3)


# -------------------------------------------------------------------------------------- charts


@pytest.mark.parametrize(
    "values",
    [
        [], [1.0], [0.0, 0.0], [1e-300, 1e300], [-1e308, 1e308], [np.nan], [1.0, np.nan, 2.0],
        [np.inf, 1.0], [5e-324, 1.0], [1.0, 1.0 + 2**-52], [123456789.0, 123456790.0], [0.0, 1e9],
    ],
)  # fmt: skip
def test_any_values_can_be_drawn(values):
    y = np.array(values, np.float64)
    chart = Chart("t", "x", [Curve("c", "train", (np.arange(len(y), dtype=np.float64), y))])
    page = Checked(chart.html())
    assert page.tags.count("path") < 60
    assert "nan" not in chart.html()
    json.dumps(chart.data(), allow_nan=False)


@pytest.mark.parametrize("values, log", [([100.0, 10.0, 1.0], True), ([3.0, 2.0, 1.0], False)])
def test_high_values_are_high_and_far_steps_far(values, log):
    steps = np.array([1.0, 2.0, 3.0])
    curve = Curve("c", "train", (steps, np.array(values)))
    chart = Chart("t", "x", [curve], best=(3.0, values[-1], "b"), end=(3.0, "e"))
    assert chart.log is log
    html = chart.html()
    path = re.search(r'class="line train" data-curve="0" d="M(.*?)"', html)[1]
    places = np.array([list(map(float, pair.split())) for pair in path.split("L")])
    assert (np.diff(places[:, 0]) > 100).all()
    assert (np.diff(places[:, 1]) > 100).all()  # from the top
    np.testing.assert_allclose(places[1], places[[0, 2]].mean(axis=0), atol=0.2)
    x, y = map(float, re.search(r'class="ring" d="M([\d.]+) ([\d.]+)h0', html).groups())
    np.testing.assert_allclose((x, y), places[-1])
    tops = re.findall(r'<span style="top:([\d.]+)%">([\d.,]+)</span>', html)
    for top, text in tops:
        if float(text) in values:
            at = values.index(float(text))
            assert float(top) == pytest.approx(places[at, 1] / 10, abs=0.05)
    assert len(tops) >= 3


# ------------------------------------------------------------------------------------ the command


def trained(tmp_path, *overrides):
    config = load_config(f"{os.path.dirname(__file__)}/../../configs/linreg.yaml", overrides)
    config["run_dir"] = str(tmp_path)
    Trainer.from_config(config, mt.distributed.world()).train()
    return tmp_path / "linreg"


def test_the_command_shows_predictions_of_the_trained_model(tmp_path, capsys):
    run = trained(tmp_path, "train.duration=2 epochs", "data.samples=200")
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    path = capsys.readouterr().out.strip()
    page = Path(path).read_text()
    assert path.endswith("/report.html")
    assert "The 40 validation rows as predicted by the checkpoint of step 6, the best" in page
    assert "y against x" in page
    assert main(["report", str(run), "--output", str(tmp_path / "absent" / "x.html")]) == 5
    assert "cannot write the report" in capsys.readouterr().err


def test_a_run_whose_model_cannot_be_made_has_a_report_that_says_so(tmp_path, capsys):
    run = make_run(tmp_path)
    assert main(["report", str(run)]) == 0
    assert "There are no predictions to show: " in (run / "report.html").read_text()


def test_damage_is_named(tmp_path):
    run = make_run(tmp_path)
    (run / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json is not JSON"):
        write_report(run)
    with pytest.raises(LaunchError, match="cannot write the report"):
        write_report(make_run(tmp_path), tmp_path / "absent" / "x.html")


def test_a_run_ends_with_its_report_also_when_it_diverges(tmp_path):
    run = trained(tmp_path, "train.duration=1 epochs", "data.samples=200") / "latest"
    named = "The 40 validation rows as predicted by the checkpoint of step 3, the best (val/loss "
    assert named in (run / "report.html").read_text()
    with pytest.raises(DivergedError):
        trained(tmp_path, "optimizer.lr=9", "data.samples=2000")
    page = Checked((run / "report.html").read_text())
    assert "diverged" in page.text
    assert "not finite" in page.text


def test_a_model_that_cannot_predict_here_costs_the_predictions_alone(tmp_path):
    class Breaks(mt.nn.Linear):
        def forward(self, x):
            raise RuntimeError("only together")

    run = make_run(tmp_path)
    final_report(run, Breaks(2, 1), prepared(np.eye(20)[:, :2], np.ones((20, 1))), None)
    page = (run / "report.html").read_text()
    assert "There are no predictions to show: RuntimeError: only together" in page


ALONE = """\
import microtrain as mt

class Talks(mt.nn.Module):
    def __init__(self, in_features: int):
        super().__init__()
        self.inner = mt.nn.Linear(in_features, 1)

    def forward(self, x):
        mt.distributed.world().barrier()  # every rank is here, but for a report
        return self.inner(x)
"""


def test_a_model_that_communicates_costs_the_predictions_and_hangs_nobody(mpirun, tmp_path):
    (tmp_path / "nets.py").write_text(ALONE)
    config = Path(__file__).parents[2] / "configs" / "linreg.yaml"
    arguments = ["model=./nets.py:Talks", "train.duration=1 epochs", "data.samples=200"]
    done = mpirun(2, "-m", "microtrain", "train", config, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "runs" / "linreg" / "latest" / "report.html").read_text()
    assert "There are no predictions to show: RuntimeError: barrier" in page
    assert "rank 0 alone draws and writes the report" in page
