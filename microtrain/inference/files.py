"""Files of rows for a trained model: the ending says which of training's readers reads them.

Tables have columns, which are found by their names. Arrays are named by one path, or, as under
`data` of a configuration, by keys: `{inputs: x.npy, target: y.npy}`; what is not named is called as
it was where the model was trained. So is a CSV that is written in another way than that of the run:
`{path: new.csv, delimiter: ";"}`. Rows come in order, and nothing is kept of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ..common.spelling import did_you_mean
from ..common.words import plural
from ..config.document import cut_by_yaml
from ..data import Encoder, Source
from ..data.readers.csv import read_csv
from ..data.readers.npy import Column, Mapped, Stored
from ..data.readers.npz import load_npz, map_npz
from ..data.readers.parquet import ParquetRows, read_parquet
from ..data.readers.stores import hdf5_arrays, zarr_arrays
from ..data.rows import in_memory
from ..data.tables.columns import codes_of, leave_out
from ..data.tables.frame import Frame
from ..data.tables.notation import Notation
from ..errors import ConfigError, DataError
from .model import Note, TrainedModel

STORES = {".h5": hdf5_arrays, ".hdf5": hdf5_arrays, ".zarr": zarr_arrays, ".zip": zarr_arrays}
TABLES = (".csv", ".tsv", ".txt", ".parquet")
ARRAYS = (".npz", *STORES)
WRITTEN = ("delimiter", "decimal", "thousands", "encoding")  # how a CSV is
KEYS = ("path", "inputs", "target", "weight", *WRITTEN)
WEIGHTED = ("csv", "parquet", "npy", "hdf5", "zarr")  # data that may have a weight

Array = NDArray[Any]


def check_ending(
    path: str, option: str, endings: Sequence[str] = (*TABLES, ".npy", *ARRAYS)
) -> str:
    """One of `endings`, that of - is .csv; ConfigError for a different name."""
    ending = ".csv" if path == "-" else _ending(path)
    if ending not in endings:
        near = did_you_mean(ending, endings) if ending else ""
        pipe = ", or - for CSV through a pipe" * (".csv" in endings)
        raise ConfigError(
            f"{option} {path}: expected a name that ends in {', '.join(endings[:-1])} or "
            f"{endings[-1]}{pipe}{near}"
        )
    return ending


def _ending(path: str | Path) -> str:
    return Path(path).suffix.lower()


def read_inputs(
    text: str, model: TrainedModel, note: Note, keep: Sequence[str]
) -> tuple[Source | Frame, dict[str, Array]]:
    """The raw inputs of `model` in a file, and the columns to keep: ids, and those of `keep`.

    The inputs are a table, or one `Source`. `note` is told which columns are not used. Raises
    DataError for all that is wrong with the file, ConfigError for names and keys that cannot be.
    """
    file = _File(text, "--input", model)
    if file.ending not in TABLES:
        if keep:
            raise ConfigError(f"--keep {keep[0]}: {text} has arrays, not columns")
        source = Stored(file.arrays(file.names["inputs"]))
        model.check_source(source)
        return source, {}
    rows, table = file.table()
    table.require(keep)
    ids = () if model.encoder is None else model.encoder.ids
    wanted = dict.fromkeys([*(name for name in ids if name in table.names), *keep])
    targets = [name for name in model.target_names or () if name in {*table.names} - {*wanted}]
    if targets:
        shown = ", ".join(f'the target "{name}"' for name in targets)
        note(f"{shown} is also there; it is not used")
    inputs: Any = table
    if rows is not None:  # those were columns without rows
        model.take_columns(table, note, wanted)
        inputs = Stored([rows.numbers(model.feature_names or ())])
        table = read_parquet(Path(file.path), [*wanted])
    return inputs, {name: np.array(table.texts(name)) for name in wanted}


def read_rows(text: str, model: TrainedModel, note: Note, content: bytes | None = None) -> Source:
    """Inputs and targets in a file, perhaps weights, as they are there; `note` as `read_inputs`.

    content: of standard input, where that has been read.

    Raises DataError for all that is wrong with the file, such as a class that the model does not
    have, ConfigError for names and keys that cannot be, or are missing.
    """
    file = _File(text, "--data", model, content)
    weight, wanted = file.names["weight"], _weight(model)
    if wanted is not None and weight is None:
        raise ConfigError(f"--data {text}: the run counts rows by a weight; name one, too: weight")
    weights = [] if weight is None else [weight]
    columns = (_of_table if file.ending in TABLES else _of_arrays)(file, weights, note)
    source = Stored(
        columns, feature_names=model.feature_names, target_name=model.signature.target_name,
        classes=model.classes, weighted=weight is not None,
    )  # fmt: skip
    model.check_source(Stored(columns[: len(model.signature.inputs)]))
    if not file.whole:
        return source
    try:
        return in_memory(source, slice(None))
    except (TypeError, ValueError) as error:
        raise DataError(f"{text}: {error}") from error


def _of_table(file: _File, weights: list[str], note: Note) -> list[Column]:
    """The columns of a table as arrays: inputs, the target, and weights."""
    path, model = Path(file.path), file.model
    if not (targets := model.target_names):
        raise DataError(f"{path}: the run's target has no name; measure it on its own data")

    def truth(table: Frame) -> Array:
        if model.classes is None:
            return Encoder.of_numbers(targets).encode(table)[0]
        return codes_of(table, targets[0], model.classes)

    rows, table = file.table()
    if model.of_table.get("missing_target") == "drop":
        table.require(targets)
        table, left_out = leave_out(table, targets[0], model.classes is not None)
        if left_out:
            note(left_out)
    inputs = model.take_columns(table, note, weights)
    table.require([*targets, *weights])
    if rows is None:
        arrays = [*inputs, truth(table), *map(table.weights, weights)]
        return [Column(file.path, array) for array in arrays]
    plain = model.classes is None and all(map(rows.has_numbers, targets))
    target: Column = (
        rows.numbers(targets) if plain else Column(file.path, truth(read_parquet(path, targets)))
    )
    return [rows.numbers(model.feature_names or ()), target, *map(rows.numbers, weights)]


def _of_arrays(file: _File, weights: list[str], note: Note) -> list[Column]:
    """Arrays by their names: inputs, the target, and weights."""
    names, model, text = file.names, file.model, file.text
    if (name := names["target"]) is None:
        raise ConfigError(
            f"--data {text}: has the inputs alone; name the target, too: "
            f"--data '{{inputs: {text if text[0] != '{' else 'x.npy'}, target: y.npy}}'"
        )
    columns, at = file.arrays([*names["inputs"], name, *weights]), len(names["inputs"])
    for i, like in enumerate(model.signature.inputs):
        if columns[i].dtype.kind in "biu" and like.dtype != "int64":
            columns[i] = Floats(columns[i])
    target = columns[at]
    if model.classes is None:
        width, found = model.signature.out_features, target.shape[1:] or (1,)
        wanted = found if width is None else (width,)
        if target.dtype.kind != "f" or found != wanted:
            raise DataError(
                f"{target.name}: a target is {target.dtype} of shape {found}, but the model "
                f"predicts floats of shape {wanted}"
            )
    elif target.dtype.kind not in "biu" or model.of_table:  # else they are codes already
        values = target[:]
        if values.dtype.kind == "b" and model.labels.dtype == np.int64:
            values = values.astype(np.int64)  # what an array of truths is trained on
        codes = codes_of(Frame(file.path or name, [name], [values]), name, model.classes)
        columns[at] = Column(target.name, codes)
    return columns


class Floats(Column):
    """Integers in a file for a model that was trained on floats."""

    def __init__(self, column: Column) -> None:
        super().__init__(column.name, column)
        self.dtype = np.dtype(np.float64)

    def __getitem__(self, rows: Any) -> Array:
        return super().__getitem__(rows).astype(self.dtype)

    def location(self, row: int) -> str:
        return str(self._array.location(row))

    def look(self) -> None:
        self._array.look()


class _File:
    """A file, or several of arrays, by what a user names it.

    Attributes:
        path, ending: of a file; "" and .npy of arrays in files of their own.
        names: of arrays: `inputs`, and `target` and `weight`, which may be None.
        how: what a table was read with where the model was trained, and what is written of this.
        whole: whether it is read into memory at once, as that of the run was.
        content: of standard input; None: nobody has read it yet.
    """

    def __init__(
        self, text: str, option: str, model: TrainedModel, content: bytes | None = None
    ) -> None:
        self.text, self.model, self.content, data = text, model, content, model.config.data
        keys = _keys(text, option) if text.startswith("{") else {}
        self.path = keys.pop("path", "") if keys else text
        written = {key: keys.pop(key) for key in WRITTEN if key in keys}
        self.how = model.of_table | written
        if keys:
            self.ending = check_ending(self.path, option, ARRAYS) if self.path else ".npy"
        elif Path(self.path).is_dir() and any(Path(self.path).glob("*.npy")):
            self.ending = ".npy"
        elif data.type == "csv" and _ending(self.path) == _ending(data.arguments["path"]):
            self.ending = ".csv"  # such as .dat
        else:
            self.ending = check_ending(self.path, option)
        if written and self.ending not in TABLES[:3]:
            raise ConfigError(f"{option} {text}: {next(iter(written))} is a key of a CSV alone")
        if self.ending == ".npy" and self.path:
            keys, self.path = {"inputs": [self.path]}, ""
        known = _names(model) if self.path else {"target": None, "weight": None}
        self.names: dict[str, Any] = known | keys
        if "inputs" not in self.names:
            raise ConfigError(f"{option} {text}: name the inputs: {{inputs: x.npy}}")
        by_rows = f".{data.type}" == self.ending and data.arguments.get("in_memory") is False
        self.whole = self.ending in (*TABLES, ".npz") and not by_rows

    def table(self) -> tuple[ParquetRows | None, Frame]:
        """The columns; or these without rows, and what reads rows of numbers."""
        path, notation = Path(self.path), Notation.of(self.how)
        if self.ending == ".parquet":
            rows = None if self.whole else ParquetRows(path)
            if rows is None:
                return None, read_parquet(path, notation=notation)
            return rows, rows.empty
        as_written = self.how.get("delimiter", ","), notation, self.how.get("encoding", "utf-8")
        if self.path != "-":
            return None, read_csv(path, *as_written)
        content = standard_input() if self.content is None else self.content
        return None, read_csv("standard input", *as_written, content=content)

    def arrays(self, names: Sequence[str]) -> list[Any]:
        """Arrays by their names."""
        path, count = Path(self.path), len(self.model.signature.inputs)
        if (found := len(self.names["inputs"])) != count:
            raise DataError(f"{self.text}: the model takes {plural(count, 'input')}, got {found}")
        if self.ending == ".npy":
            return [Mapped.of_files(Path(name)) for name in names]
        if self.ending == ".npz":
            return [(load_npz if self.whole else map_npz)(path, name) for name in names]
        return [*map(STORES[self.ending](path), names)]


def standard_input() -> bytes:
    """All of it; nothing where it is closed."""
    return sys.stdin.buffer.read() if sys.stdin is not None else b""


def _weight(model: TrainedModel) -> str | None:
    """What says how much each row counts where the model was trained; None: all count alike."""
    data = model.config.data
    name = data.arguments.get("weight") if data.type in WEIGHTED else None
    return Path(name).stem if name and data.type == "npy" else name


def _names(model: TrainedModel) -> dict[str, Any]:
    """What arrays are called that are not named."""
    data, count = model.config.data, len(model.signature.inputs)
    if data.type in ("npz", "hdf5", "zarr"):
        inputs, target = data.inputs, data.target
        inputs = [inputs] if isinstance(inputs, str) else inputs
    else:
        inputs = ["x"] if count == 1 else [f"x{i}" for i in range(count)]
        target = (model.target_names or ("y",))[0]
    return {"inputs": inputs, "target": target, "weight": _weight(model)}


def _keys(text: str, option: str) -> dict[str, Any]:
    """What names the arrays, by key."""
    if lost := cut_by_yaml(text):
        raise ConfigError(f"{option} {text}: YAML would not keep {lost}; quote the names")
    try:
        keys: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        keys = None
    if not isinstance(keys, dict) or not keys:
        raise ConfigError(f"{option} {text}: expected keys and values, as {{inputs: x.npy}}")
    for key, value in keys.items():
        if key not in KEYS:
            near = did_you_mean(str(key), KEYS)
            raise ConfigError(f"{option} {text}: no key {key}{near}; there are: {', '.join(KEYS)}")
        several = value if key == "inputs" and isinstance(value, list) and value else [value]
        if not all(isinstance(name, str) and name for name in several):
            raise ConfigError(f"{option} {text}: {key} is {value!r}, expected a name")
        if key == "inputs":
            keys[key] = several
    return keys
