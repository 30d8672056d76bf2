"""The members of a sweep in its directory: results and models in files of safetensors.

While a sweep goes on, each rank writes what it has finished into `members/<rank>-<number>`, a few
seconds' worth a file, whole or not at all: a sweep that is killed has lost the members that were
being trained. At its end one file, members.safetensors, has them all. No pickle, as in checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, LaunchError
from ..files import make_directory, open_plain, parse_json, reason, refuse_link, remove, write_whole
from .array_file import array_content, arrays_in
from .typed import typed

__all__ = [
    "MEMBERS", "SEVERAL", "Result", "Store", "best_setting", "by_setting", "last_of_each",
    "member_arrays", "models", "read_members", "values_of",
]  # fmt: skip

MEMBERS = "members.safetensors"  # of a sweep that has finished
PARTS = "members"  # the directory of those before
ABOUT, DATA = "results", "data"  # in the header of a file
SEVERAL = ("all", "best-setting")  # what names more than one member

Array = NDArray[Any]


@dataclass(frozen=True)
class Result:
    """What became of a member.

    Attributes:
        number: of the member, from 0.
        setting: of the combination of values that it shares with other seeds and folds.
        varied: by dotted key what its configuration has of its own.
        status: finished; paused at a rung; diverged.
        rung: it was compared with others after 1/rung of its steps; None at its end.
        step: how many it has taken.
        best: name, value and step of the best value of the monitored column.
        values: what was measured at that step, by column.
        params_sha256: of the parameters of the last step, as in the run.json of a run.
        data: of `Store.data`, the key of what its model takes and gives.
        seconds: that it took.
        error: why it diverged.
        warnings: that it would have printed alone.
        curve: columns of its rows, among them `step`.
    """

    number: int
    setting: int
    varied: dict[str, Any]
    status: str
    rung: int | None = None
    step: int = 0
    best: dict[str, Any] | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    params_sha256: str = ""
    data: str = ""
    seconds: float = 0.0
    error: str = ""
    warnings: list[str] = field(default_factory=list)
    curve: dict[str, list[float | None]] = field(default_factory=dict)


@dataclass
class Store:
    """What one rank has finished and not written yet.

    Attributes:
        path: the directory of the sweep.
        rank: whose files these are; no other process writes them.
    """

    path: Path
    rank: int
    results: list[Result] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def add(self, result: Result, arrays: Mapping[str, Array], data: Mapping[str, Any]) -> None:
        """Keep a member; `data` is what a checkpoint holds of what it was trained on."""
        self.results.append(result)
        self.arrays |= {f"{result.number}/{name}": array for name, array in arrays.items()}
        if result.data:
            self.data.setdefault(result.data, dict(data))

    def write(self) -> None:
        """Write what was added since the last time, as a file of its own. Raises LaunchError."""
        if not self.results:
            return
        parts = self.path / PARTS
        with _refusing(parts):
            make_directory(parts)
            before = [int(p.stem.split("-")[1]) for p in parts.glob(f"{self.rank}-*.safetensors")]
            name = f"{self.rank}-{max(before, default=-1) + 1}.safetensors"
            _write(parts / name, self.results, self.arrays, self.data)
        self.results, self.arrays, self.data = [], {}, {}


def gather(path: Path, results: Iterable[Result]) -> None:
    """Make one file of all, of the results and models that are named; LaunchError."""
    wanted = {(r.number, r.rung): r for r in results}
    arrays: dict[str, Array] = {}
    data: dict[str, Any] = {}
    for file in _files(path):
        found, its_data, memory = _read(file)
        for result in found:
            if (result.number, result.rung) in wanted:
                wanted[result.number, result.rung] = result  # with its curve
                arrays |= _of(memory, result.number)
                data |= {result.data: its_data[result.data]} if result.data else {}
    with _refusing(path):
        _write(path / MEMBERS, wanted.values(), arrays, data)
        if (path / PARTS).is_dir():
            remove(path / PARTS)


def read_members(path: Path) -> tuple[list[Result], dict[str, Any]]:
    """The results in the directory of a sweep by number and rung, and what their data were.

    Raises DataError for a damaged file.
    """
    found: dict[tuple[int, int | None], Result] = {}
    data: dict[str, Any] = {}
    for file in _files(path):
        results, its_data, _ = _read(file)
        found |= {(r.number, r.rung): r for r in results}
        data |= its_data
    order = sorted(found, key=lambda key: (key[0], key[1] is None, key[1] or 0))
    return [found[key] for key in order], data


def last_of_each(results: Iterable[Result]) -> dict[int, Result]:
    """Of each member what became of it last, by its number."""
    order = sorted(results, key=lambda result: result.rung or 0, reverse=True)
    last = {result.number: result for result in order}  # of 1/9, 1/3, the end: the last
    return {number: last[number] for number in sorted(last)}


def by_setting(results: Iterable[Result]) -> dict[int, list[Result]]:
    """Members that differ in seed and fold alone, by the number of their setting."""
    settings: dict[int, list[Result]] = {}
    for result in results:
        settings.setdefault(result.setting, []).append(result)
    return settings


def values_of(members: Iterable[Result], name: str) -> list[float]:
    """A column of members of one setting, without those that have diverged."""
    values = [member.values.get(name) for member in members if member.status != "diverged"]
    return [value for value in values if value is not None]


def best_setting(results: Iterable[Result], name: str, better: int) -> int | None:
    """The setting with the best mean of a column, the first of equals; None where none has ended.

    better: 1 where a higher value is better, -1 where a lower one is.
    """
    means = {
        setting: better * statistics.fmean(values)
        for setting, members in by_setting(results).items()
        if all(member.status != "paused" for member in members)
        and (values := values_of(members, name))
    }
    return max(means, key=lambda setting: means[setting], default=None)


def member_arrays(path: Path, number: int) -> dict[str, Array]:
    """The model of a member, by the names of its state dict; DataError where there is none."""
    return models(path, [number])[number]


def models(path: Path, numbers: Iterable[int]) -> dict[int, dict[str, Array]]:
    """The models of members by their numbers; DataError where one of them has none."""
    found: dict[int, dict[str, Array]] = {number: {} for number in numbers}
    for file in _files(path):
        results, _, memory = _read(file)
        ended = {r.number for r in results if r.rung is None and r.status == "finished"}
        for key, array in memory.items():
            number, _, name = key.partition("/")
            if number.isdecimal() and int(number) in ended and int(number) in found:
                found[int(number)][name] = np.array(array)
    if lacking := [number for number, arrays in found.items() if not arrays]:
        raise DataError(
            f"the sweep {path} has no model of member {lacking[0]}: it has not finished"
        )
    return found


def _of(arrays: Mapping[str, Array], number: int) -> dict[str, Array]:
    return {name: array for name, array in arrays.items() if name.startswith(f"{number}/")}


def _files(path: Path) -> list[Path]:
    """All that hold members, the whole first."""
    whole, parts = path / MEMBERS, path / PARTS
    with _refusing(path):
        refuse_link(parts)
        return [whole] * whole.is_file() + sorted(parts.glob("*.safetensors"))


def _write(
    file: Path, results: Iterable[Result], arrays: Mapping[str, Array], data: Mapping[str, Any]
) -> None:
    ordered = sorted(results, key=lambda result: result.number)
    about = {
        ABOUT: json.dumps([asdict(result) for result in ordered]),
        DATA: json.dumps(data),
    }
    write_whole(file, array_content("member", arrays, about).pieces)


def _read(file: Path) -> tuple[list[Result], dict[str, Any], dict[str, Array]]:
    """What a file holds; the arrays are mapped into memory."""
    try:
        with open_plain(file) as opened:
            memory = np.memmap(opened, np.uint8, "r")
        length = int.from_bytes(memory[:8].tobytes(), "little")
        about = parse_json(memory[8 : 8 + length].tobytes())["__metadata__"]
        results = [typed(Result, each) for each in parse_json(about[ABOUT].encode())]
        return results, parse_json(about[DATA].encode()), arrays_in(memory)
    except OSError as error:
        raise DataError(f"cannot read members: {reason(error)}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"damaged file: {file}: {error}") from error


@contextlib.contextmanager
def _refusing(path: Path) -> Any:
    try:
        yield
    except OSError as error:
        raise LaunchError(f"cannot write the members of {path}: {reason(error)}") from error


def without_curve(result: Result) -> Result:
    """The same, smaller: for ranks to tell each other."""
    return replace(result, curve={})
