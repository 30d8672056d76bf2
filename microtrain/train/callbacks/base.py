"""Callbacks: what is done between the steps of a run, without changing its mathematics.

Every rank calls them at the same points, in the order in which they are listed, unless a callback
is `main_only`: then rank 0 alone does, and a collective in it raises at once instead of waiting for
ranks that will never come. What measures, prints and writes in a run is a callback, too; a
configuration lists those that are the user's.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...common.files import json_bytes
from ...common.spelling import did_you_mean
from ...config.components import build, load, own
from ...config.schema import Component
from ...config.texts import Duration
from ...distributed.communicator import alone
from ...errors import ConfigError, DataError


@dataclass
class Event:
    """A point between two steps; callbacks are called in order, and leave what they find.

    Attributes:
        step: optimizer steps taken.
        last: whether no step follows.
        evaluate, save: whether it is time to evaluate the model, to write a checkpoint.
        asked: what clocks and signals ask for: a number above 0 at its place in the notes.
        measured: what the evaluation gave, by column name; empty without one.
        loss: the mean since the last row where there is one now, else that of the step.
        stop: why the run is to end here, "" where it goes on.
    """

    step: int
    last: bool
    evaluate: bool
    save: bool
    asked: Sequence[float]
    loss: float | None
    measured: dict[str, float] = field(default_factory=dict)
    stop: str = ""


@dataclass
class Ending:
    """The end of a run in good order; callbacks are called in order, and leave what they find.

    Attributes:
        finished: whether nothing is left to do; else it was stopped, and can be resumed.
        stop: why it ended before its last step.
        seconds, peak: time that it took, and bytes of memory at most.
        params_sha256: of the last checkpoint's parameters; rank 0.
        which: in a few words the checkpoint whose model the run is known by.
        chosen: the same in full.
        undo: puts back the values of the last step, where the model has others meanwhile.
        about: more fields of run.json.
        lines: to be said before the summary.
    """

    finished: bool
    stop: str
    seconds: float
    peak: int
    params_sha256: str = ""
    which: str = ""
    chosen: str = ""
    undo: ExitStack = field(default_factory=ExitStack)
    about: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


class Callback:
    """Base class: every hook does nothing. Override what you need; hooks get the Trainer.

    Attributes:
        interval: how often `on_step` is called, which needs it, such as `100 steps` or `1 epoch`.
        main_only: whether rank 0 alone calls the hooks.
        state_name: of its state in a checkpoint; without one it is among those of `callbacks`.

    Example:
        >>> class PrintLoss(mt.train.Callback):
        ...     interval, main_only = "100 steps", True
        ...     def on_step(self, trainer):
        ...         print(trainer.step, trainer.model.loss)
    """

    interval: str | None = None
    main_only: bool = False
    state_name: str = ""

    def on_build(self, trainer: Any) -> None:
        """When the run has been built; its state is loaded after that."""

    def on_start(self, trainer: Any) -> None:
        """Before the first step, also of a run that was resumed."""

    def on_step(self, trainer: Any) -> None:
        """After an optimizer step, every `interval`."""

    def due(self, trainer: Any, step: int) -> float:
        """The next step after `step` after which `on_pause` has something to do."""
        return math.inf

    def on_pause(self, trainer: Any, event: Event) -> None:
        """After a step at which something is due, for this callback or another.

        `event` has what those before it in the list have found, such as `measured`.
        """

    def on_epoch(self, trainer: Any) -> None:
        """After the last step of an epoch."""

    def on_eval(self, trainer: Any, measured: dict[str, float]) -> None:
        """After an evaluation; `measured` has its values by name, such as `val/loss`."""

    def on_log(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """After a row was written into metrics.jsonl, which is that row; on rank 0 alone."""

    def on_save(self, trainer: Any, path: Path) -> None:
        """After the state was handed to a checkpoint that will be at `path`; on rank 0 alone."""

    def on_error(self, trainer: Any, error: BaseException) -> None:
        """When a run ends by an error; only where no rank can be waiting for another."""

    def on_end(self, trainer: Any, ending: Ending) -> None:
        """After the last step of a run that finished, or was stopped in good order.

        The model may have the values of the best checkpoint.
        """

    def on_stop(self, trainer: Any) -> None:
        """After `on_end` of all; the model has the values of the last step."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON has it; equal on all ranks or `main_only`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""


HOOKS = {name: hook for name, hook in vars(Callback).items() if name.startswith("on_")}


def call(callback: Callback, hook: str, trainer: Any, *arguments: Any) -> None:
    """Call a hook of a callback, where this rank is to."""
    if not callback.main_only:
        getattr(callback, hook)(trainer, *arguments)
    elif trainer.comm.rank == 0:
        with alone(f"the callback {_name(callback)} is main_only, rank 0 alone calls it"):
            getattr(callback, hook)(trainer, *arguments)


class _Function(Callback):
    """A function as a callback."""

    def __init__(self, function: Callable[[Any], None], interval: str, main_only: bool) -> None:
        self.function, self.interval, self.main_only = function, interval, main_only
        self.__name__ = getattr(function, "__name__", "function")

    def on_step(self, trainer: Any) -> None:
        self.function(trainer)


def every(interval: str, *, main_only: bool = False) -> Callable[[Callable[[Any], None]], Callback]:
    """Make a callback of a function of the trainer.

    Raises ValueError for an interval that is not a duration in steps or epochs.

    Example:
        >>> @mt.train.every("100 steps", main_only=True)
        ... def watch(trainer):
        ...     print(trainer.step, trainer.model.loss)
    """
    _in_steps("every", interval)
    return lambda function: _Function(function, interval, main_only)


class States:
    """The states of callbacks that have no name of their own in a checkpoint."""

    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = [each for each in callbacks if not each.state_name]

    def state_dict(self) -> list[Any]:
        """Name and state of each, for a checkpoint; TypeError for a state that is not JSON."""
        states = []
        for callback in self.callbacks:
            state = callback.state_dict()
            try:
                if state:
                    json_bytes({"state": state})
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"callback {_name(callback)}: state_dict() must be plain JSON (text keys, "
                    f"lists, finite numbers), got {state!r}"
                ) from error
            states.append([_name(callback), state])  # an empty one, too: of two the first is first
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
            if state:
                try:
                    callback.load_state_dict(state)
                except (KeyError, TypeError, ValueError) as error:
                    raise DataError(
                        f"callback {_name(callback)} cannot take the state in the checkpoint: "
                        f"{error!r}"
                    ) from error


def steps_between(callback: Callback, epoch: int, total: int | None) -> int | None:
    """Its interval in steps; None without one, ConfigError for what is not a duration."""
    if callback.interval is None:
        return None
    try:
        return _in_steps(f"callback {_name(callback)}", callback.interval).steps(epoch, total)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def callback_of(component: Component) -> Callback:
    """The callback that a configuration lists; ConfigError for what is not one."""
    target = component.instance or load("callbacks", component.type)
    # What `every` has decorated is a callback already, as is an object.
    callback = build(component) if isinstance(target, type) else target
    name = _name(callback)
    if isinstance(callback, type):
        raise ConfigError(f"callback {name} is a class; give an instance: {name}(...)")
    if not isinstance(callback, Callback):
        raise ConfigError(
            f"callback {name} is not a callback: derive it from microtrain.train.Callback, or "
            f"decorate a function with @microtrain.train.every\n{own('callbacks')}"
        )
    for hook in dir(type(callback)):  # on_epoch_end of elsewhere would never be called
        if hook.startswith("on_") and hook not in HOOKS:
            raise ConfigError(
                f"callback {name}: {hook} is not one of the hooks {', '.join(HOOKS)}"
                f"{did_you_mean(hook, HOOKS)}"
            )
    for hook, ours in HOOKS.items():
        method, (_, *arguments) = getattr(callback, hook), inspect.signature(ours).parameters
        try:
            inspect.signature(method).bind(*arguments)
        except TypeError:
            raise ConfigError(
                f"callback {name}: {hook}{inspect.signature(method)} cannot take what it is "
                f"called with; expected {hook}({', '.join(('self', *arguments))})\n"
                f"{own('callbacks')}"
            ) from None
    if callback.interval is None and type(callback).on_step is not Callback.on_step:
        raise ConfigError(
            f"callback {name}: on_step has no interval, so that it would never be called; set "
            'interval = "1 step" in the class'
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
