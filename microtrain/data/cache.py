"""Prepared rows kept in a directory, for runs to come and for data that do not fit in memory.

What is kept lies in a directory of its own, whose name is a hash of the files that the rows come
from (path, size, time) and of all that was done with them: one .npy file for each array of each
part, and `data.json` for the rest, with the sha256 of each file and of itself: what it says of the
rows is believed, so the rows are looked at before. It is written block by block under another name
and renamed when it is whole. So nobody ever sees half of one, and of two jobs that write the same
one is kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from ..errors import DataError
from ..files import open_plain, read_object, reason
from ..words import size
from .dataset import ArrayDataset
from .mapped import map_npy
from .prepared import Prepared
from .preprocessing import Preprocessing
from .source import Source, blocks
from .split import PARTS
from .table import Encoder
from .view import Known

__all__ = ["Kept", "find", "keep", "key_of", "opened", "stamps"]

Array = NDArray[Any]

FORMAT: Final = 2  # of what is kept, and of how rows are prepared; another one is made anew
ABOUT: Final = "data.json"
UNFINISHED: Final = ".part-"
OLD: Final = 60.0  # seconds: what is younger may not be locked by its writer yet


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
    """What is kept at a place, mapped into memory.

    checked: another rank of the host has gone through it, or written it just now.

    Raises DataError for what cannot be read, or is not as it was written.
    """
    try:
        about = read_object(place / ABOUT)
        if about.pop("sha256") != _sha256_of(about):
            raise ValueError(f"{ABOUT} was changed")
        parts = {name: _part(place, name, each) for name, each in about["parts"].items()}
        for name, each in {} if checked else about["parts"].items():
            for number, sha256 in enumerate(each["sha256"]):
                with open_plain(place / f"{name}-{number}.npy") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                        raise ValueError(f"{name}-{number}.npy was changed")
        found = {key: about[key] for key in ("in_features", "out_features", "digest")}
        return Prepared(
            train=parts["train"],
            val=parts.get("val"),
            test=parts.get("test"),
            preprocessing=Preprocessing.from_json(about["preprocessing"]),
            classes=_tuple(about["classes"]),
            encoder=None if about["encoder"] is None else Encoder.from_json(about["encoder"]),
            notes=tuple(about["notes"]),
            found=str(place),
            **found,
        )
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise DataError(
            f"data.cache: {place} cannot be used: {why}\nhint: delete it, and it is made again; "
            "the ranks of a host must see the same directory"
        ) from error


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


def keep(directory: Path, key: str, data: Prepared, digest: str) -> Path:
    """Write prepared rows, a few megabytes at a time; where they are then.

    Raises DataError where they cannot be written, or there is no room; nothing is left then.
    """
    parts = {name: getattr(data, name) for name in PARTS if getattr(data, name) is not None}
    needed = sum(array.nbytes * len(part) for part in parts.values() for array in _one_row(part))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _clear(directory)
        free = shutil.disk_usage(directory).free
        if free < needed:
            raise DataError(
                f"data.cache: no room for the {size(needed)} of prepared rows: {directory} has "
                f"{size(free)}\nhint: name a directory with more, or delete what is kept there"
            )
        place = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=directory))
    except OSError as error:
        raise DataError(f"data.cache: {reason(error)}") from error
    lock = os.open(place, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # where the file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        about = {
            "parts": {name: _write_part(place, name, part) for name, part in parts.items()},
            "preprocessing": data.preprocessing.to_json(),
            "in_features": data.in_features,
            "out_features": data.out_features,
            "classes": data.classes,
            "encoder": None if data.encoder is None else data.encoder.to_json(),
            "notes": data.notes,
            "digest": digest,
        }
        about = json.loads(json.dumps(about, default=_plain))
        with open(place / ABOUT, "wb") as file:
            file.write(json.dumps(about | {"sha256": _sha256_of(about)}).encode())
            _to_disk(file)
        final = directory / key
        try:
            place.rename(final)
        except OSError:
            if not final.is_dir():
                raise
            shutil.rmtree(place)  # another job was first
        return final
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(error, OSError):
            raise DataError(
                f"data.cache: {error.strerror}: {directory}, where {size(needed)} of prepared rows "
                "were being written; nothing was left there"
            ) from error
        raise
    finally:
        os.close(lock)


def _sha256_of(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _one_row(part: Source) -> tuple[Array, ...]:
    return part.read(slice(0, 1))


def _write_part(place: Path, name: str, part: Source) -> dict[str, Any]:
    """Write the arrays of a part; what is to be known of it."""
    arrays = [[array.dtype.str, [len(part), *array.shape[1:]]] for array in _one_row(part)]
    digests = [hashlib.sha256() for _ in arrays]
    with contextlib.ExitStack() as stack:
        files = []
        for number, (dtype, shape) in enumerate(arrays):
            file = stack.enter_context(open(place / f"{name}-{number}.npy", "wb"))
            header = {"descr": dtype, "fortran_order": False, "shape": tuple(shape)}
            text = BytesIO()
            npy_format.write_array_header_1_0(text, header)
            file.write(text.getvalue())
            digests[number].update(text.getvalue())
            files.append(file)
        for _, block in blocks(part):
            for file, digest, array in zip(files, digests, block, strict=True):
                content = np.ascontiguousarray(array).data.cast("B")
                digest.update(content)
                file.write(content)
        for file in files:
            _to_disk(file)
    known: Known | None = getattr(part, "known", None)
    return {
        "arrays": arrays,
        "sha256": [digest.hexdigest() for digest in digests],
        "known": None if known is None else asdict(known),
        **{
            key: getattr(part, key)
            for key in ("weighted", "feature_names", "target_name", "classes", "truth")
        },
    }


def _to_disk(file: BinaryIO) -> None:
    """After a power failure a name that is there stands for a file that is whole."""
    file.flush()
    os.fsync(file.fileno())


def _plain(value: Any) -> Any:
    """For JSON, what is NumPy's."""
    return value.tolist()


def _clear(directory: Path) -> None:
    """Remove what writers that were killed have left: their locks are gone."""
    for place in directory.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - place.stat().st_mtime < OLD:
                continue
            lock = os.open(place, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place)
            finally:
                os.close(lock)
