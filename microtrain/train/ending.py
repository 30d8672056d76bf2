"""The end of a run: what it leaves behind where it finished, was stopped, or failed."""

from __future__ import annotations

import contextlib
import time
import traceback
from typing import TYPE_CHECKING, Final

from ..distributed.abort import exit_status
from ..distributed.agreement import together
from ..distributed.communicator import alone
from ..errors import DivergedError, LaunchError, UserError
from .pictures import draw
from .prediction import peak_memory
from .rows import number
from .state import contents
from .telling import next_command, summed_up, truth

if TYPE_CHECKING:
    from .trainer import Trainer

__all__ = ["end", "leave"]

STOPPED: Final = 75  # exit code: stopped early, resumable


def end(trainer: Trainer, stop: str, started: float) -> int:
    """Test results, checkpoint, plots, summary; returns the exit code."""
    trainer.output.end_bar()
    seconds, peak = time.perf_counter() - started, peak_memory()
    trainer._ended = bool(trainer._asked_to_stop)
    finished = trainer.step == trainer.total_steps or trainer._ended
    test = None
    if finished:
        if trainer._progress.samples != trainer.samples:  # the last step of a run has a row
            trainer._report_row({})
        if trainer.data.test is not None:
            test = trainer._evaluate(trainer.data.test)
    problem = together(trainer.comm, lambda: _write_end(trainer, test, seconds, finished))
    trainer._tell_of_save()
    trainer.callbacks.call("on_stop")
    _write_trace(trainer)
    if trainer._run is None:
        return 0 if finished else STOPPED
    if problem:
        trainer.output.warn(problem)
    if test is not None:
        values = "  ".join(f"{name} {number(value)}" for name, value in test.items())
        trainer.output.say("", f"test  {values}")
    if finished:
        trainer.output.say(*truth(trainer))
    summary = summed_up(trainer, finished, stop, seconds, peak)
    trainer.output.say("", *summary.lines())
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
        from .report import final_report

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


def _write_end(
    trainer: Trainer, test: dict[str, float] | None, seconds: float, finished: bool
) -> str | None:
    """Everything on disk; rank 0 only. Returns a warning, if there is one to give."""
    run, saver = trainer._run, trainer._saver
    if run is None or saver is None:
        return None
    saved = contents(trainer)  # before the test row, which a longer run would not have
    saver.save(saved)
    if test is not None:
        trainer._log({"split": "test", **trainer._where(), **test, "time": seconds})
    from .provenance import params_sha256

    run.update(
        status="finished" if finished else "stopped",
        exit_code=0 if finished else STOPPED,
        steps=trainer.step,
        best=trainer._best_as_dict(),
        test=test,
        params_sha256=params_sha256(saved["model"]),
        timings={"train_s": seconds, "comm_s": trainer.model.comm_seconds},
        **({} if trainer.skips is None else {"skipped_steps": trainer.skips.total}),
    )
    if not finished:
        return None
    from .report import final_report  # imports pydantic: rank 0 alone

    model, named = trainer.model.module, f"model after step {trainer.step:,}, the last"
    with alone("rank 0 alone draws and writes the report"):
        told = [final_report(run.path, model, trainer.data, trainer.device, named)]
        try:
            told.append(draw(run, trainer.config, trainer.model, trainer.data, trainer.device))
        except Exception as error:  # a finished run stays finished whatever a picture meets
            told.append(f"a picture could not be drawn: {type(error).__name__}: {error}")
    return "; ".join(filter(None, told)) or None
