"""A member of a sweep: an ordinary run in a directory of its own, by the code of a run.

What it does not need is left out: its page and pictures, a sync of the disk for each file, and
checkpoints in its first seconds; what it prints goes nowhere. Of its checkpoints the best one stays
at its end; a resume takes the steps after it again, with the same bits.
"""

from __future__ import annotations

import contextlib
import copy
import math
from pathlib import Path
from typing import Any

from ..common.files import point, remove, sync_file, without_syncing
from ..config.components import load
from ..config.schema import Config
from ..distributed.communicator import Communicator
from ..distributed.single import SingleCommunicator
from ..errors import DivergedError
from ..runs.checkpoint import list_checkpoints, name_of
from ..runs.directory import RunDirectory
from ..train.build_run import Parts
from ..train.callbacks.base import Callback, Ending, Event
from ..train.callbacks.checkpoints import Checkpoints, Saver
from ..train.console import Output, next_command
from ..train.resume import LOCK_WAIT
from ..train.run import TrainingRun
from ..train.step.executor import Execution
from ..train.trainer import Trainer
from .alike import Shared, may_share

PAUSED = "halving"  # why a member stops that is to be compared with others
PATIENCE = 5.0  # seconds before the first checkpoint: shorter members are begun again


class Quiet(Output):
    """Says nothing; warnings go into the log of the member, and to the sweep, which is told each.

    Attributes:
        warnings: of the member, in their order.
    """

    silent = True

    def __init__(self) -> None:
        super().__init__(progress="off")
        self.warnings: list[str] = []

    def say(self, *lines: str) -> None:
        """Members have no rows on the terminal."""

    def warn(self, text: str) -> None:
        """Keep it."""
        self.warnings.append(text)
        if self.log is not None:
            self.log(f"warning: {text}")


class MemberRun(Trainer):
    """The run of a member.

    Attributes:
        left: what the member before has left to this one; None where there is none, or it failed.
        place: where its directory is to be, in that of the sweep.
        about: fields of its run.json: the id of the sweep, the commit it was begun from.
        rung: it pauses after 1/rung of its steps; None: it goes on to its end.
        stopped_by: why it ended before its last step.
    """

    place: Path
    about: dict[str, Any]
    rung: int | None = None
    stopped_by = ""
    left: Shared | None = None
    shared: Shared | None = None

    def _build(self, config: Config, comm: Communicator, output: Output) -> Parts:
        """Its own, or those of the member before with its values."""
        parts = super()._build(config, comm, output)
        if may_share(config, parts):
            if self.left is not None and self.left.fits(parts):
                self.shared = self.left
                return self.left.given(parts)
            self.shared = Shared(parts)
        return parts

    def _executed(self) -> Execution:
        shared = self.shared
        if shared is None or shared.execution is None:
            made = super()._executed()
            if shared is not None:
                shared.execution = made
            return made
        shared.execution.begin(self)
        return shared.execution

    def open_directory(self, resume: Path | None) -> RunDirectory:
        """In the place of the member, which nothing else names."""
        if resume is not None:
            return RunDirectory(resume, LOCK_WAIT)
        return RunDirectory.create_member(
            self.place, self.config.name, self.config_text, **self.about
        )

    @property
    def pause(self) -> float:
        """The first evaluation after 1/rung of the steps; infinite where the run ends with it."""
        total, every = self.total_steps, self.plan.evaluate
        if self.rung is None or total is None or every is None:
            return math.inf
        step = -(-total // (self.rung * every)) * every
        return math.inf if step >= total else step

    def _way_on(self) -> str:
        return next_command(self.config, self.place.parent.parent, "resume")


class Rung(Callback):
    """Pauses the training where it is to be compared with others."""

    def on_start(self, run: Any) -> None:
        """It may be there already: it was killed as it paused, or at the rung before."""
        if run.step == run.pause:
            run.stop_before = PAUSED

    def due(self, run: Any, step: int) -> float:
        """The rung, while it is ahead."""
        return float(run.pause) if run.pause > step else math.inf

    def on_pause(self, run: Any, event: Event) -> None:
        """Not where it ends anyway."""
        if event.step == run.pause and not event.stop:
            event.stop = PAUSED

    def on_end(self, run: Any, ending: Ending) -> None:
        """A paused run is a stopped one, and says so."""
        run.stopped_by = ending.stop
        if ending.stop == PAUSED:
            ending.about |= {"status": "paused", "rung": run.rung}


class FewCheckpoints(Checkpoints):
    """Of a run that has finished the best one is all that is kept."""

    def on_start(self, run: TrainingRun) -> None:
        """At first the best stays in memory, unless a checkpoint was asked for."""
        super().on_start(run)
        if run.checkpoints is not None:
            run.checkpoints.rest(PATIENCE)

    def _save_last(self, run: TrainingRun, saver: Saver, last: dict[str, Any], done: bool) -> None:
        """The best; the last where that is the best, or none was kept."""
        best = run.state.best and saver.directory / name_of(run.state.best.step)
        if run.state.at_best:
            saver.forget()
        saver.wait()
        if not done or best not in list_checkpoints(saver.directory):
            saver.save(last)
            best = saver.directory / name_of(run.step)
        if done:
            for path in list_checkpoints(saver.directory):
                if path != best:
                    remove(path)
            for name in ("best", "last"):
                point(saver.directory / name, best)


def _class_of(kind: Any, **own: Any) -> Any:
    """The class of a member's run: the configured Trainer, with other checkpoints and no report.

    own: what it has of its own, as MemberRun.
    """
    instead: dict[Any, list[Any]] = {
        "microtrain.train.callbacks.checkpoints:Checkpoints": [Rung, FewCheckpoints],
        "microtrain.train.callbacks.order:Bar": [],
        "microtrain.train.console:Summary": [],
        "microtrain.report.observer:Report": [],
    }
    own["callback_types"] = [new for old in kind.callback_types for new in instead.get(old, [old])]
    return type(kind.__name__, (MemberRun,) if kind is Trainer else (MemberRun, kind), own)


def train_member(
    config: Config, resume: bool, place: Path, **own: Any
) -> tuple[list[str], Shared | None]:
    """Train a member in this process, to its end or to a rung.

    Args:
        config: that of the member.
        resume: whether it was begun before.
        place, own: as MemberRun.

    Returns what it warned of, and what it leaves to the next member.

    Raises KeyboardInterrupt where a signal has stopped it, and the errors of a run, but for
    DivergedError: its run.json says that.
    """
    config = copy.deepcopy(config)  # class weights are filled in
    kind = Trainer if config.trainer is None else load("trainer", str(config.trainer))
    quiet = Quiet()
    with without_syncing():
        run: MemberRun = _class_of(kind, place=place, **own).from_config(
            config, SingleCommunicator(), quiet, resume=place if resume else None
        )
        left = None
        with contextlib.suppress(DivergedError):
            run.train()
            left = run.shared
    sync_file(run.path / "run.json")
    if run.stopped_by not in ("", PAUSED) and not run.state.ended:
        raise KeyboardInterrupt(run.stopped_by)
    return quiet.warnings, left
