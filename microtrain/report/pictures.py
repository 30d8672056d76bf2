"""The pictures of a finished run, and the line that a linear model has learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd import no_grad
from ..backend import to_host
from ..config.section import Section
from ..creation import tensor
from ..data import Prepared
from ..distributed.data_parallel import DataParallel
from ..nn import Linear, Module
from ..runs.directory import RunDirectory, read_metrics
from .plots import Plots, line_label

__all__ = ["draw", "line_of"]


def draw(
    run: RunDirectory,
    config: Section,
    model: DataParallel,
    data: Prepared,
    device: Any,
    which: str,
) -> str | None:
    """Draw the loss curve, and data with the fitted line where there is one feature.

    `which` says whose line it is. Returns what there is to tell the user, such as how to get
    matplotlib.
    """
    told: list[str] = []
    plots = Plots(run.plots, told.append, config.name)
    plots.loss(read_metrics(run.metrics_file), config.checkpoint.monitor)
    train = data.train
    x, y = train.arrays[0], train.arrays[-1]
    one_feature = len(train.arrays) == 2 and x.shape[1:] == (1,) == y.shape[1:]
    if not one_feature or y.dtype.kind != "f":
        return told[0] if told else None
    mean, scale = (float(v[0]) for v in _mean_and_scale(data))

    def fitted(places: Any) -> Any:
        inputs = tensor((places[:, None] - mean) / scale, dtype=x.dtype, device=device)
        training = model.module.training
        model.module.eval()
        try:
            with no_grad():
                return to_host(model.module(inputs)._array)
        finally:
            model.module.train(training)

    truth = train.truth
    line, fit = line_of(model.module, data), f"fitted ({which})"
    plots.fit(
        x.astype(np.float64) * scale + mean,
        y,
        fitted,
        None if truth is None else lambda v: truth["weights"][0] * v + truth["bias"],
        fitted_label=fit if line is None else line_label(fit, line[0][0], line[1]),
        true_label="true"
        if truth is None
        else line_label("true", truth["weights"][0], truth["bias"]),
        feature=train.feature_names[0] if train.feature_names else "x",
        target=train.target_name or "y",
    )
    return told[0] if told else None


def line_of(module: Module, data: Prepared) -> tuple[list[float], float] | None:
    """Weights and bias of a linear model with one output, in the units of the raw inputs."""
    if not isinstance(module, Linear) or module.out_features != 1:
        return None
    mean, scale = _mean_and_scale(data)
    weight = to_host(module.weight._array).astype(np.float64)[0] / scale
    bias = 0.0 if module.bias is None else float(to_host(module.bias._array)[0])
    return [float(w) for w in weight], bias - float((weight * mean).sum())


def _mean_and_scale(data: Prepared) -> tuple[Any, Any]:
    return data.preprocessing.mean, data.preprocessing.scale
