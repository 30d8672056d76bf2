"""Rows of metrics.jsonl as a run writes them, as columns and without an object a row.

A run writes the rows of a split with the same keys in the same order, so that lines differ in their
numbers alone. Where these stand follows from where the commas are: for all lines of one layout at
once it is checked that the texts between them are those keys, and the numbers are read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.decimals import BEFORE, decimals, words_before

__all__ = ["Layout", "columns"]

_SPLIT = re.compile(rb'\{"split": "(\w+)"')
_FIELD = re.compile(rb' "([ !#-+\--\[\]-~]+)": [^"]+')  # neither commas nor escapes in a key
_MOST = 16  # layouts of a block
_LONGEST = 300  # characters of a number that needs no closer look
_EXACT = 2**53  # below it every integer is a float64

Array = NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """Rows of the same keys.

    Attributes:
        split: of all of them.
        rows: which rows of the block they are, ascending.
        columns: by key float64 of shape (rows,), nan for null; of `step` int64.
    """

    split: str
    rows: Array
    columns: dict[str, Array]


def columns(text: bytes, splits: Collection[str]) -> list[Layout]:
    """The rows of whole lines by layout, in the order in which layouts first occur.

    Raises OverflowError, TypeError or ValueError where they are not such as a run writes.
    """
    block, found = _Block(text), list[Layout]()
    left = np.arange(len(block.lines))
    while len(left):
        layout = block.layout(left)
        if layout.split not in splits or len(found) == _MOST:
            raise ValueError("no split, or rows of every kind")
        found.append(layout)
        left = np.setdiff1d(left, layout.rows, assume_unique=True)
    return found


class _Block:
    """Lines, and where their commas, points and ends are."""

    def __init__(self, text: bytes) -> None:
        data = b"\n".join([bytes(BEFORE - 1), text, b""])
        self.data = data + bytes(-len(data) % 8)
        self.page = np.frombuffer(self.data, np.uint8)
        found = self.page == ord(",")
        found |= self.page == ord(".")
        found |= self.page == ord("\n")
        self.marks = np.flatnonzero(found)
        kinds = self.page[self.marks]
        # In these, places in the marks: of all commas, and of the end of each line.
        self.commas, lines = np.flatnonzero(kinds == ord(",")), np.flatnonzero(kinds == ord("\n"))
        self.lines = lines[1:]
        self.starts = self.marks[lines[:-1]] + 1
        firsts = np.searchsorted(self.commas, lines)
        self.firsts, self.counts = firsts[:-1], np.diff(firsts)  # of the commas of each line
        if (self.page[self.marks[self.lines] - 1] != ord("}")).any():
            raise ValueError("not one object a line")

    def layout(self, left: Array) -> Layout:
        """The rows among these that have the keys of the first one."""
        first = left[0]
        split, keys = _keys(self.data[self.starts[first] : self.marks[self.lines[first]]])
        rows = left[self.counts[left] == len(keys)]
        edges = [self.commas[self.firsts[rows] + i] for i in range(len(keys))] + [self.lines[rows]]
        start = self.marks[edges[0]]
        begin = b'{"split": "%b"' % split
        fine = (start - self.starts[rows] == len(begin)) & self._stands(begin, start)
        places = []
        for key, before, after in zip(keys, edges, edges[1:], strict=False):
            between = b', "%b": ' % key
            end = self.marks[after]
            start = np.minimum(self.marks[before] + len(between), end)
            fine &= self._stands(between, start)
            point = self.marks[after - 1]
            if after is edges[-1]:
                end -= 1  # the brace
            places.append([start, np.where(point < start, end, point), end])
        if not fine.all():
            rows, places = rows[fine], [[each[fine] for each in place] for place in places]
        names = [key.decode() for key in keys]
        values = {n: self._numbers(p, n == "step") for n, p in zip(names, places, strict=True)}
        return Layout(split.decode(), rows, values)

    def _stands(self, text: bytes, ends: Array) -> Array:
        """Before which of these ends the text stands."""
        fine = np.ones(len(ends), bool)
        words = words_before(self.data, ends, -(-len(text) // 8))
        for end, word in zip(range(len(text), 0, -8), words, strict=True):
            part = text[max(0, end - 8) : end]
            word >>= np.uint64(64 - 8 * len(part))
            fine &= word == np.uint64(int.from_bytes(part, "little"))
        return fine

    def _numbers(self, place: Sequence[Array], whole: bool) -> Array:
        """What JSON has at starts, points and ends as `decimals` takes them; `whole` as int64."""
        starts, points, ends = place
        values, fine = decimals(self.data, starts, points, ends)
        first, digits = self.page[starts], starts
        if (first < ord("0")).any():
            minus = first == ord("-")
            # JSON has no +, and its -0 is the whole number 0.
            fine &= (first != ord("+")) & ~(minus & (points == ends))
            digits = starts + minus
            first = self.page[digits]
        fine &= (first != ord("0")) | (points - digits == 1)
        if whole:
            if not fine.all() or (points != ends).any() or values.max() >= _EXACT:
                raise TypeError("not a whole number, or a large one")
            return values.astype(np.int64)
        others = np.flatnonzero(~fine)
        if len(others):
            pairs = zip(starts[others].tolist(), ends[others].tolist(), strict=True)
            values[others] = _from_json([self.data[start:end] for start, end in pairs])
        return values


def _keys(line: bytes) -> tuple[bytes, list[bytes]]:
    """The split of a row and its other keys."""
    first, *rest = line.split(b",")
    begin, fields = _SPLIT.fullmatch(first), [*map(_FIELD.fullmatch, rest)]
    keys = [field[1] for field in fields if field]
    once = len({*keys, b"split"}) == len(rest) + 1
    if begin is None or not once or b"step" not in keys:
        raise ValueError("not a row as it is written")
    return begin[1], keys


def _from_json(texts: list[bytes]) -> Array:
    """Numbers of any form; pydantic's parser reads them as Python's does, to the last bit."""
    from pydantic_core import from_json

    found = from_json(b"[%b]" % b",".join(texts))
    if len(found) != len(texts) or max(map(len, texts)) > _LONGEST:
        raise ValueError("not one number each")
    if not {*map(type, found)} <= {int, float, NoneType}:
        raise TypeError("not a number")
    values = np.array(found, np.float64)
    if np.isinf(values).any():
        raise ValueError("an infinite number")
    return values
