"""An ONNX graph while it is built: nodes, constants, and shapes that follow the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..backend import to_host
from .trace import Batch, Call, Ref, Trace

OPSET = 18  # onnxruntime 1.14 and later
BATCH = "batch"  # the name of the symbolic size


class Graph:
    """The nodes of a trace; names are those of ONNX values.

    Attributes:
        trace: what is translated.
        names: of the values of the trace that have a node, by number.
    """

    def __init__(self, trace: Trace) -> None:
        import onnx

        self.onnx, self.trace = onnx, trace
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self.deferred: dict[int, Call] = {}  # whose user makes their nodes
        self._batch = ""
        self.row_source = ""  # an input, whose first size is the number of rows
        self.taken: set[str] = set()  # names that no parameter may have

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """A new node; the name of its first output (others: `.1`, `.2`)."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(self.onnx.helper.make_node(kind, [*inputs], names, name, **attributes))
        return name

    def rename(self, value: str, name: str) -> None:
        """Give the output of the graph `value` its name."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name], name))

    def cast(self, value: str, dtype: Any) -> str:
        """A value in another dtype."""
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.node("Cast", value, to=kind)

    def constant(self, array: Any, name: str = "") -> str:
        """A constant array."""
        name = name or f"constant_{len(self.initializers)}"
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        self.initializers[name] = self.onnx.numpy_helper.from_array(array, name)
        return name

    def ints(self, values: Sequence[int]) -> str:
        """A constant list of whole numbers, as axes and sizes are given."""
        return self.constant(np.array(values, np.int64))

    def shape(self, sizes: Sequence[int | Batch]) -> str:
        """A list of sizes, computed where one follows the rows."""
        if not any(type(size) is Batch for size in sizes):
            return self.ints(sizes)  # type: ignore[arg-type]
        return self.node("Concat", *(self._size(size) for size in sizes), axis=0)

    def _size(self, size: int | Batch) -> str:
        if not isinstance(size, Batch):
            return self.ints([size])
        if not self._batch:
            self._batch = self.node("Shape", self.row_source, start=0, end=1)
        if size.times == 1:
            return self._batch
        return self.node("Mul", self._batch, self.ints([size.times]))

    def value(self, number: int) -> str:
        """The name of a value; constants and parameters get theirs when first used."""
        if number not in self.names:
            value = self.trace.values[number]
            if number in self.deferred:
                call = self.deferred[number]
                Step(self, call).refuse(f"the operation {call.operation} has no ONNX form")
            array: NDArray[Any] = to_host(value.array)
            if any(type(size) is Batch for size in value.shape):
                one = self.constant(array.reshape(-1)[:1].reshape(()))
                self.names[number] = self.node("Expand", one, self.shape(value.shape))
            else:
                name = "" if value.name in self.taken else value.name
                self.names[number] = self.constant(array, name)
        return self.names[number]


class Step:
    """One call while it is translated: `step["x"]` is the name of its input `x`."""

    def __init__(self, graph: Graph, call: Call) -> None:
        self.graph, self.call = graph, call
        self.node, self.ints, self.to = graph.node, graph.ints, graph.cast
        self.attributes = call.attributes
        self.result = graph.trace.values[call.results[0]]
        self.dtype: np.dtype[Any] = self.result.array.dtype

    def value(self, name: str) -> Any:
        """The input `name` as a value of the trace; None where there is none."""
        given = self.call.inputs[name]
        return self.graph.trace.values[given.number] if type(given) is Ref else None

    def shape(self, name: str) -> tuple[Any, ...]:
        """The sizes of the input `name`."""
        value = self.value(name)
        return () if value is None else value.shape

    def has(self, name: str) -> bool:
        return self.call.inputs.get(name) is not None

    def __getitem__(self, name: str) -> str:
        given = self.call.inputs[name]
        if type(given) is not Ref:
            self.refuse(f"{name} of {self.call.operation}")
        return self.graph.value(given.number)

    def cast(self, name: str, dtype: Any) -> str:
        """The input `name`, also a Python number, in `dtype`."""
        given = self.call.inputs[name]
        if type(given) is not Ref:
            if isinstance(given, Batch):
                self.refuse(f"the number of rows is an operand of {self.call.operation}")
            return self.graph.constant(np.array(given, dtype))
        same = self.graph.trace.values[given.number].array.dtype == dtype
        return self[name] if same else self.to(self[name], dtype)

    def refuse(self, why: str) -> NoReturn:
        """RuntimeError, with the layer."""
        raise RuntimeError(f"cannot export {self.call.layer}: {why}")

    def operands(self, *names: str) -> list[str]:
        """Inputs in the dtype that NumPy and PyTorch bring them to."""
        common = self.dtype
        if common.kind == "b":  # of a comparison
            values = filter(None, map(self.value, names))
            kinds = [value.array.dtype for value in values]
            floats = [kind for kind in kinds if kind.kind == "f"]
            common = np.result_type(*(floats or kinds))
            numbers = [n for n in map(self.call.inputs.get, names) if type(n) is float]
            if numbers and common.kind != "f":
                common = np.dtype(np.float64)
        return [self.cast(name, common) for name in names]

    def number(self, value: float) -> str:
        """A constant number in the dtype of the result."""
        return self.graph.constant(np.array(value, self.dtype))
