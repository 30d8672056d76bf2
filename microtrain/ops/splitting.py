"""Cutting a Tensor into parts, and repeating, turning and moving parts of it."""

from __future__ import annotations

__all__: list[str] = []
