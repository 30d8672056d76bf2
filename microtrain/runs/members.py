"""The members of a sweep in its directory: results and models in files of safetensors.

While a sweep goes on, each rank writes what it has finished into `members/<rank>-<number>`, a few
seconds' worth a file, whole or not at all: a sweep that is killed has lost the members that were
being trained. At its end one file, members.safetensors, has them all. No pickle, as in checkpoints.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.same_run import FREE, compare_configs
from ..errors import DataError, LaunchError
from ..files import make_directory, open_plain, parse_json, reason, refuse_link, remove, write_whole
from .array_file import array_content, arrays_in
from .checkpoint import OtherRun
from .provenance import params_sha256
from .typed import typed

__all__ = [
    "MEMBERS", "SEVERAL", "Of", "Result", "Store", "best_setting", "by_setting", "check_members",
    "gather", "last_of_each", "member_arrays", "models", "read_members", "values_of",
]  # fmt: skip

MEMBERS = "members.safetensors"  # of a sweep that has finished
PARTS = "members"  # the directory of those before
ABOUT, DATA, OF, SHA256 = "results", "data", "of", "sha256"  # in the header of a file
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
        arrays_sha256: of its model; "" without one, and in a file of an earlier version.
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
    arrays_sha256: str = ""


@dataclass(frozen=True)
class Of:
    """The sweep that a file of members is of.

    Attributes:
        run: its id; None where it has none.
        config_text: its configuration, as YAML.
    """

    run: str | None = None
    config_text: str = ""


@dataclass
class Store:
    """What one rank has finished and not written yet.

    Attributes:
        path: the directory of the sweep.
        rank: whose files these are; no other process writes them.
        of: the sweep.
    """

    path: Path
    rank: int
    of: Of
    results: list[Result] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def add(self, result: Result, arrays: Mapping[str, Array], data: Mapping[str, Any]) -> None:
        """Keep a member; `data` is what a checkpoint holds of what it was trained on."""
        digest = _digest(arrays) if arrays else ""
        self.results.append(replace(result, arrays_sha256=digest))
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
            _write(parts / name, self.results, self.arrays, self.data, self.of)
        self.results, self.arrays, self.data = [], {}, {}


def check_members(its: Of, now: Of, path: Path) -> None:
    """OtherRun or ConfigError where members are not of the sweep at `path` as it is now."""
    if its.run != now.run:
        raise OtherRun(
            f"the members in {path} are of another sweep: they name {its.run or '(none)'!s:.40}, "
            f"and {path / 'run.json'} names {now.run or '(none)'!s:.40}; put them back where they "
            "were"
        )
    if its.config_text:
        compare_configs(
            its.config_text,
            now.config_text,
            path,
            (*FREE, "train.compile"),
            before="what was trained",
            refused="was edited since its training: its config.yaml has other settings",
            way_out="restore them",
        )


def gather(path: Path, results: Iterable[Result], of: Of) -> None:
    """Make one file of all, of the results and models that are named; LaunchError, DataError."""
    wanted = {(r.number, r.rung): r for r in results}
    arrays: dict[str, Array] = {}
    data: dict[str, Any] = {}
    for file in _files(path):
        part = _read(file)
        for result in part.results:
            if (result.number, result.rung) in wanted:
                wanted[result.number, result.rung] = result  # with its curve
                arrays |= {f"{result.number}/{n}": a for n, a in part.model(result).items()}
                data |= {result.data: part.data[result.data]} if result.data else {}
    with _refusing(path):
        _write(path / MEMBERS, wanted.values(), arrays, data, of)
        if (path / PARTS).is_dir():
            remove(path / PARTS)


def read_members(
    path: Path, damaged: Callable[[Path, DataError], None] | None = None
) -> tuple[list[Result], dict[str, Any], Of]:
    """The results in the directory of a sweep by number and rung, their data, and whose they are.

    damaged: gets each file that cannot be used, with the reason, and models are looked at as well.

    Raises DataError for a damaged file, and for files of several sweeps.
    """
    found: dict[tuple[int, int | None], Result] = {}
    data: dict[str, Any] = {}
    of: Of | None = None
    for file in _files(path):
        try:
            part = _read(file)
            for result in part.results if damaged else ():
                part.model(result)
        except DataError as error:
            if damaged is None:
                raise
            damaged(file, error)
            continue
        if of is not None and of.run != part.of.run:
            raise OtherRun(f"{file} is of another sweep than the others in {path}: take it away")
        of = part.of
        found |= {(r.number, r.rung): r for r in part.results}
        data |= part.data
    order = sorted(found, key=lambda key: (key[0], key[1] is None, key[1] or 0))
    return [found[key] for key in order], data, of or Of()


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
        part = _read(file)
        for result in part.results:
            ended = result.rung is None and result.status == "finished"
            if ended and result.number in found:
                model = part.model(result)
                found[result.number] = {name: np.array(model[name]) for name in model}
    if lacking := [number for number, arrays in found.items() if not arrays]:
        raise DataError(
            f"the sweep {path} has no model of member {lacking[0]}: it has not finished"
        )
    return found


def _files(path: Path) -> list[Path]:
    """All that hold members, the whole first."""
    whole, parts = path / MEMBERS, path / PARTS
    with _refusing(path):
        refuse_link(parts)
        return [whole] * whole.is_file() + sorted(parts.glob("*.safetensors"))


def _write(
    file: Path,
    results: Iterable[Result],
    arrays: Mapping[str, Array],
    data: Mapping[str, Any],
    of: Of,
) -> None:
    ordered = sorted(results, key=lambda result: result.number)
    about = {
        ABOUT: json.dumps([asdict(result) for result in ordered]),
        DATA: json.dumps(data),
        OF: json.dumps(asdict(of)),
    }
    write_whole(file, array_content("member", arrays, about | {SHA256: _sha256(about)}).pieces)


def _digest(arrays: Mapping[str, Array]) -> str:
    return params_sha256(sorted(arrays.items()))  # a file has an order of its own


def _sha256(about: Mapping[str, str]) -> str:
    return hashlib.sha256("\n".join(about[key] for key in (ABOUT, DATA, OF)).encode()).hexdigest()


@dataclass
class _Part:
    """What a file holds; the arrays are mapped into memory."""

    file: Path
    results: list[Result]
    data: dict[str, Any]
    of: Of
    arrays: dict[int, dict[str, Array]]  # by member and name

    def model(self, result: Result) -> dict[str, Array]:
        """The arrays of a member; DataError where they are not those that were written."""
        arrays = self.arrays.get(result.number, {})
        if result.arrays_sha256 not in ("", _digest(arrays)):
            raise DataError(
                f"damaged file: {self.file}: the model of member {result.number} was changed: its "
                f"sha256 is not {result.arrays_sha256[:12]}..., as its result says"
            )
        return arrays


def _read(file: Path) -> _Part:
    try:
        with open_plain(file) as opened:
            memory = np.memmap(opened, np.uint8, "r")
        length = int.from_bytes(memory[:8].tobytes(), "little")
        about = parse_json(memory[8 : 8 + length].tobytes())["__metadata__"]
        if SHA256 in about and about[SHA256] != _sha256(about):
            raise ValueError("its results were changed: their sha256 is another")
        results = [typed(Result, each) for each in parse_json(about[ABOUT].encode())]
        data = parse_json(about[DATA].encode())
        if lacking := {result.data for result in results} - {"", *data}:
            raise ValueError(f"it says nothing of the data {min(lacking):.40}")
        arrays: dict[int, dict[str, Array]] = {}
        for key, array in arrays_in(memory).items():
            number, _, name = key.partition("/")
            arrays.setdefault(int(number), {})[name] = array
        return _Part(
            file, results, data, typed(Of, parse_json(about.get(OF, "{}").encode())), arrays
        )
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
