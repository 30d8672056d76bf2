"""What a data component returned: whether it can be trained on, split and cast; else why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...errors import ConfigError, DataError
from ..dataset import ArrayDataset
from ..rows import layout, targets
from ..source import Source, blocks
from ..tables.frame import missing
from ..tables.table import Table
from .standardize import Preprocessing

__all__ = [
    "as_source", "cast", "check_codes", "check_finite", "check_stored", "checked", "class_names",
    "one_input_alone", "way_to_split",
]  # fmt: skip


def as_source(data: Any, origin: str) -> Any:
    """Arrays as an ArrayDataset; a Source, a Table and what is neither, as they are."""
    if isinstance(data, tuple | list):
        try:
            return ArrayDataset(*data)
        except (TypeError, ValueError) as error:
            raise DataError(f"{origin}: {error}") from error
    return data


def checked(data: Any, origin: str) -> ArrayDataset:
    """`data` as an ArrayDataset with rows, a target, and finite values."""
    dataset = as_source(data, origin)
    if not isinstance(dataset, ArrayDataset):
        returned = "nothing" if data is None else f"a {type(data).__name__}"
        hint = (
            "\nhint: rows are read in any order, and again each epoch; write what an iterator "
            "gives into .npy files once (numpy.lib.format.open_memmap); data of type npy reads them"
        ) * hasattr(data, "__next__")
        raise DataError(
            f"{origin} returned {returned}; expected arrays (inputs..., target) or an ArrayDataset"
            f", or another Source{hint}"
        )
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


def check_finite(
    array: NDArray[Any],
    name: str,
    columns: Sequence[str] | None = None,
    location: Callable[[int], str] = "row {}".format,
) -> None:
    """DataError naming row and column of the first value that is not finite."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return
    bad = np.argwhere(~np.isfinite(array))
    row, *rest = (int(i) for i in bad[0])
    where = location(row)
    if columns is not None and len(rest) == 1:
        where += f', column "{columns[rest[0]]}"'
    elif rest:
        where += f", column {rest[0] if len(rest) == 1 else tuple(rest)}"
    more = f" ({len(bad) - 1} more such values)" if len(bad) > 1 else ""
    raise DataError(
        f"{name} {where} is {array[tuple(bad[0])]}, expected a finite number{more}\n"
        "hint: rows count from 0; fill such values in or leave the rows out"
    )


def class_names(
    named: tuple[str, ...] | None,
    target: NDArray[Any],
    bounds: tuple[float, float],
    rows: int,
    origin: str,
) -> tuple[str, ...] | None:
    """The names of the classes: given, or the codes themselves for a 1-d target of integers, which
    go from the first to the last of `bounds`.
    """
    if named is not None or target.dtype.kind == "f" or target.ndim > 1:
        return named
    low, high = map(int, bounds)
    # Years or counts would silently ask for a model with two thousand outputs.
    if low < 0 or high >= max(rows, 2):
        raise DataError(
            f"{origin}: the target holds integers from {low} to {high} in {rows} rows; "
            "integers are class codes 0, 1, 2 ..., floats are values to regress on\n"
            "hint: make them floats, or name all classes: ArrayDataset(x, y, classes=[...])"
        )
    return tuple(str(code) for code in range(high + 1))


def check_codes(bounds: tuple[float, float], classes: int, origin: str) -> None:
    low, high = bounds
    if not 0 <= low <= high < classes:
        raise DataError(
            f"{origin}: class {low} to {high}, but the training data have classes 0 to "
            f"{classes - 1}"
        )


def check_stored(preprocessing: Preprocessing, x: NDArray[Any], origin: str) -> None:
    if preprocessing.mean.shape != x.shape[1:]:
        raise DataError(
            f"{origin}: inputs have {x.shape[1:]} features a row, but the stored "
            f"preprocessing is for {preprocessing.mean.shape}"
        )


def one_input_alone(count: int, origin: str) -> ConfigError:
    return ConfigError(
        f"{origin}: standardize works on one input array, this data has {count}; "
        "standardise them in the component itself"
    )


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


def way_to_split(
    data: Source | Table,
    origin: str,
    stratify: bool,
    group: str | None,
    time: str | None,
    fold: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """What `split_rows` has to know; ConfigError where the data do not allow it."""
    if fold is not None:
        if time is not None:
            raise ConfigError(f"{origin}: split takes one of folds and time")
        return {**way_to_split(data, origin, stratify, group, time), "fold": fold}
    if stratify + (group is not None) + (time is not None) > 1:
        raise ConfigError(f"{origin}: split takes one of stratify, group and time")
    if stratify:
        target = data.target if isinstance(data, Table) else layout(data)[1]
        if data.classes is None and target.dtype.kind not in "biu":
            raise ConfigError(f"{origin}: split.stratify needs classes, but the target is numbers")
        if not isinstance(data, Table):
            target = np.concatenate([each for each, _ in targets(data)])
        return {"strata": target}
    name = group or time
    if name is None:
        return {}
    if isinstance(data, Table):
        values = data.values(name, as_time=time is not None)
    elif name in (data.feature_names or ()):
        column = (data.feature_names or ()).index(name)
        values = np.concatenate([arrays[0][:, column] for _, arrays in blocks(data)])
    else:
        key = "group" if time is None else "time"
        what = missing(f"{origin}: split.{key}", "column", [name], data.feature_names or ())
        kind = "id" if time is None else "date"
        raise ConfigError(
            f"{what}\nhint: a column of a table that is not a plain number is named under "
            f"data.columns, such as columns: {{{name}: {kind}}}"
        )
    return {"units": values, "in_order": time is not None}
