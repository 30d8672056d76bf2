"""Pooling against PyTorch's, as users call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike, rng  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and infinity

NAN, INF = float("nan"), float("inf")

# (dimensions, shape, arguments, keyword arguments)
MAXIMA: list[tuple[int, Any, Any, dict[str, Any]]] = [
    (2, (2, 3, 6, 4), (2,), {}),
    (2, (3, 7, 5), (2,), {}),
    (2, (2, 3, 7, 5), (2,), {"ceil_mode": True}),
    (2, (2, 3, 7, 5), ((3, 2), 1), {}),
    (2, (2, 3, 7, 6), (3, (2, 1), 1), {}),
    (2, (2, 3, 7, 6), ((2, 3),), {"stride": 3, "padding": (1, 0), "ceil_mode": True}),
    (2, (2, 3, 7, 8), (2,), {"dilation": (3, 2), "stride": 1, "padding": 1}),
    (2, (2, 3, 4, 4), (4,), {"stride": ()}),
    (2, (2, 3, 4, 4), (1,), {}),
    (2, (0, 3, 4, 4), (2,), {}),
    (1, (2, 3, 7), (2,), {}),
    (1, (3, 7), (3,), {"stride": 2, "padding": 1}),
    (1, (2, 3, 8), (3, 2, 1, 2, True), {}),
]
AVERAGES: list[tuple[int, Any, Any, dict[str, Any]]] = [
    (2, (2, 3, 6, 4), (2,), {}),
    (2, (3, 7, 5), (2,), {}),
    (2, (2, 3, 7, 5), (2,), {"ceil_mode": True}),
    (2, (2, 3, 7, 5), ((3, 2), 1), {}),
    (2, (2, 3, 7, 6), (3, (2, 1), 1), {}),
    (2, (2, 3, 7, 6), (3, (2, 1), 1), {"count_include_pad": False}),
    (2, (2, 3, 7, 8), (4, 3, 2, True), {}),
    (2, (2, 3, 7, 8), (4, 3, 2, True, False), {}),
    (2, (2, 3, 7, 8), (4, 3, 2), {"divisor_override": -3}),
    (2, (0, 3, 4, 4), (2,), {}),
    (1, (2, 3, 7), (2,), {}),
    (1, (3, 8), (3,), {"stride": 2, "padding": 1, "ceil_mode": True}),
    (1, (2, 3, 8), (4, 3, 2, True, False), {}),
]
ADAPTIVE: list[tuple[int, Any, Any]] = [
    (2, (2, 3, 6, 4), 1),
    (2, (2, 3, 6, 4), 2),
    (2, (3, 7, 5), (3, 2)),
    (2, (2, 3, 6, 5), (None, 3)),
    (2, (2, 3, 6, 5), (6, 5)),
    (2, (2, 3, 3, 5), (7, 2)),
    (2, (0, 3, 4, 4), 2),
    (1, (2, 3, 7), 1),
    (1, (3, 7), 3),
    (1, (2, 3, 6), (3,)),
    (1, (2, 3, 50), 33),
    (2, (1, 2, 31, 5), (23, 7)),
]


def ties(*shape: int) -> Any:
    return rng.integers(0, 3, shape).astype(float)


@pytest.mark.parametrize(("dims", "shape", "args", "attrs"), MAXIMA, ids=str)
@pytest.mark.parametrize("make", [normal, ties])
def test_max_pool(dims: int, shape: Any, args: Any, attrs: Any, make: Any) -> None:
    name = f"max_pool{dims}d"
    x = make(*shape)
    compare(lambda m, x: getattr(m.nn.functional, name)(x, *args, **attrs), x)
    ours, theirs = (
        getattr(m.nn.functional, name)(t, *args, return_indices=True, **attrs)
        for m, t in zip((mt, torch), both(x, grad=False), strict=True)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize(("dims", "shape", "args", "attrs"), AVERAGES, ids=str)
def test_avg_pool(dims: int, shape: Any, args: Any, attrs: Any) -> None:
    name = f"avg_pool{dims}d"
    compare(lambda m, x: getattr(m.nn.functional, name)(x, *args, **attrs), normal(*shape))


@pytest.mark.parametrize(("dims", "shape", "size"), ADAPTIVE, ids=str)
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_adaptive_pool(dims: int, shape: Any, size: Any, kind: str) -> None:
    name = f"adaptive_{kind}_pool{dims}d"
    compare(lambda m, x: getattr(m.nn.functional, name)(x, size), ties(*shape))
    if kind == "max":
        ours, theirs = (
            getattr(m.nn.functional, name)(t, size, return_indices=True)
            for m, t in zip((mt, torch), both(normal(*shape), grad=False), strict=True)
        )
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)


SPECIAL = [
    [[1.0, NAN, 2.0, NAN, 3.0, 1.0], [NAN, 0.0, 1.0, 1.0, NAN, NAN]],
    [[-INF] * 6] * 2,
    [[INF, 1.0, -INF, INF, INF, NAN], [0.0, -0.0, 0.0, 0.0, -INF, -INF]],
]


@pytest.mark.parametrize("rows", SPECIAL)
@pytest.mark.parametrize("args", [(2,), (2, 1), (2, 2, 1), (3, 2, 1)])
def test_nan_and_infinity(rows: Any, args: Any) -> None:
    x = np.array([rows])
    compare(lambda m, x: m.nn.functional.max_pool2d(x, *args), x, second=False)
    compare(lambda m, x: m.nn.functional.avg_pool2d(x, *args), x, second=False)
    found = mt.nn.functional.max_pool2d(mt.tensor(x), *args, return_indices=True)[1]
    assert_same(
        found, torch.nn.functional.max_pool2d(torch.tensor(x), *args, return_indices=True)[1]
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "int32"])
def test_dtypes(dtype: str) -> None:
    array = rng.integers(-9, 9, (2, 3, 6, 6)).astype(dtype)
    x, t = both(array, grad=False)
    assert_same(mt.nn.functional.max_pool2d(x, 3, 2, 1), torch.nn.functional.max_pool2d(t, 3, 2, 1))
    if dtype.startswith("f"):
        for call in (
            lambda m, x: m.nn.functional.avg_pool2d(x, 2),
            lambda m, x: m.nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            lambda m, x: m.nn.functional.adaptive_avg_pool2d(x, 4),
        ):
            assert_same(call(mt, x), call(torch, t), rtol=2e-3)


def test_memory_of_another_order() -> None:
    for name in ("max_pool2d", "avg_pool2d"):
        compare(
            lambda m, x, name=name: getattr(m.nn.functional, name)(x.permute(3, 2, 1, 0), 2),
            normal(4, 6, 3, 2),
        )


def test_result_is_a_copy() -> None:
    x = mt.ones(1, 2, 2)
    for call in (
        lambda: mt.nn.functional.max_pool2d(x, 1),
        lambda: mt.nn.functional.avg_pool2d(x, 1),
        lambda: mt.nn.functional.adaptive_avg_pool2d(x, 2),
        lambda: mt.nn.functional.adaptive_max_pool2d(x, 2),
    ):
        call().zero_()
        assert x.tolist() == [[[1.0, 1.0], [1.0, 1.0]]]


REFUSED: dict[str, Callable[..., Any]] = {
    f"{name} {what}": lambda m, name=name, call=call: call(m, getattr(m.nn.functional, name))
    for name in ("max_pool2d", "avg_pool2d")
    for what, call in {
        "kernel larger": lambda m, f: f(m.ones(1, 2, 2), 3),
        "padding over half the kernel": lambda m, f: f(m.ones(1, 6, 6), 3, padding=2),
        "negative padding": lambda m, f: f(m.ones(1, 6, 6), 3, padding=-1),
        "stride 0": lambda m, f: f(m.ones(1, 6, 6), 3, 0),
        "kernel 0": lambda m, f: f(m.ones(1, 6, 6), 0),
        "kernel of three": lambda m, f: f(m.ones(1, 6, 6), (1, 1, 1)),
        "kernel as float": lambda m, f: f(m.ones(1, 6, 6), 2.0),
        "stride as bool": lambda m, f: f(m.ones(1, 6, 6), 2, True),
        "ceil_mode as text": lambda m, f: f(m.ones(1, 6, 6), 2, ceil_mode="yes"),
        "nothing to pool": lambda m, f: f(m.ones(1, 0, 6), 2),
        "booleans": lambda m, f: f(m.ones(1, 6, 6).bool(), 2),
        "a list": lambda m, f: f([[[1.0]]], 1),
        "five dimensions": lambda m, f: f(m.ones(1, 1, 1, 4, 4), 2),
    }.items()
} | {
    "divisor 0": lambda m: m.nn.functional.avg_pool2d(m.ones(1, 4, 4), 2, divisor_override=0),
    "divisor as float": lambda m: m.nn.functional.avg_pool2d(
        m.ones(1, 4, 4), 2, divisor_override=1.5
    ),
    "a vector": lambda m: m.nn.functional.max_pool1d(m.ones(4), 2),
    "images in avg_pool1d": lambda m: m.nn.functional.avg_pool1d(m.ones(1, 1, 4, 4), 2),
    "adaptive to a negative size": lambda m: m.nn.functional.adaptive_avg_pool2d(
        m.ones(1, 4, 4), -1
    ),
    "adaptive to three": lambda m: m.nn.functional.adaptive_avg_pool2d(
        m.ones(1, 1, 4, 4), (1, 1, 1)
    ),
    "adaptive of integers": lambda m: m.nn.functional.adaptive_avg_pool2d(
        m.ones(1, 4, 4).long(), 2
    ),
    "adaptive of nothing": lambda m: m.nn.functional.adaptive_max_pool2d(m.ones(1, 0, 4), 2),
    "adaptive to a float": lambda m: m.nn.functional.adaptive_avg_pool2d(m.ones(1, 4, 4), 2.0),
    "adaptive to None": lambda m: m.nn.functional.adaptive_avg_pool1d(m.ones(1, 4), None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    refused_alike(REFUSED[case])
