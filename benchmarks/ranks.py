"""What the benchmarks of several ranks share: the job, rounds that take turns, the table."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

if "numpy" not in sys.modules:  # before NumPy and torch start their threads
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"

import numpy as np

Results = dict[str, dict[str, float]]


def torch_distributed(comm: Any) -> Any:
    """torch with a process group over gloo of the ranks of `comm`; None where it is missing."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=os.environ["STORE"], rank=comm.rank, world_size=comm.size
    )
    return torch


def measure(comm: Any, steps: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median microseconds a step, of the rank that took longest in each round."""
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    counts = dict.fromkeys(steps, 5)
    end = time.perf_counter() + seconds
    more = True
    while more:
        for name, step in steps.items():
            comm.barrier()
            n = counts[name]
            start = time.perf_counter()
            for _ in range(n):
                step()
            took = np.array((time.perf_counter() - start) / n)
            rounds[name].append(float(comm.all_reduce(took, "max")) * 1e6)
            counts[name] = max(5, min(2000, int(30_000 / statistics.median(rounds[name]))))
        mine = time.perf_counter() < end or len(rounds[name]) < 7
        more = comm.broadcast_object(mine)
    return {name: statistics.median(found[2:]) for name, found in rounds.items()}


def job(script: str, ranks: int, seconds: float, limit: float) -> Results:
    """`mpirun -n RANKS python SCRIPT --worker FILE`; what rank 0 has written there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mpirun = Path(sys.executable).with_name("mpirun")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        subprocess.run(
            [str(mpirun) if mpirun.exists() else "mpirun", "-n", str(ranks), sys.executable, script,
             "--worker", out, "--seconds", str(seconds)],
            check=True,
            timeout=limit,
            env=os.environ | {
                "STORE": f"tcp://127.0.0.1:{port}",
                # For Open MPI: more ranks than cores, and root.
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                "OMPI_MCA_mpi_yield_when_idle": "1",
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            },
        )  # fmt: skip
        found: Results = json.loads(Path(out).read_text())
        return found


def main(
    description: str,
    script: str,
    worker: Callable[[float], Results | None],
    columns: Sequence[str],
    ratios: Sequence[str],
    must: Mapping[str, float],
) -> int:
    """Run the jobs and print their rows: `columns` in us, and `ratios` to torch."""
    from microtrain.capture.c_compiler import absent

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], metavar="N")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--worker", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        found = worker(options.seconds)
        if found is not None:
            Path(options.worker).write_text(json.dumps(found))
        return 0
    if importlib.util.find_spec("mpi4py") is None:
        print("left out: mpi4py is not installed (pip install -e '.[mpich]')")
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{platform.machine()}, {cores} cores, medians in us of the slowest rank")
    shown = "".join(f"{name:>11}" for name in columns)
    print(f"{'ranks  row':<30}{shown}" + "".join(f"{name + '/torch':>13}" for name in ratios))
    results = {}
    for ranks in options.ranks:
        results[ranks] = job(script, ranks, options.seconds, 300 + 20 * options.seconds)
        for row, found in results[ranks].items():
            line = f"{ranks:<7}{row:<23}"
            line += "".join(f"{_text(found.get(name), ',.1f'):>11}" for name in columns)
            for name in ratios:
                both = name in found and "torch" in found
                line += f"{_text(found[name] / found['torch'] if both else None, '.4f'):>13}"
            print(line + (f"   must {must[row]:g}" if row in must else ""), flush=True)
    if importlib.util.find_spec("torch") is None:
        print("left out: torch is not installed (pip install torch==2.13.0)")
    if absent():
        print(f"left out: {absent()}")
    if options.json:
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"versions": versions, "us": results}, file, indent=2)
    return 0


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
