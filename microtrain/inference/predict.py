"""Predictions for the rows of a file, written to another: whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.files import reason, refusing, write_whole
from ..common.words import listed
from ..errors import ConfigError, DataError, LaunchError
from .files import check_ending, read_inputs
from .mean import TrainedEnsemble
from .model import TrainedModel, once

Array = NDArray[Any]
Arrays = Mapping[str, Array]


def predict_file(
    model: TrainedModel | TrainedEnsemble,
    source: str,
    output: str,
    note: Callable[[str], None],
    *,
    proba: bool = False,
    threshold: float | None = None,
    force: bool = False,
    keep: Sequence[str] = (),
) -> int:
    """Write the predictions for every row of `source` in its order; returns their number.

    CSV gets the columns of `source` that are ids or named by `keep`, a column for each target
    (under its name, else `prediction`; `predicted_<name>` where the target itself is kept), and
    with `proba` one `probability_<class>` for each class, of six digits. NPZ gets the columns,
    `prediction`, and with `proba` `probability` and `classes`. Of an ensemble both get what
    `TrainedEnsemble.predict` calls spread: CSV as `spread_<target>`, or `spread` of classes.
    `threshold`: as `TrainedModel.predict` has it.

    Raises ConfigError (an output that must not be written, `proba` of a regression), DataError (the
    input), LaunchError (the file system refuses).
    """
    suffix = check_ending(output, "--output", (".csv", ".npz"))
    if output != "-":
        check_place(output, force, source)
    first = model.first if isinstance(model, TrainedEnsemble) else model
    note = once(note)
    inputs, kept = read_inputs(source, first, note, keep)

    made: dict[str, Callable[..., Array]] = {}
    made["prediction"] = partial(model.decide, threshold=threshold)
    if isinstance(model, TrainedEnsemble):
        made["spread"] = partial(model.spread, threshold=threshold)
    if proba:
        made["probability"] = model.probabilities

    def blocks() -> Iterator[Arrays]:
        """What is made of the outputs, block by block."""
        try:
            for each in model.outputs(inputs, note=note, kept=kept):
                yield {name: of(each) for name, of in made.items()}
        except DataError as error:
            raise DataError(str(error) if source in str(error) else f"{source}: {error}") from error

    content: Iterable[bytes]
    if suffix == ".npz":
        # The latter two are arguments of numpy.savez.
        own = ("prediction", "spread", "probability", "classes", "file", "allow_pickle")
        _refuse_taken(output, kept, own)
        named = {"classes": first.labels} if proba and first.classes is not None else {}
        content = [_npz(kept, blocks(), named)]
    else:
        content = _csv(first, blocks(), output, kept)
    if output == "-":
        _to_stdout(content)
    else:
        write_output(Path(output), content)
    return len(inputs)


def _csv(
    model: TrainedModel, blocks: Iterable[Arrays], output: str, kept: Arrays
) -> Iterator[bytes]:
    """The bytes of a table, block after block, each with its rows of what is kept."""
    start = 0
    for number, found in enumerate(blocks):
        stop = start + len(found["prediction"])
        rows = {name: column[start:stop] for name, column in kept.items()}
        columns, start = _columns(model, found, output, rows), stop
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        if number == 0:
            writer.writerow(columns)
        # Not as tolist(): that would lengthen a float32.
        writer.writerows(zip(*columns.values(), strict=True))
        yield text.getvalue().encode()


def _npz(kept: Arrays, blocks: Iterable[Arrays], classes: Arrays) -> bytes:
    """A .npz file of what is kept, what is predicted in blocks, and the names of classes."""
    every = [*blocks]
    found: dict[str, Any] = {name: np.concatenate([b[name] for b in every]) for name in every[0]}
    file = io.BytesIO()
    np.savez(file, **(found | {**kept, **classes}))
    return file.getvalue()


def check_place(output: str, force: bool, source: str = "-") -> None:
    """ConfigError where a file cannot be, or must not be, written."""
    path = Path(output)
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise ConfigError(f"--output {output} is not a file")
        if not path.parent.is_dir():
            raise ConfigError(f"--output {output}: there is no directory {path.parent}")
        if path.exists():
            if source != "-" and Path(source).exists() and path.samefile(source):
                raise ConfigError(f"--output {output} is the input itself; name another file")
            if not force:
                raise ConfigError(f"--output {output} exists; --force replaces it")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(f"--output {output!r}: {error}") from error


def _columns(model: TrainedModel, found: Arrays, output: str, kept: Arrays) -> dict[str, Array]:
    """What becomes the columns of a table, by name."""
    prediction = found["prediction"]
    if prediction.ndim > 2:
        shape = prediction.shape[1:]
        raise ConfigError(f"--output {output}: a prediction has shape {shape}; write .npz")
    chances = model.link is not None  # predictions that are numbers are probabilities as well
    table = _written(prediction, model, chances)
    names: Any = model.target_names or ("prediction",)
    if len(names) != table.shape[1]:
        names = [f"prediction_{i}" for i in range(table.shape[1])]
    names = [f"predicted_{name}" if name in kept else name for name in names]
    labels = [f"probability_{name}" for name in model.classes or names]
    spreads = ["spread"] if model.classes is not None else [f"spread_{name}" for name in names]
    own = dict(zip(names, table.T, strict=True))
    if "spread" in found:
        own.update(zip(spreads, _written(found["spread"], model, chances).T, strict=True))
    if "probability" in found:
        own.update(zip(labels, _written(found["probability"], model, True).T, strict=True))
    _refuse_taken(output, kept, own)
    return {**kept, **own}


def _written(array: Array, model: TrainedModel, chances: bool) -> Array:
    """Columns (n, k): probabilities as texts of six digits, other numbers as the model has them.

    Of a float32 the shortest text that reads back to it is written.
    """
    wide = array if array.ndim == 2 else array[:, None]
    if wide.dtype.kind != "f":
        return wide
    if not chances:
        return wide.astype(model.config.dtype)
    return np.array([[f"{each:.6g}" for each in row] for row in wide.tolist()]).reshape(wide.shape)


def _refuse_taken(output: str, kept: Arrays, own: Collection[str]) -> None:
    """ConfigError for columns of the input whose names are those of what is predicted."""
    if taken := [name for name in kept if name in own]:
        raise ConfigError(
            f"--output {output}: {listed(taken)} of the input cannot be kept beside predictions of "
            "that name; rename it there, or leave it out of --keep"
        )


def _to_stdout(content: Iterable[bytes]) -> None:
    try:
        with tempfile.TemporaryFile() as whole:  # nothing is written if anything is wrong
            whole.writelines(content)
            whole.seek(0)
            shutil.copyfileobj(whole, sys.stdout.buffer)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough (`| head`)
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())  # or the interpreter fails at exit, flushing the rest
        os.close(sink)
    except OSError as error:
        raise LaunchError(f"cannot write to standard output: {reason(error)}") from error


def write_output(path: Path, content: bytes | Iterable[Any]) -> None:
    """Write a file whole or not at all; LaunchError where the file system refuses."""
    path = path.resolve()  # what a link leads to is replaced, not the link
    with refusing(f"cannot write {path}"):
        write_whole(path, content, mode=path.stat().st_mode & 0o777 if path.exists() else None)
