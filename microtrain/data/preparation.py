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
from ..spelling import did_you_mean
from ..words import listed
from .dataset import ArrayDataset
from .frame import missing
from .preprocessing import Preprocessing
from .split import PartRows, split_rows
from .table import Encoder, Table

__all__ = ["Prepared", "cast", "check_finite", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """The parts of a run's data, ready for a DataLoader, and what a model must know of them.

    Attributes:
        train, val, test: arrays of the run's dtype, standardised; None where the split has none.
        preprocessing: the map from raw inputs to those of the parts.
        in_features: columns of the input; None unless there is one float input of shape
            (n, columns), beside which a table may have embedded categories.
        out_features: the number of classes, or the columns of a target of shape (n, columns).
        classes: the names of the classes; None for regression.
        encoder: how the columns of a table become inputs; None for data that are arrays.
        notes: what a user should know of the data.
    """

    train: ArrayDataset
    val: ArrayDataset | None
    test: ArrayDataset | None
    preprocessing: Preprocessing
    in_features: int | None
    out_features: int | None
    classes: tuple[str, ...] | None
    encoder: Encoder | None = None
    notes: tuple[str, ...] = ()

    @property
    def categories(self) -> tuple[int, ...] | None:
        """For each embedded column its number of codes; None where there are none."""
        return None if self.encoder is None else self.encoder.categories or None


def prepare(
    data: ArrayDataset | Table | tuple[Any, ...] | list[Any],
    *,
    split: Mapping[str, float] | None = None,
    standardize: bool = False,
    dtype: DTypeLike = np.float32,
    seed: int = 0,
    stratify: bool = False,
    group: str | None = None,
    time: str | None = None,
    others: Mapping[str, Any] | None = None,
    origin: str = "data",
    preprocessing: Preprocessing | None = None,
    encoder: Encoder | None = None,
) -> Prepared:
    """Check what a data component returned, split it, standardise its input and cast it.

    Floats become `dtype`; integers and booleans become int64. A 1-d array of floats becomes a
    column of shape (n, 1), so that a loss never broadcasts (n,) against (n, 1). A 1-d target of
    integers is class codes from 0 up; targets to regress on are floats.

    Args:
        data: an `ArrayDataset`, a `Table`, or arrays (inputs..., target).
        split: fractions of the rows by part, `{"train": 0.8, "val": 0.1, "test": 0.1}`; None puts
            all in train. See `split_sizes`. Rows are assigned by a permutation that depends on
            the seed and keep their order within a part.
        standardize: give each input feature mean 0 and standard deviation 1 in the training part;
            of a table the numbers and dates.
        dtype: of the floating-point arrays, float32 or float64.
        seed: of the split.
        stratify: give each part the same share of every class.
        group: a column; rows with the same value there go to the same part.
        time: a column of numbers or dates; the earliest rows train, the latest test.
        others: data of parts that are not cut from `data`, such as `{"test": (x, y)}`.
        origin: names the component in errors.
        preprocessing, encoder: apply these stored maps instead of computing them (evaluation,
            prediction).

    Raises:
        DataError: not such arrays, no rows, NaN or infinite values, class codes out of range, a
            part without rows.
        ConfigError: fractions that are none, `standardize` with more than one input, or a way to
            split that the data do not allow.
    """
    whole = data if isinstance(data, Table) else _checked(data, origin)
    how = _way_to_split(whole, origin, stratify, group, time)
    rows = {
        # In the order of the data, as of fewer rows; all of them are in memory here.
        name: np.sort(part[:]) if isinstance(part, PartRows) else part
        for name, part in split_rows(len(whole), split, seed, origin, **how).items()
    }
    notes: dict[str, None] = {}  # each once, in order
    if isinstance(whole, Table):
        if encoder is None or preprocessing is None:
            encoder, preprocessing = whole.fit(rows["train"], standardize)
        whole = _checked(whole.arrays(encoder, notes.setdefault), origin)
    dataset = whole
    classes = _class_names(dataset, origin)
    inputs = dataset.inputs
    standardize = standardize if preprocessing is None else not preprocessing.is_identity
    if len(inputs) > 1 and standardize and encoder is None:
        raise ConfigError(
            f"{origin}: standardize works on one input array, this data has {len(inputs)}; "
            "standardise them in the component itself"
        )
    if preprocessing is None:
        make = Preprocessing.standardizing if standardize else Preprocessing.identity
        preprocessing = make(inputs[0][rows["train"]], origin)
    elif preprocessing.mean.shape != inputs[0].shape[1:]:
        raise DataError(
            f"{origin}: inputs have {inputs[0].shape[1:]} features a row, but the stored "
            f"preprocessing is for {preprocessing.mean.shape}"
        )
    cut = {name: dataset.with_arrays(*dataset[part]) for name, part in rows.items()}
    for name, other in (others or {}).items():
        where = f"{origin}, {name}"
        if isinstance(other, Table):
            if encoder is None:
                raise ConfigError(f"{where}: is a table with columns, but the training data is not")
            other = other.arrays(encoder, notes.setdefault)
        cut[name] = _alike(_checked(other, where), dataset, classes, where)

    def part(name: str) -> ArrayDataset | None:
        if name not in cut:
            return None
        x, *others = cut[name].arrays
        with np.errstate(over="ignore"):  # cast refuses what overflows
            arrays = (preprocessing.apply(x), *others)
        return dataset.with_arrays(
            *(cast(a, dtype if a.dtype.kind == "f" else np.int64, origin) for a in arrays)
        )

    train = part("train")
    assert train is not None
    if train.weights is not None and not train.weights.any():
        raise DataError(f"{origin}: the weights of all training rows are 0")
    target = dataset.target
    columns = int(target.shape[1]) if target.ndim == 2 else None
    single = len(inputs) == 1 and inputs[0].ndim == 2
    in_features = encoder.in_features if encoder else int(inputs[0].shape[1]) if single else None
    return Prepared(
        train=train,
        val=part("val"),
        test=part("test"),
        preprocessing=preprocessing,
        in_features=in_features,
        out_features=columns if classes is None else len(classes),
        classes=classes,
        encoder=encoder,
        notes=tuple(notes),
    )


def _way_to_split(
    data: ArrayDataset | Table, origin: str, stratify: bool, group: str | None, time: str | None
) -> dict[str, Any]:
    """What `split_rows` has to know; ConfigError where the data do not allow it."""
    if stratify + (group is not None) + (time is not None) > 1:
        raise ConfigError(f"{origin}: split takes one of stratify, group and time")
    if stratify:
        if data.classes is None and data.target.dtype.kind not in "biu":
            raise ConfigError(f"{origin}: split.stratify needs classes, but the target is numbers")
        return {"strata": data.target}
    name = group or time
    if name is None:
        return {}
    if isinstance(data, Table):
        values = data.values(name, as_time=time is not None)
    elif name in (data.feature_names or ()):
        values = data.inputs[0][:, (data.feature_names or ()).index(name)]
    else:
        key = "group" if time is None else "time"
        what = missing(f"{origin}: split.{key}", "column", [name], data.feature_names or ())
        kind = "id" if time is None else "date"
        raise ConfigError(
            f"{what}\nhint: a column of a table that is no plain number is named under "
            f"data.columns, such as columns: {{{name}: {kind}}}"
        )
    return {"units": values, "in_order": time is not None}


def _alike(
    other: ArrayDataset, dataset: ArrayDataset, classes: tuple[str, ...] | None, origin: str
) -> ArrayDataset:
    """Rows of another source with columns and class codes as `dataset` has them."""
    first, *more = other.inputs
    names, known = other.feature_names, dataset.feature_names
    if names is not None and known is not None and names != known:
        if absent := [name for name in known if name not in names]:
            raise DataError(missing(origin, "column", absent, names))
        first = first[:, [names.index(name) for name in known]]
    target = other.target
    if classes is not None and dataset.classes is not None and other.classes is not None:
        codes = {name: code for code, name in enumerate(classes)}
        if strange := [name for name in other.classes if name not in codes]:
            raise DataError(
                f"{origin}: the training data have no class {listed(strange)}"
                f"{did_you_mean(strange[0], classes)}; they have {listed(classes)}"
            )
        target = np.array([codes[name] for name in other.classes], np.int64)[target]
    elif (classes is None) != (other.target.dtype.kind == "f"):
        kinds = ("numbers", "classes") if classes is None else ("classes", "numbers")
        raise DataError(f"{origin}: the target is {kinds[1]}, but in the training data {kinds[0]}")
    elif (
        classes is not None and len(target) and not 0 <= target.min() <= target.max() < len(classes)
    ):
        raise DataError(
            f"{origin}: class {target.min()} to {target.max()}, but the training data have classes "
            f"0 to {len(classes) - 1}"
        )
    shapes = [[a.shape[1:] for a in (*each.inputs, each.target)] for each in (other, dataset)]
    shapes[0][0] = first.shape[1:]
    if shapes[0] != shapes[1] or other.weighted != dataset.weighted:
        raise DataError(
            f"{origin}: rows of shapes {listed([str(s) for s in shapes[0]])}"
            f"{' and weights' * other.weighted}, but the training data have "
            f"{listed([str(s) for s in shapes[1]])}{' and weights' * dataset.weighted}"
        )
    weights = () if other.weights is None else (other.weights,)
    return dataset.with_arrays(first, *more, target, *weights)


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
