"""Reading and writing at indices against PyTorch's: values, gradients of both orders, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike, rng  # noqa: E402

INF = float("inf")


def integers(*shape: int, high: int) -> Any:
    return np.asarray(rng.integers(0, high, shape))


# One Tensor and one index -------------------------------------------------------------------------

READS: list[tuple[Callable[..., Any], Any, Any]] = [
    (lambda m, x, i: m.gather(x, 1, i), (3, 4), integers(3, 6, high=4)),
    (lambda m, x, i: m.gather(input=x, dim=-2, index=i), (3, 4), integers(5, 2, high=3)),
    (lambda m, x, i: x.gather(0, i), (5,), integers(9, high=5).astype(np.int32)),
    (lambda m, x, i: x.gather(1, i), (4, 3, 2), integers(2, 5, 1, high=3)),
    (lambda m, x, i: x.T.gather(1, i), (3, 4), integers(2, 5, high=3)),
    (lambda m, x, i: x.gather(0, i), (), np.array(0)),
    (lambda m, x, i: x.gather(0, i), (), np.array([0, 0])),
    (lambda m, x, i: x.gather(-1, i), (3,), np.array(2)),
    (lambda m, x, i: x.gather(1, i), (3, 4), np.zeros(0, int)),
    (lambda m, x, i: x.gather(1, i), (3, 0), np.zeros((3, 0), int)),
    (lambda m, x, i: x.expand(3, 4).gather(0, i), (4,), integers(5, 4, high=3)),
    (lambda m, x, i: m.index_select(x, 0, i), (3, 4), integers(6, high=3)),
    (lambda m, x, i: x.index_select(-1, i), (3, 4), integers(6, high=4).astype(np.int32)),
    (lambda m, x, i: x.index_select(1, i), (3, 4, 2), np.zeros(0, int)),
    (lambda m, x, i: x.index_select(0, i), (3,), np.array(2)),
    (lambda m, x, i: x.index_select(0, i), (), np.array([0])),
    (lambda m, x, i: x.index_select(dim=0, index=i), (3, 0), np.array([2, 2])),
    (lambda m, x, i: m.take_along_dim(x, i, 1), (3, 4), integers(1, 6, high=4)),
    (lambda m, x, i: m.take_along_dim(x, i, dim=-1), (1, 4), integers(3, 2, high=4)),
    (lambda m, x, i: x.take_along_dim(i), (3, 4), integers(2, 5, high=12)),
    (lambda m, x, i: m.take_along_dim(x, x.argmax(0, True), 0), (3, 4), np.zeros(0)),
    (lambda m, x, i: m.take(x, i), (3, 4), np.array([[-1, 0], [11, 0]])),
    (lambda m, x, i: x.take(i), (3, 4), np.array(5)),
    (lambda m, x, i: x.T.take(i), (3, 4), np.array([1, 1])),
    (lambda m, x, i: x.take(i), (), np.array([0, -1])),
    (lambda m, x, i: x[i], (7, 3), integers(2, 9, high=7)),
    (lambda m, x, i: x[i], (7, 3, 2), np.array([-1, 0, -1, -7])),
    (lambda m, x, i: x.masked_select(i > 0), (3, 4), integers(4, high=2)),
    (lambda m, x, i: m.masked_select(x, i > 0), (3, 1), integers(2, 3, 4, high=2)),
    (lambda m, x, i: x.masked_select(i > 0), (), np.array(1)),
    (lambda m, x, i: x.masked_select(i > 0), (), np.array([1, 0, 1])),
    (lambda m, x, i: x[i.nonzero(as_tuple=True)], (3, 4), integers(3, 4, high=2)),
    (lambda m, x, i: x[m.where(i)] * 2, (3, 4), integers(3, 4, high=2)),
]


@pytest.mark.parametrize("number", range(len(READS)))
def test_reading(number: int) -> None:
    function, shape, index = READS[number]
    compare(function, normal(*shape), index)


SHUFFLED = np.array([2, 0])
WRITES: list[tuple[Callable[..., Any], Any, Any, Any]] = [
    (lambda m, x, i, s: m.scatter(x, 0, i, s), (3, 2), np.array([[2, 0], [0, 1]]), (2, 2)),
    (lambda m, x, i, s: x.scatter(1, i, s), (2, 3), np.array([[2, 0]]), (1, 2)),
    (lambda m, x, i, s: x.scatter(-1, i, s * 1), (3,), SHUFFLED.astype(np.int32), (2,)),
    (lambda m, x, i, s: x.scatter(0, i, 1.5), (3, 2), np.array([[2, 0], [0, 1]]), ()),
    (lambda m, x, i, s: x.scatter(0, i, value=2), (3,), np.array([1, 1]), ()),
    (lambda m, x, i, s: x.scatter(0, i, s), (3,), np.zeros(0, int), (0,)),
    (lambda m, x, i, s: x.scatter(0, i, s), (), np.array(0), ()),
    (lambda m, x, i, s: (x * 1).scatter_(0, i, s) * 2, (3,), SHUFFLED, (2,)),
    (lambda m, x, i, s: (x * 1).scatter_(0, i, 3.0) * 2, (3,), SHUFFLED, (2,)),
    (lambda m, x, i, s: m.scatter_add(x, 0, i, s), (3, 4), integers(6, 4, high=3), (6, 4)),
    (lambda m, x, i, s: x.scatter_add(1, i, s), (3, 4), integers(2, 3, high=4), (2, 3)),
    (lambda m, x, i, s: (x * 1).scatter_add_(0, i, s) * x, (3,), integers(7, high=3), (7,)),
    (lambda m, x, i, s: x.scatter_add(0, i, s), (), np.array([0, 0]), (2,)),
    (lambda m, x, i, s: x.scatter_add(2, i, s), (2, 3, 4), integers(2, 3, 5, high=4), (2, 3, 5)),
    (lambda m, x, i, s: m.index_add(x, 0, i, s), (3, 4), np.array([2, 0, 2]), (3, 4)),
    (lambda m, x, i, s: x.index_add(-1, i, s, alpha=2.5), (3, 4), np.array([3, 3]), (3, 2)),
    (lambda m, x, i, s: x.index_add(0, i, s), (3,), np.array(1), (1,)),
    (lambda m, x, i, s: x.index_add(0, i, s), (), np.array([0]), ()),
    (lambda m, x, i, s: (x * 1).index_add_(0, i, s) * x, (3, 2), np.array([1, 1]), (2, 2)),
    (lambda m, x, i, s: m.index_copy(x, 0, i, s), (3, 4), SHUFFLED, (2, 4)),
    (lambda m, x, i, s: x.index_copy(1, i, s), (3, 4), SHUFFLED, (3, 2)),
    (lambda m, x, i, s: (x * 1).index_copy_(1, i, s) * x, (3, 4), SHUFFLED, (3, 2)),
    (lambda m, x, i, s: x.index_copy(0, i, s), (3, 4), np.zeros(0, int), (0, 4)),
    (lambda m, x, i, s: m.index_fill(x, 0, i, 2), (3, 4), np.array([2, -3]), ()),
    (lambda m, x, i, s: x.index_fill(1, i, s), (3, 4), SHUFFLED, ()),
    (lambda m, x, i, s: (x * 1).index_fill_(0, i, 7.5) * x, (3,), SHUFFLED, ()),
    (lambda m, x, i, s: m.masked_fill(x, i > 0, 2), (3, 4), integers(3, 4, high=2), ()),
    (lambda m, x, i, s: x.masked_fill(i > 0, s), (3, 4), integers(4, high=2), ()),
    (lambda m, x, i, s: x.masked_fill(i > 0, -1.5), (4,), integers(3, 4, high=2), ()),
    (lambda m, x, i, s: (x * 1).masked_fill_(i > 0, s) * x, (3, 4), integers(4, high=2), ()),
    (
        lambda m, x, i, s: x.masked_fill(i > 0, float("-inf")).softmax(0),
        (3,),
        SHUFFLED[[0, 1, 1]],
        (),
    ),
    (lambda m, x, i, s: x.masked_scatter(i > 0, s), (3, 4), integers(3, 4, high=2), (15,)),
    (lambda m, x, i, s: (x * 1).masked_scatter_(i > 0, s) * x, (3,), np.array([1, 0, 1]), (2,)),
    (lambda m, x, i, s: m.index_put(x, (i,), s), (3, 4), SHUFFLED, (2, 4)),
    (lambda m, x, i, s: m.index_put(x, (i, i), s), (3, 4), SHUFFLED, ()),
    (lambda m, x, i, s: m.index_put(x, (i,), s, accumulate=True), (3, 4), np.array([2, 2]), (4,)),
    (lambda m, x, i, s: x.index_put((i, i), s, True), (3, 4), np.array([2, 2]), (2,)),
    (lambda m, x, i, s: x.index_put((i[0], i), s, True), (3, 4), np.array([2, 2]), (2,)),
    (lambda m, x, i, s: x.index_put((i > 1, i), s, True), (2, 4), np.array([2, 2]), (2,)),
    (lambda m, x, i, s: x.index_put([i > 0], s, True), (3,), np.array([1, 0, 1]), (2,)),
    (lambda m, x, i, s: (x * 1).index_put_((i,), s, True) * x, (3,), np.array([1, 1]), (2,)),
    (lambda m, x, i, s: m.where(i > 0, x, s), (3, 4), integers(4, high=2), (3, 1)),
    (lambda m, x, i, s: m.where(i > 0, input=x, other=1.0), (4,), integers(4, high=2), ()),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(WRITES)))
def test_writing(number: int) -> None:
    function, shape, index, source = WRITES[number]
    compare(function, normal(*shape), index, normal(*source))


def test_a_source_larger_than_the_index() -> None:
    x, i, s = normal(3), np.array([2, 0]), normal(5)
    compare(lambda m, x, i, s: m.scatter(x, 0, i, s[:2]), x, i, s)
    for name in ("scatter", "scatter_add"):  # torch has the values only
        ours, theirs = (getattr(both(x, False)[k], name) for k in (0, 1))
        (i0, i1), (s0, s1) = both(i), both(s, False)
        assert_same(ours(0, i0, s0), theirs(0, i1, s1))
    t = mt.tensor(s, requires_grad=True)
    mt.zeros(3, dtype=mt.float64).scatter(0, mt.tensor(i), t).sum().backward()
    assert t.grad.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "float32"])
def test_dtypes(dtype: str) -> None:
    x, s, i = np.array([1, 0, 2]).astype(dtype), np.array([1, 1]).astype(dtype), SHUFFLED
    for call in (
        lambda m, x, i, s: x.gather(0, i),
        lambda m, x, i, s: x.index_select(0, i),
        lambda m, x, i, s: x.take(i),
        lambda m, x, i, s: x.scatter(0, i, s),
        lambda m, x, i, s: x.scatter(0, i, 1),
        lambda m, x, i, s: x.scatter_add(0, i * 0, s),
        lambda m, x, i, s: x.index_add(0, i * 0, s),
        lambda m, x, i, s: x.index_copy(0, i, s),
        lambda m, x, i, s: x.index_fill(0, i, 1),
        lambda m, x, i, s: x.masked_fill(x > 0, True),
        lambda m, x, i, s: x.index_put((i,), s),
        lambda m, x, i, s: x.nonzero(),
        lambda m, x, i, s: m.where(x)[0],
        lambda m, x, i, s: m.argwhere(x),
    ):
        compare(call, x, i, s, second=False)


@pytest.mark.parametrize("array", [np.ones(()), np.zeros(()), np.zeros((2, 0)), normal(2, 3) > 0])
def test_nonzero(array: Any) -> None:
    compare(lambda m, x: m.nonzero(x), array, second=False)
    x, t = both(array, grad=False)
    for ours, theirs in ((x.nonzero(as_tuple=True), t.nonzero(as_tuple=True)),
                         (mt.where(x), torch.where(t))):  # fmt: skip
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)


# Refusals -----------------------------------------------------------------------------------------

REFUSED: list[Callable[..., Any]] = [
    lambda m: m.zeros(3).gather(0, m.tensor([0, 3])),
    lambda m: m.zeros(3).gather(0, m.tensor([-1])),
    lambda m: m.zeros(3).gather(1, m.tensor([0])),
    lambda m: m.zeros(3).gather(0, m.tensor([1.0])),
    lambda m: m.zeros(3).gather(0, m.tensor([True])),
    lambda m: m.zeros(3).gather(0, [1]),
    lambda m: m.zeros(3, 2).gather(0, m.tensor([1])),
    lambda m: m.zeros(3, 2).gather(0, m.tensor([[1, 1, 1]])),
    lambda m: m.gather([1.0], 0, m.tensor([0])),
    lambda m: m.zeros(3).index_select(0, m.tensor([3])),
    lambda m: m.zeros(3).index_select(0, m.tensor([-1])),
    lambda m: m.zeros(3).index_select(0, m.tensor([[1]])),
    lambda m: m.zeros(3).index_select(0, m.tensor([1.0])),
    lambda m: m.zeros(3).index_select(0, [1]),
    lambda m: m.zeros(3).index_select(2, m.tensor([1])),
    lambda m: m.tensor(2.0).index_select(0, m.tensor([0, 0])),
    lambda m: m.take_along_dim(m.zeros(3, 4), m.tensor([1]), 1),
    lambda m: m.take_along_dim(m.zeros(3, 4), m.tensor([[1], [1]]), 1),
    lambda m: m.take_along_dim(m.zeros(3, 4), m.tensor([[1.0]]), 1),
    lambda m: m.zeros(3).take(m.tensor([3])),
    lambda m: m.zeros(3).take(m.tensor([-4])),
    lambda m: m.zeros(0).take(m.tensor([0])),
    lambda m: m.zeros(3).take(m.tensor([1.0])),
    lambda m: m.zeros(3).scatter(0, m.tensor([0, 1]), m.tensor([1, 2])),
    lambda m: m.zeros(3).scatter(0, m.tensor([0, 3]), 1),
    lambda m: m.zeros(3).scatter(0, m.tensor([0, -1]), m.ones(2)),
    lambda m: m.zeros(3).scatter(0, m.tensor([0, 1]), m.tensor([1.0])),
    lambda m: m.zeros(3).scatter(0, m.tensor([0, 1]), m.tensor(1.0)),
    lambda m: m.zeros(3).scatter(0, m.tensor([0, 1]), m.ones(2), reduce="mean"),
    lambda m: m.zeros(3).scatter(0, m.tensor([0, 1]), "1"),
    lambda m: m.zeros(3).scatter(0, m.tensor([0, 1])),
    lambda m: m.zeros(3, 2).scatter(0, m.tensor([[0, 1, 1]]), 1.0),
    lambda m: m.zeros(3).scatter_add(0, m.tensor([0]), m.tensor([1])),
    lambda m: m.zeros(3).scatter_add(0, m.tensor([0]), 1.0),
    lambda m: m.zeros(3).scatter_add(0, m.tensor([4]), m.tensor([1.0])),
    lambda m: m.zeros(3).index_add(0, m.tensor([0, 3]), m.ones(2)),
    lambda m: m.zeros(3).index_add(0, m.tensor([0, -1]), m.ones(2)),
    lambda m: m.zeros(3).index_add(0, m.tensor([0]), m.ones(2)),
    lambda m: m.zeros(3).index_add(0, m.tensor([0, 1]), m.tensor([1, 2])),
    lambda m: m.zeros(3, 2).index_add(0, m.tensor([1]), m.zeros(1, 3)),
    lambda m: m.zeros(3).index_copy(0, m.tensor([0, -1]), m.ones(2)),
    lambda m: m.zeros(3).index_copy(0, m.tensor([0, 3]), m.ones(2)),
    lambda m: m.zeros(3).index_copy(0, m.tensor([0]), m.ones(2)),
    lambda m: m.zeros(3).index_copy(0, m.tensor([0, 1]), m.tensor([1, 2])),
    lambda m: m.zeros(3).index_fill(0, m.tensor([0, 3]), 2),
    lambda m: m.zeros(3).index_fill(0, m.tensor([0, -4]), 2),
    lambda m: m.zeros(3).index_fill(0, m.tensor([0]), m.tensor([3.0])),
    lambda m: m.zeros(3).masked_fill(m.tensor([1, 0, 1]), 2),
    lambda m: m.zeros(3).masked_fill(m.tensor([True, False]), 2),
    lambda m: m.zeros(3).masked_fill(m.tensor([True, False, True]), m.tensor([1.0])),
    lambda m: m.zeros(3).masked_fill(m.tensor([True, False, True]), "1"),
    lambda m: m.zeros(3).masked_fill(True, 1),
    lambda m: m.zeros(3).masked_fill_(m.tensor([[True], [False]]), 2),
    lambda m: m.zeros(3).masked_select(m.tensor([1, 0, 1])),
    lambda m: m.zeros(3).masked_select(m.tensor([True, False])),
    lambda m: m.zeros(3).masked_scatter(m.tensor([True, False, True]), m.ones(1)),
    lambda m: m.zeros(3).masked_scatter(m.tensor([True, False, True]), m.tensor([1, 2])),
    lambda m: m.zeros(3).index_put((m.tensor([5]),), m.tensor(1.0)),
    lambda m: m.zeros(3).index_put((m.tensor([5]),), m.tensor(1.0), True),
    lambda m: m.zeros(3).index_put((m.tensor(3),), m.tensor(1.0), True),
    lambda m: m.zeros(40, 40).index_put((m.tensor([40] * 40),), m.ones(40, 40), True),
    lambda m: m.zeros(2, 3).index_put((m.tensor([1]), m.tensor([-4])), m.tensor(1.0), True),
    lambda m: m.zeros(3).index_put((m.tensor([0]), m.tensor([0])), m.tensor(1.0), True),
    lambda m: m.zeros(3).index_put((m.tensor([True]),), m.tensor(1.0), True),
    lambda m: m.zeros(3).index_put((m.tensor([0]),), m.tensor([1])),
    lambda m: m.zeros(3).index_put((m.tensor([0]),), 2.0),
    lambda m: m.zeros(3).index_put((None,), m.tensor(1.0)),
    lambda m: m.zeros(3).index_put((m.tensor([0]),), m.ones(2)),
    lambda m: m.zeros(3).index_put((m.tensor([0]),), m.ones(2), accumulate=True),
    lambda m: m.where(m.tensor([True]), 1),
    lambda m: m.ones(3, requires_grad=True).masked_fill_(m.tensor([True, False, True]), 2),
    lambda m: m.where([True]),
    lambda m: m.nonzero(3),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_torch_refuses_is_refused(number: int) -> None:
    refused_alike(REFUSED[number])


def test_what_is_refused_here_on_purpose() -> None:
    whole, mask = mt.tensor([1, 2]), mt.tensor([True, False])
    for value in (1.5, float("inf"), mt.tensor(1.0)):  # torch cuts the fraction off
        with pytest.raises(RuntimeError, match="cannot be stored as int64"):
            whole.masked_fill(mask, value)
    for dtype, value in ((mt.float16, -1e9), (mt.uint8, 300), (mt.int8, -129)):
        with pytest.raises(RuntimeError, match="cannot be stored"):
            mt.ones(2, dtype=dtype).masked_fill(mask, value)
    with pytest.raises(RuntimeError, match="cannot be stored as bool"):
        mask.index_fill(0, mt.tensor([0]), 2)
    with pytest.raises(RuntimeError, match="argument 'reduce' must be 'add', got 'multiply'"):
        mt.ones(2).scatter(0, mt.tensor([0]), 2.0, reduce="multiply")
    for bad in (4, -5):  # torch reads memory that is not the Tensor's
        with pytest.raises(RuntimeError, match="out of bounds"):
            mt.take_along_dim(mt.zeros(3, 4), mt.tensor([[bad]]), 1)


def test_an_index_written_to_before_backward() -> None:
    for read in (lambda x, i: x.index_select(0, i), lambda x, i: x.take(i)):
        x, index = mt.tensor([1.0, 2.0], requires_grad=True), mt.tensor([0, 0])
        y = read(x, index)
        index[0] = 1
        y.sum().backward()
        assert x.grad.tolist() == [2.0, 0.0]
    x, index = mt.tensor([1.0, 2.0], requires_grad=True), mt.tensor([0, 0])
    y = x.gather(0, index)
    index[0] = 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
