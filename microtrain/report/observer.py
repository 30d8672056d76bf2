"""The report and the pictures of a run that has ended: one of its callbacks."""

from __future__ import annotations

import gc
import os

from ..distributed.agreement import settled
from ..distributed.communicator import alone
from ..errors import ConfigError, DivergedError
from ..train.callbacks.base import Callback, Ending
from ..train.run import TrainingRun


class Report(Callback):
    """Writes report.html and draws plots/ on rank 0, which alone imports what that takes.

    Nothing of it with `MICROTRAIN_REPORT=off` in the environment.
    """

    wanted = True

    def on_start(self, run: TrainingRun) -> None:
        """Raises ConfigError for what MICROTRAIN_REPORT cannot be."""
        wish = os.environ.get("MICROTRAIN_REPORT", "on")
        if wish not in ("on", "off"):
            raise ConfigError(f"MICROTRAIN_REPORT: expected on or off, found {wish!r}")
        self.wanted = wish == "on"

    def on_end(self, run: TrainingRun, ending: Ending) -> None:
        """Of a run that has finished; whatever a picture meets, it stays so."""
        with settled(run.comm), alone("rank 0 alone draws and writes the report"):
            if run.directory is None or not ending.finished or not self.wanted:
                return
            from .page import final_report

            module = run.model.module
            collects = gc.isenabled()
            try:
                gc.disable()  # while libraries are imported nearly all that is made stays
                problem = final_report(run.path, module, run.data, run.device, ending.chosen)
            finally:
                if collects:
                    gc.enable()
            if problem:
                run.output.warn(problem)

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """Of a run that has diverged."""
        if self.wanted and run.directory is not None and isinstance(error, DivergedError):
            from .page import final_report

            final_report(run.path)
