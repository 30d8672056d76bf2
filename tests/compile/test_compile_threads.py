"""Threads that capture, replay and compute eagerly at the same time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from steps import Setting, batch

import microtrain as mt
from microtrain.backend import MODES, NUMPY, XP


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
