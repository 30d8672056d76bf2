"""Random numbers in a step: drawn anew at every replay, the same as in the eager step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from steps import bits

import microtrain as mt
from microtrain import random as mtr
from microtrain.data import ArrayDataset, DataLoader
from microtrain.errors import CaptureError
from microtrain.utils.checkpoint import checkpoint

nn, F = mt.nn, mt.nn.functional

DRAWS: dict[str, Any] = {
    "rand": lambda x: mt.rand(6, 4),
    "rand float64": lambda x: mt.rand(x.shape, dtype=mt.float64),
    "rand float16": lambda x: mt.rand(x.shape, dtype=mt.float16),
    "rand_like": mt.rand_like,
    "randn": lambda x: mt.randn(6, 3),
    "randn float64": lambda x: mt.randn(6, 3, dtype=mt.float64),
    "randn_like": mt.randn_like,
    "randn_like of odd rows": lambda x: mt.randn_like(x[:, :3]),
    "randint": lambda x: mt.randint(-2, 9, (6, 2)),
    "randint_like": lambda x: mt.randint_like(x, 5),
    "normal": lambda x: mt.normal(1.0, 2.0, (6, 2)),
    "normal of Tensors": lambda x: mt.normal(x, x.abs()),
    "normal of one": lambda x: mt.normal(x, 0.1),
    "bernoulli": lambda x: mt.bernoulli(mt.sigmoid(x)),
    "multinomial": lambda x: mt.multinomial(x.exp(), 2),
    "multinomial, replaced": lambda x: mt.multinomial(x.exp(), 9, replacement=True),
    "normal_": lambda x: mt.empty_like(x).normal_(1.0, 2.0),
    "uniform_": lambda x: mt.empty_like(x).uniform_(-1.0, 3.0),
    "bernoulli_": lambda x: mt.empty_like(x).bernoulli_(0.3),
    "bernoulli_ of a Tensor": lambda x: mt.empty_like(x).bernoulli_(mt.sigmoid(x)),
    "exponential_": lambda x: mt.empty_like(x).exponential_(2.0),
    "log_normal_": lambda x: mt.empty_like(x).log_normal_(0.1, 0.2),
    "cauchy_": lambda x: mt.empty_like(x).cauchy_(0.5, 2.0),
    "a number": lambda x: mt.rand(()),
    "dropout between": lambda x: F.dropout(mt.randn_like(F.dropout(x))) + mt.rand_like(x),
}
OTHERS: dict[str, Any] = {
    "another shape": lambda x: mt.randn(3, 2),
    "randperm": lambda x: mt.randperm(60),
    "in a row": lambda x: mt.rand(6) + mt.rand(2).sum() + mt.randn(6),
}


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    before, place = mtr.get_rng_state(), mtr.place()
    yield
    mtr.set_rng_state(before)
    mtr.begin_batch(*place)


def calls(step: Any, rows: int | None, times: int = 7) -> list[Any]:
    """Results of calls in a step on `rows` rows, and where the streams then stand."""
    mt.manual_seed(3)
    found = []
    for number in range(times):
        mtr.begin_batch(5 * number, (0, number), rows=rows)
        x = mt.from_numpy(np.random.default_rng(number).standard_normal((6, 4)).astype(np.float32))
        found += [bits(step(x)), bits(step(x))]
    return [*found, mtr.get_rng_state(), mtr.place()]


@pytest.mark.parametrize("rows", [None, 6], ids=["outside", "in a step"])
@pytest.mark.parametrize("name", DRAWS | OTHERS)
def test_a_replay_draws_what_the_eager_step_draws(name: str, rows: int | None) -> None:
    draw = (DRAWS | OTHERS)[name]
    expected = calls(draw, rows)
    compiled = mt.compile(draw)
    assert calls(compiled, rows) == expected
    assert len(compiled.programs) == 1
    assert len({str(values) for values in expected[:-2]}) == len(expected) - 2  # anew at each call


@pytest.mark.daily("rand", "normal", "uniform")
@pytest.mark.parametrize("name", DRAWS)
def test_native_code_draws_the_same(name: str) -> None:
    needs_compiler()
    draw = DRAWS[name]

    def step(x: Any) -> Any:
        return draw(x) * 2

    for rows in (None, 6):
        expected = calls(step, rows, 4)
        found = calls(mt.compile(step, executor="native"), rows, 4)
        for a, b in zip(found[:-2], expected[:-2], strict=True):
            np.testing.assert_allclose(
                np.frombuffer(a[2], a[0]), np.frombuffer(b[2], b[0]), rtol=1e-6, atol=1e-6
            )
        assert found[-2:] == expected[-2:]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 65, 511, 513, 1027])
def test_native_code_makes_the_words_of_every_place(size: int) -> None:
    """A rank's rows begin anywhere in the blocks of the generator."""
    needs_compiler()
    x, mask = mt.ones(2, size), mt.compile(lambda x: F.dropout(x) * 1, executor="native")
    for row in (0, 1, 2, 3, 5, 7, 11, 2**20 + 3):
        for epoch in range(4):
            place = row, (epoch, row)
            mtr.begin_batch(*place, rows=2)
            found = mask(x)
            mtr.begin_batch(*place, rows=2)
            assert bits(found) == bits(F.dropout(x))
    assert "philox(" in mask.source()


@pytest.mark.parametrize("rows", [None, 6], ids=["outside", "in a step"])
@pytest.mark.parametrize("name", DRAWS | OTHERS)
def test_the_numbers_on_a_gpu_are_those_on_the_cpu(
    fake_gpu: None, name: str, rows: int | None
) -> None:
    draw = (DRAWS | OTHERS)[name]
    found = [
        calls(lambda x, device=device: draw(x.to(device)).cpu(), rows, 2)
        for device in ("cpu", "cuda")
    ]
    for a, b in zip(found[0][:-2], found[1][:-2], strict=True):
        assert a[:2] == b[:2]
        np.testing.assert_allclose(np.frombuffer(a[2], a[0]), np.frombuffer(b[2], b[0]), rtol=1e-6)
    assert found[0][-2:] == found[1][-2:]


def test_a_block_that_is_computed_twice_draws_the_same() -> None:
    """In a step. Outside of one it would have to set the stream of manual_seed back: refused."""
    layer = nn.Linear(4, 4)
    optimizer = mt.optim.SGD(layer.parameters(), lr=0.0)

    def block(x: Any) -> Any:
        return F.dropout((layer(x) + mt.randn_like(x)).tanh(), 0.5)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = checkpoint(block, x).square().mean()
        loss.backward()
        optimizer.step()
        return loss, layer.weight.grad

    def plain(x: Any) -> Any:
        loss = block(x).square().mean()
        return loss, mt.autograd.grad(loss, layer.weight)[0]

    expected = calls(step, 6)
    assert calls(mt.compile(step), 6) == expected
    mt.manual_seed(3)
    mtr.begin_batch(0, (0, 0), rows=6)
    x = mt.from_numpy(np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32))
    assert bits(plain(x)) == expected[0]
    with pytest.raises(CaptureError, match="seeds the random stream"):
        calls(mt.compile(step), None)


def test_a_step_inside_and_one_outside_are_two_captures() -> None:
    step = mt.compile(mt.randn_like)
    for rows in (None, 6, None, 6):
        assert calls(step, rows) == calls(mt.randn_like, rows)
    assert len(step.programs) == 2


def test_a_number_of_its_own_for_each_row_of_the_global_batch() -> None:
    """What a rank draws from row 3 on is the whole from row 3 on, for any width and dtype."""
    mt.manual_seed(1)
    for name, draw in DRAWS.items():
        if "Tensor" in name or "dropout" in name or name in ("normal of one", "a number"):
            continue
        mtr.begin_batch(0, rows=6)
        whole = draw(mt.ones(6, 4)).numpy()
        for first in (1, 2, 3):
            mtr.begin_batch(first, rows=6)
            np.testing.assert_array_equal(draw(mt.ones(6, 4)).numpy()[: 6 - first], whole[first:])


@pytest.mark.parametrize("dtype", [mt.float32, mt.float64])
def test_the_numbers_are_of_the_distribution(dtype: Any) -> None:
    stats = pytest.importorskip("scipy.stats")
    mt.manual_seed(0)
    mtr.begin_batch(0, rows=20_001)
    x = mt.empty(20_001, dtype=dtype)
    for found, distribution in [
        (mt.rand_like(x), stats.uniform()),
        (mt.randn_like(x), stats.norm()),
        (x.exponential_(2.0).clone(), stats.expon(scale=0.5)),
        (x.cauchy_(1.0, 2.0).clone(), stats.cauchy(1.0, 2.0)),
        (x.log_normal_(0.5, 0.25).clone(), stats.lognorm(0.25, scale=np.exp(0.5))),
    ]:
        assert stats.kstest(found.numpy(), distribution.cdf).pvalue > 1e-3
    counts = np.bincount(mt.randint(-1, 4, (20_001,)).numpy() + 1, minlength=5)
    assert stats.chisquare(counts).pvalue > 1e-3
    pairs = mt.randn(20_001, 2, dtype=dtype).numpy()  # made of the same two words
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(pairs.T**2)[0, 1]) < 0.03


def test_one_draw_of_the_batch_is_the_same_everywhere_in_it() -> None:
    weight = nn.Parameter(mt.ones(4, 2))
    found = []
    for first, ranks in [(0, 1), (0, 2), (9, 2), (4, 3)]:
        mt.manual_seed(1)
        mtr.begin_batch(first, rows=4, ranks=ranks)  # as many rows as the weight has
        with mtr.shared():
            drawn = [mt.randn(4, 2), mt.randperm(5), mt.rand(7)]
        drawn += [mt.rand(()), mt.randn_like(weight)]
        with mt.no_grad():
            drawn.append(weight.normal_().clone())
        found.append(bits(drawn))
    assert found[0] == found[1] == found[2] == found[3]


def test_a_shape_that_leaves_open_what_is_meant_is_refused_on_several_ranks() -> None:
    mtr.begin_batch(8, rows=4, ranks=2)
    for draw in (lambda: mt.randn(5, 2), lambda: mt.randperm(5), lambda: mt.rand(1)):
        with pytest.raises(RuntimeError, match=r"over 2 ranks.*4 of the rows.*shared\(\)"):
            draw()
    mtr.begin_batch(8, rows=4, ranks=1)
    mt.manual_seed(0)
    expected = mt.random.default_generator().standard_normal((5, 2), np.float32)
    mt.manual_seed(0)
    np.testing.assert_array_equal(mt.randn(5, 2).numpy(), expected)


def vae(wrap: Any, accumulate: int = 1) -> Any:
    """Losses of a small model that samples, by batch of some epochs, and its weights."""
    mt.manual_seed(7)
    rows = np.random.default_rng(0).standard_normal((22, 5))
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 5)).double()
    optimizer = mt.optim.Adam(model.parameters(), lr=0.01)

    def step(*parts: Any) -> Any:
        optimizer.zero_grad()
        losses = []
        for part in parts:
            h = model[:2](part)
            h = F.dropout(h + mt.randn_like(h), 0.2)
            losses.append(((model[2](h) - part) ** 2).mean())
            losses[-1].backward()
        optimizer.step()
        return losses[-1]

    step = wrap(step)
    loader = DataLoader(ArrayDataset(rows), 8, accumulate=accumulate)
    losses = []
    for _ in range(3):
        for batches in loader.steps():
            found = step(*[x for (x,) in batches])
            losses.append(found.item())
    return losses, [p.detach().numpy().tobytes() for p in model.parameters()]


def test_a_loop_with_a_loader_is_the_same_captured() -> None:
    for accumulate in (1, 3):
        expected = vae(lambda step: step, accumulate=accumulate)
        assert vae(mt.compile, accumulate=accumulate) == expected


def test_an_error_in_a_replay_leaves_the_draws_of_the_eager_step() -> None:
    def step(x: Any, index: Any) -> Any:
        return (x + mt.randn_like(x))[index] + mt.rand(2).sum()

    left = []
    for wrap in (lambda step: step, mt.compile):
        wrapped = wrap(step)
        for rows in (None, 3):
            mt.manual_seed(0)
            mtr.begin_batch(0, rows=rows)
            for _ in range(5):
                wrapped(mt.ones(3), mt.tensor([0, 1]))
            with pytest.raises(IndexError):
                wrapped(mt.ones(3), mt.tensor([0, 9]))
            left.append((mtr.get_rng_state(), mtr.place()))
    assert left[:2] == left[2:]


def test_only_a_loader_begins_a_step() -> None:
    """`begin_batch` without rows places dropout; other draws are those of manual_seed."""
    mtr.begin_batch(7)
    mt.manual_seed(5)
    expected = mtr.default_generator().standard_normal((4, 3), np.float32)
    mt.manual_seed(5)
    np.testing.assert_array_equal(mt.randn(4, 3).numpy(), expected)
    loader = DataLoader(ArrayDataset(np.ones((8, 2), np.float32)), 4)
    state = mtr.get_rng_state()
    found = [bits(mt.randn_like(x)) for (x,) in loader]
    assert mtr.get_rng_state() | {"draw": 0} == state  # that stream has not moved
    assert found[0] != found[1]
    mt.randn(4)
    assert mtr.get_rng_state() | {"draw": 0} != state


@pytest.mark.parametrize("rows", [None, 200_000], ids=["outside", "in a step"])
def test_uniform_numbers_of_half_precision_stay_below_1(rows: int | None) -> None:
    mtr.begin_batch(0, rows=rows)
    for x in (mt.rand(200_000, dtype=mt.float16), mt.empty(200_000, dtype=mt.float16).uniform_()):
        assert x.max().item() < 1
        assert 0.49 < x.double().mean().item() < 0.51


def test_integers_of_a_wide_range_in_a_step() -> None:
    mtr.begin_batch(0, rows=1000)
    for low, high in ((-(2**63), 2**63 - 1), (0, 2**63 - 1), (-(2**60), 2**60)):
        x = mt.randint(low, high, (1000,)).numpy()
        middle = (low + high) // 2
        assert low <= x.min() < x.max() < high
        assert 400 < (x < middle).sum() < 600
        assert 400 < (x % 2).sum() < 600  # the last bits are random as well
