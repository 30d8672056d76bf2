"""How numbers, sizes, times, lists and tables are written, wherever people read them.

Plain text that a pipe or a log can hold. Standard library only.
"""

from __future__ import annotations

import json
import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest


def number(value: float) -> str:
    """Five significant digits, and all of a whole part below 10^9: 0.24987, 1,318,680, 1.5e-07.

    At most 11 characters: a negative number with a three-digit exponent gets four digits.
    """
    if not math.isfinite(value):
        return str(float(value))
    if value == 0:
        return "0.0000"
    if 9999.5 <= abs(value) < 999_999_999.5 and len(text := f"{value:,.0f}") <= 11:
        return text
    text = f"{value:#.5g}"
    if len(text) > 11:
        text = f"{value:#.4g}"
    return text.rstrip(".").replace("e+0", "e").replace("e+", "e")


def rate(per_second: float) -> str:
    """Samples per second in at most nine characters (below 10^14): 141,020 or 12.3M or 10.0G."""
    if not math.isfinite(per_second):
        return "-"
    if per_second < 9_999_999.5:
        return f"{per_second:,.0f}"
    if per_second < 1e10:
        return f"{per_second / 1e6:.1f}M"
    return f"{per_second / 1e9:.1f}G"


def plural(count: float, noun: str) -> str:
    """`1 step`, `2,500 steps`, `1.5 epochs`."""
    text = f"{count:,.0f}" if count == int(count) else f"{count:,.2f}"
    return f"{text} {noun}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """Bytes in decimal units: 8 B, 404 KB, 1.2 MB."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def elapsed(seconds: float) -> str:
    """`0.82 s`, `12.3 s`, `2 min 05 s`, `1 h 02 min`."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def terminal_width() -> int:
    """Characters that fit into a line of the terminal; 80 where there is none."""
    return shutil.get_terminal_size().columns


def unfit(names: Sequence[str], width: int) -> list[str]:
    """What is said below or above a table of the columns that it had no room for, in lines."""
    text = f"columns that did not fit: {', '.join(names)}"
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return lines if names else []


def listed(names: Sequence[str], most: int = 20) -> str:
    """`a, b, c`; of more than `most` the first and how many there are."""
    more = f" ... ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as `1, 2` and `0-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(parts)


def table(rows: Sequence[Sequence[str]], indent: int = 0) -> list[str]:
    """Lines of `rows` with aligned columns; a row may be shorter than others."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    start = " " * indent
    return [
        start + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)).rstrip()
        for row in rows
    ]


def html_table(rows: Sequence[Sequence[str]], title: str) -> str:
    """The same as HTML, for notebooks: numbers stand to the right, but for the first column."""
    from html import escape

    def cell(i: int, text: str) -> str:
        digits = i and text and not text.strip("0123456789,.")
        align = "right" if digits else "left"
        return f'<td style="text-align: {align}">{escape(printable(text))}</td>'

    lines = [f"<tr>{''.join(cell(i, text) for i, text in enumerate(row))}</tr>" for row in rows]
    return f"<table><caption>{escape(printable(title))}</caption>{''.join(lines)}</table>"


def labeled(facts: Mapping[str, str]) -> list[str]:
    """Lines of names and texts in two columns."""
    return table([*facts.items()])


def printable(text: str, escape: bool = True) -> str:
    """`text` with what a terminal would act upon (line breaks, controls) escaped or blanked."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() if escape else " "
        for c in text
    )


def quoted(text: str) -> str:
    """`text` in double quotes, on one line and of bounded length."""
    short = text if len(text) <= 60 else text[:57] + "..."
    return printable(json.dumps(short, ensure_ascii=False))
