"""Instructions in native code: the values of NumPy, its errors and its edges."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_compile_native import Side, late, native_step, near

import microtrain as mt
from microtrain.capture import c_compiler
from microtrain.capture.program import Line

nn, F = mt.nn, mt.nn.functional
pytestmark = pytest.mark.usefixtures("code_of_this_run")


def odd(dtype: str) -> np.ndarray:
    """Numbers of all kinds."""
    if dtype == "bool":
        return np.array([[True, False, True], [False, True, True]])
    if dtype in ("float32", "float64"):
        values = [np.nan, np.inf, -np.inf, -0.0, 0.0, 0.3, -1.5, 7.0, 1e30, -1e-30, 2.5, -3.0]
        return np.array(values, dtype).reshape(2, 6)
    low, high = (0, 255) if dtype == "uint8" else (-100, 100)
    return np.array([[low, 1, 2, 7], [high, 3, 100, 20]], dtype)


UNARY = """neg abs square sqrt exp expm1 log log1p sin cos tanh sinh cosh arctan floor ceil sign
    reciprocal isnan isinf isfinite erf erfc relu sigmoid logical_not lgamma digamma
    erfinv i0 sinc logit exp2 asinh acosh atanh bitwise_not""".split()


BINARY = """add sub mul div maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor
    pow fmax fmin logaddexp2 gcd lcm bitwise_left_shift bitwise_right_shift
    bitwise_and bitwise_or bitwise_xor atan2 hypot""".split()


@pytest.mark.daily("float32")
@pytest.mark.parametrize(
    "dtype", ["float32", "int64", "bool", *map(late, ["float64", "int32", "uint8"])]
)
def test_elementwise_instructions(dtype: str) -> None:
    def every(x: Any, y: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        calls = [(name, (x,)) for name in UNARY] + [(name, (x, y)) for name in BINARY]
        if x.is_floating_point():
            calls += [(name, (x, y)) for name in ("remainder", "floor_divide", "fmod")]
        calls += [("add", (x, 3)), ("mul", (x, True)), ("where", (x > y, x, y)), ("sub", (x, 1.5))]
        calls += [("add", (x.t(), y.t())), ("mul", (x, x[:1]))]
        for number, (name, args) in enumerate(calls):
            try:
                found[f"{name} {number}"] = getattr(mt, name)(*args)
            except (RuntimeError, TypeError, NotImplementedError):
                continue  # not for this dtype, in both
        for kind in (mt.float32, mt.float64, mt.bool):
            found[f"to {kind}"] = x.to(kind)
        return found

    x = odd(dtype)
    y = np.roll(x, 1)
    compiled = native_step(every)
    with np.errstate(all="ignore"), mt.no_grad():
        for pair in ((y, x), (y, x), (x, y)):  # other values than those of the capture
            found = compiled(*map(mt.from_numpy, pair))
        expected = every(mt.from_numpy(x), mt.from_numpy(y))
    assert len(found) > 12
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        near(found[key].numpy(), value.numpy(), 2e-6 if dtype != "float64" else 1e-14, key)


@pytest.mark.slow
def test_statistics_and_places_in_one_step() -> None:
    def step(x: Any, index: Any) -> Any:
        values = [
            x.quantile(0.3, 1).sum(), x.logcumsumexp(0).mean(), mt.cdist(x, x[:2]).mean(),
            mt.cov(x).sum(), mt.trapezoid(x, dx=0.5).sum(), x.renorm(2, 0, 1.0).sum(),
            mt.special.log_ndtr(x).sum(), x.mode(1).values.sum(), mt.cross(x[:3], x[1:], 0).sum(),
            *((x.scatter_reduce(0, index, x * 2, name) ** 2).sum()
              for name in ("prod", "mean", "amax", "amin")),
        ]  # fmt: skip
        loss = mt.stack(values)
        return loss.detach(), *(g.detach() for g in mt.autograd.grad(loss.sum(), x))

    compiled = native_step(step)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x = mt.tensor(rng.standard_normal((4, 5)), requires_grad=True)
        index = mt.tensor(rng.integers(0, 4, (4, 5)))
        for number, (a, b) in enumerate(zip(compiled(x, index), step(x, index), strict=True)):
            near(a.numpy(), b.numpy(), 1e-13, str(number))
    assert len(compiled.programs) == 1


def pieces(a: Any, b: Any, v: Any, w: Any, t: Any, i: Any) -> dict[str, Any]:
    """Products, sums, shapes, indices and overlapping memory."""
    grown = mt.zeros(4, 5, dtype=a.dtype)
    grown[1:, 2:] = a[:3, :3]
    shifted = a * 1
    shifted[1:] = shifted[:-1] + shifted[1:]
    wide = mt.cat([a, a.t()], 1) if a.shape[0] == a.shape[1] else a
    return {
        "matrix": a @ b, "transposed": b.t() @ a.t(), "mixed": a.t() @ a, "vector": a @ v,
        "from the left": w @ a, "inner": v @ v, "batch": t @ b, "broadcast": a @ t.transpose(1, 2),
        "outer": w[:, None] @ v[None], "long": (a.reshape(-1) @ a.reshape(-1)), "empty": a[:0] @ b,
        "sum": t.sum(), "rows": t.sum(2), "columns": t.sum(0), "middle": t.sum(1, keepdim=True),
        "ends": t.sum((0, 2)), "max": a.amax(1), "min": a.amin(0), "top": t.max(), "prod": v.prod(),
        "mean": t.mean((1, 2)), "softmax": t.softmax(-1), "norm": (a * a).sum(1).sqrt(),
        "any": (a > 1).any(1), "all": t.all(), "every": (b > 0).all(), "whole": i.sum(),
        "count": (a > 0).sum(0), "none": a[:, :0].sum(1), "largest": i.max(),
        "take": v[i], "rows of it": a[i], "gather": a.gather(1, i[None].expand(2, -1)),
        "padded": grown, "shifted": shifted, "joined": wide, "cumulated": a.cumsum(0),
        "view": (a.t() + 1).reshape(-1), "strided": a[::2, 1::2] * 2, "flipped": a.flip(0) + a,
        "added": mt.zeros(v.shape[0], dtype=a.dtype).index_add(0, i, w[: i.shape[0]]),
    }  # fmt: skip


@pytest.mark.daily("float32-40")
@pytest.mark.parametrize("size", [4, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_sums_and_indices(dtype: str, size: int) -> None:
    numbers = np.random.default_rng(0)

    def some(*shape: int) -> Any:
        return mt.from_numpy(numbers.standard_normal(shape).astype(dtype))

    a, b, v, w, t = (
        some(size + 1, size), some(size, 3), some(size), some(size + 1), some(2, 3, size)
    )  # fmt: skip
    i = mt.from_numpy(np.array([0, 3, 1, 1, -2 % size]))
    compiled = native_step(pieces)
    with mt.no_grad():
        expected = pieces(a, b, v, w, t, i)
        for factor in (0.5, 2.0, 1.0):  # other values than those of the capture
            found = compiled(*(part * factor for part in (a, b, v, w, t)), i)
    for key, value in expected.items():
        near(found[key].numpy(), value.numpy(), 2e-6 if dtype == "float32" else 1e-14, key)
    (capture,) = compiled.captures
    lines = sum(isinstance(line, Line) for line in capture.program.lines)
    assert sum(capture.text.groups) > 0.8 * lines


def test_rows_of_every_short_length_have_the_bits_of_numpy() -> None:
    """Rows beside each other, apart, side by side in wider ones, and such that are added to."""
    lengths = [*range(1, 10), 15, 16, 17, 63, 65]

    def run(executor: str) -> list[Any]:
        rng = np.random.default_rng(0)
        sums = [mt.zeros(6, n) for n in lengths]
        wider = [mt.ones(6, n + 1) for n in lengths]

        @mt.compile(executor=executor, state=[*sums, *wider])
        def step(given: Any, others: Any) -> Any:
            found = []
            for x, y, total, wide in zip(given, others, sums, wider, strict=True):
                a, b = x[:, 0], x[:, 1]
                wide[:, :-1].copy_(y * 3)
                total.add_(a).mul_(b)
                found += [mt.where(a > b, a, b * 2), (a != a).to(dtype=mt.int8), mt.cat([a, b], 1)]
                found += [mt.maximum(a, b)[::2] - 1, a[2:] / b[:-2]]
            return found

        for _ in range(3):
            given = [mt.tensor(rng.standard_normal((6, 2, n)).astype("f")) for n in lengths]
            given[-1][2, 0, 3] = math.nan
            others = [x.flip(0)[:, 1].clone() for x in given]
            found = [t.numpy().copy() for t in step(given, others)]
        return [*found, *(t.numpy() for t in (*sums, *wider))]

    for ours, numpys in zip(run("native"), run("numpy"), strict=True):
        assert ours.dtype == numpys.dtype
        np.testing.assert_array_equal(ours, numpys)


def test_maxima_of_narrow_images_are_numpys() -> None:
    """Rows of 5 to 7 windows, of which two rows of a gradient are written at a time."""
    widths = [*range(8, 17)]

    def run(executor: str) -> list[Any]:
        rng = np.random.default_rng(0)

        @mt.compile(executor=executor)
        def step(images: Any, weights: Any) -> Any:
            found = []
            for image, weight in zip(images, weights, strict=True):
                x = image.detach().requires_grad_()
                pooled = F.max_pool2d(x, 2)
                between = pooled.flatten(1) @ weight
                found += [pooled, *mt.autograd.grad((between**2).sum(), x)]
            return found

        for _ in range(3):
            images = [mt.tensor(rng.integers(0, 4, (3, 2, n, n)).astype("f")) for n in widths]
            images[-1][1, 1, 2, 3] = math.nan
            weights = [mt.tensor(rng.standard_normal((2 * (n // 2) ** 2, 4), "f")) for n in widths]
            found = [t.numpy().copy() for t in step(images, weights)]
        return found

    for ours, numpys in zip(run("native"), run("numpy"), strict=True):
        np.testing.assert_allclose(ours, numpys, rtol=1e-4, atol=1e-4)


def test_not_a_number_goes_through_a_step() -> None:
    results = []
    for wrap in (lambda f: f, native_step):
        side = Side("mlp", "sgd", False, wrap)
        for i in range(4):
            side(i)
        x = np.ones((6, 8), np.float32)
        x[2, 3], x[4, 1] = np.nan, np.inf
        mt.random.begin_batch(0)
        with np.errstate(all="ignore"):
            loss = side.step(mt.from_numpy(x), mt.from_numpy(np.zeros(6, np.int64)))
        results.append([loss.item(), *(p.detach().numpy() for p in side.model.parameters())])
    for found, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


def test_an_index_out_of_bounds_is_an_error() -> None:
    weight = mt.ones(4)
    step = native_step(lambda i, w: w.take(i), state=[weight])
    for _ in range(3):
        step(mt.tensor([0, 3]), weight)
    with pytest.raises(IndexError, match="out of bounds"):
        step(mt.tensor([0, 4]), weight)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64"])
def test_indices_are_checked_without_python(dtype: str) -> None:
    """Of any layout; what is wrong is said as the eager step says it."""
    table, weight = mt.randn(6, 4, requires_grad=True), mt.randn(3, 4)

    def step(i: Any, y: Any) -> Any:
        table.grad = None
        loss = F.cross_entropy(F.embedding(i.long(), table) @ weight.T, y, ignore_index=9)
        loss.backward()
        return loss

    def loss_of(f: Any, i: list[int], y: list[int]) -> Any:
        every_second = mt.tensor([[k, 77] for k in y]).to(getattr(mt, dtype))[:, 0]
        try:
            return f(mt.tensor(i), every_second).item(), table.grad.tolist()
        except IndexError as error:
            return str(error)

    fast = native_step(step)
    for _ in range(3):
        loss_of(fast, [0, 5, 2], [0, 2, 1])
    assert "check" not in fast.explain().partition("pieces of bookkeeping")[2].split("\n")[0]
    calls = [([0, 5, 2], [0, 9, 1]), ([0, 5, 2], [0, 3, 1]), ([0, 6, 2], [0, 1, 1])]
    calls += [([0, -1, 2], [0, 1, 1]), ([0, 1, 2], [0, 200 if dtype == "uint8" else -1, 1])]
    for i, y in [*calls, ([1, 1, 1], [2, 0, 1])]:
        found, expected = loss_of(fast, i, y), loss_of(step, i, y)
        if isinstance(expected, str):
            assert found == expected
        else:
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
            np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-7)


def agree(step: Callable[..., Any], *calls: Any) -> Any:
    """The compiled `step` gives the bits of the eager one at every call; it is returned."""
    compiled = native_step(step)
    with np.errstate(all="ignore"), mt.no_grad():
        for arrays in (calls[0], *calls):
            given = [mt.from_numpy(np.array(array)) for array in arrays]
            for found, expected in zip(compiled(*given), step(*given), strict=True):
                np.testing.assert_array_equal(found.numpy(), expected.numpy())
                np.testing.assert_array_equal(mt.signbit(found).numpy(), mt.signbit(expected))
    return compiled


@pytest.mark.parametrize("shape", [(3,), (4, 3), (3, 1, 4)], ids=str)
def test_takes_along_any_axis(shape: tuple[int, ...]) -> None:
    """In loops, with what is computed from it, of any layout."""

    def step(x: Any, i: Any) -> Any:
        turned = x.transpose(0, -1)
        along = [y.index_select(d, i) * 2 for y in (x, turned) for d in range(x.ndim)]
        return [*along, x[:, i[:, None]] if x.ndim > 1 else x[i[:, None]]]

    x, i = np.random.default_rng(0).normal(size=shape), np.array([0, 0])
    compiled = agree(step, (x, i), (x[::-1], i[::-1]))
    assert ", 0 of NumPy" in compiled.explain()
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(mt.from_numpy(x), mt.tensor([0, 4]))


@pytest.mark.slow
def test_places_and_numbers_at_the_edge() -> None:
    """Overlapping results, strided sources, loops that nobody needs, overflow, signs of zeros."""

    def step(x: Any, i: Any, n: Any) -> Any:
        overlapping = x * 1
        overlapping.unfold(0, 2, 1).mul_(0.5)
        unread = mt.zeros(5)
        unread.fill_(1.0)
        scaled = n * 2**31
        return [
            overlapping, x[::2].gather(0, i), x[:1].expand(4).gather(0, i), x.flip(0).gather(0, i),
            scaled, scaled > 0, n + (2**63 - 1) > n, n - (2**63 - 1) < n, n * n >= 0,
            n.sum() > 0, n.prod() > 0, n[:, None].expand(4, 4).sum(0) > 0, x.clamp(min=0.0),
            mt.maximum(x, x[4:5]), mt.minimum(x, x[4:5]), x.clamp(max=-0.0), x.relu(),
        ]  # fmt: skip

    x = np.array([-0.0, 1, -2, 3, 0.0, np.nan, 7, -0.0])
    i = np.array([0, 3, 1, 2])
    n = np.array([2**62, 3, -(2**63), -(2**32)])
    agree(step, (x, i, n), (x[::-1], i[::-1], n[::-1]), (x, i, n))


@pytest.mark.parametrize(
    "how",
    [
        *(late("take"), "getitem", "setitem", "setitem of several", late("add"), "inverse"),
        late("cross entropy"),
    ],
)
def test_the_state_where_a_replay_raises_is_that_of_the_step(how: str) -> None:
    def changes(first: Any, other: Any, index: Any, matrix: Any) -> Any:
        first += 1
        if how == "take":
            other += first.take(index)
        elif how == "getitem":
            other += first[index]
        elif how == "setitem":
            first[index] = 5.0
        elif how == "setitem of several":
            first[index] = other
        elif how == "add":
            first.index_add_(0, index, other)
        elif how == "inverse":
            other += mt.linalg.inv(matrix)[0]
        else:
            other += F.cross_entropy(first[None, :3], index[2:])
        first *= 2
        other += 1
        return first.sum()

    results = []
    for wrap in (lambda f, state: f, native_step):
        state = [mt.ones(4, dtype=mt.float64), mt.ones(3, dtype=mt.float64)]
        step = wrap(functools.partial(changes, *state), state=state)
        for i in range(5):
            index = mt.tensor([0, 1, 9 if i == 3 else 2])
            matrix = mt.eye(3, dtype=mt.float64) * (i != 3)
            if i == 3:
                with pytest.raises((IndexError, RuntimeError, np.linalg.LinAlgError)):
                    step(index, matrix)
            else:
                step(index, matrix)
            results.append([part.numpy().copy() for part in state])
    for expected, found in zip(results[:5], results[5:], strict=True):
        for mine, other in zip(found, expected, strict=True):
            near(mine, other, 1e-14)


def test_a_processor_without_fma_leaves_products_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_compiler, "has_fma", lambda: False)
    a = mt.from_numpy(np.random.default_rng(0).standard_normal((30, 30)))
    step = native_step(lambda a: (a @ a).sum() + (a[:2, :2] @ a[:2, :2]).sum())
    for _ in range(3):
        found = step(a)
    near(found.numpy(), ((a @ a).sum() + (a[:2, :2] @ a[:2, :2]).sum()).numpy(), 1e-13)
    assert "calls(" not in step.source()
    assert "matmul(" in step.source() or "dot(" in step.source()
    images, weight = mt.ones(2, 3, 9, 9), mt.ones(4, 3, 3, 3)
    step = native_step(lambda x: nn.functional.conv2d(x, weight, padding=1))
    for _ in range(3):
        found = step(images)
    assert found.sum().item() == 4 * 2 * 3 * 25**2
    assert "calls(" not in step.source()
