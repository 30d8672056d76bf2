"""Continuing a run: which one, whether it is the same run, and where it goes on.

Rank 0 finds and reads; what it found, or its error, reaches all ranks together.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.components import is_import_path
from ..config.resolved import as_yaml
from ..config.schema import Config
from ..config.stored import AS_SEED, read_settings
from ..distributed.agreement import from_root
from ..errors import ConfigError, DataError, LaunchError
from ..files import reason, remove
from ..runs.checkpoint import (
    Checkpoint,
    OtherFormat,
    list_checkpoints,
    load_newest_checkpoint,
    step_of,
)
from ..runs.record import Run, newest_run
from ..runs.stored_state import check_run
from .wishes import STOP_FILE

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator
    from .trainer import Trainer

__all__ = ["choose_run", "compare_configs", "go_on", "resume_point", "split_as_then", "take_up"]

# What may be another after a resume: it does not change the mathematics of a step. The data
# themselves are compared, wherever they lie.
FREE = (
    "name", "run_dir", "base", "data.path", "train.duration", "train.max_time", "train.eval_every",
    "train.init_from", "log.", "checkpoint.", "callbacks", "device",
    "distributed.backend", "distributed.bucket_mb", "distributed.overlap", "distributed.warn_s",
    "distributed.timeout_s", "distributed.blas_threads", "distributed.share_gpu",
)  # fmt: skip


Choice = tuple[Path | None, str, int | None]


def choose_run(config: Config, wish: str | os.PathLike[str] | None, comm: Communicator) -> Choice:
    """The run directory to go on with, what to say of it, and an exit code if none is needed.

    Args:
        config: of the run that is asked for.
        wish: None for a new run, `auto` for the newest of this name if there is one, or a path.
        comm: whose first rank looks, for all.

    Raises DataError on every rank where a run cannot be read.
    """
    return from_root(comm, lambda: _chosen(config, wish))


def _chosen(config: Config, wish: str | os.PathLike[str] | None) -> Choice:
    if wish is None:
        return None, "", None
    if wish == "auto":
        try:
            found = newest_run(Path(os.path.expanduser(config.run_dir)) / config.name)
        except OSError as error:
            raise LaunchError(f"cannot look for runs to go on with: {reason(error)}") from error
        if found is None:
            return None, f"no run of {config.name} in {config.run_dir} yet: a new one begins", None
    else:
        found = Path(wish)
    run = Run.read(found)
    if run.info.status == "finished" and _reached(run, config):
        return None, f"the run {run.path} has finished; nothing is left to do", 0
    return run.path, "", None


def _reached(run: Run, config: Config) -> bool:
    """Whether a finished run has done what `config` asks for; a longer duration goes on."""
    stored = read_settings(run.config_text, run.path / "config.yaml").get("train.duration")
    return stored is None or str(stored.value) == str(config.train.duration)


def resume_point(run: Run, trainer: Trainer) -> Checkpoint | None:
    """Where `run` goes on under the configuration of `trainer`; None: at its beginning.

    Raises ConfigError for settings that make it another run, DataError for a run that diverged.
    """
    if run.info.status == "diverged":
        raise DataError(
            f"the run {run.path} has diverged and would do so again; start a new one with another "
            "optimizer.lr, or train.init_from one of its checkpoints"
        )
    compare_configs(run.config_text, trainer._config_text, run.path)
    place = run.path / "checkpoints"
    checkpoint = None
    try:
        groups, skipping = trainer.optimizer.param_groups, trainer.skips is not None
        checkpoint = load_newest_checkpoint(
            place, trainer.output.warn, lambda found: check_run(found, groups, skipping)
        )
    except OtherFormat:
        raise
    except DataError:  # none is whole: the run begins again
        pass
    for path in list_checkpoints(place):  # damaged ones must not pass for the newest again
        if checkpoint is None or step_of(path) > checkpoint.step:
            aside = path.with_name(f"damaged-{path.name.lstrip('.')}")
            with contextlib.suppress(OSError):
                remove(aside)  # of an earlier resume
            try:
                path.rename(aside)
            except OSError as error:
                raise LaunchError(f"cannot set aside the checkpoint {reason(error)}") from error
    return checkpoint


def split_as_then(config: Config, path: Path, comm: Communicator) -> None:
    """Let `config` draw the split as the run at `path` did, where that is of before it had a seed.

    Then it was drawn with `seed`. One that the user has given stays, and is compared. Collective.
    """

    def seed() -> Any:
        settings = read_settings(Run.read(path).config_text, path / "config.yaml")
        split = settings.get("data.split.seed")
        return split.value if split is not None and split.origin == AS_SEED else None

    found = from_root(comm, seed)
    if found is not None and "data.split.seed" not in config.origins:
        config.data.split.seed = found
        config.origins["data.split.seed"] = "the run, which drew it with seed"


def take_up(trainer: Trainer) -> Any:
    """(model, optimizer, state) of the newest checkpoint of the run, on rank 0; None: none."""
    run = trainer._run
    if run is None:
        return None
    checkpoint = resume_point(Run.read(run.path), trainer)
    return checkpoint and (checkpoint.model, checkpoint.optimizer, checkpoint.state)


def go_on(trainer: Trainer, state: dict[str, Any] | None) -> None:
    """Make the run directory ready to go on from a checkpoint, on rank 0.

    Only once the checkpoint is taken over: a run that cannot go on stays as it is.
    """
    run = trainer._run
    if run is None:
        return
    run.trim_metrics(0 if state is None else state["metrics_bytes"])
    step = trainer.step
    try:
        (run.path / STOP_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise LaunchError(f"the run would stop at once: {reason(error)}") from error
    before = run.info("resumed_at")
    before = before if isinstance(before, list) else []
    run.update(status="running", exit_code=None, error=None, resumed_at=[*before, step])
    run.write_config(trainer._config_text)
    trainer.output.say(f"resuming {run.path} after step {step:,}")
    ranks = run.info("ranks", trainer.comm.size)
    if ranks != trainer.comm.size and trainer.parts.shards is None:
        trainer.output.warn(
            f"the run began on {ranks} ranks and goes on on {trainer.comm.size}: equal to "
            "rounding; bit for bit it would be under distributed.reproducible: world"
        )
    if trainer.config.distributed.compression != "none":
        trainer.output.warn(
            "what compression has kept back for later steps is in no checkpoint: the run goes "
            "on, but not bit for bit"
        )
    trainer.output.say("")


def compare_configs(stored: str, now: str, path: Path) -> None:
    """ConfigError naming every setting that must be as it was in the run at `path`.

    Args:
        stored, now: resolved configurations, as YAML.
        path: where `stored` is.
    """
    before, after = (
        {key: setting.value for key, setting in read_settings(text, path / "config.yaml").items()}
        for text in (stored, now)
    )
    lines = [
        f"  {key}: {_shown(before, key)} in the run, {_shown(after, key)} now"
        for key in dict.fromkeys([*before, *after])
        if not key.startswith(FREE) and _moved(before.get(key)) != _moved(after.get(key))
    ]
    if lines:
        raise ConfigError(
            f"the run {path} cannot go on with other settings, it would be another run\n"
            + "\n".join(lines)
            + "\nstart a new run, or set them back; free to change are duration, max_time, "
            "eval_every, log, checkpoint, callbacks, where files lie, and how the ranks communicate"
        )


def _moved(value: Any) -> Any:
    """`value` with `/any/where/net.py:Net` as `net.py:Net`: a project may lie elsewhere now."""
    if isinstance(value, list):
        return [_moved(each) for each in value]
    if isinstance(value, dict):
        return {key: _moved(each) for key, each in value.items()}
    return value.rpartition("/")[2] if isinstance(value, str) and is_import_path(value) else value


def _shown(values: dict[str, Any], key: str) -> str:
    return as_yaml(values[key]) if key in values else "absent"
