"""`autograd.functional`: analytic truth, shapes, strictness, and the same as torch's."""

import numpy as np
import pytest

import microtrain as mt
from microtrain.autograd import Function, functional
from microtrain.autograd.function import once_differentiable
from microtrain.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp

PRODUCTS = [vjp, jvp, vhp, hvp]
RNG = np.random.default_rng(0)
A, X, Y = RNG.normal(size=(4, 3)), RNG.uniform(0.5, 1.5, 3), RNG.uniform(0.5, 1.5, (2, 3))


def close(ours, expected):
    np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-10, atol=1e-12)


def double(array):
    return mt.tensor(np.asarray(array, np.float64))


# Analytic truth -----------------------------------------------------------------------------------


def test_a_linear_map_is_its_own_jacobian():
    a, x = double(A), double(X)
    close(jacobian(lambda x: a @ x, x), A)
    v, w = RNG.normal(size=4), RNG.normal(size=3)
    outputs, product = vjp(lambda x: a @ x, x, double(v))
    close(outputs, A @ X)
    close(product, v @ A)
    outputs, product = jvp(lambda x: a @ x, x, double(w))
    close(outputs, A @ X)
    close(product, A @ w)


def test_a_quadratic_form_has_a_symmetric_hessian():
    m, x, v = double(A[:3]), double(X), RNG.normal(size=3)
    expected = A[:3] + A[:3].T
    close(hessian(lambda x: x @ (m @ x), x), expected)
    for product in (vhp, hvp):
        output, found = product(lambda x: x @ (m @ x), x, double(v))
        close(output, X @ A[:3] @ X)
        close(found, expected @ v)


def test_an_elementwise_function_has_a_diagonal_jacobian():
    x = double(Y)
    found = jacobian(lambda x: x.exp(), x)
    assert found.shape == (2, 3, 2, 3)
    close(found.reshape(6, 6), np.diag(np.exp(Y).ravel()))


def test_tuples_nest_outputs_around_inputs():
    def function(x, y):
        return (x * y).sum(), y * 2

    blocks = jacobian(function, (double(X), double(Y)))
    assert [[b.shape for b in row] for row in blocks] == [[(3,), (2, 3)], [(2, 3, 3), (2, 3, 2, 3)]]
    close(blocks[0][0], Y.sum(0))
    close(blocks[0][1], np.broadcast_to(X, (2, 3)))
    close(blocks[1][0], np.zeros((2, 3, 3)))
    close(blocks[1][1].reshape(6, 6), 2 * np.eye(6))
    mixed = hessian(lambda x, y: (x * y).sum(), (double(X), double(Y)))
    assert [[b.shape for b in row] for row in mixed] == [
        [(3, 3), (3, 2, 3)],
        [(2, 3, 3), (2, 3, 2, 3)],
    ]
    close(mixed[0][1], np.broadcast_to(np.eye(3)[:, None, :], (3, 2, 3)))
    close(mixed[0][0], np.zeros((3, 3)))


def test_a_single_tensor_and_a_tuple_of_one_differ_in_the_result():
    x = double(X)
    assert type(jacobian(lambda x: x * 2, x)) is mt.Tensor
    assert type(jacobian(lambda x: x * 2, (x,))) is tuple
    assert type(jacobian(lambda x: (x * 2,), x)) is tuple
    assert type(jacobian(lambda x: (x * 2,), (x,))[0]) is tuple
    assert type(hessian(lambda x: x.sum(), (x,))[0]) is tuple
    outputs, product = vjp(lambda x: (x * 2,), (x,), (x,))
    assert type(outputs) is tuple and type(product) is tuple
    outputs, product = jvp(lambda x: x * 2, (x,), (x,))
    assert type(outputs) is type(product) is mt.Tensor


def test_v_may_be_left_out_where_it_is_one_number():
    x = double(3.0)
    close(vjp(lambda x: x**3, x)[1], 27.0)
    close(jvp(lambda x: x**3, x)[1], 27.0)
    close(vhp(lambda x: x**3, x)[1], 18.0)
    close(hvp(lambda x: x**3, x)[1], 18.0)


def test_no_elements():
    assert jacobian(lambda x: x * 2, mt.zeros(0)).shape == (0, 0)
    assert jacobian(lambda x: x.sum(), mt.zeros(0)).shape == (0,)
    assert hessian(lambda x: x.sum(), mt.zeros(0, 2)).shape == (0, 2, 0, 2)


def test_an_output_that_is_the_input():
    x, v = double(X), double(X + 1)
    close(jacobian(lambda x: x, x), np.eye(3))
    close(vjp(lambda x: x, x, v)[1], X + 1)
    close(jvp(lambda x: x, x, v)[1], X + 1)


# Graphs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("create_graph", [False, True])
def test_results_have_a_graph_only_if_asked(create_graph):
    x = double(X).requires_grad_()
    cube = {"func": lambda x: (x**3).sum(), "inputs": x, "create_graph": create_graph}
    found = [jacobian(**cube), hessian(**cube), *vjp(**cube)]
    for product in (jvp, vhp, hvp):
        found += product(v=mt.ones_like(x), **cube)
    assert {t.requires_grad for t in found} == {create_graph}
    assert x.grad is None


def test_create_graph_differentiates_again():
    x = double(X).requires_grad_()
    v = double(Y[0]).requires_grad_()

    def third(x):
        return hessian(lambda x: (x**3).sum(), x, create_graph=True).sum()

    close(mt.autograd.grad(third(x), x)[0], np.full(3, 6.0))
    with mt.no_grad():  # whoever asks for a graph gets one
        close(jacobian(third, x), np.full(3, 6.0))
        assert jacobian(lambda x: x**3, x, create_graph=True).requires_grad
    for product in (vhp, hvp):
        result = product(lambda x: (x**3).sum(), x, v, create_graph=True)[1].sum()
        by_x, by_v = mt.autograd.grad(result, (x, v))
        close(by_x, 6 * Y[0])
        close(by_v, 6 * X)


def test_what_the_function_captures_is_a_constant():
    x = double(X).requires_grad_()
    close(jacobian(lambda y: y * x, x), np.diag(X))
    close(jacobian(lambda y: y * x, x, create_graph=True), np.diag(X))


def test_inputs_stay_as_they_are():
    x = double(X)
    jacobian(lambda x: x * x, x)
    assert not x.requires_grad and x.grad is None
    close(x, X)


# Strictness and errors ----------------------------------------------------------------------------

INDEPENDENT = [
    # what is called, what it says in strict mode; each gives zeros otherwise
    (lambda s: vjp(lambda x, y: x.sum(), (P, P), strict=s), "input 1 is zero"),
    (lambda s: vjp(lambda x, y: P.sum(), (P, P), strict=s), "output 0 with .* is zero"),
    (lambda s: jvp(lambda x, y: x.sum(), (P, P), (P, P), strict=s), "input 1 is zero"),
    (lambda s: jvp(lambda x: (x, P), P, P, strict=s), "output 1 with respect to the inputs"),
    (lambda s: vhp(lambda x, y: (x * x).sum(), (P, P), (P, P), strict=s), "input 1 is zero"),
    (lambda s: vhp(lambda x: x.sum(), P, P, strict=s), "input 0 is a constant"),
    (lambda s: hvp(lambda x: x.sum(), P, P, strict=s), "input 0 is a constant"),
    (lambda s: jacobian(lambda x, y: x, (P, P), strict=s), "output 0 .* input 1 is zero"),
    (lambda s: jacobian(lambda x: x * 2, Q, create_graph=True, strict=s), "input 0 is a constant"),
    (lambda s: hessian(lambda x: x.sum(), P, strict=s), "input 0 is a constant"),
    (lambda s: hessian(lambda x, y: (x * x).sum(), (P, P), strict=s), "input 1 is zero"),
]
P, Q = mt.ones(2), mt.ones(2, requires_grad=True)


@pytest.mark.parametrize(("call", "message"), INDEPENDENT)
def test_strict_refuses_what_is_zeros_otherwise(call, message):
    call(False)
    with pytest.raises(RuntimeError, match=f"{message}.*strict=True does not allow"):
        call(True)


def test_an_independent_input_gets_zeros():
    first, second = vjp(lambda x, y: x.sum(), (P, mt.ones(3, 2)))[1]
    assert first.tolist() == [1, 1] and second.tolist() == [[0, 0]] * 3
    assert jvp(lambda x: (x, P), P, P)[1][1].tolist() == [0, 0]
    assert hvp(lambda x: x.sum(), P, P)[1].tolist() == [0, 0]
    assert hessian(lambda x: x.sum(), P).tolist() == [[0, 0]] * 2


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_vector_that_does_not_fit_is_refused(product):
    def function(x):
        return x if product is vjp else x.sum()

    with pytest.raises(RuntimeError, match=r"expected shapes \[\(2,\)\], got \[\(3,\)\]"):
        product(function, P, mt.ones(3))
    with pytest.raises(RuntimeError, match=r"got \[\(2,\), \(2,\)\]"):
        product(function, P, (P, P))
    with pytest.raises(RuntimeError, match="v may be None only"):
        product(function, P)
    with pytest.raises(TypeError, match="v: expected a Tensor"):
        product(function, P, [1.0, 1.0])


@pytest.mark.parametrize("function", [vhp, hvp, hessian])
def test_a_hessian_needs_one_number(function):
    v = () if function is hessian else (P,)
    with pytest.raises(RuntimeError, match=r"one element, got shape \(2,\)"):
        function(lambda x: x, P, *v)
    with pytest.raises(RuntimeError, match="got a tuple of 1"):
        function(lambda x: (x.sum(),), P, *v)


@pytest.mark.parametrize("name", ["vjp", "jvp", "vhp", "hvp", "jacobian", "hessian"])
def test_misuse(name):
    function = getattr(functional, name)
    v = (P,) if name in ("jvp", "vhp", "hvp") else ()
    with pytest.raises(TypeError, match=f"{name}: inputs: .* got list"):
        function(lambda x: x.sum(), [P], *v)
    with pytest.raises(TypeError, match=f"{name}: inputs: .* got float at position 1"):
        function(lambda x, y: x.sum(), (P, 2.0), *v)
    with pytest.raises(TypeError, match=f"{name}: outputs of func: .* got int"):
        function(lambda x: 3, P, *v)
    with mt.inference_mode(), pytest.raises(RuntimeError, match="nothing is recorded"):
        function(lambda x: x.sum(), P, *v)
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        function(lambda x: x.sum(), mt.tensor([1, 2]), *v)


def test_second_derivatives_of_a_once_differentiable_function_are_refused_not_zero():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    assert jacobian(Once.apply, P).tolist() == [[2, 0], [0, 2]]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        hessian(lambda x: Once.apply(x).sum(), P)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        jvp(Once.apply, P, P)


# torch --------------------------------------------------------------------------------------------

SCALARS = {
    "single": (lambda x: (x.exp() * x).sum(), (X,)),
    "mixed": (lambda x, y: ((x * y).tanh() ** 2).sum(), (X, Y)),
    "one unused": (lambda x, y: (x**3).sum(), (X, Y)),
    "linear": (lambda x, y: (x * 2).sum() + y.sum(), (X, Y)),
    "one element, not 0-d": (lambda x: (x**3).sum().reshape(1, 1), (X,)),
}
SEVERAL = {
    "tensor": (lambda x, y: x / y, (X, Y)),
    "tuple": (lambda x, y: (x * y, y.exp().sum(), x * 3), (X, Y)),
    "tuple of one": (lambda x: (x**2,), (X,)),
}


def nested(found):
    """The structure of the result, with an array and `requires_grad` for each Tensor."""
    if isinstance(found, tuple):
        return tuple(map(nested, found))
    return {"array": found.detach().numpy(), "requires_grad": found.requires_grad}


def assert_same(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    else:
        assert ours["requires_grad"] == theirs["requires_grad"]
        assert ours["array"].shape == theirs["array"].shape
        assert ours["array"].dtype == theirs["array"].dtype
        np.testing.assert_allclose(ours["array"], theirs["array"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "case"),
    [(name, case) for case in SCALARS for name in ("vhp", "hvp", "hessian")]
    + [(name, case) for case in (*SCALARS, *SEVERAL) for name in ("vjp", "jvp", "jacobian")],
)
def test_the_same_as_torch(name, case, packed, create_graph):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    function, arrays = (SCALARS | SEVERAL)[case]
    shapes = [np.shape(a) for a in arrays]
    if name == "vjp":
        outputs = function(*map(mt.tensor, arrays))
        single = not isinstance(outputs, tuple)
        shapes = [y.shape for y in ((outputs,) if single else outputs)]
    else:
        single = len(arrays) == 1 and not packed
    vectors = [np.random.default_rng(n).normal(size=s) for n, s in enumerate(shapes)]
    found = []
    for m, library in ((mt, functional), (torch, torch.autograd.functional)):
        xs = tuple(m.tensor(a, requires_grad=True) for a in arrays)
        vs = tuple(m.tensor(v) for v in vectors)
        rest = () if name in ("jacobian", "hessian") else (vs[0] if single else vs,)
        inputs = xs[0] if len(xs) == 1 and not packed else xs
        result = getattr(library, name)(function, inputs, *rest, create_graph=create_graph)
        found.append(nested(result))
    assert_same(*found)
