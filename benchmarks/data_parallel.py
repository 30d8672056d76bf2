"""A data-parallel step over MPI against the same step in PyTorch's DistributedDataParallel.

One job: every rank trains with both libraries, PyTorch over gloo, in rounds that take turns, so that
a busy neighbour slows both alike. A step is zero_grad, forward, MSE, backward with the reduction,
SGD with momentum; the batch is that of each rank. Medians over the rounds of the slowest rank, in
microseconds, and the ratio to PyTorch. Both must have learned the same, or there are no figures.

    python benchmarks/data_parallel.py                # 2 and 4 ranks
    python benchmarks/data_parallel.py --ranks 2 --json data_parallel.json
"""

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
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

if "numpy" not in sys.modules:  # before NumPy and torch start their threads
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"

import numpy as np
from step import NETS, arrays  # after NumPy: it would pin all ranks to one core

ROWS = ("linreg 32x1x1", "small 16x8x16x1", "seed 64x1000x100x10")
MUST = {"linreg 32x1x1": 0.02, "small 16x8x16x1": 0.02, "seed 64x1000x100x10": 0.35}
OURS = ("eager", "numpy", "numba")
CHECKED = 5  # steps after which the libraries must agree
Step = Callable[[], Any]


def make(library: Any, row: str, wrap: Callable[[Any], Any], rank: int) -> tuple[Any, Any, Any]:
    """A model, its data-parallel wrapper, and a step; the same initial weights everywhere."""
    batch, widths = NETS[row]
    layers: list[Any] = []
    rng = np.random.default_rng(1)
    for inputs, outputs in pairwise(widths):
        layer = library.nn.Linear(inputs, outputs)
        with library.no_grad():
            for p in layer.parameters():
                values = rng.uniform(-1, 1, tuple(p.shape)) / inputs**0.5
                p.copy_(library.from_numpy(values.astype("f4")))
        layers += [layer, library.nn.ReLU()]
    model = library.nn.Sequential(*layers[:-1])
    parallel = wrap(model)
    optimizer = library.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = arrays(batch, widths)
    x, y = map(library.from_numpy, (x + np.float32(rank), y))
    mse_loss = library.nn.functional.mse_loss

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, step, (x, y)


def values(model: Any) -> np.ndarray:
    parts = [p.detach().numpy().reshape(-1) for p in model.parameters()]
    return np.concatenate(parts)


def worker(seconds: float, out: str) -> None:
    """What each rank does."""
    import torch

    import microtrain as mt

    torch.set_num_threads(1)
    comm = mt.distributed.world()
    torch.distributed.init_process_group(
        "gloo", init_method=os.environ["STORE"], rank=comm.rank, world_size=comm.size
    )
    executors = [n for n in OURS if n != "numba" or importlib.util.find_spec("numba") is not None]
    results: dict[str, dict[str, float]] = {}
    for row in ROWS:
        steps: dict[str, Step] = {}
        models = {}
        for name in (*executors, "torch"):
            if name == "torch":
                wrap: Any = torch.nn.parallel.DistributedDataParallel
                models[name], step, batch = make(torch, row, wrap, comm.rank)
            else:
                models[name], step, batch = make(
                    mt, row, lambda m: mt.distributed.DataParallel(m, comm), comm.rank
                )
                if name != "eager":
                    step = mt.compile(step, executor=name)
            steps[name] = lambda step=step, batch=batch: step(*batch)
        for step in steps.values():
            for _ in range(CHECKED):
                step()
        for name, model in models.items():
            np.testing.assert_allclose(
                values(model), values(models["torch"]), rtol=1e-4, atol=1e-5, err_msg=name
            )
        results[row] = measure(comm, steps, seconds)
    if comm.rank == 0:
        Path(out).write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


def measure(comm: Any, steps: dict[str, Step], seconds: float) -> dict[str, float]:
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


def run(ranks: int, seconds: float) -> dict[str, dict[str, float]]:
    """A job of `ranks`; its results."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mpirun = Path(sys.executable).with_name("mpirun")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        here = str(Path(__file__).resolve())
        subprocess.run(
            [str(mpirun) if mpirun.exists() else "mpirun", "-n", str(ranks), sys.executable, here,
             "--worker", out, "--seconds", str(seconds)],
            check=True,
            timeout=120 + 20 * seconds * len(ROWS),
            env=os.environ | {
                "STORE": f"tcp://127.0.0.1:{port}",
                # For Open MPI: more ranks than cores, and root.
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                "OMPI_MCA_mpi_yield_when_idle": "1",
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            },
        )  # fmt: skip
        found: dict[str, dict[str, float]] = json.loads(Path(out).read_text())
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], metavar="N")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.seconds, options.worker)
        return 0
    for module, package in (("torch", "torch==2.13.0"), ("mpi4py", "'microtrain[mpich]'")):
        if importlib.util.find_spec(module) is None:
            print(f"left out: {module} is not installed (pip install {package})")
            return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{platform.machine()}, {cores} cores, medians in us a step; PyTorch is DDP over gloo")
    columns = "".join(f"{name:>10}" for name in (*OURS, "torch"))
    print(f"{'ranks  step':<30}{columns}" + "".join(f"{name:>9}" for name in OURS) + "   must")
    results = {}
    for ranks in options.ranks:
        results[ranks] = run(ranks, options.seconds)
        for row, found in results[ranks].items():
            line = f"{ranks:<7}{row:<23}"
            line += "".join(f"{found.get(name, float('nan')):>10,.1f}" for name in (*OURS, "torch"))
            line += "".join(
                f"{found.get(name, float('nan')) / found['torch']:>9.4f}" for name in OURS
            )
            print(f"{line}   {MUST[row]:.2f}", flush=True)
    if options.json:
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"versions": versions, "us": results}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
