"""Square matrices: inverse, solve, cholesky, det."""

from __future__ import annotations

__all__: list[str] = []
