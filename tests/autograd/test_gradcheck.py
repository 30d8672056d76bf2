"""`gradcheck` and `gradgradcheck`: right rules pass, each kind of wrong rule is caught."""

import re
import warnings

import numpy as np
import pytest

import microtrain as mt
from microtrain.autograd import Function, GradcheckError, gradcheck, gradgradcheck
from microtrain.autograd.function import once_differentiable


def leaf(*shape: int, seed: int = 0) -> mt.Tensor:
    values = np.random.default_rng(seed).uniform(0.5, 1.5, shape)
    return mt.tensor(values, requires_grad=True)


def rule(forward, backward) -> type[Function]:
    """A Function of x whose backward is `backward(x, g)`."""

    class Rule(Function):
        pass

    def run_forward(ctx, x):
        ctx.save_for_backward(x)
        return forward(x)

    def run_backward(ctx, g):
        (x,) = ctx.saved_tensors
        return backward(x, g)

    Rule.forward, Rule.backward = staticmethod(run_forward), staticmethod(run_backward)
    return Rule


def squares_of_numpy(x, g):
    """A right gradient that leaves the graph."""
    return mt.tensor(2 * x.detach().numpy() * g.detach().numpy())


RIGHT = {
    "elementwise": (lambda x: (x * x).exp(), (leaf(2, 3),)),
    "scalar": (lambda x: x**3, (leaf(),)),
    "two inputs, broadcast": (lambda x, y: x / y, (leaf(2, 3), leaf(3, seed=1))),
    "matmul": (lambda x, y: x @ y, (leaf(2, 3), leaf(3, 2, seed=1))),
    "several outputs": (lambda x: (x * x, x.sum() ** 2), (leaf(3),)),
    "an integer output": (lambda x: (x * x, (x * x).argmax()), (leaf(3),)),
    "a detached output": (lambda x: (x * x, (x * x).detach()), (leaf(3),)),
    "other arguments": (lambda x, n, name: x**n, (leaf(3), 3, "cubed")),
    "an input without grad": (lambda x, y: x**2 * y, (leaf(3), mt.ones(3))),
    "a column of a matrix": (lambda x: x**2, (leaf(3, 2).detach()[:, 1].requires_grad_(),)),
    "a transposed input": (lambda x: x**2, (leaf(3, 2).detach().T.requires_grad_(),)),
    "a computed input": (lambda x: x**2, (leaf(3) * 2,)),
    "the input itself": (lambda x: (x, x * x), (leaf(3),)),
    "a view of the input": (lambda x: (x.T, x * x), (leaf(3, 2),)),
    "no elements": (lambda x: x * x, (leaf(0, 3),)),
    "a list of outputs": (lambda x: [x * x], (leaf(3),)),
    "cross entropy": (lambda x, y: mt.ops.cross_entropy(x, y), (leaf(2, 3), mt.tensor([0, 2]))),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_rules_pass(name):
    function, inputs = RIGHT[name]
    assert gradcheck(function, inputs) is True
    assert gradgradcheck(function, inputs) is True


def test_inputs_that_share_no_graph():
    x, y, unused = leaf(3), leaf(2, seed=1), leaf(2, seed=2)

    def function(x, y, unused):
        return x**2, y.exp()

    assert gradcheck(function, (x, y, unused))
    assert gradgradcheck(function, (x, y, unused))


def test_the_same_tensor_given_twice():
    x = leaf(3)
    assert gradcheck(lambda a, b: a * b.exp(), (x, x))


def test_parameters_reached_through_a_closure():
    model = mt.nn.Linear(3, 2).to(mt.float64)
    x = leaf(4, 3)
    assert gradcheck(lambda *_: model(x) ** 2, (x, *model.parameters()))
    wrong, data = rule(lambda x: x * 2, lambda x, g: g * 3), x.detach()
    for number, parameter in enumerate(model.parameters()):
        inputs = (data,) * number + (parameter,)
        with pytest.raises(GradcheckError, match=f"with respect to input {number}"):
            gradcheck(lambda *_: wrong.apply(model(data)), inputs)


def test_inputs_come_back_to_the_last_bit_and_get_no_grad():
    x, y = leaf(3, 2), leaf(2)
    before = [t.detach().numpy().tobytes() for t in (x, y)]
    gradcheck(lambda x, y: x * y, (x, y))
    gradgradcheck(lambda x, y: x * y, (x, y))
    assert [t.detach().numpy().tobytes() for t in (x, y)] == before
    assert x.grad is None and y.grad is None


def test_inputs_come_back_when_func_raises():
    x = leaf(3)
    before = x.tolist()
    calls = iter(range(3))

    def function(x):
        if next(calls) == 2:
            raise ArithmeticError("third call")
        return x * 2

    with pytest.raises(ArithmeticError):
        gradcheck(function, x)
    assert x.tolist() == before


def test_under_no_grad_it_checks_all_the_same():
    wrong = rule(lambda x: x * x, lambda x, g: 3 * x * g)
    with mt.no_grad():
        assert gradcheck(lambda x: x * x, leaf(2))
        with pytest.raises(GradcheckError):
            gradcheck(wrong.apply, leaf(2))


def test_a_wrong_rule_is_named_with_both_numbers():
    """The gradient of the second entry of y alone is wrong: x[1] y[1] counts three times."""

    class Wrong(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x * mt.tensor([1.0, 3.0], dtype=mt.float64)

    x = mt.tensor([2.0, 5.0], dtype=mt.float64, requires_grad=True)
    y = leaf(2)

    def function(x, y):
        return x + y, Wrong.apply(x, y)

    expected = (
        "Jacobian mismatch for output 1 with respect to input 1, 1 of 4 entries; the first at "
        "entry (1,) of the output, (1,) of the input: numerical 5, analytical 15 "
        "(eps=1e-06, atol=1e-05, rtol=0.001)"
    )
    with pytest.raises(GradcheckError) as raised:
        gradcheck(function, (x, y))
    # A central difference is exact for a product but for its rounding.
    assert re.sub(r"numerical [\d.]+", "numerical 5", str(raised.value)) == expected
    numerical = float(re.search(r"numerical ([\d.]+)", str(raised.value))[1])
    assert numerical == pytest.approx(5, rel=1e-8)
    assert gradcheck(function, (x, y), raise_exception=False) is False


WRONG = {
    "a factor": (lambda x: x * x, lambda x, g: 3 * x * g),
    "a sign": (lambda x: x.exp(), lambda x, g: -x.exp() * g),
    "nan": (lambda x: x * x, lambda x, g: x * g * float("nan")),
    "none": (lambda x: x * x, lambda x, g: None),
    "entries mixed up": (lambda x: x * x, lambda x, g: 2 * x * g.sum()),
    "not multiplied by g": (lambda x: x * x, lambda x, g: 2 * x),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_caught(name):
    function = rule(*WRONG[name]).apply
    with pytest.raises(GradcheckError, match="output 0 with respect to input 0"):
        gradcheck(function, leaf(3))


def test_a_rule_of_a_scalar_that_forgets_its_gradient_is_caught():
    function = rule(lambda x: x * x, lambda x, g: 2 * x).apply
    x = mt.tensor(3.0, dtype=mt.float64, requires_grad=True)
    with pytest.raises(GradcheckError, match=r"zero for output 0, input 0 gets 6 at entry \(\)"):
        gradcheck(function, x)


def test_outputs_that_all_lost_the_graph_have_to_be_constant():
    assert gradcheck(lambda x: (x.detach() * 0, (x > 9).sum()), leaf(3))
    with pytest.raises(GradcheckError, match=r"output 1 .* analytical 0 "):
        gradcheck(lambda x: (x.detach() * 0, x.detach() * 2), leaf(3))


WRONG_TWICE = {
    # Each first derivative is right, and wrong as a function of x.
    "detached from x": (lambda x: x**3, lambda x, g: 3 * x.detach() ** 2 * g),
    "detached from g": (lambda x: x**3, lambda x, g: 3 * x**2 * g.detach()),
    "outside the graph": (lambda x: x * x, squares_of_numpy),
}


@pytest.mark.parametrize("name", WRONG_TWICE)
def test_wrong_second_derivatives_are_caught(name):
    function = rule(*WRONG_TWICE[name]).apply
    x, y = leaf(3), leaf(3, seed=1)
    assert gradcheck(function, x)
    with pytest.raises(GradcheckError, match="gradient of input 0 with respect to"):
        gradgradcheck(function, x)
    # Beside an input whose gradient is recorded as it should be.
    assert not gradgradcheck(lambda y, x: function(x) + y**2, (y, x), raise_exception=False)


def test_a_wrong_rule_of_the_gradient_is_caught():
    derivative = rule(lambda x: 2 * x, lambda x, g: 5 * g)
    function = rule(lambda x: x * x, lambda x, g: derivative.apply(x) * g).apply
    x = mt.tensor(3.0, dtype=mt.float64, requires_grad=True)
    assert gradcheck(function, x)
    seed = mt.tensor(1.0, dtype=mt.float64, requires_grad=True)
    message = r"gradient of input 0 with respect to input 0, .* numerical 2.*, analytical 5 "
    with pytest.raises(GradcheckError, match=message):
        gradgradcheck(function, x, seed)


def test_once_differentiable_is_refused_by_gradgradcheck():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            return squares_of_numpy(ctx.saved_tensors[0], g)

    assert gradcheck(Once.apply, leaf(3))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradgradcheck(Once.apply, leaf(3))


def test_grad_outputs_of_ones_own():
    x = leaf(3)
    assert gradgradcheck(lambda x: x**3, x, leaf(3, seed=1))
    assert gradgradcheck(
        lambda x: (x**3, x.exp()), x, (leaf(3, seed=1), mt.ones(3, dtype="double"))
    )
    with pytest.raises(RuntimeError, match="2 gradients"):
        gradgradcheck(lambda x: x**3, x, (leaf(3), leaf(3)))


def test_inputs_that_are_not_float64_are_warned_about():
    x, y = leaf(2), mt.ones(2, dtype=mt.float32, requires_grad=True)
    with pytest.warns(UserWarning, match="input 1 requires grad and is float32") as caught:
        gradcheck(lambda x, y: x * y, (x, y), eps=1e-2)
    assert [w.filename for w in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradcheck(lambda x, y: x * y, (x, y.detach()))
    with pytest.warns(UserWarning, match=r"input 1 .* float32") as caught:
        gradgradcheck(lambda x, y: x * y, (x, y), eps=1e-2)
    assert [w.filename for w in caught] == [__file__]


def test_a_step_that_precision_swallows_is_named():
    x = mt.tensor([1.0, 1e4], dtype=mt.float32, requires_grad=True)
    message = r"input 0, entry \(1,\): eps=1e-06 is lost beside 10000 in float32"
    warned = pytest.warns(UserWarning, match="input 0 .* float32")
    with warned, pytest.raises(GradcheckError, match=message):
        gradcheck(lambda x: x * x, x, rtol=1)


@pytest.mark.parametrize(
    ("function", "inputs", "error", "message"),
    [
        (lambda x: x, (mt.ones(2),), ValueError, "no input requires grad"),
        (lambda x: x, (3.0,), ValueError, "no input requires grad"),
        (lambda x: 3.0, (leaf(2),), TypeError, "returned float as output 0"),
        (lambda x: (x, None), (leaf(2),), TypeError, "returned NoneType as output 1"),
        (lambda x: x, (leaf(1).expand(3),), RuntimeError, r"input 0 share memory.*clone\(\)"),
    ],
)
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_misuse(check, function, inputs, error, message):
    with pytest.raises(error, match=message):
        check(function, inputs)


def test_gradgradcheck_of_what_has_no_gradient():
    with pytest.raises(GradcheckError, match="no output of func requires grad"):
        gradgradcheck(lambda x: x.detach(), leaf(2))
    assert gradgradcheck(lambda x: x.detach(), leaf(2), raise_exception=False) is False


TORCH_CASES = {
    "right": (lambda x: (x * x).exp(), True, True),
    "several outputs": (lambda x: (x**3, x.sum()), True, True),
    "cut from the graph": (lambda x: x * x.detach(), False, False),
    "constant": (lambda x: x.detach() * 0, True, None),
    "cut, all of it": (lambda x: x.detach() * 2, False, None),
    "partly cut": (lambda x: (x * x, x.detach() * 2), True, True),
}


@pytest.mark.parametrize("name", TORCH_CASES)
def test_the_verdict_is_that_of_torch(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    function, first, second = TORCH_CASES[name]
    x = leaf(3)
    theirs = torch.tensor(x.tolist(), dtype=torch.float64, requires_grad=True)
    assert gradcheck(function, x, raise_exception=False) is first
    assert torch.autograd.gradcheck(function, theirs, raise_exception=False) is first
    if second is not None:
        assert gradgradcheck(function, x, raise_exception=False) is second
        assert torch.autograd.gradgradcheck(function, theirs, raise_exception=False) is second


def test_some_entries_of_a_large_input() -> None:
    calls = []

    def func(x):
        calls.append(1)
        return (x * x).sum()

    large, small = leaf(50, 40), leaf(3)
    assert gradcheck(func, large, entries=8)
    assert len(calls) == 1 + 2 * 8
    assert gradcheck(func, small, entries=8)
    wrong = rule(lambda x: (x * x).sum(), lambda x, g: 2 * x * g + (x > 0))
    with pytest.raises(
        GradcheckError, match=r"8 of 8 entries; the first at entry \(\) of the"
    ) as e:
        gradcheck(wrong.apply, large, entries=8)
    row, column = map(int, re.search(r"\((\d+), (\d+)\) of the input", str(e.value)).groups())
    numerical = float(re.search(r"numerical ([\d.]+)", str(e.value))[1])
    assert numerical == pytest.approx(2 * large.detach().numpy()[row, column], rel=1e-6)
