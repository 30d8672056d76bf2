"""How long a step would take on more ranks: a model of latency, bandwidth and compute time.

A step is what a rank computes and, after it, what it waits for in the collectives of the step:

    step(W) = fixed + row * ceil(batch / W) + sum of collectives(W)

Where buckets travel beside the backward pass, a bucket begins when its gradients are final and the
bucket before it has arrived, and the control lane follows the last. The backward pass is taken as
two thirds of a step's computing (of the last micro-batch's), and a bucket as final after that share
of it which the gradients up to there are of all.

What collectives cost: `network.py`. Not in it: the additions of a reduction, ranks that wait for a
slower one, evaluations, checkpoints, packing of compressed gradients.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from ..backend import default_dtype
from ..data.loader import DataLoader, MicroBatches
from ..distributed import batch_norm
from ..distributed.overlap import BUCKET, buckets_of
from ..distributed.shards import WHOLE
from ..nn.normalization import BatchNorm
from ..words import labelled, plural, rate, size
from .divergence import NotFinite
from .network import USUAL, WITHIN, Collective, Fit, Link, Network, measure_links, span

if TYPE_CHECKING:
    from .state import Parts

__all__ = ["Scale", "Step", "measured", "predict", "table"]

SECONDS = 2.0  # for measuring each size of a batch
BACKWARD: Final = 2 / 3  # of a pass


@dataclass(frozen=True)
class Scale:
    """What `train --dry-run --ranks` is to predict.

    Attributes:
        ranks: up to how many.
        ranks_per_host: of them.
        latency, bandwidth: between hosts; None: measured where this job has several hosts, else the
            usual ones of a cluster.
    """

    ranks: int
    ranks_per_host: int = 1
    latency: float | None = None
    bandwidth: float | None = None

    def network(
        self, between: Fit | None = None, within: Fit | None = None
    ) -> tuple[Network, dict[str, str]]:
        """Of what is given, measured or assumed; and lines that say which."""
        given = {"--latency": self.latency, "--bandwidth": self.bandwidth}
        left = [option for option, value in given.items() if value is None]
        found, local = (between.link if between else USUAL), (within.link if within else WITHIN)
        link = Link(self.latency or found.latency, self.bandwidth or found.bandwidth)
        names = " and ".join(option.removeprefix("--") for option in left)
        source = f" ({names} measured here)" if between else f" (assumed; say {' and '.join(left)})"
        facts = {"network": f"{link} between hosts{source if left else ''}"}
        facts["hosts"] = f"{plural(self.ranks_per_host, 'rank')} on each"
        if self.ranks_per_host > 1:
            facts["hosts"] += f", {local} between them ({'measured here' if within else 'assumed'})"
        used = (between if left else None, within if self.ranks_per_host > 1 else None)
        if off := [fit.off[0] for fit in used if fit is not None and fit.loose]:
            facts["warning"] = f"what was measured is off its line by {max(off):.0%} (median)"
        return Network(link, self.ranks_per_host, local), facts


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
        buckets=tuple(
            (stop - start) * buffer.grad.itemsize
            for buffer in (buffers if apart else ())
            for start, stop, _ in buckets_of(buffer, run.model.storage, bucket)
        ),
        overlap=None if shared.overlap == "auto" else shared.overlap,
        backward=BACKWARD / loader.accumulate,
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
    """Lines for `train --dry-run --ranks`, of the step that was measured here; collective."""
    network, facts = scale.network(*measure_links(run.comm))
    overlaps = step.overlaps(scale.ranks, network)
    sent = sum(call.nbytes for call in step.collectives(scale.ranks, overlaps))
    where = "" if run.comm.size == 1 else f", measured on {run.comm.size} ranks"
    facts["compute"] = f"{span(step.fixed)} a pass and {span(step.row)} a row{where}"
    facts["send"] = f"{size(int(sent))} in a step"
    if overlaps:
        buckets = plural(len(step.buckets), "bucket")
        facts["send"] += f", {buckets} of it beside the backward pass between hosts"
    if step.shards is not None:
        facts["shards"] = f"{step.shards}, which a number of ranks must divide"
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
