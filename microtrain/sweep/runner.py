"""Trains the members of a sweep, dealt over the ranks, and writes down what became of them.

A member is trained by one rank, and the ranks say nothing to each other meanwhile: at a rung of
`stop: halving` and at the end each hears the others' results. Which member is trained where and in
which order changes no bit of it, so a sweep can be killed and resumed on another number of ranks.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.duration import Duration
from ..config.resolved import as_yaml, resolved_yaml, whole_yaml
from ..config.same_run import compare_configs
from ..config.schema import Config
from ..config.sweep import Member
from ..distributed import watchdog
from ..distributed.agreement import from_root, settled
from ..errors import ConfigError, DataError, LaunchError, UserError
from ..files import reason
from ..report.overview import in_csv
from ..report.sweeps import Sweep
from ..runs.directory import RunDirectory
from ..runs.members import (
    MEMBERS,
    Of,
    Result,
    Store,
    check_members,
    gather,
    read_members,
    without_curve,
)
from ..runs.record import Run
from ..train.data_cache import reading_once
from ..train.output import Output
from ..train.results import STOPPED
from ..train.resume import LOCK_WAIT
from ..words import elapsed, number, plural, size
from .member import sharing, train_member

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = ["run_sweep"]

WRITE = 5.0  # seconds between two files of finished members
SAY = 10.0  # seconds between two lines of progress, where no bar shows it
KEEP = 3  # halving keeps a third of the settings
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

    Raises ConfigError for what no sweep can have, and another sweep than that of `resume`; the
    errors of a run, which end the sweep. Members that were finished are kept.
    """
    with settled(comm):
        check(config)
    with _directory(config, comm, output, resume) as (path, directory):
        of = from_root(comm, lambda: _of(directory, config))
        done = {} if resume is None else from_root(comm, lambda: _done(path, of, output))
        store = Store(path, comm.rank, of)
        runner = _Runner(members, comm, output, store, done, config)
        began = time.perf_counter()
        runner.begin()
        try:
            finished = runner.train()
        except BaseException as error:
            if directory is not None:
                stopped = isinstance(error, KeyboardInterrupt)
                directory.update(status="stopped" if stopped else "failed", error=str(error))
            raise
        seconds = time.perf_counter() - began
        if directory is not None:
            runner.end(directory, finished, seconds)
        comm.barrier()
    return 0 if finished else STOPPED


def tested(result: Result) -> dict[str, float | None] | None:
    """What run.json says of the test data, of a member; None without any."""
    values = {k[5:]: v for k, v in result.values.items() if k.startswith("test/")}
    return values or None


def check(config: Config) -> None:
    """ConfigError for what no sweep can have."""
    for key in ("duration", "eval_every", "max_time"):
        value = getattr(config.train, key)
        if value is not None and Duration(value).unit == "min":
            raise ConfigError(
                f"train.{key}: {value} is counted by a clock, and the members of a sweep would be "
                "other ones each time; count steps or epochs"
            )
    for number_, callback in enumerate(config.callbacks):
        if callback.type in ("tensorboard", "mlflow", "wandb"):
            raise ConfigError(
                f"callbacks.{number_}: {callback.type} keeps the log of one run, and a sweep has "
                "many; leave it out, and train the best member by itself for such a log"
            )


@contextlib.contextmanager
def _directory(
    config: Config, comm: Communicator, output: Output, resume: Path | None
) -> Iterator[tuple[Path, RunDirectory | None]]:
    """The directory of the sweep, on all ranks its path; held open and locked by rank 0."""
    directory: RunDirectory | None = None
    with settled(comm):
        if comm.rank == 0:
            text = whole_yaml(config)
            if resume is None:
                directory = RunDirectory.create(config.run_dir, config.name, config_text=text)
                directory.update(sweep=True, ranks=comm.size)
            else:
                stored = Run.read(resume)
                compare_configs(stored.config_text, text, stored.path, free=MAY_CHANGE)
                directory = RunDirectory(resume, wait_s=LOCK_WAIT)
                directory.update(status="running", exit_code=None, error=None)
            output.log = directory.log
    path = Path(comm.broadcast_object("" if directory is None else str(directory.path)))
    try:
        yield path, directory
    finally:
        output.end_bar()
        if directory is not None:
            directory.close()


@contextlib.contextmanager
def _interrupted_by(number_: signal.Signals) -> Iterator[None]:
    """A signal is a KeyboardInterrupt, also between two members."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt(number_.name)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(number_)
    try:
        signal.signal(number_, interrupt)
        yield
    finally:
        signal.signal(number_, before)


def _of(directory: RunDirectory | None, config: Config) -> Of:
    assert directory is not None
    return Of(directory.info("id"), resolved_yaml(config))


def _done(path: Path, of: Of, output: Output) -> dict[tuple[int, int | None], Result]:
    """What is there already; a damaged file is set aside, and its members are trained again.

    Raises OtherRun and ConfigError for members of another sweep, DataError where all are damaged.
    """

    def damaged(file: Path, error: DataError) -> None:
        if file.name == MEMBERS:  # it is all that a sweep has which has come to its end
            raise error
        try:
            file.replace(aside := file.with_name(f"{file.name}.damaged"))
        except OSError as refused:
            raise LaunchError(f"cannot set aside {reason(refused)}") from refused
        output.warn(f"{error}\nits members are trained again; it is now {aside}")

    found, _, its = read_members(path, damaged)
    if found:
        check_members(its, of, path)
    return {(result.number, result.rung): without_curve(result) for result in found}


class _Runner:
    def __init__(
        self,
        members: Sequence[Member],
        comm: Communicator,
        output: Output,
        store: Store,
        done: dict[tuple[int, int | None], Result],
        config: Config,
    ) -> None:
        self.members, self.comm, self.output = members, comm, output
        self.store, self.done, self.config = store, done, config
        self.settings = len({member.setting for member in members})
        self._written = self._said = time.monotonic()
        self._sized = False

    def begin(self) -> None:
        """Say what is about to happen."""
        sweep, output = self.config.sweep, self.output
        assert sweep is not None
        folds = f" x {plural(sweep.folds, 'fold')}" if sweep.folds else ""
        seeds = len(self.members) // (self.settings * (sweep.folds or 1))
        ranks = f" on {plural(self.comm.size, 'rank')}" if self.comm.size > 1 else ""
        output.say(
            f"sweep   {self.store.path}",
            f"members {len(self.members):,}: {plural(self.settings, 'setting')}{folds} x "
            f"{plural(seeds, 'seed')}{ranks}",
        )
        if self.done:
            count = sum(rung is None for _, rung in self.done)
            output.say(f"resumed with {count:,} of {len(self.members):,} finished")

    def train(self) -> bool:
        """Train what is left; returns whether that is all. Collective."""
        alive = list(self.members)
        for rung in self._rungs():
            if not self._train(alive, rung):
                return False
            if rung is not None:
                alive = self._better_third(alive, rung)
        return True

    def _rungs(self) -> list[int | None]:
        """After which parts of the steps settings are compared, 1/9 and 1/3; None: the end."""
        assert self.config.sweep is not None
        return [None] if self.config.sweep.stop is None else [KEEP**2, KEEP, None]

    def _train(self, alive: Sequence[Member], rung: int | None) -> bool:
        todo = [member for member in alive if self._result(member, rung) is None]
        mine = todo[self.comm.rank :: self.comm.size]
        found: list[Result] = []
        output, began, stopped = self.output, time.monotonic(), False
        at = output.start_bar(len(mine), noun="member")
        with settled(self.comm), _interrupted_by(signal.SIGTERM), reading_once(), sharing():
            try:
                for count, member in enumerate(mine):
                    try:
                        result, arrays, data = train_member(member, output, rung)
                    except UserError as error:
                        what = ", ".join(f"{k}={as_yaml(v)}" for k, v in member.varied.items())
                        raise type(error)(f"member {member.number} ({what}): {error}") from error
                    self._tell_size(arrays)
                    found.append(without_curve(result))
                    self.store.add(result, arrays, data)
                    if time.monotonic() - self._written > WRITE:
                        self.store.write()
                        self._written = time.monotonic()
                    if count + 1 >= at:
                        at = output.look(count + 1)
                    self._say(count + 1, len(mine), found, began)
            except KeyboardInterrupt:
                stopped = True
            finally:
                self.store.write()
        watchdog.limits(math.inf, math.inf)  # a rank may have many members left
        output.end_bar()
        for results in self.comm.all_gather_object(found):
            self.done |= {(result.number, result.rung): result for result in results}
        return not self.comm.any(stopped)

    def _result(self, member: Member, rung: int | None) -> Result | None:
        """What became of it until a rung; at its end, if it came to that before."""
        return self.done.get((member.number, rung), self.done.get((member.number, None)))

    def _tell_size(self, arrays: dict[str, object]) -> None:
        """What the members of all will take, once the first is there."""
        if not self._sized and arrays:
            self._sized = True
            each = sum(array.nbytes for array in arrays.values())  # type: ignore[attr-defined]
            self.output.say(
                f"state   {size(each)} a member, {size(each * len(self.members))} in all"
            )

    def _say(self, count: int, total: int, found: Sequence[Result], began: float) -> None:
        """A line now and then, where no bar says it."""
        now = time.monotonic()
        if now - self._said < SAY or self.output.draws:
            return
        self._said = now
        left = (now - began) / count * (total - count)
        share = " of rank 0" if self.comm.size > 1 else ""
        states = Counter(result.status for result in found)
        gone = f"  {states['diverged']} diverged" if states["diverged"] else ""
        self.output.say(f"{count:>6,} of {total:,} members{share}{gone}  {elapsed(left)} left")

    def _better_third(self, alive: Sequence[Member], rung: int) -> list[Member]:
        """The members of the best third of the settings, by the mean of what is monitored."""
        sign = 1 if self.config.checkpoint.mode == "min" else -1
        scores: dict[int, list[float]] = {}
        for member in alive:
            result = self._result(member, rung)
            assert result is not None
            lost = result.best is None or result.status == "diverged"
            value = math.inf if lost else sign * result.best["value"]  # type: ignore[index]
            scores.setdefault(member.setting, []).append(value)
        order = sorted(scores, key=lambda s: (math.fsum(scores[s]) / len(scores[s]), s))
        kept = {*order[: max(1, math.ceil(len(order) / KEEP))]}
        self.output.say(
            f"halving after 1/{rung} of the steps: {plural(len(kept), 'setting')} of "
            f"{len(order)} {'go' if len(kept) > 1 else 'goes'} on"
        )
        return [member for member in alive if member.setting in kept]

    def end(self, directory: RunDirectory, finished: bool, seconds: float) -> None:
        """One file of all, the table, run.json; on rank 0."""
        path = directory.path
        if not finished:
            directory.update(status="stopped", exit_code=STOPPED, members=self._counts())
            self.output.say("", f"stopped; go on with: microtrain resume {path}")
            return
        results = self._last()
        gather(path, results, self.store.of)
        summary = self._summary(results)
        directory.write("results.csv", in_csv(summary.members()))
        best = summary.best
        directory.update(
            status="finished",
            exit_code=0,
            members=self._counts(),
            best_member=None if best is None else best.number,
            best=None if best is None else best.best,  # for list, which reads no members
            test=None if best is None else tested(best),
            timings={"train_s": seconds},
        )
        self.output.say("", *summary.lines(), "")
        if best is not None and best.best is not None:
            said = f"{best.best['name']} {number(best.best['value'])}"
            self.output.say(f"best    member {best.number}: {said}; microtrain predict {path}")
        self.output.say(f"table   {path / 'results.csv'}", f"time    {elapsed(seconds)}")

    def _summary(self, results: Sequence[Result]) -> Sweep:
        keep, folds = self.config.checkpoint, self.config.data.split.folds or 0
        better = 1 if keep.mode == "max" else -1
        return Sweep(self.config.name, results, str(keep.monitor), better, folds)

    def _last(self) -> list[Result]:
        """Of each member what became of it last."""
        order = sorted(self.done.items(), key=lambda item: item[0][1] or 0, reverse=True)
        last = {member: result for (member, _), result in order}  # of 1/9, 1/3, the end: the last
        return [last[member] for member in sorted(last)]

    def _counts(self) -> dict[str, int]:
        return dict(Counter(result.status for result in self._last()))
