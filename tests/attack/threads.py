"""One function that many threads call at once, each with arguments of its own."""

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


def training(draw: random.Random, numbers: np.random.Generator) -> None:
    """Gradients of whole numbers that threads add up: exact in any order."""
    executor = draw.choice(("eager", "numpy", "native"))
    count, calls, cold = draw.randint(2, 6), draw.randint(20, 60), draw.random() < 0.4
    owned, mixed = draw.random() < 0.6, draw.random() < 0.4
    rows = [draw.choice((1, 8, 64, 512)) for _ in range(count)]
    print("training", executor, rows, calls, "calls", f"{cold=} {owned=} {mixed=}")
    params = [nn.Parameter(mt.from_numpy(numbers.integers(-2, 3, (WIDTH, 4)).astype("float64")))
              for _ in range(draw.randint(1, 3))]  # fmt: skip
    optimizer = mt.optim.SGD(params, lr=0.1) if owned else None
    given = [mt.from_numpy(numbers.integers(-2, 3, (n, WIDTH)).astype("float64")) for n in rows]

    def eager(x: Any) -> Any:
        loss = sum((x @ p).square().sum() for p in params)
        loss.backward()
        return loss

    totals: list[Any] = [0] * len(params)
    losses = []
    for x in given:
        losses.append(eager(x).item())
        for n, p in enumerate(params):
            totals[n] = totals[n] + p.grad.numpy() * calls
            p.grad = None
    step = eager if executor == "eager" else mt.compile(eager, executor=executor)
    for k in range(0 if cold else 6 * count):
        step(given[k % count])
    for p in params:
        p.grad = None

    def work(number: int) -> list[str]:
        function = eager if mixed and number % 2 else step
        found = [function(given[number]).item() for _ in range(calls)]
        return [f"loss {one} for {losses[number]}" for one in found if one != losses[number]]

    wrong = together(work, count)
    for total, p in zip(totals, params, strict=True):
        if p.grad is None or not np.array_equal(p.grad.numpy(), total):
            wrong.append("gradients do not add up")
    if wrong or (optimizer is not None and optimizer.calls):
        raise Defect("different", f"{len(wrong)}: {', '.join(wrong[:5])}")


def together(work: Any, count: int) -> list[str]:
    """What `work(number)` finds wrong, in `count` threads at once."""
    wrong: list[str] = []

    def run(number: int) -> None:
        try:
            wrong.extend(f"thread {number}, {one}" for one in work(number))
        except BaseException:
            wrong.append(f"thread {number}: {traceback.format_exc()}")

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def trial(seed: int, folder: Path) -> None:
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    if draw.random() < 0.4:
        training(draw, numbers)
        return
    executor = draw.choice(("numpy", "native"))
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
    # The first calls of every thread are recorded, and compute eagerly.
    allowed = [
        [{repr(b), repr(bits(eager(x)))} for x, b in zip(*pair, strict=True)]
        for pair in zip(given, replayed, strict=True)
    ]

    def work(number: int) -> list[str]:
        mine = [(repr(bits(step(given[number][k % 2]))), k) for k in range(calls)]
        return [f"call {k}" for text, k in mine if text not in allowed[number][k % 2]]

    wrong = together(work, count)
    if wrong:
        raise Defect("different", f"{len(wrong)} calls: {', '.join(wrong[:5])}")


KIND = Kind(trial, limit=90)
