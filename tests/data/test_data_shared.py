"""Data once a host: results as if each rank had its own, memory once, no hang and no litter."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi_run
import numpy as np
import pytest

from microtrain.config.load import load_config
from microtrain.data import ArrayDataset, Prepared, prepare
from microtrain.data.kept.shared import share
from microtrain.distributed import Communicator
from microtrain.errors import ConfigError, DataError
from microtrain.inference.evaluate import evaluate_run
from microtrain.train import run_data as assembly
from microtrain.train.console import Output
from microtrain.train.trainer import Trainer

Mpirun = Callable[..., mpi_run.Job]


def rows(count: int = 1000, **options: Any) -> Prepared:
    x = np.random.default_rng(0).standard_normal((count, 3), np.float32)
    weights = np.linspace(0, 1, count)
    data = ArrayDataset(
        x, np.arange(count) % 3, feature_names="abc", classes="uvw", weights=weights
    )
    return prepare(data, split={"train": 0.7, "val": 0.3}, standardize=True, **options)


def same(found: ArrayDataset | None, expected: ArrayDataset | None) -> None:
    assert found is not None
    assert expected is not None
    assert (found.feature_names, found.classes) == (expected.feature_names, expected.classes)
    for one, other in zip(found.arrays, expected.arrays, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("everyone", [False, True])
def test_all_ranks_get_what_the_first_one_of_their_host_has(
    comm: Communicator, everyone: bool
) -> None:
    loaded = []

    def load() -> Prepared:
        loaded.append(comm.rank)
        return rows()

    data, expected = share(comm, load, everyone=everyone), rows()
    assert loaded == [comm.rank] * (everyone or comm.local_rank == 0)
    same(data.train, expected.train)
    same(data.val, expected.val)
    assert data.test is None
    assert data.preprocessing.mean.tobytes() == expected.preprocessing.mean.tobytes()
    assert (data.classes, data.in_features, data.notes) == (expected.classes, 3, ())


@pytest.mark.parametrize("kind", [ConfigError, DataError])
def test_what_is_wrong_for_the_first_rank_is_told_to_all(comm: Communicator, kind: type) -> None:
    def load() -> Prepared:
        raise kind("no such file")

    with pytest.raises(kind, match=r"^no such file$") as caught:
        share(comm, load)
    assert caught.value.agreed


JOB = """\
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
import microtrain as mt
from microtrain.data import prepare
from microtrain.data.kept import shared
from microtrain.errors import DataError

comm = mt.distributed.world()

def load():
    x = np.random.default_rng(0).standard_normal((2_000_000, 9), np.float32)
    return prepare((x, x[:, :1] * 2), split={"train": 0.9, "val": 0.1})

def pss():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024

"""


@pytest.mark.slow
@pytest.mark.parametrize("everyone", [False, True])
def test_memory_is_taken_once(mpirun: Mpirun, everyone: bool) -> None:
    """80 MB on 4 ranks, each of which reads all of it."""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("memory is read from Linux's /proc")
    code = f"""
comm.barrier()
before = pss()
data = shared.share(comm, load, everyone={everyone})
arrays = [a for part in (data.train, data.val) for a in part.arrays]
sums = [float(a.sum()) for a in arrays]
comm.barrier()
taken = comm.all_gather_object(pss() - before)
assert not any(a.flags.writeable for a in arrays)
if comm.rank == 0:
    print(sum(a.nbytes for a in arrays), sum(taken))
"""
    job = mpirun(4, JOB + code)
    assert job.returncode == 0, job.stderr
    length, taken = map(int, job.stdout.split())
    assert length == 80_000_000
    assert 0.9 * length < taken < 1.4 * length


@pytest.mark.daily("loading")
@pytest.mark.parametrize("where", ["loading", "writing"])
def test_a_rank_that_is_killed_leaves_no_file(mpirun: Mpirun, tmp_path: Path, where: str) -> None:
    directory = tmp_path / "memory"
    directory.mkdir()
    killed = "lambda *_: comm.rank == 0 and os.kill(os.getpid(), signal.SIGKILL)"
    name = {"loading": "load", "writing": "shared._write"}[where]
    job = mpirun(
        2,
        JOB
        + f"shared.MEMORY[:] = [{str(directory)!r}]\n{name} = {killed}\nshared.share(comm, load)",
    )
    assert job.returncode != 0
    assert job.left_behind == ()
    assert list(directory.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("room", ["elsewhere", "nowhere", "gone"])
def test_memory_that_a_container_does_not_give(
    in_a_container: tuple[str, ...], tmp_path: Path, room: str
) -> None:
    code = {
        "elsewhere": "",
        "nowhere": "import tempfile; tempfile.tempdir = '/dev/shm'",
        # As if somebody else had taken it after the look.
        "gone": "shutil.disk_usage = lambda place: (0, 0, 0)",
    }[room]
    end = """
try:
    data = shared.share(comm, load)
    assert data.train.arrays[0].shape == (1_800_000, 9) and data.train.arrays[0][-1].any()
    print(*data.notes) if comm.rank == 0 else None
except DataError as error:
    print(error) if comm.rank == 1 else None
"""
    script = tmp_path / "script.py"
    script.write_text(JOB + code + end)
    if reason := mpi_run.missing():
        pytest.skip(reason)
    mpirun = [mpi_run.find_mpirun(), "-n", "2", sys.executable, script]
    job = mpi_run.run_job([*in_a_container, *mpirun], env={"TMPDIR": str(tmp_path)})
    assert job.returncode == 0, job.stderr
    if room == "elsewhere":
        assert f"share 80 MB of data through a file in {tmp_path}: /dev/shm has" in job.stdout
    elif room == "nowhere":
        assert "data: no room for the 80 MB that the ranks of host" in job.stdout
        assert "/dev/shm has" in job.stdout
        assert "TMPDIR" in job.stdout
    else:
        assert "data: No space left on device: /dev/shm/microtrain-" in job.stdout
    assert [each.name for each in tmp_path.iterdir()] == ["script.py"]


COMPONENT = """
import numpy as np
import microtrain as mt

def rows(fault=None):
    comm = mt.distributed.world()
    comm.barrier()  # such as a download by rank 0
    if comm.rank == 0 and fault == "raises":
        raise mt.errors.DataError("gone on one host")
    x = np.random.default_rng(comm.rank if fault == "differs" else 0).standard_normal((96, 3))
    return x, x[:, :1] + 1
"""
RUN = """
name: once
data: {type: %s, split: {train: 0.75, val: 0.25}, standardize: true}
model: {type: mlp, hidden: [4]}
loss: mse
optimizer: adam
train: {duration: 3 epochs, batch_size: 16}
"""

OURS = "synthetic_random, samples: 96, features: 3, targets: 1"


def trained(comm: Communicator, directory: Path, data: str, *overrides: str) -> tuple[bytes, Any]:
    if comm.rank == 0:
        (directory / "once.yaml").write_text(RUN % data)
        (directory / "rows.py").write_text(COMPONENT)
    comm.barrier()
    overrides = (*overrides, f"run_dir={directory}/runs")
    config = load_config(directory / "once.yaml", overrides, trust=True)
    trainer = Trainer.from_config(config, comm, Output(comm.rank, stream=io.StringIO()))
    trainer.train()
    comm.barrier()
    values = b"".join(t.numpy().tobytes() for t in trainer.model.state_dict().values())
    evaluation = evaluate_run(str(trainer.path), comm=comm, warn=print, trust=True)
    return values, evaluation.parts["val"].values


@pytest.mark.parametrize("data", [OURS, "./rows.py:rows"], ids=["ours", "own"])
def test_a_run_has_the_bits_that_it_has_with_data_of_each_rank(
    comm: Communicator, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str
) -> None:
    found = trained(comm, shared_tmp_path, data)
    comm.barrier()
    monkeypatch.setattr(assembly, "share", lambda comm, load, **how: load())
    if data == OURS:  # then only one of a host knows the hash
        monkeypatch.setattr(assembly, "is_import_path", lambda name: True)
    assert trained(comm, shared_tmp_path, data) == found
    comm.barrier()


@pytest.mark.parametrize(
    ("fault", "words"), [("raises", "gone on one host"), ("differs", "loaded different data from")]
)
def test_a_component_whose_ranks_wait_for_each_other(
    comm: Communicator, shared_tmp_path: Path, fault: str, words: str
) -> None:
    if comm.size == 1 and fault == "differs":
        return
    with pytest.raises(DataError, match=words) as caught:
        trained(comm, shared_tmp_path, "./rows.py:rows", f"data.fault={fault}")
    assert caught.value.agreed
