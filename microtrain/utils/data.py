"""Where PyTorch has datasets, which are in `mt.data` here: a name asked of this says its own."""

from ..common.missing_names import say_instead

__all__: list[str] = []


def __dir__() -> list[str]:
    return __all__


globals()["__getattr__"] = say_instead(__name__)
