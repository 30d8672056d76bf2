"""Memory of a job's data: 200 MB trained on by several ranks of one host.

A YAML run of linear regression on an npz file, 5 million rows of 9 inputs and a target in float32,
and the same run on 1,000 rows, each a real job under mpirun. While it runs, the proportional set
size (PSS, /proc/PID/smaps_rollup: a page that n processes share counts 1/n in each) of all its
processes is added up every 50 ms. What the large one has beyond the small one is of the data.

    peak    the highest sum: reading and preparing included
    train   the median of the second half of the steps

    python benchmarks/data_memory.py                           # the table
    python benchmarks/data_memory.py --ranks 4 --json FILE     # one row, and its numbers
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROWS = {"small": 1_000, "large": 5_000_000}
RANKS = (1, 2, 4)
MUST = {4: 350e6}  # bytes while training, by ranks

RUN = """\
name: memory
data: {type: npz, path: data.npz, target: y, split: {train: 0.9, val: 0.1}}
model: linear_regression
loss: mse
optimizer: {type: sgd, lr: 0.01}
train: {duration: 0.2 min, batch_size: 256, compile: off, eval_every: 1000000 steps}
distributed: {blas_threads: 1}
"""


def pss(process: int) -> int:
    """Bytes; 0 for a process that has ended meanwhile."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = [line.split() for line in text.splitlines() if line.startswith("Pss:")]
    return int(lines[0][1]) * 1024 if lines else 0


def descendants(process: int) -> list[int]:
    """The processes that it has started, and those that they have."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text(encoding="ascii").split()]
        except OSError:
            continue
        found += [each for child in children for each in (child, *descendants(child))]
    return found


def measure(ranks: int, rows: int) -> dict[str, float]:
    """The highest sum of a job, and the median while it trains, in bytes."""
    numbers = np.random.default_rng(0).standard_normal((rows, 10), np.float32)
    with tempfile.TemporaryDirectory() as directory:
        np.savez(Path(directory, "data.npz"), x=numbers[:, :9], y=numbers[:, 9:])
        del numbers
        Path(directory, "run.yaml").write_text(RUN, encoding="utf-8")
        mpirun = Path(sys.executable).with_name("mpirun")
        start = [mpirun if mpirun.exists() else shutil.which("mpirun"), "-n", str(ranks)]
        job = subprocess.Popen(
            [*start, sys.executable, "-m", "microtrain", "train", "run.yaml"],
            cwd=directory,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        sums = []
        while job.poll() is None:
            sums.append((time.monotonic(), sum(map(pss, descendants(job.pid)))))
            time.sleep(0.05)
        if job.returncode:
            sys.exit(f"the job ended with code {job.returncode}")
    end = sums[-1][0]
    trained = [total for at, total in sums if end - 7 < at < end - 2]
    return {"peak": max(total for _, total in sums), "train": statistics.median(trained)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    options = parser.parse_args()
    results: dict[int, dict[str, dict[str, float]]] = {}
    print(f"{'MB, all ranks':<16}{'peak':>10}{'train':>10}   of the data: {'peak':>8}{'train':>8}")
    below = True
    for ranks in options.ranks:
        found = results[ranks] = {name: measure(ranks, rows) for name, rows in ROWS.items()}
        own = {key: found["large"][key] - found["small"][key] for key in ("peak", "train")}
        line = "".join(f"{found['large'][key] / 1e6:>10,.0f}" for key in own)
        line += " " * 16 + "".join(f"{own[key] / 1e6:>8,.0f}" for key in own)
        print(f"{f'{ranks} ranks':<16}{line}", flush=True)
        below = below and own["train"] <= MUST.get(ranks, float("inf"))
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2), encoding="utf-8")
    return 0 if below else 1


if __name__ == "__main__":
    sys.exit(main())
