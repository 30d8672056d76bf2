"""A model as an ONNX graph: the forward pass is traced, each operation becomes its nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..backend import to_host
from ..common.files import write_whole, writing
from ..common.version import __version__
from ..errors import ConfigError, absent
from ..nn import Module
from ..tensor import TENSORS, kind_of, wrap
from ..train.evaluation import evaluating
from . import elementwise, layers
from .graph import OPSET, Graph, Step
from .trace import Batch, Trace, compared, trace

__all__ = ["export", "graph_of"]

OWN = ("prediction", "probability", "classes")  # names in the graph of a run
RULES: dict[str, Callable[[Step], str]] = {**elementwise.TABLE, **layers.TABLE}


def export(
    model: Module,
    args: Any,
    path: str | os.PathLike[str],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Write a model in evaluation mode as an ONNX file, for runtimes that know no Python.

    The forward pass is made twice, and every operation becomes a node: what the model computes by
    other means (`if` on values, `item()`, NumPy) is found and refused. The first dimension of every
    input is the batch; the graph takes any number of rows, and all other sizes of the example.

    Args:
        model: it runs in evaluation mode and is left in the mode it is in.
        args: an example input, or a tuple of them, with the rows first.
        path: the file; it appears whole or not at all.
        input_names, output_names: in the graph; `input`, `output`, and of several `input_0` ...

    Raises RuntimeError naming the operation and the layer for what ONNX has no nodes for,
    ConfigError where the package onnx is not installed, LaunchError where the file system refuses.

    Example:
        >>> net = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 3))
        >>> mt.onnx.export(net, mt.randn(1, 4), "net.onnx")
    """
    inputs = args if isinstance(args, tuple) else (args,)
    proto = graph_of(model, inputs, input_names, output_names)
    content = proto.SerializeToString()
    with writing(path):
        write_whole(Path(os.path.expanduser(path)).resolve(), content)


def graph_of(
    model: Module,
    inputs: tuple[Any, ...],
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    metadata: Mapping[str, str] | None = None,
    run: Callable[..., Any] | None = None,
    labels: Any = None,
) -> Any:
    """The ModelProto.

    Args:
        model, inputs, input_names, output_names: as of `export`.
        metadata: text by key, for whoever uses the file.
        run: what is called with the inputs, and calls the model; None: the model itself.
        labels: an array, of which the first output has the numbers and becomes the elements.
    """
    try:
        import onnx
    except ImportError as error:
        raise ConfigError(f"ONNX files need onnx: {absent('onnx', 'onnx', error)}") from error
    found = _traced(model, inputs, run)
    given = _names("input", len(inputs), input_names)
    wanted = _names("output", len(found.outputs), output_names)
    graph = Graph(found, given, {*given, *OWN, *wanted})
    for call in found.calls:
        if call.operation in RULES:  # of another the result may be of no account
            graph.names[call.result] = RULES[call.operation](Step(graph, call))
    results = [graph.value(number) for number in found.outputs]
    ends = [found.values[number] for number in (*range(len(given)), *found.outputs)]
    kinds = [value.array.dtype for value in ends]
    if labels is not None:
        kept = labels if labels.dtype == np.int64 else labels.astype(object)
        results[0] = graph.node("Gather", graph.constant(kept, "classes"), results[0])
        kinds[len(given)] = kept.dtype
    for name, result in zip(wanted, results, strict=True):
        graph.node("Identity", result, name=name)
    shapes = (value.shape for value in ends)
    infos = [*map(_info, (*given, *wanted), kinds, shapes)]
    first, last = infos[: len(given)], infos[len(given) :]
    read = {name for node in graph.nodes for name in node.input}
    constants = [value for name, value in graph.initializers.items() if name in read]
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(graph.nodes, type(model).__name__, first, last, constants),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=8,
        producer_name="microtrain", producer_version=__version__,
    )  # fmt: skip
    onnx.helper.set_model_props(proto, {**(metadata or {})})
    onnx.checker.check_model(proto)
    return proto


def _names(kind: str, count: int, given: Sequence[str] | None) -> list[str]:
    if given is None:
        return [kind] if count == 1 else [f"{kind}_{i}" for i in range(count)]
    if len(given) != count or len({*given}) != count:
        raise ValueError(f"{kind}_names: expected {count} different names, got {list(given)}")
    return [*given]


def _traced(model: Module, inputs: tuple[Any, ...], run: Callable[..., Any] | None) -> Trace:
    """Two passes over the examples, compared; the modes of the modules stay what they were."""
    if not isinstance(model, Module):
        raise TypeError(f"export(): model: expected a Module, got {kind_of(model)}")
    for x in inputs:
        if type(x) not in TENSORS:
            raise TypeError(f"export(): args: expected Tensors, got {kind_of(x)}")
        if not x.ndim or not x.shape[0] or x.shape[0] != inputs[0].shape[0]:
            raise ValueError(
                "export(): args: the first dimension of every input is the batch, of one or more "
                f"rows; got shapes {[tuple(x.shape) for x in inputs]}"
            )
    rows = inputs[0].shape[0] + 1  # of two or more: what broadcasts one row would look constant
    with evaluating(model), np.errstate(all="ignore"):
        passes = [trace(model, _rows(inputs, n), run) for n in (rows, rows + 1, 1)]
    found = compared(passes[0], passes[1], (rows, rows + 1))
    _check_one_row(found, passes[2])
    return found


def _check_one_row(found: Trace, single: Trace) -> None:
    """RuntimeError where the outputs for one row have other dimensions than those for more."""
    shapes = [
        [tuple(trace.values[number].shape) for number in trace.outputs] for trace in (found, single)
    ]
    expected = [tuple(n.times if isinstance(n, Batch) else n for n in s) for s in shapes[0]]
    if expected != shapes[1]:
        raise RuntimeError(
            f"cannot export the model: for one row its outputs have shapes {shapes[1]}, expected "
            f"{expected}; squeeze() without a dimension drops that of a single row"
        )


def _rows(inputs: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """So many rows of the examples, again from the first; other numbers in each pass."""
    found = []
    for x in inputs:
        array = to_host(x._array)
        taken = np.take(array, np.arange(count) * count % len(array), axis=0)
        found.append(
            wrap(taken * array.dtype.type(1 / count) if taken.dtype.kind == "f" else taken)
        )
    return tuple(found)


def _info(name: str, dtype: Any, shape: Sequence[Any]) -> Any:
    from onnx import helper

    sizes = [str(size) if isinstance(size, Batch) else size for size in shape]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), sizes)
