"""Order: sort, argsort, topk, median, unique."""

from __future__ import annotations

__all__: list[str] = []
