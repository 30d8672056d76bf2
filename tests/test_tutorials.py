"""The code of five published autograd tutorials, cell by cell, and what their text promises.

The cells are as written, with `torch` replaced by `mt`, today's spelling where PyTorch dropped the
old one, and misprints mended (each said so at its place). Printed values are compared where they do
not depend on random draws. Plots become the conversions that feed them.

- Book: chapter 3 of chenyuntc's "PyTorch book"; its cells are numbered In [1] to In [80].
- Notebook: a Colab notebook that reworks the book; only cells that differ from it are named here.
- Guide: "PyTorch's automatic differentiation" (backward, grad, a minimum by SGD).
- Notes: a reader's notes on the book; prose, and one hook.
- Examples: the two-layer network of PyTorch's "Learning PyTorch with examples". Its TensorFlow
  program, for contrast, is no code of ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.autograd import Function
from microtrain.autograd.function import once_differentiable

FLOAT_WARNING = "because only floats have gradients"


@pytest.fixture(autouse=True)
def _seed() -> None:
    mt.manual_seed(1000)  # the book's In [70]


def same(a: Any, b: Any) -> bool:
    return bool(mt.allclose(a, b, rtol=1e-5, atol=1e-6))


# Book 3.2.1: requires_grad ------------------------------------------------------------------------


def by_argument() -> mt.Tensor:
    return mt.randn(3, 4, requires_grad=True)


def by_method() -> mt.Tensor:
    return mt.randn(3, 4).requires_grad_()


def by_attribute() -> mt.Tensor:
    a = mt.randn(3, 4)
    a.requires_grad = True
    return a


@pytest.mark.parametrize("make", [by_argument, by_method, by_attribute])
def test_book_2_to_10_a_sum(make: Callable[[], mt.Tensor]) -> None:
    a = make()
    assert repr(a).endswith("requires_grad=True)")
    b = mt.zeros(3, 4).requires_grad_()
    c = a.add(b)
    assert mt.equal(c, a + b)
    assert repr(c).endswith("grad_fn=<AddBackward0>)")
    d = c.sum()
    d.backward()
    assert d.requires_grad
    assert mt.equal(a.grad, mt.ones(3, 4))
    assert (a.requires_grad, b.requires_grad, c.requires_grad) == (True, True, True)
    assert (a.is_leaf, b.is_leaf, c.is_leaf) == (True, True, False)
    assert c.grad is None


def test_notebook_prints_a_leaf_of_zeros() -> None:
    assert repr(mt.zeros(3, 4, requires_grad=True)) == (
        "tensor([[0., 0., 0., 0.],\n        [0., 0., 0., 0.],\n"
        "        [0., 0., 0., 0.]], requires_grad=True)"
    )


def test_book_11_to_14_gradient_equals_the_formula() -> None:
    def f(x: Any) -> Any:
        return x**2 * mt.exp(x)

    def gradf(x: Any) -> Any:
        return 2 * x * mt.exp(x) + x**2 * mt.exp(x)

    x = mt.randn(3, 4, requires_grad=True)
    y = f(x)
    assert repr(y).endswith("grad_fn=<MulBackward0>)")
    y.backward(mt.ones(y.size()))
    assert same(x.grad, gradf(x))
    assert repr(gradf(x)).endswith("grad_fn=<AddBackward0>)")


# Book 3.2.2: the graph ----------------------------------------------------------------------------


def linear_graph() -> tuple[Any, ...]:
    """In [15]."""
    x = mt.ones(1)
    b = mt.rand(1, requires_grad=True)
    w = mt.rand(1, requires_grad=True)
    y = w * x
    z = y + b
    return x, b, w, y, z


def test_book_15_to_24_the_graph() -> None:
    x, b, w, y, z = linear_graph()
    assert (x.requires_grad, b.requires_grad, w.requires_grad) == (False, True, True)
    assert y.requires_grad
    assert (x.is_leaf, w.is_leaf, b.is_leaf) == (True, True, True)
    assert (y.is_leaf, z.is_leaf) == (False, False)
    assert repr(z.grad_fn).startswith("<AddBackward0 at 0x")
    (first, number), (second, other) = z.grad_fn.next_functions
    assert (first.name(), number, second.name(), other) == ("MulBackward0", 0, "AccumulateGrad", 0)
    assert repr(second).startswith("<AccumulateGrad at 0x")
    assert z.grad_fn.next_functions[0][0] == y.grad_fn
    (leaf, _), constant = y.grad_fn.next_functions
    assert leaf.name() == "AccumulateGrad" and leaf.variable is w
    assert constant == (None, 0)
    assert (w.grad_fn, x.grad_fn, b.grad_fn) == (None, None, None)


def test_book_25_and_26_gradients_accumulate() -> None:
    _, _, w, _, z = linear_graph()
    z.backward(retain_graph=True)
    assert repr(w.grad) == "tensor([1.])"
    z.backward()
    assert repr(w.grad) == "tensor([2.])"


def test_book_text_buffers_are_freed_after_a_backward() -> None:
    z = linear_graph()[-1]
    z.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        z.backward()


def test_book_text_chain_rule_of_the_figure() -> None:
    x, w, b = (mt.tensor(v, requires_grad=True) for v in (2.0, 3.0, 5.0))
    y = w * x
    z = y + b
    dz_db, dz_dy, dz_dx, dz_dw = mt.autograd.grad(z, [b, y, x, w], retain_graph=True)
    dy_dw, dy_dx = mt.autograd.grad(y, [w, x])
    assert (dz_db.item(), dz_dy.item()) == (1, 1)
    assert (dy_dw.item(), dy_dx.item()) == (x.item(), w.item())
    assert (dz_dw.item(), dz_dx.item()) == (x.item(), w.item())


def absolute(x: Any) -> Any:
    """The book's `abs`, with an `if` on the data."""
    if x.data[0] > 0:
        return x
    return -x


@pytest.mark.parametrize("sign, printed", [(1, "tensor([1.])"), (-1, "tensor([-1.])")])
def test_book_27_and_28_branches(sign: int, printed: str) -> None:
    x = sign * mt.ones(1)
    x = x.requires_grad_()
    y = absolute(x)
    y.backward()
    assert repr(x.grad) == printed


def product_of_positives(x: Any) -> Any:
    result: Any = 1
    for ii in x:
        if ii.item() > 0:
            result = ii * result
    return result


def product_in_place(x: Any) -> Any:
    """The notebook's spelling: the first `*=` makes a Tensor of the 1."""
    result: Any = 1
    for ii in x:
        if ii.item() > 0:
            result *= ii
    return result


@pytest.mark.parametrize("f", [product_of_positives, product_in_place])
def test_book_29_loops(f: Callable[[Any], Any]) -> None:
    with pytest.warns(UserWarning, match=FLOAT_WARNING):
        x = mt.arange(-2, 4, requires_grad=True)
    y = f(x)
    assert repr(x) == "tensor([-2., -1.,  0.,  1.,  2.,  3.], requires_grad=True)"
    assert repr(y) == "tensor(6., grad_fn=<MulBackward0>)"
    y.backward()
    assert repr(x.grad) == "tensor([0., 0., 0., 6., 3., 2.])"


def test_notebook_arange_of_floats_needs_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = mt.arange(-2, 4, requires_grad=True, dtype=mt.float32)
    assert x.dtype == mt.float32


# Book: without recording --------------------------------------------------------------------------


@pytest.fixture
def _recording() -> Iterator[None]:
    yield
    mt.set_grad_enabled(True)


def test_book_30_and_31_no_grad() -> None:
    x = mt.ones(1, requires_grad=True)
    w = mt.rand(1, requires_grad=True)
    y = x * w
    assert (x.requires_grad, w.requires_grad, y.requires_grad) == (True, True, True)
    with mt.no_grad():
        x = mt.ones(1)
        w = mt.rand(1, requires_grad=True)
        y = x * w
    assert (x.requires_grad, w.requires_grad, y.requires_grad) == (False, True, False)


@pytest.mark.usefixtures("_recording")
def test_book_32_to_34_set_grad_enabled() -> None:
    assert "not recorded" in (mt.no_grad.__doc__ or "")  # `t.no_grad??`
    mt.set_grad_enabled(False)
    x = mt.ones(1)
    w = mt.rand(1, requires_grad=True)
    y = x * w
    assert (x.requires_grad, w.requires_grad, y.requires_grad) == (False, True, False)
    mt.set_grad_enabled(True)
    assert (x * w).requires_grad


def test_book_35_to_38_data_is_outside_the_graph() -> None:
    a = mt.ones(3, 4, requires_grad=True)
    b = mt.ones(3, 4, requires_grad=True)
    c = a * b
    assert repr(a.data) == repr(mt.ones(3, 4))
    assert not a.data.requires_grad
    d = a.data.sigmoid_()
    assert not d.requires_grad
    row = "[0.7311, 0.7311, 0.7311, 0.7311]"
    assert repr(a) == f"tensor([{row},\n        {row},\n        {row}], requires_grad=True)"
    # Text: unlike detach(), writes through data are invisible: b gets the gradient of the new a.
    c.sum().backward()
    assert mt.equal(b.grad, a.data)


def test_book_39_to_42_detach_shares_and_raises() -> None:
    a = mt.ones(3, 4, requires_grad=True)
    b = mt.ones(3, 4, requires_grad=True)
    c = a * b
    a.data.sigmoid_()
    assert a.requires_grad
    tensor = a.detach()
    assert not tensor.requires_grad
    mean, std, maximum = tensor.mean(), tensor.std(), tensor.max()
    assert not (mean.requires_grad or std.requires_grad or maximum.requires_grad)
    assert mean.item() == pytest.approx(0.7311, abs=1e-4)
    assert std.item() == pytest.approx(0, abs=1e-6)
    assert maximum.item() == pytest.approx(0.7311, abs=1e-4)
    tensor[0] = 1
    assert a[0].tolist() == [1, 1, 1, 1]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        c.sum().backward()


# Book: gradients of intermediate results ----------------------------------------------------------


def sum_of_products() -> tuple[Any, ...]:
    x = mt.ones(3, requires_grad=True)
    w = mt.rand(3, requires_grad=True)
    y = x * w
    return x, w, y


def test_book_43_and_44_only_leaves_keep_gradients() -> None:
    x, w, y = sum_of_products()
    z = y.sum()
    assert (x.requires_grad, w.requires_grad, y.requires_grad) == (True, True, True)
    z.backward()
    assert mt.equal(x.grad, w.detach())
    assert repr(w.grad) == "tensor([1., 1., 1.])"
    assert y.grad is None


def test_book_45_grad_of_an_intermediate_result() -> None:
    _, _, y = sum_of_products()
    z = y.sum()
    assert repr(mt.autograd.grad(z, y)) == "(tensor([1., 1., 1.]),)"


def test_book_46_and_notes_a_hook(capsys: pytest.CaptureFixture[str]) -> None:
    def variable_hook(grad: Any) -> None:  # the notes call the argument hook: a misprint
        print("y 的梯度：", grad)

    x, _, y = sum_of_products()
    hook_handle = y.register_hook(variable_hook)
    z = y.sum()
    z.backward(retain_graph=True)
    hook_handle.remove()
    assert capsys.readouterr().out == "y 的梯度： tensor([1., 1., 1.])\n"
    before = x.grad.clone()
    z.backward()
    assert capsys.readouterr().out == ""  # text: remove it after use
    assert mt.equal(x.grad, 2 * before)  # the hook returned nothing and changed nothing


def test_book_47_and_48_backward_from_z_and_from_y() -> None:
    for from_y in (False, True):
        with pytest.warns(UserWarning, match=FLOAT_WARNING):
            x = mt.arange(0, 3, requires_grad=True)
        y = x**2 + x * 2
        z = y.sum()
        if from_y:
            y_gradient = mt.Tensor([1, 1, 1])
            y.backward(y_gradient)
        else:
            z.backward()
        assert repr(x.grad) == "tensor([2., 4., 6.])"


# Book: the nine properties of the graph, and the sentences around them ----------------------------


def test_book_property_1_operations_become_functions() -> None:
    x = mt.ones(2, requires_grad=True)
    for result, name in [(x + 1, "Add"), (x * 2, "Mul"), (x.sum(), "Sum"), (x.exp(), "Exp")]:
        assert result.grad_fn.name() == f"{name}Backward0"


def test_book_property_2_leaves() -> None:
    wanted, constant = mt.ones(1, requires_grad=True), mt.ones(1)
    assert wanted.is_leaf and constant.is_leaf
    assert (wanted.grad_fn, constant.grad_fn) == (None, None)
    entries = (wanted + constant).grad_fn.next_functions
    assert [f and f.name() for f, _ in entries] == ["AccumulateGrad", None]


def test_book_property_3_requires_grad_spreads() -> None:
    x = mt.ones(1)
    assert not x.requires_grad
    assert not (x * 2 + 1).requires_grad
    w = mt.ones(1, requires_grad=True)
    assert ((x * 2 + w) * x).requires_grad


def test_book_property_4_volatile_today_is_no_grad() -> None:
    w = mt.ones(1, requires_grad=True)
    with mt.no_grad():
        y = w * 2
        z = y + 1
    assert not y.requires_grad and not z.requires_grad  # stronger than requires_grad, and spreads


def test_book_property_5_accumulation_with_retain_graph() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum()
    for times in (1, 2, 3):
        y.backward(retain_graph=times < 3)
        assert x.grad.tolist() == [2 * times, 4 * times]
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_book_property_6_grad_or_hooks_reach_inner_gradients() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    seen: list[Any] = []
    y.register_hook(seen.append)
    z = (y * y).sum()
    (by_grad,) = mt.autograd.grad(z, y, retain_graph=True)
    z.backward()
    assert y.grad is None
    assert by_grad.tolist() == seen[-1].tolist() == [6, 12]


def test_book_property_7_grad_has_the_shape_of_data() -> None:
    x = mt.randn(2, 3, requires_grad=True)
    (x.mean() + x.sum(0).max()).backward()
    assert x.grad.shape == x.data.shape
    assert (x.data * 2).grad_fn is None


def test_book_property_8_gradient_argument() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="scalar"):
        (x * x).backward()
    weights = mt.tensor([3.0, 0.5])
    (x * x).backward(weights)  # the gradient of z with respect to y, as in the chain rule
    (expected,) = mt.autograd.grad((x * x * weights).sum(), x)
    assert mt.equal(x.grad, expected)


def test_book_text_gradients_may_be_a_sequence() -> None:
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    mt.autograd.backward([x * x, x * 3], [mt.tensor([1.0, 0.5]), mt.ones(2)])
    assert x.grad.tolist() == [5, 5]


def test_book_property_9_the_graph_is_dynamic() -> None:
    x = mt.tensor(2.0, requires_grad=True)
    for power in (1, 2, 3):
        y: Any = 1.0
        for _ in range(power):
            y = y * x
        (slope,) = mt.autograd.grad(y, x)
        assert slope.item() == power * 2.0 ** (power - 1)


def test_book_text_leaves_are_not_written_in_place() -> None:
    x = mt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        x.mul_(2)
    y = x.exp()
    y.mul_(2)  # exp's gradient reads its result
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# Book 3.2.3: functions of your own ----------------------------------------------------------------


class Mul(Function):
    """The notebook multiplies by x in `grad_x` and imports Function from torch: misprints."""

    @staticmethod
    def forward(ctx, w, x, b, x_requires_grad=True):
        ctx.x_requires_grad = x_requires_grad
        ctx.save_for_backward(w, x)
        return w * x + b

    @staticmethod
    def backward(ctx, grad_output):
        w, x = ctx.saved_tensors
        grad_w = grad_output * x
        if ctx.x_requires_grad:
            grad_x = grad_output * w
        else:
            grad_x = None
        grad_b = grad_output * 1
        return grad_w, grad_x, grad_b, None


class MultiplyAdd(Function):
    @staticmethod
    def forward(ctx, w, x, b):
        ctx.save_for_backward(w, x)
        return w * x + b

    @staticmethod
    def backward(ctx, grad_output):
        w, x = ctx.saved_tensors
        grad_w = grad_output * x
        grad_x = grad_output * w
        grad_b = grad_output * 1
        return grad_w, grad_x, grad_b


class Sigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        output = 1 / (1 + mt.exp(-x))
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        (output,) = ctx.saved_tensors
        return output * (1 - output) * grad_output


@pytest.mark.parametrize("wanted", [True, False])
def test_book_and_notebook_mul(wanted: bool) -> None:
    w, x, b = (mt.rand(1, requires_grad=True) for _ in range(3))
    z = Mul.apply(w, x, b, wanted)
    assert same(z, w * x + b)
    z.backward()
    assert mt.equal(w.grad, x.detach())
    assert mt.equal(x.grad, w.detach()) if wanted else x.grad is None
    assert mt.equal(b.grad, mt.ones(1))


def test_book_49_and_50_multiply_add() -> None:
    x = mt.ones(1)
    w = mt.rand(1, requires_grad=True)
    b = mt.rand(1, requires_grad=True)
    z = MultiplyAdd.apply(w, x, b)
    z.backward()
    assert repr((x.grad, w.grad, b.grad)) == "(None, tensor([1.]), tensor([1.]))"


def test_book_51_the_node_calls_backward() -> None:
    x = mt.ones(1)
    w = mt.rand(1, requires_grad=True)
    b = mt.rand(1, requires_grad=True)
    z = MultiplyAdd.apply(w, x, b)
    grad_w, grad_x, grad_b = z.grad_fn.apply(mt.ones(1))
    assert (grad_w.tolist(), grad_x.tolist(), grad_b.tolist()) == ([1], w.tolist(), [1])


def test_book_text_functions_have_static_methods_and_match_their_inputs() -> None:
    class TooFew(MultiplyAdd):
        @staticmethod
        def backward(ctx, grad_output):
            return grad_output, grad_output

    a, b, c = (mt.ones(1, requires_grad=True) for _ in range(3))
    with pytest.raises(RuntimeError, match=r"TooFew\.backward.*expected 3.*got 2"):
        TooFew.apply(a, b, c).backward()


def test_book_52_and_53_derivative_of_the_derivative() -> None:
    with pytest.warns(UserWarning, match=FLOAT_WARNING):
        x = mt.tensor([5], requires_grad=True)
    y = x**2
    grad_x = mt.autograd.grad(y, x, create_graph=True)
    assert repr(grad_x) == "(tensor([10.], grad_fn=<MulBackward0>),)"
    grad_grad_x = mt.autograd.grad(grad_x[0], x)
    assert repr(grad_grad_x) == "(tensor([2.]),)"


def test_book_text_backward_of_backward_through_a_function() -> None:
    x = mt.tensor([0.5], dtype=mt.float64, requires_grad=True)
    (first,) = mt.autograd.grad(Sigmoid.apply(x), x, create_graph=True)
    (second,) = mt.autograd.grad(first, x)
    s = 1 / (1 + np.exp(-0.5))
    assert second.item() == pytest.approx(s * (1 - s) * (1 - 2 * s), rel=1e-12)


def test_book_text_once_differentiable_may_use_numpy() -> None:
    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return mt.from_numpy(np.sin(x.detach().numpy()))

        @staticmethod
        @once_differentiable
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return mt.from_numpy(np.cos(x.detach().numpy()) * grad_output.numpy())

    x = mt.tensor([0.3], dtype=mt.float64, requires_grad=True)
    (first,) = mt.autograd.grad(Sine.apply(x), x, create_graph=True)
    assert first.item() == pytest.approx(np.cos(0.3))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.backward()


@pytest.mark.skipif(not hasattr(mt.autograd, "gradcheck"), reason="there is no gradcheck yet")
def test_book_54_and_55_gradcheck() -> None:
    # Today's spelling: differences need float64 inputs.
    test_input = mt.randn(3, 4, dtype=mt.float64, requires_grad=True)
    assert mt.autograd.gradcheck(Sigmoid.apply, (test_input,), eps=1e-3)


def test_book_56_three_ways_to_a_sigmoid() -> None:
    def naive(x: Any) -> Any:
        return 1 / (1 + mt.exp(-x))

    x = mt.randn(100, 100, requires_grad=True)
    found = []
    for sigmoid in (Sigmoid.apply, naive, mt.sigmoid):  # benchmarks compare their times
        y = sigmoid(x)
        y.backward(mt.ones(x.size()))
        found.append((y.detach(), x.grad))
        x.grad = None
    for y, gradient in found[1:]:
        assert same(y, found[0][0])
        assert same(gradient, found[0][1])


# Book 3.2.4 and notes: linear regression ----------------------------------------------------------


def get_fake_data(batch_size: int = 8) -> tuple[Any, Any]:
    """y = x * 2 + 3 with noise."""
    x = mt.rand(batch_size, 1) * 5
    y = x * 2 + 3 + mt.randn(batch_size, 1)
    return x, y


def test_book_69_to_71_data_for_a_plot() -> None:
    x, y = get_fake_data()
    points = x.squeeze().numpy(), y.squeeze().numpy()
    assert [type(p) for p in points] == [np.ndarray, np.ndarray]
    assert [p.shape for p in points] == [(8,), (8,)]
    mt.manual_seed(1000)
    assert mt.equal(get_fake_data()[0], x)


def test_book_76_to_80_linear_regression() -> None:
    w = mt.rand(1, 1, requires_grad=True)
    b = mt.zeros(1, 1, requires_grad=True)
    losses = np.zeros(500)
    lr = 0.005
    for ii in range(500):
        x, y = get_fake_data(batch_size=32)
        y_pred = x.mm(w) + b.expand_as(y)
        loss = 0.5 * (y_pred - y) ** 2
        loss = loss.sum()
        losses[ii] = loss.item()
        loss.backward()
        w.data.sub_(lr * w.grad.data)
        b.data.sub_(lr * b.grad.data)
        w.grad.data.zero_()
        b.grad.data.zero_()
        if ii % 50 == 0:
            x = mt.arange(0.0, 6).view(-1, 1)  # the book's integers do not multiply with floats
            y = x.mm(w.data) + b.data.expand_as(x)
            assert x.numpy().shape == y.numpy().shape == (6, 1)
    assert w.item() == pytest.approx(2, abs=0.15)  # the book: 2.024 and 3.078
    assert b.item() == pytest.approx(3, abs=0.3)
    assert losses[-50:].mean() < 25 < losses[0]  # the book's plot: from over 50 to about 16


def test_notes_data_grad_and_grad_fn() -> None:
    v = mt.randn(2, 3, requires_grad=True)
    assert v.grad_fn is None
    (v * v).sum().backward()
    assert v.grad.data.shape == v.data.shape
    assert same(v.grad.data, 2 * v.data)
    v.grad.data.zero_()  # the notes write zeros_: a misprint
    assert mt.equal(v.grad, mt.zeros(2, 3))


def test_notes_backward_with_weights_is_backward_of_the_weighted_sum() -> None:
    weights = mt.randn(3)
    v, u = mt.randn(3, requires_grad=True), mt.tensor(2.0, requires_grad=True)
    (v * v).backward(weights)
    assert same(v.grad, 2 * v.data * weights)
    (u * u).backward()  # of a scalar the weight may be left out: it is 1
    assert repr(u.grad) == "tensor(4.)"


def test_notes_next_functions_are_pairs() -> None:
    y = mt.ones(1, requires_grad=True) * 2
    z = y + 1
    assert type(z.grad_fn.next_functions) is tuple
    assert z.grad_fn.next_functions[0] == (y.grad_fn, 0)
    assert z.grad_fn.next_functions[0][0] is y.grad_fn


def test_notes_rand_is_uniform_and_randn_normal() -> None:
    uniform, normal = mt.rand(10_000), mt.randn(10_000)
    assert uniform.min().item() >= 0 and uniform.max().item() < 1
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.02)
    assert normal.mean().item() == pytest.approx(0, abs=0.05)
    assert normal.std().item() == pytest.approx(1, abs=0.05)


def test_notes_linear_regression_by_broadcasting() -> None:
    x, y = get_fake_data()
    w = mt.rand(1, 1, requires_grad=True)
    b = mt.zeros(1, 1, requires_grad=True)
    y_pred = x.mm(w) + b.expand_as(x)
    assert same(y_pred, x * w + b)
    loss = 0.5 * (y_pred - y) ** 2
    assert loss.shape == y.shape  # elementwise: not yet a scalar
    loss.sum().backward()
    before = w.item()
    w.data.sub_(w.grad.data * 0.005)
    assert w.item() == pytest.approx(before - 0.005 * w.grad.item())
    y = w.data * x + b.data  # for a plot: nothing is added to a graph
    assert not y.requires_grad and y.grad_fn is None
