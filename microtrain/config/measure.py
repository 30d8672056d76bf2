"""What is measured in which part of the data, such as `val/loss`."""

from __future__ import annotations

__all__ = ["Measure"]


class Measure(str):
    """The name of a column of values: a part of the data and a field of metrics.jsonl.

    Example:
        >>> from microtrain.config.measure import Measure
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
