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
from microtrain.errors import DataError, DivergedError, LaunchError
from microtrain.report.page import final_report, report_html, write_report
from microtrain.report.predictions import Predictions, confusion, fit
from microtrain.report.record import Record
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
    return report_html(Record.read(run), predictions, **options)


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
    codes, x = np.array([0, 1]), np.arange(4.0)
    classes = Predictions(NASTY, confusion=confusion(codes, codes, (NASTY, "b")))
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


def test_damage_is_named(tmp_path):
    run = make_run(tmp_path)
    (run / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json: not a JSON object"):
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
    x, y = np.eye(20)[:, :2], np.ones((20, 1))
    data = prepare(ArrayDataset(x, y), split={"train": 0.5, "val": 0.5}, standardize=True)
    final_report(run, Breaks(2, 1), data)
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
