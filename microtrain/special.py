"""Functions of real numbers under the names of `torch.special`."""

from __future__ import annotations

from .common.missing_names import namespace
from .ops import digamma, erfinv, i0, log_softmax, logit, logsumexp, polygamma, sinc, softmax
from .ops import lgamma as gammaln
from .ops import mvlgamma as multigammaln
from .ops import sigmoid as expit
from .ops.pointwise.elementwise import round
from .ops.pointwise.gamma import entr, erfcx, i0e, i1, i1e, log_ndtr, ndtr, ndtri, xlog1py, zeta
from .ops.pointwise.special import erf, erfc, exp2, expm1, log1p, xlogy

psi = digamma

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0",
    "i0e", "i1", "i1e", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln",
    "ndtr", "ndtri", "polygamma", "psi", "round", "sinc", "softmax", "xlog1py", "xlogy", "zeta",
]  # fmt: skip


namespace(globals())
