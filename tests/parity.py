"""One call in microtrain and in PyTorch: what the parity tests compare it by.

Imported only where torch is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import microtrain as mt


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def numpy_of(tensor: Any) -> Any:
    return tensor.detach().numpy() if type(tensor) is mt.Tensor else tensor.numpy(force=True)


def both(array: Any, grad: bool = True) -> tuple[Any, Any]:
    """`array` (or a number) as a Tensor of each library."""
    if not isinstance(array, np.ndarray):
        return array, array
    pair = mt.tensor(array), torch.tensor(array)
    if grad and array.dtype.kind == "f":
        return tuple(t.requires_grad_() for t in pair)  # type: ignore[return-value]
    return pair


def assert_same(ours: Any, theirs: Any, rtol: float = 1e-10, scale: float = 0.0) -> None:
    """Equal to `rtol`, or to `scale` times the largest element: what cancels has lost digits."""
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert dtype_name(ours) == dtype_name(theirs)
    expected = numpy_of(theirs)
    atol = max(1e-12, scale * np.abs(expected[np.isfinite(expected)]).max(initial=0))
    np.testing.assert_allclose(numpy_of(ours), expected, rtol=rtol, atol=atol)


def compare(function: Callable[..., Any], *arrays: Any, second: bool = True) -> None:
    """`function` in both libraries: values, first gradients, second gradients."""
    pairs = [both(a) for a in arrays]
    ours = function(mt, *(p[0] for p in pairs))
    theirs = function(torch, *(p[1] for p in pairs))
    assert_same(ours, theirs)
    assert ours.requires_grad == theirs.requires_grad
    if not ours.requires_grad:
        return
    leaves = [p for p in pairs if getattr(p[0], "requires_grad", False)]
    xs, ts = [p[0] for p in leaves], [p[1] for p in leaves]
    seed = np.random.default_rng(7).standard_normal(ours.shape).astype(numpy_of(ours).dtype)
    g, h = both(np.asarray(seed))
    first = mt.autograd.grad(ours, xs, g, create_graph=second, allow_unused=True)
    expected = torch.autograd.grad(theirs, ts, h, create_graph=second, allow_unused=True)
    for a, b in zip(first, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_same(a, b)
    if second:
        first_sum = sum((f * f).sum() for f in first if f is not None)
        expected_sum = sum((f * f).sum() for f in expected if f is not None)
        if not expected_sum.requires_grad:
            return
        again = torch.autograd.grad(expected_sum, [*ts, h], allow_unused=True)
        mine: Any = [None] * len(again)
        if first_sum.requires_grad:
            mine = mt.autograd.grad(first_sum, [*xs, g], allow_unused=True)
        for a, b in zip(mine, again, strict=True):
            if a is None or b is None:  # one says "not in the graph", the other "zero"
                there = a if b is None else b
                assert there is None or not np.any(numpy_of(there))
            else:
                assert_same(a, b, rtol=1e-8, scale=1e-12)


rng = np.random.default_rng(11)


def normal(*shape: int) -> Any:
    return np.asarray(rng.standard_normal(shape))


def positive(*shape: int) -> Any:
    return np.asarray(rng.uniform(0.5, 2, shape))


def refused_alike(call: Callable[..., Any]) -> None:
    """`call(m)` raises in both libraries, and the same kind of error; ours says something."""
    with pytest.raises(Exception) as theirs:
        call(torch)
    with pytest.raises(Exception) as ours:
        call(mt)
    kind = theirs.type
    if kind is NotImplementedError:  # torch's way to say that a kernel lacks a dtype
        kind = RuntimeError
    assert ours.type is kind, f"{ours.value} / {theirs.value}"
    assert str(ours.value)
