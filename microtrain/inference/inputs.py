"""Files of rows for a trained model: CSV, NPZ, Parquet; columns are found by their names."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import ArrayDataset
from ..data.columns import Columns, take
from ..data.files import decoded, open_npz, open_text, parquet_parts
from ..data.table import Table, did_you_mean, missing_name, number, shortened
from ..errors import ConfigError, DataError
from .model import TrainedModel

__all__ = ["SUFFIXES", "check_suffix", "read_dataset", "read_inputs"]

SUFFIXES = (".csv", ".npz", ".parquet")
ROWS = 16384  # of a table in memory at a time: cells as text take fifty times their file

Array = NDArray[Any]
Note = Callable[[str], None]


def check_suffix(path: str, option: str) -> str:
    """`.csv` (of `-` too), `.npz` or `.parquet`; ConfigError for another name."""
    suffix = ".csv" if path == "-" else Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        near = did_you_mean(suffix, SUFFIXES) if suffix else ""
        raise ConfigError(
            f"{option} {path}: expected a name that ends in .csv, .npz or .parquet, or - for CSV "
            f"through a pipe{near}"
        )
    return suffix


def read_inputs(
    path: str, model: TrainedModel, note: Note, delimiter: str | None = None
) -> Iterator[tuple[Array, ...]]:
    """The raw inputs of `model` in a file, a bounded number of rows at a time.

    `note` is told which columns are not used. Raises DataError for all that is wrong with the file.
    """
    for columns in _parts(path, model, "--input", delimiter):
        yield _inputs(columns, model, note)
        note = _silent


def read_dataset(path: str, model: TrainedModel, note: Note) -> ArrayDataset:
    """All rows of a file with their targets, prepared as the model was trained.

    Raises DataError for all that is wrong with the file, such as a class that the model has not.
    """
    inputs, targets = [], []
    for columns in _parts(path, model, "--data", None):
        try:
            inputs.append(model.prepare(*_inputs(columns, model, note, targets_used=True)))
        except DataError as error:
            raise error if str(path) in str(error) else DataError(f"{path}: {error}") from error
        target = _targets(columns, model, path)
        if not target.ndim:
            raise DataError(f"{path}: the target is one number; expected one for each row")
        targets.append(target)
        note = _silent
    arrays = [np.concatenate(parts) for parts in zip(*inputs, strict=True)]
    target = np.concatenate(targets)
    try:
        dataset = ArrayDataset(*arrays, target, classes=model.classes)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    width = model.signature.out_features
    if model.classes is None and width is not None and target.shape[1:] != (width,):
        raise DataError(
            f"{path}: a target has shape {target.shape[1:]}, but the model gives {(width,)}"
        )
    if not len(dataset):
        raise DataError(f"{path} has no rows: the data set is empty")
    return dataset


def _parts(
    path: str, model: TrainedModel, option: str, delimiter: str | None
) -> Iterator[Table | Columns | dict[str, Array]]:
    suffix = check_suffix(path, option)
    if suffix == ".parquet":
        yield from parquet_parts(Path(path), None, ROWS)
    elif suffix == ".npz":
        yield _from_npz(Path(path), model)
    else:
        delimiter = delimiter or model.config.data.get("delimiter", ",")
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(f"--delimiter: expected one character, got {delimiter!r}")
        if path == "-":
            content = sys.stdin.buffer.read() if sys.stdin is not None else b""
            text: Any = io.StringIO(decoded(Path("standard input"), content), newline="")
            yield from Table.parts(Path("standard input"), text, delimiter, ROWS)
        else:
            with open_text(Path(path)) as text:
                yield from Table.parts(Path(path), text, delimiter, ROWS)


def _from_npz(path: Path, model: TrainedModel) -> Columns | dict[str, Array]:
    """Arrays by name: one array an input, or one of shape (n,) a column."""
    data, count = model.config.data, len(model.signature.inputs)
    names = ["x"] if count == 1 else [f"x{i}" for i in range(count)]
    if data.type == "npz":
        names = [data.inputs] if isinstance(data.inputs, str) else list(data.inputs)
    target = _target_array(model)
    with open_npz(path) as file:
        columns = model.feature_names or ()
        if columns and (
            not set(names) <= set(file.names)
            or (set(columns) <= set(file.names) and file.array(columns[0]).ndim == 1)
        ):
            known = {*columns, *(model.target_names or ())}
            return Columns(str(path), {n: file.array(n) for n in file.names if n in known})
        found = {name: file.numbers(name) for name in names}
        if target in file.names:
            found[target] = file.array(target)
    return found


def _target_array(model: TrainedModel) -> str:
    """The name of the target in an npz file."""
    data = model.config.data
    return str(data.target) if data.type == "npz" else (model.target_names or ("y",))[0]


def _inputs(
    part: Table | Columns | dict[str, Array],
    model: TrainedModel,
    note: Note,
    targets_used: bool = False,
) -> tuple[Array, ...]:
    targets = model.target_names or ()
    if isinstance(part, dict):
        target = _target_array(model)
        if target in part and not targets_used:
            note(f'the target "{target}" is there too; it is not used')
        return tuple(array for name, array in part.items() if name != target)
    shape = model.signature.inputs[0][0]
    if len(model.signature.inputs) != 1 or len(shape) != 1:
        raise DataError(
            f"{part.path}: the model takes arrays, not columns of numbers; give them as .npz"
        )
    names = model.feature_names
    if names is None:
        names = tuple(name for name in part.header if name not in targets)
        if len(names) != shape[0] or len(set(names)) < len(names):
            raise DataError(
                f"{part.path} has {len(names)} columns, but the model was trained on {shape[0]} "
                "columns without names; expected these, in their order"
            )
        if all(number(text) is not None for text in part.header):
            raise DataError(
                f"{part.path}: the first line holds numbers; expected the names of the columns"
            )
        note("the model was trained on columns without names: they are taken in their order")
    array, left = take(part, names)
    used = [f'the target "{name}"' for name in left if name in targets]
    left = [f'"{shortened(name)}"' for name in left if name not in targets]
    more = f" ... ({len(left)} in all)" if len(left) > 20 else ""
    if used and not targets_used:
        note(f"{', '.join(used)} is there too; it is not used")
    if left:
        note(f"columns that the model does not use: {', '.join(left[:20])}{more}")
    return (array,)


def _targets(part: Table | Columns | dict[str, Array], model: TrainedModel, path: str) -> Array:
    """The target as training has it: class codes, or numbers of the run's dtype."""
    dtype = np.dtype(model.config.dtype)
    if isinstance(part, dict):
        name = _target_array(model)
        if name not in part:
            raise DataError(missing_name(f"{path} has no array", name, "arrays", list(part)))
        array = part[name]
        if model.classes is None:
            if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
                raise DataError(f'{path}: array "{name}" holds other things than finite numbers')
            array = _cast(array, dtype, path)
            return array[:, None] if array.ndim == 1 else array
        part = Columns(path, {name: array})
        names: tuple[str, ...] = (name,)
    elif model.target_names is None:
        raise DataError(f"{path}: the run's target has no name; measure it on its own data")
    else:
        names = model.target_names
    for name in names:
        if name not in part.header:
            problem = f"{part.path} has no column"
            raise DataError(missing_name(problem, name, "columns", part.header))
    if model.classes is None:
        return _cast(np.stack([part.numbers(name) for name in names], axis=1), dtype, path)
    codes = {label: code for code, label in enumerate(model.classes)}
    cells = part.column(names[0])
    if model.labels.dtype == np.int64:  # 3, 3.0 and 03 are one class
        values = [number(cell) for cell in cells]
        cells = [
            str(int(x)) if x is not None and x.is_integer() else cell
            for x, cell in zip(values, cells, strict=True)
        ]
    for row, cell in enumerate(cells):
        if cell not in codes:
            near = did_you_mean(cell, model.classes)
            raise DataError(
                f'{part.place(row, names[0])}: "{shortened(cell)}" is none of the '
                f"{len(codes)} classes of the model{near}"
            )
    return np.array([codes[cell] for cell in cells], np.int64)


def _cast(array: Array, dtype: Any, path: str) -> Array:
    with np.errstate(over="ignore"):
        cast: Array = array.astype(dtype)
    if not np.isfinite(cast).all():
        raise DataError(f"{path}: targets up to {np.abs(array).max():g} do not fit {dtype}")
    return cast


def _silent(_: str) -> None:
    """Once is enough."""
