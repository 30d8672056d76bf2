"""What a capture takes as given of modules and leaves: flags, hooks, and which Tensors are where.

Only of those that the step has to do with: another model may come and go. They are looked at again
when `STRUCTURE` says that some flag, hook or attribute has changed anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import STRUCTURE, alive
from ..nn.module import MODULES, Module
from ..nn.parameter import Parameter
from ..optim.flat import STORAGES
from ..tensor import TENSORS, Tensor
from .passes import arrays_in
from .program import Program, owner_of


class Structure:
    """The state of the modules and leaves of one capture, to be compared with what it is later.

    Args:
        before: what `look_at_all` said when the step began.
        program: what was captured.
        called: the modules that were called in it.
        further: leaves beside the modules' own.

    Attributes:
        then: what a replay needs to find; it can be hashed.
        changed: whether the step has changed something of it, but for training flags.
        count: `STRUCTURE` when all was found as it was.
    """

    __slots__ = ("_kept", "_leaves", "_modules", "changed", "count", "then")

    def __init__(
        self, before: dict[Module, Any], program: Program, called: Any, further: Sequence[Tensor]
    ) -> None:
        touched = {
            id(owner_of(array))
            for line in program.lines
            for value in (getattr(line, name, ()) for name in ("args", "out", "attrs"))
            for array in arrays_in(tuple(value.values()) if type(value) is dict else value)
        }
        self._leaves = list(further)
        for storage in alive(STORAGES):
            if any(id(owner_of(a)) in touched for b in storage.buffers for a in (b.data, b.wide)):
                self._leaves += storage.params
        self._modules = [
            (module, _names(module, touched)) for module in _concerned(before, called, touched)
        ]
        # Kept alive, so that an id names them.
        self._kept = [t._array for module, _ in self._modules for _, t in _tensors(module)]
        self._kept += [leaf._array for leaf in self._leaves]
        self.count = -1
        modules, leaves = self._look()
        self.changed = any(_look_at(m, ())[1:] != before[m][1:] for m, _ in self._modules)
        flags = [
            (before[m][0], *now[1:]) for (m, _), now in zip(self._modules, modules, strict=True)
        ]
        self.then = tuple(flags), leaves

    def fits(self) -> bool:
        """Whether all is as it was."""
        count = STRUCTURE[0]
        if self.count != count:
            if self._look() != self.then:
                return False
            self.count = count
        return True

    def _look(self) -> Any:
        return (
            tuple([_look_at(module, names) for module, names in self._modules]),
            tuple([_place(leaf) for leaf in self._leaves]),
        )


def look_at_all() -> dict[Module, Any]:
    """The flags and parts of every module there is."""
    return {module: _look_at(module, ()) for module in alive(MODULES)}


def _look_at(module: Module, names: Sequence[str]) -> Any:
    """Flags, sub-modules, parameters and buffers, and the other Tensors of these `names`."""
    parts = [
        (name, value if isinstance(value, Module) else _place(value))
        for name, value in [*vars(module).items()]
        if isinstance(value, Module)
        or type(value) is Parameter
        or (type(value) in TENSORS and (name in module._buffers or name in names))
    ]
    return module.training, module._any_hooks(), module, *parts


def _place(tensor: Tensor) -> Any:
    extra = tensor._extra
    hooks = extra is not None and bool(extra.hooks or extra.post_hooks)
    return id(tensor._array), tensor._rg, hooks


def _tensors(module: Module) -> list[tuple[str, Tensor]]:
    return [
        (name, value)
        for name, value in [*vars(module).items()]
        if type(value) in TENSORS and type(value._array) is np.ndarray
    ]


def _names(module: Module, touched: set[int]) -> list[str]:
    """The attributes of `module` that are Tensors of the step."""
    return [name for name, t in _tensors(module) if id(owner_of(t._array)) in touched]


def _concerned(before: Any, called: Any, touched: set[int]) -> list[Module]:
    """Those called and all below, those with a Tensor of the step, and all above them."""
    above: dict[Module, list[Module]] = {}
    for module in before:
        for child in module.children():
            above.setdefault(child, []).append(module)
    waiting = [part for module in called for part in module.modules()]
    waiting += [module for module in before if _names(module, touched)]
    found: dict[Module, None] = {}
    while waiting:
        module = waiting.pop()
        if module in before and module not in found:
            found[module] = None
            waiting += above.get(module, ())
    return sorted(found, key=id)
