"""Which checkpoint of a run is meant: the best, the last, or that of a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import DataError
from .checkpoint import Checkpoint, load_checkpoint, load_newest_checkpoint, step_of
from .record import Run

__all__ = ["best_checkpoint", "checkpoint_of_step", "last_checkpoint"]


def best_checkpoint(run: Run, warn: Callable[[str], None]) -> tuple[Checkpoint, str, str]:
    """The checkpoint whose model a run is known by, what it is called, and why it is not the best.

    All that tells of a trained model takes this one, so that all tell of the same.
    """
    best = run.best_so_far
    if best is None:
        return last_checkpoint(run, warn)
    measured = best.name if best.value is None else f"{best.name} {best.value:.5g}"
    fell_back = f"the best, of step {best.step:,} ({measured}), was not kept"
    if (path := _by_step(run).get(best.step)) is not None:
        try:
            checkpoint = load_checkpoint(path)
            return checkpoint, f"checkpoint of step {best.step:,}, the best ({measured})", ""
        except DataError as error:
            fell_back = f"the best, of step {best.step:,}, cannot be used ({error})"
    return last_checkpoint(run, warn, fell_back)


def last_checkpoint(
    run: Run, warn: Callable[[str], None], fell_back: str = ""
) -> tuple[Checkpoint, str, str]:
    """The newest checkpoint that is whole, what it is called, and why it is not the best."""
    checkpoint = load_newest_checkpoint(run.path / "checkpoints", warn)
    return checkpoint, f"checkpoint of step {checkpoint.step:,}, the last", fell_back


def checkpoint_of_step(run: Run, step: int) -> Checkpoint:
    """The checkpoint of a step; DataError where there is none."""
    paths = _by_step(run)
    if step not in paths:
        there = ", ".join(map(str, paths))
        raise DataError(f"the run {run.path} has no checkpoint of step {step}; there are {there}")
    return load_checkpoint(paths[step])


def _by_step(run: Run) -> dict[int, Path]:
    return {step_of(path): run.path / "checkpoints" / path.name for path in run.checkpoints}
