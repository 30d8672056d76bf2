"""How a Tensor prints: PyTorch's form, `tensor([1., 2.], grad_fn=<MulBackward0>)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .backend import MODES, to_host

_PRECISION = 4
_THRESHOLD = 1000
_LINE_WIDTH = 80


def _float_text(values: np.ndarray[Any, Any]) -> Any:
    """One formatter for all elements: plain integers, fixed point or scientific, as PyTorch."""
    finite = values[np.isfinite(values)].astype(np.float64)
    magnitude = np.abs(finite[finite != 0])
    top = float(magnitude.max()) if magnitude.size else 0.0
    low = float(magnitude.min()) if magnitude.size else 0.0
    spread = low > 0 and top / low > 1000.0
    if not magnitude.size or bool(np.all(finite == np.ceil(finite))):
        scientific = spread and top > 1e8 or top > 1e8
        return (lambda v: f"{v:.{_PRECISION}e}") if scientific else (lambda v: f"{v:.0f}.")
    if spread or top > 1e8 or low < 1e-4:
        return lambda v: f"{v:.{_PRECISION}e}"
    return lambda v: f"{v:.{_PRECISION}f}"


def tensor_text(tensor: Any) -> str:
    """The text of `repr(tensor)`."""
    array = to_host(tensor._array)
    is_parameter = type(tensor).__name__ == "Parameter"
    lead = "tensor("
    formatter: dict[str, Any] = {}
    if array.dtype.kind == "f":
        one = _float_text(array)

        def text(value: Any) -> str:
            return one(value) if np.isfinite(value) else str(float(value))

        width = max((len(text(v)) for v in array.flat), default=0) if array.size <= 1000 else 0
        formatter = {"float_kind": lambda v: text(v).rjust(width if array.ndim else 0)}
    elif array.dtype.kind == "b":
        formatter = {"bool": lambda v: (" " * (v and array.ndim > 0) + str(bool(v)))}
    body = np.array2string(
        array,
        separator=", ",
        prefix=lead,
        formatter=formatter,  # type: ignore[call-overload,unused-ignore]
        threshold=_THRESHOLD,
        max_line_width=_LINE_WIDTH + len(lead),
    )
    tail = []
    if array.size == 0 and array.ndim != 1:
        body, tail = "[]", [f"size={array.shape}"]
    if tensor.device.type != "cpu":
        tail.append(f"device='{tensor.device}'")
    shown = {MODES.default_dtype.name, "bool"} | ({"int64"} if array.size else set())
    if array.dtype.name not in shown:
        tail.append(f"dtype={array.dtype.name}")
    if tensor.grad_fn is not None:
        tail.append(f"grad_fn=<{tensor.grad_fn.name()}>")
    elif tensor.requires_grad and not is_parameter:
        tail.append("requires_grad=True")
    text_ = lead + ", ".join([body, *tail]) + ")"
    return f"Parameter containing:\n{text_[:-1]}, requires_grad=True)" if is_parameter else text_
