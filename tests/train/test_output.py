"""What a run prints: aligned, bounded, plain, and never a reason to lose the run."""

import io
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microtrain.common.version import __version__
from microtrain.common.words import elapsed, number, plural, rate, size
from microtrain.runs.state import Best, RunState
from microtrain.train.callbacks.base import Ending
from microtrain.train.callbacks.order import Rows, RowSchedule
from microtrain.train.console import Output, header, summary
from microtrain.train.models_and_losses import truth_lines

HOSTS = ["node07", "node07", "node08", "node08"]
RESULTS = Path("runs/linreg/2026-11-21_13-35-07")


def parts(**more):
    """What the header reads of the parts of a run."""
    shared = SimpleNamespace(compression="none")
    made = {
        "config": SimpleNamespace(name="linreg", dtype="float32", distributed=shared),
        "loader": SimpleNamespace(batch_size=64),
        "data": SimpleNamespace(train=range(8000), val=range(2000), test=None, cache=""),
        "plan": SimpleNamespace(epoch=125, total=2500),
        "comm": SimpleNamespace(size=1),
        "model": SimpleNamespace(overlap="off", local_batch_norm=False),
        "device": None,
        "shards": None,
    }
    return SimpleNamespace(**{**made, **more})


@pytest.fixture(autouse=True)
def library(monkeypatch):
    monkeypatch.setattr("microtrain.runs.directory.versions", lambda: {"mpi": "MPICH 5.0.2"})
    monkeypatch.setattr("microtrain.common.threads.blas_threads", lambda: 1)
    needs = {"model": "2 parameters", "memory": "at least 60 MB: data 8 B"}
    monkeypatch.setattr("microtrain.train.console.sizes", lambda run: needs)


def test_header():
    lines = header(parts(), HOSTS, "numpy: asked for", RESULTS)
    assert "\n".join(lines) == (
        f"microtrain {__version__}: linreg\n"
        "ranks    4 on 2 hosts (node07, node08), MPICH 5.0.2\n"
        "device   cpu, float32, 1 BLAS thread per rank\n"
        "data     8,000 train, 2,000 val\n"
        "model    2 parameters\n"
        "memory   at least 60 MB: data 8 B\n"
        "train    2,500 steps: 20 epochs of 125 steps, batch size 64 over 4 ranks\n"
        "compile  numpy: asked for\n"
        "results  runs/linreg/2026-11-21_13-35-07"
    )


def test_header_of_one_process_does_not_speak_of_communication(monkeypatch):
    monkeypatch.setattr("microtrain.runs.directory.versions", dict)
    endless = parts(plan=SimpleNamespace(epoch=125, total=None))
    text = "\n".join(header(endless, ["here"], "off", RESULTS))
    assert "ranks    1 on 1 host (here)\n" in text
    assert "until the time is over, epochs of 125 steps, batch size 64\n" in text


def test_header_of_a_large_job_stays_short():
    hosts = [f"n{i // 8}" for i in range(128)]
    line = header(parts(), hosts, "off", RESULTS)[1]
    assert "128 on 16 hosts (n0, n1, n2, n3 ...)" in line


NAMES = ["train/loss", "val/loss", "val/a_rather_long_metric"]


def test_rows_are_aligned_from_the_first_to_the_last():
    rows = Rows(NAMES, "val/loss", total_steps=12500, steps_per_epoch=125)
    lines = [
        rows.heading(),
        rows.row({"step": 1, "epoch": 0.008, "train/loss": 12.5}),
        rows.row(
            {
                "step": 12500,
                "epoch": 100.0,
                "train/loss": -1.23456e-7,
                "val/loss": 1e30,
                "val/a_rather_long_metric": math.nan,
                "samples_per_s": 123456789.0,
                "comm_share": 1.0,
            },
            best=True,
        ),
    ]
    assert lines == [
        "  step   epoch   train/loss     val/loss   val/a_rather_long_metric  samples/s  comm",
        "     1    0.01       12.500            -                          -          -     -",
        "12,500  100.00  -1.2346e-07    1.0000e30*                       nan     123.5M  100%",
    ]


VALUES = st.none() | st.floats()


@given(total=st.none() | st.integers(1, 10**8), epoch=st.integers(1, 10**4), data=st.data())
@settings(deadline=None)
def test_every_row_is_as_wide_as_the_heading(total, epoch, data):
    rows = Rows(NAMES, "train/loss", total, epoch)
    step = data.draw(st.integers(1, total or 10**9))
    values = {name: data.draw(VALUES) for name in NAMES}
    values["samples_per_s"] = data.draw(st.floats(0, 9e13))
    row = rows.row({"step": step, "epoch": step / epoch, **values}, best=data.draw(st.booleans()))
    assert len(row) == len(rows.heading())


@given(width=st.integers(20, 140), names=st.integers(0, 6))
@settings(deadline=None)
def test_rows_fit_the_terminal_and_say_what_is_left_out(width, names):
    metrics = [f"val/{'a_metric' * (i + 1)}" for i in range(names)]
    monitor = metrics[-1] if metrics else "val/loss"
    rows = Rows(["train/loss", "val/loss", *metrics], monitor, 60, 2, width)
    heading = rows.heading().split()
    assert {"step", "epoch", "train/loss", "val/loss", monitor} <= {*heading}
    there = {*heading} & {*metrics, "samples/s", "comm"}
    assert {*rows.left_out} == {*metrics, "samples/s", "comm"} - there
    assert len(rows.heading()) <= width or there <= {monitor}
    row = rows.row({"step": 60, "epoch": 30.0, **dict.fromkeys(metrics, 0.5), "comm_share": 0.5})
    assert len(row) == len(rows.heading())


def test_a_value_without_a_column_is_not_dropped():
    rows = Rows(["train/loss"], "train/loss", 10, 1)
    with pytest.raises(KeyError, match="val/loss"):
        rows.row({"step": 1, "val/loss": 0.5})


def due_steps(total, per_epoch, every=None):
    schedule = RowSchedule(total, per_epoch, every)
    return [step for step in range(1, total + 1) if schedule.due(step)]


@given(total=st.integers(1, 3000), per_epoch=st.integers(1, 3000))
@settings(deadline=None)
def test_at_most_200_rows_and_always_the_last(total, per_epoch):
    due = due_steps(total, per_epoch)
    assert 1 <= len(due) <= 200
    assert len(due) >= min(total, 20)
    assert due[-1] == total


@given(
    total=st.none() | st.integers(1, 2000),
    per_epoch=st.integers(1, 300),
    every=st.none() | st.integers(1, 50),
)
@settings(deadline=None)
def test_no_row_is_due_before_the_next_step(total, per_epoch, every):
    plain, asked = (RowSchedule(total, per_epoch, every) for _ in range(2))
    end = total or 2000
    due = [step for step in range(1, end + 1) if plain.due(step)]
    found, step = [], 0
    while step < end:
        step = asked.next_step(step)
        if step <= end and asked.due(step):
            found.append(step)
    assert found == due


@pytest.mark.parametrize(
    "total, per_epoch, every, expected",
    [
        (2500, 125, None, list(range(125, 2501, 125))),  # 20 epochs: one an epoch
        (500, 1, None, list(range(5, 501, 5))),  # 500 epochs: every fifth
        (40000, 1, None, [*range(500, 40001, 500)]),
        (41000, 205, None, list(range(410, 41001, 410))),  # 200 epochs: every second
        (200, 100, None, list(range(10, 201, 10))),  # 2 epochs: ten each
        (7, 100, None, [1, 2, 3, 4, 5, 6, 7]),
        (10, 5, 4, [4, 8, 10]),
        (1000, 1, 1, list(range(1, 1001))),  # asked for: not bounded
    ],
)
def test_rows_fall_on_round_places(total, per_epoch, every, expected):
    assert due_steps(total, per_epoch, every) == expected


@pytest.mark.parametrize("epochs", [3, 7, 19])
@pytest.mark.parametrize("per_epoch", [1, 97, 100])
def test_the_end_of_an_epoch_has_a_row(epochs, per_epoch):
    ends = set(range(per_epoch, epochs * per_epoch + 1, per_epoch))
    assert ends <= set(due_steps(epochs * per_epoch, per_epoch))


def test_rows_of_a_run_without_a_known_end_thin_out():
    schedule = RowSchedule(None, 1)
    assert sum(schedule.due(step) for step in range(1, 20_000)) <= 200


def finished_run(size, resumed_at=None, **state):
    """What the summary reads of a run."""
    component = SimpleNamespace(type="mse", instance=None)
    names = ("data", "model", "loss", "optimizer", "schedule")
    begun = dict.fromkeys(("monitored", "best", "before"))
    begun |= {"seconds": 0.0, "stop": "", "ended": False}
    config = SimpleNamespace(metrics=[], callbacks=[], trainer=None)
    vars(config).update(dict.fromkeys(names, component))
    return SimpleNamespace(
        state=RunState(["val/loss", "min"], "20 epochs", **begun | state),
        comm=SimpleNamespace(size=size),
        model=SimpleNamespace(comm_seconds=0.03844),
        path=RESULTS,
        config=config,
        resumed_at=resumed_at,
    )


def test_summary(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["microtrain"])
    run = finished_run(4, step=2500, samples=174865, best=Best("val/loss", 0.249871, 2300))
    lines = summary(run, Ending(True, "", 1.24, 70_000_000))
    assert "\n".join(lines) == (
        "finished  2,500 steps in 1.24 s, 141,020 samples/s, 3% in communication\n"
        "best      val/loss 0.24987 at step 2,300\n"
        "results   runs/linreg/2026-11-21_13-35-07\n"
        "took      1.24 s, peak memory 70 MB\n"
        "next      microtrain evaluate runs/linreg/2026-11-21_13-35-07"
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([3.0, 2.0, 1.9], True),
        ([3.0, 2.0, 1.99], False),  # by less than a hundredth
        ([3.0, 1.0, 1.9], False),
        ([3.0], False),
    ],
)
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_run_that_still_improves_at_its_end_says_so(values, said, mode):
    run = finished_run(1, step=0, samples=100)
    run.state.monitor = ["val/loss", mode]
    run.data = SimpleNamespace(val=range(10))
    run.optimizer = SimpleNamespace(needs_closure=False)
    for run.state.step, value in enumerate(values, 1):
        run.state.note_best({"val/loss": value if mode == "min" else -value})

    def words(ending):
        return "still improving: train longer" in "\n".join(summary(run, ending))

    assert words(Ending(True, "", 1.0, 70)) is said
    assert not words(Ending(True, "early stopping", 1.0, 70))
    assert not words(Ending(False, "SIGTERM", 1.0, 70))
    run.optimizer.needs_closure = True  # the steps of a path of penalties
    assert not words(Ending(True, "", 1.0, 70))


def test_summary_without_a_best_value_or_communication(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    run = finished_run(1, step=3, samples=100, seconds=60.0, resumed_at=2)
    lines = summary(run, Ending(False, "SIGTERM", 60.5, 70_000_000))
    assert lines == [
        "stopped (SIGTERM)  3 steps in 1 min 00 s in all, 2 samples/s",
        "results            runs/linreg/2026-11-21_13-35-07",
        "took               0.50 s since the resume after step 2, peak memory 70 MB",
        "next               python -m microtrain resume runs/linreg/2026-11-21_13-35-07",
    ]


def test_truth_is_shown_beside_what_was_learned():
    lines = truth_lines([2.0012], 2.99811, {"weights": [2.0], "bias": 3.0, "noise": 0.5}, ["x"])
    assert lines == [
        "weight      learned        truth   difference",
        "x            2.0012       2.0000    0.0012000",
        "bias         2.9981       3.0000   -0.0018900",
    ]


def test_truth_of_many_weights_is_summed_up():
    learned = [float(i) for i in range(100)]
    truth = [*learned[:-1], 98.5]
    names = [f"x{i + 1}" for i in range(100)]
    lines = truth_lines(learned, 0.0, {"weights": truth}, names)
    assert len(lines) == 1 + 10 + 1 + 1
    assert lines[-2].split() == ["bias", "0.0000", "0.0000", "0.0000"]
    assert lines[-1] == "90 more weights, the largest difference is 0.50000"
    with pytest.raises(ValueError):
        truth_lines([1.0, 2.0], 0.0, {"weights": [1.0]}, ["x"])


@pytest.mark.parametrize(
    "text, expected",
    [
        (number(0.249871), "0.24987"),
        (number(12345.678), "12,346"),
        (number(1318683096 / 100), "13,186,831"),
        (number(-1.318683096e11), "-1.3187e11"),
        (number(1), "1.0000"),
        (number(0), "0.0000"),
        (number(-1.5e-7), "-1.5000e-07"),
        (number(99999.9), "100,000"),
        (number(-1.23456e-300), "-1.235e-300"),
        (number(math.nan), "nan"),
        (number(-math.inf), "-inf"),
        (rate(141020.4), "141,020"),
        (rate(9999999.4), "9,999,999"),
        (rate(9999999.5), "10.0M"),
        (rate(12.34e9), "12.3G"),
        (rate(math.inf), "-"),
        (plural(1, "step"), "1 step"),
        (plural(2500, "step"), "2,500 steps"),
        (plural(1.5, "epoch"), "1.50 epochs"),
        (size(8), "8 B"),
        (size(404_440), "404 KB"),
        (size(1_200_000), "1.2 MB"),
        (size(4 * 10**9), "4 GB"),
        (elapsed(0.8249), "0.82 s"),
        (elapsed(9.996), "10.0 s"),
        (elapsed(59.96), "1 min 00 s"),
        (elapsed(125), "2 min 05 s"),
        (elapsed(3599.6), "1 h 00 min"),
        (elapsed(90061), "25 h 01 min"),
    ],
)
def test_numbers_are_readable(text, expected):
    assert text == expected


@given(st.floats(min_value=1e-90, max_value=1e90))
@settings(deadline=None)
def test_numbers_keep_five_digits(value):
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-5)
    assert len(number(-value)) <= 11


def test_rank_0_prints_and_logs_the_same_lines():
    stream, log = io.StringIO(), []
    Output(0, log.append, stream).say("a", "b\nc", "", "trailing  ")
    assert stream.getvalue() == "a\nb\nc\n\ntrailing\n"
    assert log == ["a", "b", "c", "", "trailing"]


def test_other_ranks_are_silent_but_for_warnings():
    stream, errors, log = io.StringIO(), io.StringIO(), []
    output = Output(3, log.append, stream, errors)
    output.say("row")
    for _ in range(3):
        output.warn("two GPUs")
    assert stream.getvalue() == ""
    assert log == []
    assert errors.getvalue() == "warning (rank 3): two GPUs\n"


def test_control_characters_of_names_are_spelled_out():
    """A host, file or column name must not move the cursor of whoever reads the log."""
    stream = io.StringIO()
    Output(0, None, stream).say("\x1b[31mred\r\x07\t\x9b \udcff ä")
    assert stream.getvalue() == "\\x1b[31mred\\r\\x07\\t\\x9b \\udcff ä\n"


def test_a_terminal_without_the_letters_gets_escapes():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Output(0, None, stream).say("Größe")
    assert raw.getvalue() == b"Gr\\xf6\\xdfe\n"


def test_closed_standard_streams_are_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    log = []
    output = Output(0, log.append)
    output.say("row")
    output.warn("careful")
    assert log == ["row", "warning: careful"]


def test_a_command_without_a_run_that_cannot_print_does_not_speak_of_one(full_disk, capsys):
    with open("/dev/full", "w") as stdout:
        output = Output(stream=stdout)
        output.say("train  8,000 rows")
    assert capsys.readouterr().err == "warning: cannot print: No space left on device\n"


PRINT = """
import sys
from microtrain.train.console import Output
with open(sys.argv[1], "w") as file:
    output = Output(0, lambda line: print(line, file=file))
    for i in range(20_000):
        output.say(f"row {i}")
"""


@pytest.fixture
def full_disk():
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "wb") as file:
        yield file


@pytest.mark.daily("closed pipe-1", "full disk-]")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("reader", ["closed pipe", "full disk"])
def test_losing_the_terminal_does_not_lose_the_run(tmp_path, full_disk, reader, unbuffered):
    """`microtrain train ... | head`, and standard output on a full disk."""
    log = tmp_path / "log.txt"
    process = subprocess.Popen(
        [sys.executable, "-c", PRINT, str(log)],
        stdout=subprocess.PIPE if reader == "closed pipe" else full_disk,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    with process:
        if process.stdout is not None:
            assert process.stdout.readline() == "row 0\n"
            process.stdout.close()
        errors = process.stderr.read()
        code = process.wait(60)
    reason = "Broken pipe" if reader == "closed pipe" else "No space left on device"
    expected = f"warning: cannot print: {reason}; the run goes on, its rows are in log.txt"
    assert (code, errors) == (0, expected + "\n")
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith("row")] == [f"row {i}" for i in range(20_000)]
    assert lines.count(expected) == 1
