"""Activation functions of `nn.functional`, as one operation each where that is faster."""

from __future__ import annotations

__all__: list[str] = []
