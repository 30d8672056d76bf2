"""State in one file: safetensors, or the arrays of an .npz.

In safetensors the arrays have names, and all else is JSON in the file's metadata.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import as_dtype
from ..common.files import TORCH, from_torch, parse_json
from ..common.words import size
from ..runs.arrays import array_content, arrays_in, header_in
from ..runs.state import put_together, take_apart
from ..tensor import wrap

__all__ = ["WRITERS", "length", "parse"]

TREE = "microtrain"  # the metadata's key for the structure
LARGE = 2**28  # bytes below which an archive may be of any size unpacked
SMALLEST = 100  # times that a larger one may be compressed
# Arguments of numpy.savez, names that it takes for others, and those that an archive cuts off.
_NOT_IN_NPZ = re.compile(r"file|allow_pickle|.*\.npy|.*\0.*|.{10000,}", re.DOTALL)
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, tokenize.TokenError, OSError, EOFError, RuntimeError,
    SyntaxError, TypeError, KeyError,
)  # fmt: skip


def _safetensors(obj: Any) -> Iterator[Any]:
    tree, arrays = take_apart(obj)
    return array_content("obj", arrays, {TREE: json.dumps(tree)}).pieces


def _npz(obj: Any) -> Iterable[Any]:
    _, arrays = take_apart(obj)
    if not isinstance(obj, Mapping) or [*obj] != [*arrays]:
        raise TypeError("obj: a file .npz holds one dict of arrays; .safetensors holds all states")
    for name in filter(_NOT_IN_NPZ.fullmatch, arrays):
        raise ValueError(f"obj: an array of a file .npz cannot be named {name!r:.80}")
    try:
        _tensors(arrays)
    except ValueError as error:
        raise TypeError(f"obj: what is in a file .npz is loaded as Tensors; {error}") from error
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return [file.getvalue()]


# By the end of a file's name what makes its pieces; they raise TypeError and ValueError.
WRITERS: dict[str, Callable[[Any], Iterable[Any]]] = {".safetensors": _safetensors, ".npz": _npz}


def parse(content: bytes, bfloat16: bool, name: str = "") -> Any:
    """What was written, or of another program's file a dict of Tensors by name.

    bfloat16: whether it is widened. name: of the file, for messages.

    Raises ValueError for other formats, a damaged file, dtypes that Tensors do not have, and
    bfloat16 that is not asked to be widened.
    """
    if content[8:9] == b"{":
        return _parse_safetensors(np.frombuffer(content, np.uint8), bfloat16)
    if content[:2] == b"PK":
        found = _parse_npz(content)
        if found is not None:
            return found
    of_torch = content[:2] in (b"PK", b"\x80\x02") or Path(name).suffix.lower() in TORCH
    way_out = f"; {from_torch(name)}" if of_torch else ""
    raise ValueError(f"it is neither safetensors nor .npz{way_out}")


def _parse_safetensors(memory: NDArray[np.uint8], bfloat16: bool) -> Any:
    header, _ = header_in(memory)
    # Copied, or one of them would keep all of the file in memory.
    arrays = {name: np.array(array) for name, array in arrays_in(memory).items()}
    about = header.pop("__metadata__", None)
    for name in (name for name, entry in header.items() if entry["dtype"] == "BF16"):
        if not bfloat16:
            raise ValueError(
                f"{name} is of dtype bfloat16, which NumPy does not have; bfloat16=mt.float32 "
                "widens it, which is exact"
            )
        arrays[name] = (arrays[name].astype(np.uint32) << 16).view(np.float32)  # its upper half
    if isinstance(about, dict) and isinstance(about.get(TREE), str):
        return put_together(parse_json(about[TREE]), arrays)
    return _tensors(arrays)


def _parse_npz(content: bytes) -> dict[str, Any] | None:
    """None for an archive of other files than arrays."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            members = arrays.zip.infolist()
            if any(not member.filename.endswith(".npy") for member in members):
                return None
            if any(member.header_offset for member in members[:1]):
                raise EOFError("there are several in this file, one behind the other")
            whole = sum(member.file_size for member in members)
            if whole > max(LARGE, SMALLEST * len(content)):
                raise ValueError(
                    f"its {size(len(content))} would be {size(whole)} of arrays, more than "
                    f"{SMALLEST} times its size; write them with numpy.savez, uncompressed"
                )
            return _tensors({name: arrays[name] for name in arrays.files})
    except _UNREADABLE as error:
        raise ValueError(f"damaged: {error}") from error


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    found = {}
    for name, array in arrays.items():
        native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
        try:
            as_dtype(native.dtype)
        except TypeError as error:
            raise ValueError(f"{name}: {error}") from error
        found[name] = wrap(native)
    return found


def length(content: bytes) -> int:
    """Where the first of several files ends; all of `content` where it is damaged."""
    with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError, OverflowError):
        if content[8:9] == b"{":
            header, data = header_in(np.frombuffer(content, np.uint8))
            header.pop("__metadata__", None)
            ends = (each["data_offsets"][1] for each in header.values())
            return int(len(content) - data.size + max(ends, default=0))
        # An archive begins where the offset of its directory counts from.
        for mark in re.finditer(rb"PK\x05\x06(?=.{18})", content, re.DOTALL):
            directory, start, comment = struct.unpack_from("<IIH", content, mark.start() + 12)
            if start + directory == mark.start():
                return int(mark.start() + 22 + comment)
    return len(content)
