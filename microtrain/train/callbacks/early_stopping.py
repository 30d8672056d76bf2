"""Stopping when a value has not become better for a while."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from ...common.spelling import did_you_mean
from ...common.words import number, plural
from ...config.texts import Measure
from ...errors import ConfigError
from .base import Callback

if TYPE_CHECKING:
    from ..trainer import Trainer


class EarlyStopping(Callback):
    """End the run when the monitored value has not improved for `patience` evaluations.

    Values are global, so all ranks stop after the same step. The run then has the status finished,
    and the best checkpoint is kept as `checkpoint.keep_best` says. A value that is not finite is
    no improvement.

    Args:
        monitor: the column of the rows, such as `val/loss`; None is `checkpoint.monitor`.
        mode: which way is better; None: `checkpoint.mode` where that monitors the same, else as
            the metric says (`higher_is_better`), and "min" for a loss.
        patience: evaluations without improvement, at least 1.
        min_delta: by how much a value must be better to count.

    Raises:
        ValueError: a mode, patience or min_delta that makes no sense.
        ConfigError: at the start, for a column that is never measured.

    Example:
        >>> mt.train.Trainer(
        ...     mt.nn.Linear(1, 1), (x, y), loss="mse", optimizer="sgd", duration="1 epochs",
        ...     batch_size=64, callbacks=[mt.train.EarlyStopping(patience=5)]).train()
        microtrain ...
        0
    """

    def __init__(
        self,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        patience: Annotated[int, Ge(1)] = 10,
        min_delta: Annotated[float, Ge(0)] = 0.0,
    ) -> None:
        if mode not in (None, "min", "max"):
            raise ValueError(f"mode is min or max, got {mode!r}")
        if type(patience) is not int or patience < 1:
            raise ValueError(f"patience is a whole number of at least 1, got {patience!r}")
        if not 0 <= min_delta < math.inf:
            raise ValueError(f"min_delta is a number of at least 0, got {min_delta!r}")
        self.monitor, self.mode = monitor, mode
        self.patience, self.min_delta = patience, min_delta
        self.best: float | None = None
        self.best_step = self.waited = 0

    def on_start(self, trainer: Trainer) -> None:
        """Settle what is looked at, and which way is better."""
        chosen = trainer.monitor
        self.monitor = self.monitor or chosen
        split = trainer.evaluated
        names = {Measure.of(split, name): high for name, high in trainer.higher_is_better.items()}
        if self.monitor not in names:
            raise ConfigError(
                f"early stopping: nothing measures {self.monitor!r}"
                f"{did_you_mean(self.monitor, names)} (there are: {', '.join(names)})"
            )
        if self.mode is None:
            of_run = trainer.config.checkpoint.mode == "max"
            highest = of_run if self.monitor == chosen else names[Measure(self.monitor)]
            if highest is None:
                raise ConfigError(
                    f"early stopping: is the highest or the lowest {self.monitor} best? Set mode, "
                    "or give the metric an attribute higher_is_better"
                )
            self.mode = "max" if highest else "min"
        self._stop_where_waited(trainer)  # a resumed run may have come to its end before

    def on_eval(self, trainer: Trainer, measured: dict[str, float]) -> None:
        """Compare with the best; stop where that is too long ago."""
        assert self.monitor is not None  # on_start
        value = measured.get(self.monitor)
        if value is None:  # the loss of training is not evaluated, it is that of the steps
            value = math.nan if trainer.model.loss is None else trainer.model.loss
        sign = -1 if self.mode == "max" else 1
        better = self.best is None or sign * value < sign * self.best - self.min_delta
        if better and math.isfinite(value):
            self.best, self.best_step, self.waited = value, trainer.step, 0
            return
        self.waited += 1
        self._stop_where_waited(trainer)

    def _stop_where_waited(self, trainer: Trainer) -> None:
        if self.waited >= self.patience:
            many, best = plural(self.waited, "evaluation"), "it was never finite"
            if self.best is not None:
                best = f"the best was {number(self.best)} at step {self.best_step:,}"
            trainer.stop(f"early stopping: {self.monitor} has not improved for {many}; {best}")

    def state_dict(self) -> dict[str, Any]:
        """The best value and how long ago it was."""
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as `state_dict` found it."""
        best, step, waited = (state[key] for key in ("best", "best_step", "waited"))
        measured = best is None or (type(best) in (int, float) and abs(best) < 2**1023)
        if not measured or type(step) is not int or type(waited) is not int:
            raise ValueError(f"not a state of early stopping: {state!r:.100}")
        self.best, self.best_step, self.waited = best, step, waited
