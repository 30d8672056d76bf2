"""A stand-in for CuPy that runs without a GPU, for testing that no kernel assumes NumPy.

It has only names that CuPy has too, over an array class that NumPy cannot touch: `np.asarray`,
NumPy functions, ufuncs and conversions to Python numbers that would wait for the GPU (`float`,
`bool`, `int`, iteration) raise. What crosses to the host must say so: `get()`, `item()`,
`tolist()`. What crosses to the device must go through `asarray`.

`test_fakecupy.py` compares the lists with the real CuPy where that is installed.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from microtrain import numerics
from microtrain.backend import owner_of

# Elementwise functions: `f(*arrays, out=None)`. All are cupy.ufunc.
UFUNCS = """absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or
    bitwise_xor ceil copysign cos cosh divide equal exp exp2 expm1 floor floor_divide fmod frexp
    gcd greater greater_equal hypot invert isfinite isinf isnan lcm left_shift less less_equal log
    log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor maximum
    minimum multiply negative nextafter not_equal power reciprocal remainder right_shift rint sign
    signbit sin sinh sqrt square subtract tan tanh trunc""".split()
# Other functions of arrays.
FUNCTIONS = """all allclose any argmax argmin argpartition argsort broadcast_to concatenate copyto
    cumprod cumsum dot empty_like flip matmul nonzero prod repeat roll sort
    tril triu where zeros_like""".split()
# Functions of cupy.linalg.
LINEAR_ALGEBRA = "cholesky det eigh inv qr slogdet solve svd".split()
# Functions of cupyx.scipy.special.
SPECIAL = "digamma erf erfc erfcx erfinv gammaln i0e i1e ndtri zeta".split()
# Functions that make arrays from numbers.
CREATION = "arange empty full ones zeros".split()
# Attributes and methods of cupy.ndarray.
ATTRIBUTES = "T base device data dtype flags itemsize nbytes ndim shape size strides".split()
METHODS = """all any argmax argmin astype copy fill max min prod reshape sum take transpose
    view""".split()
CROSSINGS = "get item set tolist".split()


class _State(threading.local):
    """What a thread has set: the current device, and whether linear algebra raises."""

    device = 0
    linalg = "ignore"


STATE = _State()
_OWNERS: weakref.WeakValueDictionary[int, FakeArray] = weakref.WeakValueDictionary()


class FakeArray:
    """An array on a device that does not exist; `_host` is where it really is.

    `base` is the array whose memory a view is of, as CuPy's is: one array for all its views.
    `device` is the one that was current when that was made.
    """

    __slots__ = ("__weakref__", "_host", "base", "device")

    def __init__(self, host: Any, dtype: Any = None, pointer: Any = None) -> None:
        host = host if pointer is None else np.frombuffer(pointer, dtype, *host)
        self._host = host
        root = owner_of(host)
        owner = _OWNERS.get(id(root))
        if (owner is None or owner._host is not root) and root is not host:
            owner = FakeArray(root)
        self.base = owner if owner is not None and owner._host is root else None
        if self.base is None:
            _OWNERS[id(root)] = self
        self.device = self.base.device if self.base is not None else Device()

    @property
    def data(self) -> Any:
        return types.SimpleNamespace(ptr=self._host.__array_interface__["data"][0])

    def get(self, out: Any = None) -> Any:
        if out is None:
            return self._host.copy()
        out[...] = self._host
        return out

    def set(self, values: Any, stream: Any = None) -> None:
        assert type(values) is np.ndarray and values.shape == self._host.shape
        self._host[...] = values

    def item(self) -> Any:
        return self._host.item()

    def tolist(self) -> Any:
        return self._host.tolist()

    def fill(self, value: Any) -> None:
        self._host.fill(value)

    def _set_shape_and_strides(self, shape: Any, strides: Any, *_: Any) -> None:
        self._host = np.lib.stride_tricks.as_strided(self._host, shape, strides)

    def take(self, indices: FakeArray, axis: Any = None, out: Any = None) -> Any:
        return _call(on_host(self).take, (indices, axis), {"out": out, "mode": "wrap"})

    def __len__(self) -> int:
        return len(self._host)

    def __getitem__(self, index: Any) -> FakeArray:
        parts = _index(index, self.shape)
        found = self._host[parts]
        if not isinstance(found, np.ndarray):  # integers for all dimensions: a 0-d view
            found = (
                self._host[(*parts, ...)] if isinstance(parts, tuple) else self._host[parts, ...]
            )
        return FakeArray(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray | list | tuple) and np.ndim(value):
            raise ValueError(f"non-scalar {type(value).__name__} cannot be used for fill")
        on_host(self)[_index(index, self.shape)] = on_host(value)

    def __repr__(self) -> str:
        return f"FakeArray({self._host!r})"

    __hash__ = None  # type: ignore[assignment]


def _refuse(what: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(f"{what} of an array on a device is not allowed; use .get() or .item()")

    return method


for _name in ("__array__", "__array_function__", "__array_ufunc__"):
    setattr(FakeArray, _name, _refuse("implicit conversion to NumPy"))
for _name in ("__bool__", "__float__", "__int__", "__index__", "__iter__", "__complex__"):
    setattr(FakeArray, _name, _refuse("implicit conversion to a Python value"))


def on_host(value: Any) -> Any:
    """The argument of a device function where NumPy can work on it; no NumPy array gets through."""
    if isinstance(value, FakeArray):
        if value.device.id != STATE.device:
            raise ValueError(
                "Array device must be same as the current device: "
                f"array device = {value.device.id} while current = {STATE.device}"
            )
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(on_host(v) for v in value)
    return value


def on_device(value: Any) -> Any:
    """A result of NumPy's as a device array."""
    return FakeArray(np.asarray(value))


def _index(index: Any, shape: tuple[int, ...]) -> Any:
    """An index as NumPy takes it; integers in arrays wrap, as on a GPU, which cannot raise."""
    parts = index if isinstance(index, tuple) else (index,)
    allowed = (int, slice, type(Ellipsis), type(None), FakeArray, np.integer)
    takes, found, axis = [], [], 0
    for part in parts:
        if not isinstance(part, allowed):
            raise IndexError(f"arrays on a device cannot be indexed with {type(part).__name__}")
        mask = isinstance(part, FakeArray) and part.dtype == bool
        takes.append(part.ndim if mask else int(part is not None and part is not Ellipsis))
    for part, dims in zip(parts, takes, strict=True):
        here = on_host(part)
        wraps = isinstance(part, FakeArray) and part.dtype != bool
        found.append(here % shape[axis] if wraps else here)
        axis += len(shape) - sum(takes) if part is Ellipsis else dims
    return tuple(found) if isinstance(index, tuple) else found[0]


def _call(function: Any, arguments: Any, options: Any) -> Any:
    out = options.get("out")
    result = function(
        *(on_host(a) for a in arguments), **{k: on_host(v) for k, v in options.items()}
    )
    if out is not None:
        return out
    if isinstance(result, tuple):
        return tuple(on_device(part) for part in result)
    return None if result is None else on_device(result)


class FakeUfunc:
    """An elementwise function; takes the array to write into by position, too, as CuPy's do."""

    def __init__(self, name: str) -> None:
        self.ufunc = getattr(np, name)
        self.nin = self.ufunc.nin

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if len(arguments) > self.ufunc.nin:
            *arguments, options["out"] = arguments  # type: ignore[assignment]
        unknown = set(options) - {"out", "dtype", "casting"}
        if unknown:
            raise TypeError(f"unexpected arguments {unknown}")
        return _call(self.ufunc, arguments, options)

    def reduce(self, array: FakeArray) -> Any:
        return on_device(self.ufunc.reduce(on_host(array)))

    def at(self, array: FakeArray, index: Any, values: Any) -> None:
        if array.dtype.char not in "iefdIQ":
            raise TypeError("scatter_add only supports int32, float16, float32, float64, uint32/64")
        self.ufunc.at(on_host(array), _index(index, array.shape), on_host(values))


def _function(name: str, home: Any = np) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        return _call(getattr(home, name), arguments, options)

    return call


def _special(name: str) -> Any:
    plain = _function(name, numerics)
    dtype = np.float32 if name in ("erfinv", "ndtri", "zeta") else np.float64

    def call(*arrays: Any, **options: Any) -> Any:
        found = plain(*arrays, **options)
        # CuPy's have a loop from float16 to one of these, and none to float16.
        wide = not options and arrays[-1].dtype == np.float16
        return on_device(found._host.astype(dtype)) if wide else found

    return call


def _linear_algebra(name: str) -> Any:
    plain = _function(name, np.linalg)

    def call(x: FakeArray, *others: Any) -> Any:
        try:
            return plain(x, *others)
        except np.linalg.LinAlgError:
            if STATE.linalg == "raise":
                raise
        # CuPy does not wait to see whether it worked: there is a result, of no number.
        regular = np.broadcast_to(np.eye(*x.shape[-2:], dtype=x.dtype), x.shape)
        found = plain(FakeArray(regular), *others)
        for part in found if isinstance(found, tuple) else (found,):
            part.fill(np.nan)
        return found

    return call


@contextmanager
def errstate(*, linalg: str) -> Iterator[None]:
    """`cupyx.errstate`: whether linear algebra raises."""
    before, STATE.linalg = STATE.linalg, linalg
    try:
        yield
    finally:
        STATE.linalg = before


def _creation(name: str) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        return on_device(getattr(np, name)(*arguments, **options))

    return call


def _method(name: str) -> Any:
    def call(self: FakeArray, *arguments: Any, **options: Any) -> Any:
        return _call(getattr(on_host(self), name), arguments, options)

    return call


def _attribute(name: str) -> Any:
    def read(self: FakeArray) -> Any:
        value = getattr(self._host, name)
        return on_device(value) if name == "T" else value

    return property(read)


def _operator(name: str) -> Any:
    def method(self: FakeArray, *others: Any) -> Any:
        if any(getattr(o, "__array_priority__", 0) > 100 for o in others):
            return NotImplemented
        if any(isinstance(o, np.ndarray) for o in others):
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        result = getattr(on_host(self), name)(*(on_host(o) for o in others))
        return result if result is NotImplemented else on_device(result)

    return method


def _in_place(name: str) -> Any:
    def method(self: FakeArray, other: Any) -> FakeArray:
        getattr(on_host(self), name)(on_host(other))
        return self

    return method


for _name in set(METHODS) - {"fill", "take"}:
    setattr(FakeArray, _name, _method(_name))
for _name in set(ATTRIBUTES) - {"base", "data", "device"}:
    setattr(FakeArray, _name, _attribute(_name))
for _name in "add sub mul truediv floordiv mod pow matmul and or xor".split():
    setattr(FakeArray, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(FakeArray, f"__r{_name}__", _operator(f"__r{_name}__"))
    setattr(FakeArray, f"__i{_name}__", _in_place(f"__i{_name}__"))
for _name in "eq ne lt le gt ge neg abs invert".split():
    setattr(FakeArray, f"__{_name}__", _operator(f"__{_name}__"))


class Device:
    """`cupy.cuda.Device`; there are two, and each thread begins with number 0."""

    def __init__(self, id: int | None = None) -> None:
        self.id = STATE.device if id is None else id

    def use(self) -> None:
        STATE.device = self.id

    def __enter__(self) -> Device:
        self.before, STATE.device = STATE.device, self.id
        return self

    def __exit__(self, *exc: object) -> None:
        STATE.device = self.before


def asarray(value: Any, dtype: Any = None) -> FakeArray:
    """The way onto the device: numbers and NumPy arrays are copied, device arrays cast."""
    if isinstance(value, FakeArray):
        same = dtype is None or value.dtype == dtype
        return value if same else FakeArray(value._host.astype(dtype))
    return FakeArray(np.array(value, dtype))


module: Any = types.ModuleType("cupy")
module.ndarray = FakeArray
module.asarray = asarray
module.cuda = types.SimpleNamespace(
    Device=Device,
    runtime=types.SimpleNamespace(getDeviceCount=lambda: 2),
    alloc_pinned_memory=bytearray,
    UnownedMemory=lambda ptr, size, owner, device_id=-1: memoryview(owner),
    MemoryPointer=lambda memory, offset: memory[offset:],
    get_current_stream=lambda: types.SimpleNamespace(
        record=lambda: types.SimpleNamespace(synchronize=lambda: None), synchronize=lambda: None
    ),
)
for _name in UFUNCS:
    setattr(module, _name, FakeUfunc(_name))
for _name in FUNCTIONS:
    setattr(module, _name, _function(_name))
module.argsort = lambda x, axis=-1: on_device(x._host.argsort(axis, "stable"))  # as CuPy's is
for _name in CREATION:
    setattr(module, _name, _creation(_name))
module.linalg = types.SimpleNamespace(**{_name: _linear_algebra(_name) for _name in LINEAR_ALGEBRA})
cupyx: Any = types.ModuleType("cupyx")
cupyx.errstate = errstate
cupyx.scipy = types.ModuleType("cupyx.scipy")
cupyx.scipy.special = types.SimpleNamespace(**{_name: _special(_name) for _name in SPECIAL})
MODULES = (module, cupyx, cupyx.scipy)  # what sys.modules has in their place
