"""The operations of a forward pass, written down as they are called.

What is written down is what a model does with these inputs, so the pass is made for two batches of
different sizes and values: a size that grows with the batch is one of the batch, and whatever else
differs was computed from the inputs by other means than operations, which is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from ..backend import LIBRARIES, to_host
from ..capture.looks import look
from ..nn import Module
from ..ops.coercion import PUBLIC, version_of
from ..ops.registry import tracing
from ..tensor import TENSORS
from ..train.models_and_losses import leaves


@dataclass(frozen=True)
class Batch:
    """A size that is `times` the number of rows."""

    times: int

    def __str__(self) -> str:
        return "batch" if self.times == 1 else f"{self.times}*batch"


@dataclass
class Value:
    """A Tensor of the pass.

    Attributes:
        kind: "input", "parameter", "constant" or "result".
        array: of a parameter or constant its values, else of the first pass.
        shape: sizes, each a number or a Batch once two passes are compared.
        name: of an input or parameter.
    """

    kind: str
    array: Any
    shape: tuple[Any, ...]
    name: str = ""


@dataclass
class Call:
    """A call of an operation: its inputs (values by number, Python's numbers), its attributes."""

    operation: str
    inputs: dict[str, Any]
    attributes: dict[str, Any]
    result: int
    layer: str


@dataclass(frozen=True)
class Ref:
    """A value, by its number in the trace."""

    number: int


@dataclass(eq=False)
class Trace:
    """What one pass did."""

    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)  # in which of them we are
    depth: int = 0  # of operations within operations
    known: dict[int, tuple[int, Any, int]] = field(default_factory=dict)  # by id of the array

    def add(self, kind: str, tensor: Any, name: str = "") -> int:
        """A new value; the Tensor stays alive, so that its array's id stays its own."""
        array = tensor._array
        self.values.append(Value(kind, array, array.shape, name))
        number = len(self.values) - 1
        self.known[id(array)] = number, tensor, version_of(tensor)
        return number

    def ref(self, given: Any) -> Any:
        """What an argument is: a Ref of a Tensor, and all else itself."""
        if isinstance(given, tuple | list):
            return [self.ref(each) for each in given]
        if type(given) not in TENSORS:
            return given
        if id(given._array) not in self.known:
            return Ref(self.add("constant", given))
        number, tensor, version = self.known[id(given._array)]
        if version_of(tensor) != version:
            self.refuse("a Tensor was written to in place; write y = f(x) instead of f_(x)")
        return Ref(number)

    def call(self, operation: Any, run: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Run an operation; the outermost one of Tensors is written down."""
        given = {name: arguments[PUBLIC.get(name, name)] for name in operation.inputs}
        tensors = [x for each in given.values() for x in (each if type(each) is tuple else (each,))]
        if self.depth or not any(type(x) in TENSORS for x in tensors):
            return run(**arguments)
        try:
            self.depth += 1
            refs = {name: self.ref(value) for name, value in given.items()}
            result = run(**arguments)
        finally:
            self.depth -= 1
        number = self.add("result", result)
        taken = {PUBLIC.get(name, name) for name in given}
        attributes = {name: value for name, value in arguments.items() if name not in taken}
        self.calls.append(Call(operation.name, refs, attributes, number, self.place()))
        return result

    def look(self, tensor: Any, what: str) -> None:
        """Refuse that Python looks at values which depend on the inputs."""
        number = self.known.get(id(tensor._array), (None,))[0]
        if self.depth or number is None or self.values[number].kind not in ("input", "result"):
            return
        self.refuse(
            f"{look(what)[0]} looks at values, which a graph does not know; "
            "write it with operations on Tensors, such as mt.where"
        )

    def place(self) -> str:
        """The innermost layer that is running."""
        return self.layers[-1] if self.layers else "the model"

    def refuse(self, why: str) -> NoReturn:
        raise RuntimeError(f"cannot export {self.place()}: {why}")


def trace(model: Module, inputs: tuple[Any, ...], run: Callable[..., Any] | None = None) -> Trace:
    """One pass of `model` over Tensors, or of `run`, which calls it.

    Raises RuntimeError for what no graph can say, and whatever the model raises.
    """
    found = Trace()
    for number, tensor in enumerate(inputs):
        found.add("input", tensor, str(number))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor._array) not in found.known:  # a tied one has several names
            found.add("parameter", tensor, name)
    with _layers(model, found), tracing(found):
        outputs = (run or model)(*inputs)
    for output in leaves(outputs):
        if output is None:
            continue
        if type(output) not in TENSORS:
            found.refuse(f"it returned {type(output).__name__}; a graph gives Tensors")
        found.outputs.append(found.ref(output).number)
    return found


@contextlib.contextmanager
def _layers(model: Module, trace: Trace) -> Iterator[None]:
    """Keep in `trace` which layer is running."""
    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            label = f"layer {name} ({type(module).__name__})" if name else type(module).__name__
            push: Any = lambda *_, label=label: trace.layers.append(label)  # noqa: E731
            pop: Any = lambda *_: trace.layers.pop() and None  # noqa: E731
            hooks.enter_context(module.register_forward_pre_hook(push))
            hooks.enter_context(module.register_forward_hook(pop))
        yield


# Two passes ---------------------------------------------------------------------------------------


def compared(first: Trace, second: Trace, rows: tuple[int, int]) -> Trace:
    """The first of two passes over so many rows, with the sizes that depend on them as Batch.

    Raises RuntimeError for passes that differ otherwise.
    """

    def differ(what: str, call: Call | None = None) -> NoReturn:
        where = call.layer if call else "the model"
        raise RuntimeError(
            f"cannot export {where}: {what} depends on the values or the number of rows by other "
            "means than operations on Tensors (such as if, item() or NumPy), and a graph would "
            "keep that of the example"
        )

    for one, other in zip(first.calls, second.calls, strict=False):
        if (one.operation, one.result) != (other.operation, other.result):
            differ(f"which operations run ({one.operation}, {other.operation})", one)
        try:
            one.inputs = unified(one.inputs, other.inputs, rows)
            one.attributes = unified(one.attributes, other.attributes, rows)
        except ValueError:
            differ(f"an argument of {one.operation}", one)
    if len(first.calls) != len(second.calls) or first.outputs != second.outputs:
        differ("which operations run")
    for mine, theirs in zip(first.values, second.values, strict=True):
        try:
            mine.shape = unified(mine.shape, theirs.shape, rows)
        except ValueError:
            differ(f"a shape ({mine.shape}, {theirs.shape})")
        if mine.kind == "constant" and not _same_constant(mine, theirs):
            differ("a constant")
    return first


def _same_constant(mine: Value, theirs: Value) -> bool:
    one, other = to_host(mine.array), to_host(theirs.array)
    if one.dtype != other.dtype:
        return False
    if one.shape == other.shape:
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    # One value repeated for each row, as an initial state of zeros.
    return one.size > 0 and bool((one == one.flat[0]).all() and (other == one.flat[0]).all())


def unified(one: Any, other: Any, rows: tuple[int, int]) -> Any:
    """What two passes have in common, sizes that follow the rows as Batch; ValueError for none."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {key: unified(one[key], other[key], rows) for key in one}
    if isinstance(one, tuple | list) and type(one) is type(other) and len(one) == len(other):
        found = [unified(a, b, rows) for a, b in zip(one, other, strict=True)]
        return type(one)(*found) if hasattr(one, "_fields") else type(one)(found)
    if isinstance(one, slice) and isinstance(other, slice):
        parts = [(s.start, s.stop, s.step) for s in (one, other)]
        return slice(*unified(parts[0], parts[1], rows))
    if type(one) in LIBRARIES and type(other) in LIBRARIES and np.array_equal(one, other):
        return one
    if type(one) in LIBRARIES or type(other) in LIBRARIES or type(one) is not type(other):
        raise ValueError
    if one == other or one != one:
        return one
    if type(one) is int and one * rows[1] == other * rows[0] and one % rows[0] == 0:
        return Batch(one // rows[0])
    raise ValueError
