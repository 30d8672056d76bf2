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
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...common.files import open_plain, read_object, reason, refusing, to_disk, write_whole
from ...common.words import size
from ...distributed.communicator import alone
from ...errors import DataError
from ..preparation.prepare import Prepared
from ..preparation.split import PARTS
from ..readers.npy import Mapped, Stored, changed, map_npy, npy_header
from ..rows import Known, Preprocessing, TargetScaling
from ..source import ArrayDataset, Source, blocks, row_size
from ..tables.table import Encoder

Array = NDArray[Any]

FORMAT: Final = 6  # of what is kept, and of how rows are prepared; another one is made anew
ABOUT: Final = "data.json"
# Of prepared rows: what has its own way to JSON and back, and what is plain; and of a part.
MAPS: Final[list[tuple[str, Any]]] = [
    ("preprocessing", Preprocessing), ("target_scaling", TargetScaling), ("encoder", Encoder),
]  # fmt: skip
PLAIN: Final = ("in_features", "out_features", "classes", "notes", "digest")
OF_PART: Final = ("weighted", "feature_names", "target_name", "classes", "truth")
UNFINISHED: Final = ".part-"
OLD: Final = 60.0  # seconds: what is younger may not be locked by its writer yet
LOOK: Final = 0.05  # seconds between two looks at what it has written

# Whether another rank of this host has compared the checksums of what is decoded.
CHECKED: ContextVar[bool] = ContextVar("CHECKED", default=False)
# What shows how far writing is: an `Output`; None: nothing does.
PROGRESS: ContextVar[Any] = ContextVar("PROGRESS", default=None)


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
        for place, folders, names in os.walk(path, followlinks=True):
            folders.sort()
            for name in sorted(names):
                file = os.path.join(place, name)
                info = os.stat(file)
                what = os.path.relpath(file, path), info.st_size, info.st_mtime_ns
                digest.update(json.dumps(what).encode())
        return str(path.absolute()), digest.hexdigest()
    except OSError:
        return None


def key_of(*what: Any) -> str:
    """The name under which rows are kept: a hash of plain values that say what they are."""
    text = json.dumps([FORMAT, *what], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def opened(place: Path, *, checked: bool = False) -> Prepared:
    """Prepared rows that are kept at a place, mapped into memory; DataError as `_opened`."""
    with _usable(place):
        about, parts = _opened(place, checked)
        maps: Any = {name: about[name] and kind.from_json(about[name]) for name, kind in MAPS}
        found: Any = {name: parts.get(name) for name in PARTS} | maps | _tuples(about, PLAIN)
        return Prepared(**found, found=str(place))


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


def _opened(place: Path, checked: bool) -> tuple[dict[str, Any], dict[str, ArrayDataset]]:
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


def _part(place: Path, name: str, about: dict[str, Any]) -> ArrayDataset:
    """Arrays mapped from what is kept, of which nothing is checked or read again."""
    arrays = [map_npy(place / f"{name}-{number}.npy") for number in range(len(about["sha256"]))]
    part, known = ArrayDataset(*(array[:0] for array in arrays)), about["known"]
    if known is not None:  # else the rows were in memory when they were kept
        known = Known(**{**known, "total": np.float64(known["total"])})
    vars(part).update(_tuples(about, OF_PART), arrays=tuple(arrays), known=known)
    return part


def _tuples(about: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Some values of JSON, which has lists for tuples."""
    return {key: tuple(x) if isinstance(x := about[key], list) else x for key in keys}


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
        [Stored([c]) for c, k in zip(columns, keys, strict=True) if not (directory / k).is_dir()],
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
    maps = {name: (each := getattr(data, name)) and each.to_json() for name, _ in MAPS}
    plain = {name: getattr(data, name) for name in PLAIN} | {"digest": digest}
    return {"parts": write(place, parts, "keeps the prepared rows"), **maps, **plain}


def keep(directory: Path, key: str, make: Callable[[Path], dict[str, Any]]) -> tuple[Path, bool]:
    """Where rows are kept under a key, and whether they were made just now.

    Args:
        make: writes them into a directory (see `write`), and returns what is to be known of them.
            It is not called where another rank or job has done so, or is doing so now.

    Raises DataError where they cannot be written; nothing is left then.
    """
    final, made = directory / key, False
    while not (made or final.is_dir()):
        hint = "\nhint: name a directory in data.cache"
        with refusing("data.cache", hint, DataError), _turn(directory, key) as place:
            if place is not None:
                # What is NumPy's becomes plain.
                about = json.loads(json.dumps(make(place), default=lambda x: x.tolist()))
                whole = json.dumps(about | {"sha256": _sha256_of(about)})
                write_whole(place / ABOUT, whole.encode())
                place.rename(final)
                made = True
    return final, made


@contextlib.contextmanager
def _turn(directory: Path, key: str) -> Iterator[Path | None]:
    """A directory that nobody else writes into meanwhile, which is removed unless it is renamed.

    None: another writer has come to its end. That of one that was killed loses its lock; who waits
    for it goes on in its place. Without locks several may write, each in a place of its own.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):  # of a writer that was killed, or is there no more
            if time.time() - old.stat().st_mtime > OLD:
                with _locked(old):
                    shutil.rmtree(old)
    place, final, ended = directory / f"{UNFINISHED}{key}", directory / key, False
    with contextlib.ExitStack() as stack:
        try:
            place.mkdir(exist_ok=True)
            with alone(f"it waits for {place}") as busy:
                while not final.is_dir():
                    with contextlib.suppress(BlockingIOError):
                        stack.enter_context(_locked(place))
                        break
                    grown = sum(each.stat().st_size for each in place.iterdir())
                    busy(f"it waits for {place}, {size(grown)} so far")
                    time.sleep(LOOK)
        except FileNotFoundError:
            ended = True
        except OSError:
            with contextlib.suppress(OSError):
                place.rmdir()
            place = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
        if ended or final.is_dir():
            with contextlib.suppress(OSError):  # made after another writer had renamed its own
                place.rmdir()
            yield None
            return
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        yield place


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    """The lock of a directory; BlockingIOError where another has it, OSError without locks."""
    handle = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_ino != place.stat().st_ino:
            raise FileNotFoundError(place)
        yield
    finally:
        os.close(handle)


def _sha256_of(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def write(place: Path, parts: Mapping[str, Source], what: str) -> dict[str, Any]:
    """Write all rows of some parts, a few megabytes at a time; what is to be known of them.

    what: in words, for those that wait.

    Raises DataError, before anything is written, where there is no room.
    """
    needed = require_room(place.parent, [*parts.values()])
    bar, total = PROGRESS.get(), sum(map(len, parts.values()))
    found: dict[str, Any] = {}
    done, look = 0, math.inf if bar is None else bar.start_bar(total, noun="row")
    try:
        with alone(f"it {what}") as busy:
            for name, part in parts.items():
                for rows in _write_part(place, name, part, found):
                    done += rows
                    busy(f"it {what}, {done / total:.0%} so far")
                    look = bar.look(done) if done >= look else look
    except OSError as error:
        raise DataError(
            f"data.cache: {error.strerror}: {place.parent}, where {size(needed)} of rows were "
            "being written; nothing was left there\nhint: name a directory with more in data.cache"
        ) from error
    finally:
        if bar is not None:
            bar.end_bar()
    return found


def require_room(directory: Path, parts: Sequence[Source]) -> int:
    """The bytes that the rows of some parts take; DataError where there is no room for them."""
    needed = sum(row_size(part.read(slice(0, 0))) * len(part) for part in parts)
    there = next(each for each in (directory, *directory.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise DataError(
            f"data.cache: no room for the {size(needed)} of rows: {directory} has {size(free)}\n"
            "hint: name a directory with more in data.cache, or delete what is kept there"
        )
    return needed


def _write_part(place: Path, name: str, part: Source, found: dict[str, Any]) -> Iterator[int]:
    """Write the arrays of a part, and what is known of it into `found`; rows as they are done."""
    arrays = [(array.dtype, [len(part), *array.shape[1:]]) for array in part.read(slice(0, 0))]
    digests = [hashlib.sha256() for _ in arrays]
    with contextlib.ExitStack() as stack:
        files = []
        for number, (dtype, shape) in enumerate(arrays):
            file = stack.enter_context(open(place / f"{name}-{number}.npy", "wb"))
            header = npy_header(dtype, shape)
            file.write(header)
            digests[number].update(header)
            files.append(file)
        for _, block in blocks(part):
            for file, digest, array in zip(files, digests, block, strict=True):
                content = np.ascontiguousarray(array).data.cast("B")
                digest.update(content)
                file.write(content)
            yield len(block[0])
        for file in files:  # after a power failure, too, a name stands for a whole file
            file.flush()
            to_disk(file.fileno())
    known: Known | None = getattr(part, "known", None)
    found[name] = {
        "sha256": [digest.hexdigest() for digest in digests],
        "known": None if known is None else asdict(known),
        **{key: getattr(part, key) for key in OF_PART},
    }
