"""A part from files of its own: its columns and class codes as the training data have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.spelling import did_you_mean
from ...common.words import listed
from ...errors import DataError
from ..readers.npy import Stored
from ..rows import Rows, as_trained, layout
from ..source import RowNumbers, Source
from ..tables.columns import Codes
from ..tables.frame import missing

Array = NDArray[Any]


class Matched(Rows):
    """Rows of a source under the names of others.

    Args:
        source: where the rows are.
        like: what has the names.
        columns: for each of its columns that of `source`; None: as they are.
        codes: for each class code of `source` the one of `like`, of shape (classes,).
    """

    def __init__(
        self, source: Source, like: Source, columns: Sequence[int] | None, codes: Array | None
    ) -> None:
        super().__init__(source)
        self._columns, self._codes = columns, codes
        self.feature_names, self.classes = like.feature_names, like.classes
        self.target_name, self.kept = like.target_name, getattr(source, "kept", [])

    def read(self, rows: RowNumbers) -> tuple[Array, ...]:
        """Rows of the source, columns and codes exchanged."""
        first, *others = super().read(rows)
        if self._columns is not None:
            first = first[:, self._columns]
        if self._codes is not None:
            at = len(others) - 1 - self.weighted
            others[at] = self._codes[others[at]]
        return first, *others

    def __repr__(self) -> str:
        return repr(self.source)


def match_schema(other: Source, data: Source, origin: str) -> Source:
    """Rows of `other`, a part of its own, as those of `data`; no row of it is read.

    Raises DataError for columns and classes that are missing or strange, for rows of another shape
    or kind, and where both read the same array.
    """
    columns = codes = None
    names, known = other.feature_names, data.feature_names
    if names != known and names is not None and known is not None:
        if absent := [name for name in known if name not in names]:
            raise DataError(missing(origin, "column", absent, names))
        columns = [names.index(name) for name in known]
    floats, expected = (layout(each)[1].dtype.kind == "f" for each in (other, data))
    if data.classes is not None and other.classes is not None:
        code_of = Codes(data.classes)
        if strange := [name for name in other.classes if code_of[name] < 0]:
            raise DataError(
                f"{origin}: the training data have no class {listed(strange)}"
                f"{did_you_mean(strange[0], data.classes)}; they have {listed(data.classes)}"
            )
        if other.classes != data.classes:
            codes = np.array([code_of[name] for name in other.classes], np.int64)
    elif floats != expected:
        kinds = ("numbers", "classes") if expected else ("classes", "numbers")
        raise DataError(f"{origin}: the target is {kinds[1]}, but in the training data {kinds[0]}")
    result = other if columns is None and codes is None else Matched(other, data, columns, codes)
    rows, those = map(_rows, (result, data))
    if rows != those:
        raise DataError(f"{origin}: rows of {rows}, but the training data have {those}")
    files = [each.names if isinstance(each, Stored) else () for each in (other, data)]
    if same := sorted({*files[0]} & {*files[1]}):
        raise DataError(
            f"{origin}: {listed(same)} is what the model is trained on; name what belongs to this "
            "part alone"
        )
    return result


def _rows(source: Source) -> str:
    """Kinds and shapes of a row, in words."""
    inputs, target = layout(source)
    arrays = [as_trained(each, each.dtype, column=True) for each in (*inputs, target)]
    shown = [f"{'floats' if a.dtype.kind == 'f' else 'integers'} {a.shape[1:]}" for a in arrays]
    return listed(shown) + " and weights" * source.weighted
