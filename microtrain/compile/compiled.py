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
import os
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Any, NoReturn

import numpy as np

from .. import random
from ..backend import LISTENERS, MODES, alive
from ..errors import CaptureError
from ..nn.module import MODULES, Module
from ..optim.flat import STORAGES
from ..optim.optimizer import OPTIMIZERS, refuse_schedule
from ..tensor import TENSORS, Tensor, wrap
from .entry import Unusual, entry, follow, same
from .executors import EXECUTORS, choose
from .explain import explain
from .leaves import Leaves
from .outside import ATTEMPTS, Outside
from .passes import arrays_in, optimise
from .program import PLAIN, Line, Program, copies_like, one_place, owner_of
from .recorder import Recorder, recording
from .reuse import forget
from .structure import Structure, look_at_all
from .traced import Traced
from .varying import varying

MOST = 32  # captures of one step, with those that a second call is to confirm


def compile(
    function: Callable[..., Any] | None = None,
    *,
    executor: str = "numpy",
    state: Sequence[Tensor] = (),
) -> Any:
    """Capture `function`, one training or evaluation step, and replay it without Python's costs.

    The step may touch its arguments, what it computes, and state: parameters, their gradients,
    buffers of modules, optimizers, Tensors that require grad in its closure (variables, globals,
    what lies in lists, dicts and objects there), and those of `state`. Its Python runs until two
    calls in a row did the same (call 2, at most call 4), then never: prints and counters in it
    stop. Results are fresh Tensors; where the step itself calls neither `backward` nor `grad`, they
    may be differentiated, once. A method that is compiled is captured for each object by itself.

    Args:
        function: the step. Tensors in its arguments (also nested in tuples, lists, dicts) may
            change from call to call; every other argument is part of the key of a capture.
        executor: "numpy", with the bits of the eager step; "numba", native code, which needs the
            extra `jit`; "auto": numba where that is there and has (nearly) all instructions of
            the step in native code.
        state: further Tensors from outside that the step reads or writes.

    Returns:
        The compiled step: called like `function`; `.source()` prints the program, `.programs` are
        the captures.

    Raises CaptureError, at the first calls, where a replay would silently do something else.
    `MICROTRAIN_COMPILE=off` in the environment runs everything eagerly; `numpy` or `numba` there is
    what "auto" means.

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
        raise ValueError(f"compile: executor must be auto, numba or numpy, got {executor!r}")
    if function is None:
        return functools.partial(compile, executor=executor, state=state)
    wish = os.environ.get("MICROTRAIN_COMPILE", "auto")
    if wish == "off":
        return function
    if wish not in EXECUTORS:
        raise ValueError(f"MICROTRAIN_COMPILE must be off, auto, numba or numpy, not {wish!r}")
    return Compiled(function, state, wish if executor == "auto" else executor)


class Capture:
    """One capture: its Program, and what must still hold for it to be replayed.

    Attributes:
        program: what is replayed.
        text: the same as Python, by the executor.
        run: the executor's function.
        enter: the short way to it, for calls like the first that was replayed.
        reason: why it is this executor's.
        result: what the step returned, with numbers in place of its Tensors.
        presence: by storage, which gradients were there when the step began.
        leaves: those that no optimizer owns, and the gradients of arguments.
        counted: by data-parallel model, what was counted when the step began.
        optimizers: those that take a step in it, with their runs and these runs' constants.
        outside: how results are differentiated; None where they are detached.
        seen: by optimizer and run, the options that these constants are known to be of.
        problem: what was seen that no replay would do.
        structure: flags, hooks and places of the modules and leaves.
        written: the ids of the owners of the memory that it writes.
    """

    __slots__ = (
        "counted", "draws", "enter", "leaves", "optimizers", "outside", "presence", "problem",
        "program", "reason", "result", "run", "seen", "structure", "text", "written",
    )  # fmt: skip

    def __init__(self, program: Program, recorder: Recorder, result: Any, problem: Any) -> None:
        self.program = program
        self.problem = problem
        self.result = result
        self.leaves = recorder.leaves
        self.presence = [(s, there) for s, there in recorder.presence.items() if there is not None]
        self.optimizers = [
            (optimizer, optimizer.runs, [run.constants for run in optimizer.runs])
            for optimizer in recorder.optimizers
        ]
        self.seen: list[list[Any]] = [[None] * len(runs) for _, runs, _ in self.optimizers]
        self.enter: Callable[..., Any] | None = None
        self.draws = any(type(x) is Line and x.name == "random_words" for x in program.lines)
        self.counted: list[tuple[Any, Any]] = []
        self.structure: Structure
        self.written: set[int] = set()
        self.outside: Outside | None = None
        self.run: Callable[[], None]
        self.text: Any = None
        self.reason = ""

    def difference(self, other: Capture) -> str | None:
        """Why `other`, of the next call, must not be replayed; None if nothing is against it."""
        problem: str | None = self.program.difference(other.program) or other.problem
        if problem is None and _part(self.result, []) != _part(other.result, []):
            problem = f"what it returns: {self.result!r}, then {other.result!r}"
        return problem

    def lives(self) -> bool:
        """Whether it can ever fit again.

        An optimizer's runs are made anew for other gradients, their constants for other options.
        """
        for optimizer, runs, constants in self.optimizers:
            if optimizer.runs is not runs or not all(map(same, runs, constants)):
                return False
        return self.structure.lives() and self.leaves.lives()

    def values(self) -> dict[str, Any]:
        """By name for people, what it takes as given besides its key."""
        counted = {"what data parallelism has counted": tuple(then for _, then in self.counted)}
        there: dict[str, Any] = {
            "which gradients are there": tuple(then for _, then in self.presence),
            "the leaves in the closure": self.leaves.then,
        }
        return self.structure.values() | there | counted

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether modules, gradients and optimizers are as then; new rates are taken over."""
        if not self.structure.fits() or not self.leaves.fits(tensors):
            return False
        for storage, there in self.presence:
            if storage.present() != there:
                return False
        for listener, counted in self.counted:
            if listener.counted() != counted:
                return False
        return follow(self.optimizers, self.seen)


class Compiled:
    """A step that is captured and replayed; see `compile`."""

    # What a call runs is an attribute: Python finds the slot where it looks for a method, so a
    # call is that of one function, the entry of the capture that was replayed last.
    __slots__ = ("__call__", "__dict__", "__weakref__")

    def __init__(
        self, function: Callable[..., Any], state: Sequence[Tensor], executor: str = "numpy"
    ) -> None:
        functools.update_wrapper(self, function, updated=())  # not the weights of a module
        self.name = getattr(function, "__name__", "the step")
        self.function = function
        self._signature = _signature(function)
        self._names = _names(self._signature)
        self.state = tuple(state)
        self.executor = executor
        self.captures: dict[Any, list[Capture]] = {}
        self._pending: dict[Any, tuple[Capture, int]] = {}
        self._bound: dict[int, Compiled] = {}  # by id of the object whose method it is
        self._restless = 0  # recordings in a row that changed the structure they depend on
        self._me: Any = weakref.ref(self)  # what the slot holds must not lead back: a cycle
        self.__call__: Callable[..., Any] = functools.partial(_find, self._me)

    def __get__(self, instance: Any, kind: Any = None) -> Compiled:
        """The compiled step of one object, whose method it is; it holds that object weakly."""
        if instance is None:
            return self
        number = id(instance)
        found: Compiled | None = self._bound.get(number)
        if found is None:
            bound = self._bound
            me = weakref.ref(instance, lambda _: bound.pop(number, None))
            found = Compiled(_method(self.function, me), self.state, self.executor)
            bound[number] = found
        return found

    def _find(self, args: Any, kwargs: Any) -> Any:
        """Replay the capture for a call that is not like the one before, or make one."""
        if kwargs:
            args, kwargs = self._placed(args, kwargs)
        tensors: list[Tensor] = []
        key = self._key(args, kwargs, tensors)
        try:
            found = self.captures.get(key, ())
        except TypeError:
            raise CaptureError(
                "compile: an argument is neither a Tensor nor hashable; pass Tensors, or tuples, "
                "lists and dicts of them"
            ) from None
        for capture in found:
            if capture.fits(tensors):
                break
        else:
            return self._capture(key, args, kwargs, tensors)
        program, outside = capture.program, capture.outside
        if outside is not None:
            outside.begin()
        written = capture.written
        for buffer, tensor in zip(program.inputs, tensors, strict=True):
            array = tensor._array
            owner = array.base  # as `owner_of`, without a call where that is plain
            if owner is None:
                owner = array
            elif type(owner) is not np.ndarray or owner.base is not None:
                owner = owner_of(array)
            if id(owner) in written:
                _refuse_alias()
            buffer[...] = array
        if capture.draws:
            program.draw[0] = random.place()[-1]
        if capture.leaves.ends:
            capture.leaves.tensors = tensors
        capture.run()
        if outside is None and not kwargs:
            self._shorten(capture, args)
        node = None if outside is None else outside.node(tensors)
        return _rebuilt(capture.result, program.outputs, node)

    def _placed(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The same call with arguments at their places that were given by name."""
        moved = [*itertools.takewhile(kwargs.__contains__, self._names[len(args) :])]
        rest = {name: value for name, value in kwargs.items() if name not in moved}
        return (*args, *[kwargs[name] for name in moved]), rest

    def _shorten(self, capture: Capture, args: Any) -> None:
        """Let the next call go the short way, if it is like this one."""
        if capture.enter is None:
            result, outputs = capture.result, capture.program.outputs
            output = outputs[result.number] if type(result) is _Output else None
            try:
                capture.enter = entry(capture, args, self._names, self._me, output, _rebuilt)
            except Unusual:
                capture.enter = functools.partial(_find, self._me)
        self.__call__ = capture.enter

    def _key(self, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        """What a capture depends on, apart from what it touches."""
        if MODES.recorder is not None:
            raise CaptureError("a compiled step is called inside a compiled step")
        key = (
            bool(MODES.grad),
            MODES.inference,
            MODES.default_dtype,
            MODES.anomaly is None,
            get_ident(),  # another thread has memory of its own
            *[_part(a, tensors) for a in args],
        )
        if kwargs:
            key += tuple([(k, _part(v, tensors)) for k, v in kwargs.items()])
        return key

    # Capture --------------------------------------------------------------------------------------

    def _capture(self, key: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Any:
        self._forget()
        if self._full() and all(key != place[0] for place in self._pending):
            self._too_many(key, args, kwargs)
        capture = self._record(args, kwargs, tensors)
        program = capture.program
        place = (
            key,
            capture.structure.then,
            capture.leaves.then,
            *(then for _, then in capture.presence + capture.counted),
            *(_flags(optimizer) for optimizer, _, _ in capture.optimizers),
        )
        if self._full() and place not in self._pending:
            self._too_many(key, args, kwargs, capture)
        self._restless = self._restless + 1 if capture.structure.changed else 0
        if self._restless >= ATTEMPTS:
            self._restless = 0
            raise CaptureError(f"compile: {self.name} cannot be captured: {capture.problem}")
        before, attempts = self._pending.pop(place, (None, 0))
        problem = "first" if before is None else before.difference(capture)
        outside = capture.outside
        node = None if outside is None else outside.node(tensors)
        result = _rebuilt(capture.result, program.outputs, node)
        if problem is None:
            optimise(program)
            name, capture.reason = choose(self.executor, program)
            if outside is not None:
                outside.executor = name
            capture.run, capture.text = EXECUTORS[name](program)
            self.captures.setdefault(key, []).append(capture)
        elif attempts + 1 >= ATTEMPTS:
            raise CaptureError(
                f"compile: {self.name} does something else at every call, so a replay would be "
                f"wrong. Between the last two calls: {problem}"
            )
        else:
            forget(program)
            self._pending[place] = capture, attempts + 1
        return result

    def _forget(self) -> None:
        """Let go of captures that never fit again: other optimizer runs, modules that are gone."""
        alive = {key: [c for c in found if c.lives()] for key, found in self.captures.items()}
        self.captures = {key: found for key, found in alive.items() if found}
        self._pending = {k: found for k, found in self._pending.items() if found[0].lives()}

    def _full(self) -> bool:
        return sum(map(len, self.captures.values())) + len(self._pending) >= MOST

    def _too_many(self, key: Any, args: Any, kwargs: Any, *more: Capture) -> NoReturn:
        found = [(k, capture) for k, each in self.captures.items() for capture in each]
        found += [(place[0], capture) for place, (capture, _) in self._pending.items()]
        keys = [*(k for k, _ in found), key]
        structures = [capture.values() for capture in (*(c for _, c in found), *more)]
        names = [name for name, _ in self._arguments(args, kwargs)]
        raise CaptureError(
            f"compile: {MOST} captures of {self.name} already, and another is needed; "
            f"{varying(keys, names, structures)}"
        )

    def _record(self, args: Any, kwargs: Any, tensors: list[Tensor]) -> Capture:
        """One call with the recorder on."""
        leaves = Leaves(self.function, self.state)
        recorder = Recorder(_state(self.state), leaves)
        program = recorder.program
        inputs: dict[int, Tensor] = {}
        named = self._arguments(args, kwargs)
        for tensor, array in zip(tensors, _copies(tensors), strict=True):
            program.inputs.append(array)
            program.names += [(name, array) for name, t in named if t is tensor]
            inner = inputs.setdefault(id(tensor), wrap(recorder.traced(array, "input")))
            if tensor._rg:
                inner.requires_grad_()
        leaves.receive(inputs, tensors)
        recorder.first_draw = random.place()[-1]
        stream = random.default_generator()
        drawn = repr(stream.bit_generator.state)
        before = look_at_all()
        counted = {one: one.counted() for ref in tuple(LISTENERS) if (one := ref())}
        options = {optimizer: optimizer.options_now() for optimizer in alive(OPTIMIZERS)}
        try:
            with recording(recorder):
                returned = self.function(
                    *(_given(a, inputs) for a in args),
                    **{k: _given(v, inputs) for k, v in kwargs.items()},
                )
                differentiable: list[Tensor] = []
                result = _taken(returned, program.outputs, recorder, differentiable)
                leaves.finish(recorder)
        finally:
            leaves.restore()
        used = random.place()[-1] - recorder.draws_before
        if used > 0:
            program.lines.append(recorder.draws(used))
        if any(o.options_now() != options.get(o, o.options_now()) for o in recorder.optimizers):
            refuse_schedule()
        written = {id(owner_of(a)) for x in program.lines for a in arrays_in(getattr(x, "out", ()))}
        if any(id(owner_of(tensor._array)) in written for tensor in tensors):
            _refuse_alias()
        problem = None
        if random.default_generator() is not stream or repr(stream.bit_generator.state) != drawn:
            problem = (
                "it seeds the random stream or draws from it (randn, bernoulli, init), and would "
                "repeat today's numbers; draw outside and pass the Tensor (dropout is drawn anew)"
            )
        capture = Capture(program, recorder, result, problem)
        leaves.close(now=True)
        if differentiable:
            numbers = {inputs[id(t)]: number for number, t in reversed([*enumerate(tensors)])}
            capture.outside = Outside(recorder, differentiable, numbers)
        capture.written = {
            id(a) for a in program.memory if id(a) in written and program.kinds[id(a)] == "state"
        }
        capture.counted = [(one, counted[one]) for one in recorder.listeners]
        capture.structure = Structure(before, program, recorder.called, self.state)
        recorder.called, recorder.layers = set(), {}  # modules
        if changed := capture.structure.changed:
            capture.problem = (
                f"it changes {changed}, which a replay would not; do it outside, set it back, or "
                "count in a buffer"
            )
        return capture

    def _arguments(self, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
        """What the step calls its arguments."""
        try:
            return list(self._signature.bind(*args, **kwargs).arguments.items())
        except TypeError:  # a wrong call
            return []

    # Looking at it --------------------------------------------------------------------------------

    @property
    def programs(self) -> list[Program]:
        """The Programs of all captures."""
        return [capture.program for found in self.captures.values() for capture in found]

    def explain(self, measure: bool = False) -> str:
        """What every capture consists of, its memory, and what it costs at least, as text.

        Args:
            measure: also time the instructions, and how fast this machine copies memory and
                multiplies matrices. Bookkeeping and communication are left out, so no step is
                counted and no other rank is waited for, and everything that the instructions
                write, weights too, is set back. No other thread may use the model meanwhile.
        """
        found = [c for captures in self.captures.values() for c in captures]
        return "\n\n".join(explain(c.program, c.text, c.reason, measure) for c in found)

    def source(self) -> str:
        """The straight-line programs of every capture, as text: the step, and ways back from it."""
        texts = []
        for capture in (c for found in self.captures.values() for c in found):
            texts.append(capture.text.shown())
            if capture.outside is not None:
                ways = capture.outside.ways.values()
                texts += [way.text.shown() for way in ways if way.text is not None]
        return "\n\n".join(texts)


def _refuse_alias() -> NoReturn:
    raise CaptureError(
        "compile: an argument is memory that the step writes (a parameter, a buffer), and would "
        "keep the values from before the step; use it from inside the step, or pass a clone()"
    )


def _find(owner: Any, *args: Any, **kwargs: Any) -> Any:
    return owner()._find(args, kwargs)


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


def _flags(optimizer: Any) -> Any:
    """Which options of its groups are 0, off or None: with another set an update is another one."""
    return tuple([tuple(map(bool, options)) for options in optimizer.options_now()])


def _state(further: Sequence[Tensor]) -> list[Any]:
    """The memory that a step may read and write besides its arguments."""
    found = [a for storage in alive(STORAGES) for b in storage.buffers for a in (b.data, b.wide)]
    for module in alive(MODULES):
        found += [value._array for value in [*vars(module).values()] if type(value) in TENSORS]
    found += [tensor._array for tensor in further]
    return [array for array in found if type(array) is np.ndarray]


def _part(value: Any, tensors: list[Tensor]) -> Any:
    """What the key says of an argument; its Tensors are appended to `tensors`."""
    kind = type(value)
    if kind in TENSORS:
        array, place = value._array, None
        for number, other in enumerate(tensors):
            if other is value:
                tensors.append(value)
                return ("again", number)
            if place is None and one_place(other._array, array):
                place = number
        tensors.append(value)
        # In another memory order sums are other sums.
        order = array.flags.num & PLAIN == PLAIN or (array.strides, array.flags.aligned)
        return (array.shape, array.dtype, value._rg, order, place)
    if kind is tuple or kind is list or isinstance(value, tuple):
        return (kind, *[_part(v, tensors) for v in value])
    if kind is dict:
        return (kind, *[(_part(k, tensors), _part(v, tensors)) for k, v in value.items()])
    if kind is float:
        return (kind, repr(value))  # 0.0 is not -0.0, and NaN is NaN
    if isinstance(value, Module):
        return (kind, weakref.ref(value))
    if isinstance(value, np.ndarray):
        raise CaptureError("compile: an argument is a NumPy array; pass mt.from_numpy(array)")
    return (kind, value)


def _copies(tensors: list[Tensor]) -> list[Any]:
    """Copies of the arguments, laid out as they are; two that begin at one address still do."""
    found: dict[int, Any] = {}
    unique = {id(tensor): tensor._array for tensor in tensors}
    for array in unique.values():
        group = {key: a for key, a in unique.items() if a is array or one_place(a, array)}
        if not group.keys() & found.keys():
            found |= zip(group, copies_like([*group.values()]), strict=True)
    return [found.pop(id(tensor), tensor._array.copy()) for tensor in tensors]


def _given(value: Any, inputs: dict[int, Tensor]) -> Any:
    kind = type(value)
    if kind in TENSORS:
        return inputs[id(value)]
    if isinstance(value, tuple | list):
        return _gathered(value, [_given(v, inputs) for v in value])
    if kind is dict:
        return {k: _given(v, inputs) for k, v in value.items()}
    return value


def _gathered(like: Any, parts: list[Any]) -> Any:
    """`parts` in the kind of tuple or list that `like` is."""
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


@dataclass(frozen=True, slots=True)
class _Output:
    number: int
    place: int | None  # among those that may be differentiated


def _taken(value: Any, outputs: list[Any], recorder: Recorder, roots: list[Tensor]) -> Any:
    """`value` with numbers in place of its Tensors, whose arrays are appended to `outputs`.

    Those that may be differentiated are appended to `roots`.
    """
    kind = type(value)
    if kind in TENSORS:
        outputs.append(recorder.host(value._array))
        if not value._rg or not MODES.grad or recorder.passes:
            return _Output(len(outputs) - 1, None)
        roots.append(value)
        return _Output(len(outputs) - 1, len(roots) - 1)
    if isinstance(value, tuple | list):
        return _gathered(value, [_taken(v, outputs, recorder, roots) for v in value])
    if kind is dict:
        return {k: _taken(v, outputs, recorder, roots) for k, v in value.items()}
    if kind is Traced or kind is np.ndarray:
        raise CaptureError("compile: the step returns an array; return the Tensor")
    return value


def _rebuilt(structure: Any, outputs: list[Any], node: Any) -> Any:
    kind = type(structure)
    if kind is _Output:
        found = wrap(outputs[structure.number].copy())
        if structure.place is not None:
            found._rg, found._edge = True, (node, structure.place)
        return found
    if isinstance(structure, tuple | list):
        return _gathered(structure, [_rebuilt(v, outputs, node) for v in structure])
    if kind is dict:
        return {k: _rebuilt(v, outputs, node) for k, v in structure.items()}
    return structure
