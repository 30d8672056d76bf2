"""What state.json of a checkpoint must hold for a run, or a loop of one's own, to go on from it.

A manifest that fits says that nothing was changed since it was written, not that microtrain wrote
it. What is taken from here goes into the optimizer, the streams and the loop: it is looked at once,
where it is read, so that a checkpoint that cannot be used is named and the one before it taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Len, Lt

from ..errors import DataError
from ..random import get_rng_state, set_rng_state
from .checkpoint import Checkpoint

__all__ = ["check_loop", "check_run"]

Count = Annotated[int, Ge(0), Lt(2**53)]
Number = Annotated[float, Gt(-(2.0**1023)), Lt(2.0**1023)]


@dataclass
class _Best:
    name: str
    value: Number
    step: Count


@dataclass
class _Rows:
    rows: Count
    step_rate: Annotated[int, Ge(1), Lt(2**53)]


@dataclass
class _Skips:
    total: Count
    in_a_row: Count
    last: Annotated[int, Ge(-1), Lt(2**53)]


@dataclass
class _Compile:
    executor: Literal["off", "numpy", "numba"]
    from_step: Count
    reason: str
    chosen: bool


@dataclass
class _Stop:
    reason: str
    ended: bool
    duration: str


@dataclass
class _Run:
    """Of a run; observers check their own states."""

    step: Count
    samples: Count
    seconds: Number
    metrics_bytes: Count
    monitor: list[str]
    monitored: Number | None
    best: _Best | None
    progress: Annotated[list[str], Len(2, 2)]
    rows: _Rows
    callbacks: list[tuple[str, Any]]
    skips: _Skips | None
    data_hash: str
    compile: _Compile
    options: list[dict[str, Any]]
    stop: _Stop | None = None  # an earlier version has none


@dataclass
class _Loop:
    """Of a loop of one's own."""

    loop: dict[str, Any]
    options: list[dict[str, Any]]


def check_run(checkpoint: Checkpoint, groups: Sequence[dict[str, Any]], skipping: bool) -> None:
    """DataError where a run cannot go on from the state of a checkpoint.

    groups: the parameter groups of its optimizer.
    skipping: whether it skips updates that are not finite.
    """
    state = checkpoint.state
    wrong = _misfit(_Run, state, groups)
    if not wrong:
        try:
            _, weight = map(float.fromhex, state["progress"])
            wrong = "" if weight >= 0 else "progress: no sums of losses"
        except (ValueError, OverflowError) as error:
            wrong = f"progress: {error}"
        if state["step"] != checkpoint.step:
            wrong = "step: not that of the manifest"
        if (state["skips"] is not None) != skipping:
            wrong = "skips: whether train.nan is skip"
    _refuse(checkpoint, wrong)


def check_loop(checkpoint: Checkpoint, groups: Sequence[dict[str, Any]] | None) -> None:
    """DataError where `mt.restore` cannot take up the state of a checkpoint.

    groups: the parameter groups of the loop's optimizer, None where it restores none.
    """
    state = checkpoint.state
    if groups is None:
        state = {**state, "options": []}
    wrong = _misfit(_Loop, state, groups or ())
    if not wrong and type(state["loop"].get("epoch", 0)) is not int:
        wrong = "loop.epoch: no whole number"
    _refuse(checkpoint, wrong)


def _refuse(checkpoint: Checkpoint, wrong: str) -> None:
    if wrong:
        raise DataError(f"damaged checkpoint {checkpoint.path}: in state.json, {wrong}")


def _misfit(kind: type, state: dict[str, Any], groups: Sequence[dict[str, Any]]) -> str:
    """Where a state is not of its kind, and how; empty where it is."""
    from pydantic import TypeAdapter, ValidationError  # where a run is resumed, on rank 0

    try:
        TypeAdapter(kind).validate_json(json.dumps(state), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except RecursionError:
        return "lists within lists without end"
    for kept, group in zip(state["options"], groups, strict=False):
        for name, value in kept.items():
            if not _takes(group.get(name), value):
                return f"options: {name} is {value!r:.40}"
    before = get_rng_state()
    try:
        set_rng_state(state.get("random"))  # type: ignore[arg-type]
    except (ValueError, OverflowError) as error:
        return f"random: {error}"
    finally:
        set_rng_state(before)
    return ""


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
