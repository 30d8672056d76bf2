"""Captured steps of several forward calls: exact on any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from forward_calls import CUTS, World, check

import microtrain as mt
from microtrain.distributed import Communicator, in_process

F = mt.nn.functional
f64 = mt.float64


class Meeting(mt.nn.Module):
    """A layer during whose first forward all ranks are in theirs."""

    def __init__(self, comm: Any) -> None:
        super().__init__()
        self.layer = mt.nn.Linear(3, 1, dtype=f64)
        self.meet: list[Any] = [] if comm is None else [comm.barrier] * 2

    def forward(self, x: Any) -> Any:
        if self.meet:
            self.meet.pop()()
        result = self.layer(x).tanh()
        if self.meet:
            self.meet.pop()()
        return result


def _two_losses(models: Any, x: Any, u: Any, y: Any) -> Any:
    (m,) = models
    return F.mse_loss(m(x), y) + 0.5 * m(u).square().mean() + 0.1 * m[0].weight.square().sum()


def _cut(models: Any, x: Any, u: Any, y: Any) -> Any:
    (m,) = models
    both = m(mt.cat([x, u]))
    return F.mse_loss(both[: len(x)], y) + both[len(x) :].abs().mean()


def _looked_at(models: Any, x: Any, u: Any, y: Any) -> Any:
    (m,) = models
    m(u)
    return F.mse_loss(m(x), y) * 2


def _chosen(models: Any, x: Any, u: Any, y: Any) -> Any:
    (m,) = models
    out = m(x)
    first = out.index_select(0, mt.arange(len(x)))
    return F.mse_loss(out, y) + first.square().mean() + F.weighted_mean(out.abs(), y.abs())


def _slope(models: Any, x: Any, u: Any, y: Any) -> Any:
    (m,) = models
    u = u.detach().requires_grad_()
    (slope,) = mt.autograd.grad(m(u).sum(), u, create_graph=True)
    return F.mse_loss(m(x), y) + slope.square().sum(1).mean()


def _of_two_models(models: Any, x: Any, u: Any, y: Any) -> Any:
    m, second = models
    code = m(x)
    return F.mse_loss(second(code), y) + second(m(u).detach()).square().mean() + code.abs().mean()


STEPS = [_two_losses, _cut, _looked_at, _chosen, _slope, _of_two_models]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_that_are_in_their_calls_at_the_same_time_keep_apart(size: int) -> None:
    def run(comm: Communicator | None) -> list[Any]:
        w = World(comm, CUTS[size])
        d = w.model(make=lambda: Meeting(comm))
        x, u = w.rows("a", 3), w.rows("b", 3)
        between = w.rows("a", 3, seed=4).requires_grad_()
        out, first, hook = d(between), None, None
        if comm is not None and comm.rank == 0:  # its pass begins before others' call, ends after
            hook = out.register_hook(lambda _: [comm.barrier() for _ in range(2)] and None)
        elif comm is not None:
            comm.barrier()
            first = d(u)
            comm.barrier()
        (slope,) = mt.autograd.grad(out.sum(), between, create_graph=True)
        if hook is not None:
            hook.remove()
        first = d(u) if first is None else first
        w.learn(first.mean() - d(x).mean() + 10 * slope.square().sum(1).mean(), d)
        return w.found

    for found in in_process.run(size, run):
        check(found, run(None))


@pytest.mark.daily("-3]")
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", STEPS)
def test_captured_steps_are_exact_on_any_number_of_ranks(kind: Any, size: int) -> None:
    _captured(kind, size, "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [_two_losses, _of_two_models])
def test_native_code_is_exact_on_two_ranks(kind: Any, native_code: None) -> None:
    needs_compiler()
    _captured(kind, 2, "native")


def _captured(kind: Any, size: int, executor: str) -> None:
    def run(comm: Communicator | None) -> list[Any]:
        world = World(comm, CUTS[size])
        models = [world.model(3, 4, 2)]
        if kind is _of_two_models:
            models.append(world.model(2, 3, 2))
        params = [p for model in models for p in model.parameters()]
        optimizers = [mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
        nets = [net for net, _ in world.models] if comm is None else [w for _, w in world.models]

        def step(x: Any, u: Any, y: Any) -> Any:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = kind([*map(_indexed, nets)], x, u, y)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            return loss

        call = step if comm is None else mt.compile(step, executor=executor)
        found = []
        with np.errstate(all="ignore"):
            for number in range(5):
                batch = [
                    world.rows(name, n, seed=number) for name, n in (("a", 3), ("b", 3), ("a", 2))
                ]
                loss = call(*batch)
                found.append(loss.item() if comm is None else models[0].loss)
                found += [p.detach().numpy().copy() for p in params]
        return found

    expected = run(None)
    for found in in_process.run(size, run):
        check(found, expected)


class _indexed:
    """A model, wrapped or not, whose layers have numbers."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, x: Any) -> Any:
        return self.model(x)

    def __getitem__(self, number: int) -> Any:
        return getattr(self.model, "module", self.model)[number]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_of_a_compiled_model_know_their_calls(size: int) -> None:
    def run(comm: Communicator | None) -> list[Any]:
        world = World(comm, CUTS[size])
        m = world.model(3, 4, 2)
        call: Any = m if comm is None else mt.compile(lambda x: m(x))
        with np.errstate(all="ignore"):
            for number in range(5):
                x, u, y = (
                    world.rows(name, n, seed=number) for name, n in (("a", 3), ("b", 3), ("a", 2))
                )
                if comm is not None:
                    call(u)  # a look
                root = F.mse_loss(call(x), y) + call(u).square().mean()
                world.learn(root, m)
                out = call(x)
                world.learn(F.cross_entropy(out[y[:, 0] > 0], (y > 0)[y[:, 0] > 0][:, 1].long()), m)
        return world.found

    expected = run(None)
    for found in in_process.run(size, run):
        check(found, expected)
