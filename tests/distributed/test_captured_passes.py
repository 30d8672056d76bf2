"""What a replayed pass leaves behind is what an eager one does, also where it is noted at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler

import microtrain as mt
from microtrain import nn
from microtrain.distributed import Communicator
from microtrain.distributed.data_parallel import DataParallel

F = nn.functional
AT_ONCE = ": gradients are shared"  # behind what is said of the beginning of the pass


class Net(nn.Module):
    """Two heads; which are used may differ by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Any, both: bool = True) -> Any:
        hidden = self.body(x).relu()
        return self.first(hidden) + self.second(hidden) if both else self.first(hidden)


class Training:
    """A model on some ranks, and the steps to be captured."""

    def __init__(self, comm: Communicator) -> None:
        mt.manual_seed(3)
        self.comm = comm
        self.model = DataParallel(Net(), comm, overlap="off")
        self.optimizer = mt.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def pass_over(self, x: Any, y: Any, both: bool = True) -> Any:
        loss = F.mse_loss(self.model(x, both), y)
        loss.backward()
        return loss

    def cleared_first(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.pass_over(x, y)
        self.optimizer.step()
        return loss

    def cleared_last(self, x: Any, y: Any) -> Any:
        loss = self.pass_over(x, y)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def never_cleared(self, x: Any, y: Any) -> Any:
        loss = self.pass_over(x, y)
        self.optimizer.step()
        return loss

    def two_passes(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        self.pass_over(x, y)
        loss = self.pass_over(x * 2, y)
        self.optimizer.step()
        return loss

    def cleared_between(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        self.pass_over(x, y)
        self.optimizer.zero_grad()
        loss = self.pass_over(x * 2, y)
        self.optimizer.step()
        return loss

    def micro_batches(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        with self.model.no_sync():
            self.pass_over(x, y)
        loss = self.pass_over(x * 2, y)
        self.optimizer.step()
        return loss

    def two_forwards(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y) + F.mse_loss(self.model(x + 1), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def counted(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        self.model.count(2)
        loss.backward()
        self.optimizer.step()
        return loss

    def head_of_some(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.pass_over(x, y, both=self.comm.rank == 0)
        self.optimizer.step()
        return loss

    def clipped(self, x: Any, y: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.pass_over(x, y)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return loss

    def state(self) -> list[Any]:
        model = self.model
        arrays = [a for p in model.parameters() for a in (p, p.grad) if a is not None]
        passes = model.passes
        return [
            *(a.detach().numpy().copy() for a in arrays),
            *([p._version.n for p in model.parameters()], model.waits),
            *(model.loss, model.samples, model.weight, list(model.noted)),
            *(passes.steps, passes.pending, passes.rows, passes.loss, passes.forwards),
        ]


def batch(comm: Communicator, i: int, rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng([i, comm.rank])
    return tuple(mt.from_numpy(rng.standard_normal((rows, n)).astype(np.float32)) for n in (3, 1))


def trained(
    comm: Communicator, name: str, wrap: Callable[[Any], Any], between: Callable[..., None]
) -> tuple[list[Any], Any]:
    """What 10 steps leave behind, each, and the step."""
    training = Training(comm)
    step = wrap(getattr(training, name))
    found = []
    for i in range(10):
        between(training, i)
        training.model.notes = (float(comm.rank), i / 8, 0.0) if i % 3 else (0.0, 0.0, 0.0)
        loss = step(*batch(comm, i, 6 if i < 7 else 4))
        found.append([loss.item(), *training.state()])
    return found, step


def nothing(training: Training, i: int) -> None:
    """Between two steps nothing happens."""


def waiting_pass(training: Training, i: int) -> None:
    """A pass that waits for a step which the next zero_grad() puts an end to."""
    if i == 5:
        with training.model.no_sync():
            training.pass_over(*batch(training.comm, 100, 5))


def forgotten_forward(training: Training, i: int) -> None:
    """A validation with grad enabled, whose rows the next pass counts."""
    if i == 5:
        training.model(batch(training.comm, 100, 5)[0])


def forward_before_each(training: Training, i: int) -> None:
    """A forward call outside the step, from some step on before every one."""
    if i > 4:
        forgotten_forward(training, 5)


STEPS = {
    "cleared_first": True, "cleared_last": False, "never_cleared": False, "two_passes": False,
    "cleared_between": False, "micro_batches": False, "two_forwards": False, "counted": False,
    "head_of_some": True, "clipped": True,
}  # fmt: skip


CASES = [(name, nothing) for name in STEPS]
CASES += [
    ("cleared_first", each) for each in (waiting_pass, forgotten_forward, forward_before_each)
]


@pytest.mark.daily(
    *("never_cleared-nothing", "two_passes-nothing", "world=2-two_forwards", "waiting_pass"),
    "micro_batches",
)
@pytest.mark.parametrize("name, between", CASES)
def test_replays_leave_what_eager_steps_leave(
    comm: Communicator, name: str, between: Callable[..., None]
) -> None:
    eager, _ = trained(comm, name, lambda step: step, between)
    replayed, step = trained(comm, name, mt.compile, between)
    np.testing.assert_equal(replayed, eager)
    if between is nothing:
        assert (AT_ONCE in step.source()) == STEPS[name]


@pytest.mark.slow
def test_native_code_notes_at_once(comm: Communicator, native_code: None) -> None:
    needs_compiler()
    eager, _ = trained(comm, "cleared_first", lambda step: step, nothing)
    replayed, step = trained(comm, "cleared_first", partial(mt.compile, executor="native"), nothing)
    assert AT_ONCE in step.source()
    small = getattr(comm, "_shared", None) is not None
    assert (f"{AT_ONCE}, by native code" in step.source()) == small
    for mine, theirs in zip(replayed, eager, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            if isinstance(b, np.ndarray | float):  # other sums than NumPy's
                np.testing.assert_allclose(a, b, 1e-5, 1e-6)
            else:
                assert a == b


@pytest.mark.daily("numpy")
def test_a_replay_that_fails_leaves_the_loss_of_the_step_before(
    comm: Communicator, executor: str
) -> None:
    """A callback that raises; and what was asked for before does not change what it sees."""
    if comm.size == 1:
        return  # nothing is reduced, and nobody called back
    training = Training(comm)
    step = mt.compile(training.cleared_first, executor=executor)
    losses: list[float | None] = []
    for i in range(5):
        step(*batch(comm, i, 4))
        losses.append(training.model.loss)
    step(*batch(comm, 5, 4))
    seen: list[float | None] = []

    def look(*_: Any) -> None:
        seen.append(training.model.loss)
        if len(seen) == 3:
            raise OSError("the disk is full")

    training.model.on_reduced = look
    for i in range(2):
        step(*batch(comm, i, 4))
    with pytest.raises(OSError, match="the disk is full"):
        step(*batch(comm, 3, 4))
    assert training.model.loss == seen[2]
    assert len({*losses, *seen}) == 8


def test_ranks_without_rows_meet_those_that_note_at_once(comm: Communicator) -> None:
    def run(wrap: Callable[[Any], Any]) -> list[Any]:
        training = Training(comm)
        step = wrap(training.cleared_first)
        found = []
        for i in range(8):
            rows = 0 if comm.rank and comm.rank == comm.size - 1 and i % 2 else 3
            step(*batch(comm, i, rows))
            found.append(training.state())
        return found

    np.testing.assert_equal(run(mt.compile), run(lambda step: step))
