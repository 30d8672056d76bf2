"""What scripts ask about GPUs before they choose a device."""

from __future__ import annotations

from .backend import cuda_device_count

__all__ = ["device_count", "is_available"]


def device_count() -> int:
    """The number of GPUs that CuPy can use; 0 where it is not installed."""
    return cuda_device_count()


def is_available() -> bool:
    """Whether there is a GPU that CuPy can use.

    Example:
        >>> device = mt.device("cuda" if mt.cuda.is_available() else "cpu")
    """
    return device_count() > 0
