"""The recorder: an array library whose instructions run on NumPy and are written down.

While a thread captures, `XP[numpy.ndarray]` and `XP[Traced]` lead here, so that an instruction over
plain state (a parameter's flat memory) is recorded as well as one over Traced arrays. Memory that
is neither an argument, nor made in the step, nor state, is an error that names the user's line.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from ..autograd import graph
from ..backend import ARRAYS, INSTRUCTIONS, MODES, NUMPY, XP, alive
from ..errors import CaptureError
from ..frames import OPERATION, user_line
from ..nn.module import MODULES, Module
from ..optim.flat import owner
from ..random import begin_batch, place
from ..tensor import TENSORS, wrap
from .bookkeeping import CLEAR, COUNT, END, MARK
from .leaves import Leaves
from .names import layers
from .program import Host, Line, Program, owner_of
from .traced import Traced, refuse

UNWRITTEN = {
    "input": "its argument",
    "constant": "a constant",
    "kept": "what the forward pass saved",
}
_POWERS = {2: "square", 0.5: "sqrt", -1: "reciprocal"}


class Recorder:
    """Runs and writes down the instructions of one call of a step.

    Args:
        state: the owners of memory that outlives the step: parameters, gradients, buffers.
        leaves: those in the closure of the step.
    """

    kind = "cpu"
    array_type = Traced
    refuse_look = staticmethod(
        refuse
    )  # for plain arrays, the state's, which say nothing themselves

    def __init__(self, state: list[Any], leaves: Leaves) -> None:
        self.program = Program()
        self.leaves = leaves
        self.passes = 0  # backward passes
        self.called: set[Any] = set()  # modules
        self.optimizers: list[Any] = []  # that took a step
        self.presence: dict[Any, Any] = {}  # by storage; None where the step clears it first
        self.listeners: dict[Any, None] = {}  # that were told of backward passes
        self.forwards: list[tuple[int, int]] = []  # node numbers around those of wrapped models
        self.first_draw = 0
        self.exchanged: list[Any] = []  # what other ranks have answered
        self.layers = layers()
        self.doing = ""  # a gradient rule, an update
        self.born = graph.next_seq()  # nodes that the step makes are younger
        for array in (*state, *leaves.arrays):
            self.know(array, "state")

    def __getattr__(self, name: str) -> Any:
        """An instruction without a method of its own here: run it, write it down."""
        if name.startswith("_") or not hasattr(NUMPY, name):
            raise AttributeError(name)
        function = getattr(NUMPY, name)
        count = function.nin if isinstance(function, np.ufunc) else None

        def instruction(*args: Any, out: Any = None, **attrs: Any) -> Any:
            if count is not None and len(args) > count:
                *args, out = args  # type: ignore[assignment]
            return self._run(name, function, args, out, attrs)

        return instruction  # not kept: it would hold the recorder, and the recorder it

    # Memory -------------------------------------------------------------------------------------

    def know(self, array: Any, kind: str) -> None:
        """Note what the memory of `array` is."""
        owner = owner_of(array)
        if self.program.kinds.setdefault(id(owner), kind) == kind:
            self.program.memory.append(owner)

    def fix(self, array: Any) -> None:
        """Leave `array` its own memory: Python, or another program, works on it as well."""
        self.know(array, "made")
        self.program.fixed.add(id(owner_of(array)))

    def traced(self, array: Any, kind: str) -> Traced:
        """`array` as one of this capture."""
        self.know(array, kind)
        return Traced(array, self)

    def host(self, value: Any, written: bool = False) -> Any:
        """`value` for NumPy: the array behind a Traced one; CaptureError for unknown memory."""
        if type(value) is Traced:
            if value.recorder is not self or MODES.recorder is not self:
                raise CaptureError(
                    f"{self._where()}: a Tensor of an earlier call of a captured step is used; "
                    "return it from the step, or clone what you want to keep outside"
                )
            value = value.host
        elif isinstance(value, tuple | list):
            return type(value)(self.host(v) for v in value)
        elif type(value) is not np.ndarray:
            if isinstance(value, np.generic):  # of 0-d arrays that NumPy computed with unseen
                raise CaptureError(
                    f"{self._where()}: the number {value!r} is NumPy's, of an array of the state "
                    "or from outside, and would be the same at every call; use operations on "
                    "Tensors, and for a constant value.item()"
                )
            return value
        kind = self.program.kinds.get(id(owner_of(value)))
        if kind is None:
            self._refuse_gradient(owner_of(value))
            raise CaptureError(
                f"{self._where()}: an array of shape {value.shape} from outside the step; it would "
                "keep today's values for ever. Pass it as an argument, or, if the step changes it, "
                "as mt.compile(step, state=[...])"
            )
        if written and kind in UNWRITTEN:
            raise CaptureError(
                f"{self._where()}: the step writes into {UNWRITTEN[kind]}; clone() it first"
            )
        return value

    # Instructions ---------------------------------------------------------------------------------

    def _run(
        self, name: str, function: Callable[..., Any], args: Any, out: Any, attrs: dict[str, Any]
    ) -> Any:
        hosts = tuple(self.host(a) for a in args)
        attrs = {k: self.host(v) for k, v in attrs.items()}
        if out is not None:
            target = self.host(out, written=True)
            function(*hosts, out=target, **attrs)
            self._note(name, hosts, target, attrs)
            return out
        result = function(*hosts, **attrs)
        if type(result) is tuple:
            made = tuple(np.asarray(part) for part in result)
            self._note(name, hosts, made, attrs)
            return tuple(self.traced(part, "made") for part in made)
        found = result if type(result) is np.ndarray else np.asarray(result)
        if any(_shares(found, h) for h in hosts):
            return Traced(found, self)
        self._note(name, hosts, found, attrs)
        return self.traced(found, "made")

    def _note(self, name: str, args: Any, out: Any, attrs: dict[str, Any]) -> None:
        if type(out) is tuple or out.size:
            self._line(name, args, out, attrs)

    def _line(self, name: str, args: Any, out: Any, attrs: dict[str, Any]) -> None:
        self.program.lines.append(Line(name, args, out, attrs, self._where(), self._what()))

    def bookkeeping(self, label: str, function: Callable[[], Any], *more: Any) -> None:
        """Call `function` now, and at this place of every replay; `more` as in `Host`."""
        with paused():
            function()
        self.program.lines.append(Host(label, function, self._where(), *more))

    def later(self, label: str, function: Callable[[], Any]) -> None:
        """Call `function` at this place of every replay, but not now."""
        self.program.lines.append(Host(label, function, self._where()))

    def ufunc(self, function: Any, inputs: Any, out: Any, attrs: dict[str, Any]) -> Any:
        """A ufunc that NumPy was asked for, of plain and Traced arrays."""
        if function.__name__ not in INSTRUCTIONS:
            raise CaptureError(f"{self._where()}: numpy.{function.__name__} cannot be captured")
        return self._run(function.__name__, function, inputs, out, attrs)

    def power_of(self, x: Any, y: Any) -> Any:
        """`x ** y`, with NumPy's own spellings of common exponents."""
        if type(y) in (int, float) and y in _POWERS and x.dtype.kind == "f":
            name = _POWERS[y]
            return self._run(name, getattr(np, name), (x,), None, {})
        return self.power(x, y)

    def reshape(self, x: Any, shape: Any) -> Any:
        """A view where the memory allows one, else a copy."""
        host = self.host(x)
        found = host.reshape(shape)
        if _shares(found, host) or not found.size:
            return self._view(found)
        self._note("copyto", (found.reshape(host.shape), host), found, {})
        return self.traced(found, "made")

    def _view(self, array: Any) -> Traced:
        self.know(array, self.program.kinds.get(id(owner_of(array)), "made"))
        return Traced(array, self)

    def getitem(self, x: Any, index: Any) -> Any:
        """A view for integers and slices, else a copy."""
        host, where = self.host(x), self.host(index)
        if _masks(where):
            self.nonzero()
        found = np.asarray(host[where])
        if _shares(found, host) or not found.size:
            return self._view(found)
        self._note("getitem", (host, where), found, {})
        return self.traced(found, "made")

    def setitem(self, x: Any, index: Any, value: Any) -> None:
        """`x[index] = value`."""
        target, where, given = self.host(x, written=True), self.host(index), self.host(value)
        if _masks(where) and type(given) is np.ndarray and given.ndim:
            self.nonzero()
        target[where] = given
        self._note("setitem", (target, where, given), target, {})

    def scatter_add(self, x: Any, index: Any, values: Any) -> None:
        """`x[index] += values`, where repeated places add every time."""
        target, where, given = self.host(x, written=True), self.host(index), self.host(values)
        NUMPY.scatter_add(target, where, given)
        self._note("scatter_add", (target, where, given), target, {})

    def copyto(
        self, target: Any, source: Any, casting: Any = "same_kind", where: Any = True
    ) -> None:
        """Copy values, broadcast and cast."""
        to, given, mask = self.host(target, written=True), self.host(source), self.host(where)
        np.copyto(to, given, casting=casting, where=mask)
        attrs = {"casting": casting, **({} if where is True else {"where": mask})}
        self._note("copyto", (to, given), to, attrs)

    def copy(self, x: Any, order: str = "C") -> Any:
        """A copy of `x`."""
        host = self.host(x)
        made = host.copy(order=order)
        self._note("copyto", (made, host), made, {})
        return self.traced(made, "made")

    def asarray(self, value: Any, dtype: Any = None) -> Any:
        """A number as a constant, an array in another dtype as a copy."""
        if type(value) is Traced or type(value) is np.ndarray:
            host = self.host(value)
            if dtype is None or host.dtype == dtype:
                return value
            made = host.astype(dtype)
            self._note("copyto", (made, host), made, {"casting": "unsafe"})
            return self.traced(made, "made")
        return self.traced(np.asarray(value, dtype), "constant")

    def constant(self, value: Any, dtype: Any) -> Any:
        """A number as an operand."""
        return self.traced(NUMPY.constant(value, dtype), "constant")

    def ones_of(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Ones that are not written to."""
        return self.traced(NUMPY.ones_of(shape, dtype), "constant")

    def made(self, array: Any) -> Traced:
        """A new array with the values it has now at the start of its life in every replay."""
        start = array.copy()
        self.know(start, "constant")
        self._note("copyto", (array, start), array, {})
        return self.traced(array, "made")

    def empty(self, shape: Any, dtype: Any = float) -> Traced:
        """Memory."""
        return self.traced(np.empty(shape, dtype), "made")

    def empty_like(self, x: Any) -> Traced:
        """Memory in the shape, dtype and order of `x`."""
        return self.traced(np.empty_like(self.host(x)), "made")

    def _filled(self, array: Any, value: Any) -> Traced:
        self._note("copyto", (array, value), array, {"casting": "unsafe"})
        return self.traced(array, "made")

    def zeros(self, shape: Any, dtype: Any = float) -> Traced:
        """Zeros."""
        return self._filled(np.zeros(shape, dtype), 0)

    def zeros_like(self, x: Any) -> Traced:
        """Zeros in the shape, dtype and order of `x`."""
        return self._filled(np.zeros_like(self.host(x)), 0)

    def ones(self, shape: Any, dtype: Any = float) -> Traced:
        """Ones."""
        return self._filled(np.ones(shape, dtype), 1)

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Traced:
        """`value` everywhere."""
        array = np.full(shape, self.host(value), dtype)
        return self._filled(array, value)

    def arange(self, *args: Any, **attrs: Any) -> Any:
        """Consecutive numbers, a constant."""
        return self.traced(np.arange(*args, **attrs), "constant")

    def random_words(self, shape: tuple[int, ...], draw: int) -> Any:
        """Random words: drawn anew in every replay, for its step and batch."""
        # A copy: where the words lie in those that were drawn depends on the place of the batch.
        array = NUMPY.random_words(shape, draw).copy()
        number = draw - self.draws_before
        self._line("random_words", (shape, number), array, {"fresh": not self.optimizers})
        return self.traced(array, "made")

    @property
    def draws_before(self) -> int:
        """Where draws began to count: at the call, or at 0 where an optimizer took a step."""
        return 0 if self.optimizers else self.first_draw

    def draws(self, count: int) -> Host:
        """The bookkeeping of `count` draws."""
        return Host(f"{count} random draws", lambda: _skip(count), self._where(), ())

    def examine(self, array: Any, check: Callable[[Any], None]) -> None:
        """Let `check` look at the values now and at every replay; it may raise."""
        host = self.host(array)
        check(host)
        if self.program.kinds[id(owner_of(host))] == "constant":
            return
        label = f"check {check.__qualname__.split('.')[0].strip('_')}"
        again = functools.partial(check, host)
        self.program.lines.append(Host(label, again, self._where(), (), reads=(host,)))

    def exchange(self, label: str, function: Callable[[Any], Any], given: Any) -> Traced:
        """`function(given)`, a new array that other ranks have a part in: anew in every replay."""
        host = self.host(given)
        with paused():
            made = function(np.asarray(host, order="C"))
        self.exchanged.append(made.copy())
        what = f"{label} of {host.dtype.name}{list(host.shape)}"

        def again() -> None:
            made[...] = function(np.asarray(host, order="C"))

        self.program.lines.append(Host(what, again, self._where(), (made,), reads=(host,)))
        return self.traced(made, "made")

    def cleared(self, storage: Any, set_to_none: bool) -> None:
        """`zero_grad()` of a storage."""
        self.touch(storage, clears=set_to_none)
        if set_to_none:
            self.bookkeeping(CLEAR, storage.zero_grad, (), storage)
            return
        for slot in storage.slots:
            if slot.epoch == slot.buffer.epoch:
                self.copyto(slot.array, 0)
        self.bookkeeping(CLEAR, lambda: storage.zero_grad(False))

    # What the engine and the optimizers hand over -------------------------------------------------

    def touch(self, storage: Any, clears: bool = False) -> None:
        """Note which gradients were there when the step first came to `storage`."""
        if storage not in self.presence:
            self.presence[storage] = None if clears else storage.present()

    def gradient(self, leaf: Any) -> Any:
        """What `leaf.grad` reads."""
        slot = None if leaf._extra is None else leaf._extra.slot
        if slot is None:
            self.leaves.read(leaf, self, self._where())
            return leaf._grad
        self.touch(slot.buffer.storage())
        return slot.gradient()

    def assign(self, leaf: Any, value: Any) -> None:
        """`leaf.grad = value`, also of None."""
        slot = _slot(leaf)
        if slot is not None:
            self.touch(slot.buffer.storage())
            if value is None:
                self.bookkeeping("a gradient is dropped", slot.drop)
            else:
                self.copyto(slot.array, value._array)
                self.bookkeeping(MARK, slot.mark, (), slot)
        elif self.leaves.has(leaf) or type(leaf._array) is Traced or leaf._grad is value:
            if value is not None:
                self.host(value._array)
            self.leaves.clear(leaf)
            leaf._grad = value
        else:
            raise CaptureError(
                f"{self._where()}: grad is assigned to a Tensor that no optimizer owns, of shape "
                f"{leaf.shape}; give it to an optimizer before the step is called"
            )

    def accumulates(self, leaf: Any, g: Any, create_graph: bool) -> bool:
        """Add `g` to the gradient of a parameter; False for other leaves, where the engine does.

        Raises CaptureError for a leaf of the state that the closure does not lead to.
        """
        slot, ours = _slot(leaf), self.leaves.has(leaf)
        if create_graph and (slot is not None or ours):
            raise CaptureError(
                f"{self._where()}: backward(create_graph=True) into parameters cannot be "
                "captured; use autograd.grad for penalties on gradients"
            )
        if slot is not None:
            self.accumulate(slot, g)
            return True
        if ours:
            self.leaves.read(leaf, self, self._where())
        elif type(leaf._array) is np.ndarray:
            self._refuse_unowned(leaf)
        return False

    def _refuse_unowned(self, leaf: Any) -> NoReturn:
        raise CaptureError(
            f"{self._where()}: a gradient for a Tensor that no optimizer owns, of shape "
            f"{leaf.shape}; give it to an optimizer before the step is called, and keep that"
        )

    def _refuse_gradient(self, memory: Any) -> None:
        """CaptureError where `memory` is that of gradients whose optimizer is gone."""
        for module in alive(MODULES):
            for leaf in module.parameters():
                slot = None if leaf._extra is None else leaf._extra.slot
                if slot is not None and owner_of(slot.array) is memory:
                    self._refuse_unowned(leaf)

    def backward(self, rules: Callable[..., Any], node: Any, g: Any) -> Any:
        """What the `rules` of `node` return. Their operators must meet no plain array of the state:

        beside a number NumPy would compute something that nobody writes down.
        """
        saved, self.doing = node._saved, _rules_of(node)
        node._saved = tuple([self._traced_tensor(value) for value in saved])
        try:
            return rules(node, self._traced_array(g))
        finally:
            node._saved, self.doing = saved, ""

    def _traced_array(self, value: Any) -> Any:
        if type(value) is list:
            return [self._traced_array(v) for v in value]
        return Traced(self.host(value), self) if type(value) is np.ndarray else value

    def _traced_tensor(self, value: Any) -> Any:
        if type(value) not in TENSORS or type(value._array) is not np.ndarray:
            return value
        found = wrap(self._traced_array(value._array))
        found._version = value._version
        return found

    def accumulate(self, slot: Any, g: Any) -> None:
        """Add `g` to the flat gradient of a parameter; it may be that memory, already written."""
        self.touch(slot.buffer.storage())
        if slot.epoch == slot.buffer.epoch:
            self.add(slot.array, g, out=slot.array)
        elif g is not slot.array:
            self.copyto(slot.array, g)
        self.bookkeeping(MARK, slot.mark, (), slot)

    def listen(self, listener: Any, roots: Any, create_graph: bool, means: Any) -> Any:
        """The beginning of a pass that data parallelism is told of; the scale of its seeds."""
        label, begin = listener.beginning(
            [wrap(self.host(root._array)) for root in roots],
            create_graph,
            None if means is None else means.hosted(),
        )
        for root in roots:
            self.fix(self.host(root._array))
        self.listeners[listener] = None
        running = self.program.running

        def enter() -> Any:
            running.append(listener)
            return begin()

        with paused():
            scale = enter()
        self.program.lines.append(Host(label, enter, self._where()))
        return scale if means is None or means.single is None else means.single

    def heard(self, listener: Any) -> None:
        """The end of a pass that data parallelism was told of."""
        label, end = listener.ending()
        running = self.program.running

        def leave() -> None:
            end()
            running.remove(listener)

        self.bookkeeping(label, leave)

    def refuse_hook(self, what: str) -> None:
        """CaptureError: hooks are the user's Python, which a replay does not run."""
        raise CaptureError(
            f"{self._where()}: {what} would not be called when the step is replayed; remove it, or "
            "do not compile this step"
        )

    def step(self, optimizer: Any) -> None:
        """An optimizer's step."""
        self.touch(optimizer.storage)
        before = optimizer.runs
        with paused():
            optimizer.begin_step()
        if optimizer in self.optimizers and optimizer.runs is not before:
            raise CaptureError(
                f"{self._where()}: an optimizer takes two steps for different sets of gradients in "
                "one captured step; capture them as steps of their own"
            )
        for run in optimizer.runs:
            for array in (*run.constants, *run.states):
                if type(array) is np.ndarray:
                    self.know(array, "state")
            self.fix(run.scratch)
        self.optimizers.append(optimizer)
        numbers = tuple(a for run in optimizer.runs for a in run.constants if type(a) is np.ndarray)
        about = optimizer, tuple(optimizer.runs)
        self.program.lines.append(Host(COUNT, optimizer.count_step, self._where(), numbers, about))
        self.doing = type(optimizer).__name__
        for run in optimizer.runs:
            optimizer.update(run)
        self.doing = ""
        self.bookkeeping(END, optimizer.end_step, (), tuple(optimizer.written))

    def nonzero(self, *_: Any) -> Any:
        """Refused: the shape of the result depends on values."""
        raise CaptureError(
            f"{self._where()}: the shape of the result depends on values (nonzero, unique, a mask "
            "as an index), so it cannot be captured; where(mask, x, 0) keeps the shape"
        )

    def _where(self) -> str:
        """File and line of the user's code that runs now."""
        return user_line(sys._getframe(1))

    def _what(self) -> str:
        """The layer and the operation that run now."""
        frame: FrameType | None = sys._getframe(1)
        operation = ""
        while frame is not None and not self.doing:
            code = frame.f_code
            if not operation and code.co_filename.startswith(OPERATION):
                operation = code.co_filename[len(OPERATION) : -1]
            if code is Module.__call__.__code__:
                layer = self.layers.get(frame.f_locals["self"], "")
                return f"{layer}: {operation}" if layer and operation else layer or operation
            frame = frame.f_back
        return self.doing or operation


def _slot(leaf: Any) -> Any:
    """The place of a leaf's gradient in flat memory, while something owns that."""
    return None if owner(leaf) is None else leaf._extra.slot


def _rules_of(node: Any) -> str:
    """Whose gradient a node computes: an operation's, or a Function's."""
    return f"{getattr(node._op, 'name', node._op.node_name)} backward"


def _masks(index: Any) -> bool:
    """Whether how much an index chooses depends on values."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(type(part) is np.ndarray and part.dtype.kind == "b" for part in parts)


def _shares(a: Any, b: Any) -> bool:
    return type(b) is np.ndarray and bool(a.size) and np.may_share_memory(a, b)


def _skip(count: int) -> None:
    row, batch, draw = place()
    begin_batch(row, batch, draw + count)


class _Switch:
    """What arrays lead to while somebody captures: this thread's recorder, or NumPy."""

    kind = "cpu"
    array_type = np.ndarray

    def __getattr__(self, name: str) -> Any:
        recorder = MODES.recorder
        return getattr(NUMPY if recorder is None else recorder, name)


_SWITCH: Any = _Switch()
_LOCK = threading.Lock()
_CAPTURING = 0
ARRAYS.add(Traced)
XP[Traced] = _SWITCH


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Let `recorder` write down the instructions of this thread."""
    global _CAPTURING
    with _LOCK:
        _CAPTURING += 1
        XP[np.ndarray] = _SWITCH
    MODES.recorder = recorder
    try:
        yield
    finally:
        MODES.recorder = None
        with _LOCK:
            _CAPTURING -= 1
            if not _CAPTURING:
                XP[np.ndarray] = NUMPY


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Nothing that happens inside is recorded."""
    before = MODES.recorder
    MODES.recorder = None
    try:
        yield
    finally:
        MODES.recorder = before
