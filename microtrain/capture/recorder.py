"""The recorder: writes down what the engine, optimizers and data parallelism do in a captured step.

A recorder is two things. As an array library (`Library` in trace.py) it runs and writes down all
instructions on arrays. Its own methods are those of `common/recording.py`, by which the package
tells of the rest: gradients and their bookkeeping, collectives, checks, what must be refused. What
it writes is a `Program` (program.py): instructions, and calls of Python between them.

Memory has a kind, by which a replay treats it. That of arguments is "input"; what outlives the step
(parameters, gradients, optimizer states) is "state"; what the step allocates is "made"; what has
the same values at every replay is "constant". Other memory is unknown, and using it is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from ..autograd import graph
from ..autograd.locks import acquire
from ..backend import LIBRARIES, MODES, NUMPY, owner_of, to_host
from ..common.recording import EAGER
from ..errors import CaptureError
from ..nn.module import Module
from ..optim.flat import owner
from ..random import default_generator
from ..tensor import TENSORS, wrap
from .looks import refuse
from .program import PythonCall, arrays_in
from .python_calls import Clear, Count, End, Mark, Pass
from .state import Leaves
from .trace import Library, Traced


class Recorder(Library):
    """Writes down one call of a step.

    Args:
        xp: the library that runs its instructions.
        state: arrays whose memory outlives the step: parameters, gradients, buffers.
        leaves: the leaves that the closure of the step leads to.
        locks: those that this thread holds until the step ends.
    """

    refuse_look = staticmethod(refuse)  # a Traced array refuses itself; this is for plain arrays

    def __init__(self, xp: Any, state: list[Any], leaves: Leaves, locks: list[Any]) -> None:
        super().__init__(xp)
        self.locks = locks
        self.leaves = leaves
        self.passes = 0  # backward passes
        self.called: set[Any] = set()  # modules that were called
        self.optimizers: list[Any] = []  # optimizers that took a step
        # By storage: which gradients were present at first; None if zero_grad() was called first.
        self.presence: dict[Any, Any] = {}
        self.listeners: dict[Any, None] = {}  # DataParallel models that had a backward pass
        self.forwards: list[Any] = []  # forward calls of such models
        self.first_draw = 0
        self.stream = stream_now()  # the stream of `manual_seed` after the draws recorded so far
        self.moved = False  # whether anything unrecorded has drawn from it
        self.exchanged: list[Any] = []  # what other ranks have answered
        self.born = graph.next_seq()  # nodes made by the step have higher numbers
        for array in state:
            self.program.classify(array, "state")

    def _kind(self, array: Any) -> str | None:
        """The kind of the memory of `array`: state, if a leaf that the step can reach owns it."""
        kind = super()._kind(array)
        if kind is None and id(owner_of(array)) in self.leaves.owners:
            self.program.classify(array, kind := "state")
        return kind

    def bookkeeping(self, label: str, function: Callable[[], Any], listener: Any = None) -> None:
        """Call `function` now, and at this place of every replay; for a pass of a `listener`."""
        where = self._where()
        host = PythonCall(label, function, where) if listener is None else None
        self._do(host or Pass(label, function, where, listener))

    def _do(self, host: PythonCall) -> Any:
        with paused():
            result = host.function()
        self.program.lines.append(host)
        return result

    def later(self, label: str, function: Callable[[], Any], *more: Any) -> bool:
        """Call `function` at this place of replays, but not now; `more` goes to `PythonCall`."""
        self.program.lines.append(PythonCall(label, function, self._where(), *more))
        return False

    def _random(self, name: str, shape: tuple[int, ...], draw: int | None, *how: Any) -> Any:
        """Random values, drawn again by every replay: for its step and batch (`draw` is a number),
        or from the user's stream (`draw` is None).
        """
        if draw is None and self.stream != stream_now():
            self.moved = True
        # A copy: this may be a view, whose place depends on which rows of the batch this rank has.
        array = getattr(self.xp, name)(shape, draw, *how).copy()
        if draw is None:
            self.stream = stream_now()
        else:
            draw -= self.draws_before
        fresh = draw is not None and not self.optimizers
        self._write(name, (shape, draw, *how), array, {"fresh": fresh})
        return self.traced(array, "made")

    random_words = functools.partialmethod(_random, "random_words")
    random_numbers = functools.partialmethod(_random, "random_numbers")

    @property
    def draws_before(self) -> int:
        """The number of draws before the call; 0 after an optimizer's step, which restarts it."""
        return 0 if self.optimizers else self.first_draw

    def examine(self, array: Any, check: Callable[[Any], None]) -> None:
        """Let `check` look at the values, now and at every replay; it may raise. Not on a GPU."""
        host = self.host(array)
        if self.kind != "cpu":  # looking would wait for the GPU
            return
        check(host)
        if self.program.kinds[id(owner_of(host))] == "constant":
            return
        label = f"check {check.__qualname__.split('.')[0].strip('_')}"
        bounds = getattr(check, "bounds", None)
        self.later(label, functools.partial(check, host), (), (host,), None, bounds)

    def exchange(self, label: str, function: Callable[[Any], Any], given: Any) -> Traced:
        """`function(given)`, which communicates and returns a new array; replays call it again."""
        host = self.host(given)
        made: Any = None

        def again() -> None:
            found = function(NUMPY.asarray(to_host(host), order="C"))
            made[...] = self.xp.asarray(found)

        with paused():
            made = self.xp.asarray(function(NUMPY.asarray(to_host(host), order="C")))
        self.exchanged.append(made.copy())
        like = host if host.size else made
        self.later(f"{label} of {like.dtype.name}{list(like.shape)}", again, (made,), (host,))
        return self.traced(made, "made")

    def cleared(self, storage: Any, set_to_none: bool) -> None:
        """Record `zero_grad()` of a flat storage."""
        self.touch(storage, clears=set_to_none)
        if set_to_none:
            self._do(Clear(storage, self._where()))
            return
        for slot in storage.slots:
            if slot.epoch == slot.buffer.epoch:
                self.copyto(slot.array, 0)
        self.bookkeeping("zero_grad", lambda: storage.zero_grad(False))

    # What the engine and the optimizers hand over -------------------------------------------------

    def calls(self, module: Module) -> None:
        """Note that `module` is called; refuse one with hooks, which a replay would not call."""
        self.called.add(module)
        if module._any_hooks():
            self.refuse_hook(f"a hook of {type(module).__name__}")

    def wait(self, lock: Any) -> None:
        """Acquire `lock` until the step ends."""
        if not MODES.apart:
            acquire(self.locks, lock, wait=True)

    def differentiate(self, edges: Any, wanted: Any) -> None:
        """Note that a backward pass begins, for all leaves or those that are `wanted`."""
        self.passes += 1
        self.leaves.differentiate(edges, wanted, self._where())

    def touch(self, storage: Any, clears: bool = False) -> None:
        """Note which gradients are present when the step first uses `storage`."""
        if storage not in self.presence:
            self.wait(storage.lock)  # the closure of the step may not lead to its parameters
            self.presence[storage] = None if clears else storage.present()

    def gradient(self, leaf: Any) -> Any:
        """Record that `leaf.grad` is read; returns it."""
        slot = None if leaf._extra is None else leaf._extra.slot
        if slot is None:
            self.leaves.read(leaf, self, self._where())
            return leaf._grad
        self.touch(slot.buffer.storage())
        return slot.gradient()

    def assign(self, leaf: Any, value: Any) -> None:
        """Record `leaf.grad = value`, which may be None."""
        slot = _slot(leaf)
        if slot is not None:
            self.touch(slot.buffer.storage())
            if value is None:
                self.bookkeeping("a gradient is dropped", slot.drop)
            else:
                self.copyto(slot.array, value._array)
                self._do(Mark([slot], self._where()))
        elif self.leaves.has(leaf) or type(leaf._array) is Traced or leaf._grad is value:
            if value is not None:
                self.host(value._array)
            self.leaves.clear(leaf, self)
            leaf._grad = value
        else:
            raise CaptureError(
                f"{self._where()}: grad is assigned to a Tensor that no optimizer owns, of shape "
                f"{leaf.shape}; give it to an optimizer before the step is called"
            )

    def accumulates(self, leaf: Any, g: Any, create_graph: bool) -> bool:
        """Add `g` to the gradient of a flat parameter; False for other leaves: the engine does it.

        Raises CaptureError for a leaf of the state that the closure does not lead to.
        """
        slot, ours = _slot(leaf), self.leaves.has(leaf)
        if create_graph and (slot is not None or ours):
            raise CaptureError(
                f"{self._where()}: backward(create_graph=True) into parameters cannot be "
                "captured; use autograd.grad for penalties on gradients"
            )
        if slot is not None:
            self._accumulate(slot, g)
            return True
        if ours:
            self.leaves.read(leaf, self, self._where())
        elif type(leaf._array) in LIBRARIES:
            self._refuse_unowned(leaf)
        return False

    def backward(self, rules: Callable[..., Any], node: Any, g: Any) -> Any:
        """What the `rules` of `node` return, given Traced arrays in place of plain ones.

        With a plain array, which state is, and a number NumPy would compute, and record nothing.
        """
        saved = node._saved  # of an operation, or of a user's Function
        try:
            self.doing = f"{getattr(node._op, 'name', node._op.node_name)} backward"
            node._saved = tuple([self._traced_tensor(value) for value in saved])
            return rules(node, self._traced_array(g))
        finally:
            node._saved, self.doing = saved, ""

    def _traced_array(self, value: Any) -> Any:
        if type(value) is list:
            return [self._traced_array(v) for v in value]
        return Traced(self.host(value), self) if type(value) in LIBRARIES else value

    def _traced_tensor(self, value: Any) -> Any:
        if type(value) not in TENSORS or type(value._array) not in LIBRARIES:
            return value
        found = wrap(self._traced_array(value._array))
        found._version = value._version
        return found

    def _accumulate(self, slot: Any, g: Any) -> None:
        """Add `g` to the flat gradient of a parameter; `g` may be that memory, written already."""
        self.touch(slot.buffer.storage())
        if slot.epoch == slot.buffer.epoch:
            self.add(slot.array, g, out=slot.array)
        elif g is not slot.array:
            self.copyto(slot.array, g)
        self._do(Mark([slot], self._where()))

    def begin_pass(self, listener: Any, label: str, begin: Any, roots: Any, whole: Any) -> Any:
        """Record and call `begin(roots)` of a `DataParallel` model, before a pass; its result.

        whole: from the array of the root the attribute `whole` of `Pass` (python_calls.py), or
            None.
        """
        hosted = [wrap(self.host(root._array)) for root in roots]
        for root in roots:
            self.fixed(root._array)
        self.listeners[listener] = None
        at_end = None if whole is None else whole(hosted[0]._array)
        return self._do(Pass(label, lambda: begin(hosted), self._where(), listener, at_end))

    def refuse(self, what: str) -> NoReturn:
        """CaptureError: `what` cannot be replayed."""
        raise CaptureError(f"{self._where()}: {what}")

    def refuse_hook(self, what: str) -> NoReturn:
        """CaptureError: hooks are the user's Python, which a replay does not run."""
        self.refuse(
            f"{what} would not be called when the step is replayed; remove it, or do not compile "
            "this step"
        )

    def step(self, optimizer: Any) -> None:
        """Record and do a step of `optimizer`."""
        self.touch(optimizer.storage)
        before = optimizer.runs
        with paused():
            optimizer.begin_step()
        if optimizer in self.optimizers and optimizer.runs is not before:
            raise CaptureError(
                f"{self._where()}: an optimizer takes two steps for different sets of gradients in "
                "one captured step; capture them as steps of their own"
            )
        numbers = tuple(arrays_in([[*run.constants.values()] for run in optimizer.runs]))
        for array in (*numbers, *arrays_in([[*run.states.values()] for run in optimizer.runs])):
            self.program.classify(array, "state")
        for run in optimizer.runs:
            for array in optimizer.scratch(run):
                self.program.classify(array, "made")
                self.fixed(array)
        self.optimizers.append(optimizer)
        self.program.lines.append(Count(optimizer, numbers, self._where()))
        self.doing = type(optimizer).__name__
        for run in optimizer.runs:
            optimizer.update(run)
        self.doing = ""
        self._do(End(optimizer, self._where()))


class paused:
    """A context manager: nothing that happens inside is recorded.

    Not a generator: after a Ctrl-C one would set the recorder again when it is collected.
    """

    def __enter__(self) -> None:
        self._before = MODES.capture
        MODES.capture = EAGER

    def __exit__(self, *_: object) -> None:
        MODES.capture = self._before


def stream_now() -> tuple[Any, str]:
    """The stream of `manual_seed`, and its position."""
    stream = default_generator()
    return stream, repr(stream.bit_generator.state)


def _slot(leaf: Any) -> Any:
    """The slot of a leaf in flat storage; None if it has none, or nothing owns the storage."""
    return None if owner(leaf) is None else leaf._extra.slot
