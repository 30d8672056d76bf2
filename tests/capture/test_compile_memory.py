"""Replays make no arrays and no cycles, and a captured step that is dropped leaves nothing."""

from __future__ import annotations

import contextlib
import gc
import itertools
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import allocations
import numpy as np
import pytest
from courses import COURSES, Run
from pace import daily

import microtrain as mt
from microtrain import backend
from microtrain.distributed.single import SingleCommunicator

LARGE = 512  # bytes
EQUAL = (0, 1, 2, 4, 5)  # steps with as many rows
CASES = pytest.mark.parametrize(
    ("name", "executor"),
    daily(
        itertools.product(COURSES, ["numpy", "native"]),
        *(("linreg", "numpy"), ("transformer", "numpy"), ("recurrent", "numpy")),
        ("linreg", "native"),
    ),
    indirect=["executor"],
)


def in_arrays() -> int:
    """Bytes of the arrays that `tracemalloc` has seen being made."""
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    found = tracemalloc.take_snapshot().filter_traces([domain])
    return sum(trace.size for trace in found.traces)


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """`tracemalloc` on, the collector of cycles off."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def replaying(name: str, executor: str) -> tuple[Run, Any]:
    """A run whose next step is a replay, and its batches."""
    run = Run(name, lambda step: mt.compile(step, executor=executor), SingleCommunicator())
    for i in EQUAL:
        run.step(i)
    return run, run.batches(EQUAL[-1])


@CASES
def test_a_replay_makes_no_arrays(
    name: str, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # NumPy draws random words into memory of its own, whatever one does.
    words = np.zeros(10_000, np.uint32)
    monkeypatch.setattr(
        backend, "forward_words", lambda shape, _: words[: np.prod(shape)].reshape(shape)
    )
    run, batches = replaying(name, executor)
    with allocations.noted() as sizes:
        np.empty(LARGE, np.uint8)
        for _ in range(3):
            run.call(batches)
    assert [size for size in sizes if size >= LARGE] == [LARGE]


@pytest.mark.daily("recurrent", "linreg-numpy")
@CASES
def test_a_replay_keeps_no_arrays_and_makes_no_cycles(name: str, executor: str) -> None:
    run, batches = replaying(name, executor)
    with traced():
        before = in_arrays()
        for _ in range(100):
            run.call(batches)
        assert in_arrays() - before < LARGE
        assert gc.collect() == 0


@pytest.mark.daily("linreg")
@CASES
def test_a_dropped_step_gives_its_memory_back(name: str, executor: str) -> None:
    run = Run(name, lambda step: step, SingleCommunicator())
    eager = dict(run.steps)

    def capture() -> Any:
        for key in eager:
            run.steps[key] = mt.compile(eager[key], executor=executor)
        for i in EQUAL:
            run.step(i)
        return [weakref.ref(p) for step in run.steps.values() for p in step.programs]

    for i in EQUAL:  # the optimizer makes its state, which stays
        run.step(i)
    capture()  # as does what is compiled
    run.steps.update(eager)
    with traced():
        before = in_arrays()
        programs = capture()
        assert programs and in_arrays() > before
        run.steps.update(eager)
        assert [program() for program in programs] == [None] * len(programs)
        assert in_arrays() - before < LARGE
