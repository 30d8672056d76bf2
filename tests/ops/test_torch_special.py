"""Functions of real numbers against PyTorch's, called as users call them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, positive, refused_alike  # noqa: E402

NAN, INF = math.nan, math.inf
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and infinity

UNARY = """absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh
    cos cosh deg2rad erf erfc exp2 expm1 fix frac log10 log1p log2 nan_to_num negative positive
    rad2deg rsqrt sgn signbit sin sinh tan""".split()
IN_PLACE = """clamp_max clamp_min cos erf erfc exp2 expm1 frac log10 log1p log2 nan_to_num rsqrt
    sign sin tan""".split()
ARGUMENTS: dict[str, Any] = {"clamp_max": (0.7,), "clamp_min": (0.7,)}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("shape", [(), (3, 4), (0, 2)], ids=str)
def test_function_of_one_tensor(name: str, shape: Any) -> None:
    array = np.asarray(positive(*shape) + (1 if name.endswith("cosh") else -1) * 0.5)
    array = (
        np.asarray(array.clip(-0.9, 0.9))
        if name[-3:] in ("sin", "cos") or "tanh" in name
        else array
    )
    compare(lambda m, x: getattr(m, name)(x), array)
    compare(lambda m, x: getattr(x, name)(), array)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_special_values(name: str, dtype: str) -> None:
    array = np.array([0.0, -0.0, 1.0, -1.5, 30.0, -30.0, NAN, INF, -INF], dtype)
    x, t = both(array, grad=False)
    ours, theirs = getattr(mt, name)(x), getattr(torch, name)(t)
    assert_same(ours, theirs, rtol=1e-6 if dtype == "float32" else 1e-10)
    number = ~np.isnan(theirs.numpy())  # the sign of a NaN says nothing
    assert np.array_equal(np.signbit(ours.numpy())[number], np.signbit(theirs.numpy())[number])


@pytest.mark.parametrize("name", sorted(set(UNARY) - {"positive", "negative", "absolute", "frac"}))
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16"])
def test_other_dtypes(name: str, dtype: str) -> None:
    if (name, dtype) == ("fix", "bool"):
        return  # refused by both
    array = np.array([1, 0, 1] if dtype == "bool" else [1, 0, 3]).astype(dtype)
    ours, theirs = (getattr(m, name)(x) for m, x in zip((mt, torch), both(array), strict=True))
    assert_same(ours, theirs, rtol=2e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    array, arguments = positive(3, 2), ARGUMENTS.get(name, ())

    def write(m: Any, x: Any) -> Any:
        y = x * 1
        assert getattr(y, f"{name}_")(*arguments) is y
        return y

    compare(write, array)


TWO: dict[str, Callable[..., Any]] = {
    "atan2": lambda m, x, y: m.atan2(x, y),
    "arctan2": lambda m, x, y: x.arctan2(other=y),
    "hypot": lambda m, x, y: m.hypot(x, y),
    "copysign": lambda m, x, y: m.copysign(x, y),
    "copysign number": lambda m, x, y: x.copysign(-2) * y,
    "logaddexp": lambda m, x, y: m.logaddexp(input=x, other=y),
    "fmod": lambda m, x, y: m.fmod(x, y),
    "fmod number": lambda m, x, y: x.fmod(0.7) * y,
    "xlogy": lambda m, x, y: m.xlogy(x, y),
    "xlogy numbers": lambda m, x, y: m.xlogy(2, y) * m.xlogy(x, 3.5),
    "isclose": lambda m, x, y: m.isclose(x, y * 0 + x, rtol=0.1),
    "lerp": lambda m, x, y: m.lerp(x, y, 0.3),
    "lerp end": lambda m, x, y: x.lerp(y, weight=1),
    "lerp beyond": lambda m, x, y: x.lerp(y, -1.5),
    "lerp by a tensor": lambda m, x, y: m.lerp(x, y, x * y - 1),
    "lerp by a 0-d tensor": lambda m, x, y: m.lerp(x, y, m.tensor(0.75)),
    "addcmul": lambda m, x, y: m.addcmul(x, x, y, value=0.5),
    "addcmul of three": lambda m, x, y: y.addcmul(x, x),
    "addcdiv": lambda m, x, y: m.addcdiv(x, x, y, value=-2),
    "addcdiv of three": lambda m, x, y: y.addcdiv(x, x + y),
    "clamp_min": lambda m, x, y: m.clamp_min(x, y) * x.clamp_min(0.8),
    "clamp_max": lambda m, x, y: m.clamp_max(x, max=y) * x.clamp_max(0.8),
    "clip": lambda m, x, y: m.clip(x, min=y, max=y + 1) * y.clip(0.6, 0.8),
    "multiply": lambda m, x, y: m.multiply(x, y),
    "subtract": lambda m, x, y: m.subtract(x, y, alpha=2),
    "divide": lambda m, x, y: m.divide(x, y) + x.divide(y),
    "true_divide": lambda m, x, y: m.true_divide(x, y),
}
SHAPES = [((2, 3), (2, 3)), ((3, 1), (2, 1, 4)), ((), (3,)), ((2, 1), ()), ((0, 3), (1, 3))]


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_function_of_several_tensors(name: str, left: Any, right: Any) -> None:
    compare(TWO[name], positive(*left), positive(*right))


def test_in_place_with_arguments() -> None:
    def write(m: Any, x: Any, y: Any) -> Any:
        z = x * 1
        return z.lerp_(y, 0.9).addcmul_(x, y, value=0.5).addcdiv_(y, x).fmod_(0.7)

    compare(write, positive(3, 2), positive(3, 2))


PAIRS = [(a, b) for a in (0.0, -0.0, 1.5, -2.0, NAN, INF, -INF) for b in (0.0, -0.0, 1.0, -3.0)]
PAIRS += [(b, a) for a, b in PAIRS if not math.isfinite(a)] + [(INF, INF), (INF, -INF)]


@pytest.mark.parametrize("name", ["atan2", "hypot", "copysign", "logaddexp", "fmod", "xlogy"])
def test_special_pairs(name: str) -> None:
    pairs = np.array(PAIRS)
    compare(lambda m, x, y: getattr(m, name)(x.detach(), y.detach()), pairs[:, 0], pairs[:, 1])


@pytest.mark.parametrize("name", ["atan2", "copysign", "fmod"])
def test_gradient_at_special_pairs(name: str) -> None:
    pairs = np.array(
        [p for p in PAIRS if all(map(math.isfinite, p)) and (name, p[1]) != ("fmod", 0)]
    )
    compare(lambda m, x, y: getattr(m, name)(x, y), pairs[:, 0], pairs[:, 1], second=False)


def test_xlogy_has_no_gradient_where_it_is_nothing_times_infinity() -> None:
    compare(lambda m, x: m.xlogy(x, m.zeros(2, dtype=m.float64)), np.array([0.0, 2.0]))
    compare(lambda m, x, y: m.xlogy(x, y), np.zeros(2), np.array([1.5, 2.0]))


INTEGERS = np.array([-7, 7, 3, 0])


@pytest.mark.parametrize("name", ["atan2", "copysign", "fmod", "xlogy", "true_divide", "multiply"])
@pytest.mark.parametrize("other", [np.array([2, -3, 1, 5]), np.array([1.5, 2, 3, 4], np.float32)])
def test_integers_and_mixed_dtypes(name: str, other: Any) -> None:
    x, y = both(INTEGERS if name != "xlogy" else abs(INTEGERS), grad=False), both(other, grad=False)
    y = tuple(v.abs() for v in y) if name == "xlogy" else y
    assert_same(getattr(mt, name)(x[0], y[0]), getattr(torch, name)(x[1], y[1]), rtol=1e-6)


def test_addcmul_of_integers() -> None:
    compare(lambda m, x, y: m.addcmul(x, y, y, value=2), INTEGERS, np.array(3))
    compare(lambda m, x, y: m.addcdiv(x, y.detach(), x), INTEGERS[:3], np.array(3.0))


@pytest.mark.parametrize("options", [{}, {"nan": 5.0}, {"nan": None, "posinf": 1.0, "neginf": -1}])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64"])
def test_nan_to_num(options: Any, dtype: str) -> None:
    with np.errstate(all="ignore"):
        array = np.array([1.0, NAN, INF, -INF, -2.0]).astype(dtype)
    if dtype == "int64":
        array = np.array([1, -2])
    compare(lambda m, x: m.nan_to_num(x, **options), array, second=dtype == "float64")


@pytest.mark.parametrize("equal_nan", [False, True])
def test_isclose(equal_nan: bool) -> None:
    a = np.array([1.0, 1.0, NAN, INF, INF, 0.0, 1e10, 1e10, -INF, 1.0])
    b = np.array([1.0 + 1e-6, 1.1, NAN, INF, -INF, 1e-9, 1.00001e10, 1.0001e10, -INF, INF])
    compare(lambda m, x, y: m.isclose(x.detach(), y.detach(), equal_nan=equal_nan), a, b)
    compare(lambda m, x, y: x.isclose(y, rtol=0, atol=1), np.array([1, 3]), np.array([2, 1]))
    compare(lambda m, x, y: m.isclose(x, y), np.array([True, False]), np.array([True, True]))


def test_erf_and_erfc_are_those_of_the_standard_library() -> None:
    """Over what erf and erfc do: every interval, its ends, tiny and huge arguments."""
    ends = np.array([0.84375, 1.25, 1 / 0.35, 4.3, 28.0])
    near = [np.nextafter(ends, 0), ends, np.nextafter(ends, 99)]
    grid = np.concatenate(
        [np.linspace(-7, 7, 20001), np.linspace(6, 29, 5001), np.logspace(-320, 300, 2001), *near]
    )
    for name, ulps in (("erf", 2), ("erfc", 6)):
        expected = np.array([getattr(math, name)(v) for v in grid])
        for sign in (1, -1) if name == "erf" else (1,):
            found = getattr(mt, name)(mt.tensor(sign * grid)).numpy() * sign
            assert np.all(np.abs(found - expected) <= ulps * np.spacing(np.abs(expected)))
        with np.errstate(under="ignore"):
            single = grid[np.abs(grid) < 1e30].astype(np.float32)
        expected = np.array([getattr(math, name)(v) for v in single])
        found = getattr(mt, name)(mt.tensor(single)).numpy()
        assert np.all(np.abs(found) <= (1 if name == "erf" else 2))
        units = np.spacing(np.abs(expected).astype(np.float32))
        assert np.all(np.abs(found - expected) <= 6 * units)


def test_erf_of_many_numbers_does_not_depend_on_how_they_lie() -> None:
    for dtype in (np.float32, np.float64):
        array = normal(300, 70).astype(dtype)
        whole = mt.erf(mt.tensor(array)).numpy()
        for part in (slice(0, 300, 7), slice(17, 18)):
            assert np.array_equal(mt.erf(mt.from_numpy(array[part])).numpy(), whole[part])
        assert np.array_equal(mt.erf(mt.from_numpy(array).T).numpy(), whole.T)


REFUSED: list[Callable[..., Any]] = [
    lambda m: m.sin("text"),
    lambda m: m.erf(1.0),
    lambda m: m.frac(m.tensor([1, 2])),
    lambda m: m.frac([1.0]),
    lambda m: m.hypot(m.tensor([1, 2]), m.tensor([1, 2])),
    lambda m: m.logaddexp(m.tensor([1, 2]), m.tensor([1, 2])),
    lambda m: m.fmod(m.tensor([1, 2]), 0),
    lambda m: m.fmod(m.tensor([True]), m.tensor([True])),
    lambda m: m.atan2(m.zeros(2), m.zeros(3)),
    lambda m: m.lerp(m.tensor([1, 2]), m.tensor([1, 2]), 0.5),
    lambda m: m.lerp(m.zeros(2), 2.0, 0.5),
    lambda m: m.lerp(m.zeros(2), m.zeros(2), None),
    lambda m: m.lerp(m.zeros(2), m.zeros(2, dtype=m.float64), 0.5),
    lambda m: m.lerp(m.zeros(2), m.zeros(2), m.zeros(2, dtype=m.float64)),
    lambda m: m.addcmul(m.zeros(2), 2.0, m.zeros(2)),
    lambda m: m.addcmul(*[m.tensor([True])] * 3),
    lambda m: m.addcdiv(m.zeros(2), m.zeros(2), [1.0, 2.0]),
    lambda m: m.addcdiv(m.tensor([1]), m.tensor([1]), m.tensor([1])),
    lambda m: m.positive(m.tensor([True])),
    lambda m: m.negative(m.tensor([True])),
    lambda m: m.isclose(m.zeros(2), m.zeros(2, dtype=m.float64)),
    lambda m: m.isclose(m.zeros(2), 1.0),
    lambda m: m.isclose(m.zeros(2), m.zeros(2), rtol=-1.0),
    lambda m: m.clamp_min(m.zeros(2), None),
    lambda m: m.clamp_max(m.zeros(2)),
    lambda m: m.nan_to_num(1.0),
    lambda m: m.tensor([1, 2]).sin_(),
    lambda m: m.tensor([1, 2]).clamp_min_(1.5),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_torch_refuses_is_refused(number: int) -> None:
    refused_alike(REFUSED[number])


def test_what_is_refused_here_on_purpose() -> None:
    with pytest.raises(RuntimeError, match=r"addcmul\(\): .*value 0\.5"):  # torch cuts it to 0
        mt.addcmul(*[mt.tensor([1, 2])] * 3, value=0.5)
