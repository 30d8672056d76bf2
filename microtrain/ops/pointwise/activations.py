"""Activation functions of `nn.functional`: the frequent ones an operation each, others composed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from ...backend import float16, float32
from ...tensor import TENSORS, Tensor
from ..arguments import not_a_tensor, scalar_like
from ..fronts import Alike, AtLeast0, Dim, Float, Front, Number, Numeric, T, need, one_of, public
from ..index.indexing import part
from ..inplace import in_place
from ..reduce.reductions import softmax
from ..registry import primitive, publish
from ..shape.shapes import reshape_to
from . import elementwise as e
from .elementwise import abs, exp, sigmoid, tanh, where
from .special import erf


class _Activation(Front):
    """A front with a last argument `inplace`: write the result into the input."""

    more = (inspect.Parameter("inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False),)

    def last_lines(self, call: str) -> list[str]:
        self.names["written"] = _written
        inner = call.replace("(input", "(x", 1)
        return [
            f"if inplace: return written(input, lambda x: {inner}, '{self.name}_')",
            f"return {call}",
        ]


def _written(input: Any, compute: Callable[..., Any], name: str) -> Tensor:
    if type(input) not in TENSORS:
        raise not_a_tensor(name[:-1], "input", input)
    return in_place(input, compute, name)


def activation(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The public form of `function(x, *numbers)`, which has a last argument `inplace`."""
    return _Activation(function, function.__name__).apply


def relu(input: Any, inplace: bool = False) -> Tensor:
    """`max(x, 0)`, elementwise; its gradient at 0 is 0. `inplace` writes it into `input`."""
    return _written(input, e.relu, "relu_") if inplace else e.relu(input)


# x times a gate between 0 and 1 -------------------------------------------------------------------


def _gated(name: str, gate: Any, formula: Any, rule: Any, doc: str) -> Any:
    """Declare `x * gate(x)`, which keeps the gate for its gradient.

    Args:
        gate: `gate(xp, x)`, the kernel of the gate, in memory of its own.
        formula: the same in operations.
        rule: the gradient, of `g`, `gate` and either `x` or `result`.
    """

    def kernel(xp, x):
        if x.dtype == float16:  # rounded once
            return tuple(xp.asarray(y, float16) for y in kernel(xp, xp.asarray(x, float32)))
        opening = gate(xp, x)
        lowest = xp.constant(np.finfo(x.dtype).min, x.dtype)  # -inf times 0 would be NaN
        result = xp.asarray(xp.maximum(x, lowest))
        return xp.multiply(result, opening, out=result), opening

    return primitive(name, kernel, doc, x=rule, extras=("gate",), recompute={"gate": formula})


def _sloped(slope: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a gate with the derivative `slope(x, gate)`."""

    def rule(g, x, gate):
        bound = 200 if x.dtype == float16 else 1000  # far behind where all gates are 0 or 1
        x = e.clamp_numbers(x, -bound, bound)
        return (slope(x, gate) * x + gate) * g

    return rule


def _half_more(xp, work, dtype):
    """`(work + 1) / 2`, from [-1, 1] to [0, 1], in place."""
    xp.add(work, xp.constant(1, dtype), out=work)
    return xp.multiply(work, xp.constant(0.5, dtype), out=work)


_ROOT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)  # of the normal distribution at 0


def _normal(xp, x):
    """The share of the normal distribution that lies below `x`."""
    work = xp.asarray(xp.multiply(x, xp.constant(_ROOT_HALF, x.dtype)))
    return _half_more(xp, xp.erf(work, out=work), x.dtype)


# That share is about (1 + tanh(x * (STEEP + CUBIC * x * x))) / 2.
_STEEP = math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _STEEP


def _nearly_normal(xp, x):
    work = xp.asarray(xp.multiply(x, x))
    xp.multiply(work, xp.constant(_CUBIC, x.dtype), out=work)
    xp.add(work, xp.constant(_STEEP, x.dtype), out=work)
    xp.multiply(work, x, out=work)
    return _half_more(xp, xp.tanh(work, out=work), x.dtype)


_gelu = _gated(
    "gelu",
    _normal,
    lambda x: (erf(x * _ROOT_HALF) + 1) * 0.5,
    _sloped(lambda x, gate: exp(x * x * -0.5) * _DENSITY),
    "`x` times the share of the normal distribution below it, elementwise.",
)
_gelu_tanh = _gated(
    "gelu_tanh",
    _nearly_normal,
    lambda x: (tanh((x * x * _CUBIC + _STEEP) * x) + 1) * 0.5,
    _sloped(lambda x, gate: (x * x * (6 * _CUBIC) + 2 * _STEEP) * gate * (1 - gate)),
    "`gelu` with the share below `x` approximated by a hyperbolic tangent.",
)
_silu = _gated(
    "silu",
    e.sigmoid_kernel,
    sigmoid,
    # The result, not x times the gate: it is 0 for -inf.
    lambda g, gate, result: (e.clamp_numbers(result, None, 1000) * (1 - gate) + gate) * g,
    "`x * sigmoid(x)`, elementwise.",
)


@public
def gelu(input: Float, *, approximate: Annotated[str, one_of("none", "tanh")] = "none") -> Tensor:
    """`x` times the share of the normal distribution below it, elementwise.

    From Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.

    Args:
        input: a Tensor of a float dtype.
        approximate: "none", or "tanh" for `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.

    Raises RuntimeError for integers, and for another approximation.
    """
    return _gelu(input) if approximate == "none" else _gelu_tanh(input)


@activation
def silu(x: Float) -> Tensor:
    """`x * sigmoid(x)`, elementwise, also called swish. `inplace` writes it into `input`."""
    return _silu(x)


# Softplus and what is made of it ------------------------------------------------------------------


def _softplus(xp, x, *, beta=1.0, threshold=math.inf):
    """`log(1 + exp(beta * x)) / beta` without overflow; `x` where `beta * x > threshold`."""
    zero = xp.constant(0, x.dtype)
    z = x if beta == 1 else xp.multiply(x, xp.constant(beta, x.dtype))
    work = xp.asarray(xp.absolute(z))
    xp.exp(xp.negative(work, out=work), out=work)
    xp.add(xp.log1p(work, out=work), xp.maximum(z, zero), out=work)
    if beta != 1:
        xp.divide(work, xp.constant(beta, x.dtype), out=work)
    if threshold == math.inf:
        return work
    return xp.where(xp.greater(z, xp.constant(threshold, x.dtype)), x, work)


def _softplus_rule(g, x, beta, threshold):
    slope = g * e.logistic(x * beta)
    return slope if threshold == math.inf else where(x * beta > threshold, g, slope)


softplus_of = primitive("softplus", _softplus, x=_softplus_rule)


@public
def softplus(input: Float, beta: Number = 1.0, threshold: Number = 20.0) -> Tensor:
    """`log(1 + exp(beta * x)) / beta`, elementwise: a smooth `relu`.

    Args:
        input: a Tensor of a float dtype.
        beta: how sharp the bend at 0 is.
        threshold: where `beta * x` is above it, the result is `x` itself.

    Raises RuntimeError for integers.
    """
    return softplus_of(input, beta, threshold)


@public
def logsigmoid(input: Float) -> Tensor:
    """`log(sigmoid(x))`, elementwise, without underflow; RuntimeError for integers."""
    return -softplus_of(-input)


def _mish_gate(xp, x):
    work = _softplus(xp, x)
    return xp.tanh(work, out=work)


_mish = _gated(
    "mish",
    _mish_gate,
    lambda x: tanh(softplus_of(x)),
    _sloped(lambda x, gate: (1 - gate * gate) * e.logistic(x)),
    "`x * tanh(softplus(x))`, elementwise.",
)


@activation
def mish(x: Float) -> Tensor:
    """`x * tanh(softplus(x))`, elementwise (Misra 2019). `inplace` writes it into `input`."""
    return _mish(x)


# Bent at 0 ----------------------------------------------------------------------------------------


@primitive("leaky_relu", x=lambda g, x, negative_slope: where(x > 0, g, g * negative_slope))
def _leaky_relu_of(xp, x, *, negative_slope):
    """`x` above 0, `negative_slope * x` elsewhere."""
    below = xp.multiply(x, xp.constant(negative_slope, x.dtype))
    if 0 < negative_slope <= 1:  # one pass less
        return xp.maximum(x, below)
    return xp.where(xp.greater(x, xp.constant(0, x.dtype)), x, below)


@activation
def leaky_relu(x: Float, negative_slope: Number = 0.01) -> Tensor:
    """`x` above 0, `negative_slope * x` elsewhere; `inplace` writes it into `input`.

    Raises RuntimeError for integers.
    """
    return _leaky_relu_of(x, negative_slope)


@public
def prelu(input: Float, weight: Alike) -> Tensor:
    """`x` above 0, `weight * x` elsewhere: `leaky_relu` with a slope that is learned.

    Args:
        input: a Tensor of a float dtype; its dimension 1 is that of the channels.
        weight: a Tensor of that dtype, with one element or one a channel.

    Raises TypeError unless both are Tensors, RuntimeError for other dtypes and other sizes.
    """
    channels = input.shape[1] if input.ndim > 1 else 1
    fits = weight.shape in ((), (1,), (channels,))
    need(fits, "prelu", f"weight must have one element, or one for each of {channels}", weight)
    shape = (channels,) + (1,) * (input.ndim - 2) if weight.shape == (channels,) != (1,) else ()
    above = input > 0
    return where(above, input, where(above, 0, input) * reshape_to(weight, shape))


def _elu_rule(g, x, alpha, scale, input_scale):
    # Not from the result, which is next to -alpha * scale far below 0.
    low = e.clamp_numbers(x if input_scale == 1 else x * input_scale, None, 0)
    share = alpha * scale * input_scale
    return g * where(x <= 0, exp(low) if share == 1 else exp(low) * share, scale)


@primitive("elu", x=_elu_rule)
def _elu_of(xp, x, *, alpha, scale=1.0, input_scale=1.0):
    """`scale * x` above 0, `scale * alpha * expm1(input_scale * x)` elsewhere."""
    zero = xp.constant(0, x.dtype)
    work = xp.asarray(xp.minimum(x, zero))
    if input_scale != 1:
        xp.multiply(work, xp.constant(input_scale, x.dtype), out=work)
    xp.expm1(work, out=work)
    if alpha * scale != 1:
        xp.multiply(work, xp.constant(alpha * scale, x.dtype), out=work)
    above = xp.asarray(xp.maximum(x, zero))
    if scale != 1:
        xp.multiply(above, xp.constant(scale, x.dtype), out=above)
    return xp.add(above, work, out=above)


@activation
def elu(x: Float, alpha: Number = 1.0) -> Tensor:
    """`x` above 0, `alpha * (exp(x) - 1)` elsewhere; `inplace` writes it into `input`.

    Raises RuntimeError for integers.
    """
    return _elu_of(x, alpha)


@activation
def selu(x: Float) -> Tensor:
    """`elu` with the two numbers that keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    return _elu_of(x, 1.6732632423543772848, 1.0507009873554804934)


@activation
def celu(x: Float, alpha: Number = 1.0) -> Tensor:
    """`x` above 0, `alpha * (exp(x / alpha) - 1)` elsewhere; `inplace` writes it into `input`.

    Raises RuntimeError for integers, and for alpha 0.
    """
    need(alpha, "celu", "alpha must not be 0: x is divided by it")
    return _elu_of(x, alpha, 1.0, 1 / alpha)


@activation
def threshold(x: Float, threshold: Number, value: Number) -> Tensor:
    """`x` above `threshold`, `value` elsewhere; `inplace` writes it into `input`.

    Raises RuntimeError for integers.
    """
    return where(x <= threshold, value, x)


# Flat at both ends --------------------------------------------------------------------------------


def _between(x: Any, low: float, high: float) -> Any:
    """`x` limited to [low, high]. At the bounds the gradient is 0, where `clamp` lets it pass."""
    return where(x <= low, low, where(x >= high, high, x))


def _limited(name: str, x: Any, low: Any, high: Any) -> Any:
    """`_between`, of integers, too: by limits that their dtype holds."""
    if x.dtype.kind != "f":
        low, high = scalar_like(name, x, low), scalar_like(name, x, high)
    return _between(x, low, high)


@activation
def hardtanh(x: Numeric, min_val: Number = -1.0, max_val: Number = 1.0) -> Tensor:
    """`x` limited to [min_val, max_val]; its gradient at the bounds is 0.

    Raises RuntimeError for booleans and limits that the dtype of `x` cannot hold, ValueError for
    min_val above max_val.
    """
    text = "min_val {} is greater than max_val {}"
    need(min_val <= max_val, "hardtanh", text, min_val, max_val, error=ValueError)
    return _limited("hardtanh", x, min_val, max_val)


@activation
def relu6(x: Numeric) -> Tensor:
    """`x` limited to [0, 6]; `inplace` writes it into `input`. RuntimeError for booleans."""
    return _limited("relu6", x, 0.0, 6.0)


@activation
def hardsigmoid(x: Float) -> Tensor:
    """`relu6(x + 3) / 6`; `inplace` writes it into `input`. RuntimeError for integers."""
    return _between(x + 3, 0.0, 6.0) / 6


@primitive(
    "hardswish",
    doc="`x * relu6(x + 3) / 6`, elementwise.",
    x=lambda g, x: where(x <= -3, 0, where(x >= 3, g, g * (x / 3 + 0.5))),
)
def _hardswish_of(xp, x):
    low, six = xp.constant(-3, x.dtype), xp.constant(6, x.dtype)
    x = xp.maximum(x, low)
    gate = xp.asarray(xp.minimum(xp.subtract(x, low), six))
    return xp.multiply(x, xp.divide(gate, six, out=gate), out=gate)


@activation
def hardswish(x: Float) -> Tensor:
    """`x * relu6(x + 3) / 6`; `inplace` writes it into `input`. RuntimeError for integers."""
    return _hardswish_of(x)


@primitive("softsign", x=lambda g, x: g / (abs(x) + 1) / (abs(x) + 1), floating=True)
def softsign_of(xp, x):
    """`x / (1 + |x|)`, elementwise."""
    size = xp.asarray(xp.absolute(x))
    xp.minimum(size, xp.constant(np.finfo(x.dtype).max, x.dtype), out=size)
    result = xp.asarray(xp.copysign(size, x))
    xp.add(size, xp.constant(1, x.dtype), out=size)
    return xp.divide(result, size, out=result)


@public
def softsign(input: T) -> Tensor:
    """`x / (1 + |x|)`, elementwise."""
    return softsign_of(input)


@public
def tanhshrink(input: T) -> Tensor:
    """`x - tanh(x)`, elementwise."""
    return input - tanh(input)


# Along a dimension --------------------------------------------------------------------------------


@public
def softmin(input: T, dim: int, *, dtype: Any = None) -> Tensor:
    """`softmax(-input, dim)`; arguments and errors as there."""
    return softmax(-input, dim, dtype=dtype)


@public
def glu(input: Float, dim: Dim = -1) -> Tensor:
    """The first half along `dim` times the sigmoid of the second half.

    Raises RuntimeError for integers and for an odd size, IndexError for a dimension out of range.
    """
    size = input.shape[dim] if input.ndim else 1
    need(not size % 2, "glu", "dimension {} has size {}, which has no halves", dim, size)
    return part(input, dim, size // 2) * sigmoid(part(input, dim, size // 2, None))


@public
def hardshrink(input: Float, lambd: Number = 0.5) -> Tensor:
    """0 from `-lambd` to `lambd`, `x` elsewhere; RuntimeError for integers."""
    return where((input >= -lambd) & (input <= lambd), 0, input)


@public
def softshrink(input: Float, lambd: AtLeast0 = 0.5) -> Tensor:
    """`x` moved by `lambd` towards 0, and 0 where it is nearer; RuntimeError for integers.

    Raises RuntimeError for a `lambd` below 0.
    """
    return input - e.clamp(input, -lambd, lambd)


publish(globals(), "relu")
