"""Hooks of tensors and nodes, retain_grad, and what nodes say."""

import numpy as np
import pytest
from test_autograd import leaf

import microtrain as mt
from microtrain.autograd import AccumulateGrad, RemovableHandle, grad


def test_hook_on_a_computed_tensor_replaces_its_gradient():
    x = leaf(1.0, 2.0)
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    assert isinstance(handle, RemovableHandle)
    y.sum().backward()
    assert x.grad.tolist() == [20.0, 20.0]
    handle.remove()
    handle.remove()
    x.grad = None
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("flat", [False, True])
def test_hook_on_a_leaf_sees_the_complete_gradient_once(flat):
    x = leaf(1.0)
    if flat:
        mt.optim.SGD([x], lr=0.1)
    seen = []
    with x.register_hook(lambda g: seen.append(g.item())):
        (x * 2 + x * 3).sum().backward()
    (x * 1).sum().backward()
    assert (seen, x.grad.tolist()) == ([5.0], [6.0])


def test_hooks_run_in_the_order_of_registration_and_retain_grad_comes_last():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    y.register_hook(lambda g: g + 1)
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert (y.grad.tolist(), x.grad.tolist()) == ([20.0], [40.0])


@pytest.mark.parametrize("flat", [False, True])
def test_post_accumulate_hook_sees_the_final_gradient_and_may_write_the_leaf(flat):
    """A leaf that is used twice: both gradients must be in before the hook runs."""
    x = mt.ones(2, 2, dtype=mt.float64, requires_grad=True)
    if flat:
        mt.optim.SGD([x], lr=0.1)
    ones = mt.ones(1, 2, dtype=mt.float64)

    def descend(p):
        p -= 0.5 * p.grad  # nothing is recorded in here

    handle = x.register_post_accumulate_grad_hook(descend)
    ((ones @ x).sum() + (3 * ones @ x).sum()).backward()
    assert x.grad.tolist() == [[4.0, 4.0], [4.0, 4.0]]
    assert x.tolist() == [[-1.0, -1.0], [-1.0, -1.0]]
    handle.remove()
    (ones @ x).sum().backward()
    assert x.tolist() == [[-1.0, -1.0], [-1.0, -1.0]]


def test_one_leaf_as_both_operands_of_a_product_over_flat_memory():
    w = mt.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=mt.float64, requires_grad=True)
    expected = grad((w @ w).sum(), w)[0]
    mt.optim.SGD([w], lr=0.1)
    (w @ w).sum().backward()
    assert w.grad.tolist() == expected.tolist()
    w.grad = None
    mt.nn.functional.linear(w, w, None).sum().backward()
    flat = w.grad.tolist()
    plain = w.detach().clone().requires_grad_()
    mt.nn.functional.linear(plain, plain, None).sum().backward()
    assert flat == plain.grad.tolist()


def test_node_hooks():
    x = leaf(1.0, 2.0)
    y = x * 2
    seen = []
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 3,))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
    y.sum().backward()
    ((inputs, outputs),) = seen
    assert outputs[0].tolist() == [3.0, 3.0]
    assert inputs[0].tolist() == x.grad.tolist() == [6.0, 6.0]
    y = x * 2
    y.grad_fn.register_hook(lambda inputs, outputs: (mt.zeros(2, dtype=mt.float64), None))
    y.sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]


def test_hooks_get_tensors_also_where_the_gradient_is_a_single_number():
    x = leaf(1.0, 2.0)
    kinds = []
    a, b = (x * 2).sum(), (x * 3).sum()
    total = a + b
    shared = a * b + a
    for tensor in (a, b, total, shared):
        tensor.register_hook(lambda g: kinds.append((type(g), type(g._array))))
    (shared + total).backward()
    assert set(kinds) == {(mt.Tensor, np.ndarray)}


@pytest.mark.parametrize(
    "hook, error, text",
    [
        (lambda g: 3, TypeError, "returned int, expected Tensor or None"),
        (lambda g: mt.ones(3, dtype=mt.float64), RuntimeError, r"shape \(3,\)"),
        (lambda g: g.float(), RuntimeError, "dtype float32"),
    ],
)
@pytest.mark.parametrize("where", ["leaf", "computed"])
def test_what_a_hook_may_not_return(hook, error, text, where):
    x = leaf(1.0, 2.0)
    y = x * 2
    (x if where == "leaf" else y).register_hook(hook)
    with pytest.raises(error, match=text):
        y.sum().backward()


def test_a_hook_that_raises_leaves_the_modes_as_they_were():
    x = leaf(1.0)

    def fail(g):
        assert not mt.is_grad_enabled()
        raise KeyError("mine")

    x.register_hook(fail)
    for run in (lambda: x.sum().backward(), lambda: grad(x * 2, x)):
        with pytest.raises(KeyError, match="mine"):
            run()
        assert mt.is_grad_enabled()
        assert mt.autograd.engine.MODES.direct
    other = leaf(1.0)
    other.register_post_accumulate_grad_hook(fail)
    with pytest.raises(KeyError, match="mine"):
        other.sum().backward()
    assert mt.is_grad_enabled()


def test_hook_needs_a_function_and_a_tensor_with_grad():
    with pytest.raises(TypeError, match="a hook is a function, got int"):
        leaf(1.0).register_hook(3)
    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        mt.ones(2).register_hook(print)
    with pytest.raises(RuntimeError, match="non-leaf"):
        (leaf(1.0) * 2).register_post_accumulate_grad_hook(print)


def test_retain_grad():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    assert y.retains_grad
    assert not x.retains_grad
    x.retain_grad()  # a leaf has its gradient anyway
    loss = (y * 5).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert y.grad.tolist() == [10.0]
    with pytest.raises(RuntimeError, match="requires_grad=False"):
        mt.ones(1).retain_grad()


def test_retain_grad_of_a_tensor_that_is_asked_for_counts_once():
    x = mt.ones(3, requires_grad=True)
    hidden = x * 2
    hidden.retain_grad()
    (hidden * hidden).sum().backward(inputs=[hidden, x])
    assert hidden.grad.tolist() == [4.0] * 3 and x.grad.tolist() == [8.0] * 3


def test_retain_grad_follows_a_tensor_that_is_written_to():
    x = leaf(1.0)
    y = x * 2
    y.retain_grad()
    y *= 3
    (y * 5).sum().backward()
    assert (y.grad.tolist(), x.grad.tolist()) == ([5.0], [30.0])


# Nodes --------------------------------------------------------------------------------------------


def test_names_and_next_functions():
    x, y = leaf(1.0), mt.ones(1, dtype=mt.float64)
    z = (x * y).exp()
    assert z.grad_fn.name() == "ExpBackward0"
    ((mul, number),) = z.grad_fn.next_functions
    assert (mul.name(), number) == ("MulBackward0", 0)
    (first, _), (second, _) = mul.next_functions
    assert first == AccumulateGrad(x)
    assert first.variable is x
    assert first.next_functions == ()
    assert second is None
    assert (x + x).grad_fn.next_functions[0] == (x * 2).grad_fn.next_functions[0]
    assert len({AccumulateGrad(x), AccumulateGrad(x), AccumulateGrad(leaf(1.0))}) == 2


def test_calling_a_node():
    x, row = mt.ones(2, 3, requires_grad=True), mt.ones(3, requires_grad=True)
    y = x * row
    g_x, g_row = y.grad_fn(mt.ones(2, 3))
    assert (g_x.shape, g_row.tolist()) == ((2, 3), [2.0, 2.0, 2.0])
    assert x.grad is row.grad is None
    g = mt.ones(2, 3, requires_grad=True)
    assert y.grad_fn(g)[0].requires_grad
    with pytest.raises(TypeError, match="expected 1 gradients, got 2"):
        y.grad_fn(g, g)
    with pytest.raises(RuntimeError, match=r"expected a gradient of shape \(2, 3\)"):
        y.grad_fn(row)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.grad_fn(g)
