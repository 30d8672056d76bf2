"""Texts of a configuration that say more: a duration, and the name of what is measured.

One type for every such key of the YAML, so that no key needs a sibling named `..._unit`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

FORM = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(epochs?|steps?|%|min)"


class Duration(str):
    """A duration in its normal spelling; being text, it is stored as JSON and YAML as it is.

    `unit` is `epoch`, `step`, `%` (of the whole run) or `min` (wall clock); `amount` is exact.
    Raises ValueError for any other text, for zero, and for a fraction of a step.

    >>> Duration("20 epochs").steps(steps_per_epoch=125)
    2500
    >>> Duration("5%").steps(steps_per_epoch=125, total_steps=2500)
    125
    """

    EXPECTED = "a duration such as `20 epochs`, `500 steps`, `5%` or `10 min`"

    amount: Fraction
    unit: str

    def __new__(cls, text: str) -> Duration:
        match = re.fullmatch(FORM, text.strip())
        if match is None:
            raise ValueError(f"not a duration such as `20 epochs` or `500 steps`: {text!r}")
        number, unit = match[1], match[2].removesuffix("s")
        amount = Fraction(number)
        if amount == 0:
            raise ValueError(f"a duration must be positive: {text!r}")
        if unit == "step" and amount.denominator != 1:
            raise ValueError(f"steps are whole numbers: {text!r}")
        plural = "s" if unit in ("epoch", "step") and amount != 1 else ""
        duration = super().__new__(cls, f"{number}{'' if unit == '%' else ' '}{unit}{plural}")
        duration.amount, duration.unit = amount, unit
        return duration

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Callable[[Any], Any]) -> Any:
        """How pydantic reads a text that is annotated as a duration."""
        from pydantic_core import core_schema

        text = core_schema.str_schema(pattern=rf"^\s*{FORM}\s*$")
        return core_schema.no_info_after_validator_function(cls, text)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Callable[[Any], Any]) -> Any:
        """The JSON Schema of such a text."""
        return {**handler(schema), "title": cls.EXPECTED}

    def steps(self, steps_per_epoch: int, total_steps: int | None = None) -> int:
        """The duration in optimizer steps, rounded up; `5%` is a part of `total_steps`.

        Raises ValueError for minutes, which only a clock can count, and for a percentage when
        `total_steps` is not given.
        """
        if self.unit == "step":
            return int(self.amount)
        if self.unit == "epoch":
            return math.ceil(self.amount * steps_per_epoch)
        if self.unit == "%" and total_steps is not None:
            return math.ceil(self.amount * total_steps / 100)
        raise ValueError(f"{self} has no number of steps here")


class Measure(str):
    """The name of a column of values: a part of the data and a field of metrics.jsonl.

    Example:
        >>> from microtrain.config.texts import Measure
        >>> Measure("val/loss").part, Measure.of("val", "r2")
        ('val', 'val/r2')
    """

    @classmethod
    def of(cls, part: str, field: str) -> Measure:
        """The name of a field of a part."""
        return cls(f"{part}/{field}")

    @property
    def part(self) -> str:
        """Of the data: `train`, `val` or `test`; empty where the text names none."""
        return self.partition("/")[0] if "/" in self else ""

    @property
    def field(self) -> str:
        """`loss` or the name of a metric."""
        return self.partition("/")[2] or str(self)
