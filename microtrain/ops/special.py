"""Functions of real numbers: trigonometric, hyperbolic, the error function and others."""

from __future__ import annotations

__all__: list[str] = []
