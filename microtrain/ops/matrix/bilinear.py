"""The bilinear layer: products of every element of one vector with every one of another."""

from __future__ import annotations

from typing import Any

from ...tensor import Tensor
from ..fronts import FloatOnly, SameDtype, public
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
    given: Any = input1.shape, input2.shape, weight.shape
    lead = {x.shape[:-1] for x in (input1, input2)}
    if weight.ndim != 3 or not (input1.ndim and input2.ndim) or len(lead) > 1:
        raise RuntimeError(
            "bilinear: expected (..., in1), (..., in2) and a weight (outputs, in1, in2), got "
            f"shapes {', '.join(map(str, given))}"
        )
    if (input1.shape[-1], input2.shape[-1]) != weight.shape[1:]:
        raise RuntimeError(
            f"bilinear: inputs of shape {given[0]} and {given[1]} do not fit a weight of shape "
            f"{given[2]} (outputs, in1, in2)"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError(f"bilinear: expected a bias of shape {weight.shape[:1]}, {bias.shape}")
    found = einsum("...i,oij,...j->...o", input1, weight, input2)
    return found if bias is None else found + bias
