"""What is compiled is said before it takes its time: how much it is, and about how long.

Only where something is compiled: numba tells of each function that it does not find on disk. Who
announces it is `ANNOUNCE`; a run sets that, and a program of one's own sees it as messages of
Python's `logging`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from ..words import elapsed, plural

LOG = logging.getLogger("microtrain.compile")


@contextlib.contextmanager
def _logged(text: str) -> Any:
    LOG.info(text)
    yield


# Given what happens, in words, something to do it in.
Announce = Callable[[str], contextlib.AbstractContextManager[Any]]
ANNOUNCE: ContextVar[Announce] = ContextVar("ANNOUNCE", default=_logged)

# CPU seconds that numba takes for a line of text and for a loop in it, on the machine of
# docs/benchmarks.md: fitted to ten models (benchmarks/compile_time.py says how well it fits).
LINE, LOOP = 0.003, 0.022
CALIBRATION = 0.0023  # seconds that `_yardstick` takes there
_SPEED: dict[str, float] = {}  # seconds that compiling took here, and that were expected for it


class Notice:
    """Announces what is done about `source`: a context in which it is loaded."""

    def __init__(self, source: str) -> None:
        self.sizes = sizes(source)
        self.text = ""  # once it is compiled
        self.kept = False  # whether it will be found on disk
        self._open = contextlib.ExitStack()
        self._stack = contextlib.ExitStack()
        self._thread = threading.get_ident()
        self._expected = self._took = 0.0
        self._began: float | None = None

    def __enter__(self) -> Notice:
        from numba.core import event

        told = self

        class Listener(event.Listener):
            def on_start(self, event: Any) -> None:
                told._starts(event.data["dispatcher"].py_func.__name__)

            def on_end(self, event: Any) -> None:
                told._ends(event.data["dispatcher"].py_func.__name__)

        self._open.enter_context(event.install_listener("numba:compile", Listener()))
        self._open.enter_context(self._stack)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        if self._took:
            _SPEED["took"] = _SPEED.get("took", 0.0) + self._took
            _SPEED["expected"] = _SPEED.get("expected", 0.0) + self._expected

    def waits(self, text: str) -> None:
        """Another process does what `text` says."""
        self._announce(f"waiting for another process of this host that is {text}")

    def goes_on(self) -> None:
        """Nobody is waited for any more."""
        self._stack.close()

    def _announce(self, text: str) -> None:
        self._stack.enter_context(ANNOUNCE.get()(text))

    def _starts(self, name: str) -> None:
        if threading.get_ident() != self._thread or name not in self.sizes:
            return
        if self._began is None:
            names = list(self.sizes)
            left = [self.sizes[each] for each in names[names.index(name) :]]  # others were on disk
            lines, loops = map(sum, zip(*left, strict=True))
            text = f"compiling {plural(lines, 'line')} of native code in "
            took = expected(lines, loops)
            about = f"{took:.2g} s" if took < 60 else elapsed(took)
            text += f"{plural(len(left), 'piece')}, about {about}"
            self.text = f"{text} ({'cached from then on' if self.kept else 'nothing is cached'})"
            self._announce(self.text)
        self._began = time.thread_time()

    def _ends(self, name: str) -> None:
        if threading.get_ident() != self._thread or name not in self.sizes:
            return
        assert self._began is not None
        lines, loops = self.sizes[name]
        self._took += time.thread_time() - self._began
        self._expected += LINE * lines + LOOP * loops


def sizes(source: str) -> dict[str, tuple[int, int]]:
    """By name, how many lines and loops the functions of a step in `source` have."""
    found: dict[str, tuple[int, int]] = {}
    for text in source.split("@njit")[1:]:
        name = text.partition("def ")[2].partition("(")[0]
        lines = [line.strip() for line in text.split("\n")[1:]]
        lines = [line for line in lines if line and line[0] != "#"]
        if name.startswith("native"):  # what looks at arguments is a moment's work
            found[name] = len(lines), sum(line.startswith("for ") for line in lines)
    return found


def expected(lines: int, loops: int) -> float:
    """CPU seconds that compiling so much takes here.

    Measured once elsewhere, and scaled by what was compiled before, or by a short measurement.
    """
    speed = _SPEED["took"] / _SPEED["expected"] if _SPEED else _yardstick() / CALIBRATION
    return speed * (LINE * lines + LOOP * loops)


@functools.cache
def _yardstick() -> float:
    """Seconds for work of the kind that numba does, on this machine: the best of three."""
    import ast

    text = "\n".join(f"def f{n}(a, b):\n    return [a[i] + b * {n} for i in a]" for n in range(60))
    took = []
    for _ in range(3):
        start = time.thread_time()
        compile(ast.parse(text), "yardstick", "exec")
        took.append(time.thread_time() - start)
    return min(took)
