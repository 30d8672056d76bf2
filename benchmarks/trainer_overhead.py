"""What the trainer's loop costs beside the captured step: batches, counting, rows.

The bare step is what the trainer replays on one rank, called over and over with one batch; the loop
is the trainer's own, with everything between two evaluations. Both take turns in one process pinned
to one core; the first rounds, which capture, are left out. Medians in microseconds a step.

    python benchmarks/trainer_overhead.py                       # the table
    python benchmarks/trainer_overhead.py --json overhead.json  # and its numbers
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

if "numpy" not in sys.modules:  # before NumPy starts its threads
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"

import numpy as np

CONFIGS = Path(__file__).parent.parent / "configs"
ROUND = 500  # steps
LEFT_OUT = 3  # rounds
# name -> configuration and overrides
RUNS = {
    "linreg": ("linreg.yaml", []),
    "linreg, 2 micro-batches": ("linreg.yaml", ["train.accumulate=2"]),
    "three layers": ("custom_model.yaml", []),
    "two_layer_relu": ("two_layer_relu.yaml", []),
}
MUST, AIM = 25.0, 8.0


def measure(name: str, executor: str, rounds: int) -> tuple[float, float]:
    """Microseconds a step of the loop and of the bare step, medians over the rounds."""
    from microtrain.config.load import load_config
    from microtrain.distributed.single import SingleCommunicator
    from microtrain.train.callbacks.base import Event
    from microtrain.train.callbacks.order import CALLBACKS, Evaluator
    from microtrain.train.console import Output
    from microtrain.train.run import TrainingRun
    from microtrain.train.trainer import Trainer

    loops: list[float] = []
    bares: list[float] = []

    class Measured(Evaluator):
        """Measures the bare step where an evaluation would be, which is no time of the loop's."""

        def on_pause(self, run: TrainingRun, event: Event) -> None:
            if not event.evaluate:
                return
            began = time.perf_counter()
            assert isinstance(run, Trainer)
            loops.append((began - run.progress.since) / ROUND * 1e6)
            first = next(iter(run.loader.steps()))
            batches = list(first)
            calls = [
                (nth == 1, nth == len(batches), *batch) for nth, batch in enumerate(batches, 1)
            ]
            compiled = run.execution.compiled
            start = time.perf_counter()
            for _ in range(ROUND):
                for call in calls:
                    compiled(*call)
            bares.append((time.perf_counter() - start) / ROUND * 1e6)
            run.progress.paused += time.perf_counter() - began

    with tempfile.TemporaryDirectory() as directory:
        file, overrides = RUNS[name]
        config = load_config(
            CONFIGS / file,
            [*overrides, f"train.eval_every={ROUND} steps", f"log.every={ROUND} steps",
             f"train.compile={executor}",
             f"train.duration={ROUND * (rounds + LEFT_OUT)} steps", f"run_dir={directory}",
             "data.split={train: 1}", "metrics=[]"],
        )  # fmt: skip
        output = Output(stream=io.StringIO())

        class Watched(Trainer):
            callback_types = [
                Measured if str(each).endswith(":Evaluator") else each for each in CALLBACKS
            ]

        Watched.from_config(config, SingleCommunicator(), output).train()
    return statistics.median(loops[LEFT_OUT:]), statistics.median(bares[LEFT_OUT:])


def main() -> int:
    from microtrain.capture.c_compiler import absent

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--rounds", type=int, default=40, help=f"of {ROUND} steps (default 40)")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    options = parser.parse_args()
    executors = ["numpy", "native"]
    if absent():
        executors.remove("native")
        print(f"left out: {absent()}")
    results: dict[str, dict[str, dict[str, float]]] = {}
    print(f"{platform.processor() or platform.machine()}, one core, medians in us a step")
    print(f"{'run':<26}{'executor':>9}{'loop':>9}{'bare':>9}{'over':>9}{'must':>6}{'aim':>6}")
    for name in RUNS:
        if options.only not in name:
            continue
        for executor in executors:
            loop, bare = measure(name, executor, options.rounds)
            found = {"loop": loop, "bare": bare, "over": loop - bare}
            results.setdefault(name, {})[executor] = found
            numbers = "".join(f"{us:>9,.1f}" for us in found.values())
            print(f"{name:<26}{executor:>9}{numbers}{MUST:>6.0f}{AIM:>6.0f}", flush=True)
    if options.json:
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"versions": versions, "us": results}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
