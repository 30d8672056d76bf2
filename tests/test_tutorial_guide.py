"""The guide and the examples of the same tutorials, and what their legacy names say today."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_tutorials import same

import microtrain as mt
from microtrain.autograd import Function


@pytest.fixture(autouse=True)
def _seed() -> None:
    mt.manual_seed(1000)


A, B, C = 1.0, -2.0, 1.0  # f(x) = a * x**2 + b * x + c


def parabola(x: Any) -> Any:
    a, b, c = mt.tensor(A), mt.tensor(B), mt.tensor(C)
    return a * mt.pow(x, 2) + b * x + c


@pytest.mark.parametrize("backward", [mt.Tensor.backward, mt.autograd.backward])
def test_guide_backward_of_a_scalar(backward: Callable[[Any], None]) -> None:
    x = mt.tensor(0.0, requires_grad=True)
    y = parabola(x)
    backward(y)
    assert str(x.grad) == "tensor(-2.)"


def by_gradient(y: Any, x: Any) -> None:
    y.backward(gradient=mt.ones_like(x))


def by_weighted_sum(y: Any, x: Any) -> None:
    gradient = mt.tensor([[1.0, 1.0], [1.0, 1.0]])
    z = mt.sum(y * gradient)
    z.backward()


def by_grad_tensors(y: Any, x: Any) -> None:
    mt.autograd.backward(
        y, grad_tensors=mt.ones_like(x), retain_graph=None, create_graph=False
    )  # the guide's listing says gard_tensors: a misprint


@pytest.mark.parametrize("backward", [by_gradient, by_weighted_sum, by_grad_tensors])
def test_guide_backward_of_a_matrix(backward: Callable[[Any, Any], None]) -> None:
    x = mt.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    y = parabola(x)
    assert f"{x}" == "tensor([[0., 0.],\n        [1., 2.]], requires_grad=True)"
    assert f"{y}" == "tensor([[1., 1.],\n        [0., 1.]], grad_fn=<AddBackward0>)"
    backward(y, x)
    assert f"{x.grad}" == "tensor([[-2., -2.],\n        [ 0.,  2.]])"


def test_guide_grad_twice() -> None:
    x = mt.tensor(0.0, requires_grad=True)
    y = parabola(x)
    dy_dx = mt.autograd.grad(y, x, create_graph=True)[0]
    assert str(dy_dx.data) == "tensor(-2.)"
    dy2_dx2 = mt.autograd.grad(dy_dx, x)[0]
    assert str(dy2_dx2.data) == "tensor(2.)"


def test_guide_grad_of_several(capsys: pytest.CaptureFixture[str]) -> None:
    x1 = mt.tensor(1.0, requires_grad=True)
    x2 = mt.tensor(2.0, requires_grad=True)
    y1 = x1 * x2
    y2 = x1 + x2
    dy1_dx1, dy1_dx2 = mt.autograd.grad(outputs=y1, inputs=[x1, x2], retain_graph=True)
    print(dy1_dx1, dy1_dx2)
    dy12_dx1, dy12_dx2 = mt.autograd.grad(outputs=[y1, y2], inputs=[x1, x2])
    print(dy12_dx1, dy12_dx2)
    assert capsys.readouterr().out == "tensor(2.) tensor(1.)\ntensor(3.) tensor(2.)\n"


def test_guide_minimum_by_sgd() -> None:
    x = mt.tensor(0.0, requires_grad=True)
    a, b, c = mt.tensor(A), mt.tensor(B), mt.tensor(C)

    def f(t: Any) -> Any:
        return a * mt.pow(t, 2) + b * x + c

    optimizer = mt.optim.SGD(params=[x], lr=0.01)
    for _ in range(500):
        optimizer.zero_grad()
        y = f(x)
        y.backward()
        optimizer.step()
    assert repr(x.data) == "tensor(1.0000)"
    assert f(x).data.item() == pytest.approx(0, abs=1e-6)


def test_guide_summary_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    x = mt.ones(2, 2, requires_grad=True)
    print("x:", x)
    print(f"x.requires_grad: {x.requires_grad}")
    y = x + 2
    print("y:", y)
    z = y * y * 3
    print("z:", z)
    out = z.mean()
    print("out:", out)
    out.backward()
    print("x.grad:", x.grad)
    assert capsys.readouterr().out == (
        "x: tensor([[1., 1.],\n        [1., 1.]], requires_grad=True)\n"
        "x.requires_grad: True\n"
        "y: tensor([[3., 3.],\n        [3., 3.]], grad_fn=<AddBackward0>)\n"
        "z: tensor([[27., 27.],\n        [27., 27.]], grad_fn=<MulBackward0>)\n"
        "out: tensor(27., grad_fn=<MeanBackward0>)\n"
        "x.grad: tensor([[4.5000, 4.5000],\n        [4.5000, 4.5000]])\n"
    )
    names = [str(t.grad_fn).split(" at ")[0] for t in (y, z, out)]
    assert names == ["<AddBackward0", "<MulBackward0", "<MeanBackward0"]


def test_guide_requires_grad_in_place() -> None:
    a = mt.randn(2, 2)
    a = (a * 3) / (a - 1)
    assert not a.requires_grad
    a.requires_grad_(True)
    assert a.requires_grad
    b = (a * a).sum()
    assert b.grad_fn.name() == "SumBackward0"


def test_guide_a_loop_on_the_norm_then_no_grad_then_detach() -> None:
    x = mt.randn(3, requires_grad=True)
    y = x * 2
    factor = 2
    while y.data.norm() < 1000:
        y = y * 2
        factor *= 2
    assert 1000 <= y.data.norm().item() < 2000
    v = mt.tensor([0.1, 1.0, 0.0001], dtype=mt.float)
    y.backward(v)
    assert same(x.grad, v * factor)
    assert x.requires_grad
    assert (x**2).requires_grad
    with mt.no_grad():
        assert not (x**2).requires_grad
    y = x.detach()
    assert not y.requires_grad
    assert repr(x.eq(y).all()) == "tensor(True)"


# Examples: a two-layer network --------------------------------------------------------------------


class MyReLU(Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return input.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[input < 0] = 0
        return grad_input


def train_two_layers(relu: Callable[[Any], Any]) -> list[float]:
    """The losses of the examples' loop."""
    dtype = mt.float
    device = mt.device("cpu")
    N, D_in, H, D_out = 64, 1000, 100, 10
    x = mt.randn(N, D_in, device=device, dtype=dtype)
    y = mt.randn(N, D_out, device=device, dtype=dtype)
    w1 = mt.randn(D_in, H, device=device, dtype=dtype, requires_grad=True)
    w2 = mt.randn(H, D_out, device=device, dtype=dtype, requires_grad=True)
    learning_rate = 1e-6
    losses = []
    for _ in range(500):
        y_pred = relu(x.mm(w1)).mm(w2)
        loss = (y_pred - y).pow(2).sum()
        losses.append(loss.item())
        loss.backward()
        with mt.no_grad():
            w1 -= learning_rate * w1.grad
            w2 -= learning_rate * w2.grad
            w1.grad.zero_()
            w2.grad.zero_()
    assert loss.shape == ()  # the text says (1,), as it was before 0.4
    return losses


def test_examples_two_layers_by_autograd_and_with_a_relu_of_ones_own() -> None:
    built_in = train_two_layers(lambda h: h.clamp(min=0))
    assert built_in[0] > 1e6 and built_in[-1] < 1e-3
    mt.manual_seed(1000)
    np.testing.assert_allclose(train_two_layers(MyReLU.apply)[:100], built_in[:100], rtol=1e-3)


def test_examples_text_data_is_another_way_to_update() -> None:
    w = mt.tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    w.data -= 0.5 * w.grad.data
    assert w.tolist() == [0, 0]
    assert w.requires_grad and w.is_leaf


# Legacy names: one error that names today's way ---------------------------------------------------


def test_legacy_variable() -> None:
    from microtrain.autograd import Variable

    data = mt.ones(2)
    for x in (Variable(data, requires_grad=True), Variable(data, True)):
        assert type(x) is mt.Tensor and x.is_leaf and x.requires_grad and x is not data
        (x * x).sum().backward()
        assert x.grad.tolist() == [2, 2]
    y = Variable(mt.ones(2, requires_grad=True) * data)
    assert y.is_leaf and not y.requires_grad and isinstance(y, Variable)
    assert not isinstance(2.0, Variable) and Variable().shape == (0,)
    data.add_(1)  # one memory
    assert x.tolist() == [2, 2]
    for volatile in (True, False):
        with pytest.raises(TypeError, match=r"mt\.no_grad\(\)"):
            Variable(data, volatile=volatile)
    for wrong in ([1.0], 1.0, np.ones(2)):
        with pytest.raises(TypeError, match=r"data must be a Tensor.*mt\.tensor\(data"):
            Variable(wrong)
    with pytest.raises(RuntimeError, match="floating point"):
        Variable(mt.tensor([1]), requires_grad=True)


def test_a_write_to_what_a_legacy_variable_shares_is_seen() -> None:
    data = mt.ones(2)
    x = mt.autograd.Variable(data, requires_grad=True)
    loss = (x * x).sum()
    data.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_legacy_volatile() -> None:
    x = mt.tensor([1.0])
    with pytest.raises(AttributeError, match=r"mt\.no_grad\(\)"):
        _ = x.volatile
    with pytest.raises(AttributeError, match=r"mt\.no_grad\(\)"):
        x.volatile = True
    assert not hasattr(x, "volatile")


def test_legacy_function_instance() -> None:
    with pytest.raises(RuntimeError, match=r"MyReLU\.apply\(\.\.\.\)"):
        MyReLU()(mt.ones(2))
