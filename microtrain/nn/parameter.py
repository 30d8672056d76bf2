"""Parameter: a Tensor that a Module owns and an optimizer updates. Buffer: one that it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..tensor import TENSORS, Tensor

__all__ = ["Buffer", "Parameter"]


class Parameter(Tensor, registered=True):
    """A leaf Tensor that requires grad and is found by `Module.parameters()`.

    Args:
        data: a Tensor (its memory is shared) or anything `Tensor(...)` takes.
        requires_grad: False for a frozen parameter.

    Raises RuntimeError for an integer Tensor that should require grad.

    Example:
        >>> module = mt.nn.Module()
        >>> module.scale = mt.nn.Parameter(mt.ones(3))
        >>> [name for name, _ in module.named_parameters()]
        ['scale']
    """

    __slots__ = ()

    def __init__(self, data: Any = (), requires_grad: bool = True) -> None:
        if type(data) in TENSORS:
            self._array = data._array
        else:
            self._array = Tensor(np.asarray(data))._array
        self._edge = self._grad = self._version = self._extra = None
        self._rg = False
        if requires_grad:
            self.requires_grad_()


class Buffer(Tensor, registered=True):
    """`self.name = nn.Buffer(data)` is `self.register_buffer("name", data, persistent)`.

    The attribute is a plain Tensor over the memory of `data`, a Tensor or what `Tensor(...)` takes.
    """

    __slots__ = ("persistent",)

    def __init__(self, data: Any = (), *, persistent: bool = True) -> None:
        super().__init__(data)
        self.persistent = persistent
