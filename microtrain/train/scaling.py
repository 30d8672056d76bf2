"""How long a step would take on more ranks: a model of latency, bandwidth and compute time.

A step is what a rank computes and, after it, what it waits for in the collectives of the step:

    step(W) = fixed + row * ceil(batch / W) + sum of collectives(W)

Collectives cost what their algorithms in MPI cost, of n bytes over p ranks with a latency a and b
seconds a byte (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
MPICH", 2005, sections 4.1, 4.3 and 4.5):

    all_reduce, recursive doubling      log2(p) (a + n b)
    all_reduce, Rabenseifner            2 log2(p) a + 2 n b (p - 1) / p
    all_gather of n bytes a rank        log2(p) a + (p - 1) n b
    all_to_all of n bytes to each       (p - 1) (a + n b)

Not in it: the additions of a reduction, ranks that wait for a slower one, evaluations, checkpoints,
packing of compressed gradients; and what buckets save, which travel beside the backward pass.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ..backend import default_dtype
from ..data.loader import DataLoader, MicroBatches
from ..distributed import batch_norm
from ..distributed.overlap import BUCKET
from ..distributed.shards import WHOLE
from ..nn.normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d
from ..words import labelled, plural, rate, size
from .divergence import NotFinite

if TYPE_CHECKING:
    from .state import Parts

__all__ = ["Collective", "Link", "Network", "Scale", "Step", "fitted", "predict", "table"]

SECONDS = 2.0  # for measuring each size of a batch
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
    """

    link: Link = USUAL
    ranks_per_host: int = 1
    local: Link = WITHIN

    def seconds(self, call: Collective, ranks: int) -> float:
        """What a collective of so many ranks takes.

        An all_reduce goes by hosts, as in MPICH: the ranks of a host add up, one of each host adds
        up with the others and gives the sum to its own. Others go from rank to rank.
        """
        hosts, within = -(-ranks // self.ranks_per_host), min(ranks, self.ranks_per_host)
        if hosts == 1:
            return _seconds(call, ranks, self.local)
        if call.name == "all_reduce":
            # A reduction and a broadcast within the host cost two of its all_reduces.
            return 2 * _seconds(call, within, self.local) + _seconds(call, hosts, self.link)
        return _seconds(call, ranks, self.link._replace(bandwidth=self.link.bandwidth / within))


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


def fitted(ranks: int, latency: float, nbytes: int, seconds: float) -> Link:
    """The link between hosts of one rank each, from the times of two all_reduces.

    The inverse of the formulas: recursive doubling for the first, Rabenseifner's for the second.

    Args:
        ranks: two at least.
        latency: seconds of an all_reduce of a few bytes.
        nbytes, seconds: of one that is so large that latency hardly counts.
    """
    rounds = (ranks - 1).bit_length()
    transfer = max(seconds - 2 * latency, seconds / 2)  # where the two were measured in noise
    return Link(latency / rounds, 2 * nbytes * (ranks - 1) / ranks / transfer)


@dataclass(frozen=True)
class Scale:
    """What `train --dry-run --ranks` is to predict.

    Attributes:
        ranks: up to how many.
        network: of the hosts.
        assumed: what to say of the network where nobody has given it.
    """

    ranks: int
    network: Network
    assumed: str = ""

    @classmethod
    def of(
        cls,
        ranks: int,
        ranks_per_host: int = 1,
        latency: float | None = None,
        bandwidth: float | None = None,
    ) -> Scale:
        """With the usual values of a cluster's network for what is None."""
        given = {"--latency": latency, "--bandwidth": bandwidth}
        left = [option for option, value in given.items() if value is None]
        link = Link(latency or USUAL.latency, bandwidth or USUAL.bandwidth)
        assumed = f" (assumed; say {' and '.join(left)})" if left else ""
        return cls(ranks, Network(link, ranks_per_host), assumed)


@dataclass(frozen=True)
class Step:
    """What an optimiser step takes and sends.

    Attributes:
        fixed: seconds of a pass, however many rows it has.
        row: seconds of each row.
        rows: of the global batch.
        shards: under `reproducible: world` the passes that all ranks share; else None, and a rank
            makes one.
        flat: elements of what is added up after the passes, and bytes of an element: of each dtype
            the gradients.
        lane: elements of the control lane, which travels behind the first.
        channels: of each batch norm whose statistics are those of all ranks.
        compressed: whether gradients travel in 16 bits.
    """

    fixed: float
    row: float
    rows: int
    flat: tuple[tuple[int, int], ...] = ()
    lane: int = 0
    channels: tuple[int, ...] = ()
    compressed: bool = False
    shards: int | None = None

    def compute(self, ranks: int, rows: int) -> float:
        """Seconds that the rank with most rows of a batch computes."""
        passes = -(-self.shards // ranks) if self.shards else 1
        return passes * self.fixed + self.row * -(-rows // ranks)

    def collectives(self, ranks: int) -> Iterator[Collective]:
        """What a step of so many ranks calls, as `distributed/` does."""
        for number, (elements, itemsize) in enumerate(self.flat):
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
        calls = (network.seconds(call, ranks) for call in self.collectives(ranks))
        return self.compute(ranks, rows) + sum(calls)


# ------------------------------------------------------------------------------- measured in a run


def measured(
    run: Parts, take_step: Callable[[MicroBatches], None], settle: Callable[[], None]
) -> Step:
    """The step of a run that has not begun: real steps with two sizes of its batch; collective.

    The run cannot be used afterwards. Time in collectives is left out.

    Args:
        run: its parts.
        take_step: takes an optimiser step.
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
    norms = (BatchNorm1d, BatchNorm2d, BatchNorm3d)
    layers = [m for m in run.model.module.modules() if isinstance(m, norms)]
    shared = run.config.distributed
    return Step(
        fixed=max(0.0, whole - row * mine) / passes,
        row=row,
        rows=rows,
        flat=tuple(flat),
        lane=buffers[0].wide.size - buffers[0].grad.size,
        channels=tuple(m.num_features for m in layers) if shared.sync_batchnorm else (),
        compressed=shared.compression != "none",
        shards=shards,
    )


def _compute_time(
    run: Parts, rows: int, take_step: Callable[[MicroBatches], None], settle: Callable[[], None]
) -> float:
    """Median seconds of a step of `rows` rows outside of collectives, of the slowest rank."""
    loader, model, times = run.loader, run.model, []
    end = time.perf_counter() + SECONDS
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


def predict(run: Parts, step: Step, scale: Scale) -> list[str]:
    """Lines for `train --dry-run --ranks`, of the step that was measured in this run."""
    network, on = scale.network, run.comm.size
    sent = sum(call.nbytes for call in step.collectives(scale.ranks))
    facts = {"network": f"{network.link} between hosts{scale.assumed}"}
    hosts = f"{plural(network.ranks_per_host, 'rank')} on each"
    if network.ranks_per_host > 1:
        hosts += f", {network.local} between them (assumed)"
    facts["hosts"] = hosts
    where = "" if on == 1 else f", measured on {on} ranks"
    facts["compute"] = f"{span(step.fixed)} a pass and {span(step.row)} a row{where}"
    facts["send"] = f"{size(int(sent))} in a step"
    if step.shards is not None:
        facts["shards"] = f"{step.shards}, which a number of ranks must divide"
    plain = not step.compressed and step.shards is None
    if plain and run.config.distributed.overlap is not False and sent > BUCKET:
        facts["send"] += "; what buckets save is not counted"
    return [*labelled(facts), "", *table(step, scale.ranks, network)]


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


# ----------------------------------------------------------------------------------------- in words


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
