"""Parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import need
from ...ops.shape import joining, shapes
from ...tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements, one Tensor after the other; recorded, as any concatenation."""
    return joining.cat([shapes.reshape(param, -1) for param in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the elements of `vec` into the parameters, in order, as `param.data = ...` does.

    Raises RuntimeError where their numbers differ; nothing is written then.

    Example:
        >>> net = mt.nn.Linear(2, 1)
        >>> mt.nn.utils.vector_to_parameters(mt.tensor([1.0, 2.0, 3.0]), net.parameters())
        >>> net(mt.tensor([10.0, 100.0])).item()
        213.0
    """
    params = list(parameters)
    wanted = sum(param.numel() for param in params)
    fits = vec.shape == (wanted,)
    need(fits, "vector_to_parameters", f"expected a vector of {wanted} elements", vec)
    start = 0
    for param in params:
        stop = start + param.numel()
        param.data = shapes.reshape(vec.detach()[start:stop], param.shape)
        start = stop
