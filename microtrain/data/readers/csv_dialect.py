"""How a CSV file seems to be written: its encoding, its delimiter, its numbers.

What is found becomes keys of a configuration; nothing of it is guessed when a run reads the file.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import re
from pathlib import Path
from typing import Any

from ...common.files import reading
from ...errors import DataError
from ..tables.frame import WHITESPACE, Frame, shortened
from ..tables.notation import BLANKS, Notation, is_empty
from .csv import read_csv, require_text

_SIGNS = "[$€£¥₹₽%‰]"
_CURRENCY = f"(?:[A-Z]{{0,2}}{_SIGNS}|CHF|EUR|USD|GBP|SEK|NOK|DKK|PLN|CZK|JPY|kr|zł|Fr\\.)"
_AMOUNT = re.compile(
    rf"(?P<sign>[+-]?)(?P<before>{_CURRENCY})?\s*[+-]?(?P<digits>[0-9][0-9.,'{BLANKS}]*|[.,][0-9]+)"
    rf"\s*(?P<behind>{_CURRENCY}|[^\W\d_]{{1,4}}[²³]?)?"
)
_QUOTED = re.compile('"[^"]*"')
_BEGINNING = 1 << 20  # characters in which a header and a row are looked for
_SPACED = [Notation(decimal, mark) for mark in "' " for decimal in ".,"]


def dialect_of(path: Path) -> tuple[Frame, dict[str, Any], dict[str, str]]:
    """A table of texts, the arguments of `csv` by which numbers are numbers in it, and reasons.

    Raises DataError as `read_csv`.
    """
    keys: dict[str, Any] = {}
    why: dict[str, str] = {}
    with reading(path) as file:
        head = file.read(16)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            keys["encoding"], why["encoding"] = "utf-16", "by the mark at its beginning"
        else:
            require_text(str(path), head)
        if not keys and not _is_utf8(file):
            keys["encoding"] = "cp1252"
            why["encoding"] = "guessed, because it is not UTF-8: check the names and texts"
    encoding = keys.get("encoding", "utf-8-sig")
    with contextlib.suppress(OSError), path.open(encoding=encoding, errors="replace") as text:
        # A name or a cell in quotes may go over several lines.
        header, row = [*_QUOTED.sub("x", text.read(_BEGINNING)).split("\n"), ""][:2]
        delimiter = max(",;\t|", key=header.count)
        names, cells = len(header.split()), len(row.split())
        if not header.count(delimiter) and cells > 1 and cells - 1 <= names <= cells:
            delimiter = WHITESPACE
        if delimiter != "," and (delimiter == WHITESPACE or header.count(delimiter)):
            keys["delimiter"] = delimiter
    delimiter, encoding = keys.get("delimiter", ","), keys.get("encoding", "utf-8")
    frame = read_csv(path, delimiter, encoding=encoding, texts=None)
    several = frame.names.count("") > 1  # which nothing tells apart
    for name in dict.fromkeys(name for name in frame.names if name or not several):
        _look_at(frame.different(name)[0].tolist(), name, keys, why)
    if "units" in keys:
        keys["units"] = sorted(keys["units"])
    frame = frame.read_as(Notation.of(keys))
    _require_names(frame)
    return frame, keys, why


def _is_utf8(file: Any) -> bool:
    file.seek(0)
    try:
        str(file.read(), "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _require_names(frame: Frame) -> None:
    """DataError for a first line that holds numbers as the columns below do."""
    read = [(frame.notation.number(name), name) for name in frame.names]
    found = [(x, name) for x, name in read if x is not None]
    steps = [after - before for (before, _), (after, _) in itertools.pairwise(found)]
    if not steps:
        return
    # Years, pixels, wavelengths; but the few numbers of a row are in order now and then.
    many = len(steps) > 4 or all(x.is_integer() for x, _ in found)
    if many and (min(steps) > 0 or max(steps) < 0):
        return
    below = [frame.notation.floats(frame.different(name)[0].tolist()) for _, name in found]
    pairs = zip(found, below, strict=True)
    alike = sum(y is not None and (y <= x).any() and (y >= x).any() for (x, _), y in pairs)
    if 2 * alike > len(found):
        raise DataError(
            f"{frame.origin}: the first line holds numbers as the rows below it "
            f"({shortened(', '.join(frame.names))}), expected the names of the columns\n"
            "hint: write a line of names above it; of names that are numbers, make words"
        )


def _look_at(texts: list[str], name: str, keys: dict[str, Any], why: dict[str, str]) -> None:
    """Add what it takes to read a column as numbers that is one of numbers and marks."""
    if Notation.of(keys).floats(texts) is not None:
        return
    texts = [text for text in texts if not is_empty(text)]
    found = [_AMOUNT.fullmatch(text) for text in texts]
    amounts = [each for each in found if each]
    if 2 * len(amounts) <= len(texts):
        return
    digits = [each["digits"].rstrip() for each in amounts]  # of the blank before a unit
    units = {unit for each in amounts for unit in (each["before"], each["behind"]) if unit}
    # Letters are a unit where nothing else is there: 12 kg in every row, not 12A, 12B, 12.
    is_sign = all(re.fullmatch(_CURRENCY, unit) for unit in units)
    if units and not is_sign and not (len(units) == 1 and all(e["behind"] for e in amounts)):
        return
    commas = [Notation(thousands=","), Notation(",")]  # 1,234 may be either
    able = [Notation(), *(commas[::-1] if keys.get("delimiter") == ";" else commas), *_SPACED]
    read = [sum(each.number(text) is not None for text in digits) for each in able]
    notation = able[read.index(max(read))]
    if 2 * max(read) <= len(texts):
        return
    marks = {"decimal": ","} if notation.decimal == "," else {}
    marks |= {"thousands": notation.thousands} if notation.thousands else {}
    if units:
        keys["units"] = {*keys.get("units", ()), *units}
        some = [each for each in amounts if each["digits"].strip("0., ")] or amounts  # 0 is 0 %
        cells = {(each["before"], each["behind"]): each[0] for each in reversed(some)}
        marked = next(cell for marks, cell in cells.items() if any(marks))
        why.setdefault("units", f"as in {marked}: no part of the number")
        if len(cells) > 1:
            shown = " and ".join([*cells.values()][:2])
            why["units"] += f"; but column {name or 1} has {shown}: on the same scale?"
    for key, mark in marks.items():
        keys.setdefault(key, mark)
        why.setdefault(key, f"as in {max(digits, key=len)}, column {name or 1}")
