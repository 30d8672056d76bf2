"""One optimiser step against the peers: zero_grad, forward, loss, backward, SGD with momentum.

Everything runs interleaved in one process pinned to one core, so that a busy neighbour slows all
sides alike; the table shows medians in microseconds and the ratio to PyTorch eager. Peers are
optional (`pip install torch==2.13.0`), and one that is missing is named.

    python benchmarks/step.py                    # the table
    python benchmarks/step.py --json step.json   # and its numbers
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

if "numpy" not in sys.modules:  # before NumPy and torch start their threads
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"

import numpy as np

# name -> (batch, widths, activations between the layers)
NETS: dict[str, tuple[int, list[int]]] = {
    "linreg 32x1x1": (32, [1, 1]),
    "linreg 1024x64x1": (1024, [64, 1]),
    "small 16x8x16x1": (16, [8, 16, 1]),
    "seed 64x1000x100x10": (64, [1000, 100, 10]),
    "large 1024x1024x1024x10": (1024, [1024, 1024, 10]),
}
# The columns, and the ratios to PyTorch eager that they must reach (None: reported only).
OURS = ("eager", "numpy", "numba")
MUST: dict[str, tuple[float | None, ...]] = {
    "linreg 32x1x1": (0.15, 0.06, 0.01),
    "linreg 1024x64x1": (None, None, None),
    "small 16x8x16x1": (0.18, 0.08, 0.01),
    "seed 64x1000x100x10": (0.75, 0.65, 0.55),
    "large 1024x1024x1024x10": (1.0, 1.0, 1.0),
    "chain of 20 elementwise": (0.9, None, None),
}
Step = Callable[[], Any]


def arrays(batch: int, widths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, widths[0]), np.float32)
    return x, rng.standard_normal((batch, widths[-1]), np.float32)


def training_step(
    library: Any, batch: int, widths: list[int], wrap: Callable[[Any], Any] = lambda step: step
) -> Step:
    """A step of a ReLU network; microtrain and torch have the same names for all of it."""
    layers: list[Any] = []
    for inputs, outputs in pairwise(widths):
        layers += [library.nn.Linear(inputs, outputs), library.nn.ReLU()]
    model = library.nn.Sequential(*layers[:-1])
    optimizer = library.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    x, y = map(library.from_numpy, arrays(batch, widths))
    mse_loss = library.nn.functional.mse_loss

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = wrap(step)
    return lambda: run(x, y)


def chain_step(library: Any) -> Step:
    """Twenty elementwise operations on 100 numbers, forward and backward."""
    x = library.ones(100, requires_grad=True)

    def step() -> Any:
        y = x
        for _ in range(5):
            y = (y * 0.5 + x).tanh() - x
        x.grad = None
        y.sum().backward()
        return y

    return step


def make_steps(name: str) -> tuple[dict[str, Step], list[str]]:
    """The step of every library that is installed, and the names of the others."""
    import microtrain as mt

    try:
        import torch

        torch.set_num_threads(1)
        missing = []
    except ImportError:
        torch, missing = None, ["torch (pip install torch==2.13.0)"]
    libraries = {"eager": mt} | ({} if torch is None else {"torch": torch})
    if name not in NETS:
        return {key: chain_step(one) for key, one in libraries.items()}, missing
    steps = {key: training_step(one, *NETS[name]) for key, one in libraries.items()}
    executors = ["numpy", "numba"]
    if importlib.util.find_spec("numba") is None:
        executors.remove("numba")
        missing.append("numba (pip install 'microtrain[jit]')")
    for executor in executors:
        compiled = functools.partial(mt.compile, executor=executor)
        steps[executor] = training_step(mt, *NETS[name], compiled)
    return steps, missing


def measure(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """Median microseconds a step; rounds of all libraries take turns.

    A round is long enough (50 ms) that what the other library left in the caches hardly counts.
    """
    counts = {}
    for name, step in steps.items():
        took = []
        for _ in range(20):
            start = time.perf_counter()
            step()
            took.append(time.perf_counter() - start)
        counts[name] = max(1, int(0.05 / statistics.median(took)))
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(rounds.values()))) < 5:
        for name, step in steps.items():
            n = counts[name]
            start = time.perf_counter()
            for _ in range(n):
                step()
            rounds[name].append((time.perf_counter() - start) / n * 1e6)
    return {name: statistics.median(found) for name, found in rounds.items()}


def text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row (default 5)")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    missing: list[str] = []
    print(f"{platform.processor() or platform.machine()}, one core, medians in us a step")
    columns = "".join(f"{name:>10}" for name in (*OURS, "torch"))
    print(f"{'step':<26}{columns}" + "".join(f"{name:>9}{'must':>6}" for name in OURS))
    for name, musts in MUST.items():
        if options.only not in name:
            continue
        steps, missing = make_steps(name)
        found = results[name] = measure(steps, options.seconds)
        peer = found.get("torch")
        ours = [found.get(column) for column in OURS]
        line = f"{name:<26}" + "".join(f"{text(us, ',.1f'):>10}" for us in (*ours, peer))
        for us, must in zip(ours, musts, strict=True):
            ratio = None if us is None or peer is None else us / peer
            line += f"{text(ratio, '.4f'):>9}{text(must, '.2f'):>6}"
        print(line, flush=True)
    for name in missing:
        print(f"left out: {name} is not installed")
    if options.json:
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"versions": versions, "us": results}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
