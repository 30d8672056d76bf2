"""Passes that data parallelism is told of: their seeds, and what goes into whose gradients.

A listener owns the gradients of some leaves. It is told of every pass that reaches one of them,
says what the seeds are multiplied by, and makes these gradients global when the pass is over. Other
leaves get their ordinary gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..backend import LISTENERS, MODES, XP
from ..errors import need, wrong
from ..tensor import Tensor
from .engine import Scaling, run
from .graph import next_seq, reaches


class Listener(Protocol):
    """What is in `LISTENERS`.

    Attributes:
        members: the leaves whose gradients it owns.
        storage: where these gradients lie.
        waits: whether a pass is to follow a forward call of its model.
    """

    members: frozenset[Tensor]
    storage: Any
    waits: bool

    def look(self, edges: Any, told: Sequence[Any], retain: bool) -> list[tuple[Any, Any]]:
        """Of each listener that is told: the rows that a pass from `edges` depends on, and what it
        is a mean over, None where that is these.
        """

    def derived(self, edges: Any, first: int, results: Any) -> None:
        """A pass with `create_graph` has made `results`, and nodes from number `first` on."""

    def begin(self, roots: Any, create_graph: bool, n: Any, weights: Any) -> float | None:
        """Before a pass over `n` rows: what its seeds are multiplied by; None: by nothing."""

    def readiness(self, edges: Any) -> Any:
        """What is to be called with a leaf that has been added to; None: nothing."""

    def shares(self, weights: Any) -> bool:
        """Whether a root has terms that must be made shares of the whole, in `share`."""

    def share(self, weights: Any, like: Any) -> None:
        """Make them that; collective. `like`: an array of the kind to send."""

    def correct(self, weights: Any, root: Any, seed: Any) -> None:
        """After such a pass from `root`: count the loss as a share of the whole as well."""

    def end(self) -> None:
        """After a pass: make the gradients global."""

    def whole(self, roots: Any, create_graph: bool, n: Any, weights: Any) -> Any:
        """For a captured step: see `capture.python_calls.Pass`."""

    def cancel(self) -> None:
        """The pass failed."""


def announced(
    roots: Any, edges: Any, seeds: Any, retain: bool, create_graph: bool, wanted: Any
) -> tuple[dict[Any, Any], dict[Tensor, None]]:
    """`engine.run`, which accumulates; the listeners whose leaves it reaches hear of it.

    Raises RuntimeError where two of them count differently, and whatever they raise.
    """
    told: list[Listener] = [
        one
        for one in LISTENERS
        if (reaches(edges, one.members) if wanted is None else one.members & {*wanted})
    ]
    if not told:
        first_node = next_seq() if create_graph else 0
        found = run(edges, seeds, retain, create_graph, wanted, True)
        if create_graph:
            derived(edges, first_node, [*found[1]])
        return found
    capture, shared = MODES.capture, None  # terms of the root that ranks have to weigh together
    first, several = told[0], len(told) > 1
    try:
        seen = first.look(edges, told, retain)
        begin = capture.listen if capture.on else _begin
        scale = begin(first, roots, create_graph, *seen[0])
        members: Any = first.members
        if several:
            for one, each in zip(told[1:], seen[1:], strict=True):
                other = begin(one, roots, create_graph, *each)
                if other is not scale and other != scale:
                    text = f"reaches several DataParallel models that count differently ({other}"
                    text += f" and {scale}): it is unclear what its loss is a mean over; give"
                    raise wrong("one backward", f"{text} all the same model.count(n) and reduction")
                members |= one.members
        if seen[0][1] is not None or several:
            shared = _share(told, [weights for _, weights in seen], seeds[0])
        given = seeds
        if scale is None or (type(scale) not in XP and scale == 1):
            members = home = None
        else:
            seeds = [XP[type(seed)].multiply(seed, scale) for seed in seeds]
            home = first.storage.buffers[0]
        alone = not several and wanted is None and not create_graph
        ready = first.readiness(edges) if alone else None
        scaling = Scaling(members, home, scale, ready)
        found = run(edges, seeds, retain, create_graph, wanted, True, scaling)
        for one in told:
            if shared is not None:
                one.correct(shared, roots[0]._array, given[0])
            capture.heard(one) if capture.on else one.end()
    except BaseException:
        for one in told:
            one.cancel()
        raise
    finally:
        if shared is not None:
            shared.end()
    return found


def _begin(listener: Any, *args: Any) -> Any:
    return listener.begin(*args)


def derived(edges: Any, first: int, results: Any) -> None:
    """A pass with `create_graph` from `edges` has made nodes from number `first` on."""
    for one in LISTENERS:
        if reaches(edges, one.members):  # not one of another thread, whose calls are meanwhile
            one.derived(edges, first, results)


def _share(told: Sequence[Any], weights: Sequence[Any], like: Any) -> Any:
    """Let the listeners weigh the terms of a root together; what they did, or None."""
    taking = [one for one, weight in zip(told, weights, strict=True) if one.shares(weight)]
    if not taking:
        return None
    text = "with losses of several denominators reaches several DataParallel models, and not all "
    text += "may take part in weighing them: give all the same ranks, and none or all count(n)"
    need(len(taking) == len(told), "one backward", text)
    told[0].share(weights[0], like)
    return weights[0]
