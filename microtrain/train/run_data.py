"""The data of a run: read and prepared once a host, and kept for later runs where they may be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..common import job
from ..common.words import size
from ..config.components import build, import_paths, is_import_path, load, own, parameters
from ..config.schema import TARGET_KEYS, Config, Data
from ..data import ArrayDataset, Encoder, Prepared, Preprocessing, TargetScaling, prepare
from ..data.kept.cache import CHECKED, keep, key_of, opened, stamps, written
from ..data.kept.shared import during, share
from ..data.rows import Rows, is_lazy, layout
from ..distributed.agreement import agreed, all_equal, together
from ..distributed.communicator import Communicator, alone
from ..errors import DataError
from .rehearsal import is_own, trying

T = TypeVar("T")


def load_data(
    config: Config,
    found: Any = None,
    preprocessing: Preprocessing | None = None,
    encoder: Encoder | None = None,
    target_scaling: TargetScaling | None = None,
) -> Prepared:
    """The configured data, split, encoded and standardized, cast.

    `preprocessing`, `encoder` and `target_scaling` are those of a training before, `found` is what
    another rank of the host has found in the same rows.
    """
    data, split = config.data, config.data.split
    origin = f"data ({data.type})"
    with trying(config, "data"), during(CHECKED, found is not None):
        loaded = read(data, config.seed)
        others = {
            part: read(replace(data, arguments=data.arguments | keys), config.seed, part)
            for part, keys in split.files.items()
        }
    try:
        prepared = prepare(
            loaded,
            split=split.shares,
            standardize=data.standardize,
            **of_target(data),
            dtype=np.dtype(config.dtype),
            seed=split.seed,
            stratify=split.stratify,
            group=split.group,
            time=split.time,
            fold=None if split.folds is None or split.fold is None else (split.fold, split.folds),
            others=others,
            origin=origin,
            preprocessing=preprocessing,
            encoder=encoder,
            target_scaling=target_scaling,
            found=found,
        )
    except DataError as error:
        raise DataError(f"{error}\n{own('data')}") if is_import_path(data.type) else error from None
    if prepared.classes is not None and len(prepared.classes) < 2:
        found = ", ".join(prepared.classes)
        raise DataError(f"{origin}: all rows have one class, {found}; expected two or more")
    return prepared


def of_target(data: Data) -> dict[str, bool]:
    """The keys that say how a target is trained on, with their values."""
    return {key: getattr(data, key) for key in TARGET_KEYS}


def load_run_data(config: Config, comm: Communicator) -> tuple[Prepared, str]:
    """The data of a run that begins or goes on, and their hash, as `load_once`; collective."""
    load: Callable[..., Prepared] = partial(load_data, config)
    if config.data.cache is not None:
        load = cached(config, load, Path(config.data.cache))
    elif not is_own(config.data) and (of_job := job.enter()) is not None:
        # Your own arrays and code may be different in the next start.
        load = cached(config, load, of_job / "rows", for_job=True)
    if import_paths(config) or config.data.instance is not None:
        return load_once(config, comm, load)
    name = repr((config.data, config.dtype, _seed_of(config.data, config.seed)))
    return once("prepared", name, lambda: load_once(config, comm, load))


def load_once(
    config: Config, comm: Communicator, load: Callable[..., Prepared]
) -> tuple[Prepared, str]:
    """The data that `load()` gives, once a host, and their hash; collective.

    DataError unless all have loaded the same: the batches are cut from them.
    """
    if everyone := is_own(config.data):
        # Apart from the rest: user-defined code may let its ranks wait for each other.
        held = [together(comm, load)]
        found = held[0]
    else:
        found = share(comm, load)
    with alone("it reads the data for their hash"):
        mine = data_hash(found) if everyone or comm.local_rank == 0 else ""
    if not everyone:
        mine = comm.node().broadcast_object(mine)
    if not all_equal(comm, bytes.fromhex(mine)):
        hashes = comm.all_gather_object((len(found.train), mine))
        rank = next(rank for rank, (_, one) in enumerate(hashes) if one != hashes[0][1])
        raise agreed(
            DataError(
                f"data ({config.data.type}): rank {rank} loaded different data from rank 0 "
                f"({hashes[rank][0]:,} and {hashes[0][0]:,} training rows); every rank must load "
                "the same: draw random numbers from the seed that a component may take"
            )
        )
    if everyone:
        del found
        found = share(comm, held.pop, everyone=True)
    return found, mine


def data_hash(data: Prepared) -> str:
    """A hash of all rows of all parts as they are trained on."""
    if data.digest is not None:
        return data.digest
    digest = hashlib.blake2b(digest_size=16)
    for part in (data.train, data.val, data.test):
        if isinstance(part, Rows):
            digest.update(part.digest.encode())  # of the one pass that all of its rows were read in
        for array in part.arrays if isinstance(part, ArrayDataset) else ():
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def data_state(data: Prepared, its_hash: str) -> dict[str, Any]:
    """What a checkpoint's state.json holds of the data a model was trained on."""
    train = data.train
    return {
        "preprocessing": data.preprocessing.to_json(),
        "target_scaling": None if (scaling := data.target_scaling) is None else scaling.to_json(),
        "table": None if data.encoder is None else data.encoder.to_json(),
        "classes": None if data.classes is None else list(data.classes),
        "feature_names": None if train.feature_names is None else list(train.feature_names),
        "target_name": train.target_name,
        "out_features": data.out_features,
        "inputs": [
            {"shape": list(array.shape[1:]), "dtype": array.dtype.name}
            for array in layout(train)[0]
        ],
        "data_hash": its_hash,
    }


def cached(
    config: Config, load: Callable[..., Prepared], directory: Path, for_job: bool = False
) -> Callable[..., Prepared]:
    """`load` that keeps what it gives in a directory.

    for_job: which is in memory, for further starts of this job. What is mapped from files stays
    there, and a run goes on without where there is no room.
    """

    def load_kept(found: Any = None) -> Prepared:
        """found: where another rank of this host has found or put it."""
        if isinstance(found, str):
            return opened(Path(found), checked=True)
        if found is not None:
            return load(found)
        key, files = _key(config)
        words, data = "an earlier run has kept the rows in", None
        if not (directory / key).is_dir() or None in files:
            data = load()  # says what is wrong with a file that is not there
            mapped = for_job and any(map(is_lazy, (data.train, data.val, data.test)))
            if data.cache or mapped:  # decoded, and kept so
                return data

        def make(place: Path) -> dict[str, Any]:
            assert data is not None
            about = written(place, data, data_hash(data))
            if _key(config)[0] != key:
                raise DataError(
                    "data.cache: a file was changed while it was being read; start again, and "
                    "write other versions of a file under another name"
                )
            return about

        try:
            place, made = keep(directory, key, make)
        except DataError as error:
            if not for_job or data is None:
                raise
            why = str(error).partition("\n")[0].removeprefix("data.cache: ")
            words = f"a further start of this job reads the data again: {why}"
            return replace(data, notes=(*data.notes, words))
        if for_job:
            try:
                return opened(place, checked=made)
            except DataError:  # it was damaged: nobody has asked for it to be kept
                return load() if data is None else data
        if data is not None:
            words = "the rows are kept for runs to come in"
        kept = sum(each.stat().st_size for each in place.iterdir())
        return replace(opened(place, checked=made), cache=f"{words} {place} ({size(kept)})")

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
    arguments = data.arguments | _seed_of(data, config.seed)
    how = data.type, arguments, asdict(data.split), config.dtype
    maps = data.standardize, of_target(data)
    return key_of(how, maps, files), files


# What runs that are built one after the other share: in each slot the rows of the run before, and
# what named them. None: each run reads its own.
ROWS: ContextVar[dict[str, tuple[str, Any]] | None] = ContextVar("ROWS", default=None)


def once(slot: str, name: str, make: Callable[[], T]) -> T:
    """What `make()` gives, or has given to the run before, where that is shared and named alike.

    Not for user-defined components, which may hand out what they change later.
    """
    if (rows := ROWS.get()) is None:
        return make()
    if slot not in rows or rows[slot][0] != name:
        rows.pop(slot, None)  # there need not be room for both
        rows[slot] = name, make()
    made: T = rows[slot][1]
    return made


def read(data: Data, seed: int, part: str = "all") -> Any:
    """The rows of a data component; `part`: which of several files."""
    known = {"seed": seed} | ({} if data.cache is None else {"cache": Path(data.cache)})
    if is_own(data):
        return build(data, **known)
    name = repr((data.type, data.arguments, _seed_of(data, seed)))
    return once(part, name, partial(build, data, **known))


def _seed_of(data: Data, seed: int) -> dict[str, int]:
    """The seed, where the component takes one."""
    return {"seed": seed} if "seed" in parameters(load("data", data.type)) else {}
