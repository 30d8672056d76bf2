"""Tensors in the closure of a step, and the gradients of leaves that no optimizer owns.

What is reached through the closure (variables, globals, and the lists, dicts, objects, classes and
functions there) is state, also where it is only read. A replay runs no Python, so a capture
remembers the ways that led to each Tensor and fits only while they lead there still.

The gradient of such a leaf, and of an argument, is an ordinary Tensor that comes and goes. So it is
handed in when the step first reads it or adds to it, and handed out at the end.
"""

from __future__ import annotations

import collections
import functools
import inspect
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..autograd.turns import COMMON
from ..backend import LIBRARIES, is_plain, owner_of
from ..errors import CaptureError
from ..nn.module import Module
from ..tensor import INFERENCE, TENSORS, Tensor, wrap
from .passes import arrays_in
from .program import Host, Line, Program, copies_like
from .reuse import works_on

LARGEST = 1000  # of lists and dicts that are looked into: longer ones are data
FURTHEST = 10_000  # objects that are looked at
ANY = "any"  # in place of what a gradient was: the step drops it before it reads it

Way = tuple[Callable[[Any], Any], ...]  # from the function of the step to a Tensor
_OWN: Callable[[Any], Any] = operator.attrgetter("__dict__")


class Leaves:
    """The leaves that one recording of a step may meet, then those that it depends on.

    Args:
        function: the step.
        further: Tensors that were named as state.

    Attributes:
        then: what a replay must find, it can be hashed.
        owners: until the recording ends, the ids of the owners of the memory of what was found.
        changed: until the recording ends, those of the closure whose gradient the step has to do
            with.
        ends: whether the step ends with something to be done about them.
        tensors: the arguments of the call that is replayed, if so.
    """

    def __init__(self, function: Any, further: Iterable[Tensor]) -> None:
        self._function = function
        self._ways: dict[Tensor, list[Way]] = {t: [] for t in further if _is_leaf(t)}
        for way, tensor in reached(function):  # also views of state must be the same ones later
            self._ways.setdefault(tensor, []).append(way)
        self._versions = {
            tensor: tensor.version.n
            for tensor in self._ways
            if not _is_flat(tensor) and tensor.version is not INFERENCE
        }
        # A backward pass must not go on into a graph from outside.
        self.owners = {id(owner_of(t._array)) for t in self._ways if t._edge is None}
        self._arguments: dict[Tensor, int] = {}  # as the step has them: their numbers
        self._given: dict[Tensor, Any] = {}  # what stands for a gradient in the step
        self._before: dict[Tensor, Any] = {}  # and the gradient, None, or ANY
        self.tensors: Sequence[Tensor] = ()
        self.then: Any = ()
        self.changed: list[Tensor] = []

    # While the step is recorded -------------------------------------------------------------------

    def receive(self, inputs: dict[int, Tensor], tensors: Sequence[Tensor]) -> None:
        """Note the arguments, and what the step is given for each."""
        self.tensors = tensors
        self._arguments = {inputs[id(t)]: n for n, t in reversed([*enumerate(tensors)])}

    def has(self, leaf: Tensor) -> bool:
        """Whether the gradient of `leaf` outlives the step."""
        return leaf in self._arguments or (leaf in self._versions and _is_leaf(leaf))

    def clear(self, leaf: Tensor, recorder: Any) -> None:
        """Before the gradient of `leaf` is set: what it was does not matter, if nobody read it."""
        if leaf not in self._before and self.has(leaf):
            if leaf in self._arguments:
                recorder.wait(COMMON)
            self._before[leaf] = ANY
            self._given[leaf] = leaf._grad

    def read(self, leaf: Tensor, recorder: Any, where: str) -> None:
        """Hand the gradient of `leaf` in, before the step reads it or adds to it."""
        if leaf in self._before or not self.has(leaf):
            return
        goal = self._goal(leaf)
        outer = self._find(goal)
        if type(goal) is int and (outer._edge is not None or outer._extra is not None):
            raise CaptureError(
                f"{where}: a gradient for an argument that has a graph "
                "or hooks of its own, or that an optimizer owns. Pass x.detach() and call "
                "requires_grad_() in the step; or name what the gradients are for: "
                "loss.backward(inputs=list(model.parameters())), or autograd.grad(loss, x)"
            )
        if type(goal) is int:  # any call may be given it
            recorder.wait(COMMON)
        before = outer._grad
        self._before[leaf] = before
        self._given[leaf] = None
        if before is None:
            return
        if before._rg:
            raise CaptureError(f"{where}: a gradient with a graph of its own; drop it before")
        (memory,) = copies_like([before._array])
        traced = recorder.traced(memory, "made")
        recorder.fixed(memory)

        def read() -> None:
            found = self._find(goal)._grad
            assert found is not None  # or the capture would not fit
            memory[...] = found._array

        recorder.program.lines.append(Host("a gradient is read", read, where, (memory,)))
        self._given[leaf] = leaf._grad = wrap(traced)

    def finish(self, recorder: Any) -> None:
        """Note what has become of the gradients, and do the same at the end of every replay."""
        program: Program = recorder.program
        written = {
            id(owner_of(a)) for x in program.lines if type(x) is Line for a in arrays_in(x.out)
        }
        self._kept: list[tuple[Any, Any]] = []  # written in place
        self._set: list[tuple[Any, Any]] = []  # another Tensor, or None
        memory: set[int] = set()
        for leaf, given in self._given.items():
            gradient, goal = leaf._grad, self._goal(leaf)
            if type(given) in TENSORS and self._before[leaf] is not ANY:
                array = recorder.host(given._array)
                memory.add(id(owner_of(array)))
                if id(owner_of(array)) in written:
                    self._kept.append((goal, array))
            if gradient is given and self._before[leaf] is not ANY:
                continue
            if gradient is None:
                self._set.append((goal, None))
                continue
            array = recorder.host(gradient._array)
            owner = id(owner_of(array))
            if gradient._rg or program.kinds[owner] != "made" or owner in memory:
                raise CaptureError(
                    f"compile: the gradient of a Tensor of shape {leaf.shape} has a graph, or is "
                    "memory of something else, which a replay cannot know; assign a clone()"
                )
            memory.add(owner)
            recorder.fixed(array)
            self._set.append((goal, array))
        self._writes = [
            (weakref.ref(leaf), leaf.version.n - then)
            for leaf, then in self._versions.items()
            if leaf.version.n != then
        ]
        self._flags = [
            (number, leaf._rg)
            for leaf, number in self._arguments.items()
            if leaf._rg != self.tensors[number]._rg
        ]
        self.changed = [leaf for leaf in self._given if leaf not in self._arguments]
        self._bind(touched(program))
        self.ends = bool(self._kept or self._set or self._writes or self._flags)
        if self.ends:
            counts = [len(self._kept), *(array is None for _, array in self._set)]
            counts += [writes for _, writes in self._writes]
            label = f"gradients of leaves ({', '.join(map(str, map(int, counts)))})"
            arrays = tuple(a for _, a in self._kept + self._set if a is not None)
            program.outputs += arrays  # which are compared from recording to recording
            program.lines.append(Host(label, self.close, recorder._where(), reads=arrays))

    def restore(self) -> None:
        """Give leaves the gradients that they had, and forget what served the recording."""
        for leaf, before in self._before.items():
            if leaf in self._versions:
                leaf._grad = self._given[leaf] if before is ANY else before
        self._ways, self._versions, self._arguments, self.owners = {}, {}, {}, set()
        self._before, self._given = {}, {}

    def _goal(self, leaf: Tensor) -> Any:
        """The number of an argument, a weak reference to any other leaf."""
        number = self._arguments.get(leaf)
        return weakref.ref(leaf) if number is None else number

    def _find(self, goal: Any) -> Tensor:
        found: Tensor = self.tensors[goal] if type(goal) is int else goal()
        return found

    def _bind(self, used: set[int]) -> None:
        """Keep what a replay depends on."""
        before = self._before
        self._bound = [
            (weakref.ref(leaf), leaf._array, leaf._rg, _form(before.get(leaf, ANY)), tuple(ways))
            for leaf, ways in self._ways.items()
            if leaf in before or id(owner_of(leaf._array)) in used
        ]
        self._expected = [
            (number, _form(before[leaf]))
            for leaf, number in self._arguments.items()
            if leaf in before
        ]
        leaves = [(leaf, id(array), *flags) for leaf, array, *flags, _ in self._bound]
        self.then = tuple(leaves), tuple(self._expected)

    # Replays --------------------------------------------------------------------------------------

    @property
    def of_arguments(self) -> bool:
        """Whether gradients of arguments are changed."""
        return bool(self._expected)

    def __bool__(self) -> bool:
        """Whether a replay has to do with leaves."""
        return bool(self._bound or self._expected or self.ends)

    def lives(self) -> bool:
        """Whether all leaves are there."""
        return all(leaf() is not None for leaf, *_ in self._bound)

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the closure leads to the same leaves, and gradients are there as then."""
        for reference, array, requires_grad, form, ways in self._bound:
            leaf = reference()
            if leaf is None or leaf._array is not array or leaf._rg is not requires_grad:
                return False
            if form is not ANY and form != _form(leaf._grad):
                return False
            extra = leaf._extra
            if extra is not None and (extra.hooks or extra.post_hooks):
                return False
            for way in ways:
                if _follow(self._function, way) is not leaf:
                    return False
        for number, form in self._expected:
            tensor = tensors[number]
            if tensor._edge is not None or tensor._extra is not None:
                return False
            if form is not ANY and form != _form(tensor._grad):
                return False
        return True

    def close(self, now: bool = False) -> None:
        """Hand the gradients out, at the end of a step; `now`, where the writes are counted."""
        for goal, array in self._kept:
            gradient = self._find(goal)._grad
            assert gradient is not None  # or the capture would not fit
            gradient._array[...] = array
            gradient.version.n += 1
        for goal, array in self._set:
            self._find(goal)._grad = None if array is None else wrap(array.copy("K"))
        for reference, writes in () if now else self._writes:
            written = reference()
            assert written is not None
            written.version.n += writes
        for number, flag in self._flags:
            self.tensors[number]._rg = flag
        self.tensors = ()


def touched(program: Program) -> set[int]:
    """The ids of the owners of all memory that the instructions of `program` work on."""
    lines = (line for line in program.lines if type(line) is Line)
    return {id(owner_of(array)) for line in lines for array in works_on(line)}


def _is_leaf(value: Any) -> bool:
    leaf = type(value) in TENSORS and value._rg and value._edge is None
    return leaf and type(value._array) in LIBRARIES


def _is_flat(leaf: Tensor) -> bool:
    return leaf._extra is not None and leaf._extra.slot is not None


def _form(gradient: Any) -> Any:
    """What a program depends on of a gradient that it reads."""
    if gradient is None or gradient is ANY:
        return gradient
    array = gradient._array
    return gradient._rg, array.strides, is_plain(array)


# The closure --------------------------------------------------------------------------------------


def reached(function: Any, modules: bool = False) -> Iterator[tuple[Way, Tensor]]:
    """The Tensors in the closure of `function`, as often as ways lead there.

    Args:
        modules: also parameters in flat memory, and buffers.
    """
    waiting: list[tuple[Way, Any]] = [((), function)]
    seen: dict[int, Any] = {}
    while waiting and len(seen) < FURTHEST:
        way, value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen[id(value)] = value
        for step, part in _parts(value, value is function):
            if type(part) not in TENSORS:
                waiting.append(((*way, *step), part))
            # What else a module itself has is looked at with the module.
            elif type(part._array) in LIBRARIES and (
                modules
                or not (isinstance(value, Module) and step[0] is _OWN)
                or (_is_leaf(part) and not _is_flat(part))
            ):
                yield (*way, *step), part


def _follow(value: Any, way: Way) -> Any:
    try:
        for read in way:
            value = read(value)
    except (LookupError, AttributeError, ValueError, TypeError):  # it leads nowhere any more
        return None
    return value


def _attribute(name: str, *more: Any) -> Way:
    return (operator.attrgetter(name), *map(operator.itemgetter, more))


def _parts(value: Any, first: bool) -> Iterator[tuple[Way, Any]]:
    """What Python can reach from `value` in one step of its own, but for what the library has."""
    if isinstance(value, types.FunctionType):
        if first or not _library(value.__module__):
            yield from _names(value)
    elif isinstance(value, types.MethodType):
        yield _attribute("__func__"), value.__func__
        yield _attribute("__self__"), value.__self__
    elif isinstance(value, functools.partial):
        for name in ("func", "args", "keywords"):
            yield _attribute(name), getattr(value, name)
    elif isinstance(value, weakref.ref):
        yield (operator.call,), value()
    elif isinstance(value, staticmethod | classmethod | property):
        name = "fget" if isinstance(value, property) else "__func__"
        yield _attribute(name), getattr(value, name)
    elif isinstance(value, list | tuple | dict | collections.deque):
        if len(value) <= LARGEST:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in [*items]:
                yield (operator.itemgetter(key),), part
    elif isinstance(value, type):
        if not _foreign(value):
            yield from _attributes(value, value.__mro__[1:])
            for number, base in enumerate(value.__bases__):
                yield _attribute("__bases__", number), base
    elif type(value).__module__ == "builtins":  # numbers, text, modules
        return
    elif first or isinstance(value, Module) or not _library(type(value).__module__):
        yield from _attributes(value, type(value).__mro__)
        yield _attribute("__class__"), type(value)


def _attributes(value: Any, classes: Iterable[type]) -> Iterator[tuple[Way, Any]]:
    """What `value` has itself, in slots, and by these `classes`; their methods are with them."""
    for name, part in [*getattr(value, "__dict__", {}).items()]:
        yield (_OWN, operator.itemgetter(name)), part
    for one in classes:
        for name, part in [] if _foreign(one) else [*vars(one).items()]:
            if isinstance(part, types.MemberDescriptorType):
                yield _attribute(name), getattr(value, name, None)
            elif not hasattr(part, "__get__") and inspect.getattr_static(value, name, 0) is part:
                yield _attribute(name), part


def _names(function: types.FunctionType) -> Iterator[tuple[Way, Any]]:
    """The variables of the closure, and the globals that the code has names of, in modules too."""
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            found = cell.cell_contents
        except ValueError:  # nothing yet
            continue
        yield (*_attribute("__closure__", number), operator.attrgetter("cell_contents")), found
    for number, part in enumerate(function.__defaults__ or ()):
        yield _attribute("__defaults__", number), part
    for name, part in (function.__kwdefaults__ or {}).items():
        yield _attribute("__kwdefaults__", name), part
    codes = [function.__code__]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    scopes: list[tuple[Way, dict[str, Any]]] = [(_attribute("__globals__"), function.__globals__)]
    for way, scope in scopes:
        for name in names:
            if name in scope:
                there: Way = (*way, operator.itemgetter(name))
                yield there, (part := scope[name])
                module = isinstance(part, types.ModuleType) and not _foreign(part)
                if module and all(vars(part) is not known for _, known in scopes):
                    scopes.append(((*there, _OWN), vars(part)))


def _foreign(value: Any) -> bool:
    """Whether a class or module is not the user's, but of a package that is installed."""
    name = str(value.__name__ if isinstance(value, types.ModuleType) else value.__module__)
    file = str(getattr(sys.modules.get(name), "__file__", None))
    return "-packages" in file or _library(name) or name.split(".")[0] in sys.stdlib_module_names


def _library(module: str | None) -> bool:
    return (module or "").split(".")[0] in ("microtrain", "numpy")
