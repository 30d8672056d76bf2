"""Passes that data parallelism is told of: those that reach leaves whose gradients it owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..backend import LISTENERS
from ..tensor import Tensor
from .engine import run
from .graph import next_seq, reaches


class Listener(Protocol):
    """What is in `LISTENERS`.

    Attributes:
        members: the leaves whose gradients it owns.
        waits: whether a pass is to follow a forward call of its model.
    """

    members: frozenset[Tensor]
    waits: bool

    def backward(
        self, told: Sequence[Any], roots: Any, edges: Any, seeds: Any, retain: bool,
        create_graph: bool, wanted: Any,
    ) -> Any:  # fmt: skip
        """`announced`, of a pass that is told to some, of which this is the first."""

    def derived(self, edges: Any, first: int, results: Any) -> None:
        """A pass with `create_graph` has made `results`, and nodes from number `first` on."""


def announced(
    roots: Any, edges: Any, seeds: Any, retain: bool, create_graph: bool, wanted: Any
) -> tuple[dict[Any, Any], dict[Tensor, None]]:
    """`engine.run`, which accumulates, by the listeners whose leaves it reaches."""
    told: list[Listener] = [
        one
        for one in LISTENERS
        if (reaches(edges, one.members) if wanted is None else one.members & {*wanted})
    ]
    if told:
        found: Any = told[0].backward(told, roots, edges, seeds, retain, create_graph, wanted)
        return found
    first_node = next_seq() if create_graph else 0
    found = run(edges, seeds, retain, create_graph, wanted, True)
    if create_graph:
        derived(edges, first_node, [*found[1]])
    return found


def derived(edges: Any, first: int, results: Any) -> None:
    """A pass with `create_graph` from `edges` has made nodes from number `first` on."""
    for one in LISTENERS:
        if reaches(edges, one.members):  # not one of another thread, whose calls are meanwhile
            one.derived(edges, first, results)
