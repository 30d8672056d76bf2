"""The optimizer `lbfgs`: a step fits the model to all rows, with the next penalty of a list."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, MinLen

from ..backend import XP
from ..errors import need
from ..optim import LBFGS
from ..optim.lbfgs import Memory

Penalty = Annotated[float, Ge(0)]
FITS = "fits"  # the state: how many steps there were


class PenalizedLBFGS(LBFGS):
    """L-BFGS to the minimum of the loss over all rows, plus a penalty on the weights.

    Minimized is loss + l2 / rows * (sum of the squares of the weights) / 2, where rows are what the
    loss is a mean over: rows, or the sum of their weights (of a loss that is a sum: 1). So for
    classes l2 is 1 / C of scikit-learn's LogisticRegression, and for the mean squared error twice
    the alpha of its Ridge. Parameters of one dimension, biases, are free.

    Each step is one such fit, which begins where the one before has ended: with `l2: [1000, 100,
    10, 1]`, `duration: 4 steps` and validation data, the best checkpoint is that of the penalty
    that validates best. Further steps keep the last penalty. It needs `batch_size: all`.

    Args:
        params: of a `DataParallel` model.
        l2: the penalty of each step, or one for all of them.
        max_iter: iterations of a step at most; it ends earlier where it has converged.
        tolerance_grad, tolerance_change, history_size: as LBFGS.

    Raises ValueError for options out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        l2: Penalty | Annotated[Sequence[Penalty], MinLen(1)] = 0.0,
        max_iter: int = 500,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
    ) -> None:
        self.l2 = [float(one) for one in (l2 if isinstance(l2, Sequence) else [l2])]
        good = self.l2 and all(0 <= one < math.inf for one in self.l2)
        text = "l2 must be a number of at least 0, or a list of such"
        need(bool(good), "lbfgs", text, l2, error=ValueError)
        self.fits, self._pull = 0, 0.0
        self._at: Any = None  # where this step has moved the parameters to
        self._tried: Any = None  # the same when the loss was computed last
        options = max_iter, None, tolerance_grad, tolerance_change, history_size, "strong_wolfe"
        super().__init__(params, 1.0, *options)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One fit, with the next penalty; returns what the closure returned first."""
        self.memory = Memory()  # what it knows of curvature is of another function
        found = super().step(closure)
        self.fits += 1
        return found

    def _iterate(self, compute: Callable[[], tuple[float, Any]]) -> None:
        self._at = None
        super()._iterate(compute)
        if self._at is not None and (self._at != self._tried).any():
            compute()  # the loss of the step is that of where it ends

    def _write(self, vector: Any) -> None:
        self._at = vector
        super()._write(vector)

    def _loss_of(self, closure: Callable[[], Any]) -> tuple[Any, float]:
        model = self._model()
        text = "takes the parameters of a DataParallel model, which knows how many rows there are"
        need(model is not None, "lbfgs", text, error=TypeError)
        self._tried = self._at
        result, loss = super()._loss_of(closure)
        rows = model.weight if model.reduction == "mean" else 1
        self._pull = self.l2[min(self.fits, len(self.l2) - 1)] / (rows or 1)
        weights = self._weights()
        return result, loss + self._pull / 2 * XP[type(weights)].dot(weights, weights).item()

    def _gradient(self) -> Any:
        return super()._gradient() + self._weights() * self._pull

    def _weights(self) -> Any:
        """The parameters that the penalty is on, zeros in place of the others."""
        params = self.param_groups[0]["params"]
        pulled = [p.requires_grad and p._array.ndim > 1 for p in params]  # frozen ones stay
        return self._vector(p._array if on else None for p, on in zip(params, pulled, strict=True))

    # The state is how many steps there were: each begins with what the parameters are.

    def state_of(self, param: Any) -> dict[str, Any]:
        return {FITS: np.array(self.fits)}

    def load_state_of(self, param: Any, values: dict[str, Any]) -> None:
        self.fits = int(values[FITS])
