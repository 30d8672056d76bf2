"""Many runs, one a line: columns that can be sorted, written as CSV, and read in 80 characters.

Columns that do not fit into the width are left out, the least important first, and named below the
table: lines are never wrapped. What varied is always shown.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..common.spelling import did_you_mean
from ..common.words import number, printable, table, unfit
from ..config.texts import Measure
from ..errors import ConfigError, DataError
from ..runs.run import Run
from .record import PLACES, differing_settings, direction, given_settings, shortened

ALWAYS = 9.0  # a weight: what is never left out
UNASKED = 0.5  # that of a setting that nobody has given


class Spread(float):
    """A mean that knows its sample standard deviation."""

    deviation: float = math.nan

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Of some values; None where there are none."""
        if not values:
            return None
        spread = cls(statistics.fmean(values))
        if len(values) > 1:
            spread.deviation = statistics.stdev(values)
        return spread


@dataclass(frozen=True, eq=False)
class Column:
    """What is said of all runs under one heading.

    Attributes:
        name: the heading.
        values: one a run; None where there is nothing to say.
        weight: of the importance: columns of little weight are left out first, of 0 always, and
            of `ALWAYS` and more never.
        better: 1 where higher values are better, -1 where lower ones are; 0: neither.
        show: a value as text.
    """

    name: str
    values: Sequence[Any]
    weight: float = 0.0
    better: int = 0
    show: Callable[[Any], str] = lambda value: _text(value)

    def cell(self, row: int) -> str:
        """The value of a row as text; `-` where there is none."""
        value = self.values[row]
        return "-" if value is None else self.show(value)

    def texts(self) -> list[str]:
        """The cells; numbers stand to the right."""
        texts = [self.name, *map(self.cell, range(len(self.values)))]
        if all(value is None or not isinstance(value, str) for value in self.values):
            width = max(map(len, texts))
            texts = [text.rjust(width) for text in texts]
        return texts


def _text(value: Any) -> str:
    if isinstance(value, float):
        text = number(value)
        if isinstance(value, Spread) and math.isfinite(value.deviation):
            digits = len(text.partition(".")[2])  # as many as the mean has, so that they align
            spread = value.deviation
            text += f" ± {number(spread) if 'e' in text else f'{spread:.{digits}f}'}"
        return text
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def in_lines(columns: Iterable[Column], width: int) -> list[str]:
    """A table of at most `width` characters, and what was left out of it."""
    cells = {c: c.texts() for c in columns if any(v is not None for v in c.values) and c.weight}
    left_out: list[str] = []
    while len(cells) > 1 and max(map(len, table([*zip(*cells.values(), strict=True)]))) > width:
        least = min(reversed(cells), key=lambda column: column.weight)
        if least.weight >= ALWAYS:
            break
        left_out[:0] = [least.name] if least.name else []
        del cells[least]
    lines = table([*zip(*cells.values(), strict=True)])
    return lines + ["", *unfit(left_out, width)] * bool(left_out)


def in_csv(columns: Iterable[Column]) -> str:
    """All columns with all digits; what is not known is empty."""
    kept = [*columns]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in kept])
    writer.writerows(zip(*(column.values for column in kept), strict=True))
    return text.getvalue()


def sort(columns: Sequence[Column], by: str) -> list[Column]:
    """The columns with their rows sorted by one of them: the best value first, where one is better.

    What has no value comes last, and so do settings that nobody has given. Raises ConfigError where
    there is no such column.
    """
    chosen = next((column for column in columns if column.name == by), None)
    if chosen is None:
        names = [column.name for column in columns]
        near = did_you_mean(by, names)
        raise ConfigError(f'--sort: no column "{by}"{near} (there are: {", ".join(names)})')

    def place(i: int) -> tuple[bool, bool, Any]:
        value = chosen.values[i]
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return True, True, 0
        is_text = isinstance(value, str)
        return False, is_text, value if is_text else -value if chosen.better > 0 else value

    order = sorted(range(len(chosen.values)), key=place)
    last = sorted(columns, key=lambda column: column.weight == UNASKED)
    return [replace(c, values=[c.values[i] for i in order]) for c in last]


# microtrain list ----------------------------------------------------------------------------------


def find_runs(places: Sequence[str | Path]) -> list[Path]:
    """The run directories at and below these: a run, those of one name, or all that `run_dir` has.

    Each once, the newest first. Raises DataError for a place that is not a directory or has no run.
    """
    found: dict[Path, None] = {}
    for place in places:
        root = Path(os.path.expanduser(place))
        if not root.is_dir():
            raise DataError(f"no runs at {place}: there is no such directory")
        below = [root, *root.glob("*"), *root.glob("*/*")]
        if not (root / "run.json").is_file():  # the members of a sweep are listed where it is named
            below = [path for path in below if not (path.parent / "run.json").is_file()]
        runs = [path for path in below if path == root or not path.is_symlink()]
        runs = [path.resolve() for path in runs if (path / "run.json").is_file()]
        if not runs:
            raise DataError(f"no run in {place}: looked for {root / '<name>/<time>/run.json'}")
        found |= dict.fromkeys(runs)
    return sorted(found, key=lambda path: (path.name, str(path)), reverse=True)


def listing(paths: Sequence[Path], warn: Callable[[str], None]) -> list[Column]:
    """What there is to say of runs, of each in one line; `warn` hears of those that are damaged."""
    runs = []
    for path in paths:
        try:
            runs.append(Run.read(path))
        except DataError as error:
            warn(str(error).splitlines()[0])
    infos = [run.info for run in runs]
    bests = [run.info.best if run.info.sweep else run.best_so_far for run in runs]
    counts = [sum(info.members.values()) if info.sweep else None for info in infos]
    columns = [
        Column("run", [run.label for run in runs], 10),
        Column("status", [run.status for run in runs], 9),
        Column("members", counts, 6),
        Column("best member", [info.best_member for info in infos], 5),
        Column("steps", [None if run.info.sweep else _steps(run) for run in runs], 6),
    ]
    for name in dict.fromkeys(best.name for best in bests if best):
        values = [best.value if best and best.name == name else None for best in bests]
        columns.append(Column(name, values, 8, direction(runs, name)))
    columns += [Column("best step", [best.step if best else None for best in bests], 3)]
    tests = [info.test or {} for info in infos]
    for name in dict.fromkeys(key for test in tests for key in test if key != "step"):
        values = [test.get(name) for test in tests]
        test = Measure.of("test", name)
        columns.append(Column(test, values, 4 if name == "loss" else 7, direction(runs, test)))
    return [
        *columns,
        _seconds(runs, 5),
        Column("ranks", [info.ranks for info in infos]),
        Column("started", [info.started for info in infos]),
        Column("path", [str(run.path) for run in runs]),
        Column("error", [info.error for info in infos]),
    ]


def _steps(run: Run) -> int | None:
    """Steps taken, also of a run that is under way or was killed."""
    return run.info.steps if run.info.steps is not None else run.history.last_step


def _seconds(runs: Sequence[Run], weight: float) -> Column:
    values = [run.info.timings.get("train_s") for run in runs]
    return Column("seconds", values, weight, show="{:,.1f}".format)


# microtrain compare of more than two --------------------------------------------------------------


def table_of_runs(records: Sequence[Run]) -> list[Column]:
    """A line for each run: in what they differ, and what was measured.

    The values of a run are those at its best step by the monitored measure, its test values what
    they are.
    """
    monitor = records[0].monitor
    settings = {k: v for k, v in differing_settings(records).items() if k not in PLACES}
    names = [record.name for record in records]
    labels = names if len(set(names)) == len(names) else [record.label for record in records]
    status = [record.status for record in records]
    return [
        Column("run", labels, 10),
        Column("status", status, 9 if set(status) != {"finished"} else 0),
        *setting_columns(settings, records),
        *_measures(records, monitor),
        Column("steps", [_steps(record) for record in records], 2),
        _seconds(records, 1),
        Column("params_sha256", [record.info.params_sha256 for record in records]),
        Column("error", [record.info.error for record in records]),
        Column("path", [str(record.path) for record in records]),
    ]


def setting_columns(settings: dict[str, list[str | None]], records: Sequence[Run]) -> list[Column]:
    """A column for each; its heading is the last of its key, or all where another has that.

    What nobody has given, such as the defaults of two kinds of model, comes last and may be left
    out.
    """
    given = given_settings(records)
    settings = dict(sorted(settings.items(), key=lambda item: item[0] not in given))
    ends = {key: key.removesuffix(".type").rpartition(".")[2] for key in settings}
    columns = []
    for key, row in settings.items():
        short = key if [*ends.values()].count(ends[key]) > 1 else ends[key]
        weight = ALWAYS if key in given else UNASKED
        columns.append(Column(short, [*map(as_number, row)], weight, show=shortened))
    return columns


def as_number(text: Any) -> Any:
    """A setting as a number where it is one, so that it is sorted as such."""
    for kind in (int, float):
        with contextlib.suppress(ValueError, TypeError):  # TypeError: there is none
            return kind(text)
    return text


def _measures(records: Sequence[Run], monitor: str) -> list[Column]:
    columns: list[Column] = []
    bests = [record.best(monitor) for record in records]
    for name in dict.fromkeys(c for record in records for c in record.columns):
        test = name.part == "test"
        if name.part == "train" and name != monitor:
            continue
        values: list[float | None] = []
        for record, best in zip(records, bests, strict=True):
            steps, found = record.curve(name)
            if not test:
                found = found[steps == best[1]] if best else found[:0]
            values.append(float(found[-1]) if len(found) else None)
        weight = 9 if name == monitor else 7 if test else 6
        less = 0 if name == monitor else len(columns) / 100
        columns.append(Column(name, values, weight - less, direction(records, name)))
    return columns
