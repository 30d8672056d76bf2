"""What a run's model does with a raw row, as C: scaling, categories, classes and units included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import default_dtype
from ..capture.standalone import string
from ..data.tables.table import Fitted
from ..errors import CaptureError, ConfigError
from ..inference.model import TrainedModel
from .c import VECTORS, written
from .c_files import Function, Written
from .predictor import Predictor, fill_of

FINITE = "if (!isfinite({})) return 2;"


def run_in_c(model: TrainedModel, name: str, weights_file: bool) -> Written:
    """The function of a run; ConfigError for what has no form in C."""
    columns = columns_in_c(model)
    predictor = Predictor(model, columns)
    vectors = vectors_of(model, columns)
    before, notes = checks(columns, vectors), meaning(model, columns)
    inputs = ["the row, raw values" if not n else f"input {n}" for n in range(len(vectors))]
    second = "the probability of each class" if model.link == "softmax" else "scores of the classes"
    own = "the prediction, in the target's own unit"
    own = "the probability" if model.link == "sigmoid" else own
    outputs = [own] if model.classes is None else ["the number of the class", second]
    try:
        with default_dtype(model.config.dtype):
            found = written(
                name, "predict", predictor, vectors, f"{model.config.name}: {model.chosen}",
                about=(inputs, outputs), before=before, notes=notes,
                extra=functions_of(model, name, columns),
                weights=weights_file,
                codes="1: an index is out of bounds; 2: a value of the row is not finite, is empty "
                "where that was an error in training, or is not a category; 3: the result, a score "
                "or a scaled value is not finite.",
            )  # fmt: skip
    except CaptureError as error:
        raise ConfigError(f"the model cannot be written as C: {error}") from error
    dtype, shape, _ = found.outputs[-1]
    if np.dtype(dtype).kind == "f":
        at, size = f"out{len(found.outputs) - 1}", int(np.prod(shape))
        loop = f"for (int64 i = 0; i < {size}; i++) if (!isfinite({at}[i])) return 3;"
        found.code.calls.append(loop)
    return found


def columns_in_c(model: TrainedModel) -> tuple[Fitted, ...]:
    """The columns of a table; none where they are numbers, which are inputs as they are.

    ConfigError for what has no form in C.
    """
    found = model.encoder.columns if model.encoder is not None else ()
    for fitted in found:
        if fitted.column.parts:
            raise ConfigError(
                f'column "{fitted.name}": the parts of a date have no form in C; give the model '
                "days, or columns of numbers that you make of the date yourself"
            )
    plain = all(f.column.type in ("number", "date") and f.column.missing is None for f in found)
    return () if plain else found


def functions_of(model: TrainedModel, name: str, columns: Sequence[Fitted]) -> list[Function]:
    """Those that name classes and number categories."""
    extra = [] if model.classes is None else [_classes(name, model.classes)]
    if any(fitted.column.type == "category" for fitted in columns):
        extra.append(_categories(name, columns))
    return extra


def _may_be_empty(fitted: Fitted) -> bool:
    """Whether a cell may be; what stands for it may be an unknown category, which is an error."""
    column = fitted.column
    strict = column.type == "category" and column.unknown == "error"
    return column.missing is not None and not (strict and fill_of(fitted) == 0)


def vectors_of(model: TrainedModel, columns: Sequence[Fitted], count: int = VECTORS) -> list[Any]:
    """Rows like those of the training part."""
    rng, scaling = np.random.default_rng(0), model.preprocessing
    if columns:
        rows, at = np.empty((count, 1, len(columns))), 0
        for n, fitted in enumerate(columns):
            if fitted.column.type == "category":
                first = int(fitted.column.unknown == "error")
                rows[:, 0, n] = rng.integers(first, 1 + len(fitted.categories), count)
            else:
                mean, scale = scaling.mean[at], scaling.scale[at]
                rows[:, 0, n] = mean + scale * rng.standard_normal(count)
            if _may_be_empty(fitted):
                rows[n % count, 0, n] = np.nan
            at += len(fitted.feature_names)
        return [rows]
    found: list[Any] = []
    for n, one in enumerate(model.signature.inputs):
        size = count, 1, *one.shape
        numbers = rng.standard_normal(size)
        if one.dtype == "int64":
            found.append(np.zeros(size, np.int64))
        else:
            found.append(numbers if n else scaling.mean + scaling.scale * numbers)
    return found


def checks(columns: Sequence[Fitted], vectors: Sequence[Any]) -> list[str]:
    """Lines of C that refuse what Python would refuse."""
    rows, lines = len(vectors[0][0]), []
    for n, fitted in enumerate(columns):
        value = f"in0[{f'row * {len(columns)} + ' if rows > 1 else ''}{n}]"
        bad = FINITE.format(value)
        if fitted.column.type == "category":
            least = int(fitted.column.unknown == "error")
            fits = f"{value} >= {least} && {value} <= {len(fitted.categories)}"
            bad = f"if (!({fits} && {value} == floor({value}))) return 2;"
        lines.append(f"if (!isnan({value})) {{ {bad} }}" if _may_be_empty(fitted) else bad)
    if columns and rows > 1:
        head = f"for (int64 row = 0; row < {rows}; row++) {{"
        lines = [head, *(f"    {line}" for line in lines), "}"]
    sizes = {n: v[0].size for n, v in enumerate(vectors) if v.dtype.kind == "f"}
    return lines + [f"for (int64 i = 0; i < {size}; i++) {FINITE.format(f'in{n}[i]')}"
                    for n, size in sizes.items() if n or not columns]  # fmt: skip


def meaning(
    model: TrainedModel, columns: Sequence[Fitted], row: str = "", target: str = "out0"
) -> list[str]:
    """What stands where in a row, for the header."""
    all_of_them = model.encoder.columns if model.encoder is not None else ()
    names = [*map(_described, all_of_them)] or [*(model.feature_names or ())]
    found = [f"in0{row}[{n}]: {name}" for n, name in enumerate(names)]
    targets = model.target_names if model.classes is None else model.classes
    what = "class" if model.classes is not None else target
    at = " {}" if model.classes is not None else "[{}]"
    return found + [f"{what}{at.format(n)}: {text}" for n, text in enumerate(targets or ())]


def _described(fitted: Fitted) -> str:
    """A column, in words."""
    what = {"date": ", days since 1970-01-01", "category": ", the number of a category"}
    empty = ", NAN where it is empty" if _may_be_empty(fitted) else ""
    return f"{fitted.name}{what.get(fitted.column.type, '')}{empty}"


def _classes(name: str, classes: Any) -> Function:
    texts = ", ".join(map(string, classes))
    return Function(
        "const char *", f"{name}_class", [("int64_t ", "number")],
        "The name of a class in UTF-8; 0 for a number that is none.",
        f"    static const char *const names[] = {{{texts}}};\n"
        f"    return number >= 0 && number < {len(classes)} ? names[number] : 0;\n",
    )  # fmt: skip


def _categories(name: str, columns: Sequence[Fitted]) -> Function:
    lines = ["    if (!text || !*text) return NAN;\n"]
    for n, fitted in enumerate(columns):
        if fitted.column.type == "category":
            lines += [f"    if (column == {n}) {{\n"]
            lines += [f"        if (!strcmp(text, {string(each)})) return {code};\n"
                      for code, each in enumerate(fitted.categories, 1)]  # fmt: skip
            lines += ["    }\n"]
    return Function(
        "double ", f"{name}_category", [("int ", "column"), ("const char *", "text")],
        "The number of a category, in UTF-8 and as it was written in training, for its column of a "
        "row: from 1 on; 0 for one that is unknown; NAN for an empty text.",
        "".join([*lines, "    return 0;\n"]),
    )  # fmt: skip
