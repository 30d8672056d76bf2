"""Initialization of parameters, in place, from the random stream that is equal on all ranks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backend import MODES, XP
from ..errors import need
from ..ops.sampling import want_range, want_spread
from ..random import default_generator, draw_dtype
from ..tensor import Tensor


def _stream() -> np.random.Generator:
    """The stream of `manual_seed`; CaptureError while a step is captured."""
    MODES.capture.refuse(
        "nn.init, or a new layer, draws initial values, which a replay would repeat; make it "
        "outside the step. Noise of mt.randn, x.normal_() ... is drawn anew"
    )
    return default_generator()


def _fill(tensor: Tensor, values: Any) -> Tensor:
    xp = XP[type(tensor._array)]
    tensor._array[...] = xp.asarray(values)
    tensor.version.n += 1
    return tensor


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Uniform numbers in [a, b); RuntimeError for a range that the dtype does not hold."""
    want_range("uniform_", tensor.dtype, a, b)
    draw = _stream().random(tensor.shape, draw_dtype(tensor.dtype))
    return _fill(tensor, draw * (b - a) + a)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal numbers; RuntimeError for std < 0 and for numbers that are not finite."""
    want_spread("normal_", mean, std)
    draw = _stream().standard_normal(tensor.shape, draw_dtype(tensor.dtype))
    return _fill(tensor, draw * std + mean)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return _fill(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return _fill(tensor, 1)


def constant_(tensor: Tensor, value: float) -> Tensor:
    """`value` everywhere."""
    return _fill(tensor, value)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Tensor:
    """Normal numbers, drawn again where they fall outside [a, b].

    Raises ValueError for an interval that fewer than one draw in a hundred falls into.
    """

    def below(x: float) -> float:
        return 0.5 * (1 + math.erf((x - mean) / (std * math.sqrt(2))))

    text = "[{}, {}] is out of reach of the normal distribution with mean {} and deviation {}"
    reached = std > 0 and below(b) - below(a) >= 0.01
    need(reached, "trunc_normal_", text, a, b, mean, std, error=ValueError)
    generator, dtype = _stream(), draw_dtype(tensor.dtype)
    draw = np.asarray(generator.standard_normal(tensor.shape, dtype) * std + mean)
    while (outside := (draw < a) | (draw > b)).any():
        draw[outside] = generator.standard_normal(int(outside.sum()), dtype) * std + mean
    return _fill(tensor, draw)


def orthogonal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """A (semi-)orthogonal matrix times `gain`; all dimensions but the first are its columns.

    Saxe et al., "Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks", 2013. Raises ValueError for fewer than two dimensions.
    """
    text = "only Tensors with 2 or more dimensions are supported"
    need(tensor.ndim > 1, "orthogonal_", text, tensor, error=ValueError)
    if not tensor.numel():
        return tensor
    rows, columns = tensor.shape[0], fan_in(tensor)
    draw = _stream().standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(draw)
    q *= np.sign(np.diagonal(r))  # else the distribution is not uniform
    return _fill(tensor, gain * (q.T if rows < columns else q).reshape(tensor.shape))


# Scaled by the number of inputs and outputs -------------------------------------------------------


def fan_in(tensor: Tensor) -> int:
    """The number of inputs of one output: (out, in, ...) gives in * ...

    Raises ValueError for fewer than two dimensions.
    """
    return _fans(tensor)[0]


def _fans(tensor: Tensor) -> tuple[int, int]:
    """The inputs of one output and the outputs of one input; kernels count all their elements."""
    text = "can not be computed for a Tensor with fewer than 2 dimensions"
    need(tensor.ndim > 1, "fan in and fan out", text, tensor, error=ValueError)
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


_GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d", "sigmoid"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0),
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance of a signal through an activation function.

    `param` is the negative slope of "leaky_relu", 0.01 if not given. Raises ValueError for a
    function that no gain is known for.
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        number = not isinstance(slope, bool) and isinstance(slope, int | float)
        need(number, "negative_slope", "{} not a valid number", slope, error=ValueError)
        return math.sqrt(2.0 / (1 + slope**2))
    known = [*_GAINS, "leaky_relu"]
    text = f"there are {', '.join(known)}"
    need(nonlinearity in _GAINS, "nonlinearity", text, nonlinearity, error=ValueError)
    return _GAINS[nonlinearity]


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    """The standard deviation of He et al., "Delving Deep into Rectifiers", 2015."""
    fans = dict(zip(("fan_in", "fan_out"), _fans(tensor), strict=True))
    need(mode in fans, "mode", "there are fan_in and fan_out", mode, error=ValueError)
    return calculate_gain(nonlinearity, a) / math.sqrt(fans[mode] or 1)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Uniform numbers whose variance keeps that of the signal; PyTorch's Linear uses a = sqrt(5).

    Args:
        tensor: a weight (out, in, ...).
        a: the negative slope of the leaky ReLU behind the layer.
        mode: "fan_in" keeps the variance forward, "fan_out" backward.
        nonlinearity: see `calculate_gain`.

    Raises ValueError for fewer than two dimensions and for unknown names.
    """
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Normal numbers whose variance keeps that of the signal; see `kaiming_uniform_`."""
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity))


def _xavier(tensor: Tensor, gain: float) -> float:
    """The standard deviation of Glorot and Bengio, "Understanding the difficulty of training deep
    feedforward neural networks", 2010."""
    return gain * math.sqrt(2.0 / (sum(_fans(tensor)) or 1))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform numbers whose variance is between what forward and backward want.

    Raises ValueError for fewer than two dimensions.
    """
    bound = math.sqrt(3.0) * _xavier(tensor, gain)
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal numbers whose variance is between what forward and backward want.

    Raises ValueError for fewer than two dimensions.
    """
    return normal_(tensor, 0.0, _xavier(tensor, gain))


def eye_(tensor: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix, zeros elsewhere; ValueError for another shape."""
    need(tensor.ndim == 2, "eye_", "expected a matrix", tensor, error=ValueError)
    return _fill(tensor, np.eye(tensor.shape[0], tensor.shape[1]))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """The weight of a convolution that hands its channels on, as far as there are outputs.

    Args:
        tensor: (out, in / groups, *kernel sizes), with one to three sizes.
        groups: parts of the outputs, each of which hands on the same channels.

    Raises ValueError for another number of dimensions, or outputs that groups do not divide.
    """
    fits = 3 <= tensor.ndim <= 5 and not tensor.shape[0] % groups
    text = f"expected 3 to 5 dimensions and outputs in {groups} groups"
    need(fits, "dirac_", text, tensor, error=ValueError)
    values, each = np.zeros(tensor.shape), tensor.shape[0] // groups
    middle = tuple(n // 2 for n in tensor.shape[2:])
    for group in range(groups):
        for channel in range(min(each, tensor.shape[1])):
            values[(group * each + channel, channel, *middle)] = 1
    return _fill(tensor, values)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01) -> Tensor:
    """Normal numbers with a share `sparsity` of every column, rounded up, set to 0.

    J. Martens, "Deep learning via Hessian-free optimization", 2010. Raises ValueError for anything
    but a matrix.
    """
    need(tensor.ndim == 2, "sparse_", "expected a matrix", tensor, error=ValueError)
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    values = _stream().standard_normal((rows, columns)) * std
    order = _stream().random((rows, columns)).argsort(0)
    np.put_along_axis(values, order[:zeros], 0, 0)
    return _fill(tensor, values)
