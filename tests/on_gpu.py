"""What is run on CuPy and on the stand-in for it alike.

`test_fakecupy.py` does so on the stand-in, the tests in `gpu/` on the CuPy that is installed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from samples import Sample

import microtrain as mt
from microtrain import backend
from microtrain.distributed import in_process
from microtrain.ops import REGISTRY
from microtrain.ops.registry import Operation
from microtrain.tensor import TENSORS, wrap

# The registry ---------------------------------------------------------------------------------


def in_dtype(sample: Sample, dtype: str) -> Sample:
    """The sample with its floats in another dtype, in the same order in memory."""
    arrays = tuple(
        a.astype(dtype, order="K") if isinstance(a, np.ndarray) and a.dtype.kind == "f" else a
        for a in sample.arrays
    )
    return dataclasses.replace(sample, arrays=arrays)


def run(name: str, sample: Sample, device: str, gradients: bool = True) -> list[Any]:
    """An operation's value and with `gradients` first and second ones, as NumPy arrays."""
    library = backend.cuda() if device == "cuda" else backend.NUMPY
    op, attrs = REGISTRY[name], dict(sample.attrs)

    def make(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return value.copy(order="K") if device == "cpu" else library.asarray(value)

    if "index" in attrs:  # whose arrays `getitem` brings to the device
        attrs["index"] = tuple(map(make, attrs["index"]))
    inputs = [wrap(make(a)) if isinstance(a, np.ndarray) else a for a in sample.arrays]
    leaves = []
    for number, x in enumerate(inputs):
        ruled = not isinstance(op, Operation) or op.inputs[number] in op.rules
        if gradients and type(x) in TENSORS and ruled and x.dtype.kind == "f":
            leaves.append(x.requires_grad_())
    result = op.apply(*inputs, **attrs) if isinstance(op, Operation) else op.apply(inputs, **attrs)
    found = [result]
    if result.requires_grad:
        seed = np.random.default_rng(5).standard_normal(result.shape).astype(result.dtype)
        g = wrap(make(np.asarray(seed))).requires_grad_()
        found += mt.autograd.grad(result, leaves, g, retain_graph=True)
        first = mt.autograd.grad(result, leaves, g, create_graph=True)
        found += first
        total = sum(((f * f).sum() for f in first[1:]), (first[0] * first[0]).sum())
        if total.requires_grad:
            found += mt.autograd.grad(total, [*leaves, g], materialize_grads=True)
    assert {type(tensor._array) for tensor in found} == {library.array_type}
    return [backend.to_host(tensor._array) for tensor in found]


# Indices --------------------------------------------------------------------------------------


def indices_out_of_range_wrap() -> None:
    def there(*values: Any) -> Any:
        return mt.tensor(list(values), device="cuda")

    table = mt.nn.Embedding(5, 3).to(device="cuda")
    assert table(there(7)).tolist() == table(there(2)).tolist()
    assert mt.arange(6.0, device="cuda")[there(8, -7)].tolist() == [2.0, 5.0]
    rows = mt.arange(6.0, device="cuda").reshape(2, 3)
    assert rows[..., there(4)].tolist() == [[1.0], [4.0]]
    assert rows[there(1), None, there(4)].tolist() == [[4.0]]
    assert rows.gather(1, there([4], [0])).tolist() == [[4.0], [3.0]]
    assert mt.zeros(3, device="cuda").scatter_add(0, there(4), there(2.0)).tolist() == [0, 2, 0]
    rows[there(3)] = 7.0
    assert rows.tolist() == [[0.0, 1.0, 2.0], [7.0, 7.0, 7.0]]
    scores = there([1.0, 2.0], [3.0, 5.0]).requires_grad_()
    loss = mt.nn.functional.cross_entropy(scores, there(2, 0))
    loss.backward()
    assert math.isfinite(loss.item())
    with pytest.raises(IndexError, match="out of bounds"):
        rows[2]  # an integer that the host knows


# Two devices ----------------------------------------------------------------------------------


def ranks_on_two_devices() -> None:
    def rank(comm: Any) -> list[Any]:
        where = backend.use_gpu(comm.rank)
        mt.manual_seed(3)
        net = mt.nn.Sequential(mt.nn.Linear(4, 5), mt.nn.Tanh(), mt.nn.Linear(5, 2)).to(where)
        model = mt.distributed.DataParallel(net, comm)
        optimizer = mt.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(mt.full((3, 4), 1.0 + comm.rank, device=where)).square().mean()
            loss.backward()
            optimizer.step()
        arrays = [p._array for p in model.parameters()]
        assert {a.device.id for a in arrays} == {comm.rank}
        assert {p.grad._array.device.id for p in model.parameters()} == {comm.rank}
        return [a.get() for a in arrays]

    for a, b in zip(*in_process.run(2, rank), strict=True):
        np.testing.assert_array_equal(a, b)


def current_device() -> None:
    current = r"call microtrain.cuda.set_device\(1\) first"
    absent = "cuda:2: does not exist: this machine has 2"
    assert mt.cuda.device_count() == 2
    for call, words in (
        (lambda: mt.ones(3, device="cuda:1"), current),
        (lambda: mt.ones(3).to(device="cuda:1"), current),
        (lambda: mt.ones(3, device="cuda:2"), absent),
        (lambda: mt.cuda.set_device(2), absent),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()
    first = mt.ones(3, device="cuda")
    assert ((first + 1) * 2).tolist() == [4.0] * 3
    mt.cuda.set_device("cuda:1")
    x = mt.ones(3, device="cuda", requires_grad=True)
    y = (x + 1) * 2
    y.sum().backward()
    assert y.device == x.grad.device == mt.device("cuda", 1)
    assert (y.tolist(), x.grad.tolist()) == ([4.0] * 3, [2.0] * 3)
    assert first.device == mt.device("cuda", 0)
    moved = first.to(device="cuda:1")
    assert moved.device == mt.device("cuda", 1)
    assert (moved + y).tolist() == [5.0] * 3
    assert first.cpu().tolist() == [1.0] * 3
