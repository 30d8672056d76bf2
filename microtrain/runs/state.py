"""What state.json of a checkpoint must hold for a run, or a loop of one's own, to go on from it.

A manifest that fits says that nothing was changed since it was written, not that microtrain wrote
it. What is taken from here goes into the optimizer, the streams and the loop: it is looked at once,
where it is read, so that a checkpoint that cannot be used is named and the one before it taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Len, Lt, Predicate

from ..errors import DataError
from ..random import get_rng_state, set_rng_state
from .checkpoint import Checkpoint
from .run_info import Count, Number, typed


def _is_random_state(state: dict[str, Any]) -> bool:
    before = get_rng_state()
    try:
        set_rng_state(state)
    finally:
        set_rng_state(before)
    return True


def _are_sums(progress: list[str]) -> bool:
    try:
        _, weight = map(float.fromhex, progress)
    except OverflowError:
        return False
    return weight >= 0


def _has_whole_epoch(loop: dict[str, Any]) -> bool:
    return type(loop.get("epoch", 0)) is int


Options = list[dict[str, Any]]  # of each parameter group
RandomState = Annotated[dict[str, Any], Predicate(_is_random_state)]


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
    executor: Literal["off", "numpy", "numba", "cupy"]
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
    """Of a run; callbacks check their own states."""

    step: Count
    samples: Count
    seconds: Number
    metrics_bytes: Count
    monitor: list[str]
    monitored: Number | None
    best: _Best | None
    progress: Annotated[list[str], Len(2, 2), Predicate(_are_sums)]
    rows: _Rows
    callbacks: list[tuple[str, Any]]
    skips: _Skips | None
    data_hash: str
    classes: list[str] | None
    feature_names: list[str] | None
    compile: _Compile
    options: Options
    random: RandomState
    stop: _Stop | None
    order: str
    run: str | None
    metrics_sha256: str


@dataclass
class _Loop:
    """Of a loop of one's own."""

    loop: Annotated[dict[str, Any], Predicate(_has_whole_epoch)]
    options: Options
    random: RandomState
    trees: dict[str, Any] = field(default_factory=dict)  # what JSON has no word for


def check_run(checkpoint: Checkpoint, groups: Sequence[dict[str, Any]], skipping: bool) -> None:
    """DataError where a run cannot go on from the state of a checkpoint.

    groups: the parameter groups of its optimizer.
    skipping: whether it skips updates that are not finite.
    """
    with _refusing(checkpoint):
        state = typed(_Run, checkpoint.state)
        if state.step != checkpoint.step:
            raise ValueError("step: not that of the manifest")
        if (state.skips is not None) != skipping:
            raise ValueError("skips: whether train.nan is skip")
        _check_options(state.options, groups)


def check_loop(
    checkpoint: Checkpoint, groups: Sequence[dict[str, Any]], given: Callable[[Any], Any]
) -> None:
    """DataError where `mt.restore` cannot take up the state of a checkpoint.

    groups: the parameter groups of the loop's optimizer, if it restores one.
    given: makes of the state what the loop gave; ValueError.
    """
    with _refusing(checkpoint):
        _check_options(typed(_Loop, checkpoint.state).options, groups)
        given(checkpoint.state)


@contextlib.contextmanager
def _refusing(checkpoint: Checkpoint) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        text = f"damaged checkpoint {checkpoint.path}: in state.json, {error}"
        raise DataError(text) from None


def _check_options(stored: Options, groups: Sequence[dict[str, Any]]) -> None:
    for options, group in zip(stored, groups, strict=False):
        for name, value in options.items():
            if not _takes(group.get(name), value):
                raise ValueError(f"options: {name} is {value!r:.40}")


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
