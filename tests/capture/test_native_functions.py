"""The functions of functions.c: errors in units of the last place, over all numbers."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler

import microtrain as mt
from microtrain.capture import c_compiler
from microtrain.capture.c import HEAD
from microtrain.capture.elements import OWN, expression

F = mt.nn.functional
# What a function may be off by, of float32 and float64. The reference is C's library of mathematics
# in the next wider type, which is right to a last digit that does not count here.
BOUNDS = {
    "exp": (0.9, 1.0), "expm1": (1.5, 2.0), "log": (0.9, 0.9), "log1p": (1.5, 1.5),
    "tanh": (1.5, 1.5), "erf": (2.7, 2.0),
    "sin": (0.6, None), "cos": (0.95, None), "sigmoid": (0.6, None), "silu": (0.6, None),
    "pow": (0.6, None),
}  # fmt: skip
ONE = """
void NAME_float32(float32 *x, float32 *y, int64 n) {
    INDEPENDENT
    for (int64 i = 0; i < n; i++) y[i] = mt_NAMEf(x[i]);
}
void right_NAME_float32(float32 *x, float64 *y, int64 n) {
    for (int64 i = 0; i < n; i++) y[i] = NAME((float64)x[i]);
}
"""
OF_FLOAT64 = """
void NAME_float64(float64 *x, float64 *y, int64 n) {
    INDEPENDENT
    for (int64 i = 0; i < n; i++) y[i] = mt_NAME(x[i]);
}
void right_NAME_float64(float64 *x, long double *y, int64 n) {
    for (int64 i = 0; i < n; i++) y[i] = NAMEl((long double)x[i]);
}
"""
MORE = """
float64 sigmoid(float64 x) { return 1 / (1 + exp(-x)); }
float64 silu(float64 x) { return x < -200 ? -0.0 : x * sigmoid(x); }
void pow_float32(float32 *x, float32 *y, float32 *z, int64 n) {
    INDEPENDENT
    for (int64 i = 0; i < n; i++) z[i] = mt_powf(x[i], y[i]);
}
void right_pow_float32(float32 *x, float32 *y, float64 *z, int64 n) {
    for (int64 i = 0; i < n; i++) z[i] = pow((float64)x[i], (float64)y[i]);
}
"""
FLOAT32 = (*OWN, "sin", "cos", "sigmoid", "silu")


@pytest.fixture(scope="module")
def library(native_code: None) -> Any:
    needs_compiler()
    parts = [ONE.replace("NAME", name) for name in FLOAT32]
    parts += [OF_FLOAT64.replace("NAME", name) for name in OWN]
    return c_compiler.load("\n".join([HEAD, c_compiler.text_of("functions"), MORE, *parts]))


def worst(library: Any, name: str, x: np.ndarray, *more: np.ndarray) -> tuple[float, float]:
    """The largest error in units of the last place, and where it is."""
    wide = np.dtype("f8" if x.dtype == np.float32 else np.longdouble)
    found, right = np.empty_like(x), np.empty(x.shape, wide)
    for start, out in (("", found), ("right_", right)):
        given = (ctypes.c_void_p(a.ctypes.data) for a in (x, *more, out))
        library[f"{start}{name}_{x.dtype}"](*given, ctypes.c_int64(x.size))
    with np.errstate(all="ignore"):
        expected = right.astype(x.dtype)
        finite = np.isfinite(expected) & np.isfinite(found)
        error = np.abs(found.astype(wide) - right) / np.spacing(np.abs(expected))
        error[~finite] = np.where(
            (found == expected) | (np.isnan(found) & np.isnan(expected)), 0, np.inf
        )[~finite]
        wrong_sign = (expected == 0) & (np.signbit(found) != np.signbit(expected))
    error[wrong_sign] = np.inf
    at = int(error.argmax())
    return float(error[at]), float(x[at])


def every(step: int) -> Any:
    """All of float32, or each `step`-th, in pieces."""
    piece = (1 << 22) * step
    for start in range(0, 1 << 32, piece):
        stop = min(start + piece, 1 << 32)
        yield np.arange(start, stop, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


ALL = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=ALL, id="all"), pytest.param(1021, id="some")]
)
@pytest.mark.parametrize("name", FLOAT32)
def test_every_float32(library: Any, name: str, step: int) -> None:
    error, at = max(worst(library, name, x) for x in every(step))
    assert error <= BOUNDS[name][0], f"{name}({at!r}) is off by {error:.3f}"


# Bases with halves, thirds and whole numbers among the exponents, by all of which powers go wrong.
EXPONENTS = (0.5, -0.5, 1 / 3, 1, -1, 2, 3, -3, 2.5, -7, 10, 0.001, 100, 1e-30)


@pytest.mark.parametrize(
    "step", [pytest.param(13, marks=ALL, id="many"), pytest.param(10007, id="some")]
)
def test_powers_of_every_float32(library: Any, step: int) -> None:
    for x in every(step):
        for exponent in EXPONENTS:
            error, at = worst(library, "pow", x, np.full_like(x, exponent))
            assert error <= BOUNDS["pow"][0], f"{at!r} ** {exponent} is off by {error:.3f}"


def test_powers_of_two_numbers(library: Any) -> None:
    """Exponents for which the power has every size, and those that C's pow has words about."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 0x7F800000, 1 << 20, dtype=np.uint32).view(np.float32)
    with np.errstate(divide="ignore"):
        y = rng.uniform(-152, 130, x.size) / np.log2(x, dtype=np.float64)
    near = (1 + rng.uniform(-1, 1, x.size) / 1024).astype(np.float32)
    special = np.array(
        [0, 0.5, 1, 1.5, 2, 3, 1 - 2**-24, 1 + 2**-23, 2**24 - 1, 2**24, 2**24 + 2, 1e-45, 1e-38,
         1e38, np.finfo("f4").max, np.inf, np.nan], np.float32,
    )  # fmt: skip
    special = np.concatenate([special, -special])
    whole = np.round(y).astype(np.float32)
    pairs = [(x, y.astype(np.float32)), (-x, whole), (near, 16000 * y.astype(np.float32))]
    for x, y in [*pairs, tuple(a.ravel().copy() for a in np.meshgrid(special, special))]:
        error, at = worst(library, "pow", x, y)
        assert error <= BOUNDS["pow"][0], f"of {at!r} is off by {error:.3f}"


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="needs a type wider than float64")
@pytest.mark.parametrize("name", OWN)
def test_float64(library: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    uniform = rng.uniform(-1, 1, 1 << 18)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 5e-324, -1e-310, 709.78, 709.79, -745.13,
               -745.14, -1e308, sys.float_info.max, sys.float_info.min]  # fmt: skip
    x = np.concatenate([
        uniform, 2 * uniform, 6 * uniform, 40 * uniform, 750 * uniform,
        np.ldexp(uniform, rng.integers(-1000, 1000, uniform.size)), 1 + uniform / 1024, special,
    ])  # fmt: skip
    error, at = worst(library, name, x)
    assert error <= BOUNDS[name][1], f"{name}({at!r}) is off by {error:.3f}"


@pytest.mark.parametrize(
    "name, bound, smallest",
    [
        ("sigmoid", 0.6, 0.0), ("silu", 0.6, 0.0), ("softplus", 4, 0.0), ("logsigmoid", 4, 0.0),
        ("elu", 4, 0.0), ("gelu", 4, 2e-7), ("mish", 4, 1e-37),
    ],
)  # fmt: skip
def test_activations(native_code: None, name: str, bound: float, smallest: float) -> None:
    """In a captured step, beside float64; below `smallest` the absolute error counts."""
    needs_compiler()
    (x,) = every(4099)
    x = x[np.isfinite(x)]
    captured = mt.compile(getattr(F, name), executor="native")
    with mt.no_grad():
        found = [captured(mt.from_numpy(x)).numpy() for _ in range(4)][-1].astype("f8")
        right = getattr(F, name)(mt.from_numpy(x.astype("f8"))).numpy()
    with np.errstate(over="ignore"):
        unit = np.spacing(np.abs(right).astype("f4")).astype("f8")
    fits = np.isfinite(unit)
    error = np.abs(found - right)[fits]
    allowed = np.maximum(bound * unit[fits], smallest)
    assert (error <= allowed).all(), x[fits][np.argmax(error / allowed)]


@pytest.mark.parametrize("name", ["sin", "cos", "pow"])
def test_functions_for_float32_alone(native_code: None, name: str) -> None:
    """They are in the loop, of any size; for float64 NumPy computes many, its loop around them."""
    needs_compiler()
    for dtype in (np.float32, np.float64):
        x = mt.from_numpy(np.linspace(0.5, 3, 4096, dtype=dtype))
        more = (x,) if name == "pow" else ()

        def call(x: mt.Tensor, more: tuple[mt.Tensor, ...] = more) -> mt.Tensor:
            return getattr(mt, name)(x + 1, *more) * 2

        step = mt.compile(call, executor="native")
        for _ in range(4):
            result = step(x)
        assert (f"mt_{name}f(" in step.source()) == (dtype == np.float32)
        right = call(x)
        np.testing.assert_allclose(result.numpy(), right.numpy(), 1e-6)


def test_kernels_for_a_gpu_call_no_function_of_ours() -> None:
    x = np.ones(4096, np.float32)
    for name in (*OWN, "sin", "cos", "power", "erfc"):
        found = expression(name, (x, x)[: 1 + (name == "power")], {}, x.size, cuda=True)
        assert "mt_" not in found.text
