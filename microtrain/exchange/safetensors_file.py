"""Safetensors files of plain state: arrays by name, all else as JSON in the file's metadata."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import as_dtype
from ..files import parse_json, parse_object
from ..runs.array_file import DTYPES, array_content
from ..runs.tree import put_together, take_apart
from ..tensor import wrap

__all__ = ["dump", "length", "parse", "widened"]

TREE = "microtrain"  # the metadata's key for the structure
_DTYPES = {**DTYPES, "BF16": np.uint16}


def dump(obj: Any) -> Iterator[Any]:
    """The file, piece by piece; TypeError for what is no plain state."""
    tree, arrays = take_apart(obj)
    return array_content("obj", arrays, {TREE: json.dumps(tree)}).pieces


def parse(content: bytes, bfloat16: bool) -> Any:
    """What `dump` was given, or of another's file a dict of Tensors by name.

    Raises ValueError for a damaged file, dtypes that NumPy has not, and bfloat16 that is not asked
    to be widened.
    """
    from safetensors import SafetensorError, deserialize

    try:
        entries: Any = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"damaged: {error}") from error
    header = parse_object(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    arrays = {name: _array(name, entry, bfloat16) for name, entry in entries}
    tree = (header.get("__metadata__") or {}).get(TREE)
    if tree is not None:
        return put_together(parse_json(tree), arrays)
    for name, array in arrays.items():
        try:
            as_dtype(array.dtype)
        except TypeError as error:
            raise ValueError(f"{name}: {error}") from error
    # The file sorts names by dtype; where its header comes from torch, that is all there is.
    return {name: wrap(arrays[name]) for name in header if name in arrays}


def length(content: bytes) -> int:
    """Where the first of several files ends; all of `content` where it is damaged."""
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        begin = 8 + struct.unpack("<Q", content[:8])[0]
        header = parse_object(content[8:begin])
        ends = [each["data_offsets"][1] for n, each in header.items() if n != "__metadata__"]
        return int(begin + max(ends, default=0))
    return len(content)


def _array(name: str, entry: Any, bfloat16: bool) -> NDArray[Any]:
    kind = entry["dtype"]
    if kind not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise ValueError(f"{name} is of dtype {kind}, which NumPy has not; read are {known}")
    array = np.frombuffer(entry["data"], np.dtype(_DTYPES[kind]).newbyteorder("<"))
    array = array.astype(array.dtype.newbyteorder("="), copy=False).reshape(entry["shape"])
    return widened(name, array, bfloat16) if kind == "BF16" else array


def widened(name: str, words: NDArray[Any], allowed: bool) -> NDArray[Any]:
    """The float32 values of bfloat16 words, which are their upper halves: exact."""
    if not allowed:
        raise ValueError(
            f"{name} is of dtype bfloat16, which NumPy has not; bfloat16=mt.float32 widens it, "
            "which is exact"
        )
    return (words.astype(np.uint32) << 16).view(np.float32)
