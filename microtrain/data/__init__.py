"""Data: arrays with names, where they come from, how they are prepared, and the batches of a rank.

A *data component* is any callable that returns arrays (inputs..., target), an `ArrayDataset` or
another `Source`. Those that ship are here; `prepare` turns what one returned into the parts of a
run, and a `DataLoader` into batches.
"""

from ..common.missing_names import namespace
from ..distributed.shards import contiguous_slice
from .loading.loader import Batch, DataLoader, contiguous_slices, epoch_order
from .preparation.prepare import Prepared, prepare
from .preparation.split import split_sizes
from .readers.bundled import sklearn
from .readers.csv import csv
from .readers.npy import npy
from .readers.npz import npz
from .readers.parquet import parquet
from .readers.stores import hdf5, zarr
from .readers.synthetic import synthetic_linear, synthetic_random, synthetic_relu
from .rows import Preprocessing, Rows, TargetScaling
from .source import ArrayDataset, FunctionSource, Source, blocks
from .tables.columns import Column
from .tables.table import Encoder, Table

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
    "TargetScaling",
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


namespace(globals())
