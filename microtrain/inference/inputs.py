"""Files of rows for a trained model: CSV, NPZ, Parquet; columns are found by their names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import ArrayDataset
from ..data.files import parse_csv, read_csv, read_npz, read_parquet
from ..data.frame import Frame, missing, number, shortened
from ..data.preparation import cast, check_finite
from ..errors import ConfigError, DataError
from ..spelling import did_you_mean
from .model import TrainedModel

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
            f"{suffixes[-1]}, or - for CSV through a pipe{near}"
        )
    return suffix


def read_inputs(
    path: str, model: TrainedModel, note: Note, delimiter: str | None = None
) -> tuple[Array, ...]:
    """The raw inputs of `model` in a file.

    `note` is told which columns are not used. Raises DataError for all that is wrong with the file,
    ConfigError for a name or a delimiter that is none.
    """
    table = _read(path, model, "--input", delimiter)
    names = table.names if isinstance(table, Frame) else table
    if unused := [f'the target "{name}"' for name in _targets(table, model) if name in names]:
        note(f"{', '.join(unused)} is there too; it is not used")
    return _inputs(table, model, note)


def read_dataset(path: str, model: TrainedModel, note: Note) -> ArrayDataset:
    """All rows of a file with their targets, prepared as the model was trained.

    Raises DataError for all that is wrong with the file, such as a class that the model has not.
    """
    table = _read(path, model, "--data")
    try:
        inputs = model.prepare(*_inputs(table, model, note))
        target = _target(table, model, path)
        dataset = ArrayDataset(*inputs, target, classes=model.classes)
    except (DataError, ValueError) as error:
        raise DataError(str(error) if path in str(error) else f"{path}: {error}") from error
    width = model.signature.out_features
    if model.classes is None and width is not None and target.shape[1:] != (width,):
        raise DataError(
            f"{path}: a target has shape {target.shape[1:]}, but the model gives {(width,)}"
        )
    if not len(dataset):
        raise DataError(f"{path} has no rows: the data set is empty")
    return dataset


def _read(
    path: str, model: TrainedModel, option: str, delimiter: str | None = None
) -> Frame | dict[str, Array]:
    """A table, or of an npz file the arrays that the model was trained on."""
    suffix = check_suffix(path, option)
    data = model.config.data
    if suffix == ".parquet":
        return read_parquet(Path(path))
    if suffix == ".npz":
        count = len(model.signature.inputs)
        names = ["x"] if count == 1 else [f"x{i}" for i in range(count)]
        if data.type == "npz":
            names = [data.inputs] if isinstance(data.inputs, str) else list(data.inputs)
        return read_npz(Path(path), names, optional=_targets({}, model))
    delimiter = delimiter or data.arguments.get("delimiter", ",")
    if path == "-":
        content = sys.stdin.buffer.read() if sys.stdin is not None else b""
        return parse_csv("standard input", content, delimiter)
    return read_csv(Path(path), delimiter)


def _targets(table: Frame | dict[str, Array], model: TrainedModel) -> tuple[str, ...]:
    """The names of the columns of the target, or of its array in an npz file."""
    if isinstance(table, Frame):
        return model.target_names or ()
    data = model.config.data
    return (data.target if data.type == "npz" else (model.target_names or ("y",))[0],)


def _inputs(table: Frame | dict[str, Array], model: TrainedModel, note: Note) -> tuple[Array, ...]:
    if isinstance(table, Frame):
        return (model.take_columns(table, note),)
    return tuple(array for name, array in table.items() if name not in _targets(table, model))


def _target(table: Frame | dict[str, Array], model: TrainedModel, path: str) -> Array:
    """The target as training has it: class codes, or numbers of the run's dtype."""
    names = _targets(table, model)
    if not names:
        raise DataError(f"{path}: the run's target has no name; measure it on its own data")
    if isinstance(table, dict):
        if names[0] not in table:
            raise DataError(missing(path, "array", names[:1], table))
        array = table[names[0]]
        if not array.ndim:
            raise DataError(f"{path}: the target is one number; expected one for each row")
        if model.classes is None:
            if array.dtype.kind not in "biuf":
                raise DataError(f'{path}: array "{names[0]}" holds {array.dtype}, expected numbers')
            check_finite(array, f'{path}: array "{names[0]}"')
            target = cast(array, model.config.dtype, path)
            return target[:, None] if target.ndim == 1 else target
        table = Frame(path, names, [array])
    if model.classes is None:
        return cast(table.matrix(names), model.config.dtype, path)
    codes = {label: code for code, label in enumerate(model.classes)}
    cells = table.texts(names[0])
    if model.labels.dtype == np.int64:  # 3, 3.0 and 03 are one class
        cells = [_whole(cell) for cell in cells]
    for row, cell in enumerate(cells):
        if cell not in codes:
            raise DataError(
                f'{table.location(row, names[0])}: "{shortened(cell)}" is none of the {len(codes)} '
                f"classes of the model{did_you_mean(cell, codes)}"
            )
    return np.array([codes[cell] for cell in cells], np.int64)


def _whole(cell: str) -> str:
    value = number(cell)
    return cell if value is None or not value.is_integer() else str(int(value))
