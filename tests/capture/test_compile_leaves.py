"""Leaves in the closure, and arguments that require grad: values and gradients are the eager."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import compilers
import numpy as np
import pytest
from compilers import needs_compiler
from pace import daily
from steps import batch

import microtrain as mt
from microtrain.errors import CaptureError

nn, F = mt.nn, mt.nn.functional
pytestmark = pytest.mark.usefixtures("code_of_this_run")


NATIVE = pytest.param("native", marks=compilers.NATIVE)


LR = 0.05


class Net:
    """The two-layer network of the tutorials, whose weights are plain Tensors."""

    def __init__(self) -> None:
        mt.manual_seed(0)
        self.w1 = mt.randn(3, 5, requires_grad=True)
        self.w2 = mt.randn(5, 2, requires_grad=True)
        self.seen: list[Any] = []

    def step(self, update: Callable[..., None]) -> Callable[..., Any]:
        w1, w2 = self.w1, self.w2

        def step(x: Any) -> Any:
            loss = ((x @ w1).relu() @ w2).square().mean()
            loss.backward()
            update(w1, w2)
            return loss

        return step


def in_place(w1: Any, w2: Any) -> None:
    with mt.no_grad():
        w1 -= LR * w1.grad
        w2 -= LR * w2.grad


def set_to_none(w1: Any, w2: Any) -> None:
    in_place(w1, w2)
    w1.grad = None
    w2.grad = None


def of_data(w1: Any, w2: Any) -> None:
    for w in (w1, w2):
        w.data.sub_(LR * w.grad)
        del w.grad


def set_to_zero(w1: Any, w2: Any) -> None:
    in_place(w1, w2)
    w1.grad.zero_()
    w2.grad.zero_()


def clipped(w1: Any, w2: Any) -> None:
    nn.utils.clip_grad_norm_([w1, w2], 0.1)
    set_to_none(w1, w2)


def scaled(w1: Any, w2: Any) -> None:
    """What is there at the start is scaled, which a constant must not be taken for."""
    in_place(w1, w2)
    w1.grad.fill_(0.25)
    w2.grad = w2.grad * 0.5


UPDATES = [in_place, set_to_none, of_data, set_to_zero, clipped, scaled]


def nothing(net: Net, i: int) -> None:
    pass


def written(net: Net, i: int) -> None:
    if i % 3 == 2:
        with mt.no_grad():
            net.w1.mul_(0.9)
        net.w2.data[0] = 0.5


def read(net: Net, i: int) -> None:
    net.seen += [w.grad for w in (net.w1, net.w2)]  # a new Tensor stays as it is


def dropped(net: Net, i: int) -> None:
    if i % 3 == 1:
        net.w1.grad = None


def assigned(net: Net, i: int) -> None:
    if i == 5:
        net.w1.grad = mt.full((3, 5), 0.1)
        net.w2.grad = mt.full((2, 5), 0.1).T


def replaced(net: Net, i: int) -> None:
    if i == 5:
        net.w1.data = net.w1.data + 1


BETWEEN = [nothing, written, read, dropped, assigned, replaced]


def trained(update: Any, change: Any, wrap: Any) -> tuple[Any, ...]:
    net = Net()
    step = wrap(net.step(update))
    losses = []
    for i in range(10):
        change(net, i)
        losses.append(step(batch(i)).item())
    grads = [None if g is None else g.tolist() for g in (net.w1.grad, net.w2.grad, *net.seen)]
    return losses, net.w1.tolist(), net.w2.tolist(), grads, step


@pytest.mark.parametrize("seen", [False, True])
def test_a_number_beside_a_leaf(seen: bool) -> None:
    """Whether eager code has met it before; nor does eager code meet what a recording made."""
    number = 3.1640625 if seen else 3.1484375  # nobody else's
    w, count = mt.ones(3, requires_grad=True), mt.zeros(1)

    def step(x: Any) -> Any:
        count.add_(number)
        return (number * w * x).sum() + x.sub(number).sum()

    if seen:
        step(mt.ones(3))
    captured, x = mt.compile(step), mt.arange(3.0)
    found = [captured(x).item() for _ in range(4)]
    assert found == [step(x).item()] * 4 and captured.programs
    assert count.item() == (5 + seen) * number


@pytest.mark.parametrize("change", BETWEEN)
@pytest.mark.parametrize("update", UPDATES)
def test_leaves_of_the_closure(update: Any, change: Any) -> None:
    *eager, _ = trained(update, change, lambda f: f)
    *captured, step = trained(update, change, mt.compile)
    assert captured == eager
    assert step.programs


@pytest.mark.daily("of_data")
@pytest.mark.parametrize("update", daily(UPDATES, of_data, clipped))
def test_leaves_in_native_code(update: Any) -> None:
    needs_compiler()
    native = functools.partial(mt.compile, executor="native")
    losses, w1, w2, grads, _ = trained(update, written, lambda f: f)
    found = trained(update, written, native)
    for mine, eager in zip(found, (losses, w1, w2), strict=False):
        np.testing.assert_allclose(mine, eager, rtol=2e-5, atol=1e-6)
    for mine, eager in zip(found[3], grads, strict=True):
        assert (mine is None) == (eager is None)
        if eager is not None:
            np.testing.assert_allclose(mine, eager, rtol=2e-5, atol=1e-6)
    assert all(capture.reason == "asked for" for capture in found[4].captures)


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("to_none", [True, False])
def test_leaves_of_an_optimizer(kind: str, to_none: bool) -> None:
    results = []
    for wrap in (lambda f: f, mt.compile):
        net = Net()
        optimizer = getattr(mt.optim, kind)([net.w1, net.w2], lr=LR)

        def update(w1: Any, w2: Any, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad(to_none)

        step = wrap(net.step(update))
        losses = [step(batch(i)).item() for i in range(8)]
        results.append((losses, net.w1.tolist(), net.w2.tolist()))
    assert results[0] == results[1]


class Holder:
    def __init__(self, w: Any) -> None:
        self.w = w

    def forward(self, x: Any) -> Any:
        return x @ self.w

    def __call__(self, x: Any) -> Any:
        return x @ self.w


W: Any = None


def global_product(x: Any) -> Any:
    return x @ W


def made_module(w: Any) -> Any:
    module = nn.Linear(3, 2, bias=False)
    module.weight.data = w.data.T
    return module


# What the forward pass is, and the Tensor that it ends in.
REACHED: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "a list": lambda w: ((lambda x, ws=[w]: x @ ws[0]), w),
    "a dict in a namespace": lambda w: (
        functools.partial(lambda p, x: x @ p.ws["w"], types.SimpleNamespace(ws={"w": w})),
        w,
    ),
    "an object": lambda w: (Holder(w), w),
    "a bound method": lambda w: (Holder(w).forward, w),
    "a keyword's default": lambda w: (_keyword(w), w),
    "a module": lambda w: (m := made_module(w), m.weight),
    "a list of modules": lambda w: ([m := made_module(w)][0], m.weight),
}  # fmt: skip


def _keyword(w: Any) -> Any:
    def forward(x: Any, *, w: Any = w) -> Any:
        return x @ w

    return forward


@pytest.mark.parametrize("name", REACHED)
def test_where_leaves_are_found(name: str) -> None:
    results = []
    for wrap in (lambda f: f, mt.compile):
        mt.manual_seed(0)
        forward, w = REACHED[name](mt.randn(3, 2, requires_grad=True))

        @wrap
        def step(x: Any, forward: Any = forward, w: Any = w) -> Any:
            loss = forward(x).square().mean()
            loss.backward()
            with mt.no_grad():
                w.sub_(LR * w.grad)
            w.grad = None
            return loss

        results.append(([step(batch(i)).item() for i in range(6)], w.tolist()))
    assert results[0] == results[1]


def test_a_global_that_is_another_tensor_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the first is still there, and when it comes back."""
    mt.manual_seed(0)
    first, second = (mt.randn(3, 2, requires_grad=True) for _ in range(2))
    step = mt.compile(lambda x: global_product(x).sum())
    for number, w in enumerate([first] * 3 + [second] * 3 + [first] * 3):
        monkeypatch.setitem(globals(), "W", w)
        x = batch(number)
        assert step(x).item() == (x @ w).sum().item()
    assert len(step.programs) == 2


def test_a_leaf_that_is_gone() -> None:
    """Its capture goes with it: many models in turn are not many captures."""
    holder = Holder(None)

    @mt.compile
    def step(x: Any) -> Any:
        loss = holder(x).square().mean()
        loss.backward()
        with mt.no_grad():
            holder.w.sub_(holder.w.grad)
        holder.w.grad = None
        return loss

    gone = None
    for number in range(40):
        holder.w = mt.full((3, 2), 0.1 * number, requires_grad=True)
        assert gone is None or gone() is None
        gone = weakref.ref(holder.w)
        for i in range(3):
            before = holder.w.detach().clone()
            assert step(batch(i)).item() == (batch(i) @ before).square().mean().item()
    gc.collect()
    assert len(step.programs) == 1
    del holder.w
    with pytest.raises(AttributeError):
        step(batch(0))


def test_an_update_raises_the_version_of_a_leaf() -> None:
    """A graph that saved one is stale, as after the eager step."""
    net = Net()
    step = mt.compile(net.step(set_to_none))
    for i in range(4):
        loss = (net.w1 * net.w1).sum()
        step(batch(i))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_step_that_fails_leaves_gradients_alone() -> None:
    w = mt.ones(3, requires_grad=True)
    w.grad = before = mt.full((3,), 2.0)

    @mt.compile
    def step(x: Any) -> Any:
        (x * w).sum().backward()
        return x.sum().item()

    with pytest.raises(CaptureError, match="item"):
        step(batch(0))
    assert w.grad is before and before.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("times", [1, 2])
def test_the_leaf_and_the_outside(times: int) -> None:
    """A loss that is differentiated outside fills the gradients of leaves."""
    results = []
    for wrap in (lambda f: f, mt.compile):
        net = Net()
        w1, w2 = net.w1, net.w2
        loss = wrap(lambda x, w1=w1, w2=w2: ((x @ w1).relu() @ w2).square().mean())
        for i in range(6):
            for j in range(times):
                loss(batch(i + j)).backward()
            set_to_none(w1, w2)
        results.append((w1.tolist(), w2.tolist()))
    assert results[0] == results[1]


# Arguments that require grad ----------------------------------------------------------------------


def physics(where: str, executor: str | None, same: bool) -> tuple[Any, Any]:
    """A network whose derivative is fitted, and what is seen of its argument."""
    mt.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    optimizer = mt.optim.Adam(net.parameters(), lr=0.01)

    def step(x: Any, f: Any) -> Any:
        optimizer.zero_grad()
        if where == "a leaf in the step":
            x = x.detach().requires_grad_()
        if where == "switched on in the step":
            x.requires_grad_()
        u = net(x)
        (du,) = mt.autograd.grad(u.sum(), x, create_graph=True)
        loss = (du - f).square().mean() + u[0].square().sum()
        loss.backward()
        if where == "read in the step":
            loss = loss + 0.1 * x.grad.square().sum()
        optimizer.step()
        return loss

    if executor is not None:
        step = mt.compile(step, executor=executor)
    x, seen = None, []
    for i in range(9):
        if x is None or not same:
            x = mt.linspace(0, 1 + i, 7, dtype=mt.float64).reshape(7, 1)
            if where in ("by the caller", "read in the step"):
                x.requires_grad_()
        if i == 6:
            x.grad = None
        loss = step(x, x.detach().cos())
        assert x.requires_grad == (where != "a leaf in the step")
        assert (x.grad is None) == (where == "a leaf in the step")
        seen.append([loss.tolist(), [] if x.grad is None else x.grad.tolist()])
    return seen, step


WHERE = ["by the caller", "a leaf in the step", "switched on in the step", "read in the step"]


@pytest.mark.daily("numpy", "switched on")
@pytest.mark.parametrize("executor", ["numpy", NATIVE])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("where", WHERE)
def test_a_derivative_by_an_argument(where: str, same: bool, executor: str) -> None:
    eager, _ = physics(where, None, same)
    found, step = physics(where, executor, same)
    assert step.programs
    if executor == "numpy":
        assert found == eager
        return
    for mine, other in zip(found, eager, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("executor", ["numpy", NATIVE])
def test_an_argument_that_requires_grad_later(executor: str) -> None:
    """Native code, which reads arguments where they are, did not ask whether they do."""
    w = mt.ones(2, requires_grad=True)

    @functools.partial(mt.compile, executor=executor)
    def step(x: Any) -> None:
        w.grad = None
        (x * w).sum().backward()

    given = [mt.ones(2).requires_grad_(i in (4, 5)) for i in range(7)]
    for x in given:
        step(x)
    found = [None if x.grad is None else x.grad.tolist() for x in given]
    assert found == [None] * 4 + [[1, 1]] * 2 + [None]


def test_the_gradient_of_an_argument_in_a_list_given_twice() -> None:
    results = []
    for wrap in (lambda f: f, mt.compile):

        @wrap
        def step(xs: Any, k: int) -> None:
            (xs[0] * xs[1] * k).sum().backward()

        grads = []
        for i in range(6):
            x = batch(i).requires_grad_()
            step([x, x], k=3)
            step([x, batch(9).requires_grad_()], 3)
            grads.append(x.grad.tolist())
        results.append(grads)
    assert results[0] == results[1]


def test_a_leaf_of_the_step_may_drop_its_gradient() -> None:
    w = mt.ones(3, requires_grad=True)

    @mt.compile
    def step(x: Any) -> None:
        inner = x.detach().requires_grad_()
        (inner * w).sum().backward()
        inner.grad = None

    for i in range(4):
        w.grad = None
        step(batch(i))
        assert w.grad is not None
        assert w.grad.tolist() == pytest.approx(batch(i).sum(0).tolist(), rel=1e-5)


# Refused ------------------------------------------------------------------------------------------


def hooked(x: Any) -> Any:
    x.register_hook(lambda g: g * 2)
    return x


REFUSED: dict[str, tuple[Any, str]] = {
    "a graph of its own": (lambda: batch(0).requires_grad_() * 2, "a gradient for an argument"),
    "a hook": (lambda: hooked(batch(0).requires_grad_()), "a gradient for an argument"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("calls", [0, 3])
def test_arguments_whose_gradient_goes_on(name: str, calls: int) -> None:
    step = mt.compile(lambda x: (x * x).sum().backward())
    for i in range(calls):
        step(batch(i).requires_grad_())
    make, message = REFUSED[name]
    with pytest.raises(CaptureError, match=rf"test_compile_leaves\.py:\d+: {message}"):
        step(make())


def test_a_parameter_that_an_optimizer_owns_as_an_argument() -> None:
    model = nn.Linear(3, 1)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
    step = mt.compile(lambda x: (x * x).sum().backward())
    with pytest.raises(CaptureError, match="an optimizer owns"):
        step(model.weight)
    del optimizer


def by_its_name(x: Any, w: Any) -> Any:
    return mt.autograd.grad((x * w).sum(), w)


def by_the_argument(x: Any, w: Any) -> Any:
    return mt.autograd.grad((x * w).sum(), x)


def into_both(x: Any, w: Any) -> None:
    w.grad = None
    (x * w).sum().backward()


def into_the_named(x: Any, w: Any) -> None:
    (x * w).sum().backward(inputs=[w])


@pytest.mark.parametrize("calls", [0, 3])
@pytest.mark.parametrize("given", [lambda w: w, lambda w: w * 2], ids=["itself", "from it"])
@pytest.mark.parametrize("way", [by_its_name, by_the_argument, into_both, into_the_named])
def test_an_argument_that_the_step_finds_by_a_name(way: Any, given: Any, calls: int) -> None:
    """Gradients were those of one of the two uses."""
    w = mt.tensor([1.0, 2.0], requires_grad=True)
    step = mt.compile(lambda x: way(x, w))
    for _ in range(calls):
        step(mt.tensor([3.0, 5.0], requires_grad=True))
    if way is by_the_argument and given(w) is not w:  # what is behind the argument does not matter
        assert step(given(w))[0].tolist() == [1, 2]
        return
    with pytest.raises(
        CaptureError, match=r"leaves\.py:\d+: .*finds by a name|has a graph or hooks"
    ):
        step(given(w))


def test_an_argument_may_be_computed_from_what_no_gradient_is_for() -> None:
    w, v = mt.ones(2, requires_grad=True), mt.ones(2, requires_grad=True)
    step = mt.compile(lambda x: (mt.autograd.grad((x * w).sum(), w)[0] * v).sum().detach())
    assert [step(v * i).item() for i in range(4)] == [0, 2, 4, 6]


def shared_gradient(w: Any, v: Any) -> None:
    w.grad = v.grad


def own_memory(w: Any, v: Any) -> None:
    w.grad = w.detach()


@pytest.mark.parametrize("update", [shared_gradient, own_memory])
def test_gradients_that_are_memory_of_something_else(update: Any) -> None:
    w, v = (mt.ones(3, requires_grad=True) for _ in range(2))

    @mt.compile
    def step(x: Any) -> None:
        (x * w * v).sum().backward()
        update(w, v)

    with pytest.raises(CaptureError, match="assign a clone"):
        step(batch(0))


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", ["another gradient", "a buffer", "an argument"])
def test_gradients_that_the_step_finds_by_another_way(name: str, captured: bool) -> None:
    """A replay adds to a copy; parts of one buffer that the step does not look at are apart."""
    flat = mt.zeros(6)

    def leaves() -> list[Any]:
        w, v = (mt.ones(3, requires_grad=True) for _ in range(2))
        w.grad, v.grad = mt.zeros(6).split(3)
        return [w, v]

    def step(x: Any, w: Any, v: Any) -> Any:
        (x * w * v).sum().backward()
        return flat * 1 if name == "a buffer" else x * 1

    (w, v), mine = leaves(), leaves()
    compiled, x = mt.compile(functools.partial(step, w=w, v=v)), mt.ones(3)
    for _ in range(4 * captured):
        compiled(x)
        step(x, *mine)
        assert w.grad.tolist() == mine[0].grad.tolist()
    w.grad = {"another gradient": v.grad[:], "a buffer": flat[3:], "an argument": x[:]}[name]
    with pytest.raises(CaptureError, match="assign a clone"):
        compiled(x)
    w.grad = w.grad.clone()
    compiled(x)


def test_a_graph_of_the_gradient() -> None:
    w = mt.ones(3, requires_grad=True)
    step = mt.compile(lambda x: (x * w).square().sum().backward(create_graph=True))
    with pytest.raises(CaptureError, match=r"test_compile_leaves\.py:\d+: .*create_graph"):
        step(batch(0))
