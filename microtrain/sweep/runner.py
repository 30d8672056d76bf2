"""Trains the members of a sweep, dealt over the ranks.

A member is trained by one rank, and the ranks say nothing to each other meanwhile: at a rung of
`stop: halving` and at the end each hears what became of the others' members. Which member is
trained where and in which order changes no bit of it, so a sweep can be killed and resumed on
another number of ranks.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..common.files import remove, set_aside
from ..common.words import elapsed, number, plural, terminal_width
from ..config.components import FROM_DATA
from ..config.resolved import FREE, as_yaml, compare_configs, whole_yaml
from ..config.schema import Config, Member
from ..config.texts import Duration
from ..data.kept.shared import during
from ..distributed import watchdog
from ..distributed.agreement import from_root, settled
from ..distributed.communicator import Communicator
from ..errors import ConfigError, DataError, UserError
from ..report.groups import Comparison
from ..report.record import read_records
from ..runs.checkpoint import OtherRun
from ..runs.directory import RunDirectory
from ..runs.run import Run, RunInfo
from ..train.callbacks.results import STOPPED
from ..train.console import Output
from ..train.resume import LOCK_WAIT
from ..train.run import held
from ..train.run_data import ROWS
from .alike import Shared
from .member import train_member

SAY = 10.0  # seconds between two lines of progress, where no bar shows it
KEEP = 3  # halving keeps a third of the settings
ENDED = ("finished", "diverged")
MAY_CHANGE = ("name", "run_dir", "base", "data.path", "data.cache", "log.", "checkpoint.every")


def run_sweep(
    config: Config,
    members: Sequence[Member],
    comm: Communicator,
    output: Output,
    resume: Path | None = None,
) -> int:
    """Train all members, or those that are left; returns the exit code. Collective.

    Args:
        config: that of the first member, with the section `sweep`.
        members: from `load_sweep`.
        comm: the ranks over which members are dealt.
        output: where lines go.
        resume: the directory of a sweep to go on with.

    Raises ConfigError for what no sweep can have, and a different sweep from that of `resume`; the
    errors of a run, which end the sweep. Members that have finished stay.
    """
    with settled(comm):
        check(members)
    with held(comm, output, lambda: _open_directory(config, comm, resume)) as directory:
        runner = _Runner(members, comm, output, directory, config)
        began = time.perf_counter()
        runner.begin()
        try:
            finished = runner.train()
        except BaseException as error:
            if directory is not None:
                stopped = isinstance(error, KeyboardInterrupt)
                directory.update(status="stopped" if stopped else "failed", error=str(error))
            raise
        with settled(comm):
            runner.end(finished, time.perf_counter() - began)
    return 0 if finished else STOPPED


def check(members: Sequence[Member]) -> None:
    """ConfigError for what no sweep can have."""
    first = members[0].config.checkpoint
    for config in {member.setting: member.config for member in members}.values():
        if (config.checkpoint.monitor, config.checkpoint.mode) != (first.monitor, first.mode):
            raise ConfigError(
                "checkpoint.monitor, checkpoint.mode: the members of a sweep are compared by one "
                "value; take these out of what varies"
            )
        for key in ("duration", "eval_every", "max_time"):
            value = getattr(config.train, key)
            if value is not None and Duration(value).unit == "min":
                raise ConfigError(
                    f"train.{key}: {value} is counted by a clock, and the members of a sweep would "
                    "be different each time; count steps or epochs"
                )
        for number_, callback in enumerate(config.callbacks):
            if callback.type in ("tensorboard", "mlflow", "wandb"):
                raise ConfigError(
                    f"callbacks.{number_}: a sweep is too much for {callback.type}; leave it out, "
                    "and train the best member by itself, from its config.yaml, for such a log"
                )


def in_words(members: Sequence[Member]) -> str:
    """How many there are, of what."""
    settings = len({member.setting for member in members})
    folds = len({member.config.data.split.fold for member in members})
    counts = [plural(settings, "setting"), *[plural(folds, "fold")] * (folds > 1)]
    counts.append(plural(len(members) // (settings * folds), "seed"))
    return f"{len(members):,}: {' x '.join(counts)}"


def _open_directory(config: Config, comm: Communicator, resume: Path | None) -> RunDirectory:
    text = whole_yaml(config)
    if resume is None:
        directory = RunDirectory.create(config.run_dir, config.name, config_text=text)
        directory.update(sweep=True, ranks=comm.size)
        return directory
    stored = Run.read(resume)
    compare_configs(stored.config_text, text, stored.path, free=MAY_CHANGE)
    directory = RunDirectory(resume, wait_s=LOCK_WAIT)
    directory.update(status="running", exit_code=None, error=None)
    return directory


@contextlib.contextmanager
def _interrupted_by(number_: signal.Signals) -> Iterator[None]:
    """A signal is a KeyboardInterrupt, also between two members."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt(number_.name)

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(number_, interrupt) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(number_, before)


@dataclass(eq=False)
class _Runner:
    """The members of a sweep, and what became of each so far: what its run.json says."""

    members: Sequence[Member]
    comm: Communicator
    output: Output
    directory: RunDirectory | None
    config: Config

    def __post_init__(self) -> None:
        self._said = time.monotonic()
        self._warned: set[str] = set()
        self._left: Shared | None = None
        self.path, self.about, self.done, self.halved = from_root(self.comm, self._found)

    def _found(self) -> tuple[Path, dict[str, Any], dict[int, RunInfo], dict[str, list[int]]]:
        """Where the sweep is, what its members say of it, what is there of them already, and which
        settings have gone on.
        """
        assert self.directory is not None
        info = self.directory.info
        self.path, self.about = self.directory.path, {"of_sweep": info("id"), "git": info("git")}
        there = [m for m in self.members if self._place(m.number).exists()]
        found = {m.number: its for m in there if (its := self._usable(m)) is not None}
        return self.path, self.about, found, info("halved", {})

    def _place(self, number: int) -> Path:
        """The directory of a member."""
        return self.path / "members" / f"{number:0{len(str(len(self.members) - 1))}}"

    def _usable(self, member: Member) -> RunInfo | None:
        """What became of a member that can stay or be gone on with; others begin again.

        Raises OtherRun and ConfigError for a run that is not that member of this sweep.
        """
        path = self._place(member.number)
        if not (path / "run.json").exists():
            remove(path)  # killed as it began
            return None
        try:
            run = Run.read(path)
            if run.info.of_sweep != self.about["of_sweep"]:
                raise OtherRun(
                    f"{path} is not of this sweep: its run.json names the sweep "
                    f"{run.info.of_sweep or '(none)'!s:.40}; put it back where it was"
                )
            free: tuple[str, ...] = MAY_CHANGE if run.info.status in ENDED else FREE
            loss, model = member.config.loss.arguments, member.config.model.arguments
            free += tuple(f"loss.{key}" for key, value in loss.items() if value == "balanced")
            free += tuple(f"model.{key}" for key in FROM_DATA if model.get(key) is None)
            compare_configs(
                run.config_text,
                whole_yaml(member.config),
                path,
                free,
                before="the member",
                refused="has different settings from those of the sweep",
                way_out="restore them, in its config.yaml or in that of the sweep",
            )
            if run.had_checkpoints:
                which = "best" if run.info.status == "finished" else "last"
                run.checkpoint(which, self.output.warn)
            return run.info
        except OtherRun:
            raise
        except DataError as error:
            aside = set_aside(path, f".{path.name}.damaged")
            self.output.warn(f"{error}\nthe member is trained again; what is there is now {aside}")
            return None

    def begin(self) -> None:
        """Say what is about to happen."""
        ranks = f" on {plural(self.comm.size, 'rank')}" if self.comm.size > 1 else ""
        self.output.say(f"sweep   {self.path}", f"members {in_words(self.members)}{ranks}")
        if self.done:
            count = sum(info.status in ENDED for info in self.done.values())
            self.output.say(f"resumed with {count:,} of {len(self.members):,} finished")

    def train(self) -> bool:
        """Train what is left; returns whether that is all. Collective."""
        assert self.config.sweep is not None
        alive = list(self.members)
        # Settings are compared after 1/9 and 1/3 of the steps.
        for rung in [None] if self.config.sweep.stop is None else [KEEP**2, KEEP, None]:
            if not self._train(alive, rung):
                return False
            if rung is not None:
                alive = self._better_third(alive, rung)
        return True

    def _train(self, alive: Sequence[Member], rung: int | None) -> bool:
        todo = [m for m in alive if not self._has_come_to(m, rung)]
        mine = todo[self.comm.rank :: self.comm.size]
        found: dict[int, RunInfo] = {}
        output, began, stopped = self.output, time.monotonic(), False
        at = output.start_bar(len(mine), noun="member")
        with settled(self.comm), _interrupted_by(signal.SIGTERM), during(ROWS, {}):
            try:
                for count, member in enumerate(mine):
                    found[member.number] = self._train_one(member, rung)
                    if count + 1 >= at:
                        at = output.look(count + 1)
                    self._say(count + 1, len(mine), found, began)
            except KeyboardInterrupt:
                stopped = True
            os.sync()  # all at once: members do not wait for the disk
        watchdog.limits(math.inf, math.inf)  # a rank may have many members left
        output.end_bar()
        for results in self.comm.all_gather_object(found):
            self.done |= results
        return not self.comm.any(stopped)

    def _has_come_to(self, member: Member, rung: int | None) -> bool:
        info = self.done.get(member.number)
        if info is None or info.status in ENDED:
            return info is not None
        if str(rung) in self.halved:  # then all had, and it may be on its way to the next
            return True
        # One that was interrupted as it ended still has to say that it paused.
        if rung is None or info.rung is None:
            return False
        return info.status == "paused" and info.rung <= rung

    def _train_one(self, member: Member, rung: int | None) -> RunInfo:
        path = self._place(member.number)
        try:
            begun = member.number in self.done
            own: dict[str, Any] = {"about": self.about, "rung": rung, "left": self._left}
            warnings, self._left = train_member(member.config, begun, path, **own)
        except UserError as error:
            what = ", ".join(f"{k}={as_yaml(v)}" for k, v in member.varied.items())
            raise type(error)(f"member {member.number} ({what}): {error}") from error
        for text in warnings:  # of each kind one: steps and values are those of the member
            kind = re.sub(r"\d[\d.,]*", "0", text.partition("\n")[0])
            if kind not in self._warned:
                self._warned.add(kind)
                self.output.warn(f"member {member.number}: {text}")
        return Run.read(path).info

    def _say(self, count: int, total: int, found: dict[int, RunInfo], began: float) -> None:
        """A line now and then, where no bar says it."""
        now = time.monotonic()
        if now - self._said < SAY or self.output.draws:
            return
        self._said = now
        left = (now - began) / count * (total - count)
        share = " of rank 0" if self.comm.size > 1 else ""
        diverged = sum(info.status == "diverged" for info in found.values())
        gone = f"  {diverged} diverged" if diverged else ""
        self.output.say(f"{count:>6,} of {total:,} members{share}{gone}  {elapsed(left)} left")

    def _better_third(self, alive: Sequence[Member], rung: int) -> list[Member]:
        """The members of the best third of the settings, by the mean of what is monitored."""
        settings = dict.fromkeys(member.setting for member in alive)
        if str(rung) not in self.halved:
            scores = {s: [self._score(m) for m in alive if m.setting == s] for s in settings}
            order = sorted(scores, key=lambda s: (math.fsum(scores[s]) / len(scores[s]), s))
            self.halved[str(rung)] = order[: max(1, math.ceil(len(order) / KEEP))]
            with settled(self.comm):
                if self.directory is not None:  # those that go on will have other values
                    self.directory.update(halved=self.halved)
        kept = self.halved[str(rung)]
        self.output.say(
            f"halving after 1/{rung} of the steps: {plural(len(kept), 'setting')} of "
            f"{len(settings)} {'go' if len(kept) > 1 else 'goes'} on"
        )
        return [member for member in alive if member.setting in kept]

    def _score(self, member: Member) -> float:
        """The lower the better."""
        info, sign = self.done[member.number], 1 if self.config.checkpoint.mode == "min" else -1
        lost = info.status == "diverged" or info.best is None
        return math.inf if lost else sign * info.best.value  # type: ignore[union-attr]

    def end(self, finished: bool, seconds: float) -> None:
        """The table, and run.json; on rank 0."""
        if self.directory is None:
            return
        path = self.path
        counts = dict(Counter(info.status for info in self.done.values()))
        if not finished:
            self.directory.update(status="stopped", exit_code=STOPPED, members=counts)
            self.output.say("", f"stopped; go on with: microtrain resume {path}")
            return
        scores = {m.number: self._score(m) for m in self.members}
        ended = [n for n in scores if self.done[n].status == "finished" and scores[n] < math.inf]
        best = min(ended, key=lambda n: scores[n], default=None)
        info = RunInfo() if best is None else self.done[best]
        self.directory.update(
            status="finished",
            exit_code=0,
            members=counts,
            best_member=None if best is None else self._place(best).name,
            best=info.best and asdict(info.best),  # for list, which reads no members
            test=info.test,
            timings={"train_s": seconds},
        )
        comparison = Comparison(read_records([str(path)]))
        self.output.say("", *comparison.lines(terminal_width(), of_groups=True), "")
        if best is not None and info.best is not None:
            said = f"{info.best.name} {number(info.best.value)}"
            self.output.say(f"best    {self._place(best)}: {said}")
        self.output.say(f"next    microtrain report {path}", f"time    {elapsed(seconds)}")
