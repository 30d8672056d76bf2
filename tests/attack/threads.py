"""One captured function that many threads call at once, each with arguments of its own."""

from __future__ import annotations

import random
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from steps import bits

import microtrain as mt
from attack.campaign import Defect, Kind
from attack.captures import laid_out
from attack.models import LAYERS

nn = mt.nn
WIDTH = 32
CALM = [name for name in LAYERS if name not in ("dropout", "batch norm")]  # the same at every call


def function(draw: random.Random) -> Any:
    """A step without state of its own: values, or a gradient with respect to the argument."""
    net = nn.Sequential(*(LAYERS[draw.choice(CALM)](WIDTH) for _ in range(draw.randint(0, 4))))
    differentiated = draw.random() < 0.4
    print(net, "differentiated" if differentiated else "")

    def step(x: Any) -> Any:
        if not differentiated:
            return net(x * 1.5).tanh() * x, (x * x).sum()
        x = x.detach().requires_grad_()
        return mt.autograd.grad((net(x * 1.5).tanh() * x).sum(), [x])

    return step


def trial(seed: int, folder: Path) -> None:
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    executor = draw.choice(("numpy", "numba"))
    eager = function(draw)
    step = mt.compile(eager, executor=executor)
    # From little work, done under the interpreter's lock, to work that is done without it.
    rows = [draw.choice((1, 8, 64, 512, 2048)) for _ in range(draw.randint(1, 3))]
    count, calls, cold = draw.randint(2, 6), draw.randint(20, 60), draw.random() < 0.4
    print(executor, rows, count, "threads", calls, "calls", "cold" if cold else "warm")
    given = [
        [laid_out(draw, numbers.standard_normal((draw.choice(rows), WIDTH)).astype(np.float32))
         for _ in range(2)]
        for _ in range(count)
    ]  # fmt: skip
    warm = mt.compile(eager, executor=executor) if cold else step
    for _ in range(5):  # until every one of them is replayed
        replayed = [[bits(warm(x)) for x in mine] for mine in given]
    # Threads that capture at the same time also compute eagerly.
    allowed = [
        [{repr(b), repr(bits(eager(x)))} if cold else {repr(b)} for x, b in zip(*pair, strict=True)]
        for pair in zip(given, replayed, strict=True)
    ]
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            for call in range(calls):
                which = call % 2
                if repr(bits(step(given[number][which]))) not in allowed[number][which]:
                    wrong.append(f"thread {number}, call {call}")
        except BaseException:
            wrong.append(f"thread {number}: {traceback.format_exc()}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise Defect("different", f"{len(wrong)} calls: {', '.join(wrong[:5])}")


KIND = Kind(trial, limit=90)
