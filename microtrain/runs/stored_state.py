"""What state.json of a checkpoint must hold for a run, or a loop of one's own, to go on from it.

A manifest that fits says that nothing was changed since it was written, not that microtrain wrote
it. What is taken from here goes into the optimizer, the streams and the loop: it is looked at once,
where it is read, so that a checkpoint that cannot be used is named and the one before it taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import DataError
from ..random import get_rng_state, set_rng_state
from .checkpoint import Checkpoint

__all__ = ["check_loop", "check_run"]

# A type (int: a count), a literal, a list of one kind, a dict of these keys, or alternatives.
_RUN = {
    "step": int,
    "samples": int,
    "seconds": float,
    "metrics_bytes": int,
    "monitor": [str],
    "monitored": (None, float),
    "best": (None, {"name": str, "value": float, "step": int}),
    "progress": [str],
    "rows": {"rows": int, "step_rate": int},
    "callbacks": [list],
    "skips": (None, {"total": int, "in_a_row": int, "last": (int, -1)}),
    "data_hash": str,
    "compile": {
        "executor": ("off", "numpy", "numba"),
        "from_step": int,
        "reason": str,
        "chosen": bool,
    },
}
_STOP = (None, {"reason": str, "ended": bool, "duration": str})
_LOOP = {"loop": dict}
_OPTIMIZER = {"options": [dict]}


def check_run(checkpoint: Checkpoint, groups: Sequence[dict[str, Any]], skipping: bool) -> None:
    """DataError where a run cannot go on from the state of a checkpoint.

    groups: the parameter groups of its optimizer.
    skipping: whether it skips updates that are not finite.
    """

    def sound(state: dict[str, Any]) -> list[tuple[bool, str]]:
        _, weight = map(float.fromhex, state["progress"])
        return [
            (state["step"] == checkpoint.step, "step: not that of the manifest"),
            (state["rows"]["step_rate"] > 0, "rows.step_rate: 0"),
            (weight >= 0, "progress: no sums of losses"),
            (all(len(c) == 2 and type(c[0]) is str for c in state["callbacks"]), "callbacks"),
            ((state["skips"] is not None) == skipping, "skips: whether train.nan is skip"),
            (not _misfit(state.get("stop"), _STOP, ""), "stop"),  # an earlier version has none
        ]

    _check(checkpoint, _RUN | _OPTIMIZER, groups, sound)


def check_loop(checkpoint: Checkpoint, groups: Sequence[dict[str, Any]] | None) -> None:
    """DataError where `mt.restore` cannot take up the state of a checkpoint.

    groups: the parameter groups of the loop's optimizer, None where it restores none.
    """

    def sound(state: dict[str, Any]) -> list[tuple[bool, str]]:
        return [(type(state["loop"].get("epoch", 0)) is int, "loop.epoch: no whole number")]

    _check(checkpoint, _LOOP if groups is None else _LOOP | _OPTIMIZER, groups, sound)


def _check(
    checkpoint: Checkpoint,
    shape: dict[str, Any],
    groups: Sequence[dict[str, Any]] | None,
    sound: Callable[[dict[str, Any]], list[tuple[bool, str]]],
) -> None:
    state = checkpoint.state
    wrong = _misfit(state, shape, "")
    try:
        if not wrong:
            found = sound(state) + ([] if groups is None else _options(state["options"], groups))
            wrong = next((what for right, what in found if not right), "")
        before = get_rng_state()
        set_rng_state(state.get("random"))  # type: ignore[arg-type]
        set_rng_state(before)
    except (ValueError, OverflowError) as error:
        wrong = wrong or f"random or progress: {error}"
    if wrong:
        raise DataError(f"damaged checkpoint {checkpoint.path}: in state.json, {wrong}")


def _options(kept: Any, groups: Sequence[dict[str, Any]]) -> list[tuple[bool, str]]:
    return [
        (_takes(group.get(name), value), f"options: {name} is {value!r:.40}")
        for options, group in zip(kept, groups, strict=False)
        for name, value in options.items()
    ]


def _takes(option: Any, value: Any) -> bool:
    """Whether a stored value can take the place of an option of the optimizer."""
    if isinstance(option, tuple):
        fits = isinstance(value, list) and len(value) == len(option)
        return fits and all(map(_takes, option, value))
    if _is_number(option):
        return _is_number(value)
    return isinstance(value, bool) if isinstance(option, bool) else not isinstance(value, dict)


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**1023)


def _misfit(value: Any, shape: Any, path: str) -> str:
    """Where `value` is not of a shape, and how; empty where it is."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{path}: expected keys and values, found {value!r:.40}"
        gone = [key for key in shape if key not in value]
        if gone:
            return f"{path}{'.' * bool(path)}{gone[0]} is missing"
        below = ((value[key], shape[key], f"{path}.{key}".lstrip(".")) for key in shape)
        return next(filter(None, (_misfit(*each) for each in below)), "")
    if isinstance(shape, list) and isinstance(value, list):
        found = (_misfit(each, shape[0], f"{path}.{i}") for i, each in enumerate(value))
        return next(filter(None, found), "")
    if isinstance(shape, tuple):
        fits = not all(_misfit(value, each, path) for each in shape)
    elif shape is int:
        fits = type(value) is int and 0 <= value < 2**53
    elif shape is float:
        fits = _is_number(value) and math.isfinite(value)
    elif isinstance(shape, type):
        fits = type(value) is shape
    else:
        fits = type(value) is type(shape) and value == shape
    return "" if fits else f"{path} is {value!r:.40}"
