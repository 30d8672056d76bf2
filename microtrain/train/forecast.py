"""What a run needs: counted before it begins, or measured in some of its steps.

Parameters, gradients, optimizer states and data are counted. What a micro-batch and an evaluation
compute with follows from two rows, which go through the model before each run anyway; what native
code takes, from what it took elsewhere. With what the process has in memory already, the data read,
that is the peak that the header tells, and the end of a run compares.

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
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ..backend import default_dtype
from ..compile.executors import UNKNOWN, numba_absent, pays
from ..data import ArrayDataset
from ..data.view import layout
from ..words import elapsed, labelled, plural, size
from .divergence import NotFinite
from .evaluation import rows_at_once

if TYPE_CHECKING:
    from ..data.loader import MicroBatches
    from ..optim import Optimizer
    from .state import RunState, TrainingRun

__all__ = ["Memory", "dry_run", "memory", "peak_memory", "sizes"]

STEPS, SECONDS = 300, 5.0  # what a dry run takes at most

# Measured (benchmarks/predicted_memory.py).
LINES: Final = 4.5  # instructions of a captured step for each node of its graph
NUMBA, LINE = 118e6, 0.17e6  # bytes: importing and starting a compiler; for each instruction
EAGER, CAPTURED = 1.25, 3.0  # times what a forward pass makes: backward's results come to it, and a
#   capture holds all of them, and those of a replay
PASS, MEASURED = 2, 6  # arrays of an evaluation: of the widest layer; like the output, for metrics


class Memory(NamedTuple):
    """Bytes that a rank needs.

    Attributes:
        parts: by what they are for.
        peak: of the process at its largest; without activations where the model is not asked.
    """

    parts: dict[str, int]
    peak: int


def memory(run: TrainingRun) -> Memory:
    """What this rank will need for a run that is about to begin."""
    storage = run.model.storage
    gradients = sum(buffer.wide.nbytes for buffer in storage.buffers)
    parameters = sum(buffer.data.nbytes for buffer in storage.buffers)
    optimizer = optimizer_bytes(run.optimizer)
    data = (run.data.train, run.data.val, run.data.test)
    there = {
        "parameters": parameters,
        "data": sum(a.nbytes for d in data if isinstance(d, ArrayDataset) for a in d.arrays),
    }
    coming = {
        "rows read": run.loader.buffered,
        "gradients": gradients,
        "shards": 0 if run.shards is None else gradients * run.shards // run.comm.size,
        "optimizer": optimizer,
        "activations": _activations(run),
        "evaluation": _evaluation(run),
        "checkpoint copy": parameters + optimizer if _copies(run) else 0,
        "native code": _native_code(run),
    }
    on_host = {n: c for n, c in coming.items() if run.device is None or n in ON_HOST}
    total = sum(on_host.values())
    if run.execution.name == "off":  # a step and an evaluation take turns; what is captured stays
        total -= min(on_host.get("activations", 0), on_host.get("evaluation", 0))
    peak = max(peak_memory(), _resident() + total)
    return Memory(there | coming, peak)


ON_HOST: Final = ("checkpoint copy", "rows read")  # of a run on a GPU


def sizes(run: TrainingRun, needed: Memory) -> dict[str, str]:
    """For the header: `model` and `memory`."""
    gradients = needed.parts["gradients"]
    count = plural(sum(p.numel() for p in run.model.parameters()), "parameter")
    sent = f", {size(gradients)} reduced per step" if run.comm.size > 1 else ""
    # What its ranks share is there once.
    once = " per host" if run.comm.local_size > 1 else ""
    counted = ", ".join(
        f"{name} {size(count)}{once if name == 'data' else ''}"
        for name, count in needed.parts.items()
        if count
    )
    without = "" if run.of_row else ", without activations"
    each = " per rank" if run.comm.size > 1 else ""
    return {"model": count + sent, "memory": f"about {size(needed.peak)}{each}: {counted}{without}"}


def _activations(run: TrainingRun) -> int:
    """What forward and backward pass of a micro-batch make; about, for layers have memory too."""
    if run.of_row is None:
        return 0
    rows = min(run.loader.batch_size, len(run.data.train))
    parts = run.loader.accumulate * (run.shards or run.comm.size)
    share = EAGER if run.execution.name == "off" else CAPTURED
    return round(share * -(-rows // parts) * run.of_row.made)


def _evaluation(run: TrainingRun) -> int:
    """What a pass of an evaluation computes with: rows of inputs, and arrays like their outputs."""
    if run.of_row is None or (run.data.val is None and not run.metrics):
        return 0
    part = run.data.val or run.data.train
    rows = min(rows_at_once(run.of_row.output), -(-len(part) // (run.shards or run.comm.size)))
    inputs = sum(a.dtype.itemsize * int(np.prod(a.shape[1:])) for a in layout(part)[0])
    return rows * (inputs + PASS * run.of_row.widest + MEASURED * run.of_row.output)


def _copies(run: TrainingRun) -> bool:
    """Whether this rank copies its state for the thread that writes it; the last is not copied."""
    plan, keep = run.plan, run.config.checkpoint
    if run.comm.rank > 0 or plan.total is None:
        return run.comm.rank == 0
    saves = [plan.epoch if keep.every == "auto" else plan.save]
    if keep.keep_best and (run.data.val is not None or run.metrics):
        saves.append(plan.evaluate)
    return any(each is None or each < plan.total for each in saves)


def _native_code(run: TrainingRun) -> int:
    """What compiling takes, where the steps will be native code."""
    execution, nodes = run.execution, 0 if run.of_row is None else run.of_row.nodes
    lines = round(LINES * nodes)
    wanted = execution.name == "numba"
    if execution.pending and not wanted and lines and not numba_absent():
        cost, saved = pays(lines, run.plan.total or UNKNOWN)
        wanted = saved >= cost
    return round(NUMBA + LINE * lines) if wanted else 0


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
    plan, needed = run.plan, memory(run)
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
    facts = sizes(run, needed)
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
