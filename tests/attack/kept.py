"""Bits that flip in what is kept for later runs: prepared data, native code, members of a sweep.

A run or a prediction that reads them gives what it gave before, or one message.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import mpi_run

from attack.campaign import Defect, Kind
from microtrain.runs.directory import newest_run

RUN = """
name: kept
data: {type: csv, path: iris.csv, target: species, standardize: true, cache: kept,
       split: {train: 0.7, val: 0.3}}
model: {type: mlp, hidden: [5]}
loss: cross_entropy
optimizer: {type: adam, lr: 0.02}
train: {duration: 4 epochs, batch_size: 16, compile: native}
"""
SUFFIXES = (".npy", ".json", ".nbc", ".nbi", ".py", ".safetensors")
SWEEPS = 0.3  # of the trials
SWEEP = ("sweep.seeds=2", "train.compile=numpy")


def run(folder: Path, *words: str) -> mpi_run.Job:
    job = mpi_run.run_job(
        [sys.executable, "-m", "microtrain", *words], timeout=100, cwd=folder,
        env={"XDG_CACHE_HOME": str(folder / "cache"), "MICROTRAIN_REPORT": "off"},
    )  # fmt: skip
    if job.returncode < 0 or job.returncode not in (0, 2, 3, 5) or "Traceback" in job.stderr:
        raise Defect("tracebacks", str(job))
    if job.returncode and len(job.stderr.partition("error: ")[2].strip()) < 10:
        raise Defect("lost", f"no message: {job}")
    return job


def found(folder: Path, sweep: bool) -> object:
    """What is compared; None where a message said that it could not be had."""
    if not sweep:
        job = run(folder, "train", "run.yaml")
        newest = newest_run(folder / "runs" / "kept")
        assert newest is not None
        info = json.loads((newest / "run.json").read_text())
        return None if job.returncode else info["params_sha256"]
    words = ("predict", "runs/kept", "--input", "iris.csv", "--output", "out.csv", "--proba")
    job = run(folder, *words, "--force")
    return None if job.returncode else (folder / "out.csv").read_text()


def flip(draw: random.Random, file: Path) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(draw.choice((1, 1, 3))):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def trial(seed: int, folder: Path) -> None:
    draw = random.Random(seed)
    sweep = draw.random() < SWEEPS
    shutil.copy(mpi_run.REPOSITORY / "configs" / "data" / "iris.csv", folder)
    (folder / "run.yaml").write_text(RUN)
    run(folder, "train", "run.yaml", *(SWEEP if sweep else ()))
    expected = found(folder, sweep)
    places = [folder / "runs"] if sweep else [folder / "kept", folder / "cache"]
    files = [
        path
        for place in places
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.stat().st_size and path.suffix in SUFFIXES
    ]
    victim = draw.choice(files)
    print(victim.relative_to(folder))
    flip(draw, victim)
    again = found(folder, sweep)
    if again is not None and again != expected:
        raise Defect("different", f"after a bit of {victim.relative_to(folder)} has flipped")


KIND = Kind(trial, limit=200)
