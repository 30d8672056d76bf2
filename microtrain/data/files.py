"""Data from files: csv, npz, parquet. What cannot be read as numbers is refused, and named.

A wrong cell costs a user an hour when it trains silently and ten seconds when it is named. So
nothing is skipped, filled in or guessed: a cell is a finite number, or, in a target column, a name.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self, TextIO

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError
from ..files import open_plain
from .columns import Columns, take
from .dataset import ArrayDataset
from .table import Table, did_you_mean, has_decimal_comma, missing_name, number, shortened

__all__ = ["csv", "npz", "parquet"]


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
    table = Table.read(path, _text(path), delimiter)
    y, classes = _target(table, target, categorical)
    names = table.inputs(target) if features is None else features
    x = np.empty((len(table.rows), len(names)))
    for j, name in enumerate(names):
        x[:, j] = table.numbers(
            name,
            hint="fill such cells in or delete the rows; columns of text can be left out: "
            "features: [...] names those to use",
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
    with open_npz(path) as file:
        arrays = [file.numbers(name) for name in names]
    if len({len(array) for array in arrays}) > 1:
        shapes = ", ".join(f"{n} {a.shape}" for n, a in zip(names, arrays, strict=True))
        raise DataError(f"{path}: arrays have different numbers of rows: {shapes}")
    return ArrayDataset(*arrays, target_name=target)


class open_npz:
    """A .npz file, open while it is read, without pickle; DataError for all that is wrong with it.

    `names` are those of its arrays; nothing is read of an array that is not asked for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self._file = _open(self.path)
        try:
            # Else NumPy takes it for a pickle, and says how to load one unsafely.
            if not self._file.peek(2).startswith((b"PK", b"\x93N")):  # type: ignore[attr-defined]
                raise DataError(
                    f"{self.path} is not a readable npz file: numpy.savez(path, x=..., y=...) "
                    "writes one, tables are data of type csv or parquet"
                )
            loaded = np.load(self._file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise DataError(
                    f"{self.path} holds one unnamed array (npy); numpy.savez(path, x=..., y=...) "
                    "writes npz"
                )
        except _unreadable() as error:
            self._file.close()
            raise DataError(f"{self.path} is not a readable npz file: {error}") from error
        except BaseException:
            self._file.close()
            raise
        self._arrays, self.names = loaded, list(loaded.files)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def array(self, name: str) -> NDArray[Any]:
        """An array of whatever it holds."""
        if name not in self.names:
            raise DataError(missing_name(f"{self.path} has no array", name, "arrays", self.names))
        try:
            found = self._arrays[name]
        except _unreadable() as error:
            raise DataError(f'{self.path}: array "{name}" cannot be read: {error}') from error
        if not isinstance(found, np.ndarray):  # a member that is no .npy
            raise DataError(f'{self.path}: "{name}" is no array')
        return found

    def numbers(self, name: str) -> NDArray[Any]:
        """An array of rows of numbers."""
        found = self.array(name)
        if found.ndim == 0 or found.dtype.kind not in "biuf":
            raise DataError(
                f'{self.path}: array "{name}" has shape {found.shape} and dtype {found.dtype}; '
                "expected rows of booleans, integers or floats"
            )
        return found


def _unreadable() -> tuple[type[Exception], ...]:
    """What numpy.load raises for a file that is cut short, damaged, something else, or pickled.

    MemoryError where a damaged header asks for more than there is; RuntimeError for an encrypted
    member and an unknown compression.
    """
    from struct import error as struct_error  # late, as every module that only an error needs
    from zipfile import BadZipFile
    from zlib import error as zlib_error

    named = (ValueError, OSError, EOFError, MemoryError, OverflowError, RuntimeError, KeyError)
    return (*named, TypeError, SyntaxError, BadZipFile, zlib_error, struct_error)


def parquet(path: Path, target: str, features: list[str] | None = None) -> ArrayDataset:
    """A Parquet file: number columns as inputs, one column as the target; pyarrow reads it.

    A target of numbers is a regression target, float64 of shape (n, 1); one of texts is class
    codes in the order of the sorted names, which are `classes`.

    Args:
        path: a .parquet file.
        target: the name of the target column.
        features: the names of the input columns, in order; None takes all others of the file.

    Raises DataError for a file that cannot be read, a column that is missing, and the first value
    that is not a finite number, by row and column.

    Example:
        >>> data = parquet(Path("measured.parquet"), target="price")
    """
    path = Path(path)
    if features is not None:
        if not features or len(set(features)) < len(features):
            raise ConfigError(f"parquet: features must name columns, each once, got {features}")
        if target in features:
            raise ConfigError(f"parquet: the target {target!r} is also one of the features")
    names = features if features is None else [*features, target]
    (columns,) = parquet_parts(path, names)
    if target not in columns.header:
        raise DataError(missing_name(f"{path} has no column", target, "columns", columns.header))
    names = [name for name in columns.header if name != target] if features is None else features
    if not names:
        raise DataError(f'{path} has no column beside the target "{target}"')
    x, _ = take(columns, names)
    if not columns.is_text(target):
        y, classes = columns.numbers(target).reshape(-1, 1), None
    else:
        cells = columns.column(target)
        if "" in cells:
            raise DataError(f"{columns.place(cells.index(''), target)}: no value")
        labels = sorted(set(cells))
        if len(labels) > max(20, len(cells) // 2):
            raise DataError(
                f'{path}, column "{target}": {len(labels)} different texts in {len(cells)} rows; '
                f'is "{shortened(cells[0])}" the name of a class?'
            )
        codes = {label: code for code, label in enumerate(labels)}
        y, classes = np.array([codes[cell] for cell in cells], np.int64), labels
    return ArrayDataset(x, y, feature_names=names, target_name=target, classes=classes)


def parquet_parts(
    path: Path, wanted: Sequence[str] | None, rows: int | None = None
) -> Iterator[Columns]:
    """Columns of a Parquet file, those of `wanted` that it has (None: all), `rows` at a time.

    Raises DataError where pyarrow is absent, the file cannot be read, or has no rows.
    """
    try:
        import pyarrow
        from pyarrow import parquet as reader
    except ImportError as error:
        raise DataError(
            f"{path}: Parquet is read by pyarrow, which cannot be imported ({error}); "
            "install it with: pip install 'microtrain[data]'"
        ) from error
    # Arrow's errors are ValueError, OSError, KeyError, NotImplementedError, MemoryError ...
    wrong = (pyarrow.ArrowException, *_unreadable())
    with _open(path) as file:
        try:
            table = reader.ParquetFile(file)
            asked = None if wanted is None else set(wanted)
            names = [n for n in table.schema_arrow.names if asked is None or n in asked]
            first = 0
            batches = [table.read(names)] if rows is None else table.iter_batches(rows, None, names)
            for batch in batches:
                arrays = {}
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if pyarrow.types.is_dictionary(column.type):
                        column = column.cast(column.type.value_type)
                    arrays[name] = column.to_numpy(zero_copy_only=False)
                part = Columns(str(path), arrays, first)
                first += part.rows
                yield part
        except wrong as error:
            text = " ".join(str(error).split())
            raise DataError(f"{path} is not a readable Parquet file: {text:.300}") from error
    if not first:
        raise DataError(f"{path} has no rows: the data set is empty")


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
        return open_plain(path)
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" (looked for {path.absolute()})"
        raise DataError(f"there is no file {path}{where}{_near(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error


def _near(path: Path) -> str:
    try:
        return did_you_mean(path.name, sorted(other.name for other in path.parent.iterdir()))
    except OSError:  # there is no such folder either, or it cannot be listed
        return ""


def _text(path: Path) -> str:
    with _open(path) as file:
        return decoded(path, file.read())


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A text file to be read line by line; DataError naming the line that is not UTF-8."""
    with _open(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        try:
            yield text
        except UnicodeDecodeError:
            _text(path)  # which says where
            raise
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def decoded(path: Path, content: bytes) -> str:
    """`content` as text; DataError naming the line of `path` that is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8 text; "
            "save the file as UTF-8"
        ) from error
