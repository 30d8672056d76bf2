"""Threads that capture, replay and compute eagerly at the same time."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pace import daily
from steps import Setting, batch

import microtrain as mt
from microtrain import nn
from microtrain.backend import MODES, NUMPY, XP
from microtrain.capture.step import MOST


def test_threads_have_captures_of_their_own() -> None:
    step = mt.compile(lambda x: x * 2 + 1)
    wrong: list[Any] = []

    def run(number: int) -> None:
        for i in range(50):
            x = batch(100 * number + i)
            if not mt.equal(step(x), x * 2 + 1):
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong


def test_another_thread_computes_eagerly_meanwhile() -> None:
    seen: list[Any] = []

    def step(x: Any) -> Any:
        thread = threading.Thread(target=lambda: seen.append((mt.ones(3) * 2).tolist()))
        thread.start()
        thread.join(10)
        return x * 2

    step = mt.compile(step)
    assert mt.equal(step(batch(0)), batch(0) * 2)
    assert seen == [[2.0, 2.0, 2.0]]


@pytest.fixture
def turns_taken_often() -> Iterator[None]:
    """Threads meet each other at every point of what they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_the_same_time(*functions: Callable[[], Any]) -> list[Any]:
    """What the functions return, each run by a thread of its own."""
    results: list[Any] = [None] * len(functions)
    start = threading.Barrier(len(functions))

    def run(number: int) -> None:
        start.wait()
        try:
            results[number] = functions[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return results


def training(wrap: Any, times: int, again: int = 1) -> Any:
    """A function that trains models from the start, `again` and again; their losses."""

    def train() -> Any:
        found = []
        for _ in range(again):
            setting = Setting(momentum=0.9)
            step = wrap(setting.step)
            found.append([step(batch(i)).item() for i in range(times)])
        return found

    return train


def test_threads_capture_and_replay_steps_of_their_own(
    executor: str, turns_taken_often: None
) -> None:
    work = training(lambda step: mt.compile(step, executor=executor), 20, 2)
    alone = work()  # it is compiled here
    assert at_the_same_time(work, work) == [alone] * 2
    (expected,) = training(lambda step: step, 20)()
    assert alone[0] == (expected if executor == "numpy" else pytest.approx(expected, rel=1e-5))
    assert not MODES.capture.on
    assert XP[np.ndarray] is NUMPY


def test_one_thread_captures_while_others_replay_and_compute(turns_taken_often: None) -> None:
    """Nothing of theirs is in what it writes down."""
    (expected,) = training(lambda step: step, 300)()
    lengths: list[int] = []

    def capturing() -> None:
        for _ in range(30):  # models come and go meanwhile, for what looks at all there are
            setting = Setting(momentum=0.9)
            step = mt.compile(setting.step)
            for i in range(4):
                step(batch(i))
            lengths.extend(len(program.lines) for program in step.programs)

    _, replayed, eager = at_the_same_time(
        capturing, training(mt.compile, 300), training(lambda step: step, 300)
    )
    assert replayed == eager == [expected]
    assert len(lengths) == 30
    assert len(set(lengths)) == 1
    assert XP[np.ndarray] is NUMPY


# One step that all threads call ---------------------------------------------------------------

ROWS = 4096  # so large that native code lets other threads run meanwhile
THREADS, CASES, TIMES, ROUNDS = 4, 4, 10, 3


def full(thread: int, rows: int = ROWS, dtype: str = "float32") -> Any:
    """Another value for each thread: a result says whose argument it was made of."""
    return mt.from_numpy(np.full((rows, 64), (thread + 1) / 4, dtype))


def strided(thread: int) -> Any:
    return full(thread, 64 * 64).reshape(64, -1).T


def unlike(thread: int, case: int) -> Any:
    """Arguments that fit another capture each, or that none may read in place."""
    x = [full(thread), strided(thread), full(thread, dtype="float64"), full(thread)][case]
    return (x.requires_grad_(case == 3),)


def plain(x: Any, *numbers: float) -> Any:
    return sum(numbers, (x * 1.5).tanh() * x)


class Net(mt.nn.Module):
    """State that is changed between calls: weights in place, flags, which weights are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = mt.nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        y = self.layer(x).tanh()
        return (y if self.training else y * 2).square().mean()

    def change(self, turn: int) -> None:
        with mt.no_grad():
            self.layer.weight.mul_(1.1)
        self.train(turn % 2 == 0)
        self.layer.bias.requires_grad_(turn % 3 == 0)


ONE_STEP: dict[str, tuple[Callable[[int, int], Any], Any, bool]] = {
    "no state": (lambda k, case: (full(k),), plain, False),
    "captures of several shapes": (lambda k, case: (full(k, ROWS + case),), plain, False),
    "captures of several kinds": (unlike, plain, False),
    "numbers": (lambda k, case: (full(k), float(case)), plain, False),
    "a model": (lambda k, case: (full(k),), Net, False),
    "gradients outside": (lambda k, case: (full(k, ROWS + case % 2).requires_grad_(),), Net, True),
}


@pytest.mark.daily("numpy-captures")
@pytest.mark.parametrize("name", daily(ONE_STEP, "captures of several kinds", "gradients outside"))
def test_every_thread_gets_the_result_of_its_own_arguments(
    name: str, executor: str, turns_taken_often: None
) -> None:
    """A guard that writes before it has decided redirects native code that another thread runs."""
    arguments, function, differentiated = ONE_STEP[name]
    net = function() if function is Net else None
    function = net or function
    step = mt.compile(function, executor=executor)

    def call(function: Any, thread: int, case: int) -> list[Any]:
        args = arguments(thread, case)
        with mt.set_grad_enabled(differentiated):
            result = function(*args)
        if differentiated:
            found = [p for p in net.parameters() if p.requires_grad]
            return [result.detach(), *mt.autograd.grad(result, [*args, *found])]
        return [result.detach()]

    expected: dict[tuple[int, int], list[Any]] = {}
    wrong: list[Any] = []
    begin, end = threading.Barrier(THREADS + 1), threading.Barrier(THREADS + 1)

    def work(thread: int) -> None:
        for _ in range(ROUNDS if net else 1):
            begin.wait(100)
            for i in range(TIMES * CASES):
                try:
                    found = call(step, thread, i % CASES)
                    same = zip(found, expected[thread, i % CASES], strict=True)
                    if not all(mt.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in same):
                        wrong.append((thread, i))
                except Exception as error:
                    wrong.append(error)
            end.wait(100)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for turn in range(ROUNDS if net else 1):
        if net is not None:
            net.change(turn)
        expected |= {(k, c): call(function, k, c) for k in range(THREADS) for c in range(CASES)}
        begin.wait(100)
        end.wait(100)
    for thread in threads:
        thread.join(100)
    assert not wrong


def test_a_result_is_differentiated_in_another_thread_than_it_was_made_in(
    executor: str, turns_taken_often: None
) -> None:
    """Its values must not be those of a call that the first thread makes meanwhile."""
    net = Net()
    step = mt.compile(net, executor=executor)
    arguments = [full(k).requires_grad_() for k in range(4)]
    (expected,) = zip(*[mt.autograd.grad(net(x), [x]) for x in arguments], strict=True)
    made: queue.Queue[Any] = queue.Queue(3)
    wrong: list[Any] = []

    def differentiate() -> None:
        while (taken := made.get(timeout=100)) is not None:
            number, result = taken
            (found,) = mt.autograd.grad(result, [arguments[number]])
            if not mt.allclose(found, expected[number], rtol=1e-4, atol=1e-9):
                wrong.append(number)

    thread = threading.Thread(target=differentiate)
    thread.start()
    for i in range(100):
        made.put((i % 4, step(arguments[i % 4])))
    made.put(None)
    thread.join(100)
    assert not wrong


def test_any_number_of_threads_may_call_one_step() -> None:
    """What a thread has captured does not count for another one."""
    step = mt.compile(lambda x: x * 2)
    alive = threading.Barrier(MOST + 8)  # captures of threads that have ended are let go

    def call() -> Any:
        try:
            return [mt.equal(step(batch(number)), batch(number) * 2) for number in range(3)]
        finally:
            alive.wait(100)

    assert at_the_same_time(*[call] * alive.parties) == [[True] * 3] * alive.parties


# One training step that all threads call ------------------------------------------------------


def whole(seed: int, *shape: int) -> Any:
    """Small whole numbers: the order in which they are added up does not matter."""
    return mt.from_numpy(np.random.default_rng(seed).integers(-2, 3, shape).astype("float64"))


def wrapped(function: Any, how: str) -> Any:
    return function if how == "eager" else mt.compile(function, executor=how)


def owned(params: Any) -> Any:
    return mt.optim.SGD(params, lr=1.0)


@pytest.mark.daily("numpy")
@pytest.mark.parametrize("owner", [None, owned], ids=["no optimizer", "optimizer"])
@pytest.mark.parametrize("shapes", [1, 3])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside eager passes"])
@pytest.mark.parametrize("warm", [0, 12])
def test_gradients_that_threads_make_at_once_all_count(
    owner: Any, shapes: int, beside: bool, warm: int, executor: str, turns_taken_often: None
) -> None:
    """Else one thread writes over what another has just added, or sees what it writes down."""
    p = mt.nn.Parameter(whole(9, 8, 4))
    optimizer = owner and owner([p])

    def step(x: Any) -> Any:
        loss = (x @ p).square().sum()
        loss.backward()
        return loss

    count, calls = 4, 40
    given = [whole(k, 8 + k % shapes, 8) for k in range(count)]
    losses, total = [], np.zeros((8, 4))
    for x in given:
        p.grad = None
        losses.append(step(x).item())
        total += p.grad.numpy() * calls
    ways = [wrapped(step, executor), step if beside else wrapped(step, executor)]
    for k in range(warm):
        ways[0](given[k % count])
    p.grad = None
    work = [
        lambda x=x, way=ways[k % 2]: {way(x).item() for _ in range(calls)}
        for k, x in enumerate(given)
    ]
    assert at_the_same_time(*work) == [{loss} for loss in losses]
    assert np.array_equal(p.grad.numpy(), total)
    assert optimizer is None or optimizer.calls == 0


@pytest.mark.parametrize("fused", [True, False], ids=["layer", "hand-written"])
def test_the_first_gradients_of_threads_are_not_written_over_each_other(
    fused: bool, turns_taken_often: None
) -> None:
    """A rule writes the first gradient of a parameter right into the memory of that."""
    layer = mt.nn.Linear(64, 64).double()
    with mt.no_grad():
        layer.weight.copy_(whole(0, 64, 64))
    optimizer = mt.optim.SGD(layer.parameters(), lr=1.0)
    given = [whole(k, 128, 64) for k in range(4)]
    total = sum(x.sum(0).numpy() for x in given) * np.ones((64, 1))
    call = layer if fused else lambda x: x @ layer.weight.T + layer.bias
    for _ in range(30):
        optimizer.zero_grad()
        at_the_same_time(*[lambda x=x: call(x).sum().backward() for x in given])
        assert np.array_equal(layer.weight.grad.numpy(), total)
        assert layer.bias.grad.tolist() == [4 * 128] * 64


def test_steps_of_an_optimizer_that_threads_take_follow_each_other(
    executor: str, turns_taken_often: None
) -> None:
    """None sees, clears or applies the gradients of another; and none is left out."""
    p, other = mt.nn.Parameter(whole(9, 8)), mt.nn.Parameter(whole(10, 8))
    optimizer = owned([p, other])

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = ((p + other) * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    given, calls = [whole(k, 8) for k in range(4)], 40
    expected = p.detach() - sum(given) * calls
    steps = [wrapped(step, executor), wrapped(step, "numpy")]  # of one set of parameters
    found = at_the_same_time(
        *[lambda x=x, f=steps[k % 2]: [f(x) for _ in range(calls)] for k, x in enumerate(given)]
    )
    assert all(type(one) is list for one in found), found
    assert mt.equal(p, expected)
    assert mt.equal(other - p, whole(10, 8) - whole(9, 8))
    assert optimizer.calls == 4 * calls


def test_an_update_by_hand_that_threads_make_at_once(
    executor: str, turns_taken_often: None
) -> None:
    w, b = (whole(k, 8).requires_grad_() for k in (9, 10))

    def step(x: Any) -> Any:
        loss = (w * x + b).sum()
        loss.backward()
        with mt.no_grad():
            w.sub_(w.grad)
            b.sub_(b.grad)
        w.grad = b.grad = None
        return loss

    given, calls = [whole(k, 8) for k in range(4)], 40
    expected = (w - sum(given) * calls).tolist(), (b - 4 * calls).tolist()
    compiled = wrapped(step, executor)
    found = at_the_same_time(*[lambda x=x: [compiled(x) for _ in range(calls)] for x in given])
    assert all(type(one) is list for one in found), found
    assert (w.tolist(), b.tolist()) == expected


@pytest.mark.daily("numpy", "native-not")
@pytest.mark.parametrize("differentiated", ["inside", "outside", "not"])
def test_running_statistics_count_the_batches_of_all_threads(
    differentiated: str, executor: str, turns_taken_often: None
) -> None:
    net = mt.nn.Sequential(mt.nn.Linear(4, 4), mt.nn.BatchNorm1d(4), mt.nn.Dropout(0.5))
    optimizer = owned(net.parameters())

    def step(x: Any) -> Any:
        loss = net(x).square().mean()
        if differentiated == "inside":
            loss.backward()
        return loss if differentiated == "outside" else loss.detach()

    compiled, calls = wrapped(step, executor), 40

    def work() -> Any:
        for k in range(calls):
            loss = compiled(batch(k)[:, :1] * mt.ones(4))
            if differentiated == "outside":
                loss.backward()
        return mt.isfinite(loss).item()

    assert at_the_same_time(*[work] * 4) == [True] * 4
    assert net[1].num_batches_tracked.item() == 4 * calls
    assert optimizer.calls == 0
    assert all(mt.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


def test_a_step_that_reads_what_inference_mode_made(executor: str) -> None:
    """It has no count of writes of its own, and so no lock."""
    with mt.inference_mode():
        scale = mt.ones(3) * 2
    p = mt.nn.Parameter(mt.ones(3))

    def step(x: Any) -> Any:
        with mt.no_grad():
            y = x * scale
        loss = (y * p).sum()
        loss.backward()
        return loss

    compiled = mt.compile(step, executor=executor, state=[scale])
    assert [compiled(mt.ones(3)).item() for _ in range(6)] == [6.0] * 6
    assert p.grad.tolist() == [12.0] * 3


def test_gradients_of_an_argument_that_threads_share(
    executor: str, turns_taken_often: None
) -> None:
    x = whole(0, 8).requires_grad_()
    p = mt.nn.Parameter(whole(9, 8))

    def step(x: Any) -> Any:
        loss = (x * p).sum()
        loss.backward()
        return loss

    compiled, calls = wrapped(step, executor), 40
    found = at_the_same_time(*[lambda: [compiled(x) for _ in range(calls)]] * 4)
    assert all(type(one) is list for one in found), found
    assert mt.equal(x.grad, p.detach() * 4 * calls)
    assert mt.equal(p.grad, x.detach() * 4 * calls)


def test_steps_over_the_same_leaves_in_another_order_do_not_wait_for_each_other(
    turns_taken_often: None,
) -> None:
    """Two that each hold what the other one needs would wait for ever."""
    nets = [mt.nn.Linear(4, 4) for _ in range(3)]
    optimizers = [owned(net.parameters()) for net in nets[:2]]

    def step(first: Any, second: Any) -> Any:
        def run(x: Any) -> Any:
            loss = second(nets[2](first(x))).sum()
            loss.backward()
            return loss

        return run

    x = mt.ones(2, 4)
    both = [step(nets[0], nets[1]), step(nets[1], nets[0])]
    work = [lambda f=f: len([f(x) for _ in range(60)]) for f in (*both, *map(mt.compile, both))]
    assert at_the_same_time(*work) == [60] * 4
    assert nets[2].bias.grad.shape == (4,)
    assert len(optimizers) == 2


def test_a_hook_may_wait_for_a_pass_of_another_thread() -> None:
    first, last = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = mt.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
    x = mt.ones(2, 3)

    def in_another_thread(g: Any) -> None:
        thread = threading.Thread(target=lambda: last(first(x)).sum().backward())
        thread.start()
        thread.join()

    for times in (1, 2):
        h = first(x)
        if times == 2:
            h.register_hook(in_another_thread)
        optimizer.zero_grad()
        last(h).sum().backward()
        found = [p.grad.clone() for p in (*first.parameters(), *last.parameters())]
        if times == 1:
            expected = [2 * g for g in found]
    assert all(map(mt.allclose, found, expected))


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_hooks_that_train_each_others_models_do_not_wait_for_each_other(captured: bool) -> None:
    models = [nn.Linear(3, 3) for _ in range(2)]
    optimizers = [mt.optim.SGD(model.parameters(), lr=0.1) for model in models]
    assert len(optimizers) == 2  # each has flat storage of its own
    x, rounds = mt.ones(2, 3), 40

    def step_of(model: nn.Module) -> Any:
        def train(x: Any) -> Any:
            loss = model(x).sum()
            loss.backward()
            return loss.detach()

        return mt.compile(train, executor="numpy") if captured else train

    steps = [step_of(model) for model in models]

    def work(own: int) -> None:
        def trains_the_other(g: Any) -> None:
            with mt.enable_grad():
                steps[1 - own](x)

        for _ in range(rounds):
            h = models[own](x)
            h.register_hook(trains_the_other)
            models[own](h).sum().backward()

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    # Integers add up exactly: of each round two biases of the own model, and one of the other.
    for model in models:
        h = model(x)
        (through,) = mt.autograd.grad(model(h).sum(), [model.bias])
        (alone,) = mt.autograd.grad(model(x).sum(), [model.bias])
        assert mt.allclose(model.bias.grad, rounds * (through + alone), rtol=1e-4)
