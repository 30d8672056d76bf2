"""A whole run on several ranks, from the command typed to the prompt: wall clock.

`configs/linreg.yaml` as a user starts it, beside the same run written for torch's
DistributedDataParallel and started by torchrun with gloo: 8,000 rows in batches of 64 over all
ranks, 20 epochs, an evaluation and a checkpoint after each. torch takes its batches as slices of
Tensors that are in memory, which is faster than its DataLoader. Both learn the same line. They take
turns; the first round, which fills caches, is left out. Medians in seconds.

    python benchmarks/whole_run.py                  # the table
    python benchmarks/whole_run.py --json run.json  # and its numbers
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "numpy" not in sys.modules:  # before NumPy and torch start their threads
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"

import numpy as np

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "linreg.yaml"
EPOCHS, BATCH, ROWS = 20, 64, (8000, 2000)
MUST, AIM = 0.30, 0.10


# What torchrun starts -----------------------------------------------------------------------------


def torch_worker(folder: str, epochs: int) -> None:
    """One rank of the run in torch."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(sum(ROWS), 1)
    y = 2 * x + 3 + 0.5 * torch.randn(sum(ROWS), 1)
    parts = [part.split(ROWS) for part in (x, y)]
    (x, x_val), (y, y_val) = parts
    model: Any = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = torch.nn.MSELoss()
    each = BATCH // size
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(x), BATCH):
            mine = order[start + rank * each : start + (rank + 1) * each]
            optimizer.zero_grad()
            loss_of(model(x[mine]), y[mine]).backward()
            optimizer.step()
        with torch.no_grad():
            error = model.module(x_val[rank::size]) - y_val[rank::size]
            sums = torch.stack([(error**2).sum(), torch.tensor(float(len(error)))])
            distributed.all_reduce(sums)
        if rank == 0:
            print(f"epoch {epoch}  val/loss {(sums[0] / sums[1]).item():.5f}", flush=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch}, f"{folder}/checkpoint-{epoch}.pt")
    if rank == 0:
        line = [model.module.weight.item(), model.module.bias.item()]
        Path(folder, "line.json").write_text(json.dumps(line))
    distributed.destroy_process_group()


# The two sides ------------------------------------------------------------------------------------


def microtrain_run(ranks: int, epochs: int) -> Callable[[str], list[float]]:
    """`mpirun -n RANKS python -m microtrain train configs/linreg.yaml`; weight and bias."""
    from microtrain.cli.mpirun import find_mpirun, plan
    from microtrain.runs.checkpoint import load_checkpoint
    from microtrain.runs.run import Run

    program = [sys.executable, "-m", "microtrain", "train", str(CONFIG)]
    program.append(f"train.duration={epochs} epochs")
    line = plan(find_mpirun(), ranks, program)

    def run(folder: str) -> list[float]:
        _done([*line.command, f"run_dir={folder}"], line.environment)
        model = load_checkpoint(Run.read(f"{folder}/linreg").checkpoints[-1]).model
        return [float(model["weight"].item()), float(model["bias"].item())]

    return run


def torch_run(ranks: int, epochs: int) -> Callable[[str], list[float]]:
    """The same under torchrun."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program += [f"--nproc-per-node={ranks}", __file__, "--epochs", str(epochs), "--worker"]

    def run(folder: str) -> list[float]:
        _done([*program, folder], {})
        found: list[float] = json.loads(Path(folder, "line.json").read_text())
        return found

    return run


def _done(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stderr}")


def measure(sides: dict[str, Callable[[str], list[float]]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in each round but the first.

    Raises RuntimeError where one has not learned the line.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, run in sides.items():
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                line = run(folder)
                found[name].append(time.perf_counter() - began)
            if not np.allclose(line, [2, 3], atol=0.15):
                raise RuntimeError(f"{name} has learned the line {line}, not 2 and 3")
    return {name: seconds[1:] for name, seconds in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="A whole run beside torchrun's.")
    parser.add_argument("--ranks", type=int, default=4, choices=(1, 2, 4, 8), help="default 4")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"default {EPOCHS}")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--worker", metavar="DIR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        torch_worker(options.worker, options.epochs)
        return 0
    if importlib.util.find_spec("mpi4py") is None:
        print("left out: mpi4py is not installed (pip install -e '.[mpich]')")
        return 0
    sides = {"microtrain": microtrain_run(options.ranks, options.epochs)}
    if importlib.util.find_spec("torch") is not None:
        sides["torch"] = torch_run(options.ranks, options.epochs)
    print(f"{platform.machine()}, {options.ranks} ranks, {options.epochs} epochs, medians in s")
    seconds = measure(sides, options.rounds)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, value in medians.items():
        print(f"{name:<12}{value:>8.2f}")
    ratio = medians["microtrain"] / medians["torch"] if "torch" in medians else None
    if ratio is None:
        print("left out: torch is not installed (pip install torch==2.13.0)")
    else:
        print(f"microtrain/torch {ratio:.3f}   must {MUST:g}, aim {AIM:g}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"seconds": seconds, "medians": medians, "ratio": ratio}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
