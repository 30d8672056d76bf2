"""Small all_reduces of the ranks of a host, through memory that they share.

A rank that waits in MPI polls until its time slice is over. Where ranks outnumber cores, the rank
that it waits for often cannot run before that. Here a rank that waits gives its core away, and a
few numbers are added up before MPI would have sent them.

Each rank has two slots, used in turn. It copies its numbers into one, then writes behind which call
they are of, waits until the others have done so, and adds up all slots by itself: in the same order
on every rank, so that all get the same bits. A rank that is one call ahead uses the other slot. It
cannot be two ahead: before that the slowest would have had to begin the call between. Over several
hosts the first rank of each adds up, exchanges the sums over MPI, and hands the result on.

The order is that of recursive doubling: neighbors, then pairs of these. So the bits are those of
MPICH's Allreduce.

A rank that sees the number of the call must see what was written before it. On x86-64 stores become
visible in their order. Other processors promise no such thing to Python; there, and on hosts
without /dev/shm, MPI does it all.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, Final

import numpy as np

from .communicator import COMBINE, OPS, REDUCIBLE, Array, Op

MOST: Final = 8192  # bytes of an array that goes this way
LINE: Final = 64  # bytes of a cache line: no two ranks write into one
# How often a rank yields its core before it sleeps: a process that yields may be the next to run
# all the same (as in Linux 6.18), and where cores are few that keeps another rank from running.
YIELDS: Final = 10_000
YIELDS_OF_FEW: Final = 20
PLACE: Final = "/dev/shm"
ORDERED: Final = ("x86_64", "AMD64")
_LAST: Final = 2**31 - 1  # after this call they are counted from 0 again
_PLANS: Final = 64  # that are kept: one of many ranks can take a megabyte
_FAILED: Final = 0  # instead of a call's tag, which is never 0
FUTEX, WAIT, WAKE = 202, 0, 1  # a system call of Linux on x86-64
_NAP: Final = (ctypes.c_long * 2)(0, 1_000_000)  # 1 ms: a rank that was not woken looks by itself
NAPS: Final = 20  # of native code, before Python may handle a signal

Step = tuple[Any, tuple[Array, ...], Array | None]
Between = Callable[[Array, Op], object]


def create(size: int) -> str:
    """The name of a new file for `size` ranks; empty: there can be none here."""
    with contextlib.suppress(OSError):
        if os.uname().machine in ORDERED:
            return zeros(PLACE, _length(size))
    return ""


def zeros(directory: str | None, size: int) -> str:
    """The name of a new file, written, for a page without room would end the process."""
    handle, name = tempfile.mkstemp(prefix="microtrain-", dir=directory)
    try:
        with open(handle, "wb") as file:
            file.write(bytes(size))
    except OSError:
        os.unlink(name)
        raise
    return name


def _length(size: int) -> int:
    return 2 * (size + 1) * (LINE + MOST)


class SharedMemory:
    """The slots of the ranks of one host.

    Args:
        name: of a file that `create` has made. It may be deleted once all have opened it.
        rank, size: this process among those of the host.
        few_cores: whether the host has fewer cores for them.
        between: combines the results of the hosts, in place; rank 0 of each calls it. None: there
            is no other host.
        look: called while this rank waits; raises what ends that.

    Raises OSError where the file cannot be opened or mapped.
    """

    def __init__(
        self, name: str, rank: int, size: int, few_cores: bool, between: Between | None,
        look: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        with open(name, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _length(size))
        self._address: int = np.frombuffer(self._memory, np.uint8).ctypes.data
        # A rank's word is its call; the next one is 1 while somebody sleeps until that changes.
        self._words = memoryview(self._memory).cast("q")
        self._rank, self._size, self._between, self._look = rank, size, between, look
        self._calls = 0
        self._plans: dict[tuple[int, int, Op], tuple[_Plan, _Plan]] = {}
        # A sum that overflows warns nobody in MPI. To enter a context takes a tenth of the time of
        # numpy.errstate.
        self._quietly = copy_context()
        self._quietly.run(np.seterr, all="ignore")
        self._yields = YIELDS_OF_FEW if few_cores else YIELDS
        # os.sched_yield keeps the interpreter's lock in Python 3.11: other threads could not run.
        libc = ctypes.CDLL(None)
        self._yield: Callable[[], int] = libc.sched_yield
        self._system_call: Any = libc.syscall
        number, pointer = ctypes.c_int, ctypes.c_void_p
        self._system_call.argtypes = [ctypes.c_long, pointer, number, number, pointer]

    def all_reduce(self, array: Array, op: Op) -> None:
        """Combine arrays of at most `MOST` bytes over the ranks, in place.

        Raises RuntimeError on every rank of a host where dtypes, sizes or ops differ in it.
        """
        key = array.dtype.num, array.size, op
        plans = self._plans.get(key)
        if plans is None:
            if len(self._plans) == _PLANS:
                self._plans.clear()
            plans = self._plans[key] = _Plan(self, 0, array, op), _Plan(self, 1, array, op)
        call = self._calls = (self._calls + 1) & _LAST
        plan, words = plans[call & 1], self._words
        usual = array.ndim == 1 and type(array) is np.ndarray
        flat = array if usual else np.asarray(array).reshape(-1)  # a mask is none of MPI's business
        plan.mine[...] = flat
        word = call << 32 | plan.tag
        self._say(plan.my_word, word)
        try:
            for other in plan.waits_for:
                if words[other] != word:
                    self._wait(other, word)
            if self._between is None:
                self._quietly.run(plan.combine, flat)
                return
            if plan.steps is not None:
                plan.result[...] = flat
                self._quietly.run(plan.combine, plan.result)
                self._between(plan.result, op)
                self._say(plan.result_word, word)
            flat[...] = plan.result
        except BaseException:
            if self._between is not None and plan.steps is not None:
                self._say(plan.result_word, call << 32 | _FAILED)
            raise

    def turns(self, array: Array, head: Sequence[int]) -> list[tuple[_Plan, Array]]:
        """For `run`, of sums of `array`: a plan for each of the two turns, and its table.

        That begins with `head`. Then: where this rank writes its numbers, and its call; sched_yield
        and syscall; how long a nap is; how many yields and naps; how many words it waits for, and
        these; how many steps, and for each of them what is added, to what (0: it is copied), and
        where to. All but numbers are addresses.
        """
        libc, at = ctypes.CDLL(None), self._address
        calls = (ctypes.cast(f, ctypes.c_void_p).value for f in (libc.sched_yield, libc.syscall))
        fixed = *calls, ctypes.addressof(_NAP), self._yields, NAPS
        found = []
        for plan in (_Plan(self, turn, array, "sum") for turn in (0, 1)):
            steps: list[int] = []
            for _, arrays, to in plan.steps or ():
                rows = [np.atleast_2d(a) for a in (*arrays, array if to is None else to)]
                for *given, goal in zip(*rows, strict=True):
                    one, other = [a.ctypes.data for a in given] + [0] * (2 - len(given))
                    steps += one, other, goal.ctypes.data
            words = [at + 8 * place for place in plan.waits_for]
            table = *head, plan.mine.ctypes.data, at + 8 * plan.my_word, *fixed
            table = *table, len(words), *words, len(steps) // 3, *steps
            found.append((plan, np.array(table, np.int64)))
        return found

    def run(self, code: Callable[[int, int, int], int], turns: Sequence[tuple[_Plan, int]]) -> None:
        """An all_reduce by native code; `turns` with the addresses of the tables.

        `code(table, word, first)` returns 0 when it is done, else it has to wait: for a rank that
        is late, or at another call. Raises as `all_reduce` does.
        """
        call = self._calls = (self._calls + 1) & _LAST
        plan, table = turns[call & 1]
        word = call << 32 | plan.tag
        first = 1
        while code(table, word, first):
            first = 0
            for other in plan.waits_for:
                if self._words[other] != word:
                    self._wait(other, word)

    def _say(self, place: int, word: int) -> None:
        """Write a word, and wake those that sleep until it is there."""
        words = self._words
        words[place] = word
        if words[place + 1]:
            words[place + 1] = 0
            self._system_call(FUTEX, self._address + 8 * place + 4, WAKE, _LAST, None)

    def _wait(self, place: int, word: int) -> None:
        """Until another rank has written this word."""
        words, yields = self._words, self._yields
        while (found := words[place]) != word:
            if found == word >> 32 << 32 | _FAILED:
                raise RuntimeError(
                    "all_reduce: it failed on the first rank of this host, whose error says why"
                )
            if found >> 32 == word >> 32:
                raise RuntimeError(
                    f"all_reduce: the ranks are not at the same call: {_told(word)} here, "
                    f"{_told(found)} on another rank of this host (MICROTRAIN_DEBUG=comm in the "
                    "environment says where)"
                )
            if yields:
                yields -= 1
                self._yield()
            else:  # unless its upper half, the call, is another one by now
                words[place + 1] = 1
                half = self._address + 8 * place + 4
                self._system_call(FUTEX, half, WAIT, found >> 32, ctypes.addressof(_NAP))
                if self._look is not None:
                    self._look()


class _Plan:
    """What an all_reduce of one dtype, size and op does, in one of the two turns.

    Attributes:
        tag: the call, to be compared.
        mine, my_word: where this rank writes its numbers, and then the call.
        waits_for: the words that it waits for.
        steps: how the slots are combined; None: another rank does that.
        result, result_word: where the first rank of a host writes the result of all hosts.
    """

    def __init__(self, shared: SharedMemory, turn: int, array: Array, op: Op) -> None:
        size, rank = shared._size, shared._rank
        dtype = np.dtype(array.dtype.str)  # of several of the same numbers one (long, long long)
        self.tag = array.size << 8 | dtype.num << 2 | OPS.index(op)
        first = turn * (size + 1)
        words = [(first + n) * LINE // 8 for n in range(size + 1)]
        start = 2 * (size + 1) * LINE + first * MOST
        strides = MOST, dtype.itemsize
        slots: Array = np.ndarray((size + 1, array.size), dtype, shared._memory, start, strides)
        self.my_word, self.result_word = words[rank], words[size]
        self.mine, self.result = slots[rank], slots[size]
        self.steps: list[Step] | None = None
        self.waits_for = [self.result_word]
        if rank == 0 or shared._between is None:
            self.steps = _doubling(COMBINE[op], slots[:size])
            self.waits_for = [word for word in words[:size] if word != self.my_word]

    def combine(self, out: Array) -> None:
        """Combine the slots; of a single one `out` is the result already."""
        for function, arrays, to in self.steps or ():
            function(*arrays, out=out if to is None else to)


def _doubling(combine: Any, rows: Array) -> list[Step]:
    """Neighbors are combined, then pairs of these; the last step, without a place, is the result.

    Where their number is no power of two, as many pairs as make it one are combined before.
    """
    steps: list[Step] = []
    pairs = len(rows) - (1 << len(rows).bit_length() - 1) or len(rows) // 2
    while len(rows) > 2:
        level = np.empty((len(rows) - pairs, *rows.shape[1:]), rows.dtype)
        steps.append((combine, (rows[: 2 * pairs : 2], rows[1 : 2 * pairs : 2]), level[:pairs]))
        if len(level) > pairs:
            steps.append((np.positive, (rows[2 * pairs :],), level[pairs:]))
        rows, pairs = level, len(level) // 2
    if len(rows) == 2:
        steps.append((combine, (rows[0], rows[1]), None))
    return steps


def _told(word: int) -> str:
    """The call that a word is of."""
    dtype = next(dtype for dtype in REDUCIBLE if dtype.num == word >> 2 & 63)
    return f"{OPS[word & 3]} of {(word & _LAST) >> 8} {dtype}"
