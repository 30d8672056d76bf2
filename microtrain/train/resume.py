"""Continuing a run: which one, whether it is the same run, and where it goes on.

Rank 0 finds and reads, or one of a host that has a newer state in memory; what it found, or its
error, reaches all ranks together.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Len, Lt, Predicate

from ..common import job
from ..common.files import refusing, set_aside, typed
from ..common.words import elapsed
from ..config.resolved import compare_configs
from ..config.schema import Config
from ..data.loading.loader import order_name
from ..data.preparation.prepare import check_names
from ..distributed.agreement import from_root, settled, together
from ..distributed.communicator import Communicator
from ..errors import ConfigError, DataError
from ..random import begin_batch, place, set_rng_state
from ..runs.checkpoint import (
    MANIFEST,
    Checkpoint,
    Count,
    OtherFormat,
    OtherRun,
    config_of,
    damaged,
    list_checkpoints,
    load_newest_checkpoint,
    peek_state,
    step_of,
)
from ..runs.directory import RunDirectory, newest_run
from ..runs.run import Run
from ..runs.state import Options, RandomState, RunState, check_options
from .build_run import take_initial_values
from .model_state import checkpoint_from, share_arrays, take_over
from .run import RANKS_FILE, STOP_FILE, TrainingRun

LOCK_WAIT = 30.0  # seconds in which the ranks of a killed job have died

Choice = tuple[Path | None, str, int | None]


def _are_sums(progress: list[str]) -> bool:
    with contextlib.suppress(OverflowError):
        _, weight = map(float.fromhex, progress)
        return weight >= 0
    return False


@dataclass
class _Skips:
    total: Count
    in_a_row: Count
    last: Annotated[int, Ge(-1), Lt(2**53)]


@dataclass
class _Compile:
    executor: Literal["off", "numpy", "native", "cupy"]
    from_step: Count
    reason: str


@dataclass
class _Run(RunState):
    """What goes on in a run from here; callbacks check their own states."""

    metrics_bytes: Count
    progress: Annotated[list[str], Len(2, 2), Predicate(_are_sums)]
    callbacks: list[tuple[str, Any]]
    skips: _Skips | None
    data_hash: str
    classes: list[str] | None
    feature_names: list[str] | None
    compile: _Compile
    options: Options
    random: RandomState
    order: str
    run: str | None
    metrics_sha256: str


def check_run(checkpoint: Checkpoint, groups: Sequence[dict[str, Any]], skipping: bool) -> None:
    """DataError where a run cannot go on from the state of a checkpoint.

    groups: the parameter groups of its optimizer.
    skipping: whether it skips updates that are not finite.
    """
    with damaged(checkpoint.path, "in state.json, "):
        state = typed(_Run, checkpoint.state)
        if state.step != checkpoint.step:
            raise ValueError("step: not that of the manifest")
        if (state.skips is not None) != skipping:
            raise ValueError("skips: whether train.nan is skip")
        check_options(state.options, groups)


def choose_run(config: Config, resume: str | os.PathLike[str], comm: Communicator) -> Choice:
    """The run directory to go on with, what to say of it, and an exit code if none is needed.

    Args:
        config: of the run that is asked for.
        resume: `auto` for the newest of this name if there is one, or a path.
        comm: whose first rank looks, for all.

    Raises DataError on every rank where a run cannot be read.
    """
    return from_root(comm, lambda: _chosen(config, resume))


def _chosen(config: Config, resume: str | os.PathLike[str]) -> Choice:
    if resume == "auto":
        with refusing("cannot look for runs to resume"):
            path = newest_run(Path(os.path.expanduser(config.run_dir)) / config.name)
        if path is None:
            return None, f"no run of {config.name} in {config.run_dir} yet: starting one", None
    else:
        path = Path(resume)
    run = Run.read(path)
    done = run.setting("train.duration") in ("", str(config.train.duration))  # a longer one goes on
    if run.info.status == "finished" and done:
        return None, f"the run {run.path} has finished; nothing is left to do", 0
    _as_trained(run)
    return run.path, "", None


def _as_trained(run: Run) -> None:
    """ConfigError where the config.yaml of a run was edited, before anything is built by it."""
    for path in reversed(run.checkpoints):
        if (state := peek_state(path)) and state.get("run") != run.info.id:
            return  # of another run: told of where it is read
        with contextlib.suppress(DataError):  # a damaged one is told of where it is read
            text = config_of(path)
            where = f"the checkpoint of step {step_of(path):,}"
            file = run.path / "config.yaml"
            compare_configs(text, run.config_text, run.path, before=where, file=file)
            return


def take_up(run: TrainingRun) -> None:
    """Take over where the run in `run.directory` has come to, and go on in it; collective."""
    root = _holder(run)
    checkpoint = checkpoint_from(run.comm, lambda: _newest(run), root)
    with settled(run.comm):
        if checkpoint is not None:
            restore(run, checkpoint)
        else:  # nothing was saved
            take_initial_values(run.config, run.model, run.output.warn)
    if checkpoint is not None:
        share_arrays(run.comm, run.model, run.optimizer, root)
    said = from_root(run.comm, lambda: _again(checkpoint), root) if root else _again(checkpoint)
    with settled(run.comm):
        if run.directory is not None:
            _go_on(run, run.directory, checkpoint.state if checkpoint else None)
            if said:
                run.output.say(said, "")


def _holder(run: TrainingRun) -> int:
    """The first rank whose host has the newest state in memory; 0 where none has one."""
    if run.comm.num_nodes == 1:
        return 0

    def newest() -> int:
        paths = [path for found in job.states_of(run.id) for path in list_checkpoints(found)]
        return max(map(step_of, paths), default=-1)

    return int(run.comm.all_gather(np.array(together(run.comm, newest))).argmax())


def restore(run: Any, checkpoint: Checkpoint) -> None:
    """Let `run` be where `checkpoint` was taken.

    Raises DataError for another model or other data, ConfigError where the rest of an epoch would
    not be what the run has left of it.
    """
    total, state = run.total_steps, checkpoint.state
    if total is not None and checkpoint.step > total:
        raise ConfigError(
            f"the run has taken {checkpoint.step:,} steps, which is more than "
            f"train.duration={run.config.train.duration} ({total:,} steps); give it a longer one"
        )
    check_names(run.data, state["feature_names"], state["classes"], run.config.data.type)
    if state["data_hash"] != run.data_state["data_hash"]:
        raise DataError(
            f"the data have changed since step {checkpoint.step:,}: the run cannot continue "
            "with different rows; restore the data, or start a new run"
        )
    rows = len(run.loader.dataset)
    if state["order"] != (now := order_name(rows, run.loader.shuffle)):
        raise ConfigError(
            f"this run shuffled its {rows:,} training rows in the order {state['order']!r}, and "
            f"this version uses the order {now!r}: resuming now would repeat some rows and skip "
            "others\nfinish the run with the version that began it (see its run.json), or "
            f"start a new one from its model: train.init_from={checkpoint.path}"
        )
    take_over(checkpoint, run.model, run.optimizer)
    run.to_be_stopped, run.resumed_at = run.state.go_on_from(state), checkpoint.step
    draws = place()
    set_rng_state(state["random"])
    begin_batch(*draws)  # as before any pass, where a pass is taken up in its middle too
    run.loader.epoch = run.step // run.steps_per_epoch
    for name, keeper in run.stateful().items():
        if name in state:  # a callback that the run did not have before starts afresh
            keeper.load_state_dict(state[name])


def _newest(run: TrainingRun) -> Checkpoint | None:
    """The newest checkpoint that can be used; None: the run begins anew.

    Raises ConfigError for settings that make it another run, DataError for a run that diverged or
    whose checkpoints are gone or damaged: what it has of rows would be lost.
    """
    stored = Run.read(run.path)
    if stored.info.status == "diverged":
        raise DataError(
            f"the run {stored.path} has diverged and would diverge again; start a new one with "
            "another optimizer.lr, or with train.init_from one of its checkpoints"
        )
    directory, groups = stored.path / "checkpoints", run.optimizer.param_groups

    def check(checkpoint: Checkpoint) -> None:
        stored.own(checkpoint)
        check_run(checkpoint, groups, run.skips is not None)

    compare_configs(stored.config_text, run.config_text, stored.path)
    newest = _in_memory(run, stored, check)
    try:
        if newest is None:
            newest = load_newest_checkpoint(directory, run.output.warn, check)
    except (OtherFormat, OtherRun):
        raise
    except DataError as error:
        if stored.had_checkpoints:
            raise DataError(
                f"the run {stored.path} cannot be resumed: it had checkpoints, and none of them "
                "can be used; nothing of it was changed\nput them back from a copy, or start a new "
                "run"
            ) from error
    if newest is not None:
        where = f"the checkpoint of step {newest.step:,}"
        compare_configs(newest.config_text, run.config_text, stored.path, before=where)
    for path in list_checkpoints(directory):  # damaged ones must not pass for the newest again
        if newest is None or step_of(path) > newest.step:
            set_aside(path, f"damaged-{path.name.lstrip('.')}")
    return newest


def _in_memory(
    run: TrainingRun, stored: Run, check: Callable[[Checkpoint], None]
) -> Checkpoint | None:
    """What a job has kept of the run in memory, where that is newer than what is on the disk."""
    steps = [step_of(path) for path in list_checkpoints(stored.path / "checkpoints")]
    for directory in job.states_of(str(stored.info.id)):
        paths = list_checkpoints(directory)
        if paths and step_of(paths[-1]) > max(steps, default=-1):
            with contextlib.suppress(DataError):  # that of the disk it is then
                return load_newest_checkpoint(directory, run.output.warn, check)
    return None


def _again(checkpoint: Checkpoint | None) -> str:
    """What there is to say of a job that its launcher has started again; empty: nothing."""
    if (found := job.started_again()) is None:
        return ""
    (_, end, how), now, lost = found, time.time(), "all of its steps are taken again"
    if checkpoint is not None:
        with contextlib.suppress(OSError):
            kept = (checkpoint.path / MANIFEST).stat().st_mtime
            lost = f"the last {elapsed(max(end - kept, 0.0))} before that are computed again"
    what = "started again" if how.startswith("the job") else "going on"
    return f"{what} {elapsed(now - end)} after {how}; {lost}"


def _go_on(run: TrainingRun, directory: RunDirectory, state: dict[str, Any] | None) -> None:
    """Make the run directory ready to go on from a checkpoint, on rank 0.

    Only once the checkpoint is taken over: a run that cannot go on stays as it is.
    """
    say, warn, step = run.output.say, run.output.warn, run.step
    if said := directory.trim_metrics(step, state):
        warn(said)
    with refusing("the run would stop at once"):
        for name in () if job.started_again() else (STOP_FILE, RANKS_FILE):  # asked of this job
            (directory.path / name).unlink(missing_ok=True)
    before = directory.info("resumed_at")
    before = before if isinstance(before, list) else []
    directory.update(status="running", exit_code=None, error=None, resumed_at=[*before, step])
    directory.write("config.yaml", run.config_text)
    say(f"resuming {directory.path} after step {step:,}")
    ranks = directory.info("ranks", run.comm.size)
    if ranks != run.comm.size and run.shards is None:
        warn(
            f"the run started on {ranks} ranks and continues on {run.comm.size}: results agree up "
            "to rounding; set distributed.reproducible: world for the same bits"
        )
    if run.config.distributed.compression != "none":
        warn(
            "what compression has kept back for later steps is in no checkpoint: the run goes "
            "on, but not bit for bit"
        )
    say("")
