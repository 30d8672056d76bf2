"""What follows an error in a replay: the state of the eager step, and the user's line."""

from __future__ import annotations

from ..backend import NUMPY
from ..common.stack_frames import FIRST_LINE
from ..ops.coercion import LinAlgError, explain
from .program import DRAWS, Line, Program, PythonCall, arrays_in
from .python_calls import End, Pass, skip

EXCEPT = """\
    except BaseException as error:
        failed(program, origins, error)
        raise
"""  # behind the text of a replay, which is free where nothing is raised


def failed(program: Program, origins: list[Line | PythonCall], error: BaseException) -> None:
    """Undo what a replay that raised `error` has begun, and say where in the user's code that was.

    `origins` are those of the lines of its text. Raises the error of the eager step where NumPy's
    has other words.
    """
    assert error.__traceback__ is not None
    origin = origins[error.__traceback__.tb_lineno - FIRST_LINE]
    passes = [line for line in program.lines if isinstance(line, Pass) and not line.forward]
    for one in passes:
        if one is origin or one.listener.passes.running:
            one.listener.cancel()
    _count_draws(program, origin)
    if not isinstance(error, Exception):
        return
    named: Exception = error
    if isinstance(error, NUMPY.module.linalg.LinAlgError):
        error = LinAlgError(str(error))
    what = origin.label if isinstance(origin, PythonCall) else origin.name
    if isinstance(origin, Line):
        named = explain(origin, error, tuple(arrays_in(origin.args)))
    named.add_note(f"In the replay of a captured step: {what}, at {origin.where}")
    if named is not error:
        raise named from error


def _count_draws(program: Program, origin: Line | PythonCall) -> None:
    """Count the draws before `origin`, which a replay counts at its end."""
    lines = program.lines
    place = next((n for n, line in enumerate(lines) if line is origin), 0)
    start = max((n for n in range(place) if isinstance(lines[n], End)), default=0)
    draws = (line for line in lines[start:place] if getattr(line, "name", "") in DRAWS)
    skip(sum(line.args[1] is not None for line in draws))  # type: ignore[union-attr]
