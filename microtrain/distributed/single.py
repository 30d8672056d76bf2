"""The communicator of a process that is alone."""

from __future__ import annotations

from .communicator import Communicator


class SingleCommunicator(Communicator):
    """Rank 0 of 1: every collective is what it is for one rank.

    Example:
        >>> comm = mt.distributed.SingleCommunicator()
        >>> comm.rank, comm.size
        (0, 1)
    """

    backend = "none"
    rank, size = 0, 1
    local_rank, local_size = 0, 1
    node_rank, num_nodes = 0, 1
