"""The recorder over another library than NumPy: the stand-in for CuPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain.backend import ARRAYS, LIBRARIES, XP
from microtrain.capture.closure import Closure
from microtrain.capture.program import Line, Program
from microtrain.capture.python_calls import skip
from microtrain.capture.recorder import Recorder
from microtrain.capture.state import Leaves
from microtrain.capture.step import _state
from microtrain.capture.switch import recording
from microtrain.errors import CaptureError
from microtrain.random import STREAM
from microtrain.tensor import wrap

nn, F = mt.nn, mt.nn.functional
pytestmark = pytest.mark.usefixtures("fake_gpu")


class Training:
    """A model on a device, its optimizer and a step."""

    def __init__(self, device: str, make: Callable[[Any], Any]) -> None:
        mt.manual_seed(0)
        layers = nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer = make(self.model.parameters())
        self.device = device

    def step(self, x: Any, index: Any) -> Any:
        self.optimizer.zero_grad()
        out = self.model(x)
        loss = F.cross_entropy(out, index) + (out[1:, ::2] ** 2).mean() + out[index].sum() * 0.1
        loss.backward()
        self.optimizer.step()
        return loss

    def batch(self, i: int) -> list[Any]:
        """Arguments of step `i`, whose random draws begin now."""
        STREAM.step, STREAM.draw = i, 0
        rng = np.random.default_rng(i)
        x, index = rng.standard_normal((5, 6)).astype(np.float32), rng.integers(0, 3, 5)
        return [mt.from_numpy(a).to(self.device) for a in (x, index)]

    def state(self) -> list[Any]:
        return [p.detach().to("cpu").numpy().tobytes() for p in self.model.parameters()]

    def record(self, i: int) -> tuple[Program, Any]:
        """The program of a step, and the memory of the loss."""
        batch = self.batch(i)
        xp = LIBRARIES[type(batch[0]._array)]
        recorder = Recorder(xp, _state(xp), Leaves(Closure(self.step)), [])
        program = recorder.program
        program.inputs += [tensor._array.copy() for tensor in batch]
        with recording(recorder):
            loss = self.step(*(wrap(recorder.traced(a, "input")) for a in program.inputs))
            program.outputs.append(recorder.host(loss._array))
        assert XP[xp.array_type] is xp
        recorder.later("1 random draws", functools.partial(skip, 1), ())
        return program, program.outputs[0]


def replay(program: Program, xp: Any, inputs: list[Any]) -> None:
    """The simplest executor there can be."""
    for memory, tensor in zip(program.inputs, inputs, strict=True):
        memory[...] = tensor._array
    for line in program.lines:
        if not isinstance(line, Line):
            line.function()
        elif line.name in ("copyto", "setitem", "scatter_add"):
            getattr(xp, line.name)(*line.args, **line.attrs)
        else:
            args = line.args
            if line.name == "random_words":
                result = xp.random_words(*args)
            else:
                function = getattr(xp, line.name, None) or getattr(xp.module, line.name)
                result = function(*args, **line.attrs)
            outs = line.out if isinstance(line.out, tuple) else (line.out,)
            results = result if isinstance(result, tuple) else (result,)
            for out, value in zip(outs, results, strict=True):
                out[...] = value


MAKE: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: mt.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: mt.optim.Adam(p, lr=0.01),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_step_is_recorded_on_another_library(name: str) -> None:
    """The same program as on NumPy, which verifies, and whose replays do what eager steps do."""
    captured, eager, numpy = (Training(d, MAKE[name]) for d in ("cuda", "cuda", "cpu"))
    for training in (captured, eager, numpy):
        training.step(*training.batch(0))
    first, _ = captured.record(1)
    program, loss = captured.record(2)
    assert first.difference(program) is None
    assert {type(a) for line in program.lines if isinstance(line, Line) for a in [line.out]} == {
        type(loss)
    }
    host, _ = numpy.record(1)
    # NumPy has calls of their own for common powers.
    own = {"square": "power", "sqrt": "power"}
    mine, theirs = ([own.get(line.name, line.name) for line in each.lines if type(line) is Line]
                    for each in (program, host))  # fmt: skip
    assert mine == theirs
    for i in (1, 2):
        eager.step(*eager.batch(i))
    assert captured.state() == eager.state()
    for i in (3, 4, 5):
        replay(program, LIBRARIES[type(loss)], captured.batch(i))
        expected = eager.step(*eager.batch(i)).item()
        assert float(loss.get()) == expected
        assert captured.state() == eager.state()


def test_what_looks_at_values_is_refused_on_another_library() -> None:
    training = Training("cuda", MAKE["SGD"])
    steps: list[Callable[..., Any]] = [
        lambda x, index: x.sum().item(),
        lambda x, index: x.to("cpu"),
        lambda x, index: x[x > 0],
    ]
    for step in steps:
        training.step = step  # type: ignore[method-assign]
        with pytest.raises(CaptureError):
            training.record(0)
    assert all(XP[kind] is LIBRARIES[kind] for kind in ARRAYS & LIBRARIES.keys())
