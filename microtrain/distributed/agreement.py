"""Mistakes that only some ranks can see, settled by all: nobody is left waiting.

A file missing on one host is an error on that host's ranks alone; the others would go on to the
next collective and wait there. `together` lets all ranks learn of it and leave with one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import UserError
from .communicator import Communicator

__all__ = ["agreed", "together"]

T = TypeVar("T")
E = TypeVar("E", bound=UserError)


def together(comm: Communicator, function: Callable[[], T]) -> T:
    """`function()` on every rank; a UserError on any of them is raised on all. Collective.

    So a mistake that only some ranks can see ends the job in good order, with one message.
    """
    result: Any = None
    mine: UserError | None = None
    try:
        result = function()
    except UserError as error:
        mine = error
    for rank, found in enumerate(comm.all_gather_object(mine)):
        if found is not None:
            if mine is None and rank:
                found = type(found)(f"rank {rank}: {found}")
            raise agreed(found if mine is None else mine) from None
    return result  # type: ignore[no-any-return]


def agreed(error: E) -> E:
    """Mark an error that every rank raises, so that the job may end without an abort."""
    error.agreed = True
    return error
