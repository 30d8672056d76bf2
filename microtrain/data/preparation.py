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
from ..spelling import did_you_mean
from ..words import listed
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
from .frame import missing
from .prepared import Prepared
from .preprocessing import Preprocessing
from .source import Source
from .split import PartRows, split_rows
from .table import Encoder, Table
from .view import is_lazy

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
        way = stratify, group, time
        return prepare_rows(rows_of, fixed, way, others, origin, preprocessing, found)
    whole = data if isinstance(data, Table) else checked(data, origin)
    how = way_to_split(whole, origin, stratify, group, time)
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
        cut[name] = _alike(checked(other, where), dataset, classes, where)

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
    elif classes is not None and len(target):
        check_codes((target.min(), target.max()), len(classes), origin)
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
