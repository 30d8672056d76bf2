"""Rows kept for runs to come: results as without, made once, never half, never of other files."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi_run
import numpy as np
import pytest
from resuming import facts, metrics, train, write_run

from microtrain.config.load import load_config
from microtrain.data import FunctionSource, Prepared, prepare
from microtrain.data.kept import cache, shared
from microtrain.data.kept.cache import opened
from microtrain.data.kept.shared import share
from microtrain.data.readers.stores import Chunked
from microtrain.distributed import Communicator, in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError, DataError
from microtrain.train.console import Output
from microtrain.train.run_data import load_run_data
from microtrain.train.trainer import Trainer

Mpirun = Callable[..., mpi_run.Job]

RNG = np.random.default_rng(0)
X = (RNG.standard_normal((1000, 5)) * 3 + 1).astype(np.float32)
Y = X[:, :1] * 2 + 1
SPLIT = {"train": 0.8, "val": 0.2}


def lazy(x: Any = X, read: list[Any] | None = None, **options: Any) -> Prepared:
    """Prepared rows that are read as they are used; how many at a time goes into `read`."""

    def rows(numbers: Any) -> Any:
        if read is not None:
            read.append(len(numbers))
        return x[numbers], Y[numbers]

    how: dict[str, Any] = {"standardize": True, "standardize_target": True, **options}
    return prepare(FunctionSource(rows, len(x)), split=SPLIT, **how)


def keep(directory: Path, key: str, data: Prepared, digest: str) -> Path:
    """Where prepared rows are kept."""
    return cache.keep(directory, key, lambda place: cache.written(place, data, digest))[0]


def same(found: Prepared, expected: Prepared) -> None:
    for name in ("train", "val"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one.feature_names, one.classes) == (other.feature_names, other.classes)
        everything = slice(0, len(other))
        for a, b in zip(one.read(everything), other.read(everything), strict=True):
            assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    assert found.preprocessing.to_json() == expected.preprocessing.to_json()
    one, other = (
        each.target_scaling and each.target_scaling.to_json() for each in (found, expected)
    )
    assert one == other
    for what in ("in_features", "out_features", "classes", "encoder"):
        assert getattr(found, what) == getattr(expected, what)


def test_rows_are_gone_through_once_a_host(comm: Communicator) -> None:
    read: list[int] = []
    data = share(comm, lambda found=None: lazy(read=read, found=found))
    assert sum(read) == (len(X) if comm.local_rank == 0 else 0)
    same(data, expected := lazy())
    assert data.train.digest == expected.train.digest  # type: ignore[attr-defined]


def test_rows_are_gone_through_once_a_host_by_processes(mpirun: Mpirun) -> None:
    code = """
import numpy as np
import microtrain as mt
from microtrain.data import FunctionSource, prepare
from microtrain.data.kept.shared import share
from microtrain.data.readers.stores import Chunked

comm, read = mt.distributed.world(), []

def rows(numbers):
    read.append(len(numbers))
    return numbers[:, None] * 0.5, numbers[:, None] * 1.0

def load(found=None):
    split = {"train": 0.8, "val": 0.2}
    return prepare(FunctionSource(rows, 100), split=split, standardize=True, found=found)

data = share(comm, load)
found = comm.all_gather_object((sum(read), data.train.digest, float(data.preprocessing.mean[0])))
if comm.rank == 0:
    print(found[0][0], found[1][0], found[0][1:] == found[1][1:])
"""
    job = mpirun(2, code)
    assert job.stdout.split() == ["100", "0", "True"], job.stderr


def test_a_value_that_is_wrong_is_told_to_all(comm: Communicator) -> None:
    x = X.copy()
    x[7, 2] = np.nan
    with pytest.raises(DataError, match=r"^data: input at row 7, column 2 is nan") as caught:
        share(comm, lambda found=None: lazy(x, found=found))
    assert caught.value.agreed


RUN = """
name: kept
data: {%s, standardize: true, split: {train: 0.75, val: 0.25}}
model: {type: mlp, hidden: [4]}
loss: %s
metrics: [%s]
optimizer: adam
train: {duration: 2 epochs, batch_size: 50}
"""


def in_npy(path: Path) -> str:
    np.save(path / "x.npy", X)
    np.save(path / "y.npy", Y)
    data = "type: npy, inputs: x.npy, target: y.npy, standardize_target: true, clip: true"
    return RUN % (data, "mse", "r2, rmse")


def in_csv(path: Path) -> str:
    """Two kinds of columns that are fitted, and classes."""
    lines = [f"{x[0]:.3f},{'abc'[int(x[1]) % 3]},{'yes' if x[2] > 0 else 'no'}" for x in X[:400]]
    (path / "a.csv").write_text("n,kind,label\n" + "\n".join(lines))
    columns = "columns: {kind: {type: category, missing: none}}"
    data = f"type: csv, path: a.csv, target: label, {columns}"
    return RUN % (data, "cross_entropy", "accuracy")


def in_zarr(path: Path) -> str:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(path / "a.zarr"), mode="w")
    for name, array in (("x", X), ("y", Y)):
        group.create_array(name, data=array, chunks=(64, 1))
    return RUN % ("type: zarr, path: a.zarr", "mse", "r2")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows are decoded to that nobody has a directory for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("comm", [1, 2], indirect=True, ids="world={}".format)
@pytest.mark.parametrize(
    "kind",
    [in_npy, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (in_csv, in_zarr))],
    ids=lambda kind: kind.__name__,
)
def test_a_run_has_the_same_bits_with_what_is_kept(
    comm: Communicator, shared_tmp_path: Path, kind: Callable[[Path], str]
) -> None:
    path, said = shared_tmp_path / "run.yaml", []
    if comm.rank == 0:
        path.write_text(kind(shared_tmp_path))
    comm.barrier()
    found = []
    for where in ("null", f"{shared_tmp_path}/kept", f"{shared_tmp_path}/kept"):
        config = load_config(path, [f"data.cache={where}", f"run_dir={shared_tmp_path}/runs"])
        stream = io.StringIO()
        trainer = Trainer.from_config(config, comm, Output(comm.rank, stream=stream))
        trainer.train()
        values = b"".join(t.numpy().tobytes() for t in trainer.model.state_dict().values())
        rows = metrics(trainer.path) if comm.rank == 0 else None
        found.append((values, trainer.data_state, rows))
        said.append(trainer.data.cache)
        comm.barrier()
    assert found[0] == found[1] == found[2]
    kept = shared_tmp_path / "kept"
    places = [*kept.iterdir()]
    if kind is in_zarr:  # each array once, and not its rows a second time
        assert len(places) == 2
        assert said[1].startswith(f"decoded rows are kept in {kept} (")
        return
    (place,) = places
    assert not said[0]
    if comm.local_rank == 0:
        assert said[1].startswith(f"the rows are kept for runs to come in {place} (")
        assert said[2].startswith(f"an earlier run has kept the rows in {place} (")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_goes_on_with_what_is_kept(tmp_path: Path, ranks: int) -> None:
    expected = facts(train(write_run(tmp_path / "alone")).path)
    config, kept = write_run(tmp_path / "kept"), f"data.cache={tmp_path}/cache"
    run = train(config, kept, crash=8).path
    in_process.run(ranks, lambda comm: train(config, kept, resume=run, comm=comm))
    assert len([*(tmp_path / "cache").iterdir()]) == 1
    if ranks == 1:
        assert facts(run) == expected
    else:  # sums of two ranks round otherwise
        assert facts(run)["steps"] == expected["steps"]


def loaded(path: Path, *overrides: str) -> Prepared:
    overrides = (f"data.cache={path.parent}/kept", *overrides)
    return load_run_data(load_config(path, overrides), SingleCommunicator())[0]


def test_what_was_kept_of_other_files_or_another_preparation_is_not_used(tmp_path: Path) -> None:
    path, kept = tmp_path / "run.yaml", tmp_path / "kept"
    path.write_text(in_npy(tmp_path))
    first = loaded(path)
    assert loaded(path).digest == first.digest
    assert len([*kept.iterdir()]) == 1
    for number, change in enumerate(
        (
            "data.split.seed=1",
            "data.standardize=false",
            "data.standardize_target=false",
            "data.clip=false",
            "dtype=float64",
            f"data.target={tmp_path}/x.npy",
        ),
        2,
    ):
        loaded(path, change)
        assert len([*kept.iterdir()]) == number
    np.save(tmp_path / "x.npy", X + 1)
    assert loaded(path).digest != first.digest
    assert len([*kept.iterdir()]) == 8


def test_a_file_of_a_directory_counts(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "a").write_text("1")
    before = cache.stamps([tmp_path / "in"])
    assert cache.stamps([tmp_path / "in"]) == before
    (tmp_path / "in" / "deep" / "a").write_text("12")
    assert cache.stamps([tmp_path / "in"]) != before
    assert cache.stamps([tmp_path / "gone"]) == [None]


def test_a_file_that_is_not_there_is_said_so_whatever_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(in_npy(tmp_path))
    loaded(path)
    (tmp_path / "x.npy").unlink()
    with pytest.raises(DataError, match=r"there is no file .*x\.npy"):
        loaded(path)


def test_all_that_is_known_is_kept(tmp_path: Path) -> None:
    weights = np.linspace(0, 1, len(X))
    codes = np.arange(len(X)) % 3
    source = FunctionSource(
        lambda rows: (X[rows], codes[rows], weights[rows]), len(X), feature_names="abcde",
        classes="uvw", weighted=True, target_name="kind", truth={"bias": np.float32(3)},
    )  # fmt: skip
    expected = prepare(source, split=SPLIT)
    found = opened(keep(tmp_path, "key", expected, "digest"))
    same(found, expected)
    for part, other in ((found.train, expected.train), (found.val, expected.val)):
        assert part is not None
        assert part.known == other.known  # type: ignore[union-attr,attr-defined]
        assert (part.weighted, part.target_name, part.truth) == (True, "kind", {"bias": 3.0})
        assert not part.arrays[0].flags.writeable  # type: ignore[attr-defined]
    assert found.digest == "digest"


KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from microtrain.data import prepare
from microtrain.data.kept import cache, shared

def die(file):
    os.kill(os.getpid(), signal.SIGKILL)

cache.to_disk = die
x = np.ones((1000, 3), np.float32)
data = prepare((x, x[:, :1]))
cache.keep(Path(sys.argv[1]), "key", lambda place: cache.written(place, data, ""))
"""


def test_a_writer_that_is_killed_leaves_nothing_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert job.returncode == -9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(cache.UNFINISHED)
    assert not (tmp_path / "key").exists()
    keep(tmp_path, "other", lazy(), "")  # what is young may be another writer's
    assert left.exists()
    os.utime(left, (time.time() - 2 * cache.OLD,) * 2)
    keep(tmp_path, "another", lazy(), "")
    assert {each.name for each in tmp_path.iterdir()} == {"other", "another"}
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    keep(tmp_path, "key", lazy(), "")  # follows the one that is gone
    assert {each.name for each in tmp_path.iterdir()} == {"key", "other", "another"}


def test_the_first_of_two_writers_is_kept(tmp_path: Path) -> None:
    data = lazy()
    one = keep(tmp_path, "key", data, "first")
    assert keep(tmp_path, "key", data, "second") == one
    assert opened(one).digest == "first"
    in_process.run(4, lambda comm: keep(tmp_path, "four", data, "same"))
    same(opened(tmp_path / "four"), data)
    assert {each.name for each in tmp_path.iterdir()} == {"key", "four"}


def test_a_disk_without_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    vast = FunctionSource(lambda rows: (rows[:, None] * 1.0, rows * 1.0), 10**15)
    source = Prepared(vast, None, None, lazy().preprocessing, 1, 1, None)
    with pytest.raises(
        DataError, match=r"no room for the 1.6e\+07 GB of rows: .* has(.|\n)*data.cache"
    ):
        keep(tmp_path, "key", source, "")
    assert not [*tmp_path.iterdir()]


def test_a_disk_that_becomes_full_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    limits, data = resource.getrlimit(resource.RLIMIT_FSIZE), lazy()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
        with pytest.raises(DataError, match=r"data\.cache: File too large: .* 24 KB of rows"):
            keep(tmp_path, "key", data, "")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
def test_what_is_damaged_is_refused_with_the_way_out(tmp_path: Path, damage: str) -> None:
    place = keep(tmp_path, "key", lazy(), "")
    file = place / "train-0.npy"
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif damage == "gone":
        file.unlink()
    else:
        np.save(file, np.ones((3, 3)))
    with pytest.raises(DataError, match=r"data\.cache: .*key cannot be used: (.|\n)*delete it"):
        opened(place)


def test_a_bit_of_a_file_that_is_kept_is_noticed(tmp_path: Path) -> None:
    """Also in what is said of the rows: their scale, their classes, their hash."""
    path = tmp_path / "run.yaml"
    path.write_text(in_csv(tmp_path))
    loaded(path)
    (place,) = (tmp_path / "kept").iterdir()
    files = sorted(place.iterdir())
    assert len(files) >= 5
    for file in files:
        whole = file.read_bytes()
        places = {len(whole) - 1, len(whole) // 2}
        if file.suffix == ".json":
            places = {i for i in range(len(whole)) if chr(whole[i]).isdigit()}
        for at in places:
            changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
            with contextlib.suppress(ValueError):
                if json.loads(changed) == json.loads(whole):
                    continue  # the last of too many digits
            file.write_bytes(changed)
            with pytest.raises(DataError, match=r"cannot be used: (.|\n)*delete it"):
                loaded(path)
        file.write_bytes(whole)
    loaded(path)


# Chunks ---------------------------------------------------------------------------------------


class Slowly:
    """A column in chunks of 100 rows, written into `path`, and how often each is decoded."""

    def __init__(self, path: Path, pause: float = 0.0) -> None:
        self.path, self.pause, self.loads = path, pause, list[int]()
        path.write_bytes(X.tobytes())

    def decoded(self, directory: Path | None) -> Any:
        def load(first: int, stop: int) -> Any:
            self.loads.append(first)
            time.sleep(self.pause)
            return X[first:stop]

        bounds = range(0, len(X) + 1, 100)
        column = Chunked("column", X.shape, X.dtype, bounds, load, self.path, ["x"])
        return cache.decoded([column], directory)[0]


def test_chunks_are_decoded_once_and_in_order(tmp_path: Path) -> None:
    column = Slowly(tmp_path / "a")
    for _ in range(2):
        found = column.decoded(tmp_path / "kept")
        rows = np.array([999, 0, 5, 5])
        np.testing.assert_array_equal(found[rows], X[rows], strict=True)
        np.testing.assert_array_equal(found[3:700], X[3:700], strict=True)
        assert found.location(7) == "column, row 7"
        assert column.loads == [*range(0, len(X), 100)]
    np.savetxt(column.path, X)
    column.decoded(tmp_path / "kept")
    assert column.loads == 2 * [*range(0, len(X), 100)]


def test_one_of_several_ranks_decodes_and_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = Slowly(tmp_path / "a", 0.05)

    def bits(comm: Communicator) -> bytes:
        return bytes(column.decoded(tmp_path / "kept")[:].tobytes())

    assert in_process.run(3, bits) == [X.tobytes()] * 3
    assert column.loads == [*range(0, len(X), 100)]
    assert len([*(tmp_path / "kept").iterdir()]) == 1


def test_rows_that_are_decoded_have_a_place_without_a_name(tmp_path: Path) -> None:
    found = Slowly(tmp_path / "a").decoded(None)
    assert found.kept.parent == tmp_path / "home" / "microtrain" / "data"


def test_no_room_for_what_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    small, vast = (
        Chunked(name, (rows, 2), np.dtype("f8"), [0, rows], lambda a, b: X[:, :2], path, [name])
        for name, rows in (("x", len(X)), ("y", 10**15))
    )
    with pytest.raises(DataError, match=r"no room for the 1.6e\+07 GB (.|\n)*data\.cache"):
        cache.decoded([small, vast], tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_bit_of_what_was_decoded_is_noticed(tmp_path: Path) -> None:
    column = Slowly(tmp_path / "a")
    file = column.decoded(tmp_path / "kept").kept / "rows-0.npy"
    whole = bytearray(file.read_bytes())
    whole[-7] ^= 1
    file.write_bytes(whole)
    with pytest.raises(DataError, match=rf"{file.parent} cannot be used: {file.name} was changed"):
        column.decoded(tmp_path / "kept")


def test_a_bar_shows_how_far_decoding_is(tmp_path: Path) -> None:
    looks: list[tuple[int, int]] = []

    class Watched(Output):
        def start_bar(self, total: int | None, start: int = 0, noun: str = "step") -> float:
            assert noun == "row"
            self.total = total or 0
            return 0.0

        def look(self, step: int, *_: float) -> float:
            looks.append((step, self.total))
            return 0.0

    with shared.during(cache.PROGRESS, Watched()):
        Slowly(tmp_path / "a").decoded(None)
    assert looks[-1] == (len(X), len(X))


def test_data_that_are_not_of_files_cannot_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN % ("type: sklearn, name: digits, cache: kept", "mse", "r2"))
    with pytest.raises(
        ConfigError, match=r"run\.yaml:3:44  data\.cache(.|\n)*sklearn have no file"
    ):
        load_config(path)
    path.write_text(RUN % ("type: npy, inputs: x.npy, target: y.npy, cache: 3", "mse", "r2"))
    with pytest.raises(ConfigError, match=r"3:56  data\.cache(.|\n)*the path of a directory"):
        load_config(path)


def test_json_of_a_part_is_plain(tmp_path: Path) -> None:
    """Nothing that is kept can run code."""
    place = keep(tmp_path, "key", lazy(), "")
    assert json.loads((place / cache.ABOUT).read_text())["digest"] == ""
    assert {each.suffix for each in place.iterdir()} == {".npy", ".json"}
