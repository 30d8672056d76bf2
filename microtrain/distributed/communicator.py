"""What ranks can say to each other: the one interface over MPI, threads and a single process.

Everything above (data parallelism, the trainer, checkpoints) is written against `Communicator`
and does not know which kind it has. All operations but `send` and `recv` are collective: every rank
calls the same ones in the same order, with arrays of the same shape and dtype and the same `op` and
`root`; they return when this rank's part is done. Arrays are NumPy's; GPU arrays are staged through
the host.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Final, Literal, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..common.stack_frames import outwards, user_place
from ..common.words import ranges
from ..errors import need, wrong
from .abort import end_process

Op = Literal["sum", "max", "min"]
Array = NDArray[Any]
T = TypeVar("T")

COMBINE: Final = {"sum": np.add, "max": np.maximum, "min": np.minimum}
OPS: Final = (*COMBINE,)
REDUCIBLE: Final = frozenset(
    map(np.dtype, ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"))
)
BOOL: Final = np.dtype("bool")

# What a message is: an array, None where there is nothing to say; by which number its gradient is
# asked for, None where nobody asks; where it was sent.
Message = tuple[Array | None, int | None, str]
NEVER: Final = -1  # the number of an answer that no other one will follow
PAIRWISE: Final = frozenset(("send_to", "next_from", "finish"))  # calls that two ranks take part in

# Threads that must not call a collective now, and why.
FORBIDDEN: dict[int, str] = {}


class Communicator:
    """The ranks of a job, as one of them sees it.

    rank, size: this process among all, 0 <= rank < size. local_rank, local_size: among those of
    its machine. node_rank, num_nodes: its machine among all. backend: none, threads or mpi.
    concurrent: whether threads may be in calls of several communicators at the same time.

    >>> comm = microtrain.distributed.world()
    >>> total = comm.all_reduce(np.array([comm.rank + 1.0]))  # 1 + 2 + ... + size on every rank
    """

    backend: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    num_nodes: int
    concurrent = True
    _node: Communicator | None = None
    # What the watchdog sees: the call that this rank is in, and how many it has done: collectives,
    # and calls for messages.
    _doing: tuple[str, tuple[Any, ...]] | None = None
    _done = _passed = 0
    # Ranks by dimension, and whether these are rings, where MPI has put them into a grid.
    grid: tuple[tuple[int, ...], tuple[bool, ...]] | None = None
    # Messages of other ranks, where there are any.
    _send_to: Callable[..., None]
    _next_from: Callable[..., tuple[Any, Message]]

    def all_reduce(self, array: Array, op: Op = "sum") -> Array:
        """Combine `array` over all ranks, in place, element by element; return it.

        Any shape, also of size 0; dtype float32, float64, an integer, or bool (op max is "any",
        min is "all"; a sum of bool is refused). Every rank gets the same bits. NaN under max and
        min is not defined (MPI does not define it): reduce a flag beside the value instead.

        Raises TypeError for another dtype or kind of array; ValueError for an array that is not
        C-contiguous or not writable, and for another op.
        """
        check_reduction(array, op)
        return self._all_reduce(array, op)

    def broadcast(self, array: Array, root: int = 0) -> Array:
        """Overwrite `array` on every rank with the values it has on `root`, in place; return it.

        Any shape and any dtype without Python objects. Errors as in `all_reduce`.
        """
        check_buffer("broadcast", array)
        check_rank("broadcast", "root", root, self.size)
        return self._broadcast(array, root)

    def all_gather(self, array: Array) -> Array:
        """Stack the ranks' arrays, of equal shape and dtype: a new array of shape (size, *shape).

        `array` is C-contiguous and may be read-only. Errors as in `all_reduce`.
        """
        check_buffer("all_gather", array, writable=False)
        return self._all_gather(array)

    def reduce_scatter(self, array: Array, op: Op = "sum") -> Array:
        """Combine `array` over all ranks; this rank gets its row of the result, a new array.

        `array` has shape (size, *shape) and may be read-only; the result has `shape`. Row r goes to
        rank r. dtypes and errors as in `all_reduce`; ValueError also where there are not size rows.
        """
        check_rows("reduce_scatter", array, self.size)
        check_reduction(array, op, "reduce_scatter")
        return self._reduce_scatter(array, op)

    def all_to_all(self, array: Array) -> Array:
        """Row r of `array` goes to rank r; row r of the result, a new array, came from rank r.

        `array` has shape (size, *shape), the same on all ranks, and may be read-only; any dtype
        without Python objects. Errors as in `reduce_scatter`.
        """
        check_rows("all_to_all", array, self.size)
        return self._all_to_all(array)

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """A communicator of the ranks that pass the same `color`; None where `color` is None.

        Their new ranks follow `key` (None is 0), and the old ranks where it is equal. Raises
        ValueError for a negative color or one that is not a whole number.
        """
        check_color(color, key)
        return self._split(color, key or 0)

    def send(self, array: Array, dest: int, tag: int = 0) -> None:
        """Send a copy of `array` to rank `dest`, which calls `recv`; returns at once.

        `array` is C-contiguous and may be read-only; any dtype without Python objects. Messages of
        one tag arrive in the order in which they were sent. Raises TypeError and ValueError as
        `broadcast`, for a `dest` that is not a rank and a `tag` that is not a whole number.
        """
        check_buffer("send", array, writable=False)
        check_rank("send", "dest", dest, self.size, tag)
        self.post(array, dest, tag)

    def recv(self, source: int, tag: int = 0) -> Array:
        """The array that rank `source` sent with this `tag`, a new one; waits for it.

        Raises as `send`, and RuntimeError where this rank waits for itself.
        """
        check_rank("recv", "source", source, self.size, tag)
        found = self.take(source, tag, f"recv(source={source}, tag={tag})")[0]
        assert found is not None
        return found

    def post(self, array: Array | None, dest: int, address: Any, number: int | None = None) -> None:
        """Send a message to who calls `take` with an equal `address`, which can be pickled."""
        at = user_place(outwards(sys._getframe(1)))
        if dest == self.rank:
            message = None if array is None else np.array(array), number, at
            self._arrived.setdefault((dest, address), []).append(message)
        else:
            self._send_to(dest, address, array, number, at)

    def take(self, source: int, address: Any, text: object, answered: bool = False) -> Message:
        """The next message of rank `source` to `address`; `str(text)` is what errors call this.

        answered: whether a gradient is sent back where one is asked for, if there is any.
        """
        key, arrived = (source, address), self._arrived
        while key not in arrived:
            if source == self.rank:
                raise wrong(str(text), "this rank has not sent itself that message")
            others = [known for (rank, known) in arrived if rank == source and type(known) is int]
            text_now = text if not others else f"{text}; received with another tag: {others}"
            found, message = self._next_from(source, text_now)
            arrived.setdefault((source, found), []).append(message)
        message = arrived[key].pop(0)
        if not arrived[key]:
            del arrived[key]
        if message[1] is not None and message[1] != NEVER and not answered:
            self.post(None, source, ("gradient", message[1]), NEVER)
        return message

    @functools.cached_property
    def _arrived(self) -> dict[Any, list[Message]]:
        """Messages that nobody has asked for yet, by source and address."""
        return {}

    @functools.cached_property
    def numbers(self) -> Iterator[int]:
        """The numbers of the messages of this rank."""
        return itertools.count()

    def gather_object(self, obj: T, root: int = 0) -> list[T] | None:
        """The ranks' objects, in rank order, on `root`; None elsewhere. Objects are pickled."""
        check_rank("gather_object", "root", root, self.size)
        return self._gather_object(obj, root)

    def all_gather_object(self, obj: T) -> list[T]:
        """The ranks' objects, in rank order, on every rank. Objects are pickled."""
        refuse_alone("all_gather_object")
        return self._all_gather_object(obj)

    def broadcast_object(self, obj: T, root: int = 0) -> T:
        """The object that `root` passed, on every rank (what others pass is ignored). Pickled."""
        check_rank("broadcast_object", "root", root, self.size)
        return self._broadcast_object(obj, root)

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        refuse_alone("barrier")
        self._barrier()

    def abort(self, code: int) -> NoReturn:
        """End every process of the job now, with exit code `code`. Not collective; no return.

        Buffered output is flushed; `finally` blocks and atexit handlers do not run.
        """
        end_process(code)

    # What is done when the arguments have been checked: of one rank alone, and in each kind of
    # several ranks its own way.

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
        return

    def node(self) -> Communicator:
        """A communicator of the ranks on this machine. Collective, and made at the first call."""
        if self._node is None:
            self._node = self.split(self.node_rank)
        assert self._node is not None
        return self._node

    def memory_for(self, array: Array) -> Any:
        """The `SharedMemory` of sums of `array` if native code may use it, else None."""
        return None

    def any(self, flag: bool) -> bool:
        """Whether `flag` holds on at least one rank."""
        return bool(self.all_reduce(np.array(bool(flag)), "max"))

    def all(self, flag: bool) -> bool:
        """Whether `flag` holds on every rank."""
        return bool(self.all_reduce(np.array(bool(flag)), "min"))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}>"


# A mistake shows at any number of ranks, and so does a collective that the others will not come to.


def check_buffer(call: str, array: Array, *, writable: bool = True) -> None:
    """Raise TypeError or ValueError unless `array` is memory that can be sent as it lies."""
    refuse_alone(call)
    is_array, kind = isinstance(array, np.ndarray), type(array)
    need(is_array, call, "expected a numpy.ndarray", kind, error=TypeError)
    others = "broadcast_object" if call == "broadcast" else "all_gather_object"
    text = f"an array of Python objects cannot be sent; use {others}"
    need(not array.dtype.hasobject, call, text, error=TypeError)
    text = f"expected a C-contiguous array, got shape {array.shape} with strides {array.strides}; "
    text += "pass numpy.ascontiguousarray(...) and copy the result back"
    need(array.flags.c_contiguous, call, text, error=ValueError)
    text = f"works in place, but this array of shape {array.shape} is read-only; pass a copy"
    need(array.flags.writeable or not writable, call, text, error=ValueError)


@contextmanager
def alone(why: str) -> Iterator[Callable[[str], None]]:
    """What this thread does meanwhile, no other rank does: a collective raises RuntimeError.

    Yields what takes other words for it: those that wait see that it goes on.
    """
    thread = get_ident()
    outer = FORBIDDEN.get(thread)
    try:
        FORBIDDEN[thread] = why
        yield lambda words: FORBIDDEN.update({thread: words})
    finally:
        if outer is None:
            FORBIDDEN.pop(thread, None)
        else:
            FORBIDDEN[thread] = outer


def refuse_alone(call: str) -> None:
    """RuntimeError for a collective that the other ranks will not come to."""
    why = FORBIDDEN.get(get_ident()) if FORBIDDEN else None
    if why is not None:
        raise wrong(call, f"the other ranks would wait in vain: {why}")


def check_reduction(array: Array, op: str, call: str = "all_reduce") -> None:
    """Raise TypeError or ValueError unless `all_reduce(array, op)` is defined."""
    # A step of a small model is a few microseconds: the usual case is settled in a quarter of one.
    usual = type(array) is np.ndarray and array.dtype in REDUCIBLE and array.flags.carray
    if usual and op in OPS and not FORBIDDEN:
        return
    check_buffer(call, array, writable=call == "all_reduce")
    need(op in OPS, call, "expected op sum, max or min", op, error=ValueError)
    known, dtype = array.dtype in REDUCIBLE or array.dtype == BOOL, array.dtype
    text = "expected float32, float64, an integer or bool in native byte order, got {}; convert "
    need(known, call, text + "with astype", dtype, error=TypeError)
    text = "a sum of bool is a count; use op max for any, min for all, or astype(int64) to count"
    need(dtype != BOOL or op != "sum", call, text, error=TypeError)


def check_rows(call: str, array: Array, size: int) -> None:
    """Raise TypeError or ValueError unless `array` has a row for every rank."""
    check_buffer(call, array, writable=False)
    text = f"expected an array of shape (size, ...), a row for each of {size} ranks"
    need(array.ndim and array.shape[0] == size, call, text, array, error=ValueError)


def check_color(color: int | None, key: int | None) -> None:
    """Raise ValueError unless `split(color, key)` is defined."""
    refuse_alone("split")
    for name, value, least in (("color", color, 0), ("key", key, -(2**31))):
        good = value is None or (type(value) is int and least <= value < 2**31)
        text = f"expected {name} to be a whole number from {least}, or None"
        need(good, "split", text, value, error=ValueError)


def check_rank(call: str, name: str, rank: Any, size: int, tag: Any = 0) -> None:
    """Raise ValueError unless `rank` is one, and `tag` a tag."""
    refuse_alone(call)
    good = isinstance(rank, int | np.integer) and 0 <= rank < size
    need(good, call, f"expected {name} to be a rank from 0 to {size - 1}", rank, error=ValueError)
    good = isinstance(tag, int | np.integer) and type(tag) is not bool
    need(good, call, "expected tag to be a whole number", tag, error=ValueError)


def described(name: str, args: tuple[Any, ...]) -> str:
    """A call of a communicator, as messages name it."""
    if name == "split":
        return name
    if name in PAIRWISE:
        return str(args[-1])
    first, *rest = args or (None,)
    rest = [value for value in rest if value not in ("sum", 0)]  # where nothing else was said
    shape = f" of shape {first.shape}, {first.dtype}" if isinstance(first, np.ndarray) else ""
    return name + (f"({', '.join(map(str, rest))})" if rest else "") + shape


def grouped(values: Iterable[tuple[int, T]]) -> dict[T, list[int]]:
    """Of ranks and what each has: who has the same."""
    found: dict[T, list[int]] = {}
    for rank, value in values:
        found.setdefault(value, []).append(rank)
    return found


def by_rank(values: Sequence[str] | Mapping[int, str]) -> str:
    """What the ranks have, as messages name it: 'a' on rank 0, 'b' on ranks 1-3."""
    found = grouped(values.items() if isinstance(values, Mapping) else enumerate(values))
    return ", ".join(f"{value} on {ranks_named(ranks)}" for value, ranks in found.items())


def lines_by_rank(values: Iterable[tuple[int, str]]) -> list[str]:
    """The same as lines of a message."""
    return [f"  {ranks_named(ranks)}: {value}" for value, ranks in grouped(values).items()]


def ranks_named(ranks: Sequence[int]) -> str:
    """Ranks, in order, as messages name them: rank 1; ranks 1, 2; ranks 0-3, 7."""
    return f"rank{'s' * (len(ranks) > 1)} {ranges(ranks)}"
