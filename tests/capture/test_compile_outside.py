"""Results of a compiled step that are differentiated outside: the gradients of the eager step."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from programs import PROGRAMS
from steps import batch, both

import microtrain as mt
from microtrain.distributed.data_parallel import DataParallel
from microtrain.errors import CaptureError

nn, F = mt.nn, mt.nn.functional


def given(name: str, i: int) -> tuple[Any, Any]:
    """The arguments of call i; those that can require grad."""
    _, inputs, targets, _ = PROGRAMS[name]
    x, y = mt.from_numpy(inputs(i)), mt.from_numpy(targets(i))
    return x.requires_grad_(x.is_floating_point()), y


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_training_with_backward_and_update_outside(name: str, inside: bool) -> None:
    """`inside`: zero_grad() every time; else gradients add up over two calls."""

    def program(wrap: Any) -> Any:
        make, _, _, loss_of = PROGRAMS[name]
        model = make()
        optimizer = mt.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        step = wrap(lambda x, y: loss_of(model(x), y))
        for i in range(8):
            x, y = given(name, i)
            if inside or not i % 2:
                optimizer.zero_grad()
            loss = step(x, y)
            loss.backward()
            yield loss, x.grad, [p.grad for p in model.parameters()]
            optimizer.step()
        yield [*model.parameters(), *model.buffers()]

    eager, found = both(program)
    assert found == eager


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_autograd_grad(name: str) -> None:
    def program(wrap: Any) -> Any:
        make, _, _, loss_of = PROGRAMS[name]
        model = make()
        wanted = list(model.parameters())
        step = wrap(lambda x, y: loss_of(model(x), y))
        for i in range(6):
            yield mt.autograd.grad(step(*given(name, i)), wanted[: 1 + i % 3])
            assert all(p.grad is None for p in wanted)

    eager, found = both(program)
    assert found == eager


class Parts:
    """A small model that is used in many ways; without an optimizer."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        self.weight = nn.Parameter(mt.randn(3))
        self.owner = nn.Module()
        self.owner.weight = self.weight

    def parameters(self) -> list[Any]:
        return [*self.model.parameters(), self.weight]


# What the step computes of `parts` and an argument, and the loss that is made of that outside.
USES: dict[str, tuple[Any, Any]] = {
    "a loss": (lambda s, x: s.model(x).sum(), lambda r: r),
    "no scalar": (lambda s, x: s.model(x), lambda r: (r**2).mean()),
    "a given gradient": (lambda s, x: s.model(x), lambda r: (r, mt.ones_like(r) * 0.5)),
    "a transposed gradient": (lambda s, x: s.model(x), lambda r: (r.t() ** 2).sum()),
    "part of a gradient": (lambda s, x: s.model(x), lambda r: r[::2].exp().sum()),
    "one of two": (lambda s, x: (s.model(x), (x * s.weight).sum()), lambda r: r[1]),
    "the other of two": (lambda s, x: (s.model(x), (x * s.weight).sum()), lambda r: r[0].sum()),
    "both": (lambda s, x: (s.model(x), (x * s.weight).sum()), lambda r: r[0].mean() + r[1]),
    "one of the other": (
        lambda s, x: (lambda y: {"y": y, "loss": (y**2).sum()})(s.model(x)),
        lambda r: r["loss"] + r["y"].sum() * 2,
    ),
    "detached ones": (
        lambda s, x: [x.detach().argmax(1), s.model(x).detach(), 3, s.model(x).sum()],
        lambda r: r[3] * r[1].sum() * r[2],
    ),
    "twice the same": (lambda s, x: (lambda y: (y, y))(s.model(x).sum()), lambda r: r[0] * r[1]),
    "a parameter twice": (lambda s, x: s.model(s.model(x) * s.weight).sum(), lambda r: r),
    "an argument, a parameter": (lambda s, x: (x, s.weight), lambda r: (r[0] * r[1]).sum()),
    "a view": (lambda s, x: s.model(x)[1:, 0], lambda r: (r * r).sum()),
    "in place": (lambda s, x: s.model(x).exp().clone().mul_(2).clamp_(max=3.0), lambda r: r.sum()),
    "no gradient of the argument": (lambda s, x: s.model(x.detach()).sum(), lambda r: r),
    "a leaf of its own": (
        lambda s, x: (x * s.weight * mt.ones(3).requires_grad_()).sum(),
        lambda r: r,
    ),
}


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("name", USES)
def test_whatever_is_made_of_the_results(name: str, owned: bool) -> None:
    """Parameters in flat memory or not; the argument a leaf or computed."""
    inner, outer = USES[name]

    def program(wrap: Any) -> Any:
        parts = Parts()
        if owned:
            mt.optim.SGD(parts.parameters(), lr=0.1)
        step = wrap(lambda x: inner(parts, x))
        for i in range(7):
            x = batch(i).requires_grad_()
            loss = outer(step(x * 2 if i % 2 else x))
            loss, gradient = loss if type(loss) is tuple else (loss, None)
            loss.backward(gradient)
            yield x.grad, [p.grad for p in parts.parameters()]

    eager, found = both(program)
    assert found == eager


def test_the_gradient_may_go_to_one_result_or_another() -> None:
    def program(wrap: Any) -> Any:
        parts = Parts()
        step = wrap(lambda x: (parts.model(x).sum(), (x * parts.weight).sum(), x.sum()))
        for i in range(24):
            x = batch(i).requires_grad_()
            results = step(x)
            chosen = [r for place, r in enumerate(results) if (i % 7 + 1) >> place & 1]
            mt.autograd.backward(chosen)
            yield x.grad, [p.grad for p in parts.parameters()]
            for p in parts.parameters():
                p.grad = None

    eager, found = both(program)
    assert found == eager


def test_several_arguments() -> None:
    def program(wrap: Any) -> Any:
        step = wrap(lambda x, more: (x @ more["w"] * more["s"]).tanh())
        for i in range(6):
            x, w, s = batch(i), batch(i + 20, 3).requires_grad_(), mt.tensor(2.0 + i)
            x.requires_grad_()
            found = step(x, {"w": w, "s": s})
            loss = (found - step(w, {"w": x.t() if i > 9 else w, "s": s}).sum()).mean()
            loss.backward()
            yield x.grad, w.grad, s.grad

    eager, found = both(program)
    assert found == eager


def test_results_of_several_calls() -> None:
    """Whatever a call saved is there when its result is differentiated, at once or much later."""

    def program(wrap: Any) -> Any:
        parts = Parts()
        step = wrap(lambda x: F.dropout(parts.model(x), 0.3).exp().sum())
        for i in range(5):
            losses = [step(batch(10 * i + k).requires_grad_()) for k in range(4)]
            (losses[0] + losses[1] * losses[3]).backward()
            losses[2].backward(retain_graph=True)
            losses[2].backward()
            yield [p.grad for p in parts.parameters()]

    eager, found = both(program)
    assert found == eager


def test_a_chain_of_calls() -> None:
    """A cell that is captured once and called for every place of a sequence."""

    def program(wrap: Any) -> Any:
        parts = Parts()
        cell = wrap(lambda x, h: (parts.model(x) + h * parts.weight).tanh())
        for i in range(4):
            h = mt.zeros(4, 3).requires_grad_()
            first = h
            for k in range(5):
                h = cell(batch(10 * i + k), h)
            h.sum().backward()
            yield first.grad, [p.grad for p in parts.parameters()]

    eager, found = both(program)
    assert found == eager


def test_hooks_are_called_outside() -> None:
    def program(wrap: Any) -> Any:
        parts, seen = Parts(), []
        mt.optim.SGD(parts.parameters(), lr=0.1)
        parts.weight.register_hook(lambda g: g * 2)
        parts.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        step = wrap(lambda x: (parts.model(x) * parts.weight + parts.weight).sum(0))
        for i in range(6):
            x = batch(i).requires_grad_()
            x.register_hook(lambda g: g + 1)
            results = step(x)
            results.register_hook(lambda g: g * 3)
            results.retain_grad()
            (results**2).sum().backward()
            yield x.grad, results.grad, *[p.grad for p in parts.parameters()], len(seen), seen[-1]

    eager, found = both(program)
    assert found == eager


def test_without_grad_results_are_plain() -> None:
    parts = Parts()
    step = mt.compile(lambda x: (parts.model(x), parts.weight))
    with mt.no_grad():
        for i in range(4):
            assert not any(r.requires_grad for r in step(batch(i)))
    for i in range(4):
        assert all(r.requires_grad for r in step(batch(i)))
    for p in parts.parameters():
        p.requires_grad_(False)
    for i in range(4):
        assert not any(r.requires_grad for r in step(batch(i)))
    assert len(step.programs) == 3

    def inside(x: Any) -> Any:
        loss = (x * x).sum()
        return loss, mt.autograd.grad(loss, x)[0]

    step = mt.compile(inside)
    for i in range(4):
        assert not any(r.requires_grad for r in step(batch(i).requires_grad_()))


# What is refused ----------------------------------------------------------------------------------


def results(times: int, step: Any) -> Any:
    """The last result, which is replayed from the third call on."""
    for i in range(times - 1):
        step(batch(i).requires_grad_()).sum().backward()
    return step(batch(times).requires_grad_())


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_graph_is_freed(times: int) -> None:
    parts = Parts()
    for wrap in (lambda f: f, mt.compile):
        loss = results(times, wrap(lambda x: (parts.model(x) ** 2).sum()))
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


@pytest.mark.parametrize("times", [1, 2, 5])
def test_parameters_changed_before_backward(times: int) -> None:
    parts = Parts()
    optimizer = mt.optim.SGD(parts.parameters(), lr=0.1)
    for wrap in (lambda f: f, mt.compile):
        loss = results(times, wrap(lambda x: (parts.model(x) ** 2).sum()))
        with mt.no_grad():
            parts.model[0].weight.add_(1)  # its values are not saved: the argument needs them
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        loss = results(5, wrap(lambda x: (parts.model(x) ** 2).sum()))
        loss.sum().backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_what_the_step_itself_writes_over() -> None:
    def step(x: Any) -> Any:
        y = x.exp()
        z = y * y
        y.add_(1)
        return z.sum()

    for wrap in (lambda f: f, mt.compile):
        wrapped = wrap(step)
        for i in range(4):
            loss = wrapped(batch(i).requires_grad_())
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


@pytest.mark.parametrize("times", [1, 5])
def test_higher_derivatives_are_refused(times: int) -> None:
    loss = results(times, mt.compile(lambda x: (x**3).sum()))
    with pytest.raises(RuntimeError, match="differentiated once"):
        loss.backward(create_graph=True)
    x = batch(0).requires_grad_()
    with pytest.raises(RuntimeError, match="differentiated once"):
        mt.autograd.grad(mt.compile(lambda x: x**3)(x).sum(), x, create_graph=True)


def test_inside_another_captured_step() -> None:
    loss = results(3, mt.compile(lambda x: (x**3).sum()))
    with pytest.raises(CaptureError, match="another captured step"):
        mt.compile(lambda x: (loss.backward(), x)[1])(batch(0))
    loss.backward()


class Counting(mt.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.kept = x.exp()
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        Counting.calls += 1
        return g * ctx.kept * Counting.calls


def test_a_backward_that_differs_every_time() -> None:
    step = mt.compile(lambda x: Counting.apply(x).sum())
    with pytest.raises(CaptureError, match=r"backward pass .* something different at every"):
        results(12, step)


class Twofold(mt.autograd.Function):
    looks = False

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.kept = x.exp()
        return x * 2, ctx.kept

    @staticmethod
    def backward(ctx: Any, one: Any, two: Any) -> Any:
        (x,) = ctx.saved_tensors
        if Twofold.looks:
            x.sum().item()
        return one * 2 + two * ctx.kept + x * 0


def test_a_function_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(wrap: Any) -> Any:
        weight = nn.Parameter(mt.ones(3))
        owner = nn.Module()
        owner.weight = weight
        step = wrap(lambda x: Twofold.apply(x * weight))
        for i in range(9):
            x = batch(i).requires_grad_()
            one, two = step(x)
            (one.sum() if i % 3 else two.sum()).backward()
            yield x.grad, weight.grad

    eager, found = both(program)
    assert found == eager
    monkeypatch.setattr(Twofold, "looks", True)
    one, _ = mt.compile(Twofold.apply)(batch(0).requires_grad_())
    with pytest.raises(CaptureError, match=r"item\(\) looks at a Tensor"):
        one.sum().backward()
    assert not mt.backend.MODES.capture.on


def hooked(x: Any) -> Any:
    y = x * 2
    y.register_hook(lambda g: g * 2)
    return y.sum()


def hooked_argument(x: Any) -> Any:
    x.register_hook(lambda g: g * 2)
    return x.sum()


HOOKED: dict[str, Any] = {
    "of a result": hooked,
    "of an argument": hooked_argument,
    "retain_grad": lambda x: (lambda y: (y.retain_grad(), y.sum())[1])(x * 2),
}


@pytest.mark.parametrize("name", HOOKED)
def test_hooks_registered_in_the_step_are_refused(name: str) -> None:
    with pytest.raises(CaptureError, match="a hook of a Tensor"):
        mt.compile(HOOKED[name])(batch(0).requires_grad_())


def test_a_graph_from_outside_is_refused() -> None:
    weight = mt.ones(3, requires_grad=True) * 2
    with pytest.raises(CaptureError, match="has a graph"):
        mt.compile(lambda x: (x * weight).sum(), state=[weight])(batch(0))


# Memory, threads, ranks, native code --------------------------------------------------------------


def test_a_dropped_step_gives_its_memory_back() -> None:
    parts = Parts()
    step = mt.compile(lambda x: parts.model(x).sum())
    loss = results(5, step)
    memory = weakref.ref(step.programs[0].inputs[0])
    gc.disable()
    try:
        del step
        loss.backward()
        assert memory() is None
    finally:
        gc.enable()


def test_memory_is_copied_only_for_results_to_be_differentiated() -> None:
    parts = Parts()
    step = mt.compile(lambda x: parts.model(x).sum())
    for i in range(6):
        loss = step(batch(i))
        *_, copies = loss.grad_fn._saved
        loss.backward()
        step(batch(i))
        assert not copies
    loss = step(batch(0))
    step(batch(1))
    assert loss.grad_fn._saved[-1]


def shared(comm: Any, wrap: Any) -> Any:
    """Uneven batches; losses and gradients."""
    data = np.random.default_rng(0)
    mt.manual_seed(1)
    model = DataParallel(nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)).double(), comm)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    step = wrap(lambda x, y: F.mse_loss(model(x), y))
    found = []
    for _ in range(8):
        x, y = data.standard_normal((9, 5)), data.standard_normal((9, 2))
        mine = slice(comm.rank * 3, 9 if comm.rank == comm.size - 1 else comm.rank * 3 + 2)
        optimizer.zero_grad()
        step(mt.from_numpy(x[mine].copy()), mt.from_numpy(y[mine].copy())).backward()
        found += [model.loss, model.samples, *[p.grad.tolist() for p in model.parameters()]]
        optimizer.step()
    return found


@pytest.mark.mpi
def test_data_parallel_gradients(comm: Any) -> None:
    with np.errstate(all="ignore"):
        assert shared(comm, mt.compile) == shared(comm, lambda step: step)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "mlp")) for name in PROGRAMS]
)
def test_native_code(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second program reads is stored by the first, also for results of earlier calls."""
    needs_compiler()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gradients = []
    for wrap in (lambda f: f, lambda f: mt.compile(f, executor="native")):
        mt.manual_seed(1)
        mt.random.begin_batch(0)
        make, _, _, loss_of = PROGRAMS[name]
        model = make().double()
        mt.optim.SGD(model.parameters(), lr=0.1)
        step = wrap(lambda x, y, model=model, loss_of=loss_of: loss_of(model(x), y))
        found = []
        for i in range(5):
            losses = []
            for k in range(2):
                x, y = (t.double() if t.is_floating_point() else t for t in given(name, 2 * i + k))
                losses.append(step(x.detach().requires_grad_(x.is_floating_point()), y))
            found += [loss.detach() for loss in losses]
            for loss in losses:
                loss.backward()
            found += [p.grad.clone() for p in model.parameters()]
        gradients.append(found)
    (capture,) = step.captures
    second = capture.outside.compiled.captures
    assert second
    assert all("static int u0(" in one.text.shown() for one in second)
    # A bias before batch norm has a gradient of pure rounding: beside the others it is 0.
    largest = max(float(eager.abs().max()) for eager in gradients[0])
    for eager, compiled in zip(*gradients, strict=True):
        np.testing.assert_allclose(compiled.numpy(), eager.numpy(), 1e-9, 1e-10 * largest)
