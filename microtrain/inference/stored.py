"""Files for a trained model whose rows are read as they are used: `.npy`, HDF5 and Zarr.

NPZ and Parquet are among them where the model was trained with `in_memory: false`. Arrays are named
by one path, or, as under `data` of a configuration, by keys: `{inputs: x.npy, target: y.npy}`. What
is not named is called as it was where the model was trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ..config.document import cut_by_yaml
from ..data import Source
from ..data.cells import Codes
from ..data.files import read_parquet
from ..data.frame import Frame, shortened
from ..data.mapped import Column, Mapped, Stored, map_npz
from ..data.stores import ParquetRows, hdf5_arrays, zarr_arrays
from ..data.view import layout
from ..errors import ConfigError, DataError
from ..spelling import did_you_mean
from .model import TrainedModel

__all__ = ["array_names", "by_row_groups", "codes_of", "stored_inputs", "stored_rows"]

Array = NDArray[Any]

KEYS = ("path", "inputs", "target", "weight")
STORES = {".h5": hdf5_arrays, ".hdf5": hdf5_arrays, ".zarr": zarr_arrays}
OF_TYPE = {"hdf5": hdf5_arrays, "zarr": zarr_arrays}
READ_WHOLE = (".csv", ".npz", ".parquet")


@dataclass(frozen=True)
class Place:
    """Where arrays are: what finds one by its name, and the names."""

    find: Callable[[str], Column]
    inputs: list[str]
    target: str | None
    weight: str | None


def stored_inputs(text: str, model: TrainedModel) -> Source | None:
    """The inputs that `--input` names; None: a file that is read whole.

    Raises ConfigError for keys that are none, DataError for files, names and shapes that are wrong.
    """
    place = _place(text, "--input", model)
    if place is None:
        return None
    source = Stored([place.find(name) for name in place.inputs])
    model.check_source(source)
    return source


def stored_rows(text: str, model: TrainedModel) -> Source | None:
    """Inputs and target, perhaps weights, that `--data` names; None: a file that is read whole.

    Raises ConfigError for keys that are none or missing, DataError for files, names, shapes and
    dtypes that are wrong.
    """
    if by_row_groups(text, model):
        return _table_rows(text, model)
    place = _place(text, "--data", model)
    if place is None:
        return None
    if place.target is None:
        raise ConfigError(
            f"--data {text}: has the inputs alone; name the target, too: "
            f"--data '{{inputs: {text if text[0] != '{' else 'x.npy'}, target: y.npy}}'"
        )
    trained = model.config.data
    if place.weight is None and trained.type == "npy" and trained.arguments.get("weight"):
        raise ConfigError(f"--data {text}: the run counts rows by a weight; name one, too: weight")
    names = [*place.inputs, place.target] + ([] if place.weight is None else [place.weight])
    source = Stored(
        [place.find(name) for name in names],
        feature_names=model.feature_names, target_name=model.signature.target_name,
        classes=model.classes, weighted=place.weight is not None,
    )  # fmt: skip
    model.check_source(source)
    inputs, target = layout(source)
    if len(inputs) != len(model.signature.inputs):
        wanted = len(model.signature.inputs)
        raise DataError(f"{text}: the model takes {wanted} inputs, got {len(inputs)}")
    if model.classes is None:
        width, found = model.signature.out_features, target.shape[1:] or (1,)
        if target.dtype.kind != "f":
            raise DataError(
                f"{text}: the target is an array of {target.dtype}, but the model predicts floats"
            )
        if width is not None and found != (width,):
            raise DataError(f"{text}: a target has shape {found}, but the model gives {(width,)}")
    elif model.of_table and model.classes != tuple(map(str, range(len(model.classes)))):
        raise DataError(
            f"{text}: the target is codes, and the model was trained on the names of classes; "
            "write these, in a file .csv, .npz or .parquet"
        )
    return source


def by_row_groups(path: str, model: TrainedModel) -> bool:
    """Whether a table is read by rows, as the model's own was."""
    return model.by_rows("parquet") and Path(path).suffix.lower() == ".parquet"


def _table_rows(path: str, model: TrainedModel) -> Source:
    """Inputs, target and perhaps weights of a Parquet file."""
    stored, target = ParquetRows(Path(path)), model.signature.target_name
    weight = model.of_table.get("weight")
    assert target is not None and model.feature_names is not None
    stored.empty.require([*model.feature_names, target])
    if model.classes is None and stored.has_numbers(target):
        wanted = stored.numbers([target])
    else:
        table = read_parquet(Path(path), [target])
        classes = model.classes is not None
        wanted = stored.of(codes_of(table, target, model) if classes else table.matrix([target]))
    columns = [stored.numbers(model.feature_names), wanted]
    return Stored(
        columns + ([] if weight is None else [stored.numbers(weight)]),
        feature_names=model.feature_names, target_name=target, classes=model.classes,
        weighted=weight is not None,
    )  # fmt: skip


def codes_of(table: Frame, name: str, model: TrainedModel) -> Array:
    """The codes of the classes in a column, as the model has them; DataError for another class."""
    known, cells = Codes(model.classes or ()), table.texts(name)
    codes = np.array([known[cell] for cell in cells], np.int64)
    for row in np.flatnonzero(codes < 0)[:1].tolist():
        raise DataError(
            f'{table.location(row, name)}: "{shortened(cells[row])}" is none of the {len(known)} '
            f"classes of the model{did_you_mean(cells[row], known)}"
        )
    return codes


def array_names(model: TrainedModel) -> tuple[list[str], str]:
    """What the inputs and the target are called in a file of arrays."""
    data, count = model.config.data, len(model.signature.inputs)
    if data.type in ("npz", "hdf5", "zarr"):
        return [data.inputs] if isinstance(data.inputs, str) else list(data.inputs), data.target
    inputs = ["x"] if count == 1 else [f"x{i}" for i in range(count)]
    return inputs, (model.target_names or ("y",))[0]


def _place(text: str, option: str, model: TrainedModel) -> Place | None:
    keys = _keys(text, option)
    if (path := keys.get("path")) is None:
        if "inputs" not in keys:
            raise ConfigError(f"{option} {text}: name the inputs: {{inputs: x.npy}}")
        names = keys["inputs"], keys.get("target"), keys.get("weight")
        return Place(lambda name: Mapped.of_files(Path(name)), *names)
    suffix, trained = Path(path).suffix.lower(), model.config.data
    mapped = suffix == ".npz" and model.by_rows("npz")
    if path == "-" or (suffix in READ_WHOLE and not mapped):
        if text.startswith("{"):
            raise ConfigError(f"{option} {text}: keys name arrays in .npy, HDF5 and Zarr files")
        return None
    opener = _npz_arrays if mapped else STORES.get(suffix, OF_TYPE.get(trained.type))
    if opener is None:
        return None  # a name that is said to be none
    inputs, target = array_names(model)
    weight = trained.arguments.get("weight") if trained.type in OF_TYPE else None
    return Place(
        opener(Path(path)),
        keys.get("inputs", inputs),
        keys.get("target", target),
        keys.get("weight", weight),
    )


def _npz_arrays(path: Path) -> Callable[[str], Column]:
    return lambda name: map_npz(path, [name])[0]


def _keys(text: str, option: str) -> dict[str, Any]:
    """What names the arrays, by key."""
    if not text.startswith("{"):
        whole = Path(text).suffix.lower() in (*STORES, *READ_WHOLE)
        files = not whole and (text.endswith(".npy") or any(Path(text).glob("*.npy")))
        return {"inputs": [text]} if files else {"path": text}
    if lost := cut_by_yaml(text):
        raise ConfigError(f"{option} {text}: YAML would not keep {lost}; quote the names")
    try:
        keys: Any = yaml.safe_load(text)
    except yaml.YAMLError:
        keys = None
    if not isinstance(keys, dict):
        raise ConfigError(f"{option} {text}: expected keys and values, as {{inputs: x.npy}}")
    for key, value in keys.items():
        if key not in KEYS:
            near = did_you_mean(str(key), KEYS)
            raise ConfigError(f"{option} {text}: no key {key}{near}; there are: {', '.join(KEYS)}")
        several = key == "inputs" and isinstance(value, list) and value
        if not all(isinstance(name, str) and name for name in (value if several else [value])):
            raise ConfigError(f"{option} {text}: {key} is {value!r}, expected a name")
    inputs = keys.get("inputs", [])
    return keys | ({"inputs": [inputs] if isinstance(inputs, str) else inputs} if inputs else {})
