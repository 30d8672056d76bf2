"""The layers of a module as a table: for notebooks, and as `mt.summary`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..autograd import no_grad
from ..backend import MODES
from ..common.words import html_table, size, table
from ..creation import zeros
from ..errors import need
from ..tensor import TENSORS

__all__ = ["Summary", "summary"]

_MOST = 200  # rows that a page shows


def _layers(module: Any) -> Iterator[tuple[str, Any, list[tuple[str, Any]]]]:
    """Name, layer and own parameters of all that compute something themselves."""
    for name, layer in module.named_modules():
        own = [*layer.named_parameters(recurse=False)]
        if own or not any(True for _ in layer.named_children()):
            yield name or "(itself)", layer, own


# With the shapes of a forward pass ----------------------------------------------------------------


class Summary:
    """What `mt.summary` returns: prints as a table, in a terminal and in a notebook.

    Attributes:
        rows: of the table, its head first.
        title: the totals.
        parameters, trainable: their numbers, a tied parameter counted once.
        parameter_bytes, output_bytes: what the parameters take; what the layers returned.
    """

    def __init__(self, module: Any, outputs: dict[str, list[Any]] | None = None) -> None:
        found = [*module.parameters()]
        self.parameters = sum(p.numel() for p in found)
        self.trainable = sum(p.numel() for p in found if p.requires_grad)
        self.parameter_bytes = sum(p.numel() * p.dtype.itemsize for p in found)
        self.output_bytes, frozen = 0, self.parameters - self.trainable
        self.title = f"{type(module).__name__}: {self.parameters:,} parameters"
        self.title += f", {frozen:,} of them frozen" if frozen else ""
        self.title += f", {size(self.parameter_bytes)}"
        self.rows = [["layer", "type", "output", "parameters", "trainable"]]
        for name, layer, own in _layers(module):
            shown = ""
            if outputs is not None:
                calls = outputs.get(name, [])
                self.output_bytes += sum(_bytes(value) for value in calls)
                shown = _shapes(calls[0]) if calls else "not called"
                shown += f", {len(calls)} calls" if len(calls) > 1 else ""
            sizes = [(p.numel(), p.requires_grad) for _, p in own]
            learned = sum(n for n, trainable in sizes if trainable)
            counts = [f"{sum(n for n, _ in sizes):,}", f"{learned:,}"] if own else ["", ""]
            self.rows.append([name, type(layer).__name__, shown, *counts])
        if outputs is None:
            self.rows = [row[:2] + row[3:] for row in self.rows]
        else:
            self.title += f", outputs {size(self.output_bytes)}"

    def __str__(self) -> str:
        return "\n".join([*table(self.rows), self.title])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        more = len(self.rows) - 1 - _MOST
        rest = [["...", f"{more:,} more layers"]] if more > 0 else []
        return html_table([*self.rows[: 1 + _MOST], *rest], self.title)


def summary(module: Any, *inputs: Any) -> Summary:
    """The layers of `module`: output shapes, numbers of parameters, memory.

    Args:
        module: a Module. It is called without gradients and in evaluation mode, so its running
            statistics stay as they are, and is in its own mode again afterwards.
        inputs: what forward takes: Tensors, or shapes (tuples of ints, batch included) of zeros in
            the dtype and on the device of the parameters. None are needed for the numbers alone.

    Raises TypeError for a module that is none, and what the forward pass raises.

    Example:
        >>> net = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 2))
        >>> mt.summary(net, (32, 4))
        layer  type    output   parameters  trainable
        0      Linear  32 × 8   40          40
        1      ReLU    32 × 8
        2      Linear  32 × 2   18          18
        Sequential: 58 parameters, 232 B, outputs 2.3 KB
    """
    module_given = hasattr(module, "named_modules")
    need(module_given, "summary", "expected a Module", type(module), error=TypeError)
    if not inputs:
        return Summary(module)
    like = next((p for p in module.parameters() if p.is_floating_point()), None)
    dtype, device = (MODES.default_dtype, None) if like is None else (like.dtype, like.device)
    arguments = [
        zeros(one, dtype=dtype, device=device) if _is_shape(one) else one for one in inputs
    ]
    outputs: dict[str, list[Any]] = {}
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        with contextlib.ExitStack() as hooks, no_grad():
            for name, layer, _ in _layers(module):
                keep: Any = lambda _, args, output, name=name: (  # noqa: E731
                    outputs.setdefault(name, []).append(output)
                )
                hooks.enter_context(layer.register_forward_hook(keep))
            module.eval()
            module(*arguments)
    finally:
        for layer, training in modes:
            layer.training = training
    return Summary(module, outputs)


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(type(n) is int for n in value)


def _tensors(value: Any) -> list[Any]:
    """The Tensors in what a layer returned."""
    if type(value) in TENSORS:
        return [value]
    if not isinstance(value, tuple | list | dict):
        return []
    parts = value.values() if isinstance(value, dict) else value
    return [tensor for part in parts for tensor in _tensors(part)]


def _shapes(value: Any) -> str:
    found = [" × ".join(map(str, t.shape)) or "scalar" for t in _tensors(value)]
    return ", ".join(found) or type(value).__name__


def _bytes(value: Any) -> int:
    return sum(t.numel() * t.dtype.itemsize for t in _tensors(value))
