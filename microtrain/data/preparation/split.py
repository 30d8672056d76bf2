"""Which rows train, validate and test: a function of their number, the fractions and the seed.

Many rows are split region by region of the data: each part has its share of every region, so that
reading a part, or a block of it, goes through the data once from front to back. A split of all rows
at random would put neighbors of a part far from each other. It is as fair, and needs no table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, DataError
from ...random import brief_generator, generator
from ..loading.order import TABLE, Order, Permutation
from ..rows import layout, targets
from ..source import Source, blocks
from ..tables.columns import Column, dates, texts
from ..tables.frame import missing
from ..tables.table import Table

PARTS = ("train", "val", "test")
REGION = 1024  # rows that are split by themselves, at least
KEPT = 2**24  # rows of all parts up to which the numbers of a part become a table


def split_sizes(rows: int, split: Mapping[str, float], origin: str = "data") -> dict[str, int]:
    """The number of rows of each part named by `split`.

    val and test get floor(rows * fraction), train gets the rest. A product within a millionth of
    a whole number is that number: 0.29 of 100 rows is 29, whatever the floats say.

    Raises ConfigError for fractions outside (0, 1], that do not add up to 1, or without train, and
    DataError for a part that would be empty.

    Example:
        >>> split_sizes(442, {"train": 0.8, "test": 0.2})
        {'train': 354, 'test': 88}
    """
    shown = ", ".join(f"{name}: {fraction}" for name, fraction in split.items())
    for name, fraction in split.items():
        if name not in PARTS:
            raise ConfigError(f"{origin}: split has no part {name!r}; there are train, val, test")
        no_number = isinstance(fraction, bool) or not isinstance(fraction, int | float | np.number)
        if no_number or not 0 < fraction <= 1:
            raise ConfigError(
                f"{origin}: split {name} is a fraction of the rows, above 0 and at most 1; "
                f"got {fraction!r}"
            )
    if "train" not in split:
        raise ConfigError(f"{origin}: split needs a train part, got {{{shown}}}")
    total = math.fsum(split.values())
    if abs(total - 1.0) > 1e-6:
        raise ConfigError(f"{origin}: split {{{shown}}} adds up to {total:g}, expected 1")
    sizes = {
        name: math.floor(round(rows * fraction, 6))
        for name, fraction in split.items()
        if name != "train"
    }
    sizes = {"train": rows - sum(sizes.values()), **sizes}
    for name, size in sizes.items():
        if size < 1:
            raise DataError(
                f"{origin}: split {{{shown}}} of {rows} rows leaves {name} empty; give it a larger "
                "fraction, or leave it out"
            )
    return sizes


class PartRows(Order):
    """The rows of one part of a large data set, read like an index array.

    The parts' rows come region by region, from the front of the data to its back, and within a
    region shuffled. A region is 1,024 rows, or as many as leave 65,536 regions.

    Args:
        rows: of all parts.
        sizes: rows of each part, in the order of PARTS.
        name: of the part.
        seed: of the split.
    """

    def __init__(self, rows: int, sizes: Mapping[str, int], name: str, seed: int) -> None:
        super().__init__(sizes[name])
        region = max(REGION, -(-rows // 2**16))
        count = max(1, rows // region)  # the last region is larger by the rest
        # Exactly size / rows of the rows before each region, rounded up or down by a draw, so that
        # every row has the same chance. The largest part has what the others leave, in every region
        # some.
        before = np.append(np.arange(count) * region, rows)
        until, largest = {}, max(sizes, key=lambda part: sizes[part])
        draws: Any = brief_generator(seed, "split", 2).bit_generator
        numbers = np.arange(count)
        for part, draw in zip(PARTS, draws.random_raw(len(PARTS)).tolist(), strict=True):
            if part in sizes:
                whole, rest = divmod(sizes[part] * region, rows)
                early = draw * rows >> 64
                done = numbers * whole + (numbers * rest + early) // rows
                until[part] = np.append(done, sizes[part])
        until[largest] = before - sum(until[part] for part in sizes if part != largest)
        self._until = until[name]
        # In a region the parts follow each other; what to add to a position to get its place there.
        earlier = [np.diff(until[part]) for part in PARTS[: PARTS.index(name)] if part in sizes]
        self._shift = (sum(earlier, np.zeros(count, np.int64)) - self._until[:-1]).view(np.uint64)
        self._region, self._last = np.uint64(region), np.uint64(count - 1)
        self._of = rows
        self._inside = Permutation(region, seed, "split", 0)
        self._in_last = Permutation(rows - (count - 1) * region, seed, "split", 1)

    def table(self, sort: bool) -> PartRows | NDArray[Any]:
        """The numbers of all rows, 4 bytes each where these do; by themselves if they are many."""
        if self._of > KEPT and not sort:
            return self
        found = self[:].astype(np.uint32 if self._of <= KEPT else np.intp, copy=False)
        return np.sort(found) if sort else found

    def _rows_at(self, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        number = np.searchsorted(self._until, positions.view(np.int64), "right") - 1
        places: NDArray[np.uint64] = positions + self._shift[number]
        regions = number.view(np.uint64)
        last = np.flatnonzero(regions == self._last)
        in_last, places[last] = places[last], 0
        places = self._inside.among(places, regions)
        places[last] = self._in_last.among(in_last, None)
        places += regions * self._region
        return places


def way_to_split(
    data: Source | Table,
    origin: str,
    stratify: bool,
    group: str | None,
    time: str | None,
    fold: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """What `split_rows` has to know; ConfigError where the data do not allow it."""
    if fold is not None and time is not None:
        raise ConfigError(f"{origin}: split takes folds or time, not both")
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
        values = _values(data, name, as_time=time is not None)
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


def _values(table: Table, name: str, as_time: bool) -> NDArray[Any]:
    """A value for each row of any column of a table, by which the rows can be split."""
    frame, column = table.frame, table.columns.get(name, Column())
    if not as_time:
        return np.array(texts(frame, name, Column(type="category")))  # none is empty
    plain = frame.floats(name) is not None  # of which none is a date
    if column.type == "date" or (not plain and frame.column(name).dtype.kind in "OM"):
        try:  # not filled in: without a value there is no order
            return dates(frame, name, Column(type="date", format=column.format))
        except DataError:
            if column.type == "date":
                raise
    hint = (
        "split.time takes numbers, and dates such as 2024-12-31; for other forms write columns: "
        f'{{{name}: {{type: date, format: "%d/%m/%Y"}}}}'
    )
    return frame.numbers(name, hint)


def split_rows(
    rows: int,
    split: Mapping[str, float] | None,
    seed: int,
    origin: str,
    *,
    strata: NDArray[Any] | None = None,
    units: NDArray[Any] | None = None,
    in_order: bool = False,
    fold: tuple[int, int] | None = None,
) -> dict[str, slice | NDArray[np.intp] | PartRows]:
    """The rows of each part, in their own order; None puts all of them in train.

    Rows are assigned by a permutation that depends on the seed and the number of rows alone. Above
    2**20 rows those of a part are a `PartRows`, unless `strata` or `units` decide.

    Args:
        strata: a value for each row; each part gets the same share of the rows of each value, to
            the row where the shares come out even.
        units: a value for each row; rows of one value stay together, so that the sizes of the
            parts are only near to what `split` says.
        in_order: do not draw: the lowest of `units` train, the highest test.
        fold: (k, n): `split` has no val; the training rows are cut into n folds of sizes that
            differ by one row at most, of which fold k (from 0) is val and the others are train.
            So each row is in val for one k.
    """
    sizes = split_sizes(rows, {"train": 1.0} if split is None else split, origin)
    if len(sizes) == 1 and fold is None:
        return {"train": slice(None)}
    if rows > TABLE and strata is None and units is None and fold is None:
        return {name: PartRows(rows, sizes, name, seed) for name in PARTS if name in sizes}
    order = generator(seed, "split").permutation(rows)
    # In the order of PARTS, so that the order of the keys in the YAML changes nothing.
    bounds = np.cumsum([sizes.get(name, 0) for name in PARTS])[:-1]
    if fold is not None:
        if sizes["train"] < fold[1]:
            raise DataError(
                f"{origin}: {fold[1]} folds of {sizes['train']:,} training rows; take fewer folds"
            )
        bounds = np.arange(1, fold[1] + 1) * sizes["train"] // fold[1]
    if strata is not None:
        order = order[_spread(strata[order])]
    if units is not None:
        order, bounds = _together(units, None if in_order else order, bounds)
    cut = np.split(order, bounds)
    if fold is not None:
        val, test = cut.pop(fold[0]), cut.pop()
        cut = [np.concatenate(cut), val, test]
        sizes["val"] = len(val)
    parts = zip(PARTS, cut, strict=True)
    chosen: dict[str, Any] = {name: np.sort(part) for name, part in parts if name in sizes}
    empty = [name for name, part in chosen.items() if not len(part)]
    if empty and units is not None:
        raise DataError(
            f"{origin}: no rows are left for {' and '.join(empty)}: of {rows} rows, "
            f"{np.unique(units, return_counts=True)[1].max()} share one value and stay together"
        )
    return chosen


def _spread(strata: NDArray[Any]) -> NDArray[np.intp]:
    """An order that spreads the rows of every value evenly, so that each part has its share."""
    _, codes, counts = np.unique(strata, return_inverse=True, return_counts=True)
    place = np.empty(len(strata))
    for code, count in enumerate(counts):
        place[codes == code] = (np.arange(count) + 0.5) / count
    return np.argsort(place, kind="stable")


def _together(
    units: NDArray[Any], order: NDArray[np.intp] | None, bounds: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows by unit, units as they first come in `order` (None: lowest first), and bounds moved to
    the nearest end of a unit.
    """
    values, codes, counts = np.unique(units, return_inverse=True, return_counts=True)
    rank = np.arange(len(values))
    if order is not None:
        first = np.unique(codes[order], return_index=True)[1]
        rank[np.argsort(first)] = np.arange(len(values))
    ends = np.concatenate([[0], np.cumsum(counts[np.argsort(rank)])])
    nearest = np.abs(ends - bounds[:, None]).argmin(axis=1)
    return np.argsort(rank[codes], kind="stable"), ends[nearest]
