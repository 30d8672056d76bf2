"""Modules that hold modules or parameters."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar, overload

from ..errors import need
from ..tensor import TENSORS
from .module import Module, members
from .parameter import Parameter

__all__ = [
    "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential",
]  # fmt: skip

_V = TypeVar("_V")


def _module(owner: Module, module: Any) -> Any:
    """`module`; TypeError for anything that is none."""
    name, given = type(owner).__name__, getattr(module, "__name__", None)
    text = f"got the class {given}; did you mean an instance?"
    need(not isinstance(module, type), name, text, error=TypeError)
    need(isinstance(module, Module), name, "takes Modules", type(module), error=TypeError)
    return module


class _Modules(Module):
    """Modules as attributes, in the order they were put in."""

    _noun = "modules"
    _fit = _module

    def _parts(self) -> dict[str, Any]:
        return dict(members(self))


class _Parameters(Module):
    """Parameters as attributes, in the order they were put in."""

    _noun = "parameters"

    def _fit(self, value: Any) -> Parameter:
        """`value` as a Parameter; TypeError unless it is a Tensor."""
        text = "takes Parameters and Tensors"
        need(type(value) in TENSORS, type(self).__name__, text, type(value), error=TypeError)
        return value if type(value) is Parameter else Parameter(value)

    def _parts(self) -> dict[str, Any]:
        return {name: p for name, p in vars(self).items() if type(p) is Parameter}

    def __repr__(self) -> str:
        lines = (
            f"  ({name}): Parameter containing: [{p.dtype.name} of size "
            f"{'x'.join(map(str, p.shape))}]\n"
            for name, p in self._parts().items()
        )
        text = "".join(lines)
        return f"{type(self).__name__}(\n{text})" if text else f"{type(self).__name__}()"


# Lists --------------------------------------------------------------------------------------------


class _Numbered(Module, Generic[_V]):
    """Parts under the names 0, 1, 2, ...; `_fit` checks one, `_parts` are those there are."""

    _noun: str
    _fit: Callable[[Any], _V]
    _parts: Callable[[], dict[str, _V]]

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__()
        self.extend(values)

    def append(self, value: Any) -> Self:
        """Add one at the end; TypeError for what is none. Returns self."""
        number = len(self)
        while str(number) in vars(self):  # in a part of another, which keeps its names
            number += 1
        setattr(self, str(number), self._fit(value))
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add several at the end. Returns self."""
        several = type(values) not in TENSORS and isinstance(values, Iterable)
        text = f"expected several {self._noun}"
        need(several, type(self).__name__, text, type(values), error=TypeError)
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend

    def __setitem__(self, number: int, value: Any) -> None:
        """Replace one; TypeError for what is none, IndexError where there is none."""
        self._chosen(number)
        setattr(self, list(self._parts())[number], self._fit(value))

    def __len__(self) -> int:
        return len(self._parts())

    def __iter__(self) -> Iterator[_V]:
        return iter(self._parts().values())

    def _has(self, number: int, count: int) -> None:
        """IndexError for a number that is none of so many places."""
        number = operator.index(number)  # of a Tensor as well
        text = f"there are {len(self)} {self._noun}, no {{}}"
        need(-len(self) <= number < count, type(self).__name__, text, number, error=IndexError)

    def _chosen(self, number: int | slice) -> Any:
        parts = list(self)
        if not isinstance(number, slice):
            self._has(number, len(parts))
        return parts[number]


class _ListOfModules(_Modules, _Numbered[Module]):
    """What Sequential and ModuleList share: modules are inserted and taken out, too."""

    def insert(self, number: int, module: Module) -> Self:
        """Put a module before number `number`, all of them numbered anew. Returns self."""
        modules = list(self)
        self._has(number, len(modules) + 1)
        modules.insert(number, _module(self, module))
        self._put(modules)
        return self

    def pop(self, number: int) -> Module:
        """Take one module out and return it; IndexError where there is none."""
        found: Module = self._chosen(number)
        del self[number]
        return found

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


class Sequential(_ListOfModules):
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
        super().__init__(() if named else modules)
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
        text = "expected to be repeated at least once"
        need(times > 0, "Sequential", text, times, error=ValueError)
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
        return self._chosen(number)


class ModuleList(_ListOfModules):
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


class NamedParts(Module, Generic[_V]):
    """A dictionary of attributes in the order they were put in: ModuleDict and ParameterDict.

    Attributes:
        _fit: what is put in for a value; TypeError for one of another kind.
        _parts: all that it holds.
    """

    _fit: Callable[[Any], _V]
    _parts: Callable[[], dict[str, _V]]

    def __init__(self, values: Any = ()) -> None:
        super().__init__()
        self.update(values)

    def __getitem__(self, name: str) -> _V:
        """What has that name; KeyError where nothing has."""
        parts = self._parts()
        names = ", ".join(parts) or "none"
        text = f"has no {{}}; there are {names}"
        need(name in parts, type(self).__name__, text, name, error=KeyError)
        return parts[name]

    def __setitem__(self, name: str, value: _V) -> None:
        """Put one in; TypeError for anything else, KeyError for a name that cannot be one."""
        kind = type(self).__name__
        need(isinstance(name, str), kind, "names are text", type(name), error=TypeError)
        fits = name and "." not in name and (name in self or not hasattr(self, name))
        text = "the name {} is empty, holds a dot or is an attribute's; choose another"
        need(fits, kind, text, name, error=KeyError)
        setattr(self, name, self._fit(value))

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def __contains__(self, name: object) -> bool:
        return name in self._parts()

    def __len__(self) -> int:
        return len(self._parts())

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts())

    def keys(self) -> Iterable[str]:
        """The names."""
        return list(self._parts())

    def values(self) -> Iterable[_V]:
        """What they stand for."""
        return list(self._parts().values())

    def items(self) -> Iterable[tuple[str, _V]]:
        """Both."""
        return list(self._parts().items())

    def pop(self, name: str) -> _V:
        """Take one out and return it; KeyError where there is none."""
        found = self[name]
        delattr(self, name)
        return found

    def clear(self) -> None:
        """Take all out."""
        for name in self.keys():
            delattr(self, name)

    def update(self, values: Any) -> None:
        """Put in what a mapping or pairs hold; a name that is there keeps its place."""
        pairs = values.items() if isinstance(values, Mapping | NamedParts) else values
        for name, value in pairs:
            self[name] = value


class ModuleDict(_Modules, NamedParts[Module]):
    """A dictionary whose modules are found by `parameters()`, in the order they were put in.

    Args:
        modules: a mapping from names to modules, or pairs of them. A name must not be empty, hold a
            dot, or be that of an attribute or method.

    Example:
        >>> heads = mt.nn.ModuleDict({"mean": mt.nn.Linear(8, 1), "spread": mt.nn.Linear(8, 1)})
        >>> heads["mean"](mt.zeros(2, 8)).shape
        (2, 1)
    """

    def __init__(self, modules: Any = ()) -> None:
        super().__init__(modules)


class ParameterList(_Parameters, _Numbered[Parameter]):
    """A list whose parameters are found by `parameters()`; state names are their numbers.

    Tensors become Parameters; TypeError for anything else.

    Example:
        >>> factors = mt.nn.ParameterList([mt.ones(3), mt.zeros(2, 2)])
        >>> [p.shape for p in factors], list(factors.state_dict())
        ([(3,), (2, 2)], ['0', '1'])
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__(values)

    def __getitem__(self, number: int | slice) -> Any:
        """One parameter, or a ParameterList of several, which shares them."""
        found = self._chosen(number)
        return ParameterList(found) if isinstance(number, slice) else found


class ParameterDict(_Parameters, NamedParts[Parameter]):
    """A dictionary whose parameters are found by `parameters()`, in the order they were put in.

    Args:
        values: a mapping from names, pairs of a name and a value, or another one. A name is an
            attribute: KeyError for one that is empty, holds a dot or is a method's.

    Example:
        >>> scales = mt.nn.ParameterDict({"left": mt.ones(2), "right": mt.zeros(2)})
        >>> scales["left"] * 3
        tensor([3., 3.], grad_fn=<MulBackward0>)
    """

    def get(self, name: str, default: Any = None) -> Any:
        """The parameter of that name, or `default`."""
        return self._parts().get(name, default)

    def update(self, values: Any) -> None:
        """Put in what a mapping or pairs hold; a name that is there keeps its place.

        The names of a plain mapping are sorted, as PyTorch does: optimizer states go by number.
        """
        plain = isinstance(values, Mapping) and not isinstance(values, OrderedDict)
        super().update({name: values[name] for name in sorted(values)} if plain else values)
