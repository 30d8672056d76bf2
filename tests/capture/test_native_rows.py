"""Loops over the same rows as one (rows.py): the bits of loops one behind the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from hypothesis import given
from hypothesis import strategies as st

import microtrain as mt
from microtrain.capture import c
from microtrain.capture.rows import Rows, with_rows

F = mt.nn.functional
pytestmark = pytest.mark.usefixtures("native_code")


def both(
    make: Callable[[], Callable[[Any], Any]], x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], list[Any], int]:
    """What a step gives with rows joined and without, and how many units were joined."""
    needs_compiler()
    joined: list[Rows] = []

    def noted(units: Any, program: Any) -> Any:
        found = with_rows(units, program)
        joined.extend(unit for unit in found if type(unit) is Rows)
        return found

    results = []
    for how in (noted, lambda units, program: units):
        with monkeypatch.context() as patch, np.errstate(all="ignore"):
            patch.setattr(c, "with_rows", how)
            mt.manual_seed(0)
            step = mt.compile(make(), executor="native")
            results.append([step(mt.from_numpy(x)).numpy().copy() for _ in range(5)])
    return results[0], results[1], sum(len(unit.parts) for unit in joined)


def same(some: list[Any], others: list[Any]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(some, others, strict=True))


def trained(*layers: Any, loss: Any = lambda y: y.square().mean()) -> Callable[[], Any]:
    """A step of training, which returns all parameters."""

    def make() -> Any:
        model = mt.nn.Sequential(*(layer() for layer in layers))
        optimizer = mt.optim.Adam(model.parameters(), lr=0.01)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss(model(x)).backward()
            optimizer.step()
            return mt.cat([p.detach().flatten() for p in model.parameters()])

        return step

    return make


def labels(y: Any) -> Any:
    return F.cross_entropy(y, mt.arange(y.shape[0]) % y.shape[1])


def penalized() -> Callable[[Any], Any]:
    """A gradient penalty behind a norm: runs of rows take units from between those of others."""
    w, b = mt.randn(5, 1, 1, requires_grad=True), mt.randn(160, 8, requires_grad=True)

    def step(x: Any) -> Any:
        w.grad = b.grad = None
        x = x.clone().requires_grad_()
        y = F.silu(F.instance_norm(x[:, None] * w).tanh().flatten(1) @ b)
        (g,) = mt.autograd.grad(y.sum(), x, create_graph=True)
        g.square().sum().backward()
        return mt.cat([w.grad.flatten(), b.grad.flatten()])

    return lambda x: step(x.unflatten(1, (4, -1)))


STEPS = {
    "gradient penalty": penalized,
    "softmax": trained(lambda: mt.nn.Linear(32, 48), lambda: mt.nn.Softmax(-1)),
    "layer norm": trained(lambda: mt.nn.Linear(32, 32), lambda: mt.nn.LayerNorm(32), mt.nn.GELU),
    "group norm": trained(lambda: mt.nn.Linear(32, 64), lambda: mt.nn.GroupNorm(2, 64), mt.nn.SiLU),
    "batch norm": trained(
        lambda: mt.nn.Linear(32, 64),
        lambda: mt.nn.Unflatten(1, (2, 4, 8)),
        lambda: mt.nn.BatchNorm2d(2),
        mt.nn.ReLU,
    ),
    "cross entropy": trained(lambda: mt.nn.Linear(32, 16), loss=labels),
    "attention": trained(
        lambda: mt.nn.Unflatten(0, (2, -1)),
        lambda: mt.nn.TransformerEncoderLayer(32, 2, 32, 0.0, batch_first=True),
    ),
}


@pytest.mark.daily(
    "float32-attention", "float32-layer norm", "float32-batch norm", "float32-cross entropy"
)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_of_training(monkeypatch: pytest.MonkeyPatch, name: str, dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((24, 32)).astype(dtype)
    before = mt.get_default_dtype()
    mt.set_default_dtype(getattr(mt, dtype))
    try:
        found, expected, parts = both(STEPS[name], x, monkeypatch)
    finally:
        mt.set_default_dtype(before)
    assert same(found, expected) and parts > 2


BLOCKS: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda x, first: x.softmax(-1),
    "centered": lambda x, first: x - x.mean(-1, keepdim=True),
    "largest": lambda x, first: x / (1 + x.abs().amax(-1, keepdim=True)),
    "columns": lambda x, first: x - x.mean(0),
    "turned": lambda x, first: x.flip(0) + x,
    "shifted": lambda x, first: mt.cat([x[1:], x[:1]]) * 0.5 + x,
    "one row for all": lambda x, first: x + x[0],
    "one number a row": lambda x, first: x * x[:, :1],
    "first": lambda x, first: x + first,
    "in place": lambda x, first: x.clone().mul_(0.5).add_(x.sum(-1, keepdim=True)),
    "exp": lambda x, first: (x * 0.1).exp(),
    "all": lambda x, first: x / (1 + x.square().sum()),
    "channels": lambda x, first: by_channel(x),
    "channels that change": lambda x, first: by_channel(x, changing=True),
}


def by_channel(x: Any, changing: bool = False) -> Any:
    """Two samples, whose channels are the rows of `x`: a number for each, sums over samples too."""
    both, numbers = mt.stack([x, x * 2]), x[:, 0].clone()
    shifted = both - both.mean((0, 2), keepdim=True) + numbers[None, :, None]
    sums = (shifted * shifted).sum(-1)
    if changing:
        numbers.add_(sums[0])
    return shifted[1] * numbers[:, None] + sums.sum(0)[:, None]


@pytest.mark.slow
@given(
    names=st.lists(st.sampled_from(sorted(BLOCKS)), min_size=2, max_size=7),
    shape=st.tuples(st.integers(1, 5), st.sampled_from([1, 15, 16, 17, 33])),
    special=st.sampled_from([0.0, np.nan, np.inf]),
    every=st.booleans(),
)
def test_the_bits_of_anything(
    names: list[str], shape: tuple[int, int], special: float, every: bool
) -> None:
    """Whatever stands beside the rows: other rows, columns, views, results that are returned."""

    def make() -> Any:
        def step(x: Any) -> Any:
            first, results = x, [x * 1]
            for name in names:
                x = BLOCKS[name](x, first)
                results.append(x.flatten())
            return mt.cat([one.flatten() for one in results]) if every else x * 1

        return step

    x = np.random.default_rng(1).standard_normal(shape).astype("f4")
    x[-1, -1] = special
    with pytest.MonkeyPatch.context() as patch:
        found, expected, _ = both(make, x, patch)
    assert same(found, expected)


def test_a_row_has_room_for_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a softmax in the middle nothing but its result is in memory for all rows."""

    def make() -> Any:
        return lambda x: (x * 2).softmax(-1)

    x = np.random.default_rng(0).standard_normal((64, 32)).astype("f4")
    with mt.no_grad():
        found, expected, parts = both(make, x, monkeypatch)
    assert same(found, expected) and parts == 5
    np.testing.assert_allclose(found[-1].sum(-1), 1, rtol=1e-6)


def test_a_refused_index_leaves_the_rows_behind_it_undone() -> None:
    needs_compiler()
    kept, ones = mt.zeros(4, 32), mt.ones(4, 32)

    @mt.compile(executor="native")
    def step(x: Any, index: Any) -> Any:
        y = x - x.mean(-1, keepdim=True)
        found = x.gather(1, index[:, None])
        kept.copy_(y * y.abs().amax(-1, keepdim=True))
        return found.sum()

    x = mt.from_numpy(np.random.default_rng(0).standard_normal((4, 32)).astype("f4"))
    with mt.no_grad():
        for _ in range(4):
            step(x, mt.tensor([0, 2]))
        before = kept.numpy().copy()
        with pytest.raises(RuntimeError, match="999 is out of bounds"):
            step(ones * 3 + x * 2, mt.tensor([0, 999]))
        assert kept.numpy().tobytes() == before.tobytes()
