"""How a Tensor prints: PyTorch's form, `tensor([1., 2.], grad_fn=<MulBackward0>)`.

The rules are those of torch's `_tensor_str.py`, so what a user has learned to read stays readable;
only dtypes are written as NumPy names them, `dtype=float64`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .backend import MODES, to_host


@dataclass
class _Options:
    """How Tensors print.

    Attributes:
        precision: digits after the point.
        threshold: more elements than this are summarized.
        edgeitems: elements shown at each end of a summarized dimension.
        linewidth: characters of a line.
        sci_mode: whether floats are written with an exponent; None where their sizes ask for it.
    """

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": _Options(),
    "short": _Options(precision=2, edgeitems=2),
    "full": _Options(threshold=math.inf),
}
OPTIONS = _Options()


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
    linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """How Tensors print from now on, in all threads; what is left out stays as it is.

    Args:
        precision: digits after the point (4).
        threshold: the number of elements above which a Tensor is summarized (1000).
        edgeitems: elements shown at each end of a dimension then (3).
        linewidth: characters of a line (80).
        profile: "default", "short" or "full", which set all of these before the others do.
        sci_mode: True for exponents, False for none; None, also if left out, where the sizes of
            the elements ask for it.

    Raises ValueError for another profile, and for a number that is negative.

    Example:
        >>> mt.set_printoptions(precision=2)
        >>> mt.tensor([1 / 3])
        tensor([0.33])
        >>> mt.set_printoptions(profile="default")
    """
    if profile is not None and profile not in _PROFILES:
        raise ValueError(
            f"set_printoptions: profile must be default, short or full, got {profile!r}"
        )
    given = {
        "precision": precision, "threshold": threshold, "edgeitems": edgeitems,
        "linewidth": linewidth,
    }  # fmt: skip
    numbers = {name: value for name, value in given.items() if value is not None}
    for name, value in numbers.items():
        if value < 0:
            raise ValueError(f"set_printoptions: {name} must not be negative, got {value}")
    vars(OPTIONS).update(vars(_PROFILES[profile]) if profile else {})
    vars(OPTIONS).update(numbers, sci_mode=sci_mode)


class _Formatter:
    """One form for all elements: plain integers, fixed point or scientific, in one width."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.floating = values.dtype.kind == "f"
        self.form = ".0f"
        self.width = 1
        if not self.floating:
            self.width = max((len(str(v)) for v in values.ravel().tolist()), default=1)
            return
        shown = values[np.isfinite(values) & (values != 0)].astype(np.float64)
        if not shown.size:
            return
        size = np.abs(shown)
        low, high = float(size.min()), float(size.max())
        exponents = high / low > 1000.0 or high > 1e8 or low < 1e-4
        if exponents if OPTIONS.sci_mode is None else OPTIONS.sci_mode:
            self.form = f".{OPTIONS.precision}e"
        elif bool(np.any(shown != np.ceil(shown))):
            self.form = f".{OPTIONS.precision}f"
        self.width = max(len(self._text(v)) for v in shown.tolist())

    def _text(self, value: Any) -> str:
        text = format(value, self.form)
        return text + "." if self.form == ".0f" and math.isfinite(value) else text

    def __call__(self, value: Any) -> str:
        return (self._text(value) if self.floating else str(value)).rjust(self.width)


def _ends(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The elements that a summary shows."""
    for dim, size in enumerate(array.shape):
        if size > 2 * OPTIONS.edgeitems:
            array = np.take(
                array, [*range(OPTIONS.edgeitems), *range(size - OPTIONS.edgeitems, size)], axis=dim
            )
    return array


def _body(array: np.ndarray[Any, Any], indent: int, summarize: bool, one: _Formatter) -> str:
    if not array.ndim:
        return one(array.item())
    cut = summarize and len(array) > 2 * OPTIONS.edgeitems
    rows: list[Any] = (
        [*array[: OPTIONS.edgeitems], None, *array[-OPTIONS.edgeitems :]] if cut else list(array)
    )
    if array.ndim == 1:
        words = [" ..." if v is None else one(v.item()) for v in rows]
        per_line = max(1, (OPTIONS.linewidth - indent) // (one.width + 2))
        lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    parts = ["..." if v is None else _body(v, indent + 1, summarize, one) for v in rows]
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def tensor_text(tensor: Any) -> str:
    """The text of `repr(tensor)`."""
    array = to_host(tensor._array)
    prefix = "tensor("
    indent = len(prefix)
    summarize = array.size > OPTIONS.threshold
    default = MODES.default_dtype.name
    suffixes = []
    if tensor.device.type != "cpu":
        suffixes.append(f"device='{tensor.device}'")
    if array.size:
        body = _body(array, indent, summarize, _Formatter(_ends(array) if summarize else array))
        known = {default, "int64", "bool"}
    else:
        body, known = "[]", {default}
        if array.ndim != 1:
            suffixes.append(f"size={array.shape}")
    if array.dtype.name not in known:
        suffixes.append(f"dtype={array.dtype.name}")
    if tensor.grad_fn is not None:
        suffixes.append(f"grad_fn=<{tensor.grad_fn._op.node_name}>")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    text = prefix + body
    line = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        if line + len(suffix) + 2 > OPTIONS.linewidth:
            text += ",\n" + " " * indent + suffix
            line = indent + len(suffix)
        else:
            text += ", " + suffix
            line += len(suffix) + 2
    return ("Parameter containing:\n" if type(tensor).__name__ == "Parameter" else "") + text + ")"
