"""A run as it goes on: where it is, what it is asked for, and its directory.

It is asked to end by a signal, a file named STOP or the clock. That, or an evaluation by the clock,
is noted on one rank and travels with the next gradient (`DataParallel.notes`), so all ranks stop
after the same step without a collective of their own.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..common import job
from ..common.threads import LAUNCH
from ..config.resolved import whole_yaml
from ..config.schema import Config
from ..distributed import abort, process_monitor
from ..distributed.agreement import settled
from ..distributed.communicator import Communicator, alone
from ..distributed.data_parallel import DataParallel
from ..errors import DataError
from ..runs.directory import RunDirectory, note_end
from ..runs.metrics import History
from ..runs.run import Run
from ..runs.state import RunState
from .build_run import STOP, Parts
from .callbacks.base import Callback, call
from .console import Output, next_command
from .step.executor import Execution

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Progress:
    """Adds up optimizer steps between two rows.

    Attributes:
        samples: seen until the last row.
        paused: seconds since the last row that were not spent training.
    """

    def __init__(self, model: DataParallel) -> None:
        self.model = model
        self.mean = model.reduction == "mean"
        self.total = self.weight = 0.0
        self.begin(0)

    def begin(self, samples: int) -> None:
        """From now on the time counts, when `samples` have been seen."""
        self.since, self.samples, self.paused = time.perf_counter(), samples, 0.0
        self.comm = self.model.comm_seconds
        self._looked = 0.0, 0.0

    def add(self, loss: float | None, weight: float) -> None:
        """One optimizer step: its loss counts by what it is the mean over."""
        weight = weight if self.mean else 1
        if weight:
            self.total += math.nan if loss is None else loss * weight
            self.weight += weight

    def look(self, samples: int) -> tuple[float, float]:
        """For people who watch: the loss since the last look, the speed since the last row.

        As `take`, of which it changes nothing; nan where there is nothing to tell.
        """
        total, weight = self.total - self._looked[0], self.weight - self._looked[1]
        self._looked = self.total, self.weight
        spent = max(time.perf_counter() - self.since - self.paused, 1e-9)
        return total / weight if weight > 0 else math.nan, (samples - self.samples) / spent

    def state_dict(self) -> list[str]:
        """What a checkpoint keeps of it: exact, and JSON also where a loss was not finite."""
        return [self.total.hex(), float(self.weight).hex()]

    def load_state_dict(self, state: list[str]) -> None:
        """Go on from `state_dict()`."""
        self.total, self.weight = map(float.fromhex, state)

    def take(self, samples: int) -> tuple[float, float, dict[str, float]]:
        """The time now, the loss, and the speed since the last row; then begin anew.

        The loss is the mean over the steps since the last row, weighted by what counts in each; of
        a loss that is a sum, the mean of the steps' sums.
        """
        now = time.perf_counter()
        spent = max(now - self.since - self.paused, 1e-9)
        speed = {"samples_per_s": (samples - self.samples) / spent}
        if self.model.comm.size > 1:
            speed["comm_share"] = (self.model.comm_seconds - self.comm) / spent
        loss = self.total / self.weight if self.weight else math.nan
        self.begin(samples)
        self.total = self.weight = 0.0
        return now, loss, speed


class ExitCode(int):
    """What a process is to end with."""

    def _ipython_display_(self) -> None:
        """Nothing: a notebook whose cell ends with `train()` shows no number."""


class TrainingRun(Parts):
    """A run as its executor and callbacks see it: its parts, its state; the Trainer is one.

    Attributes:
        state: where it is.
        resumed_at: the step after which it was resumed; None where it was not.
        to_be_stopped: whether it was asked to end before the resume, and has not ended yet.
        output: where lines go.
        callbacks: what is done between its steps, in their order.
        requests: what it is asked for from outside.
        progress: losses and time since the last row.
        directory: what rank 0 writes to; None on other ranks.
        checkpoints: the Saver that writes them, on rank 0.
        path, id: the run directory and the id of the run, on all ranks.
        started: when training began, of `time.perf_counter`; earlier after a resume.
        wants_trace, trace: whether timelines were asked for, and that of this rank.
        execution: what executes the steps.
        eval_step: what evaluations measure instead of `loss(model(inputs), target)`.
    """

    resumed_at: int | None = None
    to_be_stopped: bool = False
    callbacks: list[Callback]
    requests: Requests
    progress: Progress
    directory: RunDirectory | None = None
    checkpoints: Any = None
    path: Path
    id: str
    config_text: str = ""
    started: float
    wants_trace: bool = False
    trace: Any = None
    execution: Execution
    eval_step: Any = None

    def __init__(self, parts: Parts, state: RunState, output: Output) -> None:
        vars(self).update(vars(parts))
        self.state, self.output = state, output
        self.steps_per_epoch, self.total_steps = parts.plan.epoch, parts.plan.total

    def _build(self, config: Config, comm: Communicator, output: Output) -> Parts:
        """What it is made of."""
        return Parts(config, comm, output.warn, type(self))

    def _way_on(self) -> str:
        """The command that goes on with it."""
        return next_command(self.config, self.path, "resume")

    def _executed(self) -> Execution:
        """What executes its steps."""
        return Execution(self)

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self.state.step

    @property
    def samples(self) -> int:
        """Samples seen, over all ranks."""
        return self.state.samples

    @property
    def monitor(self) -> str:
        """The column whose best value is marked."""
        return self.state.monitor[0]

    @property
    def evaluated(self) -> str:
        """The data that evaluations during the run measure: `val`, without such `train`."""
        return "train" if self.data.val is None else "val"

    @property
    def higher_is_better(self) -> dict[str, bool | None]:
        """For the loss and each metric whether the highest value is best; None where unknown."""
        said: dict[str, Any] = {metric.name: metric.higher_is_better for metric in self.metrics}
        return {"loss": False} | {n: None if h is None else bool(h) for n, h in said.items()}

    def where(self) -> dict[str, Any]:
        """Step, epoch and samples, as rows and checkpoints have them."""
        step = self.state.step
        return {"step": step, "epoch": step / self.steps_per_epoch, "samples": self.state.samples}

    @property
    def history(self) -> dict[str, NDArray[Any]]:
        """What was measured so far, as `microtrain.history` gives it; on rank 0 once it trains."""
        read = hasattr(self, "path") and self.comm.rank == 0
        return (Run.read(self.path).history if read else History()).arrays()

    def plot(self, *metrics: str) -> Figure:
        """The curves so far as a matplotlib figure, which a notebook shows; on rank 0.

        metrics: such as `loss`, of all parts of the data, or `val/r2`; all by default, six at most.

        Raises LaunchError without matplotlib, ConfigError for an unknown metric, DataError where
        nothing was measured yet.
        """
        if not hasattr(self, "path"):
            raise DataError(f"nothing to draw: {self!r} has not trained")
        page = importlib.import_module("microtrain.report.notebook")  # of a layer above
        return page.figure(self.path, metrics)

    def _repr_html_(self) -> str:
        """What a notebook shows: the model, or how its training ended, with the curves."""
        if self.comm.rank != 0 or not hasattr(self, "path"):
            return self.model.module._repr_html_()
        page = importlib.import_module("microtrain.report.notebook")  # of a layer above
        return str(page.in_html(self.path))

    def update_info(self, **fields: Any) -> None:
        """Fields of run.json, on rank 0."""
        if self.directory is not None:
            self.directory.update(**fields)

    def log_metrics(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl, on rank 0."""
        if self.directory is not None:
            self.directory.log_metrics(row)
            with alone("on_log is called on rank 0 alone"):
                self.notify("on_log", row)

    def notify(self, hook: str, *arguments: Any) -> None:
        """Call a hook of all callbacks, in their order."""
        for callback in self.callbacks:
            call(callback, hook, self, *arguments)


def next_multiple(step: int, every: int | None) -> float:
    """The first step after `step` that is a multiple of `every`."""
    return math.inf if every is None else (step // every + 1) * every


STOP_FILE = "STOP"
RANKS_FILE = "RANKS"  # the number of ranks that a job is to go on with
POLL = 0.2  # seconds
# Why the end was asked for, of a run that may begin anew in this process before it has come to it.
ASKED: list[str] = []

# Open MPI's mpirun kills its ranks 0.2 s after it has passed on one of these.
_NO_TIME = LAUNCH.kind in ("openmpi",)


class Requests:
    """Notes on the model of a run what should happen after the next step; a context manager.

    Rank 0 looks at the clock and at files in the run directory.

    Attributes:
        reason: on the rank that asks for the end, why.
    """

    def __init__(self, run: TrainingRun) -> None:
        self.model, self.reason = run.model, ""
        self._path = None if run.directory is None else run.path
        now = time.monotonic()
        # duration is of the whole run, max_time of this part of it.
        past = {"duration": run.state.seconds, "max_time": job.seconds_of(run.path)}
        self._ends = {n: now + max(end - past[n], 0.0) for n, end in run.plan.ends.items()}
        self._intervals = run.plan.intervals
        self._due = {kind: now + seconds for kind, seconds in self._intervals.items()}
        self._asked = [0.0, 0.0, 0.0]
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: dict[int, Any] = {}

    def ask(self, reason: str) -> None:
        """Let all ranks stop after the step under way."""
        self.reason = self.reason or reason
        if job.in_place():
            ASKED.append(reason)
        self.note(STOP)

    def note(self, kind: int) -> None:
        """Let all ranks do after the step under way what `kind` stands for."""
        self._asked[kind] = 1.0
        self.model.notes = tuple(self._asked)

    def done(self, kind: int) -> None:
        """An evaluation or a checkpoint was made: count anew."""
        if self._asked[kind]:
            self._asked[kind] = 0.0
            while self.model.notes != tuple(self._asked):  # a signal may come in between
                self.model.notes = tuple(self._asked)
        if kind in self._intervals:
            self._due[kind] = time.monotonic() + self._intervals[kind]

    def __enter__(self) -> Requests:
        try:
            if threading.current_thread() is threading.main_thread():
                numbers = [signal.SIGUSR1] + ([] if _NO_TIME else [signal.SIGTERM, signal.SIGINT])
                for number in numbers:
                    before = signal.getsignal(number)
                    if before not in (signal.SIG_IGN, None):  # None: not one of Python's
                        self._before[number] = before
                        signal.signal(number, self._signal)
            for reason in ASKED[:1]:
                self.ask(reason)
            if self._path is not None:
                for name, end in self._ends.items():  # over before a resume: not a look later
                    if time.monotonic() >= end:
                        self.ask(name)
                self._thread = threading.Thread(target=self._watch, name="stop", daemon=True)
                self._thread.start()
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._give_back()
        finally:
            self._give_back()  # a Ctrl-C may have come into the first one
        if self._thread is not None and self._thread.ident is not None:  # it has begun
            self._thread.join()
        self.model.notes = (0.0, 0.0, 0.0)

    def _give_back(self) -> None:
        """Signals go where they went before, and the thread ends."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._over.set()

    def _signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT and self.reason == name:  # Ctrl-C again: now
            raise KeyboardInterrupt
        self.ask(name)

    def _watch(self) -> None:
        assert self._path is not None
        files = [self._path / STOP_FILE]
        files += [self._path / RANKS_FILE] if job.place() is not None else []
        while not self._over.wait(POLL):
            now = time.monotonic()
            for file in files:
                if os.path.exists(file):
                    self.ask(f"{file} is there")
            for name, end in self._ends.items():
                if now >= end:
                    self.ask(name)
            for kind, due in [*self._due.items()]:
                if now >= due and not self._asked[kind]:
                    self.note(kind)


def tell_end(path: Path | None, words: str = "") -> None:
    """Let what ends this process write its end into the run at `path`, and its monitor say `words`.

    None: the run has ended, and nothing more is kept for a further start.
    """
    abort.HEARS[:] = [] if path is None else [functools.partial(note_end, path)]
    process_monitor.tell(words=words, run="" if path is None else str(path / "run.json"))
    if path is None and LAUNCH.local_rank == 0:
        job.leave()


@contextlib.contextmanager
def held(
    comm: Communicator, output: Output, open_directory: Callable[[], RunDirectory]
) -> Iterator[RunDirectory | None]:
    """The directory of a run, open and locked by rank 0 meanwhile; None on others. Collective."""
    directory = None
    try:
        with settled(comm):
            if comm.rank == 0:
                directory = open_directory()
                output.log = directory.log
        if job.place() is not None:  # any rank may become the first, on any host
            path = comm.broadcast_object("" if directory is None else str(directory.path))
            with settled(comm):
                job.note_run(Path(path))
        yield directory
        if directory is not None:
            directory.flush()  # else nobody would hear of a line that cannot be written
    finally:
        output.end_bar()
        if directory is not None:
            directory.close()


@contextlib.contextmanager
def run_directory(run: Any, resume: Path | None) -> Iterator[None]:
    """The directory of `run`, a new one or that of `resume`; its path is known to all ranks."""

    def opened() -> RunDirectory:
        run.config_text = whole_yaml(run.config)  # once: as long as many steps
        return run.open_directory(resume)

    with held(run.comm, run.output, opened) as run.directory:
        try:
            own: Any = None
            if run.directory is not None:
                text = run.config_text if run.comm.num_nodes > 1 else ""
                own = str(run.directory.path), str(run.directory.info("id")), text
            path, run.id, text = run.comm.broadcast_object(own)
            run.path, run.config_text = Path(path), run.config_text or text
            yield
        finally:
            run.output.end_bar()
            if run.checkpoints is not None:
                run.checkpoints.wait()
