"""`autograd.Function`: operations of the user's own."""

import gc
import weakref

import numpy as np
import pytest

import microtrain as mt
from microtrain.autograd import Function, grad
from microtrain.autograd.function import once_differentiable


def leaf(*values: float) -> mt.Tensor:
    return mt.tensor(list(values), dtype=mt.float64, requires_grad=True)


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Exp(Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, g):
        (result,) = ctx.saved_tensors
        return g * result


class Split(Function):
    """Several outputs: two Tensors with a gradient, an index, a number."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(Split.materialize)
        return x * 2, x.argmax(), x * 3, 7

    @staticmethod
    def backward(ctx, *grads):
        Split.seen = grads
        return sum(g * k for g, k in zip(grads[:3:2], (2, 3), strict=True) if g is not None)

    materialize = True


def test_values_and_gradients():
    x = leaf(1.0, 2.0)
    y = Cube.apply(x)
    assert (y.tolist(), y.grad_fn.name()) == ([1.0, 8.0], "CubeBackward")
    (y * 10).sum().backward()
    assert x.grad.tolist() == [30.0, 120.0]


@pytest.mark.parametrize("operation, orders", [(Cube, (12.0, 12.0, 6.0)), (Exp, (np.exp(2),) * 3)])
def test_higher_derivatives_through_a_custom_backward(operation, orders):
    x = leaf(2.0)
    value = operation.apply(x)
    for expected in orders:
        (value,) = grad(value, x, create_graph=True)
        assert value.item() == pytest.approx(expected, rel=1e-14)


def test_nothing_is_recorded_where_nothing_requires_grad():
    y = Cube.apply(mt.ones(2))
    assert not y.requires_grad
    with mt.no_grad():
        assert not Cube.apply(leaf(1.0)).requires_grad


def test_forward_and_backward_run_without_recording():
    modes = []

    class Watch(Function):
        @staticmethod
        def forward(ctx, x):
            modes.append(mt.is_grad_enabled())
            return x * 2

        @staticmethod
        def backward(ctx, g):
            modes.append(mt.is_grad_enabled())
            return g * 2

    x = leaf(1.0)
    Watch.apply(x).backward(retain_graph=True)
    grad(Watch.apply(x), x, create_graph=True)
    assert modes == [False, False, False, True]


def test_needs_input_grad_and_arguments_that_are_no_tensors():
    seen = []

    class Scale(Function):
        @staticmethod
        def forward(ctx, x, factor, y, *, offset):
            ctx.factor = factor
            seen.append(ctx.needs_input_grad)
            return x * factor + y + offset

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.needs_input_grad)
            return g * ctx.factor, None, None

    x = leaf(1.0)
    out = Scale.apply(x, 3.0, mt.ones(1, dtype=mt.float64), offset=1)
    out.backward()
    assert seen == [(True, False, False)] * 2
    assert (out.item(), x.grad.item()) == (5.0, 3.0)


class Separate(Function):
    """PyTorch's newer style: forward computes, setup_context saves."""

    @staticmethod
    def forward(x, factor=2.0):
        return x.exp() * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        assert not mt.is_grad_enabled()
        Separate.seen = (len(inputs), ctx.needs_input_grad)
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (result,) = ctx.saved_tensors
        return g * result, None


@pytest.mark.parametrize("arguments", [(), (2.0,), {"factor": 2.0}])
def test_setup_context(arguments) -> None:
    x = leaf(0.0, 1.0)
    named = isinstance(arguments, dict)
    y = Separate.apply(x, **arguments) if named else Separate.apply(x, *arguments)
    assert Separate.seen == (2, (True, False))
    (first,) = grad(y.sum(), x, create_graph=True)
    (second,) = grad(first.sum(), x)
    assert y.tolist() == first.tolist() == second.tolist() == [2.0, 2.0 * np.exp(1.0)]


@pytest.mark.parametrize("materialize", [True, False])
def test_several_outputs_get_one_gradient_each(materialize):
    Split.materialize = materialize
    x = leaf(1.0, 2.0)
    double, place, triple, number = Split.apply(x)
    assert (place.item(), place.requires_grad, number) == (1, False, 7)
    assert [t.output_nr for t in (double, triple)] == [0, 2]
    triple.sum().backward(retain_graph=True)
    first, second, third, fourth = Split.seen
    assert third.tolist() == [1.0, 1.0]
    assert fourth is None
    if materialize:
        assert (first.tolist(), second.tolist()) == ([0.0, 0.0], 0)
    else:
        assert first is second is None
    (double.sum() + triple.sum()).backward()
    assert x.grad.tolist() == [8.0, 8.0]


def test_a_tuple_of_one():
    class One(Function):
        @staticmethod
        def forward(ctx, x):
            return (x * 2,)

        @staticmethod
        def backward(ctx, g):
            return (g * 2,)

    x = leaf(1.0)
    (y,) = One.apply(x)
    y.backward()
    assert x.grad.item() == 2.0


def test_mark_non_differentiable():
    class Sorted(Function):
        @staticmethod
        def forward(ctx, x):
            sign = x.sign()
            ctx.mark_non_differentiable(sign)
            return x * sign, sign

        @staticmethod
        def backward(ctx, g, g_sign):
            assert g_sign.tolist() == [0.0, 0.0]
            return g * 5

    x = leaf(1.0, -2.0)
    y, sign = Sorted.apply(x)
    assert (y.requires_grad, sign.requires_grad) == (True, False)
    y.sum().backward()
    assert x.grad.tolist() == [5.0, 5.0]


def test_none_is_a_gradient_of_nothing():
    class Stop(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, g):
            return None, g

    x, y = leaf(1.0), leaf(1.0)
    Stop.apply(x, y).backward()
    assert (x.grad, y.grad.item()) == (None, 1.0)


def test_more_nones_than_arguments_are_allowed():
    class Extra(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2, None, None

    x = leaf(1.0)
    Extra.apply(x).backward()
    assert x.grad.item() == 2.0


def test_an_output_that_is_an_input():
    class Identity(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 7 * ctx.saved_tensors[0]

    x = leaf(2.0)
    y = Identity.apply(x)
    assert y is not x
    assert x.is_leaf
    assert np.shares_memory(y.detach().numpy(), x.detach().numpy())
    y.backward()
    assert x.grad.item() == 14.0


def test_an_output_that_forward_keeps_elsewhere_is_not_changed():
    constant = mt.ones(2, dtype=mt.float64)

    class Constant(Function):
        @staticmethod
        def forward(ctx, x):
            return constant

        @staticmethod
        def backward(ctx, g):
            return g

    assert Constant.apply(leaf(1.0, 2.0)).requires_grad
    assert not constant.requires_grad
    assert constant.is_leaf


def test_a_gradient_that_broadcasts_is_reduced_and_cast():
    class Add(Function):
        @staticmethod
        def forward(ctx, x, y):
            return x + y

        @staticmethod
        def backward(ctx, g):
            return g.double(), g

    x, y = mt.ones(3, requires_grad=True), mt.ones(2, 3, requires_grad=True)
    Add.apply(x, y).sum().backward()
    assert (x.grad.tolist(), x.grad.dtype) == ([2.0, 2.0, 2.0], mt.float32)


# Saved tensors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [Cube, Exp])
def test_a_write_to_a_saved_tensor_is_noticed(operation):
    x = leaf(1.0, 2.0)
    h = x * 1
    y = operation.apply(h)
    (h if operation is Cube else y).add_(1)
    with pytest.raises(
        RuntimeError, match=rf"{operation.__name__}Backward saved .*at version 1.*0 inst"
    ):
        y.sum().backward()


def test_saved_tensors_are_freed_by_backward():
    y = Cube.apply(leaf(1.0))
    y.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        y.backward()


def test_ctx_takes_any_attribute() -> None:
    """`ctx.shape = x.shape` is what everyone writes; the engine has its own names for its own."""
    names = "shape shapes op edges saved seq versions hooks name inputs outputs node run".split()
    names += ["add_hook", "apply", "retain"]

    class Sum(Function):
        @staticmethod
        def forward(ctx, x, y):
            for name in names:
                setattr(ctx, name, x.shape)
            ctx.save_for_backward(x)
            return (x * y).sum(), y.sum()

        @staticmethod
        def backward(ctx, g, h):
            assert {getattr(ctx, name) for name in names} == {(2, 3)}
            (x,) = ctx.saved_tensors
            return g.expand(ctx.shape), (g * x + h).expand(ctx.shape)

    x, y = (mt.ones(2, 3, requires_grad=True) for _ in range(2))
    first, second = Sum.apply(x, y)
    assert "<SumBackward at 0x" in repr(first.grad_fn)
    assert repr(first) == "tensor(6., grad_fn=<SumBackward>)"
    first.retain_grad()
    first.register_hook(lambda grad: grad)
    (first + 2 * second).backward()
    assert (x.grad.sum().item(), y.grad.sum().item()) == (6.0, 18.0)
    with pytest.raises(RuntimeError, match=r"second time \(SumBackward\)"):
        first.backward()


def test_save_for_backward_takes_tensors_and_none():
    class Save(Function):
        @staticmethod
        def forward(ctx, x, what):
            ctx.save_for_backward(x, what)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            assert ctx.saved_tensors[1] is None
            return g * 2, None

    x = leaf(1.0)
    Save.apply(x, None).backward()
    assert x.grad.item() == 2.0
    with pytest.raises(TypeError, match=r"got float; keep other values as attributes"):
        Save.apply(x, 3.0)


@pytest.mark.parametrize("operation", [Cube, Exp])
def test_no_cycles(operation):
    gc.disable()
    try:
        y = operation.apply(leaf(1.0, 2.0))
        node = weakref.ref(y.grad_fn)
        y.sum().backward(retain_graph=True)
        del y
        assert node() is None
    finally:
        gc.enable()


# once_differentiable ------------------------------------------------------------------------------


class ByNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return mt.from_numpy(np.sinh(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return mt.from_numpy(g.numpy() * np.cosh(x.detach().numpy()))


def test_once_differentiable():
    x = leaf(1.0)
    (first,) = grad(ByNumpy.apply(x), x)
    assert first.item() == np.cosh(1.0)
    (first,) = grad(ByNumpy.apply(x), x, create_graph=True)
    assert first.item() == np.cosh(1.0)
    with pytest.raises(RuntimeError, match="marked with @once_differentiable"):
        first.backward()


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forward, backward, error, text",
    [
        (None, lambda g: (g, g), RuntimeError, r"Mine.backward.*expected 1,.*got 2"),
        (None, lambda g: (), RuntimeError, r"Mine.backward.*expected 1,.*got 0"),
        (None, lambda g: mt.ones(3), RuntimeError, r"reduces to \(2,\)"),
        (None, lambda g: 3.0, TypeError, "Mine.backward.*returned float as gradient 0"),
        (None, lambda g: g.numpy(), TypeError, "Mine.backward.*returned ndarray"),
        (lambda x: 3, None, TypeError, "Mine.forward.*returned int"),
        (lambda x: [x], None, TypeError, "Mine.forward.*returned list"),
        (lambda x: x.numpy(), None, TypeError, "Mine.forward.*returned ndarray"),
    ],
)
def test_what_forward_and_backward_may_not_return(forward, backward, error, text):
    class Mine(Function):
        pass

    Mine.forward = staticmethod(lambda ctx, x: forward(x) if forward else x * 2)
    Mine.backward = staticmethod(lambda ctx, g: backward(g))
    with pytest.raises(error, match=text):
        Mine.apply(leaf(1.0, 2.0)).sum().backward()
    assert mt.is_grad_enabled()


def test_the_methods_must_be_defined():
    class Nothing(Function):
        pass

    class Half(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

    with pytest.raises(NotImplementedError, match="forward"):
        Nothing.apply(leaf(1.0))
    with pytest.raises(NotImplementedError, match="backward"):
        Half.apply(leaf(1.0)).backward()


def test_writing_to_an_input_is_refused_with_the_way_out():
    class Dirty(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

    with pytest.raises(NotImplementedError, match=r"DirtyBackward.*x\.clone\(\)"):
        Dirty.apply(leaf(1.0))
    assert mt.is_grad_enabled()


def test_instances_are_refused_with_the_way_out():
    with pytest.raises(RuntimeError, match=r"Cube\(\): instances .* Cube\.apply"):
        Cube()


def test_an_error_in_the_users_code_leaves_the_modes_as_they_were():
    class Fails(Function):
        @staticmethod
        def forward(ctx, x):
            if x.item() < 0:
                raise KeyError("forward")
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise KeyError("backward")

    for run in (lambda: Fails.apply(leaf(-1.0)), lambda: Fails.apply(leaf(1.0)).backward()):
        with pytest.raises(KeyError):
            run()
        assert mt.is_grad_enabled()
