"""products.c beside NumPy, and steps by several threads: the same bits for every number of them."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from compilers import NATIVE, needs_compiler, threads
from hypothesis import given
from hypothesis import strategies as st

import microtrain as mt
from microtrain import nn
from microtrain.capture import c_compiler

F = nn.functional
COUNTS = (1, 2, 3, 7)


class Case(NamedTuple):
    """A product of (m, k) and (k, n)."""

    m: int
    n: int
    k: int
    turned: tuple[bool, bool]  # whether an operand is the transposed of what is in memory
    steps: tuple[tuple[int, int], tuple[int, int]]  # of an operand in memory, down and right

    def arrays(self, dtype: str) -> list[Any]:
        rng, found = np.random.default_rng(0), []
        shapes = (self.m, self.k), (self.k, self.n)
        for shape, turned, (down, right) in zip(shapes, self.turned, self.steps, strict=True):
            rows, columns = shape[::-1] if turned else shape
            size = rows * max(1, abs(down)), columns * max(1, abs(right))
            array = rng.standard_normal(size).astype(dtype)[:: down or 1, :: right or 1]
            if not down or not right:  # one row, or one column, for all
                array = np.broadcast_to(array[:1] if not down else array[:, :1], (rows, columns))
            found.append(array.T if turned else array)
        return found


@st.composite
def cases(draw: Any) -> Case:
    size = st.one_of(st.integers(1, 40), st.sampled_from([64, 100, 255, 256, 257, 384, 600]))
    m, n, k = (draw(size) for _ in range(3))
    if draw(st.integers(0, 9)) == 0:  # more columns than are done at a time
        m, n, k = min(m, 9), 4096 + n, min(k, 40)
    step = st.tuples(*[st.sampled_from([1, 1, 1, 2, -1, 0])] * 2)
    return Case(m, n, k, (draw(st.booleans()), draw(st.booleans())), (draw(step), draw(step)))


def product(a: Any, b: Any, count: int) -> Any:
    """What `product` of products.c writes, by `count` threads; it must write nowhere else."""
    (m, k), n, size = a.shape, b.shape[1], a.itemsize
    room = (min(n, 4096) + 320) * min(k, 256)
    scratch = np.full(count * room * size + 64, 0x7F, np.uint8)
    steps = [step // size for v in (a, b) for step in v.strides]
    start = scratch.ctypes.data + -scratch.ctypes.data % 64
    behind = scratch[start - scratch.ctypes.data + count * room * size :]
    out = np.full((m + 2, n + 3), 7, a.dtype)
    words = np.array([m, n, k, *steps, n + 3, start, room], np.int64)
    function = c_compiler.vectors("products", a.dtype.name)["product"]
    function.restype = None
    with threads(count):
        places = (words, a, b, out[1:, 1:])
        function(*(ctypes.c_void_p(v.ctypes.data) for v in places), ctypes.c_int64(-1))
    assert (behind == 0x7F).all()
    inside = out[1:-1, 1:-2].copy()
    out[1:-1, 1:-2] = 7
    assert (out == 7).all()
    return inside


@NATIVE
@pytest.mark.daily("float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(case=cases())
def test_a_product_is_numpys_and_the_same_by_any_threads(dtype: str, case: Case) -> None:
    a, b = case.arrays(dtype)
    found = product(a, b, 1)
    wide = np.longdouble if dtype == "float64" else np.float64
    expected, most = a.astype(wide) @ b.astype(wide), abs(a).astype(wide) @ abs(b).astype(wide)
    assert (abs(found - expected) <= min(case.k, 260) * np.finfo(dtype).eps * most).all()
    assert product(a, b, 3).tobytes() == found.tobytes()
    # Nor do the bits of an element depend on the others.
    i, j = case.m // 2, case.n // 3
    assert product(a[i:], b[:, j:], 2).tobytes() == found[i:, j:].tobytes()


@NATIVE
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_none_stays_in_its_row_and_column(value: float) -> None:
    a, b = np.ones((9, 11), "f"), np.ones((11, 21), "f")
    a[3, 4], b[4, 5], b[10, 20] = value, 0, -value
    expected = a @ b
    assert np.array_equal(product(a, b, 1), expected, equal_nan=True)
    assert np.array_equal(product(b.T, a.T, 1), expected.T, equal_nan=True)


@NATIVE
@pytest.mark.daily("float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(case=cases(), right=st.booleans(), step=st.integers(1, 3))
def test_a_matrix_and_a_vector(dtype: str, case: Case, right: bool, step: int) -> None:
    matrix, _ = case.arrays(dtype)
    vector = np.random.default_rng(1).standard_normal((case.k, step)).astype(dtype)[:, 0]
    eps, expected = np.finfo(dtype).eps, matrix.astype(np.longdouble) @ vector
    most = min(case.k, 300) * eps * (abs(matrix).astype(np.longdouble) @ abs(vector))
    x, y = mt.from_numpy(matrix), mt.from_numpy(vector)
    calls: Callable[..., Any] = (lambda x, y: x @ y) if right else (lambda x, y: y @ x.mT)
    found = []
    for count in (1, 3):
        with threads(count):
            call = mt.compile(calls, executor="native")
            for _ in range(3):
                out = call(x, y).numpy().copy()
        found.append(out.tobytes())
        assert (abs(out - expected) <= most).all()
    assert found[0] == found[1]


def block(channels: int) -> Any:
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
    )


NETS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 250), nn.Tanh(),
                                  nn.Linear(250, 10)), (300, 128)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(3, 20, 3), nn.MaxPool2d(2), block(20),
                                           nn.Conv2d(20, 32, 3, stride=2), nn.GELU(), nn.Flatten(),
                                           nn.Linear(32 * 49, 10)), (18, 3, 34, 34)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(4, 24, 5, padding=2, groups=2), nn.GroupNorm(4, 24),
                                     nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(),
                                     nn.Linear(24 * 196, 10)), (33, 4, 28, 28)),
    "transformer": (lambda: nn.Sequential(
        nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True), nn.LayerNorm(64),
        nn.Flatten(), nn.Linear(64 * 24, 10)), (17, 24, 64)),
    "rows": (lambda: nn.Sequential(nn.Linear(200, 300), nn.GELU(), nn.LayerNorm(300),
                                   nn.Linear(300, 10), nn.LogSoftmax(-1)), (500, 200)),
}  # fmt: skip


def trained(name: str, dtype: str = "float32", steps: int = 4) -> bytes:
    mt.manual_seed(0)
    make, shape = NETS[name]
    net = make().to(getattr(mt, dtype))
    optimizer = mt.optim.AdamW(net.parameters(), lr=1e-3)

    @mt.compile(executor="native")
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    rng = np.random.default_rng(0)
    for _ in range(steps):
        x = mt.tensor(rng.standard_normal(shape).astype(dtype))
        step(x, mt.tensor(rng.integers(0, 10, shape[0])))
    return b"".join(p.detach().numpy().tobytes() for p in net.parameters())


@NATIVE
@pytest.mark.daily("convolutions-float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETS)
def test_a_step_has_the_same_bits_by_any_threads(name: str, dtype: str) -> None:
    found = set()
    for count in COUNTS:
        with threads(count):
            found.add(trained(name, dtype))
    assert len(found) == 1


def test_a_refused_index_in_a_shared_loop() -> None:
    needs_compiler()
    table, good = mt.arange(100.0), np.arange(300_000) % 100

    with threads(3):
        step = mt.compile(lambda index: mt.take(table, index) * 2 + 1, executor="native")
        for _ in range(3):
            assert step(mt.from_numpy(good))[99].item() == 199
        bad = good.copy()
        bad[250_000] = 100
        with pytest.raises(IndexError):
            step(mt.from_numpy(bad))
        assert step(mt.from_numpy(good))[-1].item() == 199


def test_steps_in_several_threads_of_python_at_once() -> None:
    """One has the team, the others work alone."""
    needs_compiler()
    found: dict[int, bytes] = {}
    with threads(3):
        expected = trained("rows")
        ranks = [
            threading.Thread(target=lambda n=n: found.update({n: trained("rows")}))
            for n in range(3)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)
    assert [*found.values()] == [expected] * 3


def test_a_child_of_a_process_with_threads_has_threads_of_its_own() -> None:
    needs_compiler()
    with threads(3):
        expected = trained("rows")
        child = os.fork()
        if not child:
            code = 1
            try:
                code = int(trained("rows") != expected)
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
