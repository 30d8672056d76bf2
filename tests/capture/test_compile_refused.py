"""What a step may not do: an error at the first calls, never a replay of something else."""

from __future__ import annotations

import copy
import random
import time
from typing import Any

import numpy as np
import pytest
from steps import Setting, batch, call

import microtrain as mt
from microtrain.backend import MODES, NUMPY, XP
from microtrain.errors import CaptureError
from microtrain.tensor import wrap

nn, F = mt.nn, mt.nn.functional


def helper(x: Any) -> Any:
    return x.sum().item()


def branch(s: Any, x: Any) -> Any:
    if x.sum() > 0:
        x = x * 2
    return x


HERE = r"test_compile_refused\.py:\d+: "
VALUES = HERE + r".*%s looks at a Tensor of a captured step: its values differ.*\. %s"
NEEDS_NO = "Calculate with the Tensor itself, which needs no number"
MADE = (
    r"%s does something different at every call.*" + HERE + r"what Python or NumPy made there "
    r"\(random, numpy\.random, time, a counter\) is %s, then %s\. Pass what changes as an argument"
)
COUNTER = iter(range(10**6))
NUMPY_DRAWS = np.random.default_rng(0)
WRONG = r"[-+.\d]+(e-\d+)?"

# What users write, and what they are told: where, what, and what to do instead.
TOLD: dict[str, tuple[Any, str]] = {
    "item": (lambda s, x: x * x.sum().item(), VALUES % (r"item\(\)", NEEDS_NO)),
    "item in a function": (
        lambda s, x: x * helper(x),
        HERE + r"return x\.sum\(\)\.item\(\): item\(\) looks",
    ),
    "if": (branch, HERE + r"if x\.sum\(\) > 0:: if, while.* looks at .*mt\.where"),
    "and": (lambda s, x: x.sum() > 0 and x, VALUES % ("if, while.*", r"Choose with mt\.where")),
    "max": (lambda s, x: max(x[0, 0], x[0, 1]), VALUES % ("if, while.*", "Choose")),
    "float": (lambda s, x: x * float(x.sum()), VALUES % (r"float\(\)", NEEDS_NO)),
    "int": (lambda s, x: x[: int(x.sum())], VALUES % (r"int\(\)", NEEDS_NO)),
    "range": (lambda s, x: [*range(x.argmax())], VALUES % (r"an index.*", "Index with the Tensor")),
    "numpy": (lambda s, x: x.detach().numpy(), VALUES % (r"numpy\(\)", "Return it")),
    "tolist": (lambda s, x: x.tolist(), VALUES % (r"tolist\(\)", NEEDS_NO)),
    "asarray": (lambda s, x: np.asarray(x), VALUES % ("NumPy", "Use the function of microtrain")),
    "print": (lambda s, x: print(x), VALUES % ("print, an f-string.*", "Return it .* print it")),
    "f-string": (lambda s, x: f"{x.sum()}", VALUES % ("print, an f-string.*", "Return it")),
    "str": (lambda s, x: str(x), VALUES % ("print, an f-string.*", "Return it")),
    "equal": (lambda s, x: mt.equal(x, x), VALUES % (r"equal\(\)", "Return it")),
    "one hot": (
        lambda s, x: nn.functional.one_hot(x.argmax(1)),
        VALUES % ("one_hot.*", "Give num_"),
    ),
    "bincount": (
        lambda s, x: mt.bincount(x.argmax(1), minlength=3),
        VALUES % ("bincount.*", r"Count with mt\.zeros\(n\)\.index_add"),
    ),
    "tensor": (lambda s, x: mt.tensor([x.sum(), 1.0]), VALUES % (r"mt\.tensor.*", ".*mt.stack")),
    "mask": (lambda s, x: x[x > 0], HERE + r"the shape of the result.*where\(mask, x, 0\)"),
    "random": (lambda s, x: x * random.random(), MADE % ("<lambda>", WRONG, WRONG)),
    "a tensor of random": (
        lambda s, x: x * mt.tensor([random.random(), 1, 2]),
        MADE % ("<lambda>", r"\[0\.\d+, \.\.\.\] of shape \(3,\)", r"\[0.*\)"),
    ),
    "full": (lambda s, x: mt.full_like(x, random.random()), MADE % (".*", r"\[0.*", r"\[0.*\)")),
    "time": (lambda s, x: x * (time.perf_counter_ns() % 10**6), MADE % ("<lambda>", WRONG, WRONG)),
    "numpy.random": (lambda s, x: x + NUMPY_DRAWS.random(), MADE % ("<lambda>", WRONG, WRONG)),
    "counter": (lambda s, x: x * next(COUNTER), MADE % ("<lambda>", WRONG, WRONG)),
    "an array of numpy.random": (
        lambda s, x: x + mt.from_numpy(NUMPY_DRAWS.standard_normal(3)),
        HERE + r"an array of shape \(3,\) from outside the step.*Pass it.*for noise use mt\.randn",
    ),
    "nn.init": (
        lambda s, x: x + nn.init.normal_(mt.empty(3)),
        HERE + r"nn\.init, or a new layer, draws initial values.*outside the step",
    ),
    "a new layer": (lambda s, x: nn.Linear(3, 3)(x), HERE + r"nn\.init, or a new layer"),
    "manual_seed": (lambda s, x: from_seed(x), "it seeds the random stream.*do that outside"),
    "write": (lambda s, x: x.add_(1), HERE + r"the step writes into its argument; clone\(\) it"),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_users_are_told(name: str) -> None:
    function, words = TOLD[name]
    setting = Setting()
    step = mt.compile(lambda x: function(setting, x))
    with pytest.raises(CaptureError, match=f"(?s){words}") as found:
        call(step)
    assert "copyto" not in str(found.value)
    assert "constant" not in str(found.value)


def collocation(kind: str, x: Any) -> Any:
    """Points at which a derivative is wanted, as people make leaves of them."""
    if kind == "in place":
        return x.requires_grad_()
    if kind == "detached":
        return x.detach().requires_grad_()
    if kind == "cloned":
        return x.clone().requires_grad_()
    if kind == "drawn":
        return mt.rand_like(x).requires_grad_()
    if kind == "columns":
        return mt.cat([x[:, :1], x[:, 1:].detach()], 1).requires_grad_()
    return x


@pytest.mark.parametrize(
    "kind", ["in place", "detached", "cloned", "drawn", "columns", "a leaf", "inputs"]
)
def test_collocation_points_are_leaves(kind: str) -> None:
    """The gradient of a loss by them goes to `x.grad`, or nowhere; it stops no capture."""
    found = []
    for wrapped in (lambda step: step, mt.compile):
        mt.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        optimizer = mt.optim.Adam(model.parameters(), lr=0.01)

        def step(x: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            x = collocation(kind, x)
            u = model(x)
            (du,) = mt.autograd.grad(u.sum(), x, create_graph=True)
            (d2u,) = mt.autograd.grad(du[:, 0].sum(), x, create_graph=True)
            loss = ((d2u[:, :1] + du[:, 1:2] - u) ** 2).mean()
            optimizer.zero_grad()
            loss.backward(inputs=list(model.parameters()) if kind == "inputs" else None)
            optimizer.step()
            return loss

        run = wrapped(step)
        losses, grads = [], []
        for i in range(8):
            x = batch(i).double()
            if kind in ("a leaf", "inputs"):
                x.requires_grad_()
            losses.append(run(x).item())
            grads.append(None if x.grad is None else x.grad.tolist())
        found.append((losses, grads))
        assert (grads[-1] is not None) == (kind in ("in place", "a leaf"))
    assert found[0] == found[1]
    assert len(run.programs) == 1


def test_an_argument_with_a_graph_gets_the_advice_that_helps() -> None:
    model = nn.Linear(3, 1)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, inputs: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward(inputs=inputs)
        optimizer.step()
        return loss

    w = mt.ones(3, requires_grad=True)
    with pytest.raises(
        CaptureError, match=HERE + r"a gradient for an argument .*backward\(inputs="
    ):
        mt.compile(lambda x: step(x, None))(batch(0) * w)
    parameters = list(model.parameters())
    for i in range(4):
        mt.compile(lambda x: step(x, parameters))(batch(i) * w)


REFUSED: dict[str, Any] = {
    "item": lambda s, x: s.step(x).item(),
    "float": lambda s, x: float(s.step(x)),
    "bool": lambda s, x: 1 if s.step(x) > 0 else 2,
    "numpy": lambda s, x: s.step(x).detach().numpy(),
    "tolist": lambda s, x: x.tolist(),
    "equal": lambda s, x: mt.equal(x, x * 2),
    "equal to state": lambda s, x: s.model.weight.equal(s.model.weight),
    "allclose": lambda s, x: mt.allclose(x, x),
    "nonzero": lambda s, x: x.nonzero(),
    "mask": lambda s, x: x[x > 0].sum(),
    "masked_select": lambda s, x: x.masked_select(x > 0).sum(),
    "write to the argument": lambda s, x: x.add_(1).sum(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_is_refused(name: str) -> None:
    setting = Setting()
    step = mt.compile(lambda x: REFUSED[name](setting, x))
    with pytest.raises(CaptureError):
        call(step)
    assert not MODES.capture.on
    setting.step(batch(0))  # everything works as before


def test_hooks_are_refused() -> None:
    setting = Setting()
    refused = pytest.raises(CaptureError, match="a hook of Linear")
    with setting.model.register_forward_hook(lambda *_: None), refused:
        mt.compile(setting.step)(batch(0))
    for register in (
        setting.model.weight.register_hook,
        setting.model.weight.register_post_accumulate_grad_hook,
    ):
        with register(lambda _: None), pytest.raises(CaptureError, match="a hook of a Tensor"):
            mt.compile(setting.step)(batch(0))


HOOKS: dict[str, Any] = {
    "module": lambda model: model.register_forward_hook(lambda *_: None),
    "leaf": lambda model: model.weight.register_hook(lambda _: None),
    "accumulated": lambda model: model.weight.register_post_accumulate_grad_hook(lambda _: None),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_registered_later_are_refused(name: str) -> None:
    setting = Setting()
    step = mt.compile(setting.step)
    call(step)
    with HOOKS[name](setting.model), pytest.raises(CaptureError, match="a hook of"):
        step(batch(0))
    call(step)


def test_a_schedule_inside_the_step_is_refused() -> None:
    setting = Setting()
    schedule = mt.optim.lr_scheduler.StepLR(setting.optimizer, 1)

    def step(x: Any) -> None:
        setting.step(x)
        schedule.step()

    with pytest.raises(CaptureError, match="Do it outside"):
        mt.compile(step)(batch(0))


def test_rates_chosen_inside_the_step_are_refused() -> None:
    setting = Setting()
    step_lr = mt.optim.lr_scheduler.StepLR(setting.optimizer, 1000)
    plateau = mt.optim.lr_scheduler.ReduceLROnPlateau(setting.optimizer)
    setting.step(batch(0))
    rates = iter([0.1, 0.2, 0.3])

    def by_hand(x: Any) -> None:
        setting.optimizer.param_groups[0]["lr"] = next(rates)
        setting.step(x)

    for step in (lambda x: step_lr.step(), lambda x: plateau.step(1.0), by_hand):
        with pytest.raises(CaptureError, match="Do it outside"):
            call(mt.compile(step))


def test_compiled_in_compiled() -> None:
    inner = mt.compile(lambda x: x + 1)
    with pytest.raises(CaptureError, match="inside a compiled step"):
        mt.compile(lambda x: inner(x))(batch(0))


def test_a_tensor_that_leaked_says_so() -> None:
    kept: list[Any] = []
    step = mt.compile(lambda x: kept.append(x * 2))
    step(batch(0))
    with pytest.raises(CaptureError):
        kept[0].numpy()
    for use in (lambda x: x + 1, mt.clone, mt.sum, copy.deepcopy):
        with pytest.raises(CaptureError):
            use(kept[0])
    with pytest.raises(CaptureError, match="earlier call"):
        mt.compile(lambda x: x + kept[0])(batch(0))


def test_a_buffer_that_the_first_call_makes() -> None:
    class Counting(nn.Module):
        def forward(self, x: Any) -> Any:
            if not hasattr(self, "calls"):
                self.register_buffer("calls", mt.zeros(()))
            self.calls += 1
            return x * self.calls

    step = mt.compile(Counting())
    step(batch(0))
    with pytest.raises(CaptureError, match="make a buffer before the first call"):
        step(batch(1))


def test_a_buffer_that_the_step_replaces() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", mt.zeros(3))
            self.register_buffer("calls", mt.tensor(0))

        def forward(self, x: Any) -> Any:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean

    average = Average()
    with pytest.raises(CaptureError, match=r"'mean'.*self\.mean\.copy_\("):
        mt.compile(average)(batch(0))
    assert average.mean.tolist() == [0, 0, 0] and average.calls.item() == 1


def test_arguments_that_cannot_be_a_key() -> None:
    step = mt.compile(lambda x, y: x)
    with pytest.raises(CaptureError, match=r"from_numpy"):
        step(batch(0), np.ones(3))
    with pytest.raises(CaptureError, match="hashable"):
        step(batch(0), {1, 2})
    with pytest.raises(ValueError, match="executor"):
        mt.compile(lambda x: x, executor="cuda")


def test_an_argument_that_the_step_writes() -> None:
    setting, norm = Setting(), nn.BatchNorm1d(3, affine=False)

    def step(x: Any, other: Any) -> Any:
        setting.step(norm(x))
        return other * 2

    for other in (setting.model.weight.detach(), norm.running_mean):
        with pytest.raises(CaptureError, match="an argument is memory"):
            mt.compile(step)(batch(0), other)
    mt.compile(step)(batch(0), setting.model.weight.detach().clone())


ALIASES: dict[str, Any] = {
    "a parameter": lambda s, norm: s.model.weight.detach(),
    "part of one": lambda s, norm: s.model.weight.detach()[:, :3],
    "its array": lambda s, norm: mt.from_numpy(s.model.weight.detach().numpy()),
    "repeated": lambda s, norm: s.model.bias.detach().expand(3, 2),
    "as strided": lambda s, norm: mt.from_numpy(
        np.lib.stride_tricks.as_strided(s.model.weight.detach().numpy(), (2, 3), (12, 4))
    ),
    "a gradient": lambda s, norm: s.model.weight.grad,
    "a buffer": lambda s, norm: norm.running_mean,
}


@pytest.mark.parametrize("name", ALIASES)
def test_an_argument_that_becomes_memory_that_the_step_writes(name: str) -> None:
    """It was another one when the step was captured; a copy of it is one at any time."""
    setting, norm = Setting(), nn.BatchNorm1d(3, affine=False)

    @mt.compile
    def step(x: Any, other: Any) -> Any:
        setting.step(norm(x))
        return other * 2

    setting.step(batch(0))
    for i in range(4):
        like = mt.ones(2).expand(3, 2) if name == "repeated" else ALIASES[name](setting, norm) + 1
        step(batch(i), like)
    with pytest.raises(CaptureError, match="an argument is memory"):
        step(batch(0), ALIASES[name](setting, norm))
    step(batch(0), like)
    assert len(step.programs) == 1


def test_too_many_captures() -> None:
    step = mt.compile(lambda x, k: x * k)

    def many() -> None:
        for k in range(40):
            step(batch(0), k)
            step(batch(1), k)

    with pytest.raises(CaptureError, match="32 captures"):
        many()


def test_gradients_that_belong_nowhere_are_refused() -> None:
    model = nn.Linear(3, 1)

    def outside(x: Any) -> None:
        model(x).sum().backward()

    gone = mt.optim.SGD(model.parameters(), lr=0.1)
    del gone
    with pytest.raises(CaptureError, match="no optimizer owns"):
        mt.compile(outside)(batch(0))

    def assigned(x: Any) -> None:
        model.bias.grad = x[0, :1]

    with pytest.raises(CaptureError, match="no optimizer owns"):
        mt.compile(assigned)(batch(0))

    hidden = {type(model): mt.ones(3, requires_grad=True)}.get  # no way of the closure leads there

    def unreached(x: Any) -> None:
        (x * hidden(nn.Linear)).sum().backward()

    with pytest.raises(CaptureError, match=r"test_compile_refused\.py:\d+: an array .*outside"):
        mt.compile(unreached)(batch(0))
    setting = Setting()

    def twice(x: Any) -> None:
        (setting.model(x) ** 2).sum().backward(create_graph=True)

    with pytest.raises(CaptureError, match="create_graph"):
        mt.compile(twice)(batch(0))


LOOKS: dict[str, Any] = {
    "item": lambda x, t: x * t.item(),
    "bool": lambda x, t: x * 2 if t.data else x,
    "tolist": lambda x, t: x * mt.tensor(t.tolist()),
    "tensor": lambda x, t: x * mt.tensor(t),
    "numpy": lambda x, t: x * float(t.numpy()),
    "array": lambda x, t: x * float(np.asarray(t)),
    "index": lambda x, t: x[t],
    "repeat": lambda x, t: x.repeat_interleave(t.reshape(1), dim=0),
}


@pytest.mark.parametrize("name", LOOKS)
def test_values_of_the_state_are_not_looked_at(name: str) -> None:
    module = nn.Module()
    module.register_buffer("t", mt.tensor(1))
    with pytest.raises(CaptureError):
        call(mt.compile(lambda x: LOOKS[name](x, module.t)))


class Plus(mt.autograd.Function):
    """What computes on the arrays themselves: NumPy makes a number of two 0-d ones."""

    @staticmethod
    def forward(ctx: Any, x: Any, n: Any) -> Any:
        return wrap(x._array * (n._array + n._array))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g, None


@pytest.mark.parametrize("dtype", [mt.int64, mt.bool, mt.float64, mt.float32])
def test_a_number_of_the_state_that_numpy_computed_unseen(dtype: Any) -> None:
    module = nn.Module()
    module.register_buffer("n", mt.tensor(1, dtype=dtype))
    with pytest.raises(CaptureError, match="is NumPy's"):
        mt.compile(lambda x: Plus.apply(x, module.n))(batch(0))


def alternating(step: Any) -> Any:
    """`step(x, y, index, odd)` with an `odd` that changes from call to call."""
    calls: list[int] = []

    def changing(x: Any, y: Any, index: Any) -> Any:
        calls.append(1)
        return step(x, y, index, len(calls) % 2)

    return changing


def written(x: Any, index: Any, start: int) -> Any:
    y = x.clone()
    y[index, start : start + 2] = 0.0
    return y


def from_seed(x: Any) -> Any:
    mt.manual_seed(3)
    return F.dropout(x)


CHANGING: dict[str, Any] = {
    "argument": lambda x, y, index, odd: (x if odd else y) * 2,
    "result": lambda x, y, index, odd: (x, y) if odd else (y, x),
    "order": lambda x, y, index, odd: [x + 1, x + 2][:: 1 if odd else -1],
    "number in the result": lambda x, y, index, odd: (x, odd),
    "kind of the number": lambda x, y, index, odd: (x, [1, True][odd]),
    "slice": lambda x, y, index, odd: x[index, odd : odd + 2],
    "slice written": lambda x, y, index, odd: written(x, index, odd),
    "sign of a zero": lambda x, y, index, odd: x * [0.0, -0.0][odd],
    "seed": lambda x, y, index, odd: from_seed(x),
    "draw": lambda x, y, index, odd: x * (mt.rand(3) if odd else mt.randn(3)),
}


@pytest.mark.parametrize("name", CHANGING)
def test_two_calls_that_differ(name: str) -> None:
    step = mt.compile(alternating(CHANGING[name]))
    with pytest.raises(CaptureError, match="does something different"):
        call(lambda x: step(x, x + 1, mt.tensor([0, 2])))


def test_flags_that_a_step_leaves_changed_are_refused() -> None:
    setting = Setting()

    def step(x: Any) -> Any:
        found = setting.step(x)
        setting.model.bias.requires_grad_(not setting.model.bias.requires_grad)
        return found

    step = mt.compile(step)

    def alternate() -> None:
        for i in range(12):
            step(batch(i))
            setting.model.bias.requires_grad_(True)

    with pytest.raises(CaptureError, match="it changes requires_grad"):
        alternate()


def test_an_error_in_the_step_is_the_users() -> None:
    def step(x: Any) -> Any:
        return (x @ x) + 1

    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes"):
        mt.compile(step)(batch(0))
    assert not MODES.capture.on
    assert XP[np.ndarray] is NUMPY
