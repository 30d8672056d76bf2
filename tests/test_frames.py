"""The user's line: frames of the package, of its generated code and of libraries are skipped."""

from __future__ import annotations

import functools
import gc
import os
import runpy
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import microtrain as mt
from microtrain.common import stack_frames as frames

PACKAGE = Path(frames.__file__).parent.parent
ASK = "import sys\ndef ask(read): return read(sys._getframe())\n"


def code_in(filename: str, **names: Any) -> Any:
    """A function in code of this name, which calls `read` with its frame."""
    scope: dict[str, Any] = names
    exec(compile(ASK, filename, "exec"), scope)
    return scope["ask"]


def place(frame: FrameType) -> str:
    return frames.user_place(frames.outwards(frame))


def line_here() -> str:
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


OWN = [
    "<operation mul>", "<front narrow>", "<layer ReLU>", frames.ENTRY, str(PACKAGE / "tensor.py"),
]  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_our_own_code_is_passed_over(name: str) -> None:
    assert frames.is_own(name)
    assert code_in(name)(frames.user_line) == line_here()
    assert code_in(name)(place) == os.path.basename(line_here())


@pytest.mark.parametrize("name", ["<frozen runpy>", functools.__file__, "/x/site-packages/a/b.py"])
def test_libraries_are_nobodys_script(name: str) -> None:
    assert not frames.is_own(name)
    assert code_in(name)(frames.user_line) == f"{name}:2"
    assert code_in(name)(place).startswith("test_frames.py:")


def test_a_replay_has_the_line_that_it_repeats() -> None:
    origins = [SimpleNamespace(where="/somewhere/model.py:7")]

    def at_line(number: int) -> str:
        scope: dict[str, Any] = {"origins": origins}
        text = "\n" * (number - 1) + "import sys; frame = sys._getframe()"
        exec(compile(text, frames.REPLAY, "exec"), scope)
        frame: FrameType = scope["frame"]
        return place(frame)

    assert at_line(frames.FIRST_LINE) == "model.py:7"
    assert at_line(frames.FIRST_LINE + 1).startswith("test_frames.py:")  # bookkeeping


def test_where_there_is_no_user_the_package_above_communication_is_named() -> None:
    inner = SimpleNamespace(
        f_code=SimpleNamespace(co_filename=str(PACKAGE / "distributed" / "mpi.py")),
        f_lineno=3,
        f_back=SimpleNamespace(
            f_code=SimpleNamespace(co_filename=str(PACKAGE / "train" / "trainer.py")),
            f_lineno=5,
            f_back=None,
        ),
    )
    assert place(inner) == "trainer.py:5"  # type: ignore[arg-type]
    assert frames.user_place([]) == "unknown code"


def test_calls_under_way_are_the_users() -> None:
    calls = frames.calls_under_way()
    assert [code.co_name for code, _ in calls][-1] == "test_calls_under_way_are_the_users"


def test_a_generated_layer_is_none_of_the_users_calls(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import microtrain as mt\n"
        "with mt.autograd.detect_anomaly():\n"
        "    x = mt.tensor([0.0], requires_grad=True)\n"
        "    y = mt.nn.Softplus()(x).log() * mt.tensor([float('nan')])\n"
        "    y.backward()\n"
    )
    with pytest.raises(RuntimeError) as caught:
        runpy.run_path(str(script))
    _, line, below = str(caught.value).partition(f'{script}", line 4')  # above: what runs the tests
    assert line and "<layer" not in below and "<string>" not in below
    assert mt.is_anomaly_enabled() is False


# Frames of many sizes, so that one lies where another was; garbage whose finalizers let the other
# thread go on while its frames are read.
RACE = r"""
import gc, random, sys, threading, time
from microtrain.common.stack_frames import of_threads

class Garbage:
    def __init__(self):
        self.me = self
    def __del__(self):
        if threading.get_ident() == reader:
            time.sleep(1e-4)  # lets the other thread go on

reader, functions = threading.get_ident(), []
for count in range(1, 37, 3):
    scope = {"functions": functions}
    lines = [f"v{n} = x + {n}.5" for n in range(count)]
    lines.append("return functions[(n * 7 + int(x)) % 12](n - 1, x + 1) + v0 if n else v0")
    exec("\n  ".join(["def f(n, x):", *lines]), scope)
    functions.append(scope["f"])

def work():
    while True:
        random.choice(functions)(60 + random.randrange(9), random.random() * 50)

worker = threading.Thread(target=work, daemon=True)
worker.start()
gc.set_threshold(30, 1000, 1000)
end, kinds = time.monotonic() + 2, set()
while time.monotonic() < end:
    Garbage(), Garbage()
    kinds.update(map(type, of_threads([worker.ident])[worker.ident]))
assert gc.isenabled()
print(*(kind.__name__ for kind in kinds), flush=True)
"""


@pytest.mark.slow
def test_calls_of_a_thread_under_way_are_frames() -> None:
    """CPython 3.11 gave floats, and crashed, where garbage was collected meanwhile."""
    command = [sys.executable, "-c", RACE]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "frame\n"), ended.stderr


def test_calls_of_threads_without_ident_are_all() -> None:
    found = frames.of_threads()
    assert {thread.ident for thread in threading.enumerate()} <= found.keys()
    assert found[threading.get_ident()][-1] is frames.outwards(sys._getframe())[-1]
    assert frames.of_threads([-1]) == {}


@pytest.mark.parametrize("which", ["all", "one"])
def test_a_look_at_threads_keeps_nothing_of_theirs(which: str) -> None:
    """Also without the collector, which would find a circle of frames at another time each run."""

    class Held:
        pass

    def work() -> None:
        held = Held()
        gone.append(weakref.ref(held))
        entered.set()
        leave.wait(30)

    gone: list[Any] = []
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=work)
    gc.disable()
    try:
        thread.start()
        assert entered.wait(30) and thread.ident
        found = frames.of_threads([thread.ident] if which == "one" else None)
        assert any(frame.f_code.co_name == "work" for frame in found[thread.ident])
        found.clear()
        leave.set()
        thread.join(30)
        assert gone[0]() is None
    finally:
        leave.set()
        gc.enable()
