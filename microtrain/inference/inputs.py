"""Files of rows for a trained model, read whole: CSV, NPZ, Parquet; columns are found by names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import ArrayDataset, Column
from ..data.checks import cast
from ..data.columns import texts
from ..data.files import parse_csv, read_csv, read_npz, read_parquet
from ..data.frame import Frame
from ..data.mapped import Stored
from ..data.stores import ParquetRows
from ..errors import ConfigError, DataError
from ..spelling import did_you_mean
from .model import TrainedModel
from .stored import array_names, by_row_groups, codes_of, stored_inputs

__all__ = ["check_suffix", "read_dataset", "read_inputs"]

SUFFIXES = (".csv", ".npz", ".parquet")

Array = NDArray[Any]
Note = Callable[[str], None]


def check_suffix(path: str, option: str, suffixes: tuple[str, ...] = SUFFIXES) -> str:
    """One of `suffixes`, that of - is .csv; ConfigError for another name."""
    suffix = ".csv" if path == "-" else Path(path).suffix.lower()
    if suffix not in suffixes:
        near = did_you_mean(suffix, suffixes) if suffix else ""
        raise ConfigError(
            f"{option} {path}: expected a name that ends in {', '.join(suffixes[:-1])} or "
            f"{suffixes[-1]}{', arrays in .npy, .h5 or .zarr' * (suffixes == SUFFIXES)}, or - for "
            f"CSV through a pipe{near}"
        )
    return suffix


def read_inputs(
    path: str,
    model: TrainedModel,
    note: Note,
    delimiter: str | None = None,
    keep: Sequence[str] = (),
    take: Callable[..., list[Any]] | None = None,
) -> tuple[list[Any], dict[str, Array]]:
    """The raw inputs of `model` in a file, and the columns to keep: ids, and those of `keep`.

    The inputs are arrays, or one `Source` of which rows are read as they are used. `note` is told
    which columns are not used; `take` makes the inputs of columns, in place of
    `model.take_columns`. Raises DataError for all that is wrong with the file, ConfigError for a
    name or a delimiter that is none.
    """
    inputs: list[Any]
    stored = stored_inputs(path, model)
    if keep and (stored is not None or Path(path).suffix.lower() == ".npz"):
        raise ConfigError(f"--keep {keep[0]}: {path} has arrays, not columns")
    if stored is not None:
        return [stored], {}
    if check_suffix(path, "--input") == ".npz":
        names, target = array_names(model)
        arrays = read_npz(Path(path), names, optional=[target])
        inputs, unused, kept = [arrays[name] for name in names], [target] * (target in arrays), {}
    else:
        rows = ParquetRows(Path(path)) if by_row_groups(path, model) else None
        table = _read_table(path, model, delimiter) if rows is None else rows.empty
        encoder = model.signature.table
        ids = [name for name in (encoder.ids if encoder else ()) if name in table.names]
        table.require(keep)
        wanted = dict.fromkeys([*ids, *keep])
        others = table if rows is None else read_parquet(Path(path), [*wanted])
        kept = {name: np.array(texts(others, name, Column(type="id"))) for name in wanted}
        inputs = (take or model.take_columns)(table, note, wanted)
        if rows is not None:  # of columns without rows, so far
            inputs = [Stored([rows.numbers(model.feature_names or ())])]
        unused = [name for name in model.target_names or () if name in table.names]
        unused = [name for name in unused if name not in kept]
    if unused:
        targets = ", ".join(f'the target "{name}"' for name in unused)
        note(f"{targets} is there too; it is not used")
    return inputs, kept


def read_dataset(path: str, model: TrainedModel, note: Note) -> ArrayDataset:
    """All rows of a file with their targets, prepared as the model was trained.

    Raises DataError for all that is wrong with the file, such as a class that the model has not.
    """
    if check_suffix(path, "--data") == ".npz":
        inputs, target = array_names(model)
        arrays = read_npz(Path(path), [*inputs, target])
        raw = [arrays[name] for name in inputs]
        table = _target_table(path, target, arrays[target], model)
        targets: Sequence[str] = table.names
    else:
        table, targets = _read_table(path, model), model.target_names or ()
        raw = model.take_columns(table, note)
    weight = model.of_table.get("weight")
    if not targets:
        raise DataError(f"{path}: the run's target has no name; measure it on its own data")
    try:
        if model.classes is None:
            truth = cast(table.matrix(targets), model.config.dtype, path)
        else:
            truth = codes_of(table, targets[0], model)
        weights = None if weight is None else cast(table.numbers(weight), model.config.dtype, path)
        dataset = ArrayDataset(*model.prepare(*raw), truth, classes=model.classes, weights=weights)
    except (DataError, ValueError) as error:
        raise DataError(str(error) if path in str(error) else f"{path}: {error}") from error
    width = model.signature.out_features
    if model.classes is None and width is not None and truth.shape[1:] != (width,):
        raise DataError(
            f"{path}: a target has shape {truth.shape[1:]}, but the model gives {(width,)}"
        )
    if not len(dataset):
        raise DataError(f"{path} has no rows: the data set is empty")
    return dataset


def _read_table(path: str, model: TrainedModel, delimiter: str | None = None) -> Frame:
    if Path(path).suffix.lower() == ".parquet":
        return read_parquet(Path(path))
    delimiter = delimiter or model.config.data.arguments.get("delimiter", ",")
    decimal = model.of_table.get("decimal", ".")
    if path == "-":
        content = sys.stdin.buffer.read() if sys.stdin is not None else b""
        return parse_csv("standard input", content, delimiter, decimal)
    return read_csv(Path(path), delimiter, decimal)


def _target_table(path: str, name: str, array: Array, model: TrainedModel) -> Frame:
    """The target of an npz file as a table; of a regression it may have several columns."""
    if array.ndim == 0:
        raise DataError(f"{path}: the target is one number; expected one for each row")
    if array.dtype.kind == "b" and model.labels.dtype == np.int64:
        array = array.astype(np.int64)  # what an array of truths is trained on
    if array.ndim == 1 or model.classes is not None:
        return Frame(path, [name], [array])
    return Frame(path, [f"{name}_{i}" for i in range(array.shape[1])], np.moveaxis(array, 1, 0))
