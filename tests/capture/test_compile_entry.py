"""The short way into a replay: taken by a call like the one before, and by no other."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from compilers import NATIVE
from test_compile import bits

import microtrain as mt
from microtrain.capture.step import MOST, Compiled
from microtrain.distributed.data_parallel import DataParallel
from microtrain.errors import CaptureError
from microtrain.random import STREAM

nn, F = mt.nn, mt.nn.functional


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one for every call that does not go the short way."""
    found: list[str] = []
    general = Compiled._find

    def counting(self: Compiled, args: Any, kwargs: Any, *missed: int) -> Any:
        found.append(self.name)
        return general(self, args, kwargs, *missed)

    monkeypatch.setattr(Compiled, "_find", counting)
    return found


def eager(step: Any) -> Any:
    return step


def native(step: Any) -> Any:
    return mt.compile(step, executor="native")


class Training:
    """A model with dropout, an optimizer of two groups, and steps to compile.

    What a step returns tells which mode it was captured in.
    """

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.whole = DataParallel(self.model)
        first, _, last = self.model
        groups = [{"params": first.parameters()}, {"params": last.parameters(), "lr": 0.02}]
        self.optimizer = mt.optim.SGD(groups, lr=0.05, momentum=0.9)
        self.wrap = wrap
        self.train, self.look, self.both = wrap(self._train), wrap(self._look), wrap(self._both)

    def _train(self, x: Any, y: Any, scale: Any = 1.0) -> Any:
        loss = F.mse_loss(self.whole(x) * scale, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def _look(self, x: Any, y: Any) -> Any:
        with mt.no_grad():
            out = self.model(x) + y * 1
        return (
            out,
            mt.zeros(1),
            x.requires_grad,
            mt.is_grad_enabled(),
            mt.is_inference_mode_enabled(),
        )

    def _both(self, pair: Any, *rest: Any) -> Any:
        with mt.no_grad():
            return [part.sum(0) for part in pair], rest

    def options(self, **changed: Any) -> None:
        for group in self.optimizer.param_groups:
            group.update(changed)

    def state(self) -> Any:
        found = self.optimizer.state_dict()["state"]
        return (
            list(self.model.parameters()),
            [p._version.n for p in self.model.parameters()],
            [p.grad for p in self.model.parameters()],
            [list(found[number].values()) for number in sorted(found)],
            (self.optimizer.calls, self.whole.loss, self.whole.samples),
            (STREAM.step, STREAM.draw),
        )


def data(i: int, rows: int = 6) -> tuple[Any, Any]:
    rng = np.random.default_rng(i)
    x, y = (rng.standard_normal((rows, n)).astype(np.float32) for n in (3, 1))
    return mt.from_numpy(x), mt.from_numpy(y)


def turned(x: Any) -> Any:
    return x.t().contiguous().t()


def elsewhere(call: Callable[[], Any]) -> Any:
    """`call` in a thread of its own."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append((call(), STREAM.step, STREAM.draw)))
    thread.start()
    thread.join()
    return found


def inside(context: Any, call: Callable[[], Any]) -> Any:
    with context:
        return call()


def after(change: Any, call: Callable[[], Any]) -> Any:
    return call()


def frozen(t: Training) -> None:
    t.model[2].bias.requires_grad_(False)


def summed(t: Training, x: Any, y: Any) -> Any:
    """Two passes before one update."""
    F.mse_loss(t.whole(x), y).backward()
    return t.train(x, y)


def eager_step(t: Training, x: Any, y: Any, back: bool = False, **changed: Any) -> Any:
    """A step of the same optimizer that is not compiled, with other options; `back`: two."""
    before = [dict(group) for group in t.optimizer.param_groups]
    t.options(**changed)
    t._train(x, y)
    for group, old in zip(t.optimizer.param_groups, before, strict=True):
        group.update(old)
    if back:
        t._train(x, y)
    return t.train(x, y)


def reload(t: Training) -> Any:
    state = copy.deepcopy(t.optimizer.state_dict())
    for values in state["state"].values():
        values["momentum_buffer"].mul_(0.5)
    t.optimizer.load_state_dict(state)


def grown() -> None:
    plain = mt.optim.SGD(nn.Linear(3, 3).parameters(), lr=0.1)
    plain.add_param_group({"params": [nn.Parameter(mt.ones(2))]})


def counted(t: Training, x: Any, y: Any) -> Any:
    t.whole.count(2)
    return t.train(x, y)


def default_dtype(t: Training, x: Any, y: Any) -> Any:
    with mt.backend.default_dtype(mt.float64):
        return t.look(x, y)


def nested(t: Training, x: Any, y: Any) -> Any:
    outer = t.wrap(lambda x, y: t.look(x, y)[0])
    return [outer(x, y) for _ in range(3)]


def reshaped(t: Training, x: Any, y: Any) -> Any:
    """The same array object, in another shape."""
    array = np.zeros((3, 6), np.float32)
    tensor = mt.from_numpy(array)
    found = [t.both((tensor, y)) for _ in range(4)]
    array.shape = (9, 2)
    return [*found, t.both((tensor, y))]


# What differs from the calls before: a call that is made three times. It returns what the eager one
# does, or is refused.
OTHERS: dict[str, Callable[[Training, Any, Any], Any]] = {
    "shape": lambda t, x, y: t.train(x[:2].clone(), y[:2].clone()),
    "shape of the second": lambda t, x, y: t.look(x, y[:1].clone()),
    "dtype": lambda t, x, y: t.look(x, y.double()),
    "strides": lambda t, x, y: t.train(turned(x), y),
    "requires_grad": lambda t, x, y: t.look(x.clone().requires_grad_(), y),
    "one Tensor twice": lambda t, x, y: t.both((x, x)),
    "default given": lambda t, x, y: t.train(x, y, 1.0),
    "number": lambda t, x, y: t.train(x, y, 2),
    "too few": lambda t, x, y: t.train(x),
    "none": lambda t, x, y: t.train(),
    "too many": lambda t, x, y: t.train(x, y, 1.0, 2),
    "unknown keyword": lambda t, x, y: t.train(x, y, z=1),
    "not a Tensor": lambda t, x, y: t.look(x, 1.0),
    "list": lambda t, x, y: t.both([x, y]),
    "shorter tuple": lambda t, x, y: t.both((x,)),
    "longer tuple": lambda t, x, y: t.both((x, y, x)),
    "more arguments": lambda t, x, y: t.both((x, y), "text", None),
    "another thread": lambda t, x, y: elsewhere(lambda: t.train(x, y)),
    "no_grad": lambda t, x, y: inside(mt.no_grad(), lambda: t.look(x, y)),
    "inference_mode": lambda t, x, y: inside(mt.inference_mode(), lambda: t.look(x, y)),
    "anomaly": lambda t, x, y: inside(mt.autograd.detect_anomaly(), lambda: t.look(x, y)),
    "default dtype": default_dtype,
    "eval": lambda t, x, y: after(t.model.eval(), lambda: t.train(x, y)),
    "train again": lambda t, x, y: after(
        t.model.eval(), lambda: (t.look(x, y), t.model.train(), t.look(x, y))[::2]
    ),
    "frozen": lambda t, x, y: after(frozen(t), lambda: t.train(x, y)),
    "momentum to 0": lambda t, x, y: after(t.options(momentum=0.0), lambda: t.train(x, y)),
    "nesterov": lambda t, x, y: after(t.options(nesterov=True), lambda: t.train(x, y)),
    "weight decay": lambda t, x, y: after(t.options(weight_decay=0.1), lambda: t.train(x, y)),
    "eager step without momentum": lambda t, x, y: eager_step(t, x, y, momentum=0.0),
    "eager step with decay": lambda t, x, y: eager_step(t, x, y, weight_decay=0.1),
    "eager step with decay and one without": lambda t, x, y: eager_step(
        t, x, y, back=True, weight_decay=0.1
    ),
    "gradients are there": summed,
    "one gradient is there": lambda t, x, y: after(
        setattr(t.model[0].bias, "grad", mt.ones(4)), lambda: t.train(x, y)
    ),
    "no_sync": lambda t, x, y: inside(t.whole.no_sync(), lambda: t.train(x, y)),
    "counted": counted,
    "optimizer.load_state_dict": lambda t, x, y: after(reload(t), lambda: t.train(x, y)),
    "another module": lambda t, x, y: after(
        t.model.add_module("1", nn.ReLU()), lambda: t.train(x, y)
    ),
    "inside a compiled step": nested,
    "NumPy array": lambda t, x, y: t.train(x, y.numpy()),
    "reshaped in place": reshaped,
}

# What differs and is followed on the short way.
FOLLOWED: dict[str, Callable[[Training, Any, Any], Any]] = {
    "values": lambda t, x, y: t.train(x * 2, y),
    "Parameter": lambda t, x, y: t.look(nn.Parameter(x, requires_grad=False), y),
    "a Parameter inside": lambda t, x, y: t.both((x, nn.Parameter(x + 1, requires_grad=False))),
    "keyword": lambda t, x, y: t.train(x, y=y),
    "all keywords": lambda t, x, y: t.train(y=y, x=x),
    "lr": lambda t, x, y: after(t.options(lr=0.01), lambda: t.train(x, y)),
    "lr and momentum": lambda t, x, y: after(
        t.options(lr=0.03, momentum=0.5), lambda: t.train(x, y)
    ),
    "lr of the second group": lambda t, x, y: after(
        t.optimizer.param_groups[1].update(lr=0.1), lambda: t.train(x, y)
    ),
    "eager step": lambda t, x, y: eager_step(t, x, y),
    "eager step with another lr": lambda t, x, y: eager_step(t, x, y, lr=0.01),
    "model.load_state_dict": lambda t, x, y: after(
        t.model.load_state_dict({k: v * 0.5 for k, v in t.model.state_dict().items()}),
        lambda: t.train(x, y),
    ),
    "data": lambda t, x, y: after(
        setattr(t.model[0].weight, "data", mt.ones(4, 3)), lambda: t.train(x, y)
    ),
    "another model": lambda t, x, y: after(nn.Linear(2, 2).eval(), lambda: t.train(x, y)),
    "another optimizer": lambda t, x, y: after(grown(), lambda: t.train(x, y)),
    "a draw before": lambda t, x, y: after(F.dropout(x), lambda: t.train(x, y)),
    "seed": lambda t, x, y: after(mt.manual_seed(5), lambda: t.train(x, y)),
    "no_sync and back": lambda t, x, y: after(
        inside(t.whole.no_sync(), lambda: None), lambda: t.train(x, y)
    ),
}


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return bits(call())
    except CaptureError:
        raise
    except Exception as error:
        return type(error).__name__


def history(wrap: Callable[[Any], Any], change: Any, looks: list[str]) -> tuple[list[Any], int]:
    """What the calls do, and how many of the changed ones were looked at."""
    mt.manual_seed(0)
    mt.random.begin_batch(0)
    training = Training(wrap)
    found: list[Any] = []

    def usual(i: int) -> None:
        x, y = data(i)
        found.append(bits([training.train(x, y), training.look(x, y), training.both((x, x + 1))]))

    for i in range(5):
        looks.clear()
        usual(i)
    assert not looks  # the calls that are compared with go the short way
    changed = 0
    for i in range(5, 8):
        x, y = data(i)
        looks.clear()
        found.append(outcome(lambda x=x, y=y: change(training, x, y)))
        changed += len(looks)
        found.append(bits(training.state()))
        usual(i + 100)
    return found, changed


@pytest.mark.parametrize("name", [*OTHERS, *FOLLOWED])
def test_a_call_that_differs(name: str, looks: list[str]) -> None:
    change = {**OTHERS, **FOLLOWED}[name]
    expected, _ = history(eager, change, looks)
    try:
        found, changed = history(mt.compile, change, looks)
    except CaptureError:
        assert name in ("inside a compiled step", "NumPy array")
        return
    assert found == expected
    assert bool(changed) == (name in OTHERS)


def test_hooks_lead_to_an_error_and_back(looks: list[str]) -> None:
    training = Training(mt.compile)
    x, y = data(0)
    for _ in range(4):
        training.train(x, y)
    layer = training.model[0]
    for register in (layer.register_forward_hook, layer.weight.register_hook):
        with register(lambda *_: None), pytest.raises(CaptureError, match="a hook of"):
            training.train(x, y)
        training.optimizer.zero_grad()
        training.train(x, y)
        looks.clear()
        training.train(x, y)
        assert not looks


def test_parameters_added_to_the_optimizer(looks: list[str]) -> None:
    results = []
    for wrap in (eager, mt.compile):
        mt.manual_seed(0)
        first, second = nn.Linear(3, 2), nn.Linear(3, 2)
        optimizer = mt.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)

        def body(x: Any, first: Any = first, second: Any = second, opt: Any = optimizer) -> Any:
            opt.zero_grad()
            loss = ((first(x) + second(x)) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        second.requires_grad_(False)
        run = wrap(body)
        losses = [run(data(i)[0]).item() for i in range(5)]
        second.requires_grad_(True)
        optimizer.add_param_group({"params": second.parameters(), "lr": 0.3})
        losses += [run(data(i)[0]).item() for i in range(5)]
        results.append(losses)
    assert results[0] == results[1]


def test_modes_are_told_apart() -> None:
    weight = mt.ones(2)

    def step() -> Any:
        return weight * 1, mt.is_grad_enabled(), mt.is_inference_mode_enabled()

    inner = mt.compile(step, state=[weight])
    for context in (mt.enable_grad, mt.no_grad, mt.inference_mode, mt.no_grad, mt.enable_grad):
        for _ in range(4):
            with context():
                modes = mt.is_grad_enabled(), mt.is_inference_mode_enabled()
                assert inner()[1:] == modes
    with pytest.raises(CaptureError, match="inside a compiled step"):
        mt.compile(inner)()


@dataclasses.dataclass(frozen=True)
class Setting:
    value: Any


CONSTANTS = [0.0, -0.0, 0, False, True, 1, 1.0, 2.5, float("nan"), "1", None, (1, 1.0), (1.0, 1)]
EQUAL = [
    *(frozenset({1}), frozenset({1.0}), frozenset({(1,)}), frozenset({(1.0,)})),
    *(Setting(0.0), Setting(-0.0), Setting(0), Setting((0,)), Setting((0.0,))),
    *(np.float64(0.0), np.float64(-0.0)),
]


@pytest.mark.parametrize("constants", [CONSTANTS, EQUAL])
def test_constants_are_told_apart(constants: list[Any], looks: list[str]) -> None:
    step = mt.compile(lambda x, k: (x * 1, k))
    x = mt.ones(2)
    for k in constants:
        for _ in range(4):
            found = step(x, k)[1]
            assert (type(found), repr(found)) == (type(k), repr(k))
    for k in constants:
        step(x, k)
        looks.clear()
        assert repr(step(x, k)[1]) == repr(k)
        assert not looks


def test_arguments_by_name_go_the_short_way(looks: list[str]) -> None:
    def step(x: Any, run: Any, more: float = 2.0, *, owner: float = 1.0) -> Any:
        return x - run * more + owner

    compiled, x, y = mt.compile(step), mt.ones(2), mt.tensor([1.0, 2.0])
    calls: list[Callable[[Any], Any]] = [
        lambda f: f(x, y),
        lambda f: f(x, run=y),
        lambda f: f(run=y, x=x),
        lambda f: f(x, y, 3.0),
        lambda f: f(more=3.0, run=y, x=x),
    ]
    for call in calls:
        for _ in range(4):
            assert bits(call(compiled)) == bits(call(step))
    assert len(compiled.programs) == 2
    for first, other in ((0, 1), (1, 2), (3, 4)):
        calls[first](compiled)
        looks.clear()
        assert bits(calls[other](compiled)) == bits(calls[other](step))
        assert not looks
    gap: Callable[[Any], Any] = lambda f: f(x, more=3.0, run=y, owner=0.0)  # noqa: E731
    for _ in range(4):
        assert bits(gap(compiled)) == bits(gap(step))


def test_wrong_calls_are_the_errors_of_the_step() -> None:
    def step(x: Any, k: Any = 1) -> Any:
        return x * k

    compiled, x = mt.compile(step), mt.ones(2)
    for _ in range(4):
        compiled(x)
    for args, kwargs in (((x,), {"x": x}), ((), {"k": 2}), ((x,), {"y": x}), ((x, 1, 2), {})):
        with pytest.raises(TypeError) as expected:
            step(*args, **kwargs)
        with pytest.raises(TypeError) as found:
            compiled(*args, **kwargs)
        assert str(found.value) == str(expected.value)


def test_a_module_is_called_by_the_names_of_its_forward(looks: list[str]) -> None:
    model = nn.Linear(2, 1)
    compiled = mt.compile(model)
    with mt.no_grad():
        for _ in range(4):
            compiled(input=mt.ones(1, 2))
        looks.clear()
        assert bits(compiled(mt.ones(1, 2))) == bits(model(mt.ones(1, 2)))
    assert not looks


RESULTS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: None,
    "Tensor": lambda x: x * 2,
    "argument": lambda x: x,
    "nested": lambda x: {"a": (x + 1, [x * 2, "text"]), "b": x},
    "number": lambda x: 3,
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_made_anew(name: str, looks: list[str]) -> None:
    step = mt.compile(RESULTS[name])
    kept = []
    for i in range(6):
        looks.clear()
        x, _ = data(i)
        kept.append((step(x), x))
    assert not looks
    for found, x in kept:
        expected = RESULTS[name](x)
        if isinstance(expected, dict):
            found, expected = list(found.values()), list(expected.values())
        assert bits(found) == bits(expected)
    results = [found for found, _ in kept if type(found) is mt.Tensor]
    assert len({id(r._array) for r in results}) == len(results)
    assert all(r.is_leaf and not r.requires_grad and r.grad is None for r in results)


def test_a_step_is_still_the_users_function() -> None:
    def step(x: Any, scale: float = 2.0) -> Any:
        """What it does."""
        return x * scale

    compiled = mt.compile(step)
    for _ in range(4):
        compiled(mt.ones(2))
    assert (compiled.__name__, compiled.__doc__) == ("step", "What it does.")
    assert inspect.signature(compiled) == inspect.signature(step)
    assert compiled.__wrapped__ is step
    assert callable(compiled)
    assert "multiply" in compiled.source()
    assert "multiply" in compiled.explain()
    assert len(compiled.programs) == len(compiled.captures) == 1
    kept = compiled.__call__  # taken before another capture is made
    for rows in (3, 3, 3, 2):
        assert bits(kept(mt.ones(rows))) == bits(mt.ones(rows) * 2)
    assert len(compiled.programs) == 2


def test_nothing_keeps_a_step_or_its_arguments_alive() -> None:
    training = Training(mt.compile)
    (x, y), step = data(0), training.train
    training.train = None
    for _ in range(5):
        step(x, y)
    things = [weakref.ref(one) for one in (step, step.programs[0].inputs[0], x, y)]
    gc.disable()
    try:
        del x, y
        assert [one() is None for one in things] == [False, False, True, True]
        del step
        assert all(one() is None for one in things)
    finally:
        gc.enable()


def test_threads_take_turns(looks: list[str]) -> None:
    """A thread that ends gives its number to the next: their steps are still their own."""
    step = mt.compile(lambda x: (F.dropout(x), mt.zeros(1)))
    seen: list[Any] = []

    def work() -> None:
        mt.set_default_dtype(mt.float64)
        mt.manual_seed(1)
        found = [step(mt.ones(8)) for _ in range(4)]
        seen.append(bits(found))

    step(mt.ones(8))
    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][0][1][0] == "float64"
    assert step(mt.ones(8))[1].dtype == mt.float32


# Steps, calls of them, and which of their values may be differentiated.
NESTED: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda f, x: f({"x": x, 1: (x, 2.0)}),
    "module": lambda f, x: f(LAYER, x),
    "named tuple": lambda f, x: f(Pair(x, [x, None])),
    "by name alone": lambda f, x: f(x, more=x + 1, other={"k": 1}),
    "other objects": lambda f, x: f(x, frozenset({1}), 1j, len, ...),
    "parts of one": lambda f, x: f(x[:2], x[2:4], x[2:4].view(-1)),
}
LAYER = nn.Linear(3, 2).requires_grad_(False)


class Pair(NamedTuple):
    first: Any
    second: Any


def tensors_in(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, tuple | list):
        return [t for part in value for t in tensors_in(part)]
    return [value] if type(value) is mt.Tensor else []


@pytest.mark.parametrize("name", NESTED)
def test_all_arguments_go_the_short_way(name: str, looks: list[str]) -> None:
    def step(*args: Any, **kwargs: Any) -> Any:
        return [t.sin() for t in tensors_in([args, kwargs])]

    call, compiled = NESTED[name], mt.compile(step)
    for i in range(6):
        x, _ = data(i)
        looks.clear()
        assert bits(call(compiled, x)) == bits(call(step, x))
        assert bool(looks) == (i < 3)
    assert len(compiled.programs) == 1


def test_order_of_names_and_keys_is_told_apart() -> None:
    def step(pair: Any, **named: Any) -> Any:
        return list(pair) + list(named)

    compiled, x = mt.compile(step), mt.ones(2)
    for _ in range(4):
        assert compiled({"a": x, "b": x}, c=x, d=1) == ["a", "b", "c", "d"]
        assert compiled({"b": x, "a": x}, c=x, d=1) == ["b", "a", "c", "d"]
        assert compiled({"b": x, "a": x}, d=1, c=x) == ["b", "a", "d", "c"]
        assert compiled({"b": x, "a": x}, d=True, c=x) == ["b", "a", "d", "c"]
    assert len(compiled.programs) == 4


def test_results_to_be_differentiated_go_the_short_way(looks: list[str]) -> None:
    model = nn.Linear(3, 1)
    step = mt.compile(lambda x, y: F.mse_loss(model(x), y))
    found = []
    for run in (step, step.function):
        grads = []
        for i in range(8):
            model.zero_grad()
            looks.clear()
            run(*data(i)).backward()
            assert bool(looks) == (run is step and i < 4)  # the second program begins at call 1
            grads.append([bits(p.grad) for p in model.parameters()])
        found.append(grads)
    assert found[0] == found[1]


@pytest.mark.daily("compile")
@pytest.mark.parametrize("executor", [mt.compile, pytest.param(native, marks=NATIVE)])
def test_shapes_take_turns(executor: Any) -> None:
    """As a last batch does that is shorter."""
    (*_, expected), (*_, step) = regression(eager), regression(executor)
    for i in range(40):
        x, y = (mt.from_numpy(rows(i + k)[: 1 + i % 4].copy()) for k in (0, 50))
        np.testing.assert_allclose(step(x, y).item(), expected(x, y).item(), rtol=1e-5)
    assert len(step.programs) == 4
    assert [len(capture.program.inputs[0]) for capture in step.captures] == [4, 3, 2, 1]


def test_captures_of_threads_that_ended_are_let_go() -> None:
    step = mt.compile(lambda x: x * 2)
    for i in range(2 * MOST):
        elsewhere(lambda i=i: [step(mt.ones(2)) for _ in range(3)] and i)
        assert len(step.captures) <= 2


# Arguments that native code reads where they are --------------------------------------------------


def misaligned(x: Any) -> Any:
    memory = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    memory[...] = x
    return memory


def read_only(x: Any) -> Any:
    x.setflags(write=False)
    return x


def odd_strides(x: Any) -> Any:
    """Row-major all the same: there is one row."""
    return np.lib.stride_tricks.as_strided(x, x.shape, (4, 4))


# An array like the one given, and whether it can be read in place.
PLACES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "new": (lambda x: x.copy(), True),
    "part of another": (lambda x: np.concatenate([x, x, x])[len(x) : 2 * len(x)], True),
    "read-only": (read_only, True),
    "every second row": (lambda x: np.repeat(x, 2, 0)[::2], False),
    "from the last": (lambda x: x[::-1].copy()[::-1], False),
    "column-major": (np.asfortranarray, False),
    "misaligned": (misaligned, False),
    "one row twice": (lambda x: np.broadcast_to(x[:1], x.shape), False),
}


def regression(wrap: Callable[[Any], Any]) -> Any:
    """A row-major weight, its optimizer and a step."""
    mt.manual_seed(0)
    weight = nn.Parameter(mt.randn(4, 3))
    optimizer = mt.optim.SGD([weight], lr=0.05, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = ((F.linear(x, weight) + y.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return weight, optimizer, wrap(step)


def rows(i: int) -> Any:
    return np.random.default_rng(i).standard_normal((4, 3)).astype(np.float32)


@pytest.mark.daily("one row twice", "column-major")
@NATIVE
@pytest.mark.parametrize("name", PLACES)
def test_arguments_anywhere_in_memory(name: str, looks: list[str]) -> None:
    place, direct = PLACES[name]
    (*_, expected), (*_, step) = regression(eager), regression(native)
    for i in range(12):
        changed = i in (6, 7, 9)
        x, y = rows(i), rows(i + 50)
        given = [mt.from_numpy(place(a) if changed else a) for a in (x, y)]
        looks.clear()
        loss = step(*given)
        if i in (4, 5, 6, 7, 9, 11):  # after 9 another capture may have been the last
            assert bool(looks) == (changed and not direct)
        np.testing.assert_allclose(loss.item(), expected(*given).item(), rtol=1e-5)


OF_ANOTHER_KIND: dict[str, Callable[[Any], Any]] = {
    "fewer rows": lambda x: x[:2].copy(),
    "other lengths": lambda x: x.reshape(3, 4),
    "more dimensions": lambda x: x.reshape(4, 3, 1),
    "fewer dimensions": lambda x: x.reshape(-1),
    "dtype": lambda x: x.astype(np.float64),
    "dtype of the same size": lambda x: x.astype(np.int32),
}


@NATIVE
@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # as a user may
@pytest.mark.parametrize("name", OF_ANOTHER_KIND)
def test_arguments_of_another_kind(name: str, looks: list[str]) -> None:
    step = native(lambda x, y: (x * 2, y + 1))
    for i in range(12):
        x, y = rows(i), rows(i + 50)
        x, y = (OF_ANOTHER_KIND[name](x), y) if i == 6 else (x, y)
        x, y = (x, OF_ANOTHER_KIND[name](y)) if i == 8 else (x, y)
        looks.clear()
        found = step(mt.from_numpy(x), mt.from_numpy(y))
        assert bool(looks) == (i < 3 or i in (6, 8))
        assert bits(found) == bits([mt.from_numpy(x) * 2, mt.from_numpy(y) + 1])
    x = rows(0)
    assert bits(step(mt.from_numpy(x), mt.from_numpy(x))[0]) == bits(mt.from_numpy(x) * 2)
    tensor = mt.from_numpy(x)
    x.shape = (3, 4)
    assert bits(step(tensor, mt.from_numpy(y))[0]) == bits(tensor * 2)


# Arguments that are memory of the step itself, or of each other.
SHARED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "weight": lambda weight, optimizer, x: (weight.detach(), x),
    "weight as the second": lambda weight, optimizer, x: (x, weight.detach()),
    "gradient": lambda weight, optimizer, x: (x, weight.grad),
    "momentum": lambda weight, optimizer, x: (
        mt.from_numpy(optimizer.state_of(weight)["momentum_buffer"]), x
    ),
    "the same memory": lambda weight, optimizer, x: (x, x.detach()),
}  # fmt: skip


@pytest.mark.parametrize("executor", [mt.compile, pytest.param(native, marks=NATIVE)])
@pytest.mark.parametrize("name", SHARED)
def test_arguments_that_share_memory(name: str, executor: Any, looks: list[str]) -> None:
    (*_, expected), (weight, optimizer, step) = regression(eager), regression(executor)
    for i in range(12):
        x, y = mt.from_numpy(rows(i)), mt.from_numpy(rows(i + 50))
        looks.clear()
        if i in (6, 7, 9):
            x, y = SHARED[name](weight, optimizer, x)
            if name != "the same memory":
                with pytest.raises(CaptureError, match="an argument is memory"):
                    step(x, y)
                continue
        np.testing.assert_allclose(step(x, y).item(), expected(x, y).item(), rtol=1e-5)
        # The momentum begins at call 2. NumPy may multiply a matrix by itself in its own way.
        other = name == "the same memory" and executor is mt.compile
        assert bool(looks) == (i < 4 or (other and i in (6, 7, 9, 10)))


@NATIVE
def test_the_way_in_keeps_what_it_needs() -> None:
    """Also when the capture is no longer there."""
    *_, step = regression(native)
    *_, expected = regression(eager)
    given = mt.from_numpy(rows(0)), mt.from_numpy(rows(1))
    for _ in range(4):
        expected(*given), step(*given)
    enter = step.__call__
    step.captures.clear()
    gc.collect()
    filled = [np.full(n, -1, np.int64) for n in range(4, 200)]  # where freed memory was
    np.testing.assert_allclose(enter(*given).item(), expected(*given).item(), rtol=1e-5)
    assert len(filled) == 196


@NATIVE
def test_arguments_that_others_than_native_code_see(looks: list[str]) -> None:
    def step(x: Any, index: Any) -> Any:
        return x, x.view(-1)[1:], x.cumsum(0), F.cross_entropy(x, index), (x * 2).sum()

    compiled = native(step)
    for i in range(8):
        x, index = mt.from_numpy(rows(i)), mt.tensor([i % 3, 0, 1, 2])
        looks.clear()
        found, expected = compiled(x, index), step(x, index)
        assert bool(looks) == (i < 3)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5)
    with pytest.raises(IndexError):
        compiled(x, mt.tensor([0, 0, 3, 0]))
    assert compiled(x, index)[0].numpy() is not x.numpy()
