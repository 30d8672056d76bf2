"""What one optimizer step asks of a GPU, eager and captured: a measure that needs no GPU.

CuPy runs on the processor (scripts/gpu_on_cpu), which counts launches of kernels, products of
matrices, copies, fills, synchronizations and memory that is asked for. The table has them for a
step that is well under way. `--check` fails where a step asks for more than BUDGETS.

    scripts/gpu_on_cpu/run python benchmarks/gpu_events.py
    scripts/gpu_on_cpu/run python benchmarks/gpu_events.py --check
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = ("launches", "to host", "to device", "on device", "waits", "fills", "products", "memory")
WARM, COUNTED = 4, 4  # steps

# Launches of a step, eager and captured; a captured one may neither wait nor ask for memory.
BUDGETS = {"linreg": (24, 8), "small": (54, 20), "CNN": (129, 48), "transformer": (200, 95)}


class Events:
    """What is asked of the GPU inside a block: `events["launches"]`."""

    def __enter__(self) -> Events:
        library = ctypes.CDLL("libgpu_on_cpu.so")
        library.gpu_on_cpu_counts.restype = ctypes.POINTER(ctypes.c_long)
        self._counts = library.gpu_on_cpu_counts()
        self._before = self._counts[: len(NAMES)]
        return self

    def __exit__(self, *_: object) -> None:
        now = self._counts[: len(NAMES)]
        self.found = {n: b - a for n, a, b in zip(NAMES, self._before, now, strict=True)}

    def __getitem__(self, name: str) -> int:
        return self.found[name]


def networks(nn: Any) -> dict[str, tuple[Callable[[], Any], tuple[int, ...], Any]]:
    """By name: how to make one, the shape of its inputs, and of its targets or their classes."""
    F = nn.functional

    class Convolutional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
            self.pool, self.dropout = nn.MaxPool2d(2), nn.Dropout(0.2)
            self.head = nn.Linear(64, 3)

        def forward(self, x: Any) -> Any:
            x = self.pool(F.relu(self.norm(self.conv(x))))
            return self.head(self.dropout(x.flatten(1)))

    class Letters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer
            self.letter = nn.Embedding(11, 12)
            self.block = layer(12, 3, 24, dropout=0.1, batch_first=True, activation="gelu")
            self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 11)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.block(self.letter(x)))).reshape(-1, 11)

    def small() -> Any:
        layers = nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3)
        return nn.Sequential(*layers)

    return {
        "linreg": (lambda: nn.Linear(3, 1), (32, 3), (32, 1)),
        "small": (small, (6, 8), 3),
        "CNN": (Convolutional, (6, 1, 8, 8), 3),
        "transformer": (Letters, (4, 8), 11),
    }


def events(name: str, captured: bool) -> dict[str, float]:
    """What a step of a network asks for, on average."""
    import microtrain as mt

    F = mt.nn.functional
    mt.manual_seed(0)
    make, shape, target = networks(mt.nn)[name]
    model = make().to("cuda")
    optimizer = mt.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        out = model(x)
        loss = F.mse_loss(out, y) if isinstance(target, tuple) else F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        return loss

    def batch() -> list[Any]:
        letters = name == "transformer"
        x = rng.integers(0, 11, shape) if letters else rng.standard_normal(shape).astype("f4")
        count = shape[0] * shape[1] if letters else shape[0]
        y = rng.standard_normal(target).astype("f4") if isinstance(target, tuple) else None
        y = rng.integers(0, target, count) if y is None else y
        return [mt.tensor(each, device="cuda") for each in (x, y)]

    run = mt.compile(step) if captured else step
    batches = [batch() for _ in range(WARM + COUNTED)]
    for one in batches[:WARM]:
        run(*one)
    with Events() as found:
        for one in batches[WARM:]:
            run(*one)
    return {each: found[each] / COUNTED for each in NAMES}


def main() -> int:
    """Print the table; 1 where a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail where a step asks for too much")
    arguments = parser.parse_args()
    if "GPU_ON_CPU" not in os.environ:
        print("run it with scripts/gpu_on_cpu/run: a GPU does not count what it is asked")
        return 2
    print(f"{'a step':<24}" + "".join(f"{name:>11}" for name in NAMES))
    over = []
    for name, budget in BUDGETS.items():
        for captured, most in zip((False, True), budget, strict=True):
            found = events(name, captured)
            title = f"{name}, {'captured' if captured else 'eager'}"
            print(f"{title:<24}" + "".join(f"{value:>11g}" for value in found.values()))
            if found["launches"] > most:
                over.append(f"{title}: {found['launches']:g} launches, {most} allowed")
            if captured and (found["to host"] or found["waits"] or found["memory"]):
                over.append(f"{title}: it waits, or asks for memory")
    print(*over, sep="\n")
    return 1 if arguments.check and over else 0


if __name__ == "__main__":
    sys.exit(main())
