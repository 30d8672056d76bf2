"""A prediction of one row in exported C, beside torch.jit and onnxruntime on the same core.

A net is written as C (`mt.export`), compiled with -O3 for any processor of this architecture, and
called from a loop in C. Python's peers are called from Python, as they are used, and torch.jit also
has a loop of its own, where Python's call does not count (but a sum and an addition do). All run
interleaved, pinned to one core; the table shows medians in nanoseconds, ratios to C, and the bytes
of the object file. Peers are optional.

    python benchmarks/export_c.py
"""

from __future__ import annotations

import ctypes
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import step  # noqa: F401  first: it pins the process and limits threads

# isort: split
import numpy as np

import microtrain as mt

nn = mt.nn
LOOP = """
#include "net.h"
static double work[NET_WORKSPACE / 8];
void loop(const float *x, float *y, long count) {
    for (long n = 0; n < count; n++) {
        net_forward(x, y, work);
        __asm__ volatile("" ::: "memory"); /* each call is made */
    }
}
"""
NETS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "8-16-1": (lambda nn: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), (1, 8)),
    "64-128-128-10": (
        lambda nn: nn.Sequential(
            nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10)
        ),
        (1, 64),
    ),
    "cnn 1x16x16": (
        lambda nn: nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(512, 10),
        ),
        (1, 1, 16, 16),
    ),
}  # fmt: skip
MOST_NS, MOST_BYTES = 150, 20_480  # of the first net
ROUNDS, SECONDS = 21, 0.02


def compiled(net: Any, x: Any, folder: Path) -> tuple[Callable[[int], None], int, Any]:
    """A loop over the exported net, the size of its object file, and where its result is."""
    mt.export(net, mt.from_numpy(x), folder / "net.c")
    (folder / "loop.c").write_text(LOOP)
    flags = ["-std=gnu99", "-O3", "-fPIC", "-ffp-contract=off"]
    subprocess.run(["cc", *flags, "-c", "net.c", "loop.c"], cwd=folder, check=True)
    size = subprocess.run(["size", "net.o"], cwd=folder, capture_output=True, text=True, check=True)
    library = folder / "net.so"
    objects = ["net.o", "loop.o", "-lm"]
    subprocess.run(["cc", "-shared", *objects, "-o", library], cwd=folder, check=True)
    loop = ctypes.CDLL(str(library)).loop
    y = np.zeros(net(mt.from_numpy(x)).shape, np.float32)
    args = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)
    return lambda count: loop(*args, ctypes.c_long(count)), int(size.stdout.split()[9]), y


def ours(net: Any, x: Any) -> Callable[[int], None]:
    """A captured call of the net, replayed by native code."""
    given = mt.from_numpy(x)
    call = mt.compile(net, executor="native")

    def run(count: int) -> None:
        with mt.no_grad():
            for _ in range(count):
                call(given)

    return run


def with_torch(make: Any, x: Any, weights: Any) -> dict[str, Callable[[int], None]]:
    """torch.jit, called from Python and in a loop of its own."""
    import torch

    net = make(torch.nn)
    net.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    given = torch.from_numpy(x)
    traced = torch.jit.freeze(torch.jit.trace(net.eval(), given))

    class Loop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
            y = self.net(x)
            for _ in range(count - 1):
                y = self.net(x + y.sum())  # or the net would not be computed each time
            return y

    inside = torch.jit.freeze(torch.jit.script(Loop().eval()))

    def calls(count: int) -> None:
        with torch.inference_mode():
            for _ in range(count):
                traced(given)

    def loop(count: int) -> None:
        with torch.inference_mode():
            inside(given, count)

    return {"torch.jit": calls, "torch.jit, its loop": loop}


def with_onnxruntime(net: Any, x: Any, folder: Path) -> dict[str, Callable[[int], None]]:
    """onnxruntime, called from Python."""
    import onnxruntime

    mt.onnx.export(net, mt.from_numpy(x), folder / "net.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "net.onnx"), options)
    feed = {session.get_inputs()[0].name: x}

    def calls(count: int) -> None:
        for _ in range(count):
            session.run(None, feed)

    return {"onnxruntime": calls}


def medians(sides: dict[str, Callable[[int], None]]) -> dict[str, float]:
    """Nanoseconds a call, interleaved."""
    counts = {}
    for name, run in sides.items():
        run(10)
        start = time.perf_counter()
        run(20)
        counts[name] = max(20, int(SECONDS * 20 / (time.perf_counter() - start)))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, run in sides.items():
            start = time.perf_counter()
            run(counts[name])
            found[name].append((time.perf_counter() - start) / counts[name] * 1e9)
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> int:
    mt.manual_seed(0)
    kept = True
    for number, (name, (make, shape)) in enumerate(NETS.items()):
        net, x = make(nn).eval(), np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        with tempfile.TemporaryDirectory() as place:
            run, size, y = compiled(net, x, Path(place))
            run(1)
            expected = net(mt.from_numpy(x)).detach().numpy()
            assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()
            sides = {"C": run, "mt.compile": ours(net, x)}
            weights = {key: value.numpy() for key, value in net.state_dict().items()}
            if importlib.util.find_spec("torch"):
                sides |= with_torch(make, x, weights)
            if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"):
                sides |= with_onnxruntime(net, x, Path(place))
            times = medians(sides)
        print(f"{name}: {size:,} bytes of code and weights (object file)")
        for side, ns in times.items():
            print(f"  {side:<22}{ns:>12,.0f} ns{ns / times['C']:>10.1f}")
        if number == 0:
            kept = times["C"] <= MOST_NS and size <= MOST_BYTES
    print("within the bounds" if kept else f"NOT within {MOST_NS} ns and {MOST_BYTES:,} bytes")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
