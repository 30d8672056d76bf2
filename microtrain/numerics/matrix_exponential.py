"""The exponential of matrices, for NumPy and CuPy alike."""

from __future__ import annotations

from typing import Any

import numpy as np

# The exponential of a matrix: its Padé approximation of order 13 of the matrix over a power of two,
# and squares of that: N. Higham, "The scaling and squaring method for the matrix exponential
# revisited", 2005, table 2.3 and algorithm 2.3.
_LARGEST_NORM = 5.371920351148152
_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
    129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0,
    960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip


def matrix_exp(xp: Any, x: Any, shifted: bool = False) -> Any:
    """The exponential of each matrix of (..., n, n), with the functions of NumPy or CuPy, `xp`.

    Raises NumPy's LinAlgError where so many squares are needed that no digit is left, also without
    the mean of the diagonal, which is `shifted` out then.
    """
    if 0 in x.shape:
        return xp.zeros(x.shape, x.dtype)
    n, norm = x.shape[-1], xp.absolute(x).sum(-2).max(-1)
    norm = xp.where(xp.isfinite(norm), norm, 0)
    steps = xp.ceil(xp.log2(xp.maximum(norm, _LARGEST_NORM) / _LARGEST_NORM))
    most = int(steps.max().item())
    one = xp.asarray(xp.arange(n).reshape((n, 1)) == xp.arange(n), x.dtype)
    if n > 1 and most > np.finfo(x.dtype).nmant:
        if not shifted:
            middle = xp.where(steps > np.finfo(x.dtype).nmant, (x * one).sum((-1, -2)) / n, 0)
            middle = xp.asarray(middle, x.dtype).reshape((*steps.shape, 1, 1))
            return xp.exp(middle) * matrix_exp(xp, x - middle * one, True)
        raise np.linalg.LinAlgError(
            f"a norm of {norm.max().item():.3g} leaves no digit of the exponential in "
            f"{x.dtype.name}; scale the matrix"
        )
    steps = steps.reshape((*steps.shape, 1, 1))
    x = x / xp.asarray(xp.exp2(steps), x.dtype)
    second = x @ x
    fourth, b = second @ second, _PADE
    sixth = fourth @ second
    odd, even = (
        sixth @ (b[k + 12] * sixth + b[k + 10] * fourth + b[k + 8] * second)
        + b[k + 6] * sixth + b[k + 4] * fourth + b[k + 2] * second + b[k] * one
        for k in (1, 0)
    )  # fmt: skip
    odd = x @ odd
    found = xp.linalg.solve(even - odd, even + odd)
    for number in range(most):
        found = xp.where(steps > number, found @ found, found)
    return found
