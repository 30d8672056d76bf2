"""What a run says of itself at its beginning and its end, put together from its parts."""

from __future__ import annotations

import math
import shlex
import sys
from typing import TYPE_CHECKING

from .. import threads
from ..config.components import is_import_path
from ..words import elapsed, size
from .forecast import sizes
from .learned_line import learned_line
from .output import Header, Summary, truth_lines

if TYPE_CHECKING:
    from .trainer import Trainer

__all__ = ["header", "next_command", "summed_up", "truth"]


def header(trainer: Trainer, hosts: list[str]) -> Header:
    """What is known before the first step."""
    from ..runs.provenance import versions
    from ..version import __version__

    parts = {"train": trainer.data.train, "val": trainer.data.val, "test": trainer.data.test}
    return Header(
        title=f"microtrain {__version__}: {trainer.config.name}",
        hosts=hosts,
        mpi=versions().get("mpi", ""),
        device=str(trainer.device or "cpu"),
        dtype=trainer.config.dtype,
        blas_threads=threads.blas_threads(),
        samples={name: len(part) for name, part in parts.items() if part is not None},
        prediction=sizes(trainer.parts),
        steps=trainer.total_steps,
        steps_per_epoch=trainer.steps_per_epoch,
        batch_size=trainer.config.train.batch_size,
        compile=f"{trainer.execution.name}: {trainer.execution.reason}",
        results=str(trainer.path),
        shared=_shared(trainer),
    )


def _shared(trainer: Trainer) -> str:
    """What the header says of how the ranks work together."""
    if (shards := trainer.parts.shards) is not None:
        return f"{shards} shards: the same bits at every number of ranks that divides them"
    notes = [f"overlap {trainer.model.overlap}"] if trainer.comm.size > 1 else []
    if trainer.config.distributed.compression != "none":
        notes.append(f"gradients in {trainer.config.distributed.compression}")
    if trainer.model.local_batch_norm:
        notes.append(
            "batch norm sees each rank's own rows (sync_batchnorm: false): results depend on "
            "the number of ranks"
        )
    return "; ".join(notes)


def summed_up(trainer: Trainer, finished: bool, stop: str, seconds: float, peak: int) -> Summary:
    """What a run ends with, of rank 0."""
    return Summary(
        status=("finished" if finished else "stopped") + (f" ({stop})" if stop else ""),
        steps=trainer.step,
        seconds=seconds,
        in_all=" in all" if trainer.state.elapsed else "",
        samples_per_s=trainer.samples / seconds if seconds else math.nan,
        comm_share=trainer.model.comm_seconds / seconds if trainer.comm.size > 1 else None,
        best=trainer.state.best,
        results=str(trainer.path),
        took=_took(trainer, seconds) + f"{size(peak)} of memory at most",
        next_command=next_command(trainer, "evaluate" if finished else "resume"),
    )


def _took(trainer: Trainer, seconds: float) -> str:
    """The time of this part, where the run has others."""
    if not trainer.state.elapsed:
        return f"{elapsed(seconds)}, "
    since = f"since the resume after step {trainer._restored['step']:,}"  # type: ignore[index]
    return f"{elapsed(seconds - trainer.state.elapsed)} {since}, "


def next_command(trainer: Trainer, command: str) -> str:
    """What to type next, as this run itself was started."""
    if trainer.config.model.instance is not None:  # which only Python can make again
        where = repr(str(trainer.path))
        if command == "resume":
            return f"Trainer(..., resume={where}).train()"
        return f"microtrain.load({where}, model=...)"
    program = "python -m microtrain" if sys.argv[0].endswith(".py") else "microtrain"
    config = trainer.config
    parts = [config.data, config.model, config.loss, config.optimizer, config.schedule]
    types = [part.type for part in [*parts, *config.metrics, *config.callbacks] if part]
    own_code = any(is_import_path(name) for name in [*types, config.trainer or ""])
    trust = " --trust" if own_code else ""
    return f"{program} {command} {shlex.quote(str(trainer.path))}{trust}"


def truth(trainer: Trainer, which: str) -> list[str]:
    """Learned weights beside the true ones, where there are such; `which` says of which model."""
    line, truth = learned_line(trainer.model.module, trainer.data), trainer.data.train.truth
    if line is None or truth is None or len(truth.get("weights", ())) != len(line[0]):
        return []
    names = trainer.data.train.feature_names or [f"x{i}" for i in range(len(line[0]))]
    heading, *lines = truth_lines(line[0], line[1], truth, names)
    return ["", f"{heading}  ({which})", *lines]
