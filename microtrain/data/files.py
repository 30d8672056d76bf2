"""Data from files: csv and npz. What cannot be read as numbers is refused, by line and column.

A wrong cell costs a user an hour when it trains silently and ten seconds when it is named. So
nothing is skipped, filled in or guessed: a cell is a finite number, or, in a target column, a name.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from .dataset import ArrayDataset
from .table import Table, did_you_mean, has_decimal_comma, missing_name, number, shortened

__all__ = ["csv", "npz"]


def csv(
    path: Path,
    target: str,
    features: list[str] | None = None,
    delimiter: str = ",",
    categorical: bool = False,
) -> ArrayDataset:
    """A table with a header line: number columns as inputs, one column as the target.

    A target column of numbers is a regression target, float64 of shape (n, 1). One of names is
    class codes, int64 of shape (n,), in the order of the sorted names, which are `classes`. One
    that holds both is refused, for that is a typing error more often than not.

    Args:
        path: a UTF-8 file (a byte order mark is fine), quoted as spreadsheets do.
        target: the name of the target column.
        features: the names of the input columns, in order; None takes all others of the file.
        delimiter: the one character between cells.
        categorical: read the target as classes whatever its cells look like: whole numbers are
            classes in numerical order, anything else in that of its text.

    White space around names and cells does not count. Raises DataError (what is wrong with the
    file: line, column and the text found) or ConfigError (arguments that fit no file).

    Example:
        >>> iris = csv(Path("configs/data/iris.csv"), target="species")
        >>> iris.classes
        ('setosa', 'versicolor', 'virginica')
    """
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(
            f"csv: delimiter must be one character, got {delimiter!r}; "
            r'a tab is written "\t", in double quotes'
        )
    if features is not None:
        if not features or len(set(features)) < len(features):
            raise ConfigError(f"csv: features must name columns, each once, got {features}")
        if target in features:
            raise ConfigError(f"csv: the target {target!r} is also one of the features")
    path = Path(path)
    table = Table(path, _text(path), delimiter)
    y, classes = _target(table, target, categorical)
    names = table.inputs(target) if features is None else features
    x = np.empty((len(table.rows), len(names)))
    for j, name in enumerate(names):
        x[:, j] = table.numbers(
            name, hint="columns of text can be left out: features: [...] names those to use"
        )
    return ArrayDataset(x, y, feature_names=names, target_name=target, classes=classes)


def npz(path: Path, inputs: str | list[str] = "x", target: str = "y") -> ArrayDataset:
    """Arrays saved by `numpy.savez`, read without pickle.

    Args:
        path: a .npz file.
        inputs: the name of the input array, or of several.
        target: the name of the target array.

    Returns arrays as they are in the file. Raises DataError for a file that cannot be read, a name
    that it does not hold, arrays that are not numbers or differ in their number of rows.

    Example:
        >>> np.savez("data.npz", x=x, y=y)
        >>> data = npz(Path("data.npz"))
    """
    path = Path(path)
    names = [*([inputs] if isinstance(inputs, str) else inputs), target]
    if len(names) == 1:
        raise ConfigError("npz: inputs must name at least one array, got []")
    if len(set(names)) < len(names):
        raise ConfigError(f"npz: inputs and target must be different arrays, got {names}")
    with _open(path) as file:
        try:
            loaded = np.load(file, allow_pickle=False)
        except _unreadable() as error:
            raise DataError(f"{path} is not a readable npz file: {error}") from error
        if isinstance(loaded, np.ndarray):
            raise DataError(
                f"{path} holds one unnamed array (npy); numpy.savez(path, x=..., y=...) writes npz"
            )
        arrays = [_npz_array(path, loaded, name) for name in names]
    if len({len(array) for array in arrays}) > 1:
        shapes = ", ".join(f"{n} {a.shape}" for n, a in zip(names, arrays, strict=True))
        raise DataError(f"{path}: arrays have different numbers of rows: {shapes}")
    return ArrayDataset(*arrays, target_name=target)


def _unreadable() -> tuple[type[Exception], ...]:
    """What numpy.load raises for a file that is cut short, damaged, something else, or pickled."""
    from zipfile import BadZipFile  # late, as every module that only an error needs
    from zlib import error as zlib_error

    return (ValueError, OSError, EOFError, BadZipFile, zlib_error)


def _npz_array(path: Path, loaded: Any, name: str) -> NDArray[Any]:
    if name not in loaded.files:
        raise DataError(missing_name(f"{path} has no array", name, "arrays", loaded.files))
    try:
        array: NDArray[Any] = loaded[name]
    except _unreadable() as error:
        raise DataError(f'{path}: array "{name}" cannot be read: {error}') from error
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise DataError(
            f'{path}: array "{name}" has shape {array.shape} and dtype {array.dtype}; '
            "expected rows of booleans, integers or floats"
        )
    return array


def _target(table: Table, name: str, categorical: bool) -> tuple[NDArray[Any], list[str] | None]:
    """The target column: numbers of shape (n, 1), or class codes of shape (n,) and their names."""
    cells = table.column(name)
    numbers = [number(cell) for cell in cells]
    finite = [x for x in numbers if x is not None and math.isfinite(x)]
    if finite and not categorical:
        hint = "categorical: true reads every cell of the target as the name of a class"
        return table.numbers(name, hint).reshape(-1, 1), None
    commas = [] if categorical else [i for i, cell in enumerate(cells) if has_decimal_comma(cell)]
    if commas:
        raise table.refusal(name, commas, "expected a number or a name")
    bad = [i for i, x in enumerate(numbers) if not (cells[i] and (x is None or math.isfinite(x)))]
    if bad:
        raise table.refusal(name, bad, "expected a number or a name")
    if len(finite) == len(cells):
        fractions = [i for i, x in enumerate(finite) if not x.is_integer()]
        if fractions:
            raise table.refusal(name, fractions, "expected a whole number as the code of a class")
        cells = [str(int(x)) for x in finite]
        labels = sorted(set(cells), key=int)
    else:
        labels = sorted(set(cells))
    # Dates, names of people, "12 kg": a column of nearly unique texts is no set of classes.
    if not categorical and len(labels) > max(20, len(cells) // 2):
        raise DataError(
            f'{table.path}, column "{name}": {len(labels)} different texts in {len(cells)} rows; '
            f'is "{shortened(cells[0])}" the name of a class?\n'
            "hint: categorical: true says yes"
        )
    codes = {label: code for code, label in enumerate(labels)}
    return np.array([codes[cell] for cell in cells], np.int64), labels


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" (looked for {path.absolute()})"
        raise DataError(f"there is no file {path}{where}{_near(path)}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _near(path: Path) -> str:
    try:
        return did_you_mean(path.name, sorted(other.name for other in path.parent.iterdir()))
    except OSError:  # there is no such folder either, or it cannot be listed
        return ""


def _text(path: Path) -> str:
    with _open(path) as file:
        content = file.read()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8 text; "
            "save the file as UTF-8"
        ) from error
