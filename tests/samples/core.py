"""Samples of the operations that the first training loops use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .sample import (
    ZERO_SIZE_ALL,
    Sample,
    argument,
    binary,
    coin,
    comparison,
    normal,
    positive,
    reduction,
    spread,
    truth,
    turned,
    unary,
    upper,
    whole,
)

ALL = slice(None)
ROWS = np.array([2, 0, 2])
MASK = np.array([True, False, True])
E = Ellipsis

INDICES: list[tuple[Any, Any, tuple[int, ...]]] = [  # x, index, shape of x[index]
    (normal(3, 4), (ROWS,), (3, 4)),
    (normal(3, 4), (MASK,), (2, 4)),
    (normal(3, 4, 2), (ALL, np.array([[1, 1], [0, 3]])), (3, 2, 2, 2)),
    (normal(4, 3).T, (ROWS, np.array([1, 1, 1])), (3,)),
    (normal(3, 4), (coin(3, 4) | True,), (12,)),
    (normal(3, 0), (ROWS,), (3, 0)),
    (normal(3, 5, 80), (ALL, np.array([[1, -1], [1, 0]])), (3, 2, 2, 80)),  # many: by flat places
]
VIEWS: list[tuple[Any, Any, tuple[int, ...]]] = [
    (normal(3, 4), (1, E), (4,)),
    (normal(3, 4), (2, 3, E), ()),
    (turned(normal), (ALL, slice(0, 3, 2), None, E), (2, 2, 1, 4)),
    (normal(5), (slice(1, 1), E), (0,)),
    (normal(0, 3), (slice(None), 1, E), (0,)),
    (normal(), (None, E), (1,)),
]

SAMPLES: dict[str, list[Sample]] = {
    "add": binary(normal, normal),
    "sub": binary(normal, normal),
    "mul": binary(normal, normal),
    "div": binary(normal, positive),
    "neg": unary(normal),
    "floor_divide": binary(spread, positive),
    "trunc_divide": binary(spread, positive),
    "remainder": binary(spread, positive),
    "pow": [*binary(positive, normal), Sample((np.zeros(2), np.array([2.0, 3.0])), smooth=False)],
    "pow_scalar": [
        Sample((a,), {"exponent": e})
        for a, e in [(positive(3, 4), 0.5), (normal(), 2), (normal(2, 0), 3), (turned(normal), 3)]
        + [(positive(3), -1), (positive(3), 2.5), (normal(3), 1), (normal(3), 0), (normal(2), 5)]
    ],
    "exp": unary(normal),
    "log": unary(positive),
    "sqrt": unary(positive),
    "tanh": unary(normal),
    "reciprocal": unary(positive),
    "sigmoid": unary(normal, np.array([-800.0, 800.0, -36.0])),
    "logistic": unary(normal, np.array([-800.0, 800.0, -36.0])),
    "cusp": unary(normal, smooth=False),
    "threshold_backward": [
        Sample((normal(3, 4), np.maximum(normal(3, 4), 0))),
        Sample((normal(), np.array(0.0))),
        Sample((normal(0, 2), positive(0, 2))),
    ],
    "relu": [*unary(spread), Sample((np.array([0.0, -0.0, np.nan]),), smooth=False)],
    "abs": [*unary(spread), Sample((np.zeros(3),), smooth=False)],
    "sign": [*unary(spread), Sample((np.zeros(3),), smooth=False)],
    "floor": unary(spread),
    "ceil": unary(spread),
    "trunc": unary(spread),
    "round": unary(spread, np.array([0.3, 1.7])),
    "maximum": [*binary(spread, upper), Sample((np.ones(3), np.ones(3)), smooth=False)],
    "minimum": [*binary(spread, upper), Sample((np.ones(3), np.ones(3)), smooth=False)],
    "where": [
        Sample((coin(*c), normal(*a), normal(*b)))
        for c, a, b in [((2, 3),) * 3, ((), (3,), (2, 1)), ((3, 1), (), (4,)), ((0, 3), (1,), (3,))]
    ]
    + [Sample((coin(3, 2).T, normal(3, 2).T, normal(3)))],
    "clamp": [
        Sample((a,), {"min": low, "max": high})
        for a, low, high in [
            (spread(3, 4), -2, 2.0),
            (turned(spread), None, 1),
            (spread(), 0, None),
        ]
        + [(spread(0, 2), -1, 1), (spread(5), 1, -1)]
    ]
    + [Sample((np.array([-1.0, 1.0, np.nan]),), {"min": -1, "max": 1}, smooth=False)],
    **{name: comparison() for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"logical_{n}": binary(coin, coin, smooth=False) for n in ("and", "or", "xor")},
    **{f"bitwise_{n}": binary(coin, whole, smooth=False) for n in ("and", "or", "xor")},
    "logical_not": unary(coin, np.array([0.0, 2.0]), smooth=False),
    "bitwise_not": unary(coin, whole(4), smooth=False),
    **{
        name: unary(normal, np.array([np.nan, np.inf, -np.inf, 0.0]), smooth=False)
        for name in ("isnan", "isinf", "isfinite")
    },
    "zeros_like": unary(normal, smooth=False),
    "clone": unary(normal),
    "contiguous": unary(normal),
    "to": [
        Sample((normal(3, 4),), {"dtype": np.dtype(np.float32)}, smooth=False),
        Sample((normal(),), {"dtype": np.dtype(np.float64)}),
        Sample((whole(2, 3),), {"dtype": np.dtype(np.float64)}, smooth=False),
        Sample((turned(coin),), {"dtype": np.dtype(np.int64)}, smooth=False),
        Sample((normal(0, 2),), {"dtype": np.dtype(np.float32)}, smooth=False),
    ],
    "sum": [*reduction(normal), ZERO_SIZE_ALL],
    "mean": [*reduction(normal), ZERO_SIZE_ALL],
    "var": [
        *reduction(normal, correction=0),
        Sample((normal(3, 4),), {"dims": (0,), "correction": 1}),
        Sample((normal(3, 4),), {"dims": (1,), "correction": 2.5, "keepdim": True}),
        Sample((normal(3, 1),), {"dims": (1,), "correction": 1}, smooth=False),
    ],
    "std": [
        Sample((normal(3, 4),), {"dims": d, "correction": c, "keepdim": k})
        for d, c, k in [(None, 1, False), ((0,), 0, True), ((1,), 2.5, False)]
    ]
    + [
        Sample((turned(normal),), {"dims": (0, 2), "correction": 1, "keepdim": True}),
        Sample((normal(0, 3),), {"dims": (1,)}),
        Sample((np.ones(3),), {"correction": 1}, smooth=False),
    ],
    "norm": [
        *reduction(normal),
        *reduction(spread, p=3.0),
        Sample((coin(3, 4) * normal(3, 4),), {"p": 0, "dims": (1,)}, smooth=False),
        Sample((positive(2, 3),), {"p": 0.5, "dims": (1,)}),
        Sample((np.zeros((2, 3)),), {"dims": (1,)}, smooth=False),
        Sample((np.diag([0.3, 3.0]),), {"dims": (1,), "least": 1.0}, smooth=False),
    ],
    "amax": [*reduction(), Sample((np.array([[2.0, 2.0], [1.0, 2.0]]),), smooth=False)],
    "amin": [*reduction(), Sample((np.array([[2.0, 1.0], [1.0, 1.0]]),), smooth=False)],
    "argmax": argument(),
    "argmin": argument(),
    "all": truth(),
    "any": truth(),
    **{
        name: [
            Sample((a,), {"dim": d})
            for a, d in [(normal(3, 4), 1), (turned(normal), 1), (normal(), 0), (normal(3, 0), 1)]
            + [(normal(0, 2), 1), (np.array([1000.0, 999.0, -1000.0]), 0)]
        ]
        for name in ("softmax", "log_softmax")
    },
    "reshape": [
        Sample((a,), {"shape": s})
        for a, s in [(normal(3, 4), (2, 6)), (normal(), (1, 1)), (normal(0, 3), (3, 0))]
        + [(turned(normal), (6, -1)), (turned(normal), (2, 3, 1, 4))]
    ],
    "permute": [
        Sample((a,), {"dims": d})
        for a, d in [(normal(2, 3, 4), (2, 0, 1)), (normal(), ()), (normal(3, 0), (1, 0))]
        + [(turned(normal), (0, 2, 1))]
    ],
    "expand": [
        Sample((a,), {"shape": s})
        for a, s in [(normal(3, 1), (2, 3, 4)), (normal(), (2, 2)), (normal(1, 3), (0, 3))]
        + [(normal(1, 3).T, (3, 2)), (normal(3), (3,)), (normal(0, 1), (0, 4))]
    ],
    "sum_to_size": [
        Sample((a,), {"shape": s})
        for a, s in [(normal(2, 3, 4), (3, 1)), (normal(3, 4), ()), (normal(0, 3), (1, 3))]
        + [(turned(normal), (1, 4)), (normal(3), (3,))]
    ],
    "cat": [
        Sample((normal(2, 3), normal(1, 3), normal(0, 3)), {"dim": 0}),
        Sample((normal(2, 3), normal(4, 2).T), {"dim": 1}),
        Sample((normal(3),), {"dim": 0}),
        Sample((normal(2, 1, 0), normal(2, 2, 0)), {"dim": 1}),
    ],
    "select": [Sample((x,), {"index": i}) for x, i, _ in VIEWS],
    "index": [Sample((x,), {"index": i}) for x, i, _ in INDICES],
    "unselect": [
        Sample((normal(*s),), {"shape": x.shape, "index": i}) for x, i, s in INDICES + VIEWS
    ],
    "index_put": [
        Sample((x, normal(*s)), {"index": i}) for x, i, s in [INDICES[1], INDICES[4], *VIEWS]
    ]
    + [
        Sample((normal(3, 4), normal()), {"index": (np.array([2, 0]),)}),
        Sample((normal(3, 4), normal(1, 4)), {"index": (slice(0, 2), E)}),
    ],
    "standing_at": [
        Sample((normal(3, 4),), {"index": i}, smooth=False)
        for i in [(np.array([2, 0, 2]),), (slice(None), np.array([1, 1])), (np.array([1, -2]), 0)]
    ]
    + [Sample((normal(0, 3),), {"index": (slice(None), np.array([1, 1]))}, smooth=False)],
    "one_hot": [
        Sample((whole(*s, high=3),), {"classes": 3, "dtype": np.dtype(np.float64)}, smooth=False)
        for s in [(), (4,), (2, 3), (0,)]
    ],
    "mm": [
        Sample((normal(3, 4), normal(4, 2))),
        Sample((normal(4, 3).T, normal(2, 4).T)),
        Sample((normal(3, 0), normal(0, 2))),
        Sample((normal(0, 4), normal(4, 2))),
    ],
    "matmul": [
        Sample((normal(2, 3, 4), normal(2, 4, 5))),
        Sample((normal(2, 1, 3, 4), normal(5, 4, 2))),
        Sample((turned(normal), normal(1, 4, 2))),
        Sample((normal(0, 3, 4), normal(4, 2))),
        Sample((normal(2, 3, 0), normal(2, 0, 2))),
    ],
    "linear": [
        Sample((normal(5, 3), normal(4, 3), normal(4))),
        Sample((normal(2, 5, 3), normal(3, 4).T, normal(4))),
        Sample((normal(3), normal(4, 3), None)),
        Sample((normal(0, 3), normal(4, 3), normal(4))),
        Sample((normal(3, 5).T, normal(3, 4).T, None)),
    ],
    "sum_rows": [Sample((a,)) for a in (normal(5, 3), normal(3, 5).T, normal(0, 3), normal(1, 1))],
    "mse_loss": [
        Sample((normal(5, 3), normal(5, 3)), {"reduction": "mean"}),
        Sample((normal(), normal()), {"reduction": "sum"}),
        Sample((turned(normal), normal(2, 3, 4)), {"reduction": "sum"}),
        Sample((normal(0, 3), normal(0, 3)), {"reduction": "sum"}),
        Sample((normal(0, 3), normal(0, 3)), {"reduction": "mean"}, smooth=False),
    ],
    "cross_entropy": [
        Sample((normal(5, 3), whole(5, high=3)), {"reduction": r}) for r in ("mean", "sum", "none")
    ]
    + [
        Sample((normal(3, 4).T, whole(4, high=3).astype(np.int32)), {"reduction": "mean"}),
        Sample((normal(0, 3), whole(0)), {"reduction": "sum"}),
        Sample((normal(0, 3), whole(0)), {"reduction": "mean"}, smooth=False),
    ],
}


# What NumPy says --------------------------------------------------------------------------------


def _pick(x: Any, dim: Any, keepdim: bool, find: Any) -> Any:
    return find(x) if dim is None else find(x, axis=dim, keepdims=keepdim)


def _dispersion(find: Any) -> Callable[..., Any]:
    def formula(x: Any, dims: Any = None, correction: Any = 1, keepdim: bool = False) -> Any:
        n = x.size if dims is None else np.prod([x.shape[d] for d in dims])
        if n <= correction:  # all elements are equal in these samples
            result = x.sum(dims, keepdims=keepdim) * np.nan
            return result * 0 if find is np.std and n > 1 else result
        return find(x, axis=dims, ddof=correction, keepdims=keepdim)

    return formula


def _mean(x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    n = x.size if dims is None else np.prod([x.shape[d] for d in dims])
    return x.sum(dims, keepdims=keepdim) / n if n else x.sum(dims, keepdims=keepdim) * np.nan


def _standing(x: Any, index: Any) -> Any:
    """A place is that of the last index that is the same."""
    places = np.arange(x.size).reshape(x.shape)[index]
    flat = places.ravel()
    last = [place not in flat[n + 1 :] for n, place in enumerate(flat)]
    return np.array(last, bool).reshape(places.shape)


def _norm(x: Any, p: float = 2, dims: Any = None, keepdim: bool = False, least: float = 0) -> Any:
    if p == 0:
        return (x != 0).astype(x.dtype).sum(dims, keepdims=keepdim)
    return (np.abs(x) ** p).sum(dims, keepdims=keepdim).clip(least) ** (1 / p)


def _softmax(x: Any, dim: int) -> Any:
    if not x.ndim or not x.size:
        return np.ones_like(x)
    e = np.exp(x - x.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


def _log_softmax(x: Any, dim: int) -> Any:
    if not x.ndim or not x.size:
        return np.zeros_like(x)
    top = x.max(dim, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(dim, keepdims=True))


def _sum_to(x: Any, shape: Any) -> Any:
    lead = x.ndim - len(shape)
    ones = tuple(d for d in range(lead, x.ndim) if shape[d - lead] == 1)
    return x.sum(axis=(*range(lead), *ones), keepdims=True).reshape(shape)


def _unselect(x: Any, shape: Any, index: Any) -> Any:
    result = np.zeros(shape)
    np.add.at(result, index, x)
    return result


def _index_put(x: Any, value: Any, index: Any) -> Any:
    result = x.copy()
    result[index] = value
    return result


def _mse(input: Any, target: Any, reduction: str) -> Any:
    squares = np.sum((input - target) ** 2)
    return squares if reduction == "sum" else squares / input.size if input.size else np.nan


def _cross_entropy(input: Any, target: Any, reduction: str) -> Any:
    logs = np.array([_log_softmax(row, 0)[c] for row, c in zip(input, target, strict=True)])
    losses = -logs.reshape(len(target))
    if reduction == "none":
        return losses
    return (
        losses.sum()
        if reduction == "sum"
        else losses.sum() / len(losses)
        if len(losses)
        else np.nan
    )


REFERENCE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "neg": np.negative,
    "floor_divide": lambda x, y: np.floor(x / y),
    "trunc_divide": lambda x, y: np.trunc(x / y),
    "remainder": lambda x, y: x - y * np.floor(x / y),
    "pow": np.float_power,
    "pow_scalar": lambda x, exponent: np.float_power(x, exponent),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "reciprocal": lambda x: 1 / x,
    "sigmoid": lambda x: 0.5 * (1 + np.tanh(x / 2)),
    "logistic": lambda x: 0.5 * (1 + np.tanh(x / 2)),
    "cusp": np.zeros_like,
    "relu": lambda x: np.where(x < 0, 0, x),
    "threshold_backward": lambda x, output: np.where(output <= 0, 0, x),
    "abs": lambda x: np.where(x < 0, -x, x),
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "where": np.where,
    "clamp": lambda x, min, max: np.clip(x, min, max),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "logical_not": np.logical_not,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "zeros_like": np.zeros_like,
    "clone": np.copy,
    "contiguous": np.copy,
    "to": lambda x, dtype: x.astype(dtype),
    "sum": lambda x, dims=None, keepdim=False: x.sum(dims, keepdims=keepdim),
    "mean": _mean,
    "var": _dispersion(np.var),
    "std": _dispersion(np.std),
    "norm": _norm,
    "amax": lambda x, dims=None, keepdim=False: np.max(x, axis=dims, keepdims=keepdim),
    "amin": lambda x, dims=None, keepdim=False: np.min(x, axis=dims, keepdims=keepdim),
    "argmax": lambda x, dim, keepdim: _pick(x, dim, keepdim, np.argmax),
    "argmin": lambda x, dim, keepdim: _pick(x, dim, keepdim, np.argmin),
    "all": lambda x, dims=None, keepdim=False: np.all(x, axis=dims, keepdims=keepdim),
    "any": lambda x, dims=None, keepdim=False: np.any(x, axis=dims, keepdims=keepdim),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "reshape": lambda x, shape: np.reshape(x, shape),
    "permute": lambda x, dims: np.transpose(x, dims),
    "expand": lambda x, shape: np.broadcast_to(x, shape),
    "sum_to_size": _sum_to,
    "cat": lambda *arrays, dim: np.concatenate(arrays, dim),
    "select": lambda x, index: x[index],
    "index": lambda x, index: x[index],
    "unselect": _unselect,
    "index_put": _index_put,
    "standing_at": _standing,
    "one_hot": lambda x, classes, dtype: np.eye(classes, dtype=dtype)[x],
    "mm": lambda x, y: np.einsum("ij,jk->ik", x, y),
    "matmul": np.matmul,
    "linear": lambda x, w, b: np.einsum("...i,oi->...o", x, w) + (0 if b is None else b),
    "sum_rows": lambda x: x.sum(0),
    "mse_loss": _mse,
    "cross_entropy": _cross_entropy,
}


# What PyTorch says ------------------------------------------------------------------------------


def _named(name: str) -> Callable[..., Any]:
    """The function of PyTorch of that name, over all its arguments."""
    return lambda torch, *tensors, **attrs: getattr(torch, name)(*tensors, **attrs)


def _reduced(name: str) -> Callable[..., Any]:
    def call(torch: Any, x: Any, dims: Any = None, keepdim: bool = False, **attrs: Any) -> Any:
        dims = tuple(range(x.ndim)) if dims is None else dims
        return getattr(torch, name)(x, dim=dims, keepdim=keepdim, **attrs)

    return call


def _truth(name: str) -> Callable[..., Any]:
    def call(torch: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
        for dim in range(x.ndim) if dims is None else dims:
            x = getattr(torch, name)(x, dim, keepdim=True)
        kept = range(x.ndim) if dims is None else dims
        shape = [n for i, n in enumerate(x.shape) if keepdim or i not in kept]
        return x.reshape(shape)

    return call


def torch_index(torch: Any, index: Any) -> tuple[Any, ...]:
    """An index with its arrays as Tensors of PyTorch."""
    return tuple(torch.as_tensor(p) if isinstance(p, np.ndarray) else p for p in index)


def torch_dtype(torch: Any, dtype: Any) -> Any:
    return getattr(torch, dtype.name)


def _torch_unselect(torch: Any, x: Any, shape: Any, index: Any) -> Any:
    place = torch.arange(int(np.prod(shape))).reshape(shape)[torch_index(torch, index)]
    zeros = torch.zeros(shape, dtype=x.dtype).reshape(-1)
    return zeros.index_add(0, place.reshape(-1), x.reshape(-1)).reshape(shape)


def _torch_index_put(torch: Any, x: Any, value: Any, index: Any) -> Any:
    result = x.clone()
    result[torch_index(torch, index)] = value
    return result


SAME_NAME = """add sub mul div neg remainder pow exp log sqrt tanh reciprocal sigmoid
    relu abs sign floor ceil trunc round maximum minimum where clamp eq ne lt le gt ge logical_and
    logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not isnan isinf
    isfinite zeros_like clone argmax argmin softmax log_softmax reshape permute mm
    matmul""".split()

TORCH: dict[str, Callable[..., Any]] = {
    **{name: _named(name) for name in SAME_NAME},
    **{name: _reduced(name) for name in ("sum", "mean", "var", "std", "amax", "amin")},
    "norm": lambda torch, x, least=0, **attrs: _reduced("norm")(torch, x, **attrs).clamp(least),
    "logistic": lambda torch, x: torch.sigmoid(x),
    "cusp": lambda torch, x: torch.nan_to_num(x * math.nan),  # 0, with the gradient 0 times NaN
    "all": _truth("all"),
    "any": _truth("any"),
    # torch's own floor_divide has no gradient
    "floor_divide": lambda torch, x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc_divide": lambda torch, x, y: torch.div(x, y, rounding_mode="trunc"),
    "pow_scalar": _named("pow"),
    "threshold_backward": lambda torch, x, output: torch.where(output <= 0, 0, x),
    "contiguous": lambda torch, x: x.clone(memory_format=torch.contiguous_format),
    "to": lambda torch, x, dtype: x.to(torch_dtype(torch, dtype)),
    "expand": lambda torch, x, shape: x.expand(shape),
    "sum_to_size": lambda torch, x, shape: x.sum_to_size(shape),
    "cat": lambda torch, *tensors, dim: torch.cat(tensors, dim),
    "select": lambda torch, x, index: x[torch_index(torch, index)],
    "index": lambda torch, x, index: x[torch_index(torch, index)],
    "unselect": _torch_unselect,
    "index_put": _torch_index_put,
    "standing_at": lambda torch, x, index: torch.from_numpy(_standing(x.numpy(), index)),
    "one_hot": lambda torch, x, classes, dtype: torch.nn.functional.one_hot(x, classes).to(
        torch_dtype(torch, dtype)
    ),
    "linear": lambda torch, x, w, b: torch.nn.functional.linear(x, w, b),
    "sum_rows": lambda torch, x: x.sum(0),
    "mse_loss": lambda torch, x, y, reduction: torch.nn.functional.mse_loss(
        x, y, reduction=reduction
    ),
    "cross_entropy": lambda torch, x, y, reduction: torch.nn.functional.cross_entropy(
        x, y.long(), reduction=reduction
    ),
}
