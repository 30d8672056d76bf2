"""Losses that do not average over rows: class weights, ignored rows, masks, sample weights.

The truth is one process without any wrapper that has the rows of all ranks and micro-batches.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler

import microtrain as mt
from microtrain.config.load import load_config
from microtrain.distributed import Communicator, DataParallel, in_process
from microtrain.distributed.single import SingleCommunicator
from microtrain.errors import ConfigError
from microtrain.runs.metrics import read_metrics
from microtrain.train.console import Output
from microtrain.train.evaluation import evaluate
from microtrain.train.models_and_losses import bce, one_loss
from microtrain.train.trainer import Trainer

F = mt.nn.functional
CLASSES, STEPS = 3, 3
WEIGHT = mt.tensor([0.2, 1.0, 5.0], dtype=mt.float64)


class Net(mt.nn.Module):
    """Scores, and what a second loss may be of; `first` has batch norm behind it or not."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.first = mt.nn.Linear(4, 5, dtype=mt.float64)
        self.norm: mt.nn.Module = mt.nn.Identity()
        if norm:
            self.norm = mt.nn.BatchNorm1d(5, dtype=mt.float64)
        self.scores = mt.nn.Linear(5, CLASSES, dtype=mt.float64)
        self.other = mt.nn.Linear(4, CLASSES, dtype=mt.float64)
        self.uncertainty = mt.nn.Parameter(mt.tensor(0.3, dtype=mt.float64))

    def forward(self, x: Any) -> tuple[Any, Any]:
        return self.scores(self.norm(self.first(x)).tanh()), self.other(x)


def _tokens(scores: Any, batch: Any) -> Any:
    """Every row as a sequence of two tokens."""
    stacked = mt.stack([scores, scores * 2], 2)
    return F.cross_entropy(stacked, batch["pairs"], weight=WEIGHT)


def holed(scores: Any, mask: Any) -> Any:
    return mt.where(mask, scores, mt.full_like(scores, np.nan))


# What the model says and the batch -> a loss that divides by what counts.
COUNTED: dict[str, Callable[[Any, Any], Any]] = {
    "class weights": lambda s, b: F.cross_entropy(s, b["y"].clamp(min=0), weight=WEIGHT),
    "ignore_index": lambda s, b: F.cross_entropy(s, b["y"]),
    "both": lambda s, b: F.cross_entropy(s, b["y"], weight=WEIGHT),
    "another index": lambda s, b: F.cross_entropy(s, b["y"].clamp(min=0), ignore_index=0),
    "smoothed": lambda s, b: F.cross_entropy(s, b["y"], label_smoothing=0.1),
    "nll": lambda s, b: F.nll_loss(F.log_softmax(s, 1), b["y"], weight=WEIGHT),
    "nll, ignored": lambda s, b: F.nll_loss(F.log_softmax(s, 1), b["y"]),
    "tokens": _tokens,
    "sample weights": lambda s, b: F.mse_loss(s, b["t"], weight=b["w"]),
    "absolute": lambda s, b: F.l1_loss(s, b["t"], weight=b["w"]),
    "mask": lambda s, b: F.weighted_mean((s - b["t"]).abs().sqrt(), b["mask"]),
    "module": lambda s, b: mt.nn.CrossEntropyLoss(WEIGHT)(s, b["y"]),
    "without NaN": lambda s, b: holed(s, b["mask"]).square().nanmean(),
    "without NaN, shaped": lambda s, b: (
        holed(s, b["mask"]).abs().reshape(-1, 1).nanmean(0, keepdim=True)[0, 0]
    ),
}
# Arrangements of one such loss: factors, and penalties that do not depend on the rows.
ONE: dict[str, Callable[[Any, Any, Net], Any]] = {
    "alone": lambda loss, other, net: loss,
    "factor": lambda loss, other, net: 3 * loss / 7 - 0.5,
    "penalty": lambda loss, other, net: loss + 0.1 * (net.first.weight**2).sum(),
    "mean penalty": lambda loss, other, net: (net.scores.bias.abs().mean() + loss) * 2.0,
    "learned": lambda loss, other, net: (-net.uncertainty).exp() * loss + net.uncertainty,
    "divided": lambda loss, other, net: loss / (net.uncertainty**2) + net.uncertainty.log(),
    "stacked": lambda loss, other, net: mt.stack([loss, net.uncertainty]).sum(),
    "shaped": lambda loss, other, net: loss.reshape(1, 1).squeeze().clone(),
}
# Arrangements with another mean in the same root: of other weights, or of the rows.
SEVERAL: dict[str, Callable[[Any, Any, Net], Any]] = {
    "sum": lambda loss, other, net: 0.7 * loss + other,
    "means": lambda loss, other, net: mt.stack([loss, other]).mean() + net.uncertainty**2,
    "learned": lambda loss, other, net: (-net.uncertainty).exp() * loss - other / 2,
}
SECOND: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda o, b: F.mse_loss(o, b["t"]),
    "by hand": lambda o, b: (o * b["t"]).square().sum(1).mean(),
    "ignored": lambda o, b: F.cross_entropy(o, b["y2"]),
    "weighted": lambda o, b: F.weighted_mean(o.abs(), b["w"]),
    "divergence": lambda o, b: F.kl_div(
        F.log_softmax(o, 1), b["t"].softmax(1), reduction="batchmean"
    ),
    "margins": lambda o, b: F.multi_margin_loss(o, b["y2"].clamp(min=0), weight=WEIGHT),
    "labels": lambda o, b: F.multilabel_margin_loss(o, b["pairs"][:, [0, 1, 1]].clamp(-1, 2)),
}


def batch_of(step: int, micro: int, rank: int, rows: int) -> dict[str, Any]:
    """The rows of a rank as NumPy arrays; of every third batch nothing counts."""
    rng = np.random.default_rng([7, step, micro, rank])
    y, y2 = (rng.integers(0, CLASSES, rows) for _ in range(2))
    y[rng.random(rows) < 0.4] = -100
    y2[rng.random(rows) < 0.3] = -100
    y[:1], y2[:1] = 1, 2
    pairs = np.stack([y, y2], 1)
    w = rng.random((rows, CLASSES)) + 0.1
    mask = rng.random((rows, CLASSES)) < 0.6
    if (step + micro + rank) % 3 == 1 and (micro or rank):  # nothing counts here
        y[:], y2[:], pairs[:], w[:], mask[:] = -100, -100, -100, 0.0, False
    x, t = rng.normal(size=(rows, 4)), rng.normal(size=(rows, CLASSES))
    return {"x": x, "y": y, "y2": y2, "pairs": pairs, "t": t, "w": w, "mask": mask}


class Case:
    """What a seed stands for; the same on every rank."""

    def __init__(self, seed: int, world: int, several: bool) -> None:
        rng = np.random.default_rng([seed, world, several])
        self.loss = COUNTED[[*COUNTED][seed % len(COUNTED)]]
        self.second = SECOND[[*SECOND][int(rng.integers(len(SECOND)))]]
        table = SEVERAL if several else ONE
        self.root = table[[*table][int(rng.integers(len(table)))]]
        self.micro = 1 if several else int(rng.integers(1, 4))
        self.executor = (None, "numpy")[int(rng.integers(2))]
        self.overlap = ("on", "off")[int(rng.integers(2))]
        self.norm = bool(rng.integers(2)) and self.micro == 1  # of the whole batch
        self.rows = rng.integers(0, 5, (STEPS, self.micro, world))
        self.rows[:, 0] += 1
        self.rows[:, 0, 0] += 1  # two rows for batch norm

    def batch(self, step: int, micro: list[int], ranks: list[int]) -> dict[str, Any]:
        """The rows of these ranks and micro-batches together, as Tensors."""
        parts = [batch_of(step, m, r, self.rows[step, m, r]) for m in micro for r in ranks]
        return {name: mt.from_numpy(np.concatenate([p[name] for p in parts])) for name in parts[0]}

    def value(self, model: Any, net: Net, batch: dict[str, Any]) -> Any:
        """What backward starts from."""
        scores, other = model(batch["x"])
        loss = self.loss(scores, batch)
        F.cross_entropy(scores, batch["y"].clamp(min=0), ignore_index=2)  # beside: changes nothing
        return self.root(loss, self.second(other, batch), net)


def truth(case: Case, world: int) -> list[Any]:
    """Gradients and losses of one process without a wrapper that has all rows at once."""
    mt.manual_seed(2)
    net = Net(case.norm)
    optimizer = mt.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    found: list[Any] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        value = case.value(net, net, case.batch(step, [*range(case.micro)], [*range(world)]))
        value.backward()
        found += [p.grad.numpy().copy() for p in net.parameters() if p.grad is not None]
        found.append(value.item())
        optimizer.step()
    return found


def trained(case: Case, comm: Communicator) -> list[Any]:
    """The same by a wrapped model whose ranks have their rows."""
    mt.manual_seed(2)
    net = Net(case.norm)
    model = DataParallel(net, comm, overlap=case.overlap, bucket_mb=1e-4)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step_of(batch: dict[str, Any]) -> None:
        case.value(model, net, batch).backward()

    run: Any = step_of
    if case.executor is not None:
        run = mt.compile(step_of, executor=case.executor, state=[WEIGHT])  # type: ignore[call-overload]
    found: list[Any] = []
    with np.errstate(all="ignore"):
        for step in range(STEPS):
            optimizer.zero_grad()
            for micro in range(case.micro):
                batch = case.batch(step, [micro], [comm.rank])
                if micro < case.micro - 1:
                    with model.no_sync():
                        run(batch)
                else:
                    run(batch)
            found += [p.grad.numpy().copy() for p in net.parameters() if p.grad is not None]
            found.append(model.loss)
            optimizer.step()
    return found


def check(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert np.abs(a - b).max() <= 1e-12 * max(np.abs(b).max(), 1e-2), number


@pytest.mark.daily("-0-one", "-3-several", "-11-one", "-14-one")
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
@pytest.mark.parametrize("seed", range(2 * len(COUNTED)))
def test_any_number_of_ranks_and_micro_batches(
    comm: Communicator, seed: int, several: bool
) -> None:
    case = Case(seed, comm.size, several)
    check(trained(case, comm), truth(case, comm.size))


# Where the sums are not known in time -------------------------------------------------------------


def one_pass(
    model: Any, net: Net, rows: int, root: Callable[[Any, Any, Any], Any], rank: int = 0
) -> None:
    """A backward pass of `rows` rows from `root(scores, other, batch)`."""
    batch = {name: mt.from_numpy(a) for name, a in batch_of(0, 0, rank, rows).items()}
    root(*model(batch["x"]), batch).backward()


def test_several_denominators_and_several_passes_are_refused_by_name() -> None:
    net = Net()
    model = DataParallel(net, SingleCommunicator())

    def root(scores: Any, other: Any, batch: Any) -> Any:
        return F.cross_entropy(scores, batch["y"]) + F.nll_loss(
            F.log_softmax(other, 1), batch["y2"], weight=WEIGHT
        )

    with model.no_sync(), pytest.raises(RuntimeError) as refused:
        one_pass(model, net, 8, root)
    assert "cross_entropy" in str(refused.value) and "nll_loss" in str(refused.value)
    assert "several backward passes" in str(refused.value)
    one_pass(model, net, 8, root)  # and a pass that makes a step is not


def test_a_loss_beside_a_mean_over_rows_is_refused_where_it_is_uneven_only() -> None:
    net = Net()
    model = DataParallel(net, SingleCommunicator())

    def even(scores: Any, other: Any, batch: Any) -> Any:
        return F.cross_entropy(scores, batch["y"].clamp(min=0)) + (other**2).mean()

    def uneven(scores: Any, other: Any, batch: Any) -> Any:
        return F.cross_entropy(scores, batch["y"]) + (other**2).mean()

    with model.no_sync():
        one_pass(model, net, 8, even)
    with model.no_sync(), pytest.raises(RuntimeError, match=r"cross_entropy.*a mean over the rows"):
        one_pass(model, net, 8, uneven)


@pytest.mark.parametrize(
    "root",
    [
        lambda loss, other: loss.sqrt(),
        lambda loss, other: loss * other.abs().mean(),
        lambda loss, other: mt.maximum(loss, other.mean()),
        lambda loss, other: loss * loss,
        lambda loss, other: 2.0 / (loss + 1),
        lambda loss, other: mt.tensor(2.0) / (1 + loss) + other.mean(),
    ],
)
def test_arithmetic_that_is_no_sum_is_refused(root: Callable[[Any, Any], Any]) -> None:
    def work(comm: Communicator) -> None:
        net = Net()
        model = DataParallel(net, comm)
        one_pass(model, net, 8, lambda s, o, b: root(F.cross_entropy(s, b["y"]), o), rank=comm.rank)

    with pytest.raises(RuntimeError, match=r"cross_entropy.*not a sum of it"):
        in_process.run(2, work)
    in_process.run(1, work)  # where one process has all rows, it is the loss of all


def gradients(net: mt.nn.Module) -> list[Any]:
    return [p.grad.numpy().copy() for p in net.parameters() if p.grad is not None]


def both(
    root: Callable[[Any, Net, Any], Any], back: Callable[[Any], Any], rows: list[int]
) -> tuple[list[Any], list[Any]]:
    """Gradients and loss of a pass of ranks that have `rows`, and of one process with them all."""

    def work(comm: Communicator | None, ranks: list[int]) -> list[Any]:
        mt.manual_seed(0)
        net = Net()
        model: Any = net if comm is None else DataParallel(net, comm)
        parts = [batch_of(0, 0, 2 * r, rows[r]) for r in ranks]
        batch = {n: mt.from_numpy(np.concatenate([part[n] for part in parts])) for n in parts[0]}
        loss = root(model, net, batch)
        back(loss)
        return [*gradients(net), loss.item() if comm is None else model.loss]

    whole = work(None, [*range(len(rows))])
    return in_process.run(len(rows), lambda comm: work(comm, [comm.rank]))[0], whole


def _two_losses(model: Any, net: Net, batch: Any) -> Any:
    scores, other = model(batch["x"])
    return F.cross_entropy(scores, batch["y"]) + F.mse_loss(other, batch["t"])


def test_a_gradient_that_the_root_is_given_scales_no_loss() -> None:
    two = mt.tensor(2.0, dtype=mt.float64)
    check(*both(_two_losses, lambda loss: loss.backward(gradient=two), [5, 3]))


def test_a_hook_that_scales_the_gradient_of_a_loss_scales_no_loss() -> None:
    def root(model: Any, net: Net, batch: Any) -> Any:
        scores, other = model(batch["x"])
        loss = F.cross_entropy(scores, batch["y"])
        loss.register_hook(lambda g: 3 * g)
        return loss + F.mse_loss(other, batch["t"])

    check(*both(root, lambda loss: loss.backward(), [5, 3]))


def test_a_weighted_penalty_counts_on_no_rank_without_rows() -> None:
    mask = mt.from_numpy(np.arange(15.0).reshape(3, 5) % 2)

    def root(model: Any, net: Net, batch: Any) -> Any:
        penalty = F.weighted_mean(net.scores.weight**2, mask)
        return F.mse_loss(model(batch["x"])[1], batch["t"]) + penalty

    check(*both(root, lambda loss: loss.backward(), [5, 0, 3]))


def test_a_product_within_another_of_the_same_loss_is_refused() -> None:
    def root(model: Any, net: Net, batch: Any) -> Any:
        scores, other = model(batch["x"])
        product = net.uncertainty * F.cross_entropy(scores, batch["y"])
        return product + net.uncertainty * product + F.mse_loss(other, batch["t"])

    with pytest.raises(RuntimeError, match=r"cross_entropy.*not a sum of it"):
        both(root, lambda loss: loss.backward(), [5, 3])


def test_weights_that_cancel_are_refused() -> None:
    def root(model: Any, net: Net, batch: Any) -> Any:
        signs = mt.ones(len(batch["x"]), 3, dtype=mt.float64)
        if len(signs) < 5:  # the second rank's; together they are 15
            signs[:, 1], signs[:, 2] = -1, 0
        return F.weighted_mean(model(batch["x"])[0] ** 2, signs)

    with pytest.raises(RuntimeError, match="weights of weighted_mean add up to 0"):
        both(root, lambda loss: loss.backward(), [5, 3])


def test_sums_of_sums_take_no_time() -> None:
    def root(model: Any, net: Net, batch: Any) -> Any:
        scores, first = model(batch["x"])
        second = first * 0.5
        for _ in range(60):  # as many ways to `first` as Fibonacci's number
            first, second = first + 0.3 * second, 0.5 * first
        return F.cross_entropy(scores, batch["y"]) + (first + second).mean()

    check(*both(root, lambda loss: loss.backward(), [5, 3]))


def test_a_second_pass_over_a_freed_graph_says_so() -> None:
    net = Net()
    model = DataParallel(net, SingleCommunicator())
    batch = {name: mt.from_numpy(a) for name, a in batch_of(0, 0, 0, 4).items()}
    loss = F.cross_entropy(model(batch["x"])[0], batch["y"])
    loss.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_a_pass_that_failed_leaves_the_graph_as_it_was() -> None:
    def work(comm: Communicator) -> tuple[Any, Any]:
        mt.manual_seed(0)
        net = Net()
        part = batch_of(0, 0, 2 * comm.rank, 5 - 2 * comm.rank)
        batch = {name: mt.from_numpy(array) for name, array in part.items()}
        model = DataParallel(net, comm)
        loss = _two_losses(model, net, batch)
        weight = net.scores.weight
        (before,) = mt.autograd.grad(loss, weight, retain_graph=True)

        def failing(g: Any) -> None:
            raise ValueError("a hook")

        hook = net.first.weight.register_hook(failing)
        with pytest.raises(ValueError, match="a hook"):
            loss.backward(retain_graph=True)
        hook.remove()
        (after,) = mt.autograd.grad(loss, weight)
        return before.numpy(), after.numpy()

    for before, after in in_process.run(2, work):
        np.testing.assert_array_equal(after, before)


def test_weights_that_learn_are_refused() -> None:
    def work(comm: Communicator) -> None:
        net = Net()
        model = DataParallel(net, comm)

        def root(scores: Any, other: Any, batch: Any) -> Any:
            return F.weighted_mean((scores - batch["t"]) ** 2, other.sigmoid())

        one_pass(model, net, 8, root, rank=comm.rank)

    with pytest.raises(RuntimeError, match="weights of weighted_mean require grad"):
        in_process.run(2, work)


def test_a_sum_of_means_and_what_count_was_told_are_as_asked() -> None:
    def work(comm: Communicator) -> tuple[Any, Any, Any]:
        mt.manual_seed(0)
        net, rank = Net(), 2 * comm.rank
        model = DataParallel(net, comm, reduction="sum")
        mine: list[Any] = []

        def root(scores: Any, other: Any, batch: Any) -> Any:
            mine.append(F.cross_entropy(scores, batch["y"]))
            return mine[-1]

        one_pass(model, net, 8, root, rank)
        summed = model.loss
        net = Net()
        model = DataParallel(net, comm)
        model.count(comm.rank + 1)
        one_pass(model, net, 8, root, rank)
        return summed, model.loss, [value.item() for value in mine]

    (summed, told, first), (*_, second) = in_process.run(2, work)
    assert summed == pytest.approx(first[0] + second[0])
    assert told == pytest.approx((1 * first[1] + 2 * second[1]) / 3)


def test_a_loss_without_weight_is_refused() -> None:
    """A rank all of whose rows are of a class of weight 0, whose loss label smoothing makes."""
    weight = mt.tensor([0.0, 1.0, 2.0], dtype=mt.float64)

    def work(comm: Communicator) -> None:
        net = Net()
        model = DataParallel(net, comm)
        labels = mt.full((8,), comm.rank, dtype=mt.int64)
        one_pass(
            model, net, 8,
            lambda s, o, b: F.cross_entropy(s, labels, weight=weight, label_smoothing=0.2),
            rank=comm.rank,
        )  # fmt: skip

    with pytest.raises(RuntimeError, match="weights of cross_entropy add up to 0"):
        in_process.run(2, work)


def test_where_nothing_counts_at_all_nothing_is_learned() -> None:
    def work(comm: Communicator) -> tuple[float, float, float]:
        net = Net()
        model = DataParallel(net, comm)
        nothing = mt.from_numpy(np.full(5, -100))
        one_pass(model, net, 5, lambda s, o, b: F.cross_entropy(s, nothing), comm.rank)
        return model.loss, model.weight, float(model.storage.buffers[0].grad.max())

    for world in (1, 3):
        loss, weight, gradient = in_process.run(world, work)[0]
        assert np.isnan(loss) and weight == 0 and gradient == 0


def test_two_wrappers_in_one_pass() -> None:
    def work(comm: Communicator) -> list[Any]:
        mt.manual_seed(0)
        first, second = Net(), mt.nn.Linear(CLASSES, CLASSES, dtype=mt.float64)
        front, back = DataParallel(first, comm), DataParallel(second, comm)

        def run(x: Any, y: Any) -> None:
            hidden = front(x)[0]
            (F.cross_entropy(back(hidden), y) + 0.1 * (hidden**2).mean()).backward()

        found = []
        for step in (run, mt.compile(run)):
            for _ in range(3):
                front.zero_grad()
                back.zero_grad()
                batch = {n: mt.from_numpy(a) for n, a in batch_of(0, 0, 2 * comm.rank, 6).items()}
                step(batch["x"], batch["y"].clamp(min=0))
                found.append(second.weight.grad.numpy().copy())
        return found

    one, *others = in_process.run(1, work)[0]
    for other in others:
        np.testing.assert_allclose(other, one, rtol=1e-12)


def test_two_wrappers_in_one_pass_with_several_denominators() -> None:
    def work(comm: Communicator | None, ranks: list[int]) -> list[Any]:
        mt.manual_seed(0)
        first, second = Net(), mt.nn.Linear(CLASSES, CLASSES, dtype=mt.float64)
        front, back = (m if comm is None else DataParallel(m, comm) for m in (first, second))
        parts = [batch_of(0, 0, 2 * r, 3 + r) for r in ranks]
        x, y = (mt.from_numpy(np.concatenate([part[n] for part in parts])) for n in ("x", "y"))
        hidden = front(x)[0]
        loss = F.cross_entropy(back(hidden), y, weight=WEIGHT) + 0.1 * (hidden**2).mean()
        loss.backward()
        values = [loss.item()] * 2 if comm is None else [front.loss, back.loss]
        return [*gradients(first), *gradients(second), *values]

    check(in_process.run(3, lambda comm: work(comm, [comm.rank]))[0], work(None, [0, 1, 2]))


def test_two_wrappers_of_which_one_was_told_its_count_weigh_nothing_together() -> None:
    def work(comm: Communicator) -> None:
        mt.manual_seed(0)
        front = DataParallel(Net(), comm)
        back = DataParallel(mt.nn.Linear(CLASSES, CLASSES, dtype=mt.float64), comm)
        batch = {n: mt.from_numpy(a) for n, a in batch_of(0, 0, 2 * comm.rank, 6).items()}
        hidden = front(batch["x"])[0]
        back.count(12)  # as many as both have seen
        (F.cross_entropy(back(hidden), batch["y"]) + (hidden**2).mean()).backward()

    with pytest.raises(RuntimeError, match="not all may take part in weighing"):
        in_process.run(2, work)


def test_forward_calls_that_nobody_differentiates_take_no_memory() -> None:
    model = DataParallel(Net(), SingleCommunicator())
    for _ in range(200):
        model(mt.ones(1, 4, dtype=mt.float64))
    assert len(model.forwards()) <= 65


def test_half_precision_has_no_room_for_a_total() -> None:
    model = DataParallel(Net().half(), SingleCommunicator())
    scores, labels = mt.full((20_000, 2), 8.0).half(), mt.ones(20_000).long()
    scores[:, 1] = -8.0
    assert F.cross_entropy(scores, labels).item() == 16.0
    assert F.nll_loss(-scores, labels).item() == -8.0
    del model


# Shards, native code, and losses that a compiled step returns -------------------------------------


@pytest.mark.daily("both")
@pytest.mark.parametrize("name", ["both", "mask", "tokens"])
@pytest.mark.parametrize("executor", [None, "numpy"])
def test_world_mode_has_the_same_bits_and_the_same_loss(name: str, executor: Any) -> None:
    rows = batch_of(0, 0, 0, 43)
    names = [*rows]

    def work(comm: Communicator) -> list[Any]:
        mt.manual_seed(2)
        net = Net()
        model = DataParallel(net, comm, shards=4)
        data = mt.data.ArrayDataset(*rows.values())
        loader = mt.data.DataLoader(data, 11, comm=comm, shards=4, accumulate=2)
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

        def run(*arrays: Any) -> None:
            batch = dict(zip(names, arrays, strict=True))
            COUNTED[name](model(batch["x"])[0], batch).backward()

        step: Any = run
        if executor:
            step = mt.compile(run, executor=executor, state=[WEIGHT])  # type: ignore[call-overload]
        losses = []
        with np.errstate(all="ignore"):
            for micro_batches in loader.steps():
                optimizer.zero_grad()
                for number, batch in enumerate(micro_batches, 1):
                    if number < len(micro_batches):
                        with model.no_sync():
                            step(*batch)
                    else:
                        step(*batch)
                optimizer.step()
                losses.append(model.loss)
        return [*losses, *(p.detach().numpy().copy() for p in net.parameters())]

    alone = in_process.run(1, work)[0]
    for world in (2, 4):
        for a, b in zip(in_process.run(world, work)[0], alone, strict=True):
            np.testing.assert_array_equal(a, b)
    mt.manual_seed(2)
    net = Net()
    optimizer = mt.optim.SGD(net.parameters(), lr=0.1)
    loader = mt.data.DataLoader(mt.data.ArrayDataset(*rows.values()), 11, comm=SingleCommunicator())
    for loss, arrays in zip(alone, loader, strict=False):  # the same steps in one piece
        optimizer.zero_grad()
        batch = dict(zip(names, arrays, strict=True))
        whole = COUNTED[name](net(batch["x"])[0], batch)
        assert loss == pytest.approx(whole.item(), rel=1e-12)
        whole.backward()
        optimizer.step()


@pytest.mark.slow
def test_native_code(native_code: None) -> None:
    needs_compiler()
    for several in (False, True):
        case = Case(2, 2, several)
        case.executor, case.micro, case.norm = "native", 1, False
        case.rows = np.full((STEPS, 1, 2), 3)
        check(in_process.run(2, lambda comm, case=case: trained(case, comm))[0], truth(case, 2))


@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("whole", [False, True], ids=["loss", "model and loss"])
def test_a_loss_that_a_compiled_step_returned(penalty: bool, whole: bool) -> None:
    def root(scores: Any, y: Any) -> Any:
        return F.cross_entropy(scores, y, ignore_index=-100)

    def work(comm: Communicator | None, ranks: list[int]) -> list[Any]:
        mt.manual_seed(2)
        net = Net()
        model: Any = net if comm is None else DataParallel(net, comm)
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
        function = (lambda x, y: root(model(x)[0], y)) if whole else root
        compiled = function if comm is None else mt.compile(function, executor="numpy")
        found = []
        for step in range(4):
            parts = [batch_of(step, 0, r, 4) for r in ranks]
            x, y = (mt.from_numpy(np.concatenate([p[n] for p in parts])) for n in ("x", "y"))
            optimizer.zero_grad()
            loss = compiled(x, y) if whole else compiled(model(x)[0], y)
            loss = 3 * loss + (net.scores.bias**2).sum() if penalty else loss
            loss.backward()
            optimizer.step()
            found.append(loss.item() if comm is None else model.loss)
        return [*found, *(p.detach().numpy().copy() for p in net.parameters())]

    check(in_process.run(3, lambda comm: work(comm, [comm.rank]))[0], work(None, [0, 1, 2]))


# Evaluation, rows and YAML ------------------------------------------------------------------------


EVALUATED: dict[str, Callable[[Any, Any], Any]] = {
    "ignored": lambda p, t: F.cross_entropy(p, t),
    "weights and a factor": lambda p, t: 3 * F.cross_entropy(p, t, weight=WEIGHT) + 1.5,
    "several": lambda p, t: 0.3 * F.cross_entropy(p, t, weight=WEIGHT) - F.cross_entropy(p, t) * 2,
    "beside the rows": lambda p, t: F.cross_entropy(p, t) + 0.1 * (p**2).mean(),
    "sum and count": lambda p, t: ((p.sum(1) * (t >= 0)).sum(), (t >= 0).sum()),
    "rows": lambda p, t: (p**2).mean(),
}


@pytest.mark.parametrize("name", EVALUATED)
def test_an_evaluation_in_batches_on_ranks_is_that_of_all_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = EVALUATED[name]
    rng = np.random.default_rng(0)
    scores, target = rng.normal(size=(37, CLASSES)), rng.integers(0, CLASSES, 37)
    target[rng.random(37) < 0.4] = -100
    target[5:20] = -100  # whole batches of which nothing counts
    with np.errstate(all="ignore"):
        expected = one_loss(loss(mt.from_numpy(scores), mt.from_numpy(target))).item()
    monkeypatch.setattr("microtrain.train.evaluation.ROWS", 4)
    data = mt.data.ArrayDataset(scores, target)

    def work(comm: Communicator) -> float:
        with np.errstate(all="ignore"):
            return evaluate(lambda x: x, loss, [], data, comm)["loss"]

    for world in (1, 2, 4):
        assert in_process.run(world, work)[0] == pytest.approx(expected, rel=1e-12)


def test_an_evaluation_whose_loss_is_another_sum_in_another_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def loss(p: Any, t: Any) -> Any:
        rows = 0.1 * (p**2).mean()
        return F.cross_entropy(p, t) + rows if t.max().item() >= 0 else rows

    monkeypatch.setattr("microtrain.train.evaluation.ROWS", 4)
    data = mt.data.ArrayDataset(np.ones((8, 3)), np.array([0, 1, 2, 0, -100, -100, -100, -100]))
    with pytest.raises(ConfigError, match=r"a sum of 2 means .* in one batch and of 1 in another"):
        evaluate(lambda x: x, loss, [], data, SingleCommunicator())


def test_an_evaluation_with_a_compiled_loss() -> None:
    rng = np.random.default_rng(0)
    scores, target = rng.normal(size=(6, CLASSES)), rng.integers(0, CLASSES, 6)

    def even(p: Any, t: Any) -> Any:
        return F.cross_entropy(p, t) + (p**2).mean()

    compiled = mt.compile(even)
    expected = even(mt.from_numpy(scores), mt.from_numpy(target)).item()
    for _ in range(3):
        found = evaluate(
            lambda x: x, compiled, [], mt.data.ArrayDataset(scores, target), SingleCommunicator()
        )
        assert found["loss"] == pytest.approx(expected, rel=1e-12)


YAML = """
name: denominators
data: {{type: ./data.py:rows, split: {{train: 0.8, val: 0.2}}}}
model: {{type: mlp, hidden: [5]}}
loss: {loss}
optimizer: {{type: sgd, lr: 0.1, momentum: 0.9}}
dtype: float64
train: {{duration: 5 epochs, batch_size: 30, accumulate: {accumulate}, compile: {compile}}}
checkpoint: {{monitor: val/loss}}
"""
DATA = """
import numpy as np

def rows(seed=0):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(101, 4))
    return x, np.argmax(x @ rng.normal(size=(4, 3)) + rng.normal(size=(101, 3)), 1)
"""
LOSSES = """
import microtrain as mt

def weighted(p, t):
    return mt.nn.functional.cross_entropy(p, t, weight=mt.tensor([0.2, 1.0, 5.0], dtype=p.dtype))

def sum_and_count(p, t):
    kept = (t != 1).to(p.dtype)
    losses = mt.nn.functional.cross_entropy(p, t, reduction="none")
    return (losses * kept).sum(), kept.sum()
"""


@pytest.mark.daily("sum_and_count", "ignore_index")
@pytest.mark.parametrize(
    "loss",
    [
        "{type: cross_entropy, weight: [0.2, 1.0, 5.0]}",
        "{type: cross_entropy, ignore_index: 1}",
        "./losses.py:weighted",
        "./losses.py:sum_and_count",
    ],
)
def test_a_run_from_yaml_is_the_same_on_any_number_of_ranks(loss: str, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "losses.py").write_text(LOSSES)

    def run(comm: Communicator, accumulate: int, compile: str) -> tuple[list[Any], list[Any]]:
        file = tmp_path / f"{comm.size}-{accumulate}-{compile}.yaml"
        if comm.rank == 0:
            file.write_text(YAML.format(loss=loss, accumulate=accumulate, compile=compile))
        comm.barrier()
        config = load_config(file, [f"run_dir={tmp_path / file.stem}"])
        trainer = Trainer.from_config(config, comm, Output(stream=io.StringIO()))
        assert trainer.train() == 0
        rows = [] if comm.rank else read_metrics(trainer.path / "metrics.jsonl")
        losses = [row["loss"] for row in rows if row["split"] in ("train", "val")]
        return losses, [p.detach().numpy().copy() for p in trainer.model.parameters()]

    alone = run(SingleCommunicator(), 1, "off")
    assert len(alone[0]) >= 10
    for world, accumulate, compile in ((1, 3, "numpy"), (2, 1, "numpy"), (4, 2, "off")):
        found = in_process.run(world, lambda c, a=accumulate, m=compile: run(c, a, m))[0]
        np.testing.assert_allclose(found[0], alone[0], rtol=1e-9)
        for a, b in zip(found[1], alone[1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-12)


def test_weights_that_do_not_fit_the_classes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(DATA)
    file = tmp_path / "run.yaml"
    loss = "{type: cross_entropy, weight: [1, 2]}"
    file.write_text(YAML.format(loss=loss, accumulate=1, compile="off"))
    config = load_config(file, [f"run_dir={tmp_path}"])
    with pytest.raises(ConfigError, match=r"weights of the classes of shape \(3,\), got .*\(2,\)"):
        Trainer.from_config(config, SingleCommunicator(), Output(stream=io.StringIO()))


def test_positives_weigh_more() -> None:
    loss = bce(pos_weight=3.0)
    score, yes = mt.tensor([[0.0]]), mt.tensor([[1.0]])
    assert loss(score, yes).item() == pytest.approx(3 * np.log(2))
