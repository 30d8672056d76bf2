"""DataParallel with threads as ranks: exact, whatever the ranks have and whatever they use."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from exactness import relative, train_regression
from hypothesis import given, settings
from hypothesis import strategies as st

import microtrain as mt
from microtrain.data import ArrayDataset, DataLoader
from microtrain.distributed import Communicator, in_process
from microtrain.distributed.data_parallel import DataParallel
from microtrain.distributed.single import SingleCommunicator


@pytest.mark.daily("[1-", "[3-3-")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_same_losses_and_weights_at_every_world_size(size, accumulate, reduction):
    options = {"accumulate": accumulate, "reduction": reduction}
    expected = train_regression(SingleCommunicator(), reduction=reduction)
    for found in in_process.run(size, lambda comm: train_regression(comm, **options)):
        assert relative(found["losses"], expected["losses"]) <= 1e-12
        for name, value in expected["weights"].items():
            assert relative(found["weights"][name], value) <= 1e-12


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 9),
    size=st.integers(1, 4),
    penalty=st.booleans(),
    parts=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_uneven_batches_penalties_and_empty_ranks_equal_one_process(
    rows, size, penalty, parts, seed
):
    """Any assignment of rows to ranks and micro-batches gives the gradient of all rows at once."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, 3)), rng.normal(size=(rows, 1))
    owner = rng.integers(0, size, rows)
    pass_of = rng.integers(0, len(parts), rows)

    def loss_of(model, inner, xb, yb):
        loss = mt.nn.functional.mse_loss(model(xb), yb)
        return loss + 0.1 * (inner.weight**2).sum() if penalty else loss

    def gradients(comm):
        mt.manual_seed(0)
        inner = mt.nn.Linear(3, 1, dtype="float64")
        model = DataParallel(inner, comm)
        for number in range(len(parts)):
            mine = (owner == comm.rank) & (pass_of == number)
            xb, yb = mt.from_numpy(x[mine]), mt.from_numpy(y[mine])
            if number < len(parts) - 1:
                with model.no_sync():
                    loss_of(model, inner, xb, yb).backward()
            else:
                loss_of(model, inner, xb, yb).backward()
        return model.loss, inner.weight.grad.numpy().copy(), inner.bias.grad.numpy().copy()

    def reference():
        mt.manual_seed(0)
        inner = mt.nn.Linear(3, 1, dtype="float64")
        loss = loss_of(inner, inner, mt.from_numpy(x), mt.from_numpy(y))
        loss.backward()
        return loss.item(), inner.weight.grad.numpy(), inner.bias.grad.numpy()

    expected = reference()
    with np.errstate(all="ignore"):
        for found in in_process.run(size, gradients):
            assert found[0] == pytest.approx(expected[0], rel=1e-12)
            assert relative(found[1], expected[1]) <= 1e-12
            assert relative(found[2], expected[2]) <= 1e-12


class Branches(mt.nn.Module):
    """Two layers, one or both of which a forward uses."""

    def __init__(self):
        super().__init__()
        self.a = mt.nn.Linear(2, 1, dtype="float64")
        self.b = mt.nn.Linear(2, 1, dtype="float64")
        self.c = mt.nn.Linear(2, 1, dtype="float64")

    def forward(self, x, use_b):
        return self.a(x) + self.b(x) if use_b else self.a(x)


def test_a_parameter_unused_everywhere_keeps_no_gradient_and_is_not_updated():
    def run(comm):
        mt.manual_seed(3)
        model = DataParallel(Branches(), comm)
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1, weight_decay=1.0)
        before = model.module.c.weight.detach().numpy().copy()
        model(mt.ones(2, 2, dtype="float64"), comm.rank == 1).sum().backward()
        optimizer.step()
        c_same = np.array_equal(before, model.module.c.weight.detach().numpy())
        return model.module.c.weight.grad is None, c_same, model.module.b.weight.grad.numpy().copy()

    results = in_process.run(3, run)
    for no_grad, same, b_grad in results:
        assert no_grad and same
        # Used on rank 1 only: its sum over 2 of 6 samples, weighted by 2 and divided by 6.
        np.testing.assert_allclose(b_grad, [[2 * 2 / 6, 2 * 2 / 6]], rtol=1e-15)


def test_tied_parameters_are_reduced_once():
    class Tied(mt.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = mt.nn.Linear(2, 2, bias=False, dtype="float64")
            self.second = mt.nn.Linear(2, 2, bias=False, dtype="float64")
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    x = np.arange(8.0).reshape(4, 2)

    def run(comm):
        mt.manual_seed(0)
        model = DataParallel(Tied(), comm)
        rows = np.array_split(x, comm.size)[comm.rank]
        model(mt.from_numpy(rows)).mean().backward()
        return list(model.state_dict()), model.module.first.weight.grad.numpy().copy()

    (names, alone), *_ = in_process.run(1, run)
    assert names == ["first.weight", "second.weight"]
    for _, found in in_process.run(4, run):
        assert relative(found, alone) <= 1e-12


def test_a_rank_without_rows_contributes_exactly_nothing():
    def run(comm):
        mt.manual_seed(0)
        model = DataParallel(mt.nn.Linear(2, 1), comm)
        n = 3 if comm.rank == 0 else 0
        loss = mt.nn.functional.mse_loss(model(mt.ones(n, 2)), mt.zeros(n, 1))
        loss.backward()
        return loss.item(), model.loss, model.samples, model.module.weight.grad.numpy().copy()

    with np.errstate(all="ignore"):
        (alone,) = in_process.run(1, run)
        both = in_process.run(2, run)
    assert math.isnan(both[1][0])  # a mean over nothing
    for found in both:
        assert found[1:3] == (pytest.approx(alone[1], rel=1e-6), 3)
        np.testing.assert_allclose(found[3], alone[3], rtol=1e-6)


def test_gradients_kept_from_an_earlier_step_are_added_to_not_reduced_again():
    def run(comm):
        mt.manual_seed(0)
        model = DataParallel(mt.nn.Linear(2, 1, dtype="float64"), comm)
        x = mt.ones(2, 2, dtype="float64")
        model(x).mean().backward()
        once = model.module.weight.grad.numpy().copy()
        model(x).mean().backward()  # without zero_grad: accumulates, as in PyTorch
        return once, model.module.weight.grad.numpy().copy()

    for once, twice in in_process.run(3, run):
        np.testing.assert_allclose(twice, 2 * once, rtol=1e-14)


def test_hooks_see_what_they_are_promised():
    """Tensor hooks see n times the local gradient, post-accumulate hooks the global one."""

    def run(comm):
        mt.manual_seed(0)
        model = DataParallel(mt.nn.Linear(1, 1, bias=False, dtype="float64"), comm)
        weight, seen = model.module.weight, []
        weight.register_hook(lambda g: seen.append(("tensor", g.item())))
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(("post", p.grad.item())))
        x = mt.full((2, 1), float(comm.rank + 1), dtype="float64")
        model(x).mean().backward()
        return seen

    first, second = in_process.run(2, run)
    assert first == [("tensor", 2.0), ("post", 1.5)]
    assert second == [("tensor", 4.0), ("post", 1.5)]


def test_count_replaces_the_number_of_samples():
    def run(comm):
        model = DataParallel(mt.nn.Linear(1, 1, bias=False, dtype="float64"), comm)
        x = mt.full((1, 1), float(comm.rank), dtype="float64")
        loss = model(x).mean()
        model.count(30 if comm.rank else 10)
        loss.backward()
        return model.module.weight.grad.item(), model.samples

    assert in_process.run(2, run) == [(0.75, 40)] * 2


ERRORS = {
    "no forward": (
        lambda model, inner: (inner.weight**2).sum().backward(),
        "how many samples is unknown",
    ),
    "create_graph": (
        lambda model, inner: model(mt.ones(1, 2)).sum().backward(create_graph=True),
        "create_graph=True",
    ),
    "second wrapper": (lambda model, inner: DataParallel(inner, model.comm), "wrapped already"),
    "new parameter": (
        lambda model, inner: (
            setattr(inner, "further", mt.nn.Linear(1, 1)),
            model(mt.ones(1, 2)).sum().backward(),
        ),
        "did not have the parameter further.weight",
    ),
    "negative count": (lambda model, inner: model.count(-1), "at least 0"),
    "copy": (lambda model, inner: copy.deepcopy(model), "copy its model"),
    "pickle": (lambda model, inner: pickle.dumps(model), "copy its model"),
    "no count": (lambda model, inner: model.count(None), "at least 0"),
    "reduction": (lambda model, inner: DataParallel(inner, reduction="max"), "mean or sum"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_misuse_is_refused(case):
    act, words = ERRORS[case]
    inner = mt.nn.Linear(2, 1)
    model = DataParallel(inner, SingleCommunicator())
    with pytest.raises((RuntimeError, TypeError, ValueError), match=words):
        act(model, inner)


def test_a_frozen_model_that_another_learns_through_counts_no_rows():
    """As in the generator's step of an adversarial pair: no backward into it will follow."""
    first, second = mt.nn.Linear(2, 2), mt.nn.Linear(2, 1)
    one, other = (DataParallel(net, SingleCommunicator()) for net in (first, second))
    for param in other.parameters():
        param.requires_grad_(False)
    other(one(mt.ones(5, 2))).sum().backward()
    for param in other.parameters():
        param.requires_grad_(True)
    other(mt.ones(3, 2)).mean().backward()
    assert (one.samples, other.samples) == (5, 3)


def test_a_frozen_copy_may_live_in_a_wrapped_model():
    inner = mt.nn.Linear(2, 1)
    model = DataParallel(inner, SingleCommunicator())
    inner.average = copy.deepcopy(inner).requires_grad_(False)
    model(mt.ones(3, 2)).sum().backward()
    assert (model.samples, inner.average.weight.grad) == (3, None)


def test_other_models_may_run_backward_in_between():
    inner, other = mt.nn.Linear(2, 1), mt.nn.Linear(2, 1)
    model = DataParallel(inner, SingleCommunicator())
    loss = model(mt.ones(4, 2)).mean()
    other(mt.ones(4, 2)).mean().backward()
    np.testing.assert_array_equal(other.weight.grad.numpy(), [[1.0, 1.0]])
    loss.backward()
    assert model.samples == 4


def test_autograd_grad_does_not_communicate():
    def run(comm):
        model = DataParallel(mt.nn.Linear(1, 1, bias=False, dtype="float64"), comm)
        x = mt.full((1, 1), float(comm.rank + 1), dtype="float64")
        (g,) = mt.autograd.grad(model(x).mean(), model.module.weight)
        return g.item()

    assert in_process.run(2, run) == [1.0, 2.0]


def test_a_root_that_is_no_scalar_has_no_loss():
    def run(comm):
        model = DataParallel(mt.nn.Linear(1, 1), comm)
        model(mt.ones(2, 1)).backward(mt.ones(2, 1))
        return model.loss

    assert in_process.run(2, run) == [None, None]


def test_values_of_rank_0_are_taken_and_models_are_compared():
    def values(comm):
        mt.manual_seed(comm.rank)
        model = DataParallel(mt.nn.Linear(3, 2), comm)
        return model.module.weight.detach().numpy().copy()

    first, *others = in_process.run(3, values)
    assert all(np.array_equal(first, other) for other in others)

    def differ(comm):
        return DataParallel(mt.nn.Linear(3, 2 + comm.rank), comm)

    with pytest.raises(RuntimeError, match=r"weight is float32\[2, 3\] on rank 0, float32"):
        in_process.run(2, differ)


def test_an_optimizer_made_first_shares_the_storage():
    inner = mt.nn.Linear(2, 1)
    optimizer = mt.optim.SGD(inner.parameters(), lr=0.5)
    model = DataParallel(inner, SingleCommunicator())
    assert model.storage is optimizer.storage
    before = inner.weight.detach().numpy().copy()
    model(mt.ones(2, 2)).mean().backward()
    optimizer.step()
    np.testing.assert_allclose(inner.weight.detach().numpy(), before - 0.5)


def test_a_dropped_wrapper_stops_listening():
    model = DataParallel(mt.nn.Linear(1, 1), SingleCommunicator())
    inner = model.module
    del model
    inner(mt.ones(2, 1)).sum().backward()
    assert inner.weight.grad.item() == 2.0


def test_loader_and_wrapper_agree_on_empty_ranks():
    """Five rows over four ranks, two at a time: ranks 2 and 3 never see a row."""

    def run(comm):
        mt.manual_seed(0)
        model = DataParallel(mt.nn.Linear(1, 1), comm)
        data = ArrayDataset(np.ones((5, 1), np.float32), np.zeros((5, 1), np.float32))
        seen = []
        with np.errstate(all="ignore"):
            for x, y in DataLoader(data, batch_size=2, comm=comm):
                model.zero_grad()
                mt.nn.functional.mse_loss(model(x), y).backward()
                seen.append((len(x), model.samples))
        return seen, threading.current_thread().name

    results = in_process.run(4, run)
    assert [r[0] for r in results] == [
        [(1, 2), (1, 2), (1, 1)],
        [(1, 2), (1, 2), (0, 1)],
        [(0, 2), (0, 2), (0, 1)],
        [(0, 2), (0, 2), (0, 1)],
    ]


# Against the same loop with plain models, on one rank: the arithmetic must be the same ------------


def test_two_wrapped_models_in_one_backward_are_scaled_once():
    """The generator's step of a GAN reaches both models; n counts once, not once a model."""

    def gradients(wrap):
        mt.manual_seed(0)
        first, second = mt.nn.Linear(2, 3, dtype="float64"), mt.nn.Linear(3, 1, dtype="float64")
        outer, inner = wrap(second), wrap(first)
        outer(inner(mt.ones(8, 2, dtype="float64"))).mean().backward()
        return [p.grad.numpy().copy() for m in (first, second) for p in m.parameters()]

    plain = gradients(lambda module: module)
    wrapped = gradients(lambda module: DataParallel(module, SingleCommunicator()))
    for found, expected in zip(wrapped, plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_models_that_are_told_different_counts_in_one_backward_are_refused():
    first = DataParallel(mt.nn.Linear(2, 3), SingleCommunicator())
    second = DataParallel(mt.nn.Linear(3, 1), SingleCommunicator())
    hidden = first(mt.ones(4, 2))
    first.count(3)
    with pytest.raises(RuntimeError, match="count differently"):
        second(mt.cat([hidden, hidden])).mean().backward()


@pytest.mark.parametrize("owned", [False, True], ids=["free", "another optimizer's"])
@pytest.mark.parametrize("earlier", [False, True], ids=["first", "added"])
def test_leaves_outside_the_model_get_their_ordinary_gradient(owned, earlier):
    encoder = mt.nn.Linear(2, 2, dtype="float64")
    model = DataParallel(mt.nn.Linear(2, 1, dtype="float64"), SingleCommunicator())
    x = mt.ones(7, 2, dtype="float64", requires_grad=True)
    outside, seen = (x, encoder.weight, encoder.bias), []
    x.register_hook(lambda g: seen.append(g.numpy().copy()))
    optimizer = mt.optim.SGD(encoder.parameters()) if owned else None

    def run(head):
        for leaf in outside:  # something to accumulate onto
            leaf.grad = mt.ones_like(leaf) if earlier else None
        head(encoder(x)).mean().backward()
        return [leaf.grad.numpy().copy() for leaf in outside]

    plain = copy.deepcopy(model.module)
    for found, expected in zip(run(model), run(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-14)
    del optimizer


def test_tensors_outside_the_model_that_are_asked_for_get_their_ordinary_gradient():
    model = DataParallel(mt.nn.Linear(2, 1, dtype="float64"), SingleCommunicator())
    x = mt.ones(7, 2, dtype="float64", requires_grad=True)

    def run(head):
        hidden = x * 2
        weight = next(iter(head.parameters()))
        head(hidden).mean().backward(inputs=[hidden, x, weight])
        return hidden.grad.numpy(), x.grad.numpy().copy(), weight.grad.numpy().copy()

    plain, found = copy.deepcopy(model.module), run(model)
    x.grad = None
    for value, expected in zip(found, run(plain), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-14)
    assert model.samples == 7


def test_backward_into_other_inputs_alone_is_not_ours():
    model = DataParallel(mt.nn.Linear(2, 1, dtype="float64"), SingleCommunicator())
    x = mt.ones(3, 2, dtype="float64", requires_grad=True)
    loss = model(x).mean()
    loss.backward(inputs=[x], retain_graph=True)
    row = model.module.weight.detach().numpy() / 3
    np.testing.assert_allclose(x.grad.numpy(), np.tile(row, (3, 1)), rtol=1e-14)
    assert model.loss is None and model.module.weight.grad is None
    loss.backward()
    assert model.samples == 3


def _step(model, value=1.0, fail=False):
    x = mt.full((2, 1), value, dtype="float64")
    out = model(x)
    if fail:
        out.register_hook(lambda g: 1 / 0)
    out.mean().backward()


def discard_unreduced(model):
    with model.no_sync():
        _step(model)
    model.zero_grad()


def discard_with_zeros(model):
    with model.no_sync():
        _step(model)
    model.storage.zero_grad(set_to_none=False)


def fail_in_backward(model):
    with pytest.raises(ZeroDivisionError):
        _step(model, fail=True)
    model.zero_grad()


def discard_what_was_kept(model):
    _step(model)
    with model.no_sync():
        _step(model)
    model.zero_grad()


def fail_without_rows(model):
    loss = model(mt.ones(0, 1, dtype="float64")).sum()
    loss.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    model.zero_grad()


def validate_with_grad_enabled(model):
    model.eval()
    model(mt.ones(5, 1, dtype="float64"))
    model.train()


@pytest.mark.parametrize(
    "before",
    [
        discard_unreduced,
        discard_with_zeros,
        fail_in_backward,
        discard_what_was_kept,
        fail_without_rows,
        validate_with_grad_enabled,
    ],
)
def test_what_was_discarded_does_not_reach_the_next_step(before):
    def run(comm):
        model = DataParallel(mt.nn.Linear(1, 1, bias=False, dtype="float64"), comm)
        before(model)
        _step(model, value=3.0)
        return model.module.weight.grad.item(), model.samples

    assert in_process.run(1, run) == [(3.0, 2)]
    assert in_process.run(2, run) == [(3.0, 4)] * 2


def test_backward_in_another_thread_is_reduced_too():
    def run(comm):
        model = DataParallel(mt.nn.Linear(1, 1, bias=False, dtype="float64"), comm)
        worker = threading.Thread(target=_step, args=(model, float(comm.rank)))
        worker.start()
        worker.join()
        return model.module.weight.grad.item(), model.samples

    assert in_process.run(2, run) == [(0.5, 4)] * 2


def test_count_before_the_forward_replaces_it_as_well():
    model = DataParallel(mt.nn.Linear(1, 1), SingleCommunicator())
    model.count(10)
    model(mt.ones(1, 1)).mean().backward()
    assert model.samples == 10


def test_an_argument_without_dimensions_is_not_a_number_of_samples():
    class Scaled(mt.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mt.nn.Linear(1, 1)

        def forward(self, temperature, x):
            return self.inner(x) * temperature

    model = DataParallel(Scaled(), SingleCommunicator())
    model(mt.tensor(2.0), mt.ones(4, 1)).mean().backward()
    assert model.samples == 4


def test_wrappers_with_other_options_are_refused() -> None:
    def work(comm: Communicator) -> None:
        DataParallel(mt.nn.Linear(1, 1), comm, sync_batchnorm=comm.rank == 0)

    message = "sync_batchnorm is True on rank 0, False on ranks 1, 2"
    with pytest.raises(RuntimeError, match=message):
        in_process.run(3, work)


GARBAGE = """
import gc
import microtrain as mt
from microtrain.distributed import DataParallel
from microtrain.distributed.single import SingleCommunicator

def model():
    made = DataParallel(mt.nn.Linear(3, 1), SingleCommunicator())
    made.__dict__["me"] = made  # only the garbage collector ends it
    return made

x = mt.ones(2, 3)
gc.disable()
for later in range(80):
    garbage = [model() for _ in range(20)]
    net = model()
    loss = net(x).sum()
    garbage.clear()
    gc.set_threshold(gc.get_count()[0] + later)  # after so many allocations of the backward pass
    gc.enable()
    loss.backward()
    gc.disable()
    gc.collect()
print("done")
"""


@pytest.mark.slow
def test_models_may_be_collected_at_any_point_of_a_backward_pass():
    """Where this happened inside of `tuple(a_list)`, CPython 3.11 crashed, or told one twice."""
    done = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr.decode()
