"""Three or more samples for every operation in the registry, and what others say about each.

A sample is the arguments of one call: arrays (float64 where they are floats), numbers or None, and
attributes. The tests of the registry run every one of them through every law. Every module of this
package holds those of one family of operations:

    SAMPLES     the samples by operation
    REFERENCE   `f(*arrays, **attrs)`: the value, computed another way with NumPy
    TORCH       `f(torch, *tensors, **attrs)`: the same call in PyTorch

Where `smooth` is False the point is a tie, a kink or a constant result, and finite differences say
nothing about it. `second=False` marks a point where PyTorch itself has no second derivative.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from .sample import Sample

__all__ = ["REFERENCE", "SAMPLES", "TORCH", "Sample"]

SAMPLES: dict[str, list[Sample]] = {}
REFERENCE: dict[str, Any] = {}
TORCH: dict[str, Any] = {}

for _found in pkgutil.iter_modules(__path__):
    if _found.name != "sample":
        _family = importlib.import_module(f"{__name__}.{_found.name}")
        for _table in ("SAMPLES", "REFERENCE", "TORCH"):
            _whole, _part = globals()[_table], getattr(_family, _table)
            assert not _whole.keys() & _part.keys(), f"{_table}: twice in {_found.name}"
            _whole |= _part
