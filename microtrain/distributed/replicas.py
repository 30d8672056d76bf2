"""Whether all ranks still have the same model: a drift is found when it begins, not in the result.

Replicas are equal by construction: they begin with rank 0's values and every update is the same
arithmetic on the same numbers. What makes them drift is a broken machine, ranks with different
libraries or processors, or code that changes parameters on one rank alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import to_host
from .communicator import Communicator
from .connection import world

__all__ = ["check_replicas"]


def check_replicas(
    tensors: Any, comm: Communicator | None = None, name: str = "check_replicas"
) -> None:
    """Compare the bits of `tensors` over the ranks. Collective.

    Costs a hash of the values (about a second for a gigabyte) and 16 bytes of communication.

    Args:
        tensors: a model (its parameters are compared), or pairs of a name and a Tensor, the same
            names on all ranks.
        comm: who takes part; None is `microtrain.distributed.world()`.
        name: what the message calls this comparison.

    Raises:
        RuntimeError: on every rank, with the ranks and the first tensor that differ.

    Example:
        >>> model = mt.nn.Linear(2, 1)
        >>> mt.distributed.check_replicas(model)
    """
    comm = world() if comm is None else comm
    if comm.size == 1:
        return
    named = list(tensors.named_parameters() if hasattr(tensors, "named_parameters") else tensors)
    digests = [_digest(tensor) for _, tensor in named]
    mine = np.frombuffer(hashlib.blake2b(b"".join(digests), digest_size=16).digest(), "u1")
    everyone = comm.all_gather(mine)
    if (everyone == everyone[0]).all():
        return
    found = comm.all_gather_object([(n, d) for (n, _), d in zip(named, digests, strict=True)])
    raise RuntimeError(f"{name}: {_difference(found)}")


def _digest(tensor: Any) -> bytes:
    host = np.ascontiguousarray(to_host(tensor._array))
    head = f"{host.dtype.str} {host.shape}".encode()
    return hashlib.blake2b(host.reshape(-1).view("u1").data, digest_size=16, key=head[:64]).digest()


def _difference(found: Sequence[Sequence[tuple[str, bytes]]]) -> str:
    """Who differs from most ranks, and in what."""
    names = [[name for name, _ in one] for one in found]
    usual = Counter(map(tuple, names)).most_common(1)[0][0]
    for rank, theirs in enumerate(names):
        if tuple(theirs) != usual:
            return f"rank {rank} compares other tensors than the others: {theirs} and {[*usual]}"
    drifted: dict[str, list[int]] = {}
    for number, name in enumerate(usual):
        seen = [one[number][1] for one in found]
        most = Counter(seen).most_common(1)[0][0]  # the lowest rank's, where there are as many
        if ranks := [rank for rank, digest in enumerate(seen) if digest != most]:
            drifted[name] = ranks
    name, ranks = next(iter(drifted.items()))
    who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    more = f" ({len(drifted)} of {len(usual)} tensors differ)" if len(drifted) > 1 else ""
    return (
        f"the replicas have drifted apart: {who} of {len(found)} differ from the others in "
        f"{name}{more}; a parameter was changed on one rank alone, or the machines compute "
        "differently"
    )
