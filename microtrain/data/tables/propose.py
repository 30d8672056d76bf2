"""What the columns of a table seem to hold, and why: proposals for people to look at.

Nothing here decides what a run does. `microtrain init csv FILE` writes the proposals down, and
errors about columns name them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...common.words import plural
from ...errors import DataError
from .columns import Column, dates, texts
from .frame import Frame, is_empty, number, other_notation, shortened

__all__ = ["CODE", "Proposal", "advice", "guess_target", "propose"]

MOST_CATEGORIES = 30  # that become an input each
_FORMATS = ("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%Y/%m/%d", "%d-%m-%Y")
_ID = re.compile(
    r"(^|[_ .-])(id|uuid|guid|key|index|nr|no)$|^(id|uuid|guid|index)([_ .-]|$)|[a-z]I[dD]$"
)
CODE = re.compile(r"0[0-9]+")
_TARGET = re.compile(
    r"^(target|label|class|y|outcome|response|churn(ed)?|default(ed)?|survived|species|diagnosis|"
    r"fraud|converted|price|is_\w+)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Proposal:
    """What is proposed for a column.

    Attributes:
        name: of the column.
        spec: as YAML writes it under `columns`; `drop` to leave it out; empty for plain numbers.
        why: in words.
        distinct: how many different values it has.
    """

    name: str
    spec: str
    why: str
    distinct: int = 0


def propose(frame: Frame, name: str) -> Proposal:
    """What a column seems to hold."""
    if name in frame.index:
        return Proposal(name, "drop", "the index of a pandas data frame")
    cells = texts(frame, name, Column(type="category", missing="none"))
    filled = [cell for cell in cells if not is_empty(cell)]
    strange, numeric = list[str](), list[float]()
    for cell in filled:
        x = number(cell, frame.decimal)
        if x is None or not np.isfinite(x):
            strange.append(cell)
        else:
            numeric.append(x)
    meant = sum(bool(other_notation(cell, frame.decimal)) for cell in strange)
    is_number = 2 * (len(numeric) + meant) >= len(filled) > 0
    is_code = all(map(str.isdigit, filled)) and any(map(CODE.fullmatch, filled))
    is_number &= not is_code
    form = _date_format(filled) if filled and not is_number else None
    if not is_number and form is None:  # any text may be a category
        filled = [cell for cell in cells if cell]
    rows, distinct = len(cells), len(set(filled))
    missing = rows - len(filled)
    gaps = f"{missing:,} of {plural(rows, 'cell')} empty" if missing else ""

    def proposal(type: str, why: str, fill: str = "", **keys: str) -> Proposal:
        keys |= {"missing": fill} if missing and fill else {}
        spec = "" if type == "number" else type
        if keys:
            keys = ({"type": spec} if spec else {}) | keys
            spec = f"{{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}"
        return Proposal(name, spec, ", ".join(filter(None, [why, gaps])), distinct)

    if not filled:
        return Proposal(name, "drop", "no cell has a value")
    if distinct == 1:
        return Proposal(name, "drop", f'"{shortened(filled[0])}" in every row', 1)
    if is_number:
        if strange:
            wrong = shortened(strange[0])
            why = f'{plural(len(strange), "cell")} such as "{wrong}" not a number: correct them'
            return proposal("number", why, "median")
        whole = all(x.is_integer() for x in numeric)
        if whole and distinct == len(filled) and distinct > 1 and _is_id(name, numeric):
            return proposal("id", "another number in every row")
        low, high = min(numeric), max(numeric)
        why = f"numbers from {low:g} to {high:g}"
        if whole and distinct <= MOST_CATEGORIES and high - low >= 2 * distinct < rows / 5:
            why += f"; {distinct} different ones: if they are codes, category"
        return proposal("number", why, "median")
    if form is not None:
        if form:
            return proposal("date", f"dates as {filled[0]}", "median", format=f'"{form}"')
        return proposal("date", f"dates from {min(filled)} to {max(filled)}", "median")
    if distinct == len(filled) and distinct > 2:
        if rows > 20 and max(map(len, filled)) > 40:
            return Proposal(name, "drop", f"free text: {distinct:,} different ones", distinct)
        return proposal("id", "another text in every row")
    shown = ", ".join(shortened(each) for each in sorted(set(filled))[:4])
    more = ", ..." if distinct > 4 else ""
    why = f"{distinct:,} texts: {shown}{more}" + ", codes with leading zeros" * is_code
    if distinct <= MOST_CATEGORIES:
        return proposal("category", why, "none")
    if distinct <= len(filled) // 5:
        return proposal("category", why, "none", encode="embedding")
    if _ID.search(name):
        return proposal("id", f"{distinct:,} different texts, and its name")
    return Proposal(name, "drop", f"{distinct:,} different texts in {rows:,} rows", distinct)


def guess_target(frame: Frame) -> tuple[str, str]:
    """The column that is most likely to be predicted, and why."""
    names = [name for name in frame.names if name not in frame.index] or frame.names
    likely = [name for name in names if _TARGET.match(name)]
    if likely:
        return likely[-1], "by its name"
    return names[-1], "the last column"


def advice(error: str, frame: Frame, names: Iterable[str]) -> str:
    """An error, and what to write for those of the columns `names` that are not plain numbers."""
    proposals = []
    for name in names:
        with contextlib.suppress(DataError):  # told by the error that the advice is for
            try:
                frame.numbers(name)
            except DataError:
                proposals.append(propose(frame, name))
    columns = [f"  {p.name}: {p.spec}" for p in proposals if p.spec not in ("", "drop")]
    dropped = [p.name for p in proposals if p.spec == "drop"]
    if not columns and not dropped:
        if "\nhint: " in error:
            return error
        return (
            f"{error}\nhint: fill such cells in or delete the rows; columns of text can be left "
            "out: features: [...] names those to use"
        )
    lines = [
        f"{error}\nhint: say under data what they are{'' if columns else ', or leave them out'}"
    ]
    lines += ["columns:", *columns] if columns else []
    lines += [f"drop: [{', '.join(dropped)}]"] if dropped else []
    return "\n".join(lines)


def _is_id(name: str, values: list[float]) -> bool:
    """Whether numbers that all differ only count or name the rows."""
    steps = np.diff(values)
    return bool(_ID.search(name)) or bool(len(steps) > 5 and (steps == 1).all())


def _date_format(cells: list[str]) -> str | None:
    """How all cells are written as dates: "" for ISO 8601; None where they are not dates."""
    for form in ("", *_FORMATS):
        try:
            frame = Frame("", ["d"], [np.array(cells, object)])
            dates(frame, "d", Column(type="date", format=form or None))
        except DataError:
            continue
        return form
    return None
