"""Tensor: an array with a place in the graph. Attributes and conversions; no mathematics.

`ops/methods.py` gives the class its operators and the methods that compute. A Tensor made by a
recorded operation refers to the node of that call (`_edge`), and a node refers to where its inputs
came from. No reference leads the other way, so dropping a result drops its graph.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Self, SupportsIndex, overload
from weakref import ref

import numpy as np

from .backend import ARRAYS, MODES, STRUCTURE, XP, device, device_of, looks_at, made, to_host
from .errors import need, wrong
from .formatting import tensor_text

# The exact types that operations take: Tensor, Parameter. `type(x) in TENSORS` is faster than
# isinstance, and operations ask it of every input.
TENSORS: set[type] = set()


class Size(tuple[int, ...]):
    """A shape: a tuple, as are its sums and products, that counts the elements.

    Example:
        >>> mt.ones(2, 3, 4).shape[1:].numel()
        12
    """

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements of a Tensor of this shape."""
        return math.prod(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Size: ...

    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return Size(found) if type(index) is slice else found

    def __add__(self, other: Any) -> Any:
        return Size((*self, *other)) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Size((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: Any) -> Any:
        return Size(tuple(self) * times) if isinstance(times, int) else NotImplemented

    __rmul__ = __mul__


class Version:
    """How often an array was written in place, shared by a Tensor, its views and `detach()`.

    Attributes:
        n: the number of writes.
        base: weakly, the Tensor that the views were taken from.
        viewers: weak references to the views that are in the graph: a recorded write to one of
            them, or to the base, gives all of them a new `grad_fn`.
        lock: held by the thread that writes, where captured steps write too; see `autograd.locks`.
    """

    __slots__ = ("base", "lock", "n", "viewers")

    def __init__(self, base: Any = None) -> None:
        self.n = 0
        self.base = None if base is None else ref(base)
        self.viewers: list[Any] | None = None
        self.lock: Any = None


class FollowingVersion(Version):
    """The version of what `detach()` returns: the same count, but views of its own."""

    __slots__ = ("origin",)

    def __init__(self, base: Any, origin: Version) -> None:
        self.origin = origin
        super().__init__(base)

    @property
    def n(self) -> int:
        """The number of writes to the memory, through whatever Tensor."""
        return self.origin.n

    @n.setter
    def n(self, value: int) -> None:
        if value:  # not the start at 0
            self.origin.n = value


class _InferenceVersion(Version):
    """The version of what `inference_mode` made: to save such a Tensor, or write it, is an error.

    Whoever saves or writes reads the count, and reading it outside of that mode raises.
    """

    __slots__ = ()

    @property
    def n(self) -> int:
        if MODES.inference:
            return 0
        raise RuntimeError(
            "Inference tensors cannot be saved for backward, nor updated in place, outside "
            "inference_mode. Clone it there, or compute it under no_grad instead."
        )

    @n.setter
    def n(self, value: int) -> None:
        return None

    @property
    def base(self) -> Any:
        return None  # one object serves all results, so it must not remember any

    @base.setter
    def base(self, value: Any) -> None:
        return None

    def __init__(self) -> None:
        self.viewers = self.lock = None


INFERENCE: Version = _InferenceVersion()


class Extra:
    """What few Tensors have: hooks, a slot in flat storage (optim/flat.py), `retain_grad`."""

    __slots__ = ("hooks", "post_hooks", "retains_grad", "slot")

    def __init__(self) -> None:
        self.hooks: dict[int, Any] | None = None
        self.post_hooks: dict[int, Any] | None = None
        self.slot: Any = None
        self.retains_grad = False


class Tensor:
    """An n-dimensional array that can record what is computed from it.

    `Tensor(sequence)` makes a Tensor of the default float type, as in PyTorch; `mt.tensor(data)`
    keeps the type of the data and is what new code should use.

    Example:
        >>> x = mt.tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad
        tensor([2., 4.])
    """

    __slots__ = ("__weakref__", "_array", "_base", "_edge", "_extra", "_grad", "_rg", "_version")

    _array: Any
    _edge: Any  # the node that made this Tensor, or (node, output number), or None for a leaf
    _base: Any  # keeps the Tensor alive that this one is a view of; not set on others
    _rg: bool
    _grad: Tensor | None
    _version: Version | None
    _extra: Extra | None

    def __init__(self, data: Any = (), *sizes: Any) -> None:
        if type(data) in TENSORS:
            array = data._array
        elif isinstance(data, int | np.integer) and not isinstance(data, bool):
            array = made(np.zeros((data, *sizes), MODES.default_dtype))
        elif isinstance(data, float | bool | complex) or sizes:
            text = "data must be a sequence, got {}; for one number write mt.tensor(number)"
            raise wrong("Tensor", text, type(data), error=TypeError)
        elif isinstance(data, np.ma.MaskedArray):
            text = "data is a masked array, whose mask would be lost; fill it"
            raise wrong("Tensor", text, error=TypeError)
        else:
            array = made(np.array(data, MODES.default_dtype))
        self._array = array
        self._edge = self._grad = self._version = self._extra = None
        self._rg = False

    def __init_subclass__(cls, registered: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        text = "Tensor cannot be subclassed; operations test for the exact types. Wrap a Tensor in "
        text += "a class of your own, or write a Function."
        need(registered, f"class {cls.__name__}(Tensor)", text, error=TypeError)
        TENSORS.add(cls)

    # Shape and kind -------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """The size of each dimension."""
        return Size(self._array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type, a NumPy dtype."""
        return self._array.dtype  # type: ignore[no-any-return]

    @property
    def device(self) -> device:
        """Where the array lives."""
        return device_of(self._array)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim  # type: ignore[no-any-return]

    def dim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim  # type: ignore[no-any-return]

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of dimension `dim`."""
        return Size(self._array.shape) if dim is None else self._array.shape[dim]

    def numel(self) -> int:
        """The number of elements."""
        return self._array.size  # type: ignore[no-any-return]

    def is_contiguous(self) -> bool:
        """Whether the elements lie in memory in row-major order without gaps."""
        return bool(self._array.flags.c_contiguous)

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float type."""
        return bool(self._array.dtype.kind == "f")

    def __len__(self) -> int:
        if not self._array.ndim:
            raise TypeError("len() of a 0-d tensor")
        return len(self._array)

    __hash__ = object.__hash__  # said, as `__eq__` from the table of methods compares elements

    # Place in the graph ---------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this Tensor are recorded."""
        return self._rg

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set `requires_grad` in place and return self.

        Raises RuntimeError for a non-leaf that is switched off and for a dtype that is not a float.
        """
        if self._edge is not None:
            text = "you can only change requires_grad flags of leaf variables; to cut a computed "
            need(requires_grad, "requires_grad_", f"{text}Tensor from its graph use detach()")
            return self
        if requires_grad and self._array.dtype.kind != "f":
            text = "only Tensors of floating point dtype can require gradients"
            raise wrong("requires_grad_", text, self._array.dtype)
        if self._extra is not None and self._extra.slot is not None and not requires_grad:
            self.grad = None
        self._rg = bool(requires_grad)
        STRUCTURE[0] += 1  # captured steps look at flags again
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this Tensor."""
        return self._edge is None

    @property
    def grad_fn(self) -> Any:
        """The node that made this Tensor; None for a leaf."""
        edge = self._edge
        return edge[0] if type(edge) is tuple else edge

    @property
    def output_nr(self) -> int:
        """Which output of `grad_fn` this Tensor is."""
        return self._edge[1] if type(self._edge) is tuple else 0

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient, or None before the first backward and after `zero_grad()`.

        Assigning copies into the memory of a flat parameter and keeps the Tensor otherwise.
        Raises TypeError or RuntimeError where type, shape, dtype or device differ.
        """
        if MODES.capture.on:
            return MODES.capture.gradient(self)  # type: ignore[no-any-return]
        extra = self._extra
        if extra is None or extra.slot is None:
            return self._grad
        return extra.slot.gradient()  # type: ignore[no-any-return]

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if type(value) not in TENSORS:
                text = "expected a Tensor or None"
                raise wrong("x.grad = value", text, type(value), error=TypeError)
            mine, other = self._array, value._array
            fits = mine.shape == other.shape and mine.dtype == other.dtype
            text = "expected {} and dtype {}, got {} and dtype {}"
            need(fits, "x.grad = value", text, mine, mine.dtype, other, other.dtype)
            same = value.device == self.device
            need(same, "x.grad = value", "expected device {}, got {}", self.device, value.device)
            text = "a Tensor cannot be its own gradient; assign a clone()"
            need(value is not self, "x.grad = value", text)
        extra = self._extra
        if MODES.capture.on:
            MODES.capture.assign(self, value)
        elif extra is None or extra.slot is None:
            self._grad = value
        elif value is None:
            extra.slot.drop()
        else:
            extra.slot.assign(value._array)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def retain_grad(self) -> None:
        """Keep the gradient of this computed Tensor in `.grad` during backward.

        Raises RuntimeError where it does not require grad. Has no effect on a leaf.
        """
        text = "can't retain_grad on Tensor that has requires_grad=False"
        need(self._rg, "retain_grad", text)
        if self._edge is not None:
            self.extra().retains_grad = True
            self.grad_fn._retain(self)

    @property
    def retains_grad(self) -> bool:
        """Whether `retain_grad` was called on this computed Tensor."""
        return self._extra is not None and self._extra.retains_grad

    def extra(self) -> Extra:
        """The rarely used attributes, made when first needed."""
        if self._extra is None:
            self._extra = Extra()
        return self._extra

    @property
    def version(self) -> Version:
        """The shared counter of in-place writes, made when first needed."""
        if self._version is None:
            self._version = Version(self)
        return self._version

    # Other views of the same memory -----------------------------------------------------------

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph; writes to it are invisible to autograd.

        Assigning copies into the memory of a flat parameter (same shape and dtype) and replaces
        the array of any other Tensor; a graph that saved the old one raises at backward.

        Raises RuntimeError for a dtype without gradients where this Tensor requires grad, and for
        another shape than that of its `.grad`.
        """
        return wrap(self._array)

    @data.setter
    def data(self, value: Tensor) -> None:
        if type(value) not in TENSORS:
            raise wrong("x.data = value", "expected a Tensor", type(value), error=TypeError)
        extra = self._extra
        if extra is None or extra.slot is None:
            array, before = value._array, self._version
            fits = not self._rg or array.dtype.kind == "f"
            text = "where a gradient is required it must be floating point, got {}; call "
            need(fits, "x.data = value", f"{text}requires_grad_(False) first", array.dtype)
            grad = self._grad
            if grad is not None and grad.shape != array.shape:
                text = "expected the shape of .grad, {}, got {}; set .grad = None first"
                raise wrong("x.data = value", text, tuple(grad.shape), array.shape)
            self._array = array
            # A version of its own, as views of the old memory keep the old one; and a higher
            # count, as nodes that saved this Tensor would now read different values.
            self._version = Version(self)
            self._version.n = 1 if before is None or before is INFERENCE else before.n + 1
            STRUCTURE[0] += 1
        else:
            write(self, value, "data")

    def detach(self) -> Tensor:
        """The same memory outside the graph; writes to it are seen by autograd's checks."""
        out = wrap(self._array)
        out._version = FollowingVersion(out, self.version)
        return out

    def detach_(self) -> Self:
        """Cut this Tensor from its graph, in place: it becomes a leaf.

        A node that saved it raises in backward, as it could not go on from here.
        Raises RuntimeError for a view, whose history is that of its base.
        """
        version = self._version
        base = None if version is None or version.base is None else version.base()
        if base is not None and base is not self and base._version is version:
            raise RuntimeError("Can't detach views in-place. Use detach() instead.")
        if self._edge is not None:
            self.version.n += 1
        self._edge = None
        self._rg = False
        if self._extra is not None:
            self._extra.retains_grad = False
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """The array, sharing memory; of a Tensor on a GPU a RuntimeError (`.cpu()` first).

        Raises RuntimeError where the Tensor requires grad and gradients are recorded: `.detach()`
        first.
        """
        if self._rg and MODES.grad:
            text = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy()"
            raise RuntimeError(f"{text} instead.")
        looks_at(self, "numpy()")
        if type(self._array) is not np.ndarray:
            if self.device.type == "cpu":
                to_host(self._array)  # leaked from a captured step, which says so
            text = f"can't convert a Tensor on {self.device} to numpy. Use tensor.cpu() first."
            raise RuntimeError(text)
        return self._array

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """`numpy()` under the name by which matplotlib and others ask columns of data for it."""
        return self.numpy()

    # np.sin(tensor), array + tensor; numpy_functions.py
    __array_ufunc__: Any
    __array_function__: Any

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray[Any, Any]:
        return np.asarray(self.numpy(), *args, **kwargs)

    def __dlpack__(self, **options: Any) -> Any:
        """The memory for another library: `torch.from_dlpack(tensor)`, `np.from_dlpack(tensor)`.

        Raises BufferError where the Tensor requires grad, or runs backwards through its memory.
        """
        if self._rg:
            raise BufferError("Can't export Tensors that require gradient, use tensor.detach()")
        looks_at(self, "__dlpack__()")
        if any(stride < 0 for stride in self._array.strides):
            text = "Can't export a Tensor with negative strides, which others cannot read"
            raise BufferError(f"{text}; use tensor.contiguous()")
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device in DLPack's numbers: (1, 0) the CPU, (2, n) GPU n."""
        return self._array.__dlpack_device__()  # type: ignore[no-any-return]

    def item(self) -> Any:
        """The only element as a Python number; RuntimeError where there is not exactly one."""
        if self._array.size != 1:
            text = "a Tensor with {} elements cannot be converted to a number ({}); use tolist(), "
            raise wrong("item", f"{text}or reduce it first", self._array.size, self)
        looks_at(self, "item()")
        return self._array.item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        if MODES.tracer is not None:  # which allows it for what is constant
            MODES.tracer.look(self, "tolist()")
        return to_host(self._array).tolist()

    def __bool__(self) -> bool:
        if self._array.size != 1:
            text = "Boolean value of a Tensor of {} is ambiguous; use any() or all()"
            raise wrong("bool", text, self)
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self._array.dtype.kind not in "iub" or self._array.size != 1:
            raise TypeError("only integer Tensors with one element can be used as an index")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        if type(self) is Tensor and not self._array.ndim:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def __repr__(self) -> str:
        return tensor_text(self)

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if hasattr(type(self), name)]

    def _refuse_computed(self) -> None:
        text = "only leaf Tensors can be copied deeply or pickled, and this one was computed: "
        text += "detach() it first. To plot it, or for NumPy, use tensor.detach().numpy()"
        need(self._edge is None, "a copy", text)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        self._refuse_computed()
        out = _rebuild(type(self), self._array.copy(order="K"), self._rg)
        grad = self.grad if type(self) is Tensor else None  # a Parameter's copy starts without
        out._grad = None if grad is None else wrap(grad._array.copy(order="K"))
        memo[id(self)] = out
        return out

    def __reduce__(self) -> Any:
        self._refuse_computed()
        return _rebuild, (type(self), to_host(self._array), self._rg)


TENSORS.add(Tensor)


def wrap(array: Any) -> Tensor:
    """A Tensor over `array` (an array of a registered library), without a graph."""
    out = Tensor.__new__(Tensor)
    out._array = array
    out._edge = out._grad = out._version = out._extra = None
    out._rg = False
    return out


def with_history(array: Any, version: Version | None, edge: Any) -> Tensor:
    """A Tensor over `array` with this version and edge: a saved result, back in the graph."""
    out = wrap(array)
    out._version, out._edge, out._rg = version, edge, True
    return out


def is_state(tensor: Any) -> bool:
    """Whether `tensor` is a parameter: of a Module, or of an optimizer."""
    kind = type(tensor)
    if kind not in TENSORS:
        return False
    return kind is not Tensor or (tensor._extra is not None and tensor._extra.slot is not None)


def as_array(array: Any) -> Any:
    """`array` itself; a NumPy scalar, which ufuncs return for 0-d results, as a 0-d array."""
    return array if type(array) in ARRAYS else XP[type(array)].asarray(array)


def write(tensor: Tensor, value: Tensor, what: str) -> None:
    """Copy `value` into the memory of `tensor`; RuntimeError where shape or dtype differ."""
    mine, other = tensor._array, value._array
    if mine.shape != other.shape or mine.dtype != other.dtype:
        text = "expected {} and dtype {}, got {} and dtype {}"
        raise wrong(f"writing {what}", text, mine, mine.dtype, other, other.dtype)
    xp = XP[type(mine)]
    xp.copyto(mine, other if XP[type(other)] is xp else xp.asarray(to_host(other)))
    tensor.version.n += 1


def kind_of(value: Any) -> str:
    """For error messages: the type of `value`; for another library's tensor also how to wrap it."""
    kind = type(value)
    ways = {"__dlpack__": "mt.from_dlpack(t)", "numpy": "mt.from_numpy(t.numpy())"}
    ways = {name: way for name, way in ways.items() if hasattr(value, name)}
    if not ways or isinstance(value, np.ndarray):
        return kind.__name__
    return (
        f"{kind.__module__}.{kind.__name__}, which is of another library; wrap it: "
        f"{' or '.join(ways.values())}"
    )


def one_dtype(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`array` with NumPy's own dtype object; unpickled arrays have a copy of it.

    Operations compare dtypes by identity, and take a slow path where the objects differ.
    """
    return array.view(_numpys(array.dtype), np.ndarray)


@functools.cache
def _numpys(dtype: Any) -> Any:
    return np.dtype(dtype.name)  # two chars may mean one dtype


def _rebuild(kind: type[Tensor], array: Any, requires_grad: bool) -> Tensor:
    out = kind.__new__(kind)
    out._array = one_dtype(array) if isinstance(array, np.ndarray) else array
    out._edge = out._grad = out._version = out._extra = None
    out._rg = requires_grad
    return out
