"""Arrays saved by `numpy.savez`: read whole, or mapped."""

from __future__ import annotations

import contextlib
import struct
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from numpy.lib import format as npy_format

from ...common.files import readable, reading
from ...errors import DataError
from ..rows import in_memory as rows_in_memory
from ..source import Source
from ..tables.frame import missing
from .npy import Column, Mapped, read_npy
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


@contextlib.contextmanager
def _member(path: Path, name: str) -> Iterator[tuple[BinaryIO, zipfile.ZipFile, zipfile.ZipInfo]]:
    """An open .npz file, and what in it is the array of a name; nothing is read of others."""
    with reading(path) as file:
        way_out = (
            "numpy.savez(path, x=..., y=...) writes one, tables are data of type csv or parquet"
        )
        with readable(f"{path} is not a readable npz file ({way_out})"):
            archive = zipfile.ZipFile(file)
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if name in members:
                archive.open(members[name]).close()  # begins where the directory says
        if name not in members:
            raise DataError(missing(path, "array", [name], [*members]))
        yield file, archive, members[name]


def load_npz(path: Path, name: str) -> Column:
    """An array of a .npz file, read without pickle; DataError for all that is wrong with it."""
    where = f'{path}, array "{name}"'
    with (
        _member(path, name) as (_, archive, info),
        readable(f"{where} cannot be read"),
        archive.open(info) as member,
    ):
        array = npy_format.read_array(member, allow_pickle=False)
    if not array.ndim:
        raise DataError(f"{where} is not an array of rows")
    return Column(where, array)


def map_npz(path: Path, name: str) -> Mapped:
    """An array of a .npz file, mapped: `numpy.savez` writes it as it is.

    Raises DataError for all that is wrong with the file, and for a compressed array.
    """
    where = f'{path}, array "{name}"'
    with _member(path, name) as (file, _, info):
        if info.compress_type != zipfile.ZIP_STORED:
            raise DataError(
                f"{where} is compressed and cannot be mapped; save it by numpy.savez or "
                "numpy.save, or train without in_memory: false"
            )
        file.seek(info.header_offset + 26)  # the lengths of the name and of what follows it
        name_bytes, extra = struct.unpack("<HH", file.read(4))
        start = info.header_offset + 30 + name_bytes + extra
        return Mapped(where, [path], [read_npy(file, start, where)])
