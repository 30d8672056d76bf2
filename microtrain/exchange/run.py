"""A run's model for others: its weights by name, or all that `predict` does as an ONNX graph."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..backend import default_dtype
from ..common.files import TORCH
from ..creation import from_numpy
from ..data import TargetScaling
from ..errors import ConfigError
from ..inference.model import TrainedModel
from ..inference.predict import check_place, write_output
from ..tensor import TENSORS
from .c import name_of
from .c_files import files_of, write_files
from .c_run import run_in_c
from .c_run_step import run_step_in_c
from .state import WRITERS, for_torch

__all__ = ["export_run"]


def export_run(
    model: TrainedModel, kind: str, output: str | None, force: bool, note: Callable[[str], None],
    weights_file: bool = False, rows: int | None = None,
) -> str:  # fmt: skip
    """Write `model` as a file `.kind`, whole or not at all; returns the name of the file.

    `weights_file`: as `mt.export` has it. `rows`: of the training step that is written instead of
    what `predict` does, 0 for as many as the run takes. `note` is told what the user of the file
    has to know.

    Raises ConfigError for a name that does not fit or is taken and for what ONNX or C has no form
    for, LaunchError where the file system refuses.
    """
    name = model.config.name
    if kind == "c" and not output:  # as C has names
        name = re.sub(r"[^a-zA-Z0-9]+", "_", name).strip("_")[:31]
        name = name if name[:1].isalpha() else f"net_{name}"[:31]
    output = output or f"{name}.{kind}"
    if (suffix := Path(output).suffix.lower()) != f".{kind}":
        way_out = f"; {for_torch(output)}" if suffix in TORCH else ""
        raise ConfigError(
            f"--output {output}: expected a name that ends in .{kind} for --to {kind}{way_out}"
        )
    check_place(output, force)
    if weights_file and kind != "c":
        raise ConfigError(f"--weights-file is for --to c, got --to {kind}")
    if rows is not None and (kind != "c" or weights_file):
        way_out = "leave out --weights-file" if kind == "c" else f"use --to c, not --to {kind}"
        raise ConfigError(f"--step is written as C that holds the weights in its state: {way_out}")
    if kind == "c":
        try:
            name = name_of(output)
        except ValueError as error:
            raise ConfigError(f"--output {output}: {str(error).partition('path: ')[2]}") from None
        files = files_of(
            run_in_c(model, name, weights_file)
            if rows is None
            else run_step_in_c(model, name, rows)
        )
        for end in files:
            check_place(str(Path(output).with_name(end.format(Path(output).stem))), force)
        write_files(output, files)
        note(f"beside it: {', '.join(end.format(Path(output).stem) for end in [*files][1:])}")
        return output
    content: bytes | Iterable[Any]
    if kind == "onnx":
        content = _onnx(model, note)
    else:
        state = model.module.state_dict()
        tensors = {name: value for name, value in state.items() if type(value) in TENSORS}
        if left := [name for name in state if name not in tensors]:
            note(f"left out, since it is not a Tensor: {', '.join(left)}")
        content = WRITERS[suffix](tensors)
        _say_standardization(model, note)
    write_output(Path(output), content)
    return output


def _say_standardization(model: TrainedModel, note: Callable[[str], None]) -> None:
    """What must be done to inputs and outputs before the weights are of use."""
    used = {
        "expect standardized inputs, (x - mean) / scale": (model.preprocessing, "preprocessing")
    }
    if (scaling := model.target_scaling) is not None:
        target = "log(1 + target)" if scaling.log else "target"
        used[f"give ({target} - mean) / scale"] = scaling.affine, "target_scaling.affine"
        if scaling.exp:
            note("the weights give logarithms of the target: apply exp")
        if scaling.ends is not None:
            note("predict holds predictions within the range of the training targets: clip them")
    for what, (affine, where) in used.items():
        if not affine.is_identity or "log(" in what:
            how = f"mean {affine.mean.tolist()}, scale {affine.scale.tolist()}"
            if affine.mean.size > 8:
                how = f'both are in mt.load("{model.path}").{where}'
            note(f"the weights {what}: {how}")


def _onnx(model: TrainedModel, note: Callable[[str], None]) -> bytes:
    """The graph of what `predict` does with arrays: standardization, model, link or unit."""
    from ..onnx.exporter import graph_of
    from ..onnx.graph import Graph

    rng = np.random.default_rng(0)
    examples = [
        from_numpy(
            np.zeros((2, *one.shape), one.dtype)
            if one.dtype == "int64"
            else rng.standard_normal((2, *one.shape)).astype(one.dtype)
        )
        for one in model.signature.inputs
    ]

    def start(graph: Graph, number: int, name: str) -> str:
        if number or model.preprocessing.is_identity:
            return name
        dtype = np.dtype(model.signature.inputs[0].dtype)
        wide = graph.cast(name, np.float64)
        centered = graph.node("Sub", wide, graph.constant(model.preprocessing.mean, "mean"))
        scaled = graph.node("Div", centered, graph.constant(model.preprocessing.scale, "scale"))
        return graph.cast(scaled, dtype)

    def finish(graph: Graph, results: list[str]) -> dict[str, tuple[Any, Any]]:
        if len(results) != 1:
            raise ConfigError(
                f"the model returns {len(results)} Tensors, of which none is known to be the "
                "prediction; mt.onnx.export(module, example, path) writes them all"
            )
        value = graph.trace.values[graph.trace.outputs[0]]
        shape = value.shape
        if model.classes is None:
            found = results[0] if model.link is None else graph.node("Sigmoid", results[0])
            if model.target_scaling is not None:
                found = _in_own_unit(graph, found, model.target_scaling, value.array.dtype)
            if shape[1:] == (1,):
                found, shape = graph.node("Squeeze", found, graph.ints([1])), shape[:1]
            graph.rename(found, "prediction")
            return {"prediction": (value.array.dtype, shape)}
        best = graph.node("ArgMax", results[0], axis=1, keepdims=0)
        labels = model.labels
        kept = labels if labels.dtype == np.int64 else labels.astype(object)
        graph.rename(graph.node("Gather", graph.constant(kept, "classes"), best), "prediction")
        outputs: dict[str, tuple[Any, Any]] = {"prediction": (kept.dtype, shape[:1])}
        if model.link == "softmax":
            wide = graph.cast(results[0], np.float64)
            graph.rename(graph.node("Softmax", wide, axis=1), "probability")
            outputs["probability"] = (np.float64, shape)
        return outputs

    facts = {
        "name": model.config.name,
        "checkpoint": model.chosen,
        "feature_names": json.dumps(model.feature_names),
        "target_names": json.dumps(model.target_names),
        "classes": json.dumps(model.classes),
    }
    try:
        with default_dtype(model.config.dtype):
            proto = graph_of(
                model.module, tuple(examples), metadata=facts, start=start, finish=finish
            )
    except RuntimeError as error:
        raise ConfigError(str(error)) from error
    given = ", ".join(f"{one.name} {_shape(one)}" for one in proto.graph.input)
    note(f"takes {given}; gives {', '.join(one.name for one in proto.graph.output)}")
    if model.signature.table is not None and model.feature_names is not None:
        note(f"columns of the input: {', '.join(model.feature_names)}")
    return bytes(proto.SerializeToString())


def _in_own_unit(graph: Any, found: str, scaling: TargetScaling, dtype: Any) -> str:
    """What `TargetScaling.predictions` makes of outputs, as `dtype`."""
    wide = graph.cast(found, np.float64)
    scaled = graph.node("Mul", wide, graph.constant(scaling.affine.scale, "target_scale"))
    own = graph.node("Add", scaled, graph.constant(scaling.affine.mean, "target_mean"))
    if scaling.exp:
        own = graph.node("Exp", own)
    elif scaling.log:
        one = graph.constant(np.ones(1), "one")
        own = graph.node("Sub", graph.node("Exp", own), one)
    if scaling.ends is not None:
        lowest, highest = scaling.ends
        own = graph.node("Max", own, graph.constant(lowest, "target_lowest"))
        own = graph.node("Min", own, graph.constant(highest, "target_highest"))
    return str(graph.cast(own, dtype))


def _shape(info: Any) -> str:
    dims = info.type.tensor_type.shape.dim
    return f"({', '.join(d.dim_param or str(d.dim_value) for d in dims)})"
