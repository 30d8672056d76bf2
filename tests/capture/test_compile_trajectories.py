"""Whole training runs, eager and captured, on any number of ranks: the same bits at every step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from courses import COURSES, trajectory
from steps import shared

import microtrain as mt


@pytest.fixture(autouse=True, scope="module")
def threads_take_turns_often() -> Iterator[None]:
    """What ranks that are threads share is met at every point of its life."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.daily("seed")
@pytest.mark.filterwarnings("ignore:DataParallel. .* is a batch norm")
@pytest.mark.parametrize(
    "steps", [40, pytest.param(500, marks=pytest.mark.slow)], ids="{} steps".format
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n == "transformer")) for n in COURSES],
)
def test_a_captured_run_has_the_bits_of_the_eager_one(name: str, steps: int, comm: Any) -> None:
    with np.errstate(all="ignore"):  # a mean over no rows
        expected, _ = trajectory(name, lambda step: step, comm, steps)
        found, run = trajectory(name, mt.compile, comm, steps)
    for i, (mine, eager) in enumerate(zip(found, expected, strict=True)):
        assert mine == eager, f"step {i}"
    for key, step in run.steps.items():
        # Twice for each capture; the first update of an optimizer with state is another one.
        assert run.calls[key] <= 2 * len(step.programs) + 1, key


@pytest.mark.parametrize("name", ["linreg", "accumulation inside"])
def test_ranks_capture_at_different_steps(name: str, comm: Any) -> None:
    """A tail batch changes the rows of some ranks only; nobody waits for a rank that captures."""
    captures: list[int] = []  # of each step, on this rank

    def wrap(step: Any) -> Any:
        compiled = mt.compile(step)

        def count(batches: Any) -> Any:
            before = len(compiled.programs)
            result = compiled(batches)
            captures.append(len(compiled.programs) - before)
            return result

        return count

    with np.errstate(all="ignore"):
        expected, _ = trajectory(name, lambda step: step, comm, 30)
        found, _ = trajectory(name, wrap, comm, 30)
    assert found == expected
    assert len({tuple(rank) for rank in comm.all_gather_object(captures)}) == comm.size


def test_steps_fed_by_a_loader(comm: Any) -> None:
    losses, weights = shared(comm, lambda step: step)
    others, found = shared(comm, mt.compile)
    assert others == losses
    for a, b in zip(found, weights, strict=True):
        np.testing.assert_array_equal(a, b)
