"""Jobs under `microtrain launch --restarts` whose processes are killed, again and again.

Under Open MPI they go on in place, with spare ranks now and then.

They must end by themselves as if nobody had. Now and then all of it is killed, the launcher too,
and started again with --resume auto.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

from attack import kills
from attack.campaign import Defect, Kind, started
from microtrain.cli import mpirun
from microtrain.common import job

RESTARTS = 50


class Job(kills.Command):
    """One `launch --restarts`, and what it has said."""

    def __init__(
        self, words: list[str], callbacks: list[str], runs: Path, ranks: int, how: list[str]
    ) -> None:
        self.said = runs.with_name(f"{runs.name}-{time.monotonic_ns()}.txt")
        line = [sys.executable, "-m", "microtrain", "launch", "-n", ranks, "--restarts", RESTARTS]
        line += [*how, "train", *words, f"run_dir={runs}", f"callbacks=[{', '.join(callbacks)}]"]
        self.start([*line, "--resume", "auto"], runs)

    def kill(self, draw: random.Random) -> int:
        """One process that is not the launcher, or all of these; how many they were."""
        asks = "mpi4py.rc", "--version"  # what the launcher asks before it starts anything
        alive = [p for p, said in sorted(started().items()) if not any(a in said for a in asks)]
        alive = [p for p in alive if p != self.process.pid]
        chosen = alive if draw.random() < 0.25 else alive and [draw.choice(alive)]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(chosen)

    def kill_all(self) -> int:
        """The launcher first: nobody starts anything again."""
        count = 1
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        while alive := started():
            count += len(alive)
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        return count


def trial(seed: int, folder: Path) -> int:
    draw = random.Random(seed)
    words, ranks, callbacks = kills.plan(draw, folder)
    how: list[str] = []
    if mpirun.find_mpirun().kind == "openmpi":  # with fewer ranks, which has to be the same
        while not (any("world" in word for word in words) and max(ranks) > 1):
            words, ranks, callbacks = kills.plan(draw, folder)
        how = ["--in-place", "--spares", str(draw.choice((0, 0, 1, 2)))]
    size = draw.choice([n for n in ranks if n] or [2])
    print(*words, callbacks, size, *how)
    whole, runs = folder / "whole", folder / "runs"
    first = kills.Command(words, callbacks, whole, size, resume=False)
    code, said = first.end()
    if code:
        raise Defect("lost", f"the run that nobody disturbs left with {code}:\n{said}")
    took = time.monotonic() - first.began
    # Slow steps, of which some are between two states in memory.
    slow = ["./net.py:Slow"] if (folder / "net.py").exists() else []
    running, killed = Job(words, [*callbacks, *slow], runs, size, how), 0
    for _ in range(draw.choice((1, 2, 3, 4))):
        # More than one in a start now and then: while a start begins, or the one before ends.
        time.sleep(draw.choice((draw.uniform(0, 0.3), draw.uniform(0.3, 1.2) * took)))
        if running.process.poll() is not None:
            break
        if draw.random() < 0.1:
            killed += running.kill_all()
            running = Job(words, [*callbacks, *slow], runs, size, how)
        else:
            killed += running.kill(draw)
    code, said = running.end()
    if code and "3 times at the same state" in said:
        running = Job(words, [*callbacks, *slow], runs, size, how)  # as a person would
        code, said = running.end()
    if code:
        raise Defect("lost", f"the job left with {code}:\n{said}")
    if left := [
        path for path in job.left_behind() if (path / "run").resolve().is_relative_to(runs)
    ]:
        raise Defect("lost", f"left in memory: {left}")
    kills.compare(whole, runs, said)
    return killed


KIND = Kind(trial, limit=900)
