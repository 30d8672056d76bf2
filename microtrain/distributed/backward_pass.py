"""A backward pass into the parameters of wrapped models: what its seeds are, and what is noted.

What a root is a mean over is found before the pass (weighted_loss.py), and its seeds are multiplied
by that. Leaves of no model get their ordinary gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..autograd.engine import Scaling, run
from ..backend import MODES, XP
from ..errors import need
from .calls import NO_ROWS, Survey, only
from .find_terms import find
from .replayed_pass import whole
from .weighted_loss import Denominators, Term, correction


def backward(
    told: Sequence[Any], roots: Any, edges: Any, seeds: Any, retain: bool, create_graph: bool,
    wanted: Any,
) -> Any:  # fmt: skip
    """`engine.run`, accumulating, into the parameters of the `DataParallel` models `told`.

    Raises RuntimeError where two of them count differently, and whatever they raise.
    """
    shared, first, several = None, told[0], len(told) > 1
    try:
        counted = _counted(told, edges, retain)
        scale = _begin(first, roots, create_graph, *counted[0])
        for one, each in zip(told[1:], counted[1:], strict=True) if several else ():
            other = _begin(one, roots, create_graph, *each)
            text = f"reaches several DataParallel models that count differently ({other} and "
            text += f"{scale}): it is unclear what its loss is a mean over; give all the same "
            text += "model.count(n) and reduction"
            need(other is scale or other == scale, "one backward", text)
        if several or counted[0][1] is not None:
            shared = _share(told, [weights for _, weights in counted], seeds[0])
        given, members, home = seeds, None, None
        if scale is not None and (type(scale) in XP or scale != 1):
            seeds = [XP[type(seed)].multiply(seed, scale) for seed in seeds]
            members = first.members
            if several:
                members = members.union(*(one.members for one in told))
            home = first.storage.buffers[0]
        ready, passes = None, first.passes
        if not several and wanted is None and passes.sync and passes.undo is None:
            ready = first.reducer.readiness(edges)
        scaling = Scaling(members, home, scale, ready)
        found = run(edges, seeds, retain, create_graph, wanted, True, scaling)
        parts = None if shared is None else shared.parts(roots[0]._array, given[0])
        for one in told:
            if parts is not None and not one.passes.not_scalar:
                correct = functools.partial(_correct, one.passes, parts)
                MODES.capture.bookkeeping("shares of the loss", correct, one)
            _end(one)
    except BaseException:
        for one in told:
            one.cancel()
        raise
    finally:
        if shared is not None:
            shared.end()
    return found


def _counted(told: Sequence[Any], edges: Any, retain: bool) -> list[tuple[Any, Any]]:
    """For each of the models that a pass from `edges` reaches: samples and denominators.

    Samples are None where it depends on no forward call with rows; denominators are what it is a
    mean over, None where that is these samples.
    """
    first = told[0]
    passes = first.passes
    if len(passes.forwards) == 1 and len(told) == 1 and not MODES.capture.on:
        call = passes.forwards[0]
        means = only(edges, call)
        if means is not None and (not means or means == [*edges]):  # usually
            if not retain:
                passes.free()
            if not means or first.reduction == "sum" or passes.samples_given is not None:
                return [(call.rows, None)]
            return [(call.rows, Denominators([Term(means[0])], [], base=call.rows or 0))]
    freed = [call for one in told for call in one.passes.freed]
    seen = Survey(edges, [one.forwards() for one in told], freed)
    found = None
    if seen.means or seen.selects or seen.loops or len(seen.calls) > 1:
        every = (seen.known(key, call.rows) for key, call in seen.calls.items())
        found = find(edges, seen, NO_ROWS.union(*every))
    counts = []
    for one in told:
        mine = [call.rows for call in seen.calls.values() if call.passes is one.passes]
        rows = [number for number in mine if number is not None]
        counts.append(sum(rows) if rows else None)
    base = sum(count or 0 for count in counts)
    if found is None and len(told) > 1:  # all are to count alike
        found = Denominators([], [], [base])
    if found is not None:
        found.base = base
    result = []
    for one, count in zip(told, counts, strict=True):
        own = one.reduction == "mean" and one.passes.samples_given is None
        result.append((count, found if own else None))
        one.passes.settle(seen.calls, not retain)
    return result


def _begin(one: Any, roots: Any, create_graph: bool, n: Any, weights: Any) -> Any:
    """What the seeds are multiplied by; None: by nothing. In a captured step at every replay."""
    capture = MODES.capture
    if not capture.on:
        return one.begin(roots, create_graph, n, weights)
    at_end = None
    if not create_graph and len(roots) == 1:
        at_end = functools.partial(whole, one, rows=n, weights=weights)
    given = one.passes.samples_given
    label = f"a backward pass over {n if given is None else given} samples"

    def begin(roots: Any) -> Any:
        return one.begin(roots, create_graph, n, weights)

    scale = capture.begin_pass(one, label, begin, roots, at_end)
    single = None if weights is None or one.shares(weights) else weights.single
    return scale if single is None else single


def _end(one: Any) -> None:
    """Make the gradients global; the step itself may have called `no_sync`."""
    capture, sync = MODES.capture, one.passes.sync
    if not capture.on:
        one.end(sync)
        return
    label = "gradients are shared" if sync else "gradients wait"
    capture.bookkeeping(label, functools.partial(one.end, sync), one)


def _share(told: Sequence[Any], weights: Sequence[Any], like: Any) -> Any:
    """Weigh the terms of a root together, where they have to be; collective. What did it."""
    taking = [one for one, weight in zip(told, weights, strict=True) if one.shares(weight)]
    if not taking:
        return None
    text = "with losses of several denominators reaches several DataParallel models, and not all "
    text += "may take part in weighing them: give all the same ranks, and none or all "
    need(len(taking) == len(told), "one backward", text + "model.count(n)")
    weights[0].share(told[0].comm, told[0].passes.samples or 0, like)
    return weights[0]


def _correct(passes: Any, parts: Any) -> None:
    """After such a pass: count the loss as a share of the whole as well."""
    passes.loss += correction(*parts)
