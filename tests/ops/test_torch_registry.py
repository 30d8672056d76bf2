"""Every operation in the registry against the same call in PyTorch, on all its samples.

Value, dtype, shape and gradient everywhere, also at ties and kinks; the second gradient where
PyTorch has one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import SAMPLES, TORCH, Sample

import microtrain as mt
from microtrain.ops import REGISTRY
from microtrain.ops.registry import Operation
from microtrain.tensor import wrap

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, numpy_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's, of NaN; torch's, of its own ways

CASES = [
    pytest.param(name, sample, id=f"{name}-{number}-{sample}")
    for name, samples in SAMPLES.items()
    for number, sample in enumerate(samples)
]


def test_every_operation_has_a_counterpart() -> None:
    assert TORCH.keys() == REGISTRY.keys()


def differentiable(name: str, number: int, array: Any) -> bool:
    op = REGISTRY[name]
    ruled = not isinstance(op, Operation) or op.inputs[number] in op.rules
    return ruled and isinstance(array, np.ndarray) and array.dtype.kind == "f"


def ours_and_theirs(name: str, sample: Sample) -> tuple[list[Any], list[Any]]:
    """The arguments of the call in both libraries, in the same memory order."""
    ours, theirs = [], []
    for number, array in enumerate(sample.arrays):
        if not isinstance(array, np.ndarray):
            ours.append(array)
            theirs.append(array)
            continue
        x, t = wrap(array.copy(order="K")), torch.from_numpy(array.copy(order="K"))
        if differentiable(name, number, array):
            x.requires_grad_()
            t.requires_grad_()
        ours.append(x)
        theirs.append(t)
    return ours, theirs


@pytest.mark.parametrize(("name", "sample"), CASES)
def test_operation_is_torchs(name: str, sample: Sample) -> None:
    op = REGISTRY[name]
    xs, ts = ours_and_theirs(name, sample)
    call = (
        op.apply(*xs, **sample.attrs) if isinstance(op, Operation) else op.apply(xs, **sample.attrs)
    )
    other = TORCH[name](torch, *ts, **sample.attrs)
    assert_same(call, other)
    if not call.requires_grad:
        return
    xs = [x for x in xs if getattr(x, "requires_grad", False)]
    ts = [t for t in ts if getattr(t, "requires_grad", False)]
    if not other.requires_grad:  # torch knows that the result is constant; so must our gradient be
        found = mt.autograd.grad(call, xs, mt.ones_like(call))
        assert not any(np.any(numpy_of(g)) for g in found)
        return
    seed = np.random.default_rng(7).standard_normal(call.shape).astype(call.dtype)
    g, h = wrap(np.asarray(seed)), torch.tensor(seed)
    g.requires_grad_()
    h.requires_grad_()
    second = sample.smooth and sample.second
    first = mt.autograd.grad(call, xs, g, create_graph=second)
    expected = torch.autograd.grad(
        other, ts, h, create_graph=second, allow_unused=True, materialize_grads=True
    )
    for a, b in zip(first, expected, strict=True):
        assert_same(a, b, rtol=1e-9)
    total = sum((f * f).sum() for f in expected)
    if not second or not total.requires_grad:
        return
    mine = sum(((f * f).sum() for f in first[1:]), (first[0] * first[0]).sum())
    again = mt.autograd.grad(mine, [*xs, g], materialize_grads=True)
    wanted = torch.autograd.grad(total, [*ts, h], allow_unused=True, materialize_grads=True)
    for a, b in zip(again, wanted, strict=True):
        assert_same(a, b, rtol=1e-7)
