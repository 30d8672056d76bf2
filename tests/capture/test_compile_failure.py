"""Errors while a captured step is replayed: those of the eager step, and no leftovers."""

from __future__ import annotations

import contextlib
import gc
import inspect
import linecache
import traceback
from typing import Any

import numpy as np
import pytest
from compilers import needs_compiler
from steps import batch, bits

import microtrain as mt
from microtrain.backend import MODES
from microtrain.common.stack_frames import ENTRY, REPLAY
from microtrain.distributed import in_process
from microtrain.distributed.data_parallel import DataParallel

nn, F = mt.nn, mt.nn.functional
EXECUTORS = ["numpy", "native"]


@pytest.fixture(autouse=True)
def native(request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: Any) -> None:
    if "native" in str(request.node.name):
        needs_compiler()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


GOOD, BAD = mt.tensor([0, 1, 2, 0]), mt.tensor([0, 1, 9, 0])


class Setting:
    """Dropout, a check in the middle of the step, and state that is written before and after it."""

    def __init__(self, comm: Any = None) -> None:
        mt.manual_seed(0)
        mt.random.begin_batch(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.4))
        self.head = nn.Linear(4, 3)
        whole = nn.Sequential(self.model, self.head)
        self.whole = DataParallel(whole, comm) if comm else whole
        self.optimizer = mt.optim.SGD(self.whole.parameters(), lr=0.1, momentum=0.9)

    def step(self, x: Any, i: Any) -> Any:
        self.optimizer.zero_grad()
        loss = (self.whole(x) ** 2).mean()
        loss.backward()
        self.optimizer.step()
        more = F.dropout(self.whole(x), 0.5)
        return loss, F.cross_entropy(more, i)  # the line that is named

    def state(self) -> Any:
        draws = mt.random.place()
        grads = [p.grad for p in self.whole.parameters()]
        return bits([*self.whole.parameters(), *self.whole.buffers(), *grads]), draws


LINE = inspect.getsourcelines(Setting)[1] + inspect.getsource(Setting).split("\n").index(
    "        return loss, F.cross_entropy(more, i)  # the line that is named"
)


@pytest.mark.daily("numpy")
@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_state_is_that_of_the_eager_step(executor: str) -> None:
    """Also the counts of draws and steps: what follows is as if nothing had been captured."""
    found = []
    for compiled in (False, True):
        setting = Setting()
        step = mt.compile(setting.step, executor=executor) if compiled else setting.step
        for i in range(9):
            if i in (4, 5, 7):
                with pytest.raises(IndexError, match="Target 9 is out of bounds") as caught:
                    step(batch(i), BAD)
                if compiled:
                    (note,) = caught.value.__notes__
                    assert note.endswith(f"at {__file__}:{LINE}")
            else:
                step(batch(i), GOOD)
        state, draws = setting.state()
        found.append((draws, [np.frombuffer(b, d) for d, _, b in state]))
    (draws, eager), (others, compiled) = found
    assert draws == others
    for a, b in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(a, b, rtol=0 if executor == "numpy" else 1e-4, atol=1e-6)
        assert executor == "native" or a.tobytes() == b.tobytes()


ERRORS: dict[str, Any] = {
    "cholesky": (mt.cholesky, mt.eye(2), -mt.eye(2)),
    "inverse": (mt.inverse, mt.eye(2), mt.zeros(2, 2)),
    "overflow": (lambda x: x.exp() + 1, mt.zeros(2), mt.full((2,), 1e4)),
    "divide": (lambda x: 3 // x, mt.tensor([1, 2]), mt.tensor([0, 1])),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_of_numpy_are_those_of_the_eager_step(name: str) -> None:
    function, good, bad = ERRORS[name]
    step = mt.compile(lambda x: function(x))
    with np.errstate(over="raise"):
        for _ in range(4):
            step(good)
        with pytest.raises(RuntimeError) as eager:
            function(bad)
        with pytest.raises(RuntimeError) as replayed:
            step(bad)
        assert replayed.type is eager.type
        assert f"{__file__}:" in replayed.value.__notes__[0]
        assert mt.equal(step(good), function(good))
    assert not MODES.capture.on


@pytest.mark.parametrize("executor", ["numpy", pytest.param("native", marks=pytest.mark.slow)])
@pytest.mark.parametrize("outside", [False, True])
def test_a_failed_backward_pass_is_forgotten(executor: str, outside: bool) -> None:
    """Data parallelism would otherwise add it to the next one, or wait for its samples."""

    class Checked(mt.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, i: Any) -> Any:
            ctx.save_for_backward(i)
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (i,) = ctx.saved_tensors
            return F.one_hot(i, 3) * g, None

    def losses(comm: Any, wrap: Any) -> list[Any]:
        mt.manual_seed(0)
        model = DataParallel(nn.Linear(3, 3).double(), comm)
        optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

        def loss(x: Any, i: Any) -> Any:
            return (Checked.apply(model(x), i) ** 2).mean()

        def step(x: Any, i: Any) -> Any:  # without zero_grad(), which would forget it, too
            loss(x, i).backward()
            optimizer.step()

        loss, step = (wrap(loss), step) if outside else (loss, wrap(step))
        found = []
        for k in range(18):
            rows = slice(0, 4 if comm.rank else 3)
            x = batch(k + 20 * comm.rank).double()[rows]
            with contextlib.nullcontext() if k % 3 else model.no_sync():
                if k in (10, 12, 16):  # behind a pass that waits to be shared, or alone
                    with pytest.raises(RuntimeError, match="class numbers"):
                        step(x, BAD[rows])
                else:
                    step(x, GOOD[rows])
            found += [model.loss or 0, model.samples or 0]
        return found + [p.tolist() for p in model.parameters()]

    def program(comm: Any) -> None:
        eager = losses(comm, lambda step: step)
        found = losses(comm, lambda step: mt.compile(step, executor=executor))
        np.testing.assert_allclose(np.hstack([np.ravel(v) for v in found]),
                                   np.hstack([np.ravel(v) for v in eager]),
                                   rtol=0 if executor == "numpy" else 1e-9)  # fmt: skip

    in_process.run(2, program)


def test_tracebacks_show_the_instructions_as_long_as_they_are_there() -> None:
    step = mt.compile(lambda x, i: F.cross_entropy(x, i))
    for _ in range(3):
        step(mt.ones(4, 3), GOOD)
    with pytest.raises(IndexError) as caught:
        step(mt.ones(4, 3), BAD)
    shown = traceback.extract_tb(caught.value.__traceback__)
    frames = [frame for frame in shown if frame.filename.startswith((ENTRY, REPLAY))]
    assert [frame.name for frame in frames] == ["enter", "replay"]
    assert all(frame.line for frame in frames)
    del step, caught
    gc.collect()
    assert not any(frame.filename in linecache.cache for frame in frames)
