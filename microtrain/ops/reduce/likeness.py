"""Methods that make a Tensor like another, new_zeros, type_as; and questions about its memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...backend import XP, address, as_dtype, made, owner_of, resolve_device, to_device
from ...tensor import TENSORS, Tensor, wrap
from ..arguments import integers
from ..coercion import NUMBERS
from ..fronts import need
from ..shape.shapes import sizes_of

__all__ = [
    "data_ptr", "element_size", "get_device", "ndimension", "nelement", "new_empty", "new_full",
    "new_ones", "new_tensor", "new_zeros", "storage_offset", "stride", "type_as",
]  # fmt: skip


def _shape(name: str, size: Any) -> tuple[int, ...]:
    shape = integers(name, "size", size)
    need(min(shape, default=0) >= 0, name, "sizes must not be negative", shape)
    return shape


def _filled(name: str, doc: str) -> Any:
    """The method `new_<name>(size)` that has its array from the instruction `name`."""

    def method(
        x: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        need(size, f"new_{name}", "missing the size", error=TypeError)
        shape = _shape(f"new_{name}", sizes_of(size))
        make = getattr(XP[type(x._array)], name)
        return _finish(make(shape, _dtype(x, dtype)), device, requires_grad)

    method.__name__ = method.__qualname__ = f"new_{name}"
    method.__doc__ = doc
    return method


def _dtype(x: Tensor, dtype: Any) -> np.dtype[Any]:
    return x.dtype if dtype is None else as_dtype(dtype)


def _finish(array: Any, device: Any, requires_grad: bool) -> Tensor:
    out = wrap(array if device is None else to_device(array, resolve_device(device)))
    return out.requires_grad_() if requires_grad else out


new_zeros = _filled("zeros", "Zeros of shape `size` in the dtype and on the device of this Tensor.")
new_ones = _filled("ones", "Ones of shape `size` in the dtype and on the device of this Tensor.")
new_empty = _filled("empty", "Undefined values in the dtype and on the device of this Tensor.")


def new_full(
    x: Tensor, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """`fill_value` in shape `size`, in the dtype and on the device of this Tensor."""
    if type(fill_value) in TENSORS:
        fill_value = fill_value.item()
    number = isinstance(fill_value, NUMBERS)
    need(number, "new_full", "fill_value must be a number", type(fill_value), error=TypeError)
    array = XP[type(x._array)].full(_shape("new_full", size), fill_value, _dtype(x, dtype))
    return _finish(array, device, requires_grad)


def new_tensor(
    x: Tensor, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A copy of `data` (numbers, sequences, an array, a Tensor) in the dtype of this Tensor."""
    if type(data) in TENSORS:
        data = data.tolist()
    array = made(np.array(data, _dtype(x, dtype)))
    where = x.device if device is None else device
    return _finish(array, where, requires_grad)


def type_as(x: Tensor, other: Tensor) -> Tensor:
    """This Tensor in the dtype and on the device of `other`; itself where nothing changes."""
    return x.to(other)


def nelement(x: Tensor) -> int:
    """The number of elements."""
    return x.numel()


def ndimension(x: Tensor) -> int:
    """The number of dimensions."""
    return x.ndim


def element_size(x: Tensor) -> int:
    """The bytes of one element."""
    return int(x.dtype.itemsize)


def stride(x: Tensor, dim: int | None = None) -> Any:
    """The elements in memory between neighbors of each dimension, or of dimension `dim`."""
    strides = tuple(step // x.dtype.itemsize for step in x._array.strides)
    return strides if dim is None else strides[dim]


def storage_offset(x: Tensor) -> int:
    """The elements in memory before the first one of this Tensor."""
    return (address(x._array) - address(owner_of(x._array))) // int(x.dtype.itemsize)


def data_ptr(x: Tensor) -> int:
    """The address of the first element."""
    return address(x._array)


def get_device(x: Tensor) -> int:
    """The number of the GPU that holds this Tensor; -1 on the CPU."""
    return -1 if x.device.type == "cpu" else x.device.index or 0


def nbytes(x: Tensor) -> int:
    """The bytes of all elements."""
    return x.numel() * element_size(x)


def is_cuda(x: Tensor) -> bool:
    """Whether this Tensor is on a GPU."""
    return x.device.type == "cuda"


def is_cpu(x: Tensor) -> bool:
    """Whether this Tensor is on the CPU."""
    return x.device.type == "cpu"
