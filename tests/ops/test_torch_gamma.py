"""The gamma, Bessel and normal functions and others of two numbers against PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, positive, refused_alike  # noqa: E402

NAN, INF = math.nan, math.inf
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROOT = "digamma erfinv i0 lgamma logit sinc".split()
SPECIAL = "entr erfcx i0e i1 i1e log_ndtr ndtr ndtri".split()
UNARY = [*ROOT, *(f"special.{name}" for name in SPECIAL)]


def function(m: Any, name: str) -> Any:
    return getattr(m.special, name[8:]) if name.startswith("special.") else getattr(m, name)


@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str) -> None:
    array = np.array([0.0, 1.0, 0.5, -1.5, 3.0, -3.0, 30.0, -30.0, NAN, INF, -INF])
    x, t = both(array, grad=False)
    ours, theirs = function(mt, name)(x), function(torch, name)(t)
    # PyTorch's first-order Bessel functions and erfcx are NaN at infinity, by rounding.
    known = ~np.isinf(array) | ~np.isnan(theirs.numpy())
    np.testing.assert_allclose(ours.numpy()[known], theirs.numpy()[known], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32"])
def test_other_dtypes(name: str, dtype: str) -> None:
    array = np.array([1, 0, 1, 1]).astype(dtype)
    ours, theirs = (
        function(m, name)(x) for m, x in zip((mt, torch), both(array, False), strict=True)
    )
    assert_same(ours, theirs, rtol=1e-5)


PAIRS: dict[str, Callable[..., Any]] = {
    "fmax": lambda m, x, y: m.fmax(x, y),
    "fmin": lambda m, x, y: m.fmin(x, y),
    "heaviside": lambda m, x, y: m.heaviside(x.detach(), y.detach()),
    "logaddexp2": lambda m, x, y: m.logaddexp2(x.detach(), y.detach()),
    "xlog1py": lambda m, x, y: m.special.xlog1py(x.detach(), y.detach()),
    "nextafter": lambda m, x, y: m.nextafter(x.detach(), y.detach()),
    "zeta": lambda m, x, y: m.special.zeta(x.detach(), y.detach().abs()),
    "ldexp": lambda m, x, y: m.ldexp(x.detach(), y.detach()),
    "float_power": lambda m, x, y: m.float_power(x.detach(), y.detach()),
}


@pytest.mark.parametrize("name", PAIRS)
def test_special_pairs(name: str) -> None:
    numbers = (0.0, -0.0, 1.0, 2.5, -2.0, NAN, INF, -INF)
    pairs = np.array([(a, b) for a in numbers for b in numbers])
    if name == "zeta":  # at infinity it is 0 here, NaN there
        pairs = pairs[~np.isinf(pairs).any(1)]
    compare(PAIRS[name], pairs[:, 0], pairs[:, 1], second=False)


INTEGERS: dict[str, Callable[..., Any]] = {
    "gcd": lambda m, i, j: m.gcd(i, j) + i.lcm(j),
    "shifts": lambda m, i, j: (i << j) + (i >> 1) + (1 << j) - (64 >> j),
    "reflected": lambda m, i, j: (1 | i) + (1 & i) + (1 ^ i),
    "in place": lambda m, i, j: i.clone().bitwise_left_shift_(j).gcd_(j).lcm_(i),
    "isin": lambda m, i, j: m.isin(i, j, invert=True),
    "isin number": lambda m, i, j: m.isin(2, i) | m.isin(i, 3),
    "unravel_index": lambda m, i, j: m.stack(m.unravel_index(j, (2, 3, 4))),
    "bincount": lambda m, i, j: m.bincount(j, j * 0.5, minlength=9),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str) -> None:
    compare(INTEGERS[name], np.array([-7, 0, 2, 12, 3, 40]), np.array([1, 0, 2, 3, 3, 6]))


CALLS: dict[str, Callable[..., Any]] = {
    "polygamma": lambda m, x: x.polygamma(2) + m.polygamma(3, x),
    "mvlgamma": lambda m, x: m.mvlgamma(x + 2, 3),
    "logit eps": lambda m, x: m.logit(x / 2, 0.3),
    "frexp": lambda m, x: m.frexp(x * 1e3).mantissa,
    "angle": lambda m, x: m.angle(x - 1),
    "real": lambda m, x: x.real * m.real(x).conj() * x.mH,
    "shape in place": lambda m, x: (x * 1).unsqueeze_(0).transpose_(0, 1).squeeze_().t_() * x.t(),
    "comparison in place": lambda m, x: (x * 2).gt_(2.0) * x,
    "fill_diagonal_": lambda m, x: (x * 2).fill_diagonal_(3.0) * x,
    "scatter_reduce zeros": lambda m, x: m.scatter_reduce(
        x, 0, m.tensor([[0, 0, 0], [0, 1, 1], [0, 1, 2]]), x * (x > 1), "sum"
    ),
    "quantiles": lambda m, x: m.quantile(x, m.tensor([0.1, 0.7], dtype=m.float64), 1, True),
    "histogram": lambda m, x: m.histogram(x.detach(), 4, range=(0.6, 1.7), density=True).hist,
    "cov": lambda m, x: m.cov(x, correction=0, fweights=m.tensor([1, 2, 3])),
    "gradient": lambda m, x: m.gradient(
        x, spacing=[m.tensor([1.0, 2, 4]).double()], dim=1, edge_order=2
    )[0],
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    compare(CALLS[name], positive(3, 3), second=name not in ("quantiles", "angle"))


def test_products_of_zeros_have_their_gradient() -> None:
    """PyTorch refuses the second gradient of two zeros for one place; here nothing is divided."""
    x, index = mt.ones(2, dtype=mt.float64), mt.tensor([0, 0, 0, 1])
    src = mt.tensor([0.0, 3, 0, 5], dtype=mt.float64, requires_grad=True)
    call = lambda s: x.scatter_reduce(0, index, s, "prod")  # noqa: E731
    assert mt.autograd.gradcheck(call, src)
    assert mt.autograd.gradgradcheck(call, src)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.polygamma(-1, m.ones(2)),
        lambda m: m.mvlgamma(m.ones(2), 0),
        lambda m: m.quantile(m.ones(2), 1.5),
        lambda m: m.quantile(m.ones(2), m.tensor([0.5], dtype=m.float64)),
        lambda m: m.quantile(m.arange(3), 0.5),
        lambda m: m.ones(2).scatter_reduce(0, m.tensor([0]), m.ones(1), "most"),
        lambda m: m.ones(2).put(m.tensor([2]), m.ones(1)),
        lambda m: m.cross(m.ones(2), m.ones(2)),
        lambda m: m.histc(m.ones(2), bins=0),
        lambda m: m.bincount(m.tensor([-1])),
        lambda m: m.hsplit(m.ones(2, 3), 2),
        lambda m: m.cdist(m.ones(2, 3), m.ones(2, 2)),
        lambda m: m.ones(2, 3, requires_grad=True).t_(),
        lambda m: m.logcumsumexp(m.arange(3), 0),
        lambda m: m.frexp(m.arange(3)),
        lambda m: m.gradient(m.ones(1)),
        lambda m: m.combinations(m.ones(2, 2)),
    ],
)
def test_refused(call: Any) -> None:
    refused_alike(call)


def test_tensor_knows_its_memory() -> None:
    for m in (mt, torch):
        x = m.zeros(3, 4)
        assert (x.nbytes, x.itemsize, x[1].storage_offset(), x.get_device()) == (48, 4, 4, -1)
        assert (x.is_cuda, x.is_cpu, x.is_complex(), x.is_signed()) == (False, True, False, True)
        assert x[1].data_ptr() == x.data_ptr() + 16
        assert x.is_same_size(x * 2)
        assert not x[0, 0].is_nonzero()


def test_special_has_only_names_of_torch() -> None:
    assert set(mt.special.__all__) <= set(torch.special.__all__)
