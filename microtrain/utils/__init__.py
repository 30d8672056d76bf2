"""What PyTorch's users look for under this name: memory saved by computing twice."""

from typing import Any

from . import checkpoint

__all__ = ["checkpoint"]

# What PyTorch's users write at this place that has another name or form here.
_INSTEAD = {"data": "datasets and batches are in mt.data (ArrayDataset, DataLoader)"}


def __getattr__(name: str) -> Any:
    hint = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return __all__
