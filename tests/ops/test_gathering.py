"""Gathering, order and scans: on a device as on the CPU, and what PyTorch says nothing about."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakecupy import FakeArray

import microtrain as mt
from microtrain import backend
from microtrain.ops.index import gathering
from microtrain.ops.reduce import sorting
from microtrain.tensor import TENSORS

INF = float("inf")

# Functions of a (3, 4) Tensor, an index (2, 4) of rows and one (5,) of rows.
CALLS: list[Callable[..., Any]] = [
    lambda x, i, j: x.gather(0, i),
    lambda x, i, j: x.scatter(0, i, x[:2]),
    lambda x, i, j: x.scatter(0, i, 2.0),
    lambda x, i, j: x.scatter(0, i, 2.0, reduce="add"),
    lambda x, i, j: x.scatter_add(0, i, x[:2] * 2),
    lambda x, i, j: (x * 1).scatter_add_(0, i, x[:2]),
    lambda x, i, j: mt.take_along_dim(x, i[:, :1], 0),
    lambda x, i, j: x.index_select(0, j),
    lambda x, i, j: x.index_add(0, j[:2], x[1:], alpha=2),
    lambda x, i, j: x.index_copy(0, j[:1], x[1:2]),
    lambda x, i, j: x.index_fill(0, j[:2], 3),
    lambda x, i, j: x.index_put((j,), x[0], accumulate=True),
    lambda x, i, j: x.masked_fill(x > 0, -INF),
    lambda x, i, j: x.masked_select(x > 0),
    lambda x, i, j: x.masked_scatter(x > 0, x * 2),
    lambda x, i, j: x.take(j),
    lambda x, i, j: (x > 0).nonzero(),
    lambda x, i, j: mt.where(x > 0),
    lambda x, i, j: mt.where(x > 0, x, 1.0),
    lambda x, i, j: x.sort(1, True),
    lambda x, i, j: x.argsort(0),
    lambda x, i, j: x.topk(2),
    lambda x, i, j: x.kthvalue(2, 0),
    lambda x, i, j: x.median(),
    lambda x, i, j: x.median(1),
    lambda x, i, j: x.nanmedian(),
    lambda x, i, j: x.nanmedian(1, True),
    lambda x, i, j: x.detach().unique(return_inverse=True, return_counts=True),
    lambda x, i, j: i.unique(return_inverse=True, dim=1),
    lambda x, i, j: j.unique_consecutive(),
    lambda x, i, j: mt.searchsorted(x.sort(1).values, x),
    lambda x, i, j: mt.bucketize(x, x[0].sort().values),
    lambda x, i, j: mt.bucketize(0.5, x[0].sort().values),
    lambda x, i, j: x.prod(1),
    lambda x, i, j: x.cumsum(0),
    lambda x, i, j: x.cumprod(1),
    lambda x, i, j: x.cummax(1),
    lambda x, i, j: x.logsumexp((0, 1)),
    lambda x, i, j: x.count_nonzero(0),
    lambda x, i, j: x.nanmean(1),
    lambda x, i, j: mt.std_mean(x, 0),
    lambda x, i, j: x.aminmax(),
    lambda x, i, j: x.diff(append=x),
    lambda x, i, j: (x > 0).all((0, 1)),
    lambda x, i, j: x.quantile(0.3, 1),
    lambda x, i, j: x.nanquantile(x.detach()[0].sigmoid()),
    lambda x, i, j: x.mode(1),
    lambda x, i, j: x.histc(5),
    lambda x, i, j: x.detach().histogram(4, weight=x.detach() ** 2, density=True),
    lambda x, i, j: j.bincount(minlength=5),
    lambda x, i, j: mt.cov(x, fweights=j[1:]),
    lambda x, i, j: x.corrcoef(),
    lambda x, i, j: mt.gradient(x, spacing=2.0),
    lambda x, i, j: mt.cumulative_trapezoid(x, x[0]),
    lambda x, i, j: x.logcumsumexp(1),
    lambda x, i, j: x.renorm(2, 0, 1.5),
    lambda x, i, j: mt.cdist(x, x[:2]),
    lambda x, i, j: mt.nn.functional.pdist(x),
    lambda x, i, j: mt.cross(x, x * x),
    lambda x, i, j: x.frexp(),
    lambda x, i, j: mt.isin(j, i),
    lambda x, i, j: mt.isin(j, 1, invert=True),
    *(
        lambda x, i, j, name=name, own=own: x.scatter_reduce(0, i, x[:2], name, include_self=own)  # type: ignore[misc]
        for name in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ),
    lambda x, i, j: x.index_reduce(0, j[:2], x[1:], "amax"),
    lambda x, i, j: x.put(j[:2], x[0, :2], accumulate=True),
    lambda x, i, j: x.slice_scatter(x[:, :2], 1, 1, 4, 2),
    lambda x, i, j: x.diagonal_scatter(x[0, :3]),
    lambda x, i, j: mt.unravel_index(j, (2, 2)),
    lambda x, i, j: mt.block_diag(x, x[0]),
    lambda x, i, j: mt.cartesian_prod(x[0], x[1]),
    lambda x, i, j: mt.combinations(x[0]),
    lambda x, i, j: (x * 1).unsqueeze_(0).transpose_(0, 2).eq_(1.0),
    lambda x, i, j: (x * 1).fill_diagonal_(1.0),
    lambda x, i, j: mt.fill(x, 2.0),
    lambda x, i, j: mt.special.log_ndtr(x * 3),
    lambda x, i, j: (1 << j) | (j >> 1),
]


def results(call: Callable[..., Any], device: str) -> list[Any]:
    """What `call` returns, and the gradient where there is one, as NumPy arrays."""
    rng = np.random.default_rng(1)
    x = mt.tensor(rng.standard_normal((3, 4)), device=device, requires_grad=True)
    found = call(
        x,
        mt.tensor(np.array([[0, 1, 2, 0], [1, 2, 0, 2]]), device=device),
        mt.tensor(np.array([2, 0, 0, 1, 1]), device=device),
    )
    found = [found] if type(found) in TENSORS else list(found)
    if found[0].requires_grad:
        found += mt.autograd.grad(found[0], x, mt.ones_like(found[0]))
    assert {type(t._array) for t in found} == {FakeArray if device == "cuda" else np.ndarray}
    return [backend.to_host(t._array) for t in found]


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_a_device_gives_what_the_cpu_gives(number: int) -> None:
    here, there = (results(CALLS[number], device) for device in ("cpu", "cuda"))
    assert len(here) == len(there)
    for a, b in zip(here, there, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=1e-14)


ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("gather", "take_along_dim"), (0, mt.tensor([[0]]))),
    **dict.fromkeys(("scatter", "scatter_add"), (0, mt.tensor([[0]]), mt.ones(1, 1))),
    **dict.fromkeys(("index_add", "index_copy"), (0, mt.tensor([0]), mt.ones(1, 4))),
    "as_strided": ((2,), (1,)),
    "index_select": (0, mt.tensor([0])),
    "index_fill": (0, mt.tensor([0]), 1.0),
    **dict.fromkeys(("masked_fill", "masked_scatter"), (mt.tensor(True), mt.tensor(1.0))),
    "masked_select": (mt.tensor(True),),
    **dict.fromkeys(("take", "searchsorted", "bucketize"), (mt.tensor([0]),)),
    "index_put": ((mt.tensor([0]),), mt.tensor(1.0)),
    **dict.fromkeys(("fill", "isin"), (1.0,)),
    **dict.fromkeys(("topk", "kthvalue"), (1,)),
}


@pytest.mark.parametrize("name", [*gathering.__all__, *sorting.__all__])
def test_an_array_in_place_of_the_tensor_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=r"^(\w+)\(\): .*must be a Tensor|Tensor or number"):
        getattr(mt, name)(np.ones((3, 4), np.float32), *ARGUMENTS.get(name, ()))


def test_a_sum_of_nothing_but_minus_infinity_needs_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mt.logsumexp(mt.tensor([[-INF, -INF], [0.0, -INF]]), 1).tolist() == [-INF, 0.0]


def test_a_repeated_row_gets_every_gradient() -> None:
    for row in ((), (1,), (3,), (2, 3)):
        x = mt.zeros(4, *row, requires_grad=True)
        x[mt.tensor([[1, -1], [1, 1]])].sum().backward()
        assert x.grad.reshape(4, -1)[:, 0].tolist() == [0.0, 3.0, 0.0, 1.0]


def test_a_repeated_index_fills_once() -> None:
    x, value = mt.ones(3, 2, requires_grad=True), mt.tensor(4.0, requires_grad=True)
    y = x.index_fill(0, mt.tensor([0, 0, -1]), value)
    assert y.tolist() == [[4.0, 4.0], [1.0, 1.0], [4.0, 4.0]]
    gx, gv = mt.autograd.grad(y.sum(), (x, value))
    assert (gx.tolist(), gv.item()) == ([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], 4.0)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize(("rows", "columns"), [(100, 4), (300, 4), (2000, 64), (100, 1)])
def test_places_do_not_have_the_range_of_the_indices(dtype, rows, columns):
    """Row 100 of 4 columns begins at place 400, which int8 has not."""
    index = np.random.default_rng(0).integers(-100, 100, 600).astype(dtype)
    expected = np.zeros((rows, columns))
    np.add.at(expected, index.astype(int), 1)
    x = mt.zeros(rows, columns, requires_grad=True)
    x[mt.tensor(index)].sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), expected)
    ones = mt.ones(600, columns)
    added = mt.index_put(mt.zeros(rows, columns), (mt.tensor(index),), ones, accumulate=True)
    np.testing.assert_array_equal(added.numpy(), expected)
