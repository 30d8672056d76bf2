"""The communicator of a process that is alone: every collective is what it is for one rank.

It checks its arguments like the others, so that code written on one process fails there and not
later under mpirun.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import numpy as np

from .abort import end_process
from .communicator import (
    FORBIDDEN,
    Array,
    Communicator,
    Op,
    T,
    check_buffer,
    check_color,
    check_reduction,
    check_root,
    check_rows,
    refuse_alone,
)


class SingleCommunicator(Communicator):
    """Rank 0 of 1."""

    backend = "none"
    rank, size = 0, 1
    local_rank, local_size = 0, 1
    node_rank, num_nodes = 0, 1

    def all_reduce(self, array: Array, op: Op = "sum") -> Array:
        check_reduction(array, op)
        return array

    def broadcast(self, array: Array, root: int = 0) -> Array:
        check_buffer("broadcast", array)
        check_root("broadcast", root, 1)
        return array

    def all_gather(self, array: Array) -> Array:
        check_buffer("all_gather", array, writable=False)
        return np.array(array)[None]

    def reduce_scatter(self, array: Array, op: Op = "sum") -> Array:
        check_rows("reduce_scatter", array, 1)
        check_reduction(array, op, "reduce_scatter")
        return np.array(array[0])

    def all_to_all(self, array: Array) -> Array:
        check_rows("all_to_all", array, 1)
        return np.array(array)

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        check_color(color, key)
        return None if color is None else self

    def gather_object(self, obj: T, root: int = 0) -> list[T] | None:
        check_root("gather_object", root, 1)
        return [obj]

    def all_gather_object(self, obj: T) -> list[T]:
        return [obj]

    def broadcast_object(self, obj: T, root: int = 0) -> T:
        check_root("broadcast_object", root, 1)
        return obj

    def barrier(self) -> None:
        pass

    def abort(self, code: int) -> NoReturn:
        end_process(code)


def _refusing(name: str) -> Any:
    method = getattr(SingleCommunicator, name)

    @functools.wraps(method)
    def call(self: SingleCommunicator, *args: Any, **named: Any) -> Any:
        if FORBIDDEN:
            refuse_alone(name)
        return method(self, *args, **named)

    return call


# What would hang on more ranks is an error on one already.
for _name in vars(Communicator)["__abstractmethods__"] - {"abort"}:
    setattr(SingleCommunicator, _name, _refusing(_name))
