"""What a call must match to be replayed, and the function that looks whether it does.

A key is a list of facts about a call: modes and arguments. Each fact says in a text how it is asked
for again; a guard is a function of these texts, and of what else the capture depends on: modules,
gradients, what names lead to, optimizers. It asks for all of it in one expression; where all is as
it was it copies the arguments in, replays, and returns what the step would. A step has one function
at a time, the guard of the capture that was used last; where that one misses, the others are tried
in the order of last use.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple, NoReturn

from ..autograd.turns import broken_off
from ..backend import LIBRARIES, MODES, STRUCTURE, address, alive, is_plain, owner_of
from ..errors import CaptureError
from ..nn.module import MODULES, PLAIN, Module
from ..nn.parameter import Parameter
from ..optim.flat import STORAGES
from ..random import STREAM, step_now
from ..recording import EAGER
from ..stack_frames import ENTRY, generated
from ..tensor import TENSORS, Size, Tensor
from .program import DRAWS, Output, Program, one_place, rebuilt, touched

MISSING = object()  # an argument that a call leaves out, and what a guard returns that misses
VALUE = "Pass what varies as a Tensor"
OUTSIDE = "Keep it as it is between calls, or do not compile this step"
# Of a Tensor, `{0}`, and its array, `{0}_`: what is asked for, how, and what to do where it varies.
LAYOUT = (
    ("shape", "{0}_.shape", "Give batches a few shapes, by padding or bucketing"),
    ("dtype", "{0}_.dtype", "Cast it before the call"),
    ("memory order", "", "Pass contiguous()"),  # in another one sums are other sums
    ("requires_grad", "{0}._rg", "Set it before the first call"),
    ("overlap with other arguments", "", "Pass a clone()"),
)
# On the CPU `aligned` says something; True is for what is row-major and aligned.
ORDER = {
    True: "({0}_.flags.carray or is_plain({0}_) or ({0}_.strides, {0}_.flags.aligned))",
    False: "(is_plain({0}_) or {0}_.strides)",
}


class Fact(NamedTuple):
    """Something that a capture depends on.

    Attributes:
        label: what people call it.
        value: what it was; it can be hashed.
        text: how a guard reads it; empty: it does in another way.
        hint: what to do where it varies.
        tensor: the number of the Tensor whose layout it is, which is not asked for where native
            code looks.
    """

    label: str
    value: Any
    text: str = ""
    hint: str = OUTSIDE
    tensor: int | None = None


class Key:
    """The facts of one call: modes, and arguments by their layouts or values.

    Args:
        names: what the step calls its arguments, as far as that is known.

    Raises CaptureError for arrays, and where it is hashed for what cannot be hashed.

    Attributes:
        facts: all of them; a call of equal ones is the same.
        tensors: those in the arguments; while the step is recorded.
        texts, places: of each Tensor how the guard calls it, and the number of the first one that
            begins at its address; None for itself.
        again: the numbers of those that are also an earlier one.
        thread: whose call it is: another one has memory of its own.
    """

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any] = {}, names: Sequence[str] = ()
    ) -> None:
        self.tensors: list[Tensor] = []
        self.texts: list[str] = []
        self.places: list[int | None] = []
        self.again: set[int] = set()
        self.positional, self.by_name = len(args), (*kwargs,)
        self.thread = threading.current_thread()
        self._facts = [
            Fact("the thread", self.thread),
            Fact("grad mode", bool(MODES.grad), '(modes["grad"] and True)'),
            Fact("inference mode", MODES.inference, 'modes["inference"]'),
            Fact("the default dtype", MODES.default_dtype, 'modes["default_dtype"]'),
            Fact("anomaly detection", MODES.anomaly is not None, '(modes["anomaly"] is not None)'),
        ]
        for number, value in enumerate(args):
            label = names[number] if number < len(names) else f"number {number + 1}"
            self._look(value, f"argument {label}", f"a{number}")
        for number, (name, value) in enumerate(kwargs.items()):
            self._look(value, f"argument {name}", f"n{number}", f"named[{name!r}]")
        self.facts = (*self._facts, Fact("arguments by name", self.by_name))

    def __hash__(self) -> int:
        try:
            return hash(self.facts)
        except TypeError:
            raise CaptureError(
                "compile: an argument is neither a Tensor nor hashable; pass Tensors, or tuples, "
                "lists and dicts of them"
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.facts == other.facts

    def _add(self, label: str, value: Any, text: str) -> None:
        self._facts.append(Fact(label, value, text, VALUE))

    def _look(self, value: Any, label: str, name: str, source: str = "") -> None:
        """The facts of an argument, or a part of one, that the guard finds as `source`."""
        first, kind = f"({name} := {source})" if source else name, type(value)
        if kind in TENSORS:
            self._tensor(value, label, name, first)
            return
        if isinstance(value, tuple(LIBRARIES)):
            cpu = getattr(LIBRARIES.get(kind), "kind", "cpu") == "cpu"
            way = "a NumPy array; pass mt.from_numpy(array)"
            way = way if cpu else "an array of CuPy; pass a Tensor"
            raise CaptureError(f"compile: an argument is {way}")
        self._add(f"the type of {label}", kind, f"type({first})")
        if kind is dict or kind is list or isinstance(value, tuple):
            size = f"len({name})"
            if kind is dict:
                size, name, value = f"len({name}_ := (*{name}.items(),))", f"{name}_", value.items()
            self._add(f"the length of {label}", len(value), size)
            for number, part in enumerate(value):
                self._look(part, f"{label}[{number}]", f"{name}_{number}", f"{name}[{number}]")
        elif isinstance(value, Module):
            self._add(label, weakref.ref(value), f"ref({name})")
        elif kind is float and (value == 0 or value != value):  # 0.0 is not -0.0, and NaN is NaN
            self._add(label, repr(value), f"repr({name})")
        else:
            self._add(label, value, name)

    def _tensor(self, value: Tensor, label: str, name: str, first: str) -> None:
        number, array = len(self.tensors), value._array
        near = [n for n, other in enumerate(self.tensors) if one_place(other._array, array)]
        same = [n for n in near if self.tensors[n] is value]
        place = near[0] if near else None
        self.tensors.append(value)
        self.texts.append(name)
        self.places.append(place)
        if same:
            self.again.add(number)
            self._add(label, True, f"({first} is {self.texts[same[0]]})")
            return
        known = f"(type({first}) is Tensor or type({name}) in TENSORS)"
        self._add(f"the type of {label}", True, known)
        self._add(f"the device of {label}", type(array), f"type({name}_ := {name}._array)")
        cpu = LIBRARIES[type(array)].kind == "cpu"
        order = is_plain(array) or ((array.strides, array.flags.aligned) if cpu else array.strides)
        values = array.shape, array.dtype, order, value._rg, place
        for (what, text, hint), fact in zip(LAYOUT, values, strict=True):
            text = ORDER[cpu] if what == "memory order" else text
            what = f"the {what} of {label}"
            self._facts.append(Fact(what, fact, text.format(name), hint, number))


def varying(captures: Iterable[Sequence[Fact]]) -> str:
    """Which fact differs most among captures, oldest first: its last two values, the way out."""
    found: dict[str, list[Fact]] = {}
    for facts in captures:
        for fact in facts:
            found.setdefault(fact.label, []).append(fact)
    most = max(found.values(), key=lambda facts: len({fact.value for fact in facts}))
    last = most[-1]
    before = next((fact for fact in reversed(most) if fact.value != last.value), last)
    values = ", then ".join(_said(fact.value) for fact in (before, last))
    return f"{last.label} varies most: {values}. {last.hint}"


def _said(value: Any) -> str:
    if type(value) is tuple and len(value) == 2 and isinstance(value[0], type):
        value = value[1]  # of a certain kind
    return value if isinstance(value, str) else repr(value)


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
        further: leaves beside the modules' own.

    Attributes:
        modules: those that it has to do with.
        then: what a replay needs to find; it can be hashed.
        changed: what the step has changed of it, but for training flags; None for nothing.
        count: `STRUCTURE` when all was found as it was.
    """

    def __init__(
        self, before: dict[Module, Any], program: Program, called: Any, further: Sequence[Tensor]
    ) -> None:
        used = touched(program)
        self._leaves = list(further)
        for storage in alive(STORAGES):
            if any(id(owner_of(a)) in used for b in storage.buffers for a in (b.data, b.wide)):
                self._leaves += storage.params
        concerned = _concerned(before, called, used)
        self.modules = [(weakref.ref(module), _names(module, used)) for module in concerned]
        # Kept alive, so that an id names them.
        self._kept = [t._array for module in concerned for _, t in _tensors(module)]
        self._kept += [leaf._array for leaf in self._leaves]
        self.count = -1
        self.changed = next(filter(None, (_changed(m, before[m]) for m in concerned)), None)
        modules, leaves = self._look()
        flags = [(before[m][0], *now[1:]) for m, now in zip(concerned, modules, strict=True)]
        self.then = tuple(flags), leaves
        hash(self.then)  # while its modules are there: weak references keep it

    def lives(self) -> bool:
        """Whether its modules are there, or it can never fit again."""
        return all(module() is not None for module, _ in self.modules)

    def facts(self) -> list[Fact]:
        """For people, the flags and numbers of the modules."""
        found = []
        for training, hooks, module, *parts in self.then[0]:
            kind = type(module()).__name__
            found += [Fact(f"{kind}.training", training), Fact(f"hooks of {kind}", hooks)]
            found += [Fact(f"the attribute {kind}.{name}", value) for name, value in parts]
        return found

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


def look_at_all() -> dict[Module, Any]:
    """The flags and parts of every module there is."""
    return {module: look_at(module) for module in alive(MODULES)}


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


def _tensors(module: Module) -> list[tuple[str, Tensor]]:
    found = [(name, value) for name, value in vars(module).copy().items() if type(value) in TENSORS]
    return [(name, value) for name, value in found if type(value._array) in LIBRARIES]


def _names(module: Module, used: set[int]) -> list[str]:
    """The attributes of `module` that are Tensors of the step."""
    return [name for name, t in _tensors(module) if id(owner_of(t._array)) in used]


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


# The function -------------------------------------------------------------------------------------


def guard(
    capture: Any, run: Callable[[], None], names: Sequence[str], owner: Any
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two functions that replay `capture` for the calls it is for.

    The first is called by the user, and lets the `Compiled` find out about all other calls; the
    second returns MISSING for these.

    Args:
        capture: nothing in the functions leads back to it, it may keep them.
        run: the executor's function.
        names: what the step calls its arguments; fewer where some can only be given by position.
        owner: a weak reference to the `Compiled`.
    """
    count, number = capture.key.positional, capture.number
    by_name = len(names) >= count

    def miss(values: Any, more: Any, named: Any) -> Any:
        args = [value for value in values if value is not MISSING]
        if by_name and len(args) < count:  # what is missing may be in the middle
            args, found = [], zip(names, values, strict=False)
            named = {name: value for name, value in found if value is not MISSING} | named
        return owner()._find((*args, *more), named, number)

    text = _Text(capture, run)
    source = text.source(count, by_name)
    enter: FunctionType = generated(source, "enter", ENTRY, text.scope | {"miss": miss})
    if by_name:  # the step's names, which would otherwise have to differ from all in the text
        code = enter.__code__
        varnames = (*names[:count], *code.co_varnames[count:])
        enter.__code__ = code.replace(co_varnames=varnames)
    step = owner()  # errors about the arguments begin with its name
    enter.__qualname__ = getattr(step, "__qualname__", step.name)
    scope = text.scope | {"miss": lambda *_: MISSING}
    return enter, FunctionType(enter.__code__, scope, enter.__name__, enter.__defaults__)


def follow(optimizers: Any, seen: list[list[Any]]) -> bool:
    """Whether the runs of `optimizers` are as captured; new rates are taken over, and `seen`."""
    for (optimizer, runs, constants), options in zip(optimizers, seen, strict=True):
        if optimizer.runs is not runs or not optimizer.follow_options():
            return False
        if any(run.constants is not then for run, then in zip(runs, constants, strict=True)):
            return False  # made anew for other flags
        options[:] = [run.options for run in runs]
    return True


def refuse_alias() -> NoReturn:
    """CaptureError for an argument that the step writes."""
    raise CaptureError(
        "compile: an argument is memory that the step writes (a parameter, a buffer), and would "
        "keep the values from before the step; use it from inside the step, or pass a clone()"
    )


SCOPE = {
    "EAGER": EAGER, "MISSING": MISSING, "MODES": MODES, "STRUCTURE": STRUCTURE, "TENSORS": TENSORS,
    "Tensor": Tensor, "address": address, "broken_off": broken_off, "is_plain": is_plain,
    "owner_of": owner_of, "rebuilt": rebuilt, "ref": weakref.ref, "refuse_alias": refuse_alias,
    "step_now": step_now,
}  # fmt: skip


class _Text:
    """The text of a guard, and what the names in it mean (`scope`).

    It decides before it writes: another thread, whose call it refuses, must not have touched what
    native code of this one is reading.
    """

    def __init__(self, capture: Any, run: Any) -> None:
        self.capture, self.key, self.program = capture, capture.key, capture.program
        self.scope: dict[str, Any] = {
            **SCOPE, "modes": MODES.__dict__, "written": capture.written, "run": run,
            "leaves": capture.leaves, "structure": capture.structure, "outside": capture.outside,
        }  # fmt: skip
        # Memory that a backward pass outside reads is written at every call.
        self.arrival: Any = None if capture.outside else getattr(run, "arrival", None)
        self.arrays = [f"{name}_" for name in self.key.texts]
        self.given = f"({''.join(f'{name}, ' for name in self.key.texts)})"

    def source(self, count: int, by_name: bool) -> str:
        """The function, with `count` arguments by position; they may be given by name, too."""
        key, arrival, outside = self.key, self.arrival, self.capture.outside
        everything = [n for n in range(len(key.texts)) if n not in key.again]
        plain = {fact.tensor for fact in key.facts if "flags" in fact.text and fact.value is True}
        needed = {fact.tensor for fact in key.facts if "_rg" in fact.text and fact.value is True}
        moved = plain.intersection(arrival.moved) - needed if arrival else ()
        copied = [n for n in everything if n not in moved]
        # The same Tensor twice is another capture; where they begin may not be asked.
        first = ["MODES.__dict__ is modes", 'modes["capture"] is EAGER', "not more"]
        first += [f"(*named,) == {key.by_name}" if key.by_name else "not named"]
        first += self.checks([None])
        first += [
            f"{key.texts[n]} is not {key.texts[m]}"
            for n in everything for m in everything[: everything.index(n)]
            if arrival or (key.places[n] is not None and key.places[n] in (m, key.places[m]))
        ]  # fmt: skip
        checks = [*self.state(), *self.checks(copied), *self.apart(copied), *self.follow()]
        locks = [*self.capture.turns, *([outside.lock] if outside else ())]
        ends = [f"{self.name(lock.release)}()" for lock in reversed(locks)]
        if moved:
            arrays = [self.arrays[n] if n in moved else self.target(n) for n in arrival.moved]
            rest = self.checks(sorted(moved)) + self.apart(everything)
            lines = [
                f"if {self.name(arrival.function)}({', '.join(arrays)}):",
                *_indented(self.replay(copied, f"{self.name(arrival.run)}()", ends)),
                f"if {' and '.join(rest)}:",
                *_indented(self.replay(everything, "run()", ends)),
            ]
        else:
            lines = self.replay(copied, "run()", ends)
        if locks:  # not by `with`, which takes twice the time
            self.scope["locks"] = locks[::-1]
            begins = [f"{self.name(lock.acquire)}()" for lock in locks]
            inner = [*begins, f"if {' and '.join(checks)}:", *_indented(lines), *ends]
            lines = ["try:", *_indented(inner), "except BaseException:"]
            lines += ["    broken_off([*locks])", "    raise"]
            checks = []
        lines = [f"if {' and '.join([*first, *checks])}:", *_indented(lines)]
        lines.append(f"return miss(({''.join(f'a{n}, ' for n in range(count))}), more, named)")
        parameters = [f"a{n}=MISSING" for n in range(count)] + ["/"] * (count > 0 and not by_name)
        head = f"def enter({', '.join([*parameters, '*more', '**named'])}):"
        return "\n".join([head, *_indented(lines)])

    def name(self, value: Any) -> str:
        """A literal, or a name in the text, for a value."""
        parts = value if type(value) is tuple else (value,)
        if all(part is None or type(part) in (int, bool, str) for part in parts):
            return repr(value)
        self.scope[name := f"it{len(self.scope)}"] = value
        return name

    def check(self, text: str, value: Any) -> str:
        """Whether what the text reads is `value`."""
        name = self.name(value)
        if value is None or type(value) is bool or isinstance(value, type):
            return f"{text} is {name}"
        same = f"{text} == {name}"
        return f"({text} is {name} or {same})" if name in self.scope else same

    def checks(self, tensors: Any) -> list[str]:
        """Of the layouts of these Tensors; None: of modes and of all else in the arguments."""
        facts = [fact for n in tensors for fact in self.key.facts if fact.tensor == n and fact.text]
        return [self.check(fact.text, fact.value) for fact in facts]

    def apart(self, copied: Sequence[int]) -> list[str]:
        """Which of the arguments `copied` have memory in common, and none with what is written."""
        places, checks = self.key.places, []
        for index, n in enumerate(copied):
            here = self.arrays[n]
            checks.append(
                f"(owner{n} := {here} if {here}.base is None else owner_of({here})) is not None"
            )
            for m in copied[:index]:
                if places[m] is None:
                    at = f"address({here}) == address({self.arrays[m]})"
                    same = f"(owner{n} is owner{m} and {at})"
                    checks.append(same if places[n] == m else f"not {same}")
            if self.capture.written:
                checks.append(f"(id(owner{n}) not in written or refuse_alias())")
        return checks if len(copied) > 1 or self.capture.written else []

    def replay(self, copied: Sequence[int], run: str, ends: list[str]) -> list[str]:
        """The replay, for which the arguments `copied` are, and what it returns."""
        capture, result, outputs = self.capture, self.capture.result, self.program.outputs
        lines = ["outside.begin()"] * (capture.outside is not None)
        lines += [f"{self.target(n)}[...] = {self.arrays[n]}" for n in copied]
        lines += [f"leaves.tensors = {self.given}"] * capture.leaves.ends
        if any(getattr(line, "name", "") in DRAWS for line in self.program.lines):
            lines.append(f"{self.name(self.program.draw)}[0] = {self.name(STREAM)}.draw")
        if type(result) is Output and result.place is None:  # `wrap`, without its call
            lines += [
                run, f"made = {self.name(Tensor.__new__)}(Tensor)",
                f"made._array = {self.name(outputs[result.number].copy)}()", "made._rg = False",
                "made._edge = made._grad = made._version = made._extra = None",
            ]  # fmt: skip
        else:
            node = f"outside.node({self.given})" if capture.outside else "None"
            lines += [run, f"made = rebuilt({self.name(result)}, {self.name(outputs)}, {node})"]
        return [*lines, *ends, "return made"]

    def target(self, n: int) -> str:
        """What an argument is copied into."""
        return self.name(self.program.inputs[n])

    def state(self) -> list[str]:
        """What modules, gradients, data parallelism and names must be like."""
        capture = self.capture
        checks = ["(STRUCTURE[0] == structure.count or structure.fits())"]
        checks += [f"{self.name(capture.leaves.lead)}()"] * (capture.leaves.lead is not None)
        if capture.drawing is not None:
            checks.append(self.check("step_now()", capture.drawing))
        for storage, presence in capture.presence:
            for slot, there in zip(storage.slots, presence, strict=True):
                same = "==" if there else "!="
                checks.append(f"{self.name(slot)}.epoch {same} {self.name(slot.buffer)}.epoch")
        for listener, counted in capture.counted:
            checks.append(self.check(f"{self.name(listener)}.counted()", counted))
        return checks + [f"leaves.fits({self.given})"] * bool(capture.leaves)

    def follow(self) -> list[str]:
        """What optimizers must be like; the last condition takes over new rates."""
        optimizers, checks, options = self.capture.optimizers, [], []
        # By optimizer and run, the options that constants are known to be of.
        self.scope["seen"] = [[None] * len(runs) for _, runs, _ in optimizers]
        for number, (optimizer, runs, _) in enumerate(optimizers):
            checks.append(f"{self.name(optimizer)}.runs is {self.name(runs)}")
            # The first run of a group is the first to follow it.
            for place, run in {id(r.group): (n, r) for n, r in [*enumerate(runs)][::-1]}.values():
                now = f"{self.name(optimizer.options)}({self.name(run.group)})"
                options.append(f"{now} == {self.name(run)}.options is seen[{number}][{place}]")
        if options:
            taken = f"{self.name(follow)}({self.name(optimizers)}, seen)"
            checks.append(f"({' and '.join(options)} or {taken})")
        return checks


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
