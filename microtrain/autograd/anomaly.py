"""Anomaly detection: where in your code is the operation whose gradient goes wrong?

While it is on, the creation number of a node carries the stack of the call that made it, and the
engine looks at all that a node returns. While it is off in every thread nothing of this exists:
`next_seq`, which numbers each node anyway, is exchanged in the globals of the code that makes nodes
(`NUMBERING`), so that no operation tests for a mode. The engine reads the mode once a pass.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ..backend import MODES, XP
from ..tensor import TENSORS
from .graph import NUMBERING, Node, next_seq

OURS = (str(Path(__file__).parents[1]) + os.sep, "<operation ")
_LOCK = threading.Lock()
_ON: set[int] = set()  # the threads in which it is on


class detect_anomaly:
    """Find the operation whose gradient is NaN or whose backward raises, inside a `with` block.

    Operations recorded inside remember where they were called. A backward inside that returns NaN
    raises RuntimeError, which shows the operation, and file and line of its forward call; an error
    of a backward itself gets a note that shows them. Slow, for debugging; acts on this thread.

    Args:
        check_nan: False only remembers calls, for the notes.

    Example:
        >>> with mt.autograd.detect_anomaly():
        ...     loss = model(x).sqrt().mean()
        ...     loss.backward()
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._state = _state(True, check_nan)
        self._before = MODES.anomaly

    def __enter__(self) -> None:
        _set(self._state)

    def __exit__(self, *exc: object) -> None:
        _set(self._before)


class set_detect_anomaly(detect_anomaly):
    """Switch `detect_anomaly` on or off, at once and, used as a context manager, until its end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._state = _state(mode, check_nan)
        self._before = MODES.anomaly
        _set(self._state)

    def __enter__(self) -> None:
        pass


def is_anomaly_enabled() -> bool:
    """Whether this thread detects anomalies."""
    return MODES.anomaly is not None


def is_anomaly_check_nan_enabled() -> bool:
    """Whether this thread would look for NaN: the `check_nan` of its anomaly detection."""
    return MODES.anomaly is None or MODES.anomaly.check_nan


class _Anomaly:
    """What the mode is while it is on; `node` is the one whose backward runs."""

    def __init__(self, check_nan: bool) -> None:
        self.check_nan = check_nan
        self.node: Node | None = None

    def watch(self, backward: Callable[..., Any], node: Node, g: Any) -> Any:
        """`backward(node, g)`; RuntimeError where it returns NaN, a note where it raises."""
        outer, self.node = self.node, node
        try:
            grads = backward(node, g)
        except Exception as error:
            error.add_note(
                f"Error detected in {node._op.node_name}. {_history(node._seq)}".rstrip()
            )
            raise
        finally:
            self.node = outer
        if self.check_nan:
            for number, (value, edge) in enumerate(zip(grads, node._edges, strict=True)):
                if value is not None and edge is not None and _has_nan(value):
                    name, history = node._op.node_name, _history(node._seq)
                    what = f"Function '{name}' returned nan values in its {number}th output."
                    raise RuntimeError(f"{what} {history}".rstrip())
        return grads


def _has_nan(value: Any) -> bool:
    array = value._array if type(value) in TENSORS else value
    found: bool = XP[type(array)].isnan(array).any().item()
    return found


def _state(mode: bool, check_nan: bool) -> _Anomaly | None:
    for name, value in (("mode", mode), ("check_nan", check_nan)):
        if type(value) is not bool:
            raise TypeError(
                f"anomaly detection: {name} must be True or False, got {type(value).__name__}"
            )
    return _Anomaly(check_nan) if mode else None


def _set(state: _Anomaly | None) -> None:
    """Make `state` the mode of this thread; number nodes the slow way while any thread has one."""
    MODES.anomaly = state
    with _LOCK:
        (_ON.discard if state is None else _ON.add)(threading.get_ident())
        for scope in NUMBERING:
            scope["next_seq"] = _next_traced if _ON else next_seq


# What a node remembers ------------------------------------------------------------------------


class _Traced(int):
    """A creation number that knows its call; it lives and dies with its node.

    Attributes:
        calls: the code and line of each frame outside this package, the outermost first.
        inducer: name and number of the node during whose backward (create_graph) this one was made.
    """

    calls: list[tuple[CodeType, int]]
    inducer: tuple[str, int] | None


def _next_traced() -> int:
    number = next_seq()
    mode = MODES.anomaly
    if mode is None:  # it is another thread that detects anomalies
        return number
    traced = _Traced(number)
    calls = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        calls.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    calls.reverse()
    # A model built from YAML is called by the package alone.
    traced.calls = [c for c in calls if not c[0].co_filename.startswith(OURS)] or calls
    traced.inducer = None if mode.node is None else (mode.node._op.node_name, mode.node._seq)
    return traced


def _history(number: int) -> str:
    """Where the node of this number was made, and the nodes whose backward made it."""
    if type(number) is not _Traced:
        return (
            "No forward pass information available: detect anomalies during the forward pass too.\n"
        )
    calls = [(code.co_filename, line, code.co_name, None) for code, line in number.calls]
    text = "Traceback of the forward call that caused it (most recent call last):\n"
    text += "".join(traceback.StackSummary.from_list(calls).format())
    if number.inducer is not None:
        name, by = number.inducer
        text += f"Previous calculation was induced by {name}. {_history(by)}"
    return text
