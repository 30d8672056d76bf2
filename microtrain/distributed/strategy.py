"""Which `Reducer` a wrapped model gets, from the options that its user gave."""

from __future__ import annotations

import numpy as np

from ..errors import LaunchError, need
from ..nn.module import Module
from ..optim.flat import FlatStorage
from .communicator import Communicator
from .compression import COMPRESSIONS
from .nccl import Nccl, ready
from .overlap import BUCKET, Overlap, worth
from .reducer import AtOnce, Reducer
from .shards import Shards


def strategy(
    comm: Communicator, storage: FlatStorage, module: Module, overlap: str,
    bucket_mb: float | None, compression: str, shards: int | None, backend: str,
) -> tuple[Reducer, str]:  # fmt: skip
    """The reducer, and whether it works beside the backward pass, with the reason; collective."""
    nccl = ready(comm, storage) if backend == "nccl" else None
    if shards is not None:
        return Shards(comm, storage, shards, module), "off: shards are reduced when all are there"
    if comm.size == 1:
        return Reducer(comm, storage), "off: one rank has nothing to reduce"
    if nccl is not None:
        return Nccl(comm, storage, nccl), "off: NCCL adds up all gradients at once"
    if compression != "none":
        return AtOnce(comm, storage, compression), "off: 16 bits are reduced at once"
    if any(type(buffer.grad) is not np.ndarray for buffer in storage.buffers):
        return AtOnce(comm, storage), "off: gradients on a GPU are staged at once"
    bucket = BUCKET if bucket_mb is None else int(bucket_mb * 2**20)
    on, why = overlap == "on", "asked for"
    if overlap == "auto":
        on, why = worth(comm, storage, bucket)
    if on and not comm.all(comm.concurrent):
        if overlap == "on":
            raise LaunchError(
                'DataParallel: overlap="on" calls MPI in a thread of its own, and this program has '
                "initialized MPI without MPI_THREAD_MULTIPLE; ask for it (mpi4py does unless "
                "mpi4py.rc.thread_level is set), or let overlap be auto or off"
            )
        on, why = False, "MPI was initialized without MPI_THREAD_MULTIPLE"
    if on:
        return Overlap(comm, storage, bucket), f"on: {why}"
    return AtOnce(comm, storage), f"off: {why}"


def check_options(
    module: Module, reduction: str, overlap: str, bucket_mb: float | None, compression: str,
    shards: int | None, sync_batchnorm: bool, backend: str,
) -> None:  # fmt: skip
    """ValueError for options that there are not, or that do not go together; TypeError."""
    who = "DataParallel"
    need(isinstance(module, Module), who, "expected a Module", type(module), error=TypeError)
    for name, value, choices in (
        ("reduction", reduction, ("mean", "sum")),
        ("overlap", overlap, ("auto", "on", "off")),
        ("compression", compression, COMPRESSIONS),
        ("backend", backend, ("mpi", "nccl")),
    ):
        text = f"{name} is {', '.join(choices[:-1])} or {choices[-1]}"
        need(value in choices, who, text, value, error=ValueError)
    good = bucket_mb is None or bucket_mb > 0
    need(good, who, "bucket_mb must be above 0", bucket_mb, error=ValueError)
    ways = {
        "overlap=on": overlap == "on",
        "compression": compression != "none",
        "shards": shards is not None,
        "backend=nccl": backend == "nccl",
    }
    asked = [name for name, on in ways.items() if on]
    text = "gradients are added up beside the pass (overlap=on), in 16 bits (compression), in a "
    text += "fixed tree (shards) or by NCCL, in an order of its own: choose one"
    need(len(asked) < 2, who, text, " and ".join(asked), error=ValueError)
    good, text = isinstance(sync_batchnorm, bool), "sync_batchnorm is True or False"
    need(good, who, text, sync_batchnorm, error=TypeError)
