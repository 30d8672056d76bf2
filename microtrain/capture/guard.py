"""What a call must match to be replayed, and the function that looks whether it does.

A guard is a list of facts about a call: modes, arguments, and what else a capture depends on
(modules, gradients, what names lead to, optimizers). Each fact has a condition, in Python; the
function asks for all of them in one expression, and where all is as it was it copies the arguments
in, replays, and returns what the step would. A step has one function at a time, that of the capture
that was used last; where it misses, the others are tried in the order of last use.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any, NamedTuple, NoReturn

from ..autograd.locks import release_after_error
from ..backend import LIBRARIES, MODES, STRUCTURE, address, is_plain, owner_of
from ..common.recording import EAGER
from ..common.stack_frames import ENTRY, generated
from ..errors import CaptureError
from ..nn.module import Module
from ..random import STREAM, step_now
from ..tensor import TENSORS, Tensor
from .arguments_and_results import Output, one_place, rebuilt
from .closure import named
from .program import DRAWS

MISSING = object()  # an argument that a call leaves out, and what a guard returns that misses
SHAPES = "Give batches a few shapes, by padding or bucketing"
VALUE = "Pass what varies as a Tensor"
OUTSIDE = "Keep it as it is between calls, or do not compile this step"


def inside(value: Any) -> Any:
    """What `==` does not tell apart: 2 and 2.0, 0.0 and -0.0, and one NaN of the same number."""
    if isinstance(value, frozenset):
        return frozenset([(part, inside(part)) for part in value])
    if is_dataclass(type(value)):
        return tuple([inside(getattr(value, field.name)) for field in fields(value)])
    if isinstance(value, tuple):
        return tuple(map(inside, value))
    return type(value), repr(value) if isinstance(value, float) else None


SCOPE = {
    "EAGER": EAGER, "MISSING": MISSING, "MODES": MODES, "STRUCTURE": STRUCTURE, "TENSORS": TENSORS,
    "Tensor": Tensor, "address": address, "is_plain": is_plain, "owner_of": owner_of,
    "inside": inside, "rebuilt": rebuilt, "ref": weakref.ref, "step_now": step_now,
    "release_after_error": release_after_error,
}  # fmt: skip


class Fact(NamedTuple):
    """Something that a capture depends on.

    Attributes:
        label: what people call it.
        value: what it was.
        condition: whether it is that again; empty: another fact's condition says it.
        hint: what to do where it varies.
        tensor: the number of the Tensor whose layout it is, which is not asked for where native
            code looks.
    """

    label: str
    value: Any
    condition: str = ""
    hint: str = OUTSIDE
    tensor: int | None = None


class Guard:
    """The facts of one call: modes, and arguments by their layouts or values; then others.

    Args:
        names: what the step calls its arguments, as far as that is known.

    Raises CaptureError for arrays.

    Attributes:
        facts: all of them; a call of equal ones is the same.
        scope: what the names in conditions mean.
        tensors: those in the arguments; while the step is recorded.
        objects: the other ones, which may lead to Tensors and modules; modules weakly.
        texts, places: of each Tensor how conditions call it, and the number of the first one that
            begins at its address; None for itself.
        plain: the numbers of those that are row-major and aligned, and require no grad.
        again: the numbers of those that are also an earlier one; different: of all others.
        of_arguments: how many facts are of modes and arguments.
        given: the text of a tuple of all Tensors in the arguments.
        thread: whose call it is: another one has memory of its own.
    """

    def __init__(
        self, args: Sequence[Any], kwargs: Mapping[str, Any] = {}, names: Sequence[str] = ()
    ) -> None:
        self.facts: list[Fact] = []
        self.scope: dict[str, Any] = {**SCOPE, "modes": MODES.__dict__}
        self.tensors: list[Tensor] = []
        self.objects: list[Any] = []
        self.texts: list[str] = []
        self.places: list[int | None] = []
        self.plain, self.again = set[int](), set[int]()
        self.positional, self.thread = len(args), threading.current_thread()
        self.add("the thread", self.thread, "MODES.__dict__ is modes")
        self.equal("grad mode", bool(MODES.grad), '(True if modes["grad"] else False)')
        self.equal("inference mode", MODES.inference, 'modes["inference"]')
        self.equal("the default dtype", MODES.default_dtype, 'modes["default_dtype"]')
        self.equal("anomaly detection", MODES.anomaly is not None, '(modes["anomaly"] is not None)')
        by_name = f"(*named,) == {(*kwargs,)}" if kwargs else "not named"
        self.add("arguments by name", (*kwargs,), by_name)
        for number, value in enumerate(args):
            label = names[number] if number < len(names) else f"number {number + 1}"
            self._look(value, f"argument {label}", f"a{number}")
        for number, (name, value) in enumerate(kwargs.items()):
            self._look(value, f"argument {name}", f"n{number}", f"named[{name!r}]")
        self.of_arguments = len(self.facts)
        self.different = [n for n in range(len(self.texts)) if n not in self.again]
        self.given = f"({''.join(f'{name}, ' for name in self.texts)})"

    def add(self, label: str, value: Any, condition: str = "") -> None:
        """One more fact."""
        self.facts.append(Fact(label, value, condition))

    def equal(
        self, label: str, value: Any, text: str, hint: str = OUTSIDE, tensor: int | None = None
    ) -> None:
        """One more fact: what `text` reads is `value`."""
        name = self.name(value)
        if value is None or type(value) is bool or isinstance(value, type):
            condition = f"{text} is {name}"
        elif name in self.scope:
            condition = f"({text} is {name} or {text} == {name})"
        else:
            condition = f"{text} == {name}"
        self.facts.append(Fact(label, value, condition, hint, tensor))

    def name(self, value: Any) -> str:
        """A literal, or a name in the conditions, for a value."""
        return named(self.scope, value)

    def values(self) -> tuple[Any, ...]:
        """Of each fact its label and value; CaptureError where that cannot be hashed."""
        found = tuple([fact[:2] for fact in self.facts])
        try:
            hash(found)
        except TypeError:
            raise CaptureError(
                "compile: an argument is neither a Tensor nor hashable; pass Tensors, or tuples, "
                "lists and dicts of them"
            ) from None
        return found

    def _look(self, value: Any, label: str, name: str, source: str = "") -> None:
        """The facts of an argument, or a part of one, that conditions find as `source`."""
        first, kind = f"({name} := {source})" if source else name, type(value)
        if kind in TENSORS:
            self._tensor(value, label, name, first)
            return
        if isinstance(value, tuple(LIBRARIES)):
            name = f"{kind.__module__}.{kind.__name__}"
            raise CaptureError(f"compile: an argument is a {name}; pass mt.from_numpy(array)")
        self.equal(f"the type of {label}", kind, f"type({first})", VALUE)
        if kind is dict or kind is list or isinstance(value, tuple):
            size = f"len({name})"
            if kind is dict:
                size, name, value = f"len({name}_ := (*{name}.items(),))", f"{name}_", value.items()
            self.equal(f"the length of {label}", len(value), size, VALUE)
            for number, part in enumerate(value):
                self._look(part, f"{label}[{number}]", f"{name}_{number}", f"{name}[{number}]")
        elif isinstance(value, Module):
            self.objects.append(found := weakref.ref(value))
            self.equal(label, found, f"ref({name})", VALUE)
        elif isinstance(value, float) and (value == 0 or value != value):
            self.equal(label, inside(value), f"inside({name})", VALUE)
        else:
            self.objects.append(value)
            self.equal(label, value, name, VALUE)
            if kind is frozenset or is_dataclass(kind):
                self.equal(f"what is in {label}", inside(value), f"inside({name})", VALUE)

    def _tensor(self, value: Tensor, label: str, name: str, first: str) -> None:
        number, array = len(self.tensors), value._array
        near = [n for n, other in enumerate(self.tensors) if one_place(other._array, array)]
        same = [n for n in near if self.tensors[n] is value]
        self.tensors.append(value)
        self.texts.append(name)
        self.places.append(near[0] if near else None)
        if same:
            self.again.add(number)
            self.add(label, f"number {same[0] + 1} again", f"{first} is {self.texts[same[0]]}")
            return
        self.add(label, "a Tensor", f"(type({first}) is Tensor or type({name}) in TENSORS)")
        self.equal(f"the device of {label}", type(array), f"type({name}_ := {name}._array)")
        order: Any = is_plain(array)
        if order and not value._rg:
            self.plain.add(number)
        if LIBRARIES[type(array)].kind == "cpu":  # where `aligned` says something
            text = f"({name}_.flags.carray or is_plain({name}_) or "
            text += f"({name}_.strides, {name}_.flags.aligned))"
            order = order or (array.strides, array.flags.aligned)
        else:
            text, order = f"(is_plain({name}_) or {name}_.strides)", order or array.strides
        self.equal(f"the shape of {label}", array.shape, f"{name}_.shape", SHAPES, number)
        self.equal(f"the dtype of {label}", array.dtype, f"{name}_.dtype", "Cast it before", number)
        # In another memory order sums are other sums.
        self.equal(f"the memory order of {label}", order, text, "Pass contiguous()", number)
        # Native code, which looks at the layout, does not see it.
        self.equal(f"requires_grad of {label}", value._rg, f"{name}._rg", "Set it before")
        self.add(f"the overlap of {label} with other arguments", self.places[-1])

    # The function ---------------------------------------------------------------------------------

    def functions(
        self, capture: Any, run: Callable[[], None], step: Any
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Two functions that replay `capture` for the calls it is for.

        The first lets the `Compiled` find out about all other calls; the second returns MISSING.

        Args:
            capture: nothing in the functions leads back to it, it may keep them.
            run: the executor's function.
            step: a weak reference to the `Compiled`.
        """
        self.scope |= {
            "written": capture.written, "run": run, "leaves": capture.leaves,
            "outside": capture.outside, "refuse_alias": refuse_alias,
        }  # fmt: skip
        count, names = self.positional, step().names
        by_name = len(names) >= count

        def miss(values: Any, more: Any, named: Any) -> Any:
            args = [*itertools.takewhile(lambda value: value is not MISSING, values)]
            rest = zip(names[len(args) :], values[len(args) :], strict=False)
            found = {name: value for name, value in rest if value is not MISSING}
            return step()._find((*args, *more), found | named)

        head = [f"a{n}=MISSING" for n in range(count)] + ["/"] * (count > 0 and not by_name)
        values = "".join(f"a{n}, " for n in range(count))
        lines = [*self._body(capture, run), f"return miss(({values}), more, named)"]
        source = f"def enter({', '.join([*head, '*more', '**named'])}):\n"
        source += "\n".join(_indented(lines))
        enter: FunctionType = generated(source, "enter", ENTRY, self.scope | {"miss": miss})
        if by_name:  # the step's names, which would otherwise have to differ from all in the text
            code = enter.__code__
            enter.__code__ = code.replace(co_varnames=(*names[:count], *code.co_varnames[count:]))
        # Errors about the arguments begin with its name.
        enter.__qualname__ = getattr(step(), "__qualname__", step().name)
        scope = self.scope | {"miss": lambda *_: MISSING}
        return enter, FunctionType(enter.__code__, scope, enter.__name__, enter.__defaults__)

    def _body(self, capture: Any, run: Any) -> list[str]:
        """The lines up to the miss.

        They decide before they write: another thread, whose call they refuse, must not have touched
        what native code of this one is reading.
        """
        texts, outside = self.texts, capture.outside
        # Memory that a backward pass outside reads is written at every call.
        in_place: Any = None if outside else getattr(run, "in_place", None)
        moved = self.plain.intersection(in_place.moved) if in_place else ()
        copied = [n for n in self.different if n not in moved]
        first, checks = self._conditions(in_place, copied, capture)
        locks = [*capture.locks, *([outside.lock] if outside else ())]
        ends = [f"{self.name(lock.release)}()" for lock in reversed(locks)]
        if moved:
            inputs, readable = capture.program.inputs, in_place.moved
            arrays = [texts[n] + "_" if n in moved else self.name(inputs[n]) for n in readable]
            rest = self._layouts(sorted(moved)) + self._apart(self.different, capture)
            lines = [
                f"if {self.name(in_place.function)}({', '.join(arrays)}):",
                *_indented(self._replay(capture, copied, f"{self.name(in_place.run)}()", ends)),
                f"if {' and '.join(rest)}:",
                *_indented(self._replay(capture, self.different, "run()", ends)),
            ]
        else:
            lines = self._replay(capture, copied, "run()", ends)
        if not locks:
            return [f"if {' and '.join([*first, *checks])}:", *_indented(lines)]
        self.scope["locks"] = locks[::-1]  # not by `with`, which takes twice the time
        begins = [f"{self.name(lock.acquire)}()" for lock in locks]
        inner = [*begins, f"if {' and '.join(checks)}:", *_indented(lines), *ends]
        lines = ["try:", *_indented(inner), "except BaseException:"]
        lines += ["    release_after_error([*locks])", "    raise"]
        return [f"if {' and '.join(first)}:", *_indented(lines)]

    def fits(self, capture: Any) -> Callable[..., bool]:
        """A function that says whether a call is one that `capture` is for, and replays nothing."""
        first, checks = self._conditions(None, self.different, capture)
        head = ", ".join([*(f"a{n}" for n in range(self.positional)), "*more", "**named"])
        source = f"def fits({head}):\n    return {' and '.join([*first, *checks])}\n"
        return generated(source, "fits", ENTRY, {**self.scope, "written": capture.written})

    def _conditions(
        self, in_place: Any, copied: Sequence[int], capture: Any
    ) -> tuple[list[str], list[str]]:
        """What a call must be like: of that what is asked before locks are acquired, and the rest.

        in_place: what looks at the layout of Tensors that are not `copied`.
        """
        texts, places = self.texts, self.places
        mine, others = self.facts[: self.of_arguments], self.facts[self.of_arguments :]
        first = [fact.condition for fact in mine if fact.tensor is None and fact.condition]
        # The same Tensor twice is another capture; where they begin may not be asked.
        first += ['modes["capture"] is EAGER', "not more"] + [
            f"{texts[n]} is not {texts[m]}"
            for index, n in enumerate(self.different) for m in self.different[:index]
            if in_place or (places[n] is not None and places[n] in (m, places[m]))
        ]  # fmt: skip
        checks = [fact.condition for fact in others if fact.condition]
        checks += self._layouts(copied) + self._apart(copied, capture) + self._follow(capture)
        return first, checks

    def _layouts(self, tensors: Iterable[int]) -> list[str]:
        return [fact.condition for n in tensors for fact in self.facts if fact.tensor == n]

    def _apart(self, copied: Sequence[int], capture: Any) -> list[str]:
        """Which of the arguments `copied` have memory in common, and none with what is written."""
        checks = []
        for index, n in enumerate(copied):
            here = f"{self.texts[n]}_"
            owner = f"{here} if {here}.base is None else owner_of({here})"
            checks.append(f"(owner{n} := {owner}) is not None")
            for m in copied[:index]:
                if self.places[m] is None:
                    at = f"address({here}) == address({self.texts[m]}_)"
                    same = f"(owner{n} is owner{m} and {at})"
                    checks.append(same if self.places[n] == m else f"not {same}")
            if capture.written:
                checks.append(f"(id(owner{n}) not in written or refuse_alias())")
        return checks if len(copied) > 1 or capture.written else []

    def _follow(self, capture: Any) -> list[str]:
        """What optimizers must be like; the last condition takes over new rates."""
        checks, options = [], []
        # By optimizer and run, the options that constants are known to be of.
        self.scope["seen"] = [[None] * len(runs) for _, runs, _ in capture.optimizers]
        for number, (optimizer, runs, _) in enumerate(capture.optimizers):
            checks.append(f"{self.name(optimizer)}.runs is {self.name(runs)}")
            # The first run of a group is the first to follow it.
            for place, run in {id(r.group): (n, r) for n, r in [*enumerate(runs)][::-1]}.values():
                now = f"{self.name(optimizer.options)}({self.name(run.group)})"
                options.append(f"{now} == {self.name(run)}.options is seen[{number}][{place}]")
        if options:
            taken = f"{self.name(follow)}({self.name(capture.optimizers)}, seen)"
            checks.append(f"({' and '.join(options)} or {taken})")
        return checks

    def _replay(self, capture: Any, copied: Sequence[int], run: str, ends: list[str]) -> list[str]:
        """The replay, for which the arguments `copied` are, and what it returns."""
        result, program, outside = capture.result, capture.program, capture.outside
        lines = ["outside.begin()"] * (outside is not None)
        lines += [f"{self.name(program.inputs[n])}[...] = {self.texts[n]}_" for n in copied]
        lines += [f"leaves.tensors = {self.given}"] * capture.leaves.ends
        if any(getattr(line, "name", "") in DRAWS for line in program.lines):
            lines.append(f"{self.name(program.draw)}[0] = {self.name(STREAM)}.draw")
        lines.append(run)
        if type(result) is Output and result.place is None:  # `wrap`, without its call
            copy = self.name(program.outputs[result.number].copy)
            lines += [
                f"made = {self.name(Tensor.__new__)}(Tensor)", f"made._array = {copy}('K')",
                "made._rg = False", "made._edge = made._grad = made._version = made._extra = None",
            ]  # fmt: skip
        else:
            node = f"outside.node({self.given})" if outside else "None"
            outputs = self.name(program.outputs)
            lines.append(f"made = rebuilt({self.name(result)}, {outputs}, {node})")
        return [*lines, *ends, "return made"]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


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
