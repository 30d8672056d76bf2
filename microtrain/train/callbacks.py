"""Callbacks: what observes a run without changing its mathematics.

A callback is an object with any of eight hooks. Every rank calls them at the same points, in the
order in which the callbacks are listed, unless a callback is `main_only`: then rank 0 alone does,
and a collective in it raises at once instead of waiting for ranks that will never come.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.components import build, load, own
from ..config.duration import Duration
from ..config.schema import Component
from ..distributed.communicator import alone
from ..errors import ConfigError, DataError
from ..spelling import did_you_mean
from .state import Ending, Event, Observer, TrainingRun, next_multiple

if TYPE_CHECKING:
    from .trainer import Trainer

__all__ = ["AfterEvaluation", "Callback", "Callbacks", "every"]


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

    def on_log(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        """After a row was written into metrics.jsonl, which is that row; on rank 0 alone."""

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


# With what each is called.
HOOKS = {
    **dict.fromkeys(("on_start", "on_step", "on_epoch"), ("trainer",)),
    "on_eval": ("trainer", "measured"),
    "on_log": ("trainer", "row"),
    "on_save": ("trainer", "path"),
    "on_error": ("trainer", "error"),
    "on_stop": ("trainer",),
}


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


class Callbacks(Observer):
    """The callbacks of a run, called in their order.

    Raises ConfigError for an object without hooks, and for an interval that is no duration.
    """

    name = "callbacks"

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        self.callbacks = [_callback(each) for each in run.config.callbacks]
        self._intervals: list[tuple[int, Any]] = []
        for callback in self.callbacks:
            interval = getattr(callback, "interval", None)
            if interval is not None:
                try:
                    duration = _in_steps(f"callback {_name(callback)}", interval)
                except ValueError as error:
                    raise ConfigError(str(error)) from error
                steps = duration.steps(run.steps_per_epoch, run.total_steps)
                self._intervals.append((steps, callback))
        ours = Callback.on_epoch
        heard = any(getattr(type(c), "on_epoch", ours) is not ours for c in self.callbacks)
        self._epoch = run.steps_per_epoch if heard else None

    def due(self, step: int) -> float:
        """When the next interval ends, or an epoch, where somebody hears of that."""
        ends = [next_multiple(step, n) for n, _ in self._intervals]
        return min([next_multiple(step, self._epoch), *ends])

    def start(self) -> None:
        """One whose state cannot be saved is found now, not at a checkpoint."""
        self._call("on_start")
        self.state_dict()

    def attend(self, event: Event) -> None:
        """Before the evaluation: what a hook does to the model is measured."""
        for n, callback in self._intervals:
            if event.step % n == 0:
                self._call_one(callback, "on_step")

    def attend_evaluated(self, event: Event) -> None:
        """The loss is that of the row, where there is one."""
        if event.evaluate:
            self._call("on_eval", {"train/loss": event.loss, **event.measured})
        if event.step % self.run.steps_per_epoch == 0:
            self._call("on_epoch")

    def logged(self, row: Mapping[str, Any]) -> None:
        """On rank 0 alone, which writes."""
        with alone("on_log is called on rank 0 alone"):
            self._call("on_log", row)

    def saved(self, path: Path) -> None:
        """On rank 0 alone, whose disk decides when it saves."""
        self._call("on_save", path)

    def stopped(self, ending: Ending) -> None:
        """With the model of the last step."""
        self._call("on_stop")

    def failed(self, error: BaseException) -> None:
        """Call `on_error` of all, whatever one of them does."""
        try:
            with alone("a rank that fails is alone"):
                self._call("on_error", error)
        except Exception as another:
            self.run.output.warn(f"on_error of a callback: {type(another).__name__}: {another}")

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            self._call_one(callback, hook, *arguments)

    def _call_one(self, callback: Any, hook: str, *arguments: Any) -> None:
        method, main_only = getattr(callback, hook, None), getattr(callback, "main_only", False)
        if method is None or (main_only and self.run.comm.rank != 0):
            return
        why = f"the callback {_name(callback)} is main_only, rank 0 alone calls it"
        with alone(why) if main_only else nullcontext():
            method(self.run, *arguments)

    def state_dict(self) -> list[Any]:
        """Name and state of each, for a checkpoint; TypeError for a state that is no JSON."""
        states = []
        for callback in self.callbacks:
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
            states.append([_name(callback), kept])
        return states

    def load_state_dict(self, states: list[Any]) -> None:
        """Give each the state of its name; a new one starts afresh, one left out is forgotten.

        Raises DataError where one cannot take its state.
        """
        kept: dict[str, list[Any]] = {}
        for name, state in states:
            kept.setdefault(name, []).append(state)
        for callback in self.callbacks:
            mine = kept.get(_name(callback))
            state = mine.pop(0) if mine else {}
            if state and hasattr(callback, "load_state_dict"):
                try:
                    callback.load_state_dict(state)
                except (KeyError, TypeError, ValueError) as error:
                    raise DataError(
                        f"callback {_name(callback)} cannot take the state in the checkpoint: "
                        f"{error!r}"
                    ) from error


class AfterEvaluation(Observer):
    """Calls `on_eval` and `on_epoch` of the callbacks, an observer before it."""

    def __init__(self, run: TrainingRun) -> None:
        super().__init__(run)
        (self._callbacks,) = (each for each in run.observers if isinstance(each, Callbacks))

    def attend(self, event: Event) -> None:
        """When what was measured is there."""
        self._callbacks.attend_evaluated(event)


def _callback(component: Component) -> Any:
    """The object that a component of `callbacks` stands for; ConfigError where it is none."""
    target = component.instance or load("callbacks", component.type)
    # What `every` has decorated is a callback already, as is an object.
    callback = build(component) if isinstance(target, type) else target
    name = _name(callback)
    if isinstance(callback, type):
        raise ConfigError(f"callback {name} is a class; give an instance: {name}(...)")
    for hook, arguments in HOOKS.items():
        if callable(method := getattr(callback, hook, None)):
            try:
                inspect.signature(method).bind(*arguments)
            except TypeError:
                raise ConfigError(
                    f"callback {name}: {hook}{inspect.signature(method)} cannot take what it is "
                    f"called with; expected {hook}({', '.join(('self', *arguments))})\n"
                    f"{own('callbacks')}"
                ) from None
            except ValueError:  # some built-in callables
                pass
    if not any(callable(getattr(callback, hook, None)) for hook in HOOKS):
        raise ConfigError(
            f"callback {name} has none of the hooks {', '.join(HOOKS)}; derive it from "
            "microtrain.train.Callback, or decorate a function with @microtrain.train.every\n"
            f"{own('callbacks')}"
        )
    for other in dir(type(callback)):  # on_epoch_end of elsewhere would never be called
        if other.startswith("on_") and other not in HOOKS:
            raise ConfigError(
                f"callback {name}: {other} is none of the hooks {', '.join(HOOKS)}"
                f"{did_you_mean(other, HOOKS)}"
            )
    return callback


def _in_steps(what: str, interval: Any) -> Duration:
    duration = Duration(interval) if isinstance(interval, str) else None
    if duration is None or duration.unit == "min":
        raise ValueError(
            f"{what}: expected an interval in steps or epochs such as `100 steps`, got {interval!r}"
        )
    return duration


def _name(callback: Any) -> str:
    return getattr(callback, "__name__", None) or type(callback).__name__
