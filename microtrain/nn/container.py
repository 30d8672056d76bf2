"""Modules that hold modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, overload

from .module import Module, members


def _module(owner: Module, module: Any) -> Module:
    """`module`; TypeError for anything that is none."""
    name = type(owner).__name__
    if isinstance(module, type):
        raise TypeError(f"{name}: got the class {module.__name__}; did you mean an instance?")
    if not isinstance(module, Module):
        raise TypeError(f"{name} takes Modules, got {type(module).__name__}")
    return module


class _Numbered(Module):
    """Modules under the names 0, 1, 2, ...: what Sequential and ModuleList share."""

    def __init__(self, modules: Iterable[Module]) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> Self:
        """Add a module at the end; TypeError for anything else. Returns self."""
        number = len(self)
        while str(number) in vars(self):  # in a part of another, which keeps its names
            number += 1
        setattr(self, str(number), _module(self, module))
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add several modules at the end. Returns self."""
        for module in list(modules):
            self.append(module)
        return self

    __iadd__ = extend

    def insert(self, number: int, module: Module) -> Self:
        """Put a module before number `number`, all of them numbered anew. Returns self."""
        modules = list(self)
        if not -len(modules) <= number <= len(modules):
            raise IndexError(f"{type(self).__name__} has {len(modules)} modules, no {number}")
        modules.insert(number, _module(self, module))
        self._put(modules)
        return self

    def pop(self, number: int) -> Module:
        """Take one module out and return it; IndexError where there is none."""
        found: Module = self._chosen(number)
        del self[number]
        return found

    def __setitem__(self, number: int, module: Module) -> None:
        """Replace one module; TypeError for anything else, IndexError where there is none."""
        self._chosen(number)
        name, _ = members(self)[number]
        setattr(self, name, _module(self, module))

    def __delitem__(self, number: int | slice) -> None:
        """Take modules out, and number the others anew."""
        self._chosen(number)
        modules = list(self)
        del modules[number]
        self._put(modules)

    def _put(self, modules: list[Module]) -> None:
        for name, _ in members(self):
            delattr(self, name)
        self.extend(modules)

    def __len__(self) -> int:
        return len(members(self))

    def __iter__(self) -> Iterator[Module]:
        return (module for _, module in members(self))

    def _chosen(self, number: int | slice) -> Any:
        modules = list(self)
        if isinstance(number, slice):
            return modules[number]
        if not -len(modules) <= number < len(modules):
            raise IndexError(f"{type(self).__name__} has {len(modules)} modules, no {number}")
        return modules[number]


class Sequential(_Numbered):
    """Modules applied one after the other; state names are their numbers.

    Args:
        modules: the modules, or one dictionary of them, whose keys are the names then.

    Example:
        >>> net = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 1))
        >>> net(mt.zeros(2, 4)).shape
        (2, 1)
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        named = len(modules) == 1 and isinstance(modules[0], Mapping)
        super().__init__(() if named else modules)  # type: ignore[arg-type]
        for name, module in modules[0].items() if named else ():  # type: ignore[union-attr]
            self.add_module(name, _module(self, module))

    def __add__(self, other: Any) -> Sequential:
        """The modules of this one and then of another, which are shared."""
        if not isinstance(other, Sequential):
            return NotImplemented
        return Sequential(*self, *other)

    def __mul__(self, times: int) -> Sequential:
        """The same modules several times, one after another."""
        if isinstance(times, bool) or not isinstance(times, int):
            return NotImplemented
        if times < 1:
            raise ValueError(f"Sequential: expected to be repeated at least once, got {times}")
        return Sequential(*(list(self) * times))

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        """Append the modules that it has `times` - 1 times more."""
        return self.extend(list(self * times)[len(self) :])

    def forward(self, input: Any) -> Any:
        """Apply all modules in order."""
        for module in vars(self).values():
            if isinstance(module, Module):
                input = module(input)
        return input

    @overload
    def __getitem__(self, number: int) -> Module: ...
    @overload
    def __getitem__(self, number: slice) -> Sequential: ...
    def __getitem__(self, number: int | slice) -> Module:
        """One module, or a Sequential of several, which shares them and keeps their names."""
        if isinstance(number, slice):
            return Sequential(dict(members(self)[number]))
        found: Module = self._chosen(number)
        return found


class ModuleList(_Numbered):
    """A list whose modules are found by `parameters()`; those in a plain list are not.

    Example:
        >>> class Net(mt.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layers = mt.nn.ModuleList(mt.nn.Linear(8, 8) for _ in range(3))
        ...     def forward(self, x):
        ...         for layer in self.layers:
        ...             x = layer(x).relu()
        ...         return x
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__(modules)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        """The modules of this one and then others, which are shared."""
        return ModuleList([*self, *other])

    @overload
    def __getitem__(self, number: int) -> Module: ...
    @overload
    def __getitem__(self, number: slice) -> ModuleList: ...
    def __getitem__(self, number: int | slice) -> Module:
        """One module, or a ModuleList of several, which shares them."""
        found = self._chosen(number)
        return ModuleList(found) if isinstance(number, slice) else found


class ModuleDict(Module):
    """A dictionary whose modules are found by `parameters()`, in the order they were put in.

    Args:
        modules: a mapping from names to modules, or pairs of them. A name must not be empty, hold a
            dot, or be that of an attribute or method.

    Example:
        >>> heads = mt.nn.ModuleDict({"mean": mt.nn.Linear(8, 1), "spread": mt.nn.Linear(8, 1)})
        >>> heads["mean"](mt.zeros(2, 8)).shape
        (2, 1)
    """

    def __init__(
        self, modules: Mapping[str, Module] | ModuleDict | Iterable[tuple[str, Module]] = ()
    ) -> None:
        super().__init__()
        self.update(modules)

    def __getitem__(self, name: str) -> Module:
        """The module of that name; KeyError where there is none."""
        if name not in self:
            raise KeyError(f"ModuleDict has no {name!r}; there are {', '.join(self) or 'none'}")
        found: Module = vars(self)[name]
        return found

    def __setitem__(self, name: str, module: Module) -> None:
        """Put a module in; TypeError for anything else, KeyError for a name that cannot be one."""
        if not isinstance(name, str):
            raise TypeError(f"ModuleDict: names are text, got {type(name).__name__}")
        if not name or "." in name or (name not in self and hasattr(self, name)):
            why = "is an attribute or method" if hasattr(self, name) else "is empty or holds a dot"
            raise KeyError(f"ModuleDict: the name {name!r} {why}; choose another")
        setattr(self, name, _module(self, module))

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(vars(self).get(name), Module)  # type: ignore[call-overload]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in members(self))

    def keys(self) -> Iterable[str]:
        """The names."""
        return list(self)

    def values(self) -> Iterable[Module]:
        """The modules."""
        return [module for _, module in members(self)]

    def items(self) -> Iterable[tuple[str, Module]]:
        """The names with their modules."""
        return members(self)

    def pop(self, name: str) -> Module:
        """Take a module out and return it; KeyError where there is none."""
        found = self[name]
        delattr(self, name)
        return found

    def clear(self) -> None:
        """Take all modules out."""
        for name in self.keys():
            delattr(self, name)

    def update(
        self, modules: Mapping[str, Module] | ModuleDict | Iterable[tuple[str, Module]]
    ) -> None:
        """Put in what a mapping or pairs hold; a name that is there keeps its place."""
        pairs = modules.items() if isinstance(modules, Mapping | ModuleDict) else modules
        for name, module in pairs:
            self[name] = module
