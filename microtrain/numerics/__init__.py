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


def _of_scipy(name: str) -> Callable[..., Any]:
    def call(*arrays: Any, out: Any = None) -> Any:
        try:
            from scipy import special
        except ImportError as error:
            raise ImportError(absent("SciPy", "special", error)) from error
        wide = [array.astype(np.float64, copy=False) for array in arrays]
        with np.errstate(all="ignore"):
            found = np.asarray(getattr(special, name)(*wide)).astype(arrays[-1].dtype, copy=False)
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
