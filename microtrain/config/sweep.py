"""The members of a sweep: the configuration of each, from the tree of the file. Rank 0 only.

A member's configuration is that of the file with some values replaced, and is checked like it: what
is wrong with a value of the sweep is said where that stands. Settings are checked once; the seeds
and folds of each are numbers that need no more looking at.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..common.words import quoted
from ..random import generator
from .check import checked, checked_section
from .document import scalar
from .schema import Config, Member, Members, Sweep
from .texts import Measure
from .tree import Astray, Node, Problem, assign, describe, join

__all__ = ["members"]

FOLD, SEED = "data.split.fold", "seed"
MOST = 100_000  # members
RANGE = "expected a list of values, or a range such as 0..1, 1..8 or log 0.001..1"
_RANGE = re.compile(r"(log\s+)?(\S+?)\s*\.\.\s*(\S+)")


def members(root: Node, problems: list[Problem], *, trust: bool | None = None) -> Members | None:
    """The members of the sweep in a tree; None where anything is wrong, which `problems` then has.

    Combinations of the grid come first by their first key, then those that were drawn; seeds
    change fastest, then folds.
    """
    node = root.value["sweep"]
    root = replace(root, value={k: v for k, v in root.value.items() if k != "sweep"})
    sweep = checked_section("sweep", node, problems)
    if sweep is None:
        return None
    if sweep.folds:
        try:
            root = _with_folds(root, node.value["folds"])
        except Astray:  # data or data.split is not what it should be
            checked(root, problems, trust=trust)
            return None
    combinations = list(_combinations(node, sweep, root, problems))
    folds = sweep.folds or 1
    seeds = sweep.seeds if isinstance(sweep.seeds, list) else range(sweep.seeds)
    found: list[Member] = []
    for setting, values in enumerate([] if problems else combinations):
        config = _checked(root, values, node, problems, trust)
        if config is None:
            continue
        plain = {path: value.plain() for path, value in values.items()}
        first = 0 if isinstance(sweep.seeds, list) else config.seed
        for fold, seed in itertools.product(range(folds), seeds):
            own = {FOLD: fold} if sweep.folds else {}
            own |= {SEED: first + seed} if len(seeds) > 1 or isinstance(sweep.seeds, list) else {}
            member = _with(config, own)
            found.append(Member(len(found), setting, plain | own, member))
    if not problems and sweep.stop and len(combinations) < 3:
        message = "halving keeps the best third of the settings; vary three or more"
        problems.append(Problem("sweep.stop", message, node.value["stop"].where))
    if not problems and (message := _in_different_units([each.config for each in found])):
        problems.append(Problem("sweep", message, node.where))
    if problems:
        return None
    config = replace(found[0].config, sweep=sweep)
    places = {join("sweep", key): str(value.where) for key, value in node.value.items()}
    config.origins.update(found[0].config.origins | places)
    return Members(config, found)


def _in_different_units(configs: Sequence[Config]) -> str:
    """Why the losses of these do not rank them; empty where they do, or are not asked to."""
    monitor = str(configs[0].checkpoint.monitor)
    if Measure(monitor).field != "loss":
        return ""
    for key in ("standardize_target", "log_target"):
        if len({getattr(config.data, key) for config in configs}) > 1:
            return (
                f"{monitor} has a different unit where data.{key} differs, and does not rank the "
                "settings; set checkpoint.monitor to a metric, such as val/r2 with mode: max"
            )
    return ""


def _with_folds(root: Node, folds: Node) -> Node:
    """The tree of the first fold; Astray where there is no place for it."""
    data = root.value.get("data")
    if data is None:  # which is said where it is checked
        return root
    if isinstance(data.value, dict) and "split" not in data.value:
        root = assign(root, "data.split.train", replace(folds, value=1.0))
    root = assign(root, "data.split.folds", folds)
    return assign(root, FOLD, replace(folds, value=0))


def _checked(
    root: Node, values: Mapping[str, Node], node: Node, problems: list[Problem], trust: bool | None
) -> Config | None:
    """The configuration with these values; problems that others have had are not said again."""
    own: list[Problem] = []
    config = None
    try:
        for path, value in values.items():
            root = assign(root, path, value)
        config = checked(root, own, trust=trust)
    except Astray as error:
        own.append(Problem("sweep", str(error), node.where))
    problems += [each for each in own if each not in problems]
    return config


def _with(config: Config, own: Mapping[str, Any]) -> Config:
    """The configuration with a fold and a seed of its own."""
    data, seed = config.data, own.get(SEED, config.seed)
    if FOLD in own:
        data = replace(data, split=replace(data.split, fold=own[FOLD]))
    found = replace(config, data=data, seed=seed)
    found.origins.update(config.origins | dict.fromkeys(own, "sweep"))
    return found


def _combinations(
    node: Node, sweep: Sweep, root: Node, problems: list[Problem]
) -> Iterator[dict[str, Node]]:
    """Values by dotted key: those of the grid, each with those that are drawn."""
    grid = dict(_flat(node.value.get("grid"), ""))
    drawn = dict(_flat(node.value.get("random"), ""))
    count = drawn.pop("count", None)
    for name, part in (("grid", grid), ("random", drawn)):
        for path, value in part.items():
            place = value.key or value.where
            try:
                if path in (SEED, FOLD) or path.partition(".")[0] == "sweep":
                    raise ValueError("cannot vary here; use sweep.seeds or sweep.folds")
                if name == "random" and path in grid:
                    raise ValueError("is in grid as well; name it once")
                if not (isinstance(value.value, list) and value.value):
                    place = value.where
                    if name == "grid":
                        found = describe(value.plain())
                        raise ValueError(f"expected a list of values, got {found}")
                    _range(value)
                assign(root, path, value)
            except ValueError as error:
                problems.append(Problem(join(f"sweep.{name}", path), str(error), place))
    number = 1 if count is None else count.value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        message = f"expected a whole number of at least 1, got {describe(number)}"
        problems.append(Problem("sweep.random.count", message, (count or node).where))
    elif bool(drawn) != (count is not None):
        message = "give count and ranges to draw from, as in {count: 50, optimizer.lr: 0..1}"
        problems.append(Problem("sweep.random.count", message, node.value["random"].where))
    elif not problems:  # before there are so many
        seeds = len(sweep.seeds) if isinstance(sweep.seeds, list) else sweep.seeds
        settings = math.prod(len(value.value) for value in grid.values()) * number
        if (made := settings * (sweep.folds or 1) * seeds) > MOST:
            message = f"makes {made:,} members, more than {MOST:,}"
            problems.append(Problem("sweep", message, node.where))
    if problems:
        return
    for values in itertools.product(*(value.value for value in grid.values())):
        chosen = {
            path: replace(one, key=grid[path].key) for path, one in zip(grid, values, strict=True)
        }
        for draw in range(number):
            yield chosen | {
                path: _drawn(value, draw, order)
                for order, (path, value) in enumerate(drawn.items())
            }


def _flat(node: Node | None, path: str) -> Iterator[tuple[str, Node]]:
    """What stands below a node by dotted key; an override writes these keys as sections."""
    for key, value in (node.value if node is not None else {}).items():
        below = join(path, key)
        if isinstance(value.value, dict):
            yield from _flat(value, below)
        else:
            yield below, value


def _range(node: Node) -> tuple[bool, Any, Any]:
    """Of `log 0.001..1`: whether it is logarithmic, the lowest and the highest number.

    Raises ValueError, whose text says what is wrong, for all else.
    """
    match = _RANGE.fullmatch(node.value.strip()) if isinstance(node.value, str) else None
    ends: list[Any] = []
    with contextlib.suppress(ValueError):  # a number that no float can hold
        ends = [scalar(match[2]), scalar(match[3])] if match else []
    if match is None or not ends or not {*map(type, ends)} <= {int, float}:
        raise ValueError(f"{RANGE}, got {describe(node.plain())}")
    low, high = ends
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        found = quoted(node.value)
        raise ValueError(f"expected a range from a lower to a higher number, got {found}")
    if match[1] and low <= 0:
        raise ValueError(f"a logarithmic range begins above 0, got {quoted(node.value)}")
    return match[1] is not None, low, high


def _drawn(node: Node, draw: int, order: int) -> Node:
    """A value, which depends on the number of the draw and that of the key alone."""
    numbers = generator(0, "sweep", draw, order)
    if isinstance(node.value, list):
        one: Node = node.value[int(numbers.integers(len(node.value)))]
        return replace(one, key=node.key)
    log, low, high = _range(node)
    whole = isinstance(low, int) and isinstance(high, int)
    top, share = high + whole, float(numbers.random())
    value = low * (top / low) ** share if log else low + (top - low) * share
    if whole:
        return replace(node, value=min(high, math.floor(value)))
    return replace(node, value=min(max(float(f"{value:.4g}"), low), high))  # readable in a table
