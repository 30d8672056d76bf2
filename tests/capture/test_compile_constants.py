"""Tensors from outside that a captured step only reads, and the names that lead to them."""

from __future__ import annotations

import collections
import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from steps import batch
from test_compile_leaves import LR, NATIVE, Holder

import microtrain as mt
from microtrain.errors import CaptureError

nn = mt.nn
pytestmark = pytest.mark.usefixtures("code_of_this_run")


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


def test_numbers_and_places_that_are_made_in_the_step() -> None:
    def step(x: Any) -> Any:
        i, j = mt.tril_indices(3, 3, -1)
        return x[i, j] + mt.logspace(0, 2, 3) + mt.linalg.matrix_power(x, 0)[0], mt.triu_indices(
            2, 2
        )

    compiled = mt.compile(step, executor="numpy")
    for n in range(4):
        x = mt.arange(9.0).reshape(3, 3) * n
        assert [t.tolist() for t in compiled(x)] == [t.tolist() for t in step(x)]
    assert len(compiled.programs) == 1


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
    with pytest.raises(CaptureError, match=r"test_compile_constants\.py:\d+: .* has a graph"):
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
