"""A csv file as columns of text that know where each cell stands, so that an error can say it."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from csv import Error as CsvError
from csv import reader as csv_reader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

__all__ = [
    "Table",
    "did_you_mean",
    "has_decimal_comma",
    "missing_name",
    "number",
    "shortened",
]


class Table:
    """The cells of a csv file as text, with the line each row starts on.

    Raises DataError for a file without a header or rows, or with rows of different lengths.
    """

    def __init__(self, path: Path, text: str, delimiter: str) -> None:
        self.path = path
        self.header: list[str] = []
        self.rows: list[list[str]] = []
        self.lines: list[int] = []  # as an editor counts: a quoted cell may span several
        reader = csv_reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        line = 1
        try:
            self.header = [name.strip() for name in next(reader, [])]
            line = reader.line_num + 1
            for row in reader:
                self.rows.append(row)
                self.lines.append(line)
                line = reader.line_num + 1
        except CsvError as error:
            raise DataError(f"{path}, line {line}: {error}") from error
        while self.rows and not self.rows[-1]:  # blank lines at the end
            self.rows.pop()
        if not self.header:
            raise DataError(f"{path}: the first line is empty; expected the names of the columns")
        if not self.rows:
            raise DataError(f"{path} has a header but no rows: the data set is empty")
        for line, row in zip(self.lines, self.rows, strict=False):
            if len(row) != len(self.header):
                found = f"{len(row)} cells" if row else "a blank line"
                raise DataError(
                    f"{path}, line {line}: {found}, expected {len(self.header)} cells as in the "
                    "header"
                )

    def inputs(self, target: str) -> list[str]:
        """The names of all columns but the target."""
        names = [name for name in self.header if name != target]
        if not names:
            raise DataError(f'{self.path} has no column beside the target "{target}"')
        if "" in names:
            raise DataError(
                f"{self.path}: column {self.header.index('') + 1} has no name. Is it a row number "
                "(pandas: to_csv(index=False) leaves it out)? features: [...] names those to use"
            )
        return names

    def column(self, name: str) -> list[str]:
        """The text of a column's cells, without the white space around them."""
        if name not in self.header:
            raise DataError(self._why_missing(name))
        if self.header.count(name) > 1:
            raise DataError(f'{self.path} has {self.header.count(name)} columns named "{name}"')
        j = self.header.index(name)
        return [row[j].strip() for row in self.rows]

    def _why_missing(self, name: str) -> str:
        first = self.header[0]
        if all(number(text) is not None for text in self.header):
            return (
                f"{self.path}: the first line holds numbers ({shortened(', '.join(self.header))}) "
                f'and no column "{name}"; expected the names of the columns there'
            )
        for other, written in ((";", ";"), ("\t", r"\t"), ("|", "|"), (",", ",")):
            if len(self.header) == 1 and other in first:
                return (
                    f'{self.path} has one column, "{shortened(first)}"\n'
                    f'hint: set delimiter: "{written}" if that separates its cells'
                )
        return missing_name(f"{self.path} has no column", name, "columns", self.header)

    def numbers(self, name: str, hint: str) -> NDArray[np.float64]:
        """A column of finite numbers; raises DataError naming the first cell that is not one."""
        cells = self.column(name)
        try:
            values = np.array(list(map(float, cells)))
        except ValueError:
            values = np.array([np.nan])
        if not np.isfinite(values).all() or "_" in "".join(cells):
            # The slow way, which only looks for the offenders.
            found = [number(cell) for cell in cells]
            bad = [i for i, x in enumerate(found) if x is None or not math.isfinite(x)]
            raise self.refusal(name, bad, "expected a number", hint)
        return values

    def refusal(self, name: str, bad: Sequence[int], expected: str, hint: str = "") -> DataError:
        """The error for the cells of column `name` in rows `bad`; it shows the first."""
        cell = self.column(name)[bad[0]]
        if not cell:
            found, hint = "an empty cell", "fill it in or delete the row"
        elif number(cell) is None:
            found = f'the text "{shortened(cell)}"'
            if has_decimal_comma(cell):
                hint = "numbers are written with a decimal point, not a comma"
        else:
            found = f'"{shortened(cell)}"'
            hint = hint if math.isfinite(float(cell)) else "fill such values in or delete the rows"
        more = f" ({len(bad) - 1} more in this column)" if len(bad) > 1 else ""
        where = f'{self.path}, line {self.lines[bad[0]]}, column "{name}"'
        return DataError(
            f"{where}: {expected}, found {found}{more}" + (f"\nhint: {hint}" if hint else "")
        )


def number(cell: str) -> float | None:
    """The number, perhaps NaN or infinite, that a cell holds, or None.

    Python's float() also takes "1_000"; a table that says so means something else.
    """
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def has_decimal_comma(cell: str) -> bool:
    return cell.count(",") == 1 and number(cell.replace(",", ".")) is not None


def shortened(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


def missing_name(problem: str, name: str, kind: str, existing: Sequence[str]) -> str:
    """`problem` and the name, the nearest name that exists, and all there are."""
    listed = ", ".join(existing[:20])
    if len(existing) > 20:
        listed += f" ... ({len(existing)} in all)"
    return f'{problem} "{name}"{did_you_mean(name, existing)}\n{kind}: {listed}'


def did_you_mean(name: str, existing: Sequence[str]) -> str:
    from difflib import get_close_matches  # late: only an error needs it

    lower = {other.lower(): other for other in existing}
    close = get_close_matches(name.lower(), lower, n=1)
    return f'; did you mean "{lower[close[0]]}"?' if close else ""
