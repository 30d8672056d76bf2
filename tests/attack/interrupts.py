"""KeyboardInterrupt at random places in microtrain, then the same work again in the same process.

Whatever was interrupted, modes, handlers and threads are as they were, and the second time gives
the bits that it gives in a process that nobody has interrupted.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from steps import bits

import microtrain as mt
from attack.campaign import Defect, Kind
from attack.captures import of_a_model
from microtrain.backend import MODES

PACKAGE = os.path.dirname(mt.__file__)
TIMES = 6  # of one seed
# Behind these a signal is handled, in what they are in: the body of a `try` or `with`, not its end.
HANDLING = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME")
HANDLED = {dis.opmap[name] for name in HANDLING if name in dis.opmap}


@functools.cache
def opcodes(code: Any) -> bytes:
    return bytes(code.co_code)


class Interrupt:
    """Counts where a signal may be handled in microtrain; KeyboardInterrupt at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0
        self.before: list[int] = []  # of each frame of microtrain what it did last

    def trace(self, frame: Any, event: str, _: Any) -> Any:
        if event == "call":
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            self.before.append(0)
        elif event == "return":
            self.before.pop()
        elif event == "opcode":
            before, self.before[-1] = self.before[-1], opcodes(frame.f_code)[frame.f_lasti]
            self.count += before in HANDLED
            if before in HANDLED and self.count == self.at:
                sys.settrace(None)
                print("at", frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_lineno)
                raise KeyboardInterrupt
        return self.trace

    def __enter__(self) -> Interrupt:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def trainer(seed: int, folder: Path) -> Any:
    numbers = np.random.default_rng(seed)
    x, y = (numbers.standard_normal((20, n)).astype(np.float32) for n in (3, 1))
    mt.manual_seed(0)
    net = mt.nn.Sequential(mt.nn.Linear(3, 4), mt.nn.Tanh(), mt.nn.Dropout(0.1), mt.nn.Linear(4, 1))
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        mt.train.Trainer(
            net, (x, y), loss="mse", optimizer={"type": "sgd", "lr": 0.01}, batch_size=8,
            duration="4 epochs", run_dir=str(folder / "runs"),
        ).train()  # fmt: skip
    return {name: bits(value) for name, value in net.state_dict().items()}


def surroundings() -> dict[str, Any]:
    modes = ("grad", "inference", "default_dtype", "capture", "anomaly")
    return {
        **{name: MODES.__dict__.get(name) for name in modes},
        "compile": MODES.__dict__.get("compile"),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "threads": [t for t in threading.enumerate() if not t.daemon],
    }


def trial(seed: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    draw = random.Random(seed)
    works: dict[str, Callable[[], Any]] = {
        "eager": lambda: of_a_model(seed, lambda step: step),
        "captured": lambda: of_a_model(seed, lambda step: mt.compile(step, executor="numpy")),
        "trainer": lambda: trainer(seed, folder),
    }
    name = draw.choice(("eager", "captured", "captured", "trainer"))
    work = works[name]
    with np.errstate(all="ignore"):
        expected = work()
        with Interrupt() as counting:
            work()
        before = surroundings()
        for _ in range(TIMES):
            print(name)
            with contextlib.suppress(KeyboardInterrupt), Interrupt(draw.randint(1, counting.count)):
                work()
            after = surroundings()
            if after != before:
                changed = {key: after[key] for key in before if after[key] != before[key]}
                raise Defect("lost", f"left changed: {changed}")
            if work() != expected:
                raise Defect("different", "the second time has other bits")


KIND = Kind(trial, limit=120)
