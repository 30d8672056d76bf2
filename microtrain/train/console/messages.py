"""What a run says of itself: what it needs, what it has come to, and what to type next.

Parameters, gradients, optimizer states and data are counted before a run begins, and what the graph
of a micro-batch keeps, by the two rows which go through the model before each run anyway. With what
the process has in memory already, that is the least that the run takes. What kernels, evaluations,
checkpoints and compilers take for a while is not known before.

How long a run takes is not known before its steps are taken: captured steps, communication and
evaluation are each of them more than the rest. `dry_run` takes steps, of a run that then does not
happen.
"""

from __future__ import annotations

import math
import os
import resource
import shlex
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import threads
from ...backend import default_dtype
from ...config.components import import_paths
from ...data import ArrayDataset
from ...words import elapsed, labelled, number, plural, rate, size, table
from ..callbacks.base import Callback, Ending
from ..components.models import learned_line
from ..run import Parts, TrainingRun
from ..step.guard import NotFinite

if TYPE_CHECKING:
    from pathlib import Path

    from ...config.schema import Config
    from ...data import Prepared
    from ...data.loading.loader import MicroBatches
    from ...nn import Module
    from ...optim import Optimizer
    from ..run import RunState, TrainingRun


class Header(Callback):
    """Says what is known before the first step; run.json has it, too."""

    def on_start(self, run: TrainingRun) -> None:
        """Where mpirun names a process that was killed, run.json says which rank that was."""
        everyone = run.comm.gather_object((socket.gethostname(), os.getpid()))
        if everyone is None:
            return
        hosts, processes = map(list, zip(*everyone, strict=True))
        about = run.execution.about()
        run.update_info(
            hosts=hosts,
            processes=processes,
            ranks=run.comm.size,
            parameters=sum(p.numel() for p in run.model.parameters()),
            compile=about,
            higher_is_better=run.higher_is_better,
        )
        if run.directory is not None and not run.output.quiet:
            compiled = f"{about['executor']}: {about['reason']}"
            run.output.say(*header(run, hosts, compiled, run.path))


class Summary(Callback):
    """Says what a run has come to, and what to type next."""

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """What it is to say."""
        self._ending = ending

    def on_stop(self, run: TrainingRun) -> None:
        """After all else."""
        if run.directory is not None:
            run.output.say(*self._ending.lines, "", *summary(run, self._ending))

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """Of a run that somebody has interrupted."""
        if isinstance(error, KeyboardInterrupt) and run.directory is not None:
            run.output.say(
                f"interrupted after step {run.step:,}; resume from the last checkpoint with "
                f"{next_command(run.config, run.path, 'resume')}"
            )


def header(run: TrainingRun, hosts: Sequence[str], compiled: str, results: Path) -> list[str]:
    """What is known before the first step, one fact a line.

    Args:
        run: that begins.
        hosts: host name of each rank, in rank order.
        compiled: what executes the steps, and why.
        results: the run directory.
    """
    from ...runs.run_info import versions
    from ...version import __version__

    config, data, plan, ranks = run.config, run.data, run.plan, len(hosts)
    names = list(dict.fromkeys(hosts))
    named = ", ".join(names[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")
    mpi = versions().get("mpi", "")
    epoch = plural(plan.epoch, "step")
    duration = f"until the time is over, epochs of {epoch}"
    if plan.total is not None:
        epochs = plural(plan.total / plan.epoch, "epoch")
        duration = f"{plural(plan.total, 'step')}: {epochs} of {epoch}"
    threads_of = plural(threads.blas_threads(), "BLAS thread")
    parts_of = {"train": data.train, "val": data.val, "test": data.test}
    counts = {name: len(part) for name, part in parts_of.items() if part is not None}
    shared = _shared(run)
    facts = {
        "ranks": f"{ranks:,} on {plural(len(names), 'host')} ({named}){f', {mpi}' if mpi else ''}",
        "device": f"{run.device or 'cpu'}, {config.dtype}, {threads_of} per rank",
        "data": ", ".join(f"{n:,} {name}" for name, n in counts.items()),
        **({"cache": data.cache} if data.cache else {}),
        **sizes(run),
        "train": f"{duration}, batch size {config.train.batch_size:,}"
        + (f" over {ranks:,} ranks" if ranks > 1 else ""),
        **({"shared": shared} if shared else {}),
        "compile": compiled,
        "results": str(results),
    }
    return [f"microtrain {__version__}: {config.name}", *labelled(facts)]


def _shared(parts: Parts) -> str:
    """How the ranks work together, where there is something to say."""
    model, compression = parts.model, parts.config.distributed.compression
    if (shards := parts.shards) is not None:
        return f"{shards} shards: the same bits at every number of ranks that divides them"
    notes = [f"overlap {model.overlap}"] if parts.comm.size > 1 else []
    if compression != "none":
        notes.append(f"gradients in {compression}")
    if model.local_batch_norm:
        notes.append(
            "batch norm sees each rank's own rows (sync_batchnorm: false): results depend on "
            "the number of ranks"
        )
    return "; ".join(notes)


def summary(run: TrainingRun, ending: Ending) -> list[str]:
    """What a run ends with, one fact a line."""
    state, seconds = run.state, ending.seconds
    status = "finished" if ending.finished else "stopped"
    in_all = took = share = ""
    if state.resumed_at is not None:
        in_all = " in all"
        took = f" since the resume after step {state.resumed_at:,}"
    if run.comm.size > 1:
        share = f", {run.model.comm_seconds / seconds:.0%} in communication"
    speed = rate(state.samples / seconds if seconds else math.nan)
    facts = {
        status + (f" ({ending.stop})" if ending.stop else ""): f"{plural(state.step, 'step')} in "
        f"{elapsed(seconds)}{in_all}, {speed} samples/s{share}"
    }
    if state.best is not None:
        name, value, step = state.best
        facts["best"] = f"{name} {number(value)} at step {step:,}"
    facts["results"] = str(run.path)
    facts["took"] = f"{elapsed(seconds - state.elapsed)}{took}, peak memory {size(ending.peak)}"
    facts["next"] = next_command(run.config, run.path, "evaluate" if ending.finished else "resume")
    return labelled(facts)


def next_command(config: Config, path: Path, command: str) -> str:
    """What to type next, as this run itself was started."""
    if config.model.instance is not None:  # which only Python can make again
        if command == "resume":
            return f"Trainer(..., resume={str(path)!r}).train()"
        return f"microtrain.load({str(path)!r}, model=...)"
    program = "python -m microtrain" if sys.argv[0].endswith(".py") else "microtrain"
    trust = " --trust" if import_paths(config) else ""
    return f"{program} {command} {shlex.quote(str(path))}{trust}"


def truth_beside(module: Module, data: Prepared, which: str) -> list[str]:
    """Learned weights beside the true ones, where there are such; `which` says of which model."""
    line, truth = learned_line(module, data), data.train.truth
    if line is None or truth is None or len(truth.get("weights", ())) != len(line[0]):
        return []
    names = data.train.feature_names or [f"x{i}" for i in range(len(line[0]))]
    heading, *lines = truth_lines(*line, truth, names)
    return ["", f"{heading}  ({which})", *lines]


def truth_lines(
    weights: Sequence[float], bias: float, truth: Mapping[str, Any], names: Sequence[str]
) -> list[str]:
    """A table of learned weights and bias beside the true ones.

    Args:
        weights, names: one a feature; the first ten are shown, the rest is summed up in one line.
        truth: `{"weights": [2.0], "bias": 3.0}`, as ArrayDataset.truth has it.
    """
    entries = [*zip(names, weights, truth["weights"], strict=True)]
    rows = [["weight", f"{'learned':>11}", f"{'truth':>11}", f"{'difference':>11}"]]
    for name, learned, true in [*entries[:10], ("bias", bias, truth.get("bias", 0.0))]:
        rows.append([name, *(f"{number(x):>11}" for x in (learned, true, learned - true))])
    lines = table(rows)
    if rest := entries[10:]:
        worst = max(abs(learned - true) for _, learned, true in rest)
        many = plural(len(rest), "more weight")
        lines.append(f"{many}, the largest difference is {number(worst)}")
    return lines


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
