"""A csv file as columns of text that know where each cell stands, so that an error can say it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Sequence
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
    "other_delimiter",
    "positions",
    "shortened",
    "the_one",
]


class Table:
    """The cells of a csv file, or of a part of its rows, as text with the line each row starts on.

    `Table.read` and `Table.parts` raise DataError for a file without a header or rows, or with rows
    of different lengths.
    """

    def __init__(self, path: Path, header: list[str]) -> None:
        self.path, self.header = path, header
        self.positions = positions(path, header)
        self.rows: list[list[str]] = []
        self.lines: list[int] = []  # as an editor counts: a quoted cell may span several

    @classmethod
    def read(cls, path: Path, text: str, delimiter: str) -> Table:
        """The whole of a file."""
        (table,) = cls.parts(path, io.StringIO(text, newline=""), delimiter)
        return table

    @classmethod
    def parts(
        cls, path: Path, text: Iterable[str], delimiter: str, rows: int | None = None
    ) -> Iterator[Table]:
        """At most `rows` rows at a time of a file that is read meanwhile."""
        reader = csv_reader(text, delimiter=delimiter, strict=True)
        line = 1
        blank = 0  # the line of the first of blank ones that end the file, perhaps
        try:
            table = cls(path, [name.strip() for name in next(reader, [])])
            if not table.header:
                raise DataError(
                    f"{path}: the first line is empty; expected the names of the columns"
                )
            line = reader.line_num + 1
            found = 0
            for row in reader:
                if not row:
                    blank = blank or line
                else:
                    table._add(row, line, blank)
                    found += 1
                    if len(table.rows) == rows:
                        yield table
                        table = cls(path, table.header)
                line = reader.line_num + 1
        except CsvError as error:
            raise DataError(f"{path}, line {line}: {error}") from error
        if not found:
            raise DataError(f"{path} has a header but no rows: the data set is empty")
        if table.rows:
            yield table

    def _add(self, row: list[str], line: int, blank: int) -> None:
        if blank or len(row) != len(self.header):
            other = other_delimiter(self.header)
            cells = [f"{n} cell{'s' if n > 1 else ''}" for n in (len(row), len(self.header))]
            raise DataError(
                f"{self.path}, line {blank or line}: {'a blank line' if blank else cells[0]}, "
                f"expected {cells[1]} as in the header"
                + (f'\nhint: are its cells separated by "{other}"?' if other else "")
            )
        self.rows.append(row)
        self.lines.append(line)

    def place(self, row: int, name: str) -> str:
        return f'{self.path}, line {self.lines[row]}, column "{name}"'

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
        if name not in self.positions:
            raise DataError(self._why_missing(name))
        j = the_one(self.path, name, self.positions)
        return [row[j].strip() for row in self.rows]

    def _why_missing(self, name: str) -> str:
        if all(number(text) is not None for text in self.header):
            return (
                f"{self.path}: the first line holds numbers ({shortened(', '.join(self.header))}) "
                f'and no column "{name}"; expected the names of the columns there'
            )
        if other := other_delimiter(self.header):
            return (
                f'{self.path} has one column, "{shortened(self.header[0])}"\n'
                f'hint: set delimiter: "{other}" if that separates its cells'
            )
        return missing_name(f"{self.path} has no column", name, "columns", self.header)

    def numbers(self, name: str, hint: str = "") -> NDArray[np.float64]:
        """A column of finite numbers; raises DataError naming the first cell that is not one."""
        cells = self.column(name)
        try:
            values = np.array(list(map(float, cells)))
        except ValueError:
            values = np.array([np.nan])
        text = "".join(cells)
        if not np.isfinite(values).all() or "_" in text or not text.isascii():
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
        where = self.place(bad[0], name)
        return DataError(
            f"{where}: {expected}, found {found}{more}" + (f"\nhint: {hint}" if hint else "")
        )


def positions(origin: object, header: Sequence[str]) -> dict[str, list[int]]:
    """Where each name stands in a header; DataError for one that no file can have meant."""
    found: dict[str, list[int]] = {}
    for place, name in enumerate(header):
        if "\0" in name:
            raise DataError(
                f"{origin}: the name of column {place + 1} has a NUL in it: {name!r:.60}"
            )
        found.setdefault(name, []).append(place)
    return found


def the_one(origin: object, name: str, positions: dict[str, list[int]]) -> int:
    """Where the only column of this name stands."""
    if len(positions[name]) > 1:
        raise DataError(f'{origin} has {len(positions[name])} columns named "{name}"')
    return positions[name][0]


def other_delimiter(header: Sequence[str]) -> str:
    """What would cut a header of one cell, as YAML writes it; empty where nothing would."""
    written = {"\t": r"\t"}
    found = [x for x in (";", "\t", "|", ",") if len(header) == 1 and x in header[0]]
    return written.get(found[0], found[0]) if found else ""


def number(cell: str) -> float | None:
    """The number, perhaps NaN or infinite, that a cell holds, or None.

    Python's float() also takes "1_000", and digits of other scripts; a table that says so means
    something else.
    """
    try:
        return float(cell) if "_" not in cell and cell.isascii() else None
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
