"""Programs of several forward calls, models and means: exact on any number of ranks.

The truth is one process without any wrapper that has the rows of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from forward_calls import CUTS, World, check

import microtrain as mt
from microtrain.distributed import Communicator, DataParallel, in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.train.evaluation import evaluate

F = mt.nn.functional
f64 = mt.float64


PROGRAMS: dict[str, Callable[[World], None]] = {}


def program(function: Any) -> Any:
    PROGRAMS[function.__name__] = function
    return function


@program
def a_look_at_the_batch(w: World) -> None:
    m = w.model(3, 4, 1)
    x, y = w.rows("a", 3), w.rows("a", 1)
    for _ in range(2):
        if w.comm is not None and w.comm.rank == 0:
            m(x)
            kept = m(x[:2])
            assert kept.requires_grad
        w.learn(F.mse_loss(m(x), y), m)


@program
def an_error_that_is_caught(w: World) -> None:
    m = w.model(3, 4, 1)
    x, y = w.rows("a", 3), w.rows("a", 1)
    if w.comm is not None and w.comm.rank == 1:
        with pytest.raises(ZeroDivisionError):
            F.mse_loss(m(x), y) / (1 // 0)
    w.learn(F.mse_loss(m(x), y), m)


@program
def adversaries(w: World) -> None:
    g, d = w.model(2, 4, 3), w.model(3, 4, 1)
    for step in range(3):
        x, z = w.rows("a", 3, seed=step), w.rows("a", 2, seed=step)
        other = w.rows("b", 2, seed=step)
        real, fake = d(x), d(g(other).detach())
        ones, zeros = mt.ones_like(real), mt.zeros_like(fake)
        bce = F.binary_cross_entropy_with_logits
        w.learn(bce(real, ones) + bce(fake, zeros), d)
        score = d(g(z))
        w.learn(bce(score, mt.ones_like(score)), g)


@program
def adversaries_with_one_fake(w: World) -> None:
    g, d = w.model(2, 4, 3), w.model(3, 4, 1)
    x, z = w.rows("a", 3), w.rows("a", 2)
    for _ in range(2):
        fake = g(z)
        w.learn(F.softplus(-d(x)).mean() + F.softplus(d(fake.detach())).mean(), d)
        w.learn(F.softplus(-d(fake)).mean() + 10 * F.l1_loss(fake, x), g)


@program
def critic_with_a_penalty_on_its_gradient(w: World) -> None:
    d = w.model(3, 5, 1)
    x, u, between = w.rows("a", 3), w.rows("b", 3), w.rows("a", 3, seed=4).requires_grad_()
    (slope,) = mt.autograd.grad(d(between).sum(), between, create_graph=True)
    penalty = ((slope.square().sum(1) + 1e-3).sqrt() - 1).square().mean()
    w.learn(d(u).mean() - d(x).mean() + 10 * penalty, d)


@program
def penalty_on_a_gradient_alone(w: World) -> None:
    d = w.model(make=lambda: mt.nn.Sequential(mt.nn.Linear(3, 1, dtype=f64)))
    x = w.rows("a", 3).requires_grad_()
    (slope,) = mt.autograd.grad((d(x) * w.rows("a", 1)).sum(), x, create_graph=True)
    w.learn(slope.square().sum(1).mean(), d)


@program
def slope_that_is_learned(w: World) -> None:
    m = w.model(3, 5, 1)
    x, target, y = w.rows("a", 3).requires_grad_(), w.rows("a", 3, seed=1), w.rows("a", 1)
    out = m(x)
    (slope,) = mt.autograd.grad(out.sum(), x, create_graph=True)
    w.learn(F.mse_loss(out, y) + 3 * F.mse_loss(slope, target), m)


class Coder(mt.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = mt.nn.Linear(3, 4, dtype=f64), mt.nn.Linear(2, 3, dtype=f64)

    def forward(self, x: Any, noise: Any) -> Any:
        mean, log = self.into(x).tanh().chunk(2, 1)
        return {"out": self.back(mean + (log / 2).exp() * noise), "mean": mean, "log": log}


@program
def variational_coder(w: World) -> None:
    m = w.model(make=Coder)
    x = w.rows("a", 3)
    said = m(x, w.rows("a", 2))
    kl = -0.5 * (1 + said["log"] - said["mean"] ** 2 - said["log"].exp()).sum(1)
    w.learn(F.mse_loss(said["out"], x) + 0.3 * kl.mean(), m)


@program
def coder_of_two_models(w: World) -> None:
    into, back = w.model(3, 2), w.model(2, 4, 3)
    x = w.rows("a", 3)
    code = into(x)
    w.learn(F.mse_loss(back(code), x) + 0.3 * code.square().sum(1).mean(), into, back)


@program
def coder_whose_codes_are_selected(w: World) -> None:
    into, back = w.model(3, 2), w.model(2, 4, 3)
    x = w.rows("a", 3)
    code, kept = into(x), x[:, 0] > 0
    root = F.mse_loss(back(code[kept]), x[kept]) + 0.3 * code.square().sum(1).mean()
    w.learn(root, into, back)


@program
def siamese(w: World) -> None:
    m = w.model(3, 4, 2)
    x, y, same = w.rows("a", 3), w.rows("a", 3, seed=1), w.rows("a")
    apart = (m(x) - m(y)).square().sum(1)
    w.learn((same * apart).mean() + 0.1 * apart.mean(), m)


@program
def teacher(w: World) -> None:
    m, old = w.model(3, 4, 2), mt.nn.Linear(3, 2, dtype=f64)
    x, u, y = w.rows("a", 3), w.rows("b", 3), w.rows("a", 2)
    with mt.no_grad():
        wish = m(u) + old(u)
    w.learn(F.mse_loss(m(x), y) + 2 * F.mse_loss(m(u), wish), m)


@program
def a_divergence_beside_other_rows(w: World) -> None:
    m = w.model(3, 4, 2)
    x, u, p = w.rows("a", 3), w.rows("b", 3), w.rows("a", 2).softmax(1)
    loss = F.kl_div(m(x).log_softmax(1), p, reduction="batchmean")
    w.learn(loss + m(u).square().mean(), m)


@program
def numbers_that_are_missing(w: World) -> None:
    m = w.model(3, 4, 2)
    x, u, y = w.rows("a", 3), w.rows("b", 3), w.rows("a", 2)
    for more in (0.0, 0.5):
        losses = mt.where(y > 0.5, mt.full_like(y, np.nan), (m(x) - y).square())
        w.learn(losses.nanmean() + (more * m(u).square().mean() if more else 0), m)
    assert mt.tensor([np.nan]).nanmean().isnan()  # of what is not learned as ever


@program
def a_few_rows_are_labeled(w: World) -> None:
    m = w.model(3, 4, 2)
    x, u, y = w.rows("a", 3), w.rows("b", 3), w.rows("a", integers=2)
    w.learn(F.cross_entropy(m(x), y) + 0.5 * (m(u) ** 2).mean(), m)
    both = m(mt.cat([x, u]))
    w.learn(F.mse_loss(both[: len(x)], x[:, :2]) + both[len(x) :].abs().mean(), m)
    first, second = m(mt.cat([x, u])).split([len(x), len(u)])
    w.learn(F.cross_entropy(first, y) + F.huber_loss(second, u[:, :2]), m)


@program
def selected_rows_alone(w: World) -> None:
    m = w.model(3, 4, 2)
    x, y = w.rows("a", 3), w.rows("a", 2)
    mask = x[:, 0] > 0.3
    w.learn(F.mse_loss(m(x)[mask], y[mask]), m)
    w.learn(F.mse_loss(m(x), y, reduction="none")[mask].mean(), m)
    where = mt.nonzero(mask)[:, 0]
    w.learn(2 * F.l1_loss(m(x).index_select(0, where), y[where]) + 1, m)
    w.learn(m(x).masked_select(mask[:, None]).square().mean(), m)
    w.learn(F.smooth_l1_loss(m(x)[where], y[where]), m)
    w.learn(m(x).gather(0, mt.stack([where, where], 1)).square().mean(), m)
    w.learn(m(x)[mask, 1].square().mean(), m)
    w.learn((m(x)[mask] - y[mask]).square().sum() / max(len(where), 1), m)
    w.learn((m(x) - y)[mask].square().mean(0).sum(), m)


@program
def selected_rows_among_others(w: World) -> None:
    m = w.model(3, 4, 2)
    x, y = w.rows("a", 3), w.rows("a", 2)
    mask = x[:, 0] > 0.3
    out = m(x)
    penalty = 0.1 * sum((p**2).sum() for p in m.parameters())
    w.learn(F.mse_loss(out[mask], y[mask]) + out.abs().mean() - penalty, m)
    out = m(x)
    terms = [F.mse_loss(out[mask], y[mask]), out[~mask].square().mean(), out[:, 0].mean()]
    w.learn(mt.stack(terms).mean(), m)
    out = m(x)
    chosen = out[mask]
    w.learn(chosen.square().mean() + 0.5 * chosen.abs().mean(), m)
    out = m(x)
    losses = F.cross_entropy(out, w.rows("a", integers=2), reduction="none")
    w.learn(losses[mask].mean() + 0 * losses.mean() + losses[mask].square().mean() / 3, m)


class Masked(mt.nn.Module):
    """A language model that scores the masked tokens alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = mt.nn.Embedding(6, 4, dtype=f64)
        self.scores = mt.nn.Linear(4, 6, dtype=f64)
        self.order = mt.nn.Linear(4, 2, dtype=f64)

    def forward(self, tokens: Any, mask: Any) -> Any:
        hidden = self.table(tokens).tanh()
        return self.scores(hidden[mask]), self.order(hidden[:, 0])


@program
def masked_language_model(w: World) -> None:
    m = w.model(make=Masked)
    tokens = w.rows("a", 5, integers=6)
    mask, order = w.rows("a", 5) > 0.5, w.rows("a", 2)
    scores, _ = m(tokens, mask)
    w.learn(F.cross_entropy(scores, tokens[mask]), m)
    scores, _ = m(tokens, mask)
    w.learn(scores.square().mean(), m)
    scores, first = m(tokens, mask)
    w.learn(scores.square().mean() + F.mse_loss(first, order), m)
    scores, first = m(tokens, mask)
    w.learn(F.cross_entropy(scores, tokens[mask]) + F.mse_loss(first, order), m)


class Heads(mt.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.first = mt.nn.Linear(3, 4, dtype=f64), mt.nn.Linear(4, 2, dtype=f64)
        self.second = mt.nn.Linear(4, 1, dtype=f64)
        self.weights = mt.nn.Parameter(mt.tensor([0.1, -0.2], dtype=f64))
        self.aside: Any = None

    def forward(self, x: Any) -> Any:
        hidden = self.body(x).tanh()
        self.aside = hidden.square().mean()
        return self.first(hidden), [{"second": self.second(hidden)}]


@program
def several_tasks(w: World) -> None:
    m = w.model(make=Heads)
    net = w.models[0][0]
    x, y, z = w.rows("a", 3), w.rows("a", integers=2), w.rows("a", 1)
    first, (rest,) = m(x)
    w.learn(F.cross_entropy(first, y) + F.mse_loss(rest["second"], z) + 0.1 * net.aside, m)
    first, (rest,) = m(x)
    has = z[:, 0] > 0  # a label of the second task
    losses = mt.stack([first.square().mean(), F.mse_loss(rest["second"][has], z[has])])
    w.learn(losses.sum() - net.weights.exp().mean(), m)
    m(x)
    w.learn(net.aside, m)


@program
def losses_times_given_weights(w: World) -> None:
    """In the ways in which the sum of a list of losses is written."""
    m, weights = w.model(3, 2), mt.tensor([0.5, 2.0], dtype=f64)
    x, u = w.rows("a", 3), w.rows("b", 3)

    def losses() -> Any:
        return mt.stack([m(x).square().mean(), m(u).abs().mean()])

    w.learn((losses() * weights).sum(), m)
    w.learn((weights * losses() / 3).mean(), m)
    w.learn(losses() @ weights, m)
    w.learn(3 * mt.dot(weights, losses()) + m(x)[:, 0].mean(), m)
    table = mt.zeros(2, dtype=f64)
    table[0], table[1] = losses()[0] * 2, losses()[1]
    w.learn(table.sum(), m)
    w.learn(sum(scale * loss for scale, loss in zip((1, 3), losses(), strict=True)), m)
    w.learn(losses().cumsum(0)[-1], m)
    w.learn(F.linear(losses(), weights[None], weights[:1]).sum(), m)
    w.learn(losses().gather(0, mt.tensor([1])).sum() + losses().split(1)[0].sum(), m)
    at, first = mt.tensor([0, 0]), mt.tensor([True, False])
    w.learn((losses().roll(1) * weights).sum() + losses().scatter(0, at[:1], 1.0).sum(), m)
    w.learn(F.pad(losses(), (1, 0)).unfold(0, 2, 1)[0].sum() + mt.diag(losses())[1].sum(), m)
    w.learn(losses().expand(2, 2).tril().sum() + losses().expand(2, 2).triu(1).sum(), m)
    w.learn(mt.where(first, losses(), 0).sum() + weights.scatter_add(0, at, losses())[0], m)
    w.learn(
        F.avg_pool1d(losses()[None] * weights, 2).sum() + weights.index_add(0, at, losses())[0], m
    )


@program
def learned_weights_of_losses_over_other_rows(w: World) -> None:
    m = w.model(make=Heads)
    net = w.models[0][0]
    x, u, z = w.rows("a", 3), w.rows("b", 3), w.rows("a", 1)
    first = F.mse_loss(m(x)[1][0]["second"], z)
    second = m(u)[0].square().mean()
    a, b = net.weights.unbind()
    w.learn((-a).exp() * first + a + (-b).exp() * second + b, m)


@program
def two_passes_over_one_call(w: World) -> None:
    m = w.model(make=Heads)
    x, y, z = w.rows("a", 3), w.rows("a", integers=2), w.rows("a", 1)
    first, (rest,) = m(x)
    w.learn(F.mse_loss(rest["second"], z), m, retain=True)
    w.learn(F.cross_entropy(first, y), m)


@program
def a_call_that_depends_on_another(w: World) -> None:
    m = w.model(3, 3)
    x, u = w.rows("a", 3), w.rows("b", 3)
    once = m(x)
    w.learn(F.mse_loss(m(once), x) + once.square().mean() + m(u).abs().mean(), m)


@program
def many_calls(w: World) -> None:
    m = w.model(3, 2)
    x = w.rows("a", 100, 3)
    w.learn(sum(m(x[:, i]).square().mean() for i in range(100)) / 100, m)


@program
def checkpointed(w: World) -> None:
    def make() -> Any:
        class Net(mt.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = mt.nn.Linear(3, 4, dtype=f64), mt.nn.Linear(4, 1, dtype=f64)

            def forward(self, x: Any) -> Any:
                return self.b(mt.utils.checkpoint.checkpoint(lambda v: self.a(v).tanh(), x))

        return Net()

    m = w.model(make=make)
    x, u = w.rows("a", 3), w.rows("b", 3)
    w.learn(m(x).square().mean() + m(u).abs().mean(), m)


@program
def parts_of_the_model_called_by_hand(w: World) -> None:
    m = w.model(make=Heads)
    net = w.models[0][0]
    x, z = w.rows("a", 3), w.rows("a", 1)
    first, _ = m(x)
    w.learn(F.mse_loss(net.second(mt.cat([first, first], 1)), z), m)


class TimeFirst(mt.nn.Module):
    """Computes with the time as the first dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = mt.nn.Linear(3, 2, dtype=f64)

    def forward(self, x: Any) -> Any:
        return (self.cell(x.transpose(0, 1)) * 2).transpose(0, 1)


@program
def rows_selected_where_they_are_not_the_first_dimension(w: World) -> None:
    m, other, times = w.model(3, 4, 2), w.model(3, 2), w.model(make=TimeFirst)
    x, mask = w.rows("a", 3), w.rows("a", 1)[:, 0] > -0.3
    picks: list[Callable[[Any], Any]] = [
        lambda o: o.unsqueeze(0)[:, mask],
        lambda o: o[None, None][0, :, mask],
        lambda o: (o.T.contiguous() * 2)[:, mask],
        lambda o: (mt.ones(3, 2, dtype=f64) @ o.T)[:, mask],
        lambda o: mt.stack([o, o * 2]).index_select(1, mask.nonzero()[:, 0]),
        lambda o: o.unsqueeze(1).expand(-1, 3, -1).reshape(-1, 6)[mask],
        lambda o: mt.stack([o, o.exp()]).sum(0)[mask],
        lambda o: mt.stack([o, o.exp()])[:1],
        lambda o: o[:, mt.tensor([True, False])],
    ]
    for pick in picks:
        w.learn(pick(m(x)).square().mean(), m)
        w.learn(pick(m(x)).square().mean() + m(x).abs().mean(), m)
    w.learn(mt.stack([m(x), other(x)])[:, mask].square().mean(), m, other)
    first, second = mt.stack([m(x), m(x * 2)]).chunk(2)
    w.learn(first.square().mean() + second.abs().mean(), m)
    w.learn(times(w.rows("a", 5, 3))[mask].square().mean(), times)


@program
def means_of_means_over_rows(w: World) -> None:
    m = w.model(3, 4, 2)
    x, u = w.rows("a", 3), w.rows("b", 3)
    w.learn(m(x).mean(0).mean() + m(u).mean(0).mean(), m)
    w.learn(m(x)[x[:, 0] > 0.3].mean(0).mean() + m(x).abs().mean(), m)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_exact_on_any_number_of_ranks(comm: Communicator, name: str) -> None:
    def run(comm: Communicator | None, cuts: Any) -> list[Any]:
        world = World(comm, cuts)
        with np.errstate(all="ignore"):
            PROGRAMS[name](world)
        return world.found

    cuts = CUTS[comm.size]
    check(run(comm, cuts), run(None, cuts))


# Several passes -----------------------------------------------------------------------------------


def halves(w: World, root: Callable[[Any, Any, Any, Any], Any], m: Any) -> None:
    """A step of two micro-batches, or of all rows at once."""
    batches = [
        tuple(w.rows(name, n, seed=s) for name, n in (("a", 3), ("b", 3), ("a", 2)))
        for s in range(2)
    ]
    if w.comm is None:
        x, u, y = (mt.cat([*parts]) for parts in zip(*batches, strict=True))
        w.learn(root(m, x, u, y), m)
        return
    m(batches[1][0])  # only looked at
    with m.no_sync():
        root(m, *batches[0]).backward()
    m(batches[0][1])
    w.learn(root(m, *batches[1]), m)


ACCUMULATED: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "one loss": lambda m, x, u, y: F.mse_loss(m(x), y),
    "selected rows": lambda m, x, u, y: 2 * F.mse_loss(m(x)[x[:, 0] > 0.2], y[x[:, 0] > 0.2]) - 1,
    "selected rows of two calls": lambda m, x, u, y: (
        F.mse_loss(m(x)[x[:, 0] > 0.2], y[x[:, 0] > 0.2]) + m(x * 2)[x[:, 0] > 0.2].abs().mean()
    ),
    "two calls over as many": lambda m, x, u, y: F.mse_loss(m(x), y) + m(x * 2).abs().mean(),
    "by position": lambda m, x, u, y: m(x)[mt.arange(len(x)), 0].square().mean() + m(x).mean(),
}


@pytest.mark.parametrize("size", CUTS)
@pytest.mark.parametrize("name", ACCUMULATED)
def test_micro_batches_count_what_their_roots_depend_on(name: str, size: int) -> None:
    def run(comm: Communicator | None) -> list[Any]:
        world = World(comm, CUTS[size])
        with np.errstate(all="ignore"):
            halves(world, ACCUMULATED[name], world.model(3, 4, 2))
        return world.found

    expected = run(None)
    for found in in_process.run(size, run):
        check(found, expected)


REFUSED: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "two calls": lambda m, x, u, y: F.mse_loss(m(x), y) + m(u).square().mean(),
    "selected rows": lambda m, x, u, y: m(x)[x[:, 0] > 0.2].square().mean() + m(x).abs().mean(),
    "a part": lambda m, x, u, y: (lambda o: o[:2].square().mean() + o.abs().mean())(m(x)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_means_over_other_rows_and_several_passes_are_refused(name: str) -> None:
    def run(comm: Communicator) -> None:
        world = World(comm, CUTS[2])
        halves(world, REFUSED[name], world.model(3, 4, 2))

    with pytest.raises(RuntimeError, match=r"means over different rows.*known too late"):
        in_process.run(2, run)

    def with_shards(comm: Communicator) -> None:
        world = World(comm, CUTS[2])
        m = world.model(3, 4, 2, shards=4)
        batch = (world.rows(kind, n) for kind, n in (("a", 3), ("b", 3), ("a", 2)))
        REFUSED[name](m, *batch).backward()

    with pytest.raises(RuntimeError, match=r"means over different rows.*known too late"):
        in_process.run(2, with_shards)


def _sums_by_rows(m: Any, x: Any, u: Any, weights: Any) -> Any:
    return m(x)[0].square().sum() / len(x) + m(u)[0].abs().sum() / len(u)


def _learned_at_once(m: Any, x: Any, u: Any, weights: Any) -> Any:
    losses = mt.stack([m(x)[0].square().mean(), m(u)[0].abs().mean()])
    return (losses * weights.exp() - weights).sum() + (losses / weights.cosh()).mean()


@pytest.mark.parametrize("root", [_sums_by_rows, _learned_at_once])
def test_values_that_nobody_knows_are_refused_where_ranks_need_them(root: Any) -> None:
    def run(comm: Communicator | None, even: bool) -> list[Any]:
        world = World(comm, {"a": [4, 3], "b": [4, 3] if even else [2, 6]})
        m = world.model(make=Heads)
        x, u = world.rows("a", 3), world.rows("b", 3)
        world.learn(root(m, x, u, world.models[0][0].weights), m)
        return world.found

    for found in in_process.run(2, run, True):
        check(found, run(None, True))
    with pytest.raises(RuntimeError, match=r"not all are means by mean\(\)"):
        in_process.run(2, run, False)


def test_a_mean_beside_a_sum_over_as_many_selected_rows_is_refused() -> None:
    def run(comm: Communicator) -> None:
        world = World(comm, {"a": [8, 4]})
        out, half = world.model(3, 1)(world.rows("a", 3)), [3, 1][comm.rank]
        (out[:half].square().mean() + (out[-half:] - 1).square().sum() / half).backward()

    with pytest.raises(RuntimeError, match=r"not all are means by mean\(\)"):
        in_process.run(2, run)


@pytest.mark.parametrize("masked", [False, True])
def test_a_mean_over_selected_rows_in_other_arithmetic_is_refused(masked: bool) -> None:
    def run(comm: Communicator) -> None:
        world = World(comm, CUTS[comm.size])
        m = world.model(3, 1)
        x = world.rows("a", 3)
        out = m(x)[x[:, 0] > 0] if masked else m(x)[:2]
        out.square().mean().sqrt().backward()

    with pytest.raises(RuntimeError, match=r"not a sum of it"):
        in_process.run(2, run)
    in_process.run(1, run)


# What is exchanged --------------------------------------------------------------------------------


ROOTS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "one mean": (lambda m, x: m(x).square().mean(), 1),
    "means over one call": (
        lambda m, x: (lambda o: o.abs().mean() + F.mse_loss(o, x[:, :2]) + o[:, 0].mean())(m(x)),
        1,
    ),
    "columns": (lambda m, x: sum(c.square().mean() for c in m(x).unbind(1)), 1),
    "transposed": (lambda m, x: (lambda o: o.T[0].mean() + o.mT[:1].square().mean())(m(x)), 1),
    "a class for each row": (
        lambda m, x: (lambda o: o.gather(1, mt.zeros(len(x), 1).long()).mean() + o.mean())(m(x)),
        1,
    ),
    "siamese": (lambda m, x: (m(x) - m(x * 2)).square().mean(), 1),
    "selected rows": (lambda m, x: m(x)[x[:, 0] > 0].square().mean(), 1),
    "all rows, selected": (
        lambda m, x: (lambda o: o[x[:, 0] < 99].square().mean() + o.abs().mean())(m(x)),
        2,
    ),
    "two means over the same selected rows": (
        lambda m, x: (lambda o: o.square().mean() + o.abs().mean())(m(x)[x[:, 0] > 0]),
        1,
    ),
    "two calls": (lambda m, x: m(x).square().mean() + m(x * 2).abs().mean(), 2),
}


@pytest.mark.parametrize("name", ROOTS)
def test_the_graph_decides_what_ranks_exchange(name: str) -> None:
    root, expected = ROOTS[name]

    def run(comm: Communicator) -> int:
        world = World(comm, {"a": [4, 2 if name == "all rows, selected" else 3]})
        m = world.model(3, 2)
        if comm.rank == 0:
            m(world.rows("a", 3))  # a rank that has called more often exchanges no less, no more
        loss, reduce = root(m, world.rows("a", 3)), comm.all_reduce
        made: list[Any] = []

        def counted(array: Any) -> Any:
            made.append(array.shape)
            return reduce(array)

        comm.all_reduce = counted  # type: ignore[method-assign, assignment]
        loss.backward()
        return len(made)

    assert in_process.run(2, run) == [expected] * 2


# What nobody can know, or needs -------------------------------------------------------------------


def test_a_root_of_no_forward_call_is_refused() -> None:
    world = World(SingleCommunicator(), CUTS[1])
    m = world.model(3, 1)
    x = world.rows("a", 3)
    m(x)
    for root in (m(x).detach().mean() + m.module[0].weight.sum(), m.module(x).mean()):
        with pytest.raises(RuntimeError, match="depends on no forward call"):
            root.backward()
    m.count(7)
    m.module(x).mean().backward()
    assert m.samples == 7


def test_a_model_that_returns_its_input_is_counted_by_what_it_has_computed() -> None:
    class Gate(mt.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = mt.nn.Parameter(mt.ones(1))

        def forward(self, x: Any, on: bool) -> Any:
            return x * self.scale if on else x

    gate = Gate()
    m = DataParallel(gate, SingleCommunicator())
    (m(mt.ones(3, 1), True) + m(mt.ones(3, 1), False)).mean().backward()
    assert m.samples == 3
    with pytest.raises(RuntimeError, match="depends on no forward call"):
        (m(mt.ones(3, 1), False).mean() + gate.scale.sum()).backward()


@dataclass
class Answer:
    """What a model may return."""

    scores: Any
    more: Any = None


def test_calls_are_forgotten_with_what_they_returned() -> None:
    class Net(mt.nn.Linear):
        def forward(self, x: Any) -> Any:
            out = super().forward(x)
            return Answer({"a": (out, [1, "b"])}, more=np.ones(2))

    m = DataParallel(Net(2, 1), SingleCommunicator())
    x = mt.ones(3, 2)
    for _ in range(300):
        m(x)
    assert len(m.forwards()) < 100
    kept = [m(x) for _ in range(200)]
    sum(one.scores["a"][0].mean() for one in kept).backward()
    assert m.samples == 600
    del kept
    loss = m(x).scores["a"][0].mean()
    loss.backward()
    assert m.samples == 3
    for _ in range(300):
        m(x).scores["a"][0].mean().backward()
    assert len(m.forwards()) < 200


def test_a_frozen_call_and_one_without_grad_count_nothing() -> None:
    world = World(SingleCommunicator(), CUTS[1])
    m = world.model(3, 1)
    x = world.rows("a", 3)
    with mt.no_grad():
        old = m(x)
    (m(x) - old).square().mean().backward()
    assert m.samples == len(x)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_evaluation_of_means_over_other_rows_is_that_of_all_rows(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        out, mask = model(x), y[:, 0] > 0.5
        losses = [F.mse_loss(out[mask], y[mask]), 0.3 * out.abs().mean()]
        return out, sum(losses) + model(x[~mask]).square().mean() + 0.5

    world = World(None, {"a": [37]})
    net, x, y = world.model(3, 4, 1), world.rows("a", 3), world.rows("a", 1)
    expected = step(net, (x, y))[1].item()
    monkeypatch.setattr("microtrain.train.evaluation.ROWS", 4)
    data = mt.data.ArrayDataset(x.numpy(), y.numpy())

    def run(comm: Communicator) -> float:
        with np.errstate(all="ignore"):
            return evaluate(net, F.mse_loss, [], data, comm, step=step)["loss"]

    found = in_process.run(size, run)
    assert found[0] == pytest.approx(expected, rel=1e-12)


def test_two_results_of_one_compiled_loss_are_not_told_apart() -> None:
    """Their graph is kept once, so ranks could not make each a share of the whole."""

    def run(comm: Communicator) -> Any:
        world = World(comm, CUTS[comm.size])
        m = world.model(3, 2)
        loss_of = mt.compile(lambda x, y: F.cross_entropy(m(x), y))
        for _ in range(4):
            x, y = world.rows("a", 3), world.rows("a", integers=2)
            (loss_of(x, y) + loss_of(x * 2, y)).backward()
        return m.samples

    assert in_process.run(1, run) == [14]
    with pytest.raises(RuntimeError, match="not a sum of it"):
        in_process.run(2, run)
