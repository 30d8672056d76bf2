"""A forward call for each sample or group of rows: exact on any number of ranks."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from forward_calls import World, check

import microtrain as mt
from microtrain.distributed import Communicator, in_process

F = mt.nn.functional
f64 = mt.float64


def _each(x: Any, y: Any) -> Any:
    return [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]


def _added(losses: Any) -> Any:
    total = mt.zeros((), dtype=f64)
    for loss in losses:
        total = total + loss
    return total


def _after_steps(m: Any, x: Any) -> Any:
    state = x
    for _ in range(3):
        state = m(state) + x[:, :2].sum()
    return state


def _bags(x: Any, y: Any) -> Any:
    """A row stands for a bag of one to three, by what is in it."""
    found = []
    for row, wish in _each(x, y):
        size = 1 + int(10 * abs(row[0, 0].item())) % 3
        found.append((mt.cat([row * (k + 1) for k in range(size)]), mt.cat([wish] * size)))
    return found


def _firsts(m: Any, x: Any, y: Any) -> list[Any]:
    """One number of the first row of every bag, by its position."""
    bags = _bags(x, y)
    out, starts = (
        m(mt.cat([bag for bag, _ in bags])),
        np.cumsum([0, *(len(bag) for bag, _ in bags)]),
    )
    return [
        (out[int(at), 1] - wish[0, 1]).square() for at, (_, wish) in zip(starts, bags, strict=False)
    ]


def _chunks(x: Any, y: Any) -> Any:
    return zip(x.split(2), y.split(2), strict=True)


# Each a mean over the rows of a rank or, in the tests, over those of all.
LOOPS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum": lambda m, x, y: sum(F.mse_loss(m(a), b) for a, b in _each(x, y)) / len(x),
    "sum times": lambda m, x, y: sum(F.mse_loss(m(a), b) for a, b in _each(x, y)) * (1 / len(x)),
    "added": lambda m, x, y: _added(F.l1_loss(m(a), b) for a, b in _each(x, y)) / len(x),
    "stack": lambda m, x, y: mt.stack([F.mse_loss(m(a), b) for a, b in _each(x, y)]).mean(),
    "joined": lambda m, x, y: (
        mt.cat([F.mse_loss(m(a), b).reshape(1) for a, b in _each(x, y)]).sum() / len(x)
    ),
    "one call": lambda m, x, y: (
        lambda out: mt.stack([F.mse_loss(a, b) for a, b in _each(out, y)]).mean()
    )(m(x)),
    "labels": lambda m, x, y: mt.stack(
        [F.cross_entropy(m(a), (b[:, 0] > 0).long()) for a, b in _each(x, y)]
    ).mean(),
    "penalty": lambda m, x, y: (
        sum(F.mse_loss(m(a), b) for a, b in _each(x, y)) / len(x)
        + 0.1 * sum(p.square().sum() for p in m.parameters())
    ),
    "learned": lambda m, x, y: (
        lambda s: (-s).exp() * mt.stack([F.mse_loss(m(a), b) for a, b in _each(x, y)]).mean() + s
    )(next(iter(m.parameters()))[0, 0]),
    "steps": lambda m, x, y: (
        sum(F.mse_loss(_after_steps(m, a), b) for a, b in _each(x, y)) / len(x)
    ),
    "two losses": lambda m, x, y: (
        sum(
            (lambda out, b: F.mse_loss(out, b) + 0.3 * out.abs().mean())(m(a), b)
            for a, b in _each(x, y)
        )
        / len(x)
    ),
    "two calls": lambda m, x, y: mt.stack(
        [F.softplus(-m(a)).mean() + F.softplus(m(-a)).mean() for a, _ in _each(x, y)]
    ).mean(),
    "beside a mean": lambda m, x, y: LOOPS["sum"](m, x, y) + 0.5 * m(x).abs().mean(),
    "chunks": lambda m, x, y: sum(F.mse_loss(m(a), b) * len(a) for a, b in _chunks(x, y)) / len(x),
    "elements": lambda m, x, y: sum(_firsts(m, x, y)) / len(x),
    "stack of elements": lambda m, x, y: mt.stack(_firsts(m, x, y)).mean(),
    "loss of elements": lambda m, x, y: F.smooth_l1_loss(
        mt.stack(_firsts(m, x, y)), mt.ones(len(x), dtype=f64)
    ),
    "squares of elements": lambda m, x, y: F.mse_loss(
        mt.stack(_firsts(m, x, y)), mt.ones(len(x), dtype=f64)
    ),
}


LOOP_CUTS = {
    1: [[7], [1]],
    2: [[7, 4], [1, 3], [3, 1], [3, 4], [10, 10], [19, 20]],
    3: [[2, 1, 4], [3, 3, 1], [3, 4, 4]],
    4: [[1, 4, 3, 2], [1, 1, 1, 2], [3, 4, 3, 4]],
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_over_samples_are_exact_on_any_number_of_ranks(comm: Communicator, name: str) -> None:
    def run(comm: Communicator | None, cuts: list[int]) -> list[Any]:
        w = World(comm, {"a": cuts})
        m = w.model(make=lambda: mt.nn.Sequential(mt.nn.Linear(2, 2, dtype=f64), mt.nn.Tanh()))
        w.learn(LOOPS[name](m, w.rows("a", 2), w.rows("a", 2, seed=1)), m)
        return w.found

    for cuts in LOOP_CUTS[comm.size]:
        check(run(comm, cuts), run(None, cuts))


@pytest.mark.daily("3-")
@pytest.mark.parametrize("name", ["sum", "stack", "labels", "chunks", "learned"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_loops_over_samples_of_captured_steps_are_exact(size: int, name: str) -> None:
    rounds = [[[4], [2, 3], [1, 2, 4]], [[3], [1, 3], [2, 2, 2]]]

    def run(comm: Communicator | None) -> list[Any]:
        w = World(comm, {"a": [1] * size})
        m = w.model(2, 2)
        optimizer = mt.optim.SGD(m.parameters(), lr=0.1)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = LOOPS[name](m, x, y)
            loss.backward()
            optimizer.step()
            return loss

        call = step if comm is None else mt.compile(step, executor="numpy")
        for number in range(10):
            w.cuts = {"a": rounds[number // 2 % 2][size - 1]}
            loss = call(*(w.rows("a", 2, seed=number + s) for s in range(2)))
            w.found.append(loss.item() if comm is None else m.loss)
            w.found += [p.detach().numpy().copy() for p in m.parameters()]
        return w.found

    expected = run(None)
    for found in in_process.run(size, run):
        check(found, expected)


@pytest.mark.daily("cuts0", "cuts1")
@pytest.mark.parametrize("cuts", [[5, 2], [1, 3], [2, 1, 1]])
def test_loops_over_samples_of_a_compiled_loss(cuts: list[int]) -> None:
    def run(comm: Communicator | None, wide: bool = False) -> list[Any]:
        w = World(comm, {"a": cuts})
        m = w.model(2, 2)
        x, y = w.rows("a", 2), w.rows("a", 2, seed=1)
        loss: Any = lambda a, b: F.mse_loss(m(a), b)  # noqa: E731
        loss = loss if comm is None else mt.compile(loss)
        for _ in range(4):
            losses = [loss(a, b) for a, b in _each(x, y)]
            w.learn(mt.stack([*losses, loss(x, y)] if wide else losses).mean(), m)
        return w.found

    for found in in_process.run(len(cuts), run):
        check(found, run(None))
    with pytest.raises(RuntimeError, match="computed outside of compiled steps"):
        in_process.run(len(cuts), run, True)


@pytest.mark.parametrize("shards", [None, 4])
def test_loops_over_samples_accumulate(shards: int | None) -> None:
    parts = [[3, 1], [1, 2]]

    def run(comm: Communicator | None) -> list[Any]:
        w = World(comm, {})
        m = w.model(2, 2, **({} if comm is None else {"shards": shards}))
        batches = []
        for number, cuts in enumerate(parts):
            w.cuts = {"a": cuts}
            batches.append([w.rows("a", 2, seed=number + s) for s in range(2)])
        if comm is None:
            w.learn(LOOPS["stack"](m, *(mt.cat([*each]) for each in zip(*batches, strict=True))), m)
            return w.found
        with m.no_sync():
            LOOPS["stack"](m, *batches[0]).backward()
        w.learn(LOOPS["stack"](m, *batches[1]), m)
        return w.found

    for found in in_process.run(2, run):
        check(found, run(None))


# Of other numbers of terms: none is plainly a mean over all of them.
OTHERWISE: list[Callable[[Any, Any, Any], Any]] = [
    lambda m, x, y: mt.stack([F.mse_loss(m(a), b) for a, b in _bags(x, y)]).mean(),
    lambda m, x, y: mt.stack([F.mse_loss(m(a), b, weight=b.abs()) for a, b in _each(x, y)]).mean(),
    lambda m, x, y: sum(F.mse_loss(m(a), b) for a, b in _each(x, y)),
    lambda m, x, y: sum(F.mse_loss(m(a), b) * b[0, 0].item() for a, b in _each(x, y)) / len(x),
    lambda m, x, y: sum(F.mse_loss(m(a), b) * (len(a) / len(x)) for a, b in _chunks(x, y)),
    lambda m, x, y: OTHERWISE[0](m, x, y) + 0.5 * m(x).abs().mean(),
    lambda m, x, y: LOOPS["stack"](m, x, y) + 0.5 * m(x[1:]).abs().mean(),
]


@pytest.mark.parametrize("root", OTHERWISE)
def test_other_numbers_of_terms_that_are_no_plain_mean_are_refused_on_all_ranks(root: Any) -> None:
    def run(comm: Communicator) -> str:
        w = World(comm, {"a": [4, 2, 7]})
        m = w.model(2, 2)
        x, y = w.rows("a", 2), w.rows("a", 2, seed=1)
        if root is OTHERWISE[4] and comm.rank == 2:
            x, y = x[:1], y[:1]
        with pytest.raises(RuntimeError) as failed:
            root(m, x, y).backward()
        m.zero_grad()
        w.learn(LOOPS["sum"](m, x, y), m)  # goes on
        return str(failed.value)

    (said,) = {*in_process.run(3, run)}
    assert re.search(r"adds up \d+ means on rank 0, \d+ means on rank", said)


def _by_groups(output: Any, group: Any) -> Any:
    """A rank may have no rows of a group."""
    labels = [mt.where(group == g, group.long(), -100) for g in (False, True)]
    return sum(F.cross_entropy(output, each) * (each >= 0).sum().item() for each in labels)


@pytest.mark.parametrize("cuts", [[1, 4], [3, 1], [1, 1, 5]])
def test_means_times_their_rows_are_exact_where_a_rank_has_none_of_one(cuts: list[int]) -> None:
    def run(comm: Communicator | None) -> list[Any]:
        w = World(comm, {"a": cuts})
        m = w.model(2, 2)
        x, y = w.rows("a", 2), w.rows("a", 2, seed=1)
        w.learn(_by_groups(m(x), y[:, 0] > 0) / len(x), m)
        return w.found

    for found in in_process.run(len(cuts), run):
        check(found, run(None))


def test_factors_that_differ_by_rank_are_refused_on_all_ranks() -> None:
    def run(comm: Communicator, weighed: bool) -> str:
        w = World(comm, {"a": [2, 2]})
        m = w.model(2, 2)
        x, y = w.rows("a", 2), w.rows("a", 2, seed=1)
        weights = [0.5 + abs(b[0, 0].item()) if weighed else 0.3 for _, b in _each(x, y)]
        losses = [F.mse_loss(m(a), b) for a, b in _each(x, y)]
        root = sum(map(operator.mul, losses, weights)) / sum(weights)
        with pytest.raises(RuntimeError) if weighed else contextlib.nullcontext() as failed:
            root.backward()
        m.zero_grad()
        w.learn(F.mse_loss(m(x), y), m)  # goes on
        return failed.value.args[0].splitlines()[0] if weighed else ""

    (said,) = {*in_process.run(2, run, True)}
    assert re.search(r"factors that differ by rank \(0.\d+, 0.\d+ on rank 0, .* on rank 1\)", said)
    in_process.run(2, run, False)


def test_a_rank_without_rows_has_no_loop_and_is_told_so() -> None:
    def run(comm: Communicator | None, counts: bool) -> list[Any]:
        w = World(comm, {"a": [3, 0]})
        m = w.model(2, 2)
        x, y = w.rows("a", 2), w.rows("a", 2, seed=1)
        root = LOOPS["sum"](m, x, y) if len(x) else 0 * m(x).sum()
        if counts:
            m.count(len(x))
        if comm is None or counts:
            w.learn(root, m)
            return w.found
        with pytest.raises(RuntimeError, match="not at the same call") as failed:
            root.backward()
        return getattr(failed.value, "__notes__", [])

    for found in in_process.run(2, run, True):
        check(found, run(None, False))
    notes = in_process.run(2, run, False)[0]
    assert "3 means over different rows" in notes[0]


@pytest.mark.parametrize("number", [0, 1])
def test_means_of_means_are_exact_with_their_number_as_the_count(
    comm: Communicator, number: int
) -> None:
    def run(comm: Communicator | None, cuts: list[int]) -> list[Any]:
        w = World(comm, {"a": cuts})
        m = w.model(2, 2)
        root = OTHERWISE[number](m, w.rows("a", 2), w.rows("a", 2, seed=1))
        if comm is not None:
            m.count(cuts[comm.rank])
        w.learn(root, m)
        return w.found

    for cuts in LOOP_CUTS[comm.size]:
        check(run(comm, cuts), run(None, cuts))
