"""Un-broadcasting: a gradient is summed to the shape of what was broadcast."""

from __future__ import annotations

from typing import Any

from ..errors import wrong

__all__ = ["set_sum_to", "unbroadcast"]

# The one operation that the engine needs, `sum_to(grad, shape)`; set when `ops` is imported.
_sum_to: Any = None


def set_sum_to(operation: Any) -> None:
    """Tell the engine the operation that reduces a broadcast gradient."""
    global _sum_to
    _sum_to = operation


def unbroadcast(g: Any, shape: tuple[int, ...], node: Any) -> Any:
    """`g`, which `node` returned (None: the caller of backward), summed to `shape`.

    Raises RuntimeError, which names the node, for a gradient that does not fit.
    """
    mine = g.shape
    lead = len(mine) - len(shape)
    if lead < 0 or any(s not in (m, 1) for s, m in zip(shape, mine[lead:], strict=True)):
        name = "backward" if node is None else node._op.node_name
        text = "returned a gradient of {}; expected a shape that reduces to {}"
        raise wrong(name, text, g, shape)
    return _sum_to(g, shape)
