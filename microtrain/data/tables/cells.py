"""What a cell of a table says: a number, or a text that is the same in every kind of file."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "GROUPS",
    "NO_VALUE",
    "Codes",
    "as_cells",
    "floats",
    "is_empty",
    "is_nothing",
    "notation",
    "number",
    "other_notation",
    "text_of",
]

Array = NDArray[Any]
# Texts that stand for no value in a column of numbers or dates, whatever their case.
NO_VALUE = {"", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "?"}
# Digits in groups of thousands, before a decimal comma, and before a decimal point.
GROUPS = {
    ",": re.compile(r"[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+(,[0-9]*)?"),
    ".": re.compile(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?"),
}
_MARKED = re.compile(r"[+-]?(?=.*[,' \u2019\u00a0\u202f])[0-9.,' \u2019\u00a0\u202f]*[0-9]")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)\.0+")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?")


def number(text: str, decimal: str = ".") -> float | None:
    """The number, perhaps NaN or infinite, that a text holds, or None.

    Before a decimal comma digits may stand in groups of thousands, 1.234,5; a point anywhere else
    is not part of a number. Python's float() also takes "1_000", and digits of other scripts; a
    table that says so means something else.
    """
    if decimal == ",":
        if "." in text:
            if not GROUPS[","].fullmatch(text):
                return None
            text = text.replace(".", "")
        text = text.replace(",", ".")
    try:
        return float(text) if "_" not in text and text.isascii() else None
    except ValueError:
        return None


def floats(texts: Sequence[str], decimal: str = ".") -> NDArray[np.float64] | None:
    """Finite numbers, NaN for what is empty; None where a text is neither."""
    joined, found = "".join(texts), None
    if decimal == "." and joined.isascii() and "_" not in joined:  # as `number`, but at once
        with contextlib.suppress(ValueError):
            found = np.array([float(text or "nan") for text in texts])
    if found is None:
        found = np.array([number(text, decimal) for text in texts], np.float64)  # of None NaN
    odd = np.flatnonzero(~np.isfinite(found)).tolist()
    if not all(is_empty(texts[row]) for row in odd):
        return None
    found[odd] = np.nan
    return found


def other_notation(text: str, decimal: str) -> str:
    """A hint for what is a number, but not with this mark before its decimals; else empty."""
    if number(text, decimal) is not None:
        return ""
    if decimal == ",":
        if number(text) is None and not GROUPS["."].fullmatch(text):
            return ""
        return (
            'with decimal: "," a point stands between groups of three digits, as in 1.234,5; '
            'a file where it stands before decimals is of decimal: "."'
        )
    grouped = GROUPS["."].fullmatch(text)
    mark = 'numbers are written with a decimal point, not a comma; decimal: "," reads a comma as it'
    if number(text, ",") is None:
        return "numbers are written without thousands separators" if grouped else ""
    if grouped:
        return (
            f"numbers are written without thousands separators: is it {text.replace(',', '')}, "
            f'or {text.replace(",", ".")}? decimal: "," reads it as the latter'
        )
    return mark


def notation(text: str, decimal: str) -> str:
    """A hint for digits and marks that are a number with no mark before decimals; else empty."""
    if not _MARKED.fullmatch(text):
        return ""
    grouped = ", or 1.234,5 with points between thousands" if decimal == "," else ""
    return f'with decimal: "{decimal}" a number is written as 1234{decimal}5{grouped}'


def as_cells(array: Array) -> list[Any]:
    """The values of a column, as they are written: a float32 keeps its few digits."""
    if array.dtype.kind == "M":  # nanoseconds would become integers
        array = array.astype("datetime64[us]").astype(object)
    if array.dtype.kind == "f" and array.dtype != np.float64:
        return [*map(float, map(str, array))]
    return [*array.tolist()]


def text_of(cell: Any) -> str:
    """A cell as a text, as a file of text has it, empty where it has no value.

    Whole numbers are without a point, and days without a time of day.
    """
    if isinstance(cell, str):
        return cell.strip()
    if isinstance(cell, np.generic):
        cell = as_cells(np.array([cell]))[0]
    if isinstance(cell, bytes):
        cell = cell.decode(errors="backslashreplace")
    if is_nothing(cell):
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return f"{cell + 0.0:.0f}"
    if isinstance(cell, datetime):
        return str(cell).removesuffix(" 00:00:00")
    return str(cell).strip()


def is_empty(cell: Any) -> bool:
    """Whether a cell has no value as a number or date; as a category any text is one but ""."""
    return cell.casefold() in NO_VALUE if isinstance(cell, str) else is_nothing(cell)


def is_nothing(cell: Any) -> bool:
    """Whether a cell is None, NaN, or what pandas has for those."""
    if isinstance(cell, float):
        return math.isnan(cell)
    return cell is None or type(cell).__name__ in ("NAType", "NaTType")


class Codes(dict[str, int]):
    """Codes of texts, from `first` on, and -1 or what stands for others.

    Files of another kind write the same value in other ways: 1.0 for 1, 2024-01-01T00:00 for
    2024-01-01, true for True. Such a text has the code of the one that it may be; 01 is never 1.
    """

    def __init__(self, texts: Iterable[str], first: int = 0) -> None:
        super().__init__((text, code) for code, text in enumerate(texts, start=first))
        self._none = first - 1
        self._plain: dict[str, int] = {}
        for text, code in self.items():
            plain = _plainly(text)
            self._plain[plain] = self._none if plain in self._plain else code

    def __missing__(self, text: str) -> int:
        return self._plain.get(_plainly(text), self._none)


def _plainly(text: str) -> str:
    """A text that all ways to write its value have in common."""
    if _WHOLE.fullmatch(text):
        return text.partition(".")[0]
    if _TIME.fullmatch(text):
        with contextlib.suppress(ValueError):
            return text_of(datetime.fromisoformat(text))
    return text.capitalize() if text.casefold() in ("true", "false") else text
