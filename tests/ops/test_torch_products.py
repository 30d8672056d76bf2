"""Products of vectors and matrices, sums of products and einsum against PyTorch's.

Each case is one function of a library `m` (microtrain or torch) and Tensors, run in both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike  # noqa: E402

NAN = float("nan")

# Two factors --------------------------------------------------------------------------------------

PRODUCTS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (lambda m, x, y: m.bmm(x, y), ((2, 3, 4), (2, 4, 5))),
    (lambda m, x, y: x.bmm(mat2=y), ((2, 3, 0), (2, 0, 5))),
    (lambda m, x, y: m.bmm(x, y), ((0, 3, 4), (0, 4, 5))),
    (lambda m, x, y: m.bmm(x.transpose(1, 2), y.mT), ((2, 4, 3), (2, 5, 4))),
    (lambda m, x, y: m.mv(x, vec=y), ((3, 4), (4,))),
    (lambda m, x, y: x.mv(y), ((3, 0), (0,))),
    (lambda m, x, y: m.dot(x, y), ((4,), (4,))),
    (lambda m, x, y: x.dot(tensor=y), ((0,), (0,))),
    (lambda m, x, y: m.vdot(x, y), ((4,), (4,))),
    (lambda m, x, y: m.inner(x, y), ((4,), (4,))),
    (lambda m, x, y: m.inner(x, other=y), ((2, 3, 4), (5, 4))),
    (lambda m, x, y: x.inner(y), ((3, 4), (4,))),
    (lambda m, x, y: m.inner(x, y), ((), (3, 4))),
    (lambda m, x, y: m.inner(x, y), ((), ())),
    (lambda m, x, y: m.outer(x, vec2=y), ((3,), (4,))),
    (lambda m, x, y: x.outer(y), ((3,), (0,))),
    (lambda m, x, y: m.ger(x, y), ((3,), (4,))),
    (lambda m, x, y: m.kron(x, y), ((2, 3), (4, 2))),
    (lambda m, x, y: x.kron(y), ((3,), (2, 4))),
    (lambda m, x, y: m.kron(x, y), ((2, 1, 3), (2,))),
    (lambda m, x, y: m.kron(x, y), ((), (2,))),
    (lambda m, x, y: m.tensordot(x, y), ((3, 2, 4), (2, 4, 5))),
    (lambda m, x, y: m.tensordot(x, y, dims=1), ((3, 4), (4, 2))),
    (lambda m, x, y: m.tensordot(x, y, 0), ((3,), (4, 2))),
    (lambda m, x, y: m.tensordot(x, y, ([1, -3], [0, 1])), ((3, 4, 2), (4, 3, 5))),
    (lambda m, x, y: m.tensordot(x, y, ((1,), (0,))), ((3, 4), (1, 2))),
    (lambda m, x, y: m.tensordot(x, y, ((1,), (0,))), ((3, 1), (4, 2))),
    (lambda m, x, y: m.tensordot(x, y, m.tensor([[1], [0]])), ((3, 4), (4, 2))),
    (lambda m, x, y: m.tensordot(x, y, 1), ((3, 0), (0, 2))),
]


@pytest.mark.parametrize("number", range(len(PRODUCTS)))
def test_product(number: int) -> None:
    function, shapes = PRODUCTS[number]
    compare(function, *(normal(*shape) for shape in shapes))


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float32"])
@pytest.mark.parametrize("number", range(len(PRODUCTS)))
def test_product_keeps_the_dtype(number: int, dtype: str) -> None:
    function, shapes = PRODUCTS[number]
    arrays = [(np.arange(np.prod(shape, dtype=int)) % 5).reshape(shape) for shape in shapes]
    ours, theirs = (function(m, *(m.tensor(a.astype(dtype)) for a in arrays)) for m in (mt, torch))
    assert_same(ours, theirs, rtol=1e-6)


def test_products_that_promote() -> None:
    for name in ("outer", "kron"):
        x, y = np.arange(3), normal(4).astype(np.float32)
        ours, theirs = (getattr(m, name)(m.tensor(x), m.tensor(y)) for m in (mt, torch))
        assert_same(ours, theirs)


@pytest.mark.parametrize("n", [-3, -2, -1, 0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize("shape", [(3, 3), (2, 1, 2, 2), (0, 0)], ids=str)
def test_matrix_power(n: int, shape: Any) -> None:
    x = normal(*shape) * 0.3 + 2 * np.eye(shape[-1])
    ours, theirs = both(x)
    assert_same(mt.matrix_power(ours, n), torch.matrix_power(theirs, n))
    if n:
        compare(lambda m, a: a.matrix_power(n), x)
    if n >= 0:
        i, t = both(np.arange(9).reshape(3, 3))
        assert_same(mt.linalg.matrix_power(i, n), torch.linalg.matrix_power(t, n))


# A product added ----------------------------------------------------------------------------------

ADDED = [
    ("addmm", (3, 2), (3, 4), (4, 2)),
    ("addmm", (2,), (3, 4), (4, 2)),
    ("addmm", (), (3, 4), (4, 2)),
    ("addmm", (3, 1), (3, 0), (0, 2)),
    ("addmv", (3,), (3, 4), (4,)),
    ("addmv", (), (3, 4), (4,)),
    ("addmv", (0,), (0, 4), (4,)),
    ("baddbmm", (2, 3, 2), (2, 3, 4), (2, 4, 2)),
    ("baddbmm", (3, 1), (2, 3, 4), (2, 4, 2)),
    ("addbmm", (3, 2), (2, 3, 4), (2, 4, 2)),
    ("addbmm", (2,), (0, 3, 4), (0, 4, 2)),
]


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2), (0, 3), (2, -1)])
@pytest.mark.parametrize(("name", "first", "second", "third"), ADDED)
def test_a_product_added(
    name: str, first: Any, second: Any, third: Any, beta: Any, alpha: Any
) -> None:
    arrays = normal(*first), normal(*second), normal(*third)
    compare(lambda m, x, a, b: getattr(m, name)(x, a, b, beta=beta, alpha=alpha), *arrays)
    compare(lambda m, x, a, b: getattr(x, name)(a, b, alpha=alpha, beta=beta), *arrays)
    if beta != 0.5:
        whole = [np.round(3 * a).astype(np.int64) for a in arrays]
        ours, theirs = (
            getattr(m, name)(*(m.tensor(a) for a in whole), beta=beta, alpha=alpha)
            for m in (mt, torch)
        )
        assert_same(ours, theirs)


@pytest.mark.parametrize(("name", "first", "second", "third"), ADDED)
def test_beta_0_ignores_what_the_input_holds(
    name: str, first: Any, second: Any, third: Any
) -> None:
    x = np.full(first, NAN)
    compare(
        lambda m, x, a, b: getattr(m, name)(x, a, b, beta=0), x, normal(*second), normal(*third)
    )


def test_in_place() -> None:
    for m in (mt, torch):
        x = m.ones(2, 2)
        x.addmm_(m.ones(2, 3), m.ones(3, 2), beta=2)
        assert x.tolist() == [[5.0, 5.0], [5.0, 5.0]]
        assert x.tril_().tolist() == [[5.0, 0.0], [5.0, 5.0]]
        assert x.triu_(1).tolist() == [[0.0, 0.0], [0.0, 0.0]]


# Einsum -------------------------------------------------------------------------------------------

EQUATIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("ij,jk", ((3, 4), (4, 2))),
    ("ij,jk->ik", ((3, 4), (4, 2))),
    ("ij,kj->ki", ((3, 4), (2, 4))),
    ("ji,jk->ik", ((4, 3), (4, 2))),
    (" i j , j -> i ", ((3, 4), (4,))),
    ("ij->ji", ((3, 4),)),
    ("ij->", ((3, 4),)),
    ("ij->j", ((3, 4),)),
    ("ba", ((3, 4),)),
    ("bA", ((3, 4),)),
    ("Ab", ((3, 4),)),
    ("ii", ((3, 3),)),
    ("ii->i", ((3, 3),)),
    ("iii->i", ((3, 3, 3),)),
    ("iij->ji", ((3, 3, 2),)),
    ("iijj->ij", ((3, 3, 2, 2),)),
    ("i,j->ij", ((3,), (4,))),
    ("i,i", ((3,), (3,))),
    ("i,i->i", ((3,), (3,))),
    ("ij,ij->ij", ((3, 4), (3, 4))),
    ("ij,ij->i", ((3, 4), (3, 4))),
    ("ij,ji->", ((3, 4), (4, 3))),
    ("ij,kl->", ((3, 4), (2, 5))),
    ("ij,kl->ki", ((3, 4), (2, 5))),
    ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))),
    ("bij,bjk", ((2, 3, 4), (2, 4, 5))),
    ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
    ("bqhd,bkhd->bhqk", ((2, 4, 3, 5), (2, 6, 3, 5))),
    ("bhqk,bkhd->bqhd", ((2, 3, 4, 6), (2, 6, 3, 5))),
    ("btd,dhk->bhtk", ((2, 4, 6), (6, 3, 2))),
    ("abc,bcd,de->ae", ((2, 3, 4), (3, 4, 5), (5, 2))),
    ("i,j,k->kji", ((2,), (3,), (4,))),
    ("ij,jk,kl,lm->im", ((2, 3), (3, 4), (4, 2), (2, 3))),
    ("ij,jk,ij->k", ((2, 3), (3, 4), (2, 3))),
    ("bn,anm,bm->ba", ((2, 3), (5, 3, 4), (2, 4))),
    ("ii,ij->i", ((3, 3), (3, 4))),
    ("ij,->ij", ((3, 4), ())),
    (",->", ((), ())),
    ("->", ((),)),
    ("", ((),)),
    ("...ij->...ji", ((2, 5, 3, 4),)),
    ("...ij,...jk", ((2, 3, 4), (2, 4, 5))),
    ("...ij,...jk->...ik", ((6, 2, 3, 4), (2, 4, 5))),
    ("...ij,...jk->...ik", ((6, 1, 3, 4), (1, 2, 4, 5))),
    ("...ij,jk->ik...", ((2, 3, 4), (4, 5))),
    ("...,...", ((2, 3), (3,))),
    ("...,...->", ((2, 3), (3,))),
    ("...a,...a->...", ((3, 4), (4,))),
    ("a...->...a", ((2, 3, 4),)),
    ("a...b", ((2, 3, 4),)),
    ("...ij->ij", ((2, 5, 3, 4),)),
    ("...a->a", ((3, 4),)),
    ("...i,...i->...i", ((2, 3), (4, 1, 3))),
    ("ij->i...", ((3, 4),)),
    ("i...,i...->...", ((2, 3), (2, 3))),
    ("i,i->", ((4,), (1,))),
    ("i,i->i", ((4,), (1,))),
    ("ij,jk->ik", ((3, 1), (4, 2))),
    ("bij,bjk->bik", ((1, 3, 4), (2, 4, 5))),
    ("ij,jk->ik", ((3, 0), (0, 2))),
    ("ij,jk->ik", ((0, 3), (3, 2))),
    ("bi,bi->b", ((0, 3), (0, 3))),
    ("i,i->i", ((0,), (1,))),
    ("bi,bi->b", ((0, 3), (1, 3))),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation: str, shapes: Any) -> None:
    arrays = [normal(*shape) for shape in shapes]
    compare(lambda m, *xs: m.einsum(equation, *xs), *arrays)
    turned = [normal(*shape[::-1]).T for shape in shapes]
    compare(lambda m, *xs: m.einsum(equation, list(xs)), *turned, second=False)


@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum_keeps_the_dtype(equation: str, shapes: Any, dtype: str) -> None:
    arrays = [np.round(3 * normal(*shape)).astype(dtype) for shape in shapes]
    ours, theirs = (m.einsum(equation, *(m.tensor(a) for a in arrays)) for m in (mt, torch))
    assert_same(ours, theirs)


@st.composite
def equations(draw: Any) -> tuple[str, list[Any]]:
    """An equation of up to three operands over four letters, and arrays for it."""
    sizes = draw(st.fixed_dictionaries({letter: st.integers(0, 3) for letter in "abcd"}))
    terms = draw(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=3))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations(used))[: draw(st.integers(0, 4))])
    numbers = itertools.count(1)
    arrays = [
        np.reshape(
            [float(next(numbers) % 7 - 3) for _ in range(int(np.prod([sizes[c] for c in term])))],
            [sizes[c] for c in term],
        )
        for term in terms
    ]
    equation = ",".join(terms)
    return (f"{equation}->{output}" if draw(st.booleans()) else equation), arrays


@given(equations())
def test_any_einsum(case: tuple[str, list[Any]]) -> None:
    equation, arrays = case
    compare(lambda m, *xs: m.einsum(equation, *xs), *arrays)


def test_einsum_of_views_and_kinds() -> None:
    x, t = both(normal(3, 3), grad=False)
    for m, a in ((mt, x), (torch, t)):
        m.einsum("ij->ji", a).fill_(1.0)
        m.einsum("ii->i", a).fill_(2.0)
    assert_same(x, t)
    b = np.array([[True, False], [True, True]])
    for equation in ("ij->", "ij->ji", "ij->j"):
        assert_same(mt.einsum(equation, mt.tensor(b)), torch.einsum(equation, torch.tensor(b)))
    for equation in ("i,i->i", "i,j->ij"):
        arrays = np.arange(3), normal(3).astype(np.float32)
        ours, theirs = (m.einsum(equation, *(m.tensor(a) for a in arrays)) for m in (mt, torch))
        assert_same(ours, theirs)


# Refusals -----------------------------------------------------------------------------------------


def _d(m: Any, *shape: int) -> Any:
    return m.ones(*shape, dtype=m.float64)


REFUSED: list[Callable[..., Any]] = [
    lambda m: m.bmm(m.ones(3, 4), m.ones(4, 2)),
    lambda m: m.bmm(m.ones(2, 3, 3), m.ones(1, 3, 2)),
    lambda m: m.bmm(m.ones(2, 3, 3), m.ones(2, 2, 2)),
    lambda m: m.bmm(m.ones(2, 3, 3), _d(m, 2, 3, 3)),
    lambda m: m.bmm(m.ones(2, 3, 3) > 0, m.ones(2, 3, 3) > 0),
    lambda m: m.bmm(m.ones(2, 3, 3), 2.0),
    lambda m: m.bmm([1.0], m.ones(2, 3, 3)),
    lambda m: m.mm(m.ones(3, 3) > 0, m.ones(3, 3) > 0),
    lambda m: m.matmul(m.ones(2, 3, 3) > 0, m.ones(2, 3, 3) > 0),
    lambda m: m.mv(m.ones(4), m.ones(3, 4)),
    lambda m: m.mv(m.ones(3, 4), m.ones(2)),
    lambda m: m.mv(m.ones(3, 4), _d(m, 4)),
    lambda m: m.dot(m.ones(4), m.ones(2)),
    lambda m: m.dot(m.ones(3, 4), m.ones(3, 4)),
    lambda m: m.dot(m.ones(4), _d(m, 4)),
    lambda m: m.dot(m.ones(4) > 0, m.ones(4) > 0),
    lambda m: m.inner(m.ones(3, 4), m.ones(2, 3)),
    lambda m: m.inner(m.ones(3, 4), _d(m, 4)),
    lambda m: m.outer(m.ones(3, 4), m.ones(4)),
    lambda m: m.outer(m.ones(()), m.ones(4)),
    lambda m: m.kron(m.ones(3), 2.0),
    lambda m: m.addmm(m.ones(4), m.ones(3, 4), m.ones(4, 2)),
    lambda m: m.addmm(m.ones(4), m.ones(3, 4), m.ones(4, 2), beta=0),
    lambda m: m.addmm(m.ones(2), m.ones(3, 4), m.ones(3, 4)),
    lambda m: m.addmm(m.ones(2), m.ones(3, 4), m.ones(2, 4, 2)),
    lambda m: m.addmm(m.ones(1, 3, 2), m.ones(3, 4), m.ones(4, 2)),
    lambda m: m.addmm(_d(m, 2), m.ones(3, 4), m.ones(4, 2)),
    lambda m: m.addmm(m.ones(2), m.ones(3, 4), 2.0),
    lambda m: m.addmv(m.ones(4), m.ones(3, 4), m.ones(4)),
    lambda m: m.baddbmm(m.ones(4), m.ones(2, 3, 4), m.ones(2, 4, 2)),
    lambda m: m.addbmm(m.ones(3, 2), m.ones(2, 3, 4), m.ones(3, 4, 2)),
    lambda m: m.tensordot(m.ones(3, 4), m.ones(4, 2), ([1], [1])),
    lambda m: m.tensordot(m.ones(3, 4), m.ones(4, 2), 3),
    lambda m: m.tensordot(m.ones(3, 4), m.ones(4, 2), -1),
    lambda m: m.tensordot(m.ones(3, 4), m.ones(4, 2), ([0, 1], [0])),
    lambda m: m.tensordot(m.ones(3, 3), m.ones(3, 4), ([0, 0], [0, 1])),
    lambda m: m.tensordot(m.ones(3, 4), _d(m, 4, 2), 1),
    lambda m: m.tensordot(m.ones(3, 4), m.ones(4, 2), ([1], [5])),
    lambda m: m.tensordot(m.ones(3, 4), m.ones(4, 2), (1, 0)),
    lambda m: m.matrix_power(m.ones(3, 4), 2),
    lambda m: m.matrix_power(m.ones(3), 2),
    lambda m: m.matrix_power(m.tensor([[1, 2], [3, 4]]), -1),
    lambda m: m.matrix_power(m.ones(3, 3), 1.5),
    lambda m: m.einsum("ij,jk->ik", m.ones(3, 4), _d(m, 4, 2)),
    lambda m: m.einsum("ij,jk->ik", m.ones(3, 3) > 0, m.ones(3, 3) > 0),
    lambda m: m.einsum("ii", m.ones(3, 4)),
    lambda m: m.einsum("ii", m.ones(3, 1)),
    lambda m: m.einsum("ij->ik", m.ones(3, 4)),
    lambda m: m.einsum("ij->ii", m.ones(3, 4)),
    lambda m: m.einsum("i", m.ones(3, 4)),
    lambda m: m.einsum("ijk", m.ones(3, 4)),
    lambda m: m.einsum("ij...k", m.ones(3, 4)),
    lambda m: m.einsum("ij,jk", m.ones(3, 4)),
    lambda m: m.einsum("ij", m.ones(3, 4), m.ones(3, 4)),
    lambda m: m.einsum("i1", m.ones(3, 4)),
    lambda m: m.einsum("iä", m.ones(3, 4)),
    lambda m: m.einsum("ij->i->j", m.ones(3, 4)),
    lambda m: m.einsum("i.j", m.ones(3, 4)),
    lambda m: m.einsum("...i...", m.ones(3, 4)),
    lambda m: m.einsum("ij->......", m.ones(3, 4)),
    lambda m: m.einsum("ij->..", m.ones(3, 4)),
    lambda m: m.einsum("ij-i", m.ones(3, 4)),
    lambda m: m.einsum("ij,jk->ik", m.ones(3, 4), m.ones(3, 4)),
    lambda m: m.einsum("...i,...i", m.ones(3, 4), m.ones(2, 4)),
    lambda m: m.einsum("->", m.ones(3)),
    lambda m: m.einsum("ij", 3.0),
    lambda m: m.einsum("ij"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused_alike(number: int) -> None:
    refused_alike(REFUSED[number])


def test_fractions_of_integers_are_refused() -> None:
    """PyTorch cuts the fraction off, silently."""
    x = mt.tensor([[1, 2], [3, 4]])
    assert mt.addmm(x, x, x, beta=2.0).tolist() == [[9, 14], [21, 30]]
    for options in ({"beta": 0.5}, {"alpha": 1.5}):
        with pytest.raises(RuntimeError, match="fraction"):
            mt.addmm(x, x, x, **options)
