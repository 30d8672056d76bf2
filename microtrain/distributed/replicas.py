"""All ranks have the same model: they begin with it, and a drift is found when it begins.

Replicas are equal by construction: they begin with rank 0's values and every update is the same
arithmetic on the same numbers. What makes them drift is a broken machine, ranks with different
libraries or processors, or code that changes parameters on one rank alone.

While a model trains, one number of the footer tells of what the program itself can make different
on one rank: which parameters require grad, and the buffers of a model that updates them from the
rows it sees. Then ranks would compute different things without a word.

A rank sends a mark of these, 0 as long as there is nothing to tell. Only the sum over the ranks
arrives. Written to a base above the number of ranks, with digits 0 and 1, nothing is carried in it:
it is a mark times the number of ranks if, and only if, all have sent that mark. So all ranks see at
the same step that they differ, and find out in what. The mark is of another hash at every step: one
difference that it does not show, the next one does.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..backend import LIBRARIES, XP, to_host
from ..nn.module import Module
from ..nn.normalization import BatchNorm
from ..optim.flat import FlatStorage
from .agreement import all_equal, differing
from .communicator import Communicator, by_rank, ranks_named
from .connection import ranks_of

SAMPLE: Final = 2**16  # bytes of a buffer that are looked at in a step, each time others
STEPS: Final = 24  # for so many a new choice of what requires grad is compared
BITS: Final = 24  # of a number of the footer


def difference(comm: Communicator, module: Module, options: dict[str, Any]) -> str:
    """The first difference between the ranks' options or tensors, as text; collective."""
    params, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    mine = {name: repr(value) for name, value in options.items()}
    mine |= {n: f"{t.dtype.name}{list(t.shape)}" for n, t in (params | buffers).items()}
    mine |= {f"requires_grad of {name}": str(param._rg) for name, param in params.items()}
    mine["the list of tensors"] = ", ".join(params | buffers)
    if all_equal(comm, repr(mine).encode()):
        return ""
    found = differing(comm.all_gather_object(mine))
    return next(f"{name} is {by_rank(values)}" for name, values in found)


def take_values_of_rank_0(comm: Communicator, module: Module, storage: FlatStorage) -> None:
    """Give the parameters, in their flat storage, and the buffers rank 0's values; collective."""
    if comm.size == 1:
        return
    _from_rank_0(comm, [buffer.data for buffer in storage.buffers])
    take_buffers_of_rank_0(comm, module)
    storage.bump_versions()


def take_buffers_of_rank_0(comm: Communicator, module: Module) -> None:
    """Give the buffers rank 0's values; collective."""
    _from_rank_0(comm, [tensor._array for _, tensor in module.named_buffers()])


def _from_rank_0(comm: Communicator, arrays: Sequence[Any]) -> None:
    for array in arrays:
        host = np.ascontiguousarray(to_host(array))
        comm.broadcast(host)
        if host is not array:
            array[...] = XP[type(array)].asarray(host)


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
    named = tensors.named_parameters() if hasattr(tensors, "named_parameters") else tensors
    mine = {key: digest(tensor) for key, tensor in named}
    if not all_equal(comm, repr(mine).encode()):
        raise RuntimeError(f"{name}: {_difference(comm.all_gather_object(mine))}")


def digest(tensor: Any) -> bytes:
    """16 bytes of a hash of the values, their dtype and shape."""
    host = np.ascontiguousarray(to_host(tensor._array))
    head = f"{host.dtype.str} {host.shape}".encode()
    return hashlib.blake2b(host.reshape(-1).view("u1").data, digest_size=16, key=head[:64]).digest()


def _difference(everyone: Sequence[dict[str, bytes]]) -> str:
    """Who differs from most ranks, and in what."""
    usual = Counter(map(tuple, everyone)).most_common(1)[0][0]
    for rank, theirs in enumerate(everyone):
        if tuple(theirs) != usual:
            return f"rank {rank} compares different tensors: {[*theirs]}, the others {[*usual]}"
    drifted = [*differing(everyone)]
    name, digests = drifted[0]
    most = Counter(digests.values()).most_common(1)[0][0]  # the lowest rank's, if as many have it
    ranks = [rank for rank, digest in digests.items() if digest != most]
    more = f" ({len(drifted)} of {len(usual)} tensors differ)" if len(drifted) > 1 else ""
    return (
        f"the replicas have drifted apart: {ranks_named(ranks)} of {len(everyone)} differ from the "
        f"others in {name}{more}; a parameter was changed on one rank alone, or the machines "
        "compute differently"
    )


class Alike:
    """Watches one model.

    Args:
        buffers: whether those of the model are watched, but for batch norms', which have rules of
            their own.

    Attributes:
        sent: the mark of the last step.
    """

    def __init__(
        self, comm: Communicator, module: Module, storage: FlatStorage, buffers: bool
    ) -> None:
        self.comm, self.module, self.storage, self.buffers = comm, module, storage, buffers
        base = comm.size + 1
        more = (base**n for n in range(1, BITS) if base ** (n + 1) <= 2**BITS)
        self._powers = [1, *more]
        self._grads = self._which_require_grad()
        self._news = 0  # steps for which these are compared
        # Of each watched buffer where it is, and the Tensor with its version as last seen.
        self._places: dict[str, tuple[Module, str]] = {}
        self._seen: dict[str, tuple[Any, int, bytes]] = {}
        self._moving: set[str] = set()  # those that have changed: looked at in every step
        self.sent = 0.0
        self.look()

    def _which_require_grad(self) -> tuple[bool, ...]:
        return tuple([param._rg for param in self.storage.params])

    def look(self) -> None:
        """See which there are, and which require grad; after a change of the structure."""
        if self.comm.size == 1:
            return
        if self._grads != (grads := self._which_require_grad()):
            self._grads, self._news = grads, STEPS
        if not self.buffers:
            return
        self._places = {
            f"{name}.{key}".lstrip("."): (module, key)
            for name, module in self.module.named_modules()
            if module._buffers and not isinstance(module, BatchNorm)
            for key in module._buffers
            if vars(module)[key] is not None
        }
        for name in self._places.keys() - self._seen.keys():
            tensor = self._tensor(name)
            self._seen[name] = tensor, _version(tensor), _bytes(tensor, 0)

    def _tensor(self, name: str) -> Any:
        module, key = self._places[name]
        return vars(module)[key]

    def mark(self, step: int) -> float:
        """What this rank sends in that step, the same number on all ranks."""
        self.sent = 0.0
        if not (self._news or self._places):
            return 0.0
        self._find_moving(thorough=step & (step - 1) == 0)
        if not (self._news or self._moving):
            return 0.0
        hashed = hashlib.blake2b(b"%d" % step, digest_size=8)
        if self._news:
            self._news -= 1
            hashed.update(bytes(self._grads))
        for name in sorted(self._moving & self._places.keys()):
            hashed.update(name.encode() + _bytes(self._tensor(name), step))
        word = int.from_bytes(hashed.digest())
        if len(self._powers) > 1:
            word |= 1  # something to tell is never like nothing to tell
        self.sent = float(sum(power for n, power in enumerate(self._powers) if word >> n & 1))
        return self.sent

    def _find_moving(self, thorough: bool) -> None:
        """Which buffers have been written: by their versions; `thorough`: by their values too.

        Writes through NumPy, and those of a captured step, raise no version.
        """
        for name in self._places.keys() - self._moving:
            tensor, version, values = self._seen[name]
            now = self._tensor(name)
            same = now is tensor and _version(now) == version
            if not same or (thorough and _bytes(now, 0) != values):
                self._moving.add(name)
                self._seen[name] = now, 0, b""

    def check(self, total: float) -> None:
        """RuntimeError on all ranks unless all marks of the last step are one; `total`: their sum.

        Collective where they are not.
        """
        if total == self.comm.size * self.sent:
            return
        grads = {name: str(param._rg) for name, param in self.module.named_parameters()}
        values = {name: digest(self._tensor(name)) for name in self._places}
        everyone = self.comm.all_gather_object((grads, values, self._moving))
        for name, found in differing([theirs for theirs, _, _ in everyone]):
            raise RuntimeError(
                f"DataParallel: requires_grad of {name} is {by_rank(found)}: the ranks would "
                "train different models; set it alike on all of them, in the same step"
            )
        for name, digests in differing([theirs for _, theirs, _ in everyone]):
            others = [rank for rank, digest in digests.items() if digest != digests.get(0)]
            raise RuntimeError(
                f"DataParallel: the ranks' buffers have become different: {name} of "
                f"{ranks_named(others)} is not that of rank 0. A model that updates a buffer "
                "from its rows sees those of its own rank: update it from sums over all ranks, "
                "mt.distributed.all_reduce(x.sum(0)) / mt.distributed.all_reduce(count); or "
                "keep a Tensor that is each rank's own in an attribute that is not a buffer"
            )
        self._moving = self._moving.union(*(moving for _, _, moving in everyone))


def _version(tensor: Any) -> int:
    return 0 if tensor._version is None else tensor._version.n


def _bytes(tensor: Any, step: int) -> bytes:
    """The values, of a large Tensor a part, as `step` chooses it."""
    if type(tensor._array) not in LIBRARIES:  # of a captured step, which refuses it at the end
        return b""
    flat = to_host(tensor._array).reshape(-1)
    every = max(1, flat.nbytes // SAMPLE)
    return flat[step % every :: every].tobytes()
