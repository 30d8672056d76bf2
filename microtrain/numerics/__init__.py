"""Functions that NumPy has not, under the names of `cupyx.scipy.special`.

All but `erf` and `erfc` are SciPy's, which is imported when one is first called; they compute in
float64 and are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import absent
from .error_function import erf, erfc

__all__ = [
    "digamma", "erf", "erfc", "erfcx", "erfinv", "gammaln", "i0e", "i1e", "ndtri", "zeta",
]  # fmt: skip


def _in_double(name: str, *arrays: Any) -> Any:
    """What a function of SciPy's gives for arrays, computed in float64 and rounded once."""
    try:
        from scipy import linalg, special
    except ImportError as error:
        raise ImportError(absent("SciPy", "special", error)) from error
    function = linalg.expm if name == "expm" else getattr(special, name)
    wide = [array.astype(np.float64, copy=False) for array in arrays]
    with np.errstate(all="ignore"):
        return np.asarray(function(*wide)).astype(arrays[-1].dtype, copy=False)


def _of_scipy(name: str) -> Callable[..., Any]:
    def call(*arrays: Any, out: Any = None) -> Any:
        found = _in_double(name, *arrays)
        if out is None:
            return found
        out[...] = found
        return out

    call.__name__ = name
    return call


digamma, erfcx, erfinv = map(_of_scipy, ("digamma", "erfcx", "erfinv"))
_gammaln, i0e, i1e, ndtri, zeta = map(_of_scipy, ("gammaln", "i0e", "i1e", "ndtri", "zeta"))


def gammaln(x: Any, out: Any = None) -> Any:
    """At minus infinity, too, what C's `lgamma` gives."""
    return _gammaln(np.where(np.isneginf(x), -x, x), out=out)


def matrix_exp(x: Any) -> Any:
    """The exponential of each matrix of (..., n, n), an array of NumPy's.

    Raises NumPy's LinAlgError where the norm leaves no digit, also without the diagonal's mean.
    """
    limit = 2.0 ** (np.finfo(x.dtype).nmant + 2)
    with np.errstate(all="ignore"):
        far = np.abs(x).sum(-2).max(-1, initial=0) > limit
        middle = np.where(far, x.trace(0, -2, -1) / x.shape[-1], 0)[..., None, None]
        rest = x - (middle * np.eye(x.shape[-1])).astype(x.dtype)
        norm = np.abs(rest).sum(-2).max(initial=0)
        if norm > limit:
            text = f"a norm of {norm:.3g} leaves no digit of the exponential in {x.dtype.name}"
            raise np.linalg.LinAlgError(f"{text}; scale the matrix")
        return np.exp(middle).astype(x.dtype) * _in_double("expm", rest)
