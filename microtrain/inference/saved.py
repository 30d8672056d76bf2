"""What a run saved: one of its checkpoints, its configuration, and what its model takes and gives.

Column names, the standardization, the kinds of the arrays and the names of the classes belong to a
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

from ..config.load import load_config
from ..config.resolved import FREE_TRAINED, compare_configs, resolved_yaml
from ..config.schema import Config
from ..data import Encoder, Preprocessing, TargetScaling
from ..errors import ConfigError, DataError
from ..runs.checkpoint import MANIFEST, Checkpoint, load_checkpoint
from ..runs.run import Run

Size = Annotated[StrictInt, Field(ge=1)]
Names = tuple[StrictStr, ...]


class Input(BaseModel):
    """The shape of one row of an input array, and its dtype."""

    shape: tuple[Size, ...]
    dtype: Literal["float32", "float64", "int64"]


def _maybe(kind: Any) -> BeforeValidator:
    """What was written by `to_json` of a kind, or nothing."""
    return BeforeValidator(lambda state: None if state is None else kind.from_json(state))


class Signature(BaseModel):
    """The inputs that a model takes and the meaning of what it gives.

    Attributes:
        inputs: shape of one row and dtype of each input array.
        preprocessing: what is applied to the first input.
        target_scaling: what was applied to the target; None: nothing.
        table: how raw columns become the inputs; None where the data were arrays.
        feature_names: of the columns of the first input, None where they have no names.
        target_name: what is predicted, None where it has no name.
        out_features: columns of the target, or the number of classes; None for other shapes.
        classes: what the columns of scores stand for, None for a regression.
    """

    inputs: tuple[Input, ...] = Field(min_length=1)
    preprocessing: Annotated[InstanceOf[Preprocessing], BeforeValidator(Preprocessing.from_json)]
    target_scaling: Annotated[InstanceOf[TargetScaling] | None, _maybe(TargetScaling)] = None
    table: Annotated[InstanceOf[Encoder] | None, _maybe(Encoder)] = None
    feature_names: Names | None
    target_name: StrictStr | None
    out_features: Size | None
    classes: Names | None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """What `train.run_data.data_state` wrote; DataError for anything else."""
        try:
            return cls.model_validate(checkpoint.state)
        except ValidationError as error:
            detail = min(error.errors(), key=lambda each: each["type"] != "missing")
            key = ".".join(map(str, detail["loc"])) or "the data"
            what = f"in its state, {key}: {detail['msg']}"
            if detail["type"] == "missing":
                what = f"its state has no {key}"
        except (KeyError, TypeError, OverflowError) as error:  # of from_json
            what = f"in its state, target_scaling, preprocessing or table: {error!r:.80}"
        raise DataError(f"damaged checkpoint {checkpoint.path}: {what}")

    @model_validator(mode="after")
    def _check(self) -> Self:
        shape = self.inputs[0].shape
        mean, scale = self.preprocessing.mean, self.preprocessing.scale
        if mean.shape != shape or scale.shape != shape:
            raise ValueError(f"preprocessing is for {mean.shape}, but a row has shape {shape}")
        maps = {"preprocessing": self.preprocessing}
        if self.target_scaling is not None:
            maps["target_scaling"] = self.target_scaling.affine
        for name, each in maps.items():
            finite = np.isfinite(each.mean).all() and np.isfinite(each.scale).all()
            if not (finite and (each.scale > 0).all()):
                raise ValueError(f"{name} is not finite")
        if self.feature_names is not None and (len(self.feature_names),) != shape:
            raise ValueError(f"{len(self.feature_names)} feature_names name a row of shape {shape}")
        if self.table is not None and self.table.feature_names != self.feature_names:
            raise ValueError("table makes different features from feature_names")
        if self.classes is not None and self.out_features != len(self.classes):
            raise ValueError(f"{self.out_features} out_features, {len(self.classes)} classes")
        return self

    @property
    def encoder(self) -> Encoder | None:
        """How columns, found by their names, become the inputs; None where they have no names."""
        if self.table is None and self.feature_names is not None and len(self.inputs) == 1:
            return Encoder.of_numbers(self.feature_names)
        return self.table

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

    Of a sweep it is that of its best member.

    Raises ConfigError for import paths without `trust` and another `checkpoint`, DataError for what
    is missing or damaged.
    """
    directory, which = Path(os.path.expanduser(path)), str(checkpoint)
    if not re.fullmatch("best|last|[0-9]{1,18}", which):
        raise ConfigError(f"checkpoint: expected best, last or a step, got {checkpoint!r:.40}")
    # Nothing is trained here, so no compiler need be there.
    off = ["train.compile=off"]
    if re.fullmatch(r"step-\d+", directory.name) or os.path.isfile(directory / MANIFEST):
        if which != "best":
            raise ConfigError(f"{path} is one checkpoint; name its run to choose {which}")
        run, loaded, chosen, fell_back = None, load_checkpoint(directory), "", ""
        config = load_config(directory / "config.yaml", off, trust=trust)
    else:
        run = Run.read(directory).one()
        config = load_config(run.path / "config.yaml", off, trust=trust)
        if not run.checkpoints:
            status = run.status
            raise DataError(f"the run {run.path} has no checkpoint; its status is {status}")
        loaded, chosen, fell_back = run.checkpoint(which, warn)
        if loaded.config_text != run.config_text:
            compare_configs(
                loaded.config_text,
                resolved_yaml(config),
                run.path,
                FREE_TRAINED,
                before="what was trained",
                refused="was edited after its training: its config.yaml has different settings",
                way_out=f"restore them; {loaded.path / 'config.yaml'} is as it was",
            )
    if fell_back:
        warn(f"{fell_back}; this is the {chosen}")
    chosen = chosen or f"checkpoint of step {loaded.step:,}"
    return Saved(run, config, replace(loaded, optimizer={}), chosen)
