"""The executors: each is given a Program and returns a function that replays it, and its text."""

from __future__ import annotations

from typing import Any

from ..errors import CaptureError
from . import c_compiler, cupy_executor, native, numpy_executor
from .program import Program


def choose(name: str, program: Program) -> tuple[str, str]:
    """The executor that `name` asks for, and why: "auto" is native code where there is any."""
    if program.xp.kind == "cuda":
        return "cupy", "asked for" if name == "cupy" else "its arrays are on a GPU"
    check(name, program.xp)
    if name != "auto":
        return name, "asked for"
    why = c_compiler.absent()
    return ("numpy", why) if why else ("native", c_compiler.compiler().version)


def check(name: str, xp: Any) -> None:
    """CaptureError for an executor of the other device."""
    if name in ("cupy", "native") and (name == "cupy") != (xp.kind == "cuda"):
        where = "on a GPU" if xp.kind == "cuda" else "on the CPU"
        raise CaptureError(f"compile: executor={name!r}, but the arrays of the step are {where}")


EXECUTORS: dict[str, Any] = {
    "auto": None,  # `choose` names another
    "cupy": cupy_executor.executor,
    "native": native.executor,
    "numpy": numpy_executor.executor,
}
