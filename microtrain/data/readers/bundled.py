"""Real data that need no network: what scikit-learn ships, of which two sets are here as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from ...errors import ConfigError, DataError, absent
from ..source import ArrayDataset

Name = Literal["digits", "diabetes", "breast_cancer", "wine", "iris", "linnerud"]
SETS = Path(__file__).parents[1] / "sets"  # digits and diabetes


def sklearn(name: Name) -> ArrayDataset:
    """A data set of scikit-learn, its features as they are (digits: 0 to 16).

    digits and diabetes come with microtrain and need no scikit-learn.

    digits (1797 x 64, 10 classes), breast_cancer (569 x 30, 2), wine (178 x 13, 3) and iris
    (150 x 4, 3) have int64 class codes of shape (n,) and `classes`; diabetes (442 x 10, 1 target)
    and linnerud (20 x 3, 3 targets) have float64 targets of shape (n, targets).

    Args:
        name: name of the data set.

    Raises DataError where scikit-learn is needed and not installed, ConfigError for another name.

    Example:
        >>> data = sklearn("digits")
        >>> data.arrays[0].shape, data.classes[:2]
        ((1797, 64), ('0', '1'))
    """
    if name not in get_args(Name):
        raise ConfigError(f"sklearn: there is no {name!r}; there are {', '.join(get_args(Name))}")
    x, y, features, classes = _brought(name) if (SETS / f"{name}.npz").exists() else _loaded(name)
    x, features = np.asarray(x, np.float64), [str(text) for text in features]
    if name in ("diabetes", "linnerud"):
        y = np.asarray(y, np.float64).reshape(len(x), -1)
        target = ", ".join(classes) if name == "linnerud" else "disease progression"
        return ArrayDataset(x, y, feature_names=features, target_name=target)
    return ArrayDataset(
        x,
        np.asarray(y, np.int64),
        feature_names=features,
        target_name="class",
        classes=[str(text) for text in classes],
    )


def _brought(name: str) -> tuple[Any, ...]:
    with np.load(SETS / f"{name}.npz", allow_pickle=False) as found:
        return found["x"], found["y"], found["features"], found.get("classes")


def _loaded(name: str) -> tuple[Any, ...]:
    try:
        from sklearn import datasets
    except ImportError as error:
        why = absent("scikit-learn", "data", error)
        raise DataError(f"the data set {name!r} comes with scikit-learn: {why}") from error
    bunch: Any = getattr(datasets, f"load_{name}")()
    return bunch.data, bunch.target, bunch.feature_names, bunch.get("target_names")
