"""scikit-learn estimators: a network with `fit` and `predict`, for pipelines and grid searches.

`mt.sklearn.Classifier` and `mt.sklearn.Regressor` train by one captured step over a DataLoader,
with the library's layers, losses and optimizers. They keep the conventions of scikit-learn's
estimators: parameters are set in `__init__` alone, what is learned ends in an underscore, and
`random_state` decides everything drawn. The stream of `mt.manual_seed` is left where it was.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from . import nn, optim
from .autograd import no_grad
from .backend import default_dtype
from .capture import compile
from .creation import from_numpy
from .data import ArrayDataset, DataLoader, Preprocessing
from .distributed.single import SingleCommunicator
from .errors import DivergedError, install, noun_of
from .random import seeded
from .train.metrics.classification import log_odds
from .train.models_and_losses import in_unit, loss_of_rows, refuse_unweighted

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state, check_scalar
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        f"mt.sklearn needs scikit-learn 1.6 or later ({error}): {install('data')}"
    ) from error

__all__ = ["Classifier", "Regressor"]

Array = NDArray[Any]
OPTIMIZERS = {o.__name__.lower(): o for o in (optim.Adam, optim.AdamW, optim.SGD, optim.RMSprop)}
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU}
ROWS = 4096  # that a prediction computes at a time


def __dir__() -> list[str]:
    return [*__all__]


@dataclass(eq=False, repr=False)
class _Network(BaseEstimator):  # type: ignore[misc]
    """What both estimators share; the fields are the parameters."""

    hidden: Any = (100,)
    _: KW_ONLY
    module: Any = None
    activation: str = "relu"
    optimizer: Any = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    loss: Any = None
    max_iter: int = 200
    batch_size: int = 32
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 10
    tol: float = 1e-4
    random_state: Any = None
    verbose: bool = False

    def _fit(
        self, x: Array, y: Array, outputs: int, loss: Callable[..., Any], weight: Any = None
    ) -> Self:
        """Train on rows of floats and targets as the loss takes them; a weight of 0 is no row."""
        weights: tuple[Array, ...] = ()
        if weight is not None:
            refuse_unweighted(loss, type(loss).__name__)
            weight = _check_sample_weight(weight, x, dtype=x.dtype, ensure_non_negative=True)
            x, y, weights = x[weight > 0], y[weight > 0], (weight[weight > 0],)
            if not len(x):
                raise ValueError("sample_weight: all weights are 0, which leaves no rows")
        for name in ("max_iter", "batch_size", "n_iter_no_change"):
            check_scalar(getattr(self, name), name, Integral, min_val=1)
        fraction = {"min_val": 0, "max_val": 1, "include_boundaries": "neither"}
        check_scalar(self.validation_fraction, "validation_fraction", Real, **fraction)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with seeded(seed), default_dtype(x.dtype):
            kept, held = self._parts(len(x), seed)
            module = self._module(x.shape[1], outputs).train()
            self.module_ = module
            self.loss_curve_: list[float] = []
            self.validation_curve_: list[float] = []
            y = self._trained_on(y, kept, *weights)
            y = y.astype(x.dtype if y.dtype.kind == "f" else y.dtype)
            data = ArrayDataset(x[kept], y[kept], weights=weights[0][kept] if weights else None)
            self._train(data, tuple(each[held] for each in (x, y, *weights)), loss, seed)
        self.n_iter_ = len(self.loss_curve_)
        module.eval()
        for parameter in module.parameters():
            parameter.grad = None
        self.module_ = copy.deepcopy(module)  # out of the optimizer's memory
        return self

    def _trained_on(self, y: Array, kept: Array, weights: Array | None = None) -> Array:
        """The targets as the loss gets them, by the rows `kept` to train on."""
        return y

    def _train(
        self, data: ArrayDataset, held: tuple[Array, ...], loss: Callable[..., Any], seed: int
    ) -> None:
        module, make = self.module_, self.optimizer
        if not callable(make):
            make = _named("optimizer", make, OPTIMIZERS)
        options = {"weight_decay": self.weight_decay} if self.weight_decay else {}
        optimizer = make(module.parameters(), lr=self.lr, **options)

        @compile
        def step(x: Any, *target: Any) -> Any:
            optimizer.zero_grad()
            value = loss_of_rows(loss, module(x), *target)
            value.backward()
            optimizer.step()
            return value

        rows = min(self.batch_size, len(data))
        loader = DataLoader(data, rows, seed=seed, comm=SingleCommunicator())
        best, waited, weights = math.inf, 0, module.state_dict()
        for epoch in range(1, self.max_iter + 1):
            total = count = 0.0
            for batch in loader:
                size = batch[2].sum().item() if data.weighted else len(batch[0])
                total, count = total + step(*batch).item() * size, count + size
            self.loss_curve_.append(total / count)
            if not math.isfinite(total):
                raise DivergedError(
                    f"{type(self).__name__}: the loss is {total} in epoch {epoch}; scale the "
                    f"inputs (StandardScaler) or lower lr, which is {self.lr}"
                )
            if self.verbose:
                print(f"epoch {epoch}  loss {self.loss_curve_[-1]:.5g}")
            if not self.early_stopping:
                continue
            scores = from_numpy(self._scores(held[0]))
            value = float(loss_of_rows(loss, scores, *map(from_numpy, held[1:])))
            module.train()
            self.validation_curve_.append(value)
            waited = 0 if value < best - self.tol else waited + 1
            if value < best:
                best = value
                weights = {name: value.clone() for name, value in module.state_dict().items()}
            if waited >= self.n_iter_no_change:
                break
        if self.early_stopping:
            module.load_state_dict(weights)

    def _parts(self, count: int, seed: int) -> tuple[Array, Array]:
        """The rows to train on, and those held back for early stopping."""
        if not self.early_stopping:
            return np.arange(count), np.arange(0)
        order = np.random.default_rng(seed).permutation(count)
        held = max(1, round(count * self.validation_fraction))
        if held >= count:
            raise ValueError(f"early_stopping leaves no rows of n_samples = {count} to train on")
        return np.sort(order[held:]), np.sort(order[:held])

    def _module(self, inputs: int, outputs: int) -> nn.Module:
        if self.module is not None:
            made = self.module(inputs, outputs)
            if not isinstance(made, nn.Module):
                raise TypeError(f"module: expected to make a Module, made {noun_of(made)}")
            return made
        activation = _named("activation", self.activation, ACTIVATIONS)
        layers: list[nn.Module] = []
        for size in (self.hidden,) if isinstance(self.hidden, Integral) else self.hidden:
            check_scalar(size, "hidden", Integral, min_val=1)
            layers += [nn.Linear(inputs, int(size)), activation()]
            inputs = int(size)
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))

    def _scores(self, x: Array) -> Array:
        """What the module gives for rows of floats."""
        self.module_.eval()
        parts = [x[first : first + ROWS] for first in range(0, max(len(x), 1), ROWS)]
        with no_grad(), default_dtype(x.dtype), np.errstate(all="ignore"):
            return np.concatenate([self.module_(from_numpy(part)).numpy() for part in parts])

    def _rows(self, X: Any) -> Array:
        """Rows to predict for, in the dtype of the network."""
        check_is_fitted(self)
        dtype = next(self.module_.parameters()).dtype
        return validate_data(self, X, reset=False, dtype=dtype, order="C")


def _named(what: str, name: Any, table: dict[str, Any]) -> Any:
    if name not in table:
        raise ValueError(f"{what}: expected one of {', '.join(table)}, got {name!r}")
    return table[name]


class Classifier(ClassifierMixin, _Network):  # type: ignore[misc]
    """A network that tells classes apart, as a scikit-learn estimator.

    Args:
        hidden: sizes of the hidden layers.
        module: what makes the network instead, called as `module(inputs, outputs)`.
        activation: `relu`, `tanh`, `sigmoid` or `gelu`, behind each hidden layer.
        optimizer: `adam`, `adamw`, `sgd`, `rmsprop`, or what is called as `optimizer(parameters,
            lr=)`.
        lr: its learning rate.
        weight_decay: given to it where it is not 0.
        loss: of (scores, class codes); None is cross entropy.
        max_iter: passes over the data.
        batch_size: rows of a step.
        early_stopping: hold back `validation_fraction` of the rows, stop when their loss has not
            fallen by `tol` for `n_iter_no_change` passes, and keep the best weights.
        random_state: a number for the same network every time; None, or a RandomState.
        verbose: print the loss after each pass.

    Attributes:
        classes_: the labels.
        module_: the network, in evaluation mode.
        n_iter_, loss_curve_, validation_curve_: passes that were made, and losses after each.
        n_features_in_, feature_names_in_: as of all estimators.

    Inputs are taken as they are: put a StandardScaler before it. The network computes in float32
    where X is of float32, else in float64. Raises ValueError for data and parameters that do not
    fit, DivergedError where the loss is not finite.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> X, y = load_iris(return_X_y=True)
        >>> net = make_pipeline(StandardScaler(), mt.sklearn.Classifier((16,), random_state=0))
        >>> net.fit(X, y).score(X, y) > 0.95
        True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows X (n, features) with labels y (n,), each as much as `sample_weight` (n,)
        says: the loss is the weighted mean, as with `weight` of a configuration.
        """
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), order="C")
        check_classification_targets(y)
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        loss = nn.CrossEntropyLoss() if self.loss is None else self.loss
        return self._fit(X, codes.astype(np.int64), len(self.classes_), loss, sample_weight)

    def predict_proba(self, X: Any) -> Array:
        """The probability of each class, (n, classes), in the order of `classes_`."""
        scores = from_numpy(self._scores(self._rows(X)))
        return nn.functional.softmax(scores, 1).numpy()

    def decision_function(self, X: Any) -> Array:
        """How likely each class is against all others, log(p / (1 - p)), (n, classes); of two
        classes that of the second, (n,). Rankings use it, for probabilities near 1 are equal.
        """
        odds = log_odds(self._scores(self._rows(X)))
        return odds if len(self.classes_) > 2 else odds[:, 1]

    def predict(self, X: Any) -> Array:
        """The label of each row, (n,)."""
        scores = self._scores(self._rows(X))
        return self.classes_[scores.argmax(axis=1)]


@dataclass(eq=False, repr=False)
class Regressor(RegressorMixin, _Network):  # type: ignore[misc]
    """A network that predicts one or several numbers, as a scikit-learn estimator.

    Parameters, attributes and errors are those of Classifier, without `classes_`; the loss is the
    mean squared error unless it is given.

    Args:
        standardize_target: train on targets of mean 0 and deviation 1; losses are of these,
            predictions in the targets' own unit. False: on targets as they are.

    Attributes:
        target_mean_, target_scale_: of the rows that were trained on, (targets,); 0 and 1 where
            targets are taken as they are.

    Example:
        >>> X = np.linspace(-1, 1, 50)[:, None]
        >>> net = mt.sklearn.Regressor((16,), lr=0.01, random_state=0)
        >>> net.fit(X, X[:, 0] ** 2).score(X, X[:, 0] ** 2) > 0.95
        True
    """

    standardize_target: bool = field(default=True, kw_only=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on rows X (n, features) with targets y (n,) or (n, targets), and weights (n,)."""
        X, y = validate_data(
            self, X, y, dtype=(np.float64, np.float32), order="C", multi_output=True, y_numeric=True
        )
        self._flat = y.ndim == 1
        targets = y.reshape(len(y), -1).astype(np.float64)
        loss = nn.MSELoss() if self.loss is None else self.loss
        if self.standardize_target and not in_unit(loss):
            name = getattr(loss, "__name__", type(loss).__name__)
            raise ValueError(
                f"standardize_target: {name} does not compare predictions with a target in a unit; "
                "set standardize_target=False"
            )
        return self._fit(X, targets, targets.shape[1], loss, sample_weight)

    def predict(self, X: Any) -> Array:
        """The numbers for each row, in the shape of the targets."""
        found = self._scores(self._rows(X))
        found = (found * self.target_scale_ + self.target_mean_).astype(found.dtype)
        return found[:, 0] if self._flat else found

    def _trained_on(self, y: Array, kept: Array, weights: Array | None = None) -> Array:
        """Targets of mean 0 and deviation 1 among the rows `kept`, where these are wanted."""
        rows = y[kept]
        scaling = Preprocessing.identity(rows)
        if self.standardize_target:
            each = None if weights is None else weights[kept]
            mean = np.average(rows, 0, each)
            std = np.sqrt(np.average((rows - mean) ** 2, 0, each))
            ends = rows.min(axis=0), rows.max(axis=0)
            scaling = Preprocessing.of_statistics(mean, std, *ends, "y", "target")
        self.target_mean_, self.target_scale_ = scaling.mean, scaling.scale
        return scaling.apply(y)
