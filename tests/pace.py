"""Which cases of a test run every day; the others run with the slow tests."""

from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest


def daily(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test: `cases`, slow but for those in `quick`, all of which must be there.

    A tuple has the values of several parameters.
    """
    cases = list(cases)
    assert not [case for case in quick if case not in cases]
    slow = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        case if case in quick else pytest.param(*values, marks=pytest.mark.slow)
        for case, values in zip(cases, slow, strict=True)
    ]


def examples(count: int) -> int:
    """How many examples of hypothesis are drawn where it is `count`, a fifth in profile "quick"."""
    return max(2, count * hypothesis.settings.default.max_examples // 100)
