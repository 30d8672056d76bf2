"""From a data component's arrays to what a run trains on: checked, split, standardized, cast.

The one rule that must never break is that validation and test rows stay unseen: the split depends
on the seed alone, and the statistics of the standardization come from the training rows alone.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...common.words import listed, size
from ...errors import ConfigError, DataError
from ..rows import (
    Known,
    Moments,
    Preprocessing,
    Rows,
    Statistic,
    TargetScaling,
    as_trained,
    cast,
    in_memory,
    is_lazy,
    layout,
)  # fmt: skip
from ..source import BLOCK, Source, as_source, blocks, check_array, checked, columns_of, name_of
from ..tables.table import Encoder, Table
from .match_schema import match_schema
from .split import PartRows, split_rows, way_to_split

Array = NDArray[Any]
Names = tuple[str, ...] | None
Ends = list[tuple[Array, Array]]  # of each array, the least and largest values over its rows


@dataclass(frozen=True)
class Prepared:
    """The parts of a run's data, ready for a DataLoader, and what a model must know of them.

    Attributes:
        train, val, test: rows of the run's dtype, standardized; None where the split has none.
        preprocessing: the map from raw inputs to those of the parts.
        target_scaling: the map from a target in its own unit to that of the parts; None: it is as
            it was.
        in_features: columns of the input; None unless there is one float input of shape
            (n, columns), beside which a table may have embedded categories.
        out_features: the number of classes, or the columns of a target of shape (n, columns).
        classes: the names of the classes; None for regression.
        encoder: how the columns of a table become inputs; None for data that are arrays.
        notes: what a user should know of the data.
        found: of rows that are not in memory, what other ranks of the host need not find out again.
        digest: a hash of all rows, where it is known without reading them.
        cache: where the rows are kept for other runs, in words; nothing where they are not.

    Example:
        >>> parts = mt.data.prepare((np.ones((4, 3)), np.array([0, 1, 1, 0])))
        >>> parts.in_features, parts.out_features, len(parts.train), parts.val
        (3, 2, 4, None)
    """

    train: Source
    val: Source | None
    test: Source | None
    preprocessing: Preprocessing
    in_features: int | None
    out_features: int | None
    classes: Names
    encoder: Encoder | None = None
    target_scaling: TargetScaling | None = None
    notes: tuple[str, ...] = ()
    found: Any = None
    digest: str | None = None
    cache: str = ""

    @property
    def categories(self) -> tuple[int, ...] | None:
        """For each embedded column its number of codes; None where there are none."""
        return None if self.encoder is None else self.encoder.categories or None


def prepare(
    data: Source | Table | tuple[Any, ...] | list[Any],
    *,
    split: Mapping[str, float] | None = None,
    standardize: bool = False,
    standardize_target: bool = False,
    log_target: bool = False,
    clip: bool = False,
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
    target_scaling: TargetScaling | None = None,
    found: Any = None,
) -> Prepared:
    """Check what a data component returned, split it, standardize and cast it.

    Floats become `dtype`; integers and booleans become int64. A 1-d array of floats becomes a
    column of shape (n, 1), so that a loss never broadcasts (n,) against (n, 1). A 1-d target of
    integers is class codes from 0 up; targets to regress on are floats.

    Of a `Source` that is not an `ArrayDataset`, and of arrays mapped from a file, the parts are
    `Rows`, which are standardized and cast while they are read. All rows are read once, block by
    block; the statistics are sums over blocks, which may differ in their last digits from those of
    an array, which is one block.

    Args:
        data: an `ArrayDataset` or another `Source`, a `Table`, or arrays (inputs..., target).
        split: fractions of the rows by part, `{"train": 0.8, "val": 0.1, "test": 0.1}`; None puts
            all in train. See `split_sizes`. Rows are assigned by a permutation that depends on
            the seed and keep their order within a part.
        standardize: give each input feature mean 0 and standard deviation 1 in the training part;
            of a table the numbers and dates.
        standardize_target: the same for the target of a regression; by the weights of rows, where
            they have some.
        log_target: train on log(1 + target), before that, of targets from 0 up.
        clip: hold predictions within the range of the training part's targets, without those of
            rows whose weight is 0.
        dtype: of the floating-point arrays, float32 or float64.
        seed: of the split.
        stratify: give each part the same share of every class.
        group: a column; rows with the same value there go to the same part.
        time: a column of numbers or dates; the earliest rows train, the latest test.
        fold: (k, n): cut the training part into n folds, and validate on fold k, from 0 up.
        others: data of parts that are not cut from `data`, such as `{"test": (x, y)}`.
        origin: names the component in errors.
        preprocessing, encoder, target_scaling: apply these stored maps instead of computing them
            (evaluation, prediction), all three of one training.
        found: `Prepared.found` of the same rows, which are then not read once more.

    Raises:
        DataError: not such arrays, no rows, NaN or infinite values, class codes out of range, a
            negative target with `log_target`, a part without rows.
        ConfigError: invalid fractions, `standardize` with more than one input, a key of the target
            of numbers for classes, or a way to split that the data do not allow.

    Example:
        >>> x = np.arange(20.0).reshape(10, 2)
        >>> parts = mt.data.prepare((x, x[:, 0]), split={"train": 0.8, "val": 0.2})
        >>> len(parts.train), len(parts.val), parts.in_features
        (8, 2, 2)
    """
    scaled = preprocessing is None and (standardize_target or log_target or clip)
    if not isinstance(data, Table):
        data = as_source(data, origin)
    lazy = any(map(is_lazy, (data, *(others or {}).values())))
    if isinstance(data, Table) and lazy:
        raise ConfigError(f"{origin}: is a table with columns; other parts are read from files")
    whole: Any = data if isinstance(data, Table) else checked(data, origin)
    if found is None:
        how = way_to_split(whole, origin, stratify, group, time, fold)
        rows: Mapping[str, Any] = split_rows(len(whole), split, seed, origin, fold=fold, **how)
    else:
        rows = {name: part for name, (part, _) in found.items() if name not in (others or {})}
    notes = dict.fromkeys(getattr(whole, "notes", ()))  # each once, in order
    if isinstance(whole, Table):
        if encoder is None or preprocessing is None:
            encoder, preprocessing = whole.fit(rows["train"], standardize)
        whole = checked(whole.arrays(encoder, notes.setdefault), origin)
    inputs, target = layout(whole)
    first = as_trained(inputs[0], dtype, column=True)
    standardize = standardize if preprocessing is None else not preprocessing.is_identity
    if len(inputs) > 1 and standardize and encoder is None:
        raise ConfigError(
            f"{origin}: standardize works on one input array, this data has {len(inputs)}; "
            "standardize them in the component itself"
        )
    if preprocessing is not None and preprocessing.mean.shape != first.shape[1:]:
        raise DataError(
            f"{origin}: inputs have {first.shape[1:]} features a row, but the stored "
            f"preprocessing is for {preprocessing.mean.shape}"
        )
    at, moments = len(inputs), list[int]()  # the target; arrays whose mean is wanted
    if preprocessing is None and standardize:
        moments.append(0)
    if scaled:
        moments += [at] * standardize_target
        if target.dtype.kind != "f":
            key = "standardize_target" if standardize_target else "log_target"
            raise ConfigError(
                f"data.{key if standardize_target or log_target else 'clip'}: is for a target of "
                f"numbers, but that of {origin} is classes; leave it out"
            )
    elif target_scaling is not None:
        log_target, wanted = target_scaling.log, target_scaling.affine.mean.shape
        if (target.shape[1:] or (1,)) != wanted:
            raise DataError(
                f"{origin}: the target has rows of {target.shape[1:]}, but the model was trained "
                f"on rows of {wanted}"
            )
    numbers = {n: r.table(not lazy) if isinstance(r, PartRows) else r for n, r in rows.items()}
    raw = {name: Rows(whole, chosen) for name, chosen in numbers.items()}
    origins = dict.fromkeys(rows, origin)
    for name, other in (others or {}).items():
        origins[name] = where = f"{origin}, {name}"
        if isinstance(other, Table):
            if encoder is None:
                raise ConfigError(f"{where}: is a table with columns, but the training data is not")
            notes |= dict.fromkeys(other.notes)
            other = other.arrays(encoder, notes.setdefault)
        raw[name] = Rows(match_schema(checked(as_source(other, where), where), whole, where))
    surveys = {name: each for name, (_, each) in (found or {}).items()}
    for name, part in raw.items() if found is None else ():
        means = moments if name == "train" else []
        surveys[name] = survey(part, origins[name], dtype, lazy, means, log_target)
    ends = {name: (np.min(s.ends[at]), np.max(s.ends[at])) for name, s in surveys.items()}
    bounds = min(ends[name][0] for name in rows), max(ends[name][1] for name in rows)
    classes = class_names(whole, target, bounds, origin)
    for name in others or {}:
        low, high = ends[name]
        if classes is not None and not 0 <= low <= high < len(classes):
            raise DataError(
                f"{origin}, {name}: class {low} to {high}, but the training data have classes 0 to "
                f"{len(classes) - 1}"
            )
    if whole.weighted and not np.asarray(surveys["train"].ends[-1][1], dtype) > 0:
        which = "training rows" if preprocessing is None else "rows"
        raise DataError(f"{origin}: the weights of all {which} are 0")
    if preprocessing is None:
        identity = Preprocessing.identity(first)
        preprocessing = surveys["train"].standardizing(0, origin) if standardize else identity
    if scaled:
        train = surveys["train"]
        low, high = train.of_target()
        affine = Preprocessing(np.zeros(low.shape), np.ones(low.shape))
        if standardize_target:
            affine = train.standardizing(at, origin, log_target)
        target_scaling = TargetScaling(affine, log_target, (low, high) if clip else None)
    maps: dict[int, Any] = {0: preprocessing}
    if target_scaling is not None:
        maps[at] = target_scaling
    for each in surveys.values():
        check_fit(each, maps, dtype, origin)
    parts: dict[str, Source] = {}
    for name, part in raw.items():
        known = surveys[name].known
        parts[name] = Rows(
            part.source, part.rows, preprocessing=preprocessing, target_scaling=target_scaling,
            dtype=dtype, known=known,
        )  # fmt: skip
        if not lazy:
            parts[name] = in_memory(parts[name], slice(None))
    kept = [place for part in raw.values() for place in getattr(part.source, "kept", ())]
    inputs, target = layout(parts["train"])
    columns = target.shape[1] if target.ndim == 2 else None
    width = inputs[0].shape[1] if len(inputs) == 1 and inputs[0].ndim == 2 else None
    return Prepared(
        parts["train"],
        parts.get("val"),
        parts.get("test"),
        preprocessing,
        in_features=width if encoder is None else encoder.in_features,
        out_features=columns if classes is None else len(classes),
        classes=classes,
        encoder=encoder,
        target_scaling=target_scaling,
        notes=tuple(notes),
        found={name: (rows.get(name), each) for name, each in surveys.items()} if lazy else None,
        cache=_where_kept(kept) if kept else "",
    )


@dataclass(frozen=True)
class Survey:
    """What a pass over a part has found before it is prepared; nothing is kept of its rows.

    Attributes:
        known: of the target as it is trained on, and the hash.
        ends: of each array, the least and largest values over its rows.
        counted: the same of the targets of rows whose weight is not 0.
        moments: of the arrays, by number, of which they were asked for.
    """

    known: Known
    ends: Ends
    counted: Ends
    moments: Mapping[int, Moments]

    def of_target(self) -> tuple[Statistic, Statistic]:
        """The least and largest targets of rows that count, of which there are some; float64."""
        low, high = (np.atleast_1d(end).astype(np.float64) for end in self.counted[0])
        return low, high

    def standardizing(self, number: int, origin: str, log: bool = False) -> Preprocessing:
        """The map that gives an array of these rows, or its log(1 + x), mean 0 and deviation 1."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = map(np.atleast_1d, self.moments[number].mean_and_std())
        if number == 0:
            low, high = (np.atleast_1d(end).astype(np.float64) for end in self.ends[0])
            return Preprocessing.of_statistics(mean, std, low, high, origin)
        low, high = (np.log1p(end) if log else end for end in self.of_target())
        return Preprocessing.of_statistics(mean, std, low, high, origin, "target")


def survey(
    part: Rows,
    origin: str,
    dtype: DTypeLike,
    lazy: bool = True,
    moments: Sequence[int] = (),
    log: bool = False,
) -> Survey:
    """Go through all rows of a part that are not yet prepared.

    lazy: block by block, and with a hash of them; else they are one block, in memory.
    moments: of these arrays, too, of the target by the weights of rows; `log`: of the target's
        log(1 + t).

    Raises DataError that names row and column of the first value that is not finite, of a class
    code without a name, of a target below 0 whose logarithm is wanted, or of a weight below 0.
    """
    found, sums = Known(), {number: Moments() for number in moments}
    head = part.read(slice(0, 0))
    at = len(head) - 1 - part.weighted
    digests = [hashlib.blake2b(digest_size=16) for _ in head]
    ends: Ends = []
    counted: Ends = []
    for first, arrays in blocks(part, BLOCK if lazy else sys.maxsize):
        ends = _wider(ends, arrays)
        for number, each in enumerate(ends):
            if arrays[number].dtype.kind == "f" and not np.isfinite(each).all():
                name = f"{origin}: {name_of(part, number)} at"
                check_array(part, number, arrays[number], name, columns_of(part, number), first)
        for digest, array in zip(digests, arrays, strict=True) if lazy else ():
            digest.update(np.ascontiguousarray(array).data)
        target = arrays[at]
        _check_values(part, first, at, arrays, origin, log)
        counts = target[arrays[-1] > 0] if part.weighted else target
        if len(counts):
            counted = _wider(counted, [counts])
        with np.errstate(over="ignore", invalid="ignore"):  # refused by its extremes
            found.add(as_trained(target, dtype, column=True))
            for number, moments_of in sums.items():
                x = arrays[number]
                if number == 0:
                    moments_of.add(x)
                    continue
                weights = arrays[-1] if part.weighted else None
                moments_of.add(np.log1p(x, dtype=np.float64) if log else x, weights)
    found.digest = "".join(d.hexdigest() for d in digests)
    return Survey(found, ends, counted, sums)


def _wider(ends: Ends, arrays: Sequence[Array]) -> Ends:
    """The least and largest values of arrays over their rows, and of those before."""
    found = [(array.min(axis=0), array.max(axis=0)) for array in arrays]
    return [
        (np.minimum(low, least), np.maximum(high, most))
        for (low, high), (least, most) in zip(ends or found, found, strict=True)
    ]


def _check_values(
    part: Rows, first: int, at: int, arrays: Sequence[Array], origin: str, log: bool
) -> None:
    """DataError for a target that has no logarithm or no name, and for a weight below 0."""
    target, count = arrays[at], len(part.classes or ())
    wrong = [
        (at, log and target < 0, "a number of at least 0: data.log_target takes log(1 + target)"),
        (
            at,
            part.classes is not None and (target < 0) | (target >= count),
            f"a code from 0 to {count - 1}, of {count} classes",
        ),
        (at + 1, part.weighted and arrays[-1] < 0, "a number of at least 0"),
    ]
    for number, bad, expected in wrong:
        if np.any(bad):
            row, *rest = np.argwhere(bad)[0].tolist()
            where = part.location_in(number, first + row)
            raise DataError(
                f"{origin}: {name_of(part, number)} at {where} is {arrays[number][(row, *rest)]}, "
                f"expected {expected}\nhint: rows count from 0"
            )


def check_fit(found: Survey, maps: Mapping[int, Any], dtype: DTypeLike, origin: str) -> None:
    """DataError where values of a part do not fit the dtype that they are cast to."""
    for number, ends in enumerate(map(np.stack, found.ends)):
        with np.errstate(over="ignore"):  # cast refuses what overflows
            ends = maps[number].apply(ends) if number in maps else ends
        cast(ends, dtype if ends.dtype.kind == "f" else np.int64, origin)


def class_names(data: Source, target: Array, ends: Sequence[Any], origin: str) -> Names:
    """The names of the classes: given, or the codes themselves for a 1-d target of integers, which
    go from the first to the last of `ends`.
    """
    if data.classes is not None or target.dtype.kind == "f" or target.ndim > 1:
        return data.classes
    (low, high), rows = map(int, ends), len(data)
    # Years or counts would silently ask for a model with two thousand outputs.
    if low < 0 or high >= max(rows, 2):
        raise DataError(
            f"{origin}: the target holds integers from {low} to {high} in {rows} rows; "
            "integers are class codes 0, 1, 2 ..., floats are values to regress on\n"
            "hint: make them floats, or name all classes: ArrayDataset(x, y, classes=[...])"
        )
    return tuple(str(code) for code in range(high + 1))


def _where_kept(places: Sequence[Path]) -> str:
    """Where decoded rows are, and how large they are, in words."""
    length = sum(each.stat().st_size for place in {*places} for each in place.iterdir())
    return f"decoded rows are kept in {places[0].parent} ({size(length)})"


def check_names(data: Prepared, columns: Sequence[str] | None, classes: Any, kind: str) -> None:
    """DataError where columns or classes are not those, in order, that a model was trained on."""
    for what, now, then in (
        ("columns", data.train.feature_names, columns),
        ("classes", data.classes, classes),
    ):
        if tuple(now or ()) != tuple(then or ()):
            raise DataError(
                f"data ({kind}): the {what} are not those that the model was trained on\n"
                f"now: {listed(now or ['none'])}\nthen: {listed(then or ['none'])}"
            )
