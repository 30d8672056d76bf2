#!/usr/bin/env python3
"""What ranks say to each other, phase by phase, and what that would be at 4,096 of them.

    .venv/bin/python benchmarks/collectives.py [--ranks 2 4 8 16 32] [--predict 4096] [--json FILE]

The ranks are threads of one process that train a small model, are stopped, and resume. Counted for
one rank and phase: collectives, those of pickled objects, bytes it receives, calls
outside collectives, and the CPU time of these. Numbers that differ with the number of
ranks are continued as a + b * ranks, fitted by least squares over those measured: the pessimistic
one of what they may be. What the network would add is latency * log2(ranks) for each collective
and the bytes over the bandwidth, both given.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

if "numpy" not in sys.modules:
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from microtrain.config.load import load_config
from microtrain.distributed import Communicator, in_process
from microtrain.train import trainer as training
from microtrain.train.console import Output

PHASES = ("start", "step", "evaluation", "checkpoint", "resume", "rest")
CONFIG = """\
name: counted
data: {type: synthetic_linear, samples: 2048, weights: [2, -1], split: {train: 0.8, val: 0.2}}
model: {type: mlp, hidden: [32]}
loss: mse
metrics: [r2]
optimizer: {type: adam, lr: 0.01}
train: {duration: 16 steps, batch_size: 512, eval_every: 4 steps, compile: off}
checkpoint: {every: 8 steps}
"""  # fmt: skip


@dataclass
class Cost:
    """What one rank did in one phase; `times` is how often it was in it."""

    times: int = 0
    collectives: int = 0
    objects: int = 0
    received: int = 0
    calls: int = 0
    cpu: float = 0.0


class Meter:
    """Counts the collectives of a communicator, and the Python around them, by phase."""

    def __init__(self, comm: Communicator) -> None:
        self.costs = {phase: Cost() for phase in PHASES}
        self.phase, self._inside, self._since = "rest", 0, time.thread_time()
        self.size = comm.size
        for name in (
            "all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "split",
            "gather_object", "all_gather_object", "broadcast_object", "barrier",
        ):  # fmt: skip
            setattr(comm, f"_{name}", self._counted(name, getattr(comm, f"_{name}")))

    def _counted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            cost = self.costs[self.phase]
            self._stamp()
            self._inside += 1
            try:
                result = method(*args)
            finally:
                self._inside -= 1
                self._since = time.thread_time()
            cost.collectives += 1
            if name.endswith("_object"):
                cost.objects += 1
                cost.received += len(pickle.dumps(result))
            elif isinstance(result, np.ndarray):
                cost.received += result.nbytes
            return result

        return call

    def _stamp(self) -> None:
        now = time.thread_time()
        self.costs[self.phase].cpu += now - self._since
        self._since = now

    @contextlib.contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """All that is done meanwhile is of this phase."""
        self._stamp()
        before, self.phase = self.phase, phase
        cost = self.costs[phase]
        silent = cost.collectives
        try:
            yield
        finally:
            self._stamp()
            cost.times += cost.collectives > silent  # an observer may have nothing to do
            self.phase = before

    def profile(self, frame: Any, event: str, arg: Any) -> None:
        """For `sys.setprofile`: counts the calls that are not of a collective."""
        # Every wrapper of a process is asked whether a loss reaches it: here those of other ranks.
        if frame.f_code.co_name == "reaches" and event in ("call", "return"):
            self._inside += 1 if event == "call" else -1
        elif event in ("call", "c_call") and not self._inside:
            self.costs[self.phase].calls += 1


def run(folder: Path, ranks: int, config: str = CONFIG, *, profile: bool = False) -> dict[str, Any]:
    """Train, and resume with twice the steps, on so many threads; the costs of the last rank."""
    file = folder / f"{ranks}.yaml"
    file.write_text(config)
    phases = {"Evaluator": "evaluation", "Checkpoints": "checkpoint", "Agreement": "checkpoint"}
    meters = {}

    def job(comm: Communicator, resume: Path | None) -> Path:
        meter = meters.setdefault(comm.rank, Meter(comm)) if resume is None else Meter(comm)
        meters[comm.rank, resume is not None] = meter
        if profile and comm.rank == comm.size - 1:
            sys.setprofile(meter.profile)
        longer = ["train.duration=24 steps"] if resume else []
        settings = load_config(file, [f"run_dir={folder / str(ranks)}", *longer])
        output = Output(comm.rank, stream=io.StringIO())
        with meter.within("start"):
            run = training.Trainer.from_config(settings, comm, output, resume=resume)
        vars(run)["take_step"] = _within(meter, "step", run.take_step)
        for callback in run.callbacks:
            phase = phases.get(type(callback).__name__)
            if phase is not None:
                vars(callback)["on_pause"] = _within(meter, phase, callback.on_pause)
        run.train()
        sys.setprofile(None)
        return run.path

    path = in_process.run(ranks, job, None)[0]
    whole, taken = training.take_up, threading.local()

    def take_up(run: Any) -> None:
        taken.done = True
        with meters[run.comm.rank, True].within("resume"):
            whole(run)

    training.take_up = take_up
    try:
        in_process.run(ranks, job, path)
    finally:
        training.take_up = whole
    first, second = meters[ranks - 1, False].costs, meters[ranks - 1, True].costs
    return {phase: (second if phase == "resume" else first)[phase] for phase in PHASES}


def _within(meter: Meter, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with meter.within(phase):
            return function(*args)

    return call


def line(sizes: Sequence[int], values: Sequence[float], size: int) -> float:
    """What a + b * ranks, fitted to the values, is at `size`; never less than the last value."""
    slope, constant = np.polyfit(sizes, values, 1)
    return max(float(constant + slope * size), float(values[-1]))


@dataclass
class Prediction:
    """A phase at a number of ranks that was not measured; a time of it, as of one rank."""

    phase: str
    collectives: float
    received: float
    cpu: float
    network: float
    about: dict[str, float] = field(default_factory=dict)


def predict(
    found: dict[int, dict[str, Cost]], ranks: int, latency: float, bandwidth: float
) -> list[Prediction]:
    """Every phase, for one time that it happens."""
    sizes = sorted(found)
    result = []
    for phase in PHASES[:-1]:
        costs = [found[size][phase] for size in sizes]
        each = [max(cost.times, 1) for cost in costs]
        columns = {
            name: [getattr(c, name) / n for c, n in zip(costs, each, strict=True)]
            for name in ("collectives", "received", "cpu")
        }
        number, received, cpu = (line(sizes, values, ranks) for values in columns.values())
        network = number * latency * math.log2(ranks) + received / bandwidth
        result.append(Prediction(phase, number, received, cpu, network))
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32], metavar="N")
    parser.add_argument("--predict", type=int, default=4096, metavar="N", help="default 4096")
    parser.add_argument("--latency", type=float, default=5.0, help="us a hop (default 5)")
    parser.add_argument("--bandwidth", type=float, default=1000.0, help="MB/s (default 1000)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args()
    if len(options.ranks) < 2 or min(options.ranks) < 2:
        parser.error("--ranks: at least two numbers, each at least 2")
    heads = f"{'times':>7}{'collectives':>13}{'objects':>9}{'bytes':>12}{'ms cpu':>9}"
    print(f"{'ranks  phase':<20}{heads}")
    found = {}
    for ranks in sorted(options.ranks):
        with tempfile.TemporaryDirectory() as folder:
            found[ranks] = run(Path(folder), ranks)
        for phase, cost in found[ranks].items():
            print(
                f"{ranks:<7}{phase:<13}{cost.times:>7}{cost.collectives:>13}{cost.objects:>9}"
                f"{cost.received:>12,}{cost.cpu * 1e3:>9.1f}",
                flush=True,
            )
    print(f"\n{options.predict:,} ranks, once each, predicted: {options.latency:g} us a hop, "
          f"{options.bandwidth:g} MB/s")  # fmt: skip
    print(f"{'phase':<13}{'collectives':>13}{'bytes':>12}{'ms cpu':>9}{'ms network':>12}")
    predicted = predict(found, options.predict, options.latency / 1e6, options.bandwidth * 1e6)
    for one in predicted:
        print(
            f"{one.phase:<13}{one.collectives:>13.1f}{one.received:>12,.0f}{one.cpu * 1e3:>9.1f}"
            f"{one.network * 1e3:>12.2f}"
        )
    if options.json:
        numbers = {
            "measured": {n: {k: asdict(c) for k, c in one.items()} for n, one in found.items()},
            "predicted": {"ranks": options.predict, "phases": [asdict(one) for one in predicted]},
        }
        Path(options.json).write_text(json.dumps(numbers, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
