"""Tensor's operators and methods, from one table: the only late binding in the package.

`METHODS` has one line per method. `tensor.pyi` is written from it and the class by
`scripts/stubs`, and the suite fails when it is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..autograd import engine
from ..autograd.graph import RemovableHandle
from ..backend import CPU, as_dtype, resolve_device, to_device
from ..tensor import TENSORS, Tensor, wrap
from . import elementwise as e
from . import indexing, linear_algebra, reductions, shapes
from .coercion import cast
from .inplace import in_place, put


engine.set_sum_to(shapes.sum_to)


def _reversed(operation: Callable[..., Any]) -> Callable[..., Any]:
    """`y op x` for a number y on the left."""

    def method(self: Tensor, other: Any) -> Any:
        return operation(other, self)

    return method


# Methods that are the function of the same name.
METHODS: dict[str, Callable[..., Any]] = {
    "abs": e.abs,
    "add": e.add_scaled,
    "all": reductions.all,
    "amax": reductions.amax,
    "amin": reductions.amin,
    "any": reductions.any,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "broadcast_to": shapes.broadcast_to,
    "clamp": e.clamp,
    "clone": e.clone,
    "div": e.div_scaled,
    "eq": e.eq,
    "exp": e.exp,
    "expand": shapes.expand,
    "expand_as": shapes.expand_as,
    "flatten": shapes.flatten,
    "ge": e.ge,
    "gt": e.gt,
    "isfinite": e.isfinite,
    "isnan": e.isnan,
    "le": e.le,
    "log": e.log,
    "log_softmax": reductions.log_softmax,
    "logical_and": e.logical_and,
    "logical_not": e.logical_not,
    "logical_or": e.logical_or,
    "lt": e.lt,
    "matmul": linear_algebra.matmul,
    "max": reductions.max,
    "maximum": e.maximum,
    "mean": reductions.mean,
    "min": reductions.min,
    "minimum": e.minimum,
    "mm": linear_algebra.mm,
    "mul": e.mul,
    "ne": e.ne,
    "neg": e.neg,
    "permute": shapes.permute,
    "pow": e.pow,
    "relu": e.relu,
    "reshape": shapes.reshape,
    "sigmoid": e.sigmoid,
    "sign": e.sign,
    "softmax": reductions.softmax,
    "sqrt": e.sqrt,
    "squeeze": shapes.squeeze,
    "std": reductions.std,
    "sub": e.sub_scaled,
    "sum": reductions.sum,
    "t": shapes.t,
    "tanh": e.tanh,
    "transpose": shapes.transpose,
    "unsqueeze": shapes.unsqueeze,
    "var": reductions.var,
    "view": shapes.view,
    "where": lambda self, condition, other: e.where(condition, self, other),
}

OPERATORS: dict[str, Callable[..., Any]] = {
    "__add__": e.add,
    "__radd__": e.add,
    "__sub__": e.sub,
    "__rsub__": _reversed(e.sub),
    "__mul__": e.mul,
    "__rmul__": e.mul,
    "__truediv__": e.div,
    "__rtruediv__": _reversed(e.div),
    "__neg__": e.neg,
    "__abs__": e.abs,
    "__pow__": e.pow,
    "__rpow__": _reversed(e.pow),
    "__matmul__": linear_algebra.matmul,
    "__eq__": e.eq,
    "__ne__": e.ne,
    "__lt__": e.lt,
    "__le__": e.le,
    "__gt__": e.gt,
    "__ge__": e.ge,
    "__and__": e.logical_and,
    "__or__": e.logical_or,
    "__invert__": e.logical_not,
    "__getitem__": indexing.getitem,
    "__setitem__": put,
}

# `name_` writes the result of `name` into the Tensor; augmented assignment does the same.
IN_PLACE = (
    "abs add clamp div exp log mul neg pow relu sigmoid sqrt sub tanh"
).split()
AUGMENTED = {
    "__iadd__": e.add,
    "__isub__": e.sub,
    "__imul__": e.mul,
    "__itruediv__": e.div,
    "__ipow__": e.pow,
}


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Accumulate the gradient of this Tensor into its leaves; see `autograd.backward`."""
    engine.backward(self, gradient, retain_graph, create_graph, inputs)


def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(grad)` when the gradient of this Tensor is computed; a result replaces it."""
    if not self._rg:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if self._edge is not None:
        return self.grad_fn.add_hook(hook, self.output_nr)  # type: ignore[no-any-return]
    extra = self.extra()
    if extra.hooks is None:
        extra.hooks = {}
    return RemovableHandle(extra.hooks, hook)


def register_post_accumulate_grad_hook(
    self: Tensor, hook: Callable[[Tensor], None]
) -> RemovableHandle:
    """Call `hook(tensor)` after backward has accumulated into `tensor.grad` of this leaf."""
    if not self._rg or self._edge is not None:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    extra = self.extra()
    if extra.post_hooks is None:
        extra.post_hooks = {}
    return RemovableHandle(extra.post_hooks, hook)


def fill_(self: Tensor, value: float) -> Tensor:
    """Every element set to `value`, in place."""
    return put_all(self, wrap(_like(self, value)))


def zero_(self: Tensor) -> Tensor:
    """Every element set to 0, in place."""
    return put_all(self, wrap(_like(self, 0)))


def copy_(self: Tensor, source: Tensor) -> Tensor:
    """The elements of `source` (broadcast, cast), in place."""
    if type(source) not in TENSORS:
        raise TypeError(f"copy_: expected a Tensor, got {type(source).__name__}")
    source = cast(to(source, self.device), self._array.dtype)
    return put_all(self, source)


def put_all(self: Tensor, value: Tensor) -> Tensor:
    """Write `value`, broadcast, over all of `self`."""
    return in_place(self, lambda x: _replaced(x, value), "copy_")


def _replaced(x: Tensor, value: Tensor) -> Tensor:
    return e.clone(shapes.expand(value, x.shape))  # type: ignore[no-any-return]


def _like(self: Tensor, value: Any) -> Any:
    from ..backend import XP

    return XP[type(self._array)].asarray(value, self._array.dtype)


def to(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, copy: bool = False) -> Any:
    """This Tensor in another dtype or on another device; itself where nothing changes.

    Takes a dtype, a device, both, or another Tensor to be like.
    """
    for arg in args:
        if type(arg) in TENSORS:
            dtype, device = arg.dtype, arg.device
        elif isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda"):
            device = arg
        elif type(arg).__name__ == "device":
            device = arg
        else:
            dtype = arg
    out = self if dtype is None else cast(self, as_dtype(dtype))
    if device is not None and (where := resolve_device(device)) != self.device:
        out = _to_device(out, where)
    return e.clone(out) if copy and out is self else out


def _to_device(x: Tensor, where: Any) -> Tensor:
    from ..autograd.function import Function

    class ToDevice(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.device = x.device
            return wrap(to_device(x._array, where))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return to(grads[0], ctx.device)

    return ToDevice.apply(x)  # type: ignore[no-any-return]


def cpu(self: Tensor) -> Tensor:
    """This Tensor on the CPU."""
    return to(self, device=CPU)  # type: ignore[no-any-return]


def cuda(self: Tensor, device: Any = "cuda") -> Tensor:
    """This Tensor on a GPU; RuntimeError where there is none."""
    return to(self, device=device)  # type: ignore[no-any-return]


def contiguous(self: Tensor) -> Tensor:
    """This Tensor in row-major memory: itself where it is, else a copy."""
    if self.is_contiguous():
        return self
    return reductions_free_copy(self)


def reductions_free_copy(self: Tensor) -> Tensor:
    """A row-major copy with its place in the graph."""
    flat = shapes.reshape_to(self, (self.numel(),))
    copied = e.clone(flat) if flat._array.base is not None else flat
    return shapes.reshape_to(copied, self.shape)  # type: ignore[no-any-return]


def _iterate(self: Tensor) -> Iterator[Tensor]:
    if not self._array.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return (indexing.getitem(self, i) for i in range(self._array.shape[0]))


def _cast_method(name: str, dtype: Any) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return cast(self, as_dtype(dtype))

    method.__doc__ = f"This Tensor as {as_dtype(dtype).name}."
    method.__name__ = name
    return method


def _in_place_method(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return in_place(self, lambda x: operation(x, *args, **kwargs), name)

    method.__name__ = name
    method.__doc__ = f"`{name.strip('_')}`, written into this Tensor."
    return method


def _install() -> None:
    for table in (METHODS, OPERATORS):
        for name, function in table.items():
            setattr(Tensor, name, function)
    for name in IN_PLACE:
        setattr(Tensor, f"{name}_", _in_place_method(f"{name}_", METHODS[name]))
    for name, function in AUGMENTED.items():
        setattr(Tensor, name, _in_place_method(name, function))
    for name in ("half", "float", "double", "int", "long", "bool"):
        setattr(Tensor, name, _cast_method(name, name))
    for function in (
        backward, contiguous, copy_, cpu, cuda, fill_, register_hook,
        register_post_accumulate_grad_hook, to, zero_,
    ):  # fmt: skip
        setattr(Tensor, function.__name__, function)
    Tensor.__iter__ = _iterate  # type: ignore[attr-defined]
    Tensor.T = property(shapes.t, doc="The transpose of a matrix.")  # type: ignore[attr-defined]


_install()
