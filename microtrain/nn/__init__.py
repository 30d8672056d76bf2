"""Modules, layers, losses and their functions, under PyTorch's names."""

from . import functional as functional
from . import init as init
from . import utils as utils
from .activation import *  # noqa: F403
from .attention import MultiheadAttention as MultiheadAttention
from .container import *  # noqa: F403
from .convolution import *  # noqa: F403
from .dropout import *  # noqa: F403
from .embedding import *  # noqa: F403
from .linear import *  # noqa: F403
from .loss import *  # noqa: F403
from .module import Module as Module
from .normalization import *  # noqa: F403
from .parameter import *  # noqa: F403
from .pooling import *  # noqa: F403
from .recurrent import *  # noqa: F403
from .resizing import *  # noqa: F403
from .transformer import *  # noqa: F403

__all__ = [name for name, value in globals().copy().items() if isinstance(value, type)]
__all__ += ["functional", "init", "utils"]
