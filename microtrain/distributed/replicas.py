"""All ranks have the same model: they begin with it, and a drift is found when it begins.

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

from ..backend import XP, to_host
from ..nn.module import Module
from ..optim.flat import FlatStorage
from .agreement import all_equal
from .communicator import Communicator, ranks_named
from .connection import ranks_of

__all__ = ["check_replicas", "difference", "digest", "take_values_of_rank_0"]


def difference(comm: Communicator, module: Module, options: dict[str, Any]) -> str:
    """The first difference between the ranks' options or tensors, as text; collective."""
    params, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    mine = [f"{name}={value!r}" for name, value in options.items()]
    mine += [f"{n}: {t.dtype.name}{list(t.shape)}" for n, t in (params | buffers).items()]
    mine += [f"requires_grad of {name}: {param._rg}" for name, param in params.items()]
    if all_equal(comm, "\n".join(mine).encode()):
        return ""
    everyone = comm.all_gather_object(mine)
    rank = next(n for n, theirs in enumerate(everyone) if theirs != everyone[0])
    pairs = zip(everyone[0], everyone[rank], strict=False)
    return next(
        (f"rank 0 has {a} where rank {rank} has {b}" for a, b in pairs if a != b),
        f"rank 0 has {len(everyone[0]) - len(options)} tensors, rank {rank} has "
        f"{len(everyone[rank]) - len(options)}",
    )


def take_values_of_rank_0(comm: Communicator, module: Module, storage: FlatStorage) -> None:
    """Give the parameters, in their flat storage, and the buffers rank 0's values; collective."""
    if comm.size == 1:
        return
    arrays = [buffer.data for buffer in storage.buffers]
    arrays += [tensor._array for _, tensor in module.named_buffers()]
    for array in arrays:
        host = np.ascontiguousarray(to_host(array))
        comm.broadcast(host)
        if host is not array:
            array[...] = XP[type(array)].asarray(host)
    storage.stamp()


def check_replicas(
    tensors: Any, comm: Communicator | Any = None, name: str = "check_replicas"
) -> None:
    """Compare the bits of `tensors` over the ranks. Collective.

    Costs a hash of the values (about a second for a gigabyte) and 16 bytes of communication.

    Args:
        tensors: a model (its parameters are compared), or pairs of a name and a Tensor, the same
            names on all ranks.
        comm: who takes part; None: the ranks of the model, else `microtrain.distributed.world()`.
        name: what the message calls this comparison.

    Raises:
        RuntimeError: on every rank, with the ranks and the first tensor that differ.

    Example:
        >>> model = mt.nn.Linear(2, 1)
        >>> mt.distributed.check_replicas(model)
    """
    comm = ranks_of(comm, tensors)
    if comm.size == 1:
        return
    named = list(tensors.named_parameters() if hasattr(tensors, "named_parameters") else tensors)
    digests = [digest(tensor) for _, tensor in named]
    if all_equal(comm, b"".join(digests)):
        return
    found = comm.all_gather_object([(n, d) for (n, _), d in zip(named, digests, strict=True)])
    raise RuntimeError(f"{name}: {_difference(found)}")


def digest(tensor: Any) -> bytes:
    """16 bytes of a hash of the values, their dtype and shape."""
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
    more = f" ({len(drifted)} of {len(usual)} tensors differ)" if len(drifted) > 1 else ""
    return (
        f"the replicas have drifted apart: {ranks_named(ranks)} of {len(found)} differ from the "
        f"others in {name}{more}; a parameter was changed on one rank alone, or the machines "
        "compute differently"
    )
