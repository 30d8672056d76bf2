"""What a step draws is the same at every number of ranks: samples have numbers of their own."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from exactness import relative

import microtrain as mt
from microtrain import random as mtr
from microtrain.data import ArrayDataset, DataLoader
from microtrain.distributed import in_process
from microtrain.distributed.data_parallel import DataParallel
from microtrain.distributed.single import SingleCommunicator
from microtrain.train.evaluation import evaluate

nn, F = mt.nn, mt.nn.functional
ROWS = np.random.default_rng(0).random((103, 6))


class VAE(nn.Module):
    """Variational, with noise on its weights and dropout besides."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(2, 6)
        self.moments = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        mu, logvar = self.moments(F.dropout(F.relu(self.encode(x)), 0.1)).chunk(2, 1)
        z = mu + mt.randn_like(mu) * (0.5 * logvar).exp()
        with mt.random.shared():
            weight = self.decode.weight + 0.01 * mt.randn(6, 2, dtype=mt.float64)
        out = F.linear(z, weight, self.decode.bias) * mt.bernoulli(mt.full_like(x, 0.9))
        return mt.cat([out, mu, logvar], 1)


def loss_of(out: Any, x: Any) -> Any:
    out, mu, logvar = out[:, :6], out[:, 6:8], out[:, 8:]
    kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1)
    return (F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(1) + kl).mean()


def run(
    comm: Any, wrap: Any = lambda step: step, accumulate: int = 1, stop: int = 12,
    state: Any = None, shards: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Losses and weights of steps up to `stop`, of five an epoch, taken up from `state`."""
    mt.manual_seed(5)
    model = DataParallel(VAE().double(), comm, shards=shards)
    optimizer = mt.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(ArrayDataset(ROWS), 22, seed=3, comm=comm, accumulate=accumulate,
                        shards=shards)  # fmt: skip
    done = 0
    if state is not None:
        model.load_state_dict({k: mt.from_numpy(v) for k, v in state["weights"].items()})
        optimizer.load_state_dict(state["optimizer"])
        mtr.set_rng_state(state["random"])
        done, loader.epoch = state["done"], state["done"] // 5

    def step(batches: Any) -> None:
        optimizer.zero_grad()
        for number, (x,) in enumerate(batches):
            loss = loss_of(model(x), x)
            if number < len(batches) - 1 and shards is None:
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()

    losses: list[float] = []
    with np.errstate(all="ignore"):
        step = wrap(step)
        while done < stop:
            for batches in loader.steps(start=done % 5):
                # Taken one by one where there are several: draws are for the one taken last.
                step([batches[0]] if len(batches) == 1 else batches)
                losses.append(model.loss)
                done += 1
                if done == stop:
                    break
    return {
        "losses": losses, "done": done, "random": mtr.get_rng_state(),
        "weights": {name: value.numpy().copy() for name, value in model.state_dict().items()},
        "optimizer": optimizer.state_dict(),
    }  # fmt: skip


def alone() -> dict[str, Any]:
    return run(SingleCommunicator())


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert relative(found["losses"], expected["losses"][-len(found["losses"]) :]) < 1e-12
    for name, value in expected["weights"].items():
        assert relative(found["weights"][name], value) < 1e-11


@pytest.mark.mpi
@pytest.mark.parametrize("wrap", [lambda step: step, mt.compile], ids=["eager", "captured"])
def test_a_vae_learns_the_same_at_every_number_of_ranks(comm: Any, wrap: Any) -> None:
    same(run(comm, wrap), alone())


@pytest.mark.mpi
def test_and_from_micro_batches(comm: Any) -> None:
    same(run(comm, accumulate=3), alone())


@pytest.mark.mpi
def test_and_taken_up_in_the_middle_of_an_epoch(comm: Any) -> None:
    half = run(comm, mt.compile, stop=7)
    same(run(comm, mt.compile, state=half), alone())


def test_the_same_bits_of_shards_at_every_number_of_ranks() -> None:
    found = [
        run_of_ranks[0]["weights"]
        for size in (1, 2, 4)
        for run_of_ranks in [in_process.run(size, functools.partial(run, shards=4))]
    ]
    for other in found[1:]:
        assert {k: v.tobytes() for k, v in other.items()} == {
            k: v.tobytes() for k, v in found[0].items()
        }


@pytest.mark.mpi
def test_evaluation_draws_for_its_rows_and_leaves_the_step_alone(comm: Any) -> None:
    mt.manual_seed(2)
    model, data = VAE().double(), ArrayDataset(ROWS, ROWS)

    def value(comm: Any) -> Any:
        return evaluate(model, loss_of, [], data, comm)

    expected = value(SingleCommunicator())
    mtr.begin_batch(11, (1, 2), 3, rows=5, ranks=comm.size)
    found, place = value(comm), mtr.place()
    assert place == (11, (1, 2), 3, 5, comm.size)
    mtr.begin_batch(0)
    assert relative(list(found.values()), list(expected.values())) < 1e-12


@pytest.mark.mpi
def test_rows_of_every_rank_have_numbers_of_their_own(comm: Any) -> None:
    """In a loop of one's own, without a loader, a forward call of the model is the step."""

    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(mt.ones(1))

        def forward(self, x: Any) -> Any:
            return mt.randn_like(x) * self.weight

    mtr.begin_batch(comm.rank * 2**40)
    model = DataParallel(Draws(), comm)
    for wrap in (lambda step: step, mt.compile):
        mt.manual_seed(0)
        step = wrap(lambda x: model(x).detach())
        found = [step(mt.ones(3, 2)).numpy().tobytes() for _ in range(4)]
        everyone = comm.all_gather_object(found)
        assert len({bits for rank in everyone for bits in rank}) == 4 * comm.size
        if wrap is not mt.compile:
            expected = found
    assert found == expected
    mtr.begin_batch(0)


@pytest.mark.mpi
def test_a_draw_that_is_not_of_rows_is_refused_on_several_ranks(comm: Any) -> None:
    loader = DataLoader(ArrayDataset(ROWS), 22, comm=comm)
    for (x,) in loader:
        assert len(x) != 30
        if comm.size > 1:
            with pytest.raises(RuntimeError, match=rf"randn: .*over {comm.size} ranks"):
                mt.randn(30, 2)
        else:
            mt.randn(30, 2)
        with mt.random.shared():
            drawn = mt.randn(30, 2).numpy().tobytes()
        assert len(set(comm.all_gather_object(drawn))) == 1
    mt.randn(30, 2)  # not in a step any more
