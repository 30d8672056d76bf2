"""What a run says of itself: before its first step, after its last, and what to type next."""

from __future__ import annotations

import math
import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ... import threads
from ...config.components import import_paths
from ...words import elapsed, labelled, number, plural, rate, size, table
from ..callbacks.base import Callback, Ending
from ..components.models import learned_line
from ..forecast import sizes
from ..run import Parts, TrainingRun

if TYPE_CHECKING:
    from pathlib import Path

    from ...config.schema import Config
    from ...data import Prepared
    from ...nn import Module


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
        if run.directory is not None:
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
