"""Which columns of a table matter to a model: by how much it gets worse when one is shuffled.

Permutation importance: L. Breiman, "Random Forests", Machine Learning 45 (2001). All inputs that a
column has become, such as those of a category, are shuffled together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..data import Prepared, Source
from ..data.rows import layout
from ..data.source import named_as
from ..runs.metrics import Importance

REPEATS = 5
# Multiplications or what takes as long, by count: as many are a matter of half a second.
_MOST = 6 * 10**8
_EACH = 10**6  # of an evaluation, however few rows it has
_ROW = 1000  # of a row, besides one for each parameter

Places = list[tuple[int, slice]]  # of a column: which input, and which columns of that


def columns_of(data: Prepared, dataset: Source) -> dict[str, Places]:
    """The columns of a table and the inputs that each has become; none where it is no table."""
    inputs, _ = layout(dataset)
    if data.encoder is None:
        count = inputs[0].shape[-1] if len(inputs) == 1 and inputs[0].ndim == 2 else 0
        names = dataset.feature_names or [f"x{j}" for j in range(count)]
        return {name: [(0, slice(j, j + 1))] for j, name in enumerate(names[:count])}
    found: dict[str, Places] = {}
    first = embedded = 0
    for fitted in data.encoder.columns:
        width, places = len(fitted.feature_names), found.setdefault(fitted.name, [])
        if width:
            places.append((0, slice(first, first + width)))
        if fitted.column.type == "category" and fitted.column.encode == "embedding":
            places.append((len(inputs) - 1, slice(embedded, embedded + 1)))
            embedded += 1
        first += width
    return found


def quick(columns: Mapping[str, Places], rows: int, parameters: int) -> bool:
    """Whether it is a matter of less than a second, by what there is to count."""
    each = _EACH + rows * (_ROW + parameters)
    return len(columns) > 1 and len(columns) * REPEATS * each <= _MOST


def importance(
    part: str,
    dataset: Source,
    columns: Mapping[str, Places],
    measure: Callable[[Source], Mapping[str, float]],
    field: str,
    higher_is_better: bool,
    seed: int,
) -> Importance:
    """Shuffle each column `REPEATS` times; collective where `measure` is.

    Args:
        measure: the loss and the metrics of rows, by name.
        field: the one of these that counts.
        seed: of the shuffles, which are the same for the same number of rows.
    """
    arrays, sign = dataset.read(slice(None)), 1 if higher_is_better else -1
    value = measure(dataset)[field]
    losses: list[list[float]] = []
    for j, places in enumerate(columns.values()):
        losses.append([])
        for repeat in range(REPEATS):
            order = np.random.default_rng((seed, j, repeat)).permutation(len(dataset))
            shuffled = [*arrays]
            for i, some in places:
                shuffled[i] = shuffled[i].copy()
                shuffled[i][:, some] = arrays[i][order, some]
            losses[-1].append(sign * (value - measure(named_as(dataset, tuple(shuffled)))[field]))
    means, deviations = np.mean(losses, axis=1), np.std(losses, axis=1, ddof=1)
    order = np.argsort(-means, kind="stable")
    names = [*columns]
    ordered = [names[j] for j in order], means[order].tolist(), deviations[order].tolist()
    return Importance(part, field, value, len(dataset), *ordered, REPEATS)


def choose(monitor: str, higher_is_better: Mapping[str, bool | None]) -> tuple[str, bool]:
    """What is measured: the metric by which the best step is chosen, else the loss."""
    field = monitor.rpartition("/")[2]
    higher = higher_is_better.get(field)
    return ("loss", False) if higher is None else (field, higher)
