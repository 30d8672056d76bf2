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

from .autograd import no_grad
from .backend import (
    MASKED,
    MODES,
    NUMPY,
    XP,
    as_dtype,
    cuda,
    drawn,
    library,
    made,
    resolve_device,
    to_device,
    to_host,
)
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


def factory(make: Callable[..., Any]) -> Callable[..., Tensor]:
    """The function that makes a Tensor of the array that `make(..., dtype=)` returns.

    It has the further arguments of all of them: `dtype`, `device` and `requires_grad`.
    """

    @functools.wraps(make)
    def function(
        *args: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **more: Any
    ) -> Tensor:
        return _finish(make(*args, dtype=dtype, **more), device, requires_grad)

    signature = inspect.signature(make)
    own = [p for name, p in signature.parameters.items() if name != "dtype"]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *_OPTIONS.parameters.values()]
    )
    return function


def _shape(sizes: tuple[Any, ...], size: Any = None) -> tuple[int, ...]:
    """The shape in a call that takes `f(2, 3)`, `f((2, 3))` and `f(size=(2, 3))`."""
    if size is not None:
        if sizes:
            raise TypeError(f"got the size twice: {sizes} and size={size}")
        sizes = (size,)
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    shape = tuple(operator.index(size) for size in sizes)
    if any(size < 0 for size in shape):
        raise RuntimeError(f"sizes must not be negative, got {shape}")
    return shape


def _float(dtype: Any) -> np.dtype[Any]:
    return MODES.default_dtype if dtype is None else as_dtype(dtype)


def tensor(
    data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False,
    volatile: None = None,
) -> Tensor:  # fmt: skip
    """A new Tensor with a copy of `data`: numbers, nested sequences, a NumPy array, a Tensor.

    Python floats get the default float type, integers int64, booleans bool; arrays, Tensors and
    NumPy's own numbers keep theirs. Integers with `requires_grad=True` and no dtype become floats,
    with a warning.

    Raises:
        TypeError: data of an unsupported type (text, objects, masked arrays); `volatile`, which is
            no more.
        ValueError: nested sequences of unequal lengths, integers too large for int64.
        RuntimeError: requires_grad with an integer dtype, an absent device.

    Example:
        >>> mt.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        tensor([[1., 2.],
                [3., 4.]], requires_grad=True)
    """
    if volatile is not None:
        raise TypeError(
            "tensor(): volatile is the legacy way; compute inside `with mt.no_grad():`, where "
            "nothing is recorded"
        )
    if type(data) in TENSORS:
        device = data.device if device is None else device
    array = np.array(_plain(data))
    if array.dtype.kind in "Ou" and not _has_dtype(data):
        array = _large(array, dtype)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"tensor(): cannot hold {type(data).__name__} data that NumPy reads as {array.dtype}; "
            "expected numbers or booleans"
        )
    if dtype is not None:
        wanted = as_dtype(dtype)
    elif array.dtype.kind == "f" and not _has_dtype(data):
        wanted = MODES.default_dtype
    else:
        wanted = array.dtype
    wanted = as_dtype(wanted)
    if requires_grad and dtype is None and wanted.kind != "f":
        warnings.warn(
            f"tensor(..., requires_grad=True) of {wanted.name} data became "
            f"{MODES.default_dtype.name}, because only floats have gradients; write the data as "
            "floats or give a dtype",
            stacklevel=2,
        )
        wanted = MODES.default_dtype
    return _finish(array.astype(wanted, copy=False), device, requires_grad)


def _large(array: Any, dtype: Any) -> Any:
    """Python's numbers of which some are beyond int64, where they become floats."""
    kinds = {type(value) for value in array.ravel().tolist()}
    if not kinds <= {int, float, bool}:
        return array
    if float not in kinds and (dtype is None or as_dtype(dtype).kind != "f"):
        raise ValueError(f"tensor(): {array.max()} does not fit int64; give a float dtype")
    return array.astype(np.float64)


def _plain(data: Any) -> Any:
    """`data` with arrays in place of Tensors."""
    if type(data) in TENSORS:
        return to_host(data._array)
    if isinstance(data, list | tuple) and any(
        type(x) in TENSORS or isinstance(x, list | tuple | np.ma.MaskedArray) for x in data
    ):
        return [_plain(x) for x in data]
    if isinstance(data, np.ma.MaskedArray):
        raise TypeError(f"a Tensor has no mask: got {MASKED}")
    return data


def _has_dtype(data: Any) -> bool:
    """Whether the first number in `data` has a dtype of its own; Python's numbers have none."""
    while isinstance(data, list | tuple) and len(data):
        data = data[0]
    return isinstance(data, np.ndarray | np.generic) or type(data) in TENSORS


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """`data` as a Tensor, sharing memory where that is possible."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if isinstance(data, np.ndarray) and (dtype is None or as_dtype(dtype) == data.dtype):
        out = from_numpy(data)
        return out if device is None else out.to(device=device)
    return tensor(data, dtype=dtype, device=device)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A Tensor that shares the memory of `array`.

    Raises TypeError for anything but a NumPy array of a supported dtype without a mask.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected a NumPy array, got {kind_of(array)}")
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
    if not hasattr(ext_tensor, "__dlpack__"):
        raise TypeError(
            f"from_dlpack: expected an object with __dlpack__, got {type(ext_tensor).__name__}"
        )
    kind, number = ext_tensor.__dlpack_device__()
    if kind in _HOST:
        array = one_dtype(np.from_dlpack(ext_tensor))
    elif kind in _GPU:
        resolve_device(f"cuda:{number}")
        array = cuda().module.from_dlpack(ext_tensor)
    else:
        raise RuntimeError(f"from_dlpack: expected memory of the CPU or of CUDA, got type {kind}")
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
    if type(obj) in TENSORS:
        like = obj
    elif isinstance(obj, np.ndarray):
        like = from_numpy(obj)
    elif hasattr(obj, "__dlpack__"):
        like = from_dlpack(obj)
    else:
        like = None
    out = tensor(obj, dtype=dtype) if like is None else like.to(dtype=dtype)
    out = out.to(device=device)
    fresh = like is None or out._array is not like._array
    if copy is False and fresh:
        raise ValueError("asarray: copy=False, but this needs a copy of the data")
    out = out.clone() if copy and not fresh else out
    if requires_grad is None or out.requires_grad == requires_grad:
        return out
    return out.detach().requires_grad_(requires_grad)


@factory
def zeros(*sizes: Any, size: Any = None, dtype: Any) -> Any:
    """Zeros of shape `size` in the default float type."""
    return np.zeros(_shape(sizes, size), _float(dtype))


@factory
def ones(*sizes: Any, size: Any = None, dtype: Any) -> Any:
    """Ones of shape `size` in the default float type."""
    return np.ones(_shape(sizes, size), _float(dtype))


@factory
def empty(*sizes: Any, size: Any = None, dtype: Any) -> Any:
    """Memory of shape `size` whose values are undefined."""
    return XP[np.ndarray].empty(_shape(sizes, size), _float(dtype))  # no constant of a capture


@factory
def full(size: Any, fill_value: Any, *, dtype: Any) -> Any:
    """`fill_value` in shape `size`; the dtype follows the value (floats: the default type)."""
    if dtype is None:
        dtype = np.asarray(fill_value).dtype
        dtype = MODES.default_dtype if dtype.kind == "f" else dtype
    return np.full(_shape((size,)), fill_value, as_dtype(dtype))


@factory
def eye(n: int, m: int | None = None, *, dtype: Any) -> Any:
    """Ones on the diagonal of an (n, m) matrix, zeros elsewhere."""
    rows, columns = _shape((n, n if m is None else m))
    return np.eye(rows, columns, dtype=_float(dtype))


def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """`start`, `start + step`, ... before `end`; int64 for integers, else the default float type.

    Integers with `requires_grad=True` and no dtype become floats, with a warning.
    """
    if end is None:
        start, end = 0, start
    start, end, step = _number(start), _number(end), _number(step)
    if not step:
        raise RuntimeError("arange: step must be nonzero")
    if (end - start) / step < 0:
        raise RuntimeError(
            f"arange: upper bound and lower bound inconsistent with step sign ({start}, {end}, "
            f"{step})"
        )
    whole = all(isinstance(v, int | np.integer) for v in (start, end, step))
    if dtype is None:
        if whole and requires_grad:
            warnings.warn(
                f"arange(..., requires_grad=True) of integers became {MODES.default_dtype.name}, "
                "because only floats have gradients; give floats or a dtype",
                stacklevel=2,
            )
        dtype = np.int64 if whole and not requires_grad else MODES.default_dtype
    wanted = as_dtype(dtype)
    if wanted.kind in "iu" and not whole:
        # As in PyTorch: integers from integers, counted in int64 by these and else by the given.
        count = math.ceil((end - start) / step)
        start, end, step = int(start), int(end), int(step)
        if not step:
            raise RuntimeError(f"arange: the step is 0 in {wanted.name}; give floats a float dtype")
        count = max(-((start - end) // step), 0) if wanted == np.int64 else count
    else:
        count = -((start - end) // step) if whole else math.ceil((end - start) / step)
    return _finish((start + np.arange(count) * step).astype(wanted), device, requires_grad)


def _number(bound: Any) -> Any:
    """A number, or that in a 0-d Tensor, as Python has it: of no dtype that would round others."""
    return bound.item() if type(bound) in TENSORS or isinstance(bound, np.generic) else bound


@factory
def linspace(start: Any, end: Any, steps: int, *, dtype: Any) -> Any:
    """`steps` numbers from `start` to `end`, both included, equally far apart.

    With an integer dtype the bounds are cut off to integers first, and then what lies between.
    """
    (count,) = _shape((steps,))
    start, end, wanted = _number(start), _number(end), _float(dtype)
    if wanted.kind in "iu":
        start, end = int(start), int(end)
    if count == 1:
        array = np.full(1, start)
    elif wanted.kind in "iu":
        step = (float(end) - float(start)) / max(count - 1, 1)
        number = np.arange(count)
        array = np.where(number < count // 2, start + step * number, end - step * number[::-1])
    else:
        array = np.linspace(float(start), float(end), count)
    return array.astype(wanted)


@factory
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any) -> Any:
    """`base ** x` for the `steps` numbers x that `linspace` gives."""
    powers = linspace(start, end, steps, dtype=np.float64).numpy()
    return np.power(float(base), powers).astype(_float(dtype))


@factory
def scalar_tensor(s: Any, *, dtype: Any) -> Any:
    """The number `s` as a 0-d Tensor in the default float type."""
    return np.full((), _number(s), _float(dtype))


def _filled(
    name: str, kind: str, shape: tuple[int, ...], options: Any, *limits: int,
    kept: Any = np.float64, input: Any = None,
) -> Tensor:  # fmt: skip
    """Random numbers of a `kind` (`random.forward_numbers`), in the dtype and place of `options`.

    kept: the dtype to draw in; input: the Tensor that the result is like.
    """
    dtype, device, requires_grad = options
    device = _placed(device)
    like = NUMPY.array_type if device is None else library(resolve_device(device)).array_type
    array = drawn(name, kind, shape, kept, *limits, like=like, state=is_state(input))
    return _finish(array.astype(dtype, copy=False), device, requires_grad)


def _floats(name: str, kind: str, shape: Any, options: Any, input: Any = None) -> Tensor:
    wanted = _float(options[0])
    options = (wanted, *options[1:])
    return _filled(name, kind, shape, options, kept=draw_dtype(wanted, kind), input=input)


def rand(
    *sizes: Any, size: Any = None, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Uniform random numbers in [0, 1).

    In a training step the leading dimension is samples, see `microtrain.random`; so in all that
    draw.
    """
    return _floats("rand", "uniform", _shape(sizes, size), (dtype, device, requires_grad))


def randn(
    *sizes: Any, size: Any = None, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Normal random numbers of mean 0 and variance 1."""
    return _floats("randn", "normal", _shape(sizes, size), (dtype, device, requires_grad))


def randint(
    low: int = 0, high: Any = None, size: Any = None, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Random integers in [low, high), or in [0, low) where only one bound is given."""
    if size is None:  # f(high, size)
        low, high, size = 0, low, high
    if high is None:  # f(high, size=size)
        low, high = 0, low
    if size is None:
        raise TypeError("randint: expected a bound and a size")
    return _integers("randint", low, high, _shape((size,)), (dtype, device, requires_grad))


def _integers(
    name: str, low: Any, high: Any, shape: tuple[int, ...], options: Any, input: Any = None
) -> Tensor:
    if not low < high:
        raise RuntimeError(f"{name}: low must be less than high, got {low} and {high}")
    wanted = np.int64 if options[0] is None else as_dtype(options[0])
    limits = operator.index(low), operator.index(high)
    return _filled(name, "integers", shape, (wanted, *options[1:]), *limits, input=input)


def randperm(
    n: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """The numbers from 0 to `n` - 1 in random order.

    In a step over several ranks the order is one for all of them: `with mt.random.shared():`.
    """
    wanted = np.int64 if dtype is None else as_dtype(dtype)
    return _filled("randperm", "permutation", _shape((n,)), (wanted, device, requires_grad))


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
    if tensors == (size is not None):
        raise TypeError("normal: expected a size for numbers, and none for Tensors")
    if tensors and (dtype is not None or device is not None or requires_grad):
        raise TypeError("normal: dtype, device and requires_grad are those of the Tensors")
    if type(std) in TENSORS:
        examine(std, _not_negative)
    else:
        _not_negative(std)
    with no_grad():
        out = randn_like(mean + std) if tensors else randn(size, dtype=dtype, device=device)
        drawn: Tensor = out * std + mean
    return drawn.requires_grad_(requires_grad)


def _not_negative(std: Any) -> None:
    if not np.all(std >= 0):
        raise RuntimeError("normal: expected std >= 0")


def _like(name: str, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(
        input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        chosen, where, _ = _options(input, dtype, device)
        return make(input.shape, dtype=chosen, device=where, requires_grad=requires_grad)

    function.__name__ = name
    function.__doc__ = f"`{name[:-5]}` in the shape, dtype and device of `input`."
    return function


zeros_like = _like("zeros_like", zeros)
ones_like = _like("ones_like", ones)
empty_like = _like("empty_like", empty)


def _options(input: Tensor, dtype: Any, device: Any, requires_grad: bool = False) -> Any:
    where = input.device if device is None else device
    where = None if getattr(where, "type", where) == "cpu" and not MODES.devices else where
    return input.dtype if dtype is None else dtype, where, requires_grad


def rand_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`rand` in the shape, dtype and device of `input`."""
    options = _options(input, dtype, device, requires_grad)
    return _floats("rand_like", "uniform", input.shape, options, input)


def randn_like(
    input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`randn` in the shape, dtype and device of `input`."""
    options = _options(input, dtype, device, requires_grad)
    return _floats("randn_like", "normal", input.shape, options, input)


def randint_like(
    input: Tensor, low: int, high: Any = None, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """`randint` in the shape, dtype and device of `input`."""
    low, high = (0, low) if high is None else (low, high)
    options = _options(input, dtype, device, requires_grad)
    return _integers("randint_like", low, high, input.shape, options, input)


def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """`fill_value` in the shape, dtype and device of `input`."""
    chosen, where, _ = _options(input, dtype, device)
    return full(input.shape, fill_value, dtype=chosen, device=where, requires_grad=requires_grad)
