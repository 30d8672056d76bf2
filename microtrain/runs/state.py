"""State as JSON and arrays: what `mt.save` takes apart, and what a checkpoint must hold.

State as people keep it, dicts within dicts, becomes named arrays and JSON. An array is named by the
keys that lead to it, `model.0.weight`, so that a plain state dict keeps its names. What JSON has no
word for is an object of one key: {"dict": [[key, value], ...]} keeps order and whole numbers as
keys, {"tensor": name} stands for an array, {"tuple": [...]}, and {"float": "nan"}, {"text":
"hexadecimal"} for numbers and text that strict JSON does not have.

A manifest that fits says that nothing was changed since it was written, not that microtrain wrote
it. What is taken from here goes into the optimizer, the streams and the loop: it is looked at once,
where it is read, so that a checkpoint that cannot be used is named and the one before it taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import numpy as np
from annotated_types import Len, Predicate
from numpy.typing import NDArray

from ..backend import ARRAYS, to_host
from ..common.files import is_unicode, typed
from ..common.words import listed
from ..random import get_rng_state, set_rng_state
from ..tensor import TENSORS, Size, kind_of, wrap
from .checkpoint import Checkpoint, Count, Number, damaged

Array = NDArray[Any]
SCALARS = (str, int, float, bool, type(None))
MOST_BITS = 990  # of a whole number: JSON is read with at most 300 digits
DEEPEST = 30  # levels; each is three of the JSON, of which files.DEEPEST are read


def take_apart(obj: Any, root: str = "obj") -> tuple[Any, dict[str, Array]]:
    """The structure of `obj` as JSON has it, and its arrays by name.

    root: what messages call it.

    Raises TypeError for what is neither array nor plain value, ValueError for two arrays of one
    name and for a structure without an end; both name the keys.
    """
    arrays: dict[str, Array] = {}

    def named(value: Any, path: tuple[Any, ...]) -> str:
        name = ".".join(map(str, path)) if path else "value"
        if name in arrays:
            raise ValueError(f"two arrays would be named {name!r}; rename one of their keys")
        arrays[name] = to_host(value)
        return name

    def walk(value: Any, path: tuple[Any, ...]) -> Any:
        if len(path) > DEEPEST:
            raise ValueError(f"{where(path[:3], root)} ...: nested deeper than {DEEPEST} levels")
        if type(value) in SCALARS:
            return word(value, path, root)
        if type(value) in TENSORS:
            more = {"requires_grad": True} if value.requires_grad else {}
            return {"tensor": named(value._array, path), **more}
        if type(value) in ARRAYS:
            return {"array": named(value, path)}
        if isinstance(value, Mapping):
            if odd := [key for key in value if type(key) not in (str, int)]:
                text = f"a key is text or a whole number, got {odd[0]!r:.60}"
                raise TypeError(f"{where(path, root)}: {text}")
            keys = [word(key, path, root, ": a key") for key in value]
            values = [walk(v, (*path, key)) for key, v in value.items()]
            return {"dict": [*map(list, zip(keys, values, strict=True))]}
        if type(value) in (list, tuple, Size):
            kind = "list" if type(value) is list else "tuple"
            return {kind: [walk(v, (*path, i)) for i, v in enumerate(value)]}
        raise unknown(value, where(path, root))

    return walk(obj, ()), arrays


def word(value: Any, path: tuple[Any, ...] = (), root: str = "", what: str = "") -> Any:
    """A plain value as strict JSON has it: no infinity, no NaN, no half of a surrogate pair.

    ValueError, which says where and what, for a number that no file is read with.
    """
    if type(value) is int and value.bit_length() > MOST_BITS:
        raise ValueError(
            f"{where(path, root)}{what} is a whole number of {value.bit_length():,} bits; a "
            f"file holds those of at most {MOST_BITS}: keep it as text, hex(number)"
        )
    if type(value) is float and not math.isfinite(value):
        return {"float": repr(value)}
    if type(value) is str and not is_unicode(value):
        return {"text": value.encode(errors="surrogatepass").hex()}
    return value


def where(path: tuple[Any, ...], root: str) -> str:
    """The place that keys lead to, for messages."""
    return root + "".join(f"[{key!r}]" for key in path)


def unknown(value: Any, place: str) -> TypeError:
    """The error for a value that no file of plain data holds."""
    kind, hint = kind_of(value), ""
    if isinstance(value, np.generic):
        hint = "; write value.item() or np.asarray(value)"
    elif callable(getattr(value, "state_dict", None)):
        hint = "; save its state_dict()"
    return TypeError(
        f"{place} is of type {kind}, which cannot be saved: a file holds Tensors, arrays, text, "
        f"numbers, True, False, None, and dicts, lists and tuples of them{hint}"
    )


_KINDS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple}
_WORDS: dict[str, Callable[[str], Any]] = {
    "float": float, "text": lambda given: bytes.fromhex(given).decode(errors="surrogatepass")
}  # fmt: skip


def put_together(tree: Any, arrays: Mapping[str, Array]) -> Any:
    """What `take_apart` took apart; ValueError for a tree that it did not make."""
    left = dict.fromkeys(arrays)

    def build(node: Any) -> Any:
        if type(node) in SCALARS:
            return node
        if isinstance(node, dict) and len(node) == 1 + ("requires_grad" in node):
            kind, value = next(iter(node.items()))
            if kind == "dict" and isinstance(value, list):
                return dict(pair(each) for each in value)
            if kind in _KINDS and isinstance(value, list):
                return _KINDS[kind](build(each) for each in value)
            if kind in _WORDS and isinstance(value, str):
                return _WORDS[kind](value)
            if kind in ("tensor", "array") and isinstance(value, str) and value in arrays:
                left.pop(value, None)
                if kind == "array":
                    return arrays[value]
                requires_grad = node.get("requires_grad") is True
                if requires_grad and arrays[value].dtype.kind != "f":
                    raise ValueError(f"{value} of {arrays[value].dtype} is to require grad")
                return wrap(arrays[value]).requires_grad_(requires_grad)
        raise ValueError(f"its structure has {str(node)[:60]}")

    def pair(each: Any) -> tuple[str | int, Any]:
        if isinstance(each, list) and len(each) == 2:
            key = build(each[0]) if isinstance(each[0], dict) else each[0]
            if type(key) in (str, int):
                return key, build(each[1])
        raise ValueError(f"its structure has {str(each)[:60]} as key and value")

    found = build(tree)
    if left:
        raise ValueError(f"its structure has no place for {listed([*left])}")
    return found


def _is_random_state(state: dict[str, Any]) -> bool:
    before = get_rng_state()
    try:
        set_rng_state(state)
    finally:
        set_rng_state(before)
    return True


def _has_whole_epoch(loop: dict[str, Any]) -> bool:
    return type(loop.get("epoch", 0)) is int


Options = list[dict[str, Any]]  # of each parameter group
RandomState = Annotated[dict[str, Any], Predicate(_is_random_state)]


@dataclass(frozen=True)
class Best:
    """The best value of the monitored column."""

    name: str
    value: Number
    step: Count


@dataclass
class RunState:
    """Where a run is.

    Attributes:
        monitor: the column whose best value counts, and which way: `min` or `max`.
        duration: of the whole run, as it is configured.
        step, samples: optimizer steps taken and samples seen, over all ranks.
        seconds: that it took, before a resume.
        monitored: the value of the monitored column after this step, if it was measured.
        best: the best one.
        before: the best one before that.
        stop: why it is to end, once any rank was asked for that; equal on all ranks at each
            checkpoint.
        ended: whether it has ended because of that.
    """

    monitor: Annotated[list[str], Len(2, 2)]
    duration: str
    step: Count
    samples: Count
    seconds: Number
    monitored: Number | None
    best: Best | None
    before: Number | None
    stop: str
    ended: bool

    def note_best(self, values: Mapping[str, float]) -> None:
        """Look at what was measured after this step: its monitored value may be the best."""
        name, mode = self.monitor
        value = values.get(name, math.nan)
        if not math.isfinite(value):
            return
        self.monitored = value
        sign = 1 if mode == "min" else -1
        if self.best is None or sign * value < sign * self.best.value:
            self.before = None if self.best is None else self.best.value
            self.best = Best(name, value, self.step)

    @property
    def still_improves(self) -> bool:
        """Whether the value of this step is the best by a hundredth: more steps may help."""
        if self.best is None or self.best.step != self.step or self.before is None:
            return False
        return abs(self.best.value - self.before) >= 0.01 * abs(self.before)

    @property
    def at_best(self) -> bool:
        """Whether the best value is of this step."""
        return self.best is not None and self.best.step == self.step

    def go_on_from(self, state: Mapping[str, Any]) -> bool:
        """Be where a checkpoint is; another monitor or duration may be chosen meanwhile.

        Returns whether the run was asked to end, and has not ended yet.
        """
        then = RunState(**{each.name: state[each.name] for each in fields(RunState)})
        self.step, self.samples, self.seconds = then.step, then.samples, then.seconds
        if then.monitor == self.monitor:
            self.monitored, self.before = then.monitored, then.before
            self.best = state["best"] and Best(**state["best"])
        asked = bool(then.stop) and then.duration == self.duration
        if asked:
            self.stop, self.ended = then.stop, then.ended
        return asked and not then.ended


@dataclass
class _Loop:
    """Of your own training loop."""

    loop: Annotated[dict[str, Any], Predicate(_has_whole_epoch)]
    options: Options
    random: RandomState
    trees: dict[str, Any] = field(default_factory=dict)  # what JSON has no word for


def check_loop(
    checkpoint: Checkpoint, groups: Sequence[dict[str, Any]], given: Callable[[Any], Any]
) -> None:
    """DataError where `mt.restore` cannot take up the state of a checkpoint.

    groups: the parameter groups of the loop's optimizer, if it restores one.
    given: makes of the state what the loop gave; ValueError.
    """
    with damaged(checkpoint.path, "in state.json, "):
        check_options(typed(_Loop, checkpoint.state).options, groups)
        given(checkpoint.state)


def check_options(stored: Options, groups: Sequence[dict[str, Any]]) -> None:
    """ValueError where stored options cannot be those of an optimizer's parameter groups."""
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
