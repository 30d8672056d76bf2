"""Opening data files: what is wrong with a file is said by its name, with the way out."""

from __future__ import annotations

import contextlib
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import DataError, absent
from ...files import open_plain
from ...spelling import did_you_mean

__all__ = ["library", "reading", "require_text", "require_utf8"]

_SEPARATOR = re.compile(rb'(?:\xef\xbb\xbf)?"?(sep=([\x01-\x7f]))"?\r?\n', re.IGNORECASE)
_UNPACK = "unpack it first"
_OTHERS = {
    b"\x1f\x8b": ("compressed by gzip", _UNPACK),
    b"BZh91AY&SY": ("compressed by bzip2", _UNPACK),
    b"\xfd7zXZ": ("compressed by xz", _UNPACK),
    b"(\xb5/\xfd": ("compressed by zstd", _UNPACK),
    b"PK\x03\x04": ("a zip archive or a spreadsheet", "unpack it, or save the sheet as CSV"),
    b"PAR1\x15": ("a Parquet file", "data of type parquet are read from such"),
}


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """A file that is read meanwhile; DataError where that fails."""
    try:
        with open_plain(path) as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"there is no file {path}{_nearby(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error


def _nearby(path: Path) -> str:
    where = "" if path.is_absolute() else f" (looked for {path.absolute()})"
    near = ""
    with contextlib.suppress(OSError):  # there is no such folder either
        near = did_you_mean(path.name, sorted(other.name for other in path.parent.iterdir()))
    return where + near


def library(name: str, path: Path, extra: str) -> Any:
    """A library that reads a kind of file; DataError that says how to install it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"{path} is read by {name}: {absent(name, extra, error)}") from error


def require_text(origin: str, head: bytes) -> None:
    """DataError where a file begins as one of another kind does, whatever its name is."""
    for magic, (kind, way_out) in _OTHERS.items():
        if head.startswith(magic):
            raise DataError(f"{origin} is {kind}, no CSV file; {way_out}")
    if told := _SEPARATOR.match(head):
        line, separator = (text.decode() for text in told.groups())
        raise DataError(
            f"{origin}, line 1: {line} tells a spreadsheet what separates cells, and is not a "
            f"header; delete this line, and write delimiter: {separator!r}"
        )


def require_utf8(origin: str, file: BinaryIO) -> None:
    """DataError for the first byte that is not UTF-8."""
    file.seek(0)
    line, decoder = 1, getincrementaldecoder("utf-8")()
    while True:
        chunk = file.read(1 << 18)
        held = decoder.getstate()[0]  # the beginning of a character
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            data = held + chunk
            line += data.count(b"\n", 0, error.start)
            raise DataError(
                f"{origin}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8 text; "
                "save the file as UTF-8"
            ) from error
        if not chunk:
            break
        line += chunk.count(b"\n")
