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
from ..tables.notation import BLANKS, Notation, grouped, is_empty
from .csv import read_csv

__all__ = ["dialect_of"]

_SIGNS = "[$€£¥₹₽%‰]"
_CURRENCY = f"(?:[A-Z]{{0,2}}{_SIGNS}|CHF|EUR|USD|GBP|SEK|NOK|DKK|PLN|CZK|JPY|kr|zł|Fr\\.)"
_AMOUNT = re.compile(
    rf"(?P<sign>[+-]?)(?P<before>{_CURRENCY})?\s*[+-]?(?P<digits>[0-9][0-9.,'{BLANKS}]*|[.,][0-9]+)"
    rf"\s*(?P<behind>{_CURRENCY}|[^\W\d_]{{1,4}}[²³]?)?"
)
_QUOTED = re.compile('"[^"]*"')
_EITHER = {mark: grouped(mark, "." if mark == "," else ",") for mark in ",."}


def dialect_of(path: Path) -> tuple[Frame, dict[str, Any], dict[str, str]]:
    """A table of texts, the arguments of `csv` by which numbers are numbers in it, and reasons.

    Raises DataError as `read_csv`.
    """
    keys: dict[str, Any] = {}
    why: dict[str, str] = {}
    with reading(path) as file:
        start = file.read(4)
        for encoding, marks in (("utf-16", (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)),):
            if start.startswith(marks):
                keys["encoding"], why["encoding"] = encoding, "by the mark at its beginning"
        file.seek(0)
        if not keys and not _is_utf8(file):
            keys["encoding"] = "cp1252"
            why["encoding"] = "a guess, for it is not UTF-8: look at the names and texts"
    encoding = keys.get("encoding", "utf-8-sig")
    with contextlib.suppress(OSError), path.open(encoding=encoding, errors="replace") as text:
        header, row = (_QUOTED.sub("", text.readline()) for _ in range(2))
        delimiter = max(",;\t|", key=header.count)
        if not header.count(delimiter) and len(header.split()) == len(row.split()) > 1:
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
    marks = _marks(digits, keys.get("delimiter", ","))
    if Notation(marks.get("decimal", "."), marks.get("thousands")).floats(digits) is None:
        return
    if units:
        keys["units"] = {*keys.get("units", ()), *units}
        why.setdefault("units", f"as in {amounts[0][0]}: no part of the number")
    for key, mark in marks.items():
        keys.setdefault(key, mark)
        why.setdefault(key, f"as in {max(digits, key=len)}, column {name or 1}")


def _marks(digits: list[str], delimiter: str) -> dict[str, str]:
    """What stands before decimals, and between groups of three digits."""
    between = next((mark for mark in "' " if any(_has(mark, text) for text in digits)), "")
    plain = [re.sub(f"['{BLANKS}]", "", text) for text in digits]
    has = {mark: [text for text in plain if mark in text] for mark in ",."}
    if has[","] and has["."]:  # the one that comes last stands before decimals
        decimal = max(",.", key=lambda mark: sum(t.rfind(mark) == _last(t) for t in plain))
        other = "." if decimal == "," else ","
        between = between or (other if has[other] else "")
    elif not has[","]:
        several = any(text.count(".") > 1 for text in has["."])  # 1.234.567
        decimal = "," if several else "."
    else:
        groups = all(map(_EITHER[","].fullmatch, has[","]))
        certain = any(text.count(",") > 1 for text in has[","])
        decimal = "." if groups and (certain or delimiter != ";") else ","
        between = between or ("," if decimal == "." else "")
    found = {"decimal": ","} if decimal == "," else {}
    if between and not (decimal == "," and between == "."):  # which it means by itself
        found["thousands"] = between
    return found


def _has(mark: str, text: str) -> bool:
    return any(each in text.strip() for each in (BLANKS if mark == " " else mark))


def _last(text: str) -> int:
    return max(text.rfind(","), text.rfind("."))
