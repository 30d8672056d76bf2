"""What a run needs: counted before it begins, or measured in some of its steps.

Parameters, gradients, optimizer states and data are counted. How long a run takes, and what its
graph keeps, is not known before its steps are taken: captured steps, communication and evaluation
are each of them more than the rest. `dry_run` takes steps, of a run that then does not happen.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ..backend import default_dtype
from ..data import ArrayDataset
from ..words import elapsed, labelled, plural, size
from .divergence import NotFinite

if TYPE_CHECKING:
    from ..data.loader import MicroBatches
    from ..optim import Optimizer
    from .state import Parts, RunState

__all__ = ["dry_run", "optimizer_bytes", "peak_memory", "sizes"]

STEPS, SECONDS = 300, 5.0  # what a dry run takes at most


def sizes(parts: Parts) -> dict[str, str]:
    """What a rank holds for a run of these parts, for the header: `model` and `memory`."""
    storage = parts.model.storage
    data = (parts.data.train, parts.data.val, parts.data.test)
    gradients = sum(buffer.wide.nbytes for buffer in storage.buffers)
    memory = {
        "parameters": sum(buffer.data.nbytes for buffer in storage.buffers),
        "gradients": gradients,
        "shards": 0 if parts.shards is None else gradients * parts.shards // parts.comm.size,
        "optimizer": optimizer_bytes(parts.optimizer),
        "data": sum(
            a.nbytes for part in data if isinstance(part, ArrayDataset) for a in part.arrays
        ),
    }
    count = plural(sum(p.numel() for p in parts.model.parameters()), "parameter")
    sent = f", {size(gradients)} reduced per step" if parts.comm.size > 1 else ""
    counted = ", ".join(f"{name} {size(count)}" for name, count in memory.items() if count)
    return {"model": count + sent, "memory": f"{counted} per rank, without activations"}


def optimizer_bytes(optimizer: Optimizer) -> int:
    """The states that the optimizer makes at its first step; a custom one's are not known."""
    total = 0
    for group in optimizer.param_groups:
        states = len(optimizer.states_of_group(group))
        total += states * sum(p.numel() * p._array.dtype.itemsize for p in group["params"])
    return total


def dry_run(
    parts: Parts,
    state: RunState,
    take_step: Callable[[MicroBatches], None],
    settle: Callable[[], None],
) -> list[str]:
    """Take some real steps, write nothing, and say what the run would take; collective.

    The parts cannot be used for a run afterwards.

    Args:
        parts, state: of a run that has not begun.
        take_step: takes an optimiser step.
        settle: learns what other ranks have met; collective.
    """
    plan = parts.plan
    began, times = time.perf_counter(), []
    with np.errstate(all="ignore"), default_dtype(parts.config.dtype):
        most = min(STEPS, plan.total or STEPS)
        for micro_batches in islice(parts.loader.steps(passes=None), most):
            started = time.perf_counter()
            with suppress(NotFinite):  # a run would say so
                take_step(micro_batches)
            state.step += 1
            times.append(time.perf_counter() - started)
            if state.step & (state.step - 1) == 0:
                settle()
                enough = time.perf_counter() - began > SECONDS and state.step >= 8
                if parts.comm.any(enough):
                    break
    # Steps that are recorded and compiled take longer, and are few.
    typical = statistics.median(times[len(times) // 2 :])
    facts = sizes(parts)
    total = plan.total  # None where a clock ends the run
    if total:
        seconds = max(0, total - len(times)) * typical + sum(times)
        step = elapsed(typical) if typical >= 0.01 else f"{typical * 1e6:,.0f} us"
        facts["time"] = (
            f"{elapsed(seconds)} without evaluations, {step} per step: {len(times):,} of "
            f"{plural(total, 'step')} were measured"
        )
    facts["measured"] = f"peak memory {size(peak_memory())}; nothing was written"
    return labelled(facts)


def peak_memory() -> int:
    """The most bytes that this process has had in memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
