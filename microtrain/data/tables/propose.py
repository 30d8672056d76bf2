"""What the columns of a table seem to hold, and why: proposals for people to look at.

Nothing here decides what a run does. `microtrain init csv FILE` writes the proposals down, and
errors about columns name them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.spelling import is_slip
from ...common.words import plural
from ...errors import DataError
from .columns import MOST_ONE_HOT, days, name_of_gaps
from .dates import format_of, varying
from .frame import Counts, Frame, counted, shortened
from .notation import EXACT, is_empty

MOST_CATEGORIES = 30  # that become an input each, in any table
ROWS_TO_EMBED = 10_000  # from which learned numbers do better; measured in docs/decisions.md
DIFFERENT = "a different whole number in every row"
MOST_CODES = 12  # of whole numbers that nothing else tells from measurements
MOST_WORDS = 10  # in a column of numbers, that may stand for no value
IS_ID = re.compile(
    r"(^|[_ .-])(id|uuid|guid|key|index|nr|no|rownames|obs)$|^(id|uuid|guid|index)([_ .-]|$)|^$|"
    r"^unnamed: 0$|(?-i:[a-z](I[dD]|N[rR])$|^PID$)",
    re.IGNORECASE,
)
_GROUP = re.compile(
    r"(^|[_ .-])(id|uuid|guid|nr|no)$|(?-i:[a-z](I[dD]|N[rR])$|^PID$)|"
    r"^(subject|individual|person|patient|customer|client|user|member|household|family|"
    r"participant|respondent|student|pupil)$",
    re.IGNORECASE,
)
_CODES = re.compile(
    r"(^|[_ .-])(codes?|zip|plz|post(al)?code|store|shop|branch|month|weekday|day_?of_?week|dow|"
    r"quarter|region|district|sector|cluster|department|dept|type|category|zone)$",
    re.IGNORECASE,
)
_PLACES = re.compile(
    r"(fips|zip|code)$|(^|[_ .-])plz$|"
    r"(^|[_ .-])(state|county|country|city|town|region|district|province)_?(id|code|nr|no)$",
    re.IGNORECASE,
)
_COMPACT = re.compile("(19|20)[0-9]{2}(0[1-9]|1[0-2])(?P<day>[0-3][0-9])?")


@dataclass(frozen=True)
class Proposal:
    """What is proposed for a column.

    Attributes:
        name: of the column.
        spec: as YAML writes it under `columns`; `drop` to leave it out; empty for plain numbers.
        why: in words.
        distinct: how many different values it has.
        absent: texts among numbers, for `na_values`.
        missing: how many cells have no value.
        doubt: why it is hardly what is to be predicted, in words; empty where nothing says so.
    """

    name: str
    spec: str
    why: str
    distinct: int = 0
    absent: tuple[str, ...] = ()
    missing: int = 0
    doubt: str = ""


def are_codes(texts: Sequence[str]) -> bool:
    """Whether all are digits, with a zero before some of them: 007 is not a number."""
    return all(map(str.isdigit, texts)) and any(text[0] == "0" != text for text in texts)


def slips(texts: Sequence[str], counts: Counts) -> str:
    """Of a category: the first rare text that is a frequent one but for a slip, in words."""
    for text, few in zip(texts, counts.tolist(), strict=True):
        for other, many in zip(texts, counts.tolist(), strict=True):
            # A letter more or less is another code: A and AB, type1 and type11.
            is_word = min(len(text), len(other)) > 2 and not any(map(str.isdigit, text + other))
            same = text.casefold() == other.casefold()
            if few and 10 * few <= many and (same or (is_word and is_slip(text, other))):
                return f'; "{shortened(text)}" ({plural(few, "row")}) may mean "{shortened(other)}"'
    return ""


def amount(x: float) -> str:
    """A number for people to read: large and whole ones with all their digits."""
    if 10_000 <= abs(x) < 1e15:
        return f"{x:,.0f}"
    return f"{x:.0f}" if float(x).is_integer() and abs(x) < 1e15 else f"{x:g}"


def propose(frame: Frame, name: str) -> Proposal:
    """What a column seems to hold."""
    if name in frame.index:
        return Proposal(name, "drop", "the index of a pandas data frame")
    if not name and (several := frame.names.count("")) > 1:
        return Proposal(name, "drop", f"{several} columns without a name")
    texts, counts = counted(frame, name)
    values = frame.notation.floats(texts)
    kept = [not is_empty(text) for text in texts] if values is None else ~np.isnan(values)
    column = _Column(frame, name, texts, counts, kept)
    if not column.texts:
        return Proposal(name, "drop", "no cell has a value")
    values = None if values is None else values[kept]
    if len(column.texts) == 1 and (values is not None or len(texts) - ("" in texts) == 1):
        that = " that has a value" if column.missing else ""
        return Proposal(name, "drop", f'"{shortened(column.texts[0])}" in every row{that}', 1)
    # Of a file with types, a text of digits is a text.
    typed = frame.lines is None and any(isinstance(x, str) for x in frame.different(name)[0])
    # Of more digits than float64 keeps, many would be one number.
    long = values is not None and values.max() > EXACT and all(map(str.isdigit, column.texts))
    may_be_number = not (typed or column.is_code or long)
    if values is not None and may_be_number:
        return column.as_compact_date() or column.as_number(values)
    found = column.as_date()
    if found is None and may_be_number:
        found = column.as_number_beside_texts()
    if found is None:  # any text may be a category
        found = _Column(frame, name, texts, counts, [*map(bool, texts)]).as_text()
    return found


class _Column:
    """The different texts of a column that have a value, and how many rows have each."""

    def __init__(
        self, frame: Frame, name: str, texts: list[str], counts: Counts, kept: Any
    ) -> None:
        self.frame, self.name, self._every = frame, name, texts
        self.texts = [*itertools.compress(texts, kept)]
        self.counts = counts[np.array(kept, bool)]
        self.filled, self.missing = int(self.counts.sum()), int(counts.sum() - self.counts.sum())
        self.rows, self.unique = len(frame), len(self.texts) == self.filled
        self.doubt = ""
        if len(self.texts) <= MOST_CATEGORIES and self.counts.max(initial=0) >= 0.99 * self.filled:
            most = shortened(self.texts[int(self.counts.argmax())]) if self.texts else ""
            self.doubt = f'"{most}" in {self.counts.max(initial=0):,} of {plural(self.rows, "row")}'
        self.is_code = are_codes(self.texts)

    def proposal(
        self, type: str, why: str, fill: str = "", absent: Iterable[str] = (), **keys: str
    ) -> Proposal:
        note = ""
        if self.missing and fill == "none" and (fill := name_of_gaps(self._every)) != "none":
            note = f' (as "{fill}", for "none" is one of the texts)'
        keys |= {"missing": fill} if (self.missing or absent) and fill else {}
        spec = "" if type == "number" else type
        if keys:
            keys = ({"type": spec} if spec else {}) | keys
            spec = f"{{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}"
        if self.missing:
            why += f", {self.missing:,} of {plural(self.rows, 'cell')} empty{note}"
        return Proposal(
            self.name, spec, why, len(self.texts), tuple(absent), self.missing, self.doubt
        )

    def as_compact_date(self) -> Proposal | None:
        """Dates such as 20130614, or many months such as 201306, which are also numbers."""
        length = len(self.texts[0])
        if len(self.texts) < {8: 3, 6: 12}.get(length, math.inf):
            return None
        able = all(len(text) == length and _COMPACT.fullmatch(text) for text in self.texts)
        return self.as_date() if able else None

    def as_date(self) -> Proposal | None:
        if (found := format_of(self.texts)) is None:
            return None
        form, other = found
        values = np.array([days(text, form or None) for text in self.texts], np.float64)
        first, last = (self.texts[int(i)] for i in (values.argmin(), values.argmax()))
        of_day = bool(form) and not re.search("%[YymdbBq]", form)
        why = f"{'times' if of_day else 'dates'} from {first} to {last}"
        if other:
            why += f"; if the format is {other}, write that: no cell tells the two apart"
        if "%y" in form and values.min() < days("2000-01-01", None) <= values.max():
            why += "; of years of two digits, 69 to 99 are before 2000"
        keys = {"format": json.dumps(form)} if form else {}
        if len(parts := varying(values)) > 1:
            keys["parts"] = f"[{', '.join(parts)}]"
        return self.proposal("date", why, "median", **keys)

    def as_number(self, values: NDArray[np.float64]) -> Proposal:
        low, high, distinct = values.min(), values.max(), len(np.unique(values))
        why = f"numbers from {amount(low)} to {amount(high)}"
        if when := self._when(values):
            self.doubt = when
            why += f", {when}"
        if not (values % 1 == 0).all():
            return self.proposal("number", why, "median")
        may_count = self.unique and (not when or IS_ID.search(self.name))
        if may_count and distinct > 1 and self._counts_rows(low, high):
            return self.proposal("id", DIFFERENT)
        if low in (-99, -999, -9999) and values[values > low].min(initial=0) >= 0:
            why += f'; if {low:.0f} means no value, na_values: ["{low:.0f}"]'
        few, codes = distinct <= MOST_CATEGORIES, bool(_CODES.search(self.name))
        if distinct > 2 and few and (codes or _GROUP.search(self.name)):
            return self.as_codes(f"{distinct} whole numbers that seem to be codes, by the name")
        short = 2 < distinct <= self.filled // 5 and 0 <= low <= high < 100_000
        if short and _PLACES.search(self.name):
            why = f"{distinct:,} whole numbers that seem to be codes, by the name"
            return self.as_codes(why, **self._encoding() if distinct > MOST_CATEGORIES else {})
        if distinct > MOST_CATEGORIES and _GROUP.search(self.name):
            return self.as_group("whole numbers")
        few = bool(2 < distinct <= MOST_CODES and low >= 10 and not _are_years(low, high))
        if few and high - low >= 2 * distinct < self.filled / 5:
            return self.as_codes(f"only {distinct} different whole numbers")
        if codes and distinct > 2:
            keys = ["type: category", *(f"{key}: {x}" for key, x in self._encoding().items())]
            why += f"; if these are codes, {{{', '.join(keys)}}}"
        return self.proposal("number", why, "median")

    def as_codes(self, why: str, **keys: str) -> Proposal:
        why += "; number, if they measure something"
        return self.proposal("category", why, "none", **keys)

    def _when(self, values: NDArray[np.float64]) -> str:
        """What numbers are that rise from row to row and seem to be times; else empty."""
        low, high, whole = values.min(), values.max(), (values % 1 == 0).all()
        units = {1e9: "seconds", 1e12: "milliseconds"}
        unit = next((u for x, u in units.items() if whole and x <= low and high < 10 * x), "")
        if not (unit or (_are_years(low, high) and not whole)):
            return ""
        found = self.frame.numbers(self.name, gaps=True)
        if len(values) < 3 or (np.diff(found[~np.isnan(found)]) < 0).any():
            return ""
        return f"{unit} since 1970 that rise" if unit else "years that rise"

    def _encoding(self) -> dict[str, str]:
        """How categories beyond MOST_CATEGORIES become inputs: few rows are fitted one by one."""
        embeds = self.rows >= ROWS_TO_EMBED or len(self.texts) >= MOST_ONE_HOT
        return {"encode": "embedding"} if embeds else {}

    def as_group(self, what: str) -> Proposal:
        why = f"{len(self.texts):,} different {what}, and the name: rows of one group"
        return self.proposal("id", why)

    def _counts_rows(self, low: float, high: float) -> bool:
        """Whether whole numbers that all differ only count or name the rows."""
        if not all(map(str.isdigit, self.texts)):
            return False
        if IS_ID.search(self.name):
            return True
        if len(self.frame.names) < 3 or low < 0 or _are_years(low, high):
            return False  # the one input, or years
        is_first = self.frame.names[0] == self.name and self.filled > 20
        without_gaps = high - low == self.filled - 1
        return is_first or (without_gaps and self.filled > (5 if low <= 1 else 20))

    def as_number_beside_texts(self) -> Proposal | None:
        """Mostly numbers, but not all: a few values are categories, a few texts no value."""
        found = [self.frame.notation.number(text) for text in self.texts]
        odd = [t for t, x in zip(self.texts, found, strict=True) if x is None or not np.isfinite(x)]
        is_odd = np.isin(self.texts, odd)
        if 2 * self.counts[is_odd].sum() > self.filled:
            return None
        distinct, wrong = len(self.texts), shortened(odd[0])
        if distinct <= MOST_CATEGORIES and 5 * distinct <= self.filled:
            why = f'{distinct} different values, of which "{wrong}" is not a number'
            return self.proposal("category", why, "none")
        cells = plural(int(self.counts[is_odd].sum()), "cell")
        are = f'{cells} such as "{wrong}" {"is" if cells[:2] == "1 " else "are"} not a number'
        if len(odd) > MOST_WORDS:
            named = IS_ID.search(self.name) or _GROUP.search(self.name)
            if named or distinct <= max(MOST_CATEGORIES, self.filled // 5):
                return None
            why = f"{distinct:,} different texts in {self.rows:,} rows; {are}, unlike all others"
            return self.proposal("id" if self.unique else "drop", why)
        numbers = np.array([x for x, t in zip(found, is_odd, strict=True) if not t], np.float64)
        why = f"numbers from {amount(numbers.min())} to {amount(numbers.max())}; {are}: "
        return self.proposal("number", f"{why}empty by na_values", "median", odd)

    def as_text(self) -> Proposal:
        distinct, decimal = len(self.texts), self.frame.notation.decimal
        number = rf"[+-]?[0-9]+[{'.,'.replace(decimal, '')}][0-9]+"
        if distinct > 2 and all(re.fullmatch(number, text) for text in self.texts):
            why = f'numbers such as {self.texts[0]}, but decimal is "{decimal}" in this file'
            return Proposal(self.name, "drop", why, distinct)
        if self.unique and distinct > 2:
            if self.rows > 20 and max(map(len, self.texts)) > 40:
                why = f"free text: {distinct:,} different values"
                return Proposal(self.name, "drop", why, distinct)
            return self.proposal("id", "a different text in every row")
        # One alone is not worth the dots.
        some = [shortened(each) for each in sorted(self.texts)[: 5 if distinct == 5 else 4]]
        shown = ", ".join(f'"{each}"' if "," in each else each for each in some)
        why = f"{distinct:,} texts: {shown}{', ...' * (distinct > 5)}"
        why += ", codes with leading zeros" * self.is_code
        if distinct <= MOST_CATEGORIES:
            return self.proposal("category", why + slips(self.texts, self.counts), "none")
        if _GROUP.search(self.name):
            return self.as_group("texts")
        if distinct <= self.filled // 5:
            return self.proposal("category", why, "none", **self._encoding())
        if IS_ID.search(self.name):
            return self.proposal("id", f"{distinct:,} different texts, and its name")
        why = f"{distinct:,} different texts in {self.rows:,} rows"
        return Proposal(self.name, "drop", why, distinct)


def as_input(proposal: Proposal) -> Proposal:
    """Whole numbers that differ are a number where nothing else is left, if nothing names rows."""
    if proposal.why != DIFFERENT or IS_ID.search(proposal.name):
        return proposal
    return dataclasses.replace(proposal, spec="", why=f"{DIFFERENT}: the one input that is left")


def _are_years(low: float, high: float) -> bool:
    return low >= 1500 and high <= 2100


def advice(error: str, frame: Frame, names: Iterable[str]) -> str:
    """An error, and what to write for those of the columns `names` that are not plain numbers."""
    proposals = []
    for name in names:
        with contextlib.suppress(DataError):  # told by the error that the advice is for
            try:
                frame.numbers(name)
            except DataError:
                proposals.append(propose(frame, name))
    columns = [f"  {p.name}: {p.spec}" for p in proposals if p.spec not in ("", "drop")]
    dropped = [p.name for p in proposals if p.spec == "drop"]
    words = sorted({word for p in proposals for word in p.absent})
    if not columns and not dropped:
        if "\nhint: " in error:
            return error
        return (
            f"{error}\nhint: fill such cells in or delete the rows; columns of text can be left "
            "out: features: [...] names those to use"
        )
    lines = [
        f"{error}\nhint: correct the cells, or "
        f"say under data what they are{'' if columns else ', or leave them out'}"
    ]
    lines += [f"na_values: {json.dumps(words, ensure_ascii=False)}"] if words else []
    lines += ["columns:", *columns] if columns else []
    lines += [f"drop: [{', '.join(dropped)}]"] if dropped else []
    return "\n".join(lines)
