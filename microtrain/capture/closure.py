"""What names lead to from the function of a step: variables, globals, attributes, keys.

A replay runs no Python, so it must be told when a name is bound anew. A capture remembers the names
on the ways to every Tensor, module and optimizer that the step has to do with, and is replayed only
while they lead there still, and the lists and dicts on the way have the keys that they had.
"""

from __future__ import annotations

import collections
import functools
import inspect
import keyword
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..backend import LIBRARIES
from ..common.stack_frames import ENTRY, generated
from ..nn.module import Module
from ..tensor import TENSORS, Tensor

LARGEST = 1000  # of lists and dicts that are looked into: longer ones are data
FURTHEST = 10_000  # objects that are looked at

# Text behind what something was reached from: before a key and behind it, and the key, if any.
Step = tuple[Any, ...]
SEQUENCES = list, tuple, collections.deque


class Closure:
    """All that Python can reach from `function` in steps of its own, as long as it is kept.

    Args:
        state: Tensors that it can reach without a name.
        given: its arguments, but for Tensors: functions and objects that lead to modules.
    """

    def __init__(
        self, function: Any, state: Iterable[Tensor] = (), given: Iterable[Any] = ()
    ) -> None:
        self._state = {id(tensor): tensor for tensor in state}
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._edges: list[tuple[int, Step, Any]] = []
        self._follow([function])
        self._own = len(self._edges)
        self._roots = {0, *self._follow(given)}

    def _follow(self, roots: Iterable[Any]) -> range:
        """Look at what `roots` lead to; the numbers of those that are new."""
        start = len(self._objects)
        for root in roots:
            self._number(root)
        found = range(start, len(self._objects))
        for number, value in enumerate(self._objects):
            if number >= FURTHEST:
                break
            for step, part in _parts(value, number == 0) if number >= start else ():
                self._edges.append((number, step, part))
                if type(part) not in TENSORS:
                    self._number(part)
        return found

    def _number(self, value: Any) -> None:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)

    def tensors(self, modules: bool = False) -> list[Tensor]:
        """The Tensors; `modules`: also parameters in flat memory, and buffers, of modules."""
        found = self._state | {
            id(part): part
            for number, step, part in self._edges[: self._own]
            if type(part) in TENSORS and type(part._array) in LIBRARIES
            if modules or not self._of_module(number, step, part)
        }
        return [*found.values()]

    def _of_module(self, number: int, step: Step, part: Any) -> bool:
        """Whether a module itself has `part`, which is looked at with the module."""
        own = isinstance(self._objects[number], Module) and step[0] == _OWN
        return own and not (is_leaf(part) and not is_flat(part))

    def lead(self, targets: Iterable[Any]) -> tuple[Callable[[], bool] | None, Any]:
        """A function that says whether all names lead where they did; None where none leads there.

        And what tells apart which names lead where now, for as long as the targets are there.

        Args:
            targets: where to: Tensors and modules, which are held weakly, and other objects.
        """
        ends = {id(target): target for target in targets}
        towards: dict[int, list[int]] = {}
        for place, (_, _, part) in enumerate(self._edges):
            towards.setdefault(id(part), []).append(place)
        waiting = [(goal, True) for goal in ends]
        seen, used = set(waiting), set()
        while waiting:
            goal, last = waiting.pop()
            for place in towards.get(goal, ()):
                number, step, part = self._edges[place]
                if last and self._of_module(number, step, part):
                    continue
                used.add(place)
                above = id(self._objects[number]), False
                if above not in seen:
                    seen.add(above)
                    waiting.append(above)
        edges = [self._edges[place] for place in sorted(used)]
        led = tuple([(step, id(part)) for _, step, part in edges if id(part) in ends])
        return (self._function(edges, ends) if edges else None), led

    def _function(self, edges: list[Any], ends: dict[int, Any]) -> Any:
        known = {*self._roots}
        scope: dict[str, Any] = {f"v{number}": self._objects[number] for number in known}
        lines: list[str] = []

        name = functools.partial(named, scope)

        def must(condition: str) -> None:
            lines.append(f"if not ({condition}): return False")

        parents: set[int] = set()
        for number, (before, after, *key), part in edges:
            value, inner = self._objects[number], self._numbers.get(id(part), -1)
            if number not in parents and isinstance(value, dict):
                keys = name((*value,))
                must(f"(*v{number},) == {keys} or {name(_Grown((*value,)))}([*v{number}.items()])")
            elif number not in parents and isinstance(value, SEQUENCES):
                grown = name(_Grown((*range(len(value)),)))
                must(f"len(v{number}) == {len(value)} or {grown}([*enumerate(v{number})])")
            parents.add(number)
            text = f"v{number}{before}{''.join(map(name, key))}{after}"
            if inner in known:
                must(f"{text} is v{inner}")
                continue
            if inner >= 0:
                known.add(inner)
                lines.append(f"v{inner} = {text}")
                text = f"v{inner}"
            if id(part) in ends:
                weak = type(part) in TENSORS or isinstance(part, Module)
                must(
                    f"{text} is {name(weakref.ref(part))}()" if weak else f"{text} is {name(part)}"
                )
        body = "".join(f"        {line}\n" for line in [*lines, "return True"])
        source = f"def lead():\n    try:\n{body}    except Exception:\n        return False"
        return generated(source, "lead", ENTRY, scope)


def named(scope: dict[str, Any], value: Any) -> str:
    """A literal, or a name in `scope`, for a value."""
    parts = value if type(value) is tuple else (value,)
    if all(part is None or type(part) in (int, bool, str) for part in parts):
        return repr(value)
    scope[name := f"it{len(scope)}"] = value
    return name


class _Grown:
    """Whether a list or dict has got nothing but numbers and text behind what it had, as logs do.

    Args:
        keys: what it had.
    """

    def __init__(self, keys: tuple[Any, ...]) -> None:
        self.keys = keys

    def __call__(self, items: list[Any]) -> bool:
        """Of these keys and values; the next call looks at newer ones."""
        new = items[len(self.keys) :]
        found = [key for key, _ in items[: len(self.keys)]] == [*self.keys] and all(
            type(value) in (bool, int, float, str) for _, value in new
        )
        if found:
            self.keys += tuple([key for key, _ in new])
        return found


def is_leaf(value: Any) -> bool:
    """Whether `value` is a Tensor that gets a gradient itself."""
    leaf = type(value) in TENSORS and value._rg and value._edge is None
    return leaf and type(value._array) in LIBRARIES


def is_flat(leaf: Tensor) -> bool:
    """Whether its gradient has a place in flat memory."""
    return leaf._extra is not None and leaf._extra.slot is not None


_OWN = ".__dict__["
# What holds a function, and its attributes that lead on.
WRAPPERS: dict[Any, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"),
    functools.partial: ("func", "args", "keywords"),
    staticmethod: ("__func__",), classmethod: ("__func__",), property: ("fget",),
}  # fmt: skip


def _parts(value: Any, first: bool) -> Iterator[tuple[Step, Any]]:
    """What Python can reach from `value` in one step of its own, but for what the library has."""
    if isinstance(value, types.FunctionType):
        if first or not _library(value.__module__):
            yield from _names(value)
    elif isinstance(value, (*WRAPPERS,)):
        for name in next(names for kind, names in WRAPPERS.items() if isinstance(value, kind)):
            yield (f".{name}", ""), getattr(value, name)
    elif isinstance(value, weakref.ref):
        yield ("()", ""), value()
    elif isinstance(value, list | tuple | dict | collections.deque):
        if len(value) <= LARGEST:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in [*items]:
                yield ("[", "]", key), part
    elif isinstance(value, type):
        if not _foreign(value):
            yield from _attributes(value, value.__mro__[1:])
            for number, base in enumerate(value.__bases__):
                yield (".__bases__[", "]", number), base
    elif type(value).__module__ == "builtins":  # numbers, text, modules
        return
    elif first or isinstance(value, Module) or not _library(type(value).__module__):
        yield from _attributes(value, type(value).__mro__)
        yield (".__class__", ""), type(value)


def _attributes(value: Any, classes: Iterable[type]) -> Iterator[tuple[Step, Any]]:
    """What `value` has itself, in slots, and by these `classes`; their methods are with them."""
    for name, part in [*getattr(value, "__dict__", {}).items()]:
        yield (_OWN, "]", name), part
    for one in classes:
        for name, part in [] if _foreign(one) else [*vars(one).items()]:
            slot = isinstance(part, types.MemberDescriptorType)
            plain = not hasattr(part, "__get__") and inspect.getattr_static(value, name, 0) is part
            if (slot or plain) and name.isidentifier() and not keyword.iskeyword(name):
                yield (f".{name}", ""), getattr(value, name, None) if slot else part


def _names(function: types.FunctionType) -> Iterator[tuple[Step, Any]]:
    """The variables of the closure, and the globals that the code has names of, in modules too."""
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            found = cell.cell_contents
        except ValueError:  # nothing yet
            continue
        yield (".__closure__[", "].cell_contents", number), found
    for number, part in enumerate(function.__defaults__ or ()):
        yield (".__defaults__[", "]", number), part
    for name, part in (function.__kwdefaults__ or {}).items():
        yield (".__kwdefaults__[", "]", name), part
    for name, part in [*vars(function).items()]:
        yield (_OWN, "]", name), part
    codes = [function.__code__]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    scopes = [(".__globals__[", function.__globals__)]
    for way, scope in scopes:
        for name in names:
            if name in scope:
                yield (way, "]", name), (part := scope[name])
                module = isinstance(part, types.ModuleType) and not _foreign(part)
                if module and all(vars(part) is not known for _, known in scopes):
                    scopes.append((f"{way}{name!r}].__dict__[", vars(part)))


def _foreign(value: Any) -> bool:
    """Whether a class or module is not the user's, but of a package that is installed."""
    name = str(value.__name__ if isinstance(value, types.ModuleType) else value.__module__)
    file = str(getattr(sys.modules.get(name), "__file__", None))
    return "-packages" in file or _library(name) or name.split(".")[0] in sys.stdlib_module_names


def _library(module: str | None) -> bool:
    return (module or "").split(".")[0] in ("microtrain", "numpy")
