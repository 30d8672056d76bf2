"""The arrays of a captured step, and the array library that records what is done with them.

While a step is captured its arrays are `Traced`. To kernels they belong to one more array library,
beside NumPy and CuPy: each of its instructions runs on one of these, and is written down. So
whatever computes (a kernel, a gradient rule with plain operators, an optimizer's update) is
recorded without a line about capture in it. What would look at a value (`item()`, `float`, `if`, a
function of NumPy) raises an error that says so.

State, such as a parameter's flat memory, stays in plain arrays. While a thread captures, these lead
to the same library, so instructions on them are recorded too. Memory that is neither an argument,
nor made in the step, nor state, is an error that names the user's line.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from ..backend import ARRAYS, LIBRARIES, MODES, SCALAR, address, alive, owner_of
from ..common.recording import Eager
from ..common.stack_frames import OPERATION, user_line
from ..errors import CaptureError
from ..nn.module import MODULES, Module
from ..numerics.sums import blocked_sum
from .explain import layers
from .looks import refuse
from .program import DRAWS, Line, Program


class Traced:
    """An array whose instructions are recorded; `host` is the NumPy or CuPy array behind it."""

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

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> Traced:
        """A copy in another dtype."""
        if not copy and self.host.dtype == dtype:
            return self
        found: Traced = self.recorder.asarray(self, dtype)
        return self.recorder.copy(self) if found is self else found

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy calls this where a plain array (state) meets a Traced one: recorded as well."""
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


def _refusing(what: str) -> Any:
    def method(self: Traced, *_: Any, **__: Any) -> NoReturn:
        refuse(what)

    return method


def _method(name: str, swap: bool = False) -> Any:
    def method(self: Traced, *args: Any, **options: Any) -> Any:
        given = (*args, self) if swap else (self, *args)
        return getattr(self.recorder, name)(*given, **options)

    return method


def _in_place(name: str) -> Any:
    def method(self: Traced, other: Any) -> Traced:
        getattr(self.recorder, name)(self, other, out=self)
        return self

    return method


BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power_of", "matmul": "matmul",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
OTHERS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "neg": "negative", "abs": "absolute", "invert": "invert",
    "getitem": "getitem", "setitem": "setitem",
}  # fmt: skip

for _name in ("base", "device", "dtype", "flags", "itemsize", "nbytes", "ndim", "shape", "size",
              "strides"):  # fmt: skip
    setattr(Traced, _name, property(operator.attrgetter(f"host.{_name}")))
for _name, _instruction in BINARY.items():
    setattr(Traced, f"__r{_name}__", _method(_instruction, swap=True))
    setattr(Traced, f"__i{_name}__", _in_place(_instruction))
for _name, _instruction in (BINARY | OTHERS).items():
    setattr(Traced, f"__{_name}__", _method(_instruction))
for _name in ("reshape", "transpose", "sum", "max", "min", "take", "all", "any", "copy"):
    setattr(Traced, _name, _method(_name))
Traced.fill = _method("copyto")  # type: ignore[attr-defined]
for _name in ("item", "tolist", "get"):
    setattr(Traced, _name, _refusing(f"{_name}()"))
for _name in ("bool", "float", "int", "index", "iter", "complex"):
    setattr(Traced, f"__{_name}__", _refusing(f"a conversion ({_name})"))


# The library ------------------------------------------------------------------------------------


UNWRITTEN = {"input": "its argument", "constant": "a constant",
             "kept": "what the forward pass saved"}  # fmt: skip


class Library(Eager):
    """An array library, like a `Namespace`, that runs instructions and writes them down.

    Args:
        xp: the library that runs them; the step uses arrays of no other.
    """

    array_type = Traced
    on = True

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.kind = xp.kind
        self.program = Program(xp)
        self.layers = layers()
        self.doing = ""  # the gradient rule or update under way, for people

    def __getattr__(self, name: str) -> Any:
        """An instruction without a method of its own here: run it, write it down."""
        if name.startswith("_") or not hasattr(self.xp, name):
            raise AttributeError(name)
        function = getattr(self.xp, name)
        count = getattr(function, "nin", None)  # of a ufunc

        def instruction(*args: Any, out: Any = None, **attrs: Any) -> Any:
            if count is not None and len(args) > count:
                *args, out = args  # type: ignore[assignment]
            return self._run(name, function, args, out, attrs)

        return instruction  # not kept as an attribute: a reference cycle

    # Memory -------------------------------------------------------------------------------------

    def fixed(self, array: Any) -> Any:
        """The array behind `array`, whose memory must not be moved: others use it as well."""
        host = self.host(array)
        self.program.fixed.add(id(owner_of(host)))
        return host

    def traced(self, array: Any, kind: str) -> Traced:
        """`array`, of this kind, as a Traced array."""
        self.program.classify(array, kind)
        return Traced(array, self)

    def host(self, value: Any, written: bool = False) -> Any:
        """The array behind a Traced `value`; CaptureError for unknown memory.

        Other values are returned as they are, after the same checks; `written` refuses memory that
        a step must not write to.
        """
        if type(value) is Traced:
            if value.recorder is not self or MODES.capture is not self:
                raise CaptureError(
                    f"{self._where()}: a Tensor of an earlier call of a captured step is used; "
                    "return it, or clone what is kept outside; make a buffer before the first call"
                )
            value = value.host
        elif isinstance(value, tuple | list):
            return type(value)(self.host(v) for v in value)
        elif type(value) is not self.xp.array_type:
            if isinstance(value, SCALAR):  # from 0-d arrays, which NumPy computed unrecorded
                raise CaptureError(
                    f"{self._where()}: the number {value!r} is NumPy's, of an array of the state "
                    "or from outside, and would be the same at every call; use operations on "
                    "Tensors, and for a constant value.item()"
                )
            if type(value) in LIBRARIES:
                self._refuse_elsewhere(value)
            return value
        kind = self._kind(value)
        if kind is None:
            self._refuse_gradient(owner_of(value))
            raise CaptureError(
                f"{self._where()}: an array of shape {value.shape} from outside the step that "
                "has a graph, or no name (a global, a variable, an attribute, a key) by which a "
                "replay could look it up. Pass it as an argument; for noise use mt.randn, mt.rand"
                " ..."
            )
        if written and kind in UNWRITTEN:
            raise CaptureError(
                f"{self._where()}: the step writes into {UNWRITTEN[kind]}; clone() it first"
            )
        return value

    def _kind(self, array: Any) -> str | None:
        return self.program.kinds.get(id(owner_of(array)))

    # Instructions ---------------------------------------------------------------------------------

    def _run(
        self, name: str, function: Callable[..., Any], args: Any, out: Any, attrs: dict[str, Any]
    ) -> Any:
        hosts = tuple(self.host(a) for a in args)
        attrs = {k: self.host(v) for k, v in attrs.items()}
        if out is not None:
            target = self.host(out, written=True)
            function(*hosts, out=target, **attrs)
            self._write(name, hosts, target, attrs)
            return out
        result = function(*hosts, **attrs)
        if type(result) is tuple:
            made = tuple(self.xp.asarray(part) for part in result)
            self._write(name, hosts, made, attrs)
            return tuple(self.traced(part, "made") for part in made)
        found = result if type(result) in LIBRARIES else self.xp.asarray(result)
        if any(_shares(found, h) for h in hosts):
            return Traced(found, self)
        return self._written(name, hosts, found, **attrs)

    def loop(self, step: Any, moving: Any, fixed: Any, out: Any, scratch: Any = ()) -> None:
        """`Namespace.loop`, as one instruction."""
        moving, fixed, scratch = self.host(moving), self.host(fixed), self.host(scratch)
        out = tuple([self.host(array, written=True) for array in out])
        self.xp.loop(step, moving, fixed, out, scratch)
        self._write("loop", (step, moving, fixed), out, {"scratch": scratch})

    def as_one(self, kernel: Any, arrays: Any, settings: Any, out: Any = None) -> Any:
        """`kernel`, on the CPU as one `Line` with `parts`: native code has its own version."""
        lines = self.program.lines
        start = len(lines)
        found = kernel(self, *arrays, out=out, **settings)
        if self.kind == "cpu" and len(lines) > start:
            parts, hosts = lines[start:], tuple(map(self.host, arrays))
            where, what = self._where(), self._what()
            name = kernel.__name__.strip("_")
            lines[start:] = [Line(name, hosts, self.host(found), settings, where, what, parts)]
        return found

    def _written(self, name: str, args: Any, array: Any, /, **attrs: Any) -> Traced:
        """Write down an instruction that has made `array`; returns it Traced."""
        self._write(name, args, array, attrs)
        return self.traced(array, "made")

    def _write(self, name: str, args: Any, out: Any, attrs: dict[str, Any]) -> None:
        if type(out) is tuple or out.size or name in DRAWS:  # also empty draws, which are counted
            self.program.lines.append(Line(name, args, out, attrs, self._where(), self._what()))

    def ufunc(self, function: Any, inputs: Any, out: Any, attrs: dict[str, Any]) -> Any:
        """A ufunc that was called by NumPy's own name or operator: `Traced.__array_ufunc__`."""
        if not hasattr(self.xp, function.__name__):
            raise CaptureError(f"{self._where()}: numpy.{function.__name__} cannot be captured")
        return self._run(function.__name__, function, inputs, out, attrs)

    def power_of(self, x: Any, y: Any) -> Any:
        """`x ** y`; common exponents are other instructions, as in the library."""
        if type(y) in (int, float) and y in self.xp.powers and x.dtype.kind == "f":
            function = self.xp.powers[y]
            return self._run(function.__name__, function, (x,), None, {})
        return self.power(x, y)

    def sum(self, x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        """A sum; where the library's own is not exact enough, several instructions."""
        way = self.xp.way_of_sum and self.xp.way_of_sum(self.host(x), axis, dtype)
        if way is not None:
            return blocked_sum(self, x, way, keepdims)
        attrs = {"axis": axis, "dtype": dtype, "keepdims": keepdims}
        return self._run("sum", self.xp.sum, (x,), None, attrs)

    def reshape(self, x: Any, shape: Any) -> Any:
        """A view where the memory allows one, else a copy."""
        host = self.host(x)
        found = host.reshape(shape)
        if _shares(found, host) or not found.size:
            return self.traced(found, "made")
        return self._written("copyto", (found.reshape(host.shape), host), found)

    def getitem(self, x: Any, index: Any) -> Any:
        """A view for integers and slices, else a copy."""
        if _masks(self.host(index)):
            self.nonzero()
        return self._run("getitem", operator.getitem, (x, index), None, {})

    def setitem(self, x: Any, index: Any, value: Any) -> None:
        """`x[index] = value`."""
        if _masks(self.host(index)) and type(value) in ARRAYS and value.ndim:
            self.nonzero()
        self._change("setitem", operator.setitem, x, index, value)

    def scatter_add(self, x: Any, index: Any, values: Any) -> None:
        """`x[index] += values`, where repeated places add every time."""
        self._change("scatter_add", self.xp.scatter_add, x, index, values)

    def _change(self, name: str, function: Callable[..., Any], x: Any, *args: Any) -> None:
        hosts = self.host(x, written=True), *map(self.host, args)
        function(*hosts)
        self._write(name, hosts, hosts[0], {})

    def copyto(
        self, target: Any, source: Any, casting: Any = "same_kind", where: Any = True
    ) -> None:
        """Copy values, broadcast and cast."""
        to, given, mask = self.host(target, written=True), self.host(source), self.host(where)
        self.xp.copyto(to, given, casting=casting, where=mask)
        attrs = {"casting": casting, **({} if where is True else {"where": mask})}
        self._write("copyto", (to, given), to, attrs)

    def copy(self, x: Any, order: str = "C") -> Any:
        """A copy of `x`."""
        host = self.host(x)
        made = host.copy(order=order)
        return self._written("copyto", (made, host), made)

    def asarray(self, value: Any, dtype: Any = None) -> Any:
        """A number as a constant, an array in another dtype as a copy."""
        if type(value) in LIBRARIES and type(value) is not self.xp.array_type:
            return self.made(self.xp.asarray(self.looked_at(value), dtype))
        if type(value) in ARRAYS:
            host = self.host(value)
            if dtype is None or host.dtype == dtype:
                return value
            made = host.astype(dtype)
            return self._written("copyto", (made, host), made, casting="unsafe")
        return self.traced(self.xp.asarray(value, dtype), "constant")

    def made(self, array: Any) -> Traced:
        """`array`, which Python has filled: every replay copies these values into it first."""
        if type(array) is not self.xp.array_type:  # of the host, in a step on a GPU
            self.program.classify(array, "constant")
            return array
        start = array.copy()
        self.program.classify(start, "constant")
        return self._written("copyto", (array, start), array)

    def looked_at(self, array: Any) -> Any:
        """`array`, which is on the host in a step on a GPU: allowed if constant."""
        if type(array) not in LIBRARIES or type(array) is self.xp.array_type:
            refuse("NumPy or Python")
        if self.program.kinds.get(id(owner_of(array))) != "constant":
            self._refuse_elsewhere(array)
        return array

    def _refuse_elsewhere(self, array: Any) -> NoReturn:
        kind = LIBRARIES[type(array)].kind
        raise CaptureError(
            f"{self._where()}: an array of shape {array.shape} on the device {kind}, in a step on "
            f"{self.kind}; move what it uses to one device before the step"
        )

    def _filled(self, array: Any, value: Any) -> Traced:
        return self._written("copyto", (array, value), array, casting="unsafe")

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Traced:
        """`value` everywhere."""
        array = self.xp.full(shape, self.host(value), dtype)
        return self._filled(array, value)

    def _refuse_unowned(self, leaf: Any) -> NoReturn:
        raise CaptureError(
            f"{self._where()}: a gradient for a Tensor that no optimizer owns, of shape "
            f"{leaf.shape}; give it to an optimizer before the step is called, and keep that"
        )

    def _refuse_gradient(self, memory: Any) -> None:
        """CaptureError where `memory` is that of gradients whose optimizer is gone."""
        for module in alive(MODULES):
            for leaf in module.parameters():
                slot = None if leaf._extra is None else leaf._extra.slot
                if slot is not None and owner_of(slot.array) is memory:
                    self._refuse_unowned(leaf)

    def nonzero(self, *_: Any) -> Any:
        """Refused: the shape of the result depends on values."""
        raise CaptureError(
            f"{self._where()}: the shape of the result depends on values (nonzero, unique, a mask "
            "as an index), so it cannot be captured; where(mask, x, 0) keeps the shape"
        )

    def _where(self) -> str:
        """File and line of the user's code that runs now."""
        return user_line(sys._getframe(1))

    def _what(self) -> str:
        """The layer and the operation that run now."""
        frame: FrameType | None = sys._getframe(1)
        operation = ""
        while frame is not None and not self.doing:
            code = frame.f_code
            if not operation and code.co_filename.startswith(OPERATION):
                operation = code.co_filename[len(OPERATION) : -1]
            if code is Module.__call__.__code__:
                layer = self.layers.get(frame.f_locals["self"], "")
                return f"{layer}: {operation}" if layer and operation else layer or operation
            frame = frame.f_back
        return self.doing or operation


def _masks(index: Any) -> bool:
    """Whether an index has a mask: how much it selects depends on values."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(type(part) in LIBRARIES and part.dtype.kind == "b" for part in parts)


def _shares(a: Any, b: Any) -> bool:
    return type(b) in LIBRARIES and bool(a.size) and owner_of(a) is owner_of(b)


def _creation(name: str, kind: str, value: int | None) -> Any:
    def create(self: Library, *args: Any, **attrs: Any) -> Traced:
        given = [self.host(a) if type(a) in ARRAYS else a for a in args]
        array = getattr(self.xp, name)(*given, **attrs)
        return self.traced(array, kind) if value is None else self._filled(array, value)

    return create


for _name in ("constant", "operand", "ones_of", "arange"):
    setattr(Library, _name, _creation(_name, "constant", None))
for _name, _value in (("empty", None), ("empty_like", None), ("zeros", 0), ("zeros_like", 0),
                      ("ones", 1)):  # fmt: skip
    setattr(Library, _name, _creation(_name, "made", _value))
