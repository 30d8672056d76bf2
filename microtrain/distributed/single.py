"""The communicator of a process that is alone: every collective is what it is for one rank."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from .abort import end_process
from .communicator import Array, Communicator, Op, T


class SingleCommunicator(Communicator):
    """Rank 0 of 1."""

    backend = "none"
    rank, size = 0, 1
    local_rank, local_size = 0, 1
    node_rank, num_nodes = 0, 1

    def _all_reduce(self, array: Array, op: Op) -> Array:
        return array

    def _broadcast(self, array: Array, root: int) -> Array:
        return array

    def _all_gather(self, array: Array) -> Array:
        return np.array(array)[None]

    def _reduce_scatter(self, array: Array, op: Op) -> Array:
        return np.array(array[0])

    def _all_to_all(self, array: Array) -> Array:
        return np.array(array)

    def _split(self, color: int | None, key: int) -> Communicator | None:
        return None if color is None else self

    def _gather_object(self, obj: T, root: int) -> list[T] | None:
        return [obj]

    def _all_gather_object(self, obj: T) -> list[T]:
        return [obj]

    def _broadcast_object(self, obj: T, root: int) -> T:
        return obj

    def _barrier(self) -> None:
        pass

    def abort(self, code: int) -> NoReturn:
        end_process(code)
