"""What a model returns: a Tensor, or a tuple, list or dict of what a model returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..autograd.graph import AccumulateGrad
from ..backend import ARRAYS, address, owner_of
from ..errors import ConfigError
from ..tensor import TENSORS


def mapped(function: Callable[[Any], Any], outputs: Any) -> Any:
    """`function` of each Tensor (or array) in `outputs`, in the same tuples, lists and dicts."""
    if isinstance(outputs, dict):
        return {key: mapped(function, each) for key, each in outputs.items()}
    if not isinstance(outputs, tuple | list):
        return function(outputs)
    made = [mapped(function, each) for each in outputs]
    return type(outputs)(*made) if hasattr(outputs, "_fields") else type(outputs)(made)


def leaves(outputs: Any) -> list[Any]:
    """The Tensors (or arrays) in `outputs`, in order."""
    found: list[Any] = []
    mapped(found.append, outputs)
    return found


def joined(join: Callable[[Sequence[Any]], Any], parts: Sequence[Any]) -> Any:
    """One of `parts` with `join` of all of theirs in the place of each leaf."""
    each = iter([join(column) for column in zip(*map(leaves, parts), strict=True)])
    return mapped(lambda _: next(each), parts[0])


def one_prediction(outputs: Any) -> Any:
    """`outputs` if it is one Tensor; ConfigError for several, of which none is the prediction."""
    if type(outputs) not in TENSORS:
        raise ConfigError(
            f"the model returns {described(outputs)}, of which none is known to be the prediction; "
            "in Python, what microtrain.load gives can be called with Tensors and returns them all"
        )
    return outputs


def described(outputs: Any) -> str:
    """What it is, for messages: `a tuple of a Tensor (2, 10) of float32, NoneType`."""
    if isinstance(outputs, dict):
        return f"a dict of {', '.join(f'{k}: {described(v)}' for k, v in outputs.items())}"
    if isinstance(outputs, tuple | list):
        return f"a {type(outputs).__name__} of {', '.join(map(described, outputs)) or 'nothing'}"
    kind = type(outputs)
    if kind in TENSORS or hasattr(outputs, "dtype"):
        array = outputs._array if kind in TENSORS else outputs
        noun = "a Tensor" if kind in TENSORS else "an array"
        return f"{noun} {tuple(array.shape)} of {array.dtype}"
    return repr(outputs) if kind in (int, float, str, bool, type(None)) else f"a {kind.__name__}"


class OfRow(NamedTuple):
    """What one row takes in a pass through the model, in bytes.

    Attributes:
        kept: by what the graph keeps for a backward pass, besides parameters.
        output: by what the model returns.
    """

    kept: int
    output: int

    @classmethod
    def of(cls, returned: Any, rows: int) -> OfRow:
        """From what the model returned for so many rows."""
        tensors = [each for each in leaves(returned) if type(each) in TENSORS]
        seen: set[Any] = set()
        kept: dict[int, int] = {}  # by address: views of one array are one
        waiting: list[Any] = [each.grad_fn for each in tensors]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if type(node) is AccumulateGrad:
                continue
            waiting += [below for below, _ in node.next_functions]
            for saved in node._saved or ():
                array = saved._array if type(saved) in TENSORS else saved
                if type(array) in ARRAYS:  # a view may repeat what its owner has once
                    size = min(int(array.nbytes), int(owner_of(array).nbytes))
                    kept[address(array)] = max(size, kept.get(address(array), 0))
        for leaf in seen:
            if type(leaf) is AccumulateGrad:
                kept.pop(address(leaf.variable._array), None)
        output = sum(int(each._array.nbytes) for each in tensors)
        return cls(sum(kept.values()) // rows, output // rows)
