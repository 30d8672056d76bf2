"""Sums of many terms of float32, over every dimension, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from hypothesis import given, settings
from hypothesis import strategies as st
from pace import examples

import microtrain as mt
from microtrain.backend import NUMPY
from microtrain.numerics import sums

F = mt.nn.functional
N = 100_000
ONE = float(np.float32(1.1))  # the worst case: all terms are rounded to the same side
HALF = (float(np.float32(3.3)) - ONE) / 2
ZEROS = mt.zeros(N, dtype=mt.int64)


def ones(*shape: int) -> Any:
    return mt.full(shape, 1.1)


def spread(*shape: int) -> Any:
    return mt.from_numpy(np.resize(np.array([1.1, 3.3], np.float32), shape))


def gradient(function: Callable[[Any], Any], *shape: int) -> Any:
    """The gradient of `1.1 * function(x)` for ones of `shape`, or of the bias of a layer."""
    x = mt.ones(*shape, requires_grad=True)
    (function(x) * 1.1).sum().backward()
    return x.grad


def bias(layer: Any, *shape: int) -> Any:
    (layer(mt.ones(*shape)) * 1.1).sum().backward()
    return layer.bias.grad


CASES: dict[str, tuple[Callable[[], Any], Any]] = {
    "sum of rows": (lambda: ones(N, 2).sum(0), ONE * N),
    "sum of rows of odd length": (lambda: ones(N + 3, 7).sum(0), ONE * (N + 3)),
    "sum of some hundred rows": (lambda: ones(300, 7).sum(0), ONE * 300),
    "sum of a middle dimension": (lambda: ones(3, N // 2, 3).sum(1), ONE * (N // 2)),
    "sum of the outer two": (lambda: ones(N // 2, 2, 3).sum((0, 1)), ONE * N),
    "sum of the outer and the inner": (lambda: ones(N // 8, 3, 8).sum((0, 2)), ONE * N),
    "sum of images": (lambda: ones(8, 3, 100, 100).sum((0, 2, 3)), ONE * 80_000),
    "sum of images, channels last": (
        lambda: ones(8, 100, 100, 3).permute(0, 3, 1, 2).sum((0, 2, 3), keepdim=True),
        ONE * 80_000,
    ),
    "sum of every other column": (lambda: ones(N, 4)[:, ::2].sum(0), ONE * N),
    "sum of all of a part": (lambda: ones(N, 3)[:, :2].sum(), ONE * N * 2),
    "sum of rows from behind": (lambda: ones(N, 2).flip(0).sum(0), ONE * N),
    "sum of expanded rows": (lambda: ones(1, 2).expand(N, 2).sum(0), ONE * N),
    "sum of rows, expanded inside": (lambda: spread(N, 1).expand(N, 2).sum(0), (ONE + HALF) * N),
    "sum of a transpose": (lambda: ones(3, N, 2).permute(2, 1, 0).sum(1), ONE * N),
    "mean": (lambda: (ones(N, 2) ** 2).mean(0), ONE * ONE),
    "nansum": (lambda: ones(N, 2).nansum(0), ONE * N),
    "norm": (lambda: ones(N, 2).norm(dim=0), ONE * math.sqrt(N)),
    "var": (lambda: spread(N, 1).expand(N, 2).var(0), HALF**2 * N / (N - 1)),
    "std": (lambda: spread(N, 1).expand(N, 2).std(0), HALF * math.sqrt(N / (N - 1))),
    "softmax": (lambda: mt.zeros(N, 2).softmax(0).sum(0), 1.0),
    "log_softmax": (lambda: mt.zeros(N, 2).log_softmax(0), -math.log(N)),
    "logsumexp": (lambda: ones(N, 2).logsumexp(0), ONE + math.log(N)),
    "cumsum": (lambda: ones(N, 2).cumsum(0), ONE * np.arange(1, N + 1)[:, None] * np.ones(2)),
    "cumsum of a vector": (lambda: ones(N + 5).cumsum(0), ONE * np.arange(1, N + 6)),
    "cumsum of some thousand": (lambda: ones(3000).cumsum(0), ONE * np.arange(1, 3001)),
    "cumsum, its gradient": (
        lambda: gradient(lambda x: x.cumsum(0), N, 2),
        ONE * np.arange(N, 0, -1)[:, None] * np.ones(2),
    ),
    "einsum": (lambda: mt.einsum("ij->j", ones(N, 2)), ONE * N),
    "mse_loss": (lambda: F.mse_loss(ones(N, 2), mt.zeros(N, 2)), ONE * ONE),
    "l1_loss": (lambda: F.l1_loss(ones(N, 2), mt.zeros(N, 2)), ONE),
    "an expanded leaf": (lambda: gradient(lambda x: x.expand(N, 2), 2), ONE * N),
    "a leaf among columns": (lambda: gradient(lambda x: x.expand(3, N), 3, 1), ONE * N),
    "Linear": (lambda: bias(mt.nn.Linear(1, 8), N, 1), ONE * N),
    "LayerNorm": (lambda: bias(mt.nn.LayerNorm(4), N, 4), ONE * N),
    "GroupNorm": (lambda: bias(mt.nn.GroupNorm(2, 4), N // 4, 4, 4), ONE * N),
    "BatchNorm1d": (lambda: bias(mt.nn.BatchNorm1d(4), N, 4), ONE * N),
    "Conv1d": (lambda: bias(mt.nn.Conv1d(1, 2, 1), N // 4, 1, 4), ONE * N),
    "Embedding": (
        lambda: gradient(lambda x: F.embedding(ZEROS, x), 3, 8)[0], ONE * N
    ),
    "Embedding of short vectors": (
        lambda: gradient(lambda x: F.embedding(ZEROS, x), 3, 2)[0], ONE * N
    ),
    "rows by number": (lambda: gradient(lambda x: x[ZEROS], 3, 2)[0], ONE * N),
    "rows by number from behind": (lambda: gradient(lambda x: x[ZEROS - 3], 3, 2)[0], ONE * N),
    "columns by number": (lambda: gradient(lambda x: x[:, ZEROS], 2, 3)[:, 0], ONE * N),
    "gather": (
        lambda: gradient(lambda x: x.gather(0, ZEROS[:, None].expand(N, 2)), 3, 2)[0], ONE * N
    ),
    "index_add": (lambda: mt.zeros(3, 2).index_add(0, ZEROS, ones(N, 2))[0], ONE * N),
    "index_add to numbers": (lambda: mt.zeros(3).index_add(0, ZEROS, ones(N))[0], ONE * N),
    "index_put": (
        lambda: mt.zeros(3).index_put((ZEROS,), ones(N), accumulate=True)[0], ONE * N
    ),
    "scatter_add": (
        lambda: mt.zeros(3, 2).scatter_add(0, ZEROS[:, None].expand(N, 2), ones(N, 2))[0], ONE * N
    ),
    "bincount": (lambda: ZEROS.bincount(ones(N))[0], ONE * N),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_many_terms_are_not_added_one_by_one(name: str) -> None:
    found, expected = CASES[name]
    array = found().numpy()
    assert array.dtype == np.float32
    np.testing.assert_allclose(array.astype(np.float64), expected, rtol=1.5e-6)


@pytest.mark.parametrize("executor", ["numpy", "native"])
@pytest.mark.parametrize(
    ("step", "shape", "expected"),
    [
        (lambda x: x.sum(0), (N, 2), ONE * N),
        (lambda x: x.sum(0), (300, 7), ONE * 300),
        (lambda x: x.sum((0, 2)), (N // 8, 3, 8), ONE * N),
        (lambda x: x.transpose(0, 1).sum(1), (N, 3), ONE * N),
        (lambda x: F.mse_loss(x, x * 0), (N, 2), ONE * ONE),
        (lambda x: x.cumsum(0)[-1], (N, 2), ONE * N),
        (lambda x: mt.zeros(3, 8).index_add(0, mt.zeros(N, dtype=mt.int64), x)[0], (N, 8), ONE * N),
        (lambda x: mt.zeros(3).index_add(0, mt.zeros(N, dtype=mt.int64), x)[0], (N,), ONE * N),
    ],
)
def test_many_terms_in_a_captured_step(
    executor: str, step: Any, shape: tuple[int, ...], expected: float
) -> None:
    if executor == "native":
        needs_compiler()
    captured = mt.compile(step, executor=executor)
    x = ones(*shape)
    captured(x)
    found = captured(x).numpy()
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=1.5e-6)
    if executor == "numpy":
        np.testing.assert_array_equal(found, step(x).numpy())


def test_half_precision_is_added_in_single() -> None:
    x = mt.full((3000, 2), 0.1, dtype=mt.float16)
    expected = float(np.float16(0.1)) * 3000
    for found in (x.sum(0), gradient_of_half()):
        np.testing.assert_allclose(found.numpy().astype(np.float64), expected, rtol=1e-3)


TIMES = 2100  # which half precision has, but does not reach by adding 1
PEAK = np.arange(2 * TIMES) == TIMES
SHARED = {  # how often windows share their largest element, or one element is in a window
    "fold": lambda x: F.fold(
        x.reshape(1, 1, -1)[..., :TIMES].expand(1, TIMES, TIMES), (2 * TIMES - 1, 1), (TIMES, 1)
    ),
    "unfold": lambda x: F.unfold(x.reshape(1, 1, -1, 1), (TIMES, 1)),
    "Tensor.unfold": lambda x: x.unfold(0, TIMES, 1),
    "max_pool1d": lambda x: F.max_pool1d(x.reshape(1, 1, -1), TIMES, 1),
    "max_pool2d": lambda x: F.max_pool2d(x.reshape(1, 1, -1, 1), (TIMES, 1), 1),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(
        x[TIMES : TIMES + 1].reshape(1, 1, 1), TIMES
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_windows_of_half_precision_are_added_in_single(name: str) -> None:
    x = mt.tensor(
        PEAK if "max" in name else np.ones(2 * TIMES), dtype=mt.float16, requires_grad=True
    )
    result = SHARED[name](x)
    result.double().sum().backward()
    found = result if name == "fold" else x.grad
    assert found.dtype == mt.float16
    assert found.max().item() == TIMES


def test_running_products_of_half_precision_are_rounded_once() -> None:
    column = mt.tensor(np.linspace(0.9, 1.1, 40, dtype=np.float16))
    for x in (column, column[:1].expand(40), column[:, None].expand(40, 3), column.expand(40, 40)):
        for dim in range(x.ndim):
            right = np.cumprod(x.numpy().astype(np.float64), dim).astype(np.float16)
            found = x.cumprod(dim)
            assert found.dtype == mt.float16
            np.testing.assert_array_equal(found.numpy(), right)


def gradient_of_half() -> Any:
    w = mt.ones(2, dtype=mt.float16, requires_grad=True)
    (w.expand(3000, 2) * 0.1).sum().backward()
    return w.grad


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_sum_over_any_dimensions_of_any_array(data: Any) -> None:
    """Views of every kind: parts, transposes, from behind, expanded."""
    sizes = st.sampled_from([1, 2, 3, 7, 130, 300, 700])
    shape = data.draw(st.lists(sizes, min_size=1, max_size=4).filter(lambda s: math.prod(s) < 4e5))
    steps = [data.draw(st.sampled_from([1, 1, 2, -1, 0])) for _ in shape]
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    x = rng.random([n * (abs(s) or 1) if s else 1 for n, s in zip(shape, steps, strict=True)])
    x = x.astype(data.draw(st.sampled_from([np.float32, np.float64])))
    x = np.broadcast_to(x[tuple(slice(None, None, s or 1) for s in steps)], shape)
    x = x.transpose(data.draw(st.permutations(range(len(shape)))))
    axes = data.draw(st.sets(st.sampled_from(range(len(shape)))))
    axis = None if not axes else tuple(axes)
    keep = data.draw(st.booleans())
    found = NUMPY.sum(x, axis=axis, keepdims=keep)
    expected = x.astype(np.float64).sum(axis=axis, keepdims=keep)
    assert np.shape(found) == expected.shape
    np.testing.assert_allclose(found, expected, rtol=3e-6)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from([1, 5, 129, 257, 3000]), st.sampled_from([0, 1, 2, 9]),
    st.sampled_from([1, 3, 500]), st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_rows_that_are_added_to_many_times(
    n: int, c: int, rows: int, skewed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    index = rng.integers(-rows, rows, n)
    if skewed:
        index[: n // 2] = 0
    values = rng.random((n, c), np.float32)
    found, expected = np.ones((rows, c), np.float32), np.ones((rows, c))
    sums.add_rows(NUMPY, found, index, values)
    np.add.at(expected, index, values)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("n", [10, 1000])
@pytest.mark.parametrize("wrong", [3, -4])
def test_a_row_that_is_not_there(n: int, wrong: int) -> None:
    index = np.full(n, wrong)
    with pytest.raises(IndexError, match="out of bounds"):
        sums.add_rows(NUMPY, np.zeros((3, 2), np.float32), index, np.ones((n, 2), np.float32))
