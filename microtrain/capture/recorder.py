"""The recorder: what the engine, optimizers and data parallelism tell of a step that is captured.

What they compute is written down by the array library that it is (`library`); here is the rest,
as `recording.Recording` lists it: gradients and their bookkeeping, collectives, checks, refusals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from ..autograd import graph
from ..autograd.turns import take
from ..backend import LIBRARIES, MODES, NUMPY, owner_of, to_host
from ..common.recording import EAGER
from ..errors import CaptureError
from ..nn.module import Module
from ..optim.flat import owner
from ..random import default_generator
from ..tensor import TENSORS, wrap
from .looks import refuse
from .program import Host, arrays_in
from .python_calls import Clear, Count, End, Mark, Pass
from .state import Leaves
from .trace import Library, Traced


class Recorder(Library):
    """Writes down one call of a step.

    Args:
        xp: the library that runs its instructions.
        state: the owners of memory that outlives the step: parameters, gradients, buffers.
        leaves: those in the closure of the step.
        turns: those that this thread has until the step ends.
    """

    refuse_look = staticmethod(refuse)  # for plain arrays of the state, which do not do it

    def __init__(self, xp: Any, state: list[Any], leaves: Leaves, turns: list[Any]) -> None:
        super().__init__(xp)
        self.turns = turns
        self.leaves = leaves
        self.passes = 0  # backward passes
        self.called: set[Any] = set()  # modules
        self.optimizers: list[Any] = []  # that took a step
        self.presence: dict[Any, Any] = {}  # by storage; None where the step clears it first
        self.listeners: dict[Any, None] = {}  # that were told of backward passes
        self.forwards: list[Any] = []  # calls of wrapped models
        self.first_draw = 0
        self.stream = stream_now()  # of `manual_seed`, as the instructions so far leave it
        self.moved = False  # by anything else
        self.exchanged: list[Any] = []  # what other ranks have answered
        self.born = graph.next_seq()  # nodes that the step makes are younger
        for array in state:
            self.know(array, "state")

    def _kind(self, array: Any) -> str | None:
        """What the memory of `array` is: state, where it is first touched and has a name."""
        kind = super()._kind(array)
        if kind is None and id(owner_of(array)) in self.leaves.owners:
            self.know(array, kind := "state")
        return kind

    def bookkeeping(self, label: str, function: Callable[[], Any], listener: Any = None) -> None:
        """Call `function` now, and at this place of every replay; for a pass of a `listener`."""
        where = self._where()
        host = Host(label, function, where) if listener is None else None
        self._do(host or Pass(label, function, where, listener))

    def _do(self, host: Host) -> Any:
        with paused():
            result = host.function()
        self.program.lines.append(host)
        return result

    def later(self, label: str, function: Callable[[], Any], *more: Any) -> bool:
        """Call `function` at this place of every replay, but not now; `more` as in `Host`."""
        self.program.lines.append(Host(label, function, self._where(), *more))
        return False

    def _random(self, name: str, shape: tuple[int, ...], draw: int | None, *how: Any) -> Any:
        """Drawn anew in every replay, for its step and batch, or next in the user's stream."""
        if draw is None and self.stream != stream_now():
            self.moved = True
        # A copy: where words lie in those that were drawn depends on the place of the batch.
        array = getattr(self.xp, name)(shape, draw, *how).copy()
        if draw is None:
            self.stream = stream_now()
        else:
            draw -= self.draws_before
        fresh = draw is not None and not self.optimizers
        self._note(name, (shape, draw, *how), array, {"fresh": fresh})
        return self.traced(array, "made")

    random_words = functools.partialmethod(_random, "random_words")
    random_numbers = functools.partialmethod(_random, "random_numbers")

    @property
    def draws_before(self) -> int:
        """Where draws began to count: at the call, or at 0 where an optimizer took a step."""
        return 0 if self.optimizers else self.first_draw

    def examine(self, array: Any, check: Callable[[Any], None]) -> None:
        """Let `check` look at the values now and at every replay; it may raise. Not on a GPU."""
        host = self.host(array)
        if self.kind != "cpu":  # it would wait for all that was asked of it before
            return
        check(host)
        if self.program.kinds[id(owner_of(host))] == "constant":
            return
        label = f"check {check.__qualname__.split('.')[0].strip('_')}"
        self.later(label, functools.partial(check, host), (), (host,))

    def exchange(self, label: str, function: Callable[[Any], Any], given: Any) -> Traced:
        """`function(given)`, a new array that other ranks have a part in: anew in every replay."""
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
        """`zero_grad()` of a storage."""
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
        """A module is called; its hooks would not be."""
        self.called.add(module)
        if module._any_hooks():
            self.refuse_hook(f"a hook of {type(module).__name__}")

    def wait(self, turn: Any) -> None:
        """Let no other thread change something until the step ends."""
        if not MODES.apart:
            take(self.turns, turn, wait=True)

    def touch(self, storage: Any, clears: bool = False) -> None:
        """Note which gradients were there when the step first came to `storage`."""
        if storage not in self.presence:
            self.wait(storage.turn)  # where the closure does not lead to its parameters
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
            self._accumulate(slot, g)
            return True
        if ours:
            self.leaves.read(leaf, self, self._where())
        elif type(leaf._array) in LIBRARIES:
            self._refuse_unowned(leaf)
        return False

    def backward(self, rules: Callable[..., Any], node: Any, g: Any) -> Any:
        """What the `rules` of `node` return. Their operators must meet no plain array of the state:

        beside a number NumPy would compute something that nobody writes down.
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
        """Add `g` to the flat gradient of a parameter; it may be that memory, already written."""
        self.touch(slot.buffer.storage())
        if slot.epoch == slot.buffer.epoch:
            self.add(slot.array, g, out=slot.array)
        elif g is not slot.array:
            self.copyto(slot.array, g)
        self._do(Mark([slot], self._where()))

    def listen(self, listener: Any, label: str, begin: Any, roots: Any, whole: Any) -> Any:
        """The beginning of a pass that data parallelism is told of: `begin(roots)`; its result.

        whole: how the pass can be noted at its end, by the array of its root, as `Pass` takes it.
        """
        hosted = [wrap(self.host(root._array)) for root in roots]
        for root in roots:
            self.fixed(root._array)
        self.listeners[listener] = None
        running = self.program.running

        def enter() -> Any:
            running.append(listener)
            return begin(hosted)

        at_end = None if whole is None else whole(hosted[0]._array)
        return self._do(Pass(label, enter, self._where(), listener, at_end))

    def heard(self, listener: Any, label: str, end: Any) -> None:
        """The end of a pass that data parallelism was told of."""
        running = self.program.running

        def leave() -> None:
            end()
            running.remove(listener)

        self.bookkeeping(label, leave, listener)

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
        numbers = tuple(arrays_in([[*run.constants.values()] for run in optimizer.runs]))
        for array in (*numbers, *arrays_in([[*run.states.values()] for run in optimizer.runs])):
            self.know(array, "state")
        for run in optimizer.runs:
            for array in optimizer.scratch(run):
                self.know(array, "made")
                self.fixed(array)
        self.optimizers.append(optimizer)
        self.program.lines.append(Count(optimizer, numbers, self._where()))
        self.doing = type(optimizer).__name__
        for run in optimizer.runs:
            optimizer.update(run)
        self.doing = ""
        self._do(End(optimizer, self._where()))


class paused:
    """Nothing that happens inside is recorded.

    No generator: one that a Ctrl-C left half done would set the recorder when it is collected.
    """

    def __enter__(self) -> None:
        self._before = MODES.capture
        MODES.capture = EAGER

    def __exit__(self, *_: object) -> None:
        MODES.capture = self._before


def stream_now() -> tuple[Any, str]:
    """The stream of `manual_seed`, and where it stands."""
    stream = default_generator()
    return stream, repr(stream.bit_generator.state)


def _slot(leaf: Any) -> Any:
    """The place of a leaf's gradient in flat memory, while something owns that."""
    return None if owner(leaf) is None else leaf._extra.slot
