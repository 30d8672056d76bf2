"""The user's line: frames of the package, of its generated code and of libraries are skipped."""

from __future__ import annotations

import functools
import os
import runpy
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import microtrain as mt
from microtrain import frames

PACKAGE = Path(frames.__file__).parent
ASK = "import sys\ndef ask(read): return read(sys._getframe())\n"


def code_in(filename: str, **names: Any) -> Any:
    """A function in code of this name, which calls `read` with its frame."""
    scope: dict[str, Any] = names
    exec(compile(ASK, filename, "exec"), scope)
    return scope["ask"]


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
    assert code_in(name)(frames.user_place) == os.path.basename(line_here())


@pytest.mark.parametrize("name", ["<frozen runpy>", functools.__file__, "/x/site-packages/a/b.py"])
def test_libraries_are_nobodys_script(name: str) -> None:
    assert not frames.is_own(name)
    assert code_in(name)(frames.user_line) == f"{name}:2"
    assert code_in(name)(frames.user_place).startswith("test_frames.py:")


def test_a_replay_has_the_line_that_it_repeats() -> None:
    origins = [SimpleNamespace(where="/somewhere/model.py:7")]

    def at_line(number: int) -> str:
        scope: dict[str, Any] = {"origins": origins}
        text = "\n" * (number - 1) + "import sys; frame = sys._getframe()"
        exec(compile(text, frames.REPLAY, "exec"), scope)
        frame: FrameType = scope["frame"]
        return frames.user_place(frame)

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
    assert frames.user_place(inner) == "trainer.py:5"  # type: ignore[arg-type]
    assert frames.user_place(None) == "unknown code"
    inner.f_back = 1.5  # what CPython 3.11 gave once for a thread under way
    assert frames.user_place(inner) == "unknown code"  # type: ignore[arg-type]


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
