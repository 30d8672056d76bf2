"""Reading and writing at indices given by Tensors: gather, scatter and their relatives."""

from __future__ import annotations

__all__: list[str] = []
