"""microtrain: distributed training with a small NumPy autograd, exact over MPI ranks.

`import microtrain as mt` gives PyTorch's vocabulary over NumPy arrays; `mt.distributed`, `mt.data`
and `mt.train` are imported when first used.
"""

import sys as _sys

if _sys.platform == "win32":
    raise ImportError(
        "microtrain runs on Linux and macOS; on Windows use it in WSL (wsl --install), as on Linux"
    )
# isort: split
from .common import threads  # first: BLAS reads its thread limits when NumPy is imported

# isort: split
import importlib
from math import e, inf, nan, pi
from typing import Any

from . import autograd, creation, cuda, func, linalg, nn, ops, optim, special
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
from .capture import compile
from .common.missing_names import missing as _missing
from .common.missing_names import namespace as _namespace
from .common.version import __version__ as __version__
from .creation import *  # noqa: F403
from .formatting import set_printoptions
from .nn.table import summary
from .numpy_functions import array_function as _array_function  # noqa: F401  for NumPy's protocols
from .ops import *  # noqa: F403
from .ops.inspection import *  # noqa: F403
from .random import manual_seed
from .tensor import Size, Tensor

if threads.LAUNCH.parallel:
    # A rank that fails before `world()` must end the job as well: the others wait for it there.
    from .distributed import mpi as _mpi

    _mpi.abort_on_failure()

globals().update(_ALIASES)  # half, float, double, short, int, long, bool

_LAZY = ("cli", "data", "distributed", "distributions", "onnx", "sklearn", "train", "utils")
_LAZY_FUNCTIONS = {
    "Ensemble": ".ensemble",
    "export": ".exchange.c",
    "export_step": ".exchange.c_step",
    "graph": ".utils.drawing",
    "history": ".runs.run",
    "load": ".exchange.state",
    "restore": ".train.model_state",
    "save": ".exchange.state",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ImportError as error:
            if name != "sklearn":
                raise
            raise AttributeError(str(error)) from error  # what hasattr and completion expect
    if name in _LAZY_FUNCTIONS:
        return getattr(importlib.import_module(_LAZY_FUNCTIONS[name], __name__), name)
    raise _missing(__name__, name)


for _module in (ops, special, creation):
    # By module and name pickle finds a function again; what makes operations knows neither.
    _functions = [(n, f) for n, f in vars(_module).items() if type(f) is type(_missing)]
    for _name, _function in sorted(_functions, key=lambda pair: pair[0] != pair[1].__name__):
        _home = vars(_sys.modules[_function.__module__])
        if _home.get(_function.__qualname__) is not _function:
            _function.__module__, _function.__qualname__ = _module.__name__, _name

for _module in (
    autograd, autograd.functional, cuda, func, linalg, nn, nn.functional, nn.init, nn.utils,
    nn.utils.rnn, ops, optim.lr_scheduler,
):  # fmt: skip
    _namespace(vars(_module))


def __dir__() -> list[str]:
    return [*__all__, *ops.__all__, *_ALIASES, *_LAZY, *_LAZY_FUNCTIONS, "__version__"]


__all__ = ["Size", "Tensor", "compile", "device", "dtype", "e", "inf", "nan", "pi", "summary"]
__all__ += ["autograd", "cuda", "func", "linalg", "nn", "ops", "optim", "special", "threads"]
__all__ += ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]
__all__ += ["enable_grad", "inference_mode", "manual_seed", "no_grad", "set_grad_enabled"]
__all__ += ["is_anomaly_check_nan_enabled", "is_anomaly_enabled"]
__all__ += ["is_grad_enabled", "is_inference_mode_enabled"]
__all__ += ["get_default_dtype", "set_default_dtype", "set_printoptions"]
__all__ += [*dir(creation), *dir(ops.inspection)]
