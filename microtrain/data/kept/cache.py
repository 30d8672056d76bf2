"""Rows kept in a directory as .npy files: prepared ones for runs to come, and decoded chunks.

What is kept lies in a directory of its own, whose name is a hash of the files that the rows come
from (path, size, time) and of all that was done with them: one .npy file for each array of each
part, and `data.json` for the rest, with the sha256 of each file and of itself: what it says of the
rows is believed, so the rows are looked at before. It is written block by block under another name
and renamed when it is whole. So nobody ever sees half of one, and of several ranks or jobs that
want the same one writes, and the others wait while it grows.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...common.files import open_plain, read_object, reason, refusing
from ...common.words import size
from ...distributed.communicator import alone
from ...errors import DataError
from ..preparation.prepare import Prepared
from ..preparation.split import PARTS
from ..readers.npy import Mapped, Stored, changed, map_npy
from ..rows import Known, Preprocessing, TargetScaling
from ..source import ArrayDataset
from ..tables.encoder import Encoder
from .npy_writer import require_room, to_disk, write

Array = NDArray[Any]

FORMAT: Final = 4  # of what is kept, and of how rows are prepared; another one is made anew
ABOUT: Final = "data.json"
UNFINISHED: Final = ".part-"
OLD: Final = 60.0  # seconds: what is younger may not be locked by its writer yet
QUIET: Final = 3.0  # seconds without a byte more, from when a writer without a lock is gone
PATIENCE: Final = 60.0  # the same where the file system has no locks, so that nobody knows
LOOK: Final = 0.05  # seconds between two looks at what it has written

# Whether another rank of this host has compared the checksums of what is decoded.
CHECKED: ContextVar[bool] = ContextVar("CHECKED", default=False)


class Kept(ArrayDataset):
    """Arrays mapped from what is kept, of which nothing is checked or read again.

    Attributes:
        known: of the part; None for rows that were in memory when they were kept.
    """

    known: Known | None = None


def stamps(paths: Sequence[Path]) -> list[Any]:
    """What tells files from those that they become when they are written to or replaced.

    Of each its path, size and time; of a directory those of all files in it. None for what is not
    there.
    """
    return [_stamp(path) for path in paths]


def _stamp(path: Path) -> Any:
    try:
        found = path.stat()
        if not path.is_dir():
            return str(path.absolute()), found.st_size, found.st_mtime_ns
        digest = hashlib.blake2b(digest_size=16)
        for entry in _files(path):
            info = entry.stat()
            name = os.path.relpath(entry.path, path)
            digest.update(json.dumps([name, info.st_size, info.st_mtime_ns]).encode())
        return str(path.absolute()), digest.hexdigest()
    except OSError:
        return None


def _files(directory: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    """All files below a directory, in the order of their names."""
    with os.scandir(directory) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_dir():
            yield from _files(entry.path)
        else:
            yield entry


def key_of(*what: Any) -> str:
    """The name under which rows are kept: a hash of plain values that say what they are."""
    text = json.dumps([FORMAT, *what], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def find(directory: Path, key: str) -> Path | None:
    """Where rows are kept under a key; None where they are not."""
    place = directory / key
    return place if place.is_dir() else None


def opened(place: Path, *, checked: bool = False) -> Prepared:
    """Prepared rows that are kept at a place, mapped into memory; DataError as `_opened`."""
    with _usable(place):
        about, parts = _opened(place, checked)
        found = {key: about[key] for key in ("in_features", "out_features", "digest")}
        return Prepared(
            train=parts["train"],
            val=parts.get("val"),
            test=parts.get("test"),
            preprocessing=Preprocessing.from_json(about["preprocessing"]),
            classes=_tuple(about["classes"]),
            target_scaling=TargetScaling.from_json(about["target_scaling"]),
            encoder=None if about["encoder"] is None else Encoder.from_json(about["encoder"]),
            notes=tuple(about["notes"]),
            found=str(place),
            **found,
        )


@contextlib.contextmanager
def _usable(place: Path) -> Iterator[None]:
    """DataError for what cannot be read, or is not as it was written."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise DataError(
            f"data.cache: {place} cannot be used: {why}\nhint: delete it, and it is made again; "
            "the ranks of a host must see the same directory"
        ) from error


def _opened(place: Path, checked: bool) -> tuple[dict[str, Any], dict[str, Kept]]:
    """What is known of the rows that are kept at a place, and the rows by part.

    checked: another rank of the host has gone through them, or they were written just now.
    """
    about = read_object(place / ABOUT)
    if about.pop("sha256") != _sha256_of(about):
        raise ValueError(f"{ABOUT} was changed")
    parts = {name: _part(place, name, each) for name, each in about["parts"].items()}
    for name, each in {} if checked else about["parts"].items():
        for number, sha256 in enumerate(each["sha256"]):
            with open_plain(place / f"{name}-{number}.npy") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    raise ValueError(f"{name}-{number}.npy was changed")
    return about, parts


def _part(place: Path, name: str, about: dict[str, Any]) -> Kept:
    arrays = []
    for number, (dtype, shape) in enumerate(about["arrays"]):
        array = map_npy(place / f"{name}-{number}.npy")
        if (array.dtype.str, [*array.shape]) != (dtype, shape):
            raise ValueError(f"{name}-{number}.npy is {array.dtype} of shape {array.shape}")
        arrays.append(array)
    part = Kept(*(array[:0] for array in arrays))
    part.arrays = tuple(arrays)
    part.weighted, part.target_name, part.truth = (
        about[key] for key in ("weighted", "target_name", "truth")
    )
    part.feature_names, part.classes = _tuple(about["feature_names"]), _tuple(about["classes"])
    if about["known"] is not None:
        known = about["known"]
        part.known = Known(**{**known, "mean": np.float64(known["mean"])})
    return part


def _tuple(names: Any) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def decoded(columns: Sequence[Any], directory: Path | None) -> list[Mapped]:
    """Columns whose rows are in chunks, decoded once, in order, and mapped.

    Args:
        columns: such as `stores.Chunked`.
        directory: where they are kept; None: with all else that microtrain keeps for its user.

    Raises DataError where there is no room for all of them, what is kept is damaged, or a file
    changes meanwhile.
    """
    directory = _home() if directory is None else directory
    before = [stamps([column.path]) for column in columns]
    keys = [key_of(stamp, *column.what) for stamp, column in zip(before, columns, strict=True)]
    ready = []
    require_room(
        directory,
        [Stored([c]) for c, k in zip(columns, keys, strict=True) if not find(directory, k)],
    )
    for column, stamp, key in zip(columns, before, keys, strict=True):

        def make(place: Path, column: Any = column, stamp: Any = stamp) -> dict[str, Any]:
            parts = write(place, {"rows": Stored([column])}, f"decodes {column.name}")
            if stamps([column.path]) != stamp:
                raise changed(column.path)
            return {"parts": parts}

        place, made = keep(directory, key, make)
        with _usable(place):
            (array,) = _opened(place, made or CHECKED.get())[1]["rows"].arrays
        ready.append(Mapped(column.name, [place / "rows-0.npy"], [array]))
        ready[-1].kept = place
    return ready


def _home() -> Path:
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:  # a user without a home
        raise DataError(f"{error}\nhint: name a directory in data.cache") from error
    return Path(home) / "microtrain" / "data"


def written(place: Path, data: Prepared, digest: str) -> dict[str, Any]:
    """Write prepared rows; what is to be known of them."""
    parts = {name: getattr(data, name) for name in PARTS if getattr(data, name) is not None}
    return {
        "parts": write(place, parts, "keeps the prepared rows"),
        "preprocessing": data.preprocessing.to_json(),
        "target_scaling": None if (scaling := data.target_scaling) is None else scaling.to_json(),
        "in_features": data.in_features,
        "out_features": data.out_features,
        "classes": data.classes,
        "encoder": None if data.encoder is None else data.encoder.to_json(),
        "notes": data.notes,
        "digest": digest,
    }


def keep(directory: Path, key: str, make: Callable[[Path], dict[str, Any]]) -> tuple[Path, bool]:
    """Where rows are kept under a key, and whether they were made just now.

    Args:
        make: writes them into a directory (see `write`), and returns what is to be known of them.
            It is not called where another rank or job has done so, or is doing so now.

    Raises DataError where they cannot be written; nothing is left then.
    """
    final = directory / key
    if final.is_dir():
        return final, False
    with _REFUSING():
        directory.mkdir(parents=True, exist_ok=True)
        _clear(directory)
        place = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
    lock, locked = os.open(place, os.O_RDONLY), False
    try:
        with contextlib.suppress(OSError):  # where the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
            locked = True
        with _REFUSING(), open(place / ABOUT, "wb") as file:
            place = _in_turn(place, directory / f"{UNFINISHED}{key}", final, locked)
            if place == final:
                return final, False
            about = json.loads(json.dumps(make(place), default=_plain))
            file.write(json.dumps(about | {"sha256": _sha256_of(about)}).encode())
            to_disk(file)
        with _REFUSING():
            try:
                place = place.rename(final)
            except OSError:
                if not final.is_dir():
                    raise
        return final, True
    finally:
        if place != final:
            shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


_REFUSING = functools.partial(
    refusing, "data.cache", "\nhint: name a directory in data.cache", DataError
)


def _in_turn(place: Path, turn: Path, final: Path, locked: bool) -> Path:
    """The directory of this writer, under the name that shows who writes; `final`: another has.

    Who waits sees what the other writes grow. A writer that has ended before it was done is
    followed by one that waits. Without locks another writes the same beside one that is quiet.
    """
    length, since = -1, time.monotonic()
    with alone(f"it waits for {turn}") as busy:
        while True:
            with contextlib.suppress(OSError):  # it is there, and not empty
                place = place.rename(turn)
            if final.is_dir():
                shutil.rmtree(place, ignore_errors=True)
                return final
            if place == turn:
                return turn
            with contextlib.suppress(OSError):  # it is there no more
                grown = sum(each.stat().st_size for each in turn.iterdir())
                if grown != length:
                    length, since = grown, time.monotonic()
                    busy(f"it waits for {turn}, {size(grown)} so far")
            quiet = time.monotonic() - since
            if quiet > QUIET:
                _remove_unlocked(turn)
            if quiet > PATIENCE and not locked:
                return place
            time.sleep(LOOK)


def _remove_unlocked(place: Path) -> None:
    """Remove what a writer that is gone has left: its lock is gone, too."""
    with contextlib.suppress(OSError):
        lock = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == place.stat().st_ino:
                shutil.rmtree(place)
        finally:
            os.close(lock)


def _sha256_of(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """For JSON, what is NumPy's."""
    return value.tolist()


def _clear(directory: Path) -> None:
    """Remove what writers that were killed have left."""
    for place in directory.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - place.stat().st_mtime > OLD:
                _remove_unlocked(place)
