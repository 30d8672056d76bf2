"""Products, running sums and products, and the logarithm of a sum of exponentials."""

from __future__ import annotations

__all__: list[str] = []
