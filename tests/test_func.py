"""`mt.func`: analytic truth, nested backward, captured steps, and the same as torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compilers import NATIVE
from hypothesis import given, settings
from hypothesis import strategies as st
from pace import examples

import microtrain as mt
from microtrain import func, nn
from microtrain.autograd import functional
from microtrain.autograd.function import once_differentiable
from microtrain.ops.coercion import underived

RNG = np.random.default_rng(0)
EXECUTORS = ["numpy", pytest.param("native", marks=NATIVE)]


def double(*shape: int) -> Any:
    return mt.from_numpy(RNG.uniform(0.3, 1.2, shape))


def near(found: Any, expected: Any, bound: float = 1e-12) -> None:
    found, expected = found.detach().numpy(), expected.detach().numpy()
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert np.abs(found - expected).max(initial=0) <= bound * max(
        1, np.abs(expected).max(initial=0)
    )


def double_net(*layers: Any) -> Any:
    return nn.Sequential(*layers).double()


# Nested backward ----------------------------------------------------------------------------------


def nested_jvp(f: Any, x: Any, v: Any) -> Any:
    """The double-backward trick, for one output."""
    x = x.detach().requires_grad_()
    y = f(x)
    u = mt.zeros_like(y).requires_grad_()
    (g,) = mt.autograd.grad(y, x, u, create_graph=True)
    return mt.autograd.grad(g, u, v, create_graph=True, materialize_grads=True)[0]


def nested_second(f: Any, x: Any) -> tuple[Any, Any, Any]:
    """Values, gradients and Laplacian at points whose function has values of shape (n, m)."""
    x = x.detach().requires_grad_()
    y = f(x)
    gradients, sums = [], []
    for j in range(y.shape[1]):
        (g,) = mt.autograd.grad(y[:, j].sum(), x, create_graph=True)
        rows = [
            mt.autograd.grad(g[:, k].sum(), x, create_graph=True, materialize_grads=True)[0]
            if g.requires_grad
            else mt.zeros_like(x)
            for k in range(x.shape[1])
        ]
        gradients.append(g)
        sums.append(sum(row[:, k] for k, row in enumerate(rows)))
    return y, mt.stack(gradients, 1), mt.stack(sums, 1)


NETS: dict[str, Callable[[], Any]] = {
    "tanh": lambda: [nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)],
    "gelu, silu": lambda: [nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1)],
    "softplus": lambda: [nn.Linear(3, 8, bias=False), nn.Softplus(), nn.Linear(8, 2), nn.Sigmoid()],
    "layer norm, softmax": lambda: [
        nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2), nn.Softmax(-1),
    ],
    "dropout": lambda: [nn.Linear(3, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 2)],
    "unflattened": lambda: [
        nn.Linear(3, 8), nn.Unflatten(1, (2, 4)), nn.Tanh(), nn.Flatten(), nn.Linear(8, 1),
    ],
    "bilinear": lambda: [_Products()],
}  # fmt: skip


class _Products(nn.Module):
    """Views, joined parts, products of two inputs, an index list, a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        a, b = x.split((1, 2), 1)
        joined = mt.cat([a**2, b.sin() * a, mt.ones_like(a)], 1)[:, [3, 0, 2]]
        pair = mt.matmul(x.unsqueeze(1), self.inner(x).unsqueeze(2)).squeeze(2)
        return mt.stack([(joined * x).mean(1), (pair * b / (1 + a)).sum(1)], 1)


def net_of(name: str) -> Any:
    mt.manual_seed(1)
    return double_net(*NETS[name]())


def drawn_alike(function: Callable[[], Any]) -> Any:
    mt.manual_seed(5)
    return function()


@pytest.mark.parametrize("name", NETS)
def test_laplacians_and_gradients_are_those_of_nested_backward(name: str) -> None:
    net, x = net_of(name), double(5, 3)
    expected = drawn_alike(lambda: nested_second(net, x))
    found = drawn_alike(lambda: func.laplacian(net, x, with_grad=True))
    for ours, theirs in zip(found, expected, strict=True):
        near(ours, theirs)
    near(drawn_alike(lambda: func.laplacian(net, x)), expected[2])


@pytest.mark.parametrize("name", NETS)
def test_the_gradients_of_a_loss_through_a_laplacian(name: str) -> None:
    net, x, found = net_of(name), double(5, 3), []
    for derive in (nested_second, lambda f, x: func.laplacian(f, x, with_grad=True)):
        y, gradient, total = drawn_alike(lambda derive=derive: derive(net, x))
        loss = ((total - y) ** 2).mean() + (gradient[..., 0] ** 3).sum()
        parameters = list(net.parameters())
        found.append(mt.autograd.grad(loss, parameters, materialize_grads=True))
    for theirs, ours in zip(*found, strict=True):
        near(ours, theirs, 1e-11)


@pytest.mark.parametrize("name", NETS)
def test_products_and_jacobians_are_those_of_nested_backward(name: str) -> None:
    net, x, v = net_of(name), double(5, 3), double(5, 3)
    y, product = drawn_alike(lambda: func.jvp(net, (x,), (v,)))
    near(y, drawn_alike(lambda: net(x)))
    near(product, drawn_alike(lambda: nested_jvp(net, x, v)))
    near(
        drawn_alike(lambda: func.jacfwd(net)(x)),
        drawn_alike(lambda: functional.jacobian(net, x)),
    )
    vector = drawn_alike(lambda: func.hvp(lambda x: (net(x) ** 2).sum(), x, v))
    near(vector, drawn_alike(lambda: functional.vhp(lambda x: (net(x) ** 2).sum(), x, v)[1]))


def test_a_divergence_is_the_trace_of_the_jacobian() -> None:
    net, x = double_net(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)), double(4, 3)
    found = func.divergence(net, x)
    rows = [functional.jacobian(net, x[n : n + 1])[0, :, 0].diagonal().sum() for n in range(4)]
    near(found, mt.stack(rows))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from([(), (1,), (4,), (2, 3)]),
    st.integers(1, 4),
    st.none() | st.lists(st.integers(0, 3), min_size=1, max_size=3),
)
def test_laplacians_of_polynomials(rows: tuple[int, ...], d: int, some: list[int] | None) -> None:
    """Of the sum of a_i x_i^2 x_0, by any coordinates, at any number of points."""
    dims = None if some is None else list(dict.fromkeys(i % d for i in some))
    a, x = np.arange(1.0, d + 1), RNG.normal(size=(*rows, d))
    value, gradient, total = func.laplacian(
        lambda p: (mt.from_numpy(a) * p**2).sum(-1) * p[..., 0],
        mt.from_numpy(x), dims=dims, with_grad=True,
    )  # fmt: skip
    first = 2 * a * x * x[..., :1]
    first[..., 0] += (a * x**2).sum(-1)
    second = 2 * a * x[..., :1]
    second[..., 0] += 4 * a[0] * x[..., 0]
    near(value, mt.from_numpy(np.asarray((a * x**2).sum(-1) * x[..., 0])))
    near(gradient, mt.from_numpy(first))
    expected = second[..., range(d) if dims is None else dims].sum(-1)
    near(total, mt.from_numpy(np.asarray(expected)))


# What may be in a function -----------------------------------------------------------------------


class Square(mt.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * ctx.saved_tensors[0] * g


class Several(mt.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return x * y, (x > 0.5).long(), x + y

    @staticmethod
    def backward(ctx: Any, a: Any, _: Any, b: Any) -> Any:
        x, y = ctx.saved_tensors
        return a * y + b, a * x + b


class Once(Square):
    backward = staticmethod(once_differentiable(Square.backward))


def in_place(x: Any) -> Any:
    y = x * 2
    y.add_(x * x)
    y[0] = y[1] * 3
    y[1:].mul_(2)
    return y


def in_part_without_grad(x: Any) -> Any:
    with mt.no_grad():
        y = x * x
    return y * x


ONE = mt.ones(3, dtype=mt.float64)
# Of x at (1, 2, 3) in the direction (1, 1, 1).
PRODUCTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "constant": (lambda x: mt.zeros(2), [0, 0]),
    "identity": (lambda x: x, [1, 1, 1]),
    "integers": (lambda x: x.argsort(), [0, 0, 0]),
    "detached": (lambda x: x.detach() * x, [1, 2, 3]),
    "no_grad inside": (in_part_without_grad, [1, 4, 9]),
    "in place": (in_place, [18, 12, 16]),
    "0-d": (lambda x: x[1] ** 2, 4),
    "broadcast": (lambda x: x.reshape(3, 1) * x[:2], [[2, 3], [3, 4], [4, 5]]),
    "cast": (lambda x: (x.float() ** 2).double(), [2, 4, 6]),
    "mask": (lambda x: (x**2)[x > 1.5], [4, 6]),
    "Function": (Square.apply, [2, 4, 6]),
    "jvp of jvp": (lambda x: func.jvp(lambda y: y**4, (x,), (ONE,))[1], [12, 48, 108]),
    "outer variable": (lambda x: x * func.jvp(lambda y: x * y, (ONE,), (ONE,))[1], [2, 4, 6]),
    "of a Laplacian": (lambda x: func.laplacian(lambda y: (y**4).sum(-1), x), 144),
    "hook": (lambda x: (x.register_hook(lambda g: 100 * g), x * x)[1], [2, 4, 6]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of(name: str) -> None:
    function, expected = PRODUCTS[name]
    x = mt.tensor([1.0, 2.0, 3.0], dtype=mt.float64)
    y, product = func.jvp(function, (x,), (ONE,))
    near(product, mt.tensor(expected, dtype=y.dtype), 1e-6 if name == "cast" else 1e-12)
    assert not y.requires_grad
    assert not product.requires_grad
    with mt.no_grad():
        near(func.jvp(function, (x,), (ONE,))[1], product)
    if y.is_floating_point():
        near(func.jacfwd(function)(x).sum(-1), product, 1e-6 if name == "cast" else 1e-12)


def test_structures_of_inputs_and_outputs() -> None:
    x, y = double(3), double(2)

    def function(pair: Any, last: Any) -> Any:
        return {"a": [pair["x"] * last, last], "b": (Several.apply(pair["y"], pair["y"]),)}

    primals = {"x": x, "y": y}, mt.tensor(2.0, dtype=mt.float64)
    out, product = func.jvp(function, primals, primals)
    near(out["a"][0], 2 * x)
    near(product["a"][0], 4 * x)
    near(product["a"][1], primals[1])
    near(product["b"][0][0], 2 * y**2)
    assert product["b"][0][1].tolist() == [0, 0]
    near(product["b"][0][2], 2 * y)
    by_x, by_y = func.jacfwd(lambda x, k, y: (x * y[0] * k).exp(), (0, 2))(x, 3, y)
    near(by_x, mt.diag(3 * y[0] * (3 * x * y[0]).exp()))
    near(by_y[:, 0], 3 * x * (3 * x * y[0]).exp())
    near(by_y[:, 1], mt.zeros_like(x))
    blocks, aux = func.jacfwd(lambda x: ((x, x.sum()), "more"), has_aux=True)(x)
    near(blocks[0], mt.eye(3, dtype=mt.float64))
    near(blocks[1], mt.ones_like(x))
    assert aux == "more"
    vector = func.hvp(lambda p: (p["x"] ** 2 * p["y"].sum()).sum(), primals[0], primals[0])
    near(vector["x"], 4 * x * y.sum())
    near(vector["y"], mt.ones_like(y) * 2 * (x**2).sum())
    assert func.jacfwd(lambda x: x * 2)(mt.zeros(0)).shape == (0, 0)


def test_draws_are_those_of_the_function_alone() -> None:
    layer, x = nn.Dropout(0.5), double(50)
    mt.manual_seed(3)
    expected = layer(x)
    mt.manual_seed(3)
    y, product = func.jvp(layer, (x,), (x,))
    near(y, expected)
    near(product, expected)


def test_batch_norm_in_training_is_differentiated_through_the_batch() -> None:
    net, x, v = double_net(nn.Linear(3, 4), nn.BatchNorm1d(4)), double(6, 3), double(6, 3)
    product = func.jvp(net, (x,), (v,))[1]
    near(product, (net(x + 1e-6 * v) - net(x - 1e-6 * v)) / 2e-6, 1e-7)


def test_results_lead_back_to_what_requires_grad_and_nowhere_else() -> None:
    x, w = double(4, 2).requires_grad_(), double(2).requires_grad_()
    made: list[Any] = []

    def function(x: Any) -> Any:
        made.append(x)
        return (x**2 * w).sum(-1)

    total = func.laplacian(function, x.detach())
    total.sum().backward()
    near(w.grad, mt.full((2,), 8.0, dtype=mt.float64))
    assert made[0].grad is None
    assert x.grad is None
    func.laplacian(lambda x: (x**3).sum(-1), x).sum().backward()
    near(x.grad, mt.full((4, 2), 6.0, dtype=mt.float64))
    with mt.no_grad():
        assert not func.laplacian(function, x).requires_grad


def test_gradients_of_derivatives() -> None:
    w, x, v = double(3, 3).requires_grad_(), double(2, 3).requires_grad_(), double(2, 3)

    def inner(p: Any, w: Any) -> Any:
        return (p @ w).tanh() * p.sin()

    def derived(x: Any, w: Any) -> Any:
        def scalar(p: Any) -> Any:
            return (inner(p, w) ** 2).sum()

        def field(p: Any) -> Any:
            return inner(p, w)

        return (
            func.jvp(field, (x,), (v,))[1],
            func.laplacian(field, x),
            func.divergence(field, x),
            func.hvp(scalar, x, v),
            func.jacfwd(field)(x),
        )

    assert mt.autograd.gradcheck(derived, (x, w))


ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "no tuple": (lambda x: func.jvp(mt.sin, x, (x,)), TypeError, "primals must be a tuple"),
    "integers": (lambda x: func.jvp(mt.sin, (x.long(),), (x,)), TypeError, "float dtype.*int64"),
    "no Tensor": (lambda x: func.jvp(mt.sin, (1.0,), (x,)), TypeError, "got float"),
    "structure": (lambda x: func.jvp(mt.sin, (x,), (x, x)), ValueError, "structure of the inputs"),
    "shape": (lambda x: func.jvp(mt.sin, (x,), (x[:1],)), ValueError, r"shape \(3,\).*\(1,\)"),
    "dtype": (lambda x: func.jvp(mt.sin, (x,), (x.float(),)), ValueError, "float64.*float32"),
    "vector": (lambda x: func.jvp(mt.sin, (x,), (1,)), TypeError, "vector, got int"),
    "number": (lambda x: func.jvp(lambda x: 1, (x,), (x,)), TypeError, "Tensors, got int"),
    "aux": (lambda x: func.jvp(mt.sin, (x,), (x,), has_aux=True), TypeError, r"\(output, aux\)"),
    "argument": (lambda x: func.jacfwd(mt.sin, 1)(x), IndexError, "argnums 1 of 1"),
    "elements": (lambda x: func.hvp(mt.sin, x, x), RuntimeError, "one element"),
    "no scalar": (lambda x: func.hvp(lambda x: (x, x), x, x), TypeError, "got tuple"),
    "0-d points": (lambda x: func.laplacian(mt.sin, x[0]), RuntimeError, r"shape \(\.\.\., d\)"),
    "rows": (lambda x: func.laplacian(mt.sum, x[None]), RuntimeError, "for each point"),
    "several": (lambda x: func.laplacian(lambda x: (x, x), x), TypeError, "one Tensor"),
    "coordinate": (lambda x: func.laplacian(mt.sin, x, dims=3), IndexError, "out of range"),
    "field": (lambda x: func.divergence(mt.sum, x), RuntimeError, "shape of the points"),
    "once": (lambda x: func.jvp(Once.apply, (x,), (x,)), RuntimeError, "once_differentiable"),
    "no rule": (
        lambda x: func.jvp(lambda x: underived("own", x * 1, x), (x,), (x,)),
        RuntimeError,
        r"own\(\): the derivative is not implemented",
    ),
    "no rule but 0": (
        lambda x: func.jvp(lambda x: underived("own", x * 1, x, open=True), (x,), (x,)),
        RuntimeError,
        r"own\(\): the derivative is not implemented",
    ),
    "written to": (
        lambda x: func.jvp(lambda x: [y := x.exp(), y * y, y.add_(1)][1], (x,), (x,)),
        RuntimeError,
        "modified by an inplace operation",
    ),
    "compiled": (lambda x: func.jvp(mt.compile(mt.sum), (x,), (x,)), RuntimeError, "compiled step"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_of(name: str) -> None:
    call, error, text = ERRORS[name]
    with pytest.raises(error, match=text):
        call(double(3))


def test_inside_inference_mode_is_an_error() -> None:
    with mt.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        func.jvp(mt.sin, (mt.ones(2),), (mt.ones(2),))


# Captured steps -----------------------------------------------------------------------------------


@pytest.mark.daily("tanh", "numpy")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", [name for name in NETS if name != "dropout"])
def test_captured_steps_are_the_eager_ones(name: str, executor: str) -> None:
    x, v = double(6, 3), double(6, 3)

    def step_of(net: Any) -> Any:
        optimizer = mt.optim.Adam(net.parameters(), lr=1e-2)

        def step(x: Any, v: Any) -> Any:
            optimizer.zero_grad()
            y, gradient, total = func.laplacian(net, x, dims=[0, 2], with_grad=True)
            product = func.jvp(net, (x,), (v,))[1]
            vector = func.hvp(lambda x: (net(x) ** 2).sum(), x, v)
            loss = ((total - y) ** 2).mean() + (gradient[..., 1] * product).mean()
            loss = loss + (vector**2).mean()
            loss.backward()
            optimizer.step()
            return loss, total

        return step

    nets = [net_of(name), net_of(name)]
    eager, captured = step_of(nets[0]), mt.compile(step_of(nets[1]), executor=executor)
    for _ in range(6):
        for ours, theirs in zip(captured(x, v), eager(x, v), strict=True):
            near(ours, theirs)
    for ours, theirs in zip(nets[1].parameters(), nets[0].parameters(), strict=True):
        near(ours, theirs, 1e-10)


def test_what_nobody_reads_is_not_replayed() -> None:
    """The gradients of weights, which a pass towards the input alone computes as well."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def step(x: Any) -> Any:
        x = x.detach().requires_grad_()
        return mt.autograd.grad(net(x).sum(), x)[0]

    captured, x = mt.compile(step, executor="numpy"), mt.randn(5, 3)
    results = [captured(x) for _ in range(5)]
    near(results[-1], step(x))
    (program,) = captured.programs
    shapes = [line.out.shape for line in program.lines if getattr(line, "name", "") == "dot"]
    assert (5, 3) in shapes
    assert not {(4, 3), (1, 4), (4,), (5, 1)} & {*shapes}


# Modules with other Tensors -----------------------------------------------------------------------


def meta_learner(library: Any, net: Any, optimizer: Any) -> Any:
    """A step of MAML with batch norm: a loss through a step of SGD on functional parameters."""
    call = library.func.functional_call

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        state = {**dict(net.named_parameters()), **{k: b * 1 for k, b in net.named_buffers()}}
        names = [name for name, _ in net.named_parameters()]
        loss = ((call(net, state, (x,)) - y) ** 2).mean()
        grads = library.autograd.grad(loss, [state[name] for name in names], create_graph=True)
        state.update((n, state[n] - 0.1 * g) for n, g in zip(names, grads, strict=True))
        loss = ((call(net, state, x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def maml_net(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_functional_call_in_a_captured_step(executor: str) -> None:
    x, y, results = double(8, 2), double(8, 1), []
    for wrap in (lambda step: step, lambda step: mt.compile(step, executor=executor)):
        mt.manual_seed(0)
        net = maml_net(nn)
        before = {name: b.clone() for name, b in net.named_buffers()}
        step = wrap(meta_learner(mt, net, mt.optim.Adam(net.parameters(), lr=0.01)))
        results.append([step(x, y).item() for _ in range(6)])
        assert all(mt.equal(b, before[name]) for name, b in net.named_buffers())
    assert step.programs
    np.testing.assert_allclose(results[1], results[0], rtol=0 if executor == "numpy" else 1e-13)
    assert results[0][-1] < results[0][0]


def test_a_functional_call_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    x, y, results = double(8, 2), double(8, 1), []
    state = {key: value.numpy().copy() for key, value in maml_net(nn).state_dict().items()}
    for library, array in ((mt, mt.from_numpy), (torch, torch.from_numpy)):
        net = maml_net(library.nn)
        net.load_state_dict({key: array(value.copy()) for key, value in state.items()})
        step = meta_learner(library, net, library.optim.SGD(net.parameters(), lr=0.01))
        results.append([step(array(x.numpy()), array(y.numpy())).item() for _ in range(4)])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)


def test_a_functional_call_leaves_the_module_as_it_was() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2, bias=False)
            self.same = self.inner.weight
            self.register_buffer("count", mt.zeros(()))

        def forward(self, x: Any, fail: bool = False) -> Any:
            self.count += 1
            need = 1 / 0 if fail else 1
            return self.inner(x) @ self.same * need

    net, one = Tied(), mt.ones(1, 2)
    weight, given, count = net.same, mt.eye(2, requires_grad=True), mt.zeros(())
    for name in ("inner.weight", "same"):
        assert func.functional_call(net, {name: given, "count": count}, one).tolist() == [[1, 1]]
    with pytest.raises(ZeroDivisionError):
        func.functional_call(net, {"same": given}, (one,), {"fail": True})
    assert net.same is weight is net.inner.weight
    assert count.item() == 2 and net.count.item() == 1  # the last one had its own
    with pytest.raises(KeyError, match=r"no 'weighs'.* did you mean weight"):
        func.functional_call(nn.Linear(2, 2), {"weighs": given}, one)
    with pytest.raises(TypeError, match="expected a module"):
        func.functional_call(mt.relu, {}, one)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a Tensor as 'weight'"):
        func.functional_call(nn.Linear(2, 2), {"weight": [1.0]}, one)  # type: ignore[dict-item]


# torch --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_the_same_as_torch() -> None:
    torch = pytest.importorskip("torch")
    a, b = RNG.normal(size=(4, 3)), RNG.normal(size=(4, 3))

    def function(lib: Any) -> Any:
        return lambda x: {"a": lib.tanh(x).sum(1), "b": (x.sin() @ x.T, x[0])}

    ours = func.jvp(function(mt), (mt.from_numpy(a),), (mt.from_numpy(b),))
    theirs = torch.func.jvp(function(torch), (torch.from_numpy(a),), (torch.from_numpy(b),))
    pairs = [(o["a"], t["a"]) for o, t in zip(ours, theirs, strict=True)]
    pairs += [(o["b"][i], t["b"][i]) for o, t in zip(ours, theirs, strict=True) for i in (0, 1)]
    mine = func.jacfwd(lambda x, y: x.T @ y.exp(), argnums=(0, 1))
    other = torch.func.jacfwd(lambda x, y: x.T @ y.exp(), argnums=(0, 1))
    pairs += zip(
        mine(*map(mt.from_numpy, (a, b))), other(*map(torch.from_numpy, (a, b))), strict=True
    )

    def scalar(lib: Any) -> Any:
        return lambda x: (lib.tanh(x) ** 3).sum() * x[0, 0]

    hessian = torch.func.hessian(scalar(torch))(torch.from_numpy(a))
    product = (hessian * torch.from_numpy(b)).sum((-2, -1))
    pairs.append((func.hvp(scalar(mt), mt.from_numpy(a), mt.from_numpy(b)), product))
    for o, t in pairs:
        near(o, mt.from_numpy(t.numpy()))
