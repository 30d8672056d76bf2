"""`prepare` for rows that are read when they are wanted: parts are views, checked in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..errors import ConfigError, DataError
from .alike import alike
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
from .prepared import Prepared
from .preprocessing import Preprocessing
from .source import Source
from .split import split_rows
from .survey import Survey, checked_source, survey
from .table import Table
from .view import Rows, layout

__all__ = ["prepare_rows"]


def prepare_rows(
    data: Source | Table,
    fixed: tuple[Mapping[str, float] | None, bool, DTypeLike, int],
    way: tuple[bool, str | None, str | None, tuple[int, int] | None],
    others: Mapping[str, Any] | None,
    origin: str,
    preprocessing: Preprocessing | None,
    before: Mapping[str, tuple[Any, Survey]] | None,
) -> Prepared:
    """`prepare` for rows that are read when they are wanted.

    before: `Prepared.found`: of each part the rows, and what a survey has found in them.
    """
    split, standardize, dtype, seed = fixed
    whole = _row_source(data, origin)
    inputs, target = layout(whole)
    if preprocessing is not None:
        standardize = False
        check_stored(preprocessing, inputs[0], origin)
    elif standardize and len(inputs) > 1:
        raise one_input_alone(len(inputs), origin)
    rows: Mapping[str, Any]
    if before is None:
        how = way_to_split(whole, origin, *way)
        rows = split_rows(len(whole), split, seed, origin, **how)
    else:
        rows = {name: chosen for name, (chosen, _) in before.items() if name not in (others or {})}
    raw = {name: Rows(whole, chosen) for name, chosen in rows.items()}
    for name, other in (others or {}).items():
        where = f"{origin}, {name}"
        raw[name] = Rows(alike(_row_source(as_source(other, where), where), whole, where))
    found = {
        name: before[name][1]
        if before is not None
        else survey(part, origin, dtype, moments=standardize and name == "train")
        for name, part in raw.items()
    }
    if whole.weighted and not found["train"].high[-1] > 0:
        raise DataError(f"{origin}: the weights of all training rows are 0")
    known = [found[name].known for name in rows]
    bounds = min(k.low for k in known), max(k.high for k in known)
    classes = class_names(whole.classes, target, bounds, len(whole), origin)
    for name in others or {}:
        if classes is not None:
            its = found[name].known
            check_codes((its.low, its.high), len(classes), f"{origin}, {name}")
    if preprocessing is None:
        identity = Preprocessing.identity(inputs[0], origin)
        preprocessing = found["train"].standardizing(origin) if standardize else identity
    for each in found.values():
        for low, high in zip(each.low, each.high, strict=True):
            ends = np.stack([low, high])
            with np.errstate(over="ignore"):  # cast refuses what overflows
                ends = preprocessing.apply(ends) if low is each.low[0] else ends
            cast(ends, dtype if ends.dtype.kind == "f" else np.int64, origin)
    parts = {
        name: Rows(
            part.source,
            part.rows,
            preprocessing=preprocessing,
            dtype=dtype,
            known=found[name].known,
        )
        for name, part in raw.items()
    }
    found_by = {name: (part.rows, found[name]) for name, part in raw.items()}
    return replace(Prepared.of(parts, preprocessing, classes), found=found_by)


def _row_source(data: Any, origin: str) -> Source:
    """What rows can be read of; DataError for what has none."""
    if isinstance(data, Table):
        raise ConfigError(f"{origin}: is a table with columns; other parts are read from files")
    return checked_source(data if isinstance(data, Source) else checked(data, origin), origin)
