"""The way into a replay: a function generated for one capture, which looks whether it may.

It asks in one expression for all that `Compiled` asks for: modes, arguments, structure, gradients,
optimizers. Whatever differs from the call that it was made at goes back to `Compiled`, which finds
out what to do; so it may be stricter than `Compiled` is, and must never be less strict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from ..backend import MODES, STRUCTURE
from ..frames import ENTRY, generated
from ..random import STREAM
from ..tensor import TENSORS, Tensor
from .program import PLAIN, one_place, owner_of

CONSTANTS = (int, bool, str, float, type(None))
MISSING = object()  # what stands for an argument that a call leaves out


class Unusual(Exception):
    """The arguments of this call need `Compiled`'s look every time."""


def entry(
    capture: Any,
    args: Any,
    names: Sequence[str],
    owner: Any,
    output: Any,
    rebuilt: Callable[..., Any],
) -> Callable[..., Any]:
    """The function for calls like the one with `args`, which has just been replayed.

    Args:
        capture: what is replayed; nothing in the function leads back to it, it may keep it.
        args: the arguments, each at its place.
        names: what the step calls them; fewer where some can only be given by their places.
        owner: a weak reference to the `Compiled`, for all other calls.
        output: the array that the step returns as its one Tensor; None: it returns something else.
        rebuilt: makes what it returns then, from `capture.result` and the outputs.

    Raises Unusual for arguments other than Tensors, constants, and tuples and lists of them.
    """
    text = _Text(capture, args)
    text.scope |= {"owner": owner, "run": text.run}
    if output is None:
        text.scope |= {
            "rebuilt": rebuilt, "result": capture.result, "outputs": capture.program.outputs
        }  # fmt: skip
        after = ["return rebuilt(result, outputs, None)"]
    else:  # `wrap`, without its call
        text.scope |= {"Tensor": Tensor, "new": Tensor.__new__, "result": output.copy}
        after = [
            "made = new(Tensor)", "made._array = result()", "made._rg = False",
            "made._edge = made._grad = made._version = made._extra = None", "return made",
        ]  # fmt: skip
    places = [f"a{number}" for number in range(len(args))]
    by_name = len(names) >= len(args)
    end = ["/"] if places and not by_name else []
    parameters = ", ".join([*(f"{place}=MISSING" for place in places), *end, "*more", "**named"])
    given = "".join(f"{place}, " for place in places)
    checks, lines = " and ".join(text.checks), "\n    ".join([*text.copies, "run()", *after])
    text.scope |= {"call": _call, "names": names}
    source = f"""\
def enter({parameters}):
    if more or named or not ({checks}):
        return owner()._find(*call(names, ({given}), more, named))
    {lines}
"""
    enter: FunctionType = generated(source, "enter", ENTRY, text.scope)
    if by_name:  # the step's names, which would otherwise have to differ from all in the text
        code = enter.__code__
        varnames = (*names[: len(args)], *code.co_varnames[len(args) :])
        enter.__code__ = code.replace(co_varnames=varnames)
    step = owner()  # errors about the arguments begin with its name
    enter.__qualname__ = getattr(step, "__qualname__", step.name)
    return enter


def _call(names: Sequence[str], values: Any, more: Any, named: Any) -> tuple[Any, Any]:
    """A call of `enter` as positional arguments and those by name."""
    given = [value is not MISSING for value in values]
    if all(given):
        return (*values, *more), named
    count = given.index(False)
    rest = zip(names[count:], values[count:], strict=False)
    return values[:count], {k: v for k, v in rest if v is not MISSING} | named


def follow(optimizers: Any, seen: list[list[Any]]) -> bool:
    """Whether the runs of `optimizers` are as captured; new rates are taken over, and `seen`."""
    for (optimizer, runs, constants), options in zip(optimizers, seen, strict=True):
        if optimizer.runs is not runs or not optimizer.follow_options():
            return False
        if not all(map(same, runs, constants)):
            return False
        options[:] = [run.options for run in runs]
    return True


def same(run: Any, then: tuple[Any, ...]) -> bool:
    """Whether the arrays of a run's update are where they were, and its flags what they were."""
    now = run.constants
    return now is then or all(
        a is b or (type(a) is not np.ndarray and a == b) for a, b in zip(now, then, strict=True)
    )


class _Text:
    """The conditions, the copies, and what the names in them mean."""

    def __init__(self, capture: Any, args: Any) -> None:
        modes = MODES.__dict__  # this thread's; another one has another
        self.scope: dict[str, Any] = {
            "MODES": MODES, "STRUCTURE": STRUCTURE, "modes": modes, "MISSING": MISSING,
            "ndarray": np.ndarray, "structure": capture.structure, "owner_of": owner_of,
            "written": capture.written,
        }  # fmt: skip
        self.checks = ["MODES.__dict__ is modes"]
        for mode in ("grad", "inference", "default_dtype", "recorder"):
            self.checks.append(f'modes["{mode}"] is {self.name(mode, modes[mode])}')
        off = modes["anomaly"] is None
        self.checks.append(f'modes["anomaly"] is {"" if off else "not "}None')
        self.copies: list[str] = []
        self.run = capture.run
        self.arrival = getattr(self.run, "arrival", None)
        self.places: list[str] = []  # of what is told to native code
        self.tensors: list[tuple[str, Tensor]] = []
        self.owners: list[tuple[str, Any]] = []  # of the arrays that are copied
        for number, value in enumerate(args):
            self.argument(f"a{number}", value, capture.program.inputs)
        self.beginning(capture)
        if capture.leaves:
            self.scope["leaves"] = capture.leaves
            tensors = f"({''.join(f'{name}, ' for name, _ in self.tensors)})"
            self.checks.append(f"leaves.fits({tensors})")
            if capture.leaves.ends:
                self.copies.append(f"leaves.tensors = {tensors}")
        if self.arrival is not None and self.places:
            self.run = self.arrival.run
            self.scope |= {"arrive": self.arrival.function, "plan": self.arrival.plan}
            self.checks.append(f"arrive(plan, {', '.join(self.places)})")
        if capture.draws:
            self.scope |= {"stream": STREAM, "draw": capture.program.draw}
            self.copies.append("draw[0] = stream.draw")

    def name(self, name: str, value: Any) -> str:
        self.scope[name] = value
        return name

    def argument(self, name: str, value: Any, inputs: list[Any]) -> None:
        """An argument like `value`, to which `name` is bound; as in `Compiled._key`."""
        kind = type(value)
        self.checks.append(f"type({name}) is {self.name(f'{name}_type', kind)}")
        if kind in TENSORS:
            self.tensor(name, value, inputs)
        elif kind is tuple or kind is list:
            self.checks.append(f"len({name}) == {len(value)}")
            for number, part in enumerate(value):
                inner = f"{name}_{number}"
                self.checks.append(f"({inner} := {name}[{number}]) is not MISSING")
                self.argument(inner, part, inputs)
        elif kind in CONSTANTS and (kind is not float or value):  # 0.0 equals -0.0
            self.checks.append(f"{name} == {self.name(f'{name}_is', value)}")
        else:
            raise Unusual

    def tensor(self, name: str, value: Tensor, inputs: list[Any]) -> None:
        same = [tensor is value for _, tensor in self.tensors]
        for (other, _), one in zip(self.tensors, same, strict=True):
            # Told apart: two that are one are another capture.
            self.checks.append(f"{name} is {'' if one else 'not '}{other}")
        number, array, here = len(self.tensors), value._array, f"{name}_"
        self.tensors.append((name, value))
        target = self.name(f"{name}_to", inputs[number])
        moves = self.arrival is not None and number in self.arrival.moved
        if any(same):
            self.places += [f"id({target})"] * moves
            return
        self.checks += [f"type({here} := {name}._array) is ndarray", f"{name}._rg is {value._rg}"]
        order = array.flags.num & PLAIN == PLAIN
        if moves and order and not value._rg:
            self.places.append(f"id({here})")  # which looks at all the rest
            return
        self.places += [f"id({target})"] * moves
        owner = f"{name}_owner"
        plain = f"({here}.flags.carray or {here}.flags.num & {PLAIN} == {PLAIN})"
        strided = f"{here}.strides == {array.strides}"
        self.checks += [
            f"{here}.dtype is {self.name(f'{name}_dtype', array.dtype)}",
            f"{here}.shape == {array.shape}",
            plain if order else f"{strided} and {here}.flags.aligned is {array.flags.aligned}",
            f"id({owner} := {here} if {here}.base is None else owner_of({here})) not in written",
        ]
        for other, before in self.owners:
            if owner_of(before) is not owner_of(array):
                self.checks.append(f"{owner} is not {other}_owner")
            else:
                sign = "==" if one_place(before, array) else "!="
                self.checks.append(f"{here}.ctypes.data {sign} {other}_.ctypes.data")
        self.owners.append((name, array))
        self.copies.append(f"{target}[...] = {here}")

    def beginning(self, capture: Any) -> None:
        """What is there besides the arguments; as in `Capture.fits`."""
        self.checks.append("(STRUCTURE[0] == structure.count or structure.fits())")
        for storage, presence in capture.presence:
            for slot, there in zip(storage.slots, presence, strict=True):
                one = self.name(f"slot{len(self.scope)}", slot)
                buffer = self.name(f"buffer{len(self.scope)}", slot.buffer)
                self.checks.append(f"{one}.epoch {'==' if there else '!='} {buffer}.epoch")
        for number, (listener, counted) in enumerate(capture.counted):
            one = self.name(f"listener{number}", listener)
            self.checks.append(f"{one}.counted() == {self.name(f'counted{number}', counted)}")
        same = []
        for number, (optimizer, runs, _) in enumerate(capture.optimizers):
            one = self.name(f"optimizer{number}", optimizer)
            self.checks.append(f"{one}.runs is {self.name(f'runs{number}', runs)}")
            groups = set()
            for place, run in enumerate(runs):
                if id(run.group) not in groups:  # the first of a group is the first to follow it
                    groups.add(id(run.group))
                    read = self.name(f"read{number}", optimizer.options)
                    it = self.name(f"run{number}_{place}", run)
                    now = f"{read}({self.name(f'{it}_group', run.group)})"
                    same.append(f"{now} == {it}.options is seen[{number}][{place}]")
        if same:
            self.scope |= {"follow": follow, "optimizers": capture.optimizers, "seen": capture.seen}
            self.checks.append(f"({' and '.join(same)} or follow(optimizers, seen))")
