"""Measuring all members of a sweep as one model, on rows that none of them was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..config.components import load
from ..data import ArrayDataset, Source
from ..data.source import blocks
from ..data.view import layout
from ..distributed.agreement import agreed, from_root, together
from ..errors import ConfigError
from ..nn import Identity
from ..runs.record import Run
from ..train.assembly import build_loss, load_once
from ..train.class_metrics import Confusion
from ..train.class_table import class_counts, class_names
from ..train.evaluation import evaluate
from ..train.own import build_metrics
from .ensemble import TrainedEnsemble
from .evaluate import Evaluation, Part, load_data_again
from .inputs import read_dataset
from .saved import read_all
from .stored import stored_rows

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = ["evaluate_all"]

Array = NDArray[Any]
Sources = list[Source]  # the same rows, for each preparation


def evaluate_all(
    path: str,
    part: str | None = None,
    *,
    comm: Communicator,
    warn: Callable[[str], None],
    trust: bool = False,
    data_file: str | None = None,
    member: str = "all",
) -> Evaluation:
    """Loss and metrics of the mean of all members, on parts that all have or a file. Collective.

    `member` may be `best-setting` instead of `all`.

    Members of folds have the test part alone in common. Every rank predicts all rows. The loss is
    that of the mean probabilities, or of the mean prediction of a regression.

    Raises ConfigError for a part that members do not share and an `eval_step` of the user's own,
    and all that `evaluate_run` raises.
    """
    saved = from_root(comm, lambda: read_all(path, trust=trust, member=member))
    ensemble = together(comm, lambda: TrainedEnsemble(saved))
    first, run = ensemble.first, saved[0].run
    assert run is not None
    trainer: Any = load("trainer", first.config.trainer) if first.config.trainer else None
    if trainer is not None and trainer.eval_step is not None:
        raise agreed(
            ConfigError(f"{first.config.trainer} has an eval_step, which measures one model alone")
        )
    if data_file is not None:
        name = data_file
        parts = {data_file: together(comm, lambda: _of_file(name, ensemble, warn))}
    else:
        parts = _of_parts(ensemble, run, part, comm, warn, [each.result for each in saved])
    loss, metrics = build_loss(first.config), build_metrics(first.config)
    evaluation = Evaluation(run.path, first.step, ensemble.chosen)
    for name, sources in parts.items():
        rows = together(comm, lambda sources=sources: _scored(ensemble, sources))  # type: ignore[misc]
        names = class_names(loss, metrics, first.classes, [rows])
        more = [] if names is None else [Confusion()]
        with np.errstate(all="ignore"):  # what is not finite is shown as it is
            values = evaluate(Identity(), loss, [*metrics, *more], rows, comm)
        counts = None if names is None else class_counts(values, name, names)
        evaluation.parts[name] = Part(len(rows), values, classes=counts)
    return evaluation


def _of_file(path: str, ensemble: TrainedEnsemble, warn: Callable[[str], None]) -> Sources:
    notes: dict[str, None] = {}
    sources: Sources = []
    for group in ensemble.groups:
        member = ensemble.members[group[0]]
        stored = stored_rows(path, member)
        if stored is None:
            sources.append(read_dataset(path, member, lambda text: notes.update({text: None})))
            continue
        arrays = [list(rows) for _, rows in blocks(stored)]
        whole = [np.concatenate(column) for column in zip(*arrays, strict=True)]
        count = len(member.signature.inputs)
        weights = whole[count + 1] if stored.weighted else None
        prepared = member.prepare(*whole[:count])
        sources.append(
            ArrayDataset(*prepared, whole[count], classes=member.classes, weights=weights)
        )
    for text in notes:
        warn(text)
    return sources


def _of_parts(
    ensemble: TrainedEnsemble,
    run: Run,
    part: str | None,
    comm: Communicator,
    warn: Callable[[str], None],
    results: list[Any],
) -> dict[str, Sources]:
    """The parts, or the one that is asked for, which all members have."""
    varied = {key for result in results for key in result.varied}
    fold = "data.split.fold"
    if others := sorted(k for k in varied if k.startswith("data.split.") and k != fold):
        raise agreed(
            ConfigError(
                f"the members of {run.path} have other parts of the data ({', '.join(others)} "
                "varies), and one was trained on what another is tested on; name a file: --data"
            )
        )
    loaded = []
    for group in ensemble.groups:
        member = ensemble.members[group[0]]
        data, its_hash = load_once(member.config, comm, partial(load_data_again, member))
        if its_hash != results[group[0]].data:
            warn(f"the data have changed since the sweep {run.path}: rows may have other parts now")
        loaded.append(data)
    names = ("test",) if fold in varied else ("train", "val", "test")
    found = {name: [getattr(data, name) for data in loaded] for name in names}
    shared = {name: rows for name, rows in found.items() if all(r is not None for r in rows)}
    if part is not None:
        shared = {name: rows for name, rows in shared.items() if name == part}
    if not shared:
        what = f"no {part} data that all members share" if part else "no data that all share"
        raise agreed(
            ConfigError(
                f"the sweep {run.path} has {what}: members of folds have other training and "
                "validation rows; keep test rows apart (data.split.test), or name a file: --data"
            )
        )
    if fold in varied and part is None:
        warn("val is left out: members of folds have other validation rows")
    return shared


def _scored(ensemble: TrainedEnsemble, sources: Sources) -> ArrayDataset:
    """The rows with what the ensemble says of them as their input, as scores for the loss."""
    scores: list[Array] = []
    rest: list[tuple[Array, ...]] = []
    count = len(layout(sources[0])[0])
    for parts in zip(*(_blocks_of(source) for source in sources), strict=True):
        first, arrays = parts[0]
        if any(not np.array_equal(own[count], arrays[count]) for _, own in parts[1:]):
            raise ConfigError(
                "members have other rows or targets; there is nothing all can be measured on"
            )
        given = (
            ensemble.scores(i, list(own[:count]), first)
            for group, (_, own) in zip(ensemble.groups, parts, strict=True)
            for i in group
        )
        mean = _mean_scores(ensemble, given)
        scores.append(mean if ensemble.first.classes else mean.reshape(arrays[count].shape))
        rest.append(arrays[count:])
    target, *weights = (np.concatenate(column) for column in zip(*rest, strict=True))
    return ArrayDataset(
        np.concatenate(scores), target, classes=sources[0].classes,
        weights=weights[0] if weights else None,
    )  # fmt: skip


def _blocks_of(source: Source) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Blocks of as many rows whatever the inputs are."""
    for first in range(0, len(source), 4096):
        yield first, source.read(slice(first, min(first + 4096, len(source))))


def _mean_scores(ensemble: TrainedEnsemble, given: Iterator[Array]) -> Array:
    """What a model would give that says what all say: logits of their mean probabilities.

    These are added up as logarithms, so that none of them rounds to 0 or 1.
    """
    link = ensemble.first.link
    if link is None:
        return ensemble.pool(given).mean.astype(ensemble.first.config.dtype)
    total: Any = -np.inf
    for scores in given:
        wide = scores.astype(np.float64)
        pair = wide if link == "softmax" else np.stack([np.zeros_like(wide), wide], axis=1)
        total = np.logaddexp(total, pair - np.logaddexp.reduce(pair, axis=1, keepdims=True))
    return np.asarray(total if link == "softmax" else total[:, 1] - total[:, 0])
