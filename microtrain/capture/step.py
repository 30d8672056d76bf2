"""`mt.compile`: capture a step at its first calls, replay it ever after.

Call 1 runs the user's Python with the recorder on, and so do the next, until two in a row did the
same, instruction by instruction: at call 2, at most at call 4 (an optimizer's first step makes its
state, so with momentum it is call 3). From then on only the Program runs. What a Program depends on
(shapes, dtypes, numbers, modes, training flags, which gradients are there) is its key; another key
is captured anew.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import os
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .. import random
from ..autograd.locks import COMMON, acquire, in_order, release_after_error
from ..backend import LIBRARIES, LISTENERS, MODES, NUMPY, alive, owner_of
from ..errors import CaptureError, noun_of
from ..nn.module import MODULES, Module
from ..optim.flat import STORAGES
from ..optim.optimizer import OPTIMIZERS, SCHEDULES
from ..tensor import TENSORS, Tensor, wrap
from .arguments_and_results import copies, rebuilt, replaced, taken
from .backward_outside import Outside
from .closure import Closure
from .executors import EXECUTORS, check, choose
from .explain import explain, varying
from .guard import MISSING, Fact, Guard, refuse_alias
from .program import MADE, Program, arrays_in
from .python_calls import optimize, skip
from .recorder import Recorder, stream_now
from .state import Leaves, Structure, look_at_all, tensors_of
from .switch import ended, recording

GRADIENTS, COUNTED = "which gradients are there", "what data parallelism has counted"
UNANSWERED = (
    "the step ends with messages whose gradients are asked for: call backward in it, on a rank "
    "without a loss autograd.backward(()), or send and receive under no_grad"
)
ATTEMPTS = 4  # calls until two in a row must have done the same
MOST = 32  # captures of one step in a thread, with those that a second call is to confirm


def compile(
    function: Callable[..., Any] | None = None,
    *,
    executor: str = "numpy",
    state: Sequence[Tensor] = (),
) -> Any:
    """Capture `function`, one training or evaluation step, and replay it without Python's costs.

    The step may touch its arguments, what it computes, and state: parameters, their gradients,
    buffers of modules, optimizers, Tensors in its closure (variables, globals, what lies in lists,
    dicts, objects, classes and functions there), and those of `state`. Its Python runs until two
    calls in a row did the same (call 2, at most call 4), then never: prints and counters in it
    stop. Results are fresh Tensors; where the step itself calls neither `backward` nor `grad`, they
    may be differentiated, once. A method that is compiled is captured for each object by itself.

    Args:
        function: the step. Tensors in its arguments (also nested in tuples, lists, dicts) may
            change from call to call; every other argument is part of the key of a capture.
        executor: "numpy", with the bits of the eager step; "native", code in C, which needs a
            compiler; "auto": native where there is one. Steps on a GPU have one, "cupy", which
            "numpy" and "auto" mean there.
        state: further Tensors from outside that the step reads or writes, and no name leads to.

    Returns:
        The compiled step: called like `function`; `.source()` prints the program, `.programs` are
        the captures.

    Raises TypeError for what is not a Tensor in `state`, and CaptureError, at the first calls,
    where a replay would silently do something else.
    `MICROTRAIN_COMPILE=off` in the environment runs everything eagerly; `numpy` or `native` there
    is what "auto" means on the CPU.

    Example:
        >>> @mt.compile
        ... def step(x, y):
        ...     optimizer.zero_grad()
        ...     loss = mt.nn.functional.mse_loss(model(x), y)
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
    """
    if executor not in EXECUTORS:
        raise ValueError(f"compile: unknown executor {executor!r}; use {', '.join(EXECUTORS)}")
    many = hasattr(state, "__iter__") and type(state) not in TENSORS
    state = (*state,) if many else (state,)  # type: ignore[assignment]
    for one in state:
        if type(one) not in TENSORS:
            raise TypeError(
                f"compile: state has {noun_of(one)}, expected Tensors; what the step finds "
                "by a name (a global, a variable, an attribute, a key) needs no state, so leave "
                "it out, or name the Tensors: state=[schedule.table]"
            )
    if function is None:
        return functools.partial(compile, executor=executor, state=state)
    wish = os.environ.get("MICROTRAIN_COMPILE", "auto")
    if wish == "off":
        return function
    if wish not in EXECUTORS:
        raise ValueError(f"MICROTRAIN_COMPILE: unknown {wish!r}; use off, {', '.join(EXECUTORS)}")
    return Compiled(function, state, executor, wish)


def _find(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
    return owner()._find(args, kwargs)


@dataclass(slots=True, eq=False, repr=False)
class Capture:
    """One capture: its Program, and what must still hold for it to be replayed.

    Attributes:
        guard: what it depends on.
        program: what is replayed.
        result: what the step returned, with an Output in place of each Tensor.
        problem: what was seen that no replay would do.
        leaves: those that no optimizer owns, and the gradients of arguments.
        structure: flags, hooks and places of the modules and leaves.
        optimizers: those that take a step in it, with their runs and these runs' constants.
        written: the ids of the owners of the memory that it writes.
        locks: held while it is replayed; see `autograd.locks`.
        outside: how results are differentiated; None where they are detached.
        number: captures are numbered as they are made.
        text: the program as Python, by the executor.
        reason: why it is this executor's.
        scan: many steps of it at once, None where there is no such; False: see `scan_of`.
        looks: the guard's function for `fits`, once it was asked.
        enter, attempt: the guard's functions, which replay it.
    """

    guard: Guard
    program: Program
    result: Any
    problem: str | None
    leaves: Leaves
    structure: Structure
    optimizers: list[tuple[Any, Any, Any]]
    written: set[int]
    locks: tuple[Any, ...]
    outside: Outside | None
    number: int = field(default_factory=itertools.count().__next__)
    text: Any = None
    reason: str = ""
    scan: Any = False
    looks: Any = None
    enter: Any = None
    attempt: Any = None

    def difference(self, other: Capture) -> str | None:
        """Why `other`, of the next call, must not be replayed; None if nothing is against it."""
        problem: str | None = self.program.difference(other.program) or other.problem
        if problem is None and Guard([self.result]).facts != Guard([other.result]).facts:
            problem = f"what it returns: {self.result!r}, then {other.result!r}"
        return problem

    def fits(self, *args: Any) -> bool:
        """Whether a call is one that it is for; replays nothing."""
        self.looks = self.looks or self.guard.fits(self)
        return self.looks(*args)

    def lives(self) -> bool:
        """Whether it can ever fit again.

        An optimizer's runs are made anew for other gradients, their constants for other options.
        """
        updates = (
            optimizer.runs is runs and [*map(id, constants)] == [id(run.constants) for run in runs]
            for optimizer, runs, constants in self.optimizers
        )
        found = self.guard.thread.is_alive() and all(updates)
        return found and self.structure.lives() and self.leaves.lives()


class Compiled:
    """A step that is captured and replayed; see `compile`."""

    # What a call runs is an attribute: Python finds the slot where it looks for a method, so a
    # call is that of one function, the entry of the capture that was replayed last.
    __slots__ = ("__call__", "__dict__", "__weakref__")

    def __init__(
        self, function: Callable[..., Any], state: Sequence[Tensor], executor: str, wish: str
    ) -> None:
        functools.update_wrapper(self, function, updated=())  # not the weights of a module
        self.name = getattr(function, "__name__", "the step")
        self.function = function
        self._signature = _signature(function)
        self.names = _names(self._signature)
        self.state = tuple(state)
        self.executor = executor
        self.wish = wish  # what "auto" means on the CPU
        self.captures: list[Capture] = []  # the one used last first
        self._pending: dict[Any, tuple[Capture, int]] = {}
        self._bound: dict[int, Compiled] = {}  # by id of the object whose method it is
        self.recorded = 0  # calls that ran the function, and were no replay
        self._restless = 0  # recordings in a row that changed the structure they depend on
        self._found: list[Any] = []  # Tensors in the closure at the last recording
        self._renewed = 0  # recordings in a row that found others, and confirmed nothing
        self.known: Sequence[tuple[Any, str]] = ()  # memory of another program, with its kinds
        self._lock = threading.RLock()  # the collector may come by while this thread holds it
        self._me: Any = weakref.ref(self)  # what the slot holds must not lead back: a cycle
        self.__call__: Callable[..., Any] = functools.partial(_find, self._me)

    @property
    def pending(self) -> dict[Any, tuple[Capture, int]]:
        """What was recorded and a second call is to confirm, with how often it was tried."""
        return {**self._pending}

    def go_back(self, captures: Sequence[Capture], pending: dict[Any, tuple[Capture, int]]) -> None:
        """Be what it was when it had these."""
        self.captures, self._pending = [*captures], {**pending}
        self.__call__ = functools.partial(_find, self._me)

    def __get__(self, instance: Any, kind: Any = None) -> Compiled:
        """The compiled step of one object, whose method it is; it holds that object weakly."""
        if instance is None:
            return self
        number = id(instance)
        found: Compiled | None = self._bound.get(number)
        if found is None:
            bound = self._bound
            me = weakref.ref(instance, lambda _: bound.pop(number, None))
            found = Compiled(_method(self.function, me), self.state, self.executor, self.wish)
            bound[number] = found
        return found

    def _find(self, args: Any, kwargs: Any) -> Any:
        """Replay the capture for a call that is not like the one before, or make one."""
        if MODES.capture.on:
            raise CaptureError("a compiled step is called inside a compiled step")
        if kwargs:
            args, kwargs = self._placed(args, kwargs)
        for capture in self.captures:
            result = capture.attempt(*args, **kwargs)
            if result is not MISSING:
                self._prefer(capture)
                self.__call__ = capture.enter
                return result
        return self._capture(args, kwargs)

    def _placed(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The same call with arguments at their places that were given by name."""
        moved = [*itertools.takewhile(kwargs.__contains__, self.names[len(args) :])]
        rest = {name: value for name, value in kwargs.items() if name not in moved}
        return (*args, *[kwargs[name] for name in moved]), rest

    def _prefer(self, capture: Capture) -> None:
        """Try `capture` first from now on."""
        with self._lock:
            self.captures = [capture, *(one for one in self.captures if one is not capture)]

    # Capture --------------------------------------------------------------------------------------

    def _capture(self, args: Any, kwargs: Any) -> Any:
        """Run the step with the recorder on, and keep what it did if the last run did the same."""
        self.recorded += 1
        try:  # what the step calls its arguments
            named = self._signature.bind(*args, **kwargs).arguments
        except TypeError:  # a wrong call
            named = {}
        guard = Guard(args, kwargs, [*named])
        key, tensors = guard.values(), guard.tensors
        self._forget()
        if self._full() and all(key != place[: len(key)] for place in [*self._pending]):
            self._too_many(guard.facts)
        capture = self._in_turn(guard, args, kwargs, named)
        program, outside, held = capture.program, capture.outside, capture.structure.held()
        result = rebuilt(capture.result, program.outputs, outside and outside.node(tensors))
        guard.tensors = []
        if None in held:  # another thread's, which was there for a moment: the next call says more
            return result
        place = guard.values()
        if self._full() and place not in self._pending:
            self._too_many(guard.facts)
        self._restless = self._restless + 1 if capture.structure.changed else 0
        if self._restless >= ATTEMPTS:
            self._restless = 0
            raise CaptureError(f"compile: {self.name} cannot be captured: {capture.problem}")
        with self._lock:
            before, attempts = self._pending.pop(place, (None, 0))
        problem = "first" if before is None else before.difference(capture)
        found = [reference for reference, *_ in capture.leaves.then[0]]
        renewed = problem is not None and any(map(operator.is_not, found, self._found))
        self._found, self._renewed = found, self._renewed + 1 if renewed else 0
        if self._renewed > MOST:
            raise CaptureError(
                f"compile: {self.name} finds a new Tensor by a global, a variable, an attribute or "
                "a key at every call, so no call can be a replay. Pass it as an argument"
            )
        if problem is None:
            run = self.executed(capture)
            capture.enter, capture.attempt = guard.functions(capture, run, self._me)
            self._prefer(capture)
        elif attempts + 1 >= ATTEMPTS:
            hint = (
                ". Pass what changes as an argument, a number as a Tensor; numbers of mt.randn, "
                "mt.rand, dropout ... are drawn anew at every replay"
            )
            raise CaptureError(
                f"compile: {self.name} does something different at every call, so a replay "
                f"would be wrong. Between the last two calls: {problem}"
                f"{hint if MADE in problem else ''}"
            )
        else:
            program.forget()
            with self._lock:
                self._pending[place] = capture, attempts + 1
        return result

    def executed(self, capture: Capture) -> Any:
        """A function that replays the program of a capture."""
        optimize(capture.program)
        here = self.executor == "auto" and capture.program.xp.kind == "cpu"
        name, capture.reason = choose(self.wish if here else self.executor, capture.program)
        run, capture.text = EXECUTORS[name](capture.program)
        return run

    def _forget(self) -> None:
        """Let go of captures that never fit again: other optimizer runs, modules that are gone."""
        with self._lock:
            self.captures = [capture for capture in self.captures if capture.lives()]
            self._pending = {k: found for k, found in self._pending.items() if found[0].lives()}

    def _mine(self) -> list[Capture]:
        """This thread's captures, oldest first, and those of them that are to be confirmed."""
        found = [*self._all(), *[capture for capture, _ in [*self._pending.values()]]]
        return [one for one in found if one.guard.thread is threading.current_thread()]

    def _full(self) -> bool:
        return len(self._mine()) >= MOST

    def _too_many(self, facts: Sequence[Fact]) -> NoReturn:
        found = [capture.guard.facts for capture in self._mine()]
        raise CaptureError(
            f"compile: {MOST} captures of {self.name} already, and another is needed; "
            f"{varying([*found, facts])}"
        )

    def _in_turn(self, guard: Guard, args: Any, kwargs: Any, named: Any) -> Capture:
        """`_record` while no other thread trains: what the step comes to is not known before."""
        closure = Closure(self.function, self.state, guard.objects)
        state = closure.tensors(True)
        everything = [*in_order(state), COMMON, *(storage.lock for storage in alive(STORAGES))]
        held: list[Any] = []
        try:
            try:
                for lock in () if MODES.apart else in_order((), everything):
                    acquire(held, lock, wait=True)
                return self._record(guard, args, kwargs, named, closure, state, held)
            finally:
                release_after_error(held)
        finally:
            release_after_error(held)  # a Ctrl-C may have come into the first one

    def _record(
        self,
        guard: Guard,
        args: Any,
        kwargs: Any,
        named: Any,
        closure: Closure,
        state: Any,
        held: Any,
    ) -> Capture:
        """One call with the recorder on; `state`: what the closure leads to."""
        tensors = guard.tensors
        leaves = Leaves(closure)
        # The library of the arguments; without any, of what the step can reach.
        found = {LIBRARIES[type(tensor._array)] for tensor in tensors or state}
        xp = next((xp for xp in found if xp.kind == "cuda"), NUMPY)
        check(self.executor, xp)
        recorder = Recorder(xp, _state(xp), leaves, held)
        program = recorder.program
        for array, kind in self.known:
            program.classify(array, kind)
        inputs: dict[int, Tensor] = {}
        if tensors and len(found) > 1:
            raise CaptureError(
                f"compile: the arguments of {self.name} are on cpu and cuda; move all to one device"
            )
        for tensor, array in zip(tensors, copies(tensors), strict=True):
            program.inputs.append(array)
            program.names += [(name, array) for name, t in named.items() if t is tensor]
            inner = inputs.setdefault(id(tensor), wrap(recorder.traced(array, "input")))
            if tensor._rg:
                inner.requires_grad_()
        numbers = {inputs[id(tensor)]: n for n, tensor in reversed([*enumerate(tensors)])}
        leaves.receive(numbers, tensors)
        recorder.first_draw, drawing = random.STREAM.draw, random.step_now()
        before = look_at_all()
        counted = {one: one.counted() for one in LISTENERS}
        options = {optimizer: optimizer.options_now() for optimizer in alive(OPTIMIZERS)}
        outer, MODES.messages = MODES.messages, []
        try:
            with recording(recorder):
                args, kwargs = replaced((args, kwargs), lambda v: inputs.get(id(v), v))
                returned = self.function(*args, **kwargs)
                differentiable: list[Tensor] = []
                result = taken(returned, program.outputs, recorder, differentiable)
                leaves.finish(recorder)
                if MODES.messages:
                    recorder.refuse(UNANSWERED)
        finally:
            MODES.messages = outer
            ended(recorder)  # where a Ctrl-C came before the block was entered, or as it was left
        used = random.STREAM.draw - recorder.draws_before
        if used > 0:
            recorder.later(f"{used} random draws", functools.partial(skip, used), ())
        if any(o.options_now() != options.get(o, o.options_now()) for o in recorder.optimizers):
            raise CaptureError(f"compile: {SCHEDULES}")
        written = {id(owner_of(a)) for x in program.lines for a in arrays_in(getattr(x, "out", ()))}
        if any(id(owner_of(tensor._array)) in written for tensor in tensors):
            refuse_alias()
        problem = None
        if recorder.moved or recorder.stream != stream_now():
            problem = (
                "it seeds the random stream or initializes weights from it (manual_seed, nn.init), "
                "which a replay would not; do that outside (randn, dropout ... are drawn anew)"
            )
        leaves.close(now=True)
        outside = None
        if differentiable:
            outside = Outside(recorder, differentiable, numbers)
            outside.compiled = Compiled(
                _method(Outside.backward, weakref.ref(outside)), (), self.executor, self.wish
            )
            outside.compiled.name = "the backward pass of a captured step"
            outside.compiled.known = outside.known
        structure = Structure(before, program, recorder.called)
        modules = [module for module in structure.held() if module is not None]
        recorder.called, recorder.layers = set(), {}  # modules
        if structure.changed:
            problem = (
                f"it changes {structure.changed}, which a replay would not; do it outside, set it "
                "back, or count in a buffer"
            )
        written &= {key for key, kind in program.kinds.items() if kind == "state"}
        changed = [t for t in (*_of_modules(), *state) if id(owner_of(t._array)) in written]
        locks = [s.lock for s in recorder.presence] + [COMMON] * leaves.of_arguments
        shared = () if MODES.apart else in_order([*leaves.changed, *changed], locks)
        leaves.changed = []
        structure.tell(guard)
        for storage, present in recorder.presence.items():
            if present is not None:
                conditions = [
                    f"{guard.name(slot)}.epoch {'==' if there else '!='} "
                    f"{guard.name(slot.buffer)}.epoch"
                    for slot, there in zip(storage.slots, present, strict=True)
                ]
                guard.add(GRADIENTS, present, " and ".join(conditions))
        for one in recorder.listeners:
            guard.equal(COUNTED, counted[one], f"{guard.name(one)}.counted()")
        if any(getattr(line, "name", "") == "random_numbers" for line in program.lines):
            guard.equal("the step", drawing, "step_now()")
        # With another set of options that are 0, off or None an update is another one.
        for optimizer in recorder.optimizers:
            set_ones = tuple(tuple(map(bool, options)) for options in optimizer.options_now())
            guard.add("which options are 0", set_ones)
        fits = f"{guard.name(leaves)}.fits({guard.given})" if leaves else ""
        guard.add("the leaves in the closure", leaves.then, fits)
        lead, led = closure.lead([*leaves.bound(), *modules, *recorder.optimizers])
        guard.add("where names lead", led, f"{guard.name(lead)}()" if lead else "")
        optimizers = [(o, o.runs, [r.constants for r in o.runs]) for o in recorder.optimizers]
        return Capture(
            guard, program, result, problem, leaves, structure, optimizers, written, shared, outside
        )

    # Looking at it --------------------------------------------------------------------------------

    @property
    def programs(self) -> list[Program]:
        """The Programs of all captures."""
        return [capture.program for capture in self._all()]

    def _all(self) -> list[Capture]:
        """The captures, oldest first."""
        return sorted(self.captures, key=lambda capture: capture.number)

    def explain(self, measure: bool = False) -> str:
        """What every capture consists of, its memory, and what it costs at least, as text.

        Args:
            measure: also time the instructions, and how fast this machine copies memory and
                multiplies matrices. Bookkeeping and communication are left out, so no step is
                counted and no other rank is waited for, and everything that the instructions
                write, weights too, is set back. No other thread may use the model meanwhile.
        """
        return "\n\n".join(explain(c.program, c.text, c.reason, measure) for c in self._all())

    def source(self) -> str:
        """The straight-line programs of every capture, as text: the step, and ways back from it."""
        texts = []
        for capture in self._all():
            texts.append(capture.text.shown())
            if capture.outside is not None:
                texts += filter(None, [capture.outside.compiled.source()])
        return "\n\n".join(texts)


def _method(function: Callable[..., Any], me: Any) -> Callable[..., Any]:
    """`function` with what the weak reference `me` leads to as its first argument."""

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        instance = me()
        if instance is None:
            raise ReferenceError(f"{function.__qualname__}: the object of this method is gone")
        return function(instance, *args, **kwargs)

    vars(method)["__signature__"] = inspect.signature(types.MethodType(function, me()))
    return method


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """The arguments of `function`, of a module those of its `forward`."""
    try:
        return inspect.signature(function.forward if isinstance(function, Module) else function)
    except (TypeError, ValueError):  # it does not tell
        return inspect.signature(lambda *args, **kwargs: None)


def _names(signature: inspect.Signature) -> tuple[str, ...]:
    """The names of the first arguments, where these may be given by name or by place."""
    found = itertools.takewhile(
        lambda one: one.kind is one.POSITIONAL_OR_KEYWORD, signature.parameters.values()
    )
    return tuple([parameter.name for parameter in found])


def _state(xp: Any) -> list[Any]:
    """The memory of modules and optimizers, which a step may read and write."""
    found = [a for storage in alive(STORAGES) for b in storage.buffers for a in (b.data, b.wide)]
    found += [tensor._array for tensor in _of_modules()]
    return [array for array in found if type(array) is xp.array_type]


def _of_modules() -> list[Tensor]:
    return [tensor for module in alive(MODULES) for _, tensor in tensors_of(module)]
