"""Random programs: views, edits in place, sums and products over shared memory, replayed.

Their numbers are multiples of 1/16 that stay small, so every order of every sum is exact, and a
replay has the bits of the eager step with both executors. Native code is
compiled without optimization, which takes a moment each.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from compilers import needs_compiler
from hypothesis import example, given, settings
from pace import daily

import microtrain as mt
from microtrain.capture import c_compiler
from microtrain.errors import CaptureError

nn, F = mt.nn, mt.nn.functional
SHAPES = [(4,), (8,), (12,), (3, 4), (4, 4), (2, 3, 2), (1, 5), (6, 1)]
DTYPES = [mt.float64, mt.float64, mt.float32, mt.float16, mt.int64, mt.int32, mt.bool, mt.uint8]
NEW = [
    operator.add, operator.sub, mt.maximum, mt.minimum, lambda a, b: a * 0.5 + b,
    lambda a, b: a * 2 - 1, lambda a, b: -a.floor(), lambda a, b: a.abs().ceil(),
    lambda a, b: a.sign(), lambda a, b: a.clamp(-2, 2), lambda a, b: a < b, lambda a, b: a == b,
    lambda a, b: a >= 1.5, lambda a, b: mt.where(a > 0, a, b), lambda a, b: mt.where(a > b, 1.5, b),
    lambda a, b: mt.cat([a, b]), lambda a, b: mt.cat([a, b], -1), lambda a, b: a.sum(),
    lambda a, b: a.sum(0), lambda a, b: a.sum(-1, keepdim=True), lambda a, b: a.amax(-1),
    lambda a, b: a.amin(0), lambda a, b: a.cumsum(0), lambda a, b: a.flip(0),
    lambda a, b: a[mt.tensor([0, -1, 1])], lambda a, b: a.take(mt.tensor([1, -2, 0, 1])),
    lambda a, b: a.view(-1)[::2].take(mt.tensor([1, 0, -1])),
    lambda a, b: (a @ b.transpose(0, -1)).clamp(-64, 64), lambda a, b: (a @ b).clamp(-64, 64),
]  # fmt: skip
EDITS = [
    lambda a, b: a.add_(b), lambda a, b: a.sub_(1), lambda a, b: a.copy_(b),
    lambda a, b: a.mul_(0.5), lambda a, b: a.zero_(), lambda a, b: a.add_(a.sum()),
    lambda a, b: a.clamp_(-3, 3), lambda a, b: a.neg_(), lambda a, b: a.masked_fill_(a > 1, b[:1]),
    lambda a, b: a.masked_fill_(a > 1, 0.5), lambda a, b: a[1:].copy_(a[:-1]),
    lambda a, b: operator.setitem(a, slice(1, None), a[1:] + a[:-1]),
    lambda a, b: operator.setitem(a, slice(None, -1), a.flip(0)[1:]),
    lambda a, b: operator.setitem(a, 0, b[0] * 0.5),
    lambda a, b: a.index_add_(0, mt.tensor([0, 1, 0]), b[:3]),
]  # fmt: skip
VIEWS = [
    lambda a: a.transpose(0, -1), lambda a: a[1:], lambda a: a[::2], lambda a: a[..., :-1],
    lambda a: a[..., 1::2], lambda a: a[0], lambda a: a.unsqueeze(-1), lambda a: a.view(-1),
    lambda a: a.expand(2, *a.shape), lambda a: a.diagonal(), lambda a: a[: len(a) // 2],
    lambda a: a[len(a) // 2 :], lambda a: a.unfold(-1, 2, 1), lambda a: a.unfold(0, 2, 2),
]  # fmt: skip


def program(seed: int, length: int, memory: list[Any], given: list[Any]) -> list[Any]:
    """What `seed` chooses to do: `length` instructions over `memory`, which outlives the call."""
    dice = random.Random(seed)
    pool = [*(a * 1 for a in given), *memory, given[0] > 0]
    for _ in range(length):
        a = dice.choice(pool[-12:])
        others = [x for x in pool if x.shape == a.shape and dice.random() < 0.9] or pool
        b, kind = dice.choice(others), dice.random()
        try:
            if dice.random() < 0.4:
                a = dice.choice(VIEWS)(a)
            if kind < 0.4:
                dice.choice(EDITS)(a, b)
                continue
            new = a.to(dice.choice(DTYPES)) if kind < 0.45 else dice.choice(NEW)(a, b)
        except CaptureError:
            raise
        except (IndexError, RuntimeError, TypeError, ValueError):
            continue  # shapes and dtypes that do not fit, whatever the values
        if 0 < new.numel() <= 200:
            pool.append(new.clamp(-512, 512) if new.dtype.kind == "f" else new)
    return dice.sample(pool, min(len(pool), 4))


def replayed(seed: int, length: int, shape: tuple[int, ...], wrap: Callable[..., Any]) -> None:
    numbers = np.random.default_rng(seed)

    def some() -> Any:
        return numbers.integers(-64, 64, shape) / 16

    mine = [mt.from_numpy(some()) for _ in range(2)]
    other = [a.clone() for a in mine]
    step = wrap(functools.partial(program, seed, length, mine), state=mine)
    with mt.no_grad():
        for call in range(4):
            arrays = [some() for _ in range(2)]
            found = step([mt.from_numpy(a.copy()) for a in arrays])
            expected = program(seed, length, other, [mt.from_numpy(a) for a in arrays])
            for a, b in zip([*found, *mine], [*expected, *other], strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a.numpy(), b.numpy(), f"call {call}")
            for a in (*mine, *other):  # small again
                np.clip(np.round(a._array * 16) / 16, -64, 64, out=a._array)


def quickly(patch: pytest.MonkeyPatch) -> None:
    """Compile without optimization, and keep nothing."""
    patch.setattr(c_compiler, "FLAGS", (*c_compiler.FLAGS, "-O0"))
    patch.setattr(c_compiler, "directory", lambda: None)


@pytest.mark.daily("numpy")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("executor", ["numpy", "native"])
@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30), st.sampled_from(SHAPES))
@example(seed=26, length=12, shape=(6, 1))  # the sum of no elements of memory that is packed
def test_random_programs(executor: str, seed: int, length: int, shape: tuple[int, ...]) -> None:
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        if executor == "native":
            needs_compiler()
            quickly(patch)
        replayed(seed, length, shape, functools.partial(mt.compile, executor=executor))


LAYERS = {
    "linear": lambda: nn.Linear(6, 6), "relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU,
    "silu": nn.SiLU, "leaky": nn.LeakyReLU, "dropout": lambda: nn.Dropout(0.4),
    "layer norm": lambda: nn.LayerNorm(6), "batch norm": lambda: nn.BatchNorm1d(6),
    "softmax": lambda: nn.Softmax(dim=-1), "bias": lambda: nn.Linear(6, 6, bias=False),
}  # fmt: skip
EDITS_OF_MODELS: list[Callable[[Any], Any]] = [
    lambda h: h, lambda h: h.clone().mul_(0.5), lambda h: h.t().contiguous().t(),
    lambda h: mt.cat([h[:, 3:], h[:, :3]], 1), lambda h: h.flip(0) + h[:1],
    lambda h: h[:, [0, 2, 4, 1, 3, 5]], lambda h: h.masked_fill(h > 1, 0.0), lambda h: h.cumsum(1),
    lambda h: h.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6), lambda h: h - h.mean(0),
]  # fmt: skip
LOSSES: list[Callable[[Any, Any], Any]] = [
    lambda h, x: F.mse_loss(h, x), lambda h, x: F.huber_loss(h, x, reduction="sum"),
    lambda h, x: F.smooth_l1_loss(h, x), lambda h, x: F.cross_entropy(h, x.argmax(1)),
    lambda h, x: F.binary_cross_entropy_with_logits(h, (x > 0).double()),
    lambda h, x: h.logsumexp(1).sum() + h.amax(1).sum(),
]  # fmt: skip
OPTIMIZERS: list[Callable[[Any], Any]] = [
    lambda p: mt.optim.SGD(p, lr=0.01), lambda p: mt.optim.SGD(p, lr=0.01, maximize=True),
    lambda p: mt.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda p: mt.optim.Adam(p, lr=0.01, weight_decay=0.1),
    lambda p: mt.optim.AdamW([{"params": p[:1], "lr": 0.1}, {"params": p[1:]}], lr=0.01),
    lambda p: mt.optim.Adam(p, lr=0.01, amsgrad=True), lambda p: mt.optim.RMSprop(p, lr=0.01),
    lambda p: mt.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9, weight_decay=0.1),
    lambda p: mt.optim.Adadelta(p, weight_decay=0.1), lambda p: mt.optim.Adagrad(p, lr=0.01),
    lambda p: mt.optim.Adamax(p), lambda p: mt.optim.NAdam(p, weight_decay=0.1),
    lambda p: mt.optim.RAdam(p, weight_decay=0.1, decoupled_weight_decay=True),
    lambda p: mt.optim.ASGD(p, t0=2),  # not Rprop, which goes by signs, also those of rounding
]  # fmt: skip


def trained(choice: Any, wrap: Callable[..., Any], scale: float = 1.0) -> list[Any]:
    """The losses and the weights of six steps on inputs that are scaled."""
    layers, edits, loss_of, make, clip = choice
    mt.manual_seed(0)
    mt.random.begin_batch(0)
    model = nn.Sequential(nn.Linear(6, 6), *(LAYERS[name]() for name in layers)).double()
    optimizer = make(list(model.parameters()))

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        h = x
        for layer, edit in zip(model, edits, strict=False):
            h = edit(layer(h))
        loss = loss_of(h, x)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    step = wrap(step)
    numbers = np.random.default_rng(0)
    batches = [scale * numbers.standard_normal((5, 6)) for _ in range(6)]
    losses = [step(mt.from_numpy(batch)).item() for batch in batches]
    return [losses, *(p.detach().numpy() for p in model.parameters())]


MODELS = given(
    st.tuples(
        st.lists(st.sampled_from(list(LAYERS)), max_size=3),
        st.lists(st.sampled_from(EDITS_OF_MODELS), min_size=4, max_size=4),
        st.sampled_from(LOSSES),
        st.sampled_from(OPTIMIZERS),
        st.booleans(),
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("examples", daily([25, 100], 25))
def test_random_models(examples: int) -> None:
    settings(deadline=None, max_examples=examples)(MODELS(train_captured))()


def train_captured(choice: Any) -> None:
    expected = trained(choice, lambda step: step)
    for a, b in zip(trained(choice, mt.compile), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.MonkeyPatch.context() as patch:
        needs_compiler()
        quickly(patch)
        native = trained(choice, functools.partial(mt.compile, executor="native"))
    # Native code rounds otherwise. Optimizers that divide by the size of a gradient move a weight
    # whose gradient is 0 as rounding says: as far as inputs do that are rounded otherwise.
    moved = trained(choice, lambda step: step, scale=1 + 1e-15)
    for a, b, c in zip(native, expected, moved, strict=True):
        room = 1e-6 * (1 + np.abs(b)) + np.abs(np.subtract(c, b))
        np.testing.assert_array_less(np.abs(np.subtract(a, b)), room)
