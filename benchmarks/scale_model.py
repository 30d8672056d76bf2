"""The predicted time of a step against the number of ranks, and how far predictions are off.

For each network the step is measured here with two batch sizes; what it takes on up to 4,096 ranks
follows from latency and bandwidth, with the same batch (strong) and with as many rows on each rank
(weak): `microtrain/train/scaling.py`, as `microtrain train --dry-run --ranks 4096` prints it.

    python benchmarks/scale_model.py
    python benchmarks/scale_model.py --latency 20us --bandwidth 10Gbit --plot scale.png

`--check` compares with real runs of 2, 4 and 8 ranks. The hosts are network namespaces
(`scripts/test_hosts` makes them; needs root and iproute2) with links so slow that two cores are
enough for eight ranks. Latency and bandwidth are measured with two ranks, as `microtrain doctor`
does; all other figures are predicted. Ranks that share the cores of this machine take turns.

    python benchmarks/scale_model.py --check --rate 20mbit
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import io
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# isort: split

import numpy as np

from microtrain.config.load import load_config
from microtrain.distributed import world
from microtrain.threads import cores
from microtrain.train import Trainer, network, scaling
from microtrain.train.output import Output

ROOT = Path(__file__).resolve().parent.parent
WIDE = "two_layer_relu.yaml", "model.hidden=2000", "data.samples=256", "train.batch_size=256"
# name -> the configuration and overrides
NETS: dict[str, tuple[str, ...]] = {
    "linreg": ("linreg.yaml",),
    "digits": ("digits.yaml",),
    "two_layer_relu": ("two_layer_relu.yaml",),
    "wide": WIDE,
}
MOST = 4096
# What `--check` trains: a megabyte of gradients, more than what a cable lets pass at once.
STEPS, ROWS = 48, 64
CHECKED = (
    "two_layer_relu.yaml", "model.hidden=250", f"data.samples={STEPS * ROWS}", "log.every=2 steps",
    f"train.duration={STEPS} steps", "train.compile=numpy", "optimizer.lr=1e-9",
    "distributed.overlap=false",
)  # fmt: skip
JOBS = ((2, 1), (4, 1), (8, 1), (2, 2), (4, 2))  # hosts, ranks on each


def step_of(config: str, *overrides: str) -> scaling.Step:
    """The measured step of a run of one rank."""
    silent = Output(0, stream=io.StringIO(), errors=io.StringIO())
    settings = load_config(ROOT / "configs" / config, [*overrides])
    trainer = Trainer.from_config(settings, output=silent)
    return scaling.measured(trainer, trainer.take_step, trainer.execution.settle)


def predict(options: argparse.Namespace) -> dict[str, Any]:
    """Print the table of every network; what JSON and plot have of it."""
    link = network.Link(options.latency, options.bandwidth)
    joined = network.Network(link, options.ranks_per_host)
    print(f"{link} between hosts, {options.ranks_per_host} rank(s) on each")
    found: dict[str, Any] = {}
    for name in options.nets:
        step = step_of(*NETS[name])
        print(f"\n{name}")
        print("\n".join(scaling.table(step, options.ranks, joined)))
        counts = scaling.counts(options.ranks, step.shards)
        found[name] = {
            "ranks": counts,
            "rows": step.rows,
            "strong": [step.seconds(n, step.rows, joined) for n in counts],
            "weak": [step.seconds(n, step.rows * n, joined) for n in counts],
        }
    return found


def plot(found: dict[str, Any], path: str) -> None:
    """Step times of every network (needs the extra `plot`)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    titles = {"strong": "the same batch", "weak": "as many rows on each rank"}
    for axis, (way, title) in zip(axes, titles.items(), strict=True):
        for name, of in found.items():
            axis.loglog(of["ranks"], of[way], marker="o", markersize=3, label=name)
        axis.set_title(title)
        axis.set_xlabel("ranks")
    axes[0].set_ylabel("predicted seconds a step")
    axes[0].legend(fontsize="small")
    figure.savefig(path, dpi=150, bbox_inches="tight")


# ------------------------------------------------------------------------------ against real runs


def worker(out: str) -> None:
    """What each of two ranks does: what joins them."""
    comm = world()
    fit, _ = network.measure_links(comm)
    assert fit is not None
    if comm.rank == 0:
        Path(out).write_text(json.dumps([*fit.link, *fit.off]))


def test_hosts() -> Any:
    """`scripts/test_hosts` as a module."""
    loader = importlib.machinery.SourceFileLoader("test_hosts", str(ROOT / "scripts/test_hosts"))
    spec = importlib.util.spec_from_loader("test_hosts", loader)
    assert spec is not None
    hosts: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(hosts)
    return hosts


@contextmanager
def made(hosts: Any, count: int, each: int, rate: str) -> Iterator[Any]:
    """So many hosts, with `each` ranks on every one, and a folder for their files."""
    hosts.RANKS_A_HOST = each
    with tempfile.TemporaryDirectory() as folder:
        them = hosts.Hosts(count, rate, Path(folder))
        try:
            them.make()
            yield them
        finally:
            them.remove()


def measured_steps(them: Any) -> tuple[float, float]:
    """Seconds a step of a real run on these hosts: the median, and of its best quarter the worst.

    More ranks than cores and other programs disturb most rows a little and some a lot.
    """
    config, *overrides = CHECKED
    them.finished("train", str(ROOT / "configs" / config), "name=check", *overrides, seconds=300)
    path = them.folder / "runs" / "check" / "latest" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    took = [ROWS / row["samples_per_s"] for row in rows if "samples_per_s" in row]
    median, quarter = np.percentile(took[2:], [50, 25])  # the first steps are recorded
    return float(median), float(quarter)


def check(rate: str, most: int) -> dict[str, Any]:
    """Print predicted beside measured step times; raises the hosts' Skip."""
    hosts = test_hosts()
    os.environ["PATH"] += hosts.SBIN
    hosts.check_here()
    step = step_of(*CHECKED)
    with made(hosts, 2, 1, rate) as them:
        out = them.folder / "out.json"
        them.finished(__file__, "--worker", str(out), seconds=120)
        *values, off, _ = json.loads(out.read_text())
    link = network.Link(*values)
    sent = next(step.collectives(2)).nbytes
    found = f"{link} (off by {off:.0%})"
    print(f"links of {rate}, measured with 2 ranks: {found}; {sent / 1e6:.2f} MB a step")
    print(f"{'hosts':>5} {'ranks':>6} {'predicted':>12} {'best quarter':>22} {'median':>22}")
    rows = []
    for count, each in [job for job in JOBS if job[0] <= most]:
        with made(hosts, count, each, rate) as them:
            real = measured_steps(them)
        expected = step.seconds(
            count * each, step.rows, network.Network(link, each, cores=cores() / count)
        )
        row = {"hosts": count, "ranks": count * each, "predicted": expected}
        rows.append(row | dict(zip(("median", "quarter"), real, strict=True)))
        line = f"{count:>5} {count * each:>6} {expected * 1e3:>9.1f} ms"
        for took in reversed(real):
            line += f" {took * 1e3:>9.1f} ms {expected / took:>9.2f}"
        print(line, flush=True)
    return {"rate": rate, "latency": link.latency, "bandwidth": link.bandwidth, "rows": rows}


def quantity(read: Any) -> Any:
    """What argparse calls with the text of an option."""

    def value(text: str) -> float:
        try:
            return float(read(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = network.USUAL
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS), help="default: all")
    parser.add_argument("--ranks", type=int, default=MOST, help=f"up to (default {MOST:,})")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="default 1")
    parser.add_argument("--latency", type=quantity(network.latency), default=usual.latency)
    parser.add_argument("--bandwidth", type=quantity(network.bandwidth), default=usual.bandwidth)
    parser.add_argument("--seconds", type=float, help="for each of two batches of each network")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE, in seconds")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves (extra plot)")
    parser.add_argument("--check", action="store_true", help="compare with real runs; needs root")
    parser.add_argument("--rate", default="20mbit", help="of the links of --check, as tc writes it")
    parser.add_argument("--hosts", type=int, default=8, help="of --check, at most (default 8)")
    parser.add_argument("--worker", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker)
        return 0
    if options.ranks < 2 or options.ranks_per_host < 1:
        parser.error("--ranks: at least 2; --ranks-per-host: at least 1")
    if options.seconds is not None:
        scaling.SECONDS = options.seconds
    found: dict[str, Any]
    if options.check:
        if importlib.util.find_spec("mpi4py") is None:
            print("left out: mpi4py is not installed (pip install -e '.[mpich]')")
            return 0
        try:
            found = {"check": check(options.rate, options.hosts)}
        except Exception as reason:
            if type(reason).__name__ != "Skip":
                raise
            print(f"left out: {reason}")
            return 0
    else:
        found = {"curves": predict(options)}
        if options.plot:
            plot(found["curves"], options.plot)
    if options.json:
        versions = {"python": platform.python_version(), "numpy": np.__version__}
        Path(options.json).write_text(json.dumps({"versions": versions, **found}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
