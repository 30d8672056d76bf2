"""Checkpoints of which every rank writes a slice: what is in them, who reads them, what fails."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resuming import RUN, metrics, train, write_run
from safetensors.numpy import load_file

import microtrain as mt
from microtrain.distributed import in_process
from microtrain.errors import DataError
from microtrain.runs import slices
from microtrain.runs.checkpoint import list_checkpoints, load_checkpoint, load_newest_checkpoint
from microtrain.runs.slices import SLICE, Layout, cut, writers

WORLD = (
    "distributed={reproducible: world, shards: 12}",
    "optimizer={type: adam, lr: 0.02}",
    "callbacks=[]",
    "train.batch_size=24",
)


# Who writes what ----------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(), st.integers(0, 10**9), max_size=30), st.integers(1, 9))
def test_every_array_is_in_one_slice_and_slices_are_about_equal(sizes, number):
    parts = cut(sizes, number)
    assert sorted(key for part in parts for key in part) == sorted(sizes)
    order = [*sizes]
    for part in parts:
        assert part == sorted(part, key=order.index)
    loads = [sum(sizes[key] for key in part) for part in parts]
    assert len(loads) == number
    assert max(loads) <= sum(loads) / number + max(sizes.values(), default=0)
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


@given(st.integers(0, 2**40), st.integers(1, 5000))
def test_a_slice_is_of_a_size_worth_it_and_the_first_is_rank_0s(size, ranks):
    found = writers(size, ranks)
    assert found[0] == 0
    assert found == sorted({*found})
    assert found[-1] < ranks
    assert len(found) == 1 or size / len(found) >= SLICE
    assert len(found) in (ranks, max(1, size // SLICE))


def test_files_are_numbered_as_readers_of_safetensors_know_it():
    sizes = {("model", "a"): 50, ("optimizer", "a.m"): 40, ("optimizer", "b.m"): 30}
    layout = Layout.of(sizes, 3)
    assert layout.files == [
        {"model": "model.safetensors", "optimizer": "optimizer-00001-of-00003.safetensors"},
        {"optimizer": "optimizer-00002-of-00003.safetensors"},
        {"optimizer": "optimizer-00003-of-00003.safetensors"},
    ]
    assert [part["optimizer"] for part in layout.arrays] == [[], ["a.m"], ["b.m"]]


# What is in them ----------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """States of these tests are large ones; and nobody waits for the disk."""
    monkeypatch.setattr(slices, "SLICE", 64)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def saved(comm, place, **state):
    mt.manual_seed(0)
    model = mt.nn.Sequential(mt.nn.Linear(3, 20), mt.nn.BatchNorm1d(20), mt.nn.Linear(20, 2))
    optimizer = mt.optim.Adam(model.parameters(), lr=0.1)
    model(mt.ones(4, 3)).sum().backward()
    optimizer.step()
    if comm.rank:  # what is rank 0's own is not taken from others
        model[1].running_mean += 1
    mt.save(place, 7, model=model, optimizer=optimizer, state=state, comm=comm)
    return model, optimizer


def test_all_arrays_come_back_whoever_wrote_them(small, tmp_path):
    in_process.run(3, lambda comm: saved(comm, tmp_path / "three", epoch=1))
    in_process.run(1, lambda comm: saved(comm, tmp_path / "one", epoch=1))
    three = load_checkpoint(tmp_path / "three" / "step-000007")
    one = load_checkpoint(tmp_path / "one" / "step-000007")
    for kind in ("model", "optimizer"):
        found, expected = getattr(three, kind), getattr(one, kind)
        assert list(found) == list(expected)
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: a.tobytes() for n, a in expected.items()
        }
        files = sorted(path.name for path in three.path.glob(f"{kind}-*.safetensors"))
        assert files == [f"{kind}-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
        index = json.loads((three.path / f"{kind}.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(a.nbytes for a in expected.values())
        assert list(index["weight_map"]) == list(expected)
        for name, file in index["weight_map"].items():
            np.testing.assert_array_equal(load_file(three.path / file)[name], expected[name])
    assert (three.state["loop"], three.step) == ({"epoch": 1}, 7)
    assert sorted(path.name for path in one.path.iterdir()) == [
        "config.yaml", "manifest.json", "model.safetensors", "optimizer.safetensors", "state.json",
    ]  # fmt: skip


def test_a_loop_goes_on_from_slices_on_any_number_of_ranks(small, tmp_path):
    (model, optimizer), *_ = in_process.run(4, lambda comm: saved(comm, tmp_path, epoch=1))

    def restored(comm):
        other = mt.nn.Sequential(mt.nn.Linear(3, 20), mt.nn.BatchNorm1d(20), mt.nn.Linear(20, 2))
        adam = mt.optim.Adam(other.parameters(), lr=0.5)
        state = mt.restore(tmp_path, model=other, optimizer=adam, comm=comm)
        assert state == {"epoch": 1, "step": 7}
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(other.state_dict()[name].numpy(), value.numpy())
        for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
            for name, array in optimizer.state_of(theirs).items():
                np.testing.assert_array_equal(adam.state_of(mine)[name], array)

    for ranks in (1, 2, 3):
        in_process.run(ranks, restored)


@pytest.mark.parametrize("file", ["model-00002-of-00003", "optimizer-00003-of-00003"])
@pytest.mark.parametrize(
    ("damage", "difference"),
    [
        (lambda path: path.unlink(), "cannot read {}"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "{} has"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff"), "{} was changed"),
        (
            lambda path: shutil.copy(path.with_name(path.name.replace("-0000", "-1000")), path),
            "No such file",
        ),
    ][:3],
    ids=["missing", "short", "changed"],
)
def test_a_damaged_slice_is_named_and_the_checkpoint_before_is_taken(
    small, tmp_path, file, damage, difference
):
    in_process.run(3, lambda comm: saved(comm, tmp_path))
    path = tmp_path / "step-000007"
    (tmp_path / "step-000003").mkdir()
    for each in path.iterdir():
        shutil.copy(each, tmp_path / "step-000003")
    manifest = tmp_path / "step-000003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 7', '"step": 3'))
    damage(path / f"{file}.safetensors")
    with pytest.raises(DataError, match=difference.format(f"{file}.safetensors")):
        load_checkpoint(path)
    warnings = []
    assert load_newest_checkpoint(tmp_path, warnings.append).step == 3
    assert len(warnings) == 1


@pytest.mark.parametrize("name", ["../model.safetensors", "model-1-of-2.safetensors", "notes.txt"])
def test_a_manifest_names_no_other_files(small, tmp_path, name):
    in_process.run(3, lambda comm: saved(comm, tmp_path))
    file = tmp_path / "step-000007" / "manifest.json"
    file.write_text(file.read_text().replace("model-00002-of-00003.safetensors", name))
    with pytest.raises(DataError, match=r"manifest\.json cannot be understood"):
        load_checkpoint(tmp_path / "step-000007")


# Runs ---------------------------------------------------------------------------------------------


def left(run: Path):
    """What a run has left, whoever wrote it."""
    last = load_checkpoint(list_checkpoints(run / "checkpoints")[-1])
    arrays = {**last.model, **last.optimizer}
    kept = {key: last.state[key] for key in ("step", "best", "random", "progress", "options")}
    return {n: a.tobytes() for n, a in arrays.items()}, kept, metrics(run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return left(train(write_run(tmp_path_factory.mktemp("whole")), *WORLD).path)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_four_ranks_saved_any_number_goes_on_from(small, tmp_path, whole, ranks):
    config = write_run(tmp_path)
    crashed = in_process.run(4, lambda comm: train(config, *WORLD, crash=14, comm=comm))[0]
    newest = list_checkpoints(crashed.path / "checkpoints")[-1]
    assert len([*newest.glob("optimizer-*-of-00004.safetensors")]) == 4
    assert not [*newest.parent.glob(".*.partial")] or newest.name < "step-000012"
    again = in_process.run(
        ranks, lambda comm: train(config, *WORLD, resume=crashed.path, comm=comm)
    )
    assert again[0].code == 0
    assert left(crashed.path) == whole
    assert not [*newest.parent.glob(".*")]
    link = crashed.path / "checkpoints" / "best"
    assert load_checkpoint(link).step == whole[1]["best"]["step"]


def test_a_run_of_slices_is_what_it_is_without_them_and_can_be_used(small, tmp_path, whole):
    config = write_run(tmp_path)
    run = in_process.run(2, lambda comm: train(config, *WORLD, comm=comm))[0].path
    assert left(run) == whole
    model = mt.load(run, trust=True)
    rows = np.load(tmp_path / "data.npz")["x"]
    assert model.predict(rows).shape[0] == len(rows)


FULL = """
import resource, signal
import microtrain as mt

class Full(mt.train.Callback):
    '''On one rank files may not grow between two steps.'''
    interval = "1 step"

    def __init__(self, begin, end, rank=2):
        self.begin, self.end, self.rank = begin, end, rank

    def on_step(self, trainer):
        if trainer.comm.rank == self.rank:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            if trainer.step == self.begin:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
            if trainer.step == self.end:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
"""

START = """
import sys
from microtrain.cli.main import main
from microtrain.runs import slices

slices.SLICE = 64
sys.exit(main(sys.argv[1:]))
"""


def started(mpirun, folder, ranks, *arguments, code=0):
    (folder / "start.py").write_text(START)
    job = mpirun(ranks, folder / "start.py", *arguments, cwd=folder)
    assert job.returncode == code, job.stdout + job.stderr
    return job


@pytest.mark.mpi
@pytest.mark.parametrize("end", [15, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_full_disk_of_one_rank_is_told_once_by_its_name(mpirun, tmp_path, end):
    write_run(tmp_path, RUN)
    with open(tmp_path / "net.py", "a") as file:
        file.write(FULL)
    job = started(
        mpirun, tmp_path, 3, "train", "run.yaml", "--trust", "run_dir=runs",
        f"callbacks=[{{type: ./net.py:Full, begin: 4, end: {end}}}]", "checkpoint.every=3 steps",
        "train.duration=60 steps", code=0 if end == 15 else 5,
    )  # fmt: skip
    said = job.stdout + job.stderr
    assert said.count("the run continues without a new checkpoint: rank 2: cannot write") == 1
    assert "File too large" in said
    checkpoints = tmp_path / "runs" / "small" / "latest" / "checkpoints"
    steps = [load_checkpoint(path).step for path in list_checkpoints(checkpoints)]
    assert not [*checkpoints.glob(".*")]
    if end == 15:
        assert steps[-1] == 60
    else:
        assert "error: rank 2: cannot write the checkpoint" in said
        assert 60 not in steps


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("step", [5, 9, 14, 20])
def test_kill_9_of_a_rank_while_slices_are_written_loses_nothing(mpirun, tmp_path, whole, step):
    write_run(tmp_path, RUN)
    more = ("--trust", "run_dir=runs", "checkpoint.every=1 step", *WORLD[:2], WORLD[3])
    die = f"callbacks=[{{type: ./net.py:Die, step: {step}, rank: 2}}]"
    (tmp_path / "start.py").write_text(START)
    job = mpirun(4, tmp_path / "start.py", "train", "run.yaml", *more, die, cwd=tmp_path)
    assert job.returncode not in (0, 75)
    run = tmp_path / "runs" / "small" / "latest"
    before = list_checkpoints(run / "checkpoints")
    assert all(load_checkpoint(path) for path in before)
    started(mpirun, tmp_path, 2, "resume", str(run), "--trust", WORLD[2])
    assert left(run)[0] == whole[0]
    assert left(run)[2] == whole[2]
    assert not [*(run / "checkpoints").glob(".*")]
