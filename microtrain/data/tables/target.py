"""The target column of a table: numbers to regress on, or names of classes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...spelling import did_you_mean
from .cells import Codes, other_notation
from .frame import Frame, shortened

__all__ = ["codes_of", "read_target"]

Array = NDArray[Any]
_PLAIN = re.compile(r"0|-?[1-9][0-9]*")  # a whole number, as it is written


def read_target(
    frame: Frame, name: str, categorical: bool = False, hint: str = ""
) -> tuple[Array, tuple[str, ...] | None]:
    """Numbers of shape (n, 1), or class codes of shape (n,) and the names of the classes.

    hint: says how to read a doubtful target as classes.

    Raises DataError for a column that holds both, or values that are neither.
    """
    found = frame.floats(name)
    if found is not None and np.isfinite(found).any() and not categorical:
        return frame.numbers(name, hint).reshape(-1, 1).copy(), None
    array, which = frame.column(name), np.arange(len(frame))
    if {*map(type, array.tolist())} == {str}:  # each different text is looked at once
        place = {cell: i for i, cell in enumerate(dict.fromkeys(array.tolist()))}
        which = np.fromiter(map(place.__getitem__, array.tolist()), np.intp, len(array))[which]
        array = np.array([*place], object)
    each = Frame(frame.origin, [name], [array], frame.lines, decimal=frame.decimal)
    values = each.values(name)
    finite = [x for x in values if x is not None and math.isfinite(x)]
    if finite and not categorical:
        return frame.numbers(name, hint).reshape(-1, 1).copy(), None
    cells = each.texts(name)
    bad = []
    for i, (x, cell) in enumerate(zip(values, cells, strict=True)):
        if not cell:
            bad.append(i)
        elif isinstance(array[i], bytes | date | np.datetime64):  # texts in a CSV file
            bad += [i] * (not categorical)
        elif x is None:
            bad += [i] * (not categorical and bool(other_notation(cell, frame.decimal)))
        elif not math.isfinite(x):
            bad.append(i)
    if bad:
        rows = np.flatnonzero(np.isin(which, bad)).tolist()
        raise frame.refusal(name, rows, "expected a number or a name")
    if len(finite) == len(cells):
        exact = np.array([x.is_integer() for x in finite])
        if array.dtype.kind != "O":  # of texts each is another one, however large
            exact &= np.abs(finite) < 2**53
        if rows := np.flatnonzero(~exact[which]).tolist():
            raise frame.refusal(name, rows, "expected a whole number as the code of a class")
    in_order = all(map(_PLAIN.fullmatch, cells))  # 007 is a text as others are
    labels = sorted(set(cells), key=int if in_order else None)
    # Dates, names of people, "12 kg": a column of nearly unique texts is not a set of classes.
    if not categorical and len(labels) > max(20, len(which) // 2):
        raise DataError(
            f'{frame.origin}, column "{name}": {len(labels)} different texts in {len(which)} rows; '
            f'is "{shortened(cells[0])}" the name of a class?' + (f"\nhint: {hint}" if hint else "")
        )
    codes = {label: code for code, label in enumerate(labels)}
    return np.array([codes[cell] for cell in cells], np.int64)[which], tuple(labels)


def codes_of(frame: Frame, name: str, classes: Sequence[str]) -> Array:
    """The codes of a column of classes that are known; DataError for a different class."""
    known, cells = Codes(classes), frame.texts(name)
    codes = np.array([known[cell] for cell in cells], np.int64)
    for row in np.flatnonzero(codes < 0)[:1].tolist():
        raise DataError(
            f'{frame.location(row, name)}: "{shortened(cells[row])}" is none of the {len(known)} '
            f"classes of the model{did_you_mean(cells[row], known)}"
        )
    return codes
