"""The native executor: the numbers of the eager step to rounding, from native code kept on disk."""

from __future__ import annotations

import functools
import gc
import itertools
import math
import re
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from programs import OPTIMIZERS, PROGRAMS
from steps import LAYERS, Setting, batch, follow, shared

import microtrain as mt
from microtrain.capture import c_compiler, executors, fusion, routines
from microtrain.capture import native as native_executor
from microtrain.capture.numpy_executor import Text
from microtrain.capture.program import Line, parts_of
from microtrain.common.threads import LAUNCH

nn, F = mt.nn, mt.nn.functional
native_step = functools.partial(mt.compile, executor="native")


def late(*values: Any) -> Any:
    """Parameters of a test that take long: only with the slow tests."""
    return pytest.param(*values, marks=pytest.mark.slow)


# Of one of `PROGRAMS`, an optimizer, and whether in float64.
QUICK = [("linreg", "sgd", False), ("linreg", "adamw", True), ("mlp", "sgd", False)]
SIDES = [
    side if side in QUICK else late(*side)
    for side in itertools.product(PROGRAMS, ("sgd", "adamw"), (False, True))
]
WORLDS = [LAUNCH.size] if LAUNCH.parallel else [2, late(1), late(3), late(4)]


@pytest.fixture(autouse=True, scope="module")
def code_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that an earlier run compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        c_compiler._load.cache_clear()
        yield
        c_compiler._load.cache_clear()


def near(found: Any, expected: Any, tolerance: float, what: str = "") -> None:
    """Equal to `tolerance` of the largest; NaN and infinities in the same places."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape and found.dtype == expected.dtype, what
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected, err_msg=what)
        return
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.where(finite, 0, found), np.where(finite, 0, expected), what)
    size = np.abs(expected[finite]).max(initial=0)
    assert np.abs(found[finite] - expected[finite]).max(initial=0) <= tolerance * size, what


# Training -----------------------------------------------------------------------------------------


class Side:
    """A model, its optimizer and a step over one of `PROGRAMS`.

    "adamw" comes with a cosine schedule and gradients accumulated over two halves of the batch.
    """

    def __init__(self, name: str, optimizer: str, double: bool, wrap: Callable[[Any], Any]) -> None:
        mt.manual_seed(1)
        make, self.inputs, self.targets, loss_of = PROGRAMS[name]
        self.model = make().double() if double else make()
        self.double = double
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        rich = optimizer == "adamw"
        schedule = mt.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=500)
        self.after = schedule.step if rich else lambda: None

        def step(x: Any, y: Any) -> Any:
            self.optimizer.zero_grad()
            losses = []
            for half, target in zip(x.chunk(2), y.chunk(2), strict=True) if rich else [(x, y)]:
                loss = loss_of(self.model(half), target)
                loss.backward()
                losses.append(loss.detach())
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            return sum(losses[1:], losses[0])

        self.step = wrap(step)

    def __call__(self, i: int) -> Any:
        arrays = [make(i) for make in (self.inputs, self.targets)]
        if self.double:
            arrays = [a.astype(float) if a.dtype.kind == "f" else a for a in arrays]
        loss = self.step(*map(mt.from_numpy, arrays)).item()
        self.after()
        return loss

    def memory(self) -> list[Any]:
        """Everything that a step changes."""
        flats = [flat for flat in self.optimizer._flat for flat in flat.values()]
        buffers = [b._array for b in self.model.buffers()]
        data = [buffer.data for buffer in self.optimizer.storage.buffers]
        return [a for a in (*data, *buffers, *flats) if a is not None]


@pytest.mark.daily("mlp-sgd-False", "linreg-adamw-True")
@pytest.mark.parametrize(("name", "optimizer", "double"), SIDES)
def test_a_step_from_the_same_state(name: str, optimizer: str, double: bool) -> None:
    eager = Side(name, optimizer, double, lambda step: step)
    compiled = Side(name, optimizer, double, native_step)
    tolerance = 1e-12 if double else 1e-5
    for i in range(500):
        check = i in (0, 3, 9, 99, 499)
        if check:  # other code may write into the state between calls
            for mine, other in zip(compiled.memory(), eager.memory(), strict=True):
                mine[...] = other
        state = mt.random.get_rng_state()
        expected = eager(i)
        mt.random.set_rng_state(state)
        found = compiled(i)
        if not check:
            continue
        near(found, expected, tolerance, "loss")
        pairs = zip(compiled.model.named_parameters(), eager.model.parameters(), strict=True)
        largest = max(np.abs(p.grad.numpy()).max() for p in eager.model.parameters())
        for (key, mine), other in pairs:
            # A gradient that is zero but for rounding has no digits to agree in (a bias before a
            # normalization, that of the keys of attention), nor what Adam makes of it.
            sure = np.abs(other.grad.numpy()) > 1e-4 * largest
            which = sure if optimizer == "adamw" else ...
            near(mine.detach().numpy()[which], other.detach().numpy()[which], tolerance, key)
            pair = (np.append(p.grad.numpy(), largest / 10) for p in (mine, other))
            near(*pair, 2 * tolerance, f"{key}.grad")
    assert len(compiled.step.programs) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        late(n, o) if (n, o) != ("seed", "adamw") else (n, o)
        for n in ("linreg", "seed")
        for o in OPTIMIZERS
    ],
)
def test_five_hundred_steps_in_float64(name: str, optimizer: str) -> None:
    eager = Side(name, optimizer, True, lambda step: step)
    expected = [eager(i) for i in range(500)]
    compiled = Side(name, optimizer, True, native_step)
    found = [compiled(i) for i in range(500)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    for mine, other in zip(compiled.memory()[:1], eager.memory()[:1], strict=True):
        near(mine, other, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_five_hundred_steps_end_at_the_same_loss(name: str, optimizer: str) -> None:
    losses = []
    for wrap in (lambda step: step, native_step):
        side = Side(name, optimizer, False, wrap)
        losses.append(np.mean([side(i) for i in range(500)][-50:]))
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_order_of_native_code_keeps_the_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of all units, done by NumPy one after the other, are the step itself."""

    def ordered(program: Any) -> Any:
        text = Text(program)
        for unit in fusion.units_of(program, True):
            if isinstance(unit, fusion.Call) and unit.host is not None:
                text.host(unit.host)
            for line in unit.lines:
                for part in parts_of(line):
                    text.line(part)
        return text.function(), text.shown()

    monkeypatch.setitem(executors.EXECUTORS, "numpy", ordered)
    eager = Side(name, "sgd", False, lambda step: step)
    expected = [eager(i) for i in range(6)]
    compiled = Side(name, "sgd", False, mt.compile)
    assert [compiled(i) for i in range(6)] == expected
    for mine, other in zip(compiled.memory()[:1], eager.memory()[:1], strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("comm", WORLDS, indirect=True)
def test_data_parallel_steps(comm: Any) -> None:
    losses, weights = shared(comm, lambda step: step)
    others, found = shared(comm, native_step)
    np.testing.assert_allclose(others, losses, rtol=1e-12)
    for a, b in zip(found, weights, strict=True):
        near(a, b, 1e-12)


def test_a_learning_rate_that_changes() -> None:
    def change(setting: Setting, i: int) -> None:
        setting.optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)

    eager, compiled, step = follow(change, executor="native", momentum=0.9)
    np.testing.assert_allclose(compiled, eager, rtol=1e-6)
    assert len(step.programs) == 1


def test_an_optimizer_over_many_blocks() -> None:
    """Its blocks share a scratch memory, and all but the last one a function."""
    results = []
    for wrap in (lambda f: f, native_step):
        mt.manual_seed(0)
        weight = nn.Parameter(mt.randn(70_000 * 3))
        optimizer = mt.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.1)

        def step(x: Any, weight: Any = weight, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()

        step = wrap(step)
        for i in range(5):
            step(mt.tensor(0.5 + i))
        results.append(weight.detach().numpy())
    near(results[1], results[0], 1e-6)
    loops = re.findall(
        r"^(u\d+)\(.*multiply add multiply add multiply subtract", step.source(), re.M
    )
    assert len(loops) == 4
    assert len({*loops}) <= 2


@pytest.mark.slow
@settings(max_examples=2, deadline=None)
@given(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=4), st.sampled_from(list(OPTIMIZERS)))
def test_random_models(layers: list[str], optimizer: str) -> None:
    makers = {
        "linear": lambda: nn.Linear(5, 5),
        "relu": nn.ReLU,
        "tanh": nn.Tanh,
        "dropout": lambda: nn.Dropout(0.4),
        "norm": lambda: nn.LayerNorm(5),
        "gelu": nn.GELU,
        "softmax": lambda: nn.Softmax(dim=-1),
    }
    results = []
    for wrap in (lambda f: f, native_step):
        mt.manual_seed(0)
        mt.random.begin_batch(0)
        model = nn.Sequential(nn.Linear(3, 5), *(makers[name]() for name in layers)).double()
        opt = OPTIMIZERS[optimizer](model.parameters())

        def step(x: Any, model: Any = model, opt: Any = opt) -> Any:
            opt.zero_grad()
            loss = F.huber_loss(model(x), x.sum(1, keepdim=True).expand(-1, 5))
            loss.backward()
            opt.step()
            return loss

        step = wrap(step)
        results.append([step(batch(i).double()).item() for i in range(6)])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-8)


# Instructions -------------------------------------------------------------------------------------


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
    erfinv i0 sinc logit""".split()
BINARY = """add sub mul div maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor
    pow fmax fmin logaddexp2 gcd lcm bitwise_left_shift bitwise_right_shift""".split()


@pytest.mark.daily("float32")
@pytest.mark.parametrize(
    "dtype", ["float32", "int64", "bool", *map(late, ["float64", "int32", "uint8"])]
)
def test_elementwise_instructions(dtype: str) -> None:
    def every(x: Any, y: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        calls = [(name, (x,)) for name in UNARY] + [(name, (x, y)) for name in BINARY]
        if x.is_floating_point():
            calls += [(name, (x, y)) for name in ("remainder", "floor_divide")]
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
        "whole": i.sum(), "count": (a > 0).sum(0), "none": a[:, :0].sum(1), "largest": i.max(),
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
    lengths = [*range(1, 18), 28, 63, 65]

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
    "how", [late("take"), "getitem", "setitem", late("add"), "inverse", late("cross entropy")]
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
        elif how == "add":
            first.index_add_(0, index, other)
        elif how == "inverse":
            other += mt.linalg.inv(matrix)[0]
        else:
            other += F.cross_entropy(first[None, :3], index[:1])
        first *= 2
        other += 1
        return first.sum()

    results = []
    for wrap in (lambda f, state: f, native_step):
        state = [mt.ones(4, dtype=mt.float64), mt.ones(3, dtype=mt.float64)]
        step = wrap(functools.partial(changes, *state), state=state)
        for i in range(5):
            index = mt.tensor([9 if i == 3 else 0, 1, 2])
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


# Calls --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_calls_that_differ_from_the_last_one() -> None:
    """Each finds the capture that it needs, however they come."""
    setting, other = Setting(), Setting()
    step = native_step(lambda x, scale=1: setting.step(x) * scale)
    calls: list[tuple[int, Any]] = [(4, {}), (2, {}), (4, {"scale": 2}), (2, {"scale": 2})]
    for i in range(24):
        rows, more = calls[i // 5 % 4 if i < 16 else i % 4]
        expected = other.step(batch(i, rows)).item() * more.get("scale", 1)
        found = step(batch(i, rows), **more) if i % 2 else step(batch(i, rows), *more.values())
        assert found.item() == pytest.approx(expected, rel=1e-5)
    assert setting.runs <= 16
    with pytest.raises(TypeError):
        step()
    with pytest.raises(TypeError):
        step(batch(0), 1, 2)


def test_options_and_gradients_are_looked_at_before_every_replay() -> None:
    results = []
    for wrap in (lambda f: f, native_step):
        setting = Setting(momentum=0.9)
        step = wrap(setting.step)
        found = []
        for i in range(20):
            group = setting.optimizer.param_groups[0]
            if i == 5:
                group["lr"] = 0.01
            if i == 8:
                group["nesterov"] = True
            if i == 11:
                setting.optimizer.load_state_dict(setting.optimizer.state_dict())
            if i == 14:
                next(iter(setting.model.parameters())).grad = None
                setting.model.requires_grad_(False)
                setting.model.requires_grad_(True)
            if i == 17:
                setting.step(batch(99))  # eagerly in between
            found.append(step(batch(i)).item())
        results.append(found)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


@pytest.mark.parametrize("args", [(2,), (3, 2, 1)])
def test_a_max_pool_is_loops_over_elements(args: Any) -> None:
    def step(x: Any) -> Any:
        x = x.detach().requires_grad_(True)
        pooled = mt.nn.functional.max_pool2d(x, *args)
        (pooled * pooled).sum().backward()
        return x.grad

    x = mt.randn(2, 3, 8, 8)
    captured = native_step(step)
    captured(x)
    np.testing.assert_array_equal(captured(x).numpy(), step(x).numpy())
    assert "1 of native code, 0 of NumPy" in captured.explain()
    assert "return 1;" not in captured.source()  # no index is checked


@pytest.mark.slow
def test_two_threads() -> None:
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        side = Side("seed", "sgd", True, native_step if number < 2 else lambda step: step)
        results[number] = [side(i) for i in range(60)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert results[0] == results[1]
    np.testing.assert_allclose(results[0], results[2], rtol=1e-10)


def test_a_dropped_step_gives_its_memory_back() -> None:
    setting = Setting()
    step = native_step(setting.step)
    for i in range(5):
        step(batch(i))
    memory = weakref.ref(step.programs[0].inputs[0])
    gc.disable()
    try:
        del step
        assert memory() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_replay_makes_no_arrays_but_its_results() -> None:
    side = Side("wide", "sgd", False, native_step)
    x, y = (mt.from_numpy(make(0)) for make in (side.inputs, side.targets))
    for _ in range(4):
        side.step(x, y)
    tracemalloc.start()
    try:
        side.step(x, y)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            side.step(x, y)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 2_000


def test_the_source_says_what_it_does() -> None:
    setting = Setting(momentum=0.9)
    step = native_step(setting.step)
    for i in range(3):
        step(batch(i))
    text = step.source()
    for part in ("zero_grad", "u0(", "static int u0(int64 *t)", "# 4x2", "steps.py"):
        assert part in text
    for part in ("x", "weight, parameters", "weight.grad, gradients", "momentum_buffer",
                 "Linear: linear, "):  # fmt: skip
        assert part in text
    assert "1 of native code, 0 of NumPy; 4 pieces" in step.explain(measure=True)
    instructions = sum(isinstance(line, Line) for line in step.programs[0].lines)
    groups = sum("(" in line and "  # " in line for line in text.splitlines())
    assert f"{groups} of {instructions} instructions" in step.explain()


def test_equal_layers_are_written_once() -> None:
    def functions(layers: int) -> int:
        mt.manual_seed(3)
        parts = [part for _ in range(layers) for part in (nn.ReLU(), nn.Linear(5, 5))]
        setting = nn.Sequential(nn.Linear(3, 5), *parts)
        optimizer = mt.optim.SGD(setting.parameters(), lr=0.1, momentum=0.9)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = setting(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        compiled = native_step(step)
        for _ in range(4):
            compiled(mt.ones(4, 3))
        return compiled.source().count("static int u")

    assert functions(16) == functions(8)


# Loops over time ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bidirectional", "size"),
    [("LSTM", False, 32), late("LSTM", True, 3), late("GRU", True, 32), late("RNN", True, 32)],
)
def test_a_recurrent_layer_is_native_loops(name: str, bidirectional: bool, size: int) -> None:
    lengths = [2 + i % 6 for i in range(40)]

    def found(wrap: Callable[[Any], Any]) -> Any:
        mt.manual_seed(0)
        layer = getattr(nn, name)(5, size, bidirectional=bidirectional)

        def gradients(x: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            output, last = layer(packed)
            last = last[0] * last[1] if isinstance(last, tuple) else last
            loss = output.data.pow(2).mean() + last.sum()
            return loss, *mt.autograd.grad(loss, list(layer.parameters()))

        step, rng = wrap(gradients), np.random.default_rng(0)
        inputs = [mt.tensor(rng.standard_normal((7, 40, 5)).astype(np.float32)) for _ in range(5)]
        return [[t.detach().numpy().copy() for t in step(x)] for x in inputs], step

    captured, step = found(native_step)
    for a, b in zip(captured, found(lambda f: f)[0], strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    assert not any(line.startswith("loop(") for line in step.source().splitlines())


def test_places_that_lie_beside_each_other_do_not_meet() -> None:
    memory = np.zeros((6, 8, 12), np.float32)
    strips = [fusion.Place(memory[0, :, at : at + 4]) for at in (0, 4, 8)]
    for one, two in itertools.permutations(strips, 2):
        assert not one.meets(two)
        assert one.beside(two)
    wide = [fusion.Place(memory[0, :, at : at + 5]) for at in (0, 4)]
    assert wide[0].meets(wide[1]) and wide[1].meets(wide[0])
    assert fusion.Place(memory[:3, 0]).beside(fusion.Place(memory[3:, 0]))
    assert fusion.Place(memory[0]).meets(fusion.Place(memory[0, :, :4]))
    rows = [fusion.Place(memory[0, at : at + 4]) for at in (0, 4)]
    assert rows[0].beside(rows[1])


def test_numpys_own_routines_are_found() -> None:
    for name, dtype in itertools.product(("exp", "tanh", "log1p"), (np.float32, np.float64)):
        code, _ = routines.routine_of(name, np.dtype(dtype)) or (0, 0)
        assert code
    assert routines.routine_of("add", np.dtype(np.float32)) is None


def test_what_an_index_is_when_native_code_is_chosen_says_nothing():
    # Its memory serves other lines of the step, so it may hold anything then.
    model = mt.nn.Linear(4, 3)

    @mt.compile(executor="numpy")
    def step(x, target):
        loss = mt.nn.functional.cross_entropy(model(x), target, label_smoothing=0.1)
        loss.backward()
        return loss

    x, target = mt.randn(8, 4), mt.tensor(np.arange(8) % 3)
    for _ in range(3):
        model.zero_grad()
        step(x, target)
    (program,) = step.programs
    indices = [
        array
        for line in program.lines
        if getattr(line, "name", "") == "setitem"
        for array in [line.args[1]]
        if type(array) is np.ndarray and array.dtype == np.int64
    ]
    assert indices
    for index in indices:
        index[...] = 10**9
    native_executor.executor(program)
