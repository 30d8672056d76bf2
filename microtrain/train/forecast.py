"""What a run needs: counted before it begins, or measured in some of its steps.

Parameters, gradients, optimizer states and data are counted, and what the graph of a micro-batch
keeps, by the two rows which go through the model before each run anyway. With what the process has
in memory already, that is the least that the run takes. What kernels, evaluations, checkpoints and
compilers take for a while is not known before.

How long a run takes is not known before its steps are taken: captured steps, communication and
evaluation are each of them more than the rest. `dry_run` takes steps, of a run that then does not
happen.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..backend import default_dtype
from ..data import ArrayDataset
from ..words import elapsed, labelled, plural, size
from .step.guard import NotFinite

if TYPE_CHECKING:
    from ..data.loading.loader import MicroBatches
    from ..optim import Optimizer
    from .run import RunState, TrainingRun

STEPS, SECONDS = 300, 5.0  # what a dry run takes at most
COMING = "gradients", "shards", "optimizer", "activations"  # not there before the first step


def memory(run: TrainingRun) -> dict[str, int]:
    """The bytes that can be counted of what this rank needs, by what they are for."""
    storage = run.model.storage
    gradients = sum(buffer.wide.nbytes for buffer in storage.buffers)
    data = (run.data.train, run.data.val, run.data.test)
    return {
        "parameters": sum(buffer.data.nbytes for buffer in storage.buffers),
        "data": sum(a.nbytes for d in data if isinstance(d, ArrayDataset) for a in d.arrays),
        "gradients": gradients,
        "shards": 0 if run.shards is None else gradients * run.shards // run.comm.size,
        "optimizer": optimizer_bytes(run.optimizer),
        "activations": _activations(run),
    }


def sizes(run: TrainingRun) -> dict[str, str]:
    """For the header: `model` and `memory`."""
    needed = memory(run)
    count = plural(sum(p.numel() for p in run.model.parameters()), "parameter")
    sent = f", {size(needed['gradients'])} reduced per step" if run.comm.size > 1 else ""
    # What its ranks share is there once.
    once = " per host" if run.comm.local_size > 1 else ""
    counted = ", ".join(
        f"{name} {size(count)}{once if name == 'data' else ''}"
        for name, count in needed.items()
        if count
    )
    coming = sum(needed[name] for name in COMING) if run.device is None else 0
    least = size(max(peak_memory(), _resident() + coming))
    each = " per rank" if run.comm.size > 1 else ""
    return {"model": count + sent, "memory": f"at least {least}{each}: {counted}"}


def _activations(run: TrainingRun) -> int:
    """What the graph of a micro-batch keeps for its backward pass; 0 where that is not known."""
    if run.of_row is None:
        return 0
    rows = min(run.loader.batch_size, len(run.data.train))
    parts = run.loader.accumulate * (run.shards or run.comm.size)
    return -(-rows // parts) * run.of_row.kept


def optimizer_bytes(optimizer: Optimizer) -> int:
    """The states that the optimizer makes at its first step; a custom one's are not known."""
    total = 0
    for group in optimizer.param_groups:
        states = len(optimizer.states_of_group(group))
        total += states * sum(p.numel() * p._array.dtype.itemsize for p in group["params"])
    return total


def dry_run(
    run: TrainingRun,
    state: RunState,
    take_step: Callable[[MicroBatches], None],
    settle: Callable[[], None],
) -> list[str]:
    """Take some real steps, write nothing, and say what the run would take; collective.

    The parts cannot be used for a run afterwards.

    Args:
        run, state: of a run that has not begun.
        take_step: takes an optimiser step.
        settle: learns what other ranks have met; collective.
    """
    plan, facts = run.plan, sizes(run)
    began, times, waited = time.perf_counter(), [], 0.0
    ended = began
    with np.errstate(all="ignore"), default_dtype(run.config.dtype):
        most = min(STEPS, plan.total or STEPS)
        for micro_batches in islice(run.loader.steps(passes=None), most):
            started = time.perf_counter()
            waited += started - ended
            with suppress(NotFinite):  # a run would say so
                take_step(micro_batches)
            state.step += 1
            times.append(time.perf_counter() - started)
            if state.step & (state.step - 1) == 0:
                settle()
                enough = time.perf_counter() - began > SECONDS and state.step >= 8
                if run.comm.any(enough):
                    break
            ended = time.perf_counter()
    # Steps that are recorded and compiled take longer, and are few. Rows come many at once.
    typical = statistics.median(times[len(times) // 2 :]) + waited / len(times)
    total = plan.total  # None where a clock ends the run
    if total:
        seconds = max(0, total - len(times)) * typical + sum(times) + waited
        step = elapsed(typical) if typical >= 0.01 else f"{typical * 1e6:,.0f} us"
        facts["time"] = (
            f"{elapsed(seconds)} without evaluations, {step} per step: {len(times):,} of "
            f"{plural(total, 'step')} were measured"
        )
    facts["measured"] = f"peak memory {size(peak_memory())}; nothing was written"
    return labelled(facts)


def peak_memory() -> int:
    """The most bytes that this process has had in memory so far."""
    # What getrusage counts begins, under Linux, with the memory of the process that started this.
    if (found := _status("VmHWM")) is not None:
        return found
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _resident() -> int:
    """The bytes that this process has in memory now."""
    found = _status("VmRSS")
    return peak_memory() if found is None else found


def _status(field: str) -> int | None:
    """Bytes that Linux counts for this process; None elsewhere."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    lines = [line.split() for line in text.splitlines() if line.startswith(f"{field}:")]
    return int(lines[0][1]) * 1024 if lines else None
