"""Callbacks: what observes a run without changing its mathematics.

A callback is an object with any of seven hooks. Every rank calls them at the same points, in the
order in which the callbacks are listed, unless a callback is `main_only`: then rank 0 alone does,
and a collective in it raises at once instead of waiting for ranks that will never come.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from ..config.duration import Duration
from ..distributed.communicator import alone
from ..errors import ConfigError, DataError
from ..spelling import did_you_mean

__all__ = ["Callback", "Callbacks", "every"]

Trainer: TypeAlias = Any  # the trainer holds the callbacks; a hook of the user's may name its class


class Callback:
    """Base class: every hook does nothing. Override what you need.

    Attributes:
        interval: how often `on_step` is called, such as `100 steps` or `1 epoch`; None: never.
        main_only: whether rank 0 alone calls the hooks.

    Example:
        >>> class PrintLoss(mt.train.Callback):
        ...     interval, main_only = "100 steps", True
        ...     def on_step(self, trainer):
        ...         print(trainer.step, trainer.model.loss)
    """

    interval: str | None = None
    main_only: bool = False

    def on_start(self, trainer: Trainer) -> None:
        """Before the first step, also of a run that was resumed."""

    def on_step(self, trainer: Trainer) -> None:
        """After an optimiser step, every `interval`."""

    def on_epoch(self, trainer: Trainer) -> None:
        """After the last step of an epoch."""

    def on_eval(self, trainer: Trainer, measured: dict[str, float]) -> None:
        """After an evaluation; `measured` has its values by name, such as `val/loss`."""

    def on_save(self, trainer: Trainer, path: Path) -> None:
        """After the state was handed to a checkpoint that will be at `path`; on rank 0 alone."""

    def on_error(self, trainer: Trainer, error: BaseException) -> None:
        """When a run ends by an error; only where no rank can be waiting for another."""

    def on_stop(self, trainer: Trainer) -> None:
        """At the end of a run that finished, or was stopped in good order."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON has it; equal on all ranks or `main_only`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""


HOOKS = ("on_start", "on_step", "on_epoch", "on_eval", "on_save", "on_error", "on_stop")


class _Function(Callback):
    """A function as a callback."""

    def __init__(self, function: Callable[[Trainer], None], interval: str, main_only: bool) -> None:
        self.function, self.interval, self.main_only = function, interval, main_only
        self.__name__ = getattr(function, "__name__", "function")

    def on_step(self, trainer: Trainer) -> None:
        self.function(trainer)


def every(
    interval: str, *, main_only: bool = False
) -> Callable[[Callable[[Trainer], None]], Callback]:
    """Make a callback of a function of the trainer.

    Raises ValueError for an interval that is no duration in steps or epochs.

    Example:
        >>> @mt.train.every("100 steps", main_only=True)
        ... def watch(trainer):
        ...     print(trainer.step, trainer.model.loss)
    """
    _in_steps("every", interval)
    return lambda function: _Function(function, interval, main_only)


class Callbacks:
    """The callbacks of a run, called in their order.

    Raises ConfigError for an object without hooks, and for an interval that is no duration.
    """

    def __init__(self, callbacks: list[Any], trainer: Trainer) -> None:
        self._trainer = trainer
        self._all = callbacks
        self._mine = [c for c in callbacks if trainer.comm.rank == 0 or not _main_only(c)]
        self._steps: list[tuple[int, Any]] = []
        for callback in callbacks:
            name = _name(callback)
            if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
                raise ConfigError(
                    f"callback {name} has none of the hooks {', '.join(HOOKS)}; derive it from "
                    "microtrain.train.Callback, or decorate a function with @microtrain.train.every"
                )
            if isinstance(callback, type):
                raise ConfigError(f"callback {name} is a class; give an instance: {name}(...)")
            for other in dir(type(callback)):  # on_epoch_end of elsewhere would never be called
                if other.startswith("on_") and other not in HOOKS:
                    raise ConfigError(
                        f"callback {name}: {other} is none of the hooks {', '.join(HOOKS)}"
                        f"{did_you_mean(other, HOOKS)}"
                    )
            interval = getattr(callback, "interval", None)
            if interval is not None:
                try:
                    duration = _in_steps(f"callback {name}", interval)
                except ValueError as error:
                    raise ConfigError(str(error)) from error
                steps = duration.steps(trainer.steps_per_epoch, trainer.total_steps)
                self._steps.append((steps, callback))

    def next_step(self, step: int) -> float:
        """The first step after `step` at which some `on_step` is due."""
        return min(((step // n + 1) * n for n, _ in self._steps), default=math.inf)

    def on_step(self, step: int) -> None:
        """Call those whose interval ends with `step`."""
        for n, callback in self._steps:
            if step % n == 0 and callback in self._mine:
                self._call(callback, "on_step")

    def hear(self, hook: str) -> bool:
        """Whether `hook` does something in any, on any rank."""
        ours = getattr(Callback, hook)
        found = [getattr(callback, hook, ours) for callback in self._all]
        return any(getattr(method, "__func__", method) is not ours for method in found)

    def call(self, hook: str, *arguments: Any) -> None:
        """Call `hook` of all."""
        for callback in self._mine:
            self._call(callback, hook, *arguments)

    def _call(self, callback: Any, hook: str, *arguments: Any) -> None:
        method = getattr(callback, hook, None)
        if method is None:
            return
        if not _main_only(callback):
            method(self._trainer, *arguments)
            return
        with alone(f"the callback {_name(callback)} is main_only, rank 0 alone calls it"):
            method(self._trainer, *arguments)

    def state_dict(self) -> list[Any]:
        """Name and state of each, for a checkpoint; TypeError for a state that is no JSON."""
        found = []
        for callback in self._all:
            state = callback.state_dict() if hasattr(callback, "state_dict") else {}
            try:
                kept = json.loads(json.dumps(state, allow_nan=False))
            except (TypeError, ValueError) as error:
                kept = error
            if kept != state:
                raise TypeError(
                    f"callback {_name(callback)}: state_dict() must be plain JSON (text keys, "
                    f"lists, finite numbers), got {state!r}"
                )
            found.append([_name(callback), kept])
        return found

    def load_state_dict(self, states: list[Any]) -> None:
        """Give each the state of its name; a new one starts afresh, one left out is forgotten.

        Raises DataError where one cannot take its state.
        """
        kept: dict[str, list[Any]] = {}
        for name, state in states:
            kept.setdefault(name, []).append(state)
        for callback in self._all:
            found = kept.get(_name(callback))
            state = found.pop(0) if found else {}
            if state and hasattr(callback, "load_state_dict"):
                try:
                    callback.load_state_dict(state)
                except (KeyError, TypeError, ValueError) as error:
                    raise DataError(
                        f"callback {_name(callback)} cannot take the state in the checkpoint: "
                        f"{error!r}"
                    ) from error


def _in_steps(what: str, interval: Any) -> Duration:
    duration = Duration(interval) if isinstance(interval, str) else None
    if duration is None or duration.unit == "min":
        raise ValueError(
            f"{what}: expected an interval in steps or epochs such as `100 steps`, got {interval!r}"
        )
    return duration


def _main_only(callback: Any) -> bool:
    return bool(getattr(callback, "main_only", False))


def _name(callback: Any) -> str:
    return getattr(callback, "__name__", None) or type(callback).__name__
