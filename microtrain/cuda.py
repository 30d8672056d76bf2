"""What scripts ask about GPUs before they choose a device, and the choice."""

from __future__ import annotations

from .backend import cuda_device_count, device, use_gpu
from .errors import need


def device_count() -> int:
    """The number of GPUs that CuPy can use; 0 where it is not installed."""
    return cuda_device_count()


def is_available() -> bool:
    """Whether there is a GPU that CuPy can use.

    Example:
        >>> device = mt.device("cuda" if mt.cuda.is_available() else "cpu")
    """
    return device_count() > 0


def set_device(which: int | str | device) -> None:
    """Make a GPU the current device of this thread, which `cuda` without a number is.

    Raises RuntimeError for one that is absent or does not compute, ValueError for the CPU.

    Example:
        >>> if mt.cuda.device_count() > 1:
        ...     mt.cuda.set_device(1)
    """
    index = which if isinstance(which, int) else device(which).index
    if index is None:
        raise ValueError(f"set_device: expected the number of a GPU or cuda:N, got {which!r}")
    count = cuda_device_count()
    there, text = 0 <= index < count, f"does not exist: this machine has {count}"
    need(there, f"device cuda:{index}", text)
    use_gpu(index)
