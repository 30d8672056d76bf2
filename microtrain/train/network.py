"""What joins ranks: latency and bandwidth, measured or given, and what collectives cost over it.

Collectives cost what their algorithms in MPI cost, of n bytes over p ranks with a latency a and b
seconds a byte (Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
MPICH", 2005, sections 4.1, 4.3 and 4.5):

    all_reduce, recursive doubling      log2(p) (a + n b)
    all_reduce, Rabenseifner            2 log2(p) a + 2 n b (p - 1) / p
    all_gather of n bytes a rank        log2(p) a + (p - 1) n b
    all_to_all of n bytes to each       (p - 1) (a + n b)
"""

from __future__ import annotations

import itertools
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from ..distributed import Communicator

__all__ = ["Collective", "Fit", "Link", "Network", "fitted", "measure_links"]

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


LOOSE: Final = 0.2  # median deviation of a fit
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

    @property
    def loose(self) -> bool:
        """Whether its line says little of the times: half of them are off by more than a fifth."""
        return self.off[0] > LOOSE


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
