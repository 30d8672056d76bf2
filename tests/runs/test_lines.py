"""Files that grow line by line: when lines are written, and what happens when they cannot be."""

import contextlib
import subprocess
import sys

import pytest

from microtrain.runs.metrics import Lines


@contextlib.contextmanager
def no_disk():
    yield


@pytest.mark.parametrize("end", ["close()", "flush()", "length"])
def test_a_line_of_the_interpreters_last_moment_is_written(tmp_path, end):
    path = tmp_path / "log.txt"
    program = (
        "import atexit, contextlib, pathlib, sys\n"
        "from microtrain.runs.directory import Lines\n"
        f"lines = Lines(pathlib.Path({str(path)!r}), contextlib.nullcontext)\n"
        "lines.add('in time')\n"
        f"atexit.register(lambda: (lines.add('late'), lines.add('last'), lines.{end}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert path.read_text() == "in time\nlate\nlast\n"


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda lines: lines.add("more"), id="add"),
        pytest.param(lambda lines: lines.flush(), id="flush"),
        pytest.param(lambda lines: lines.trim(0), id="trim"),
    ],
)
def test_a_closed_file_is_named(tmp_path, call):
    lines = Lines(tmp_path / "log.txt", no_disk)
    lines.add("first")
    lines.close()
    lines.close()
    with pytest.raises(ValueError, match=r"log\.txt was closed: no line can be written"):
        call(lines)
    assert (tmp_path / "log.txt").read_text() == "first\n"


def test_lines_of_one_second_are_written_at_once(tmp_path):
    path = tmp_path / "log.txt"
    lines = Lines(path, no_disk)
    for line in ("first", "second"):
        lines.add(line)
        lines.flush(1e9)
    assert path.read_text() == "first\n"
    lines.flush()
    assert path.read_text() == "first\nsecond\n"
    lines.close()


def test_lines_of_a_limited_file_are_there_up_to_the_one_that_found_no_room(tmp_path):
    path = tmp_path / "metrics.jsonl"
    program = (
        "import pathlib, resource\n"
        "from contextlib import contextmanager\n"
        "from microtrain.errors import LaunchError\n"
        "from microtrain.runs.metrics import Lines, Unwritten\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "@contextmanager\n"
        "def refusing():\n"
        "    try:\n"
        "        yield\n"
        "    except OSError as error:\n"
        "        raise LaunchError('no room') from error\n"
        f"lines = Lines(pathlib.Path({str(path)!r}), refusing)\n"
        "try:\n"
        "    for number in range(10_000):\n"
        "        lines.add(f'row {number:05}')\n"
        "        if number % 7 == 0:\n"
        "            lines.flush()\n"
        "except Unwritten as error:\n"
        "    print(type(error).__name__, error)\n"
        "try:\n"
        "    lines.close()\n"
        "except OSError:\n"
        "    print('not closed in good order')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == "Unwritten no room\nnot closed in good order\n"
    assert path.read_text() == "".join(f"row {number:05}\n" for number in range(10))
