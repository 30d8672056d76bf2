"""The normalizations and the measures of length and angle as users call them, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import (  # noqa: E402
    assert_same,
    both,
    compare,
    dtype_name,
    normal,
    numpy_of,
    positive,
    refused_alike,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "layer_norm": (lambda f, x: f.layer_norm(x, (4,)), ((3, 4),)),
    "layer_norm affine": (lambda f, x, w, b: f.layer_norm(x, [4], w, b), ((3, 4), (4,), (4,))),
    "layer_norm two": (
        lambda f, x, w, b: f.layer_norm(x, (3, 4), weight=w, bias=b, eps=0.1),
        ((2, 2, 3, 4), (3, 4), (3, 4)),
    ),
    "layer_norm weight": (lambda f, x, w: f.layer_norm(x, (4,), w), ((2, 3, 4), (4,))),
    "layer_norm bias": (lambda f, x, b: f.layer_norm(x, (4,), bias=b), ((2, 3, 4), (4,))),
    "layer_norm vector": (lambda f, x: f.layer_norm(x, (5,)), ((5,),)),
    "layer_norm turned": (lambda f, x: f.layer_norm(x.transpose(0, 2), (2,)), ((2, 3, 4),)),
    "layer_norm one": (lambda f, x, w: f.layer_norm(x, (1,), w), ((3, 1), (1,))),
    "layer_norm no rows": (lambda f, x, w: f.layer_norm(x, (3,), w, w), ((0, 3), (3,))),
    "layer_norm no columns": (lambda f, x: f.layer_norm(x, (0,)), ((3, 0),)),
    "rms_norm": (lambda f, x: f.rms_norm(x, (4,)), ((3, 4),)),
    "rms_norm affine": (
        lambda f, x, w: f.rms_norm(x, (3, 4), weight=w, eps=0.1),
        ((2, 3, 4), (3, 4)),
    ),
    "rms_norm no rows": (lambda f, x, w: f.rms_norm(x, (3,), w), ((0, 3), (3,))),
    "batch_norm 2-D": (
        lambda f, x, w, b: f.batch_norm(x, None, None, w, b, True),
        ((5, 3), (3,), (3,)),
    ),
    "batch_norm 3-D": (
        lambda f, x, w: f.batch_norm(x, None, None, w, training=True, eps=0.1),
        ((2, 3, 4), (3,)),
    ),
    "batch_norm 4-D": (
        lambda f, x, w, b: f.batch_norm(x, None, None, w, b, training=True),
        ((2, 3, 4, 2), (3,), (3,)),
    ),
    "batch_norm 5-D": (
        lambda f, x, b: f.batch_norm(x, None, None, bias=b, training=True),
        ((2, 3, 2, 1, 2), (3,)),
    ),
    "batch_norm one channel": (
        lambda f, x, w: f.batch_norm(x, None, None, w, training=True),
        ((4, 1, 2), (1,)),
    ),
    "batch_norm no rows": (
        lambda f, x, w: f.batch_norm(x, None, None, w, training=True),
        ((0, 3, 2), (3,)),
    ),
    "batch_norm turned": (
        lambda f, x, w: f.batch_norm(x.transpose(0, 1), None, None, w, training=True),
        ((3, 4, 2), (3,)),
    ),
    "group_norm": (lambda f, x: f.group_norm(x, 2), ((3, 4),)),
    "group_norm affine": (
        lambda f, x, w, b: f.group_norm(x, 2, w, b, eps=0.1),
        ((2, 6, 2, 3), (6,), (6,)),
    ),
    "group_norm no rows": (lambda f, x, w: f.group_norm(x, 2, w), ((0, 4, 3), (4,))),
    "group_norm no pixels": (lambda f, x: f.group_norm(x, 2), ((2, 4, 0),)),
    "instance_norm": (lambda f, x: f.instance_norm(x), ((2, 3, 4),)),
    "instance_norm affine": (
        lambda f, x, w, b: f.instance_norm(x, weight=w, bias=b, eps=0.1),
        ((2, 3, 4, 2), (3,), (3,)),
    ),
    "normalize": (lambda f, x: f.normalize(x), ((3, 4),)),
    "normalize p": (lambda f, x: f.normalize(x, p=1.0, dim=0), ((3, 4),)),
    "normalize max": (lambda f, x: f.normalize(x, float("inf"), dim=-1), ((3, 4),)),
    "normalize dims": (lambda f, x: f.normalize(x, dim=(0, 2)), ((3, 4, 2),)),
    "normalize short": (lambda f, x: f.normalize(x, eps=100.0), ((3, 4),)),
    "cosine_similarity": (lambda f, x, y: f.cosine_similarity(x, y), ((3, 4), (3, 4))),
    "cosine_similarity dim": (
        lambda f, x, y: f.cosine_similarity(x, y, dim=-1, eps=1e-3),
        ((3, 4), (2, 1, 4)),
    ),
    "cosine_similarity front": (lambda f, x, y: f.cosine_similarity(x, y), ((3, 4), (2, 3, 1))),
    "cosine_similarity stretched": (lambda f, x, y: f.cosine_similarity(x, y), ((3, 1), (3, 4))),
    "cosine_similarity short": (
        lambda f, x, y: f.cosine_similarity(x, y, eps=2.0),
        ((3, 4), (3, 4)),
    ),
    "pairwise_distance": (lambda f, x, y: f.pairwise_distance(x, y), ((3, 4), (4,))),
    "pairwise_distance p": (
        lambda f, x, y: f.pairwise_distance(x, y, p=1.0, eps=0.1, keepdim=True),
        ((2, 3, 4), (3, 4)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_function(name: str) -> None:
    call, shapes = CALLS[name]
    arrays = [normal(*s) for s in shapes]
    # PyTorch's second derivative fails where there is a bias but no weight
    second = not name.endswith(("bias", "5-D"))
    compare(lambda m, *tensors: call(m.nn.functional, *tensors), *arrays, second=second)


def test_vectors_of_length_zero() -> None:
    x, y = np.zeros((2, 3)), normal(2, 3)
    for name in ("cosine_similarity", "pairwise_distance"):
        compare(lambda m, a, b, n=name: getattr(m.nn.functional, n)(a, b), x, y, second=False)
    compare(lambda m, a: m.nn.functional.normalize(a), x, second=False)
    compare(lambda m, a: m.nn.functional.rms_norm(a, (3,)), x, second=False)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 2, 2), (0, 3), (0, 3, 2, 2)], ids=str)
def test_batch_norm_moves_or_uses_the_running_statistics(shape: Any, training: bool) -> None:
    mean, var = normal(3), positive(3)
    kept = []

    def call(m: Any, x: Any, w: Any, b: Any) -> Any:
        running = (mt.tensor(mean), mt.tensor(var))
        running = running if m is mt else tuple(torch.tensor(a) for a in (mean, var))
        kept.append(running)
        y = m.nn.functional.batch_norm(x, *running, w, b, training, 0.25, 0.1)
        if x.shape[0] and training:
            y = m.nn.functional.batch_norm(y.tanh(), *running, w, b, training=training)
        return y

    compare(call, normal(*shape), normal(3), normal(3))
    for ours, theirs in zip(*kept, strict=True):
        assert_same(ours, theirs)
        assert not ours.requires_grad
    assert (kept[0][0].numpy() == mean).all() != (training and shape[0] > 0)


@pytest.mark.parametrize("mean", [0.0, 100.0, 1e4])
def test_single_precision_is_as_exact_as_torchs(mean: float) -> None:
    x = (normal(64, 128) + mean).astype(np.float32)
    wide = x.astype(float)
    for axis, call in (
        (1, lambda f, a: f.layer_norm(a, (128,))),
        (0, lambda f, a: f.batch_norm(a, None, None, training=True)),
    ):
        truth = (wide - wide.mean(axis, keepdims=True)) / np.sqrt(
            wide.var(axis, keepdims=True) + 1e-5
        )
        ours = call(mt.nn.functional, mt.tensor(x))
        theirs = call(torch.nn.functional, torch.tensor(x))
        assert ours.dtype == np.float32
        error = np.abs(ours.numpy() - truth).max()
        assert error <= 2 * np.abs(theirs.numpy() - truth).max() + 1e-6


@pytest.mark.parametrize("wide", [False, True])
def test_half_precision_is_computed_in_single(wide: bool) -> None:
    x = normal(8, 6).astype(np.float16)
    w = normal(6).astype(np.float32 if wide else np.float16)
    for call in (
        lambda f, a, b: f.layer_norm(a, (6,), b, b),
        lambda f, a, b: f.batch_norm(a, None, None, b, b, True),
        lambda f, a, b: f.group_norm(a, 2, b, b),
    ):
        (a, t), (b, u) = both(x), both(w)
        ours, theirs = call(mt.nn.functional, a, b), call(torch.nn.functional, t, u)
        assert dtype_name(ours) == dtype_name(theirs) == "float16"
        np.testing.assert_allclose(numpy_of(ours), numpy_of(theirs), rtol=2e-3, atol=2e-3)
        ours.sum().backward()
        theirs.sum().backward()
        np.testing.assert_allclose(b.grad.numpy(), u.grad.numpy(), rtol=1e-2, atol=1e-2)
        assert str(a.grad.dtype) == "float16"
        assert b.grad.dtype == b.dtype
    small = x * np.float16(1e-2)
    (a, t) = both(small)
    assert_same(mt.nn.functional.rms_norm(a, (6,)), torch.nn.functional.rms_norm(t, (6,)), 2e-3)


REFUSED: dict[str, Callable[..., Any]] = {
    "layer_norm list": lambda m, f: f.layer_norm([1.0], (1,)),
    "layer_norm integers": lambda m, f: f.layer_norm(m.ones(2, 3).long(), (3,)),
    "layer_norm shape": lambda m, f: f.layer_norm(m.ones(2, 3), (4,)),
    "layer_norm too many": lambda m, f: f.layer_norm(m.ones(3), (2, 3)),
    "layer_norm int": lambda m, f: f.layer_norm(m.ones(2, 3), 3),
    "layer_norm nothing": lambda m, f: f.layer_norm(m.ones(2, 3), ()),
    "layer_norm weight": lambda m, f: f.layer_norm(m.ones(2, 3), (3,), m.ones(4)),
    "layer_norm bias": lambda m, f: f.layer_norm(m.ones(2, 3), (3,), bias=m.ones(1)),
    "layer_norm no Tensor": lambda m, f: f.layer_norm(m.ones(2, 3), (3,), [1.0, 1.0, 1.0]),
    "layer_norm dtype": lambda m, f: f.layer_norm(m.ones(2, 3), (3,), m.ones(3).double()),
    "rms_norm integers": lambda m, f: f.rms_norm(m.ones(2, 3).long(), (3,)),
    "rms_norm shape": lambda m, f: f.rms_norm(m.ones(2, 3), (4,)),
    "rms_norm weight": lambda m, f: f.rms_norm(m.ones(2, 3), (3,), m.ones(4)),
    "batch_norm one value": lambda m, f: f.batch_norm(m.ones(1, 3), None, None, training=True),
    "batch_norm one pixel": lambda m, f: f.batch_norm(m.ones(1, 3, 1), None, None, training=True),
    "batch_norm integers": lambda m, f: f.batch_norm(
        m.ones(2, 3).long(), None, None, training=True
    ),
    "batch_norm no statistics": lambda m, f: f.batch_norm(m.ones(2, 3), None, None),
    "batch_norm half": lambda m, f: f.batch_norm(m.ones(2, 3), m.ones(3), None, training=True),
    "batch_norm sizes": lambda m, f: f.batch_norm(m.ones(2, 3), m.ones(4), m.ones(4)),
    "batch_norm weight": lambda m, f: f.batch_norm(m.ones(2, 3), m.ones(3), m.ones(3), m.ones(4)),
    "batch_norm dtype": lambda m, f: f.batch_norm(
        m.ones(2, 3).double(), None, None, m.ones(3), training=True
    ),
    "group_norm groups": lambda m, f: f.group_norm(m.ones(2, 3, 2), 2),
    "group_norm vector": lambda m, f: f.group_norm(m.ones(4), 2),
    "group_norm weight": lambda m, f: f.group_norm(m.ones(2, 4), 2, m.ones(3)),
    "group_norm one value": lambda m, f: f.group_norm(m.ones(1, 4), 4),
    "group_norm integers": lambda m, f: f.group_norm(m.ones(2, 4).long(), 2),
    "instance_norm one value": lambda m, f: f.instance_norm(m.ones(2, 3, 1)),
    "normalize integers": lambda m, f: f.normalize(m.ones(2, 3).long()),
    "normalize vector": lambda m, f: f.normalize(m.ones(3)),
    "cosine_similarity integers": lambda m, f: f.cosine_similarity(
        m.ones(2, 3).long(), m.ones(2, 3).long()
    ),
    "cosine_similarity vector": lambda m, f: f.cosine_similarity(m.ones(3), m.ones(3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_torch(name: str) -> None:
    refused_alike(lambda m: REFUSED[name](m, m.nn.functional))
