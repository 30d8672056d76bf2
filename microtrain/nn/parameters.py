"""Lists and dictionaries of parameters, which a plain list or dictionary would hide."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from ..tensor import TENSORS
from .module import Module
from .parameter import Parameter

__all__ = ["ParameterDict", "ParameterList"]


class _Parameters(Module):
    """What both share: parameters as attributes, in the order they were put in."""

    def _put(self, name: str, value: Any) -> None:
        """Set attribute `name`; a Tensor becomes a Parameter."""
        if type(value) not in TENSORS:
            kind = type(value).__name__
            raise TypeError(f"{type(self).__name__} takes Parameters and Tensors, got {kind}")
        setattr(self, name, value if type(value) is Parameter else Parameter(value))

    def _all(self) -> dict[str, Parameter]:
        return {name: p for name, p in vars(self).items() if type(p) is Parameter}

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        lines = (
            f"  ({name}): Parameter containing: [{p.dtype.name} of size "
            f"{'x'.join(map(str, p.shape))}]\n"
            for name, p in self._all().items()
        )
        text = "".join(lines)
        return f"{type(self).__name__}(\n{text})" if text else f"{type(self).__name__}()"


class ParameterList(_Parameters):
    """A list whose parameters are found by `parameters()`; state names are their numbers.

    Tensors become Parameters; TypeError for anything else.

    Example:
        >>> factors = mt.nn.ParameterList([mt.ones(3), mt.zeros(2, 2)])
        >>> [p.shape for p in factors], list(factors.state_dict())
        ([(3,), (2, 2)], ['0', '1'])
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        super().__init__()
        self.extend(values)

    def append(self, value: Any) -> Self:
        """Add a parameter at the end. Returns self."""
        self._put(str(len(self)), value)
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add several at the end. Returns self."""
        if type(values) in TENSORS or not isinstance(values, Iterable):
            kind = type(values).__name__
            raise TypeError(f"ParameterList: expected several parameters, got {kind}")
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._all().values())

    def __getitem__(self, number: int | slice) -> Any:
        """One parameter, or a ParameterList of several, which shares them."""
        if isinstance(number, slice):
            return ParameterList(list(self)[number])
        return self._all()[self._name(number)]

    def __setitem__(self, number: int, value: Any) -> None:
        """Replace one; IndexError where there is none."""
        self._put(self._name(number), value)

    def _name(self, number: int) -> str:
        number = operator.index(number)  # of a Tensor as well, whose text is another name
        if not -len(self) <= number < len(self):
            raise IndexError(f"ParameterList has {len(self)} parameters, no {number}")
        return str(number % len(self))


class ParameterDict(_Parameters):
    """A dictionary whose parameters are found by `parameters()`, in the order they were put in.

    Args:
        values: a mapping from names, pairs of a name and a value, or another one. A name is an
            attribute: KeyError for one that is empty, holds a dot or is a method's.

    Example:
        >>> scales = mt.nn.ParameterDict({"left": mt.ones(2), "right": mt.zeros(2)})
        >>> scales["left"] * 3
        tensor([3., 3.], grad_fn=<MulBackward0>)
    """

    def __init__(self, values: Any = ()) -> None:
        super().__init__()
        self.update(values)

    def __getitem__(self, name: str) -> Parameter:
        """The parameter of that name; KeyError where there is none."""
        found = self._all()
        if name not in found:
            raise KeyError(f"ParameterDict has no {name!r}; there are {', '.join(found) or 'none'}")
        return found[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Put one in."""
        if not isinstance(name, str):
            raise TypeError(f"ParameterDict: names are text, got {type(name).__name__}")
        if not name or "." in name or (name not in self and hasattr(self, name)):
            raise KeyError(
                f"ParameterDict: the name {name!r} is empty, holds a dot or is an attribute's; "
                "choose another"
            )
        self._put(name, value)

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def keys(self) -> Iterable[str]:
        """The names."""
        return list(self._all())

    def values(self) -> Iterable[Parameter]:
        """The parameters."""
        return list(self._all().values())

    def items(self) -> Iterable[tuple[str, Parameter]]:
        """The names with their parameters."""
        return list(self._all().items())

    def get(self, name: str, default: Any = None) -> Any:
        """The parameter of that name, or `default`."""
        return self._all().get(name, default)

    def pop(self, name: str) -> Parameter:
        """Take one out and return it; KeyError where there is none."""
        found = self[name]
        delattr(self, name)
        return found

    def clear(self) -> None:
        """Take all out."""
        for name in self.keys():
            delattr(self, name)

    def update(self, values: Any) -> None:
        """Put in what a mapping or pairs hold; a name that is there keeps its place.

        The names of a plain mapping are sorted, as PyTorch does: optimizer states go by number.
        """
        pairs = values.items() if isinstance(values, Mapping | ParameterDict) else values
        if isinstance(values, Mapping) and not isinstance(values, OrderedDict):
            pairs = sorted(pairs, key=lambda pair: pair[0])
        for name, value in pairs:
            self[name] = value
