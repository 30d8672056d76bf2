"""Gradients of GPUs added up by NCCL, from GPU to GPU; MPI introduces the ranks to each other.

NCCL takes one GPU for each rank, and adds up in an order of its own. What only some ranks can see,
an absent library or a GPU that two of them share, is settled over MPI before NCCL is asked: a rank
that waits in NCCL for one that will not come has no error to report.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backend import Staging, cuda
from ..errors import ConfigError, LaunchError
from ..optim.flat import FlatStorage
from .agreement import agreed, from_root, settled
from .communicator import Communicator
from .footer import Summed, Totals, pack
from .reducer import Reducer

WAY_OUT = "or set distributed.backend to auto, which adds up gradients over MPI"


def ready(comm: Communicator, storage: FlatStorage) -> Any:
    """CuPy's module of NCCL, where these ranks can use it; collective.

    Raises, on every rank, ConfigError for gradients that are not on a GPU, LaunchError where CuPy
    has no NCCL and where two ranks are on one GPU.
    """
    gradients = [buffer.grad for buffer in storage.buffers]
    with settled(comm):
        if any(type(array) is np.ndarray for array in gradients):
            raise ConfigError(
                "distributed.backend: nccl adds up gradients on GPUs, but those of this model are "
                f"on the CPU; set device to cuda, {WAY_OUT}"
            )
        found = _load()
        # Not its number: which GPU is number 0 depends on CUDA_VISIBLE_DEVICES.
        about = cuda().module.cuda.runtime.getDeviceProperties(gradients[0].device.id)
    mine = comm.node_rank, *(about[key] for key in ("pciDomainID", "pciBusID", "pciDeviceID"))
    everyone = comm.all_gather_object(mine)
    for rank, gpu in enumerate(everyone):
        if (first := everyone.index(gpu)) != rank:
            raise agreed(
                LaunchError(
                    f"distributed.backend: nccl takes a GPU for each rank, but ranks {first} and "
                    f"{rank} are on the same GPU of one host; start fewer ranks, {WAY_OUT}"
                )
            )
    return found


def _load() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy warns on every rank, and goes on without it
            found = importlib.import_module("cupy.cuda.nccl")
        if found.available:
            return found
        why = "the library is not installed"
    except ImportError as error:
        why = str(error)
    raise LaunchError(
        f"distributed.backend: nccl was asked for, but CuPy has no NCCL here: {why}; install it "
        f"(pip install nvidia-nccl-cu12 or nvidia-nccl-cu13, as your CUDA is), {WAY_OUT}"
    )


def _called(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` of NCCL's; what it says of the machine or the network is a LaunchError."""
    try:
        return function(*args)
    except RuntimeError as error:
        raise LaunchError(
            f"NCCL cannot connect the ranks: {error}; mend that (NCCL_DEBUG=INFO in the "
            f"environment says more), {WAY_OUT}"
        ) from error


class Nccl(Reducer):
    """One reduction for each buffer when the pass is over; only the footer sees the host.

    Args:
        nccl: what `ready` returned.
    """

    communicates = True

    def __init__(self, comm: Communicator, storage: FlatStorage, nccl: Any) -> None:
        super().__init__(comm, storage)
        unique = from_root(comm, lambda: _called(nccl.get_unique_id))
        with settled(comm):
            self._ranks = _called(nccl.NcclCommunicator, comm.size, unique, comm.rank)
        self._dtypes = {"f": nccl.NCCL_FLOAT32, "d": nccl.NCCL_FLOAT64}
        self._sum = nccl.NCCL_SUM
        self._footer = Staging(self.footer())

    def added_up(self, totals: Totals, notes: Sequence[float]) -> Summed:
        """As in the base class."""
        self._footer.host[...] = pack(totals, notes, self.fill_absent())
        self._footer.put()
        stream = cuda().module.cuda.get_current_stream().ptr
        self.comm._doing = "all_reduce by NCCL", ()  # for the watchdog
        try:
            for buffer in self.storage.buffers:
                array = buffer.wide
                place, kind = array.data.ptr, self._dtypes[array.dtype.char]
                self._ranks.allReduce(place, place, array.size, kind, self._sum, stream)
            footer = self._footer.fetch()  # waits for the stream
        finally:
            self.comm._doing = None
        self.comm._done += 1
        return self.summed(footer)
