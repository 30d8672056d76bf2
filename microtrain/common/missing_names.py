"""Names of PyTorch that are not here: what the AttributeError says to write instead.

A module that people know from PyTorch ends with `namespace(globals())`. The message
has the replacement from `INSTEAD`; else that this is a name of PyTorch's (`torch_names.txt`); else
the name here that was perhaps meant. `from microtrain.nn import LSTN` says the same as ImportError.
"""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from .spelling import did_you_mean

_ARRAYS = "write mt.data.DataLoader(mt.data.ArrayDataset(x, y)), or a FunctionSource of rows"
_SHUFFLED = "mt.data.DataLoader(..., shuffle=, seed=) has the order"
_WORLD = "ranks are those of comm = mt.distributed.world()"
_PARALLEL = "write mt.distributed.DataParallel(model, comm)"
_CUPY = "GPU arrays are CuPy's: write"
_STREAM = "all draws come from the stream of mt.manual_seed(seed)"
_LU = "write scipy.linalg.lu of A.numpy(), or mt.linalg.solve, det, qr, which have gradients"
_SIZES = "give the layer its input size"

# Where else a name may be, the best known place first.
HOMES = (
    "", "nn", "optim", "optim.lr_scheduler", "data", "train", "distributed", "distributions",
    "linalg", "autograd", "func", "nn.utils", "nn.init",
)  # fmt: skip

# By module the names that have another form here. A test fails where one of them exists.
INSTEAD: dict[str, dict[str, str]] = {
    "": {
        "FloatTensor": "write mt.tensor(data, dtype=mt.float32)",
        "DoubleTensor": "write mt.tensor(data, dtype=mt.float64)",
        "HalfTensor": "write mt.tensor(data, dtype=mt.float16)",
        "LongTensor": "write mt.tensor(data, dtype=mt.int64)",
        "IntTensor": "write mt.tensor(data, dtype=mt.int32)",
        "ByteTensor": "write mt.tensor(data, dtype=mt.uint8)",
        "BoolTensor": "write mt.tensor(data, dtype=mt.bool)",
        "Generator": _STREAM,
        "bfloat16": "float types are float16, float32 and float64",
        **dict.fromkeys(
            ("cfloat", "cdouble", "complex64", "complex128"), "there are no complex Tensors"
        ),
        "backends": "leave its settings out: arrays are NumPy's or CuPy's",
        "channels_last": "images are (N, C, H, W) in row-major memory; there is no memory_format",
        "amp": "give dtypes where Tensors are made, or .to(dtype)",
        "autocast": "give dtypes where Tensors are made, or .to(dtype)",
        "jit": "write @mt.compile on the whole step",
        "set_num_threads": "set OMP_NUM_THREADS before the start",
        "use_deterministic_algorithms": "all results are deterministic",
        "sparse": "there are no sparse Tensors",
        **dict.fromkeys(("lu", "lu_unpack"), _LU),
        "fft": "transform the data with NumPy beforehand",
        "vmap": "write the batch as a dimension",
        "get_rng_state": "write mt.random.get_rng_state()",
        "array": "write mt.tensor(data) or mt.from_numpy(array)",
        "expand_dims": "write mt.unsqueeze(x, dim)",
    },
    "nn": {
        "DataParallel": _PARALLEL,
        "parallel": _PARALLEL,
        "SyncBatchNorm": "batch norm in a DataParallel model uses the whole batch",
        **dict.fromkeys(("LazyLinear", "LazyConv1d", "LazyConv2d", "LazyBatchNorm1d"), _SIZES),
    },
    "nn.init": {},
    "nn.functional": {},
    "nn.utils": {
        "parametrize": "compute the weight in forward",
        "parametrizations": "write mt.nn.utils.weight_norm(module), spectral_norm(module)",
    },
    "optim": {"SparseAdam": "there are no sparse gradients; write Adam"},
    "optim.lr_scheduler": {},
    "data": {
        "Dataset": _ARRAYS,
        "IterableDataset": _ARRAYS,
        "TensorDataset": "write mt.data.ArrayDataset(x, y), with NumPy arrays",
        "Subset": "index the arrays: mt.data.ArrayDataset(x[rows], y[rows])",
        "random_split": "index the arrays by a permutation: mt.data.ArrayDataset(x[rows], y[rows])",
        "DistributedSampler": "write mt.data.DataLoader(..., comm=comm)",
        **dict.fromkeys(("Sampler", "BatchSampler", "RandomSampler"), _SHUFFLED),
    },
    "linalg": {
        "eig": "there are no complex Tensors; a symmetric matrix has eigh",
        "eigvals": "there are no complex Tensors; a symmetric matrix has eigvalsh",
        **dict.fromkeys(("lu", "lu_factor", "lu_factor_ex", "lu_solve"), _LU),
    },
    "cuda": {
        "synchronize": f"{_CUPY} cupy.cuda.Device().synchronize()",
        "empty_cache": f"{_CUPY} cupy.get_default_memory_pool().free_all_blocks()",
        "manual_seed": _STREAM,
        "manual_seed_all": _STREAM,
        "amp": "give dtypes where Tensors are made, or .to(dtype)",
    },
    "autograd": {
        "profiler": "measure with Python's profilers; operations are Python functions",
        "forward_ad": "write mt.func.jvp(f, (x,), (tangent,))",
    },
    "func": {
        "vmap": "write the batch as a dimension",
        "grad": "write mt.autograd.grad(f(x), x)",
        "jacrev": "write mt.autograd.functional.jacobian(f, x)",
    },
    "utils": {
        "tensorboard": "metrics are logged by mt.train.TensorBoard",
        "dlpack": "write mt.from_dlpack(x)",
    },
    "distributed": {
        "init_process_group": f"{_WORLD}, which connects by itself",
        "destroy_process_group": f"{_WORLD}, which ends by itself",
        "is_initialized": _WORLD,
        "get_rank": f"{_WORLD}: comm.rank",
        "get_world_size": f"{_WORLD}: comm.size",
        "barrier": f"{_WORLD}: comm.barrier()",
        "ReduceOp": 'operations are named: "sum", "max"',
        "DistributedDataParallel": _PARALLEL,
    },
    # What people write as `x.name`, of NumPy's arrays too.
    "Tensor": {
        "volatile": "compute inside `with mt.no_grad():`, where nothing is recorded",
        "astype": "write x.to(dtype)",
        "copy": "write x.clone()",
        "float_power_": "write x.float_power(y)",
        "geometric_": "write (mt.empty_like(x).exponential_() / -math.log1p(-p)).ceil()",
        "random_": "write x.copy_(mt.randint(low, high, x.shape))",
        "resize_": "write x = mt.empty(shape)",
        "bfloat16": "float types are float16, float32 and float64",
        "pin_memory": "copies to a GPU wait for nothing else",
    },
    "Optimizer": {
        "state": "write optimizer.state_dict()['state'], and in place of an optimizer of your own "
        "with its own step mt.optim.Formula(params, function): docs/parts/optimizer.md",
    },
}
INSTEAD["utils.data"] = {**INSTEAD["data"], "DataLoader": _ARRAYS}
_NAMES = Path(__file__).with_name("torch_names.txt")


@cache
def torch_names() -> dict[str, set[str]]:
    """The public names of PyTorch's modules, by what follows `torch.`."""
    found: dict[str, set[str]] = {}
    for line in _NAMES.read_text(encoding="utf-8").splitlines():
        module, _, names = line.partition(":")
        found.setdefault(module, set()).update(names.split())
    return found


def hint(place: str, name: str, known: list[str]) -> str:
    """What to write instead of `place.name`, where `known` are the names that there are."""
    if name in INSTEAD.get(place, {}):
        return f"; {INSTEAD[place][name]}"
    package = __package__.partition(".")[0]
    for home in HOMES:
        if name in dir(import_module(f"{package}.{home}".rstrip("."))):
            return f"; write {'.'.join(filter(None, ('mt', home, name)))}"
    if name in torch_names().get({"data": "utils.data"}.get(place, place), ()):
        return "; it is one of PyTorch's names that microtrain lacks: docs/differences.md, Missing"
    return did_you_mean(name, known)


def missing(module: str, name: str) -> Exception:
    """The error for `module.name`, an ImportError where an import statement asked for it."""
    if name.startswith("_"):  # Python's own questions
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    place = module.partition(".")[2]
    said = hint(place, name, dir(sys.modules[module]))
    frame = sys._getframe(2)
    if frame.f_code.co_code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"]:
        return ImportError(f"cannot import name {name!r} from {module!r}{said}", name=name)
    return AttributeError(f"module {module!r} has no attribute {name!r}{said}")


def say_instead(module: str) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module."""

    def __getattr__(name: str) -> NoReturn:
        raise missing(module, name)

    return __getattr__


def own_names(module: dict[str, Any]) -> list[str]:
    """The `__all__` of a module, of which these are the globals: the public names it defines."""
    place = f"{module['__name__']}."
    return [
        name
        for name, value in module.copy().items()
        if name[0] != "_" and f"{getattr(value, '__module__', '')}.".startswith(place)
    ]


def namespace(module: dict[str, Any]) -> None:
    """Let a module, of which these are the globals, show its `__all__` and say what it lacks."""
    module.setdefault("__all__", own_names(module))
    module["__getattr__"] = say_instead(module["__name__"])
    module["__dir__"] = lambda: module["__all__"]


class NoAttribute:
    """An attribute that a class has not: AttributeError that says what to write instead."""

    def __init__(self, name: str, kind: str = "Tensor") -> None:
        self.text = f"{kind!r} object has no attribute {name!r}; {INSTEAD[kind][name]}"

    def __get__(self, instance: Any, owner: Any) -> NoReturn:
        raise AttributeError(self.text)

    __set__ = __get__
