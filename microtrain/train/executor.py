"""How the steps of a run are executed: by the user's Python, or by a capture of it.

`train.compile: auto` captures where the run is long enough, and takes native code where `choose`
says that it pays. What cannot be captured runs eagerly, and the run is then what it would have been
had it run eagerly from its start: a recording that fails is undone and its micro-batch done again.

Native code rounds differently, and a capture's first calls are Python's: a run that is resumed
captures anew, at other steps, and would have other bits. So before native code takes its first step
the calls that capture it are made and undone (`rehearse`), and every step from there on is native.
Until then NumPy's calls are captured, whose bits are those of Python.

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
from collections.abc import Callable, Sequence
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

from ..backend import MODES
from ..compile import compile
from ..compile.executors import UNKNOWN, choose, numba_absent
from ..compile.traced import Traced
from ..distributed.agreement import agreed, together
from ..errors import CaptureError, ConfigError, UserError
from ..frames import is_own
from ..tensor import TENSORS
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..data.loader import MicroBatches
    from ..tensor import Tensor
    from .output import Output
    from .state import Parts, RunState

__all__ = ["Execution"]

BEGIN = 4  # the first step that native code may take: by then a step has been captured
FEW = 300  # steps: a run that is no longer ends before it has earned back what capturing costs


class Execution:
    """Executes the micro-batches of a run: `execution(first, last, *batch)`.

    `first` and `last` say which of its optimiser step a micro-batch is.

    Args:
        parts, state: of the run.
        output: where it says what it has chosen.
        gradients: what is done for a micro-batch, called as gradients(first, last, batch).
        update: what is done after the last.
        forward: the loss of a batch, which fails as the user's own lines do.

    Attributes:
        noted: called with `about()` when it changes.
        name: off, numpy or numba: what executes the steps now.
        since: the optimiser step from which on it does.
        reason: why, for people.
        pending: whether `rehearse` is to be called before the next step, from `BEGIN` on.
        rehearsing: whether what is done now will be undone.
        compiled: what is called with (first, last, *batch) where steps are captured; else None.

    Raises ConfigError on every rank where what the configuration asks for cannot be had.
    """

    def __init__(
        self,
        parts: Parts,
        state: RunState,
        output: Output,
        gradients: Callable[[bool, bool, tuple[Tensor, ...]], None],
        update: Callable[[], None],
        forward: Callable[[tuple[Tensor, ...]], Tensor],
    ) -> None:
        self.parts, self.run_state, self.output, self.comm = parts, state, output, parts.comm
        self.gradients, self.update, self.forward = gradients, update, forward
        self.noted: Callable[[dict[str, Any]], None] = lambda about: None
        self.wish = parts.config.train.compile
        together(self.comm, self._check)
        # Rank 0's choice: another host may have another environment.
        self.name, self.reason = self.comm.broadcast_object(self._first_choice())
        self.since = BEGIN if self.name == "numba" else 1
        self.problem: str | None = None  # why this rank has gone on eagerly
        self._open = self.name != "off"  # whether there is anything to settle
        # An optimizer of the user's own may do anything: it is called.
        package = type(parts.optimizer).__module__.partition(".")[0]
        self._whole = package == __name__.partition(".")[0]
        self._choosing = self.wish == "auto" and self.name == "numpy" and parts.shards is None
        self.pending = self._choosing or self.name == "numba"
        self.rehearsing = self._resumed = False
        self._entered = 0  # recordings begun
        self._stage = ""  # how far the last one has come
        self._answers: list[Any] = []  # what other ranks have said in it
        self._before: Snapshot | None = None
        self._recorders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiled: Any = None if self.name == "off" else self._compile("numpy")

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
            if last and not self._whole and not self.rehearsing:
                self.update()
            return
        if self._stage == "begun":  # else it was done to its end
            # Other ranks may not do it again: they are asked only what they were not asked before.
            MODES.answers = self._answers
            try:
                self._eagerly(first, last, *batch)
            finally:
                MODES.answers = []
        elif not self._whole and last and not self.rehearsing:
            self.update()

    def about(self) -> dict[str, Any]:
        """For run.json and the checkpoint."""
        return {"executor": self.name, "from_step": self.since, "reason": self.reason}

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {**self.about(), "chosen": not self._choosing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the executor that a checkpoint names; ConfigError where it cannot be had."""
        self._resumed = True
        if not state["chosen"]:
            return
        self.name, self.reason = state["executor"], state["reason"]
        self.since, self._choosing = state["from_step"], False
        if self.name == "numba" and (why := numba_absent()):
            raise ConfigError(
                f"the run was computed by native code from step {self.since:,} on, but {why}"
            )
        self.pending, self._open = self.name == "numba", self.name != "off"
        self.compiled = self._compile("numpy") if self._open else None

    # What is executed -----------------------------------------------------------------------------

    def _eagerly(self, first: bool, last: bool, *batch: Tensor) -> None:
        self.gradients(first, last, batch)
        if last and (self._whole or not self.rehearsing):
            self.update()

    def rehearse(self, kinds: Sequence[MicroBatches]) -> None:
        """Choose the executor, and capture what native code does with these steps; collective.

        kinds: one optimiser step's micro-batches for each size that the steps of the run have.
        """
        self.pending = False
        if self._resumed and self._choosing:
            self._captured(kinds[:1])
        choice: Any = None
        # A step that does something else at every call is not captured yet: leave it alone.
        programs = self.compiled.programs if self.compiled else ()
        if programs and self._choosing:
            program = max(programs, key=lambda each: len(each.lines))
            choice = choose("auto", program, self.parts.plan.total or UNKNOWN)
        elif not self._choosing:
            choice = self.name, self.reason
        everyone = self.comm.all_gather_object((choice, not numba_absent()))
        choosing, self._choosing = self._choosing, False
        if all(found is not None for found, _ in everyone):
            self.name, self.reason = everyone[0][0]
            if self.name == "numba" and not all(there for _, there in everyone):
                self.name, self.reason = "numpy", "numba is not installed on every host"
            if self.name == "numba":
                self.since = BEGIN if choosing else self.since
                self.compiled = self._compile(self.name)
                self._captured(kinds)
        self.settle()
        if self.name != "off":
            self.noted(self.about())
        if self.name == "numba":  # else the header has said so
            self.output.say(f"compile  {self.name} from step {self.since:,}: {self.reason}")

    def _captured(self, kinds: Sequence[MicroBatches]) -> None:
        """Two calls for each capture, undone: what they change is as it was."""
        parts = self.parts
        self.rehearsing = parts.guard.rehearsing = True
        try:
            for micro_batches in kinds:
                for _ in range(2):
                    before = Snapshot(parts.model, parts.loss, False, parts.optimizer)
                    left = len(micro_batches)
                    first = True
                    for batch in micro_batches:
                        left -= 1
                        self(first, not left, *batch)
                        first = False
                    before.restore()
        finally:
            self.rehearsing = parts.guard.rehearsing = False

    def _compile(self, name: str) -> Any:
        parts = self.parts

        def training_step(first: bool, last: bool, *batch: Tensor) -> None:
            """Called where it is recorded; replays come past it."""
            self._entered += 1
            self._stage = "begun"
            self._recorders.add(MODES.recorder)
            self._answers = MODES.recorder.exchanged
            before = self._before = Snapshot(parts.model, parts.loss, not first)
            self.gradients(first, last, batch)
            self._stage, self._before = "shared", None
            if last and self._whole:
                self.update()
            self._stage = "done"
            if changed := before.changed():
                raise CaptureError(f"forward changes {changed}, which a replay would not")

        return compile(training_step, executor=name)

    def _survives(self, error: Exception, entered: int, batch: Any) -> bool:
        """Whether the run can go on without capture; if so, all is as before the micro-batch."""
        if self._entered == entered:
            if not isinstance(error, CaptureError):  # a replay failed, as the step itself would
                self.forward(batch)  # which names the user's line
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
        if self.wish in ("numpy", "numba") and self.parts.device is not None:
            raise ConfigError(
                f"train.compile: {self.wish} captures steps on the CPU, but the device is "
                f"{self.parts.device}; choose auto, or device: cpu"
            )

    def _first_choice(self) -> tuple[str, str]:
        variable = os.environ.get("MICROTRAIN_COMPILE", "auto")
        if self.wish == "off":
            return "off", "asked for"
        if variable == "off":
            return "off", "MICROTRAIN_COMPILE=off"
        if self.wish != "auto":
            return self.wish, "asked for"
        if self.parts.device is not None:
            return "off", f"the device is {self.parts.device}"
        if (self.parts.plan.total or UNKNOWN) < FEW:
            return "off", f"it does not pay in fewer than {FEW} steps"
        if self.parts.shards is not None:
            return "numpy", "native code would be chosen by compile: numba"
        return "numpy", "native code where it pays, once a step is captured"

    def settle(self) -> None:
        """Learn what other ranks have met; collective.

        Raises ConfigError where an executor was asked for and the step cannot be captured.
        """
        if not self._open:
            return
        for rank, problem in enumerate(self.comm.all_gather_object(self.problem)):
            if problem is not None:
                self._stop(f"rank {rank}: {problem}" if rank else problem)
                return

    def _stop(self, problem: str) -> None:
        """Go on eagerly on all ranks."""
        if self.wish != "auto":
            raise agreed(
                ConfigError(
                    f"train.compile: {self.wish} was asked for, but the step cannot be captured\n"
                    f"{problem}\nhint: train.compile=off"
                )
            )
        self._open, self.compiled, self.pending, self._choosing = False, None, False, False
        self.name, self.since, self.reason = "off", self.run_state.step + 1, problem
        self.noted(self.about())
        if self.comm.rank == 0:
            self.output.warn(
                "the step cannot be captured, so the run goes on as with train.compile=off (which "
                f"silences this): {problem}"
            )


def _described(error: Exception) -> str:
    """What happened and the user's line, in one line."""
    text = " ".join(str(error).split())
    if not isinstance(error, CaptureError):
        text = f"{type(error).__name__}: {text}"
    frames = [
        (file, line)
        for frame, line in walk_tb(error.__traceback__)
        if not is_own(file := frame.f_code.co_filename) and file[0] != "<"
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
