"""Flat storage: one memory for all parameters, and what assignments and owners do to it."""

import gc
import weakref

import numpy as np
import pytest

import microtrain as mt
from microtrain.optim import SGD
from microtrain.optim.flat import FOOTER, FlatStorage, is_flat


def parameters():
    torch_order = mt.nn.Parameter(mt.arange(6.0).view(2, 3))
    transposed = mt.nn.Parameter(mt.arange(6.0).view(3, 2).T)
    return [torch_order, transposed, mt.nn.Parameter(mt.tensor(5.0)), mt.nn.Parameter(mt.ones(0))]


def test_values_and_gradients_live_in_two_buffers_in_definition_order():
    params = parameters()
    values = [p.tolist() for p in params]
    storage = FlatStorage.of(params, "test")
    (buffer,) = storage.buffers
    assert [p.tolist() for p in params] == values
    assert buffer.data.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 5]
    assert buffer.wide.size == 13 + FOOTER + 4
    sum((p * p).sum() for p in params).backward()
    assert buffer.grad.tolist() == (2 * buffer.data).tolist()
    for p in params:
        assert np.shares_memory(p.detach().numpy(), buffer.data) or not p.numel()
        assert np.shares_memory(p.grad.numpy(), buffer.grad) or not p.numel()


def test_the_memory_order_of_a_parameter_stays():
    params = parameters()
    FlatStorage.of(params, "test")
    (params[0].sum() + params[1].sum()).backward()
    for p, order in zip(params, ("C_CONTIGUOUS", "F_CONTIGUOUS"), strict=False):
        assert p._array.flags[order]
        assert p.grad._array.flags[order]


def test_gradients_that_are_there_are_taken_along():
    a, b = mt.ones(2, requires_grad=True), mt.ones(2, requires_grad=True)
    (a * 3).sum().backward()
    SGD([a, b], lr=0.1)
    assert (a.grad.tolist(), b.grad) == ([3.0, 3.0], None)
    (a * 1).sum().backward()
    assert a.grad.tolist() == [4.0, 4.0]


def test_aliases_taken_before_stay_behind_and_those_taken_after_follow():
    p = mt.nn.Parameter(mt.ones(2))
    before = p.detach()
    optimizer = SGD([p], lr=0.5)
    after, view = p.detach(), p.data[0]
    p.sum().backward()
    optimizer.step()
    assert before.tolist() == [1.0, 1.0]
    assert (after.tolist(), view.item(), p.tolist()) == ([0.5, 0.5], 0.5, [0.5, 0.5])
    before.mul_(3)
    assert p.version.n == 1


# Assignments --------------------------------------------------------------------------------------


def test_data_is_copied_in():
    p = mt.nn.Parameter(mt.ones(2))
    optimizer = SGD([p], lr=0.5)
    home = p._array
    value = mt.tensor([3.0, 4.0])
    p.data = value
    value.zero_()
    assert p._array is home
    assert p.tolist() == [3.0, 4.0]
    for wrong in (mt.ones(3), mt.ones(2, dtype=mt.float64)):
        with pytest.raises(RuntimeError, match=r"data: expected shape \(2,\) and dtype float32"):
            p.data = wrong
    p.data[0] = 7
    assert optimizer.storage.buffers[0].data.tolist() == [7.0, 4.0]


def test_grad_is_copied_in():
    p = mt.nn.Parameter(mt.ones(2))
    optimizer = SGD([p], lr=0.5)
    value = mt.tensor([2.0, 4.0])
    p.grad = value
    value.zero_()
    assert p.grad.tolist() == [2.0, 4.0]
    p.grad *= 2
    optimizer.step()
    assert p.tolist() == [-1.0, -3.0]
    p.grad = None
    assert p.grad is None
    optimizer.step()
    assert p.tolist() == [-1.0, -3.0]
    with pytest.raises(RuntimeError, match="shape"):
        p.grad = mt.ones(3)


def test_a_kept_gradient_is_overwritten_by_the_next_backward():
    """Differs from PyTorch: clone() what is to be kept."""
    p = mt.nn.Parameter(mt.ones(2))
    optimizer = SGD([p], lr=0.5)
    (p * 2).sum().backward()
    kept, cloned = p.grad, p.grad.clone()
    optimizer.zero_grad()
    assert p.grad is None
    (p * 3).sum().backward()
    assert (kept.tolist(), cloned.tolist()) == ([3.0, 3.0], [2.0, 2.0])


def test_a_graph_over_a_gradient_that_was_overwritten_is_stale():
    p, w = mt.nn.Parameter(mt.ones(2)), mt.ones(2, requires_grad=True)
    optimizer = SGD([p], lr=0.5)
    p.sum().backward()
    loss = (p.grad * w).sum()
    optimizer.zero_grad()
    p.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


def test_a_step_makes_saved_parameters_stale_but_only_those_it_writes():
    p, q, x = (mt.nn.Parameter(mt.ones(2)) for _ in range(3))
    optimizer = SGD([p, q], lr=0.5)
    with_p, with_q = (p * x).sum(), (q * x).sum()
    p.sum().backward()
    optimizer.step()
    with_q.backward()
    with pytest.raises(RuntimeError, match=r"saved .*, which is at version 1; expected version 0"):
        with_p.backward()


def test_a_gradient_with_a_graph():
    p = mt.nn.Parameter(mt.ones(2))
    optimizer = SGD([p], lr=0.5)
    (p**3).sum().backward(create_graph=True)
    assert p.grad.requires_grad
    assert np.shares_memory(p.grad.detach().numpy(), optimizer.storage.buffers[0].grad)
    (second,) = mt.autograd.grad(p.grad.sum(), p)
    assert second.tolist() == [6.0, 6.0]
    (p * 2).sum().backward(create_graph=True)
    assert p.grad.tolist() == [5.0, 5.0]
    with mt.no_grad():
        p.grad.mul_(2)  # clipping, for instance
    optimizer.step()
    assert p.tolist() == [-4.0, -4.0]
    node = weakref.ref(p.grad.grad_fn)
    gc.disable()
    try:
        optimizer.zero_grad()  # or parameter and graph would hold each other
        assert node() is None
    finally:
        gc.enable()
    p.sum().backward()
    assert not p.grad.requires_grad


# Owners -------------------------------------------------------------------------------------------


def test_a_second_owner_of_the_same_set_shares():
    params = parameters()
    first = FlatStorage.of(params, "first")
    assert FlatStorage.of(reversed(params), "second") is first
    optimizer = SGD(params, lr=0.1)
    assert optimizer.storage is first
    assert first.owners == ["first", "second", "SGD"]
    del optimizer
    assert first.owners == ["first", "second"]
    assert all(is_flat(p) for p in params)


@pytest.mark.parametrize("chosen", [slice(0, 2), slice(1, None), slice(0, 1)])
def test_an_overlapping_other_set_is_refused(chosen):
    params = parameters()
    optimizer = SGD(params, lr=0.1)
    with pytest.raises(RuntimeError, match=r"already belong to SGD with another set of 4"):
        SGD(params[chosen], lr=0.1)
    with pytest.raises(RuntimeError, match="another set"):
        SGD([*params, mt.nn.Parameter(mt.ones(1))], lr=0.1)
    assert optimizer.storage.owners == ["SGD"]


def test_a_group_is_added_once_the_other_owner_is_gone():
    first, second = (SGD(params, lr=0.1) for params in [parameters()] * 2)
    extra = mt.nn.Parameter(mt.ones(1))
    with pytest.raises(RuntimeError, match="also belong to another optimizer"):
        second.add_param_group({"params": [extra]})
    del first
    gc.collect()
    second.add_param_group({"params": [extra]})
    assert second.storage.owners == ["SGD"]
    (extra * 2).sum().backward()
    second.step()
    assert extra.item() == pytest.approx(0.8)


@pytest.mark.parametrize("chosen", [slice(None), slice(1, 3)])
def test_after_the_owner_is_gone_a_new_one_starts_anew(chosen):
    params = parameters()
    optimizer = SGD(params, lr=0.5, momentum=0.9)
    (params[2] * 3).backward()
    optimizer.step()
    del optimizer
    assert not any(is_flat(p) for p in params)
    assert params[2].item() == 3.5
    assert params[2].grad.item() == 3.0
    again = SGD(params[chosen], lr=0.5)
    assert params[2].grad.item() == 3.0
    again.step()
    assert params[2].item() == 2.0


def test_a_dropped_optimizer_frees_its_buffers_with_the_parameters():
    p = mt.nn.Parameter(mt.ones(2))
    optimizer = SGD([p], lr=0.1)
    buffer = weakref.ref(optimizer.storage.buffers[0])
    gc.disable()
    try:
        p.sum().backward()
        optimizer.step()
        del optimizer, p
        assert buffer() is None
    finally:
        gc.enable()


def test_frozen_parameters_are_part_of_the_layout():
    a, b = mt.nn.Parameter(mt.ones(2)), mt.nn.Parameter(mt.ones(2), requires_grad=False)
    optimizer = SGD([a, b], lr=0.5, weight_decay=0.1)
    (a * b).sum().backward()
    optimizer.step()
    assert (b.tolist(), b.grad) == ([1.0, 1.0], None)
    assert optimizer.storage.buffers[0].data.size == 4


def test_gradients_are_written_in_place_by_the_first_backward():
    layer = mt.nn.Linear(3, 2)
    optimizer = SGD(layer.parameters(), lr=0.1)
    x = mt.randn(4, 3)
    for _ in range(2):
        optimizer.zero_grad()
        layer(x).sum().backward()
        layer(x).sum().backward()  # and added to by the second
        expected = 2 * x.numpy().sum(0)
        np.testing.assert_allclose(layer.weight.grad.numpy(), [expected, expected], rtol=1e-6)
        assert layer.bias.grad.tolist() == [8.0, 8.0]


def test_a_failed_backward_leaves_absent_gradients_absent():
    w = mt.nn.Parameter(mt.ones(2, 2))
    SGD([w], lr=0.1)
    h = mt.ones(1, 2, requires_grad=True) * 1
    out = h @ w
    h.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        out.sum().backward()
    assert w.grad is None
    (mt.ones(1, 2) @ w).sum().backward()
    assert w.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
