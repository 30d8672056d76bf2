"""What a model takes and gives, as a checkpoint stores it: enough to use it without its data.

Column names, the standardisation, the kinds of the arrays and the names of the classes belong to a
model as much as its weights do: with them a table of raw values is enough for a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data import Prepared, Preprocessing
from ..errors import DataError
from ..train.parts import data_hash

__all__ = ["Signature", "data_state"]


def data_state(data: Prepared) -> dict[str, Any]:
    """What a checkpoint's state.json holds of the data a model was trained on."""
    train = data.train
    return {
        "preprocessing": data.preprocessing.to_json(),
        "classes": None if data.classes is None else list(data.classes),
        "feature_names": None if train.feature_names is None else list(train.feature_names),
        "target_name": train.target_name,
        "out_features": data.out_features,
        "inputs": [
            {"shape": list(array.shape[1:]), "dtype": array.dtype.name}
            for array in train.arrays[:-1]
        ],
        "data_hash": data_hash(data),
    }


@dataclass(frozen=True)
class Signature:
    """The inputs that a model takes and the meaning of what it gives.

    Attributes:
        inputs: shape of one row and dtype of each input array.
        preprocessing: what is applied to the first input.
        feature_names: of the columns of the first input, None where they have no names.
        target_names: what is predicted, one name a column, None where it has no name.
        out_features: columns of the target, or the number of classes; None for other shapes.
        classes: what the columns of scores stand for, None for a regression.
    """

    inputs: tuple[tuple[tuple[int, ...], str], ...]
    preprocessing: Preprocessing
    feature_names: tuple[str, ...] | None
    target_names: tuple[str, ...] | None
    out_features: int | None
    classes: tuple[str, ...] | None

    @classmethod
    def of(cls, state: Mapping[str, Any], origin: object) -> Signature:
        """What `data_state` wrote; DataError naming `origin` where it is something else."""
        try:
            found = cls(
                inputs=tuple(_input(each) for each in state["inputs"]),
                preprocessing=Preprocessing.from_json(state["preprocessing"]),
                feature_names=_texts(state["feature_names"], "feature_names"),
                target_names=_target_names(state),
                out_features=state["out_features"],
                classes=_texts(state["classes"], "classes"),
            )
            found._check()
        except KeyError as error:
            raise DataError(f"damaged checkpoint {origin}: its state has no {error}") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"damaged checkpoint {origin}: in its state, {error}") from error
        return found

    def _check(self) -> None:
        if not self.inputs:
            raise ValueError("there are no inputs")
        shape = self.inputs[0][0]
        mean, scale = self.preprocessing.mean, self.preprocessing.scale
        if mean.shape != shape or scale.shape != shape:
            raise ValueError(f"preprocessing is for {mean.shape}, but a row has shape {shape}")
        if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError("preprocessing is not finite")
        if self.feature_names is not None and (len(self.feature_names),) != shape:
            raise ValueError(f"{len(self.feature_names)} feature_names name a row of shape {shape}")
        count = self.out_features
        if count is not None and (type(count) is not int or count < 1):
            raise ValueError(f"out_features is {count!r:.40}")
        if self.classes is not None and count != len(self.classes):
            raise ValueError(f"out_features is {count}, but there are {len(self.classes)} classes")


def _input(value: Any) -> tuple[tuple[int, ...], str]:
    shape, dtype = value["shape"], value["dtype"]
    if not isinstance(shape, list) or any(type(n) is not int or n < 1 for n in shape):
        raise ValueError(f"the shape of an input is {shape!r}")
    if dtype not in ("float32", "float64", "int64"):
        raise ValueError(f"the dtype of an input is {dtype!r}")
    return tuple(shape), dtype


def _target_names(state: Mapping[str, Any]) -> tuple[str, ...] | None:
    name, count = state["target_name"], state["out_features"]
    if name is None:
        return None
    (name,) = _texts([name], "target_name") or ("",)
    if state["classes"] is not None or type(count) is not int or not 1 < count < 10_000:
        return (name,)
    parts = tuple(name.split(", "))  # as data components name several
    return parts if len(parts) == count else tuple(f"{name}_{i}" for i in range(count))


def _texts(value: Any, name: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{name} is {value!r:.60}")
    return tuple(value)
