"""Lists and dictionaries of parameters, which a plain list or dictionary would hide."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from ..errors import need
from ..tensor import TENSORS
from .container import NamedParts
from .module import Module
from .parameter import Parameter

__all__ = ["ParameterDict", "ParameterList"]


class _Parameters(Module):
    """What both share: parameters as attributes, in the order they were put in."""

    def _fit(self, value: Any) -> Parameter:
        """`value` as a Parameter; TypeError unless it is a Tensor."""
        text = "takes Parameters and Tensors"
        need(type(value) in TENSORS, type(self).__name__, text, type(value), error=TypeError)
        return value if type(value) is Parameter else Parameter(value)

    def _parts(self) -> dict[str, Parameter]:
        return {name: p for name, p in vars(self).items() if type(p) is Parameter}

    def __len__(self) -> int:
        return len(self._parts())

    def __repr__(self) -> str:
        lines = (
            f"  ({name}): Parameter containing: [{p.dtype.name} of size "
            f"{'x'.join(map(str, p.shape))}]\n"
            for name, p in self._parts().items()
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
        setattr(self, str(len(self)), self._fit(value))
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add several at the end. Returns self."""
        several = type(values) not in TENSORS and isinstance(values, Iterable)
        text = "expected several parameters"
        need(several, "ParameterList", text, type(values), error=TypeError)
        for value in list(values):
            self.append(value)
        return self

    __iadd__ = extend

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._parts().values())

    def __getitem__(self, number: int | slice) -> Any:
        """One parameter, or a ParameterList of several, which shares them."""
        if isinstance(number, slice):
            return ParameterList(list(self)[number])
        return self._parts()[self._name(number)]

    def __setitem__(self, number: int, value: Any) -> None:
        """Replace one; IndexError where there is none."""
        setattr(self, self._name(number), self._fit(value))

    def _name(self, number: int) -> str:
        number = operator.index(number)  # of a Tensor as well, whose text is another name
        inside = -len(self) <= number < len(self)
        text = "there are {} parameters, no {}"
        need(inside, "ParameterList", text, len(self), number, error=IndexError)
        return str(number % len(self))


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
