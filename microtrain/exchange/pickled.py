"""A pickle read as data: a small machine that knows the few opcodes of plain values.

Python's unpickler calls whatever a pickle names. This one calls what the caller's table has, and
refuses every other name, opcode and size without having done anything. Memory stays within a small
multiple of the pickle's length.
"""

from __future__ import annotations

import itertools
import pickletools
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Global", "Place", "read_pickle"]

Place = Callable[[], str]
Persistent = Callable[[Any, Place], Any]


class Global:
    """A name in a pickle, `torch.FloatStorage`, and what stands for it here."""

    def __init__(self, name: str, meaning: Any) -> None:
        self.name = name
        self.meaning = meaning


_CONSTANTS = {
    "NONE": None, "NEWTRUE": True, "NEWFALSE": False,
    "EMPTY_TUPLE": (),
}  # fmt: skip
_ARGUMENTS = """INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8""".split()
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MOST_BITS = 1024  # of a whole number: printing one takes time that grows with its square


def read_pickle(content: bytes, known: Mapping[str, Any], persistent: Persistent) -> Any:
    """The object in a pickle of plain values, lists, tuples, dicts and the `known` names.

    Args:
        content: the pickle, protocols 2 to 5.
        known: by `module.name` a function that is called with the arguments and, as `at=`, a
            function that says where in the object the result goes; or any other value, which a
            pickle can only pass on.
        persistent: called with what a persistent id says, and such a function.

    Raises ValueError for all else; also what the functions raise.
    """
    try:
        return _Machine(known, persistent).run(content)
    except (IndexError, KeyError, TypeError, OverflowError, UnicodeError) as error:
        # The stack ran empty, a name was never memorized, a key cannot be one.
        raise ValueError(f"damaged: {type(error).__name__} in its pickle: {error}") from error


class _Machine:
    def __init__(self, known: Mapping[str, Any], persistent: Persistent) -> None:
        self.known = known
        self.persistent = persistent
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # stacks under each mark
        self.memo: dict[int, Any] = {}
        self.ordered: dict[int, Any] = {}  # by id the dicts that a name was called for

    def run(self, content: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name == "STOP":
                if len(self.stack) != 1 or self.below:
                    raise ValueError("damaged: its pickle ends too early")
                return self.plain(self.stack[0])
            if name in _ARGUMENTS:
                self.stack.append(self.number(argument))
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif (method := getattr(self, f"on_{name.lower()}", None)) is not None:
                method(argument)
            elif name in _TUPLES:
                count = _TUPLES[name]
                self.stack[-count:] = [tuple(self.popped(count))]
            elif name not in ("PROTO", "FRAME"):
                raise ValueError(f"{self.place()} has the pickle opcode {name}, which is not read")
        raise ValueError("damaged: its pickle has no end")

    def place(self) -> str:
        """Where in the object we are, by the keys that lead there: `model.0.weight`."""
        keys = [key for level in (*self.below, self.stack) for key in _keys(level)]
        return ".".join(key for key in keys if key != "storage")[:200] or "the object"

    def number(self, value: Any) -> Any:
        if type(value) is int and value.bit_length() > _MOST_BITS:
            raise ValueError(f"{self.place()}: a number of {value.bit_length():,} bits")
        return value

    def plain(self, value: Any) -> Any:
        """A value that may be part of the result; ValueError for a name or a storage alone."""
        if isinstance(value, Global):
            raise ValueError(f"{self.place()} is {value.name}, which is no Tensor or plain value")
        return value

    def popped(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("the stack is empty")
        return self.stack[-count:]

    def marked(self) -> list[Any]:
        """What lies above the last mark, which is taken away."""
        above, self.stack = self.stack, self.below.pop()
        return above

    # Opcodes: each has the name that pickletools gives it ---------------------------------------

    def on_mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def on_empty_list(self, _: Any) -> None:
        self.stack.append([])

    def on_empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def on_tuple(self, _: Any) -> None:
        above = self.marked()
        self.stack.append(tuple(above))

    def on_append(self, _: Any) -> None:
        value = self.plain(self.stack.pop())
        self.target(list).append(value)

    def on_appends(self, _: Any) -> None:
        values = [self.plain(value) for value in self.marked()]
        self.target(list).extend(values)

    def on_setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def on_setitems(self, _: Any) -> None:
        self.set_items(self.marked())

    def set_items(self, flat: list[Any]) -> None:
        target = self.target(dict)
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if type(key) not in (str, int, float, bool):
                raise ValueError(f"{self.place()}: a key of type {type(key).__name__}")
            target[key] = self.plain(value)

    def target(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise TypeError(f"a {type(self.stack[-1]).__name__} where a {kind.__name__} is filled")
        return self.stack[-1]

    def on_binput(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    on_long_binput = on_put = on_binput

    def on_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def on_binget(self, index: int) -> None:
        self.stack.append(self.memo[index])

    on_long_binget = on_get = on_binget

    def on_global(self, argument: str) -> None:
        self.push_global(argument.replace(" ", ".", 1))

    def on_stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise TypeError("a name that is no text")
        self.push_global(f"{module}.{name}")

    def push_global(self, name: str) -> None:
        if name not in self.known:
            raise ValueError(
                f"{self.place()} names {name[:100]!r}, which is no Tensor or plain value and is "
                "not executed"
            )
        self.stack.append(Global(name, self.known[name]))

    def on_reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if type(function) is not Global or not callable(function.meaning):
            raise TypeError("something is called that is no function")
        if type(arguments) is not tuple:
            raise TypeError("arguments that are no tuple")
        made = function.meaning(*arguments, at=self.place)
        if type(made) is dict:
            self.ordered[id(made)] = made  # which keeps it alive, or another may get its id
        self.stack.append(made)

    def on_build(self, _: Any) -> None:
        # An OrderedDict's attributes: of a state_dict the versions of its modules, unused here.
        self.stack.pop()
        if id(self.stack[-1]) not in self.ordered:
            raise ValueError(f"{self.place()}: attributes are set of something that has none")

    def on_binpersid(self, _: Any) -> None:
        self.stack.append(self.persistent(self.stack.pop(), self.place))


def _keys(level: list[Any]) -> list[str]:
    """The keys on a stack that wait for their values."""
    if level and type(level[0]) is str:  # keys and values of one dict, behind a mark
        return [next(value for value in reversed(level) if type(value) is str)]
    return [
        key
        for target, key in itertools.pairwise(level)
        if type(key) is str and type(target) is dict
    ]
