"""One process compiles, the others wait for it: as long as it lives and works, and no longer."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from microtrain.compile import cache, waiting

HOLDS = """
import sys, time
from pathlib import Path
from microtrain.compile.waiting import alone
with alone(Path(sys.argv[1]), print, lambda: "busy", float(sys.argv[2])):
    print("here", flush=True)
    time.sleep(float(sys.argv[3]))
    Path(sys.argv[1]).with_suffix(".done").touch()
"""
COMPILES = """
import logging, sys
from pathlib import Path
from microtrain.compile import cache
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
cache.load(Path(sys.argv[1]).read_text())
"""


@contextmanager
def process(script: str, *arguments: object, **more: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, **more, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-u", "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.slow
def test_one_that_works_longer_than_patience_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with process(HOLDS, path, 0.6, 2.0) as child:
        assert first_line(child) == "here"
        waited: list[str] = []
        with waiting.alone(path, waited.append, str, 0.6) as mine:
            assert path.with_suffix(".done").exists()
            assert mine
        assert waited == ["busy"]


def test_one_that_is_stopped_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with process(HOLDS, path, 0.3, 100) as child:
        assert first_line(child) == "here"
        child.send_signal(signal.SIGSTOP)
        with waiting.alone(path, print, str, 0.3) as mine:
            assert not mine
        assert not path.with_suffix(".done").exists()


def test_without_locks_nobody_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "fcntl", None)
    path = tmp_path / "lock"
    with waiting.alone(path, print, str) as one, waiting.alone(path, print, str) as two:
        assert (one, two) == (False, False)


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    body = "\n".join(f"    y = x * y + {number}" for number in range(600))
    function = '@njit("int64(int64)", cache=CACHE)\ndef native{0}(x):\n    y = x\n{1}\n    return y'
    parts = [function.format(number, body) for number in (1, 2)]
    source = "\n\n".join(["from numba import int64, njit", *parts])
    (tmp_path / "source").write_text(source)
    said = "compiling 1,206 lines of native code in 2 pieces, about "
    caplog.set_level(logging.INFO, "microtrain.compile")
    with process(COMPILES, tmp_path / "source", XDG_CACHE_HOME=str(tmp_path)) as child:
        line = first_line(child)
        assert line.startswith(said)
        place = tmp_path / "microtrain"
        (lock,) = place.glob("*.lock")
        with open(lock) as held, pytest.raises(BlockingIOError):
            waiting.fcntl.flock(held, waiting.fcntl.LOCK_EX | waiting.fcntl.LOCK_NB)
        logger = logging.getLogger("microtrain.compile")
        kill = lambda record: child.kill() or True  # noqa: E731 # once this one says that it waits
        logger.addFilter(kill)
        began = time.monotonic()
        scope = cache.load(source)
        logger.removeFilter(kill)
        assert time.monotonic() - began < waiting.PATIENCE
        assert child.wait() == -signal.SIGKILL
    assert scope["CACHE"]
    assert scope["native1"](3) == scope["native2"](3)
    first, second = caplog.messages
    assert first == f"waiting for another process of this host that is {line}"
    assert second.startswith("compiling ")
    cache._load.cache_clear()
    assert cache.load(source)["native1"](3) == scope["native1"](3)
    assert caplog.messages == [first, second]  # what is on disk is not compiled


def test_what_is_not_kept_is_not_called_cached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    monkeypatch.setattr(cache, "directory", lambda: None)
    caplog.set_level(logging.INFO, "microtrain.compile")
    cache.load(
        'from numba import njit\n@njit("int64(int64)", cache=CACHE)\ndef native1(x):\n    return x'
    )
    (text,) = caplog.messages
    assert text.endswith("(nothing is cached)")


def test_lines_are_counted() -> None:
    pytest.importorskip("numba", reason="numba is not installed")
    from microtrain.compile import notice

    one = "@njit()\ndef native1(t):\n    # what\n    a\n\n    b\n"
    two = "@njit()\ndef native2(t):\n    for i in t:\n        c\n"
    source = f"HEAD\n\n{one}\n\n{two}"
    assert notice.sizes(source) == {"native1": (3, 0), "native2": (3, 1)}
    assert notice.expected(500, 20) > notice.expected(50, 2) > 0
