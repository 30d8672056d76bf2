"""A Ctrl-C at any moment leaves the process usable: modes, handlers and threads are as before."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.autograd import locks
from microtrain.backend import MODES, NUMPY, XP
from microtrain.capture import recorder, switch
from microtrain.distributed import communicator
from microtrain.train import evaluation
from microtrain.train.callbacks.checkpoints import Saver
from microtrain.train.run import Requests


def interrupted(function: Callable[[], Any], codes: set[CodeType]) -> Iterator[KeyboardInterrupt]:
    """Call it until it ends, with a KeyboardInterrupt at another line of `codes` each time."""
    for number in range(1000):
        left = [number]

        def local(frame: FrameType, event: str, _: Any, left: list[int] = left) -> Any:
            if event == "line":
                left[0] -= 1
                if left[0] == -1:
                    raise KeyboardInterrupt
            return local

        def trace(frame: FrameType, *_: Any, local: Any = local) -> Any:
            return local if frame.f_code in codes else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            function()
            return
        except KeyboardInterrupt as error:
            sys.settrace(before)
            yield error
        finally:
            sys.settrace(before)


def found_by_another_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()), daemon=True)
    thread.start()
    thread.join(30)
    return found[0] if found else "nothing: it waits for a lock"


def code_of(*functions: Any) -> set[CodeType]:
    return {getattr(function, "__wrapped__", function).__code__ for function in functions}


def modes() -> dict[str, Any]:
    return {**vars(MODES)}


def test_a_recording_that_is_interrupted_at_any_line() -> None:
    """Else every operation of this thread, eager ones too, would be one of a recording."""
    w = mt.ones(3, requires_grad=True)

    def step(x: Any) -> Any:
        loss = (x * w).sum()
        loss.backward()
        return loss

    x = mt.ones(3)
    (x * w).sum().backward()
    before, gradient = modes(), w.grad
    codes = code_of(switch.recording, switch.ended, recorder.Recorder.backward)
    codes |= code_of(recorder.paused.__enter__, recorder.paused.__exit__, switch._locked)
    kept = []  # as a notebook keeps the last traceback, and all that its frames hold
    for error in interrupted(lambda: mt.compile(step)(x), codes):
        kept.append(error)
        assert modes() == before
        assert XP[np.ndarray] is NUMPY
        assert w.grad is gradient
        assert mt.compile(lambda x: x * 2)(x).tolist() == (x * 2).tolist() == [2.0] * 3
        assert found_by_another_thread(lambda: mt.compile(lambda x: x * 2)(x).tolist()) == [2.0] * 3
    assert len(kept) > 20
    del error
    kept.clear()  # what is closed now must not switch anything on
    assert modes() == before
    assert XP[np.ndarray] is NUMPY


@pytest.mark.parametrize("calls", [0, 6], ids=["recorded", "replayed"])
@pytest.mark.parametrize("owned", [False, True])
def test_a_step_that_is_interrupted_ends_its_turn(calls: int, owned: bool) -> None:
    """Else another thread that adds to the same gradients waits for ever."""
    w, x = mt.ones(3, requires_grad=True), mt.ones(3)
    optimizer = mt.optim.SGD([w], lr=0.0) if owned else None

    def step(x: Any) -> Any:
        loss = (x * w).sum()
        loss.backward()
        return loss

    def again() -> Any:
        step(x)  # eager
        return mt.compile(step)(x).item()

    compiled = mt.compile(step)
    codes = code_of(
        locks.acquire, locks.release_after_error, locks.release, type(compiled)._in_turn
    )
    for _ in range(calls):
        compiled(x)
    if calls:
        codes |= code_of(compiled.__call__)
    count = 0
    for _ in interrupted(lambda: compiled(x) if calls else mt.compile(step)(x), codes):
        count += 1
        assert found_by_another_thread(again) == 3.0
    assert count > (5 if calls else 10)
    assert optimizer is None or optimizer.calls == 0


@pytest.mark.slow
def test_a_second_program_whose_recording_is_interrupted() -> None:
    w, x = mt.ones(3, requires_grad=True), mt.ones(3)
    before = modes()
    codes = code_of(switch.recording, switch.ended, mt.compile.__globals__["Compiled"]._record)

    def differentiate() -> Any:
        step = mt.compile(lambda x: (x * w).sum())
        return [mt.autograd.grad(step(x), [w])[0].tolist() for _ in range(3)]

    for _ in interrupted(differentiate, codes):
        assert modes() == before
        assert XP[np.ndarray] is NUMPY
    assert differentiate() == [[1.0] * 3] * 3


class Steps(mt.autograd.Function):
    """Its backward is recorded or not, its forward never."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    @mt.autograd.function.once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


def differentiate() -> None:
    x = mt.ones(2, requires_grad=True)
    y = Steps.apply(x).sum()
    y.grad_fn(mt.ones(()))
    mt.autograd.grad(y, x, create_graph=True)


NET = mt.nn.Linear(1, 1)


def alone() -> None:
    with communicator.alone("it is tried"):
        assert communicator.FORBIDDEN


def block(manager: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        with manager():
            pass

    return run


BLOCKS: dict[str, tuple[Callable[[], Any], set[CodeType], Callable[[], Any]]] = {
    "default dtype": (
        block(lambda: mt.backend.default_dtype("float64")),
        code_of(mt.backend.default_dtype), modes,
    ),
    "backward": (differentiate, code_of(mt.autograd.graph.Node._gradients), modes),
    "evaluation": (
        block(lambda: evaluation.evaluating(NET)), code_of(evaluation.evaluating),
        lambda: (NET.training, modes()),
    ),
    "draws shared by ranks": (
        block(mt.random.shared), code_of(mt.random.shared), lambda: mt.random.STREAM.shared
    ),
    "rows of a step": (
        block(lambda: mt.random.in_step(3, 2)), code_of(mt.random.in_step),
        lambda: (mt.random.STREAM.rows, mt.random.STREAM.ranks),
    ),
    "what no other rank does": (
        alone, code_of(communicator.alone), lambda: dict(communicator.FORBIDDEN)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_a_mode_is_set_where_it_is_given_back(name: str) -> None:
    """Set, then try: what comes between the two leaves it set for ever.

    The line that gives back is not interrupted: where it makes no call, no signal comes there.
    """
    run, codes, state = BLOCKS[name]
    run()
    before = state()
    found = [*interrupted_before_the_end(run, codes, before, state)]
    assert found
    assert all(now == before for now in found)


def interrupted_before_the_end(
    run: Callable[[], Any], codes: set[CodeType], before: Any, state: Callable[[], Any]
) -> Iterator[Any]:
    """The state after an interrupt at each line up to, and with, the first that has a mode set."""
    lines = []

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            lines.append(state() != before)
        return local

    sys.settrace(lambda frame, *_: local if frame.f_code in codes else None)
    try:
        run()
    finally:
        sys.settrace(None)
    first = lines.index(True) if True in lines else len(lines) - 1
    for _, _ in zip(range(first + 1), interrupted(run, codes), strict=False):
        yield state()


def test_a_run_that_is_interrupted_where_recording_is_switched(tmp_path: Path) -> None:
    """Else nothing has a gradient any more: the end of a block is a call, which Ctrl-C may stop."""

    def run() -> None:
        data, rates = (np.ones((6, 2), np.float32), np.ones((6, 1), np.float32)), {"lr": 0.01}
        trainer = mt.train.Trainer(
            mt.nn.Linear(2, 1), data, loss="mse", optimizer={"type": "sgd", **rates},
            batch_size=3, duration="1 epochs", run_dir=str(tmp_path / "runs"),
        )  # fmt: skip
        trainer.train()

    codes, number = code_of(mt.no_grad.__enter__, mt.no_grad.__exit__), 0
    for number, _ in enumerate(interrupted(run, codes)):
        assert mt.is_grad_enabled()
        if number == 20:
            break
    assert number == 20


@pytest.fixture
def handlers() -> Iterator[Callable[[], list[Any]]]:
    """What signals lead to."""
    numbers = [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT]
    before = [signal.getsignal(number) for number in numbers]
    yield lambda: [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def asked(model: Any, place: Path) -> Any:
    """What `Requests` looks at of a run."""
    return SimpleNamespace(
        model=model, directory=place, path=place, state=SimpleNamespace(seconds=0.0),
        plan=SimpleNamespace(ends={}, intervals={}),
    )  # fmt: skip


def test_signals_go_where_they_went_before_the_run(handlers: Any, tmp_path: Path) -> None:
    """Else the next Ctrl-C is swallowed by a run that is no more."""
    before = handlers()

    class Model:
        notes = (0.0, 0.0, 0.0)

    def run() -> None:
        with Requests(asked(Model(), tmp_path)):
            pass

    kind = Requests
    for error in interrupted(run, code_of(kind.__enter__, kind._give_back)):
        assert handlers() == before
        assert type(error) is KeyboardInterrupt
        assert not [t for t in threading.enumerate() if t.name == "stop" and not t.daemon]


def test_a_thread_that_cannot_begin_is_not_waited_for(
    handlers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not: cannot join thread before it is started."""
    before, start = handlers(), threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name in ("stop", "saver"):
            raise KeyboardInterrupt
        start(self)

    contents = {"model": {}, "optimizer": {}, "state": {}, "config_text": "", "step": 0}
    keep = SimpleNamespace(every="1 step", keep_last=1, keep_best=1)
    run: Any = SimpleNamespace(
        directory=SimpleNamespace(checkpoints=tmp_path, sync=int, note_checkpoint=int),
        config=SimpleNamespace(checkpoint=keep), steps_per_epoch=1, comm=SimpleNamespace(size=1),
        state=SimpleNamespace(monitor=("loss", "min")), output=SimpleNamespace(warn=print),
    )  # fmt: skip
    saver = Saver(run)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(KeyboardInterrupt):
        Requests(asked(mt.nn.Linear(1, 1), tmp_path)).__enter__()
    assert handlers() == before
    with pytest.raises(KeyboardInterrupt):
        saver.submit(contents, best=False)
    saver.wait()
    monkeypatch.undo()
    saver.submit(contents, best=False)
    saver.wait()
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-000000"]
