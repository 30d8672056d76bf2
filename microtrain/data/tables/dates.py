"""Dates: the format in which a column writes them, and their parts as inputs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import PARTS, Part, days

VALUES = {"month": range(1, 13), "day_of_week": range(7), "hour": range(24)}  # an input each
_MONTHS = "january february march april may june july august september october november december"
_DAYS = "monday tuesday wednesday thursday friday saturday sunday"
_CLOCK = re.compile(
    r"(?P<gap>T|,? +)?[0-9]{1,2}:[0-9]{2}(?P<s>:[0-9]{2}(?P<f>[.][0-9]{1,6})?)?"
    r"(?P<half> ?[ap]m)?(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?",
    re.IGNORECASE,
)


def parts_of(days: NDArray[np.float64], part: Part) -> NDArray[np.float64]:
    """What a part is of days since 1970-01-01, of the same shape; Monday is day 0 of a week."""
    if part == "days":
        return days
    seconds = np.round(days * 86_400).astype("datetime64[s]")
    day, year = seconds.astype("datetime64[D]"), seconds.astype("datetime64[Y]")
    found = {
        "year": 1970 + year.astype(int),
        "month": 1 + seconds.astype("datetime64[M]").astype(int) % 12,
        "day_of_week": (day.astype(int) + 3) % 7,
        "hour": (seconds - day).astype(int) // 3600,
    }
    return np.asarray(found[part], np.float64)


def inputs_of(part: Part) -> list[str]:
    """The names of the inputs that a part becomes."""
    return [f"{part}={value}" for value in VALUES[part]] if part in VALUES else [part]


def encoded(days: NDArray[np.float64], part: Part) -> NDArray[Any]:
    """A part of days since 1970-01-01 as inputs, of shape (n, 1), or (n, values) of booleans."""
    found = parts_of(days, part)[:, None]
    return found == np.array(VALUES[part]) if part in VALUES else found


def varying(days: NDArray[np.float64]) -> list[Part]:
    """The parts that are not the same in all rows; of what is monthly no day of the week."""
    monthly = len(np.unique(_day_of_month(days))) == 1
    parts = [part for part in PARTS if not (monthly and part == "day_of_week")]
    return [part for part in parts if len(np.unique(parts_of(days, part))) > 1]


def _day_of_month(days: NDArray[np.float64]) -> NDArray[np.int64]:
    day = np.floor(days).astype("datetime64[D]")
    return np.asarray(day - day.astype("datetime64[M]"), np.int64)


def format_of(texts: Sequence[str]) -> tuple[str, str] | None:
    """How all of these texts, in the order of their rows, are written as dates.

    Returns the format, empty for ISO 8601, and a second one that would also do, else empty. Of
    several it is one by which the rows are in order, or by which all are of the same day of the
    month; else one with the day before the month. None: they are not dates.
    """
    if _all_days(texts, None) is not None:
        return "", ""
    read = ((form, _all_days(texts, form)) for form in _formats(texts[0]))
    able = [(-_plausible(found), i, form) for i, (form, found) in enumerate(read) if found]
    first, second = (*(form for *_, form in sorted(able)), "", "")[:2]
    return (first, second) if first else None


def _all_days(texts: Sequence[str], form: str | None) -> list[float] | None:
    found = []
    for text in texts:
        if (day := days(text, form)) is None:
            return None
        found.append(day)
    return found


def _plausible(days: list[float]) -> int:
    """How much speaks for a format by which a column holds these days."""
    steps = np.diff(days)
    in_order = (steps >= 0).all() or (steps <= 0).all()
    monthly = len(np.unique(_day_of_month(np.array(days)))) == 1
    return (2 * bool(in_order) + monthly) * (len(days) > 2)


def _formats(text: str) -> Iterator[str]:
    """Formats in which a text may be a date, the likely ones first."""
    clock = ""
    found = next((m for m in _CLOCK.finditer(text) if m.end() == len(text)), None)
    if found:
        text = text[: found.start()]
        half, zone = found["half"] or "", found["zone"]
        clock = f"{found['gap'] or ''}{'%I' if half else '%H'}:%M" + ":%S" * bool(found["s"])
        clock += ".%f" * bool(found["f"]) + half[:-2] + "%p" * bool(half) + "%z" * bool(zone)
    fields = re.findall(r"[0-9]+|[^\W\d_]+|[\W_]+", text)
    if not fields:
        yield clock
        return
    marked = [before.upper() == "Q" for before in ["", *fields]]
    options = [_codes(*each) for each in zip(fields, marked, strict=False)]
    for codes in itertools.product(*options):
        if _is_date("".join(codes)):
            yield "".join(codes) + clock


def _codes(field: str, in_quarter: bool) -> list[str]:
    """What a run of digits, letters or marks may be in a date."""
    if in_quarter:
        return ["%q"]
    if field.isdecimal():
        lengths = {8: ["%Y%m%d"], 6: ["%Y%m"], 4: ["%Y"]}
        return lengths.get(len(field), ["%d", "%m", "%y"] if len(field) < 3 else [])
    word = field.casefold()
    if word in ("q", "m", "t") or not word.isalpha():
        return [field.replace("%", "%%")]
    names = ((_MONTHS, "%b", "%B"), (_DAYS, "%a", "%A"))
    return [
        code
        for known, short, long in names
        for name in known.split()
        for code, form in ((short, name[:3]), (long, name))
        if word == form
    ]


def _is_date(form: str) -> bool:
    """Whether codes go together: a year, a month or quarter, perhaps a day, in a usual order."""
    order = "".join(re.findall("%([a-zA-Z])", form)).translate(str.maketrans("BA", "ba"))
    order = order.replace("a", "", 1)
    if order in ("Yq", "qY", "Ym", "mY", "Yb", "bY", "by", "yb"):
        return True
    usual = ("dmY", "mdY", "Ymd", "dbY", "bdY", "Ybd", "dmy", "mdy", "ymd", "dby", "bdy")
    return order in usual
