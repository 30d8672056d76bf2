"""Convolution against PyTorch eager: forward and backward of single layers and of a small network.

Everything runs interleaved in one process pinned to one core; the table shows medians in
microseconds and the ratio to PyTorch. "first" layers have an input that needs no gradient.

    python benchmarks/convolution.py
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from step import measure  # first: it pins the process and limits threads

# isort: split

import numpy as np

import microtrain as mt

# name -> input shape, outputs, kernel size, padding, whether the input needs a gradient
LAYERS: dict[str, tuple[tuple[int, ...], int, int, int, bool]] = {
    "first 64x1x28x28 k3 16": ((64, 1, 28, 28), 16, 3, 1, False),
    "64x16x14x14 k3 32": ((64, 16, 14, 14), 32, 3, 1, True),
    "32x64x8x8 k3 64": ((32, 64, 8, 8), 64, 3, 1, True),
    "64x128x4x4 k3 128": ((64, 128, 4, 4), 128, 3, 1, True),
    "8x32x56x56 k3 32": ((8, 32, 56, 56), 32, 3, 1, True),
    "32x64x14x14 k1 64": ((32, 64, 14, 14), 64, 1, 0, True),
    "64x8x128 k5 16": ((64, 8, 128), 16, 5, 2, True),
    "16x1x8x8 k3 8": ((16, 1, 8, 8), 8, 3, 1, False),
}
NET = "network 64x1x28x28"


def layer_step(library: Any, row: tuple[tuple[int, ...], int, int, int, bool]) -> Any:
    shape, outputs, kernel, padding, needs = row
    kind = library.nn.Conv2d if len(shape) == 4 else library.nn.Conv1d
    layer = kind(shape[1], outputs, kernel, padding=padding)
    rng = np.random.default_rng(0)
    x = library.from_numpy(rng.standard_normal(shape, np.float32)).requires_grad_(needs)
    g = library.from_numpy(rng.standard_normal(tuple(layer(x).shape), np.float32))

    def step() -> None:
        x.grad = None
        layer.zero_grad()
        layer(x).backward(g)

    return step


def network_step(library: Any) -> Any:
    """Two convolutions with pooling, a linear layer, cross entropy, SGD."""
    nn = library.nn
    convolutions = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    last = nn.Linear(32 * 7 * 7, 10)
    layers = nn.Sequential(*convolutions, last)
    optimizer = library.optim.SGD(layers.parameters(), lr=1e-3, momentum=0.9)
    rng = np.random.default_rng(0)
    x = library.from_numpy(rng.standard_normal((64, 1, 28, 28), np.float32))
    y = library.from_numpy(rng.integers(0, 10, 64))

    def step() -> None:
        optimizer.zero_grad()
        z = x
        for layer in convolutions:
            z = nn.functional.max_pool2d(layer(z).relu(), 2)
        nn.functional.cross_entropy(last(z.flatten(1)), y).backward()
        optimizer.step()

    return step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row (default 5)")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("torch is not installed (pip install torch==2.13.0)")
        return 1
    torch.set_num_threads(1)
    print(f"{'forward + backward':<26}{'microtrain':>12}{'torch':>10}{'ratio':>8}")
    for name in (*LAYERS, NET):
        if options.only not in name:
            continue
        libraries = {"mt": mt, "torch": torch}
        steps = {
            key: network_step(one) if name == NET else layer_step(one, LAYERS[name])
            for key, one in libraries.items()
        }
        found = measure(steps, options.seconds)
        mine, peer = found["mt"], found["torch"]
        print(f"{name:<26}{mine:>12,.0f}{peer:>10,.0f}{mine / peer:>8.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
