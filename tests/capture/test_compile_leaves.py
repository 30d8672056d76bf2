"""Tensors in the closure, and arguments that require grad: values and gradients are the eager."""

from __future__ import annotations

import collections
import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterator
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
NATIVE = pytest.param("native", marks=compilers.NATIVE)
LR = 0.05


@pytest.fixture(autouse=True, scope="module")
def code_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


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


# Tensors that are only read -----------------------------------------------------------------------

TABLE: Any = None
IN_A_MODULE = types.ModuleType("settings_of_a_user")
exec("table = None\ndef look(i):\n    return table[i]\n", IN_A_MODULE.__dict__)


def of_the_module(i: Any) -> Any:
    return TABLE[i]


class Schedule:
    table: Any = None

    def __init__(self, table: Any = None) -> None:
        if table is not None:
            self.table = table

    @property
    def whole(self) -> Any:
        return TABLE

    @staticmethod
    def look(i: Any) -> Any:
        return TABLE[i]


SCHEDULE = Schedule()


class Slots:
    __slots__ = ("table",)


class Diffusion(nn.Module):
    tables: Any = None  # a list: plain Tensors of a module are its state

    def forward(self, i: Any) -> Any:
        return TABLE[i] if self.tables is None else self.tables[0][i]


def _cell() -> tuple[Any, Any]:
    table: Any = None

    def bind(new: Any) -> None:
        nonlocal table
        table = new

    return (lambda i: table[i]), bind


def _of_globals(look: Any) -> tuple[Any, Any]:
    return look, functools.partial(globals().__setitem__, "TABLE")


def _of(owner: Any, look: Any, name: str = "table") -> tuple[Any, Any]:
    return look, functools.partial(setattr, owner, name)


def _of_items(owner: Any, key: Any, look: Any) -> tuple[Any, Any]:
    return look, functools.partial(owner.__setitem__, key)


# What looks something up at an index, and what binds the table that it finds.
TABLES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a global": lambda: _of_globals(lambda i: TABLE[i]),
    "a global of a function": lambda: _of_globals(lambda i: of_the_module(i)),
    "a global of a property": lambda: _of_globals(lambda i: SCHEDULE.whole[i]),
    "a global of a static method": lambda: _of_globals(lambda i: Schedule.look(i)),
    "a global of a module's forward": lambda: _of_globals(Diffusion()),
    "a cell": _cell,
    "an attribute": lambda: _of(s := Schedule(mt.ones(1)), lambda i: s.table[i]),
    "an attribute of a class": lambda: _of(Schedule, lambda i: Schedule.table[i]),
    "an attribute of an object's class": lambda: _of(Schedule, lambda i: SCHEDULE.table[i]),
    "an attribute that hides the class's": lambda: _of(s := Schedule(), lambda i: s.table[i]),
    "a slot": lambda: _of(s := Slots(), lambda i: s.table[i]),
    "an attribute of a module of Python": lambda: _of(IN_A_MODULE, lambda i: IN_A_MODULE.table[i]),
    "a function of a module of Python": lambda: _of(IN_A_MODULE, lambda i: IN_A_MODULE.look(i)),
    "a plain Tensor of a module": lambda: _of(m := Diffusion(), lambda i: m.table[i]),
    "a list": lambda: _of_items(ts := [None], 0, lambda i: ts[0][i]),
    "a deque": lambda: _of_items(ts := collections.deque([None]), 0, lambda i: ts[0][i]),
    "a list of a module": lambda: _of_items(ts := [None], 0, _with(Diffusion(), tables=ts)),
    "a dict in a dict": lambda: _of_items(d := {"b": None}, "b", lambda i, a=[d]: a[0]["b"][i]),
    "a leaf that is only read": lambda: _leaf(types.SimpleNamespace()),
}  # fmt: skip


def _leaf(owner: Any) -> tuple[Any, Any]:
    def bind(table: Any) -> None:
        owner.table = table.detach().requires_grad_()

    return (lambda i: owner.table.detach()[i]), bind


def _with(owner: Any, **values: Any) -> Any:
    vars(owner).update(values)
    return owner


def looked_up(name: str, wrap: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The results where a table is kept, bound anew to one of other values, shape and dtype,
    written in place, and bound to the first again."""
    monkeypatch.setitem(globals(), "TABLE", None)
    monkeypatch.setattr(Schedule, "table", Schedule.table)
    look, bind = TABLES[name]()
    w = mt.full((2,), 0.5, requires_grad=True)

    @wrap
    def step(x: Any, i: Any) -> Any:
        loss = ((x[:2, 0] * w).sin() * look(i) + look(i) ** 2).sum()
        loss.backward()
        with mt.no_grad():
            w.sub_(LR * w.grad)
        w.grad = None
        return loss

    first = mt.linspace(0.1, 0.7, 5)
    values = [first, first * 3, mt.linspace(-1, 1, 7), first.double(), first]
    seen = []
    for number, table in enumerate(values):
        bind(table.detach() if table.dtype is mt.float64 else table)
        for i in range(5):
            if i == 3:
                table.data.mul_(1.25)
            seen.append(step(batch(i), mt.tensor([i % 3, number])).item())
    return (seen, w.tolist()), step


@pytest.mark.daily("a global", "hides", "a cell")
@pytest.mark.parametrize("executor", ["numpy", NATIVE])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_only_read(
    name: str, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager, _ = looked_up(name, lambda f: f, monkeypatch)
    wrap = functools.partial(mt.compile, executor=executor)
    found, step = looked_up(name, wrap, monkeypatch)
    assert step.programs and step.recorded <= 10  # two for each table: writes make no new capture
    if executor == "numpy":
        assert found == eager
    else:
        for mine, other in zip(found, eager, strict=True):
            np.testing.assert_allclose(mine, other, rtol=2e-5, atol=1e-6)


def test_a_table_that_the_step_writes() -> None:
    """Its version counts the writes, as eagerly."""
    results = []
    for wrap in (lambda f: f, mt.compile):
        average = mt.zeros(3)
        step = wrap(lambda x, average=average: average.mul_(0.9).add_(x[0]).sum())
        found = [step(batch(i)).item() for i in range(6)]
        results.append((found, average.tolist(), average.version.n))
    assert results[0] == results[1]


def test_constants_that_are_made_in_the_step() -> None:
    step = mt.compile(lambda x: (x * mt.Tensor([1.0, 2.0, 3.0]) + mt.Tensor(3)).sum())
    for i in range(4):
        assert step(batch(i)).item() == (batch(i) * mt.tensor([1.0, 2.0, 3.0])).sum().item()
    assert len(step.programs) == 1


def test_a_batch_in_the_closure_that_is_new_at_every_call() -> None:
    """Each call is recorded, and none a replay."""
    holder = Holder(None)
    step = mt.compile(lambda x: holder(x).sum())

    def calls() -> None:
        for i in range(40):
            holder.w = mt.full((3, 2), 0.1 * i)
            assert step(batch(i)).item() == (batch(i) @ holder.w).sum().item()

    with pytest.raises(CaptureError, match=r"a new Tensor.*at every call.*as an argument"):
        calls()


def test_data_that_the_step_does_not_touch_is_not_kept() -> None:
    holder = Holder(mt.ones(3, 2))
    holder.data = mt.ones(1000, 3)
    step = mt.compile(lambda x: holder(x).sum())
    for _ in range(4):
        step(holder.data[:2])
    array = weakref.ref(holder.data._array)
    del holder.data
    gc.collect()
    assert array() is None and len(step.programs) == 1


def test_a_table_with_a_graph_of_its_own() -> None:
    table = mt.ones(3, requires_grad=True) * 2
    with pytest.raises(CaptureError, match=r"test_compile_leaves\.py:\d+: .* has a graph"):
        mt.compile(lambda x: (x * table).sum().backward())(batch(0))


@pytest.mark.parametrize("state", [[SCHEDULE], SCHEDULE, nn.Linear(1, 1), ["table"]])
def test_state_that_is_not_a_tensor(state: Any) -> None:
    with pytest.raises(TypeError, match=r"state"):
        mt.compile(lambda x: x, state=state)


def _filled(number: float) -> Any:
    return mt.full((3,), number)


def _train(x: Any, model: Any, optimizer: Any) -> Any:
    optimizer.zero_grad()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss


def _multiplied(tables: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        for table in tables.values() if isinstance(tables, dict) else tables:
            x = x * 2 + table
        return x

    return step


def _reordered(tables: dict[str, Any]) -> None:
    tables["a"] = tables.pop("a")


def _aliased() -> tuple[Any, Any]:
    one = {"t": _filled(2.0)}
    first, second = [one], [one]
    step = lambda x: x * second[0]["t"] + len(first)  # noqa: E731
    return step, lambda: second.__setitem__(0, {"t": _filled(9.0)})


def _leading_back() -> tuple[Any, Any]:
    root = types.SimpleNamespace(t=_filled(2.0), child=types.SimpleNamespace())
    root.child.parent = root
    other = types.SimpleNamespace(t=_filled(9.0))
    change = functools.partial(setattr, root.child, "parent", other)
    return (lambda x: x * root.child.parent.t), change


def _missing_key() -> tuple[Any, Any]:
    tables = {"default": _filled(1.0)}
    step = lambda x: x * tables.get("own", tables["default"])  # noqa: E731
    return step, functools.partial(tables.update, own=_filled(5.0))


def _last_of_a_list() -> tuple[Any, Any]:
    tables = [_filled(1.0)]
    return (lambda x: x * tables[-1]), functools.partial(tables.append, _filled(5.0))


def _of_a_function() -> tuple[Any, Any]:
    def owner() -> None: ...

    return _of_attribute(owner)


def _of_attribute(owner: Any) -> tuple[Any, Any]:
    owner.t = _filled(1.0)
    return (lambda x: x * owner.t), functools.partial(setattr, owner, "t", _filled(5.0))


def _model_of(owner: Any, both: bool) -> tuple[Any, Any]:
    models = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)])
    owned: list[Any] = [*models] if both else [models, models]
    optimizers = [mt.optim.SGD(one.parameters(), lr=0.01) for one in owned]
    pairs = [*zip(models, optimizers, strict=True)]
    owner.model, owner.optimizer = pairs[0]

    def change() -> None:
        owner.model, owner.optimizer = pairs[1]

    return (lambda x: _train(x, owner.model, owner.optimizer)), change


def _model_in_a_list_of_a_module() -> tuple[Any, Any]:
    module, more = nn.Module(), nn.Linear(3, 3)
    vars(module)["layers"] = [nn.Linear(3, 3)]
    step = lambda x: functools.reduce(lambda x, layer: layer(x), module.layers, x)  # noqa: E731
    return step, functools.partial(module.layers.append, more)


def _of_tables(tables: Any, change: Callable[[Any], Any]) -> tuple[Any, Any]:
    return _multiplied(tables), functools.partial(change, tables)


# A step, and what changes the names that it looks up, or what lies on the way.
CHANGED_NAMES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a list grows": lambda: _of_tables([_filled(1.0)], lambda t: t.append(_filled(3.0))),
    "a list shrinks": lambda: _of_tables([_filled(1.0), _filled(2.0)], lambda t: t.pop()),
    "a dict grows": lambda: _of_tables({"a": _filled(1.0)}, lambda t: t.update(b=_filled(3.0))),
    "a dict in another order": lambda: _of_tables({"a": _filled(1), "b": _filled(2)}, _reordered),
    "a key that was missing": _missing_key,
    "the last of a list": _last_of_a_list,
    "two lists with one dict": _aliased,
    "an object that leads back": _leading_back,
    "an attribute of a function": _of_a_function,
    "a model and its optimizer": lambda: _model_of(types.SimpleNamespace(), both=True),
    "a model of one optimizer": lambda: _model_of(types.SimpleNamespace(), both=False),
    "a list of models in a module": _model_in_a_list_of_a_module,
}


@pytest.mark.parametrize("name", CHANGED_NAMES)
def test_a_name_on_the_way_that_is_bound_anew(name: str) -> None:
    """Also while what it led to is still there, and alive."""
    results = []
    for wrap in (lambda f: f, mt.compile):
        mt.manual_seed(0)
        step, change = CHANGED_NAMES[name]()
        captured, found = wrap(step), []
        for i in range(12):
            if i == 6:
                change()
            found.append(captured(_filled(0.5 * i)).tolist())
        results.append(found)
    assert results[0] == results[1]
    assert captured.recorded == 4


class Parts:
    """What a step is given to find a model in."""

    def __init__(self) -> None:
        self.model: Any = nn.Linear(3, 3)

    def function(self) -> Any:
        return lambda x: self.model(x)

    def module(self) -> Any:
        found = nn.Module()
        vars(found)["more"] = [self]
        return found


GIVEN: dict[str, tuple[Callable[[Parts], Any], Callable[[Any, Any], Any]]] = {
    "an object": (lambda one: one, lambda x, it: it.model(x)),
    "a function": (lambda one: one.function(), lambda x, it: it(x)),
    "a method": (lambda one: one.function, lambda x, it: it()(x)),
    "a module": (lambda one: one.module(), lambda x, it: it.more[0].model(x)),
    "in a list": (lambda one: [one, 2], lambda x, it: it[0].model(x) * it[1]),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_name_that_an_argument_leads_to(name: str) -> None:
    results = []
    for wrap in (lambda f: f, mt.compile):
        mt.manual_seed(0)
        parts, other, (given, step) = Parts(), Parts(), GIVEN[name]
        captured, argument, found = wrap(step), given(parts), []
        for i in range(10):
            if i == 5:
                parts.model = other.model
            found.append(captured(mt.ones(2, 3), argument).tolist())
        results.append(found)
    assert results[0] == results[1]
    assert captured.recorded == 4


def test_a_tensor_in_an_argument_is_refused_at_once() -> None:
    parts = Parts()
    parts.model = _filled(1.0)
    with pytest.raises(CaptureError, match="Pass it as an argument"):
        mt.compile(lambda it: it.model * 2)(parts)


def test_a_log_beside_a_table() -> None:
    """Numbers that are added to a list or dict make no new capture."""
    kept: dict[str, Any] = {"table": _filled(2.0), "more": [_filled(1.0)]}
    step = mt.compile(lambda x: x * kept["table"] + kept["more"][0])
    for i in range(6):
        step(_filled(1.0))
        kept[f"loss {i}"] = 0.1 * i
        kept["more"].append(i)
    assert len(step.programs) == 1 and step.recorded == 2
