"""Checks the arguments of a component against the signature of what it names.

Annotations that YAML can express (numbers, text, lists, choices, paths) are enforced; any other is
left to the constructor. Types in, a value or a sentence out: no positions, no pydantic.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
import os
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from .duration import Duration

# The ranges of registered components' numbers (and of lists of them), by argument name: as JSON
# Schema writes them, and in words.
_Range: TypeAlias = tuple[dict[str, float], str]
_COUNT: _Range = {"minimum": 1}, "a whole number of at least 1"
_POSITIVE: _Range = {"exclusiveMinimum": 0}, "a number greater than 0"
_NOT_NEGATIVE: _Range = {"minimum": 0}, "a number of at least 0"
_SHARE: _Range = {"minimum": 0, "maximum": 1}, "a number from 0 to 1"
RANGES: dict[str, _Range] = {
    **dict.fromkeys(("samples", "features", "targets", "hidden", "k", "patience"), _COUNT),
    **dict.fromkeys(("in_features", "out_features", "classes"), _COUNT),
    **dict.fromkeys(("noise", "momentum", "weight_decay", "eps", "seed"), _NOT_NEGATIVE),
    **dict.fromkeys(("min_lr", "min_delta", "weight"), _NOT_NEGATIVE),
    **dict.fromkeys(("lr", "delta", "gamma", "pos_weight"), _POSITIVE),
    **dict.fromkeys(("label_smoothing", "end"), _SHARE),
    "betas": ({"minimum": 0, "exclusiveMaximum": 1}, "from 0 up to, but not, 1"),
}
_WITHIN = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}
_DURATIONS = ("warmup", "every")  # of registered components, whatever they are declared as


class Mismatch(Exception):
    """A value that does not fit; the text says what was expected."""


def conform(value: Any, hint: Any, directory: Path) -> Any:
    """`value` as the annotation `hint` wants it, or Mismatch with what was expected.

    Changes a value in three cases: a whole number where a float is wanted, a list where a tuple
    is, and a relative path, which is made absolute from `directory`. Unknown hints take anything.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is float:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1023:
            return float(value)
        if isinstance(value, float) and not math.isnan(value):
            return value
    elif hint in (int, bool, str):
        if type(value) is hint:
            return value
    elif hint in (None, type(None)):
        if value is None:
            return value
    elif hint is Duration:
        with contextlib.suppress(ValueError):
            if isinstance(value, str):
                return Duration(value)
    elif hint in (Path, os.PathLike) or origin is os.PathLike:
        if isinstance(value, str) and value and "\0" not in value:
            return os.path.normpath(directory / os.path.expanduser(value))
    elif origin is Literal:
        if any(value == each and type(value) is type(each) for each in arguments):
            return value
    elif origin in (Union, types.UnionType):
        return _first_that_fits(value, arguments, hint, directory)
    elif origin in (list, Sequence) or hint in (list, Sequence):
        if isinstance(value, list):
            return [conform(each, arguments[0] if arguments else Any, directory) for each in value]
    elif origin is tuple or hint is tuple:
        if isinstance(value, (list, tuple)):
            return _tuple(value, arguments, hint, directory)
    elif hint is dict or origin in (dict, Mapping):
        if isinstance(value, dict):
            return value
    else:
        return value
    raise Mismatch(phrase(hint))


def _first_that_fits(value: Any, hints: tuple[Any, ...], union: Any, directory: Path) -> Any:
    # A path before a text: `Path | str` says that the text names a file.
    for hint in sorted(hints, key=lambda h: h is str):
        try:
            return conform(value, hint, directory)
        except Mismatch:
            continue
    raise Mismatch(phrase(union))


def _tuple(value: Sequence[Any], hints: tuple[Any, ...], whole: Any, directory: Path) -> Any:
    if not hints or hints[-1] is Ellipsis:
        hints = (hints[0] if hints else Any,) * len(value)
    if len(hints) != len(value):
        raise Mismatch(phrase(whole))
    return tuple(conform(v, h, directory) for v, h in zip(value, hints, strict=True))


def phrase(hint: Any) -> str:
    """An annotation in words, as after `expected`."""
    origin, arguments = get_origin(hint), get_args(hint)
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        Duration: "a duration such as `5%` or `100 steps`",
        Path: "the path of a file",
        None: "null",
        type(None): "null",
    }
    if origin is None and isinstance(hint, type | None) and hint in words:
        return words[hint]
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        # A list last: what follows it would be said of its items.
        return " or ".join(sorted(map(phrase, arguments), key=lambda text: "of which" in text))
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)} values"
    if hint in (list, tuple, Sequence) or origin in (list, tuple, Sequence):
        return "a list" + (f" of which each is {phrase(arguments[0])}" if arguments else "")
    return "keys and values" if hint is dict or origin in (dict, Mapping) else "the path of a file"


def in_range(name: str, value: Any) -> bool:
    """Whether the numbers in argument `name` of a registered component are finite and in range."""
    items = value if isinstance(value, list) else [value]
    numbers = [x for x in items if isinstance(x, (int, float)) and not isinstance(x, bool)]
    bounds = RANGES[name][0].items() if name in RANGES else ()
    return all(
        (isinstance(x, int) or math.isfinite(x))
        and all(_WITHIN[b](x, limit) for b, limit in bounds)
        for x in numbers
    )


def range_phrase(name: str, hint: Any) -> str:
    """What a registered component's argument expects: its range where it is one number."""
    if hint in (int, float) and name in RANGES:
        return RANGES[name][1]
    if hint is float:
        return "a finite number"
    return phrase(hint) + (f", {RANGES[name][1]}" if name in RANGES and _numeric(hint) else "")


def _numeric(hint: Any) -> bool:
    """Whether there are numbers in a value of this annotation."""
    return hint in (int, float) or any(_numeric(each) for each in get_args(hint))


def hints_of_registered(
    target: Callable[..., Any], settable: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """As `hints_of`; some arguments of registered components are durations besides."""
    hints: dict[str, Any] = hints_of(target, settable)
    for name in _DURATIONS:
        if name in settable:
            hints[name] = Duration | None if settable[name].default is None else Duration
    return hints


def hints_of(target: Callable[..., Any], names: Collection[str]) -> dict[str, Any]:
    """The annotations of the named parameters, those that cannot be evaluated left out.

    One by one: `params: Iterable[Parameter]` with Parameter imported for type checkers only must
    not switch off the check of `lr: float` beside it.
    """
    function: Any = target
    if isinstance(target, type):
        function = target.__init__  # type: ignore[misc]
    elif not hasattr(target, "__annotations__"):
        function = type(target).__call__
    function = inspect.unwrap(function)
    namespace = vars(sys.modules.get(getattr(function, "__module__", ""), sys))
    hints = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        if name not in names:
            continue
        if isinstance(annotation, str):
            try:  # the annotation of code that was just imported, never a text of the YAML
                annotation = eval(annotation, dict(namespace))
            except Exception:
                continue
        hints[name] = annotation
    return hints
