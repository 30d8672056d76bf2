"""Running sums and products and the further reductions against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike  # noqa: E402

NAN, INF = float("nan"), float("inf")
pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's, of NaN; torch's, of its own ways

CASES: list[tuple[Callable[..., Any], Any]] = [
    (lambda m, x: m.prod(x), (3, 4)),
    (lambda m, x: m.prod(x, 1), (3, 4)),
    (lambda m, x: x.prod(dim=-2, keepdim=True), (2, 3, 4)),
    (lambda m, x: x.T.prod(0), (3, 4)),
    (lambda m, x: x.prod(), ()),
    (lambda m, x: x.prod(-1, True), ()),
    (lambda m, x: x.prod(1), (2, 0)),
    (lambda m, x: x.prod(), (0,)),
    (lambda m, x: m.prod(input=x, dim=0, dtype=m.float64), (3, 4)),
    (lambda m, x: m.cumsum(x, 0), (3, 4)),
    (lambda m, x: x.cumsum(dim=-1), (2, 3, 4)),
    (lambda m, x: x.T.cumsum(1) * x.T, (3, 4)),
    (lambda m, x: x.cumsum(0), ()),
    (lambda m, x: x.detach().cumsum(1, dtype=m.int64), (2, 3)),
    (lambda m, x: m.cumprod(x, 0), (5, 2)),
    (lambda m, x: x.cumprod(-1), (2, 3, 4)),
    (lambda m, x: x.cumprod(0), ()),
    (lambda m, x: x.cumprod(1), (2, 0)),
    (lambda m, x: m.cummax(x, 1).values, (3, 7)),
    (lambda m, x: x.cummin(dim=0)[0], (6, 2)),
    (lambda m, x: x.cummax(-1).values, ()),
    (lambda m, x: x.cummax(0).indices, (0,)),
    (lambda m, x: m.logsumexp(x, 1), (3, 4)),
    (lambda m, x: m.logsumexp(x, (0, -1), keepdim=True), (2, 3, 4)),
    (lambda m, x: x.logsumexp(dim=[0, 1]), (3, 4)),
    (lambda m, x: x.logsumexp(0), ()),
    (lambda m, x: x.logsumexp(1), (2, 0)),
    (lambda m, x: x.logsumexp(0, True), (0, 2)),
    (lambda m, x: m.count_nonzero(x > 0), (3, 4)),
    (lambda m, x: x.count_nonzero(dim=(0, 1)), (3, 4)),
    (lambda m, x: x.count_nonzero(-1), (3, 4)),
    (lambda m, x: m.nansum(x), (3, 4)),
    (lambda m, x: x.nansum((0, 1), True), (3, 4)),
    (lambda m, x: m.nanmean(x, dim=1), (3, 4)),
    (lambda m, x: x.nanmean(), (3, 4)),
    *(
        (lambda m, x, f=f, i=i, a=a, k=k: getattr(m, f)(x, *a, **k)[i], (3, 4))
        for f in ("std_mean", "var_mean")
        for i in (0, 1)
        for a, k in [((), {}), ((0,), {}), (((0, 1), True, True), {}), ((False,), {}),
                     ((), {"dim": 1, "correction": 0, "keepdim": True})]
    ),
    (lambda m, x: m.aminmax(x).max, (3, 4)),
    (lambda m, x: x.aminmax(dim=1, keepdim=True).min, (3, 4)),
    (lambda m, x: x.aminmax(dim=-1)[1], ()),
    (lambda m, x: m.diff(x), (3, 4)),
    (lambda m, x: x.diff(2, 0), (5, 2)),
    (lambda m, x: x.diff(n=4, dim=1), (2, 3)),
    (lambda m, x: x.diff(0), (3,)),
    (lambda m, x: m.diff(x, prepend=x * 2, append=x[:1]), (3,)),
    (lambda m, x: x.all(), (2, 3)),
    (lambda m, x: m.all(x > 0, (0, 2)), (2, 3, 4)),
    (lambda m, x: m.any(x > 0, dim=[1], keepdim=True), (2, 3)),
    (lambda m, x: m.any(x > 0, None), (2, 3)),
    (lambda m, x: x.all(()), (2, 3)),
    (lambda m, x: x.any((0,)), ()),
    (lambda m, x: x.all(1), (3, 0)),
    (lambda m, x: x.sum(()), (2, 3)),
    (lambda m, x: x.sum([0, -1]), (2, 3, 4)),
    (lambda m, x: m.sum(x, None, True), (2, 3)),
    (lambda m, x: x.mean((0, 1), keepdim=True), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_values_and_gradients(number: int) -> None:
    function, shape = CASES[number]
    compare(function, normal(*shape))


ZEROS = [[0.0, 2, 3], [2, 0, 3, -1], [0, 0, 2], [2, 0, 3, 0, 5], [0, 0, 0], [1, 2, 0], [0.0]]


@pytest.mark.parametrize("values", ZEROS, ids=str)
def test_products_with_zeros(values: Any) -> None:
    line = np.array(values, float)
    block = np.stack([line, line[::-1], line + 1, line])
    for call in (
        lambda m, x: x.prod(),
        lambda m, x: x.prod(-1),
        lambda m, x: x.prod(0, keepdim=True),
        lambda m, x: x.cumprod(0),
        lambda m, x: x.cumprod(-1),
    ):
        compare(call, line)
        compare(call, block)


@pytest.mark.parametrize("values", [[1, NAN, 2], [INF, 1], [-INF, -INF], [INF, -INF], [NAN, NAN]])
@pytest.mark.parametrize(
    "name", ["logsumexp", "cumsum", "prod", "cumprod", "nansum", "nanmean", "cummax", "cummin"]
)
def test_nan_and_infinity(name: str, values: Any) -> None:
    def call(m: Any, x: Any) -> Any:
        found = getattr(m, name)(x, 0)
        return found[0] if name.startswith("cumm") else found

    array = np.array(values, float)
    if name in ("prod", "cumprod", "nanmean"):  # torch divides, and its gradient is another NaN
        ours, theirs = both(array, grad=False)
        assert_same(call(mt, ours), call(torch, theirs))
    else:
        compare(call, array, second=False)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("values", [[1, 3, 3, 2, NAN, 1, NAN], [2, 2, 2], [3, 1, 1, 2, 0]])
def test_which_of_equal_elements(name: str, values: Any) -> None:
    for array in (np.array(values, float), np.array(values, float)[:3].astype(np.int64)):
        for part in (0, 1):
            compare(lambda m, x, p=part: getattr(x, name)(0)[p], array, second=False)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "float32"])
def test_dtypes(dtype: str) -> None:
    array = np.array([[1, 2, 1], [0, 1, 3]]).astype(dtype)
    for call in (
        lambda m, x: x.sum(1),
        lambda m, x: x.sum(1, dtype=m.int32),
        lambda m, x: x.sum(dtype=m.bool),
        lambda m, x: x.prod(1),
        lambda m, x: x.prod(dtype=m.int32),
        lambda m, x: x.prod(0, dtype=m.float64),
        lambda m, x: x.cumsum(0),
        lambda m, x: x.cumsum(0, dtype=m.int32),
        lambda m, x: x.cumprod(1),
        lambda m, x: x.cummax(1).values,
        lambda m, x: x.cummin(1).values,
        lambda m, x: x.count_nonzero(0),
        lambda m, x: x.nansum(0),
        lambda m, x: x.nansum(dtype=m.int64),
        lambda m, x: x.diff(),
        lambda m, x: x.aminmax().max,
        lambda m, x: x.all(1),
        lambda m, x: x.any((0, 1)),
        lambda m, x: x.any(()),
    ):
        ours, theirs = both(array, grad=False)
        assert_same(call(mt, ours), call(torch, theirs))
    ours, theirs = both(array, grad=False)
    assert_same(ours.logsumexp(0), theirs.logsumexp(0), rtol=1e-3 if dtype == "float16" else 1e-6)


REFUSED: list[Callable[..., Any]] = [
    lambda m: m.prod([1.0]),
    lambda m: m.zeros(2).prod(1),
    lambda m: m.zeros(2, 3).prod((0, 1)),
    lambda m: m.tensor(1.0).prod(1),
    lambda m: m.zeros(2).prod(0.5),
    lambda m: m.zeros(2).cumsum(),
    lambda m: m.zeros(2).cumsum(1),
    lambda m: m.zeros(2).cumsum((0,)),
    lambda m: m.zeros(2).cumprod(0.5),
    lambda m: m.zeros(2).cummax(1),
    lambda m: m.logsumexp(m.zeros(2, 3)),
    lambda m: m.zeros(2, 3).logsumexp((0, 0)),
    lambda m: m.zeros(2, 3).logsumexp(2),
    lambda m: m.zeros(2).nansum(3),
    lambda m: m.nanmean(m.tensor([1, 2])),
    lambda m: m.std_mean(m.tensor([1, 2])),
    lambda m: m.var_mean(m.zeros(2), 3),
    lambda m: m.zeros(0).aminmax(),
    lambda m: m.zeros(2, 0).aminmax(dim=1),
    lambda m: m.aminmax(m.zeros(2, 3), 0),
    lambda m: m.diff(m.tensor(1.0)),
    lambda m: m.diff(m.zeros(2), n=-1),
    lambda m: m.diff(m.zeros(2), n=1.5),
    lambda m: m.diff(m.zeros(2, 3), dim=2),
    lambda m: m.diff(m.zeros(2, 3), 1, 0, prepend=m.zeros(1, 2)),
    lambda m: m.zeros(2, 2).all((0, 0)),
    lambda m: m.zeros(2, 2).any((0, 2)),
    lambda m: m.count_nonzero(m.zeros(2), 1),
    lambda m: m.tensor([1.5]).mean(dtype=m.int32),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_torch_refuses_is_refused(number: int) -> None:
    refused_alike(REFUSED[number])
