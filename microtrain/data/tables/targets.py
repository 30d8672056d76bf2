"""Which column of a table is likely to be predicted, and what it holds: for people to look at."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import DataError
from .columns import read_target
from .frame import Frame, counted, shortened
from .notation import is_empty
from .propose import DIFFERENT, IS_ID, MOST_CATEGORIES, Proposal, amount, are_codes, slips

_FEW_CLASSES = 20
_CLASSES = "target|label|class|species|diagnosis|category|type|group"
_TARGET = re.compile(
    rf"^({_CLASSES}|y|outcome|response|churn(ed)?|default(ed)?|survived|fraud|converted|price|"
    r"is_\w+)$",
    re.IGNORECASE,
)
_NAMES_CLASSES = re.compile(rf"(^|[_ .-])({_CLASSES}|code)$", re.IGNORECASE)
_NO_TARGET = re.compile(
    r"^(.*(fips|zip)|lat|lon|lng|latitude|longitude|z|year|month|day|hour|minute|subject|individual|person)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Target:
    """What a target holds.

    Attributes:
        is_classes: else it is numbers.
        categorical: whether a configuration must say so.
        found: in words.
        binary: whether there are two classes.
        is_count: whether the numbers are counts.
    """

    is_classes: bool
    categorical: bool
    found: str
    binary: bool = False
    is_count: bool = False


def guess_target(frame: Frame, proposals: Mapping[str, Proposal], command: str) -> tuple[str, str]:
    """The column that is most likely to be predicted, and why.

    command: to which `--target NAME` can be added.

    Raises DataError that names candidates, where the likely one is a date, says which row it is, or
    has too many classes.
    """
    names = [name for name in frame.names if name and name not in frame.index] or frame.names
    filled = [name for name in names if 2 * proposals[name].missing <= len(frame)]
    able = [name for name in filled if _can_be_target(proposals[name])]
    lower = {name.casefold() for name in names}
    likely = [name for name in able if _TARGET.match(name)]
    likely = [name for name in likely if name.casefold() != "y" or not {"x", "z"} <= lower]
    if likely:
        return likely[-1], "by its name"
    last, others = names[-1], [name for name in able if not proposals[name].doubt]
    if last in others or (last in able and not others):
        return last, "the last column"
    what = proposals[last].doubt or proposals[last].why
    shown = [*(others or able)[:-4:-1], *[last] * (last in able)]  # for it may be it, after all
    words = [*map(shlex.quote, shown)] or ["NAME"]
    examples = "".join(f"\n  {command} --target {word}" for word in words)
    raise DataError(
        f'{frame.origin}: which column is to be predicted? The last one, "{last}", does not seem '
        f"to be it ({what})\nhint: name it, such as{examples}"
    )


def _can_be_target(proposal: Proposal) -> bool:
    name, spec = proposal.name, proposal.spec
    if proposal.why == DIFFERENT and not IS_ID.search(name):
        return True  # which says little of a last column
    kinds = ("drop", "id", "date")
    is_other = spec in kinds or any(f": {kind}" in spec for kind in kinds)
    many = "category" in spec and proposal.distinct > MOST_CATEGORIES
    return not (is_other or many) and not _NO_TARGET.match(name)


def absent_classes(frame: Frame, name: str) -> list[str]:
    """The texts among classes that stand for no value: "NA", but not "none", which may be one."""
    texts, _ = counted(frame, name)
    words = [text for text in texts if text and is_empty(text)]
    many = len(texts) > _FEW_CLASSES and frame.notation.floats(texts) is not None
    return [] if many else [word for word in words if word.casefold() not in ("none", "nil")]


def describe(frame: Frame, name: str) -> Target:
    """What a target holds; DataError where all rows have the same."""
    texts, counts = counted(frame, name)
    if len(texts) == 1:
        found = f'"{shortened(texts[0])}" in every row, so there is nothing to learn'
        raise DataError(f'{frame.origin}, column "{name}": {found}; name another target')
    categorical = False
    try:
        values, classes = read_target(frame, name)
    except DataError:  # such as numbers, and a text beside them
        if categorical := len(texts) <= _FEW_CLASSES:
            values, classes = read_target(frame, name, categorical)
        else:
            raise
    low, high = (0.0, 0.0) if classes else (float(values.min()), float(values.max()))
    whole = classes is None and bool((values % 1 == 0).all())
    few = whole and len(texts) <= _FEW_CLASSES
    coded = whole and are_codes(texts)
    # Of goals or children many are few, and the most are rare; of classes a rare one is not last.
    top = counts[[frame.notation.number(text) == high for text in texts]].sum()
    rare = counts.min() < 5 or (low == 0 and 4 * top < counts.max())
    is_count = few and not coded and low >= 0 and len(texts) >= 5 and bool(rare)
    is_count = is_count and not _NAMES_CLASSES.search(name)
    if coded or (few and not is_count):
        categorical = True
        values, classes = read_target(frame, name, categorical)
    if classes is None:
        ends = f"{amount(low)} to {amount(high)}"
        found = f"whole numbers from {ends}, not classes" if is_count else f"numbers from {ends}"
        return Target(False, False, found, is_count=is_count)
    order = sorted(range(len(texts)), key=lambda i: -counts[i])
    shown = order[: 5 if len(order) == 5 else 4]  # one alone is not worth the dots
    shares = ", ".join(f"{shortened(texts[i])} ({_share(counts[i] / len(frame))})" for i in shown)
    found = f"{len(classes)} classes: {shares}{', ...' * (len(order) > len(shown))}"
    found += slips(texts, counts) if len(texts) <= MOST_CATEGORIES else ""
    return Target(True, categorical, found, len(classes) == 2)


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= 0.01 else "under 1%"
