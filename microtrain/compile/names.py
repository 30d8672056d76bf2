"""What people call the arrays and lines of a program: `0.weight`, `0.weight.grad`, `0 Linear`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..backend import LIBRARIES, address, alive, owner_of
from ..nn.module import MODULES, Module
from .bookkeeping import Count
from .program import Program


def layers() -> dict[Module, str]:
    """The place and class of every module, in the largest module that it is a part of."""
    return {
        module: _printable(f"{name} {type(module).__name__}".strip())
        for root in _roots()
        for name, module in root.named_modules()
    }


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _roots() -> list[Module]:
    # Not wrappers, which may be half-made: what they wrap has the same names.
    own = Module.named_parameters
    modules = [one for one in alive(MODULES) if type(one).named_parameters is own]
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner]


class Names:
    """Names for the arrays of `program`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # By address: what begins there.
        self.known: dict[int, list[tuple[str, Any]]] = {}
        used = {id(owner) for owner in program.memory} | {id(owner_of(a)) for a in program.inputs}
        for name, array in (*_of_modules(), *_of_optimizers(program), *program.names):
            there = self.known.setdefault(address(array), [])
            if id(owner_of(array)) in used and all(name != other for other, _ in there):
                there.append((_printable(name), array))
        self.given: dict[str, Any] = {}

    def of(self, array: Any) -> str | None:
        """The name of `array`; None where it has none but that of the text."""
        kind = self.program.kinds.get(id(owner_of(array)))
        if kind == "constant":
            return repr(array.item()) if array.size == 1 else None
        if kind == "made" and id(owner_of(array)) not in self.program.fixed:
            return None
        known = self.known.get(address(array), [])
        views = [_view(name, whole, array) for name, whole in known]
        name = min(views, key=lambda view: (view.endswith("[...]"), len(view)), default=None)
        if name is None:
            return None
        # Two models may have a parameter of the same name.
        place = address(array), array.shape, array.strides
        number, unique = 1, name
        while self.given.setdefault(unique, place) != place:
            number += 1
            unique = f"{name}#{number}"
        return unique

    def at(self, address: int) -> str:
        """What begins at an address."""
        return ", ".join(name for name, _ in self.known.get(address, ()))


def _of_modules() -> Iterator[tuple[str, Any]]:
    for root in _roots():
        for name, tensor in (*root.named_parameters(), *root.named_buffers()):
            if type(tensor._array) in LIBRARIES:
                yield name, tensor._array
                if tensor._extra is not None and tensor._extra.slot is not None:
                    yield f"{name}.grad", tensor._extra.slot.array


def _of_optimizers(program: Program) -> Iterator[tuple[str, Any]]:
    """The stretches of flat memory that an update goes over."""
    for line in program.lines:
        if not isinstance(line, Count):
            continue
        optimizer = line.optimizer
        for run in line.runs:
            whole = next(
                buffer.data
                for buffer in optimizer.storage.buffers
                if owner_of(run.param) is owner_of(buffer.data)
            )
            start = (address(run.param) - address(whole)) // whole.itemsize
            part = "" if run.param.size == whole.size else f"[{start}:{start + run.param.size}]"
            arrays = {"parameters": run.param, "gradients": run.grad, **run.states}
            yield from ((name + part, array) for name, array in arrays.items())
            for array in optimizer.scratch(run):
                yield f"scratch[:{array.size}]", array
            for name, array in run.constants.items():
                if type(array) in LIBRARIES:
                    yield f"{type(optimizer).__name__}.{name}", array


def _view(name: str, whole: Any, array: Any) -> str:
    """How `array`, which begins where `whole` does, comes from it."""
    if array.shape == whole.shape and array.strides == whole.strides:
        return name
    if array.shape == whole.T.shape and array.strides == whole.T.strides:
        return f"{name}.T"
    if array.size == whole.size:
        return f"{name}.reshape({', '.join(map(str, array.shape))})"
    return f"{name}[...]"
