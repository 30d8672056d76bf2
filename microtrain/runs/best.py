"""Which checkpoint of a run is meant: the best, the last, or that of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import DataError
from .checkpoint import Checkpoint, load_checkpoint, load_newest_checkpoint, peek_state, step_of
from .record import Run

__all__ = ["best_checkpoint", "checkpoint_of_step", "last_checkpoint"]


def best_checkpoint(run: Run, warn: Callable[[str], None]) -> tuple[Checkpoint, str, str]:
    """The checkpoint whose model a run is known by, what it is called, and why it is not the best.

    All that tells of a trained model takes this one, so that all tell of the same.
    """
    step, measured = _best(run)
    if step is None:
        return last_checkpoint(run, warn)
    fell_back = f"the best, of step {step:,} ({measured}), was not kept"
    if step in _steps(run):
        try:
            found = load_checkpoint(_steps(run)[step])
            return found, f"checkpoint of step {step:,}, the best ({measured})", ""
        except DataError as error:
            fell_back = f"the best, of step {step:,}, cannot be used ({error})"
    return last_checkpoint(run, warn, fell_back)


def last_checkpoint(
    run: Run, warn: Callable[[str], None], fell_back: str = ""
) -> tuple[Checkpoint, str, str]:
    """The newest checkpoint that is whole, what it is called, and why it is not the best."""
    found = load_newest_checkpoint(run.path / "checkpoints", warn)
    return found, f"checkpoint of step {found.step:,}, the last", fell_back


def checkpoint_of_step(run: Run, step: int) -> Checkpoint:
    """The checkpoint of a step; DataError where there is none."""
    found = _steps(run)
    if step not in found:
        there = ", ".join(f"{each}" for each in found)
        raise DataError(f"the run {run.path} has no checkpoint of step {step}; there are {there}")
    return load_checkpoint(found[step])


def _steps(run: Run) -> dict[int, Path]:
    return {step_of(path): run.path / "checkpoints" / path.name for path in run.checkpoints}


def _best(run: Run) -> tuple[int | None, str]:
    """Step and measure of the best value; run.json has it from the end of a run on."""
    best: Any = run.info.best and asdict(run.info.best)
    if run.info.status == "running":
        states = map(peek_state, reversed(run.checkpoints))
        best = next((state.get("best") for state in states if state), None)
    if not isinstance(best, dict) or type(best.get("step")) is not int:
        return None, ""
    value = best.get("value")
    shown = f" {value:.5g}" if isinstance(value, (int, float)) else ""
    return best["step"], f"{best.get('name', 'its value')}{shown}"
