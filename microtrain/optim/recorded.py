"""A formula as straight-line instructions: recorded once, replayed for every stretch of memory.

The array library of `compile` writes down what the formula does with two elements. The text made of
that takes its arrays as arguments, so it is the same for every length, and for a captured step, in
which its instructions are the recorder's. Results take the memory of operands that are not read
again; so most formulas need one array beside the states.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from ..backend import LIBRARIES, MODES, NUMPY, owner_of
from ..common.stack_frames import REPLAY, generated
from ..errors import need

NUMBER: Any = object()  # what stands for one in `options`, as it may change


@functools.lru_cache(256)
def signature_of(formula: Callable[..., None]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a formula's states, behind p and g, and of its numbers, by keyword only."""
    found = inspect.signature(formula).parameters.values()
    states = [p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]
    return tuple(states[2:]), tuple(p.name for p in found if p.kind is p.KEYWORD_ONLY)


def is_formula(function: Any) -> bool:
    """Whether it is a function of p, g and states whose first option, by keyword only, is `lr`."""
    if not inspect.isfunction(function):
        return False
    found = [*inspect.signature(function).parameters.values()]
    given = [p for p in found if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]
    return len(given) > 1 and signature_of(function)[1][:1] == ("lr",)


@dataclass(slots=True, frozen=True, eq=False)
class Recorded:
    """The instructions of a formula.

    Attributes:
        function: their text, compiled: of instructions, arrays of the formula, scratch.
        instructions: the names of those it uses.
        scratch: dtype and number of dimensions of each array that it needs to work in.
    """

    function: FunctionType
    instructions: tuple[str, ...]
    scratch: tuple[tuple[Any, int], ...]

    def bound(self, xp: Any, arrays: Sequence[Any]) -> Callable[[], None]:
        """What does it all to `arrays`: p, g, states, numbers, scratch; its values are defaults."""
        function, given = self.function, [getattr(xp, name) for name in self.instructions]
        return FunctionType(function.__code__, function.__globals__, None, (*given, *arrays))


@functools.lru_cache(256)
def recorded(
    formula: Callable[..., None],
    dtype: Any,
    states: tuple[str, ...],
    options: tuple[tuple[str, Any], ...],
) -> Recorded:
    """The instructions of `formula` for these states and options, of which some are a `NUMBER`.

    Raises TypeError where one is not elementwise, or is not the same for every length: parameters
    come in blocks.
    """
    (source, used, scratch), (other, *_) = (
        _written(formula, dtype, states, options, length) for length in (2, 3)
    )
    text = "computes with a number that is different each time, a length or a random number, and "
    text += "an optimizer's formula is recorded once, for blocks of any length: make it an option"
    need(source == other, formula.__name__, text, error=TypeError)
    function = generated(source, "update", REPLAY, {"inf": math.inf, "nan": math.nan})
    return Recorded(function, used, scratch)


def _written(
    formula: Callable[..., None], dtype: Any, states: tuple[str, ...], options: Any, length: int
) -> tuple[str, tuple[str, ...], tuple[tuple[Any, int], ...]]:
    """The text of the instructions on so many elements, and what else `Recorded` holds."""
    from ..capture.numpy_executor import OUT_BY_NAME
    from ..capture.program import works_on
    from ..capture.trace import Library

    library = Library(NUMPY)
    numbers = [name for name, value in options if value is NUMBER]
    given = {name: np.ones(length, dtype) for name in ("0", "1", *states)}
    given |= {name: np.ones((), dtype) for name in numbers}
    traced = {name: library.traced(array, "state") for name, array in given.items()}
    before, MODES.capture = MODES.capture, library
    try:
        with np.errstate(all="ignore"):
            formula(
                traced["0"], traced["1"], **{name: traced[name] for name in states},
                **{name: traced.get(name) if value is NUMBER else value for name, value in options},
            )  # fmt: skip
    finally:
        MODES.capture = before
    lines: list[Any] = library.program.lines
    steps = [[*map(owner_of, works_on(line))] for line in lines]  # the last one is written
    last = {id(array): n for n, arrays in enumerate(steps) for array in arrays}
    names = {id(array): f"a{n}" for n, array in enumerate(given.values())}
    scratch: list[tuple[Any, int]] = []
    free: dict[Any, list[str]] = {}
    used: dict[str, None] = {}
    text = []
    for n, (line, (*read, out)) in enumerate(zip(lines, steps, strict=True)):
        _check_elementwise(line, works_on(line))
        args = [_text(value, names) for value in line.args]
        words = "".join(f", {key}={_text(value, names)}" for key, value in line.attrs.items())
        for array in {id(array): array for array in read}.values():
            # Before the result has a place: it may take that of an operand.
            if last[id(array)] == n and names.get(id(array), "")[:1] == "w" and array is not out:
                free.setdefault((array.dtype, array.ndim), []).append(names[id(array)])
        if id(out) not in names:
            kind = out.dtype, out.ndim
            if not free.get(kind):
                free[kind] = [f"w{len(scratch)}"]
                scratch.append(kind)
            names[id(out)] = free[kind].pop()
        name, to = line.name, names[id(out)]
        if name == "setitem":
            name, args = "copyto", [args[0], args[2]]
        used[name] = None
        call = f"{name}({', '.join(args)}"
        if name == "copyto":
            text.append(f"{call}{words})")
        elif isinstance(getattr(NUMPY, name), np.ufunc):
            text.append(f"{call}, {'out=' * (name in OUT_BY_NAME)}{to}{words})")
        else:
            used["copyto"] = None
            text.append(f"copyto({to}, {call}{words}))")
    arrays = [*(f"a{n}" for n in range(len(given))), *(f"w{n}" for n in range(len(scratch)))]
    source = f"def update({', '.join([*used, *arrays])}):\n"
    source += "".join(f"    {line}\n" for line in text or ["pass"])
    return source, tuple(used), tuple(scratch)


def _check_elementwise(line: Any, arrays: Sequence[Any]) -> None:
    """TypeError for an instruction whose result has another shape than what it is made of."""
    whole = all(
        a.shape == () or (a.shape, a.strides) == (owner_of(a).shape, owner_of(a).strides)
        for a in arrays
    ) and all(a.ndim <= arrays[-1].ndim for a in arrays)
    inside = line.name != "setitem" or line.args[1] is ...
    text = f"{line.name} is not elementwise, and an optimizer's formula gets its parameters block "
    text += "by block: take sums and norms before the step"
    need(whole and type(line.out) is not tuple and inside, line.where, text, error=TypeError)


def _text(value: Any, names: dict[int, str]) -> str:
    """How the text says an argument."""
    if type(value) in LIBRARIES:
        return names.get(id(owner_of(value))) or repr(value.item())  # a constant
    return "..." if value is ... else repr(value)
