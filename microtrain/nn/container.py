"""Modules that hold modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .module import Module


class Sequential(Module):
    """Modules applied one after the other; state names are their numbers.

    Example:
        >>> net = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 1))
        >>> net(mt.zeros(2, 4)).shape
        (2, 1)
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__()
        for number, module in enumerate(modules):
            if not isinstance(module, Module):
                raise TypeError(
                    f"Sequential takes Modules, got {type(module).__name__} at position {number}"
                )
            setattr(self, str(number), module)

    def forward(self, x: Any) -> Any:
        """Apply all modules in order."""
        for module in self.children():
            x = module(x)
        return x

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, number: int) -> Module:
        return list(self.children())[number]
