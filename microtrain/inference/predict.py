"""Predictions for the rows of a file, written to another: whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, DataError, LaunchError
from ..files import reason
from .inputs import check_suffix, read_inputs
from .model import TrainedModel

__all__ = ["check_output", "predict_file"]

Array = NDArray[Any]


def check_output(output: str, source: str, force: bool) -> str:
    """The suffix of the file to write; ConfigError where it cannot be, or must not be, written."""
    suffix = check_suffix(output, "--output")
    if output == "-":
        return suffix
    path = Path(output)
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise ConfigError(f"--output {output} is no file")
        if not path.parent.is_dir():
            raise ConfigError(f"--output {output}: there is no directory {path.parent}")
        if path.exists():
            if source != "-" and Path(source).exists() and path.samefile(source):
                raise ConfigError(f"--output {output} is the input itself; name another file")
            if not force:
                raise ConfigError(f"--output {output} exists; --force replaces it")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(f"--output {output!r}: {error}") from error
    return suffix


def predict_file(
    model: TrainedModel,
    source: str,
    output: str,
    note: Callable[[str], None],
    *,
    proba: bool = False,
    force: bool = False,
    delimiter: str | None = None,
) -> int:
    """Write the predictions for every row of `source` in its order; returns their number.

    CSV and Parquet get a column for each target (under its name, else `prediction`), with `proba`
    one `probability_<class>` for each class. NPZ gets `prediction`, and with `proba` `probability`
    and `classes`.

    Raises ConfigError (an output that must not be written, `proba` of a regression), DataError (the
    input), LaunchError (the file system refuses).
    """
    suffix = check_output(output, source, force)
    if proba:
        model.check_proba()
    labels, chances, count = [], [], 0
    for arrays in read_inputs(source, model, note, delimiter):
        try:
            labels.append(model.predict(*arrays))
            if proba:
                chances.append(model.predict_proba(*arrays))
        except DataError as error:
            first = f", rows from {count}" if count else ""
            raise DataError(f"{source}{first}: {error}") from error
        count += len(labels[-1])
    prediction = np.concatenate(labels)
    chance = np.concatenate(chances) if proba else None
    if suffix == ".npz":
        content = _npz(model, prediction, chance)
    else:
        columns = _columns(model, prediction, chance, output)
        content = _csv(columns) if suffix == ".csv" else _parquet(columns)
    if output == "-":
        _to_stdout(content)
    else:
        with _replacing(Path(output), force) as file:
            for piece in content:
                file.write(piece)
    return count


def _columns(
    model: TrainedModel, prediction: Array, chance: Array | None, output: str
) -> dict[str, Array]:
    if prediction.ndim > 2:
        raise ConfigError(
            f"--output {output}: a prediction has shape {prediction.shape[1:]}; write .npz"
        )
    table = prediction if prediction.ndim == 2 else prediction[:, None]
    names: Any = model.target_names or ("prediction",)
    if len(names) != table.shape[1]:
        names = [f"prediction_{i}" for i in range(table.shape[1])]
    columns = {name: table[:, i] for i, name in enumerate(names)}
    if chance is not None:
        chances = chance if chance.ndim == 2 else chance[:, None]
        for name, column in zip(model.classes or names, chances.T, strict=True):
            columns[f"probability_{name}"] = column
    return columns


def _csv(columns: dict[str, Array]) -> Iterator[bytes]:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    count = len(next(iter(columns.values())))
    for first in range(0, count, 8192):
        # Of a float32 the shortest text that reads back to it, which tolist() would lengthen.
        part = [column[first : first + 8192].astype(str) for column in columns.values()]
        writer.writerows(zip(*part, strict=True))
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()


def _npz(model: TrainedModel, prediction: Array, chance: Array | None) -> Iterator[bytes]:
    arrays = {"prediction": prediction}
    if chance is not None:
        arrays["probability"] = chance
        if model.classes is not None:
            arrays["classes"] = model.labels
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    yield file.getvalue()


def _parquet(columns: dict[str, Array]) -> Iterator[bytes]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"Parquet is written by pyarrow, which cannot be imported ({error}); "
            "install it with: pip install 'microtrain[data]'"
        ) from error
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    yield file.getvalue()


def _to_stdout(content: Iterator[bytes]) -> None:
    try:
        for piece in content:
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough (`| head`)
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())  # or the interpreter fails at exit, flushing the rest
        os.close(sink)
    except OSError as error:
        raise LaunchError(f"cannot write to standard output: {reason(error)}") from error


@contextlib.contextmanager
def _replacing(path: Path, force: bool) -> Iterator[BinaryIO]:
    """A new file that takes its place at `path` when all of it is on disk."""
    path = path.resolve()  # what a link leads to is replaced, not the link
    partial = ""
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(handle)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(partial, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        if path.exists() and not force:
            raise ConfigError(f"--output {path} was written meanwhile; --force replaces it")
        os.replace(partial, path)
        partial = ""
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {reason(error)}") from error
    finally:
        if partial:
            with contextlib.suppress(OSError):
                os.unlink(partial)
