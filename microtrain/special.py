"""Functions of real numbers under the names of `torch.special`."""

from __future__ import annotations

from .missing_names import say_instead
from .ops import digamma as digamma
from .ops import erf as erf
from .ops import erfc as erfc
from .ops import erfinv as erfinv
from .ops import exp2 as exp2
from .ops import expm1 as expm1
from .ops import i0 as i0
from .ops import lgamma as gammaln
from .ops import log1p as log1p
from .ops import log_softmax as log_softmax
from .ops import logit as logit
from .ops import logsumexp as logsumexp
from .ops import mvlgamma as multigammaln
from .ops import polygamma as polygamma
from .ops import round as round
from .ops import sigmoid as expit
from .ops import sinc as sinc
from .ops import softmax as softmax
from .ops import xlogy as xlogy
from .ops.pointwise.gamma import entr, erfcx, i0e, i1, i1e, log_ndtr, ndtr, ndtri, xlog1py, zeta

psi = digamma

__all__ = [
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0",
    "i0e", "i1", "i1e", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln",
    "ndtr", "ndtri", "polygamma", "psi", "round", "sinc", "softmax", "xlog1py", "xlogy", "zeta",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


globals()["__getattr__"] = say_instead(__name__)
