"""Gradients kept within bounds: their common norm, or each element.

Gradients that fill a flat buffer are worked on as one array.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Iterable
from itertools import chain
from typing import Any

from ...autograd.grad_mode import no_grad
from ...backend import XP
from ...creation import tensor
from ...errors import need
from ...ops.reduce import norms
from ...ops.shape import joining
from ...optim.flat import owner
from ...optim.optimizer import refuse_switches
from ...tensor import TENSORS, Tensor, wrap

BLOCK = 16384  # elements whose squares are in memory at once, on a CPU


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0,
    error_if_nonfinite: bool = False, foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale all gradients in place so that their norm, taken together, is at most `max_norm`.

    Args:
        parameters: Tensors; those without a gradient are skipped.
        max_norm: the largest norm. The factor is `max_norm / (norm + 1e-6)`, at most 1.
        norm_type: which norm, `inf` for the largest absolute value.
        error_if_nonfinite: raise where the norm is infinite or NaN, else the gradients become so.
        foreach: PyTorch's switch, which can only be off.

    Returns:
        The norm before, 0-d.

    Raises:
        TypeError: not Tensors.
        RuntimeError: a norm that is not finite, with `error_if_nonfinite`.

    Example:
        >>> loss.backward()
        >>> norm = mt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        >>> optimizer.step()
    """
    params = _listed(parameters, "clip_grad_norm_")
    if not params and isinstance(parameters, Generator):
        warnings.warn("clip_grad_norm_: parameters is an empty generator", stacklevel=2)
    total = get_total_norm(map(wrap, _pieces(params)), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(params, max_norm, total, foreach)
    return total


def flat_norm(arrays: Iterable[Any]) -> float:
    """The 2-norm of flat arrays as one vector; inf or NaN where an element is not finite.

    The additions have one order, which neither the number of threads nor the kind of processor
    changes: ranks with the same arrays get the same bits. Squares that leave the range of the dtype
    are taken again of scaled values, in float64.
    """
    arrays = [array for array in arrays if array.size]
    total = 0.0
    for array in arrays:
        xp = XP[type(array)]
        block = BLOCK if xp.kind == "cpu" else array.size
        for at in range(0, array.size, block):
            piece = array[at : at + block]
            total += xp.add.reduce(xp.multiply(piece, piece)).item()
    if 1e-30 < total < 1e30:
        return math.sqrt(total)
    largest = max((XP[type(a)].absolute(a).max().item() for a in arrays), default=0.0)
    if largest == 0 or not math.isfinite(largest):
        return float(largest) if math.isfinite(total) or largest == math.inf else math.nan
    scaled = (array.astype("float64") / largest for array in arrays)
    return largest * math.sqrt(sum((x * x).sum().item() for x in scaled))


def clip_flat_(arrays: Iterable[Any], max_norm: float, norm: float) -> None:
    """`clip_grads_with_norm_` of the flat arrays that hold all gradients; `norm` is theirs."""
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        for array in arrays:
            XP[type(array)].multiply(array, array.dtype.type(factor), out=array)


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor,
    foreach: bool | None = None,
) -> None:  # fmt: skip
    """Scale all gradients in place by `max_norm / (total_norm + 1e-6)`, at most 1.

    Example:
        >>> weight = mt.nn.Parameter(mt.zeros(2))
        >>> (weight * mt.tensor([3.0, 4.0])).sum().backward()
        >>> norm = mt.nn.utils.get_total_norm([weight.grad])
        >>> mt.nn.utils.clip_grads_with_norm_(weight, 1.0, norm)
        >>> weight.grad
        tensor([0.6000, 0.8000])
    """
    params = _listed(parameters, "clip_grads_with_norm_")
    refuse_switches("clip_grads_with_norm_", foreach=foreach)
    with no_grad():
        factor = (float(max_norm) / (total_norm + 1e-6)).clamp(max=1.0)
    for array in _pieces(params):
        XP[type(array)].multiply(array, factor._array, out=array)
    _written(params)


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Limit every element of the gradients to -clip_value .. clip_value, in place.

    Example:
        >>> weight = mt.nn.Parameter(mt.zeros(2))
        >>> (weight * mt.tensor([0.5, -9.0])).sum().backward()
        >>> mt.nn.utils.clip_grad_value_(weight, 1.0)
        >>> weight.grad
        tensor([ 0.5000, -1.0000])
    """
    params = _listed(parameters, "clip_grad_value_")
    refuse_switches("clip_grad_value_", foreach=foreach)
    bound = float(clip_value)
    for array in _pieces(params):
        xp = XP[type(array)]
        xp.maximum(array, -bound, out=array)
        xp.minimum(array, bound, out=array)
    _written(params)


def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """The norm of all elements of `tensors` as one vector; arguments as for `clip_grad_norm_`."""
    refuse_switches("get_total_norm", foreach=foreach)
    norm_type = float(norm_type)
    with no_grad():
        found = [norms.norm(t, norm_type) for t in _listed(tensors, "get_total_norm") if t.numel()]
        if not found:
            return tensor(0.0)
        total: Tensor = found[0]
        if len(found) > 1:
            here = [each.to(device=total.device) for each in found]
            total = norms.norm(joining.stack(here), norm_type)
        if error_if_nonfinite:
            text = "The total norm of order {} for the gradients is non-finite, so it cannot be "
            text += "clipped. Set error_if_nonfinite=False to scale by it anyway"
            need(total.isfinite(), "clip_grad_norm_", text, norm_type)
    return total


def _listed(tensors: Tensor | Iterable[Tensor], name: str) -> list[Tensor]:
    found: list[Any] = [tensors] if type(tensors) in TENSORS else list(tensors)
    for one in found:
        need(type(one) in TENSORS, name, "expected Tensors", type(one), error=TypeError)
    return found


def _pieces(params: list[Tensor]) -> list[Any]:
    """Arrays that hold all gradients of `params`, and nothing else.

    The whole flat gradients where the parameters are those of one storage, all with a gradient.
    """
    storage = owner(params[0]) if params else None
    if storage is not None and len(params) == len(storage.params):
        slots = storage.slots
        present = all(slot.epoch == slot.buffer.epoch for slot in slots)
        if present and set(map(id, params)) == set(map(id, storage.params)):
            return [buffer.grad for buffer in storage.buffers]
    return [grad._array for grad in _gradients(params)]


def _gradients(params: list[Tensor]) -> chain[Tensor]:
    return chain.from_iterable(() if p.grad is None else (p.grad,) for p in params)


def _written(params: list[Tensor]) -> None:
    """A graph that saved one of the gradients is stale now."""
    for grad in _gradients(params):
        grad.version.n += 1
