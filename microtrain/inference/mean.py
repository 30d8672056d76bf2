"""Several runs as one model: the mean of what they predict, and how far they are apart.

Runs of different folds were standardized by different rows, so each prepares raw rows itself. A
block of rows goes through one after the other: what is kept is a mean and a sum of squares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..common.words import plural
from ..errors import ConfigError, DataError
from .model import Note, TrainedModel, once, warn_user
from .saved import Saved, read_saved

Array = NDArray[Any]


def load_all(paths: Sequence[Any], trust: bool, checkpoint: str | int) -> TrainedEnsemble:
    """The mean of several runs; raises as `load`."""
    saved = [read_saved(path, checkpoint, trust=trust, warn=warn_user) for path in paths]
    return TrainedEnsemble(saved)


@dataclass(frozen=True)
class Pooled:
    """What members say of a block of rows, float64: probabilities, scores, or numbers.

    Attributes:
        mean: over the members.
        deviation: the sample standard deviation over them, of the same shape.
    """

    mean: Array
    deviation: Array


class TrainedEnsemble:
    """What `mt.load([run, ...])` gives: predictions of several runs.

    Regression: the mean of their predictions. Classes: those of their mean probabilities (where the
    loss says nothing of probabilities, of their mean scores).

    Attributes:
        members: a `TrainedModel` each, in order.
        first: the first of them, for what all have in common: classes, names of targets.
        chosen: what they are, in words.

    Raises ConfigError for fewer than two runs, and for one that predicts different things from the
    first.

    Example:
        >>> flowers = mt.load([f"runs/iris-sweep/latest/members/{n}" for n in (0, 1)])
        >>> species, spread = flowers.predict([[5.1, 3.5, 1.4, 0.2]], spread=True)
    """

    def __init__(self, saved: Sequence[Saved]) -> None:
        if len(saved) < 2:
            raise ConfigError(f"a mean and its spread take two runs or more, got {len(saved)}")
        self.members = [TrainedModel(each) for each in saved]
        self.first = self.members[0]
        self.chosen = f"mean of {plural(len(self.members), 'run')}"
        for member in self.members:
            if _predicts(member) != _predicts(self.first):
                raise ConfigError(
                    f"{member.path} predicts something different from {self.first.path} (targets, "
                    "classes or kind of loss): there is no mean of both"
                )
        states = [each.checkpoint.state for each in saved]
        keys = "preprocessing", "table", "inputs"
        # Members of which this is the same prepare rows alike.
        self._preparations = [json.dumps([state.get(key) for key in keys]) for state in states]

    def __repr__(self) -> str:
        return f"TrainedEnsemble({self.first.config.name}, {self.chosen}, {self.first.path})"

    def predict(self, *inputs: Any, spread: bool = False, threshold: float | None = None) -> Any:
        """Predictions for raw inputs, as `TrainedModel.predict` takes and gives them.

        Args:
            *inputs: rows, named columns, or a `Source`.
            spread: whether to return a pair with the sample standard deviation over the members: of
                the prediction, of its shape; of classes of the probability of the predicted class,
                shape (n,).
            threshold: of two classes, predict the second where its mean probability is at least
                this.

        Raises DataError and ConfigError as `TrainedModel.predict`.
        """
        pooled = list(self.outputs(*inputs))
        values = np.concatenate([self.decide(each, threshold) for each in pooled])
        if not spread:
            return values
        return values, np.concatenate([self.spread(each, threshold) for each in pooled])

    def predict_proba(self, *inputs: Any) -> Array:
        """The mean probabilities, as `TrainedModel.predict_proba` gives them; ConfigError."""
        return np.concatenate([self.probabilities(each) for each in self.outputs(*inputs)])

    def decide(self, pooled: Pooled, threshold: float | None = None) -> Array:
        """Predictions, as `predict` gives them, of a block of `outputs`."""
        first = self.first
        if threshold is not None:
            return first.at_threshold(self.probabilities(pooled), threshold)
        if first.classes is None:
            return pooled.mean.astype(first.config.dtype)
        return first.labels[pooled.mean.argmax(axis=1)]

    def probabilities(self, pooled: Pooled) -> Array:
        """What `predict_proba` gives, of a block of `outputs`."""
        first = self.first
        if first.link is None:
            first.probabilities(pooled.mean)  # says that there are none
        return pooled.mean if first.classes is not None else pooled.mean.astype(first.config.dtype)

    def spread(self, pooled: Pooled, threshold: float | None = None) -> Array:
        """What `predict` gives with `spread`, of a block of `outputs`."""
        if self.first.classes is None:
            return pooled.deviation.astype(self.first.config.dtype)
        codes = pooled.mean.argmax(axis=1)
        if threshold is not None:
            codes = (pooled.mean[:, 1] >= threshold).astype(np.intp)
        return pooled.deviation[np.arange(len(codes)), codes]

    def outputs(
        self, *inputs: Any, note: Note = warn_user, kept: Iterable[str] = ()
    ) -> Iterator[Pooled]:
        """What the members say of raw inputs, in the blocks of `TrainedModel.outputs`."""
        note = once(note)
        for first, rows in self.first.blocks(*inputs):
            yield self._pool(self._values(rows, first, note, [*kept]))

    def _values(
        self, rows: tuple[Any, ...], first: int, note: Note, kept: list[str]
    ) -> Iterator[Array]:
        """What is averaged, of one member after the other."""
        prepared: dict[str, list[Array]] = {}
        for member, how in zip(self.members, self._preparations, strict=True):
            if how not in prepared:
                prepared[how] = member.prepare(*rows, note=note, kept=kept)
            try:
                scores = member.scores(prepared[how], first)
            except DataError as error:
                raise DataError(f"{member.path}: {error}") from error
            if member.link == "softmax":
                yield member.probabilities(scores)
            else:
                yield scores if member.classes is not None else member.decide(scores)

    def _pool(self, values: Iterable[Array]) -> Pooled:
        """Mean and deviation of values that come one by one, by Welford's method."""
        count, mean, squares = 0, np.zeros(()), np.zeros(())
        for count, value in enumerate(values, start=1):
            apart = value.astype(np.float64) - mean
            mean = mean + apart / count
            squares = squares + apart * (value - mean)
        return Pooled(mean, np.sqrt(squares / (count - 1)))


def _predicts(member: TrainedModel) -> tuple[Any, ...]:
    """What must be the same of members that are averaged."""
    loss = member.config.loss.type if member.link is None and member.classes else ""
    return member.classes, member.target_names, member.signature.out_features, member.link, loss
