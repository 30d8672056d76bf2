"""Mistakes that only some ranks can see, settled by all: nobody is left waiting.

A file missing on one host is an error on that host's ranks alone; the others would go on to the
next collective and wait there. With `settled`, `together` and `from_root` all ranks learn of it and
leave with one message. Where nobody has failed, which is nearly always, they exchange one number:
objects travel only with a failure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from ..errors import ConfigError, UserError
from .communicator import Communicator, by_rank

T = TypeVar("T")
E = TypeVar("E", bound=UserError)


@contextmanager
def settled(comm: Communicator) -> Iterator[None]:
    """A UserError that any rank raises in this block is raised on all at its end. Collective.

    So a mistake that only some ranks can see ends the job in good order, with one message. A rank
    that fails skips the rest of the block, so nothing in it may be collective.
    """
    mine: UserError | None = None
    try:
        yield
    except UserError as error:
        mine = error
    if (found := first_word(comm, mine)) is not None:
        rank, theirs = found
        if mine is None and rank:
            theirs = type(theirs)(f"rank {rank}: {theirs}")
        raise agreed(theirs if mine is None else mine)


def first_word(comm: Communicator, mine: T | None) -> tuple[int, T] | None:
    """The lowest rank that has something to say, and what; None: no rank has. Collective."""
    found = comm.all_reduce(np.array(0 if mine is None else comm.size - comm.rank), "max")
    if not found:
        return None
    rank = comm.size - int(found)
    said: Any = comm.broadcast_object(mine, rank)
    return rank, said


def together(comm: Communicator, function: Callable[[], T]) -> T:
    """`function()` of every rank; a UserError on any of them is raised on all. Collective."""
    with settled(comm):
        return function()


def from_root(comm: Communicator, function: Callable[[], T], root: int = 0) -> T:
    """`function()` of `root`, on every rank; or the UserError that it raises. Collective."""
    outcome: Any = None, None  # with its failure: one message is enough
    if comm.rank == root:
        try:
            outcome = function(), None
        except UserError as error:
            outcome = None, error
    result, failure = comm.broadcast_object(outcome, root)
    if failure is not None:
        raise agreed(failure)
    return result


def same(comm: Communicator, settings: Mapping[str, str], hint: str) -> None:
    """ConfigError on all ranks, with what is where, unless they have the same settings. Collective.

    What a rank has no value of, it may have as the others do.
    """
    if all_equal(comm, repr(sorted(settings.items())).encode()):
        return
    for name, found in differing(comm.all_gather_object(dict(settings))):
        raise agreed(ConfigError(f"{name}: {by_rank(found)}\nhint: {hint}"))


def differing(everyone: Sequence[Mapping[str, T]]) -> Iterator[tuple[str, dict[int, T]]]:
    """The names of which ranks have different values, and these, where a rank has one."""
    for name in dict.fromkeys(name for theirs in everyone for name in theirs):
        found = {rank: theirs[name] for rank, theirs in enumerate(everyone) if name in theirs}
        if len({*found.values()}) > 1:
            yield name, found


def all_equal(comm: Communicator, content: bytes) -> bool:
    """Whether all ranks have the same bytes: least and greatest hash are one. Collective."""
    if comm.size == 1:
        return True
    words = np.frombuffer(hashlib.blake2b(content, digest_size=16).digest(), "u8")
    bounds = comm.all_reduce(np.concatenate([words, ~words]), "max")
    return bool((bounds[:2] == ~bounds[2:]).all())


def agreed(error: E) -> E:
    """Mark an error that every rank raises, so that the job may end without an abort."""
    error.agreed = True
    return error
