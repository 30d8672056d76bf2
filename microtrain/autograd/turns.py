"""Turns: gradients and other state that threads share are changed by one of them at a time.

Flat storage has a turn, and so has what a captured step writes besides: a lock that whoever works
on it holds. A captured step holds all that it needs for as long as it runs. A backward pass holds
what it could take without waiting until it ends, and keeps what it has for other leaves until it
holds nothing any more: only then it waits. Before a hook or a Function's backward it lets go, and a
recording, which does not know what it will come to, takes all there are. So no two wait for each
other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any

from ..tensor import INFERENCE, Tensor

# The turn of all leaves that have none of their own. Whoever holds it waits for no other turn.
COMMON = threading.RLock()  # the collector may come by while this thread holds it


def turn_of(tensor: Tensor) -> Any:
    """Whose turn it is to change `tensor` and its gradient: a lock."""
    extra, version = tensor._extra, tensor._version
    if extra is not None and extra.slot is not None:
        return extra.slot.buffer.turn
    return COMMON if version is None else version.turn or COMMON


def take(held: list[Any], turn: Any, wait: bool = False) -> bool:
    """Whether `turn` is among those `held`, or could be added to them."""
    if turn in held:
        return True
    held.append(turn)  # before it begins: where a Ctrl-C comes between, `broken_off` ends it
    if turn.acquire(wait):
        return True
    held.pop()
    return False


def let_go(held: list[Any]) -> None:
    """End all turns that are `held`."""
    while held:
        held[-1].release()
        held.pop()


def broken_off(held: list[Any]) -> None:
    """`let_go` after an error, which may have come before a turn began, or as it ended."""
    while held:
        with contextlib.suppress(RuntimeError):  # it is not this thread's
            held[-1].release()
        held.pop()


def turns(tensors: Iterable[Tensor], also: Iterable[Any] = ()) -> tuple[Any, ...]:
    """Those of `tensors` and `also`, in the order in which all threads take them.

    Tensors that have none of their own yet get one for all of them.
    """
    found, without = {*also}, []
    with COMMON:
        for tensor in tensors:
            turn = turn_of(tensor)
            if turn is not COMMON:
                found.add(turn)
            elif tensor.version is not INFERENCE:  # which is not one Tensor's
                without.append(tensor.version)
        own = {*found} - {COMMON}
        if without:
            common = min(own, key=id) if own else threading.RLock()
            found.add(common)
            for version in without:
                version.turn = common
    return tuple(sorted(found, key=lambda turn: (turn is COMMON, id(turn))))
