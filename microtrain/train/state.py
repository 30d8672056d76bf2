"""What a run is made of, where it is, and what is due when: the types that all share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..config.duration import Duration
from ..config.schema import Config
from .wishes import EVALUATE, SAVE

if TYPE_CHECKING:
    from ..data import DataLoader, Prepared
    from ..distributed.communicator import Communicator
    from ..distributed.data_parallel import DataParallel
    from ..optim import Optimizer
    from .divergence import Guard, Skips
    from .metrics import Metric
    from .schedules import Rates

__all__ = ["Parts", "Plan", "RunState"]


@dataclass(frozen=True)
class Plan:
    """Every duration of a configuration: in optimiser steps, or in seconds where a clock counts.

    Attributes:
        epoch: steps of one epoch.
        total: steps of the run; None where a clock ends it.
        evaluate, save, row: steps between two evaluations, checkpoints, rows; None where others
            say when.
        ends: seconds until the run ends, by name: `duration`, `max_time`.
        intervals: seconds between two evaluations and two checkpoints, by their place in the
            notes.
    """

    epoch: int
    total: int | None
    evaluate: int | None
    save: int | None
    row: int | None
    ends: dict[str, float]
    intervals: dict[int, float]

    @classmethod
    def of(cls, config: Config, epoch: int) -> Plan:
        """The durations of a configuration whose epochs have so many steps."""
        ends: dict[str, float] = {}
        intervals: dict[int, float] = {}
        total: int | None = None

        def steps(text: str, clocked: str | int) -> int | None:
            duration = Duration(text)
            if duration.unit != "min":
                return duration.steps(epoch, total)
            seconds = float(duration.amount * 60)
            if isinstance(clocked, str):
                ends[clocked] = seconds
            else:
                intervals[clocked] = min(seconds, intervals.get(clocked, seconds))
            return None

        total = steps(config.train.duration, "duration")
        if config.train.max_time is not None:
            steps(config.train.max_time, "max_time")
        evaluate = steps(config.train.eval_every, EVALUATE)
        save = None if config.checkpoint.every == "auto" else steps(config.checkpoint.every, SAVE)
        row = None if config.log.every == "auto" else steps(config.log.every, EVALUATE)
        return cls(epoch, total, evaluate, save, row, ends, intervals)


@dataclass(frozen=True)
class Parts:
    """What a run is made of: built by `build_run`, alike on every rank, and never replaced.

    Attributes:
        config: the whole configuration.
        comm: the ranks of the run.
        device: None for the CPU.
        data: its parts, prepared.
        model: the `DataParallel` model.
        loss: a callable of prediction and target.
        metrics: what is measured beside it.
        optimizer: of the model's parameters.
        loader: of the training data.
        plan: every duration.
        rates: sets the rates of a schedule; None where they stay.
        guard: what every update passes.
        skips: the policy `train.nan: skip`; None where what is not finite ends the run.
    """

    config: Config
    comm: Communicator
    device: Any
    data: Prepared
    model: DataParallel
    loss: Any
    metrics: Sequence[Metric]
    optimizer: Optimizer
    loader: DataLoader
    plan: Plan
    rates: Rates | None
    guard: Guard
    skips: Skips | None

    @property
    def shards(self) -> int | None:
        """Slices of every batch whatever the number of ranks, under `reproducible: world`."""
        return shards_of(self.config)


def shards_of(config: Config) -> int | None:
    """What `distributed.shards` says, where it counts."""
    shared = config.distributed
    return int(shared.shards) if shared.reproducible == "world" else None


@dataclass
class RunState:
    """Where a run is.

    Attributes:
        step, samples: optimiser steps taken and samples seen, over all ranks.
        elapsed: seconds that it took before a resume.
        best: name, value and step of the best value of the monitored column.
        measured: the last such value, and the step after which it was measured.
        stop: why it is to end, once any rank was asked for that; equal on all ranks at each
            checkpoint.
        ended: whether it has ended because of that.
    """

    step: int = 0
    samples: int = 0
    elapsed: float = 0.0
    best: tuple[str, float, int] | None = None
    measured: tuple[int, float] | None = field(default=None)
    stop: str = ""
    ended: bool = False
