"""The bilinear layer: products of every element of one vector with every one of another."""

from __future__ import annotations

from ...tensor import Tensor
from ..arguments import want_shape
from ..fronts import FloatOnly, SameDtype, need, public
from .einstein import einsum


@public
def bilinear(
    input1: FloatOnly, input2: SameDtype, weight: SameDtype, bias: SameDtype | None = None
) -> Tensor:
    """`input1 @ weight[o] @ input2 + bias[o]` for every output o.

    Args:
        input1, input2: (..., in1) and (..., in2), with the same leading dimensions.
        weight: (outputs, in1, in2).
        bias: (outputs,), or None.

    Returns (..., outputs). Raises RuntimeError for shapes or dtypes that do not fit.
    """
    fits = weight.ndim == 3 and input1.ndim and input1.shape[:-1] == input2.shape[:-1]
    fits = fits and (input1.shape[-1], *input2.shape[-1:]) == weight.shape[1:]
    text = "expected (..., in1), (..., in2) and a weight (outputs, in1, in2)"
    need(fits, "bilinear", text, input1, input2, weight)
    if bias is not None:
        want_shape("bilinear", "a bias", bias, weight.shape[:1])
    found = einsum("...i,oij,...j->...o", input1, weight, input2)
    return found if bias is None else found + bias
