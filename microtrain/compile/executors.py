"""The executors: each is given a Program and returns a function that replays it, and its text."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any

from ..errors import CaptureError, install
from . import cupy_executor, numpy_executor
from .program import Line, Program

# What compiling costs where the code is not on disk yet (what repeats is compiled once), and what
# native code saves, in seconds.
START, FOR_EACH = 0.5, 0.03
SAVED = 0.4e-6  # for an instruction, a step: a call of NumPy and a pass over memory
UNKNOWN = 1_000_000  # steps, where nobody says how many there will be


def choose(name: str, program: Program, steps: int = UNKNOWN) -> tuple[str, str]:
    """The executor that `name` asks for, and why.

    "auto" decides from `program` and `steps` alone, not from a clock: equal runs choose alike.
    """
    if program.xp.kind == "cuda":
        return "cupy", "asked for" if name == "cupy" else "its arrays are on a GPU"
    check(name, program.xp)
    if name != "auto":
        return name, "asked for"
    if numba_absent():
        return "numpy", numba_absent()
    from .numba_executor import coverage

    count = sum(type(line) is Line for line in program.lines)
    native, covered, once = coverage(program)
    cost, saved = pays(count - native + once, steps)[0], pays(count, steps)[1]
    apart = f" ({native - once} repeat others)" if once < native else ""
    bill = (
        f"to compile {count} instructions{apart} takes {cost:.1f} s and saves {saved:.1f} s "
        f"in {steps:,} steps"
    )
    if cost > saved:
        return "numpy", bill
    count = covered
    if native < 0.9 * count:
        return "numpy", f"native code has only {native} of {count} instructions"
    return "numba", f"{bill}; native code has {native} of them"


def pays(count: int, steps: int) -> tuple[float, float]:
    """Seconds that compiling so many instructions costs, and that it saves in so many steps."""
    return START + FOR_EACH * count, SAVED * count * steps


def check(name: str, xp: Any) -> None:
    """CaptureError for an executor of the other device."""
    if name in ("cupy", "numba") and (name == "cupy") != (xp.kind == "cuda"):
        where = "on a GPU" if xp.kind == "cuda" else "on the CPU"
        raise CaptureError(f"compile: executor={name!r}, but the arrays of the step are {where}")


def numba_absent() -> str:
    """Why there is no numba; empty where there is."""
    if importlib.util.find_spec("numba") is None:
        return f"numba is not installed ({install('jit')})"
    off = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
    return "numba is switched off (NUMBA_DISABLE_JIT)" if off else ""


def _numba(program: Program) -> tuple[Callable[[], None], numpy_executor.Text]:
    if numba_absent():
        raise ImportError(
            f"compile: executor='numba': {numba_absent()}; or leave the choice to executor='auto'"
        )
    from .numba_executor import executor

    return executor(program)


EXECUTORS: dict[str, Any] = {
    "auto": None,  # `choose` names another
    "cupy": cupy_executor.executor,
    "numba": _numba,
    "numpy": numpy_executor.executor,
}
