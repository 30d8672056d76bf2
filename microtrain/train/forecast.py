"""What a run will need, said before it begins, and compared with what it took.

Parameters, gradients, optimizer states and data are counted, and what the graph of one micro-batch
keeps, which goes forward eagerly, alone on its rank; everything it changed is put back. How long a
run takes is not known before its steps are taken: captured steps, communication and evaluation are
each of them more than the rest. `dry_run` takes steps, of a run that then does not happen.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..autograd.graph import AccumulateGrad
from ..backend import default_dtype
from ..compile.program import owner_of
from ..creation import from_numpy
from ..data import contiguous_slice
from ..random import begin_batch, place
from ..tensor import TENSORS
from ..words import elapsed, plural, size
from .autopsy import apart
from .divergence import NotFinite
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..data.loader import MicroBatches
    from ..optim import Optimizer
    from ..tensor import Tensor
    from .state import Parts, RunState

__all__ = ["Prediction", "dry_run", "peak_memory", "predict"]

Forward: TypeAlias = "Callable[[tuple[Tensor, ...]], Tensor]"
STEPS, SECONDS = 300, 5.0  # what a dry run takes at most


@dataclass
class Prediction:
    """What is known before the first step, of rank 0.

    Attributes:
        parameters: numbers that are trained.
        memory: bytes by what they are for.
        peak: bytes of the process at its largest.
        sent: bytes that a rank puts into collectives in an optimiser step.
    """

    parameters: int
    memory: dict[str, int] = field(default_factory=dict)
    peak: int = 0
    sent: int = 0

    def facts(self) -> dict[str, str]:
        """For the header."""
        parts = ", ".join(f"{name} {size(count)}" for name, count in self.memory.items() if count)
        sent = f", {size(self.sent)} reduced a step" if self.sent else ""
        return {
            "model": plural(self.parameters, "parameter") + sent,
            "memory": f"{size(self.peak)} a rank: {parts}",
        }

    def compared(self, peak: int) -> str:
        """What came of it, for the end of a run."""
        return f"{size(peak)} of memory at most (predicted {size(self.peak)})"


def predict(parts: Parts, forward: Forward) -> Prediction:
    """What a run of these parts will need; call it on every rank. Nothing of them changes.

    `forward` gives the loss of a batch. A model that cannot do its pass here fails again, and
    better said, at the first step.
    """
    storage = parts.model.storage
    weights = sum(buffer.data.nbytes for buffer in storage.buffers)
    data = (parts.data.train, parts.data.val, parts.data.test)
    arrays = [array for part in data if part is not None for array in part.arrays]
    now = _resident()
    memory = {
        "parameters": weights,
        "gradients": sum(buffer.wide.nbytes for buffer in storage.buffers),
        "optimizer": _optimizer_bytes(parts.optimizer),
        "data": sum(array.nbytes for array in arrays),
    }
    if parts.shards is not None:
        memory["shards"] = memory["gradients"] * parts.shards // parts.comm.size
    found = Prediction(
        parameters=sum(p.numel() for p in parts.model.parameters()),
        memory=memory,
        sent=memory["gradients"] if parts.comm.size > 1 else 0,
    )
    activations = _activations(parts, forward)
    if activations is not None:
        memory["activations"] = activations
    # What is there already (the program, data, parameters) and what comes to it.
    coming = sum(count for name, count in memory.items() if name not in ("parameters", "data"))
    found.peak = max(peak_memory(), now + coming)
    return found


def _optimizer_bytes(optimizer: Optimizer) -> int:
    """The states that the optimizer makes at its first step; a custom one's are not known."""
    total = 0
    for group in optimizer.param_groups:
        states = len(optimizer._wanted(group))
        total += states * sum(p.numel() * p._array.dtype.itemsize for p in group["params"])
    return total


def _activations(parts: Parts, forward: Forward) -> int | None:
    """Bytes that a micro-batch keeps for its backward pass; None where its forward pass raises.

    0 on a GPU, which is not seen from here.
    """
    loader = parts.loader
    rows = contiguous_slice(min(loader.batch_size, len(parts.data.train)), loader.accumulate, 0)[1]
    rows = contiguous_slice(rows, loader.shards, 0)[1]
    # Copies, as the loader makes them: a part of the data would count as all of it.
    batch: Any = tuple(from_numpy(a[:rows].copy()) for a in parts.data.train.arrays)
    before, here = Snapshot(parts.model, parts.loss, False), place()
    try:
        with (
            apart(parts.model),
            np.errstate(all="ignore"),
            default_dtype(parts.config.dtype),
        ):
            begin_batch(0)
            most = _kept(forward(batch))
            parts.model.cancel()
    except Exception:
        return None
    finally:
        before.restore()
        begin_batch(*here)
    return 0 if parts.device is not None else most


def _kept(loss: Any) -> int:
    """Bytes that the graph of `loss` keeps for the backward pass, parameters left out.

    Counted rather than measured: Python's own tracer of allocations must not be switched on and off
    while other threads run.
    """
    found: dict[int, int] = {}
    leaves: set[int] = set()
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node) is AccumulateGrad:
            leaves.add(id(owner_of(node.variable._array)))
            continue
        waiting += [below for below, _ in node.next_functions]
        saved: list[Any] = [node._saved]
        while saved:
            value = saved.pop()
            if isinstance(value, tuple | list):
                saved += value
            elif type(value) in TENSORS:
                saved.append(value._array)
            elif type(value) is np.ndarray:
                owner = owner_of(value)
                found[id(owner)] = owner.nbytes
    return sum(size for owner, size in found.items() if owner not in leaves)


def dry_run(
    parts: Parts,
    state: RunState,
    forward: Forward,
    take_step: Callable[[MicroBatches], None],
    settle: Callable[[], None],
) -> list[str]:
    """Take some real steps, write nothing, and say what the run would take; collective.

    The parts cannot be used for a run afterwards.

    Args:
        parts, state: of a run that has not begun.
        forward: the loss of a batch.
        take_step: takes an optimiser step.
        settle: learns what other ranks have met; collective.
    """
    found, plan = predict(parts, forward), parts.plan
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
                if any(parts.comm.all_gather_object(enough)):
                    break
    # Steps that are recorded and compiled take longer, and are few.
    typical = statistics.median(times[len(times) // 2 :])
    facts = found.facts()
    lines = [f"{name:<9} {facts[name]}" for name in ("model", "memory")]
    total = plan.total  # None where a clock ends the run
    if total:
        seconds = max(0, total - len(times)) * typical + sum(times)
        step = elapsed(typical) if typical >= 0.01 else f"{typical * 1e6:,.0f} us"
        lines.append(
            f"time      {elapsed(seconds)} without evaluations: {len(times):,} of "
            f"{plural(total, 'step')} were taken, one takes {step}"
        )
    lines.append(f"measured  {size(peak_memory())} of memory at most; nothing was written")
    return lines


def peak_memory() -> int:
    """The most bytes that this process has had in memory so far."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


def _resident() -> int:
    """The bytes that this process has in memory now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return peak_memory()
