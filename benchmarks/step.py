"""One optimizer step against the peers: zero_grad, forward, loss, backward, SGD with momentum.

Everything runs interleaved in one process pinned to one core, so that a busy neighbor slows all
sides alike; the tables show medians in microseconds, and ratios to PyTorch eager and to jax.jit
beside the ones that must be reached. Before a row is timed all sides take ten steps from the same
weights, which must do the same. Peers are optional; one that cannot run is named with the reason.

    python benchmarks/step.py                                    # the tables, every peer
    python benchmarks/step.py --peers torch                      # one peer
    python benchmarks/step.py --json step.json --plot step.png   # and its numbers, and a picture
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

if "numpy" not in sys.modules:  # before NumPy and the peers start their threads
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for variable in (
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
        "TORCHINDUCTOR_COMPILE_THREADS",
    ):  # fmt: skip
        os.environ[variable] = "1"
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

from peers import PEERS, Net, Run, check, first_steps, initial, training_step

NETS = {
    "linreg 32x1x1": Net(32, [1, 1]),
    "linreg 1024x64x1": Net(1024, [64, 1]),
    "small 16x8x16x1": Net(16, [8, 16, 1]),
    "seed 64x1000x100x10": Net(64, [1000, 100, 10]),
    "large 1024x1024x1024x10": Net(1024, [1024, 1024, 10]),
}
# Ratios: of whom, to whom, and what they must reach (None: reported only).
OURS = ("eager", "numpy", "native")
RATIOS = (("eager", "torch"), ("numpy", "torch"), ("native", "torch"), ("best", "jax.jit"))
MUST: dict[str, tuple[float | None, ...]] = {
    "linreg 32x1x1": (0.15, 0.06, 0.01, 0.15),
    "linreg 1024x64x1": (None, None, None, None),
    "small 16x8x16x1": (0.18, 0.08, 0.01, 0.15),
    "seed 64x1000x100x10": (0.75, 0.65, 0.55, 0.90),
    "large 1024x1024x1024x10": (1.0, 1.0, 1.0, 1.0),
    "chain of 20 elementwise": (0.9, None, None, None),
}
Step = Callable[[], Any]


def chain_step(library: Any) -> Step:
    """Twenty elementwise operations on 100 numbers, forward and backward."""
    x = library.ones(100, requires_grad=True)

    def step() -> Any:
        y = x
        for _ in range(5):
            y = (y * 0.5 + x).tanh() - x
        x.grad = None
        y.sum().backward()
        return y

    return step


def our_runs(net: Net, executors: Iterable[str] = OURS) -> dict[str, Run]:
    """The step, eager and compiled, from the weights that the peers begin with."""
    import microtrain as mt

    runs = {}
    for executor in executors:
        compiled = functools.partial(mt.compile, executor=executor)
        wrap = {} if executor == "eager" else {"wrap": compiled}
        runs[executor] = training_step(mt, net, start=initial(net), **wrap)
    return runs


def make_steps(name: str, peers: Iterable[str], left_out: dict[str, str]) -> dict[str, Step]:
    """The step of everybody who can take it; who cannot is put into `left_out`."""
    import microtrain as mt
    from microtrain.capture.c_compiler import absent

    ours = list(OURS)
    if "native" in ours and absent():
        ours.remove("native")
        left_out["native"] = absent()
    if name not in NETS:
        steps = {"eager": chain_step(mt)}
        if "torch" in peers:
            try:
                import torch
            except ImportError as error:
                left_out["torch"] = f"ImportError: {error} ({PEERS['torch'][1]})"
            else:
                steps["torch"] = chain_step(torch)
        return steps
    runs = our_runs(NETS[name], ours)
    ways = {key: first_steps(run) for key, run in runs.items()}
    for peer in peers:
        build, how = PEERS[peer]
        try:
            run = build(NETS[name])
            ways[peer] = first_steps(run)  # what is compiled at the first call may fail there
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            left_out[peer] = f"{type(error).__name__}: {reason}" + (how and f" ({how})")
        else:
            runs[peer] = run
    for key, way in ways.items():
        check(key, way, ways["eager"])
    return {key: run.step for key, run in runs.items()}


def measure(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """Median microseconds a step; rounds of all libraries take turns.

    A round is long enough (50 ms) that what the other library left in the caches hardly counts.
    """
    counts = {}
    for name, step in steps.items():
        took = []
        for _ in range(20):
            start = time.perf_counter()
            step()
            took.append(time.perf_counter() - start)
        counts[name] = max(1, int(0.05 / statistics.median(took)))
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(rounds.values()))) < 5:
        for name, step in steps.items():
            n = counts[name]
            start = time.perf_counter()
            for _ in range(n):
                step()
            rounds[name].append((time.perf_counter() - start) / n * 1e6)
    return {name: statistics.median(found) for name, found in rounds.items()}


def ratios(found: dict[str, float]) -> list[float | None]:
    """`RATIOS` of one row; None where a side is missing."""
    compiled = [found[name] for name in ("numpy", "native") if name in found]
    known = found | ({"best": min(compiled)} if compiled else {})
    return [known[a] / known[b] if a in known and b in known else None for a, b in RATIOS]


def text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    found = {"machine": processor(), "python": platform.python_version()}
    for name in ("numpy", "native", "torch", "jax", "autograd"):
        if importlib.util.find_spec(name):
            found[name] = importlib.metadata.version(name)
    return found


def processor() -> str:
    """The name of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or platform.machine()


def plot(results: dict[str, dict[str, float]], path: str) -> None:
    """A picture: microseconds by row and side (needs the extra `plot`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(10, 5))
    columns = [name for name in (*OURS, *PEERS) if any(name in row for row in results.values())]
    width = 0.8 / len(columns)
    for number, column in enumerate(columns):
        places = [i + (number + 0.5) * width - 0.4 for i in range(len(results))]
        heights = [row.get(column, float("nan")) for row in results.values()]
        axis.bar(places, heights, width, label=column)
    axis.set_yscale("log")
    axis.set_ylabel("us a step, one core")
    axis.set_xticks(range(len(results)), [name.replace(" ", "\n", 1) for name in results])
    axis.legend(fontsize="small", ncols=3)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", metavar="FILE", help="draw the times (extra plot)")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row (default 5)")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="columns beside microtrain's (default: all)"
    )
    options = parser.parse_args()
    peers = [name for name in options.peers.split(",") if name]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}; there are {list(PEERS)}")
    results: dict[str, dict[str, float]] = {}
    left_out: dict[str, str] = {}
    columns = (*OURS, *peers)
    print(f"{processor()}, one core, medians in us a step")
    print(f"{'step':<26}" + "".join(f"{name:>15}" for name in columns))
    for name in (name for name in MUST if options.only in name):
        steps = make_steps(name, peers, left_out)
        found = results[name] = measure(steps, options.seconds)
        line = "".join(f"{text(found.get(column), ',.1f'):>15}" for column in columns)
        print(f"{name:<26}{line}", flush=True)
    print(f"\n{'ratio':<26}" + "".join(f"{f'{a} / {b}':>16}{'must':>6}" for a, b in RATIOS))
    for name, found in results.items():
        pairs = zip(ratios(found), MUST[name], strict=True)
        line = "".join(f"{text(r, '.4f'):>16}{text(must, '.2f'):>6}" for r, must in pairs)
        print(f"{name:<26}{line}")
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    if options.json:
        headings = [f"{a} / {b}" for a, b in RATIOS]
        shown = {n: dict(zip(headings, ratios(f), strict=True)) for n, f in results.items()}
        data = {"versions": machine(), "us": results, "ratios": shown, "left out": left_out}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2)
    if options.plot:
        plot(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
