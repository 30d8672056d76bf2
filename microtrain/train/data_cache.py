"""Data that are read once: by runs of one process, and by later ones with `data.cache`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..config.components import build, import_paths, is_import_path, load, parameters
from ..config.resolved import as_yaml
from ..config.schema import Config, Data
from ..data import Prepared
from ..data.kept.cache import find, keep, key_of, opened, stamps, written
from ..errors import DataError
from ..words import size


def cached(
    config: Config, load_data: Callable[..., Prepared], digest_of: Callable[[Prepared], str]
) -> Callable[..., Prepared]:
    """`load_data` that keeps what it gives in the directory that `data.cache` names."""
    assert config.data.cache is not None
    directory = Path(config.data.cache)
    first: dict[str, Prepared] = {}

    def load_kept(found: Any = None) -> Prepared:
        """found: where another rank of this host has found or put it."""
        if isinstance(found, str):
            return opened(Path(found), checked=True)
        if found is not None:
            return load_data(found)
        key, files = _key(config)
        if key in first:  # asked twice where there are several hosts
            return first[key]
        words, data = "an earlier run has kept the rows in", None
        if find(directory, key) is None or None in files:
            data = load_data()  # says what is wrong with a file that is not there
            if data.cache:  # decoded, and kept so
                return first.setdefault(key, data)

        def make(place: Path) -> dict[str, Any]:
            assert data is not None
            about = written(place, data, digest_of(data))
            if _key(config)[0] != key:
                raise DataError(
                    "data.cache: a file was changed while it was being read; start again, and "
                    "write other versions of a file under another name"
                )
            return about

        place, made = keep(directory, key, make)
        if data is not None:
            words = "the rows are kept for runs to come in"
        kept = sum(each.stat().st_size for each in place.iterdir())
        data = replace(opened(place, checked=made), cache=f"{words} {place} ({size(kept)})")
        return first.setdefault(key, data)

    return load_kept


def _key(config: Config) -> tuple[str, list[Any]]:
    """The name of these rows, prepared as they are to be; and what tells their files apart."""
    data = config.data
    accepted = parameters(load("data", data.type))
    paths = []
    for keys in (data.arguments, *data.split.files.values()):
        for name, value in keys.items():
            if value is not None and "Path" in str(accepted[name].annotation):
                paths += value if isinstance(value, list) else [value]
    files = stamps([Path(path) for path in paths])
    how = data.type, data.arguments, asdict(data.split), data.standardize, config.dtype
    return key_of(how, files), files


@contextmanager
def reading_once() -> Iterator[None]:
    """Runs that are built in this block, one after the other, share the rows that they name alike.

    Of rows as they are trained on, those of the run before. Not those of the user's own components,
    which may hand out what they change later.
    """
    before = [*_ROWS]
    try:
        _ROWS.append({})
        yield
    finally:
        _ROWS[:] = before


_ROWS: list[dict[str, Any]] = []  # by what names them; empty where each run reads its own
_PREPARED = "prepared"  # names those of the last run


def read(data: Data, seed: int) -> Any:
    """The rows of a data component."""
    known = {"seed": seed} | ({} if data.cache is None else {"cache": Path(data.cache)})
    if not _ROWS or is_import_path(data.type) or data.instance is not None:
        return build(data, **known)
    name = f"{data.type} {as_yaml(_seed_of(data, seed) | data.arguments)}"
    if name not in _ROWS[-1]:
        _ROWS[-1][name] = build(data, **known)
    return _ROWS[-1][name]


def prepared(config: Config, prepare: Callable[[], tuple[Prepared, str]]) -> tuple[Prepared, str]:
    """What `prepare()` gives: the rows that the configuration names as they are trained on."""
    if not _ROWS or import_paths(config) or config.data.instance is not None:
        return prepare()
    name = repr((config.data, config.dtype, _seed_of(config.data, config.seed)))
    if _PREPARED not in _ROWS[-1] or _ROWS[-1][_PREPARED][0] != name:
        _ROWS[-1].pop(_PREPARED, None)  # there need not be room for both
        _ROWS[-1][_PREPARED] = name, prepare()
    found: tuple[Prepared, str] = _ROWS[-1][_PREPARED][1]
    return found


def _seed_of(data: Data, seed: int) -> dict[str, int]:
    """The seed, where the component takes one."""
    return {"seed": seed} if "seed" in parameters(load("data", data.type)) else {}
