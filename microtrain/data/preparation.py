"""From a data component's arrays to what a run trains on: checked, split, standardised, cast.

The one rule that must never break is that validation and test rows stay unseen: the split depends
on the seed alone, and the statistics of the standardisation come from the training rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..errors import ConfigError, DataError
from .alike import alike
from .by_rows import prepare_rows
from .checks import (
    as_source,
    cast,
    check_codes,
    check_stored,
    checked,
    class_names,
    one_input_alone,
    way_to_split,
)  # fmt: skip
from .dataset import ArrayDataset
from .prepared import Prepared
from .preprocessing import Preprocessing
from .source import Source
from .split import PartRows, split_rows
from .table import Encoder, Table
from .view import apart, is_lazy

__all__ = ["prepare"]


def prepare(
    data: Source | Table | tuple[Any, ...] | list[Any],
    *,
    split: Mapping[str, float] | None = None,
    standardize: bool = False,
    dtype: DTypeLike = np.float32,
    seed: int = 0,
    stratify: bool = False,
    group: str | None = None,
    time: str | None = None,
    fold: tuple[int, int] | None = None,
    others: Mapping[str, Any] | None = None,
    origin: str = "data",
    preprocessing: Preprocessing | None = None,
    encoder: Encoder | None = None,
    found: Any = None,
) -> Prepared:
    """Check what a data component returned, split it, standardise its input and cast it.

    Floats become `dtype`; integers and booleans become int64. A 1-d array of floats becomes a
    column of shape (n, 1), so that a loss never broadcasts (n,) against (n, 1). A 1-d target of
    integers is class codes from 0 up; targets to regress on are floats.

    Of a `Source` that is no `ArrayDataset`, and of arrays mapped from a file, the parts are `Rows`,
    which are standardised and cast while they are read. All rows are read once, block by block; the
    statistics are sums over blocks, which may differ in their last digits from those of an array.

    Args:
        data: an `ArrayDataset` or another `Source`, a `Table`, or arrays (inputs..., target).
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
        fold: (k, n): cut the training part into n folds, and validate on fold k, from 0 up.
        others: data of parts that are not cut from `data`, such as `{"test": (x, y)}`.
        origin: names the component in errors.
        preprocessing, encoder: apply these stored maps instead of computing them (evaluation,
            prediction).
        found: `Prepared.found` of the same rows, which are then not read once more.

    Raises:
        DataError: not such arrays, no rows, NaN or infinite values, class codes out of range, a
            part without rows.
        ConfigError: fractions that are none, `standardize` with more than one input, or a way to
            split that the data do not allow.
    """
    if not isinstance(data, Table):
        data = as_source(data, origin)
    if any(map(is_lazy, (data, *(others or {}).values()))):
        fixed = split, standardize, dtype, seed
        rows_of: Any = data
        way = stratify, group, time, fold
        return prepare_rows(rows_of, fixed, way, others, origin, preprocessing, found)
    whole = data if isinstance(data, Table) else checked(data, origin)
    how = way_to_split(whole, origin, stratify, group, time, fold)
    rows = {
        # In the order of the data, as of fewer rows; all of them are in memory here.
        name: np.sort(part[:]) if isinstance(part, PartRows) else part
        for name, part in split_rows(len(whole), split, seed, origin, **how).items()
    }
    notes: dict[str, None] = {}  # each once, in order
    if isinstance(whole, Table):
        if encoder is None or preprocessing is None:
            encoder, preprocessing = whole.fit(rows["train"], standardize)
        whole = checked(whole.arrays(encoder, notes.setdefault), origin)
    dataset = whole
    found, bounds = dataset.target, (0, 0)
    if found.dtype.kind in "biu":
        bounds = int(found.min()), int(found.max())
    classes = class_names(dataset.classes, found, bounds, len(dataset), origin)
    inputs = dataset.inputs
    standardize = standardize if preprocessing is None else not preprocessing.is_identity
    if len(inputs) > 1 and standardize and encoder is None:
        raise one_input_alone(len(inputs), origin)
    if preprocessing is None:
        make = Preprocessing.standardizing if standardize else Preprocessing.identity
        preprocessing = make(inputs[0][rows["train"]], origin)
    else:
        check_stored(preprocessing, inputs[0], origin)
    cut = {name: dataset.with_arrays(*dataset[part]) for name, part in rows.items()}
    for name, other in (others or {}).items():
        where = f"{origin}, {name}"
        if isinstance(other, Table):
            if encoder is None:
                raise ConfigError(f"{where}: is a table with columns, but the training data is not")
            other = other.arrays(encoder, notes.setdefault)
        arrays = alike(checked(other, where), dataset, where).read(slice(None))
        if classes is not None:
            codes = apart(dataset, arrays)[1]
            check_codes((codes.min(), codes.max()), len(classes), where)
        cut[name] = dataset.with_arrays(*arrays)

    def part(raw: ArrayDataset) -> ArrayDataset:
        x, *others = raw.arrays
        with np.errstate(over="ignore"):  # cast refuses what overflows
            arrays = (preprocessing.apply(x), *others)
        return dataset.with_arrays(
            *(cast(a, dtype if a.dtype.kind == "f" else np.int64, origin) for a in arrays)
        )

    parts = {name: part(raw) for name, raw in cut.items()}
    weights = parts["train"].weights
    if weights is not None and not weights.any():
        raise DataError(f"{origin}: the weights of all training rows are 0")
    return Prepared.of(parts, preprocessing, classes, encoder, tuple(notes))
