"""A run's model for others: its weights by name, or all that `predict` does as an ONNX graph."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..backend import default_dtype
from ..common.files import TORCH
from ..creation import from_numpy
from ..errors import ConfigError
from ..inference.model import TrainedModel
from ..inference.predict import check_place, write_output
from ..tensor import TENSORS
from .c import name_of
from .c_files import files_of, write_files
from .c_run import run_in_c, vectors_of
from .c_run_step import run_step_in_c
from .predictor import Predictor
from .state import WRITERS, for_torch


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

    rows = zip(vectors_of(model, (), 2), model.signature.inputs, strict=True)
    examples = tuple(from_numpy(raw[:, 0].astype(one.dtype)) for raw, one in rows)
    facts = {
        "name": model.config.name,
        "checkpoint": model.chosen,
        "feature_names": json.dumps(model.feature_names),
        "target_names": json.dumps(model.target_names),
        "classes": json.dumps(model.classes),
    }
    several = model.classes is not None and model.link is not None
    try:
        with default_dtype(model.config.dtype):
            proto = graph_of(
                model.module, examples, None, ["prediction", "probability"][: 1 + several],
                metadata=facts, run=Predictor(model).predict,
                labels=None if model.classes is None else model.labels,
            )  # fmt: skip
    except RuntimeError as error:
        raise ConfigError(str(error)) from error
    given = ", ".join(f"{one.name} {_shape(one)}" for one in proto.graph.input)
    note(f"takes {given}; gives {', '.join(one.name for one in proto.graph.output)}")
    if model.signature.table is not None and model.feature_names is not None:
        note(f"columns of the input: {', '.join(model.feature_names)}")
    return bytes(proto.SerializeToString())


def _shape(info: Any) -> str:
    dims = info.type.tensor_type.shape.dim
    return f"({', '.join(d.dim_param or str(d.dim_value) for d in dims)})"
