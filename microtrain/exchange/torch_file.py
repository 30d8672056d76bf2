"""PyTorch's .pt and .pth of Tensors, read and written without torch and without executing pickle.

The format of `torch.save`: a zip of stored members with `NAME/data.pkl`, a pickle in which each
Tensor is a call of `torch._utils._rebuild_tensor_v2` on a storage, and `NAME/data/KEY`, the bytes
of a storage. Tensors that share a storage share memory here as well.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..backend import ARRAYS, to_host
from ..nn import Parameter
from ..runs.tree import DEEPEST, SCALARS, key_of, readable, unknown, where
from ..tensor import TENSORS, Size, wrap
from .pickled import Global, Place, read_pickle
from .safetensors_file import widened

__all__ = ["dump", "parse"]

Array = NDArray[Any]
_DTYPES = {
    "Half": np.float16, "Float": np.float32, "Double": np.float64, "Char": np.int8,
    "Short": np.int16, "Int": np.int32, "Long": np.int64, "Byte": np.uint8, "Bool": np.bool_,
    "BFloat16": np.uint16,
}  # fmt: skip
_STORAGES = {np.dtype(dtype): name for name, dtype in _DTYPES.items() if name != "BFloat16"}
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError,
    NotImplementedError, UnicodeError, OverflowError,
)  # fmt: skip


class Storage(Global):
    """One storage of a file: its name, and its values as a flat array."""


def parse(content: bytes, bfloat16: bool) -> Any:
    """What `torch.save` was given: dicts, lists, tuples and plain values with Tensors.

    Raises ValueError for other formats of torch, damaged files, and every name in the pickle that
    is none of the few that Tensors need. Nothing is executed.
    """
    return _Archive(content, bfloat16).read()


class _Archive:
    def __init__(self, content: bytes, bfloat16: bool) -> None:
        self.bfloat16 = bfloat16
        self.storages: dict[str, tuple[Any, ...]] = {}
        try:
            self.zip = zipfile.ZipFile(io.BytesIO(content))
        except (*_DAMAGED, ValueError) as error:
            raise ValueError(f"damaged: {error}") from error
        members = self.zip.infolist()
        # Stored members that do not overlap have at most the bytes of the file.
        if sum(m.file_size for m in members) > len(content) or any(
            m.compress_type != zipfile.ZIP_STORED for m in members
        ):
            raise ValueError("its members are compressed or overlap, which torch.save does not do")
        self.members = {member.filename: member for member in members}
        found = [name for name in self.members if name.rpartition("/")[2] == "data.pkl"]
        self.root = found[0].removesuffix("data.pkl") if found else ""
        if f"{self.root}constants.pkl" in self.members:
            raise ValueError(
                "a TorchScript archive, which is a program; in torch load it with torch.jit.load "
                "and torch.save(module.state_dict(), ...)"
            )
        if len(found) != 1 or len(self.members) != len(members):
            raise ValueError("a zip, but not one of torch.save (it has no data.pkl of its own)")
        order = self.bytes("byteorder") if f"{self.root}byteorder" in self.members else b"little"
        if order not in (b"little", b"big"):
            raise ValueError("damaged: its byteorder is neither little nor big")
        self.order: Literal["<", ">"] = "<" if order == b"little" else ">"

    def read(self) -> Any:
        known: dict[str, Any] = {
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_parameter": self.parameter,
            "collections.OrderedDict": _ordered,
            **{f"torch.{name}Storage": name for name in _DTYPES},
        }
        return read_pickle(self.bytes("data.pkl"), known, self.storage)

    def bytes(self, name: str) -> bytes:
        try:
            return self.zip.read(self.members[self.root + name])
        except _DAMAGED as error:
            raise ValueError(f"damaged: {name}: {error}") from error

    def storage(self, given: Any, at: Place) -> Storage:
        """The storage that a persistent id names; read once."""
        if type(given) is not tuple or len(given) != 5 or given[0] != "storage":
            raise TypeError("a persistent id that is no storage")
        _, dtype, key, _device, count = given
        if type(dtype) is not Global or dtype.meaning not in _DTYPES:
            raise TypeError("a storage without a dtype")
        if type(key) is not str or f"{self.root}data/{key}" not in self.members:
            raise ValueError(f"{at()}: the file has no storage {key!r:.40}")
        name = dtype.meaning
        if key in self.storages:
            found, *what = self.storages[key]
            if what != [name, count]:
                raise ValueError(f"{at()}: storage {key} is also one of {what[1]} {what[0]}")
            return found  # type: ignore[no-any-return]
        kind = np.dtype(_DTYPES[name])
        size = self.members[f"{self.root}data/{key}"].file_size
        if type(count) is not int or count < 0 or count * kind.itemsize != size:
            raise ValueError(
                f"{at()}: storage {key} has {size:,} bytes, expected {count!r:.40} of "
                f"{kind.itemsize} bytes each"
            )
        content = bytearray(self.bytes(f"data/{key}"))  # which can be written to
        values = np.frombuffer(content, kind.newbyteorder(self.order))
        values = values.astype(kind, copy=False)
        if name == "BFloat16":
            values = widened(at(), values, self.bfloat16)
        elif name == "Bool" and values.view(np.uint8).max(initial=0) > 1:
            raise ValueError(f"{at()}: storage {key} has bools that are neither 0 nor 1")
        made = Storage(f"a storage of {name}", values)
        self.storages[key] = made, name, count
        return made

    def tensor(
        self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any,
        metadata: Any = None, *, at: Place,
    ) -> Any:  # fmt: skip
        """`torch._utils._rebuild_tensor_v2`: a view of a storage."""
        if type(storage) is not Storage:
            raise TypeError("a Tensor without a storage")
        for numbers in (size, stride, (offset,)):
            if type(numbers) is not tuple or any(type(n) is not int or n < 0 for n in numbers):
                raise ValueError(f"{at()}: its shape and strides are no tuples of whole numbers")
        if type(hooks) is not dict or hooks or metadata not in (None, {}):
            raise ValueError(f"{at()}: it has hooks, or is stored as conjugate or negative")
        values = storage.meaning
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if 0 not in size and last >= values.size:
            raise ValueError(
                f"{at()}: a Tensor of shape {size} with strides {stride} from {offset} on does not "
                f"lie within its storage of {values.size:,} elements"
            )
        item = values.itemsize
        if 0 in size:
            array = np.zeros(size, values.dtype)
        else:
            strides = [s * item for s in stride]
            array = np.ndarray(size, values.dtype, values, offset * item, strides)
        return _requiring(wrap(array), requires_grad, at)

    def parameter(self, data: Any, requires_grad: Any, hooks: Any, *, at: Place) -> Any:
        """`torch._utils._rebuild_parameter`."""
        if type(data) not in TENSORS or type(hooks) is not dict or hooks:
            raise ValueError(f"{at()}: a Parameter without data, or with hooks")
        return _requiring(Parameter(data, requires_grad=False), requires_grad, at)


def _requiring(tensor: Any, requires_grad: Any, at: Place) -> Any:
    if type(requires_grad) is not bool or (requires_grad and not tensor.is_floating_point()):
        raise ValueError(f"{at()}: requires_grad of a Tensor of {tensor.dtype.name} is not a flag")
    return tensor.requires_grad_(requires_grad)


def _ordered(*, at: Place) -> dict[Any, Any]:
    return {}


# Writing ------------------------------------------------------------------------------------------


def dump(obj: Any) -> bytes:
    """A file that `torch.load` reads, also with `weights_only=True`: protocol 2, as torch writes.

    NumPy's arrays become Tensors. Raises TypeError for what is no plain state, ValueError for
    dtypes that torch has not.
    """
    arrays: list[Array] = []
    pickled = b"\x80\x02" + _pickled(obj, (), arrays) + b"."
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        members = {"data.pkl": pickled, "byteorder": sys.byteorder.encode(), "version": b"3\n"}
        for name, content in members.items():
            archive.writestr(_member(name), content)
        for number, array in enumerate(arrays):
            archive.writestr(_member(f"data/{number}"), array.tobytes())
    return file.getvalue()


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(f"archive/{name}")  # of 1980: the same state gives the same bytes


def _pickled(value: Any, path: tuple[Any, ...], arrays: list[Array]) -> bytes:
    """The opcodes of a value; its arrays are appended to `arrays`."""
    if type(value) in SCALARS:
        return _scalar(readable(value, path))
    if type(value) in TENSORS or type(value) in ARRAYS:
        return _tensor(value, path, arrays)
    if len(path) > DEEPEST:
        raise ValueError(f"{where(path[:3])} ...: nested deeper than {DEEPEST} levels")
    if isinstance(value, Mapping):
        pairs = [(key_of(k, path), _pickled(v, (*path, k), arrays)) for k, v in value.items()]
        return b"}(" + b"".join(_scalar(key) + item for key, item in pairs) + b"u"
    if type(value) in (list, tuple, Size):
        items = b"".join(_pickled(v, (*path, i), arrays) for i, v in enumerate(value))
        return b"](" + items + b"e" if type(value) is list else b"(" + items + b"t"
    raise unknown(value, path)


def _scalar(value: Any) -> bytes:
    if type(value) is str:
        text = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(text)) + text
    return pickle.dumps(value, 2)[2:-1]  # without its head and its end


def _tensor(value: Any, path: tuple[Any, ...], arrays: list[Array]) -> bytes:
    tensor = value if type(value) in TENSORS else wrap(value)
    array = np.ascontiguousarray(to_host(tensor._array))
    array = array.astype(array.dtype.newbyteorder("="), copy=False).reshape(tensor.shape)
    if array.dtype not in _STORAGES:
        raise TypeError(f"{where(path)}: torch's files have no {array.dtype}")
    number, kind = len(arrays), _STORAGES[array.dtype]
    arrays.append(array)
    strides = [s // array.itemsize for s in array.strides]
    return b"".join([
        b"ctorch._utils\n_rebuild_tensor_v2\n((",
        _scalar("storage"), b"ctorch\n", kind.encode(), b"Storage\n",
        _scalar(str(number)), _scalar("cpu"), _scalar(array.size), b"tQ",
        _scalar(0), _pickled(array.shape, path, arrays), _pickled(tuple(strides), path, arrays),
        b"\x88" if tensor.requires_grad else b"\x89",
        b"ccollections\nOrderedDict\n)RtR",
    ])  # fmt: skip
