"""From a data component's arrays to what a run trains on: checked, split, standardised, cast.

The one rule that must never break is that validation and test rows stay unseen: the split depends
on the seed alone, and the statistics of the standardisation come from the training rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import ConfigError, DataError
from .dataset import ArrayDataset
from .split import split_rows

__all__ = ["Prepared", "Preprocessing", "cast", "check_finite", "prepare"]


@dataclass(frozen=True)
class Preprocessing:
    """The affine map of the inputs, (x - mean) / scale per feature; float64 arrays.

    A model trained behind it needs it wherever it is used: it belongs in the checkpoint.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def identity(cls, x: NDArray[Any], origin: str = "data") -> Preprocessing:
        """Leaves rows like those of `x` as they are."""
        return cls(np.zeros(x.shape[1:]), np.ones(x.shape[1:]))

    @classmethod
    def standardizing(cls, x: NDArray[Any], origin: str = "data") -> Preprocessing:
        """Gives the rows of `x` mean 0 and standard deviation 1 per feature.

        A feature that is constant in `x` is only shifted to 0: its scale is 1. DataError naming
        `origin` for values so large that these are not finite.
        """
        x = x.astype(np.float64, copy=False)
        lowest = x.min(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = x.mean(axis=0), x.std(axis=0)
        # By its extremes: rounding gives a constant 0.1 a standard deviation of 1e-17.
        constant = (lowest == x.max(axis=0)) | (std == 0.0)
        mean, std = np.where(constant, lowest, mean), np.where(constant, 1.0, std)
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise DataError(f"{origin}: input values are too large to standardise; rescale them")
        return cls(mean, std)

    @property
    def is_identity(self) -> bool:
        return not self.mean.any() and bool((self.scale == 1.0).all())

    def apply(self, x: NDArray[Any]) -> NDArray[Any]:
        """Raw inputs as the model wants them: `x` itself for the identity, else float64."""
        return x if self.is_identity else (x - self.mean) / self.scale

    def to_json(self) -> dict[str, Any]:
        """Nested lists that JSON keeps to the last bit."""
        return {"mean": self.mean.tolist(), "scale": self.scale.tolist()}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Preprocessing:
        return cls(np.array(state["mean"], np.float64), np.array(state["scale"], np.float64))


@dataclass(frozen=True)
class Prepared:
    """The parts of a run's data, ready for a DataLoader, and what a model must know of them.

    Attributes:
        train, val, test: arrays of the run's dtype, standardised; None where the split has none.
        preprocessing: the map from raw inputs to those of the parts.
        in_features: columns of the input, None unless there is one input of shape (n, columns).
        out_features: the number of classes, or the columns of a target of shape (n, columns).
        classes: the names of the classes; None for regression.
    """

    train: ArrayDataset
    val: ArrayDataset | None
    test: ArrayDataset | None
    preprocessing: Preprocessing
    in_features: int | None
    out_features: int | None
    classes: tuple[str, ...] | None


def prepare(
    data: ArrayDataset | tuple[Any, ...] | list[Any],
    *,
    split: Mapping[str, float] | None = None,
    standardize: bool = False,
    dtype: DTypeLike = np.float32,
    seed: int = 0,
    origin: str = "data",
    preprocessing: Preprocessing | None = None,
) -> Prepared:
    """Check what a data component returned, split it, standardise its input and cast it.

    Floats become `dtype`; integers and booleans become int64. A 1-d array of floats becomes a
    column of shape (n, 1), so that a loss never broadcasts (n,) against (n, 1). A 1-d target of
    integers is class codes from 0 up; targets to regress on are floats.

    Args:
        data: an `ArrayDataset`, or arrays (inputs..., target).
        split: fractions of the rows by part, `{"train": 0.8, "val": 0.1, "test": 0.1}`; None puts
            all in train. See `split_sizes`. Rows are assigned by a permutation that depends on
            the seed and keep their order within a part.
        standardize: give each input feature mean 0 and standard deviation 1 in the training part.
        dtype: of the floating-point arrays, float32 or float64.
        seed: of the run.
        origin: names the component in errors.
        preprocessing: apply this stored map instead of computing one (evaluation, prediction).

    Raises:
        DataError: not such arrays, no rows, NaN or infinite values, class codes out of range, a
            part without rows.
        ConfigError: fractions that are none, or `standardize` with more than one input.
    """
    dataset = _checked(data, origin)
    classes = _class_names(dataset, origin)
    inputs, target = dataset.inputs, dataset.target
    standardize = standardize if preprocessing is None else not preprocessing.is_identity
    if len(inputs) > 1 and standardize:
        raise ConfigError(
            f"{origin}: standardize works on one input array, this data has {len(inputs)}; "
            "standardise them in the component itself"
        )
    rows = split_rows(len(dataset), split, seed, origin)
    if preprocessing is None:
        make = Preprocessing.standardizing if standardize else Preprocessing.identity
        preprocessing = make(inputs[0][rows["train"]], origin)
    elif preprocessing.mean.shape != inputs[0].shape[1:]:
        raise DataError(
            f"{origin}: inputs have {inputs[0].shape[1:]} features a row, but the stored "
            f"preprocessing is for {preprocessing.mean.shape}"
        )

    def part(name: str) -> ArrayDataset:
        x, *others = dataset[rows[name]]
        with np.errstate(over="ignore"):  # cast refuses what overflows
            arrays = (preprocessing.apply(x), *others)
        return dataset.with_arrays(
            *(cast(a, dtype if a.dtype.kind == "f" else np.int64, origin) for a in arrays)
        )

    columns = int(target.shape[1]) if target.ndim == 2 else None
    return Prepared(
        train=part("train"),
        val=part("val") if "val" in rows else None,
        test=part("test") if "test" in rows else None,
        preprocessing=preprocessing,
        in_features=inputs[0].shape[1] if len(inputs) == 1 and inputs[0].ndim == 2 else None,
        out_features=columns if classes is None else len(classes),
        classes=classes,
    )


def _checked(data: Any, origin: str) -> ArrayDataset:
    """`data` as an ArrayDataset with rows, a target, and finite values."""
    if isinstance(data, tuple | list):
        try:
            data = ArrayDataset(*data)
        except (TypeError, ValueError) as error:
            raise DataError(f"{origin}: {error}") from error
    if not isinstance(data, ArrayDataset):
        returned = "nothing" if data is None else f"a {type(data).__name__}"
        raise DataError(
            f"{origin} returned {returned}; expected arrays (inputs..., target) or an ArrayDataset"
        )
    dataset = data
    if not dataset.inputs:
        raise DataError(f"{origin} returned one array; expected at least an input and a target")
    shapes = ", ".join(str(array.shape) for array in dataset.arrays)
    if len(dataset) == 0:
        raise DataError(f"{origin}: the data set is empty; its arrays have shapes {shapes}")
    count = len(dataset.inputs)
    names = ["input"] if count == 1 else [f"input {i}" for i in range(count)]
    names += ["target", "weight"]
    for i, (name, array) in enumerate(zip(names, dataset.arrays, strict=False)):
        check_finite(array, f"{origin}: {name}", None if i else dataset.feature_names)
    if any(0 in array.shape[1:] for array in dataset.arrays):
        raise DataError(f"{origin}: an array has no columns; their shapes are {shapes}")
    columns = [a[:, None] if a.ndim == 1 and a.dtype.kind == "f" else a for a in dataset.arrays]
    return dataset.with_arrays(*columns[: count + 1], *dataset.arrays[count + 1 :])


def check_finite(array: NDArray[Any], name: str, columns: Sequence[str] | None = None) -> None:
    """DataError naming row and column of the first value that is not finite."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    bad = np.argwhere(~np.isfinite(array))
    row, *rest = (int(i) for i in bad[0])
    where = f"row {row}"
    if columns is not None and len(rest) == 1:
        where += f', column "{columns[rest[0]]}"'
    elif rest:
        where += f", column {rest[0] if len(rest) == 1 else tuple(rest)}"
    more = f" ({len(bad) - 1} more such values)" if len(bad) > 1 else ""
    raise DataError(
        f"{name} {where} is {array[tuple(bad[0])]}, expected a finite number{more}\n"
        "hint: rows count from 0; fill such values in or leave the rows out"
    )


def _class_names(dataset: ArrayDataset, origin: str) -> tuple[str, ...] | None:
    """The names of the classes: given, or the codes themselves for a 1-d target of integers."""
    target = dataset.target
    if dataset.classes is not None or target.dtype.kind == "f" or target.ndim > 1:
        return dataset.classes
    low, high = int(target.min()), int(target.max())
    # Years or counts would silently ask for a model with two thousand outputs.
    if low < 0 or high >= max(len(target), 2):
        raise DataError(
            f"{origin}: the target holds integers from {low} to {high} in {len(target)} rows; "
            "integers are class codes 0, 1, 2 ..., floats are values to regress on\n"
            "hint: make them floats, or name all classes: ArrayDataset(x, y, classes=[...])"
        )
    return tuple(str(code) for code in range(high + 1))


def cast(array: NDArray[Any], dtype: DTypeLike, origin: str) -> NDArray[Any]:
    """`array` as `dtype`; DataError for values that do not fit."""
    dtype = np.dtype(dtype)
    if array.dtype == np.uint64 and dtype == np.int64 and array.max(initial=0) > 2**63 - 1:
        raise DataError(f"{origin}: the integer {array.max()} does not fit int64")
    with np.errstate(over="ignore"):
        result: NDArray[Any] = array.astype(dtype, copy=False)
    if not np.isfinite(result).all():
        raise DataError(
            f"{origin}: values up to {np.abs(array).max():g} do not fit {dtype}; rescale the data, "
            "or train with dtype: float64"
        )
    return result
