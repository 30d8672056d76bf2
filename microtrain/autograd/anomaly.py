"""Anomaly detection: where in your code is the operation whose gradient goes wrong?

While it is on, the creation number of a node carries the stack of the call that made it, and the
engine checks what every node returns. It costs nothing while it is off: operations read
`MODES.grad` anyway, which is then True or False. While it is on that is a `_Recording`, as true or
as false, whose method `result` operations call.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from ..backend import MODES, XP
from ..common.stack_frames import calls_under_way
from ..errors import need
from ..tensor import TENSORS, Tensor
from .graph import Node, next_seq


class AnomalyError(RuntimeError):
    """An operation returned what it should not.

    Attributes:
        operation: its name, such as `log`, or the name of a Function.
        arrays: those of its results that are wrong.
        backward: whether it was part of a backward pass.
        seq: the creation number of the node whose backward it was, else the newest one.
        calls: code and line of each call that led to the operation or its node, outermost first.
    """

    def __init__(
        self, message: str, operation: str, arrays: list[Any], backward: bool, seq: int, calls: Any
    ) -> None:
        super().__init__(message)
        self.operation, self.arrays, self.backward = operation, arrays, backward
        self.seq, self.calls = seq, calls


class detect_anomaly:
    """Find the operation whose gradient is NaN or whose backward raises, inside a `with` block.

    Operations recorded inside remember where they were called. A backward inside that returns NaN
    raises RuntimeError, which shows the operation, and file and line of its forward call; an error
    of a backward itself gets a note that shows them. Slow, for debugging; acts on this thread.

    Args:
        check_nan: False only remembers calls, for the notes.
        check_forward: check the results of operations too, and for infinities as well as NaN. An
            operation is not blamed for infinities that it was given, as in a mask.

    Example:
        >>> with mt.autograd.detect_anomaly():
        ...     loss = model(x).sqrt().mean()
        ...     loss.backward()
    """

    def __init__(self, check_nan: bool = True, *, check_forward: bool = False) -> None:
        self._state = _state(True, check_nan, check_forward)
        self._before = MODES.anomaly

    def __enter__(self) -> None:
        _set(self._state)

    def __exit__(self, *exc: object) -> None:
        _set(self._before)


class set_detect_anomaly(detect_anomaly):
    """Switch `detect_anomaly` on or off, at once and, used as a context manager, until its end.

    Example:
        >>> with mt.autograd.set_detect_anomaly(True):
        ...     mt.is_anomaly_enabled()
        True
    """

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
    """The state of anomaly detection while it is on.

    Attributes:
        node: the node whose backward runs.
        modes: the values of `MODES.grad` that stand for False and for True.
    """

    def __init__(self, check_nan: bool, check_forward: bool) -> None:
        self.check_nan, self.check_forward = check_nan, check_forward
        self.node: Node | None = None
        self.modes = _Recording(self, False), _Recording(self, True)

    def remember(self, node: Node) -> None:
        """Note the call that made `node`, just now."""
        node._seq = traced = _SeqWithCalls(node._seq)
        traced.calls = calls_under_way()
        traced.inducer = None if self.node is None else (self.node._op.node_name, self.node._seq)

    def watch(self, backward: Callable[..., Any], node: Node, g: Any) -> Any:
        """`backward(node, g)`; AnomalyError where it returns NaN, a note where it raises."""
        outer = self.node
        try:
            self.node = node
            grads = backward(node, g)
        except Exception as error:
            note = f"Error detected in {node._op.node_name}. {_history(node._seq)}"
            error.add_note(note.rstrip())
            raise
        finally:
            self.node = outer
        if self.check_nan:
            before = max(map(_severity, g if type(g) is list else [g])) if self.check_forward else 1
            wanted = [
                None if edge is None else value
                for value, edge in zip(grads, node._edges, strict=True)
            ]
            bad = [number for number, value in enumerate(wanted) if _severity(value) > before]
            if bad:
                name, seq = node._op.node_name, node._seq
                text = f"{_told(wanted[bad[0]], name)} in its {bad[0]}th output. {_history(seq)}"
                arrays, operation = [wanted[n] for n in bad], getattr(node._op, "name", name)
                calls = getattr(seq, "calls", [])
                raise AnomalyError(text.rstrip(), operation, arrays, True, seq, calls)
        return grads

    def check(self, operation: str, outputs: Iterable[Any], inputs: Iterable[Any]) -> None:
        """AnomalyError where `outputs` hold NaN or infinities that `inputs` do not."""
        if not self.check_forward:
            return
        bad = sorted((x for x in outputs if _severity(x)), key=_severity, reverse=True)
        if not bad or _severity(bad[0]) <= max(map(_severity, inputs), default=0):
            return
        calls, inner = calls_under_way(), self.node
        text = f"{_told(bad[0], operation)}. Traceback of the call (most recent call last):\n"
        text = f"{text}{_formatted(calls)}".rstrip()
        seq = next_seq() if inner is None else inner._seq
        raise AnomalyError(text, operation, bad, inner is not None, seq, calls)


class _Recording:
    """Whether operations are recorded, while anomalies are detected."""

    def __init__(self, anomaly: _Anomaly, on: bool) -> None:
        self.anomaly, self.on = anomaly, on

    def __bool__(self) -> bool:
        return self.on

    def result(self, operation: Any, output: Tensor, inputs: Iterable[Any]) -> None:
        """Look at what `operation` returns; what generated code calls."""
        if type(output._edge) is Node:
            self.anomaly.remember(output._edge)
        self.anomaly.check(operation.name, (output,), inputs)


def _severity(value: Any) -> int:
    """2 where a Tensor or an array holds NaN, 1 where it holds infinities, else 0."""
    array = value._array if type(value) in TENSORS else value
    xp = XP.get(type(array))
    if xp is None or array.dtype.kind != "f" or xp.isfinite(array).all().item():
        return 0
    return 2 if xp.isnan(array).any().item() else 1


def _told(value: Any, name: str) -> str:
    return f"Function '{name}' returned {'nan' if _severity(value) == 2 else 'infinite'} values"


def _state(mode: bool, check_nan: bool, check_forward: bool = False) -> _Anomaly | None:
    flags = {"mode": mode, "check_nan": check_nan, "check_forward": check_forward}
    for name, value in flags.items():
        need(type(value) is bool, name, "must be True or False", type(value), error=TypeError)
    return _Anomaly(check_nan, check_forward) if mode else None


def _set(state: _Anomaly | None) -> None:
    """Make `state` the mode of this thread."""
    grad = bool(MODES.grad)
    # Both at once: a Ctrl-C comes between two calls.
    MODES.anomaly, MODES.grad = state, grad if state is None else state.modes[grad]


# What a node remembers ------------------------------------------------------------------------


class _SeqWithCalls(int):
    """The creation number of a node, with the call that made the node.

    Attributes:
        calls: the code and line of each frame outside this package, the outermost first.
        inducer: name and number of the node during whose backward (create_graph) this one was made.
    """

    calls: list[tuple[CodeType, int]]
    inducer: tuple[str, int] | None


def _formatted(calls: list[tuple[CodeType, int]]) -> str:
    frames = [(code.co_filename, line, code.co_name, None) for code, line in calls]
    return "".join(traceback.StackSummary.from_list(frames).format())


def _history(number: int) -> str:
    """Where the node of this number was made, and the nodes whose backward made it."""
    if type(number) is not _SeqWithCalls:
        return "No forward pass information available: detect anomalies in the forward pass too.\n"
    text = "Traceback of the forward call that caused it (most recent call last):\n"
    text += _formatted(number.calls)
    if number.inducer is not None:
        name, by = number.inducer
        text += f"Previous calculation was induced by {name}. {_history(by)}"
    return text
