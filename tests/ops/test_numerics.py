"""The functions that NumPy lacks, over what they do, against SciPy's."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain import numerics

scipy_special = pytest.importorskip("scipy.special")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

RNG = np.random.default_rng(0)
SPECIAL = np.array([0.0, -0.0, 1, -1, 2, 0.5, 1e-10, 1e10, np.inf, np.nan])


def line(low: float, high: float) -> Any:
    return np.concatenate([SPECIAL, RNG.uniform(low, high, 3000)])


def powers(low: float, high: float) -> Any:
    return 10 ** RNG.uniform(low, high, 1000)


TAILS = np.concatenate([powers(-300, 0), 1 - powers(-15, 0)])
# name: where, and how many units in the last place SciPy's and ours may be apart, together.
WHERE: dict[str, tuple[Any, int]] = {
    "gammaln": (np.concatenate([RNG.uniform(3, 200, 3000), powers(-300, -1), SPECIAL]), 10),
    "digamma": (np.concatenate([RNG.uniform(2, 200, 3000), powers(-300, -1), SPECIAL]), 10),
    "erfcx": (np.concatenate([line(-3, 40), powers(1, 300)]), 40),
    "erfinv": (np.concatenate([line(-1, 1), 2 * TAILS - 1, [1.1, -1.1]]), 10),
    "ndtri": (np.concatenate([line(0, 1), TAILS, [-0.1, 1.1]]), 10),
    "i0e": (np.concatenate([line(-60, 60), powers(2, 300)]), 20),
    "i1e": (np.concatenate([line(-60, 60), powers(-300, 300)]), 20),
}


@pytest.mark.parametrize("name", WHERE)
def test_function_is_scipys(name: str) -> None:
    x, ulps = WHERE[name]
    found, expected = getattr(numerics, name)(x), getattr(scipy_special, name)(x)
    np.testing.assert_allclose(found, expected, rtol=ulps * 2.3e-16, atol=1e-300)


@pytest.mark.parametrize("s", [1.0, 1.5, 2.0, 3.0, 4.0, 7.0, 30.0, 0.5])
def test_zeta_is_scipys(s: float) -> None:
    q = np.concatenate([line(0, 30), powers(-3, 10), -np.arange(5.0)])
    found = numerics.zeta(np.full_like(q, s), q)
    np.testing.assert_allclose(found, scipy_special.zeta(s, q), rtol=2e-14)


@pytest.mark.parametrize("s", [2.0, 3.0, 4.0])
def test_zeta_below_zero_obeys_its_recurrence(s: float) -> None:
    q = RNG.uniform(-1e4, -1, 1000)
    s_ = np.full_like(q, s)
    near, far = numerics.zeta(s_, q), numerics.zeta(s_, q + 1) + q**-s
    np.testing.assert_allclose(near, far, rtol=1e-10, atol=1e-12)
    assert np.isnan(numerics.zeta(np.array(2.5), np.array(-0.5)))


def test_log_gamma_below_zero() -> None:
    below = RNG.uniform(-5, -0.01, 1000)
    expected = [math.lgamma(v) for v in below]
    np.testing.assert_allclose(numerics.gammaln(below), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["digamma", "gammaln"])
def test_between_the_zeros_errors_are_absolute(name: str) -> None:
    x = RNG.uniform(0.1, 3, 3000)
    found, expected = getattr(numerics, name)(x), getattr(scipy_special, name)(x)
    np.testing.assert_allclose(found, expected, rtol=2e-15, atol=2e-15)


@pytest.mark.parametrize("name", numerics.__all__)
def test_half_and_single_precision_are_rounded_once(name: str) -> None:
    x = RNG.uniform(0.1, 0.9, 500)
    for dtype in (np.float32, np.float16):
        narrow = x.astype(dtype)
        arguments = (np.array(2, dtype), narrow) if name == "zeta" else (narrow,)
        found = getattr(numerics, name)(*arguments)
        expected = getattr(numerics, name)(*(a.astype(np.float64) for a in arguments))
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=3 * float(np.finfo(dtype).eps))


NAMES = "entr erfcx gammaln i0e i1 i1e log_ndtr logit ndtr ndtri psi sinc".split()


@pytest.mark.parametrize("name", NAMES)
def test_public_function_is_scipys(name: str) -> None:
    x = RNG.uniform(0.02, 0.98, (3, 5))
    theirs = np.sinc if name == "sinc" else getattr(scipy_special, name)
    found = getattr(mt.special, name)(mt.tensor(x))
    np.testing.assert_allclose(found.numpy(), theirs(x), rtol=1e-13, atol=1e-15)


def test_logarithm_of_tiny_chances() -> None:
    x = mt.tensor([-1e4, -40.0, -1.0, 0.0, 5.0, 40.0], dtype=mt.float64, requires_grad=True)
    found = mt.special.log_ndtr(x)
    np.testing.assert_allclose(
        found.detach().numpy(), scipy_special.log_ndtr(x.detach().numpy()), rtol=1e-13
    )
    found.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy()[:2], [1e4 + 1e-4, 40.02496881], rtol=1e-8)


def test_without_scipy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert mt.nn.functional.gelu(mt.ones(2)).sum().item() > 1.6
    with pytest.raises(RuntimeError, match=r"^lgamma\(\): SciPy is not installed; pip .*special"):
        mt.lgamma(mt.ones(2))
