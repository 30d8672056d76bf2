"""Making Tensors: from data, filled, counted and drawn at random.

Random draws come from the stream that `manual_seed` sets, which is equal on all ranks; in a
training step from one of the global batch (`microtrain.random`).
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from . import backend
from .autograd import no_grad
from .backend import MODES, NUMPY, XP, as_dtype, made, resolve_device, to_device
from .common.missing_names import namespace
from .errors import need, wrong
from .ops.coercion import examine
from .random import draw_dtype
from .tensor import INFERENCE, TENSORS, Tensor, is_state, kind_of, one_dtype, wrap


def _placed(device: Any) -> Any:
    """The device given, or else that of the block `with mt.device(...):` around."""
    return MODES.devices[-1] if device is None and MODES.devices else device


def _finish(array: np.ndarray[Any, Any], device: Any, requires_grad: bool) -> Tensor:
    if type(array) is np.ndarray:
        array = made(array)
    device = _placed(device)
    out = wrap(array if device is None else to_device(array, resolve_device(device)))
    if MODES.inference:
        out._version = INFERENCE
    if requires_grad:
        out.requires_grad_()
    return out


_OPTIONS = inspect.signature(lambda *, dtype=None, device=None, requires_grad=False: None)


def _factory(make: Callable[..., Any]) -> Callable[..., Tensor]:
    """The function that makes a Tensor of what `make` returns: an array of `dtype`; where it takes
    none, what is drawn: kind, shape and limits, see `random.forward_numbers`.

    It has the further arguments of all of them: `dtype`, `device` and `requires_grad`. Where the
    first one is `input` the first two are by default as that has them.
    """
    signature = inspect.signature(make)
    own = [p for name, p in signature.parameters.items() if name != "dtype"]
    draws, alike = len(own) == len(signature.parameters), own[0].name == "input"

    @functools.wraps(make)
    def function(
        *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **more: Any
    ) -> Tensor:
        input = None
        if alike:
            input = args[0] if args else more["input"]
            dtype = input.dtype if dtype is None else dtype
            device = input.device if device is None else device
            here = getattr(device, "type", device) == "cpu" and not MODES.devices
            device = None if here else device
        if not draws:
            return _finish(make(*args, dtype=dtype, **more), device, requires_grad)
        made = _drawn(make.__name__, *make(*args, **more), dtype=dtype, device=device, input=input)
        return _finish(made, device, requires_grad)

    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *_OPTIONS.parameters.values()], return_annotation="Tensor"
    )
    return function


def _drawn(
    name: str, kind: str, shape: tuple[int, ...], *limits: int, dtype: Any, device: Any, input: Any
) -> Any:
    """Random numbers, on the device; `input` is the Tensor that the result is like."""
    if kind in ("uniform", "normal"):
        wanted = _float(dtype)
        kept = draw_dtype(wanted, kind)
    else:
        wanted, kept = as_dtype("long" if dtype is None else dtype), np.float64
    where = _placed(device)
    like = NUMPY.array_type if where is None else backend.library(resolve_device(where)).array_type
    array = backend.drawn(name, kind, shape, kept, *limits, like=like, state=is_state(input))
    return array.astype(wanted, copy=False)


def _shape(sizes: tuple[Any, ...], size: Any = None) -> tuple[int, ...]:
    """The shape in a call that takes `f(2, 3)`, `f((2, 3))` and `f(size=(2, 3))`."""
    if size is not None:
        need(not sizes, "sizes", "got the size twice: {} and size={}", sizes, size, error=TypeError)
        sizes = (size,)
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    shape = tuple(operator.index(size) for size in sizes)
    if min(shape, default=0) < 0:
        raise wrong("sizes", "must not be negative", shape)
    return shape


def _float(dtype: Any) -> np.dtype[Any]:
    return MODES.default_dtype if dtype is None else as_dtype(dtype)


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A new Tensor with a copy of `data`: numbers, nested sequences, a NumPy array, a Tensor.

    Python floats get the default float type, integers int64, booleans bool; Tensors, NumPy's own
    numbers, arrays and what NumPy makes one of (a column of a table) keep theirs. Integers with
    `requires_grad=True` and no dtype become floats, with a warning.

    Raises:
        TypeError: data of an unsupported type (text, objects, masked arrays).
        ValueError: nested sequences of unequal lengths, integers too large for int64.
        RuntimeError: requires_grad with an integer dtype, an absent device.

    Example:
        >>> mt.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        tensor([[1., 2.],
                [3., 4.]], requires_grad=True)
    """
    if type(data) in TENSORS:
        device = data.device if device is None else device
    array = np.array(_plain(data))
    if array.dtype.kind in "Ou" and not _has_dtype(data):
        array = _large(array, dtype)
    text = "cannot hold {} data that NumPy reads as {}; expected numbers or booleans"
    holds = array.dtype.kind in "biuf"
    need(holds, "tensor", text, type(data), array.dtype, error=TypeError)
    if dtype is not None:
        wanted = as_dtype(dtype)
    elif array.dtype.kind == "f" and not _has_dtype(data):
        wanted = MODES.default_dtype
    else:
        wanted = array.dtype
    wanted = as_dtype(wanted)
    if requires_grad and dtype is None and wanted.kind != "f":
        wanted = _as_floats("tensor", f"{wanted.name} data")
    return _finish(array.astype(wanted, copy=False), device, requires_grad)


def _as_floats(call: str, data: str) -> Any:
    """The default dtype, with a warning."""
    default = MODES.default_dtype
    text = f"{call}(..., requires_grad=True) of {data} became {default.name}, because only floats "
    warnings.warn(f"{text}have gradients; give floats or a dtype", stacklevel=3)
    return default


def _large(array: Any, dtype: Any) -> Any:
    """Python's numbers of which some are beyond int64, where they become floats."""
    kinds = {type(value) for value in array.ravel().tolist()}
    if not kinds <= {int, float, bool}:
        return array
    if float not in kinds and (dtype is None or as_dtype(dtype).kind != "f"):
        text = "{} does not fit int64; give a float dtype"
        raise wrong("tensor", text, array.max(), error=ValueError)
    return array.astype(np.float64)


def _plain(data: Any) -> Any:
    """`data` with arrays in place of Tensors."""
    if type(data) in TENSORS:
        return backend.to_host(data._array)
    if isinstance(data, list | tuple) and any(
        type(x) in TENSORS or isinstance(x, list | tuple | np.ma.MaskedArray) for x in data
    ):
        return [_plain(x) for x in data]
    if isinstance(data, np.ma.MaskedArray):
        raise TypeError(f"a Tensor has no mask: got {backend.MASKED}")
    return data


def _has_dtype(data: Any) -> bool:
    """Whether the first number in `data` has a dtype of its own; Python's numbers have none."""
    while isinstance(data, list | tuple) and len(data):
        data = data[0]
    return hasattr(data, "__array__") or type(data) in TENSORS


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` as a Tensor, sharing memory where that is possible.

    Example:
        >>> mt.as_tensor([1.0, 2.0])
        tensor([1., 2.])
    """
    return asarray(data, dtype=dtype, device=device)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A Tensor that shares the memory of `array`.

    Raises TypeError for anything but a NumPy array of a supported dtype without a mask.

    Example:
        >>> array = np.zeros(2)
        >>> x = mt.from_numpy(array)
        >>> array[0] = 5
        >>> x
        tensor([5., 0.], dtype=float64)
    """
    if not isinstance(array, np.ndarray):
        raise wrong("from_numpy", f"expected a NumPy array, got {kind_of(array)}", error=TypeError)
    as_dtype(array.dtype)
    return wrap(one_dtype(_plain(array)))


_HOST, _GPU = (1, 3), (2, 13)  # memory of the CPU and of CUDA in DLPack's numbers


def from_dlpack(ext_tensor: Any) -> Tensor:
    """A Tensor over the memory of a Tensor or array of another library that knows DLPack.

    That is shared: what one side writes, the other sees (autograd does not notice such writes).
    Read-only memory makes a Tensor that refuses to be written to.

    Raises TypeError for an object without `__dlpack__` and for dtypes that Tensors do not have,
    RuntimeError for memory of other devices; and what the other library raises where it does not
    share, such as BufferError for a Tensor that requires grad.

    Example:
        >>> array = np.zeros(2)
        >>> x = mt.from_dlpack(array)
        >>> array[0] = 5
        >>> x
        tensor([5., 0.], dtype=float64)
    """
    fits, text = hasattr(ext_tensor, "__dlpack__"), "expected an object with __dlpack__"
    need(fits, "from_dlpack", text, type(ext_tensor), error=TypeError)
    kind, number = ext_tensor.__dlpack_device__()
    if kind in _HOST:
        array = one_dtype(np.from_dlpack(ext_tensor))
    elif kind in _GPU:
        resolve_device(f"cuda:{number}")
        array = backend.cuda().module.from_dlpack(ext_tensor)
    else:
        raise wrong("from_dlpack", "expected memory of the CPU or of CUDA, got type {}", kind)
    as_dtype(array.dtype)
    return wrap(array)


def asarray(
    obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None,
    requires_grad: bool | None = None,
) -> Tensor:  # fmt: skip
    """`obj` as a Tensor: a Tensor or array shares its memory, other data are copied.

    Args:
        obj: a Tensor, an array, an object that knows DLPack, numbers or sequences of them.
        dtype, device: of the result; another one than that of `obj` needs a copy.
        copy: True copies always, None only where it must be, False never.
        requires_grad: whether operations on the result are recorded; False detaches it, None
            leaves that as it is with `obj`.

    Raises ValueError where `copy=False` and a copy is needed; and what `mt.tensor` raises.
    """
    plain, like = isinstance(obj, np.ndarray), None
    if type(obj) in TENSORS:
        like = obj
    elif plain and (dtype is None or as_dtype(dtype) == obj.dtype):
        like = from_numpy(obj)
    elif not plain and hasattr(obj, "__dlpack__"):
        like = from_dlpack(obj)
    out = tensor(obj, dtype=dtype) if like is None else like.to(dtype=dtype)
    out = out.to(device=device)
    fresh = like is None or out._array is not like._array
    text = "copy=False, but this needs a copy of the data"
    need(copy is not False or not fresh, "asarray", text, error=ValueError)
    out = out.clone() if copy and not fresh else out
    if requires_grad is None or out.requires_grad == requires_grad:
        return out
    return out.detach().requires_grad_(requires_grad)


@_factory
def zeros(*sizes: Any, size: Any = None, dtype: Any) -> Any:
    """Zeros of shape `size` in the default float type.

    Example:
        >>> mt.zeros(2, 3)
        tensor([[0., 0., 0.],
                [0., 0., 0.]])
    """
    return np.zeros(_shape(sizes, size), _float(dtype))


@_factory
def ones(*sizes: Any, size: Any = None, dtype: Any) -> Any:
    """Ones of shape `size` in the default float type.

    Example:
        >>> mt.ones(3)
        tensor([1., 1., 1.])
    """
    return np.ones(_shape(sizes, size), _float(dtype))


@_factory
def empty(*sizes: Any, size: Any = None, dtype: Any) -> Any:
    """Memory of shape `size` whose values are undefined."""
    return XP[np.ndarray].empty(_shape(sizes, size), _float(dtype))  # no constant of a capture


@_factory
def full(size: Any, fill_value: Any, *, dtype: Any) -> Any:
    """`fill_value` in shape `size`; the dtype follows the value (floats: the default type).

    Example:
        >>> mt.full((2,), 7)
        tensor([7, 7])
    """
    if dtype is None:
        dtype = np.asarray(fill_value).dtype
        dtype = MODES.default_dtype if dtype.kind == "f" else dtype
    return np.full(_shape((size,)), fill_value, as_dtype(dtype))


@_factory
def eye(n: int, m: int | None = None, *, dtype: Any) -> Any:
    """Ones on the diagonal of an (n, m) matrix, zeros elsewhere.

    Example:
        >>> mt.eye(2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    rows, columns = _shape((n, n if m is None else m))
    return np.eye(rows, columns, dtype=_float(dtype))


def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """`start`, `start + step`, ... before `end`; int64 for integers, else the default float type.

    Integers with `requires_grad=True` and no dtype become floats, with a warning.

    Example:
        >>> mt.arange(5)
        tensor([0, 1, 2, 3, 4])
        >>> mt.arange(0.0, 1.0, 0.25)
        tensor([0.0000, 0.2500, 0.5000, 0.7500])
    """
    if end is None:
        start, end = 0, start
    start, end, step = _number(start), _number(end), _number(step)
    need(step, "arange", "step must be nonzero")
    text = "upper bound and lower bound inconsistent with step sign"
    need((end - start) / step >= 0, "arange", text, start, end, step)
    whole = all(isinstance(v, int | np.integer) for v in (start, end, step))
    if dtype is None:
        dtype = np.int64 if whole else MODES.default_dtype
        dtype = _as_floats("arange", "integers") if whole and requires_grad else dtype
    wanted = as_dtype(dtype)
    if wanted.kind in "iu" and not whole:
        # As in PyTorch: integers from integers, counted in int64 by these and else by the given.
        count = math.ceil((end - start) / step)
        start, end, step = int(start), int(end), int(step)
        need(step, "arange", "the step is 0 in {}; give floats a float dtype", wanted)
        count = max(-((start - end) // step), 0) if wanted == np.int64 else count
    else:
        count = -((start - end) // step) if whole else math.ceil((end - start) / step)
    return _finish((start + np.arange(count) * step).astype(wanted), device, requires_grad)


def _number(bound: Any) -> Any:
    """A number, or that in a 0-d Tensor, as Python has it: of no dtype that would round others."""
    return bound.item() if type(bound) in TENSORS or isinstance(bound, np.generic) else bound


def _spaced(start: Any, end: Any, count: int) -> Any:
    return np.full(1, start) if count == 1 else np.linspace(float(start), float(end), count)


@_factory
def linspace(start: Any, end: Any, steps: int, *, dtype: Any) -> Any:
    """`steps` numbers from `start` to `end`, both included, equally far apart.

    With an integer dtype the bounds are cut off to integers first, and then what lies between.

    Example:
        >>> mt.linspace(0, 1, 5)
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
    """
    (count,) = _shape((steps,))
    start, end, wanted = _number(start), _number(end), _float(dtype)
    if wanted.kind in "iu":
        start, end = int(start), int(end)
    if wanted.kind in "iu" and count != 1:
        step = (float(end) - float(start)) / max(count - 1, 1)
        number = np.arange(count)
        array = np.where(number < count // 2, start + step * number, end - step * number[::-1])
    else:
        array = _spaced(start, end, count)
    return array.astype(wanted)


@_factory
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any) -> Any:
    """`base ** x` for the `steps` numbers x that `linspace` gives."""
    powers = _spaced(_number(start), _number(end), *_shape((steps,)))
    return np.power(float(base), powers).astype(_float(dtype))


@_factory
def scalar_tensor(s: Any, *, dtype: Any) -> Any:
    """The number `s` as a 0-d Tensor in the default float type."""
    return np.full((), _number(s), _float(dtype))


@_factory
def rand(*sizes: Any, size: Any = None) -> Any:
    """Uniform random numbers in [0, 1).

    In a training step the leading dimension is samples, see `microtrain.random`; so in all that
    draw.

    Example:
        >>> mt.rand(2, 3).shape
        (2, 3)
    """
    return "uniform", _shape(sizes, size)


@_factory
def randn(*sizes: Any, size: Any = None) -> Any:
    """Normal random numbers of mean 0 and variance 1.

    Example:
        >>> x = mt.randn(1000, 3)
        >>> x.shape, x.mean().abs().item() < 0.1
        ((1000, 3), True)
    """
    return "normal", _shape(sizes, size)


@_factory
def randint(low: int = 0, high: Any = None, size: Any = None) -> Any:
    """Random integers in [low, high), or in [0, low) where only one bound is given.

    Example:
        >>> mt.randint(1, 7, (1000,)).unique()
        tensor([1, 2, 3, 4, 5, 6])
    """
    if size is None:  # f(high, size)
        low, high, size = 0, low, high
    need(size is not None, "randint", "expected a bound and a size", error=TypeError)
    return _integers("randint", low, high, _shape((size,)))


def _integers(name: str, low: Any, high: Any, shape: tuple[int, ...]) -> Any:
    low, high = (0, low) if high is None else (low, high)
    need(low < high, name, "low must be less than high, got {} and {}", low, high)
    return "integers", shape, operator.index(low), operator.index(high)


@_factory
def randperm(n: int) -> Any:
    """The numbers from 0 to `n` - 1 in random order.

    In a step over several ranks the order is one for all of them: `with mt.random.shared():`.

    Example:
        >>> order = mt.randperm(5)
        >>> order.sort().values
        tensor([0, 1, 2, 3, 4])
    """
    return "permutation", _shape((n,))


def normal(
    mean: Any, std: Any = 1.0, size: Any = None, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Normal random numbers of the given mean and standard deviation, outside any graph.

    Args:
        mean, std: numbers, or Tensors of a float dtype that broadcast.
        size: the shape, where both are numbers, and only there.
        dtype, device, requires_grad: of the result, likewise.

    Raises:
        TypeError: a size (or dtype ...) beside a Tensor, or none beside numbers.
        RuntimeError: `std` is negative.
    """
    tensors = type(mean) in TENSORS or type(std) in TENSORS
    one, text = tensors != (size is not None), "expected a size for numbers, and none for Tensors"
    need(one, "normal", text, error=TypeError)
    free = not tensors or (dtype is None and device is None and not requires_grad)
    text = "dtype, device and requires_grad are those of the Tensors"
    need(free, "normal", text, error=TypeError)
    if type(std) in TENSORS:
        examine(std, _not_negative)
    else:
        _not_negative(std)
    with no_grad():
        out = randn_like(mean + std) if tensors else randn(size, dtype=dtype, device=device)
        drawn: Tensor = out * std + mean
    return drawn.requires_grad_(requires_grad)


def _not_negative(std: Any) -> None:
    need(np.all(std >= 0), "normal", "expected std >= 0")


@_factory
def zeros_like(input: Tensor, *, dtype: Any) -> Any:
    """`zeros` in the shape, dtype and device of `input`.

    Example:
        >>> mt.zeros_like(mt.tensor([1, 2]))
        tensor([0, 0])
    """
    return np.zeros(input.shape, as_dtype(dtype))


@_factory
def ones_like(input: Tensor, *, dtype: Any) -> Any:
    """`ones` in the shape, dtype and device of `input`.

    Example:
        >>> mt.ones_like(mt.tensor([5.0, 7.0]))
        tensor([1., 1.])
    """
    return np.ones(input.shape, as_dtype(dtype))


@_factory
def empty_like(input: Tensor, *, dtype: Any) -> Any:
    """`empty` in the shape, dtype and device of `input`."""
    return NUMPY.empty(input.shape, as_dtype(dtype))


@_factory
def full_like(input: Tensor, fill_value: Any, *, dtype: Any) -> Any:
    """`fill_value` in the shape, dtype and device of `input`."""
    return np.full(input.shape, fill_value, as_dtype(dtype))


@_factory
def rand_like(input: Tensor) -> Any:
    """`rand` in the shape, dtype and device of `input`."""
    return "uniform", input.shape


@_factory
def randn_like(input: Tensor) -> Any:
    """`randn` in the shape, dtype and device of `input`."""
    return "normal", input.shape


@_factory
def randint_like(input: Tensor, low: int, high: Any = None) -> Any:
    """`randint` in the shape, dtype and device of `input`."""
    return _integers("randint_like", low, high, input.shape)


namespace(globals())
