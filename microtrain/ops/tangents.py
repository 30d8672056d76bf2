"""How operations carry tangents forward, where that is faster than the double-backward trick.

The Jacobian of an elementwise operation is diagonal, so its gradient rule, given a tangent in the
place of the gradient, is the rule. A linear operation is applied to the tangent, a product of two
inputs to the tangent of each and the other input.

`lead` is () or (k,), the number of directions, which the first dimension of the tangents then is.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from ..autograd import forward
from ..autograd.forward import BILINEAR, ELEMENTWISE, LINEAR, RULES, SLOPES, aligned, full, push
from ..autograd.graph import edge_of, shape_of
from ..backend import XP
from ..tensor import wrap
from .coercion import REGISTRY
from .index.indexing import select
from .matrix.linear_algebra import linear, matmul
from .pointwise import activations, gamma, special  # noqa: F401  which declare operations
from .pointwise.elementwise import to_dtype
from .reduce.reductions import count_of, sum_dims
from .registry import names_of
from .shape.joining import cat, pieces, split_parts, stack, unbind, unbind_parts
from .shape.shapes import expand_to, permute_dims, reshape_to, transpose

_ELEMENTWISE = """abs acos acosh add asin asinh atan atan2 atanh bessel ceil clamp clone contiguous
copysign cos cosh cusp digamma div elu entr erf erfc erfcx erfcx_tail erfinv exp exp2 expm1 floor
floor_divide fmod gelu gelu_tanh hardswish hypot i0 i0e i1 i1e leaky_relu lgamma log log10 log1p
log2 logaddexp logaddexp2 logistic logit maximum minimum mish mul ndtri neg nextafter polygamma pow
pow_scalar reciprocal relu remainder round rsqrt sigmoid sign silu sin sinc sinh softplus softsign
sqrt sub tan tanh threshold_backward trunc trunc_divide where xlog1py xlogy zeta""".split()


def _derivative(node: Any, number: int, values: dict[str, Any], tangent: Any) -> Any:
    """What the gradient rule of input `number` makes of its tangent."""
    op = node._op
    name = op.inputs[number]
    values["g"] = tangent
    return op.rules[name](*[values[need] for need in op.needs[name]])


def _elementwise(node: Any, tangents: list[Any], lead: tuple[int, ...]) -> Any:
    values, rank = node._op.values(node), len(node._shape)
    parts = [
        _derivative(node, number, values, aligned(t, rank) if lead else t)
        for number, t in enumerate(tangents)
        if t is not None
    ]
    return functools.reduce(operator.add, parts)


def _slopes(node: Any, like: Any, since: int) -> tuple[Any, Any]:
    array = like._array
    one = wrap(XP[type(array)].ones_of((), array.dtype))
    slope = _derivative(node, 0, node._op.values(node), one)
    (bend,) = push([edge_of(slope)], {node._edges[0]: one, node: slope}, since)
    return slope, bend


def _product(node: Any, tangents: list[Any], lead: tuple[int, ...]) -> Any:
    values, parts = node._op.values(node), []
    for number, t in enumerate(tangents):
        if t is not None:
            t = full(t, (*lead, *shape_of(node._edges[number])))
            t = aligned(t, len(node._shape)) if lead else t
            parts.append(matmul(values["x"], t) if number else matmul(t, values["y"]))
    return functools.reduce(operator.add, parts)


def _linear(node: Any, tangents: list[Any], lead: tuple[int, ...]) -> Any:
    x, weight, bias = tangents
    values, parts = node._op.values(node), []
    if x is not None:  # it may be the same in all rows
        parts.append(linear(x, values["weight"]))
    if weight is not None:
        weight = full(weight, (*lead, *shape_of(node._edges[1])))
        rows = reshape_to(values["input"], (-1, weight.shape[-1]))
        product = matmul(rows, transpose(weight, -1, -2))
        parts.append(reshape_to(product, (*lead, *node._shape)))
    if bias is not None:
        parts.append(aligned(bias, len(node._shape)) if lead else bias)
    return functools.reduce(operator.add, parts)


def _cat(node: Any, tangents: list[Any], lead: tuple[int, ...]) -> Any:
    shapes, attrs = node._saved
    like = next(t for t in tangents if t is not None)._array
    zero = wrap(XP[type(like)].zeros((), like.dtype))
    parts = [
        full(zero if t is None else t, (*lead, *shape))
        for t, shape in zip(tangents, shapes, strict=True)
    ]
    return cat(parts, attrs["dim"] + len(lead))


def _parts(node: Any, tangents: list[Any], lead: tuple[int, ...]) -> list[Any]:
    """Of `split`, or of `unbind`, whose parts have one dimension less."""
    (dim,), shape = node._saved, shape_of(node._edges[0])
    t, at = full(tangents[0], (*lead, *shape)), dim + len(lead)
    if len(node._shape) < len(shape):
        return [*unbind(t, at)]
    return [*pieces(t, at, [each[dim] for each in node._shapes])]


# Operations with one input: `rule(t, lead, shape, ...)`, of the whole tangent and the shape of the
# result; what else it asks for by name is as for gradient rules.


def _of_one(rule: Callable[..., Any]) -> Callable[..., Any]:
    names = names_of(rule)[3:]

    def of_node(node: Any, tangents: list[Any], lead: tuple[int, ...]) -> Any:
        values = node._op.values(node) if names else {}
        t = full(tangents[0], (*lead, *shape_of(node._edges[0])))
        return rule(t, lead, node._shape, *[values[name] for name in names])

    return of_node


def _expand(t: Any, lead: Any, shape: Any) -> Any:
    return expand_to(aligned(t, len(shape)) if lead else t, (*lead, *shape))


def _permute(t: Any, lead: Any, shape: Any, dims: Any) -> Any:
    return permute_dims(t, (0, *[d + 1 for d in dims]) if lead else dims)


def _select(t: Any, lead: Any, shape: Any, index: Any) -> Any:
    index = index if type(index) is tuple else (index,)
    return select(t, (slice(None), *index) if lead else index)


def _sum(t: Any, lead: Any, shape: Any, dims: Any, keepdim: Any) -> Any:
    n = len(lead)
    dims = range(t.ndim - n) if dims is None else dims
    return sum_dims(t, tuple([d + n for d in dims]), keepdim)


def _mean(t: Any, lead: Any, shape: Any, x_shape: Any, dims: Any, keepdim: Any) -> Any:
    return _sum(t, lead, shape, dims, keepdim) / (count_of(x_shape, dims) or 1)


for _name in _ELEMENTWISE:
    RULES[REGISTRY[_name]] = ELEMENTWISE, _elementwise
    if len(REGISTRY[_name].inputs) == 1:
        SLOPES[REGISTRY[_name]] = _slopes
for _name in ("mm", "matmul"):
    RULES[REGISTRY[_name]] = BILINEAR, _product
RULES[REGISTRY["linear"]] = BILINEAR, _linear
RULES[REGISTRY["cat"]] = LINEAR, _cat
RULES[split_parts] = RULES[unbind_parts] = LINEAR, _parts
_OF_ONE: dict[str, Callable[..., Any]] = {
    "expand": _expand,
    "mean": _mean,
    "permute": _permute,
    "reshape": lambda t, lead, shape: reshape_to(t, (*lead, *shape)),
    "select": _select,
    "sum": _sum,
    "to": lambda t, lead, shape, dtype: to_dtype(t, dtype),
}
for _name, _rule in _OF_ONE.items():
    RULES[REGISTRY[_name]] = LINEAR, _of_one(_rule)
forward.stack = stack
