"""Memory that a run says it will take, beside what it took: six runs of different kinds.

Each is a real run in a process of its own (one: a job under mpirun), on data made here. What it
will take is printed in its header (`memory`), what it took in its last lines (`took`): the peak of
resident memory of rank 0, as the kernel counts it.

    python benchmarks/predicted_memory.py                 # the table
    python benchmarks/predicted_memory.py --only classes  # rows whose name contains this text
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

MUST = 0.15  # by how much a prediction may be wrong

YAML = """\
name: memory
loss: {loss}
optimizer: {{type: {optimizer}, lr: 0.001}}
model: {model}
data: {data}
train: {train}
distributed: {{blas_threads: 1}}
{more}
"""
NPZ = {
    "data": "{type: npz, path: data.npz, target: y, split: {train: 0.9, val: 0.1}}",
    "model": "linear_regression",
    "train": "{duration: 200 steps, batch_size: 256}",
}
RUNS = {
    "npz of 200 MB": NPZ,
    "npz of 200 MB, 4 ranks": NPZ,
    "checkpoints of 9 million parameters": {
        "data": "{type: synthetic_random, samples: 2000, features: 64, targets: 64}",
        "model": "{type: mlp, hidden: [2944, 2944]}",
        "optimizer": "adam",
        "train": "{duration: 10 steps, batch_size: 64}",
        "more": "checkpoint: {every: 3 steps, monitor: train/loss}",
    },
    "native code": {
        "data": "{type: synthetic_random, samples: 8000, features: 8, targets: 1}",
        "model": "{type: mlp, hidden: [16]}",
        "optimizer": "adam",
        "train": "{duration: 5000 steps, batch_size: 64, compile: numba}",
    },
    "evaluation of 20,000 classes": {
        "data": "{type: npz, path: classes.npz, target: y, split: {train: 0.5, val: 0.5}}",
        "model": "{type: mlp, hidden: [8]}",
        "loss": "cross_entropy",
        "train": "{duration: 20 steps, batch_size: 16}",
        "more": "metrics: [accuracy]",
    },
    "memory map of 1 GB": {
        "data": "{type: npy, inputs: x.npy, target: y.npy, split: {train: 0.9, val: 0.1}}",
        "model": "linear_regression",
        "train": "{duration: 1 epoch, batch_size: 2560}",
    },
}
UNITS = {"B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9}


def make_data(name: str, place: Path) -> None:
    """The files that a run reads."""
    random = np.random.default_rng(0)
    if name.startswith("npz"):
        numbers = random.standard_normal((5_000_000, 10), np.float32)
        np.savez(place / "data.npz", x=numbers[:, :9], y=numbers[:, 9:])
    elif "classes" in name:
        y = np.concatenate([np.arange(20_000), np.arange(20_000)])
        np.savez(place / "classes.npz", x=random.standard_normal((40_000, 4), np.float32), y=y)
    elif "map" in name:
        x = np.lib.format.open_memmap(place / "x.npy", "w+", np.float32, (2_500_000, 100))
        for first in range(0, len(x), 100_000):
            x[first : first + 100_000] = random.standard_normal((100_000, 100), np.float32)
        np.save(place / "y.npy", random.standard_normal((2_500_000, 1), np.float32))


def measure(name: str, shown: bool = False) -> tuple[float, float]:
    """Bytes that the run said it would take, and that it took."""
    given = {"loss": "mse", "optimizer": "sgd", "more": "", **RUNS[name]}
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        make_data(name, place)
        (place / "run.yaml").write_text(YAML.format(**given), encoding="utf-8")
        start = [sys.executable, "-m", "microtrain", "train", "run.yaml"]
        if "ranks" in name:
            mpirun = Path(sys.executable).with_name("mpirun")
            start = [str(mpirun if mpirun.exists() else shutil.which("mpirun")), "-n", "4", *start]
        done = subprocess.run(
            start,
            cwd=directory,
            # Nothing is compiled before: LLVM belongs to the run.
            env=os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": directory},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if shown or done.returncode:
        print(done.stdout, done.stderr, flush=True)
    if done.returncode:
        sys.exit(f"{name}: the run ended with code {done.returncode}")
    predicted = re.search(r"predicted (\S+) (\w?B)", done.stdout)
    taken = re.search(r"peak memory (\S+) (\w?B)", done.stdout)
    if predicted is None or taken is None:
        sys.exit(f"{name}: the run says nothing of its memory")
    said, took = (float(found[1]) * UNITS[found[2]] for found in (predicted, taken))
    return said, took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument("--show", action="store_true", help="what the runs print, too")
    options = parser.parse_args()
    results: dict[str, tuple[float, float]] = {}
    print(f"{'peak memory of rank 0, MB':<38}{'predicted':>10}{'taken':>10}{'ratio':>8}")
    right = True
    for name in (name for name in RUNS if options.only in name):
        said, took = results[name] = measure(name, options.show)
        print(f"{name:<38}{said / 1e6:>10,.1f}{took / 1e6:>10,.1f}{said / took:>8.2f}", flush=True)
        right = right and abs(said / took - 1) <= MUST
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2), encoding="utf-8")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
