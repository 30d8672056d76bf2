"""Where PyTorch has datasets, which are in `mt.data` here: a name asked of this says its own."""

from ..common.missing_names import namespace

__all__: list[str] = []


namespace(globals())
