"""Finding what a run saved: which checkpoint of which run, its configuration, its model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..backend import default_dtype
from ..config.components import build
from ..config.load import load_config
from ..config.schema import Config
from ..errors import ConfigError, DataError
from ..nn import Module
from ..random import get_rng_state, manual_seed, set_rng_state
from ..runs.checkpoint import (
    MANIFEST,
    Checkpoint,
    load_checkpoint,
    load_newest_checkpoint,
    peek_state,
)
from ..runs.record import Run
from ..train.model_state import load_model_arrays

__all__ = ["Saved", "best_checkpoint", "read_saved", "saved_model"]

_STEP = re.compile(r"step-\d+")


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read and checked, and the configuration it belongs to.

    Attributes:
        run: the run it was taken from; None for a checkpoint directory alone.
        config: every value of the run.
        checkpoint: arrays and state.
        chosen: which checkpoint it is, in words: `checkpoint of step 300, the best (...)`.
        fell_back: why it is not the best one, "" where nothing else was to be expected.
    """

    run: Run | None
    config: Config
    checkpoint: Checkpoint
    chosen: str
    fell_back: str = ""


def read_saved(
    path: str | os.PathLike[str],
    checkpoint: str | int = "best",
    *,
    trust: bool,
    warn: Callable[[str], None],
) -> Saved:
    """The checkpoint `best`, `last` or of a step of the run at `path`, or `path` if it is one.

    `best` is the step that run.json names, or the newest checkpoint where the run has come to no
    end; and the last one where that was not kept, is damaged, or nothing was measured; the result
    says so. `warn` gets the text of a damaged checkpoint that is passed over.

    Raises ConfigError for import paths without `trust` or another `checkpoint`, DataError for what
    is missing or damaged.
    """
    given = Path(os.path.expanduser(path))
    if isinstance(checkpoint, str) and checkpoint not in ("best", "last"):
        if not checkpoint.isascii() or not checkpoint.isdigit() or len(checkpoint) > 18:
            raise ConfigError(f"checkpoint: expected best, last or a step, got {checkpoint!r:.40}")
        checkpoint = int(checkpoint)
    if _STEP.fullmatch(given.name) or os.path.isfile(given / MANIFEST):
        if checkpoint != "best":
            raise ConfigError(
                f"{path} is one checkpoint; name its run to choose checkpoint {checkpoint}"
            )
        found = load_checkpoint(given)
        return Saved(None, _config(given, trust), found, f"checkpoint of step {found.step:,}")
    run = Run.read(given)
    config = _config(run.path, trust)
    if not run.checkpoints:
        raise DataError(f"the run {run.path} has no checkpoint; its status is {run.info.status}")
    if isinstance(checkpoint, int):
        found = load_checkpoint(_of_step(run, checkpoint))
        return Saved(run, config, found, f"checkpoint of step {found.step:,}")
    if checkpoint == "best":
        return Saved(run, config, *best_checkpoint(run, warn))
    return Saved(run, config, *_last(run, warn))


def best_checkpoint(run: Run, warn: Callable[[str], None]) -> tuple[Checkpoint, str, str]:
    """The checkpoint whose model a run is known by, what it is called, and why it is not the best.

    All that tells of a trained model takes this one, so that all tell of the same.
    """
    step, measured = _best(run)
    if step is None:
        return _last(run, warn)
    fell_back = f"the best, of step {step:,} ({measured}), was not kept"
    if step in _steps(run):
        try:
            found = load_checkpoint(_steps(run)[step])
            return found, f"checkpoint of step {step:,}, the best ({measured})", ""
        except DataError as error:
            fell_back = f"the best, of step {step:,}, cannot be used ({error})"
    return _last(run, warn, fell_back)


def _last(
    run: Run, warn: Callable[[str], None], fell_back: str = ""
) -> tuple[Checkpoint, str, str]:
    found = load_newest_checkpoint(run.path / "checkpoints", warn)
    return found, f"checkpoint of step {found.step:,}, the last", fell_back


def saved_model(saved: Saved, model: Module | None = None, **sizes: int | None) -> Module:
    """The model with the values of its checkpoint, on the CPU, in evaluation mode.

    `sizes` are what the configuration left to the data (a resolved one has them). Random numbers
    of this process go on as if nothing had been built. DataError where the values do not fit.
    """
    config, checkpoint = saved.config, saved.checkpoint
    before = get_rng_state()
    manual_seed(config.seed)  # a model may hold random values that are no parameters
    try:
        with default_dtype(config.dtype):
            known = {name: size for name, size in sizes.items() if size is not None}
            module = build(config.model, **known) if model is None else model
            if not isinstance(module, Module):
                made = type(module).__name__
                raise ConfigError(f"model {config.model.type} made a {made}; expected a Module")
            module.to(config.dtype)
    finally:
        set_rng_state(before)
    try:
        load_model_arrays(module, checkpoint.model)
    except RuntimeError as error:
        raise DataError(f"{checkpoint.path} does not fit the model: {error}") from error
    return module.eval()


def _config(directory: Path, trust: bool) -> Config:
    # Nothing is trained here, so no compiler need be there.
    return load_config(directory / "config.yaml", ["train.compile=off"], trust=trust)


def _steps(run: Run) -> dict[int, Path]:
    found = {}
    for path in run.checkpoints:
        digits = re.search(r"\d+", path.name)
        assert digits is not None  # list_checkpoints goes by this name
        found[int(digits[0])] = run.path / "checkpoints" / path.name
    return found


def _of_step(run: Run, step: int) -> Path:
    found = _steps(run)
    if step not in found:
        there = ", ".join(f"{each}" for each in found)
        raise DataError(f"the run {run.path} has no checkpoint of step {step}; there are {there}")
    return found[step]


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
