"""Finding what a run saved: which checkpoint of which run, and its configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..config.load import load_config
from ..config.schema import Config
from ..errors import ConfigError, DataError
from ..runs.checkpoint import MANIFEST, Checkpoint, load_checkpoint
from ..runs.record import Run

__all__ = ["Saved", "read_saved"]

_STEP = re.compile(r"step-\d+")


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read and checked, and the configuration it belongs to.

    Attributes:
        run: the run it was taken from; None for a checkpoint directory alone.
        config: every value of the run.
        checkpoint: arrays of the model, without those of the optimizer; state.
        chosen: which checkpoint it is, in words: `checkpoint of step 300, the best (...)`.
    """

    run: Run | None
    config: Config
    checkpoint: Checkpoint
    chosen: str


def read_saved(
    path: str | os.PathLike[str],
    checkpoint: str | int = "best",
    *,
    trust: bool,
    warn: Callable[[str], None],
) -> Saved:
    """The checkpoint `best`, `last` or of a step of the run at `path`, or `path` if it is one.

    `best` is the step that run.json names, or the newest checkpoint where the run has come to no
    end; and the last one where that was not kept, is damaged, or nothing was measured. `warn` gets
    the reason, and the text of a damaged checkpoint that is passed over.

    Raises ConfigError for import paths without `trust` or another `checkpoint`, DataError for what
    is missing or damaged.
    """
    directory = Path(os.path.expanduser(path))
    which = str(checkpoint)
    if not re.fullmatch("best|last|[0-9]{1,18}", which):
        raise ConfigError(f"checkpoint: expected best, last or a step, got {checkpoint!r:.40}")
    run, fell_back = None, ""
    if _STEP.fullmatch(directory.name) or os.path.isfile(directory / MANIFEST):
        if which != "best":
            raise ConfigError(
                f"{path} is one checkpoint; name its run to choose checkpoint {which}"
            )
        loaded = load_checkpoint(directory)
        chosen = f"checkpoint of step {loaded.step:,}"
    else:
        run = Run.read(directory)
        directory = run.path
    # Nothing is trained here, so no compiler need be there.
    config = load_config(directory / "config.yaml", ["train.compile=off"], trust=trust)
    if run is not None:
        if not run.checkpoints:
            status = run.info.status
            raise DataError(f"the run {run.path} has no checkpoint; its status is {status}")
        loaded, chosen, fell_back = run.checkpoint(which, warn)
    if fell_back:
        warn(f"{fell_back}; this is the {chosen}")
    return Saved(run, config, replace(loaded, optimizer={}), chosen)
