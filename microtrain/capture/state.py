"""What a step has to do with besides its arguments: modules, and Tensors that it finds by a name.

What is reached through the closure (variables, globals, and the lists, dicts, objects, classes and
functions there) is state, also where it is only read.

The gradient of such a leaf, and of an argument, is an ordinary Tensor that comes and goes. So it is
handed in when the step first reads it or adds to it, and handed out at the end.
"""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ..autograd.graph import leaves_of, walk
from ..autograd.locks import COMMON
from ..backend import LIBRARIES, STRUCTURE, alive, is_plain, owner_of
from ..errors import CaptureError
from ..nn.module import MODULES, PLAIN, Module
from ..nn.parameter import Parameter
from ..optim.flat import STORAGES
from ..tensor import INFERENCE, TENSORS, Size, Tensor, wrap
from .arguments_and_results import copies_like
from .closure import Closure, is_flat, is_leaf
from .guard import Guard
from .program import Line, Program, PythonCall, arrays_in, touched

ANY = "any"  # in place of what a gradient was: the step drops it before it reads it


class Leaves:
    """The leaves that one recording of a step may meet, then those that it depends on.

    Args:
        closure: what names lead to from the step.

    Attributes:
        then: what a replay must find, it can be hashed.
        owners: until the recording ends, the ids of the owners of the memory of what was found.
        changed: until the recording ends, those of the closure whose gradient the step has to do
            with.
        ends: whether the step ends with something to be done about them.
        tensors: the arguments of the call that is replayed, if so.
    """

    def __init__(self, closure: Closure) -> None:
        # Also views of state must be the same ones later.
        self._found = dict.fromkeys(closure.tensors())
        self._versions = {
            tensor: tensor.version.n
            for tensor in self._found
            if not is_flat(tensor) and tensor.version is not INFERENCE
        }
        # A backward pass must not go on into a graph from outside.
        self.owners = {id(owner_of(t._array)) for t in self._found if t._edge is None}
        self._arguments: dict[Tensor, int] = {}  # as the step has them: their numbers
        self._given: dict[Tensor, Any] = {}  # what stands for a gradient in the step
        self._before: dict[Tensor, Any] = {}  # and the gradient, None, or ANY
        self.tensors: Sequence[Tensor] = ()
        self.then: Any = ()
        self.changed: list[Tensor] = []
        # By argument: what it may not be, nor be computed from; and further leaves that it is not.
        self._apart = defaultdict[int, tuple[set[Any], set[Any]]](lambda: (set(), set()))

    # While the step is recorded -------------------------------------------------------------------

    def receive(self, numbers: dict[Tensor, int], tensors: Sequence[Tensor]) -> None:
        """Note the arguments, and the number of each by what the step is given for it."""
        self._arguments, self.tensors = numbers, tensors

    def has(self, leaf: Tensor) -> bool:
        """Whether the gradient of `leaf` outlives the step."""
        return leaf in self._arguments or (leaf in self._versions and is_leaf(leaf))

    def differentiate(self, edges: Any, wanted: Sequence[Tensor] | None, where: str) -> None:
        """Note which Tensors a pass from `edges` tells apart, where a call may give one for two.

        The step has an argument as a leaf of its own: what the caller's is besides is not seen.
        """
        numbers = {*self._arguments.values()}
        reached = self._outside(leaves_of(edges) if numbers else ())
        targets = reached if wanted is None else self._outside(wanted)
        for number in reached & numbers:
            self._apart[number][0].update(targets - {number})
        for number in targets & numbers:
            self._apart[number][1].update(reached - {number})
        if self._mixed(self.tensors):
            raise CaptureError(
                f"{where}: an argument is also a Tensor that the step finds by a name, or was "
                "computed from what the gradient is for, so a part of it would be missing. Use "
                "that Tensor from inside the step only, or pass x.detach()"
            )

    def _outside(self, tensors: Iterable[Tensor]) -> set[Any]:
        """Of those that were there before the step where they are found."""
        return {
            self._goal(one)
            for one in tensors
            if one in self._arguments or (one._edge is None and type(one._array) in LIBRARIES)
        }

    def _mixed(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a call gives one Tensor, or one computed from another, for two told apart."""
        for number, (goals, leaves) in self._apart.items():
            edge, me = tensors[number]._edge, weakref.ref(tensors[number])
            if me in goals or me in leaves:
                return True
            if edge is not None and goals:
                found = [tensors[goal] if type(goal) is int else goal() for goal in goals]
                nodes = {next(walk((one._edge or one,))) for one in found if one is not None}
                if not nodes.isdisjoint(walk((edge,))):
                    return True
        return False

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

        recorder.program.lines.append(PythonCall("a gradient is read", read, where, (memory,)))
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
            program.lines.append(PythonCall(label, self.close, recorder._where(), reads=arrays))

    def restore(self) -> None:
        """Give leaves the gradients that they had, and forget what served the recording."""
        for leaf, before in self._before.items():
            if leaf in self._versions:
                leaf._grad = self._given[leaf] if before is ANY else before
        self._found, self._versions, self._arguments, self.owners = {}, {}, {}, set()
        self._before, self._given = {}, {}

    def _goal(self, leaf: Tensor) -> Any:
        """The number of an argument, a weak reference to any other leaf."""
        number = self._arguments.get(leaf)
        return weakref.ref(leaf) if number is None else number

    def _find(self, goal: Any) -> Tensor:
        return self.tensors[goal] if type(goal) is int else goal()

    def _bind(self, used: set[int]) -> None:
        """Keep what a replay depends on."""
        before = self._before
        self._bound = [
            (weakref.ref(leaf), leaf._array, leaf._rg, _form(before.get(leaf, ANY)))
            for leaf in self._found
            if leaf in before or id(owner_of(leaf._array)) in used
        ]
        self._expected = [
            (number, _form(before[leaf]))
            for leaf, number in self._arguments.items()
            if leaf in before
        ]
        self._used = used
        self._read = [self._goal(leaf) for leaf, one in before.items() if type(one) in TENSORS]
        gradients = [one._array for one in before.values() if type(one) in TENSORS]
        if self._shared(gradients, self.tensors):
            raise CaptureError(
                "compile: the gradient of a Tensor is memory that the step finds by another way, "
                "too (another gradient, a Tensor, an argument), where a replay would not see what "
                "is added to it; assign a clone()"
            )
        leaves = [(leaf, id(array), *flags) for leaf, array, *flags in self._bound]
        self.then = tuple(leaves), tuple(self._expected)

    def bound(self) -> list[Tensor]:
        """The leaves that it depends on."""
        return [leaf for one, *_ in self._bound if (leaf := one()) is not None]

    # Replays --------------------------------------------------------------------------------------

    @property
    def of_arguments(self) -> bool:
        """Whether gradients of arguments are changed."""
        return bool(self._expected)

    def __bool__(self) -> bool:
        """Whether a replay has to do with leaves."""
        return bool(self._bound or self._expected or self._apart or self.ends)

    def lives(self) -> bool:
        """Whether all leaves are there."""
        return all(leaf() is not None for leaf, *_ in self._bound)

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether leaves are where they were, and gradients are there as then."""
        for reference, array, requires_grad, form in self._bound:
            leaf = reference()
            if leaf is None or leaf._array is not array or leaf._rg is not requires_grad:
                return False
            if form is not ANY and form != _form(leaf._grad):
                return False
            extra = leaf._extra
            if extra is not None and (extra.hooks or extra.post_hooks):
                return False
        for number, form in self._expected:
            tensor = tensors[number]
            if tensor._edge is not None or tensor._extra is not None:
                return False
            if form is not ANY and form != _form(tensor._grad):
                return False
        if self._mixed(tensors):
            return False
        if not self._read:
            return True
        found: Any = (tensors[goal] if type(goal) is int else goal() for goal in self._read)
        return not self._shared([leaf._grad._array for leaf in found], tensors)

    def _shared(self, gradients: list[Any], tensors: Sequence[Tensor]) -> bool:
        """Whether `gradients`, which the step reads, are memory of anything else in it."""
        owners = [id(owner_of(array)) for array in gradients]
        if not self._used.isdisjoint(owners):
            return True
        if not {id(owner_of(tensor._array)) for tensor in tensors}.isdisjoint(owners):
            return True
        return len({*owners}) < len(owners) and any(
            LIBRARIES[type(a)].module.may_share_memory(a, b)
            for a, b in itertools.combinations(gradients, 2)
        )

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


def _form(gradient: Any) -> Any:
    """What a program depends on of a gradient that it reads."""
    if gradient is None or gradient is ANY:
        return gradient
    array = gradient._array
    return gradient._rg, array.strides, is_plain(array)


# Modules ------------------------------------------------------------------------------------------


class Structure:
    """What a capture takes as given of modules and leaves: flags, hooks, numbers, Tensors' places.

    Only of those that the step has to do with: another model may come and go. They are looked at
    again when `STRUCTURE` says that some flag, hook or attribute has changed anywhere. Modules are
    held weakly: one that is dropped goes, and its captures with it.

    Args:
        before: what `look_at_all` said when the step began.
        program: what was captured.
        called: the modules that were called in it.

    Attributes:
        modules: those that it has to do with.
        then: what a replay needs to find; it can be hashed.
        changed: what the step has changed of it, but for training flags; None for nothing.
        count: `STRUCTURE` when all was found as it was.
    """

    def __init__(self, before: Mapping[Module, Any], program: Program, called: Any) -> None:
        used = touched(program)
        self._leaves: list[Tensor] = []
        for storage in alive(STORAGES):
            if any(id(owner_of(a)) in used for b in storage.buffers for a in (b.data, b.wide)):
                self._leaves += storage.params
        concerned = _concerned(before, called, used)
        self.modules = [(weakref.ref(module), _names(module, used)) for module in concerned]
        # Kept alive, so that an id names them.
        self._kept = [t._array for module in concerned for _, t in tensors_of(module)]
        self._kept += [leaf._array for leaf in self._leaves]
        self.count = -1
        self.changed = next(filter(None, (_changed(m, before[m]) for m in concerned)), None)
        modules, leaves = self._look()
        flags = [(before[m][0], *now[1:]) for m, now in zip(concerned, modules, strict=True)]
        self.then = tuple(flags), leaves

    def lives(self) -> bool:
        """Whether its modules are there, or it can never fit again."""
        return None not in self.held()

    def held(self) -> list[Module | None]:
        """Its modules, which live as long as this list does."""
        return [module() for module, _ in self.modules]

    def tell(self, guard: Guard) -> None:
        """Say all of it to `guard`, flags and numbers one by one."""
        for training, hooks, module, *parts in self.then[0]:
            kind = type(module()).__name__
            guard.add(f"{kind}.training", training)
            guard.add(f"hooks of {kind}", hooks)
            for name, value in parts:
                guard.add(f"the attribute {kind}.{name}", value)
        name = guard.name(self)
        condition = f"(STRUCTURE[0] == {name}.count or {name}.fits())"
        guard.add("the modules and parameters", self.then, condition)

    def fits(self) -> bool:
        """Whether all is as it was."""
        count = STRUCTURE[0]
        if self.count != count:
            if self._look() != self.then:
                return False
            self.count = count
        return True

    def _look(self) -> Any:
        modules = tuple([look_at(module(), names) for module, names in self.modules])
        return modules, tuple(map(_place, self._leaves))


def look_at_all() -> Mapping[Module, Any]:
    """The flags and parts of every module there is; what another thread drops is not held."""
    return WeakKeyDictionary({module: look_at(module) for module in alive(MODULES)})


def look_at(module: Module | None, names: Sequence[str] = ()) -> Any:
    """Flags, sub-modules, parameters, buffers and plain values, and other Tensors of these `names`.

    None for a module that is no more.
    """
    if module is None:
        return None
    parts: list[tuple[str, Any]] = []
    for name, value in vars(module).copy().items():
        kind = type(value)
        if isinstance(value, Module):
            parts.append((name, weakref.ref(value)))
        elif kind is Parameter or (kind in TENSORS and (name in module._buffers or name in names)):
            parts.append((name, _place(value)))
        elif kind in PLAIN and module._structural and name not in ("training", "_hooked"):
            parts.append((name, _plain(value)))
    return module.training, module._any_hooks(), weakref.ref(module), *parts


def _plain(value: Any) -> Any:
    """`value` for comparison: 1 is not 1.0 or True, 0.0 is not -0.0, and NaN is NaN."""
    kind = type(value)
    if kind is tuple or kind is Size:
        return (kind, *[_plain(part) for part in value])
    if kind in (float, complex):
        return kind, repr(value)
    return kind, (value if kind in PLAIN else kind)


def _changed(module: Module, before: Any) -> str | None:
    """What is not as before."""
    now, then, kind = look_at(module), dict(before[3:]), type(module).__name__
    for name, value in now[3:]:
        if then.get(name) != value and type(vars(module)[name]) in PLAIN:
            return f"the attribute {name} of {kind} (now {vars(module)[name]!r})"
    same = before[1:] == now[1:]
    return None if same else f"requires_grad, hooks, parameters, buffers or modules of {kind}"


def _place(tensor: Tensor) -> Any:
    extra = tensor._extra
    hooks = extra is not None and bool(extra.hooks or extra.post_hooks)
    return id(tensor._array), tensor._rg, hooks


def tensors_of(module: Module) -> list[tuple[str, Tensor]]:
    """The attributes of a module that are Tensors."""
    found = [(name, value) for name, value in vars(module).copy().items() if type(value) in TENSORS]
    return [(name, value) for name, value in found if type(value._array) in LIBRARIES]


def _names(module: Module, used: set[int]) -> list[str]:
    """The attributes of `module` that are Tensors of the step."""
    return [name for name, t in tensors_of(module) if id(owner_of(t._array)) in used]


def _concerned(before: Any, called: Any, used: set[int]) -> list[Module]:
    """Those called and all below, those with a Tensor of the step, and all above them."""
    above: dict[Module, list[Module]] = {}
    for module in before:
        for child in module.children():
            above.setdefault(child, []).append(module)
    waiting = [part for module in called for part in module.modules()]
    waiting += [module for module in before if _names(module, used)]
    found: dict[Module, None] = {}
    while waiting:
        module = waiting.pop()
        if module in before and module not in found:
            found[module] = None
            waiting += above.get(module, ())
    return sorted(found, key=id)
