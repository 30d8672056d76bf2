"""Whether a configuration is that of a run that has begun: which settings may be others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .components import is_import_path
from .resolved import Setting, as_yaml, read_settings

__all__ = ["FREE", "FREE_TRAINED", "compare_configs"]

# What may be another after a resume: it does not change the mathematics of a step. The data
# themselves are compared, wherever they lie.
FREE = (
    "name", "run_dir", "base", "data.path", "data.cache", "train.duration", "train.max_time",
    "train.eval_every", "train.init_from", "log.", "checkpoint.", "callbacks", "device",
    "distributed.backend", "distributed.bucket_mb", "distributed.overlap", "distributed.warn_s",
    "distributed.timeout_s", "distributed.blas_threads", "distributed.share_gpu",
)  # fmt: skip
# And what a model that has been trained is used without.
FREE_TRAINED = (*FREE, "metrics", "optimizer", "schedule", "train")


def compare_configs(
    stored: str,
    now: str,
    path: Path,
    free: tuple[str, ...] = FREE,
    *,
    before: str = "the run",
    refused: str = "cannot be resumed: these settings have changed",
    way_out: str = "start a new run, or restore the settings; you can change duration, max_time, "
    "eval_every, log, checkpoint, callbacks, the location of files, and how the ranks communicate",
    file: Path | None = None,
) -> None:
    """ConfigError naming every setting that must be as it was in the run at `path`.

    Args:
        stored, now: resolved configurations, as YAML.
        path: of the run.
        free: the settings and sections that may be others.
        before: where `stored` is.
        refused: what is not done with the run, and why.
        way_out: what to do.
        file: that has `now`, where its lines are to be named; else what its comments name is.
    """
    if stored == now:
        return
    was, is_now = (read_settings(text, path / "config.yaml") for text in (stored, now))
    freely = tuple(f"{each.rstrip('.')}." for each in free)
    lines = []
    for key in dict.fromkeys([*was, *is_now]):
        old, new = (each[key].value if key in each else None for each in (was, is_now))
        if f"{key}.".startswith(freely) or _moved(old) == _moved(new):
            continue
        setting = is_now.get(key, Setting(None, ""))
        origin = setting.origin if file is None else f"{file}:{setting.line}"
        place = f" ({origin})" if key in is_now and origin not in ("", "default") else ""
        shown = (as_yaml(each[key].value) if key in each else "absent" for each in (was, is_now))
        lines.append("  {}: {} in {}, {} now{}".format(key, next(shown), before, *shown, place))
    if lines:
        raise ConfigError("\n".join([f"the run {path} {refused}", *lines, way_out]))


def _moved(value: Any) -> Any:
    """`value` with `/any/where/net.py:Net` as `net.py:Net`: a project may lie elsewhere now."""
    if isinstance(value, list):
        return [_moved(each) for each in value]
    if isinstance(value, dict):
        return {key: _moved(each) for key, each in value.items()}
    return value.rpartition("/")[2] if isinstance(value, str) and is_import_path(value) else value
