"""What the generated operation code calls off its fast path: numbers, dtypes, errors, versions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..autograd.graph import Underived, edge_of, modified, without_derivative
from ..autograd.locks import acquire
from ..backend import ARRAYS, MODES, XP, address, bool_, int64, promote_dtypes
from ..errors import CaptureError, noun_of
from ..tensor import INFERENCE, TENSORS, Tensor, Version, kind_of, wrap

# Every operation by name; filled by `registry` when the operations are imported.
REGISTRY: dict[str, Any] = {}


class LinAlgError(RuntimeError):
    """A matrix that has no inverse or no Cholesky factor."""


NUMBERS = (bool, int, float, np.generic)


def coerce(op: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Turn the Python numbers among `arguments` into 0-d Tensors and promote as PyTorch does.

    Raises TypeError for anything that is neither a Tensor nor, where promotion applies, a number.
    """
    if len(arguments) == 2 and op.promote:  # the common case: a float Tensor and a number
        x, y = arguments
        if type(y) in _PLAIN and type(x) in TENSORS and x._array.dtype.kind == "f":
            return x, _number(y, x._array)
        if type(x) in _PLAIN and type(y) in TENSORS and y._array.dtype.kind == "f":
            return _number(x, y._array), y
    operands: list[tuple[Any, int]] = []
    like = None
    for name, value in zip(op.inputs, arguments, strict=True):
        if type(value) in TENSORS:
            like = value if like is None else like
            if name in op.promote:
                operands.append((value._array.dtype, 2 if value._array.ndim else 1))
        elif name in op.promote and isinstance(value, NUMBERS):
            operands.append((_category(value), 0))
        elif value is not None or name not in op.optional:
            raise TypeError(_not_a_tensor(op, name, value))
    if like is None:
        kinds = ", ".join(type(a).__name__ for a in arguments)
        raise TypeError(f"{op.name}(): expected a Tensor, got {kinds}")
    dtype = _common(op, operands, arguments) if operands else None
    xp = XP[type(like._array)]
    found = []
    for name, value in zip(op.inputs, arguments, strict=True):
        if name not in op.promote or value is None:
            found.append(value)
        elif type(value) in TENSORS:
            found.append(cast(value, dtype))
        else:
            found.append(wrap(xp.operand(value, dtype)))
    return tuple(found)


_PLAIN = {float, int}
_KEPT: dict[Any, Tensor] = {}  # beside arrays of NumPy


def _number(value: Any, like: Any) -> Tensor:
    """A number beside the float array `like` as a 0-d Tensor, kept for the next call."""
    key = value, type(value), like.dtype.char
    plain = type(like) is np.ndarray and not MODES.capture.on  # what is captured makes its own
    found = _KEPT.get(key)
    if found is not None and plain:
        return found
    found = wrap(XP[type(like)].operand(value, like.dtype))
    if plain and value:  # 0.0 equals -0.0
        if len(_KEPT) > 1000:  # values that differ in every step
            _KEPT.clear()
        _KEPT[key] = found
    return found


_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}  # with any number, however large


def _common(op: Any, operands: Any, arguments: tuple[Any, ...]) -> np.dtype[Any]:
    """The type that the arguments of `op` are brought to."""
    dtype = promote_dtypes(operands)
    if dtype.kind in "iu" and op.floating:
        return MODES.default_dtype  # at once: a small integer type may not hold the others
    if dtype.kind in "iu" and op.name in _COMPARISONS:
        limits = np.iinfo(dtype)
        numbers = [n for n in arguments if isinstance(n, int | np.integer)]
        if any(not limits.min <= n <= limits.max for n in numbers):
            return int64
    return dtype


def _category(value: Any) -> np.dtype[Any]:
    if isinstance(value, bool | np.bool_):
        return bool_
    return int64 if isinstance(value, int | np.integer) else MODES.default_dtype


# What callers name the inputs that formulas name `x` and `y`.
PUBLIC = {"x": "input", "y": "other"}


def _not_a_tensor(op: Any, name: str, value: Any) -> str:
    wanted = "a Tensor or a number" if name in op.promote else "a Tensor"
    name = PUBLIC.get(name, name)
    if type(value) in ARRAYS:
        return (
            f"{op.name}(): argument {name} is {noun_of(value)} beside a Tensor; wrap it: "
            "mt.from_numpy(array)"
        )
    return f"{op.name}(): argument {name} must be {wanted}, got {kind_of(value)}"


def examine(x: Any, check: Callable[[Any], None]) -> None:
    """Let `check` look at the values of a Tensor or array, and raise, where that costs no waiting.

    That is on the CPU. When a step is captured the check becomes part of every replay.
    """
    array = x._array if type(x) in TENSORS else x
    MODES.capture.examine(array, check)


def cast(tensor: Tensor, dtype: Any) -> Tensor:
    """`tensor` (or array) in another dtype, recorded; itself where it has it already.

    What is no float has no gradient, so a cast to one leaves the graph.
    """
    if tensor.dtype == dtype:
        return tensor
    if dtype.kind != "f" and type(tensor) in TENSORS:
        tensor = wrap(tensor._array)
    return REGISTRY["to"].apply(tensor, dtype)


def underived(name: str, result: Tensor, *sources: Any, open: bool = False) -> Tensor:
    """`result`, computed from `sources` outside the graph, as a part of it that has no derivative.

    A backward pass that reaches it raises, rather than leave its share out of a gradient; if `open`
    only with a gradient that is not 0.
    """
    wanting = [x for x in sources if type(x) in TENSORS and x._rg]
    if not MODES.grad or not wanting:
        return result
    text = "the derivative is not implemented; detach() what it is called with, or leave its "
    text += "result out of what is differentiated"
    return without_derivative(result, Underived(name, text, open), tuple(map(edge_of, wanting)))


def promote(tensors: tuple[Tensor, ...], floating: bool = False) -> tuple[Tensor, ...]:
    """All of `tensors` in their common type; where `floating`, integers become floats."""
    dtype = promote_dtypes([(t._array.dtype, 2 if t._array.ndim else 1) for t in tensors])
    if floating and dtype.kind != "f":
        dtype = MODES.default_dtype
    return tuple(cast(t, dtype) for t in tensors)


def to_float(tensor: Tensor) -> Tensor:
    """Integers and booleans in the default float type, as functions of real numbers want them."""
    return tensor if tensor._array.dtype.kind == "f" else cast(tensor, MODES.default_dtype)


def version_of(tensor: Tensor | None) -> int:
    """The number of in-place writes so far."""
    return 0 if tensor is None or tensor._version is None else tensor._version.n


def shared(array: Any, result: Any) -> bool:
    """Whether `result`, the reshaped `array`, is a view: a contiguous array never needs a copy."""
    return bool(array.flags.c_contiguous or not array.size or address(array) == address(result))


def watch(version: Version, view: Tensor, origin: Tensor) -> None:
    """Remember that `view`, taken of `origin`, looks at memory whose history a write may change.

    Not where `origin` is a view that was taken under no_grad: a write to `view` is refused then.
    """
    base = None if version.base is None else version.base()
    if base is None and version is not INFERENCE:  # only views taken under no_grad are left
        version.base, base = weakref.ref(origin), origin
    if base is None or base is view:
        return
    if origin is not base and getattr(origin, "_base", None) is not base:
        return
    view._base = base
    viewers = version.viewers
    if viewers is None:
        viewers = version.viewers = []
    n = len(viewers)
    if n >= 16 and not n & (n - 1):  # now and then, so that thousands of views stay cheap
        viewers[:] = [one for one in viewers if one() is not None]
    viewers.append(weakref.ref(view))


def slot_of(edge: Any) -> Any:
    """The flat memory that a first gradient for `edge` may be written into, or None."""
    if type(edge) not in TENSORS:
        return None
    extra = edge._extra
    slot = None if extra is None or extra.hooks is not None else extra.slot
    if slot is None:
        return None
    buffer, held = slot.buffer, MODES.direct
    if slot.epoch == buffer.epoch or type(held) is not list:
        return None
    if buffer.lock in held or (acquire(held, buffer.lock) and slot.epoch != buffer.epoch):
        return slot.array
    return None


def stale(node: Any, what: str, now: int, versions: Any, number: int) -> RuntimeError:
    """The error for a saved value that was written to before backward."""
    return modified(node, what, now, versions[number] if versions else 0)


def explain(op: Any, error: Exception, arrays: tuple[Any, ...]) -> Exception:
    """`error` of a kernel in the terms of the call: name, shapes, dtypes, devices."""
    if isinstance(error, CaptureError):
        return error
    found = [a for a in arrays if type(a) in XP]
    kinds = {XP[type(a)].kind for a in found}
    if len(kinds) > 1:
        return RuntimeError(
            f"{op.name}(): expected all Tensors on one device, found {' and '.join(sorted(kinds))}"
        )
    shapes = ", ".join(f"{a.shape} {a.dtype.name}" for a in found)
    kinds_kept = (IndexError, MemoryError, LinAlgError)
    kind = next((k for k in kinds_kept if isinstance(error, k)), RuntimeError)
    return kind(f"{op.name}(): {_without_numpy_words(error)} (inputs: {shapes})")


def _without_numpy_words(error: Exception) -> str:
    text = str(error)
    if "could not be broadcast together" in text:
        return "the shapes cannot be broadcast together"
    if "not supported for the input types" in text:
        return "not defined for these dtypes"
    return text.replace("numpy ", "")
