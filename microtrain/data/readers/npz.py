"""Arrays saved by `numpy.savez`: read whole, or mapped."""

from __future__ import annotations

import struct
import zipfile
from functools import partial
from pathlib import Path

import numpy as np

from ...common.files import reading
from ...errors import DataError
from ..rows import in_memory as rows_in_memory
from ..source import Source
from ..tables.frame import missing
from .npy import Loaded, Mapped, by_rows, read_npy
from .stores import source_of


def npz(
    path: Path, inputs: str | list[str] = "x", target: str = "y", in_memory: bool = True
) -> Source:
    """Arrays saved by `numpy.savez`, read without pickle.

    Args:
        path: a .npz file.
        inputs: the name of the input array, or of several.
        target: the name of the target array.
        in_memory: read the arrays whole; false: rows as they are used, which takes arrays that are
            not compressed.

    Returns arrays as they are in the file. Raises DataError for a file that cannot be read, a name
    that it does not hold, arrays that are not numbers or differ in their number of rows.

    Example:
        >>> np.savez("data.npz", x=x, y=y)
        >>> data = npz(Path("data.npz"))
    """
    load = load_npz if in_memory else map_npz
    source = source_of(lambda file: partial(load, file), path, inputs, target)
    return rows_in_memory(source, slice(None)) if in_memory else source


def load_npz(path: Path, name: str) -> Loaded:
    """An array of a .npz file, read without pickle; nothing is read of others.

    Raises DataError for all that is wrong with it.
    """
    where = f'{path}, array "{name}"'
    with reading(path) as file:
        # What is not a zip NumPy takes for a pickle, and says how to load one unsafely.
        if file.peek(2)[:2] != b"PK":  # type: ignore[attr-defined]
            raise DataError(
                f"{path} is not a readable npz file: numpy.savez(path, x=..., y=...) "
                "writes one, tables are data of type csv or parquet"
            )
        try:
            stored = np.load(file, allow_pickle=False)
        except Exception as error:  # of zipfile, zlib, struct, NumPy, or for want of memory
            raise DataError(f"{path} is not a readable npz file: {error}") from error
        if name not in stored.files:
            raise DataError(missing(path, "array", [name], stored.files))
        try:
            array = stored[name]
        except Exception as error:
            raise DataError(f"{where} cannot be read: {error}") from error
    if not isinstance(array, np.ndarray) or not array.ndim:  # or it is not a .npy file
        raise DataError(f"{where} is not an array of rows")
    return Loaded(where, array)


def map_npz(path: Path, name: str) -> Mapped:
    """An array of a .npz file, mapped: `numpy.savez` writes it as it is.

    Raises DataError for all that is wrong with the file, and for a compressed array.
    """
    with reading(path) as file:
        try:
            archive = zipfile.ZipFile(file)
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if name in members:
                archive.open(members[name]).close()  # begins where the directory says
        except Exception as error:  # of zipfile and struct
            raise DataError(f"{path} is not a readable npz file: {error}") from error
        if name not in members:
            raise DataError(missing(path, "array", [name], [*members]))
        where, info = f'{path}, array "{name}"', members[name]
        if info.compress_type != zipfile.ZIP_STORED:
            raise DataError(
                f"{where} is compressed and cannot be mapped; save it by numpy.savez or "
                "numpy.save, or train without in_memory: false"
            )
        file.seek(info.header_offset + 26)  # the lengths of the name and of what follows it
        name_bytes, extra = struct.unpack("<HH", file.read(4))
        start = info.header_offset + 30 + name_bytes + extra
        return Mapped(where, [path], [by_rows(read_npy(file, start, where), where)])
