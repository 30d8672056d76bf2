"""Data: arrays with names, where they come from, how they are prepared, and the batches of a rank.

A *data component* is any callable that returns arrays (inputs..., target), an `ArrayDataset` or
another `Source`. Those that ship are here; `prepare` turns what one returned into the parts of a
run, and a `DataLoader` into batches.
"""

from ..missing_names import say_instead
from .columns import Column
from .dataset import ArrayDataset
from .files import csv, npz, parquet
from .loader import Batch, DataLoader
from .mapped import npy
from .preparation import prepare
from .prepared import Prepared
from .preprocessing import Preprocessing
from .sampler import contiguous_slice, contiguous_slices, epoch_order
from .scikit_learn import sklearn
from .source import FunctionSource, Source, blocks
from .split import split_sizes
from .stores import hdf5, zarr
from .synthetic import synthetic_linear, synthetic_random, synthetic_relu
from .table import Encoder, Table
from .view import Rows

__all__ = [
    "ArrayDataset",
    "Batch",
    "Column",
    "DataLoader",
    "Encoder",
    "FunctionSource",
    "Prepared",
    "Preprocessing",
    "Rows",
    "Source",
    "Table",
    "blocks",
    "contiguous_slice",
    "contiguous_slices",
    "csv",
    "epoch_order",
    "hdf5",
    "npy",
    "npz",
    "parquet",
    "prepare",
    "sklearn",
    "split_sizes",
    "synthetic_linear",
    "synthetic_random",
    "synthetic_relu",
    "zarr",
]


def __dir__() -> list[str]:
    return __all__


globals()["__getattr__"] = say_instead(__name__)
