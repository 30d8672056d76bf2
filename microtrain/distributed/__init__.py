"""Several processes, one model: which ranks there are, and what they can say to each other.

`world()` is where every program starts. Started by mpirun or srun it connects to the other ranks;
otherwise it is rank 0 of 1 and nothing of MPI is loaded.
"""

from ..common.missing_names import say_instead
from .abort import agreed_exit
from .collectives import all_gather, all_reduce, all_to_all, broadcast, gather, reduce_scatter
from .communicator import Communicator
from .connection import BACKENDS, connect, world
from .data_parallel import DataParallel
from .halo import halo
from .messages import exscan, recv, scan, scatter, send, sendrecv
from .replicas import check_replicas
from .single import SingleCommunicator

__all__ = [
    "BACKENDS",
    "Communicator",
    "DataParallel",
    "SingleCommunicator",
    "agreed_exit",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "check_replicas",
    "connect",
    "exscan",
    "gather",
    "halo",
    "recv",
    "reduce_scatter",
    "scan",
    "scatter",
    "send",
    "sendrecv",
    "world",
]


def __dir__() -> list[str]:
    return __all__


globals()["__getattr__"] = say_instead(__name__)
