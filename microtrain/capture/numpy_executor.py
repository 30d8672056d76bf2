"""The numpy executor: a Program as straight-line NumPy calls that write where the capture wrote.

Same calls, same memory, same bits as the step that was captured; what is gone is everything around
them. The text is what `compiled.source()` prints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..backend import LIBRARIES, NUMPY, address, owner_of
from ..common.stack_frames import REPLAY, generated
from .explain import Names, size, traffic
from .failure import EXCEPT, failed
from .plan import reuse
from .program import DRAWS, Line, Program, PythonCall, parts_of, works_on

# Instructions by the way they are told where to write.
REDUCTIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum",
              "all": "logical_and", "any": "logical_or"}  # fmt: skip
OUT_BY_NAME = {"dot", "matmul", "concatenate", "cumsum", "cumprod", "argmax", "argmin", "maximum",
               "minimum", "erf", "erfc"}  # fmt: skip


_NAME = re.compile(r"\b(?:input|state|c|b)\d+\b")


def executor(program: Program) -> tuple[Callable[[], None], Text]:
    """A function that replays `program`, and its text."""
    parts = [part for line in program.lines for part in parts_of(line)]
    lines = [each for part in parts for each in in_one_piece(part, program)]
    reuse(program, [works_on(line) for line in lines], lines)
    text = Text(program)
    text.traffic = traffic(lines)
    for line in lines:
        text.host(line) if isinstance(line, PythonCall) else text.line(line)
    return text.function(), text


class Text:
    """The text of a function of Python that replays lines."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # Text, whether it is an instruction, and the Line or PythonCall that it comes from.
        self.lines: list[tuple[str, bool, Any]] = []
        self.said: list[tuple[str, str]] = []  # the same for people: text and comment
        self.native: list[str] = []  # the texts of native functions
        self.native_code: Any = None  # where these are, if they do all instructions; see `Scan`
        self.groups: list[int] = []  # how many instructions each loop or call of these does
        self.traffic = 0  # bytes that a replay reads and writes
        self.scope: dict[str, Any] = {}
        self.names: dict[Any, str] = {}
        self.labels: dict[str, str] = {}  # by name in the text, what people call it
        self.arrays = Names(program)
        self.counts: dict[str, int] = {}

    def shown(self) -> str:
        """The text for people, with a comment behind each line."""
        said = [
            (_NAME.sub(lambda found: self.labels.get(found[0], found[0]), text), comment)
            for text, comment in self.said
        ]
        width = min(max((len(text) for text, _ in said), default=0), 60)
        lines = "\n".join(f"{text:<{width}}  # {comment}" for text, comment in said)
        return "\n\n".join([lines, *self.native])

    def function(self, bookkeeping: bool = True) -> Any:
        """The function, also without bookkeeping; its globals are the names in its text."""
        if bookkeeping:
            body = "".join(f"        {text}\n" for text, *_ in self.lines) or "        pass\n"
            source = f"def replay():\n    try:\n{body}{EXCEPT}"
            origins = [origin for *_, origin in self.lines]
            self.scope.update(failed=failed, program=self.program, origins=origins)
        else:
            texts = [text for text, instruction, _ in self.lines if instruction]
            source = "def replay():\n" + "".join(f"    {text}\n" for text in texts or ["pass"])
        return generated(source, "replay", REPLAY, self.scope)

    def emit(self, text: str, line: Line, comment: str = "") -> None:
        self.lines.append((text, True, line))
        self.said.append((text, comment + self.about(line)))

    def value(self, value: Any) -> str:
        """How the text says an argument: the name of an array, or a literal."""
        if type(value) in LIBRARIES:
            return self.array(value)
        if isinstance(value, tuple | list):
            inner = ", ".join(self.value(v) for v in value)
            if isinstance(value, list):
                return f"[{inner}]"
            return f"({inner},)" if value else "()"
        if value is None or type(value) in (int, bool, str):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)
        return self.named("c", value, ("value", id(value)))

    def array(self, array: Any) -> str:
        kind = self.program.kinds.get(id(owner_of(array)), "made")
        may_write = getattr(array.flags, "writeable", True)  # not through an expanded view
        place = address(array), array.shape, array.strides, array.dtype, may_write
        prefix = {"input": "input", "state": "state", "constant": "c"}.get(kind, "b")
        name = self.named(prefix, array, place)
        if name not in self.labels:
            self.labels[name] = self.arrays.of(array) or name
        return name

    def named(self, prefix: str, value: Any, key: Any) -> str:
        name = self.names.get(key)
        if name is None:
            number = self.counts[prefix] = self.counts.get(prefix, 0) + 1
            name = self.names[key] = f"{prefix}{number}"
            self.scope[name] = value
        return name

    def by_id(self, prefix: str, value: Any) -> str:
        return self.named(prefix, value, id(value))

    def called(self, name: str, value: Any) -> str:
        self.scope[name] = value
        return name

    def host(self, line: PythonCall, times: str = "1") -> None:
        texts = line.inline(self.by_id, times)
        self.lines += [(text, False, line) for text in texts]
        self.said.append(("", line.label))

    def line(self, line: Line) -> None:
        name, args, attrs = line.name, [self.value(a) for a in line.args], dict(line.attrs)
        xp = self.program.xp
        if name == "loop":
            args.append(self.value(line.out))
            self.emit(f"{self.called(name, xp.loop)}({', '.join(args)})", line)
            return
        if type(line.out) is tuple:
            outs = [self.array(o) for o in line.out]
            call = f"{self.called(name, getattr(xp, name))}({', '.join(args)})"
            for number, out in enumerate(outs):
                self.emit(f"{out}[...] = {call}[{number}]", line)
            return
        out = self.array(line.out)
        extra = "".join(f", {k}={self.value(v)}" for k, v in attrs.items())
        f = getattr(xp.module, name, None)
        if name == "copyto":
            text = self.copied(args[0], args[1], line.args[1], extra)
        elif name == "setitem":
            text = f"{args[0]}[{args[1]}] = {args[2]}"
        elif name == "scatter_add":
            text = f"{self.called('add_at', xp.scatter_add)}({', '.join(args)})"
        elif name in DRAWS:
            words = self.called(name, getattr(xp, name))
            self.scope["draw"] = self.program.draw
            start = "draw[0] + " if attrs["fresh"] else ""
            text = f"{out}[...] = {words}({args[0]}, {start}{', '.join(args[1:])})"
        elif name == "where":
            unsafe = ", casting='unsafe'"
            self.emit(self.copied(out, args[2], line.args[2], unsafe), line)
            mask, one = line.args[:2]
            alike = type(one) is np.ndarray and (one.ndim, one.dtype) == (0, line.out.dtype)
            if alike and getattr(mask, "shape", None) == line.out.shape:  # half the time of a copy
                text = f"{self.called('putmask', np.putmask)}({out}, {args[0]}, {args[1]})"
            else:
                copy = self.called("copyto", xp.copyto)
                text = f"{copy}({out}, {args[1]}, casting='unsafe', where={args[0]})"
        elif name == "kept" and xp is NUMPY:  # as the library does it, into memory that is there
            x, to = (array.view(f"i{array.itemsize}") for array in (line.args[0], line.out))
            places = f"{self.array(x)}, {args[1]}, {self.array(to)}"
            text = f"{self.called('multiply', np.multiply)}({places})"
        elif name in REDUCTIONS:
            axis = attrs.get("axis", line.args[1] if len(line.args) > 1 else None)
            given = axis, attrs.get("dtype"), line.out, attrs.get("keepdims", False)
            text = self.reduction(name, args[0], [self.value(value) for value in given])
        elif hasattr(f, "nin") and name not in OUT_BY_NAME:  # a ufunc
            text = f"{self.called(name, f)}({', '.join(args)}, {out}{extra})"
        elif name == "take" and _indexed(line):
            text = self.taken(line, f"{args[0]}, {args[1]}", out)
        elif name in OUT_BY_NAME and (name != "dot" or line.out.flags.c_contiguous):
            f = getattr(xp, name)
            text = f"{self.called(name, f)}({', '.join(args)}{extra}, out={out})"
        elif name == "getitem":
            text = f"{out}[...] = {args[0]}[{args[1]}]"
        else:
            f = getattr(xp, name)
            text = f"{out}[...] = {self.called(name, f)}({', '.join(args)}{extra})"
        self.emit(text, line)

    def reduction(self, name: str, x: str, given: list[str]) -> str:
        """A reduction of `x`; `given`: axis, dtype, what is written, whether dims are kept."""
        reduce = self.called(f"{name}_of", getattr(np, REDUCTIONS[name]).reduce)
        return f"{reduce}({x}, {', '.join(given)})"

    def taken(self, line: Line, args: str, out: str) -> str:
        """`take`: where NumPy may find an index out of bounds it takes into memory of its own."""
        x, index, *more = line.args
        axis = line.attrs.get("axis", more[0] if more else None)
        size = x.size if axis is None else x.shape[axis]
        top = self.called("largest", np.maximum.reduce)
        call = f"{self.called('take', np.ndarray.take)}({args}, {axis}, {out}"
        unsigned = self.array(index.view(np.uint64))  # what is negative is large
        return f"{call}, 'clip') if {top}({unsigned}, None) < {size} else {call})"

    def copied(self, to: str, name: str, value: Any, extra: str) -> str:
        """A copy of `value`; of a whole array by assignment, with which NumPy begins sooner."""
        if "where" not in extra and (type(value) in LIBRARIES or (type(value), value) == (int, 0)):
            return f"{to}[...] = {name}"
        return f"{self.called('copyto', self.program.xp.copyto)}({to}, {name}{extra})"

    def about(self, line: Line) -> str:
        out = line.out[0] if type(line.out) is tuple else line.out
        shape = f"{size(out)} {out.dtype.name}"
        return ", ".join(filter(None, (shape, line.what, line.where.rpartition("/")[2])))


def in_one_piece(line: Line | PythonCall, program: Program) -> Iterable[Line | PythonCall]:
    """`line` behind the copies that its product would make, which share memory so."""
    cuda = program.xp.kind == "cuda"  # CuPy copies for batches, too
    if isinstance(line, Line) and (line.name == "dot" or (cuda and line.name == "matmul")):
        args = []
        for array in line.args:
            # A matrix of one row or column is read as a vector, at its stride.
            pieces = array.ndim == 2 and 1 not in array.shape and not array.flags.forc
            batched = array.ndim > 2 and 0 not in array.strides and not array.flags.c_contiguous
            if pieces or (cuda and batched):
                whole = program.make(array.shape, array.dtype)
                yield Line("copyto", (whole, array), whole, {}, line.where, line.what)
                array = whole
            args.append(array)
        line.args = tuple(args)
    yield line


def _indexed(line: Line) -> bool:
    """Whether it takes at an array of places, and that is all."""
    index = line.args[1]
    kind = type(index) in LIBRARIES
    return kind and index.dtype == np.int64 and line.attrs.keys() <= {"axis"}
