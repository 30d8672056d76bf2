"""What PyTorch has under `torch.utils`."""

from ..common.missing_names import say_instead
from . import checkpoint, data

__all__ = ["checkpoint", "data"]


def __dir__() -> list[str]:
    return __all__


globals()["__getattr__"] = say_instead(__name__)
