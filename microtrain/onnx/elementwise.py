"""Elementwise operations and reductions as ONNX nodes: one line an operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from .graph import Step

__all__ = ["TABLE"]

Rule = Callable[[Step], str]


def _unary(kind: str) -> Rule:
    """A node of one input; integers become floats where the result is one."""
    return lambda s: s.node(kind, s.cast("x", s.dtype))


def _binary(kind: str) -> Rule:
    return lambda s: s.node(kind, *s.operands("x", "y"))


def _logic(kind: str) -> Rule:
    return lambda s: s.node(kind, s.cast("x", np.bool_), s.cast("y", np.bool_))


def _bits(kind: str) -> Rule:
    return lambda s: s.node(("Bitwise" * (s.dtype.kind != "b")) + kind, *s.operands("x", "y"))


def _axes(s: Step) -> list[int]:
    dims = s.attributes.get("dims")
    if dims is None:
        return [*range(len(s.shape("x")))]
    return [int(d) for d in (dims if isinstance(dims, tuple | list) else (dims,))]


def _reduce(kind: str, s: Step) -> str:
    return s.node(kind, s.cast("x", s.dtype), _axes(s), keepdims=s.keep)


def _var(s: Step) -> str:
    """The variance, as the mean of squared differences."""
    x, axes = s["x"], _axes(s)
    sizes = [s.shape("x")[axis] for axis in axes]
    if not all(isinstance(size, int) for size in sizes):
        s.refuse("a variance over the rows")
    centered = s.node("Sub", x, s.node("ReduceMean", x, axes, keepdims=1))
    total = s.node("ReduceSum", s.node("Mul", centered, centered), axes, keepdims=s.keep)
    return s.node("Div", total, math.prod(sizes) - s.attributes["correction"])


def _norm(s: Step) -> str:
    p, least = s.attributes["p"], s.attributes["least"]
    if p not in (1, 2):
        s.refuse(f"a norm with p={p} has no ONNX form; those with 1 and 2 have")
    found = s.node(f"ReduceL{int(p)}", s["x"], _axes(s), keepdims=s.keep)
    return s.node("Max", found, least) if least else found


def _argmax(kind: str, s: Step) -> str:
    dim = s.attributes["dim"]
    flat = s["x"] if dim is not None else s.node("Reshape", s["x"], [-1])
    return s.node(kind, flat, axis=dim or 0, keepdims=s.keep)


def _clamp(s: Step) -> str:
    x, low, high = s["x"], s.attributes["min"], s.attributes["max"]
    x = x if low is None else s.node("Max", x, low)
    return x if high is None else s.node("Min", x, high)


def _where(s: Step) -> str:
    sides = (s.cast(side, s.dtype) for side in ("x", "y"))
    return s.node("Where", s.cast("condition", np.bool_), *sides)


def _elu(s: Step) -> str:
    x, alpha = s["x"], s.attributes["alpha"]
    scale, slope = s.attributes["scale"], s.attributes["input_scale"]
    low = s.node("Exp", s.node("Mul", s.node("Min", x, 0), slope))
    low = s.node("Mul", s.node("Sub", low, 1), alpha * scale)
    return s.node("Add", s.node("Mul", s.node("Max", x, 0), scale), low)


def _leaky_relu(s: Step) -> str:
    low = s.node("Mul", s.node("Min", s["x"], 0), s.attributes["negative_slope"])
    return s.node("Add", s.node("Max", s["x"], 0), low)


def _soft(s: Step, z: str) -> str:
    """`max(z, 0) + log(1 + exp(-|z|))`, which does not overflow."""
    small = s.node("Exp", s.node("Neg", s.node("Abs", z)))
    return s.node("Add", s.node("Max", z, 0), s.node("Log", s.node("Add", small, 1)))


def _softplus(s: Step) -> str:
    beta, threshold = s.attributes["beta"], s.attributes["threshold"]
    z = s.node("Mul", s["x"], beta)
    found = s.node("Div", _soft(s, z), beta)
    if threshold == math.inf:
        return found
    return s.node("Where", s.node("Greater", z, threshold), s["x"], found)


def _gated(s: Step, gate: str) -> str:
    """`x * gate`, and 0 for -inf."""
    return s.node("Mul", s.node("Max", s["x"], np.finfo(s.dtype).min), gate)


def _gelu(s: Step) -> str:
    erf = s.node("Erf", s.node("Mul", s["x"], math.sqrt(0.5)))
    return _gated(s, s.node("Mul", s.node("Add", erf, 1), 0.5))


def _gelu_tanh(s: Step) -> str:
    x = s["x"]
    cube = s.node("Mul", s.node("Mul", x, x), s.node("Mul", x, 0.044715))
    tanh = s.node("Tanh", s.node("Mul", s.node("Add", x, cube), math.sqrt(2 / math.pi)))
    return _gated(s, s.node("Mul", s.node("Add", tanh, 1), 0.5))


def _hardswish(s: Step) -> str:
    x = s.node("Max", s["x"], -3)
    gate = s.node("Min", s.node("Add", x, 3), 6)
    return s.node("Mul", x, s.node("Div", gate, 6))


def _softmax(kind: str, s: Step) -> str:
    if s.shape("x"):
        return s.node(kind, s["x"], axis=s.attributes["dim"])
    line = s.node(kind, s.node("Reshape", s["x"], [1]), axis=0)  # of one number
    return s.node("Reshape", line, [])


def _round(s: Step) -> str:
    if s.attributes["decimals"]:
        s.refuse("round(decimals=) has no ONNX form")
    return s.node("Round", s["x"])


def _sum_to(s: Step) -> str:
    """The sum that leaves the shape `shape`."""
    shape, wanted = s.shape("x"), s.attributes["shape"]
    lead = len(shape) - len(wanted)
    axes = [i for i, n in enumerate(shape) if i < lead or (wanted[i - lead] == 1 and n != 1)]
    summed = s.node("ReduceSum", s["x"], axes, keepdims=1) if axes else s["x"]
    return s.node("Reshape", summed, wanted)


def _cumsum(s: Step) -> str:
    axis = np.array(s.attributes["dim"], np.int64)
    return s.node("CumSum", s.cast("x", s.dtype), axis, reverse=int(s.attributes["reverse"]))


def _any(kind: str, s: Step) -> str:
    """A reduction of zeros and ones."""
    ones = s.to(s.cast("x", np.bool_), np.int32)
    return s.to(s.node(kind, ones, _axes(s), keepdims=s.keep), np.bool_)


UNARY = """abs:Abs acos:Acos acosh:Acosh asin:Asin asinh:Asinh atan:Atan atanh:Atanh ceil:Ceil
clone:Identity contiguous:Identity cos:Cos cosh:Cosh erf:Erf exp:Exp floor:Floor log:Log neg:Neg
reciprocal:Reciprocal relu:Relu sigmoid:Sigmoid sign:Sign sin:Sin sinh:Sinh
softsign:Softsign sqrt:Sqrt tan:Tan tanh:Tanh"""
BINARY = """add:Add sub:Sub mul:Mul div:Div pow:Pow maximum:Max minimum:Min eq:Equal lt:Less
le:LessOrEqual gt:Greater ge:GreaterOrEqual matmul:MatMul mm:MatMul"""
REDUCED = "sum:ReduceSum mean:ReduceMean amax:ReduceMax amin:ReduceMin logsumexp:ReduceLogSumExp"


def _pairs(text: str) -> list[list[str]]:
    return [pair.split(":") for pair in text.split()]


TABLE: dict[str, Rule] = {
    **{name: _unary(kind) for name, kind in _pairs(UNARY)},
    **{name: _binary(kind) for name, kind in _pairs(BINARY)},
    **{name: partial(_reduce, kind) for name, kind in _pairs(REDUCED)},
    "isnan": lambda s: s.node("IsNaN", s["x"]),
    "isinf": lambda s: s.node("IsInf", s["x"]),
    "rsqrt": lambda s: s.node("Reciprocal", s.node("Sqrt", s.cast("x", s.dtype))),
    "exp2": lambda s: s.node("Pow", 2, s.cast("x", s.dtype)),
    "expm1": lambda s: s.node("Sub", s.node("Exp", s.cast("x", s.dtype)), 1),
    "log1p": lambda s: s.node("Log", s.node("Add", s.cast("x", s.dtype), 1)),
    "log2": lambda s: s.node("Div", s.node("Log", s["x"]), math.log(2)),
    "log10": lambda s: s.node("Div", s.node("Log", s["x"]), math.log(10)),
    "erfc": lambda s: s.node("Sub", 1, s.node("Erf", s["x"])),
    "pow_scalar": lambda s: s.node("Pow", s["x"], s.attributes["exponent"]),
    "ne": lambda s: s.node("Not", s.node("Equal", *s.operands("x", "y"))),
    "logical_and": _logic("And"),
    "logical_or": _logic("Or"),
    "logical_xor": _logic("Xor"),
    "logical_not": lambda s: s.node("Not", s.cast("x", np.bool_)),
    "bitwise_and": _bits("And"),
    "bitwise_or": _bits("Or"),
    "bitwise_xor": _bits("Xor"),
    "bitwise_not": lambda s: s.node("Not" if s.dtype.kind == "b" else "BitwiseNot", s["x"]),
    "any": partial(_any, "ReduceMax"),
    "all": partial(_any, "ReduceMin"),
    "argmax": partial(_argmax, "ArgMax"),
    "argmin": partial(_argmax, "ArgMin"),
    "clamp": _clamp,
    "cumsum": _cumsum,
    "elu": _elu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "hardswish": _hardswish,
    "leaky_relu": _leaky_relu,
    "log_softmax": partial(_softmax, "LogSoftmax"),
    "mish": lambda s: _gated(s, s.node("Tanh", _soft(s, s["x"]))),
    "norm": _norm,
    "round": _round,
    "silu": lambda s: _gated(s, s.node("Sigmoid", s["x"])),
    "softmax": partial(_softmax, "Softmax"),
    "softplus": _softplus,
    "std": lambda s: s.node("Sqrt", _var(s)),
    "sum_rows": lambda s: s.node("ReduceSum", s["x"], [0], keepdims=0),
    "sum_to_size": _sum_to,
    "to": lambda s: s.to(s["x"], s.dtype),
    "var": _var,
    "where": _where,
    "zeros_like": lambda s: s.node("Expand", 0, s.result.shape),
}
