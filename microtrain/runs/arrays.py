"""Arrays by name as a file of safetensors, written and read piece by piece.

The library that is named like the format makes the bytes of a whole file before the first is
written, and copies each array out of such bytes. A state that fills half of the memory leaves no
room for that: here a file is its header and then the memory of the arrays themselves, in blocks,
so that what writes may hash on the way. The bytes are the library's.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import to_host
from ..common.files import is_unicode, parse_object

Array = NDArray[Any]

_DTYPES = {
    "BF16": np.uint16, "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": np.int16,
    "U16": np.uint16, "F16": np.float16, "I32": np.int32, "U32": np.uint32, "F32": np.float32,
    "F64": np.float64, "I64": np.int64, "U64": np.uint64,
}  # fmt: skip
# What uint16 is written as is the last of its names.
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
# The last dtype comes first, as in the library's files.
_RANKS = {code: -rank for rank, code in enumerate(_DTYPES)}
_BLOCK = 2**22  # bytes that are hashed and written, or made C-ordered, at a time


@dataclass(frozen=True)
class Content:
    """What is to be in a file: so many bytes, which come in pieces, once."""

    size: int
    pieces: Iterator[Any]

    @classmethod
    def of(cls, data: bytes) -> Content:
        """What is there already."""
        return cls(len(data), iter([data]))


def array_content(
    kind: str, arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> Content:
    """A file of safetensors; the arrays are read, on any device, when the pieces are taken.

    Raises TypeError, which begins with `kind`, for arrays of anything but numbers.
    """
    codes: dict[str, str] = {}
    for name, array in arrays.items():
        if not isinstance(name, str):
            raise TypeError(f"{kind}: array names are text, got {name!r}")
        if name == "__metadata__" or not is_unicode(name):
            raise TypeError(f"{kind}: safetensors cannot name an array {name!r}; rename it")
        code = _CODES.get(np.dtype(array.dtype).newbyteorder("="))
        if code is None:
            raise TypeError(f"{kind}: cannot store {name}, an array of {array.dtype}")
        codes[name] = code
    ordered = sorted(codes, key=lambda name: (_RANKS[codes[name]], name.encode()))
    end = 0
    about: dict[str, Any] = (
        {} if metadata is None else {"__metadata__": dict(sorted(metadata.items()))}
    )
    for name in ordered:
        shape, begin = list(arrays[name].shape), end
        end += arrays[name].nbytes
        about[name] = {"dtype": codes[name], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(about, ensure_ascii=False, separators=(",", ":"))
    header = text.encode(errors="strict")
    header += b" " * (-len(header) % 8)

    def pieces() -> Iterator[Any]:
        yield len(header).to_bytes(8, "little") + header
        for name in ordered:
            yield from blocks(arrays[name])

    return Content(8 + len(header) + end, pieces())


def blocks(array: Any) -> Iterator[memoryview]:
    """The values of an array in C order and little-endian, whatever its layout; by blocks."""
    host = _on_host(array)
    if not host.size:
        return
    if host.flags.c_contiguous:
        flat = host.reshape(-1)
        rows = max(1, _BLOCK // host.itemsize)
    else:
        flat = host
        rows = max(1, _BLOCK * len(host) // host.nbytes)
    for begin in range(0, len(flat), rows):
        part = np.ascontiguousarray(flat[begin : begin + rows], host.dtype.newbyteorder("<"))
        yield part.reshape(-1).view(np.uint8).data


def copied(array: Any) -> Array:
    """A copy on the host, of the same layout."""
    return np.array(_on_host(array))


def params_sha256(named_arrays: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Hash of names, dtypes, shapes and values in definition order.

    Bytes are taken in C order and little-endian, so memory layout and machine do not matter; a
    single changed bit, name, dtype or shape does.
    """
    digest = hashlib.sha256()
    for name, value in dict(named_arrays).items():
        array = value if hasattr(value, "dtype") else np.asarray(value)
        digest.update(json.dumps([name, array.dtype.name, array.shape]).encode() + b"\n")
        for block in blocks(array):
            digest.update(block)
    return digest.hexdigest()


def header_in(memory: NDArray[np.uint8]) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """The header of a file that lies in `memory`, and what is behind it; ValueError for none."""
    length = int.from_bytes(memory[:8].tobytes(), "little")
    if memory.size < 8 or length > memory.size - 8:
        raise ValueError("it is shorter than its header says")
    return parse_object(memory[8 : 8 + length].tobytes()), memory[8 + length :]


def arrays_in(memory: NDArray[np.uint8]) -> dict[str, Array]:
    """The arrays of a file that lies in `memory`: views of it, in the order of its header.

    Those of bfloat16, which NumPy does not have, are uint16. Raises ValueError for what is not such
    a file, is cut short, or has dtypes that NumPy does not have.
    """
    header, data = header_in(memory)
    header.pop("__metadata__", None)
    places: dict[str, tuple[int, int, Any, Any]] = {}
    for name, entry in header.items():
        try:
            code, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
                raise ValueError("a length is not a number")
            if code not in _DTYPES:
                raise ValueError(f"NumPy does not have its dtype, {code!r:.40}")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"its header cannot be understood at {name!r:.80}: {error}") from error
        places[name] = begin, end, np.dtype(_DTYPES[code]).newbyteorder("<"), tuple(shape)
    found, at = {}, 0
    for name, (begin, end, dtype, shape) in sorted(places.items(), key=lambda item: item[1][:2]):
        if begin != at or end > data.size or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"the array {name!r:.80} does not lie where its header says")
        array = data[begin:end].view(dtype).reshape(shape)
        found[name] = array.astype(dtype.newbyteorder("="), copy=False)
        at = end
    if at != data.size:
        raise ValueError("it goes on after its last array")
    return {name: found[name] for name in places}


def _on_host(array: Any) -> Array:
    return to_host(array) if hasattr(array, "get") else np.asarray(array)
