"""Functions that NumPy has not, under the names of `cupyx.scipy.special`, which CuPy brings."""

from .bessel_functions import i0e, i1e
from .error_function import erf, erfc, erfcx, erfinv, ndtri
from .gamma_function import digamma, gammaln, zeta

__all__ = [
    "digamma", "erf", "erfc", "erfcx", "erfinv", "gammaln", "i0e", "i1e", "ndtri", "zeta",
]  # fmt: skip
