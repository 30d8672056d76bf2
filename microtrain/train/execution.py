"""How the steps of a run are executed: by the user's Python, or by a capture of it.

`train.compile: auto` captures where the run is long enough, and takes native code where `choose`
says that it pays. What cannot be captured runs eagerly, and the run is then what it would have been
had it run eagerly from its start: a recording that fails is undone and its micro-batch done again.

Ranks may record at different steps (a tail batch changes the local size on some only) and so fail
at different steps. A rank that fails goes on alone, with the same collectives; what all must know
is settled by all after the steps 1, 2, 4, 8 ... and before every evaluation.
"""

from __future__ import annotations

import gc
import linecache
import os
import re
import weakref
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from ..backend import MODES
from ..compile import compile
from ..compile.executors import choose, numba_absent
from ..compile.traced import Traced
from ..distributed.agreement import agreed, together
from ..errors import CaptureError, ConfigError, UserError
from ..tensor import TENSORS
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..tensor import Tensor
    from .trainer import Trainer

__all__ = ["Execution"]

FEW = 300  # steps: a run that is no longer ends before it has earned back what capturing costs
_PACKAGE = str(Path(__file__).parents[1]) + os.sep


class Execution:
    """Executes the micro-batches of a run: `execution(first, last, *batch)`.

    `first` and `last` say which of its optimiser step a micro-batch is. What is done is
    `trainer.gradients` and, after the last, `trainer.update`.

    Attributes:
        name: off, numpy or numba: what executes the steps now.
        since: the optimiser step from which on it does.
        reason: why, for people.
        compiled: what is called with (first, last, *batch) where steps are captured; else None.

    Raises ConfigError on every rank where what the configuration asks for cannot be had.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.comm = trainer, trainer.comm
        self.wish = trainer.config.train.compile
        together(self.comm, self._check)
        # Rank 0's choice: another host may have another environment.
        self.name, self.reason = self.comm.broadcast_object(self._first_choice())
        self.since = 1
        self.problem: str | None = None  # why this rank has gone on eagerly
        self._choosing = self.wish == "auto" and self.name == "numpy"
        self._open = self.name != "off"  # whether there is anything to settle
        # An optimizer of the user's own may do anything: it is called.
        package = type(trainer.optimizer).__module__.partition(".")[0]
        self._whole = package == __name__.partition(".")[0]
        self._entered = 0  # recordings begun
        self._stage = ""  # how far the last one has come
        self._answers: list[Any] = []  # what other ranks have said in it
        self._before: Snapshot | None = None
        self._recorders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiled: Any = None if self.name == "off" else self._compile(self.name)

    def __call__(self, first: bool, last: bool, *batch: Tensor) -> None:
        compiled = self.compiled
        if compiled is None:
            self._eagerly(first, last, *batch)
            return
        entered = self._entered
        try:
            compiled(first, last, *batch)
        except UserError:
            raise
        except Exception as error:
            if not self._survives(error, entered, batch):
                raise
        else:
            if last and not self._whole:
                self.trainer.update()
            return
        if self._stage == "begun":  # else it was done to its end
            # Other ranks may not do it again: they are asked only what they were not asked before.
            MODES.answers = self._answers
            try:
                self._eagerly(first, last, *batch)
            finally:
                MODES.answers = []
        elif not self._whole and last:
            self.trainer.update()

    def about(self) -> dict[str, Any]:
        """For run.json and the checkpoint."""
        return {"executor": self.name, "from_step": self.since, "reason": self.reason}

    # What is executed -----------------------------------------------------------------------------

    def _eagerly(self, first: bool, last: bool, *batch: Tensor) -> None:
        self.trainer.gradients(first, last, batch)
        if last:
            self.trainer.update()

    def _compile(self, name: str) -> Any:
        trainer = self.trainer

        def training_step(first: bool, last: bool, *batch: Tensor) -> None:
            """Called where it is recorded; replays come past it."""
            self._entered += 1
            self._stage = "begun"
            self._recorders.add(MODES.recorder)
            self._answers = MODES.recorder.exchanged
            before = self._before = Snapshot(trainer.model, trainer.loss, not first)
            trainer.gradients(first, last, batch)
            self._stage, self._before = "shared", None
            if last and self._whole:
                trainer.update()
            self._stage = "done"
            if changed := before.changed():
                raise CaptureError(f"forward changes {changed}, which a replay would not")

        return compile(training_step, executor=name)

    def _survives(self, error: Exception, entered: int, batch: Any) -> bool:
        """Whether the run can go on without capture; if so, all is as before the micro-batch."""
        if self._entered == entered:
            if not isinstance(error, CaptureError):  # a replay failed, as the step itself would
                self.trainer.train_step(batch)  # which names the user's line
                return False
            self._stage, self._answers = "begun", []  # refused before it was recorded
        elif self._stage == "shared":
            return False
        elif self._stage == "begun" and self._before is not None:
            self._before.restore()
        self._before = self.compiled = None
        _give_back(self._recorders)
        self.problem = _described(error)
        return True

    # What all ranks settle ------------------------------------------------------------------------

    def _check(self) -> None:
        """ConfigError for what this rank cannot do."""
        if self.wish == "numba" and (why := numba_absent()):
            raise ConfigError(f"train.compile: {why}; or choose auto or numpy")
        if self.wish in ("numpy", "numba") and self.trainer.device is not None:
            raise ConfigError(
                f"train.compile: {self.wish} captures steps on the CPU, but the device is "
                f"{self.trainer.device}; choose auto, or device: cpu"
            )

    def _first_choice(self) -> tuple[str, str]:
        variable = os.environ.get("MICROTRAIN_COMPILE", "auto")
        if self.wish == "off":
            return "off", "asked for"
        if variable == "off":
            return "off", "MICROTRAIN_COMPILE=off"
        if self.wish != "auto":
            return self.wish, "asked for"
        if self.trainer.device is not None:
            return "off", f"the device is {self.trainer.device}"
        if self.trainer.total_steps < FEW:
            return "off", f"it does not pay in fewer than {FEW} steps"
        return "numpy", "native code where it pays, once a step is captured"

    def settle(self) -> None:
        """Learn what other ranks have met, and choose the executor once; collective.

        Raises ConfigError where an executor was asked for and the step cannot be captured.
        """
        if not self._open:
            return
        choice = None
        programs = self.compiled.programs if self._choosing and self.compiled else ()
        if programs and self.comm.rank == 0:
            choice = choose("auto", programs[0], self.trainer.total_steps)
        everyone = self.comm.all_gather_object((self.problem, choice, not numba_absent()))
        for rank, (problem, _, _) in enumerate(everyone):
            if problem is not None:
                self._stop(f"rank {rank}: {problem}" if rank else problem)
                return
        choice = everyone[0][1]
        if choice is None:
            return
        if choice[0] == "numba" and not all(there for _, _, there in everyone):
            choice = "numpy", "numba is not installed on every host"
        self._choosing = False
        self.name, self.reason = choice
        if self.name == "numba":
            self.since = self.trainer.step + 1
            self.compiled = self._compile(self.name)
        self.trainer.note_execution()
        if self.name != "numpy":  # else the header has said so
            self.trainer.output.say(f"compile  {self.name} from step {self.since:,}: {self.reason}")

    def _stop(self, problem: str) -> None:
        """Go on eagerly on all ranks."""
        if self.wish != "auto":
            raise agreed(
                ConfigError(
                    f"train.compile: {self.wish} was asked for, but the step cannot be captured\n"
                    f"{problem}\nhint: train.compile=off"
                )
            )
        self._open, self.compiled = False, None
        self.name, self.since, self.reason = "off", self.trainer.step + 1, problem
        self.trainer.note_execution()
        if self.comm.rank == 0:
            self.trainer.output.warn(
                "the step cannot be captured, so the run goes on as with train.compile=off (which "
                f"silences this): {problem}"
            )


def _described(error: Exception) -> str:
    """What happened and the user's line, in one line."""
    text = " ".join(str(error).split())
    if not isinstance(error, CaptureError):
        text = f"{type(error).__name__}: {text}"
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith((_PACKAGE, "<"))
    ]
    if not frames:  # where the text begins with a line, that is of whoever called the library
        return re.sub(r"^\S+:\d+: ", "", text)
    if f"{frames[-1][0]}:{frames[-1][1]}" in text:
        return text
    file, line = frames[-1]
    return f"{file}:{line}: {linecache.getline(file, line).strip()}: {text}"


def _give_back(recorders: Any) -> None:
    """Make ordinary Tensors of those that the user's Python has kept from a recording."""
    for one in gc.get_objects():
        if type(one) in TENSORS and type(one._array) is Traced and one._array.recorder in recorders:
            one._array = one._array.host
