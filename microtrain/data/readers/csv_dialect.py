"""How a CSV file seems to be written: its encoding, its delimiter, its numbers.

What is found becomes keys of a configuration; nothing of it is guessed when a run reads the file.
"""

from __future__ import annotations

import codecs
import contextlib
import re
from pathlib import Path
from typing import Any

from ...common.files import reading
from ..tables.frame import WHITESPACE, Frame
from ..tables.notation import BLANKS, Notation, is_empty
from .csv import read_csv

__all__ = ["dialect_of"]

_SIGNS = "[$€£¥₹₽%‰]"
_CURRENCY = f"(?:[A-Z]{{0,2}}{_SIGNS}|CHF|EUR|USD|GBP|SEK|NOK|DKK|PLN|CZK|JPY|kr|zł|Fr\\.)"
_AMOUNT = re.compile(
    rf"(?P<sign>[+-]?)(?P<before>{_CURRENCY})?\s*[+-]?(?P<digits>[0-9][0-9.,'{BLANKS}]*|[.,][0-9]+)"
    rf"\s*(?P<behind>{_CURRENCY}|[^\W\d_]{{1,4}}[²³]?)?"
)
_QUOTED = re.compile('"[^"]*"')
_SPACED = [Notation(decimal, mark) for mark in "' " for decimal in ".,"]


def dialect_of(path: Path) -> tuple[Frame, dict[str, Any], dict[str, str]]:
    """A table of texts, the arguments of `csv` by which numbers are numbers in it, and reasons.

    Raises DataError as `read_csv`.
    """
    keys: dict[str, Any] = {}
    why: dict[str, str] = {}
    with reading(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            keys["encoding"], why["encoding"] = "utf-16", "by the mark at its beginning"
        elif not _is_utf8(file):
            keys["encoding"] = "cp1252"
            why["encoding"] = "guessed, because it is not UTF-8: check the names and texts"
    encoding = keys.get("encoding", "utf-8-sig")
    with contextlib.suppress(OSError), path.open(encoding=encoding, errors="replace") as text:
        header, row = (_QUOTED.sub("x", text.readline()) for _ in range(2))
        delimiter = max(",;\t|", key=header.count)
        names, cells = len(header.split()), len(row.split())
        if not header.count(delimiter) and cells > 1 and cells - 1 <= names <= cells:
            delimiter = WHITESPACE
        if delimiter != "," and (delimiter == WHITESPACE or header.count(delimiter)):
            keys["delimiter"] = delimiter
    delimiter, encoding = keys.get("delimiter", ","), keys.get("encoding", "utf-8")
    frame = read_csv(path, delimiter, encoding=encoding, texts=None)
    for name in dict.fromkeys(frame.names):
        _look_at(frame.different(name)[0].tolist(), name, keys, why)
    if "units" in keys:
        keys["units"] = sorted(keys["units"])
    return frame.read_as(Notation.of(keys)), keys, why


def _is_utf8(file: Any) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    file.seek(0)
    try:
        while block := file.read(1 << 20):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _look_at(texts: list[str], name: str, keys: dict[str, Any], why: dict[str, str]) -> None:
    """Add what it takes to read a column as numbers that is one of numbers and marks."""
    if Notation.of(keys).floats(texts) is not None:
        return
    texts = [text for text in texts if not is_empty(text)]
    found = [_AMOUNT.fullmatch(text) for text in texts]
    amounts = [each for each in found if each]
    if 2 * len(amounts) <= len(texts):
        return
    digits = [each["digits"] for each in amounts]
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
        why.setdefault("units", f"as in {amounts[0][0]}: no part of the number")
    for key, mark in marks.items():
        keys.setdefault(key, mark)
        why.setdefault(key, f"as in {max(digits, key=len)}, column {name or 1}")
