"""How a file of text writes numbers, and what stands in it for no value."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError

Array = NDArray[Any]
# Texts that stand for no value in a column of numbers or dates, whatever their case.
NO_VALUE = {
    *("", "na", "n/a", "#na", "#n/a", "<na>", "nan", "nat", "null", "none", "nil"),
    *("-", "--", "?", "."),
}
EXACT = 2**53  # up to which a float64 has every whole number
_WHOLE = re.compile("[+-]?[0-9]+")
BLANKS = " \u00a0\u202f"  # which may stand between groups of three digits, as one
_MARKED = re.compile(r"[+-]?(?=.*[,' \u2019\u00a0\u202f])[0-9.,' \u2019\u00a0\u202f]*[0-9]")


def grouped(thousands: str, decimal: str) -> re.Pattern[str]:
    """What matches a number with its digits in groups of three."""
    mark = f"[{BLANKS}]" if thousands == " " else re.escape(thousands)
    return re.compile(rf"[+-]?[1-9][0-9]{{0,2}}({mark}[0-9]{{3}})+({re.escape(decimal)}[0-9]*)?")


_GROUPS = {",": grouped(".", ","), ".": grouped(",", ".")}


def number(text: str) -> float | None:
    """The number, perhaps NaN or infinite, that a text with a decimal point holds, or None.

    Python's float() also takes "1_000", and digits of other scripts; a table that says so means
    something else.
    """
    try:
        return float(text) if "_" not in text and text.isascii() else None
    except ValueError:
        return None


def is_empty(cell: Any) -> bool:
    """Whether a cell has no value as a number or date; as a category any text is one but ""."""
    return cell.casefold() in NO_VALUE if isinstance(cell, str) else is_nothing(cell)


def is_nothing(cell: Any) -> bool:
    """Whether a cell is None, NaN, or what pandas has for those."""
    if isinstance(cell, float | np.floating):
        return math.isnan(cell)
    return cell is None or type(cell).__name__ in ("NAType", "NaTType")


@dataclass(frozen=True)
class Notation:
    """What `csv` and `parquet` are told of cells, by the keys of the same names.

    Attributes:
        decimal: what stands before the decimals of a number.
        thousands: what may stand between groups of three digits; with a decimal comma a point
            always may.
        units: texts before or behind a number that are not part of it.
        na_values: further texts that stand for no value, whatever their case, in every column; of
            a number, all cells of the same value.

    Raises ConfigError for marks that cannot be told apart.
    """

    decimal: str = "."
    thousands: str | None = None
    units: tuple[str, ...] = ()
    na_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.decimal not in (".", ",") or self.thousands not in (None, ",", ".", "'", " "):
            raise ConfigError(
                f"decimal is {self.decimal!r} and thousands {self.thousands!r}; expected . or , "
                "and, where digits are in groups, one of , . ' and a blank"
            )
        if self.thousands == self.decimal:
            raise ConfigError(
                f'thousands and decimal are both "{self.decimal}"; they must be different marks'
            )

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> Notation:
        """From the arguments of `csv` or `parquet`."""
        decimal = keys.get("decimal", ".")
        words: list[Any] = keys.get("na_values") or []  # of which numbers have a point
        absent = (x if isinstance(x, str) else str(x).replace(".", decimal) for x in words)
        units = tuple(map(str, keys.get("units") or ()))
        return cls(decimal, keys.get("thousands"), units, tuple(absent))

    @cached_property
    def _words(self) -> set[str]:
        return {word.casefold() for word in self.na_values}

    @cached_property
    def absent_numbers(self) -> list[float]:
        """The `na_values` that are numbers, whole ones with all of their digits."""
        found = [(word, self.number(word)) for word in self.na_values]
        return [int(word) if _WHOLE.fullmatch(word) else x for word, x in found if x is not None]

    @cached_property
    def _absent_dates(self) -> list[datetime]:
        """The `na_values` that are dates in the form of ISO 8601."""
        found = []
        for word in (word for word in self.na_values if number(word) is None):
            with contextlib.suppress(ValueError):
                found.append(datetime.fromisoformat(word).replace(tzinfo=None))
        return found

    @cached_property
    def _groups(self) -> tuple[str, re.Pattern[str]]:
        mark = self.thousands or ("." if self.decimal == "," else "")
        return (BLANKS if mark == " " else mark), grouped(mark, self.decimal)

    @cached_property
    def _with_unit(self) -> re.Pattern[str]:
        unit = "|".join(sorted(map(re.escape, self.units), key=len, reverse=True))
        return re.compile(rf"([+-]?)\s*(?:{unit})?\s*(.*?)\s*(?:{unit})?")

    def is_absent(self, text: str) -> bool:
        """Whether a text is one of `na_values`."""
        if not self.na_values:
            return False
        return text.casefold() in self._words or (
            bool(self.absent_numbers) and self.number(text) in self.absent_numbers
        )

    def _is_gap(self, text: str) -> bool:
        return is_empty(text) or self.is_absent(text)

    def number(self, text: str) -> float | None:
        """The number, perhaps NaN or infinite, that a text holds, or None."""
        if self.units and (found := self._with_unit.fullmatch(text)):
            text = found[1] + found[2]
        marks, groups = self._groups
        if marks and any(mark in text for mark in marks):
            if not groups.fullmatch(text):
                return None
            text = text.translate(dict.fromkeys(map(ord, marks)))
        if self.decimal == ",":
            text = "?" if "." in text else text.replace(",", ".")
        return number(text)

    def floats(self, texts: Sequence[str]) -> NDArray[np.float64] | None:
        """Finite numbers, NaN for what is empty; None where a text is neither."""
        joined, found = "".join(texts), None
        plain = self.decimal == "." and not (self.units or self.thousands)
        if plain and joined.isascii() and "_" not in joined:  # as `number`, but at once
            with contextlib.suppress(ValueError):
                found = np.array([float(text or "nan") for text in texts])
        if found is None:
            found = np.empty(len(texts))
            for row, text in enumerate(texts):
                if (x := self.number(text)) is None and not self._is_gap(text):
                    return None
                found[row] = math.nan if x is None else x
        odd = np.flatnonzero(~np.isfinite(found)).tolist()
        if not all(self._is_gap(texts[row]) for row in odd):
            return None
        found[odd] = np.nan
        return found

    def filled(self, cells: Array) -> Array:
        """The values of a column, those that `na_values` has replaced by nothing."""
        if not self.na_values:
            return cells
        wide = cells.dtype.kind in "iu" and len(cells) and bool((cells > EXACT).any())
        wide = wide or (cells.dtype.kind == "i" and bool((cells < -EXACT).any()))
        if cells.dtype.kind in "iuf" and not wide:
            # A number that is written -99.9 is another one as a float32.
            as_they_are = cells.dtype if cells.dtype.kind == "f" else float
            gaps = np.isin(cells, np.array(self.absent_numbers, as_they_are))
            return np.where(gaps, np.nan, cells) if gaps.any() else cells
        if cells.dtype.kind == "M":
            whole = cells.astype("datetime64[us]")
            gaps = np.isin(whole, np.array(self._absent_dates, whole.dtype))
            return np.where(gaps, np.datetime64("NaT", "us"), whole) if gaps.any() else cells
        if cells.dtype.kind not in "OU" and not wide:
            return cells
        found = cells.astype(object)
        absent = [
            self.is_absent(cell.strip()) if isinstance(cell, str)
            else cell in self.absent_numbers if type(cell) is int
            else type(cell) in (float, Decimal) and float(cell) in self.absent_numbers
            for cell in found
        ]  # fmt: skip
        found[absent] = None if wide else ""  # which is no text
        return found if not wide or any(absent) else cells

    def hint(self, text: str) -> str:
        """What to say of a text that is a number in another notation; else empty."""
        return self.other(text) or self._marks(text)

    def other(self, text: str) -> str:
        """The same, for a text that a key of `csv` would read as a number."""
        if self.number(text) is not None:
            return ""
        if self.decimal == ",":
            if number(text) is None and not _GROUPS["."].fullmatch(text):
                return ""
            return (
                'with decimal: "," a point separates groups of three digits, as in 1.234,5; '
                'where it comes before the decimals, write decimal: "."'
            )
        groups = _GROUPS["."].fullmatch(text)
        if Notation(",").number(text) is None:
            return 'thousands: "," reads a comma between groups of three digits' if groups else ""
        if groups:
            return (
                f'is it {text.replace(",", "")}? thousands: "," reads it so; or '
                f'{text.replace(",", ".")}? decimal: "," reads it as that'
            )
        point = "numbers are written with a decimal point, not a comma"
        return f'{point}; decimal: "," reads a comma as it'

    def _marks(self, text: str) -> str:
        """A hint for digits and marks that are a number with no mark before decimals."""
        if not _MARKED.fullmatch(text):
            return ""
        between = ", or 1.234,5 with points between thousands" if self.decimal == "," else ""
        return f'with decimal: "{self.decimal}" a number is written as 1234{self.decimal}5{between}'


PLAIN = Notation()  # of a file that says nothing of it
