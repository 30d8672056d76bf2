"""Sorting, ranks and distinct elements against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike, rng  # noqa: E402

NAN, INF = float("nan"), float("inf")
pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's, of NaN; torch's, of its own ways

PAIRS: list[tuple[Callable[..., Any], Any]] = [  # functions that return (values, indices)
    (lambda m, x: m.sort(x), (3, 7)),
    (lambda m, x: m.sort(x, 0, True), (7, 3)),
    (lambda m, x: m.sort(input=x, dim=-2, descending=True, stable=True), (2, 5, 3)),
    (lambda m, x: x.T.sort(stable=True), (5, 3)),
    (lambda m, x: x.sort(1), (2, 0)),
    (lambda m, x: x.sort(), ()),
    (lambda m, x: x.sort(descending=True), (0,)),
    (lambda m, x: m.topk(x, 3), (4, 7)),
    (lambda m, x: x.topk(2, dim=0, largest=False), (5, 3)),
    (lambda m, x: x.topk(2, 1, True, True), (3, 5, 2)),
    (lambda m, x: x.topk(0), (3,)),
    (lambda m, x: x.topk(1), ()),
    (lambda m, x: x.topk(1, 1), (0, 2)),
    (lambda m, x: m.kthvalue(x, 2), (3, 5)),
    (lambda m, x: x.kthvalue(5, dim=0, keepdim=True), (5, 3)),
    (lambda m, x: x.kthvalue(1), ()),
    (lambda m, x: m.median(x, 1), (3, 5)),
    (lambda m, x: m.median(x, dim=-2, keepdim=True), (3, 6, 2)),
    (lambda m, x: x.median(0), ()),
    (lambda m, x: x.median(1), (0, 2)),
    (lambda m, x: m.nanmedian(x, 0), (6, 3)),
    (lambda m, x: x.nanmedian(dim=1, keepdim=True), (3, 5)),
]


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_values_and_indices(number: int) -> None:
    function, shape = PAIRS[number]
    array = normal(*shape)
    for part in (0, 1):
        compare(lambda m, x, p=part: function(m, x)[p], array)
    assert function(mt, mt.tensor(array))._fields == ("values", "indices")


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.argsort(x, 0, True),
        lambda m, x: x.argsort(dim=-1, stable=True),
        lambda m, x: m.msort(x),
        lambda m, x: m.median(x),
        lambda m, x: x.nanmedian(),
        lambda m, x: x.T.median() * x,
    ],
)
@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_single_results(function: Any, shape: Any) -> None:
    compare(function, normal(*shape))


TIES = [
    [2.0, 1, 2, 3, 2, 1],
    [NAN, 1, NAN, -INF, 1],
    [NAN, NAN],
    [INF, NAN, INF],
    [0.0, -0.0, 0.0, -0.0],
]


@pytest.mark.parametrize("values", TIES, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_ties_and_nan(values: Any, dtype: str) -> None:
    array = np.array(values, dtype)
    for down in (False, True):
        for part in (0, 1):
            compare(
                lambda m, x, d=down, p=part: (
                    m.sort(x, 0, d, stable=True)[p]
                    if m is mt
                    else m.sort(x, dim=0, descending=d, stable=True)[p]
                ),
                array,
                second=False,
            )
        values_only = lambda m, x, d=down: x.topk(2, largest=d)[0].detach()  # noqa: E731
        compare(values_only, array, second=False)
    compare(lambda m, x: x.kthvalue(2).values.detach(), array, second=False)
    compare(lambda m, x: x.median(0).values.detach(), array, second=False)
    compare(lambda m, x: x.nanmedian(0).values.detach(), array, second=False)
    compare(lambda m, x: x.median(), array, second=False)
    if not np.isnan(array).all():
        compare(lambda m, x: x.nanmedian(), array, second=False)
    if np.isnan(array).any():
        compare(lambda m, x: x.median(0).indices, array, second=False)


@pytest.mark.parametrize("part", [0, 1])
def test_ranks_of_rows_with_different_numbers_of_nan(part: int) -> None:
    array = np.array([[1, 2, 3, 4.0], [NAN, 4, 2, 1], [NAN, NAN, 3, NAN], [NAN] * 4])
    compare(lambda m, x: x.median(1)[part], array, second=False)
    compare(lambda m, x: x.nanmedian(1)[part], array[:3], second=False)
    compare(lambda m, x: x.nanmedian(1).values.detach(), array, second=False)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16"])
def test_dtypes(dtype: str) -> None:
    array = np.array([1, 0, 3, 3, 0, 2]).astype(dtype)
    calls: list[Callable[..., Any]] = [
        lambda m, x: x.sort(stable=True).indices,
        lambda m, x: x.sort(dim=0, descending=True, stable=True).indices,
        lambda m, x: x.unique(),
        lambda m, x: x.unique_consecutive(),
    ]
    if dtype != "bool":
        calls += [lambda m, x: x.median(), lambda m, x: x.nanmedian(0).values]
        calls += [lambda m, x: x.topk(3).values, lambda m, x: x.kthvalue(4).values]
        calls += [lambda m, x: m.bucketize(x, m.tensor([0, 2]), right=True)]
    for call in calls:
        compare(lambda m, x, c=call: c(m, x).detach(), array, second=False)


# Distinct elements --------------------------------------------------------------------------------

DISTINCT = [
    (rng.integers(0, 3, (4, 5)), None),
    (np.array([NAN, 1, NAN, 1, -0.0, 0.0]), None),
    (np.array(2.0), None),
    (np.zeros(0), None),
    (np.zeros((2, 0, 3)), None),
    (rng.integers(0, 2, (6, 2)), 0),
    (rng.integers(0, 2, (2, 7)), 1),
    (rng.integers(0, 2, (2, 6, 2)), 1),
    (rng.integers(0, 2, (2, 2, 9)), -1),
    (rng.integers(0, 2, 7).astype(float), 0),
    (np.zeros((0, 2)), 0),
    (normal(3, 4).T > 0, 0),
]


@pytest.mark.parametrize("number", range(len(DISTINCT)))
@pytest.mark.parametrize("name", ["unique", "unique_consecutive"])
def test_distinct_elements(name: str, number: int) -> None:
    array, dim = DISTINCT[number]
    x, t = both(np.asarray(array), grad=False)
    assert_same(getattr(mt, name)(x, dim=dim), getattr(torch, name)(t, dim=dim))
    options = {"return_inverse": True, "return_counts": True, "dim": dim}
    ours, theirs = getattr(x, name)(**options), getattr(t, name)(**options)
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b)
    found = getattr(mt, name)(x, return_counts=True, dim=dim)
    assert_same(found[1], getattr(torch, name)(t, return_counts=True, dim=dim)[1])


def test_distinct_elements_have_no_gradient() -> None:
    x = mt.tensor([2.0, 1.0, 2.0], requires_grad=True)
    for library, given in (mt, x), (torch, torch.tensor([2.0, 1.0, 2.0], requires_grad=True)):
        with pytest.raises(RuntimeError, match="derivative"):
            library.unique(given).sum().backward()
    assert x.unique(False).tolist() == [1.0, 2.0]  # in order, whatever `sorted` says


# Places in an ordered sequence --------------------------------------------------------------------

LINE = np.array([-INF, -1.0, 0.0, 0.0, 2.0, NAN])
SEARCHES: list[tuple[Any, Any]] = [
    (LINE, np.array([[0.0, NAN, -2.0], [INF, -INF, 2.0]])),
    (LINE[1:5], np.array(0.5)),
    (LINE[:0], np.array([1.0])),
    (np.array([1, 3, 5, 7, 9]), np.array([3.5, 0, 9, 10])),
    (np.sort(normal(2, 9)), normal(2, 4)),
    (np.zeros((2, 0)), normal(2, 3)),
    (np.array([2, 2, 2]), np.array([1, 2, 3])),
    (np.arange(17.0), np.arange(-1, 18)),
]


@pytest.mark.parametrize("number", range(len(SEARCHES)))
@pytest.mark.parametrize("options", [{}, {"right": True}, {"side": "right"}, {"out_int32": True}])
def test_searchsorted(number: int, options: Any) -> None:
    line, values = SEARCHES[number]
    compare(lambda m, s, v: m.searchsorted(s, v, **options), line, values, second=False)
    if line.ndim == 1 and "side" not in options:
        compare(lambda m, s, v: m.bucketize(v, s, **options), line, values, second=False)


def test_searchsorted_for_numbers_and_unsorted_sequences() -> None:
    line = np.array([3.0, 1.0, 2.0])
    for value in (2.5, 2, True):
        compare(lambda m, s, v=value: m.searchsorted(s.sort().values, v), line, second=False)
        compare(lambda m, s, v=value: m.bucketize(v, s.sort().values), line, second=False)
    compare(lambda m, s: m.searchsorted(s, s, sorter=s.argsort()), line, second=False)


REFUSED: list[Callable[..., Any]] = [
    lambda m: m.sort([1.0]),
    lambda m: m.zeros(2).sort(2),
    lambda m: m.zeros(2).argsort(1),
    lambda m: m.zeros(2).topk(3),
    lambda m: m.zeros(2).topk(-1),
    lambda m: m.zeros(2).topk(1.5),
    lambda m: m.zeros(2).topk(1, 3),
    lambda m: m.zeros(2).kthvalue(0),
    lambda m: m.zeros(2).kthvalue(3),
    lambda m: m.zeros(2).kthvalue(1.5),
    lambda m: m.zeros(0).kthvalue(1),
    lambda m: m.zeros(0).median(0),
    lambda m: m.zeros(0, 2).nanmedian(0),
    lambda m: m.tensor([True]).median(),
    lambda m: m.tensor([True]).median(0),
    lambda m: m.zeros(2, 2).median((0, 1)),
    lambda m: m.zeros(2, 2).median(2),
    lambda m: m.unique([1]),
    lambda m: m.zeros(2, 2).unique(dim=2),
    lambda m: m.zeros(2, 0).unique(dim=0),
    lambda m: m.tensor(1.0).unique(dim=0),
    lambda m: m.searchsorted(m.zeros(2), [1.0]),
    lambda m: m.searchsorted(m.tensor(1.0), m.zeros(2)),
    lambda m: m.searchsorted(m.zeros(2, 3), m.zeros(2)),
    lambda m: m.searchsorted(m.zeros(2), m.zeros(2), side="up"),
    lambda m: m.searchsorted(m.zeros(2), m.zeros(2), right=True, side="left"),
    lambda m: m.bucketize(2.0, m.zeros(2, 3)),
    lambda m: m.bucketize(m.zeros(2), [1.0]),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_torch_refuses_is_refused(number: int) -> None:
    refused_alike(REFUSED[number])
