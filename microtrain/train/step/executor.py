"""Executes the steps of a run: as Python, or a capture of them, and many of these in one call.

What a pass may change is kept in a Snapshot, so that a recording that failed can be undone; it also
tells what no replay would do: an attribute of the model that is set anew at every call.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

import numpy as np

from ...backend import MODES
from ...capture import compile
from ...capture.c_compiler import absent, compiler
from ...capture.scan import scan_of
from ...capture.trace import Traced
from ...common.stack_frames import is_own, with_code
from ...data.loading.loader import MicroBatches
from ...distributed.agreement import agreed, first_word, together
from ...errors import CaptureError, ConfigError, UserError
from ...tensor import TENSORS, Tensor, wrap
from .divergence import NotFinite
from .snapshot import Snapshot

BEGIN = 4  # the first step that native code may take: by then a step has been captured
FEW = 100  # steps: a shorter run ends before it has earned back what capturing costs
SECONDS = 0.05  # that a call of many steps is to take: a signal waits for its end
MOST = 4096  # of them


@dataclass
class _Recording:
    """A micro-batch that is recorded, and what undoing it takes.

    Attributes:
        before: what was there before its gradients; None once they are done.
        answers: what other ranks have said in it.
        done: whether all of it is done.
    """

    before: Snapshot | None
    answers: list[Any]
    done: bool = False


class Execution:
    """Executes the micro-batches of a run: `execution(first, last, *batch)`.

    `first` and `last` say which of its optimizer step a micro-batch is.

    Args:
        run: whose `gradients` are called for a micro-batch, whose `update` after the last.

    Attributes:
        name: off, numpy, native or cupy: what executes the steps now.
        since: the optimizer step from which on it does.
        reason: why, for people.
        pending: whether `rehearse` is to be called before the next step, from `BEGIN` on.
        compiled: what is called with (first, last, *batch) where steps are captured; else None.
        problem: why this rank has gone on eagerly.

    Made on all ranks together. Raises ConfigError on every rank where what the configuration asks
    for cannot be had.
    """

    def __init__(self, run: Any) -> None:
        self._steps: dict[str, Any] = {}  # what is captured, by executor
        self._recorders: weakref.WeakSet[Any] = weakref.WeakSet()
        self.begin(run)

    def begin(self, run: Any) -> None:
        """Execute the steps of `run`, also after those of another with the same model."""
        self.run, self.comm, self.guard = run, run.comm, run.guard
        self.gradients, self.update = run.gradients, run.update
        self.requested = run.config.train.compile
        together(self.comm, self._check)
        # Rank 0's choice: another host may have another environment.
        self.name, self.reason = self.comm.broadcast_object(self._first_choice())
        if self.name == "native" and (why := self._no_native()):
            self.name, self.reason = "numpy", why
        self.since = BEGIN if self.name == "native" else 1
        self.problem: str | None = None
        # A user-defined optimizer may do anything: it is called.
        package = type(run.optimizer).__module__.partition(".")[0]
        self._whole = package == __name__.partition(".")[0]
        self.pending = self.name == "native"
        self._resumed = False
        self._recording: _Recording | None = None  # of this call
        # With native code from a run before, Python takes the first steps: with the same bits.
        self._known = "native" in self._steps
        eager = self.name == "off" or self._known
        self.compiled: Any = None if eager else self._compile("numpy")

    def end(self) -> None:
        """Let go of the run, which refers to this: its data and model go with it.

        Else they stay until a collector finds the ring, and each backward pass asks such models.
        """
        self.run = self.gradients = self.update = None

    def __call__(self, first: bool, last: bool, *batch: Tensor) -> None:
        compiled, device = self.compiled, self.run.device
        if device is not None:
            batch = tuple([tensor.to(device=device) for tensor in batch])
        if compiled is None:
            self.eagerly(first, last, *batch)
            return
        self._recording = None
        try:
            compiled(first, last, *batch)
        except UserError:
            raise
        except Exception as error:
            if not self._undone(error, batch):
                raise
        else:
            if last and not self._whole and not self.guard.rehearsing:
                self.update()
            return
        self._again(first, last, *batch)

    def about(self) -> dict[str, Any]:
        """For run.json and the checkpoint."""
        return {"executor": self.name, "from_step": self.since, "reason": self.reason}

    state_dict = about

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the executor that a checkpoint names; collective.

        Raises ConfigError on every rank where one of them cannot have it.
        """
        self._resumed = True
        elsewhere = (state["executor"] == "cupy") != (self.run.device is not None)
        if elsewhere and state["executor"] != "off":
            return  # another device has another executor
        self.name, self.reason = state["executor"], state["reason"]
        self.since = state["from_step"]
        self.pending = self.name == "native"
        if self.pending and (why := self._no_native()):
            text = f"the run was computed by native code from step {self.since:,} on, but {why}"
            raise agreed(ConfigError(text))
        self.compiled = None if self.name == "off" else self._compile("numpy")

    # What is executed -----------------------------------------------------------------------------

    def eagerly(self, first: bool, last: bool, *batch: Tensor) -> None:
        """A micro-batch as your Python code has it."""
        self.gradients(first, last, batch)
        if last and (self._whole or not self.guard.rehearsing):
            self.update()

    def rehearse(self, kinds: Sequence[MicroBatches]) -> None:
        """Capture what native code does with these steps; collective.

        Two calls for each capture, undone: what they change is as it was. Where a step cannot be
        compiled on some rank, all go on with NumPy's calls unless native code was asked for.

        kinds: one optimizer step's micro-batches for each size that the steps of the run have.
        """
        self.pending = False
        # A step that does something else at every call is not captured yet: leave it alone.
        known = self.requested != "auto" or self._resumed
        known = known or self._known or bool(self.compiled and self.compiled.programs)
        if not self.comm.all_reduce(np.array(known), "min"):
            self.name, self.since, self.reason = "numpy", 1, "the step was not captured at once"
            self.settle()
            return
        self.compiled = self._compile(self.name)
        run = self.run
        try:
            self.guard.rehearsing = True
            for micro_batches in [each for each in kinds if not self._fits(each) for _ in range(2)]:
                before = Snapshot(run.model, run.loss, False, run.optimizer)
                last = len(micro_batches) - 1
                with contextlib.suppress(NotFinite):  # in a replay
                    for number, batch in enumerate(micro_batches):
                        self(number == 0, number == last, *batch)
                before.restore()
        finally:
            self.guard.rehearsing = False
        if self.requested == "auto" and (found := first_word(self.comm, self.problem)):
            self.problem, self.compiled = None, self._compile("numpy")
            self.name, self.since, self.reason = "numpy", run.step + 1, found[1]
            run.output.say(f"compile  numpy from step {self.since:,}: {self.reason}")
        self.settle()
        if self.name != "off":
            run.update_info(compile=self.about())

    def _fits(self, micro_batches: MicroBatches) -> bool:
        """Whether native code is there for a step, from a run before on this one rank."""
        alone, last = self._known and self.comm.size == 1, len(micro_batches) - 1
        return alone and all(
            any(one.fits(number == 0, number == last, *batch) for one in self.compiled.captures)
            for number, batch in enumerate(micro_batches)
        )

    def _no_native(self) -> str:
        """Why some rank has no native code, empty where all have; collective."""
        return (first_word(self.comm, absent() or None) or (0, ""))[1]

    def _compile(self, name: str) -> Any:
        if name in self._steps:
            return self._steps[name]
        model, loss = self.run.model, self.run.loss
        own: Any = weakref.proxy(self)  # which keeps what is captured

        def training_step(first: bool, last: bool, *batch: Tensor) -> None:
            """Called where it is recorded; replays come past it."""
            recorder = MODES.capture
            own._recorders.add(recorder)
            before = Snapshot(model, loss, not first)
            recording = own._recording = _Recording(before, recorder.exchanged)
            own.gradients(first, last, batch)
            recording.before = None
            if last and own._whole:
                own.update()
            recording.done = True
            if changed := before.changed():
                raise CaptureError(f"forward changes {changed}, which a replay would not")

        return self._steps.setdefault(name, compile(training_step, executor=name))

    def _undone(self, error: Exception, batch: tuple[Tensor, ...]) -> bool:
        """Whether the run can go on without capture; if so, no half of a recording is left."""
        recording = self._recording
        if recording is None:
            if not isinstance(error, CaptureError):  # a replay failed, as the step itself would
                self.run.train_step(batch)  # which names the user's line
                return False
        elif recording.before is not None:
            recording.before.restore()
        elif not recording.done:  # in the update
            return False
        self.compiled = None
        _give_back(self._recorders)
        self.problem = _described(error)
        return True

    def _again(self, first: bool, last: bool, *batch: Tensor) -> None:
        """What is left to do of a micro-batch whose recording failed."""
        recording, self._recording = self._recording, None
        if recording is None or not recording.done:
            # Other ranks may not do it again: they are asked only what they were not asked before.
            try:
                MODES.answers = [] if recording is None else recording.answers
                self.eagerly(first, last, *batch)
            finally:
                MODES.answers = []
        elif last and not self._whole and not self.guard.rehearsing:
            self.update()

    # What all ranks settle ------------------------------------------------------------------------

    def _check(self) -> None:
        """ConfigError for what this rank cannot do."""
        if self.requested == "native" and (why := absent()):
            raise ConfigError(f"train.compile: {why}; or choose auto or numpy")
        where = "a GPU" if self.requested == "cupy" else "the CPU"
        device = self.run.device or "cpu"
        if self.requested not in ("auto", "off") and (where == "a GPU") != (device != "cpu"):
            raise ConfigError(
                f"train.compile: {self.requested} captures steps on {where}, but the device is "
                f"{device}; choose auto, or another device"
            )

    def _first_choice(self) -> tuple[str, str]:
        if self.requested == "off":
            return "off", "asked for"
        if self.run.optimizer.needs_closure:
            return "off", "the optimizer computes several gradients in a step"
        if os.environ.get("MICROTRAIN_COMPILE") == "off":
            return "off", "MICROTRAIN_COMPILE=off"
        if self.requested != "auto":
            return self.requested, "asked for"
        if (self.run.total_steps or FEW) < FEW:
            return "off", f"too short to be worth compiling (under {FEW} steps)"
        if self.run.device is not None:
            return "cupy", f"the device is {self.run.device}"
        if self.run.shards is not None:
            return "numpy", "with shards native code is used where it is asked for"
        return "native", "" if absent() else compiler().version

    def settle(self) -> None:
        """Learn what other ranks have met, and go on eagerly on all; collective.

        Raises ConfigError where an executor was asked for and the step cannot be captured.
        """
        if self.name == "off":
            return
        if (found := first_word(self.comm, self.problem)) is None:
            return
        rank, problem = found
        problem = f"rank {rank}: {problem}" if rank else problem
        if self.requested != "auto":
            raise agreed(
                ConfigError(
                    f"train.compile: {self.requested} was asked for, but the step cannot be "
                    f"captured\n{problem}\nhint: train.compile=off"
                )
            )
        self.compiled, self.pending = None, False
        self.name, self.since, self.reason = "off", self.run.step + 1, problem
        self.run.update_info(compile=self.about())
        if self.comm.rank == 0:
            self.run.output.warn(
                "the step cannot be captured; the run continues as with train.compile=off (which "
                f"silences this): {problem}"
            )


class ManySteps:
    """Takes many steps, between which nobody looks, in one native call, with the same bits.

    On one rank nothing but the trainer's own Python stands between two steps, and that takes longer
    than a small step. So steps like one that was captured are done by a `Scan`, up to the one after
    which there is more to do. One that a check refuses is done by Python, which says why.

    Args:
        run: the Trainer, before its first step.
        usual: whether its steps are taken as it says itself.
    """

    def __init__(self, run: Any, usual: bool) -> None:
        usual = usual and run.comm.size == 1 and run.trace is None and run.skips is None
        self._skipped: int | None = None  # steps since the last one in Python; None before that
        self._run, self._position, self._most = run, (0, 0), 2.0 if usual else 0.0
        self._of: Any = None  # the run's pass over the batches
        self._known: list[Any] = []  # captures that steps were for when somebody last looked

    def look_again(self) -> None:
        """Others have had their turn: what was captured may no longer fit."""
        self._known.clear()

    def next_of(self, steps: Generator[MicroBatches, int | None, None]) -> MicroBatches:
        """What the loader has for a step that Python takes, behind those that were taken here."""
        micro_batches = steps.send(self._skipped)
        self._position, self._of, self._skipped = micro_batches.position, micro_batches.of, 0
        return micro_batches

    def __call__(self, most: float) -> int:
        """Take at most `most` steps and count them; how many were taken."""
        run = self._run
        compiled, limit = run.execution.compiled, int(min(most, MOST, self._most))
        if compiled is None or limit < 1 or run.execution.pending or self._skipped is None:
            return 0
        if any(run.model.notes):  # asked for after the next step
            return 0
        captures = [one for one in compiled.captures if scan_of(one)]
        stacks = run.loader.upcoming(self._of, self._position, limit) if captures else None
        if not stacks:
            return 0
        one = [wrap(stack[0]) for stack in stacks]
        fits = (c for c in captures if c in self._known or c.fits(True, True, *one))
        shapes = [tensor._array.shape for tensor in one]
        capture = next((c for c in fits if [a.shape for a in c.program.inputs] == shapes), None)
        if capture is None:
            return 0
        self._known.append(capture)
        step, rates, rows, (epoch, number) = run.step, run.rates, shapes[0][0], self._position
        place = epoch, number + 1, len(run.loader)
        began = time.perf_counter()
        found = capture.scan(stacks, place, rates and (lambda n: rates.set(step + n)))
        losses, *counts = [values.tolist() for values in found]
        if taken := len(losses):
            self._most = max(1, taken * SECONDS / (time.perf_counter() - began))
            self._position = run.loader.took(self._of, self._position, taken, rows)
            self._skipped += taken
        run.state.step += taken
        run.state.samples += taken * rows
        # Where what a loss is a mean over is no array, it is the same at each of these steps.
        weights = counts[0] if counts else [run.model.weight] * taken
        for loss, weight in zip(losses, weights, strict=True):
            run.progress.add(weight and weight * loss / weight, weight)  # as `DataParallel` has it
        return taken


def _described(error: Exception) -> str:
    """What happened and the user's line, in one line."""
    text = " ".join(str(error).split())
    if not isinstance(error, CaptureError):
        text = f"{type(error).__name__}: {text}"
    places = [
        f"{file}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if not is_own(file := frame.f_code.co_filename) and file[0] != "<"
    ]
    if places:
        return text if places[-1] in text else f"{with_code(places[-1])}: {text}"
    if called := re.match(r"\S+:\d+", text):  # a line of whoever called the library
        text = text.removeprefix(f"{with_code(called[0])}: ").removeprefix(f"{called[0]}: ")
    return text


def _give_back(recorders: Any) -> None:
    """Make ordinary Tensors of those that the user's Python has kept from a recording."""
    for one in gc.get_objects():
        if type(one) in TENSORS and type(one._array) is Traced and one._array.recorder in recorders:
            one._array = one._array.host
