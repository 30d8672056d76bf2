"""The optimizers' formulas: plain operators over flat arrays of many parameters at once.

A formula changes the parameters `p` and its states in place, given the gradient `g` and numbers by
name; states and numbers that a group does not use are None. It is run once, to be recorded (see
`recorded.py`), so it must do the same with every element: no `if` on an element, no sum.

The optimizer of the same name (`optimizers.py`) states the mathematics, and computes the numbers
once a step, so that the formula needs few passes over the arrays:

    rest, rest1, rest2  1 - alpha (or rho), 1 - beta1, 1 - beta2: what averages take of the new
    shrink              1 - lr * weight_decay, for decoupled weight decay
    kept                1 - dampening
    size, rate, eta     the step size: the learning rate with its corrections
    least               eps with the same corrections: the least denominator
    new, old            NAdam's step sizes for the gradient and for its average
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import XP


def decayed(p: Any, g: Any, weight_decay: Any, maximize: Any, shrink: Any = None) -> Any:
    """The gradient with its L2 penalty; with `shrink` the parameters decay themselves (AdamW)."""
    if shrink is not None:
        p *= shrink
    if weight_decay is None:
        return -g if maximize else g
    return p * weight_decay - g if maximize else p * weight_decay + g


def average(mean: Any, new: Any, keep: Any, rest: Any) -> None:
    """Move a running average: `keep` of it, and `rest`, mostly 1 - keep, of what is new."""
    mean *= keep
    mean += new * rest


def sgd(
    p: Any, g: Any, momentum_buffer: Any = None,
    *, lr: Any, momentum: Any, kept: Any, weight_decay: Any, nesterov: Any, maximize: Any,
    first: Any,
) -> None:  # fmt: skip
    """Gradient descent, along a velocity where there is one."""
    g = decayed(p, g, weight_decay, maximize)
    if momentum_buffer is not None:
        if first:
            momentum_buffer[...] = g
        else:
            momentum_buffer *= momentum
            momentum_buffer += g if kept is None else g * kept
        g = g + momentum_buffer * momentum if nesterov else momentum_buffer
    p -= g * lr


def adam(
    p: Any, g: Any, exp_avg: Any, exp_avg_sq: Any, max_exp_avg_sq: Any = None,
    *, beta1: Any, rest1: Any, beta2: Any, rest2: Any, weight_decay: Any, shrink: Any,
    maximize: Any, size: Any, least: Any,
) -> None:  # fmt: skip
    """The step of Adam, AdamW and AMSGrad."""
    new = decayed(p, g, weight_decay, maximize, shrink) * rest1
    exp_avg *= beta1
    exp_avg += new
    average(exp_avg_sq, new * new, beta2, rest2)  # `new` has (1 - beta1) in it, `rest2` has it out
    if max_exp_avg_sq is not None:
        exp_avg_sq = np.maximum(max_exp_avg_sq, exp_avg_sq, out=max_exp_avg_sq)
    p -= exp_avg / (np.sqrt(exp_avg_sq) + least) * size


def nadam(
    p: Any, g: Any, exp_avg: Any, exp_avg_sq: Any,
    *, beta1: Any, rest1: Any, beta2: Any, rest2: Any, weight_decay: Any, shrink: Any,
    maximize: Any, new: Any, old: Any, least: Any,
) -> None:  # fmt: skip
    """Adam's step from the average and the gradient itself."""
    g = decayed(p, g, weight_decay, maximize, shrink)
    average(exp_avg, g, beta1, rest1)
    average(exp_avg_sq, g * g, beta2, rest2)
    p -= (g * new + exp_avg * old) / (np.sqrt(exp_avg_sq) + least)


def radam(
    p: Any, g: Any, exp_avg: Any, exp_avg_sq: Any,
    *, beta1: Any, rest1: Any, beta2: Any, rest2: Any, weight_decay: Any, shrink: Any,
    maximize: Any, size: Any, factor: Any, least: Any,
) -> None:  # fmt: skip
    """Adam's step; with 0 as `factor` and 1 as `least` that of its average alone."""
    g = decayed(p, g, weight_decay, maximize, shrink)
    average(exp_avg, g, beta1, rest1)
    average(exp_avg_sq, g * g, beta2, rest2)
    p -= exp_avg / (np.sqrt(exp_avg_sq) * factor + least) * size


def adamax(
    p: Any, g: Any, exp_avg: Any, exp_inf: Any,
    *, rate: Any, beta1: Any, rest1: Any, beta2: Any, eps: Any, weight_decay: Any, maximize: Any,
) -> None:  # fmt: skip
    """Adam's step with the largest of the decayed gradients below."""
    g = decayed(p, g, weight_decay, maximize)
    average(exp_avg, g, beta1, rest1)
    exp_inf *= beta2
    np.maximum(exp_inf, abs(g) + eps, out=exp_inf)
    p -= exp_avg / exp_inf * rate


def adagrad(
    p: Any, g: Any, sum: Any, *, rate: Any, eps: Any, weight_decay: Any, maximize: Any
) -> None:
    """The gradient over the root of the sum of all squares so far."""
    g = decayed(p, g, weight_decay, maximize)
    sum += g * g
    p -= g / (np.sqrt(sum) + eps) * rate


def adadelta(
    p: Any, g: Any, square_avg: Any, acc_delta: Any,
    *, lr: Any, rho: Any, rest: Any, eps: Any, weight_decay: Any, maximize: Any,
) -> None:  # fmt: skip
    """Steps as large as those before, which are averaged as the gradients are."""
    g = decayed(p, g, weight_decay, maximize)
    average(square_avg, g * g, rho, rest)
    step = g / np.sqrt(square_avg + eps) * np.sqrt(acc_delta + eps)
    average(acc_delta, step * step, rho, rest)
    p -= step * lr


def rmsprop(
    p: Any, g: Any, square_avg: Any, momentum_buffer: Any = None, grad_avg: Any = None,
    *, lr: Any, alpha: Any, rest: Any, eps: Any, weight_decay: Any, momentum: Any, maximize: Any,
) -> None:  # fmt: skip
    """The gradient over the root of its average square, or its deviation; along a velocity."""
    g = decayed(p, g, weight_decay, maximize)
    average(square_avg, g * g, alpha, rest)
    if grad_avg is not None:
        grad_avg += (g - grad_avg) * rest
        square_avg = square_avg - grad_avg * grad_avg
    step = g / (np.sqrt(square_avg) + eps)
    if momentum_buffer is not None:
        momentum_buffer *= momentum
        momentum_buffer += step
        step = momentum_buffer
    p -= step * lr


def rprop(
    p: Any, g: Any, prev: Any, step_size: Any,
    *, down: Any, up: Any, smallest: Any, largest: Any, maximize: Any,
) -> None:  # fmt: skip
    """Steps of sizes of their own, by the sign of the gradient alone."""
    where = XP[type(p)].where
    g = -g if maximize else g
    turn = prev * g
    turned = turn < 0
    step_size *= where(turned, down, where(turn > 0, up, 1))
    np.maximum(step_size, smallest, out=step_size)
    np.minimum(step_size, largest, out=step_size)
    prev[...] = where(turned, 0, g)
    p -= np.sign(prev) * step_size


def asgd(
    p: Any, g: Any, ax: Any, *, eta: Any, left: Any, mu: Any, weight_decay: Any, maximize: Any
) -> None:
    """Gradient descent on parameters that shrink, and their average."""
    step = decayed(p, g, weight_decay, maximize) * eta
    p *= left
    p -= step
    ax += (p - ax) * mu
