"""What a run saved: one of its checkpoints, its configuration, and what its model takes and gives.

Column names, the standardisation, the kinds of the arrays and the names of the classes belong to a
model as much as its weights do: with them a table of raw values is enough for a prediction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    InstanceOf,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from ..config.load import load_config, load_sweep
from ..config.resolved import resolved_yaml
from ..config.same_run import FREE_TRAINED, compare_configs
from ..config.schema import Config
from ..data import Encoder, Preprocessing
from ..errors import ConfigError, DataError
from ..runs.checkpoint import MANIFEST, Checkpoint, load_checkpoint
from ..runs.members import (
    Of,
    Result,
    best_setting,
    check_members,
    last_of_each,
    models,
    read_members,
)
from ..runs.record import Best, Run
from ..words import number, plural

__all__ = ["Saved", "Signature", "read_all", "read_saved"]

Size = Annotated[StrictInt, Field(ge=1)]
Names = tuple[StrictStr, ...]


class Input(BaseModel):
    """The shape of one row of an input array, and its dtype."""

    shape: tuple[Size, ...]
    dtype: Literal["float32", "float64", "int64"]


def _encoder(state: Any) -> Encoder | None:
    return None if state is None else Encoder.from_json(state)


class Signature(BaseModel):
    """The inputs that a model takes and the meaning of what it gives.

    Attributes:
        inputs: shape of one row and dtype of each input array.
        preprocessing: what is applied to the first input.
        table: how raw columns become the inputs; None where the data were arrays.
        feature_names: of the columns of the first input, None where they have no names.
        target_name: what is predicted, None where it has no name.
        out_features: columns of the target, or the number of classes; None for other shapes.
        classes: what the columns of scores stand for, None for a regression.
    """

    inputs: tuple[Input, ...] = Field(min_length=1)
    preprocessing: Annotated[InstanceOf[Preprocessing], BeforeValidator(Preprocessing.from_json)]
    table: Annotated[InstanceOf[Encoder] | None, BeforeValidator(_encoder)] = None
    feature_names: Names | None
    target_name: StrictStr | None
    out_features: Size | None
    classes: Names | None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """What `train.assembly.data_state` wrote; DataError for anything else."""
        try:
            return cls.model_validate(checkpoint.state)
        except ValidationError as error:
            detail = min(error.errors(), key=lambda each: each["type"] != "missing")
            key = ".".join(map(str, detail["loc"])) or "the data"
            what = f"in its state, {key}: {detail['msg']}"
            if detail["type"] == "missing":
                what = f"its state has no {key}"
        except (KeyError, TypeError, OverflowError) as error:  # of from_json
            what = f"in its state, preprocessing or table: {error!r:.80}"
        raise DataError(f"damaged checkpoint {checkpoint.path}: {what}")

    @model_validator(mode="after")
    def _check(self) -> Self:
        shape = self.inputs[0].shape
        mean, scale = self.preprocessing.mean, self.preprocessing.scale
        if mean.shape != shape or scale.shape != shape:
            raise ValueError(f"preprocessing is for {mean.shape}, but a row has shape {shape}")
        if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError("preprocessing is not finite")
        if self.feature_names is not None and (len(self.feature_names),) != shape:
            raise ValueError(f"{len(self.feature_names)} feature_names name a row of shape {shape}")
        if self.table is not None and self.table.feature_names != self.feature_names:
            raise ValueError("table makes other features than feature_names")
        if self.classes is not None and self.out_features != len(self.classes):
            raise ValueError(f"{self.out_features} out_features, {len(self.classes)} classes")
        return self

    @property
    def in_features(self) -> int | None:
        """Columns of the input, None unless there is one input of shape (n, columns)."""
        if self.table is not None:
            return self.table.in_features
        shape = self.inputs[0].shape
        return shape[0] if len(self.inputs) == len(shape) == 1 else None

    @property
    def categories(self) -> tuple[int, ...] | None:
        """For each embedded column its number of codes; None where there are none."""
        return None if self.table is None else self.table.categories or None

    @property
    def target_names(self) -> tuple[str, ...] | None:
        """What is predicted, one name a column; None where it has no name."""
        name, count = self.target_name, self.out_features
        if name is None:
            return None
        if self.classes is not None or count is None or not 1 < count < 10_000:
            return (name,)
        parts = tuple(name.split(", "))  # as data components name several
        return parts if len(parts) == count else tuple(f"{name}_{i}" for i in range(count))


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read and checked, and the configuration it belongs to.

    Attributes:
        run: the run it was taken from; None for a checkpoint directory alone.
        config: every value of the run.
        checkpoint: arrays of the model, without those of the optimizer; state.
        chosen: which checkpoint it is, in words: `checkpoint of step 300, the best (...)`.
        result: of a member of a sweep; None for a run.
    """

    run: Run | None
    config: Config
    checkpoint: Checkpoint
    chosen: str
    result: Result | None = None


def read_saved(
    path: str | os.PathLike[str],
    checkpoint: str | int = "best",
    *,
    trust: bool,
    warn: Callable[[str], None],
    member: str | int | None = None,
) -> Saved:
    """The checkpoint `best`, `last` or of a step of the run at `path`, or `path` if it is one.

    `best` is the step that run.json names, or the newest checkpoint where the run has come to no
    end; and the last one where that was not kept, is damaged, or nothing was measured. `warn` gets
    the reason, and the text of a damaged checkpoint that is passed over.

    Of a sweep the model of a `member`: `best` (where none is given) or its number.

    Raises ConfigError for import paths without `trust`, another `checkpoint` and a `member` of what
    is no sweep, DataError for what is missing or damaged.
    """
    directory, which = Path(os.path.expanduser(path)), str(checkpoint)
    if not re.fullmatch("best|last|[0-9]{1,18}", which):
        raise ConfigError(f"checkpoint: expected best, last or a step, got {checkpoint!r:.40}")
    # Nothing is trained here, so no compiler need be there.
    off = ["train.compile=off"]
    if re.fullmatch(r"step-\d+", directory.name) or os.path.isfile(directory / MANIFEST):
        if which != "best":
            raise ConfigError(
                f"{path} is one checkpoint; name its run to choose checkpoint {which}"
            )
        if member is not None:
            raise ConfigError(f"{path} is one checkpoint, and no sweep: it has no members")
        run, loaded, chosen, fell_back = None, load_checkpoint(directory), "", ""
        config = load_config(directory / "config.yaml", off, trust=trust)
    else:
        run = Run.read(directory)
        if run.info.sweep:
            return _read_member(run, which, "best" if member is None else str(member), trust)
        if member is not None:
            raise ConfigError(f"the run {run.path} is one run, and no sweep: it has no members")
        config = load_config(run.path / "config.yaml", off, trust=trust)
        if not run.checkpoints:
            status = run.status
            raise DataError(f"the run {run.path} has no checkpoint; its status is {status}")
        loaded, chosen, fell_back = run.checkpoint(which, warn)
        if loaded.config_text != run.config_text:
            way_out = f"restore them; {loaded.path / 'config.yaml'} is as it was"
            _compare(loaded.config_text, config, run.path, way_out)
    if fell_back:
        warn(f"{fell_back}; this is the {chosen}")
    chosen = chosen or f"checkpoint of step {loaded.step:,}"
    return Saved(run, config, replace(loaded, optimizer={}), chosen)


def _compare(text: str, config: Config, path: Path, way_out: str = "restore them") -> None:
    """ConfigError where the configuration of a run is not the one that its model was trained with.

    text: that one.
    """
    compare_configs(
        text,
        resolved_yaml(config),
        path,
        FREE_TRAINED,
        before="what was trained",
        refused="was edited since its training: its config.yaml has other settings",
        way_out=way_out,
    )


def read_all(path: str | os.PathLike[str], *, trust: bool, member: str = "all") -> list[Saved]:
    """All members of the sweep at `path` that have finished, in order; or of its `best-setting`.

    Raises ConfigError for import paths without `trust` and a run that is no sweep, DataError for
    what is missing or damaged, and where fewer than two members have finished.
    """
    run = Run.read(Path(os.path.expanduser(path)))
    if not run.info.sweep:
        raise ConfigError(f"the run {run.path} is one run, and no sweep: it has no members")
    results, data, its = read_members(run.path)
    last = last_of_each(results).values()
    ended, whose = [r for r in last if r.status == "finished"], f"the sweep {run.path}"
    if member == "best-setting" and ended:
        keep = _saved(run, ended[:1], data, its, trust)[0].config.checkpoint
        chosen = best_setting(last, str(keep.monitor), 1 if keep.mode == "max" else -1)
        ended = [r for r in ended if r.setting == chosen]
        whose = f"the best setting of {whose}"
    if len(ended) < 2:
        raise DataError(
            f"of {whose} {plural(len(ended), 'member')} finished; a mean and its spread take two "
            "or more"
        )
    return _saved(run, ended, data, its, trust)


def _read_member(run: Run, checkpoint: str, member: str, trust: bool) -> Saved:
    """The best member of a sweep, or one by its number."""
    if checkpoint != "best":
        raise ConfigError(
            f"checkpoint {checkpoint}: {run.path} is a sweep, and of each member the best model "
            "alone is kept; choose a member"
        )
    if not re.fullmatch("best|[0-9]{1,18}", member):
        raise ConfigError(f"member: expected best or a number, got {member!r:.40}")
    results, data, of = read_members(run.path)
    last = last_of_each(results)
    if member == "best" and run.info.best_member is None:
        why = (
            "no member has finished with a value of what is monitored"
            if run.info.status == "finished"
            else f"its status is {run.status}; microtrain resume {run.path}"
        )
        raise DataError(f"the sweep {run.path} has no best member: {why}")
    chosen = run.info.best_member if member == "best" else int(member)
    assert chosen is not None
    result = last.get(chosen)
    if result is None or result.status != "finished":
        became = "is not there, or was not trained yet"
        if result is not None:
            became = {
                "paused": f"was paused at step {result.step:,}: other settings were better",
                "diverged": f"has diverged: {result.error}",
            }.get(result.status, f"is {result.status}")
        ended = [n for n, each in last.items() if each.status == "finished"]
        shown = ", ".join(map(str, ended[:10])) + ", ..." * (len(ended) > 10)
        raise DataError(
            f"the sweep {run.path} has no model of member {chosen}: it {became}; "
            f"finished: {shown or 'none'}"
        )
    saved = _saved(run, [result], data, of, trust)[0]
    if member == "best" and run.info.best != (result.best and Best(**result.best)):
        raise DataError(
            f"{run.path / 'run.json'} says that member {chosen} is the best, with {run.info.best}, "
            f"and the member has {result.best}"
        )
    return saved


def _saved(
    run: Run, results: list[Result], data: dict[str, Any], of: Of, trust: bool
) -> list[Saved]:
    """Members with their own configurations, models and data."""
    # Nothing is trained here, so no compiler need be there.
    sweep = load_sweep(run.path / "config.yaml", ["train.compile=off"], trust=trust)
    check_members(of, Of(run.info.id, resolved_yaml(sweep.config)), run.path)
    found = sweep.members
    arrays = models(run.path, [result.number for result in results])
    members = []
    for result in results:
        if result.number >= len(found):
            raise DataError(
                f"the sweep {run.path} is damaged: its config.yaml describes "
                f"{plural(len(found), 'member')}, and there is a member {result.number}"
            )
        config, best, step = found[result.number].config, result.best, result.step
        words = f"member {result.number}"
        if best is not None and config.checkpoint.keep_best > 0:
            step = best["step"]
            best_of_all = ", the best" * (result.number == run.info.best_member)
            words += f"{best_of_all} ({best['name']} {number(best['value'])})"
        state, model = data.get(result.data, {}), arrays[result.number]
        checkpoint = Checkpoint(run.path, step, model, {}, state, run.config_text)
        members.append(Saved(run, config, checkpoint, words, result))
    return members
