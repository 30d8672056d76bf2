"""The layers of a module as a table, for notebooks."""

from __future__ import annotations

from typing import Any

from ..words import html_table, size

__all__ = ["in_html"]

_MOST = 200  # rows that a page shows


def in_html(module: Any) -> str:
    """A row for each layer: its name, what it is, the shapes of its parameters, their number."""
    rows = [["layer", "", "parameters", "number"]]
    total = frozen = held = 0
    seen: set[int] = set()
    for name, layer in module.named_modules():
        own = [*layer.named_parameters(recurse=False)]
        if not own and any(True for _ in layer.named_children()):
            continue  # what holds others says nothing of its own
        shapes = ", ".join(f"{n} {' × '.join(map(str, p.shape)) or 'scalar'}" for n, p in own)
        count = sum(p.numel() for _, p in own)
        fresh = [p for _, p in own if id(p) not in seen]  # a tied one counts once
        seen.update(map(id, fresh))
        total += sum(p.numel() for p in fresh)
        held += sum(p.numel() * p.dtype.itemsize for p in fresh)
        frozen += sum(p.numel() for p in fresh if not p.requires_grad)
        kind = f"{type(layer).__name__}({layer.extra_repr()})"
        rows.append([name or "(itself)", kind, shapes, f"{count:,}" if own else ""])
    more = len(rows) - 1 - _MOST
    rows[1 + _MOST :] = [["...", f"{more:,} more layers", "", ""]] if more > 0 else []
    still = f", {frozen:,} of them frozen" if frozen else ""
    what = f"{type(module).__name__}: {total:,} parameters{still}, {size(held)}"
    return html_table(rows, what)
