"""Normalization, embedding and attention, forward and backward, against PyTorch eager.

Both libraries run interleaved, pinned to one core; the table shows medians in microseconds and the
ratio to PyTorch.

    python benchmarks/normalization.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from step import measure  # first: it pins the process and limits threads

# isort: split

import numpy as np

import microtrain as mt


def normalize(call: Callable[..., Any], *shape: int) -> Callable[[Any], Callable[[], None]]:
    """A step of `call(functional, x, weight, bias)` for an input of `shape`."""

    def make(m: Any) -> Callable[[], None]:
        rng = np.random.default_rng(0)
        x, seed = (m.from_numpy(rng.standard_normal(shape, np.float32)) for _ in range(2))
        weight, bias = m.ones(shape[1], requires_grad=True), m.zeros(shape[1], requires_grad=True)
        x.requires_grad_()

        def step() -> None:
            x.grad = weight.grad = bias.grad = None
            call(m.nn.functional, x, weight, bias).backward(seed)

        return step

    return make


def batch_norm(f: Any, x: Any, weight: Any, bias: Any) -> Any:
    return f.batch_norm(x, None, None, weight, bias, True)


def embed(rows: int, size: int, count: int) -> Callable[[Any], Callable[[], None]]:
    def make(m: Any) -> Callable[[], None]:
        rng = np.random.default_rng(0)
        table = m.from_numpy(rng.standard_normal((rows, size), np.float32)).requires_grad_()
        chosen = m.from_numpy(rng.integers(0, rows, count))
        seed = m.from_numpy(rng.standard_normal((count, size), np.float32))

        def step() -> None:
            table.grad = None
            m.nn.functional.embedding(chosen, table).backward(seed)

        return step

    return make


def attend(*shape: int) -> Callable[[Any], Callable[[], None]]:
    def make(m: Any) -> Callable[[], None]:
        rng = np.random.default_rng(0)
        q, k, v, seed = (m.from_numpy(rng.standard_normal(shape, np.float32)) for _ in range(4))
        for x in (q, k, v):
            x.requires_grad_()

        def step() -> None:
            q.grad = k.grad = v.grad = None
            m.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).backward(seed)

        return step

    return make


STEPS = {
    "layer_norm 512x256": normalize(lambda f, x, w, b: f.layer_norm(x, (256,), w, b), 512, 256),
    "layer_norm 32x64": normalize(lambda f, x, w, b: f.layer_norm(x, (64,), w, b), 32, 64),
    "rms_norm 512x256": normalize(lambda f, x, w, b: f.rms_norm(x, (256,), w), 512, 256),
    "batch_norm 64x32x14x14": normalize(batch_norm, 64, 32, 14, 14),
    "batch_norm 512x256": normalize(batch_norm, 512, 256),
    "group_norm 8 64x32x14x14": normalize(
        lambda f, x, w, b: f.group_norm(x, 8, w, b), 64, 32, 14, 14
    ),
    "embedding 65x128, 2048 rows": embed(65, 128, 2048),
    "embedding 10000x64, 4096 rows": embed(10000, 64, 4096),
    "attention 8x4x64x32": attend(8, 4, 64, 32),
}


def main() -> int:
    try:
        import torch
    except ImportError:
        print("torch is not installed (pip install torch==2.13.0)")
        return 1
    torch.set_num_threads(1)
    print(f"{'forward and backward':<32}{'microtrain':>12}{'torch eager':>14}{'ratio':>8}")
    for name, make in STEPS.items():
        found = measure({"microtrain": make(mt), "torch": make(torch)}, seconds=3.0)
        mine, peer = found["microtrain"], found["torch"]
        print(f"{name:<32}{mine:>12.1f}{peer:>14.1f}{mine / peer:>8.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
