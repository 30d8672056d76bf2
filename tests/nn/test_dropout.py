"""Dropout, and the streams that its masks are drawn from."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain import random as mtr
from microtrain.data import ArrayDataset, DataLoader
from microtrain.distributed import in_process
from microtrain.nn import functional as F


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    before, place = mtr.get_rng_state(), mtr.place()
    mt.manual_seed(3)
    mtr.begin_batch(0)
    yield
    mtr.set_rng_state(before)
    mtr.begin_batch(*place)


def mask(*shape: int, p: float = 0.5) -> Any:
    return F.dropout(mt.ones(*shape, dtype=mt.float64), p).numpy()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_asked_for_and_the_rest_is_scaled(p: float) -> None:
    found = mask(400, 500, p=p)
    np.testing.assert_allclose(np.unique(found), [0, 1 / (1 - p)], rtol=1e-15)
    deviation = np.sqrt(p * (1 - p) / found.size)
    assert abs((found == 0).mean() - p) < 5 * deviation
    # neither rows nor columns know of each other
    dropped = (found == 0) - p
    for shift in ((0, 1), (1, 0), (3, 7)):
        moved = np.roll(dropped, shift, (0, 1))
        assert abs((dropped * moved).mean()) < 5 * p * (1 - p) / np.sqrt(found.size)


def test_the_gradient_passes_where_the_value_did() -> None:
    x = mt.randn(5, 6, dtype=mt.float64).requires_grad_()
    y = F.dropout(x, 0.3)
    (g,) = mt.autograd.grad(y.sum(), [x], create_graph=True)
    np.testing.assert_allclose(g.numpy(), y.detach().numpy() / x.detach().numpy(), rtol=1e-12)
    assert mt.autograd.gradgradcheck(lambda x: F.dropout(x, 0.0), [x])


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_or_all_is_dropped(p: float) -> None:
    np.testing.assert_array_equal(mask(3, 4, p=p), 1 - p)


def test_evaluation_changes_nothing_and_draws_nothing() -> None:
    layer, x = mt.nn.Dropout(0.5).eval(), mt.ones(4)
    assert layer(x) is x
    assert mtr.place() == (0, (0, 0), 0, None, 1)
    layer.train()
    layer(x)
    assert mtr.place() == (0, (0, 0), 1, None, 1)


@pytest.mark.parametrize("function", [F.dropout1d, F.dropout2d, F.dropout3d])
def test_channels_are_dropped_whole(function: Any) -> None:
    rest = {F.dropout1d: (6,), F.dropout2d: (2, 3), F.dropout3d: (2, 1, 3)}[function]
    found = function(mt.ones(50, 8, *rest)).numpy().reshape(50, 8, -1)
    assert (found == found[:, :, :1]).all()
    assert 0.3 < (found == 0).mean() < 0.7
    with pytest.raises(RuntimeError, match="samples first"):
        function(mt.ones(8, *rest))


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_what_is_no_probability_is_refused(p: float) -> None:
    for call in (lambda: F.dropout(mt.ones(2), p), lambda: mt.nn.Dropout(p)):
        with pytest.raises(ValueError, match="between 0 and 1"):
            call()


def test_integers_and_inplace_are_refused() -> None:
    with pytest.raises(RuntimeError, match="floating point"):
        F.dropout(mt.ones(2, dtype=mt.int64))
    with pytest.raises(RuntimeError, match="inplace"):
        F.dropout(mt.ones(2), inplace=True)
    with pytest.raises(ValueError, match="inplace"):
        mt.nn.Dropout(inplace=True)


def test_alpha_dropout_keeps_mean_and_deviation() -> None:
    x = mt.randn(400, 500, dtype=mt.float64)
    for p in (0.1, 0.5):
        found = F.alpha_dropout(x, p, training=True).numpy()
        assert abs(found.mean()) < 0.02
        assert abs(found.std() - 1) < 0.02
        dropped = np.unique(found, return_counts=True)[1].max()  # they have one value
        assert abs(dropped / found.size - p) < 0.005
    assert F.alpha_dropout(x, 0.5) is x
    assert not F.alpha_dropout(x, 1.0, training=True).numpy().any()
    whole = F.feature_alpha_dropout(mt.ones(50, 8, 6), 0.5, training=True).numpy()
    assert (whole == whole[:, :, :1]).all() and len(np.unique(whole)) == 2


def test_rrelu_draws_slopes_between_its_bounds() -> None:
    x = -mt.ones(200, 300, dtype=mt.float64)
    slopes = -F.rrelu(x, 0.2, 0.6, training=True).numpy()
    assert 0.2 <= slopes.min() < 0.201 and 0.599 < slopes.max() < 0.6
    assert abs(slopes.mean() - 0.4) < 0.002
    np.testing.assert_array_equal(F.rrelu(x, 0.2, 0.6), -0.4)
    y = mt.tensor([1.0, 0.0, -2.0], requires_grad=True)
    F.rrelu(y, 0.25, 0.25, training=True).sum().backward()
    assert y.grad.tolist() == [1.0, 0.25, 0.25]
    for call in (lambda: F.rrelu(y, 0.5, 0.1), lambda: F.rrelu(y, inplace=True)):
        with pytest.raises(RuntimeError, match="rrelu"):
            call()


# The stream -------------------------------------------------------------------------------------


def test_draws_differ_by_number_step_and_seed_and_by_nothing_else() -> None:
    first, second = mask(4, 8), mask(4, 8)
    mtr.end_step()
    third = mask(4, 8)
    mt.manual_seed(4)
    fourth = mask(4, 8)
    found = [m.tobytes() for m in (first, second, third, fourth)]
    assert len(set(found)) == 4
    mt.manual_seed(3)
    mt.randn(100)  # the stream of creation functions is another one
    assert mask(4, 8).tobytes() == found[0]


def test_taking_a_batch_starts_the_draws_again() -> None:
    first = mask(4, 8)
    mtr.begin_batch(0)
    np.testing.assert_array_equal(mask(4, 8), first)


def test_an_optimizer_step_moves_the_stream() -> None:
    weight = mt.nn.Parameter(mt.ones(2))
    optimizer = mt.optim.SGD([weight], lr=0.1)
    before = mask(4, 8)
    optimizer.step()
    assert mask(4, 8).tobytes() != before.tobytes()


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("row", [0, 1, 2, 5, 7, 16])
def test_a_rank_draws_its_rows_of_the_global_mask(row: int, width: int) -> None:
    whole = mtr.forward_words((20, width), 0)
    mtr.begin_batch(row)
    np.testing.assert_array_equal(mtr.forward_words((20 - row, width), 0), whole[row:])
    assert mtr.forward_words((0, width), 0).shape == (0, width)


def test_the_state_of_the_stream_can_be_kept() -> None:
    mask(3, 3)
    mtr.end_step()
    mask(3, 3)
    state = mtr.get_rng_state()
    expected = mask(3, 3)
    mt.manual_seed(99)
    mtr.set_rng_state(state)
    np.testing.assert_array_equal(mask(3, 3), expected)


def test_without_a_loader_ranks_draw_different_masks() -> None:
    def rank_main(comm: Any) -> Any:
        mt.manual_seed(3)
        return mask(4, 16).tobytes()

    assert len(set(in_process.run(3, rank_main))) == 3


def global_masks(comm: Any, accumulate: int) -> list[Any]:
    """The masks of every global batch of two epochs, put together from all ranks."""
    mt.manual_seed(3)
    loader = DataLoader(ArrayDataset(np.arange(23.0)), 9, comm=comm, accumulate=accumulate)
    found = []
    for _ in range(2):
        for micro_batches in loader.steps():
            parts = [(batch.offset, mask(len(batch[0]), 5)) for batch in micro_batches]
            mtr.end_step()
            everyone = comm.all_gather_object(parts)
            rows = sorted((p for rank in everyone for p in rank if len(p[1])), key=lambda p: p[0])
            found.append(np.concatenate([part for _, part in rows]))
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("accumulate", [1, 3])
def test_masks_depend_on_neither_ranks_nor_accumulation(comm: Any, accumulate: int) -> None:
    from microtrain.distributed.single import SingleCommunicator

    alone = global_masks(SingleCommunicator(), 1)
    together = global_masks(comm, accumulate)
    assert len({m.tobytes() for m in alone}) == 6
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pass_leaves_the_stream_where_it_was() -> None:
    loader = DataLoader(ArrayDataset(np.arange(8.0)), 4)
    there = (7, (2, 3), 5, None, 1)
    mtr.begin_batch(*there)
    for number, _ in enumerate(loader):
        assert mtr.place() == (0, (0, number), 0, 4, 1)
        mtr.next_draw()
    assert mtr.place() == there
    with contextlib.suppress(StopIteration):
        for _ in loader:
            break
    assert mtr.place() == there


def test_batches_without_a_step_between_them_have_masks_of_their_own() -> None:
    loader = DataLoader(ArrayDataset(np.arange(8.0)), 4)
    found = [mask(4, 8).tobytes() for _ in range(3) for _ in loader]
    assert len(set(found)) == 6
