"""Layers, shapes and indices as ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..backend import ARRAYS, to_host
from ..ops.nn.windows import Geometry
from .graph import Step

__all__ = ["TABLE"]

END = 2**62  # of a slice without an end


# Shapes -------------------------------------------------------------------------------------------


def _expand(s: Step) -> str:
    """Sizes that the input has already are 1: an expansion leaves them."""
    wanted = s.attributes["shape"]
    lead = len(wanted) - len(s.shape("x"))
    sizes = [1 if i >= lead and s.shape("x")[i - lead] == n else n for i, n in enumerate(wanted)]
    return s.node("Expand", s["x"], sizes)


def _cat(s: Step) -> str:
    names = []
    for ref in s.call.inputs["tensors"]:
        name = s.graph.value(ref.number)
        same = s.graph.trace.values[ref.number].array.dtype == s.dtype
        names.append(name if same else s.to(name, s.dtype))
    return s.node("Concat", *names, axis=s.attributes["dim"])


def _index(s: Step) -> str:
    """NumPy's basic index, or one array of row numbers among slices."""
    index = s.attributes["index"]
    index = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in index):
        at = next(i for i, part in enumerate(index) if part is Ellipsis)
        used = sum(part is not None for part in index) - 1
        index[at : at + 1] = [slice(None)] * (len(s.shape("x")) - used)
    arrays = [part for part in index if type(part) in ARRAYS]
    if arrays and sum(isinstance(part, int) for part in index) + len(arrays) > 1:
        s.refuse("an index of several arrays")
    found, axis = s["x"], 0  # which of the dimensions of `found` is next
    for part in index:
        if part is None:
            found = s.node("Unsqueeze", found, [axis])
            axis += 1
        elif isinstance(part, slice):
            step = 1 if part.step is None else part.step
            first, last = (0, END) if step > 0 else (END, -END)
            start = first if part.start is None else part.start
            stop = last if part.stop is None else part.stop
            if not (isinstance(start, int) and isinstance(stop, int)):
                s.refuse("a slice up to the number of rows")
            if part != slice(None):
                found = s.node("Slice", found, [start], [stop], [axis], [step])
            axis += 1
        elif isinstance(part, int) or (type(part) in ARRAYS and part.dtype.kind in "iu"):
            numbers = np.array(part) if isinstance(part, int) else to_host(part)
            found = s.node("Gather", found, numbers, axis=axis)
            axis += numbers.ndim
        else:
            s.refuse(f"an index of {type(part).__name__}")
    return found


def _permute(s: Step) -> str:
    dims = s.attributes["dims"]
    return s.node("Transpose", s["x"], perm=dims) if dims else s["x"]


def _pad(s: Step) -> str:
    """Padding of the last dimensions; where it is negative, a cut."""
    pairs = s.attributes["pads"]
    lead = len(s.shape("input")) - len(pairs)
    found = s["input"]
    if any(p < 0 for pair in pairs for p in pair):
        starts = [max(0, -low) for low, _ in pairs]
        stops = [-max(0, -high) or END for _, high in pairs]
        found = s.node("Slice", found, starts, stops, range(lead, lead + len(pairs)))
    before = [0] * lead + [max(0, low) for low, _ in pairs]
    after = [0] * lead + [max(0, high) for _, high in pairs]
    if not any(before + after):
        return found
    return s.node("Pad", found, before + after, s.attributes["value"])


def _trilu(upper: int, s: Step) -> str:
    return s.node("Trilu", s["x"], np.array(s.attributes["diagonal"], np.int64), upper=upper)


# Layers -------------------------------------------------------------------------------------------


def _linear(s: Step) -> str:
    lead, weight = len(s.shape("input")), s["weight"]
    if lead == 2:
        bias = [s["bias"]] if s.has("bias") else []
        return s.node("Gemm", s["input"], weight, *bias, transB=1)
    found = s.node("MatMul", s["input"], s.node("Transpose", weight, perm=[1, 0]))
    return s.node("Add", found, s["bias"]) if s.has("bias") else found


def _standardize(s: Step) -> str:
    """Layer, group and batch norm by their formula: the statistics of what `shape` leaves out."""
    shape, wanted = s.shape("input"), s.attributes["shape"]
    lead = len(shape) - len(wanted)
    axes = [i for i in range(len(shape)) if i < lead or wanted[i - lead] == 1]
    x = s["input"]
    if s.attributes["center"]:
        x = s.node("Sub", x, s.node("ReduceMean", x, axes, keepdims=1))
    variance = s.node("ReduceMean", s.node("Mul", x, x), axes, keepdims=1)
    root = s.node("Sqrt", s.node("Add", variance, s.attributes["eps"]))
    found = s.node("Div", x, root)
    found = s.node("Mul", found, s["weight"]) if s.has("weight") else found
    return s.node("Add", found, s["bias"]) if s.has("bias") else found


def _geometry(g: Geometry) -> dict[str, Any]:
    low, high = zip(*g.padding, strict=True)
    return {
        "kernel_shape": g.kernel, "strides": g.stride, "pads": [*low, *high],
        "dilations": g.dilation, "group": g.groups,
    }  # fmt: skip


def _convolution(s: Step) -> str:
    g = s.attributes["geometry"]
    bias = [s["bias"]] if s.has("bias") else []
    if s.dtype == np.float64:  # for which onnxruntime has no Conv
        return _by_product(s, g, bias)
    return s.node("Conv", s["input"], s["weight"], *bias, **_geometry(g))


def _by_product(s: Step, g: Geometry, bias: list[str]) -> str:
    """A convolution as a product of matrices: the windows are gathered."""
    x, (_, channels, *sizes), (outputs, *_) = s["input"], s.shape("input"), s.shape("weight")
    if any(map(any, g.padding)):
        low, high = zip(*g.padding, strict=True)
        x = s.node("Pad", x, [0, 0, *low, 0, 0, *high], 0)
    wide = [n + sum(p) for n, p in zip(sizes, g.padding, strict=True)]
    found = g.places(sizes)
    taps = np.indices(g.kernel).reshape(len(wide), -1, 1)
    starts = np.indices(found).reshape(len(wide), 1, -1)
    scale = [np.reshape(v, (-1, 1, 1)) for v in (g.dilation, g.stride)]
    places = np.ravel_multi_index(tuple(taps * scale[0] + starts * scale[1]), wide)
    columns = s.node("Reshape", x, [-1, channels, math.prod(wide)])
    columns = s.node("Gather", columns, places, axis=2)
    taken = channels // g.groups * math.prod(g.kernel)
    columns = s.node("Reshape", columns, [-1, g.groups, taken, math.prod(found)])
    weight = s.node("Reshape", s["weight"], [g.groups, outputs // g.groups, taken])
    product = s.node("MatMul", weight, columns)
    if bias:
        each = s.node("Reshape", bias[0], [g.groups, outputs // g.groups, 1])
        product = s.node("Add", product, each)
    return s.node("Reshape", product, [-1, outputs, *found])


def _transposed(s: Step) -> str:
    g = s.attributes["geometry"]
    lines = zip(s.shape("gradient")[2:], s.attributes["sizes"], *g[:4], strict=True)
    more = [size - ((n - 1) * step + d * (k - 1) + 1 - sum(p)) for n, size, k, step, p, d in lines]
    given = _geometry(g)
    return s.node("ConvTranspose", s["gradient"], s["weight"], output_padding=more, **given)


def _max_along(s: Step) -> str:
    """The maximum of every window: one node where windows are regular, else maxima of slices."""
    axis, windows, x = s.attributes["dim"], s.attributes["windows"], s["input"]
    every = range(windows.size)
    runs = [[every[place] for place in places] for _, places in windows.runs]
    first, *others = runs[0]
    if len(runs) == 1 and not first[0]:

        def along(number: int) -> list[int]:
            return [number if d == axis else 1 for d in range(2, len(s.shape("input")))]

        dilation = others[0][0] if others else 1
        stride = first.step if len(first) > 1 else windows.size  # one window
        return s.node(
            "MaxPool", x, kernel_shape=along(len(runs[0])), strides=along(stride),
            dilations=along(dilation),
        )  # fmt: skip
    taps = (
        [at for places in runs for at in places[min(i, len(places) - 1)]]
        for i in range(max(map(len, runs)))
    )
    return s.node("Max", *(s.node("Gather", x, tap, axis=axis) for tap in taps))


def _window_sum(s: Step) -> str:
    kernel, stride, x = s.attributes["kernel"], s.attributes["stride"], s["input"]
    if s.dtype != np.float64:  # for which onnxruntime has no AveragePool
        mean = s.node("AveragePool", x, kernel_shape=kernel, strides=stride)
        return s.node("Mul", mean, math.prod(kernel))
    for axis, (k, step) in enumerate(zip(kernel, stride, strict=True), start=2):
        size = s.shape("input")[axis]
        ends = [i + (size - k) // step * step + 1 for i in range(k)]
        x = s.node("Sum", *(s.node("Slice", x, [i], [ends[i]], [axis], [step]) for i in range(k)))
    return x


def _resample(s: Step) -> str:
    """Weighted elements along a dimension, added up: of each tap one for each result."""
    axis, weights = s.attributes["dim"], s.attributes["weights"]
    after = (1,) * (len(s.shape("x")) - axis - 1)
    parts = []
    for number, taps in enumerate(s.attributes["taps"]):
        part = s.node("Gather", s["x"], taps, axis=axis)
        if weights is not None:
            factors = np.reshape(np.array(weights[number], s.dtype), (-1, *after))
            part = s.node("Mul", part, factors)
        parts.append(part)
    return s.node("Sum", *parts) if len(parts) > 1 else parts[0]


def _topk(s: Step) -> str:
    """The indices, which are the second output."""
    axis, largest = s.attributes["dim"], int(s.attributes["largest"])
    return s.node("TopK", s["x"], [s.attributes["k"]], outputs=2, axis=axis, largest=largest) + ".1"


def _one_hot(s: Step) -> str:
    classes = np.arange(s.attributes["classes"], dtype=s.value("x").array.dtype)
    return s.to(s.node("Equal", s.node("Unsqueeze", s["x"], [-1]), classes), s.dtype)


# Where the rows of a gate stand here, in ONNX's order: i o f c, and z r h.
GATES = {"lstm": ("LSTM", (0, 3, 1, 2)), "gru": ("GRU", (1, 0, 2)), "tanh": ("RNN", (0,))}
GATES["relu"] = GATES["tanh"]


def _recurrent(s: Step) -> str:
    """One direction of a recurrent layer; `hidden`, the states of all steps, the last cell."""
    kind, reverse = s.attributes["kind"], s.attributes["reverse"]
    op, order = GATES[kind]
    if s.has("stopped"):
        s.refuse("a packed sequence has no ONNX form")
    size = s.shape("hidden")[1]
    rows = [i for gate in order for i in range(gate * size, (gate + 1) * size)]

    def gates(*names: str) -> str:
        parts = [s.node("Gather", s[name], rows, axis=0) for name in names]
        joined = parts[0] if len(parts) == 1 else s.node("Concat", *parts, axis=0)
        return s.node("Unsqueeze", joined, [0])

    def state(name: str) -> str:
        return s.node("Unsqueeze", s[name], [0])

    bias = gates("b_ih", "b_hh") if s.has("b_ih") else ""
    given = [s["input"], gates("w_ih"), gates("w_hh"), bias, "", state("hidden")]
    more: dict[str, Any] = {"direction": "reverse" if reverse else "forward", "hidden_size": size}
    if kind == "lstm":
        given.append(state("cell"))
    elif kind == "gru":
        more["linear_before_reset"] = 1
    else:
        more["activations"] = [kind.capitalize()]
    outputs = 3 if kind == "lstm" else 2
    all_steps = s.node(op, *given, outputs=outputs, **more)
    # ONNX gives (steps, directions, samples, size) and (directions, samples, size).
    last = f"{all_steps}.2" if kind == "lstm" else s.node("Mul", state("hidden"), 0)
    parts = [state("hidden"), s.node("Squeeze", all_steps, [1]), last]
    return s.node("Concat", *(reversed(parts) if reverse else parts), axis=0)


def _flip(s: Step) -> str:
    dims: Sequence[int] = s.attributes["dims"]
    back = [-1] * len(dims)
    return s.node("Slice", s["x"], back, [-END] * len(dims), dims, back)


TABLE: dict[str, Callable[[Step], str]] = {
    "cat": _cat,
    "constant_pad": _pad,
    "convolution": _convolution,
    "convolution_input": _transposed,
    "embedding": lambda s: s.node("Gather", s["weight"], s["indices"], axis=0),
    "expand": _expand,
    "flip": _flip,
    "gather": lambda s: s.node("GatherElements", s["x"], s["index"], axis=s.attributes["dim"]),
    "index": _index,
    "linear": _linear,
    "max_along": _max_along,
    "standardize": _standardize,
    "one_hot": _one_hot,
    "permute": _permute,
    "recurrent": _recurrent,
    "resample": _resample,
    "reshape": lambda s: s.node("Reshape", s["x"], s.attributes["shape"]),
    "select": _index,
    "topk": _topk,
    "tril": partial(_trilu, 0),
    "triu": partial(_trilu, 1),
    "window_sum": _window_sum,
}
