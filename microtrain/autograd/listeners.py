"""Passes that data parallelism is told of: their seeds, and what goes into whose gradients.

A listener owns the gradients of some leaves. It is told of every pass that reaches one of them,
says what the seeds are multiplied by, and makes these gradients global when the pass is over. Other
leaves get their ordinary gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ..backend import LISTENERS, MODES, XP
from ..tensor import Tensor
from .engine import Scaling, run
from .graph import MEANS, leaves_of, reaches


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

    def forwards(self) -> list[tuple[int, int]]:
        """Numbers of nodes around the forward calls since the last pass."""

    def denominators(self, edges: Any, means: list[Any], forwards: list[tuple[int, int]]) -> Any:
        """What a pass from `edges` is a mean over; None where that is its rows."""

    def begin(self, roots: Sequence[Tensor], create_graph: bool, weights: Any) -> float | None:
        """Before a pass: what its seeds are multiplied by; None: by nothing."""

    def readiness(self, edges: Any) -> Any:
        """What is to be called with a leaf that has been added to; None: nothing."""

    def shares(self, weights: Any) -> bool:
        """Whether a root has terms that must be made shares of the whole, in `share`."""

    def share(self, weights: Any) -> None:
        """Make them that; collective."""

    def correct(self, weights: Any, seed: Any) -> None:
        """After such a pass from `seed`: count the loss as a share of the whole as well."""

    def end(self) -> None:
        """After a pass: make the gradients global."""

    def whole(self, roots: Sequence[Tensor], create_graph: bool, weights: Any) -> Any:
        """For a captured step: see `compile.bookkeeping.Pass`."""

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
        return run(edges, seeds, retain, create_graph, wanted, True)
    recorder, shared = MODES.recorder, None  # terms of the root that ranks have to weigh together
    first, several = told[0], len(told) > 1
    try:
        means: list[Any] = []
        weights: Sequence[Any] = (None,) * len(told)
        if MEANS:
            leaves_of(edges, means)
        if means:
            forwards = [numbers for one in told for numbers in one.forwards()]
            weights = [one.denominators(edges, means, forwards) for one in told]
        begin = _begin if recorder is None else recorder.listen
        scale = begin(first, roots, create_graph, weights[0])
        members: Any = first.members
        if several:
            for one, weight in zip(told[1:], weights[1:], strict=True):
                other = begin(one, roots, create_graph, weight)
                if other is not scale and other != scale:
                    raise RuntimeError(
                        "one backward reaches several DataParallel models that count differently "
                        f"({other} and {scale}): it is unclear what its loss is a mean over; give "
                        "all the same model.count(n) and reduction"
                    )
                members |= one.members
        if means:
            shared = _share(told, weights)
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
                one.correct(shared, given[0])
            one.end() if recorder is None else recorder.heard(one)
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


def _share(told: Sequence[Any], weights: Sequence[Any]) -> Any:
    """Let the listeners weigh the terms of a root together; what they did, or None."""
    taking = [one for one, weight in zip(told, weights, strict=True) if one.shares(weight)]
    if not taking:
        return None
    if len(taking) < len(told):
        raise RuntimeError(
            "one backward with losses of several denominators reaches several DataParallel "
            "models, and not all may take part in weighing them: give all the same ranks, "
            "and none or all model.count(n)"
        )
    told[0].share(weights[0])
    return weights[0]
