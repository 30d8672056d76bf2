"""Modules, layers, losses and their functions, under PyTorch's names."""

from . import (
    activation,
    convolution,
    dropout,
    functional,
    init,
    loss,
    normalization,
    padding,
    pooling,
    recurrent,
    recurrent_cells,
    resizing,
    transformer_decoder,
    utils,
)
from .activation import *  # noqa: F403
from .attention import MultiheadAttention
from .container import ModuleDict, ModuleList, Sequential
from .convolution import *  # noqa: F403
from .dropout import *  # noqa: F403
from .embedding import Embedding, EmbeddingBag
from .linear import Bilinear, Linear
from .loss import *  # noqa: F403
from .module import Module
from .normalization import *  # noqa: F403
from .padding import *  # noqa: F403
from .parameter import Buffer, Parameter
from .parameters import ParameterDict, ParameterList
from .pooling import *  # noqa: F403
from .recurrent import *  # noqa: F403
from .recurrent_cells import *  # noqa: F403
from .reshaping import Flatten, Identity, Unflatten
from .resizing import *  # noqa: F403
from .transformer import TransformerEncoder, TransformerEncoderLayer
from .transformer_decoder import *  # noqa: F403

__all__ = [
    "Bilinear", "Buffer", "Embedding", "EmbeddingBag", "Flatten", "Identity", "Linear", "Module",
    "ModuleDict", "ModuleList", "MultiheadAttention", "Parameter", "ParameterDict", "ParameterList",
    "Sequential", "TransformerEncoder", "TransformerEncoderLayer", "Unflatten", "functional",
    "init", "utils",
]  # fmt: skip
__all__ += activation.__all__
__all__ += convolution.__all__
__all__ += dropout.__all__
__all__ += loss.__all__
__all__ += normalization.__all__
__all__ += padding.__all__
__all__ += pooling.__all__
__all__ += recurrent.__all__
__all__ += recurrent_cells.__all__
__all__ += resizing.__all__
__all__ += transformer_decoder.__all__


def __dir__() -> list[str]:
    return __all__
