"""The data sets inside scikit-learn's wheel: real data that need no network."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from ...errors import ConfigError, DataError, absent
from ..dataset import ArrayDataset

__all__ = ["sklearn"]

Name = Literal["digits", "diabetes", "breast_cancer", "wine", "iris", "linnerud"]


def sklearn(name: Name) -> ArrayDataset:
    """A data set that scikit-learn ships, its features as they are (digits: 0 to 16).

    digits (1797 x 64, 10 classes), breast_cancer (569 x 30, 2), wine (178 x 13, 3) and iris
    (150 x 4, 3) have int64 class codes of shape (n,) and `classes`; diabetes (442 x 10, 1 target)
    and linnerud (20 x 3, 3 targets) have float64 targets of shape (n, targets).

    Args:
        name: name of the data set.

    Raises DataError where scikit-learn is not installed, ConfigError for another name.

    Example:
        >>> data = sklearn("digits")
        >>> data.arrays[0].shape, data.classes[:2]
        ((1797, 64), ('0', '1'))
    """
    if name not in get_args(Name):
        raise ConfigError(f"sklearn: there is no {name!r}; there are {', '.join(get_args(Name))}")
    try:
        from sklearn import datasets
    except ImportError as error:
        why = absent("scikit-learn", "data", error)
        raise DataError(f"the data set {name!r} comes with scikit-learn: {why}") from error
    bunch: Any = getattr(datasets, f"load_{name}")()
    x = np.asarray(bunch.data, np.float64)
    features = [str(text) for text in bunch.feature_names]
    if name in ("diabetes", "linnerud"):
        y = np.asarray(bunch.target, np.float64).reshape(len(x), -1)
        target = ", ".join(bunch.target_names) if name == "linnerud" else "disease progression"
        return ArrayDataset(x, y, feature_names=features, target_name=target)
    return ArrayDataset(
        x,
        np.asarray(bunch.target, np.int64),
        feature_names=features,
        target_name="class",
        classes=[str(text) for text in bunch.target_names],
    )
