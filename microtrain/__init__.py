"""microtrain: distributed training with a small NumPy autograd, exact over MPI ranks.

`import microtrain as mt` gives PyTorch's vocabulary over NumPy arrays; `mt.distributed`, `mt.data`
and `mt.train` are imported when first used.
"""

from . import threads as threads  # first: BLAS reads its thread limits when NumPy is imported

# isort: split
import importlib
from math import e, inf, nan, pi
from typing import Any

from . import autograd, cuda, linalg, nn, ops, optim
from .autograd import (
    enable_grad,
    inference_mode,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .backend import ALIASES as _ALIASES
from .backend import (
    device,
    dtype,
    float16,
    float32,
    float64,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    set_default_dtype,
    uint8,
)
from .compile import compile
from .creation import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    normal,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    tensor,
    zeros,
    zeros_like,
)
from .inspection import allclose, equal, finfo, iinfo, is_floating_point, is_tensor, numel
from .ops import *  # noqa: F403
from .random import manual_seed
from .tensor import Tensor
from .version import __version__ as __version__

if threads.LAUNCH.parallel:
    # A rank that fails before `world()` must end the job as well: the others wait for it there.
    from .distributed import mpi as _mpi

    _mpi.abort_on_failure(threads.LAUNCH)

globals().update(_ALIASES)  # half, float, double, short, int, long, bool

# What PyTorch's users write at this place that has another name or form here.
_INSTEAD = {
    "FloatTensor": "write mt.tensor(data, dtype=mt.float32)",
    "DoubleTensor": "write mt.tensor(data, dtype=mt.float64)",
    "LongTensor": "write mt.tensor(data, dtype=mt.int64)",
    "IntTensor": "write mt.tensor(data, dtype=mt.int32)",
    "ByteTensor": "write mt.tensor(data, dtype=mt.uint8)",
    "BoolTensor": "write mt.tensor(data, dtype=mt.bool)",
    "Generator": "all draws come from the stream of mt.manual_seed(seed)",
    "Size": "shapes are tuples",
    "backends": "there are NumPy and, with CuPy, mt.cuda",
    "distributions": "draw with mt.multinomial, mt.bernoulli or mt.normal",
}

_LAZY = ("cli", "data", "distributed", "train", "utils")
_LAZY_FUNCTIONS = {
    "load": ".inference.model",
    "restore": ".train.custom_loop",
    "save": ".train.custom_loop",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LAZY_FUNCTIONS:
        return getattr(importlib.import_module(_LAZY_FUNCTIONS[name], __name__), name)
    hint = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return [*__all__, *ops.__all__, *_ALIASES, *_LAZY, *_LAZY_FUNCTIONS, "__version__"]


__all__ = [
    "Tensor",
    "allclose",
    "arange",
    "as_tensor",
    "autograd",
    "compile",
    "cuda",
    "device",
    "dtype",
    "e",
    "empty",
    "empty_like",
    "enable_grad",
    "equal",
    "eye",
    "finfo",
    "float16",
    "float32",
    "float64",
    "from_numpy",
    "full",
    "full_like",
    "get_default_dtype",
    "iinfo",
    "inf",
    "inference_mode",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "is_floating_point",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_tensor",
    "linalg",
    "linspace",
    "manual_seed",
    "nan",
    "nn",
    "no_grad",
    "normal",
    "numel",
    "ones",
    "ones_like",
    "ops",
    "optim",
    "pi",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "set_default_dtype",
    "set_grad_enabled",
    "tensor",
    "threads",
    "uint8",
    "zeros",
    "zeros_like",
]  # fmt: skip
