"""Triangles and diagonals of matrices."""

from __future__ import annotations

__all__: list[str] = []
