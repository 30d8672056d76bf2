"""Rows written as .npy files, one for each array of each part, with what is known of them."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...common.words import size
from ...distributed.communicator import alone
from ...errors import DataError
from ..readers.npy import npy_header
from ..rows import Known
from ..source import Source, blocks

__all__ = ["PROGRESS", "require_room", "to_disk", "write"]

# What shows how far writing is: an `Output`; None: nothing does.
PROGRESS: ContextVar[Any] = ContextVar("PROGRESS", default=None)


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
    needed = sum(
        array.dtype.itemsize * math.prod(array.shape[1:]) * len(part)
        for part in parts
        for array in part.read(slice(0, 0))
    )
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
        for file in files:
            to_disk(file)
    known: Known | None = getattr(part, "known", None)
    found[name] = {
        "arrays": [[dtype.str, shape] for dtype, shape in arrays],
        "sha256": [digest.hexdigest() for digest in digests],
        "known": None if known is None else asdict(known),
        **{
            key: getattr(part, key)
            for key in ("weighted", "feature_names", "target_name", "classes", "truth")
        },
    }


def to_disk(file: BinaryIO) -> None:
    """After a power failure a name that is there stands for a file that is whole."""
    file.flush()
    os.fsync(file.fileno())
