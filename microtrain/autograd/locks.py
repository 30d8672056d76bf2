"""Locks on gradients and other state that threads share, in an order without deadlocks.

Each flat storage has a lock, and so has whatever else a captured step writes. A captured step holds
all the locks that it needs while it runs. A backward pass acquires those that are free and holds
them until it ends; gradients whose lock another thread has are put aside, and added at the end,
when it holds none and may wait. It releases all before it calls a hook or a Function's backward. A
recording cannot know what it will touch, and acquires every lock. So no two threads wait for each
other.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any

from ..tensor import INFERENCE, Tensor

# For all leaves without a lock of their own. Whoever holds it waits for no other lock.
COMMON = threading.RLock()  # the collector may come by while this thread holds it


def lock_of(tensor: Tensor) -> Any:
    """The lock to hold while `tensor` or its gradient is changed."""
    extra, version = tensor._extra, tensor._version
    if extra is not None and extra.slot is not None:
        return extra.slot.buffer.lock
    return COMMON if version is None else version.lock or COMMON


def acquire(held: list[Any], lock: Any, wait: bool = False) -> bool:
    """Add `lock` to those `held`; False if another thread has it, unless told to `wait`."""
    if lock in held:
        return True
    held.append(lock)  # first: a Ctrl-C in between is for `release_after_error`
    if lock.acquire(wait):
        return True
    held.pop()
    return False


def release(held: list[Any]) -> None:
    """Release all locks that are `held`."""
    while held:
        held[-1].release()
        held.pop()


def release_after_error(held: list[Any]) -> None:
    """`release` after an error: the last lock may not be acquired yet, or be released already."""
    while held:
        with contextlib.suppress(RuntimeError):  # it is not this thread's
            held[-1].release()
        held.pop()


def in_order(tensors: Iterable[Tensor], also: Iterable[Any] = ()) -> tuple[Any, ...]:
    """The locks of `tensors` and those of `also`, in the order in which all threads acquire them.

    Tensors without a lock of their own get one, the same for all of them.
    """
    found, without = {*also}, []
    with COMMON:
        for tensor in tensors:
            lock = lock_of(tensor)
            if lock is not COMMON:
                found.add(lock)
            elif tensor.version is not INFERENCE:  # which is not one Tensor's
                without.append(tensor.version)
        own = {*found} - {COMMON}
        if without:
            common = min(own, key=id) if own else threading.RLock()
            found.add(common)
            for version in without:
                version.lock = common
    return tuple(sorted(found, key=lambda lock: (lock is COMMON, id(lock))))
