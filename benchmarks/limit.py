"""Whole training steps of six networks against the limit of the machine and against the peers.

A step is zero_grad, forward, loss, backward and the optimizer's update, in float32. The floor is
what the captured step needs at least: `explain(measure=True)` measures memory and products here and
takes the longer of the two. All sides run in turns in one process, from the same weights and on the
same batch; their first losses must agree. The tables show medians in microseconds, and ratios
beside the ones that must be reached. Peers are optional; one that cannot run is named with the
reason.

    python benchmarks/limit.py                                      # one thread, on one core
    python benchmarks/limit.py --threads 2                          # two, not pinned
    python benchmarks/limit.py --only CNN --peers torch
    python benchmarks/limit.py --json limit.json --plot limit.png
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

# `step` pins a process that has not loaded NumPy to one core and one thread.
if "--threads 2" in " ".join(sys.argv).replace("=", " "):
    for variable in (
        "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
        "NPROC",  # XLA's
    ):  # fmt: skip
        os.environ[variable] = "2"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    importlib.import_module("numpy")

from step import Step, machine, measure, processor, text  # it pins the process and limits threads

# isort: split

from networks import NETS, PEERS, Network, training_step
from peers import check, first_steps

OURS = ("native", "numpy", "eager")
RATIOS = (
    ("native", "floor"), ("native", "torch"), ("native", "torch.compile"), ("native", "jax.jit"),
)  # fmt: skip


def make_steps(
    net: Network, peers: Iterable[str], left_out: dict[str, str]
) -> tuple[dict[str, Step], float]:
    """The step of everybody who can take it, and the floor in microseconds.

    Who cannot is put into `left_out`, with the reason.
    """
    import microtrain as mt
    from microtrain.capture.c_compiler import absent

    captured: dict[str, Any] = {}
    executors = [name for name in OURS if name != "eager"]
    if "native" in executors and absent():
        executors.remove("native")
        left_out["native"] = absent()

    def wrap(executor: str, step: Any) -> Any:
        captured[executor] = mt.compile(step, executor=executor)
        return captured[executor]

    runs = {"eager": training_step(mt, net)}
    for executor in executors:
        runs[executor] = training_step(mt, net, wrap=functools.partial(wrap, executor))
    ways = {name: first_steps(run) for name, run in runs.items()}
    for peer in peers:
        build, how = PEERS[peer]
        try:
            run = build(net)
            ways[peer] = first_steps(run)  # what is compiled at the first call may fail there
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            missing = isinstance(error, ImportError)
            left_out[peer] = f"{type(error).__name__}: {reason}" + f" ({how})" * missing
        else:
            runs[peer] = run
    for name, way in ways.items():
        check(name, way, ways["eager"])
    told = captured["native" if "native" in captured else "numpy"].explain(measure=True)
    found = re.search(r"^floor +([0-9,.]+) us", told, re.MULTILINE)
    assert found, told
    floor = float(found[1].replace(",", ""))
    return {name: run.step for name, run in runs.items()}, floor


def ratios(found: dict[str, float]) -> list[float | None]:
    """`RATIOS` of one row; None where a side is missing."""
    return [found[a] / found[b] if a in found and b in found else None for a, b in RATIOS]


def plot(results: dict[str, dict[str, float]], path: str, where: str) -> None:
    """A picture: of each network a bar for every side, and the floor (needs the extra `plot`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sides = [name for name in (*OURS, *PEERS) if any(name in row for row in results.values())]
    labels = [f"microtrain {name}" if name in OURS else name for name in sides]
    labels = ["torch eager" if name == "torch" else name for name in labels]
    columns = min(2, len(results))
    rows = -(-len(results) // columns)
    size = 5.2 * columns, 0.6 + (0.8 + 0.26 * len(sides)) * rows
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, sharey=True)
    for axis in axes.flat[len(results) :]:
        axis.axis("off")
    for axis, (name, found) in zip(axes.flat, results.items(), strict=False):
        times = [found.get(side, 0.0) for side in sides]
        colors = ["tab:blue" if side in OURS else "silver" for side in sides]
        bars = axis.barh(labels, times, color=colors)
        said = [f"{took:,.0f}" if took else "cannot run" for took in times]
        axis.bar_label(bars, said, padding=3, fontsize="small")
        axis.axvline(found["floor"], color="black", linestyle="--", linewidth=1)
        axis.set_title(name, fontsize="medium", loc="left")
        axis.set_xlim(0, 1.15 * max(times))
        axis.set_xticks([])
        axis.tick_params(length=0, labelsize="small")
        axis.spines[["top", "right", "bottom"]].set_visible(False)
    axes.flat[0].invert_yaxis()
    figure.suptitle(f"microseconds a training step, {where}; dashed: the floor", fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="default 1")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", metavar="FILE", help="draw the times (extra plot)")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each row (default 10)")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="columns beside microtrain's (default: all)"
    )
    options = parser.parse_args()
    peers = [name for name in options.peers.split(",") if name]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}; there are {list(PEERS)}")
    results: dict[str, dict[str, float]] = {}
    left_out: dict[str, dict[str, str]] = {}
    columns = ("floor", *OURS, *peers)
    where = "one thread, one core" if options.threads == 1 else "two threads"
    print(f"{processor()}, {where}, medians in us a step")
    print(f"{'step':<24}" + "".join(f"{name:>15}" for name in columns))
    for name in (name for name in NETS if options.only in name):
        steps, floor = make_steps(NETS[name], peers, left_out.setdefault(name, {}))
        found = results[name] = {"floor": floor} | measure(steps, options.seconds)
        line = "".join(f"{text(found.get(column), ',.1f'):>15}" for column in columns)
        print(f"{name:<24}{line}", flush=True)
    print(f"\n{'ratio':<24}" + "".join(f"{f'{a} / {b}':>23}{'must':>7}" for a, b in RATIOS))
    for name, found in results.items():
        pairs = zip(ratios(found), NETS[name].must, strict=True)
        line = "".join(f"{text(r, '.3f'):>23}{text(must, '.4g'):>7}" for r, must in pairs)
        print(f"{name:<24}{line}")
    for name, reasons in left_out.items():
        for side, reason in reasons.items():
            print(f"left out: {name}: {side}: {reason}")
    if options.json:
        headings = [f"{a} / {b}" for a, b in RATIOS]
        shown = {n: dict(zip(headings, ratios(f), strict=True)) for n, f in results.items()}
        about = {"versions": machine(), "threads": options.threads, "left out": left_out}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(about | {"us": results, "ratios": shown}, file, indent=2)
    if options.plot:
        plot(results, options.plot, where)
    return 0


if __name__ == "__main__":
    sys.exit(main())
