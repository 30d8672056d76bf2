"""Time of a step against width, depth and batch, and where PyTorch eager becomes faster.

A network of layers of one width with ReLU between them, the mean squared error, SGD with momentum;
float32, one core, all sides in turn. For each side the script fits the large end of its curve, the
last four points: the power of the size that the time grows with, and microseconds for each further
unit. The crossover is the first size from which PyTorch is faster at every larger one.

    python benchmarks/scaling.py                                       # the tables
    python benchmarks/scaling.py --only batch --most 256               # one of them, small sizes
    python benchmarks/scaling.py --json scaling.json --plot scaling.png
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from typing import Any

from step import OURS, machine, measure, our_runs, processor, text  # first: it pins the process

# isort: split

import numpy as np
from peers import Net, torch_eager

# name -> (sizes, the network of a size)
CURVES: dict[str, tuple[list[int], Callable[[int], Net]]] = {
    "width": ([2**k for k in range(4, 12)], lambda n: Net(64, [n, n, 1])),
    "depth": ([2**k for k in range(6)], lambda n: Net(64, [64] * n + [1])),
    "batch": ([2**k for k in range(13)], lambda n: Net(n, [64, 64, 1])),
}
SIDES = (*OURS, "torch")
LAST = 4  # points that are fitted


def fit(sizes: list[int], times: list[float]) -> tuple[float, float]:
    """The power of the size, and microseconds a unit, at the large end."""
    x, y = np.array(sizes[-LAST:], float), np.array(times[-LAST:])
    power = np.polyfit(np.log(x), np.log(y), 1)[0] if len(x) > 1 else float("nan")
    each = np.polyfit(x, y, 1)[0] if len(x) > 1 else float("nan")
    return float(power), float(each)


def crossover(sizes: list[int], mine: list[float], peer: list[float]) -> int | None:
    """The first size from which the peer is faster; None if it never is."""
    found = None
    for size, a, b in reversed(list(zip(sizes, mine, peer, strict=True))):
        if a <= b:
            break
        found = size
    return found


def plot(results: dict[str, Any], path: str) -> None:
    """A picture of every curve (needs the extra `plot`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results), figsize=(5 * len(results), 4), squeeze=False)
    for axis, (name, found) in zip(axes[0], results.items(), strict=True):
        for side, times in found["us"].items():
            axis.loglog(found["sizes"], times, marker="o", markersize=3, label=side)
        axis.set_xlabel(name)
        axis.set_ylabel("us a step, one core")
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> int:
    from microtrain.capture.c_compiler import absent

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves (extra plot)")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each point (default 1)")
    parser.add_argument("--only", default="", help="curves whose name contains this text")
    parser.add_argument("--most", type=int, default=4096, help="no sizes over this one")
    parser.add_argument("--sides", default=",".join(SIDES), help="default: all")
    options = parser.parse_args()
    wanted = options.sides.split(",")
    if unknown := set(wanted) - set(SIDES):
        parser.error(f"no side is called {', '.join(sorted(unknown))}; there are {list(SIDES)}")
    missing = ["torch"] * (importlib.util.find_spec("torch") is None)
    missing += ["native"] * bool(absent())
    sides = [name for name in SIDES if name in wanted and name not in missing]
    results: dict[str, Any] = {}
    print(f"{processor()}, one core, medians in us a step")
    for name, (all_sizes, net_of) in CURVES.items():
        sizes = [size for size in all_sizes if size <= options.most]
        if options.only not in name or not sizes:
            continue
        print(f"\n{name:<10}" + "".join(f"{side:>12}" for side in SIDES))
        times: dict[str, list[float]] = {side: [] for side in sides}
        for size in sizes:
            runs = our_runs(net_of(size), [side for side in OURS if side in sides])
            if "torch" in sides:
                runs["torch"] = torch_eager(net_of(size))
            found = measure({side: run.step for side, run in runs.items()}, options.seconds)
            for side, us in found.items():
                times[side].append(us)
            line = "".join(f"{text(found.get(side), ',.1f'):>12}" for side in SIDES)
            print(f"{size:<10}{line}", flush=True)
        fits = {side: fit(sizes, of) for side, of in times.items()}
        crossing: dict[str, int | None] = {}
        for row, what in enumerate(("power", "us a unit")):
            values = [fits[side][row] if side in fits else None for side in SIDES]
            print(f"{what:<10}" + "".join(f"{text(v, '.3g'):>12}" for v in values))
        if "torch" in sides:
            crossing = {s: crossover(sizes, times[s], times["torch"]) for s in OURS if s in sides}
            line = "".join(f"{crossing.get(s, '-') or 'never':>12}" for s in OURS)
            print(f"{'crossover':<10}{line}")
        results[name] = {
            "sizes": sizes,
            "us": times,
            "power": {side: of[0] for side, of in fits.items()},
            "us a unit": {side: of[1] for side, of in fits.items()},
            "torch is faster from": crossing,
        }
    for name in missing:
        print(f"left out: {name} is not installed")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"versions": machine(), "curves": results}, file, indent=2)
    if options.plot:
        plot(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
