"""Modules that hold modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, overload

from .module import Module


class _Numbered(Module):
    """Modules under the names 0, 1, 2, ...: what Sequential and ModuleList share."""

    def __init__(self, modules: Iterable[Module]) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> Any:
        """Add a module at the end; TypeError for anything else. Returns self."""
        name = type(self).__name__
        if isinstance(module, type):
            raise TypeError(f"{name}: got the class {module.__name__}; did you mean an instance?")
        if not isinstance(module, Module):
            raise TypeError(f"{name} takes Modules, got {type(module).__name__}")
        setattr(self, str(len(self)), module)
        return self

    def __len__(self) -> int:
        return sum(isinstance(value, Module) for value in vars(self).values())

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def _chosen(self, number: int | slice) -> Any:
        modules = list(self.children())
        if isinstance(number, slice):
            return modules[number]
        if not -len(modules) <= number < len(modules):
            raise IndexError(f"{type(self).__name__} has {len(modules)} modules, no {number}")
        return modules[number]


class Sequential(_Numbered):
    """Modules applied one after the other; state names are their numbers.

    Example:
        >>> net = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 1))
        >>> net(mt.zeros(2, 4)).shape
        (2, 1)
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        """Apply all modules in order."""
        for module in vars(self).values():
            if isinstance(module, Module):
                x = module(x)
        return x

    @overload
    def __getitem__(self, number: int) -> Module: ...
    @overload
    def __getitem__(self, number: slice) -> Sequential: ...
    def __getitem__(self, number: int | slice) -> Module:
        """One module, or a Sequential of several, which shares them."""
        found = self._chosen(number)
        return Sequential(*found) if isinstance(number, slice) else found


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

    @overload
    def __getitem__(self, number: int) -> Module: ...
    @overload
    def __getitem__(self, number: slice) -> ModuleList: ...
    def __getitem__(self, number: int | slice) -> Module:
        """One module, or a ModuleList of several, which shares them."""
        found = self._chosen(number)
        return ModuleList(found) if isinstance(number, slice) else found
