"""Tensor's operators and methods, from one table.

Nothing else is bound late but NumPy's two protocols, in `numpy_functions.py`.

`METHODS` has one line per method. `tensor.pyi` is written from the tables here and from the class
by `scripts/stubs`, and the suite fails when it is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import backend
from ..autograd import differentiate, graph
from ..autograd.function import Function
from ..autograd.hooks import RemovableHandle
from ..backend import ALIASES, ARRAYS, CPU, STRUCTURE, XP, address, as_dtype, int8, int64, owner_of
from ..common.missing_names import INSTEAD, NoAttribute
from ..tensor import TENSORS, Tensor, kind_of, wrap
from . import arguments, sampling
from .coercion import NUMBERS, cast
from .fronts import need, public, wrong
from .index import gathering, indexing, reducing
from .inplace import change_shape, in_place, put
from .inspection import allclose, equal, is_complex, is_nonzero, is_same_size, is_signed
from .matrix import decompositions, factorizations, linear_algebra
from .nn import windows
from .pointwise import elementwise as e
from .pointwise import gamma, special
from .reduce import norms, reductions, scans, sorting, statistics
from .shape import joining, rearranging, shapes

graph._sum_to = shapes.sum_to


def _reversed(operation: Callable[..., Any]) -> Callable[..., Any]:
    """`y op x` for a number y on the left."""

    def method(self: Tensor, other: Any) -> Any:
        return operation(other, self)

    return method


def _equality(operation: Callable[..., Any]) -> Callable[..., Any]:
    """Elementwise `==` with Tensors and numbers; anything else (None, text) is unequal."""

    def method(self: Tensor, other: Any) -> Any:
        if type(other) in TENSORS or isinstance(other, NUMBERS):
            return operation(self, other)
        return operation(self, other) if type(other) in ARRAYS else NotImplemented

    return method


def _where(self: Tensor, condition: Any, other: Any) -> Any:
    """`self` where `condition`, else `other`, broadcast."""
    return e.where(condition, self, other)


def _sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """This Tensor summed to the shape `size`, which broadcasts to its own."""
    wanted = shapes.sizes_of(size)
    full = shapes.broadcast_shape("sum_to_size", self.shape, wanted)
    need(full == self.shape, "sum_to_size", "size {} does not expand to {}", wanted, self)
    if self.dtype.kind != "f" and (wanted != self.shape or not wanted):  # as in any sum
        self = cast(self, int64)
    return shapes.sum_to(self, wanted)


def _polygamma(self: Tensor, n: int) -> Tensor:
    """The `n`-th derivative of `digamma`; see `mt.polygamma`."""
    return gamma.polygamma(n, self)


def _as_type(self: Tensor, dtype: Any) -> Tensor:
    """This Tensor in another dtype; itself where it has it."""
    return cast(self, as_dtype(dtype))


# The modules whose public functions are methods of the same name, but for these.
MODULES = (
    e, special, gamma, reductions, norms, scans, sorting, statistics,
    gathering, reducing, linear_algebra, factorizations, decompositions, sampling, shapes, joining,
    rearranging,
)  # fmt: skip
FUNCTIONS_ONLY = (
    "atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes broadcast_tensors bucketize "
    "cartesian_prod cat cdist column_stack combinations concat concatenate cumulative_trapezoid "
    "dstack fill gradient hstack isin meshgrid row_stack rsub searchsorted stack std_mean "
    "tensordot trapezoid trapz tril_indices triu_indices unravel_index var_mean vstack"
).split()


def _method(function: Any) -> Any:
    """`function` as a method: behind its front where that checks, or knows more names."""
    code = function.__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if not hasattr(function, "front") and ("dim" in named or "dims" in named):
        function = public(function)
    return function.front.method if hasattr(function, "front") else function


# Every method that is a function.
METHODS: dict[str, Callable[..., Any]] = {}
for _module in MODULES:
    for _name in _module.__all__:
        if _name not in FUNCTIONS_ONLY:
            METHODS[_name] = _method(getattr(_module, _name))
del METHODS["real"]  # a property
METHODS |= {
    f.__name__: f for f in (allclose, equal, is_complex, is_nonzero, is_same_size, is_signed)
}
METHODS |= {f.__name__: f for f in (rearranging.repeat, joining.reshape_as, joining.view_as)}
METHODS |= {
    "add": e.add_scaled,
    "adjoint": shapes.matrix_transpose,
    "clamp": e.clamp,
    "div": e.div_rounded,
    "polygamma": _polygamma,
    "sub": e.sub_scaled,
    "sum_to_size": _sum_to_size,
    "type": _as_type,
    "unfold": windows.sliding,
    "where": _where,
}

_BINARY = {
    "add": e.add,
    "sub": e.sub,
    "mul": e.mul,
    "truediv": e.div,
    "floordiv": e.floor_divide,
    "mod": e.remainder,
    "pow": e.pow,
    "matmul": linear_algebra.matmul,
    "and": e.bitwise_and,
    "or": e.bitwise_or,
    "xor": e.bitwise_xor,
    "lshift": e.bitwise_left_shift,
    "rshift": e.bitwise_right_shift,
}
_COMMUTE = {"add", "mul", "and", "or", "xor"}
OPERATORS: dict[str, Callable[..., Any]] = {f"__{name}__": f for name, f in _BINARY.items()}
OPERATORS |= {f"__r{n}__": f if n in _COMMUTE else _reversed(f) for n, f in _BINARY.items()}
_same_name = e.neg, e.abs, e.lt, e.le, e.gt, e.ge
OPERATORS |= {f"__{f.__name__}__": f for f in _same_name}
OPERATORS |= {
    "__pos__": special.positive,
    "__rdiv__": _reversed(e.div),
    "__eq__": _equality(e.eq),
    "__ne__": _equality(e.ne),
    "__invert__": e.bitwise_not,
    "__getitem__": indexing.getitem,
    "__setitem__": put,
}
# Augmented assignment writes in place, as the method `name_` does; `@=` makes a new Tensor.
AUGMENTED = {f"__i{n}__": f.__name__ for n, f in _BINARY.items() if n != "matmul"}

# `name_` writes the result of `name` into the Tensor.
IN_PLACE = (
    "abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr arccos arccosh arcsin "
    "arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh baddbmm bitwise_and "
    "bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp "
    "clamp_max clamp_min clip conj_physical copysign cos cosh cumprod cumsum deg2rad digamma div "
    "divide erf erfc erfinv exp exp2 expm1 fix floor floor_divide fmod frac gcd hypot i0 "
    "index_add index_copy index_fill index_put index_reduce lcm ldexp lerp lgamma log log10 log1p "
    "log2 logical_and logical_not logical_or logical_xor logit masked_fill masked_scatter mul "
    "multiply mvlgamma nan_to_num neg negative nextafter polygamma pow put rad2deg reciprocal "
    "relu remainder renorm round rsqrt scatter scatter_add scatter_reduce sgn sigmoid sign sin "
    "sinc sinh sqrt square sub subtract tan tanh tril triu true_divide trunc xlogy"
).split()
# Likewise, with a gradient of 0; and those that change the shape.
CONSTANT_IN_PLACE = (
    "eq ge greater greater_equal gt heaviside le less less_equal lt ne not_equal"
).split()
SHAPE_IN_PLACE = "squeeze swapaxes swapdims t transpose unsqueeze".split()
CASTS = {**ALIASES, "byte": backend.uint8, "char": int8}


def backward(
    self: Tensor, gradient: Tensor | None = None, retain_graph: bool | None = None,
    create_graph: bool = False, inputs: Any = None,
) -> None:  # fmt: skip
    """Accumulate the gradient of this Tensor into its leaves; see `autograd.backward`."""
    differentiate.backward(self, gradient, retain_graph, create_graph, inputs)


def _leaf_hook(leaf: Tensor, kind: str, hook: Callable[..., Any]) -> RemovableHandle:
    if getattr(leaf.extra(), kind) is None:
        setattr(leaf.extra(), kind, {})
    STRUCTURE[0] += 1
    return RemovableHandle(getattr(leaf.extra(), kind), hook)


def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(grad)` when the gradient of this Tensor is computed; a result replaces it."""
    if not self._rg:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if self._edge is not None:
        return self.grad_fn._add_hook(hook, self.output_nr)
    return _leaf_hook(self, "hooks", hook)


def register_post_accumulate_grad_hook(
    self: Tensor, hook: Callable[[Tensor], None]
) -> RemovableHandle:
    """Call `hook(tensor)` after backward has accumulated into `tensor.grad` of this leaf."""
    if not self._rg or self._edge is not None:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    return _leaf_hook(self, "post_hooks", hook)


def fill_(self: Tensor, value: Any) -> Tensor:
    """Every element set to `value`, a number or a 0-d Tensor, in place."""
    put(self, ..., value)
    return self


def zero_(self: Tensor) -> Tensor:
    """Every element set to 0, in place."""
    put(self, ..., 0)
    return self


def copy_(self: Tensor, source: Tensor) -> Tensor:
    """The elements of `source` (broadcast, cast, moved to this device), in place."""
    if type(source) not in TENSORS:
        raise wrong("copy_", f"expected a Tensor, got {kind_of(source)}", error=TypeError)
    put(self, ..., to(source, self.device))
    return self


def destination(args: tuple[Any, ...], dtype: Any, device: Any) -> tuple[Any, Any]:
    """The dtype and the device that the arguments of a `to(...)` name; None for one not named."""
    for arg in args:
        if type(arg) in TENSORS:
            dtype, device = arg.dtype, arg.device
        elif type(arg).__name__ == "device" or (
            isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda")
        ):
            device = arg
        elif arg is not None:
            dtype = arg
    return (
        None if dtype is None else as_dtype(dtype),
        None if device is None else backend.resolve_device(device),
    )


def to(
    self: Tensor, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False,
    copy: bool = False,
) -> Tensor:  # fmt: skip
    """This Tensor in another dtype or on another device; itself where nothing changes.

    Takes a dtype, a device, both, or another Tensor to be like; `copy` makes a copy anyway.
    `non_blocking` allows a copy between devices to be under way on return; none here is.
    Raises TypeError for what is not a dtype, RuntimeError for an absent GPU.
    """
    flags = [arg for arg in args[1:] if type(arg) is bool]  # non_blocking, copy
    copy = flags[1] if len(flags) > 1 else copy
    wanted, where = destination(args[: len(args) - len(flags)], dtype, device)
    out = self if wanted is None else cast(self, wanted)
    if where is not None and where != self.device:
        out = _ToDevice.apply(out, where)
    return e.clone(out) if copy and out is self else out


class _ToDevice(Function):
    """A copy on another device; its gradient comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, where: Any) -> Tensor:
        ctx.device = x.device
        return wrap(backend.to_device(x._array, where))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return to(grads[0], ctx.device), None


def cpu(self: Tensor) -> Tensor:
    """This Tensor on the CPU."""
    return to(self, device=CPU)


def cuda(self: Tensor, device: Any = "cuda") -> Tensor:
    """This Tensor on a GPU; RuntimeError where there is none."""
    return to(self, device=device)


def contiguous(self: Tensor) -> Tensor:
    """This Tensor in row-major memory: itself where it is, else a copy."""
    return self if self.is_contiguous() else e.contiguous_copy(self)


def _iterate(self: Tensor) -> Iterator[Tensor]:
    if not self._array.ndim:
        raise TypeError("iteration over a 0-d tensor")
    return iter(joining.unbind(self))


def _contains(self: Tensor, element: Any) -> bool:
    """Whether an element equals `element`, a number or a Tensor that broadcasts."""
    known = type(element) in TENSORS or isinstance(element, NUMBERS)
    need(known, "x in tensor", f"x must be a number or a Tensor, got {kind_of(element)}")
    return bool(reductions.any(e.eq(self, element)))


def _cast_method(dtype: Any) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return cast(self, dtype)

    method.__doc__ = f"This Tensor as {dtype.name}; itself where it is."
    return method


def _in_place_method(
    name: str, operation: Callable[..., Any], write: Callable[..., Tensor] = in_place
) -> Callable[..., Any]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        def compute(x: Tensor) -> Tensor:
            # `x.mul_(x)` is about the old x twice; the new one in its own graph would be a cycle.
            return operation(x, *(x if arg is self else arg for arg in args), **kwargs)

        return write(self, compute, name)

    method.__doc__ = f"`{name[:-1]}`, written into this Tensor, which is returned."
    return method


def _constant(operation: Callable[..., Any]) -> Callable[..., Any]:
    """`operation` as one whose gradient is 0, not missing."""

    def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return e.instead_of(x, operation(x, *args, **kwargs))

    return call


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """The diagonal of this matrix set to a number, in place.

    Raises RuntimeError for other numbers of dimensions and for `wrap`, which goes on below.
    """
    need(self.ndim == 2 and not wrap, "fill_diagonal_", "expected a matrix and no wrap", self)
    put(rearranging.diagonal_of(self), ..., fill_value)
    return self


# A Tensor like another, and questions about its memory --------------------------------------------


def _shape(name: str, size: Any) -> tuple[int, ...]:
    shape = arguments.integers(name, "size", size)
    need(min(shape, default=0) >= 0, name, "sizes must not be negative", shape)
    return shape


def _filled(name: str, doc: str) -> Any:
    """The method `new_<name>(size)` that has its array from the instruction `name`."""

    def method(
        x: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        need(size, f"new_{name}", "missing the size", error=TypeError)
        shape = _shape(f"new_{name}", shapes.sizes_of(size))
        make = getattr(XP[type(x._array)], name)
        return _finish(make(shape, _dtype(x, dtype)), device, requires_grad)

    method.__name__ = method.__qualname__ = f"new_{name}"
    method.__doc__ = doc
    return method


def _dtype(x: Tensor, dtype: Any) -> np.dtype[Any]:
    return x.dtype if dtype is None else as_dtype(dtype)


def _finish(array: Any, device: Any, requires_grad: bool) -> Tensor:
    out = wrap(
        array if device is None else backend.to_device(array, backend.resolve_device(device))
    )
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
    array = backend.made(np.array(data, _dtype(x, dtype)))
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


# Methods with code of their own.
OTHERS = (
    backward, contiguous, copy_, cpu, cuda, data_ptr, element_size, fill_, fill_diagonal_,
    get_device, ndimension, nelement, new_empty, new_full, new_ones, new_tensor, new_zeros,
    register_hook, register_post_accumulate_grad_hook, sampling.bernoulli_, sampling.cauchy_,
    sampling.exponential_, sampling.log_normal_, sampling.normal_, sampling.uniform_,
    storage_offset, stride, to, type_as, zero_,
)  # fmt: skip

PROPERTIES: dict[str, Callable[[Tensor], Any]] = {
    "is_cpu": is_cpu,
    "is_cuda": is_cuda,
    "itemsize": element_size,
    "nbytes": nbytes,
    "real": special.real,
    "H": shapes.adjoint,
    "T": shapes.t,
    "mH": shapes.matrix_transpose,
    "mT": shapes.matrix_transpose,
}


def _install() -> None:
    table: dict[str, Any] = {**METHODS, **OPERATORS, **{f.__name__: f for f in OTHERS}}
    table |= {f"{name}_": _in_place_method(f"{name}_", METHODS[name]) for name in IN_PLACE}
    for names, change, write in (
        (CONSTANT_IN_PLACE, _constant, in_place),
        (SHAPE_IN_PLACE, lambda operation: operation, change_shape),
    ):
        for name in names:
            table[f"{name}_"] = _in_place_method(f"{name}_", change(METHODS[name]), write)
    table |= {method: table[f"{name}_"] for method, name in AUGMENTED.items()}
    table |= {name: _cast_method(dtype) for name, dtype in CASTS.items()}
    table["__iter__"], table["__contains__"] = _iterate, _contains
    table |= {name: property(get, doc=get.__doc__) for name, get in PROPERTIES.items()}
    table |= {name: NoAttribute(name) for name in INSTEAD["Tensor"]}
    for name, value in table.items():
        setattr(Tensor, name, value)


_install()
