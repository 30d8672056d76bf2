"""Which `Reducer` a wrapped model gets, from the options that its user gave."""

from __future__ import annotations

import warnings

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
    bucket = BUCKET if bucket_mb is None else int(bucket_mb * 2**20)
    on, why = overlap == "on", "asked for"
    if comm.size == 1:
        on, why = False, "one rank has nothing to reduce"
    elif shards is not None or compression != "none":
        on, why = False, "shards and compressed gradients are reduced at once"
    elif nccl is not None:
        on, why = False, "NCCL adds up all gradients at once"
    elif any(type(buffer.grad) is not np.ndarray for buffer in storage.buffers):
        on, why = False, "gradients on a GPU are staged at once"
    elif overlap == "auto":
        on, why = worth(comm, storage, bucket)
    if on and not comm.all(comm.concurrent):
        if overlap == "on":
            raise LaunchError(
                'DataParallel: overlap="on" calls MPI in a thread of its own, and this program has '
                "initialized MPI without MPI_THREAD_MULTIPLE; ask for it (mpi4py does unless "
                "mpi4py.rc.thread_level is set), or let overlap be auto or off"
            )
        on, why = False, "MPI was initialized without MPI_THREAD_MULTIPLE"
    reducer: Reducer
    if shards is not None:
        reducer = Shards(comm, storage, shards, module)
    elif nccl is not None and comm.size > 1:
        reducer = Nccl(comm, storage, nccl)
    elif on:
        reducer = Overlap(comm, storage, bucket)
    elif comm.size > 1:
        reducer = AtOnce(comm, storage, compression)
    else:
        reducer = Reducer(comm, storage)
    if compression != "none" and comm.size > 1 and comm.num_nodes == 1 and comm.rank == 0:
        warnings.warn(
            f"DataParallel: compression={compression} costs accuracy and time and saves nothing "
            f"here: all {comm.size} ranks are on one machine and share its memory; use none",
            stacklevel=3,
        )
    return reducer, f"{'on' if on else 'off'}: {why}"


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
    text = "with shards every bit is the same at every number of ranks, and compression rounds by "
    need(compression == "none" or shards is None, who, text + "rank: choose one", error=ValueError)
    beside = overlap == "on" and (shards is not None or compression != "none")
    text = "shards and compressed gradients are reduced at once, when the pass is over; overlap is "
    need(not beside, who, text + "then off or auto", error=ValueError)
    plain = shards is None and compression == "none" and overlap != "on"
    text = "NCCL adds up whole gradients, in an order of its own: with backend=nccl there are no "
    text += "shards and no compression, and overlap is off or auto"
    need(backend != "nccl" or plain, who, text, error=ValueError)
    good, text = isinstance(sync_batchnorm, bool), "sync_batchnorm is True or False"
    need(good, who, text, sync_batchnorm, error=TypeError)
