"""Reports: everything escaped, nothing loaded, predictions of every kind, damage survived."""

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from test_plot_command import make_run

import microtrain as mt
from microtrain.cli.main import main
from microtrain.config.load import load_config
from microtrain.data import ArrayDataset, prepare
from microtrain.errors import ConfigError, DataError, DivergedError, LaunchError
from microtrain.report.page import (
    _templates,
    final_report,
    report_html,
    runs_html,
    write_page,
)  # fmt: skip
from microtrain.report.predictions import Given, Predictions, fit, worst
from microtrain.report.record import read_records
from microtrain.runs.checkpoint import list_checkpoints
from microtrain.runs.run import Run
from microtrain.train.trainer import Trainer

pytest.importorskip("jinja2")

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


def page_of(run, predictions=None, **options):
    return report_html(Run.read(run), predictions, **options)


def write_report(run, path=None):
    return write_page(page_of(run), path or run / "report.html")


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
        command=[NASTY, NASTY],
        params_sha256=NASTY,
        data_hash=NASTY,
    )
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"split": "val", "step": 4, NASTY: 0.5, "loss": 1.0}) + "\n")
    x = np.arange(4.0)
    told = {NASTY: [NASTY] * 4}
    mistakes = worst(x, told, Given(np.ones((4, 1)), [NASTY]))
    classes = Predictions(NASTY, mistakes=mistakes)
    line = Predictions(NASTY, fit=fit(x, x, x, (NASTY, NASTY)))
    for seen in (classes, line, None):
        page = Checked(page_of(run, seen, note="" if seen else NASTY))
        assert page.tags.count("script") == 1
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


def test_compiled_templates_are_kept_where_only_their_owner_writes(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    pages = []
    for mode in (0o700, 0o700, 0o777):
        (home / "microtrain").mkdir(mode=mode, parents=True, exist_ok=True)
        (home / "microtrain").chmod(mode)
        _templates.cache_clear()
        pages.append(write_report(run).read_text())
        kept = [*(home / "microtrain").iterdir()]
        assert bool(kept) == (mode == 0o700)
        if len(pages) == 2:  # damage costs time alone
            for file in kept:
                file.write_bytes(file.read_bytes()[:100])
            _templates.cache_clear()
            pages.append(write_report(run).read_text())
            for file in kept:
                file.unlink()
    _templates.cache_clear()
    assert len(set(pages)) == 1


def test_header_configuration_and_environment_are_there(tmp_path):
    run = make_run(
        tmp_path,
        best={"name": "val/loss", "value": 1.75, "step": 3},
        timings={"train_s": 125.0, "comm_s": 25.0, "save_s": 0.5},
        ranks=2,
        hosts=["n1", "n1"],
        git={"commit": "abc", "dirty": True},
        command=["/opt/bin/microtrain", "train", "two words.yaml"],
        parameters=12345,
    )
    text = " ".join(Checked(page_of(run)).text.split())
    for words in (
        "line finished",
        "best val/loss 1.7500 at step 3",
        "duration 2 min 05 s 3 steps".replace(" ", ""),
        "communication20%",
        "lr0.1line.yaml:3",
        "1 default type sgd",
        "n1(2ranks)",
        "abc,withchanges",
        "microtrain train 'two words.yaml' run",
        "parameters 12,345",
        "save_s0.50s",
    ):
        assert words.replace(" ", "") in text.replace(" ", ""), words


def test_every_text_of_several_runs_is_escaped(tmp_path):
    name = NASTY.replace("/", "-")
    info = {"status": NASTY, "versions": {NASTY: NASTY}, "git": {"commit": NASTY, "dirty": True}}
    runs = [make_run(tmp_path, name, lr=f"{json.dumps(NASTY)}  # {NASTY}", **info)]
    runs += [make_run(tmp_path, "line")]
    page = Checked(runs_html([Run.read(run) for run in runs]))
    assert (page.tags.count("script"), page.tags.count("style")) == (1, 1)
    assert page.text.count("alert(1)") > 5
    names = {name for name, _ in page.attributes}
    assert not any(name.startswith("on") or name in ("src", "href") for name in names)


def test_several_runs_stand_side_by_side(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # beside runs it would be one of `runs/*`
    runs = [
        make_run(tmp_path, "slow", lr=0.1, steps=1200, timings={"train_s": 2.5}, data_hash="b"),
        make_run(tmp_path, "fast", losses=(3.0, 1.0, 0.5), lr=0.3, data_hash="a"),
        make_run(tmp_path, "none", losses=(), status="failed", data_hash="a"),
    ]
    path = write_page(runs_html(read_records(runs)), "report.html")
    assert path.absolute() == tmp_path / "here" / "report.html"
    page = path.read_text()
    heads = re.findall("<th>([^<]*)</th>", page.partition("<h2>Runs</h2>")[2])
    rows = [re.findall("<td>([^<]*)</td>", row) for row in page.split("<tr>")]
    cells = [dict(zip(heads, row, strict=True)) for row in rows if len(row) == len(heads)]
    told = ("run", "status", "lr", "val/loss", "val/r2", "steps", "seconds")
    assert [[row[key] for key in told] for row in cells] == [
        ["fast", "finished", "0.3", "0.75000", "0.95000", "3", "-"],
        ["slow", "finished", "0.1", "1.7500", "0.85000", "1,200", "2.5"],
        ["none", "failed", "0.1", "-", "-", "0", "-"],
    ]
    assert "the rows of the data differ between runs" in page
    charts = page.split('<figure class="chart"')[1:]
    assert [re.findall(r'data-name="([^"]+)"', chart) for chart in charts] == [
        [
            "slow, train",
            "slow, validation",
            "fast, train",
            "fast, validation",
            "none (failed), train",
        ],
        ["slow, validation", "fast, validation", "none (failed), train"],
    ]
    assert len(read_records([runs[0], runs[0]])) == 1


def test_runs_without_rows_have_their_tables(tmp_path):
    runs = [make_run(tmp_path, name, losses=()) for name in "ab"]
    page = write_page(runs_html(read_records(runs)), tmp_path / "both.html").read_text()
    assert "No row of metrics was written" in page
    assert page.count("<td>finished</td>") == 2


def test_a_rate_that_never_changes_has_no_chart(tmp_path):
    run = make_run(tmp_path)
    with (run / "metrics.jsonl").open("a") as file:
        for step in (4, 5):
            row = {
                "split": "train",
                "step": step,
                "loss": 1.0 / step,
                "lr": 0.01,
                "beta": 0.1 * step,
            }
            file.write(json.dumps(row) + "\n")
    page = page_of(run)
    assert re.findall(r"<h3>([^<]+)</h3><div class=\"legend\"", page) == ["loss", "r2", "beta"]


def test_classes_have_precision_recall_and_f1(tmp_path):
    counts = {"split": "val", "names": ["no", "yes"]}
    counts |= {"support": [6, 4], "confusion": [[5, 1], [2, 2]]}
    text = "".join(Checked(page_of(make_run(tmp_path, classes=counts))).text.split())
    assert "no0.7140.8330.7696" in text
    assert "yes0.6670.5000.5714" in text
    assert "mean0.6900.6670.67010" in text
    assert "Alwayssayingno,themostfrequentclass,wouldberightfor60.0%." in text
    counts |= {"support": [2, 0], "confusion": [[2, 0], [0, 0]]}
    page = page_of(make_run(tmp_path, "empty", classes=counts))
    assert page.count(">0</td>") == 3 + 1 + 1  # of the matrix, the support, the exit code
    assert page.count("</i>0.000</td>") == 3  # what is not defined counts as nothing


def test_what_the_run_has_counted_of_all_rows_comes_first(tmp_path):
    classes = {"split": "test", "names": ["no", NASTY], "support": [900, 100.5]}
    run = make_run(tmp_path, classes=classes | {"confusion": [[850, 50], [40.5, 60]]})
    for seen in (None, Predictions("Two rows")):
        page = Checked(page_of(run, seen, note="" if seen else "no model"))
        words = " ".join(page.text.split())
        assert "All 1,000.5 test rows as predicted by the model" in words
        assert "Always saying no, the most frequent class, would be right for 90.0%." in words
        assert "no0.9550.9440.949900.00" in words
        assert ("no model" in words) is (seen is None)
        assert "Two rows" not in words


def test_the_report_names_the_checkpoints(tmp_path):
    run = trained(tmp_path, "train.duration=1 epochs", "data.samples=200") / "latest"
    assert list_checkpoints(run / "checkpoints")[-1].name in write_report(run).read_text()
    info = json.loads((run / "run.json").read_text())
    assert info["parameters"] == 2
    assert info["command"]


@pytest.mark.parametrize("status", ["running", "stopped", "failed", "diverged"])
def test_a_run_at_any_moment_has_a_report(tmp_path, status):
    run = make_run(tmp_path, losses=(), status=status, steps=None, exit_code=None)
    assert "No row of metrics was written" in page_of(run)
    (run / "metrics.jsonl").unlink()
    assert status in page_of(run)
    (run / "run.json").write_text(json.dumps({"status": status}))
    assert status in page_of(run)


# ------------------------------------------------------------------------------------ the command


def trained(tmp_path, *overrides):
    config = load_config(f"{os.path.dirname(__file__)}/../../configs/linreg.yaml", overrides)
    config.run_dir = str(tmp_path)
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


def test_the_command_takes_several_runs(tmp_path, capsys):
    runs = [str(make_run(tmp_path, name)) for name in ("a", "b")]
    assert main(["report", *runs, "--output", str(tmp_path / "both.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "both.html")
    assert main(["report", runs[0], str(tmp_path / "absent")]) == 3


def test_damage_is_named(tmp_path):
    run = make_run(tmp_path)
    (run / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json: not a JSON object"):
        write_report(run)
    with pytest.raises(LaunchError, match="cannot write the report"):
        write_report(make_run(tmp_path), tmp_path / "absent" / "x.html")


@pytest.mark.usefixtures("reports")
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
    x, y = np.eye(20)[:, :2], np.ones((20, 1))
    data = prepare(ArrayDataset(x, y), split={"train": 0.5, "val": 0.5}, standardize=True)
    final_report(run, Breaks(2, 1), data)
    page = (run / "report.html").read_text()
    assert "There are no predictions to show: RuntimeError: only together" in page


def test_a_run_may_end_without_report_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("MICROTRAIN_REPORT", "off")
    run = trained(tmp_path, "train.duration=1 epochs", "data.samples=200") / "latest"
    assert not (run / "report.html").exists() and not (run / "plots").exists()
    with pytest.raises(DivergedError):
        trained(tmp_path, "optimizer.lr=9", "data.samples=2000")
    assert (run / "run.json").exists() and not (run / "report.html").exists()


def test_the_variable_of_the_environment_has_two_values(tmp_path, monkeypatch):
    monkeypatch.setenv("MICROTRAIN_REPORT", "no")
    with pytest.raises(ConfigError, match="MICROTRAIN_REPORT: expected on or off, found 'no'"):
        trained(tmp_path, "data.samples=200")


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


@pytest.mark.slow
@pytest.mark.usefixtures("reports")
def test_a_model_that_communicates_costs_the_predictions_and_hangs_nobody(mpirun, tmp_path):
    (tmp_path / "nets.py").write_text(ALONE)
    config = Path(__file__).parents[2] / "configs" / "linreg.yaml"
    arguments = ["model=./nets.py:Talks", "train.duration=1 epochs", "data.samples=200"]
    done = mpirun(2, "-m", "microtrain", "train", config, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "runs" / "linreg" / "latest" / "report.html").read_text()
    assert "There are no predictions to show: RuntimeError: barrier" in page
    assert "rank 0 alone draws and writes the report" in page
