"""The progress bar: on a real terminal only, and never a control character anywhere else."""

import contextlib
import io
import math
import re
import shlex
import sys
from pathlib import Path

import mpi_run
import pytest
import terminal

from microtrain.common.threads import LAUNCH
from microtrain.train import progress_bar
from microtrain.train.console import Output, why_no_bar
from microtrain.train.progress_bar import TerminalBar

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(LAUNCH.parallel, reason="starts runs itself, on one process")

TRAIN = ["-m", "microtrain", "train", str(ROOT / "configs/linreg.yaml"), "train.compile=off"]
TRAIN += ["train.duration='500 steps'"]
BAR = re.compile(r"step [\d,]+ of 500")  # the start draws one, however fast the run


def job(tmp_path, *arguments):
    return [sys.executable, *TRAIN, "--run-dir", str(tmp_path), *arguments]


def log_of(tmp_path):
    return (tmp_path / "linreg" / "latest" / "log.txt").read_text().splitlines()


def test_a_bar_on_a_terminal_leaves_what_a_pipe_would_show(tmp_path):
    code, written = terminal.run(job(tmp_path))
    assert code == 0, written
    assert BAR.search(written)
    assert re.search(r"loss \d\.\d+.* samples/s", written)
    assert "\x1b[?25l" not in written  # a killed run must not leave a terminal without a cursor
    seen = terminal.screen(written)
    assert [line for line in seen if line] == [line for line in log_of(tmp_path) if line]
    assert not any("\x1b" in line for line in log_of(tmp_path))


@pytest.mark.daily("arguments0")
@pytest.mark.parametrize(
    "arguments, env",
    [(["--progress", "off"], {}), ([], {"TERM": "dumb"})],
)
def test_a_terminal_without_a_bar_gets_no_control_characters(tmp_path, arguments, env):
    code, written = terminal.run(job(tmp_path, *arguments), **env)
    assert code == 0
    assert_plain(written.replace("\r\n", "\n"))
    assert written.splitlines() == log_of(tmp_path)


def test_an_interrupted_run_takes_its_bar_away(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, time\n"
        "from microtrain.train.console import Output\n"
        "output = Output()\n"
        "at = output.start_bar(100)\n"
        "try:\n"
        "    for step in range(1, 4):\n"
        "        time.sleep(0.15)\n"
        "        at = output.look(step)\n"
        "        print('from the user', step)\n"
        "        output.warn('careful')\n"
        "        output.say(f'row {step} \\N{SNOWMAN} [bold]x')\n"
        "    raise KeyboardInterrupt\n"
        "finally:\n"
        "    output.end_bar()\n"
    )
    code, written = terminal.run([sys.executable, str(script)], PYTHONIOENCODING="ascii:strict")
    assert code != 0
    seen = [line for line in terminal.screen(written) if line]
    assert seen[:7] == [
        "from the user 1",
        "warning: careful",
        "row 1 \\u2603 [bold]x",
        "from the user 2",
        "row 2 \\u2603 [bold]x",
        "from the user 3",
        "row 3 \\u2603 [bold]x",
    ]
    assert seen[7].startswith("Traceback")
    assert "step 3 of 100" in written
    assert not any("of 100" in line for line in seen)


@pytest.mark.slow
def test_a_pipe_gets_no_control_characters(tmp_path):
    line = shlex.join(map(str, job(tmp_path, "--progress", "on")))
    done = mpi_run.run_job(["bash", "-c", f"{line} | cat"])
    assert done.returncode == 0
    assert_plain(done.stdout)
    assert done.stdout.splitlines() == [x for x in log_of(tmp_path) if "warning" not in x]
    assert done.stderr == ("warning: no progress bar: standard output is not a terminal\n")


@pytest.mark.slow
@pytest.mark.parametrize("where", ["pipe", "terminal"])
def test_under_mpirun_there_is_no_bar_and_each_message_once(tmp_path, where):
    if reason := mpi_run.missing():
        pytest.skip(reason)
    command = [mpi_run.find_mpirun(), "-n", "2", *job(tmp_path, "--progress", "on")]
    settings = mpi_run.open_mpi_settings(crowded=True)
    if where == "pipe":  # as mpirun ... | cat
        line = shlex.join(map(str, command))
        done = mpi_run.run_job(["bash", "-c", f"{line} | cat"], env=settings)
        code, written = done.returncode, done.stdout + done.stderr
    else:
        code, written = terminal.run(command, **settings)
    assert code == 0, written
    written = written.replace("\r", "") if where == "terminal" else written
    assert_plain(written)
    assert written.count("warning (rank 0): no progress bar: the ranks of ") == 1
    assert "rank 1)" not in written
    rows = [line for line in log_of(tmp_path) if line]
    for row in rows:
        assert written.count(row) == 1, row


def assert_plain(text):
    strange = {c for c in text if c != "\n" and not c.isprintable()}
    assert strange == set()


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [0.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return now


@pytest.mark.parametrize("seconds, apart", [(1e-6, 1000), (1e-3, 100), (1.0, 1)])
def test_the_clock_is_looked_at_as_rarely_as_the_speed_allows(clock, seconds, apart):
    looks, at = 0, 0
    steps = 20 * apart
    with contextlib.closing(TerminalBar(Screen(), 200_000)) as bar:
        for step in range(1, steps + 1):
            clock[0] += seconds
            if step >= at:
                at = bar.look(step)
                looks += 1
    assert at - step <= apart + 1
    assert looks <= 20 + 15  # while it learns the speed


@pytest.mark.parametrize(
    "width, kept",
    [
        (120, "25% ━ step 1,000 of 4,000 loss 0.25000 157,720 samples/s 30 s left"),
        (80, "25% ━ step 1,000 of 4,000 loss 0.25000 157,720 samples/s 30 s left"),
        (50, "step 1,000 of 4,000 loss 0.25000 157,720"),
        (36, "step 1,000 of 4,000 loss 0.25"),
        (25, "step 1,000 of 4,000"),
        (12, "step 1,0"),
    ],
)
def test_the_bar_says_what_fits_into_one_line_of_the_window(clock, monkeypatch, width, kept):
    monkeypatch.setenv("COLUMNS", str(width))
    screen = Screen()
    with contextlib.closing(TerminalBar(screen, 4_000)) as bar:
        clock[0] = 10.0
        bar.look(1_000, 0.25, 157_720.4)
        drawn = re.split(r"\r\x1b\[2K", screen.getvalue())[-1]
    text = re.sub(r"\x1b\[[\d;]*m", "", drawn)
    assert "\n" not in text.rstrip("\n")
    assert len(text.rstrip("\n")) <= width
    found = re.sub("[━╸╺]+", "━", " ".join(text.replace("…", "").split()))
    assert found.startswith(kept)


def test_the_bar_shows_the_loss_of_the_steps_since_it_was_drawn_smoothed(clock):
    with contextlib.closing(TerminalBar(Screen(), None)) as bar:
        assert list(bar.words()) == ["steps"]
        for loss in (2.0, 1.0, math.nan, math.inf, 1.0):
            bar.look(5, loss)
        assert bar.words() == {"steps": "step 5", "loss": "loss 1.2500"}


def test_a_run_that_becomes_slow_is_followed_again(clock):
    with contextlib.closing(TerminalBar(Screen(), None)) as bar:
        at = 0
        for step in range(1, 4200):
            clock[0] += 1e-6 if step < 3000 else 1.0
            if step >= at:
                at = bar.look(step)
    assert at - step <= 1


def test_only_rank_0_of_a_terminal_has_a_bar(clock):
    assert Output(1, stream=Screen()).start_bar(10) == math.inf
    assert Output(0, stream=io.StringIO()).start_bar(10) == math.inf
    assert Output(0, stream=Screen(), progress="off").start_bar(10) == math.inf
    shown = Output(0, stream=Screen())
    assert shown.start_bar(10, 3) == 3
    assert shown.look(4) > 4
    shown.end_bar()
    shown.end_bar()
    assert shown.look(5) == math.inf


@pytest.mark.parametrize(
    "variable, value, words",
    [
        ("OMPI_COMM_WORLD_SIZE", "2", "the ranks of Open MPI's mpirun cannot tell"),
        ("OMPI_COMM_WORLD_SIZE", "1", "the ranks of Open MPI's mpirun cannot tell"),
        ("PMI_SIZE", "4", "the ranks of MPICH's mpirun cannot tell"),
        ("TERM", "dumb", "cannot redraw a line (TERM=dumb)"),
    ],
)
def test_why_there_is_none(clock, monkeypatch, variable, value, words):
    assert why_no_bar(Screen()) == ""
    assert why_no_bar(None) == why_no_bar(io.StringIO()) == "standard output is not a terminal"
    monkeypatch.setenv(variable, value)
    assert words in why_no_bar(Screen())


def test_a_terminal_that_goes_away_does_not_end_the_run(clock, monkeypatch):
    screen = Screen()
    shown = Output(0, stream=screen)
    shown.start_bar(10)

    def gone(text):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(screen, "write", gone)
    clock[0] = 5.0
    assert shown.look(1) == math.inf
