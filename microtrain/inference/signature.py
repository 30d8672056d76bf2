"""What a model takes and gives, as a checkpoint stores it: enough to use it without its data.

Column names, the standardisation, the kinds of the arrays and the names of the classes belong to a
model as much as its weights do: with them a table of raw values is enough for a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
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

from ..data import Preprocessing
from ..errors import DataError

__all__ = ["Signature"]

Size = Annotated[StrictInt, Field(ge=1)]
Names = tuple[StrictStr, ...]


class Input(BaseModel):
    """The shape of one row of an input array, and its dtype."""

    shape: tuple[Size, ...]
    dtype: Literal["float32", "float64", "int64"]


class Signature(BaseModel):
    """The inputs that a model takes and the meaning of what it gives.

    Attributes:
        inputs: shape of one row and dtype of each input array.
        preprocessing: what is applied to the first input.
        feature_names: of the columns of the first input, None where they have no names.
        target_name: what is predicted, None where it has no name.
        out_features: columns of the target, or the number of classes; None for other shapes.
        classes: what the columns of scores stand for, None for a regression.
    """

    inputs: tuple[Input, ...] = Field(min_length=1)
    preprocessing: Annotated[InstanceOf[Preprocessing], BeforeValidator(Preprocessing.from_json)]
    feature_names: Names | None
    target_name: StrictStr | None
    out_features: Size | None
    classes: Names | None

    @classmethod
    def of(cls, state: Mapping[str, Any], origin: object) -> Self:
        """What `train.build.data_state` wrote; DataError naming `origin` for anything else."""
        try:
            return cls.model_validate(state)
        except ValidationError as error:
            detail = min(error.errors(), key=lambda each: each["type"] != "missing")
            key = ".".join(map(str, detail["loc"]))
            what = f"in its state, {key or 'the data'}: {detail['msg']}"
            if detail["type"] == "missing":
                what = f"its state has no {key}"
        except (KeyError, TypeError, OverflowError) as error:  # of Preprocessing.from_json
            what = f"in its state, preprocessing: {error!r:.80}"
        raise DataError(f"damaged checkpoint {origin}: {what}")

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
        if self.classes is not None and self.out_features != len(self.classes):
            raise ValueError(f"{self.out_features} out_features, {len(self.classes)} classes")
        return self

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
