"""Products of vectors, matrices and batches of them: bmm, outer, addmm, einsum."""

from __future__ import annotations

__all__: list[str] = []
