"""L-BFGS with a captured closure: the recipe of docs/capture.md."""

from __future__ import annotations

from typing import Any

import numpy as np

import microtrain as mt


def fitted(captured: bool) -> tuple[list[Any], int, int]:
    """The parameters at the end, how often the closure was called, how often its Python ran."""
    mt.manual_seed(0)
    model = mt.nn.Sequential(mt.nn.Linear(2, 8), mt.nn.Tanh(), mt.nn.Linear(8, 1)).double()
    optimizer = mt.optim.LBFGS(model.parameters(), line_search_fn="strong_wolfe")
    x = mt.randn(32, 2, dtype=mt.float64)
    y = (x[:, :1] * 2).sin() + x[:, 1:]
    ran = []

    def evaluate(x: Any, y: Any) -> Any:
        ran.append(1)
        optimizer.zero_grad()
        loss = mt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    evaluate = mt.compile(evaluate) if captured else evaluate
    for _ in range(5):
        optimizer.step(lambda: evaluate(x, y))
    values = [param.detach().numpy().copy() for param in model.parameters()]
    return values, optimizer.memory.func_evals, len(ran)


def test_loss_and_gradient_are_replayed_with_the_bits_of_the_eager_run() -> None:
    expected, calls, ran = fitted(False)
    found, others, traced = fitted(True)
    assert calls == others == ran > 50
    assert traced == 2
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
