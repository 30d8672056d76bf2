"""The report and the pictures of a run that has ended: one of its callbacks."""

from __future__ import annotations

import gc
import math
import os
from dataclasses import asdict
from functools import partial

from ..distributed.agreement import from_root, settled
from ..distributed.communicator import alone
from ..errors import ConfigError, DivergedError
from ..train.callbacks.base import Callback, Ending
from ..train.callbacks.order import measure
from ..train.importance import choose, columns_of, importance, quick
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
        self._measure_importance(run, ending)
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

    def _measure_importance(self, run: TrainingRun, ending: Ending) -> None:
        """Which columns matter goes into run.json, where it costs little; collective."""
        if not from_root(run.comm, lambda: self.wanted and run.directory is not None):
            return
        part = next((name for name in ("val", "test") if getattr(run.data, name) is not None), "")
        dataset = getattr(run.data, part or "train")
        columns = columns_of(run.data, dataset)
        parameters = sum(param.numel() for param in run.model.parameters())
        if not (part and ending.finished and quick(columns, len(dataset), parameters)):
            return
        by = choose(run.monitor, run.higher_is_better)
        found = importance(part, dataset, columns, partial(measure, run), *by, run.config.seed)
        if math.isfinite(found.value + sum(found.worse)):
            run.update_info(importance=asdict(found))

    def on_error(self, run: TrainingRun, error: BaseException) -> None:
        """Of a run that has diverged."""
        if self.wanted and run.directory is not None and isinstance(error, DivergedError):
            from .page import final_report

            final_report(run.path)
