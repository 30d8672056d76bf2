"""Array libraries, devices and dtypes: the only module that knows NumPy from CuPy.

Kernels are written against `xp`, a `Namespace` of about ninety instructions. Which one a call gets
is decided by the type of its first array (`XP[type(array)]`), so the same kernel runs on NumPy, on
CuPy and on any other library that registers itself with `register`. Dtypes are NumPy's own dtype
objects, on every device.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import operator
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import numerics
from .common.recording import EAGER
from .errors import install, need
from .numerics.sums import SHORT, add_rows, blocked_sum, way_of
from .random import forward_numbers, forward_words, where_to_draw

# What kernels may use. Every name is both NumPy's and CuPy's; Namespace adds the few that differ.
INSTRUCTIONS = tuple(
    """absolute add all any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax
    argmin argpartition argsort asarray bitwise_and bitwise_or bitwise_xor ceil concatenate
    copysign copyto cos cosh cumprod cumsum divide dot empty empty_like equal exp exp2 expm1
    flip floor floor_divide fmod frexp full gcd greater greater_equal hypot invert isfinite isinf
    isnan lcm left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and
    logical_not logical_or logical_xor matmul maximum minimum multiply negative nextafter nonzero
    not_equal ones power prod reciprocal remainder repeat right_shift rint roll sign signbit sin
    sinh sort sqrt square subtract tan tanh tril triu trunc where zeros zeros_like""".split()
)


class Namespace:
    """The instructions of one array library, under NumPy's names.

    Args:
        module: `numpy`, `cupy`, or a module with the names of `INSTRUCTIONS`.
        array_type: the library's array class.
        kind: the device type of its arrays, "cpu" or "cuda".
        special: where the functions of `numerics` are.
    """

    way_of_sum: Any = None  # where `sum` is not exact enough
    powers: dict[float, Any] = {}  # what `**` calls for common exponents, instead of `power`

    if TYPE_CHECKING:  # the instructions are attributes set by name

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, module: Any, array_type: Any, kind: str, special: Any) -> None:
        for name in INSTRUCTIONS:
            setattr(self, name, getattr(module, name))
        self.module = module
        self.array_type = array_type
        self.kind = kind
        # Methods called as functions skip a wrapper written in Python.
        for name in ("reshape", "transpose", "sum", "max", "min", "take"):  # of the flattened array
            setattr(self, name, getattr(array_type, name))
        for name in ("solve", "cholesky", "det", "slogdet"):
            setattr(self, name, getattr(module.linalg, name))
        self.broadcast_to = module.broadcast_to
        self.inverse = module.linalg.inv
        for name in ("inverse", "solve", "cholesky", "svd", "qr", "basis", "eigh"):
            setattr(self, name, _of_finite(getattr(self, name), self.isfinite))
        for name in numerics.__all__:
            setattr(self, name, getattr(special, name))
        self.getitem = operator.getitem
        self.setitem = operator.setitem
        # The unbuffered `array[index] += values`: a repeated index adds every time. Whole rows of a
        # matrix may be added to many times.
        self.scatter_add = module.add.at

    def copy(self, x: Any) -> Any:
        """A copy of `x` in row-major memory."""
        out = self.empty(x.shape, x.dtype)
        self.copyto(out, x)
        return out

    def svd(self, x: Any) -> Any:
        """U, the singular values and V under each other: (..., m + 1 + n, k), k = min(m, n)."""
        u, values, v = self.module.linalg.svd(x, False)
        lead = len(x.shape) - 2
        v = v.transpose((*range(lead), lead + 1, lead))
        return self.concatenate([u, values[..., None, :], v], -2)

    def qr(self, x: Any) -> Any:
        """Q and the transpose of R under each other: (..., m + n, k), k = min(m, n)."""
        q, r = self.module.linalg.qr(x)
        lead = len(x.shape) - 2
        return self.concatenate([q, r.transpose((*range(lead), lead + 1, lead))], -2)

    def basis(self, x: Any) -> Any:
        """An orthonormal basis whose first vectors span what the columns of `x` do."""
        return self.module.linalg.qr(x, "complete")[0]

    def eigh(self, x: Any, triangle: str) -> Any:
        """Eigenvalues and below them the eigenvectors: (..., 1 + n, n)."""
        values, vectors = self.module.linalg.eigh(x, triangle)
        return self.concatenate([values[..., None, :], vectors], -2)

    def matrix_exp(self, x: Any) -> Any:
        """The exponential of each matrix; a GPU is waited for."""
        return self.asarray(numerics.matrix_exp(x if self.kind == "cpu" else x.get()))

    def loop(
        self, step: Any, moving: tuple[Any, ...], fixed: tuple[Any, ...], out: tuple[Any, ...],
        scratch: tuple[Any, ...] = (),
    ) -> None:  # fmt: skip
        """`step(xp, parts, fixed)` once for every place along the first dimension of `moving`.

        `parts` are what the arrays of `moving` have there; these and `fixed` may hold None. A step
        does nothing but call instructions that are told where to write; `out` has all that they
        write to, `scratch` what of that nobody reads in a later step or behind the loop.
        """
        for turn in range(max(len(array) for array in moving if array is not None)):
            step(self, tuple([None if array is None else array[turn] for array in moving]), fixed)

    def as_one(self, kernel: Any, arrays: tuple[Any, ...], settings: Any, out: Any = None) -> Any:
        """`kernel` of `arrays` and `settings`: one instruction where a step is written down."""
        return kernel(self, *arrays, out=out, **settings)

    def random_words(self, shape: tuple[int, ...], draw: int) -> Any:
        """Draw number `draw` of this forward pass: the same bits on every device."""
        return self.asarray(forward_words(shape, draw))

    def random_numbers(self, shape: tuple[int, ...], draw: int | None, *how: Any) -> Any:
        """Random numbers as `forward_numbers` has them: the same bits on every device."""
        return self.asarray(forward_numbers(shape, draw, *how))

    def constant(self, value: Any, dtype: Any) -> Any:
        """A number as an operand, of `dtype` also beside booleans; never an array made per call."""
        return dtype.type(value)

    def kept(self, x: Any, mask: Any) -> Any:
        """`x` where `mask` is set, elsewhere 0."""
        return self.where(mask, x, self.constant(0, x.dtype))

    def operand(self, value: Any, dtype: Any) -> Any:
        """A number beside a Tensor as a 0-d array, perhaps shared: not to be written to."""
        return self.asarray(value, dtype)

    def ones_of(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Ones, perhaps shared: not to be written to."""
        return self.ones(shape, dtype)


def _of_finite(function: Any, isfinite: Any) -> Any:
    """`function` of a matrix with a LinAlgError for values that are not finite.

    For some of these LAPACK never returns, for others it gives numbers that mean nothing.
    """

    def call(x: Any, *others: Any) -> Any:
        if not isfinite(x).all().item():
            raise np.linalg.LinAlgError("the matrix holds values that are not finite")
        return function(x, *others)

    return call


def _as_strided(x: Any, shape: Any, strides: Any) -> Any:
    """A view that knows whose memory it is, which that of CuPy's `as_strided` does not."""
    view = x.view()
    view._set_shape_and_strides(shape, strides, True, True)
    return view


class _CupyNamespace(Namespace):
    """CuPy, where it is not NumPy in what operations promise: dtypes, and errors.

    The arrays of numbers are kept: to make one allocates, and copies from the host.
    """

    MOST_KEPT = 1024

    def __init__(self, module: Any, cupyx: Any, special: Any) -> None:
        super().__init__(module, module.ndarray, "cuda", special)
        for name in numerics.__all__:
            setattr(self, name, _keeping_dtype(getattr(self, name)))
        self.as_strided = _as_strided
        for name in ("inverse", "solve", "cholesky", "svd", "eigh"):
            setattr(self, name, _raising(getattr(self, name), cupyx.errstate))
        self._operands: dict[Any, Any] = {}

    def operand(self, value: Any, dtype: Any) -> Any:
        """A number beside a Tensor as a 0-d array of the current device, kept for the next call."""
        number = dtype.type(value)
        # Its bytes: 0.0 equals -0.0.
        key = (number.tobytes(), dtype, self.module.cuda.Device().id)
        found = self._operands.get(key)
        if found is None:
            if len(self._operands) >= self.MOST_KEPT:  # values that differ in every step
                self._operands.clear()
            found = self._operands[key] = self.asarray(number)
        return found

    def view_of(self, memory: Any, start: int, like: Any) -> Any:
        """A view of `memory`, in bytes, from `start` on: in the shape, dtype, strides of `like`."""
        size = like.dtype.itemsize
        rest = memory[start : len(memory) - (len(memory) - start) % size]
        return self.as_strided(rest.view(like.dtype), like.shape, like.strides)

    def nowhere(self, sizes: list[int]) -> list[Any]:
        """Addresses for bytes that nobody reads or writes: there is no memory behind them."""
        pages, cuda = NUMPY.nowhere(sizes), self.module.cuda
        start = address(pages[0])
        unowned = cuda.UnownedMemory(start, sum(sizes), pages[0].base, cuda.Device().id)
        return [
            self.array_type((page.size,), uint8, cuda.MemoryPointer(unowned, address(page) - start))
            for page in pages
        ]

    def pinned(self, nbytes: int) -> Any:
        """Memory of the host that a GPU can copy from while Python goes on."""
        return np.ndarray((nbytes,), uint8, self.module.cuda.alloc_pinned_memory(nbytes))

    def send(self, host: Any, memory: Any) -> Any:
        """Copy pinned bytes, which must stay as they are until the event returned has happened."""
        stream = self.module.cuda.get_current_stream()
        memory.set(host, stream)
        return stream.record()

    def wait(self) -> None:
        """Until all that was asked for is done."""
        self.module.cuda.get_current_stream().synchronize()


def _keeping_dtype(function: Any) -> Any:
    """`function` with the dtype that goes in: CuPy's erf makes float64 of float16."""

    def call(*arrays: Any, out: Any = None) -> Any:
        if out is not None:
            return function(*arrays, out=out)
        return function(*arrays).astype(arrays[-1].dtype, copy=False)

    return call


def _raising(function: Any, errstate: Any) -> Any:
    """`function` with NumPy's LinAlgError: CuPy gives NaN unless it may wait for the GPU."""

    def call(*arrays: Any) -> Any:
        with errstate(linalg="raise"):
            return function(*arrays)

    return call


_add_reduce: Any = np.add.reduce  # positional arguments: a tenth faster than by keyword


class _NumpyNamespace(Namespace):
    """NumPy, with the slow spellings replaced: 0-d constants and vectors of ones are kept.

    Kept arrays are read-only, so a hook that writes into a gradient cannot change what 1 is.
    """

    powers = {2: np.square, 0.5: np.sqrt, -1: np.reciprocal}
    operand: Any = staticmethod(np.asarray)
    MOST_KEPT = 1024
    LARGEST_KEPT = 16384  # elements

    def __init__(self) -> None:
        super().__init__(np, np.ndarray, "cpu", numerics)
        self._constants: dict[Any, Any] = {}
        self.as_strided = np.lib.stride_tricks.as_strided
        self.sum = self._sum
        self.broadcast_to = self._broadcast_to
        self.reshape = self._reshape
        self.transpose = self._transpose
        self.argsort = self._argsort
        self.scatter_add = self._scatter_add
        self.dot = np.ndarray.dot  # without a look at who else may define it

    def constant(self, value: Any, dtype: Any) -> Any:
        """`value` as a kept 0-d array: a ufunc takes it 0.3 us faster than a Python number."""
        try:
            return self._constants[value, dtype, type(value)]
        except KeyError:
            return self._keep((value, dtype, type(value)), np.array(value, dtype))

    def ones_of(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Kept ones of a shape; large ones are made anew."""
        try:
            return self._constants[shape, dtype]
        except KeyError:
            return self._keep((shape, dtype), np.ones(shape, dtype))

    @staticmethod
    def kept(x: Any, mask: Any) -> Any:
        """Bits times 0 or 1: `where` branches, which an irregular mask makes ten times as slow."""
        return np.multiply(x.view(f"i{x.itemsize}"), mask).view(x.dtype)

    def _keep(self, key: Any, array: Any) -> Any:
        if array.size <= self.LARGEST_KEPT:
            if len(self._constants) >= self.MOST_KEPT:  # values that differ in every step
                self._constants.clear()
            array.flags.writeable = False
            self._constants[key] = array
        return array

    def view_of(self, memory: Any, start: int, like: Any) -> Any:
        """A view of `memory`, in bytes, from `start` on: in the shape, dtype, strides of `like`."""
        return np.ndarray(like.shape, like.dtype, memory, start, like.strides)

    def nowhere(self, sizes: list[int]) -> list[Any]:
        """Addresses for bytes that nobody reads or writes: no page of them is ever there."""
        pages, ends = mmap.mmap(-1, sum(sizes)), itertools.accumulate(sizes)
        return [np.frombuffer(pages, uint8, n, end - n) for n, end in zip(sizes, ends, strict=True)]

    def wait(self) -> None:
        """Nothing to wait for."""

    @staticmethod
    def _reshape(array: Any, shape: Any) -> Any:
        return array.reshape(shape)  # also of a scalar, which a 0-d result of a ufunc is

    @staticmethod
    def _transpose(array: Any, dims: Any) -> Any:
        return array.transpose(dims)

    def _scatter_add(self, x: Any, index: Any, values: Any) -> None:
        if x.ndim == 2 and type(index) is np.ndarray and index.ndim == 1:
            add_rows(self, x, index, values)
        else:
            np.add.at(x, index, values)

    @staticmethod
    def _argsort(array: Any, axis: int) -> Any:
        return array.argsort(axis, "stable")  # CuPy's always is

    @staticmethod
    def way_of_sum(array: Any, axis: Any, dtype: Any = None) -> Any:
        """How `blocked_sum` is to sum over `axis`; None where NumPy's sum is exact enough."""
        if array.size <= 2 * SHORT or dtype is not None or array.dtype.kind != "f":
            return None
        return way_of(array.shape, array.strides, axis)

    def _sum(self, array: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        if array.size > 2 * SHORT:  # first of all what is nearly free to tell
            if axis is None:
                exact = array.flags.c_contiguous
            else:
                first = axis if type(axis) is int else axis[0] if len(axis) == 1 else None
                exact = first is not None and array.shape[first] <= SHORT
            if not exact and (way := self.way_of_sum(array, axis, dtype)) is not None:
                return blocked_sum(self, array, way, keepdims)
        return _add_reduce(array, axis, dtype, None, keepdims)

    @staticmethod
    def _broadcast_to(array: Any, shape: Any) -> Any:
        if not array.ndim:
            return np.ndarray(shape, array.dtype, array, 0, (0,) * len(shape))
        return np.broadcast_to(array, shape)


# XP finds the namespace of an array, or what writes down its instructions, and LIBRARIES always the
# namespace; ARRAYS are the types that need no normalizing.
XP: dict[type, Namespace] = {}
LIBRARIES: dict[type, Namespace] = {}
ARRAYS: set[type] = set()


def register(namespace: Namespace) -> Namespace:
    """Make arrays of `namespace.array_type` usable as the storage of Tensors."""
    XP[namespace.array_type] = LIBRARIES[namespace.array_type] = namespace
    ARRAYS.add(namespace.array_type)
    return namespace


NUMPY = register(_NumpyNamespace())
SCALAR = np.generic
# NumPy's ufuncs turn 0-d results into scalars; rules may meet them before they are normalized.
for _scalar in (np.bool_, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32):
    XP[_scalar] = NUMPY
XP[np.float64] = NUMPY


# Dtypes -------------------------------------------------------------------------------------

float16 = np.dtype(np.float16)
float32 = np.dtype(np.float32)
float64 = np.dtype(np.float64)
uint8 = np.dtype(np.uint8)
int8 = np.dtype(np.int8)
int16 = np.dtype(np.int16)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
bool_ = np.dtype(np.bool_)
dtype = np.dtype
SUPPORTED = (bool_, uint8, int8, int16, int32, int64, float16, float32, float64)

# The names of PyTorch that are not NumPy's.
ALIASES = {
    "half": float16,
    "float": float32,
    "double": float64,
    "short": int16,
    "int": int32,
    "long": int64,
    "bool": bool_,
}
_CATEGORY = {"b": 0, "u": 1, "i": 1, "f": 2}


def as_dtype(value: Any) -> np.dtype[Any]:
    """The dtype that `value` names: a dtype, a NumPy scalar type, `float`, `int`, `bool` or a name.

    Python's `float` is float64, as in NumPy and PyTorch. Raises TypeError for dtypes that Tensors
    do not have (complex, text, objects, unsigned integers over 8 bits).
    """
    found: Any = ALIASES.get(value) if isinstance(value, str) else None
    if found is None:
        try:
            found = np.dtype(value)
        except TypeError:
            found = None
    if found is None or found not in SUPPORTED:  # a dtype equals None where it is float64
        names = ", ".join(d.name for d in SUPPORTED)
        raise TypeError(f"not a dtype of Tensors: {value!r}; there are {names}")
    return found


# Modes --------------------------------------------------------------------------------------


class Modes(threading.local):
    """Every mutable mode of the package, one set a thread, read once per operation.

    Attributes:
        grad: whether operations record a graph: True or False, and while anomalies are detected
            what is as true, which they show their results.
        direct: whether gradient rules may write into the flat memory of a parameter's gradient; in
            a pass whose rules may, the turns that it has taken.
        apart: whether this thread is a rank of its own, which shares no state with others.
        counts: whether losses say what they divide by, also where no data parallelism listens.
        inference: whether results are marked as unusable in a recorded operation.
        capture: what is told of all that is not arithmetic: does it, or writes a step down.
        tracer: what writes down whole operations, None otherwise: see `ops.registry.tracing`.
        anomaly: what `detect_anomaly` set, None while it is off; `switch` sets `grad` by it.
        devices: those of the blocks `with mt.device(...):` around, the innermost last.
        default_dtype: the float type of `tensor([1.0])`, `zeros`, `randn` ...
        messages: nodes of messages that other ranks answer, or wait for answers to, in every
            backward pass, whatever it starts from.
        answers: what other ranks have answered already, in order: a pass that is done again asks
            them nothing that it has asked before.
    """

    def __init__(self) -> None:
        self.grad: Any = True
        self.direct: Any = True
        self.apart = False
        self.counts = False
        self.inference = False
        self.anomaly: Any = None
        self.capture: Any = EAGER
        self.tracer: Any = None
        self.devices: list[device] = []
        self.default_dtype = float32
        self.messages: list[Any] = []
        self.answers: list[Any] = []

    def switch(self, grad: bool) -> None:
        """Set whether operations record a graph."""
        self.grad = grad if self.anomaly is None else self.anomaly.modes[grad]


MODES = Modes()

# Raised by train(), eval(), requires_grad_() and the like: a captured step looks at flags again.
STRUCTURE = [0]


def alive(collection: weakref.WeakSet[Any]) -> list[Any]:
    """What is in a WeakSet now, to which another thread may be adding."""
    return [one for ref in list(vars(collection)["data"]) if (one := ref()) is not None]


class Listeners:
    """What is told when a `backward` in any thread begins and ends (DataParallel), held weakly.

    The references are a tuple that is replaced and never changed: garbage collection may remove
    one at any allocation, and CPython 3.11 crashes where that happens inside of `tuple(a_list)`.

    Attributes:
        refs: weak references, some perhaps dead; empty where there is nothing to tell.
    """

    def __init__(self) -> None:
        self.refs: tuple[weakref.ref[Any], ...] = ()
        self._lock = threading.RLock()  # the collector may come by while this thread holds it

    def add(self, one: Any) -> None:
        """Tell it from now on, as long as it lives."""
        ref = weakref.ref(one, self._remove)
        with self._lock:
            self.refs = (*(old for old in self.refs if old() is not None), ref)

    def _remove(self, dead: Any) -> None:
        with self._lock:
            self.refs = tuple([ref for ref in self.refs if ref is not dead])

    def __iter__(self) -> Iterator[Any]:
        return (one for ref in self.refs if (one := ref()) is not None)


LISTENERS = Listeners()


def set_default_dtype(value: Any) -> None:
    """Set the float type that creation functions and true division of integers use.

    Raises TypeError unless `value` is a floating dtype.

    Example:
        >>> mt.set_default_dtype(mt.float64)
        >>> mt.tensor([1.0]).dtype
        dtype('float64')
        >>> mt.set_default_dtype(mt.float32)
    """
    found = as_dtype(value)
    if found.kind != "f":
        raise TypeError(f"the default dtype must be a floating type, got {found.name}")
    MODES.default_dtype = found


def get_default_dtype() -> np.dtype[Any]:
    """The float type that creation functions use; float32 unless `set_default_dtype` changed it."""
    return MODES.default_dtype


@contextlib.contextmanager
def default_dtype(value: Any) -> Iterator[None]:
    """`set_default_dtype(value)` for the length of a block."""
    before = MODES.default_dtype
    try:
        set_default_dtype(value)
        yield
    finally:
        MODES.default_dtype = before


def promote_dtypes(operands: list[tuple[np.dtype[Any], int]]) -> np.dtype[Any]:
    """PyTorch's result type of `operands`, each a dtype and a rank.

    The rank is 2 for a Tensor with dimensions, 1 for a 0-d Tensor, 0 for a Python scalar: a lower
    rank counts only where its category (bool < integer < float) is higher than all above it.
    """
    best: np.dtype[Any] | None = None
    for rank in (2, 1, 0):
        found = [d for d, r in operands if r == rank]
        if not found:
            continue
        here = found[0]
        for d in found[1:]:
            here = _promote_pair(here, d)
        if best is None:
            best = here
        elif _CATEGORY[here.kind] > _CATEGORY[best.kind]:
            # A Python float beside integers gives the default float type, which it already has.
            best = here
    assert best is not None
    return best


def _promote_pair(a: np.dtype[Any], b: np.dtype[Any]) -> np.dtype[Any]:
    if _CATEGORY[a.kind] != _CATEGORY[b.kind]:
        return a if _CATEGORY[a.kind] > _CATEGORY[b.kind] else b
    return np.promote_types(a, b)


# Devices ------------------------------------------------------------------------------------


class device:
    """Where a Tensor's array lives: `device("cpu")`, `device("cuda")`, `device("cuda:1")`.

    In a block `with device("cuda"):` new Tensors and layers are made there by default.

    Raises RuntimeError for a type other than cpu and cuda, and for an index that is not a number
    or given twice.

    Example:
        >>> mt.zeros(2, device=mt.device("cpu")).device
        device(type='cpu')
    """

    __slots__ = ("index", "type")

    def __init__(self, type: str | device, index: int | None = None) -> None:
        name, colon, number = str(type).partition(":")
        if colon and index is None and number in map(str, range(256)):
            index, colon = int(number), ""
        known = name in ("cpu", "cuda") and not colon and (index is None or index in range(256))
        text = "expected cpu, cuda, cuda:N, or a type and an index"
        need(known, "device", text, type, *(() if index is None else (index,)))
        self.type: str = name
        self.index = index

    def __enter__(self) -> device:
        MODES.devices.append(resolve_device(self))
        return self

    def __exit__(self, *exc: object) -> None:
        MODES.devices.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type='{self.type}'{index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


CPU = device("cpu")


_IMPORTING = threading.Lock()  # cupy and cupyx import each other: a second thread sees halves


def cuda() -> Namespace:
    """CuPy's namespace, imported on first use; raises RuntimeError where it cannot be used."""
    with _IMPORTING:
        try:
            import cupy
            import cupyx
            from cupyx.scipy import special

            cupy.cuda.runtime.getDeviceCount()
        except Exception as error:  # any failure without a driver means: no GPU
            absent = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
            why = "CuPy is not installed" if absent else f"{type(error).__name__}: {error}"
            raise RuntimeError(
                f"no usable GPU: {why}; install CuPy for your CUDA "
                f"({install('cuda12')}, or cuda13) or use device cpu"
            ) from error
        known = LIBRARIES.get(cupy.ndarray)
        return register(_CupyNamespace(cupy, cupyx, special)) if known is None else known


def cuda_device_count() -> int:
    """The number of GPUs that CuPy can use; 0 where CuPy or its driver is missing."""
    try:
        return int(cuda().module.cuda.runtime.getDeviceCount())
    except RuntimeError:
        return 0


def resolve_device(value: Any) -> device:
    """The device that `value` names; None is the CPU.

    Raises RuntimeError for an absent GPU, and for one that this thread does not work on: CuPy
    launches every kernel on the current device, wherever its arrays are.
    """
    if value is None:
        return CPU
    found = value if type(value) is device else device(value)
    if found.type == "cuda":
        count = cuda().module.cuda.runtime.getDeviceCount()
        current = int(cuda().module.cuda.Device().id)
        index = current if found.index is None else found.index
        name = f"device cuda:{index}"
        need(index < count, name, f"does not exist: this machine has {count}")
        text = f"is not the one this thread works on, which is cuda:{current}: call "
        need(index == current, name, f"{text}microtrain.cuda.set_device({index}) first")
        return device("cuda", index)
    return found


def use_gpu(index: int) -> device:
    """Make GPU number `index` the one that this thread works on, and return it.

    Raises RuntimeError where it multiplies no matrices: CuPy can find a GPU without having the
    libraries to compile a kernel or to call one.
    """
    module = cuda().module
    try:
        module.cuda.Device(index).use()
        ones = module.ones((2, 2), float32)
        module.matmul(ones, ones).sum().item()
    except Exception as error:  # whatever a broken installation raises
        raise RuntimeError(
            f"GPU {index} does not compute: {type(error).__name__}: {error}; install CuPy with the "
            f"libraries that it needs ({install('cuda12')}, or cuda13) or use device cpu"
        ) from error
    return device("cuda", index)


def device_of(array: Any) -> device:
    """The device that holds `array`."""
    kind = type(array)  # while a step is captured, XP leads to its recorder
    if kind is np.ndarray or (LIBRARIES.get(kind) or XP[kind]).kind == "cpu":
        return CPU
    return device("cuda", array.device.id)


def address(array: Any) -> int:
    """Where the first element lies in memory."""
    data = array.ctypes.data if type(array) is np.ndarray else array.data.ptr
    return int(data)


def owner_of(array: Any) -> Any:
    """The array that owns the memory of `array`, a view or not."""
    while True:
        base = array.base
        if type(base).__name__ == "DummyArray":  # what as_strided puts in between
            base = base.base
        if type(base) not in LIBRARIES:
            return array
        array = base


def is_plain(array: Any) -> bool:
    """Whether `array` is row-major and aligned."""
    flags = array.flags
    return bool(flags.c_contiguous and getattr(flags, "aligned", True))


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """`array` as a NumPy array: itself on the CPU, a copy from a GPU."""
    return MODES.capture.looked_at(array)


def looks_at(tensor: Any, what: str) -> None:
    """Tell whoever records this thread that `what` is about to see the values; it may raise."""
    MODES.capture.refuse_look(what)
    if MODES.tracer is not None:
        MODES.tracer.look(tensor, what)


class Staging:
    """The values of an array in the host's memory, where MPI reads and writes them.

    Attributes:
        array: on any device, row-major.
        host: on the CPU `array` itself; beside a GPU's, page-locked memory that is made once.
    """

    __slots__ = ("array", "host")

    def __init__(self, array: Any) -> None:
        self.array = self.host = array
        if type(array) is not np.ndarray:
            memory = LIBRARIES[type(array)].pinned(array.nbytes)
            self.host = memory.view(array.dtype).reshape(array.shape)

    def fetch(self) -> np.ndarray[Any, Any]:
        """`host`, with the values of `array`, which has been computed when this returns."""
        if self.host is not self.array:
            self.array.get(out=self.host)
        return self.host

    def put(self) -> None:
        """The values of `host` into `array`; of a GPU's `fetch` waits until that is done."""
        if self.host is not self.array:
            self.array.set(self.host)


def library(where: device) -> Namespace:
    """The array library of a device."""
    return NUMPY if where.type == "cpu" else cuda()


def drawn(
    name: str, kind: str, shape: tuple[int, ...], dtype: Any = float64, *limits: int,
    like: Any = np.ndarray, state: bool = False,
) -> Any:  # fmt: skip
    """Random numbers for the function `name`, an array of the library of `like`, a type of array.

    kind, limits: see `random.forward_numbers`; state: see `random.where_to_draw`. Captured steps
    draw anew at every replay.
    """
    draw, whole = where_to_draw(name, shape, state)
    return XP[like].random_numbers(shape, draw, kind, np.dtype(dtype).name, whole, *limits)


MASKED = "a masked array, whose mask would be lost; fill it: .filled(...)"  # for errors


def made(array: Any) -> Any:
    """A new array that depends on no Tensor, as one of the step that is captured, if any is."""
    return MODES.capture.made(array)


def to_device(array: Any, where: device) -> Any:
    """`array` on device `where`: itself if it is there already, else a copy."""
    if device_of(array) == where:
        return array
    host = to_host(array)
    if where.type == "cpu":
        return host
    module = cuda().module
    with module.cuda.Device(where.index):
        return made(module.asarray(host))
