"""The law of capture: with the numpy executor a compiled step has the bits of the eager one.

Each seed is another case: a model, an optimizer, a dtype, arguments in any layout (column-major,
sliced, flipped, broadcast, misaligned, views of each other), a few steps that are compiled, and a
walk through them, in any order, with changes of state in between and errors in the middle of a
step. Two copies take the walk, one of them compiled, and all that there is must be equal after
every call: results, errors, parameters, gradients, buffers, the optimizer's state, the random
stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from steps import bits

import microtrain as mt
from microtrain.errors import CaptureError

nn, F = mt.nn, mt.nn.functional
COLUMNS = 6
CALLS = 60


# Layouts ----------------------------------------------------------------------------------------


def misaligned(x: Any) -> Any:
    memory = np.empty(x.nbytes + 1, np.uint8)
    found = memory[1:].view(x.dtype).reshape(x.shape)
    found[...] = x
    return found


def between(x: Any) -> Any:
    found = np.zeros((x.shape[0] + 3, x.shape[1] + 5), x.dtype)[1:-2, 2:-3]
    found[...] = x
    return found


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "row-major": lambda x: x.copy(),
    "column-major": np.asfortranarray,
    "every second row": lambda x: np.repeat(x, 2, 0)[::2],
    "every third column": lambda x: np.repeat(x, 3, 1)[:, ::3],
    "column-major, every second row": lambda x: np.asfortranarray(np.repeat(x, 2, 0))[::2],
    "rows from the last": lambda x: x[::-1].copy()[::-1],
    "columns from the last": lambda x: x[:, ::-1].copy()[:, ::-1],
    "flipped": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "turned and flipped": lambda x: x.T[::-1].copy()[::-1].T,
    "a slice": between,
    "one row": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "one number": lambda x: np.broadcast_to(x[:1, :1], x.shape),
    "windows": lambda x: np.lib.stride_tricks.as_strided(
        x.ravel().copy(), x.shape, (x.itemsize, x.itemsize)
    ),
    "misaligned": misaligned,
}


# Steps ------------------------------------------------------------------------------------------


class Net(nn.Module):
    """A table, linear layers, and perhaps a norm and dropout between."""

    def __init__(self, rng: Any) -> None:
        super().__init__()
        width = int(rng.choice([1, 3, 17]))
        self.table = nn.Embedding(5, COLUMNS)
        self.first = nn.Linear(COLUMNS, width)
        self.norm = nn.BatchNorm1d(width) if rng.random() < 0.5 else None
        self.dropout = nn.Dropout(0.3)
        self.last = nn.Linear(width, int(rng.choice([1, 4])))

    def forward(self, x: Any, index: Any) -> Any:
        h = self.first(x + self.table(index))
        h = h if self.norm is None else self.norm(h)
        return self.last(self.dropout(h.tanh()))


PRODUCTS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x @ y.t(),
    lambda x, y: x.t() @ y,
    lambda x, y: x @ x.t(),
    lambda x, y: (x @ y[0], x[:, 0] @ y, x[1] @ y[1]),
    lambda x, y: mt.stack([x, y]) @ x.t(),
    lambda x, y: (x.unsqueeze(1) @ y.unsqueeze(2)).sum(),
    lambda x, y: F.conv1d(x.unsqueeze(1), y[:1, :3].unsqueeze(0)),
    lambda x, y: mt.einsum("ij,kj->ik", x, y),
]
SUMS: list[Callable[[Any, Any], Any]] = [
    lambda x, y: (x.sum(0), y.sum(1), (x * y).sum()),
    lambda x, y: (x.mean(), y.std(0), x.var(1)),
    lambda x, y: (x.exp().sum(), y.t().tanh().sum(0)),
    lambda x, y: (F.softmax(x, 1), F.log_softmax(y, 0)),
    lambda x, y: (x.cumsum(0), y.prod(1), x.reshape(-1).sum()),
    lambda x, y: (x.amax(0), y.argmin(1), x.norm(), x.t().contiguous().sum()),
    lambda x, y: (mt.cat([x, y]).sum(1), x[:, ::2].sum(), y[::2].t() * 2),
    lambda x, y: (F.layer_norm(x, (COLUMNS,)), (x - y).abs().sum(0)),
]


class Side:
    """One of the two copies; the compiled one where `wrap` is `mt.compile`."""

    def __init__(self, seed: int, wrap: Callable[[Any], Any]) -> None:
        rng = np.random.default_rng(seed)
        mt.manual_seed(seed)
        dtype = mt.float64 if seed % 2 else mt.float32
        self.net = Net(rng).to(dtype)
        self.optimizer: Any = (
            mt.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9 * (seed % 3 > 0))
            if seed % 4
            else mt.optim.Adam(self.net.parameters(), lr=0.05)
        )
        self.looks = [PRODUCTS[rng.integers(len(PRODUCTS))], SUMS[rng.integers(len(SUMS))]]
        names = "train", "accumulate", "look", "loss"
        self.steps = {name: wrap(getattr(self, name)) for name in names}

    def objective(self, x: Any, y: Any, index: Any) -> Any:
        out = self.net(x, index)
        return F.mse_loss(out, y[:, : out.shape[1]]) + 0.1 * (out.t() @ x).tanh().mean()

    def train(self, x: Any, y: Any, index: Any, fail: bool) -> Any:
        self.optimizer.zero_grad()
        loss = self.objective(x, y, index)
        loss.backward()
        if fail:
            raise ArithmeticError("asked for")
        self.optimizer.step()
        return loss

    def accumulate(self, x: Any, y: Any, index: Any, fail: bool) -> Any:
        self.objective(x, y, index).backward()
        self.objective(y, x, index).backward()  # where an index is wrong, one pass is done
        if fail:
            raise ArithmeticError("asked for")

    def look(self, x: Any, y: Any, index: Any, fail: bool) -> Any:
        with mt.no_grad():
            return [look(x, y) for look in self.looks], self.net(x, index), fail

    def loss(self, x: Any, y: Any, index: Any, fail: bool) -> Any:
        return self.objective(x, y, index), fail

    def call(self, name: str, arguments: Any) -> Any:
        """What the step does, an error as its kind and text."""
        try:
            with np.errstate(all="ignore"):
                found = self.steps[name](*arguments)
                if name == "loss":
                    (found[0] * 3).backward()
                    self.optimizer.step()
        except CaptureError:
            raise
        except (ArithmeticError, IndexError, ValueError) as error:
            return type(error).__name__, str(error)
        return bits(found)

    def state(self) -> Any:
        """All that lasts."""
        gradients = {name: bits(p.grad) for name, p in self.net.named_parameters()}
        optimizer = self.optimizer.state_dict()["state"]
        kept = {(n, key): bits(v) for n, each in optimizer.items() for key, v in each.items()}
        values = {name: bits(value) for name, value in self.net.state_dict().items()}
        return values, gradients, kept, repr(mt.random.get_rng_state())


CHANGES: dict[str, Callable[[Side, float], Any]] = {
    "rate": lambda side, u: side.optimizer.param_groups[0].update(lr=u / 10),
    "weights": lambda side, u: side.net.first.weight.data.mul_(u),
    "running mean": lambda side, u: side.net.norm and side.net.norm.running_mean.add_(u),
    "train": lambda side, u: side.net.train(u > 0.5),
    "freeze": lambda side, u: side.net.last.bias.requires_grad_(u > 0.5),
    "gradients": lambda side, u: side.optimizer.zero_grad(u > 0.5),
    "one gradient": lambda side, u: setattr(side.net.last.weight, "grad", None),
    "state dict": lambda side, u: side.net.load_state_dict(side.net.state_dict()),
    "dropout": lambda side, u: setattr(side.net.dropout, "p", 0.3 if u > 0.5 else 0.6),
    "momentum": lambda side, u: (
        "momentum" in side.optimizer.param_groups[0]
        and side.optimizer.param_groups[0].update(momentum=0.0 if u > 0.5 else 0.8)
    ),
}


class Walk:
    """The calls of a seed: steps, arguments, changes before them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 1])
        # Two forms of arguments, each of which comes often enough to be captured.
        self.forms = [
            (int(self.rng.choice(rows)), *self.rng.choice(list(LAYOUTS), 2))
            for rows in ([1, 2, 5, 33], [2, 5, 33])
        ]
        self.dtype = np.float64 if seed % 2 else np.float32

    def arguments(self) -> Any:
        n, first, second = self.forms[self.rng.integers(2)]
        x, y = (self.rng.standard_normal((n, COLUMNS)).astype(self.dtype) for _ in range(2))
        index = self.rng.integers(0, 5, n)
        index[0] += 9 * (self.rng.random() < 0.05)  # out of bounds
        tensors = [mt.from_numpy(a) for a in (LAYOUTS[first](x), LAYOUTS[second](y), index)]
        if self.rng.random() < 0.1:
            tensors[1] = tensors[0].detach()  # another Tensor of the same memory
        return *tensors, bool(self.rng.random() < 0.03)


SEEDS = [*range(2), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 35)]]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_walk_through_compiled_steps_has_the_bits_of_the_eager_one(seed: int) -> None:
    eager, compiled = Side(seed, lambda step: step), Side(seed, mt.compile)
    walk = Walk(seed)
    for i in range(CALLS):
        if walk.rng.random() < 0.1:
            change, u = walk.rng.choice(list(CHANGES)), walk.rng.random()
            for side in (eager, compiled):
                CHANGES[change](side, u)
        name, arguments = walk.rng.choice(list(eager.steps)), walk.arguments()
        stream = mt.random.get_rng_state()
        expected = eager.call(name, arguments), eager.state()
        mt.random.set_rng_state(stream)
        found = compiled.call(name, arguments), compiled.state()
        assert found == expected, f"call {i}: {name}"
    assert any(step.programs for step in compiled.steps.values())


def test_an_angle_and_what_else_a_tensor_is_used_for_are_added_up_as_in_eager() -> None:
    """The eager one sees that no length overflows; the captured one cannot look."""

    def step(x: Any, y: Any) -> Any:
        x = x.clone().requires_grad_()
        h = x * 2
        loss = F.cosine_similarity(h, y).sum() + F.mse_loss(h, y)
        return mt.autograd.grad(loss, x)[0]

    compiled = mt.compile(step)
    rng = np.random.default_rng(0)
    for _ in range(4):
        x, y = (mt.from_numpy(rng.standard_normal((9, 7))) for _ in range(2))
        assert bits(compiled(x, y)) == bits(step(x, y))
