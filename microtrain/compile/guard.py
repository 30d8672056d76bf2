"""The guard of a capture: a function generated for it, which looks whether a call may be replayed.

It asks in one expression for all that the capture depends on: arguments, modes, structure,
gradients, optimizers. Where all is as it was it copies the arguments in, replays, and returns what
the step would. A step has one function at a time, the guard of the capture that was used last;
where that one misses, the others are tried in the order of last use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NoReturn

from ..autograd.turns import broken_off
from ..backend import MODES, STRUCTURE, address, is_plain, owner_of
from ..errors import CaptureError
from ..nn.module import Module
from ..random import STREAM, step_now
from ..stack_frames import ENTRY, generated
from ..tensor import TENSORS, Tensor
from .program import DRAWS
from .tree import Again, Layout, Output, rebuilt

MISSING = object()  # an argument that a call leaves out, and what a guard returns that misses
# What a key begins with; arguments follow.
MODES_OF_KEY = (
    "grad mode", "inference mode", "the default dtype", "anomaly detection", "the thread"
)  # fmt: skip


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
    text = _Text(capture, run)
    count, number = capture.positional, capture.number
    by_name = len(names) >= count
    parameters = [f"a{n}=MISSING" for n in range(count)] + ["/"] * (count > 0 and not by_name)
    values = "".join(f"a{n}, " for n in range(count))
    source = text.source(
        ", ".join([*parameters, "*more", "**named"]), f"return miss(({values}), more, named)"
    )

    def miss(values: Any, more: Any, named: Any) -> Any:
        args = [value for value in values if value is not MISSING]
        if by_name and len(args) < count:  # what is missing may be in the middle
            args, found = [], zip(names, values, strict=False)
            named = {name: value for name, value in found if value is not MISSING} | named
        return owner()._find((*args, *more), named, number)

    text.scope["miss"] = miss
    enter: FunctionType = generated(source, "enter", ENTRY, text.scope)
    if by_name:  # the step's names, which would otherwise have to differ from all in the text
        code = enter.__code__
        varnames = (*names[:count], *code.co_varnames[count:])
        enter.__code__ = code.replace(co_varnames=varnames)
    step = owner()  # errors about the arguments begin with its name
    enter.__qualname__ = getattr(step, "__qualname__", step.name)
    scope = {**text.scope, "miss": lambda *_: MISSING}
    return enter, FunctionType(enter.__code__, scope, enter.__name__, enter.__defaults__)


def follow(optimizers: Any, seen: list[list[Any]]) -> bool:
    """Whether the runs of `optimizers` are as captured; new rates are taken over, and `seen`."""
    for (optimizer, runs, constants), options in zip(optimizers, seen, strict=True):
        if optimizer.runs is not runs or not optimizer.follow_options():
            return False
        if not all(map(same, runs, constants)):
            return False
        options[:] = [run.options for run in runs]
    return True


def same(run: Any, then: dict[str, Any]) -> bool:
    """Whether the numbers of a run's update are where they were, and its flags what they were."""
    return run.constants is then  # made anew for other flags


def refuse_alias() -> NoReturn:
    """CaptureError for an argument that the step writes."""
    raise CaptureError(
        "compile: an argument is memory that the step writes (a parameter, a buffer), and would "
        "keep the values from before the step; use it from inside the step, or pass a clone()"
    )


class _Text:
    """The text of a guard, and what the names in it mean.

    Attributes:
        tensors: names of the Tensors in the arguments, with what the key says of them.
        kinds: conditions on arguments, but for how Tensors lie in memory.
        modes: conditions on modes, also on whose call it is.
        rest: conditions on all else that is not an argument.
        follow: the last condition, which takes over new rates of optimizers.
        in_place: the numbers of Tensors that native code reads where they are, if it can.
    """

    def __init__(self, capture: Any, run: Any) -> None:
        self.capture = capture
        # Memory that a backward pass outside reads is written at every call.
        self.arrival: Any = None if capture.outside else getattr(run, "arrival", None)
        self.scope: dict[str, Any] = {
            "MISSING": MISSING, "MODES": MODES, "STRUCTURE": STRUCTURE, "TENSORS": TENSORS,
            "Tensor": Tensor, "owner_of": owner_of, "is_plain": is_plain, "address": address,
            "written": capture.written, "refuse_alias": refuse_alias, "leaves": capture.leaves,
            "structure": capture.structure, "outside": capture.outside, "run": run,
        }  # fmt: skip
        self.tensors: list[tuple[str, Any]] = []
        self.kinds = ["not more"]
        self.modes: list[str] = []
        self.rest: list[str] = []
        self.follow: list[str] = []
        self.in_place: set[int] = set()
        values = capture.key[len(MODES_OF_KEY) :]
        by_name = values[capture.positional :]
        names = tuple([name for name, _ in by_name])
        self.kinds.append(f"(*named,) == {names}" if names else "not named")
        for number, part in enumerate(values[: capture.positional]):
            self.argument(f"a{number}", part)
        for number, (name, part) in enumerate(by_name):
            self.argument(f"n{number}", part, f"named[{name!r}]")
        self.given = f"({''.join(f'{name}, ' for name, _ in self.tensors)})"
        self.whose()
        self.state()

    def source(self, parameters: str, miss: str) -> str:
        """The function, of `parameters`; `miss`: what it does with all other calls.

        It decides before it writes: another thread, whose call it refuses, must not have touched
        what native code of this one is reading.
        """
        everything = [n for n, (_, part) in enumerate(self.tensors) if type(part) is Layout]
        copied = [n for n in everything if n not in self.in_place]
        first = [*self.kinds, *self.modes]
        checks = [*self.rest, *self.layouts(copied), *self.apart(copied), *self.follow]
        if self.in_place and self.arrival is not None:
            arrays = [self.array(n) if n in self.in_place else self.target(n)
                      for n in self.arrival.moved]  # fmt: skip
            self.scope |= {"arrive": self.arrival.function, "plan": self.arrival.plan}
            self.scope["moved"] = self.arrival.run
            rest = self.layouts(sorted(self.in_place)) + self.apart(everything)
            lines = [
                f"if arrive(plan, {', '.join(f'id({array})' for array in arrays)}):",
                *_indented([*self.replay(copied, "moved()"), *self.result()]),
                f"if {' and '.join(rest)}:",
                *_indented([*self.replay(everything, "run()"), *self.result()]),
            ]
        else:
            begin = ["outside.begin()"] * (self.capture.outside is not None)
            lines = [*begin, *self.replay(copied, "run()"), *self.result()]
        locks = [*self.capture.turns]
        if self.capture.outside is not None:  # its results may be differentiated by other threads
            locks.append(self.capture.outside.lock)
        if locks:  # not by `with`, which takes twice the time
            self.scope |= {"locks": locks[::-1], "broken_off": broken_off}
            begins = [f"{self.name(f'begin{n}', lock.acquire)}()" for n, lock in enumerate(locks)]
            ends = [f"{self.name(f'end{n}', lock.release)}()" for n, lock in enumerate(locks)][::-1]
            lines = [part for line in lines
                     for part in (*(line.replace("return made", end) for end in ends
                                    if line.endswith("return made")), line)]  # fmt: skip
            inner = [*begins, f"if {' and '.join(checks or ['True'])}:", *_indented(lines), *ends]
            lines = ["try:", *_indented(inner), "except BaseException:"]
            lines += ["    broken_off([*locks])", "    raise"]
            checks = []
        lines = [f"if {' and '.join([*first, *checks])}:", *_indented(lines), miss]
        return "\n".join([f"def enter({parameters}):", *_indented(lines)])

    def layouts(self, numbers: Sequence[int]) -> list[str]:
        return [check for n in numbers for check in self.layout(n)]

    def apart(self, copied: Sequence[int]) -> list[str]:
        """Which of the arguments `copied` have memory in common, and none with what is written."""
        checks: list[str] = []
        owners: dict[int, str] = {}

        def owner(n: int) -> str:
            """Who owns the memory of an argument: looked up where it is asked for first."""
            name, here = f"owner{n}", self.array(n)
            found = f"({name} := {here} if {here}.base is None else owner_of({here}))"
            return name if owners.setdefault(n, found) is not found else found

        for index, n in enumerate(copied):
            place = self.tensors[n][1].place
            for other in copied[:index]:
                if self.tensors[other][1].place is None:
                    mine, theirs = owner(n), owner(other)
                    at = f"address({self.array(n)})", f"address({self.array(other)})"
                    checks.append(
                        f"{mine} is {theirs} and {at[0]} == {at[1]}" if place == other
                        else f"({mine} is not {theirs} or {at[0]} != {at[1]})"
                    )  # fmt: skip
        if self.capture.written:
            checks += [f"(id({owner(n)}) not in written or refuse_alias())" for n in copied]
        return checks

    def replay(self, copied: Sequence[int], run: str) -> list[str]:
        """The replay, for which the arguments `copied` are."""
        capture = self.capture
        lines = [f"{self.target(n)}[...] = {self.array(n)}" for n in copied]
        lines += [f"leaves.tensors = {self.given}"] * capture.leaves.ends
        if any(getattr(line, "name", "") in DRAWS for line in capture.program.lines):
            self.scope |= {"stream": STREAM, "draw": capture.program.draw}
            lines.append("draw[0] = stream.draw")
        return [*lines, run]

    def result(self) -> list[str]:
        """What it returns."""
        result, outputs = self.capture.result, self.capture.program.outputs
        if type(result) is Output and result.place is None:  # `wrap`, without its call
            self.scope |= {"new": Tensor.__new__, "result": outputs[result.number].copy}
            return [
                "made = new(Tensor)", "made._array = result()", "made._rg = False",
                "made._edge = made._grad = made._version = made._extra = None", "return made",
            ]  # fmt: skip
        self.scope |= {"rebuilt": rebuilt, "result": result, "outputs": outputs}
        node = f"outside.node({self.given})" if self.capture.outside else "None"
        return [f"made = rebuilt(result, outputs, {node})", "return made"]

    def name(self, name: str, value: Any) -> str:
        self.scope[name] = value
        return name

    def target(self, n: int) -> str:
        """What an argument is copied into."""
        return self.name(f"to{n}", self.capture.program.inputs[n])

    def array(self, n: int) -> str:
        return f"{self.tensors[n][0]}_"

    # Arguments ------------------------------------------------------------------------------------

    def argument(self, name: str, part: Any, value: str = "") -> None:
        """An argument of which the key says `part`; `name` gets the `value`, if there is one."""
        first = f"({name} := {value})" if value else name
        if type(part) is Layout:
            self.tensor(name, part, first)
        elif type(part) is Again:
            self.kinds.append(f"{first} is {self.tensors[part.number][0]}")
            self.tensors.append((name, part))
        else:
            kind, *inner = part
            self.kinds.append(f"type({first}) is {self.name(f'{name}_type', kind)}")
            if kind is dict:
                self.kinds.append(f"({name}_ := (*{name}.items(),)) is not MISSING")
                name, inner = f"{name}_", [(tuple, *pair) for pair in inner]
            if kind is dict or kind is list or issubclass(kind, tuple):
                self.kinds.append(f"len({name}) == {len(inner)}")
                for number, one in enumerate(inner):
                    self.argument(f"{name}_{number}", one, f"{name}[{number}]")
            elif issubclass(kind, Module):
                self.kinds.append(f"{name} is {self.name(f'{name}_is', inner[0])}()")
            elif kind is float and inner[0] in ("0.0", "-0.0", "nan"):
                self.kinds.append(f"repr({name}) == {inner[0]!r}")
            else:
                it = self.name(f"{name}_is", float(inner[0]) if kind is float else inner[0])
                self.kinds.append(f"({name} is {it} or {name} == {it})")

    def tensor(self, name: str, part: Layout, first: str) -> None:
        number = len(self.tensors)
        if self.arrival and number in self.arrival.moved and part.order is True:
            self.in_place |= set() if part.requires_grad else {number}
        self.kinds.append(f"(type({first}) is Tensor or type({name}) in TENSORS)")
        for n, (other, earlier) in enumerate(self.tensors):
            together = part.place is not None and part.place in (n, getattr(earlier, "place", n))
            if type(earlier) is Layout and (together or self.arrival):
                # The same Tensor twice is another capture; where they begin may not be asked.
                self.kinds.append(f"{name} is not {other}")
        self.tensors.append((name, part))
        kind = self.name("array_type", type(self.capture.program.inputs[number]))
        self.kinds.append(f"type({self.array(number)} := {name}._array) is {kind}")

    def layout(self, n: int) -> list[str]:
        name, part = self.tensors[n]
        here, dtype = self.array(n), self.name(f"dtype{n}", part.dtype)
        cpu = self.capture.program.xp.kind == "cpu"  # the flags of others say less
        order = f"({here}.flags.carray or is_plain({here}))" if cpu else f"is_plain({here})"
        if part.order is not True:
            strides, aligned = part.order
            order = f"{here}.strides == {strides}"
            order += f" and {here}.flags.aligned is {aligned}" if cpu else ""
        kind = f"({here}.dtype is {dtype} or {here}.dtype == {dtype})"
        return [f"{here}.shape == {part.shape}", kind, order, f"{name}._rg is {part.requires_grad}"]

    # All else -------------------------------------------------------------------------------------

    def whose(self) -> None:
        modes = MODES.__dict__  # this thread's; another one has another
        grad, inference, default_dtype, plain, _ = self.capture.key[: len(MODES_OF_KEY)]
        self.scope |= {"modes": modes, "default_dtype": default_dtype}
        self.modes += [
            "MODES.__dict__ is modes",
            f'modes["grad"] is {grad}' if plain else f'bool(modes["grad"]) is {grad}',
            f'modes["inference"] is {inference}', 'modes["default_dtype"] is default_dtype',
            'modes["recorder"] is None', f'modes["anomaly"] is {"" if plain else "not "}None',
        ]  # fmt: skip

    def state(self) -> None:
        """What modules, gradients, data parallelism, leaves and optimizers must be like."""
        capture, checks = self.capture, self.rest
        checks.append("(STRUCTURE[0] == structure.count or structure.fits())")
        if capture.drawing is not None:
            self.scope |= {"step_now": step_now, "drawing": capture.drawing}
            checks.append("step_now() == drawing")
        for storage, presence in capture.presence:
            for slot, there in zip(storage.slots, presence, strict=True):
                one = self.name(f"slot{len(self.scope)}", slot)
                buffer = self.name(f"buffer{len(self.scope)}", slot.buffer)
                checks.append(f"{one}.epoch {'==' if there else '!='} {buffer}.epoch")
        for number, (listener, counted) in enumerate(capture.counted):
            one = self.name(f"listener{number}", listener)
            checks.append(f"{one}.counted() == {self.name(f'counted{number}', counted)}")
        checks += [f"leaves.fits({self.given})"] * bool(capture.leaves)
        seen: list[Any] = []  # by optimizer and run, the options that constants are known to be of
        options = []
        for number, (optimizer, runs, _) in enumerate(capture.optimizers):
            one, read = self.name(f"optimizer{number}", optimizer), f"read{number}"
            checks.append(f"{one}.runs is {self.name(f'runs{number}', runs)}")
            self.scope[read] = optimizer.options
            seen.append([None] * len(runs))
            # The first run of a group is the first to follow it.
            for place, run in {id(r.group): (n, r) for n, r in [*enumerate(runs)][::-1]}.values():
                it = self.name(f"run{number}_{place}", run)
                now = f"{read}({self.name(f'{it}_group', run.group)})"
                options.append(f"{now} == {it}.options is seen[{number}][{place}]")
        if options:
            self.scope |= {"follow": follow, "optimizers": capture.optimizers, "seen": seen}
            self.follow = [f"({' and '.join(options)} or follow(optimizers, seen))"]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]
