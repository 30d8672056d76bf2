"""Commands that look at runs with very many rows of metrics: seconds and memory of each.

Two run directories are made, each with a metrics.jsonl as a run writes it (rows of train and val in
turn). Every command is a process of its own, started from nothing; its peak of resident memory is
what the kernel counts for it.

    python benchmarks/long_runs.py                          # a million rows
    python benchmarks/long_runs.py --rows 100000 --json FILE
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MUST = {"seconds": 3.0, "memory": 200e6}
COMMANDS = {
    "report": ["report", "a"],
    "plot": ["plot", "a"],
    "compare, two runs": ["compare", "a", "b"],
}
CONFIG = """\
name: long
model: linear_regression
loss: mse
metrics: [r2]
data:
  {type: synthetic_linear, samples: 1000, weights: [2], bias: 3, noise: 0.5,
   split: {train: 0.8, val: 0.2}}
optimizer: {type: sgd, lr: 0.1}
train: {duration: 1 epoch, batch_size: 64}
"""


def make_run(directory: Path, rows: int, seed: int) -> None:
    """A run that was trained for an epoch, with the rows of a long one."""
    (directory.parent / "run.yaml").write_text(CONFIG, encoding="utf-8")
    start = [sys.executable, "-m", "microtrain", "train", "run.yaml", f"run_dir={directory}.runs"]
    subprocess.run(start, cwd=directory.parent, check=True, capture_output=True)
    Path(f"{directory}.runs/long/latest").resolve().rename(directory)
    draw = random.Random(seed).random
    with open(directory / "metrics.jsonl", "w", encoding="utf-8") as file:
        for i in range(1, rows // 2 + 1):
            place = {"step": 10 * i, "epoch": i / 50, "samples": 640 * i}
            clock = {"time": i / 1000, "samples_per_s": 1e5 * draw()}
            train = {"split": "train", **place, "loss": draw(), "lr": 0.1, **clock}
            val = {"split": "val", **place, "loss": draw(), "r2": draw(), "time": i / 1000}
            file.write(json.dumps(train) + "\n" + json.dumps(val) + "\n")


def measure(command: list[str], place: str) -> dict[str, float]:
    """Seconds, those of the processor and the peak of memory in bytes of a command."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "microtrain", *command], cwd=place, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    cpu = used.ru_utime + used.ru_stime
    return {"seconds": seconds, "cpu": cpu, "memory": used.ru_maxrss * unit}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        for seed, name in enumerate("ab"):
            make_run(Path(place, name), options.rows, seed)
        print(f"{'command':<20}{'seconds':>10}{'processor':>11}{'MB':>8}")
        for name, command in COMMANDS.items():
            found = results[name] = measure(command, place)
            line = f"{name:<20}{found['seconds']:>10.1f}{found['cpu']:>11.1f}"
            print(f"{line}{found['memory'] / 1e6:>8,.0f}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2), encoding="utf-8")
    met = all(found[key] <= most for found in results.values() for key, most in MUST.items())
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
