"""What PyTorch has under `torch.utils`."""

from ..common.missing_names import namespace
from . import checkpoint, data

__all__ = ["checkpoint", "data"]


namespace(globals())
