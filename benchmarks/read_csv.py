"""CSV files of 1e6 rows: time and memory of the reader, beside pandas, pyarrow and NumPy.

Each reading is a process of its own, one reader after another, several times; what is imported and
read once before is not timed. Three files: 9 inputs and a target with 6 decimals; five of the
inputs whole numbers; the target one of three texts.

    cpu, wall   medians of seconds; beside pandas' C reader as a ratio
    memory      the highest resident memory beyond that before, in sizes of the numbers as float64

    python benchmarks/read_csv.py                          # the table
    python benchmarks/read_csv.py --rows 100000 --rounds 1 --json FILE
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

READ = """\
import json, sys, time
from pathlib import Path

reader, warm, path = sys.argv[1:]
try:
    if reader == "microtrain, no pyarrow":
        sys.modules["pyarrow"] = None
    elif reader == "microtrain":
        import pyarrow.csv
    if reader.startswith("microtrain"):
        from microtrain.data import csv
        read = lambda path: csv(Path(path), "y")
    elif reader == "pandas":
        import pandas
        read = lambda path: pandas.read_csv(path, engine="c")  # the default may be pyarrow's
    elif reader == "pandas, pyarrow":
        import pandas, pyarrow
        read = lambda path: pandas.read_csv(path, engine="pyarrow")
    elif reader == "pyarrow":
        from pyarrow.csv import read_csv as read
    else:
        import numpy
        read = lambda path: numpy.loadtxt(path, delimiter=",", skiprows=1, comments=None)
except ImportError as error:
    sys.exit(f"not installed: {error.name}")

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

try:
    read(warm)
    Path("/proc/self/clear_refs").write_text("5")
    before, cpu, wall = status("VmRSS"), time.process_time(), time.perf_counter()
    table = read(path)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
except ValueError:  # NumPy of texts
    sys.exit("cannot read it")
print(json.dumps({"cpu": cpu, "wall": wall, "memory": status("VmHWM") - before}))
"""
READERS = (
    *("pandas", "microtrain", "microtrain, no pyarrow"),
    *("pandas, pyarrow", "pyarrow", "numpy.loadtxt"),
)
MUST = 1.5  # times the CPU time of pandas, with pyarrow; 1.7 without, for decimals
MOST_MEMORY = 2.5


def write(path: Path, kind: str, rows: int) -> None:
    """A file of 10 columns, made of one of 10,000 rows."""
    random = np.random.default_rng(0)
    part = min(rows, 10_000)
    columns = [[f"{x:.6f}" for x in random.standard_normal(part)] for _ in range(10)]
    if kind == "whole numbers":
        columns[4:9] = [[str(x) for x in random.integers(0, 10**k, part)] for k in range(1, 6)]
    if kind == "text target":
        columns[9] = random.choice(["setosa", "versicolor", "virginica"], part).tolist()
    text = "\n".join(map(",".join, zip(*columns, strict=True))) + "\n"
    with path.open("w", encoding="ascii") as file:
        file.write(",".join([*(f"x{i}" for i in range(9)), "y"]) + "\n")
        for _ in range(rows // part):
            file.write(text)


def measure(reader: str, warm: Path, path: Path) -> dict[str, float] | str:
    """What one reading took, or why there was none."""
    command = [sys.executable, "-c", READ, reader, str(warm), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 else lines[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="multiple of 10,000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the medians there too")
    args = parser.parse_args()
    results: dict[str, dict[str, dict[str, float] | str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("decimals", "whole numbers", "text target"):
            warm, path = Path(folder) / "warm.csv", Path(folder) / "data.csv"
            write(warm, kind, 10_000)
            write(path, kind, args.rows)
            rounds = [{r: measure(r, warm, path) for r in READERS} for _ in range(args.rounds)]
            results[kind] = row = {}
            for reader in READERS:
                found = [each[reader] for each in rounds]
                numbers = [each for each in found if isinstance(each, dict)]
                row[reader] = found[0] if len(numbers) < len(found) else {
                    key: statistics.median(each[key] for each in numbers) for key in numbers[0]
                }  # fmt: skip
            base = row["pandas"]
            print(f"{kind}, {path.stat().st_size / 1e6:.0f} MB")
            for reader, each in row.items():
                if isinstance(each, str):
                    print(f"  {reader:24} {each}")
                    continue
                ratios = {
                    key: f"({each[key] / base[key]:.2f})" if isinstance(base, dict) else ""
                    for key in ("cpu", "wall")
                }
                print(
                    f"  {reader:24} cpu {each['cpu']:.2f} s {ratios['cpu']:6} "
                    f"wall {each['wall']:.2f} s {ratios['wall']:6} "
                    f"memory {each['memory'] / (args.rows * 80):.1f}"
                )
    print(f"must: microtrain's cpu at most {MUST} of pandas', memory at most {MOST_MEMORY}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
