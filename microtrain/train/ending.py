"""The end of a run: what it leaves behind where it finished, was stopped, or failed."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..distributed import warden
from ..distributed.abort import exit_status
from ..distributed.agreement import from_root, together
from ..distributed.communicator import alone
from ..errors import DivergedError, LaunchError, UserError
from ..runs.record import Run
from ..words import number
from .checkpointing import contents, values
from .forecast import peak_memory
from .model_state import load_model_arrays
from .telling import next_command, summed_up, truth

if TYPE_CHECKING:
    from .trainer import Trainer

__all__ = ["end", "leave"]

STOPPED: Final = 75  # exit code: stopped early, resumable
_ALONE: Final = alone("rank 0 alone writes the end of the run")  # the others wait, and know why


@dataclass(frozen=True)
class _Known:
    """The checkpoint whose model a finished run is known by, as `evaluate` and `load` take it.

    Attributes:
        step, samples: where it was taken.
        chosen: what it is called.
        values: its parameters and buffers; None where they are those of the last step.
    """

    step: int
    samples: int
    chosen: str
    values: dict[str, Any] | None

    @property
    def which(self) -> str:
        """In a few words."""
        return f"step {self.step:,}, the {'last' if self.chosen.endswith('the last') else 'best'}"


def end(trainer: Trainer, stop: str, started: float) -> int:
    """Checkpoint, test results, plots, summary; returns the exit code.

    What is told of a finished run is told of one model, that of its best checkpoint where there is
    one: its values are there meanwhile, and then those of the last step again.
    """
    trainer.output.end_bar()
    comm, seconds, peak = trainer.comm, time.perf_counter() - started, peak_memory()
    trainer.state.ended = bool(trainer.state.stop)
    finished = trainer.step == trainer.total_steps or trainer.state.ended
    if finished and trainer._progress.samples != trainer.samples:
        trainer._report_row({})  # the last step of a run has a row
    saved = together(comm, lambda: _save(trainer))
    if not finished:
        together(comm, lambda: _write_end(trainer, saved, None, None, seconds))
        problem, told = None, []
    else:
        known: Any = from_root(comm, lambda: _known(trainer))
        with _having(trainer, known.values):
            test = None if trainer.data.test is None else trainer._evaluate(trainer.data.test)
            problem = together(comm, lambda: _write_end(trainer, saved, known, test, seconds))
            told = _results(trainer, known, test)
    warden.tell(words="")  # a rank that is killed from now on has nothing left to go on with
    trainer._tell_of_save()
    trainer.callbacks.call("on_stop")
    _write_trace(trainer)
    if trainer._run is None:
        return 0 if finished else STOPPED
    if problem:
        trainer.output.warn(problem)
    summary = summed_up(trainer, finished, stop, seconds, peak)
    trainer.output.say(*told, "", *summary.lines())
    return 0 if finished else STOPPED


def leave(trainer: Trainer, error: BaseException, started: float) -> None:
    """Note in run.json how a run ended that did not finish."""
    try:
        with alone("a rank that fails is alone"):
            trainer.callbacks.call("on_error", error)
    except Exception as another:
        trainer.output.warn(f"on_error of a callback: {type(another).__name__}: {another}")
    if trainer._run is None:
        return
    status, code = "failed", getattr(error, "exit_code", 1)
    if trainer._saver is not None:
        trainer._saver.wait()
    if isinstance(error, DivergedError):
        status = "diverged"
    elif isinstance(error, KeyboardInterrupt):
        status, code = "stopped", 130
    elif isinstance(error, SystemExit):
        code, _ = exit_status(error.code)
    lines = str(error).splitlines() or [type(error).__name__]
    if not isinstance(error, UserError | KeyboardInterrupt):  # someone's code: the log says where
        whole = "".join(traceback.format_exception(error))
        lines = [f"{type(error).__name__}: {error}".splitlines()[0], *whole.splitlines()]
    with contextlib.suppress(LaunchError):  # a full disk must not hide the first error
        trainer._run.update(
            status=status,
            exit_code=code,
            steps=trainer.step,
            best=trainer._best_as_dict(),
            error=lines[0],
            timings={"train_s": time.perf_counter() - started},
        )
        for line in lines:
            trainer._run.log(line)
    if status == "diverged":
        from ..report.page import final_report

        final_report(trainer._run.path)
    if isinstance(error, KeyboardInterrupt):
        trainer.output.say(
            f"interrupted after step {trainer.step:,}; go on from the last checkpoint with "
            f"{next_command(trainer, 'resume')}"
        )


def _write_trace(trainer: Trainer) -> None:
    """The timelines of all ranks, beside the metrics; without them a run has not failed."""
    if trainer._trace is None:
        return
    try:
        trainer._trace.write(trainer.path / "trace")
    except OSError as error:  # another host may not see the directory
        trainer.output.warn(f"no timeline of rank {trainer.comm.rank}: {error}")


@_ALONE
def _save(trainer: Trainer) -> dict[str, Any] | None:
    """The last checkpoint, before the test row, which a longer run would not have; rank 0 only."""
    if trainer._saver is None:
        return None
    saved = contents(trainer)
    trainer._saver.save(saved)
    return saved


@_ALONE
def _known(trainer: Trainer) -> _Known | None:
    """Which model the run is known by; rank 0 reads it for all."""
    if trainer._run is None:
        return None
    from ..inference.saved import best_checkpoint  # imports PyYAML: rank 0 alone

    found, chosen, fell_back = best_checkpoint(Run.read(trainer._run.path), trainer.output.warn)
    if fell_back and trainer.config.checkpoint.keep_best:
        trainer.output.warn(f"{fell_back}; what is told of the run is of the {chosen}")
    model = None if found.step == trainer.step else found.model
    return _Known(found.step, found.state["samples"], chosen, model)


@contextlib.contextmanager
def _having(trainer: Trainer, found: dict[str, Any] | None) -> Iterator[None]:
    """The model with other values, and then with its own again; on all ranks."""
    if found is None:
        yield
        return
    own = values(trainer.model)
    load_model_arrays(trainer.model, found)
    try:
        yield
    finally:
        load_model_arrays(trainer.model, own)


def _results(trainer: Trainer, known: _Known, test: dict[str, float] | None) -> list[str]:
    """What to say of the model before the summary."""
    told = []
    if test is not None:
        measured = "  ".join(f"{name} {number(value)}" for name, value in test.items())
        told = ["", f"test  {measured}  ({known.which})"]
    return told + truth(trainer, known.which)


@_ALONE
def _write_end(
    trainer: Trainer,
    saved: dict[str, Any] | None,
    known: _Known | None,
    test: dict[str, float] | None,
    seconds: float,
) -> str | None:
    """Everything but the checkpoint on disk; rank 0 only. Returns a warning, if there is one.

    `known` is there where the run has finished.
    """
    run = trainer._run
    if run is None or saved is None:
        return None
    if known is not None and test is not None:
        where = trainer._where(known.step, known.samples)
        trainer._log({"split": "test", **where, **test, "time": seconds})
    from ..runs.provenance import params_sha256

    run.update(
        status="stopped" if known is None else "finished",
        exit_code=STOPPED if known is None else 0,
        steps=trainer.step,
        best=trainer._best_as_dict(),
        test=known and test and {"step": known.step, **test},
        params_sha256=params_sha256(saved["model"]),
        timings={"train_s": seconds, "comm_s": trainer.model.comm_seconds},
        **({} if trainer.skips is None else {"skipped_steps": trainer.skips.total}),
    )
    if known is None:
        return None
    from ..report.page import final_report  # imports pydantic: rank 0 alone

    model = trainer.model.module
    with alone("rank 0 alone draws and writes the report"):
        return final_report(run.path, model, trainer.data, trainer.device, known.chosen)
