"""Traced: the arrays of a step that is being captured.

While a step is captured its arrays are Traced: an array library of its own, as CuPy's is, whose
every instruction runs on NumPy and is written down. So whatever computes, a kernel, a gradient rule
on plain operators, an update, is recorded without knowing of it, and what would look at a value
(`item()`, `float`, `if`, NumPy) is an error that says so.
"""

from __future__ import annotations

import sys
import types
from typing import Any, NoReturn

from ..backend import address
from ..errors import CaptureError
from ..stack_frames import is_own, user_line, with_code


class Traced:
    """An array whose instructions are recorded; `host` is where it really is."""

    __slots__ = ("__weakref__", "host", "recorder")
    __array_priority__ = 1000  # CuPy's arrays leave operators to it, as NumPy's do

    def __init__(self, host: Any, recorder: Any) -> None:
        self.host = host
        self.recorder = recorder

    @property
    def T(self) -> Traced:
        """The transpose, a view."""
        return Traced(self.host.T, self.recorder)

    @property
    def data(self) -> Any:
        """Its address, as the arrays of other libraries tell it."""
        return types.SimpleNamespace(ptr=address(self.host))

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, index: Any) -> Traced:
        found: Traced = self.recorder.getitem(self, index)
        return found

    def __setitem__(self, index: Any, value: Any) -> None:
        self.recorder.setitem(self, index, value)

    def copy(self, order: str = "C") -> Traced:
        """A copy of its own."""
        found: Traced = self.recorder.copy(self, order)
        return found

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> Traced:
        """A copy in another dtype."""
        if not copy and self.host.dtype == dtype:
            return self
        found: Traced = self.recorder.asarray(self, dtype)
        return self.copy() if found is self else found

    def fill(self, value: Any) -> None:
        """Set every element."""
        self.recorder.copyto(self, value)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """What plain NumPy arrays (the state) and Traced ones make together is recorded."""
        out = options.pop("out", None)
        if method != "__call__" or (out is not None and len(out) != 1):
            refuse(f"numpy.{ufunc.__name__}.{method}")
        return self.recorder.ufunc(ufunc, inputs, None if out is None else out[0], options)

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        refuse(f"numpy.{function.__name__}")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse("a NumPy function")

    def __repr__(self) -> str:
        return f"Traced({self.host.dtype.name}{list(self.host.shape)})"

    __hash__ = None  # type: ignore[assignment]


# What looks at values, by the function that the user's line calls: how it is written, and what to
# write instead.
_OUTSIDE = "Return it from the step and look at it outside"
_KEEP = f"Calculate with the Tensor itself, which needs no number. {_OUTSIDE}"
_INDEX = "Index with a Tensor that has a dimension, as in table[i.reshape(1)]"
_PRINTED = "print, an f-string or str()", "Return it from the step and print it outside"
_LOOKS = {
    "__bool__": (
        "if, while, and, or, not or bool()",
        "Choose with mt.where(condition, a, b), or decide outside the step",
    ),
    "__repr__": _PRINTED,
    "__format__": _PRINTED,
    "__array__": ("NumPy", f"Use the function of microtrain that does the same. {_OUTSIDE}"),
    "__float__": ("float()", _KEEP),
    "__int__": ("int()", _KEEP),
    "__index__": (
        "an index, a size or range()",
        "Index with the Tensor (index_select, gather), or pass the number as an argument",
    ),
    "getitem": ("a Tensor of one number as an index", _INDEX),
    "setitem": ("a Tensor of one number as an index", _INDEX),
    "item": ("item()", _KEEP),
    "tolist": ("tolist()", _KEEP),
}


def look(what: str) -> tuple[str, str]:
    """How the user's line looks at values, where it calls `what`; what to write instead."""
    frame, name = sys._getframe(1), ""
    while frame.f_back is not None and is_own(frame.f_code.co_filename):
        name, frame = frame.f_code.co_name, frame.f_back
    return _LOOKS.get(name, (what, _OUTSIDE))


def refuse(what: str) -> NoReturn:
    """CaptureError: `what` would look at values."""
    what, instead = look(what)
    raise CaptureError(
        f"{with_code(user_line(sys._getframe(1)))}: {what} looks at a Tensor of a captured step: "
        "its values differ from call to call, so what depends on them cannot be captured. "
        f"{instead}"
    )


def _refusing(what: str) -> Any:
    def method(self: Traced, *_: Any, **__: Any) -> NoReturn:
        refuse(what)

    return method


def _attribute(name: str) -> Any:
    return property(lambda self: getattr(self.host, name))


def _operator(name: str, swap: bool) -> Any:
    def method(self: Traced, other: Any) -> Any:
        pair = (other, self) if swap else (self, other)
        return getattr(self.recorder, name)(*pair)

    return method


def _in_place(name: str) -> Any:
    def method(self: Traced, other: Any) -> Traced:
        getattr(self.recorder, name)(self, other, out=self)
        return self

    return method


def _of_one(name: str) -> Any:
    return lambda self: getattr(self.recorder, name)(self)


def _method(name: str) -> Any:
    return lambda self, *args, **options: getattr(self.recorder, name)(self, *args, **options)


BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power_of", "matmul": "matmul",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
               "gt": "greater", "ge": "greater_equal"}  # fmt: skip

for _name in (
    "base",
    "device",
    "dtype",
    "flags",
    "itemsize",
    "nbytes",
    "ndim",
    "shape",
    "size",
    "strides",
):
    setattr(Traced, _name, _attribute(_name))
for _name, _instruction in BINARY.items():
    setattr(Traced, f"__{_name}__", _operator(_instruction, False))
    setattr(Traced, f"__r{_name}__", _operator(_instruction, True))
    setattr(Traced, f"__i{_name}__", _in_place(_instruction))
for _name, _instruction in COMPARISONS.items():
    setattr(Traced, f"__{_name}__", _operator(_instruction, False))
for _name, _instruction in (("neg", "negative"), ("abs", "absolute"), ("invert", "invert")):
    setattr(Traced, f"__{_name}__", _of_one(_instruction))
for _name in ("reshape", "transpose", "sum", "max", "min", "take", "all", "any"):
    setattr(Traced, _name, _method(_name))
for _name in ("item", "tolist", "get"):
    setattr(Traced, _name, _refusing(f"{_name}()"))
for _name in ("bool", "float", "int", "index", "iter", "complex"):
    setattr(Traced, f"__{_name}__", _refusing(f"a conversion ({_name})"))
