"""Steps that are taken to learn of a run, which then does not happen."""

from __future__ import annotations

import copy
import io
import statistics
import time
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from ..backend import default_dtype, to_host
from ..common.words import elapsed, labeled, plural, size
from ..config.components import load
from ..config.schema import Config
from ..distributed.single import SingleCommunicator
from .console import Output, peak_memory, sizes
from .evaluation import tensors
from .rehearsal import refused, trying
from .step.divergence import NotFinite

STEPS, SECONDS = 300, 5.0  # what a dry run takes at most
ROWS = 8  # of the step that a check takes


def dry_run(run: Any) -> list[str]:
    """Take some real steps, write nothing, and say what the run would take; collective, once.

    The parts of `run`, which has not begun, cannot be used for a run afterwards.
    """
    plan, facts = run.plan, sizes(run)
    began, times = time.perf_counter(), list[float]()
    with np.errstate(all="ignore"), default_dtype(run.config.dtype):
        most = min(STEPS, plan.total or STEPS)
        for micro_batches in islice(run.loader.steps(passes=None), most):
            started = time.perf_counter()
            with suppress(NotFinite):  # a run would say so
                run.take_step(micro_batches)
            run.state.step += 1
            times.append(time.perf_counter() - started)
            if run.step & (run.step - 1) == 0:
                run.execution.settle()
                enough = time.perf_counter() - began > SECONDS and run.step >= 8
                if run.comm.any(enough):
                    break
    spent = time.perf_counter() - began
    # Steps that are recorded and compiled take longer, and are few. Rows come many at once.
    typical = statistics.median(times[len(times) // 2 :]) + (spent - sum(times)) / len(times)
    if total := plan.total:  # else a clock ends the run
        seconds = max(0, total - len(times)) * typical + spent
        step = elapsed(typical) if typical >= 0.01 else f"{typical * 1e6:,.0f} us"
        facts["time"] = (
            f"{elapsed(seconds)} without evaluations, {step} per step: {len(times):,} of "
            f"{plural(total, 'step')} were measured"
        )
    facts["measured"] = f"peak memory {size(peak_memory())}; nothing was written"
    return labeled(facts)


def try_step(config: Config) -> int:
    """Build the run of a configuration on this process alone, and take one step on a few rows.

    Nothing is left of it. Returns how many rows. Raises what a run would raise before its first
    step and in it.
    """
    config = copy.copy(config)
    config.distributed = copy.copy(config.distributed)
    config.distributed.backend = config.device = "auto"  # another machine may be the one to train
    kind: Any = load("trainer", config.trainer or "microtrain.train.trainer:Trainer")
    unheard = Output(0, stream=io.StringIO(), errors=io.StringIO())
    run = kind.from_config(config, SingleCommunicator(), unheard)
    rows = run.data.train.read(slice(ROWS))
    batch, passes, optimizer = tensors(rows, None), run.shards or 1, run.optimizer
    with np.errstate(all="ignore"), default_dtype(config.dtype):
        before = [np.array(to_host(p._array)) for p in run.model.parameters()]

        def gradients() -> Any:
            for number in range(passes):
                with trying(config, "trainer"):
                    run.gradients(number == 0, number == passes - 1, batch)
            return run.model.loss

        gradients()
        moves = any(group.get("lr", 1) for group in optimizer.param_groups) and any(
            p.grad is not None and bool((p.grad != 0).any()) for p in run.model.parameters()
        )
        with suppress(NotFinite), trying(config, "optimizer"):  # a run says so
            run.update()
            if optimizer.needs_closure:
                optimizer.step(gradients)
            after = [to_host(p._array) for p in run.model.parameters()]
            if moves and all(map(np.array_equal, before, after)):
                found = (
                    "has changed no parameter in a step; `update(run)` changes run.param in place"
                )
                raise refused(config, "optimizer", found)
    return len(rows[0])
