"""An ONNX graph while it is built: nodes, constants, and shapes that follow the number of rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..backend import to_host
from .trace import Batch, Call, Ref, Trace

OPSET = 18  # onnxruntime 1.14 and later

# Of a node: the name of a value, a number, a list of whole numbers (axes, sizes), an array.
Input: TypeAlias = str | float | Sequence[int | Batch] | NDArray[Any]


class Graph:
    """The nodes of a trace; names are those of ONNX values.

    Args:
        trace: what is translated.
        inputs: names of its inputs; the first size of each is the number of rows.
        taken: names that no parameter may have.

    Attributes:
        names: of the values of the trace that have a node, by number.
    """

    def __init__(self, trace: Trace, inputs: Sequence[str], taken: Collection[str]) -> None:
        import onnx

        self.onnx, self.trace, self.taken = onnx, trace, taken
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.names: dict[int, str] = dict(enumerate(inputs))

    def node(
        self, kind: str, *inputs: str, outputs: int = 1, name: str = "", **attributes: Any
    ) -> str:
        """A new node; the name of its first output (others: `.1`, `.2`)."""
        name = name or f"{kind.lower()}_{len(self.nodes)}"
        names = [name, *(f"{name}.{i}" for i in range(1, outputs))]
        self.nodes.append(self.onnx.helper.make_node(kind, [*inputs], names, name, **attributes))
        return name

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

    def sizes(self, values: Sequence[int | Batch]) -> str:
        """A list of whole numbers, such as axes or sizes; computed where one follows the rows."""
        if not any(isinstance(size, Batch) for size in values):
            return self.constant(np.array(values, np.int64))
        parts = [self._rows(v) if isinstance(v, Batch) else self.sizes([v]) for v in values]
        return self.node("Concat", *parts, axis=0)

    def _rows(self, size: Batch) -> str:
        rows = self.node("Shape", self.names[0], start=0, end=1)
        return rows if size.times == 1 else self.node("Mul", rows, self.sizes([size.times]))

    def value(self, number: int) -> str:
        """The name of a value; constants and parameters get theirs when first used."""
        if number not in self.names:
            value = self.trace.values[number]
            if value.kind == "result":
                call = next(call for call in self.trace.calls if call.result == number)
                Step(self, call).refuse(f"the operation {call.operation} has no ONNX form")
            array: NDArray[Any] = to_host(value.array)
            if any(type(size) is Batch for size in value.shape):
                one = self.constant(array.reshape(-1)[:1].reshape(()))
                self.names[number] = self.node("Expand", one, self.sizes(value.shape))
            else:
                name = "" if value.name in self.taken else value.name
                self.names[number] = self.constant(array, name)
        return self.names[number]


class Step:
    """One call while it is translated: `step["x"]` is the name of its input `x`."""

    def __init__(self, graph: Graph, call: Call) -> None:
        self.graph, self.call, self.to = graph, call, graph.cast
        self.attributes = call.attributes
        self.result = graph.trace.values[call.result]
        self.dtype: np.dtype[Any] = self.result.array.dtype
        self.keep = int(bool(self.attributes.get("keepdim")))

    def node(self, kind: str, *inputs: Input, **attributes: Any) -> str:
        """A new node; an input that is a number is a constant in the dtype of the result."""
        return self.graph.node(kind, *map(self._name, inputs), **attributes)

    def _name(self, given: Input) -> str:
        if isinstance(given, str):
            return given
        if isinstance(given, list | tuple | range):
            return self.graph.sizes(given)
        array = given if isinstance(given, np.ndarray) else np.array(given, self.dtype)
        return self.graph.constant(array)

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
