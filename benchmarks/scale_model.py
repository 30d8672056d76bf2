"""The predicted time of a step against the number of ranks, and how far predictions are off.

For each network the step is measured here with two batch sizes; what it takes on up to 4,096 ranks
follows from latency and bandwidth, with the same batch (strong) and with as many rows on each rank
(weak).

    python benchmarks/scale_model.py
    python benchmarks/scale_model.py --latency 20us --bandwidth 10Gbit --plot scale.png

`--check` compares with real runs of 2, 4 and 8 ranks. The hosts are network namespaces
(`scripts/test_hosts` makes them; needs root and iproute2) with links so slow that two cores are
enough for eight ranks. Latency and bandwidth are measured with two ranks; all other figures are
predicted. Ranks that share the cores of this machine take turns.

    python benchmarks/scale_model.py --check --rate 20mbit

A step is what a rank computes and, after it, what it waits for in the collectives of the step:

    step(W) = fixed + row * ceil(batch / W) + sum of collectives(W)

Where buckets travel beside the backward pass, a bucket begins when its gradients are final and the
bucket before it has arrived, and the footer follows the last. The backward pass is taken as
two thirds of a step's computing (of the last micro-batch's), and a bucket as final after that share
of it which the gradients up to there are of all.

Collectives cost what their algorithms in MPI cost, of n bytes over p ranks with a latency a and b
seconds a byte (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
MPICH", 2005, sections 4.1, 4.3 and 4.5):

    all_reduce, recursive doubling      log2(p) (a + n b)
    all_reduce, Rabenseifner            2 log2(p) a + 2 n b (p - 1) / p
    all_gather of n bytes a rank        log2(p) a + (p - 1) n b
    all_to_all of n bytes to each       (p - 1) (a + n b)

Not in it: the additions of a reduction, ranks that wait for a
slower one, evaluations, checkpoints, packing of compressed gradients.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import io
import itertools
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

# isort: split

import numpy as np

from microtrain.backend import default_dtype
from microtrain.common.threads import cores
from microtrain.common.words import plural, rate
from microtrain.config.load import load_config
from microtrain.data.loading.loader import DataLoader, MicroBatches
from microtrain.distributed import Communicator, batch_norm, world
from microtrain.distributed.overlap import BUCKET, buckets_of
from microtrain.distributed.shards import WHOLE
from microtrain.nn.normalization import BatchNorm
from microtrain.train import Trainer
from microtrain.train.console import Output
from microtrain.train.step.divergence import NotFinite

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


# --------------------------------------------------------------------------------- what joins ranks


SIZES: Final = (8, 64, 512, 4096, 2**15, 2**18, 2**21)  # bytes of the messages that are timed
SECONDS: Final = 0.1  # for each of them, and the last is the first that takes half as long
_LATENCY: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_BANDWIDTH: Final = {
    unit + kind: scale / bits
    for unit, scale in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
    for kind, bits in (("bit", 8), ("B", 1))
}


class Link(NamedTuple):
    """What connects two ranks: seconds before the first byte of a message, bytes a second."""

    latency: float
    bandwidth: float

    def __str__(self) -> str:
        return f"{bits(self.bandwidth)}, {span(self.latency)}"


USUAL: Final = Link(2e-6, 100e9 / 8)  # of a cluster's network
WITHIN: Final = Link(1e-6, 5e9)  # shared memory


class Collective(NamedTuple):
    """One call of a step: `all_reduce`, `all_gather` or `all_to_all`.

    nbytes: that a rank gives; under all_to_all to each other rank.
    """

    name: str
    nbytes: float


@dataclass(frozen=True)
class Network:
    """The hosts of a job and what joins them.

    Args:
        link: between hosts; the ranks of a host share it.
        ranks_per_host: as many on every host.
        local: between the ranks of a host.
        cores: of a host; None: one for each rank. Where ranks share them, each computes in turn and
            waits its turn in every message.
    """

    link: Link = USUAL
    ranks_per_host: int = 1
    local: Link = WITHIN
    cores: float | None = None

    @property
    def crowd(self) -> float:
        """Ranks that share a core."""
        return max(1.0, self.ranks_per_host / (self.cores or self.ranks_per_host))

    def seconds(self, call: Collective, ranks: int) -> float:
        """What a collective of so many ranks takes.

        An all_reduce goes by hosts, as in MPICH: the ranks of a host add up, one of each host adds
        up with the others and gives the sum to its own. Others go from rank to rank.
        """
        link, local = (
            one._replace(latency=one.latency * self.crowd) for one in (self.link, self.local)
        )
        hosts, within = -(-ranks // self.ranks_per_host), min(ranks, self.ranks_per_host)
        if hosts == 1:
            return _seconds(call, ranks, local)
        if call.name == "all_reduce":
            # A reduction and a broadcast within the host cost two of its all_reduces.
            return 2 * _seconds(call, within, local) + _seconds(call, hosts, link)
        return _seconds(call, ranks, link._replace(bandwidth=link.bandwidth / within))


def _seconds(call: Collective, ranks: int, link: Link) -> float:
    """A collective of ranks that are all joined by equal links."""
    if ranks == 1:
        return 0.0
    latency, transfer = link.latency, call.nbytes / link.bandwidth
    rounds = ranks.bit_length() - 1
    odd = ranks != 1 << rounds
    if call.name == "all_reduce":
        power = 1 << rounds
        doubling = rounds * (latency + transfer)
        halving = 2 * rounds * latency + 2 * transfer * (power - 1) / power
        # Ranks above a power of two give theirs to another before, and get the sum after.
        return min(doubling, halving) + 2 * odd * (latency + transfer)
    if call.name == "all_gather":
        return (rounds + odd) * latency + (ranks - 1) * transfer
    return (ranks - 1) * (latency + transfer)


class Fit(NamedTuple):
    """A link that was measured: `off` is how far its line is from the times, as a share of them.

    off: the median and the greatest. largest: bytes of the largest message.
    """

    link: Link
    off: tuple[float, float]
    largest: int


def fitted(times: Sequence[tuple[int, float]]) -> Fit:
    """The line latency + bytes / bandwidth through times of messages between two ranks.

    The least sum of relative deviations: of all lines through two points, one has it, and a single
    wrong time does not bend it.

    Args:
        times: bytes and seconds, two sizes at least, in ascending order.
    """
    sizes, took = (np.array(column, float) for column in zip(*times, strict=True))
    lines = [(float(took[0]), float(took[-1] / sizes[-1]))]  # where all of the others fall
    for (n, before), (m, after) in itertools.combinations(times, 2):
        slope = (after - before) / (m - n)
        if slope > 0 and before > slope * n:
            lines.append((before - slope * n, slope))
    ways = [np.abs((a + b * sizes) / took - 1) for a, b in lines]
    best = min(range(len(lines)), key=lambda number: ways[number].sum())
    (latency, slope), off = lines[best], ways[best]
    return Fit(Link(latency, 1 / slope), (float(np.median(off)), float(off.max())), times[-1][0])


def measure_links(comm: Communicator) -> tuple[Fit | None, Fit | None]:
    """What joins the first two hosts, and two ranks of the first; None where there are none.

    Two ranks add up messages of several sizes, the others wait. Collective; the same on all ranks.
    """
    node, local = comm.node_rank, comm.local_rank
    found = []
    for end in (local == 0 and node < 2, node == 0 and local < 2):
        pair = comm.split(0 if end else None)
        fit = fitted(_times(pair)) if pair is not None and pair.size == 2 else None
        found.append(comm.broadcast_object(fit))  # rank 0 is in every pair
    return found[0], found[1]


def _times(pair: Communicator) -> list[tuple[int, float]]:
    """Bytes and median seconds of an all_reduce of two ranks, which sends each way once."""
    found: list[tuple[int, float]] = []
    for nbytes in SIZES:
        array = np.zeros(nbytes // 4, np.float32)
        times: list[float] = []
        calls = 5
        while len(times) < calls:
            began = time.perf_counter()
            pair.all_reduce(array)
            times.append(max(time.perf_counter() - began, 1e-9))
            if len(times) == 5:
                wanted = min(500, SECONDS / statistics.median(times))
                calls = pair.broadcast_object(max(8, int(wanted)))  # as many on both
        # What lies in buffers at first goes faster.
        found.append((nbytes, statistics.median(times[len(times) // 2 :])))
        if pair.broadcast_object(len(found) > 1 and found[-1][1] > SECONDS / 2):
            break
    return found


def span(seconds: float) -> str:
    """Three digits and a unit: 2.00 us, 16.4 ms."""
    for unit in ("s", "ms", "us"):
        if seconds >= _LATENCY[unit] * 0.9995:
            return f"{seconds / _LATENCY[unit]:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def bits(bandwidth: float) -> str:
    """Bytes a second as 100 Gbit/s."""
    for unit in ("T", "G", "M"):
        if bandwidth >= _BANDWIDTH[f"{unit}bit"] * 0.9995:
            return f"{bandwidth / _BANDWIDTH[f'{unit}bit']:.3g} {unit}bit/s"
    return f"{bandwidth / _BANDWIDTH['kbit']:.3g} kbit/s"


def latency(text: str) -> float:
    """Seconds of `20us`. Raises ValueError."""
    return _quantity(text, _LATENCY, "20us")


def bandwidth(text: str) -> float:
    """Bytes a second of `10Gbit` or `1.2GB`, with or without `/s`. Raises ValueError."""
    return _quantity(text.removesuffix("/s"), _BANDWIDTH, "10Gbit or 1.2GB")


def _quantity(text: str, units: dict[str, float], example: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)", text.strip())
    if found is None or found[2] not in units or not float(found[1]) > 0:
        expected = f"a number above 0 and a unit ({', '.join(units)}) such as {example}"
        raise ValueError(f"expected {expected}, got {text!r}")
    return float(found[1]) * units[found[2]]


# ------------------------------------------------------------------------------------------- a step


BATCH_SECONDS = 2.0  # for measuring each size of a batch
BACKWARD: Final = 2 / 3  # of a pass


@dataclass(frozen=True)
class Step:
    """What an optimizer step takes and sends.

    Attributes:
        fixed: seconds of a pass, however many rows it has.
        row: seconds of each row.
        rows: of the global batch.
        shards: under `reproducible: world` the passes that all ranks share; else None, and a rank
            makes one.
        flat: elements of what is added up after the passes, and bytes of an element: of each dtype
            the gradients.
        lane: elements of the footer, which travels behind the first.
        channels: of each batch norm whose statistics are those of all ranks.
        compressed: whether gradients travel in 16 bits.
        buckets: bytes of each, in the order that they go; none where nothing may be overlapped.
        overlap: whether they travel beside the backward pass; None: where that pays, by the rule of
            `distributed.overlap.worth`.
        backward: the share of a step's computing that they can travel beside.
    """

    fixed: float
    row: float
    rows: int
    flat: tuple[tuple[int, int], ...] = ()
    lane: int = 0
    channels: tuple[int, ...] = ()
    compressed: bool = False
    shards: int | None = None
    buckets: tuple[int, ...] = ()
    overlap: bool | None = None
    backward: float = BACKWARD

    def compute(self, ranks: int, rows: int) -> float:
        """Seconds that the rank with most rows of a batch computes."""
        passes = -(-self.shards // ranks) if self.shards else 1
        return passes * self.fixed + self.row * -(-rows // ranks)

    def overlaps(self, ranks: int, network: Network) -> bool:
        """Whether buckets travel beside the backward pass.

        Between ranks of one host, where it depends on its free cores, only if that was asked for.
        """
        if self.overlap is None:
            return len(self.buckets) > 1 and ranks > network.ranks_per_host
        return self.overlap and bool(self.buckets)

    def collectives(self, ranks: int, buckets: bool = False) -> Iterator[Collective]:
        """What a step of so many ranks calls, as `distributed/` does.

        buckets: whether the gradients travel in them: they come first.
        """
        if buckets:
            yield from (Collective("all_reduce", nbytes) for nbytes in self.buckets)
            yield Collective("all_reduce", self.lane * self.flat[0][1])
        for number, (elements, itemsize) in enumerate(() if buckets else self.flat):
            lane = 0 if number else self.lane
            nbytes = (elements + lane) * itemsize
            if self.compressed:
                part = 8 + 2 * -(-elements // ranks)
                yield Collective("all_to_all", part + 8 * lane)
                yield Collective("all_gather", part)
            elif self.shards is None:
                yield Collective("all_reduce", nbytes)
            elif ranks * nbytes <= WHOLE:
                yield Collective("all_gather", nbytes)
            else:
                yield Collective("all_to_all", nbytes / ranks)
                yield Collective("all_gather", nbytes / ranks)
        for count in () if self.shards else self.channels:
            if 8 * ranks * (2 * count + 1) <= batch_norm.WHOLE:  # forward, in float64
                yield Collective("all_gather", 8 * (2 * count + 1))
            else:
                yield Collective("all_reduce", 8 * (count + 1))
                yield Collective("all_reduce", 8 * count)
            yield Collective("all_reduce", self.flat[0][1] * 2 * count)  # backward

    def seconds(self, ranks: int, rows: int, network: Network) -> float:
        """The whole step of `rows` over all ranks."""
        if ranks == 1:
            return self.compute(1, rows)
        compute = self.compute(ranks, rows) * network.crowd
        if not self.overlaps(ranks, network):
            return compute + sum(network.seconds(call, ranks) for call in self.collectives(ranks))
        calls = [network.seconds(call, ranks) for call in self.collectives(ranks, buckets=True)]
        count, began = len(self.buckets), compute * (1 - self.backward)
        arrived, final = 0.0, 0
        for nbytes, took in zip(self.buckets, calls[:count], strict=True):
            final += nbytes
            ready = began + compute * self.backward * final / sum(self.buckets)
            arrived = max(arrived, ready) + took  # one after another
        return arrived + sum(calls[count:])


# ------------------------------------------------------------------------------- measured in a run


def measured(
    run: Any, take_step: Callable[[MicroBatches], None], settle: Callable[[], None]
) -> Step:
    """The step of a run that has not begun: real steps with two sizes of its batch; collective.

    The run cannot be used afterwards. Time in collectives is left out.

    Args:
        run: its parts.
        take_step: takes an optimizer step.
        settle: learns what other ranks have met; collective.
    """

    def compute_time(loader: DataLoader, rows: int) -> float:
        run.loader = loader
        return _compute_time(run, rows, take_step, settle)

    loader, shards = run.loader, run.shards
    rows = min(loader.batch_size, len(loader.dataset))
    pieces = loader.accumulate * (shards or run.comm.size)
    few = max(2 * pieces, rows // 16)
    whole = compute_time(loader, rows)
    passes = -(-shards // run.comm.size) if shards else 1
    mine, row = -(-rows // run.comm.size), 0.0
    if few < rows:
        smaller = DataLoader(
            loader.dataset, few, seed=loader.seed, shuffle=loader.shuffle, comm=run.comm,
            accumulate=loader.accumulate, shards=shards,
        )  # fmt: skip
        least = compute_time(smaller, few)
        # Rows of a small network are nearly free: what was measured may fall with them.
        row = max(0.0, whole - least) / (mine - -(-few // run.comm.size))
    buffers = run.model.storage.buffers
    flat = [(b.grad.size, b.grad.itemsize) for b in buffers]
    kept = sum(tensor.numel() for _, tensor in run.model.module.named_buffers())
    flat += [(kept + 1, 8)] if shards and kept else []  # the mean of running statistics, float64
    layers = [m for m in run.model.module.modules() if isinstance(m, BatchNorm)]
    shared = run.config.distributed
    apart = shards is None and shared.compression == "none" and shared.backend != "nccl"
    bucket = BUCKET if shared.bucket_mb == "auto" else int(shared.bucket_mb * 2**20)
    return Step(
        fixed=max(0.0, whole - row * mine) / passes,
        row=row,
        rows=rows,
        flat=tuple(flat),
        lane=buffers[0].wide.size - buffers[0].grad.size,
        channels=tuple(m.num_features for m in layers) if shared.sync_batchnorm else (),
        compressed=shared.compression != "none",
        shards=shards,
        buckets=tuple(a.nbytes for a, _ in buckets_of(run.model.storage, bucket)) if apart else (),
        overlap=None if shared.overlap == "auto" else shared.overlap,
        backward=BACKWARD / loader.accumulate,
    )


def _compute_time(
    run: Any, rows: int, take_step: Callable[[MicroBatches], None], settle: Callable[[], None]
) -> float:
    """Median seconds of a step of `rows` rows outside of collectives, of the slowest rank."""
    loader, model, times = run.loader, run.model, []
    end = time.perf_counter() + BATCH_SECONDS
    with np.errstate(all="ignore"), default_dtype(run.config.dtype):
        for number, micro_batches in enumerate(islice(loader.steps(passes=None), 2000), start=1):
            complete = loader.global_size == rows
            waited, began = model.comm_seconds, time.perf_counter()
            with suppress(NotFinite):
                take_step(micro_batches)
            if complete:
                spent = time.perf_counter() - began
                times.append(spent - (model.comm_seconds - waited))
            if number & (number - 1) == 0:
                settle()
            if number % 8 == 0 and run.comm.any(time.perf_counter() > end and len(times) >= 8):
                break
    # Steps that are recorded and compiled take longer, and are few.
    return max(run.comm.all_gather_object(statistics.median(times[len(times) // 2 :])))


def counts(ranks: int, shards: int | None = None) -> list[int]:
    """Powers of two up to `ranks`, and that; of shards those that divide them."""
    found = [1 << n for n in range(ranks.bit_length()) if 1 << n < ranks] + [ranks]
    return [n for n in found if shards is None or shards % n == 0]


def table(step: Step, ranks: int, network: Network) -> list[str]:
    """Lines of step times at 1 to `ranks` ranks, with the same batch and with as many rows each."""
    strong, weak = f"{plural(step.rows, 'row')} a step", f"{plural(step.rows, 'row')} a rank"
    lines = [
        f"{'':13}{strong:^31} {weak:^31}".rstrip(),
        f"{'ranks':>6} {'rows':>6}" + f"{'step':>10} {'samples/s':>10} {'efficiency':>10}" * 2,
    ]
    alone = step.seconds(1, step.rows, network)
    for count in counts(ranks, step.shards):
        line = f"{count:>6,} {-(-step.rows // count):>6,}"
        for rows in (step.rows, step.rows * count):
            took = step.seconds(count, rows, network)
            # Of as many ranks, each as fast as one alone.
            share = alone * rows / step.rows / count / took
            line += f"{span(took):>10} {rate(rows / took):>10} {share:>10.1%}"
        lines.append(line)
    return lines


# ------------------------------------------------------------------------ what is printed and drawn


def step_of(config: str, *overrides: str) -> Step:
    """The measured step of a run of one rank."""
    silent = Output(0, stream=io.StringIO(), errors=io.StringIO())
    settings = load_config(ROOT / "configs" / config, [*overrides])
    trainer = Trainer.from_config(settings, output=silent)
    return measured(trainer, trainer.take_step, trainer.execution.settle)


def predict(options: argparse.Namespace) -> dict[str, Any]:
    """Print the table of every network; what JSON and plot have of it."""
    link = Link(options.latency, options.bandwidth)
    joined = Network(link, options.ranks_per_host)
    print(f"{link} between hosts, {options.ranks_per_host} rank(s) on each")
    found: dict[str, Any] = {}
    for name in options.nets:
        step = step_of(*NETS[name])
        print(f"\n{name}")
        print("\n".join(table(step, options.ranks, joined)))
        ranks = counts(options.ranks, step.shards)
        found[name] = {
            "ranks": ranks,
            "rows": step.rows,
            "strong": [step.seconds(n, step.rows, joined) for n in ranks],
            "weak": [step.seconds(n, step.rows * n, joined) for n in ranks],
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
    fit, _ = measure_links(comm)
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
    link = Link(*values)
    sent = next(step.collectives(2)).nbytes
    found = f"{link} (off by {off:.0%})"
    print(f"links of {rate}, measured with 2 ranks: {found}; {sent / 1e6:.2f} MB a step")
    print(f"{'hosts':>5} {'ranks':>6} {'predicted':>12} {'best quarter':>22} {'median':>22}")
    rows = []
    for count, each in [job for job in JOBS if job[0] <= most]:
        with made(hosts, count, each, rate) as them:
            real = measured_steps(them)
        expected = step.seconds(count * each, step.rows, Network(link, each, cores=cores() / count))
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
    global BATCH_SECONDS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = USUAL
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS), help="default: all")
    parser.add_argument("--ranks", type=int, default=MOST, help=f"up to (default {MOST:,})")
    parser.add_argument("--ranks-per-host", type=int, default=1, help="default 1")
    parser.add_argument("--latency", type=quantity(latency), default=usual.latency)
    parser.add_argument("--bandwidth", type=quantity(bandwidth), default=usual.bandwidth)
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
        BATCH_SECONDS = options.seconds
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
