"""What a capture takes as given of modules and leaves: flags, hooks, numbers, places of Tensors.

Only of those that the step has to do with: another model may come and go. They are looked at again
when `STRUCTURE` says that some flag, hook or attribute has changed anywhere. Modules are held
weakly: one that is dropped goes, and its captures with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ..backend import LIBRARIES, STRUCTURE, alive, owner_of
from ..nn.module import MODULES, PLAIN, Module
from ..nn.parameter import Parameter
from ..optim.flat import STORAGES
from ..tensor import TENSORS, Size, Tensor
from .leaves import touched
from .program import Program


class Structure:
    """The state of the modules and leaves of one capture, to be compared with what it is later.

    Args:
        before: what `look_at_all` said when the step began.
        program: what was captured.
        called: the modules that were called in it.
        further: leaves beside the modules' own.

    Attributes:
        then: what a replay needs to find; it can be hashed.
        changed: what the step has changed of it, but for training flags; None for nothing.
        count: `STRUCTURE` when all was found as it was.
    """

    __slots__ = ("_kept", "_leaves", "_modules", "changed", "count", "then")

    def __init__(
        self, before: dict[Module, Any], program: Program, called: Any, further: Sequence[Tensor]
    ) -> None:
        used = touched(program)
        self._leaves = list(further)
        for storage in alive(STORAGES):
            if any(id(owner_of(a)) in used for b in storage.buffers for a in (b.data, b.wide)):
                self._leaves += storage.params
        concerned = _concerned(before, called, used)
        self._modules = [(weakref.ref(module), _names(module, used)) for module in concerned]
        # Kept alive, so that an id names them.
        self._kept = [t._array for module in concerned for _, t in _tensors(module)]
        self._kept += [leaf._array for leaf in self._leaves]
        self.count = -1
        modules, leaves = self._look()
        self.changed = _changed([(m, before[m], _look_at(m, ())) for m in concerned])
        flags = [(before[m][0], *now[1:]) for m, now in zip(concerned, modules, strict=True)]
        self.then = tuple(flags), leaves

    def lives(self) -> bool:
        """Whether its modules are there, or it can never fit again."""
        return all(module() is not None for module, _ in self._modules)

    def values(self) -> dict[str, Any]:
        """By name for people, the flags and numbers of the modules."""
        found: dict[str, Any] = {}
        for training, hooks, module, *parts in self.then[0]:
            kind = type(module()).__name__
            found |= {f"{kind}.training": training, f"hooks of {kind}": hooks}
            for name, value in parts:
                if type(value) is tuple and type(value[0]) is int:  # of `_place`
                    value = f"the Tensor at {value[0]:#x}"
                found[f"the attribute {kind}.{name}"] = value
        return found

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
            tuple([_look_at(module(), names) for module, names in self._modules]),
            tuple([_place(leaf) for leaf in self._leaves]),
        )


def look_at_all() -> dict[Module, Any]:
    """The flags and parts of every module there is."""
    return {module: _look_at(module, ()) for module in alive(MODULES)}


def _reference(module: Module) -> weakref.ref[Module]:
    """A weak reference that can be hashed, also when the module is gone."""
    reference = weakref.ref(module)
    hash(reference)  # once asked for, it is kept
    return reference


def _look_at(module: Module | None, names: Sequence[str]) -> Any:
    """Flags, sub-modules, parameters, buffers and plain values, and other Tensors of these `names`.

    None for a module that is no more.
    """
    if module is None:
        return None
    parts: list[tuple[str, Any]] = []
    for name, value in vars(module).copy().items():
        kind = type(value)
        if isinstance(value, Module):
            parts.append((name, _reference(value)))
        elif kind is Parameter or (kind in TENSORS and (name in module._buffers or name in names)):
            parts.append((name, _place(value)))
        elif kind in PLAIN and module._structural and name not in ("training", "_hooked"):
            parts.append((name, _plain(value)))
    return module.training, module._any_hooks(), _reference(module), *parts


def _plain(value: Any) -> Any:
    """`value` for comparison: 1 is not 1.0 or True, 0.0 is not -0.0, and NaN is NaN."""
    kind = type(value)
    if kind is tuple or kind is Size:
        return (kind, *[_plain(part) for part in value])
    if kind in (float, complex):
        return kind, repr(value)
    return kind, (value if kind in PLAIN else kind)


def _changed(looks: list[tuple[Module, Any, Any]]) -> str | None:
    """What is not as before, of modules with what they were and what they are."""
    for module, before, now in looks:
        if before[1:] == now[1:]:
            continue
        then, kind = dict(before[3:]), type(module).__name__
        for name, value in now[3:]:
            if then.get(name) != value and type(vars(module).get(name)) in PLAIN:
                return f"the attribute {name} of {kind} (now {vars(module)[name]!r})"
        return f"requires_grad, hooks, parameters, buffers or modules of {kind}"
    return None


def _place(tensor: Tensor) -> Any:
    extra = tensor._extra
    hooks = extra is not None and bool(extra.hooks or extra.post_hooks)
    return id(tensor._array), tensor._rg, hooks


def _tensors(module: Module) -> list[tuple[str, Tensor]]:
    return [
        (name, value)
        for name, value in vars(module).copy().items()
        if type(value) in TENSORS and type(value._array) in LIBRARIES
    ]


def _names(module: Module, used: set[int]) -> list[str]:
    """The attributes of `module` that are Tensors of the step."""
    return [name for name, t in _tensors(module) if id(owner_of(t._array)) in used]


def _concerned(before: Any, called: Any, used: set[int]) -> list[Module]:
    """Those called and all below, those with a Tensor of the step, and all above them."""
    above: dict[Module, list[Module]] = {}
    for module in before:
        for child in module.children():
            above.setdefault(child, []).append(module)
    waiting = [part for module in called for part in module.modules()]
    waiting += [module for module in before if _names(module, used)]
    found: dict[Module, None] = {}
    while waiting:
        module = waiting.pop()
        if module in before and module not in found:
            found[module] = None
            waiting += above.get(module, ())
    return sorted(found, key=id)
