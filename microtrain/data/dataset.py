"""ArrayDataset: arrays whose rows belong together, with the names a report needs.

Data fits in memory or in a memory map, and a batch is a range of rows. So a data set is its arrays,
and taking a batch is one NumPy call an array, never a Python loop over samples. It is a `Source`,
the one that has all of its rows at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backend import MASKED

__all__ = ["ArrayDataset"]

_NAMES = ("feature_names", "target_name", "classes", "truth")


class ArrayDataset:
    """Rows of one or more arrays: inputs first, the target last, then the weights if there are any.

    Args:
        *arrays: NumPy arrays (or Tensors) of booleans, integers or floats, of equal leading
            dimension. Memory is shared, nothing is copied.
        feature_names: a name for each column of a 2-d first array.
        target_name: what the last array holds.
        classes: for class codes, the names that codes 0, 1, 2 ... of the last array stand for.
        truth: what is known of how the data were made (`{"weights": [2.0], "bias": 3.0}`).
        weights: how much each row counts, floats of shape (n,), none negative; None: all alike.

    Attributes:
        arrays: inputs, target, and the weights if there are any.

    Raises:
        TypeError: an argument is not an array of numbers.
        ValueError: no arrays, unequal leading dimensions, names that do not fit the arrays, or
            weights that are negative or of another shape.

    Example:
        >>> data = ArrayDataset(np.ones((100, 3)), np.zeros((100, 1)))
        >>> len(data)
        100
        >>> x, y = data[10:20]              # arrays of shapes (10, 3) and (10, 1)
    """

    def __init__(
        self,
        *arrays: Any,
        feature_names: Sequence[str] | None = None,
        target_name: str | None = None,
        classes: Sequence[str] | None = None,
        truth: Mapping[str, Any] | None = None,
        weights: Any = None,
    ) -> None:
        if not arrays:
            raise ValueError("ArrayDataset needs at least one array: ArrayDataset(x, y)")
        self.arrays = tuple(_as_array(a, f"argument {i}") for i, a in enumerate(arrays))
        self.weighted = weights is not None
        if self.weighted:
            self.arrays += (_as_weights(weights),)
        if len({len(array) for array in self.arrays}) > 1:
            shapes = ", ".join(str(array.shape) for array in self.arrays)
            raise ValueError(
                f"ArrayDataset: arrays have different numbers of rows; their shapes are {shapes}"
            )
        self.feature_names = None if feature_names is None else tuple(feature_names)
        self.target_name = target_name
        self.classes = None if classes is None else tuple(classes)
        self.truth = None if truth is None else dict(truth)
        self._check_names()

    def _check_names(self) -> None:
        first, last = self.arrays[0], self.target
        if self.feature_names is not None and (len(self.feature_names),) != first.shape[1:]:
            raise ValueError(
                f"ArrayDataset: {len(self.feature_names)} feature_names for a first array of shape "
                f"{first.shape}; expected one name a column"
            )
        if self.classes is None:
            return
        if last.dtype.kind not in "biu" or last.ndim != 1:
            raise ValueError(
                "ArrayDataset: classes are names of integer codes in a last array of shape "
                f"({len(last)},), got {last.dtype} of shape {last.shape}"
            )
        if len(last) and not 0 <= int(last.min()) <= int(last.max()) < len(self.classes):
            raise ValueError(
                f"ArrayDataset: {len(self.classes)} classes need codes from 0 to "
                f"{len(self.classes) - 1}, found {last.min()} to {last.max()}"
            )

    @property
    def inputs(self) -> tuple[NDArray[Any], ...]:
        """The arrays before the target."""
        return self.arrays[: len(self.arrays) - 1 - self.weighted]

    @property
    def target(self) -> NDArray[Any]:
        """The last array but for the weights."""
        return self.arrays[-1 - self.weighted]

    @property
    def weights(self) -> NDArray[Any] | None:
        """How much each row counts, of shape (n,); None where all count alike."""
        return self.arrays[-1] if self.weighted else None

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, rows: int | slice | Sequence[int] | NDArray[Any]) -> tuple[Any, ...]:
        """The rows of every array: `data[3]`, `data[10:20]`, `data[[4, 1]]`, `data[mask]`.

        An integer drops the leading dimension. A slice shares memory, index arrays copy.
        """
        if isinstance(rows, tuple):
            raise TypeError("ArrayDataset is indexed by rows alone: data[rows], not data[i, j]")
        # The ellipsis keeps a single element of a 1-d array an array.
        return tuple(array[rows, ...] for array in self.arrays)

    def read(self, rows: slice | NDArray[np.intp]) -> tuple[NDArray[Any], ...]:
        """The rows of every array, as `Source` has it: a slice shares memory, row numbers copy."""
        return tuple(array[rows] for array in self.arrays)

    def location(self, row: int) -> str:
        """Where a row comes from: its number."""
        return f"row {row}"

    def with_arrays(self, *arrays: Any) -> ArrayDataset:
        """Others for all of `arrays`, under the same names: some of the rows, or all prepared."""
        names: dict[str, Any] = {name: getattr(self, name) for name in _NAMES}
        if self.weighted:
            *arrays, names["weights"] = arrays  # type: ignore[assignment]
        return ArrayDataset(*arrays, **names)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{array.dtype}{list(array.shape)}" for array in self.arrays)
        return f"ArrayDataset({arrays})"


def _as_array(value: Any, position: str) -> NDArray[Any]:
    """`value` as a plain NumPy array of numbers that shares its memory."""
    if not isinstance(value, np.ndarray) and callable(getattr(value, "numpy", None)):
        value = value.numpy()
    if not isinstance(value, np.ndarray):
        raise TypeError(
            f"ArrayDataset: {position} is a {type(value).__name__}, expected a NumPy "
            "array or a Tensor; numpy.asarray(...) makes one from a sequence"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"ArrayDataset: {position} is {MASKED}")
    if value.dtype.kind not in "biuf":
        raise TypeError(
            f"ArrayDataset: {position} has dtype {value.dtype}, expected booleans, "
            "integers or floats"
        )
    if value.ndim == 0:
        raise ValueError(f"ArrayDataset: {position} is 0-d; the first dimension is rows")
    return np.asarray(value)  # a memory map becomes a plain array over the same memory


def _as_weights(value: Any) -> NDArray[Any]:
    """Weights of rows as an array."""
    array = _as_array(value, "weights")
    if array.dtype.kind != "f" or array.ndim != 1 or (array < 0).any():
        lowest = f", the lowest {array.min()}" if array.size else ""
        raise ValueError(
            "ArrayDataset: weights must be floats of shape (n,), none negative; got "
            f"{array.dtype} of shape {array.shape}{lowest}"
        )
    return array
