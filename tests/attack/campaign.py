"""The frame of a campaign: trials from seeds, each in a process of its own with a hard end.

A trial is forked from this process, so it costs milliseconds, leaves nothing to the next one, and
repeats from its seed alone. What it starts carries MARK in its environment and is ended by that.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

import mpi_run

OUTCOMES = ("lost", "different", "hung", "tracebacks")
MARK = "MICROTRAIN_ATTACK"
FORK = multiprocessing.get_context("fork")


class Defect(Exception):
    """What did not hold: one of OUTCOMES, and the words for it."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True)
class Kind:
    """`trial(seed, folder)` prints what it tries and raises Defect; other errors are tracebacks.

    It returns how many processes it has killed.
    """

    trial: Callable[[int, Path], int | None]
    limit: float  # seconds after which a trial hangs
    prepare: Callable[[], None] = lambda: None  # before the first: imports that all share


def seeds(first: int) -> Iterator[int]:
    """`first` itself, then others that follow from it: so any one is the first of a campaign."""
    yield first
    draw = random.Random(first)
    while True:
        yield draw.randrange(2**31)


def started() -> dict[int, str]:
    """What this trial has started and still lives: command lines by process id."""
    return mpi_run._marked(f"{MARK}={os.environ[MARK]}")


class Running:
    """One trial under way."""

    def __init__(self, name: str, seed: int, place: Path, kind: Kind) -> None:
        self.name, self.seed, self.place, self.limit = name, seed, place, kind.limit
        self.mark, self.began = uuid.uuid4().hex, time.monotonic()
        place.mkdir()
        self.answer, end = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=self._child, args=(kind.trial, end))
        self.process.start()
        end.close()

    def _child(self, trial: Callable[[int, Path], int | None], end: Connection) -> None:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        sys.stdout = sys.stderr = open(self.place / "output.txt", "w", buffering=1)  # noqa: SIM115
        for descriptor in (1, 2):
            os.dup2(sys.stdout.fileno(), descriptor)
        faulthandler.dump_traceback_later(self.limit * 0.9, file=sys.stdout)
        warnings.simplefilter("default")
        os.environ[MARK] = self.mark
        os.chdir(self.place)
        try:
            found = ("", str(trial(self.seed, self.place) or 0))
        except Defect as defect:
            found = (defect.outcome, str(defect))
        except BaseException:
            found = ("tracebacks", traceback.format_exc())
        end.send(found)
        os._exit(0)  # threads that wait for ever must not keep it

    def over(self) -> bool:
        return self.answer.poll(0) or time.monotonic() > self.began + self.limit

    def end(self) -> tuple[str, str]:
        """The outcome (empty: it held) and the words; nothing of it lives afterwards."""
        try:
            said = (self.place / "output.txt").read_text(errors="replace")
            if not self.answer.poll(0):
                return "hung", f"{said}\nstill running after {self.limit:g} s"
            outcome, words = self.answer.recv()
            self.killed = 0 if outcome else int(words)
            return outcome, f"{said[:1000]}\n{words}"
        except EOFError:
            self.process.join(5)
            return "tracebacks", f"{said}\nended by itself: {self.process.exitcode}"
        finally:
            mpi_run._kill(self.process.pid, f"{MARK}={self.mark}")
            self.process.join()


def attack(
    kinds: Mapping[str, Kind], seed: int, place: Path, *, minutes: float = 0,
    trials: int | None = None, jobs: int = 2,
) -> dict[str, Counter[str]]:  # fmt: skip
    """Counts of each kind: its trials and OUTCOMES. Equal time for each, a failure told at once.

    Begins no trial once `minutes` are over or, where `trials` is given, a kind has had that many.
    """
    counts = {name: Counter(dict.fromkeys(("trials", *OUTCOMES), 0)) for name in kinds}
    coming = {name: seeds(seed) for name in kinds}
    spent = dict.fromkeys(kinds, 0.0)
    running: list[Running] = []
    for kind in kinds.values():
        kind.prepare()
    deadline = time.monotonic() + 60 * minutes

    def cost(name: str) -> tuple[float, int]:
        mine = [time.monotonic() - each.began for each in running if each.name == name]
        return spent[name] + sum(mine), len(mine)

    def begin() -> bool:
        in_time = trials is not None or time.monotonic() < deadline
        left = [name for name in kinds if trials is None or counts[name]["trials"] < trials]
        if in_time and left:
            name = min(left, key=cost)
            number = next(coming[name])
            counts[name]["trials"] += 1
            running.append(Running(name, number, place / f"{name}-{number}", kinds[name]))
        return bool(in_time and left)

    try:
        while True:
            while len(running) < jobs and begin():
                pass
            if not running:
                return counts
            wait([each.answer for each in running], timeout=0.5)
            for one in [each for each in running if each.over()]:
                outcome, words = one.end()
                running.remove(one)
                spent[one.name] += time.monotonic() - one.began
                if not outcome:
                    counts[one.name]["killed"] += one.killed
                    shutil.rmtree(one.place)
                    continue
                counts[one.name][outcome] += 1
                lines = [line[:400] for line in words.strip().splitlines()]
                shown = "\n    ".join(lines[:15] + ["..."] * (len(lines) > 40) + lines[15:][-25:])
                repeat = f"scripts/attack --only {one.name} --seed {one.seed} --trials 1"
                print(f"{one.name}, seed {one.seed}: {outcome}\n    {shown}")
                print(f"    repeat: {repeat}\n    kept: {one.place}", flush=True)
    finally:
        for one in running:
            one.end()


def table(counts: Mapping[str, Counter[str]]) -> str:
    keys = ("trials", "killed", *OUTCOMES)
    rows = [("", *keys), *((name, *(str(c[key]) for key in keys)) for name, c in counts.items())]
    return "\n".join(f"{row[0]:<12}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows)
