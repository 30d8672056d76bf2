"""Threads that capture, replay and compute eagerly at the same time."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from steps import Setting, batch

import microtrain as mt
from microtrain.backend import MODES, NUMPY, XP
from microtrain.compile.compiled import MOST


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
    alone = work()  # numba compiles here
    assert at_the_same_time(work, work) == [alone] * 2
    (expected,) = training(lambda step: step, 20)()
    assert alone[0] == (expected if executor == "numpy" else pytest.approx(expected, rel=1e-5))
    assert MODES.recorder is None
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


@pytest.mark.parametrize("name", ONE_STEP)
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
