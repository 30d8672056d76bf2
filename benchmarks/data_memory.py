"""Memory of a job's data: 200 MB in memory, and 4 GB on the disk, trained on by several ranks.

A YAML run of linear regression on an npz file, 5 million rows of 9 inputs and a target in float32,
and the same run on 1,000 rows, each a real job under mpirun. While it runs, the proportional set
size (PSS, /proc/PID/smaps_rollup: a page that n processes share counts 1/n in each) of all its
processes is added up every 50 ms. What the large one has beyond the small one is of the data.

    peak    the highest sum: reading and preparing included
    train   the median of the second half of the steps

    python benchmarks/data_memory.py                           # the table
    python benchmarks/data_memory.py --ranks 4 --json FILE     # one row, and its numbers

With --file 4 a .npy file of 4 GB is trained on instead, 100 inputs of float32, whose ranks may each
ask for 512 MB (RLIMIT_DATA, maps of files apart). Told of the rank that has most, by looks every
20 ms:

    anonymous     the most memory that no file backs
    of the data   what it has beyond the same job on 1,000 rows

And rows a second of the loaders alone, shuffled, batches of 256, from the page cache: of microtrain
over the file and over an array in memory, and of torch's DataLoader with two workers over the same
file, a row at a time (Dataset.__getitem__) and a batch at a time (__getitems__). All of them take
turns; told are medians and ranges, and that of the ratios of each round. Then the steps of whole
runs from an npz file of 1 GB, read into memory and mapped, taking turns too; and the time to the
first batch of a source of a thousand million rows, each in a fresh process.

    python benchmarks/data_memory.py --file 4 --torch .venv-torch/bin/python

With --speed 1 nothing but speeds, of 1 GB in rows of 100 inputs, all in one process and in turns:
an array in memory, .npy files, an npz file, and .npy files whose maps are kept to pages of 4 kB
(MADV_NOHUGEPAGE), as they are where the system has none larger for files. First the loader alone,
then a split read by a small step in NumPy. Told are nanoseconds of a row, of the processor and of
the clock, and the ratio of memory to each in every turn, in time of the processor.

    python benchmarks/data_memory.py --speed 1
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def start_job(ranks: int, arguments: list[str], directory: str) -> subprocess.Popen[bytes]:
    """Python under mpirun."""
    mpirun = Path(sys.executable).with_name("mpirun")
    start = [mpirun if mpirun.exists() else shutil.which("mpirun"), "-n", str(ranks)]
    return subprocess.Popen(
        [*start, sys.executable, *arguments],
        cwd=directory,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def measure(ranks: int, rows: int) -> dict[str, float]:
    """The highest sum of a job, and the median while it trains, in bytes."""
    numbers = np.random.default_rng(0).standard_normal((rows, 10), np.float32)
    with tempfile.TemporaryDirectory() as directory:
        np.savez(Path(directory, "data.npz"), x=numbers[:, :9], y=numbers[:, 9:])
        del numbers
        Path(directory, "run.yaml").write_text(RUN, encoding="utf-8")
        job = start_job(ranks, ["-m", "microtrain", "train", "run.yaml"], directory)
        sums = []
        while job.poll() is None:
            sums.append((time.monotonic(), sum(map(pss, descendants(job.pid)))))
            time.sleep(0.05)
        if job.returncode:
            sys.exit(f"the job ended with code {job.returncode}")
    end = sums[-1][0]
    trained = [total for at, total in sums if end - 7 < at < end - 2]
    return {"peak": max(total for _, total in sums), "train": statistics.median(trained)}


COLUMNS = 100
BLOCK = 10_000  # rows, 4 MB, that are written at once
LIMIT = 512 * 2**20  # bytes that a rank may ask for
OF_DATA = 120e6  # bytes beyond the small job, of the rank with most
ROUNDS = 5  # of all loaders, one after another
LEAST = 0.9  # of the rows a second of an array in memory

FIRST_BATCH = 50.0  # ms, of a thousand million rows

FIRST = """
import time
import numpy as np
import microtrain as mt

source = mt.data.FunctionSource(lambda rows: (rows[:, None] * 1.0, rows[:, None] * 2.0), 10**9)
start = time.perf_counter()
next(iter(mt.data.DataLoader(source, 256, seed=1)))
print((time.perf_counter() - start) * 1e3)
"""

LIMITED = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_DATA, ({LIMIT}, {LIMIT}))
sys.argv[0] = "microtrain"
runpy.run_module("microtrain", run_name="__main__")
"""

# Trains for some steps on rows from all over the file.
ON_FILE = """\
name: memory
data: {type: npy, inputs: x.npy, target: y.npy, split: {train: 0.99, val: 0.01}}
model: linear_regression
loss: mse
optimizer: {type: sgd, lr: 0.01}
train: {duration: 2000 steps, batch_size: 256, eval_every: 1000000 steps}
distributed: {blas_threads: 1}
"""

TRAINED = """\
name: speed
data: {{type: npz, path: data.npz, target: y, split: {{train: 0.99, val: 0.01}}, in_memory: {0}}}
model: linear_regression
loss: mse
optimizer: {{type: sgd, lr: 0.01}}
train: {{duration: 40000 steps, batch_size: 256, eval_every: 1000000 steps}}
distributed: {{blas_threads: 1}}
"""

OURS = """
import sys, time
import numpy as np
import microtrain as mt

source = mt.data.npy("x.npy", target="y.npy")
if sys.argv[1] == "memory":
    source = mt.data.ArrayDataset(np.load("x.npy"), np.load("y.npy"))
loader = mt.data.DataLoader(source, 256, seed=1)
"""

TORCH = """
import sys, time
import numpy as np
import torch

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = (np.load(f"{name}.npy", mmap_mode="r") for name in "xy")
    def __len__(self):
        return len(self.x)
    def __getitem__(self, row):
        return torch.from_numpy(self.x[row].copy()), torch.from_numpy(self.y[row].copy())

class Batches(Rows):
    def __getitems__(self, rows):
        return torch.from_numpy(self.x[rows]), torch.from_numpy(self.y[rows])

kind = {"rows": Rows, "batches": Batches}[sys.argv[1]]
more = {"collate_fn": lambda batch: batch} if kind is Batches else {}
loader = torch.utils.data.DataLoader(kind(), 256, shuffle=True, num_workers=2, **more)
"""

# Rows a second over some 5 s, once the first batches are there.
PASS = """
for number, batch in enumerate(loader):
    if number == 10:
        start = time.perf_counter()
    if number > 10 and (took := time.perf_counter() - start) > 5:
        break
print((number - 10) * 256 / took)
"""


def write_file(directory: str, rows: int) -> None:
    """x.npy and y.npy, by blocks, as a program writes what does not fit in memory."""
    rng = np.random.default_rng(0)
    with open(f"{directory}/x.npy", "wb") as x, open(f"{directory}/y.npy", "wb") as y:
        for file, columns in ((x, COLUMNS), (y, 1)):
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)}
            np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, rows, BLOCK):
            numbers = rng.standard_normal((min(BLOCK, rows - first), COLUMNS), np.float32)
            numbers.tofile(x)
            (numbers[:, :1] - numbers[:, 1:2]).tofile(y)


def anonymous(process: int) -> int:
    """Bytes of memory that no file backs; 0 for a process that has ended meanwhile."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = [line.split() for line in text.splitlines() if line.startswith("RssAnon:")]
    return int(lines[0][1]) * 1024 if lines else 0


def train_on_file(directory: str, ranks: int) -> dict[str, float]:
    """Most anonymous memory of a rank, its steps' rows a second, and seconds of the whole job."""
    Path(directory, "run.yaml").write_text(ON_FILE, encoding="utf-8")
    Path(directory, "limited.py").write_text(LIMITED, encoding="utf-8")
    started, most = time.monotonic(), 0
    job = start_job(ranks, ["limited.py", "train", "run.yaml"], directory)
    while job.poll() is None:
        most = max([most, *map(anonymous, descendants(job.pid))])
        time.sleep(0.02)
    if job.returncode:
        sys.exit(f"the job ended with code {job.returncode}")
    took = time.monotonic() - started
    lines = Path(directory, "runs/memory/latest/metrics.jsonl").read_text().splitlines()
    speeds = [row["samples_per_s"] for row in map(json.loads, lines) if "samples_per_s" in row]
    return {"anonymous": most, "rows": statistics.median(speeds), "seconds": took}


def trained(directory: str, in_memory: bool) -> float:
    """Rows a second of a whole run's steps."""
    Path(directory, "run.yaml").write_text(TRAINED.format(str(in_memory).lower()), encoding="utf-8")
    if start_job(1, ["-m", "microtrain", "train", "run.yaml"], directory).wait():
        sys.exit("the job has failed")
    lines = Path(directory, "runs/speed/latest/metrics.jsonl").read_text().splitlines()
    speeds = [row["samples_per_s"] for row in map(json.loads, lines) if "samples_per_s" in row]
    return statistics.median(speeds)


def load(python: str, program: str, how: str, directory: str, then: str = PASS) -> float:
    """Rows a second of a loader, or what else a program prints."""
    command = [python, "-c", program + then, how]
    found = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        sys.exit(found.stderr)
    return float(found.stdout)


def on_file(gigabytes: float, ranks: list[int], torch: str) -> tuple[dict[str, object], bool]:
    """The table of a file; its numbers, and whether they are as they must be."""
    jobs: dict[str, object] = {}
    below = True
    print(f"{'MB of a rank':<16}{'anonymous':>12}{'of the data':>13}{'rows/s':>12}{'job, s':>9}")
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as large:
        write_file(small, 1_000)
        write_file(large, round(gigabytes * 1e9 / (4 * COLUMNS)))
        for count in ranks:
            base = train_on_file(small, count)
            found = train_on_file(large, count)
            of_data = found["anonymous"] - base["anonymous"]
            jobs[str(count)] = {"small": base, "large": found}
            print(
                f"{f'{count} ranks':<16}{found['anonymous'] / 1e6:>12,.0f}{of_data / 1e6:>13,.0f}"
                f"{found['rows']:>12,.0f}{found['seconds']:>9,.0f}",
                flush=True,
            )
            below = below and of_data <= OF_DATA
        loaders = {
            "microtrain, in memory": (sys.executable, OURS, "memory"),
            "microtrain, the file": (sys.executable, OURS, "file"),
        }
        there = subprocess.run(
            [torch, "-c", "import torch, numpy"], capture_output=True, text=True, check=False
        )
        if there.returncode:
            print(f"torch is not installed for {torch}, so it is not measured; --torch names one")
        else:
            loaders["torch, a row at a time"] = (torch, TORCH, "rows")
            loaders["torch, a batch at a time"] = (torch, TORCH, "batches")
        speeds: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(ROUNDS):
            for name, loader in loaders.items():
                speeds[name].append(load(*loader, large))
        firsts = [load(sys.executable, FIRST, "", large, "") for _ in range(ROUNDS)]
    with tempfile.TemporaryDirectory() as directory:
        numbers = np.random.default_rng(0).standard_normal((2_500_000, COLUMNS), np.float32)
        np.savez(Path(directory, "data.npz"), x=numbers, y=numbers[:, :1] - numbers[:, 1:2])
        del numbers
        runs = {name: [0.0] * ROUNDS for name in ("run, in memory", "run, the file")}
        for number in range(ROUNDS):
            for name in runs:
                runs[name][number] = trained(directory, in_memory=name == "run, in memory")
    ours = zip(speeds["microtrain, the file"], speeds["microtrain, in memory"], strict=True)
    ratios = [file / memory for file, memory in ours]
    for name, found_speeds in (speeds | runs).items():
        print(f"{name:<28}{_spread(found_speeds, ',.0f')} rows/s")
    both = zip(runs["run, the file"], runs["run, in memory"], strict=True)
    of_runs = [file / memory for file, memory in both]
    print(f"{'loader, file / memory':<28}{_spread(ratios, '.2f')}, must be {LEAST}")
    print(f"{'run, file / memory':<28}{_spread(of_runs, '.2f')}, must be {LEAST}")
    print(f"{'first batch of 1e9 rows':<28}{_spread(firsts, '.1f')} ms, must be {FIRST_BATCH:.0f}")
    right = below and min(map(statistics.median, (ratios, of_runs))) >= LEAST
    right = right and statistics.median(firsts) <= FIRST_BATCH
    numbers = {"jobs": jobs, "loaders": speeds, "ratios": ratios, "runs": runs, "firsts": firsts}
    return numbers, right


TURN, TURNS = 400, 25  # batches, and how often; before them three turns that do not count
MEMORY, PAGES = "memory", "npy, 4 kB"


def sources(directory: str, rows: int) -> dict[str, Any]:
    """The same numbers in memory and in files, which are written and then mapped."""
    import microtrain as mt
    from microtrain.data.readers.npy import Stored
    from microtrain.data.readers.npz import map_npz

    x = np.random.default_rng(0).standard_normal((rows, COLUMNS), np.float32)
    y = x[:, :1] - x[:, 1:2]
    paths = [Path(directory, name) for name in ("x.npy", "y.npy", "both.npz")]
    np.save(paths[0], x)
    np.save(paths[1], y)
    np.savez(paths[2], x=x, y=y)
    small = mt.data.npy(paths[0], target=paths[1])
    for column in small._columns:
        for each in column._maps:
            each.madvise(mmap.MADV_NOHUGEPAGE)
    return {
        MEMORY: mt.data.ArrayDataset(x, y),
        "npy": mt.data.npy(paths[0], target=paths[1]),
        "npz": Stored([map_npz(paths[2], name) for name in "xy"]),
        PAGES: small,
    }


def batches(source: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    import microtrain as mt

    loader = mt.data.DataLoader(source, 256, seed=1)
    while True:
        yield from loader


def in_turns(found: dict[str, Any], with_step: bool) -> dict[str, dict[str, list[float]]]:
    """Nanoseconds of a row, turn by turn, of the processor and of the clock."""
    for source in found.values():  # each page is there before
        for first in range(0, len(source), 10_000):
            for array in source.read(slice(first, first + 10_000)):
                array.sum()
    weights = np.zeros((COLUMNS, 1), np.float32)
    endless = {name: batches(source) for name, source in found.items()}
    times: dict[str, dict[str, list[float]]] = {name: {"cpu": [], "wall": []} for name in found}
    for turn in range(TURNS + 3):
        for name, each in endless.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(TURN):
                x, y = (tensor.numpy() for tensor in next(each))
                if with_step:
                    weights -= 1e-4 * (x.T @ (x @ weights - y))
            spent = time.process_time() - cpu, time.perf_counter() - wall
            if turn >= 3:
                for kind, seconds in zip(("cpu", "wall"), spent, strict=True):
                    times[name][kind].append(seconds / TURN / 256 * 1e9)
    return times


def speeds_of_maps(gigabytes: float) -> tuple[dict[str, object], bool]:
    """The table of speeds; its numbers, and whether they are as they must be."""
    from microtrain.data import prepare

    numbers: dict[str, object] = {}
    right = True
    with tempfile.TemporaryDirectory() as directory:
        found = sources(directory, round(gigabytes * 1e9 / (4 * COLUMNS)))
        for what, with_step in (("loader", False), ("split and step", True)):
            if with_step:
                split = {"train": 0.99, "val": 0.01}
                found = {name: prepare(each, split=split).train for name, each in found.items()}
            numbers[what] = times = in_turns(found, with_step)
            print(f"{what:<16}{'cpu, ns':>10}{'wall, ns':>10}   memory / file, cpu")
            for name, spent in times.items():
                pairs = zip(times[MEMORY]["cpu"], spent["cpu"], strict=True)
                ratios = [memory / file for memory, file in pairs]
                cpu, wall = (statistics.median(spent[kind]) for kind in ("cpu", "wall"))
                print(f"{name:<16}{cpu:>10.0f}{wall:>10.0f}{_spread(ratios, '.2f')}", flush=True)
                right = right and statistics.median(ratios) >= LEAST
    return numbers, right


def _spread(values: list[float], form: str) -> str:
    """The median, and the least and largest."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:>12{form}} ({low:{form}} to {high:{form}})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--file", type=float, metavar="GB", help="train on a .npy file of so many")
    parser.add_argument("--speed", type=float, metavar="GB", help="speeds alone, of so many")
    parser.add_argument("--torch", default=sys.executable, help="a Python that has torch")
    options = parser.parse_args()
    if options.file or options.speed:
        if options.speed:
            numbers, right = speeds_of_maps(options.speed)
        else:
            numbers, right = on_file(options.file, options.ranks, os.path.abspath(options.torch))
        if options.json:
            Path(options.json).write_text(json.dumps(numbers, indent=2), encoding="utf-8")
        return 0 if right else 1
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
