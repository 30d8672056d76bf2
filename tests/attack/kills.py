"""Runs that are killed with SIGKILL again and again, and must end as if nobody had."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import mpi_run
from resuming import facts, write_run

from attack.campaign import Defect, Kind, started
from microtrain.cli.mpirun import open_mpi_settings
from microtrain.runs.directory import newest_run

LIMIT = 150  # seconds for one command, on a machine that does other things as well
TEMPLATES = {  # of configs/, made short
    "linreg": ["train.duration=2 epochs", "train.eval_every=40 steps"],
    "csv": ["train.duration=12 epochs"],
    "digits": ["train.duration=2 epochs", "train.eval_every=15 steps"],
    "diabetes": ["train.duration=12 epochs"],
    "custom_model": ["train.duration=2 epochs", "train.eval_every=20 steps"],
    "two_layer_relu": ["train.duration=90 steps"],
}
# One of each, "" being what the file says.
ANY = [
    ("", "", "train.accumulate=2", "train.accumulate=3"),
    ("", "train.clip_norm=0.5"),
    ("off", "off", "numpy", "numpy", "auto", "native"),
    ("", "train.shuffle=false"),
    ("", "train.nan=skip"),
    ("", "dtype=float64"),
    ("", "seed=3"),
    ("", "", "schedule={type: cosine, warmup: 10%}", "schedule={type: linear, warmup: 5 steps}",
     "schedule={type: step, every: 1 epochs, gamma: 0.7}"),
    ("1 steps", "3 steps", "7 steps", "20 steps", "1 epochs", "50%"),
    ("", "checkpoint.keep_last=1", "checkpoint.keep_last=3"),
    ("", "checkpoint.keep_best=0", "checkpoint.keep_best=2"),
    ("", "log.every=1 steps", "log.every=10 steps"),
]  # fmt: skip
OF_OUR_OWN = [  # tests/resuming.py; batches that leave no rank and no micro-batch one row alone
    ("train.batch_size=10", "train.batch_size=16", "train.batch_size=20"),
    ("train.duration=60 steps", "train.duration=90 steps", "train.duration=25 epochs"),
    ("train.eval_every=1 epochs", "train.eval_every=7 steps"),
    ("", "train.drop_last=true"),
    ("", "loss=huber", "loss=mae"),
    ("", "optimizer={type: adamw, lr: 0.003, weight_decay: 0.1}", "optimizer.nesterov=true"),
]
SYNCHRONOUS = ("", "", ", overlap: true, bucket_mb: 0.001")
BY_PIECE = (", sync_batchnorm: false", ", reproducible: world, shards: 4")
STOPPING = "{type: early_stopping, patience: 2, min_delta: 0.02}"


def plan(draw: random.Random, folder: Path) -> tuple[list[str], list[int], list[str]]:
    """Arguments of `train`, the numbers of ranks (0: without mpirun), and the callbacks."""
    choices = [draw.choice(each) for each in ANY]
    choices[2], choices[8] = f"train.compile={choices[2]}", f"checkpoint.every={choices[8]}"
    callbacks = [STOPPING] if draw.random() < 0.25 else []
    distributed = draw.choice((*SYNCHRONOUS, *BY_PIECE))
    if "overlap" in distributed:
        choices[2] = "train.compile=off"
    if draw.random() < 0.35:
        name = draw.choice(list(TEMPLATES))
        words = [mpi_run.REPOSITORY / "configs" / f"{name}.yaml", *TEMPLATES[name]]
    else:
        callbacks.append("./net.py:Count")
        words = [write_run(folder), *(draw.choice(each) for each in OF_OUR_OWN)]
        norm = "false" if distributed in BY_PIECE else draw.choice(("true", "false"))
        words.append(f"model={{type: ./net.py:Net, drop: 0.3, norm: {norm}}}")
    words += [*choices, f"distributed={{warn_s: 15, timeout_s: 45{distributed}}}"]
    ranks = draw.choice(([0], [0], [1], [2], [2], [3], [4]))
    if "shards" in distributed:
        ranks = [0, 1, 2, 4]
    return [str(word) for word in words if word], [0] if mpi_run.missing() else ranks, callbacks


class Command:
    """One `train` as a user starts it, under `die.py`."""

    def __init__(
        self, words: list[str], callbacks: list[str], runs: Path, ranks: int, last: int = 0,
        delay: float = 0.0, resume: bool = True,
    ) -> None:  # fmt: skip
        self.said = runs.with_name(f"{runs.name}-{time.monotonic_ns()}.txt")
        self.book = self.said.with_suffix(".count")
        line = [sys.executable, Path(__file__).with_name("die.py"), self.book, runs, last, delay]
        line += ["train", *words, f"run_dir={runs}", f"callbacks=[{', '.join(callbacks)}]"]
        line += ["--resume", "auto"] if resume else []
        if ranks:
            line = [mpi_run.find_mpirun(), "-n", ranks, *line]
        self.start(line, runs)

    def start(self, line: list[object], runs: Path) -> None:
        """Start it beside `runs`; what it says goes into a file."""
        with open(self.said, "wb") as file:
            self.process = subprocess.Popen(
                [str(word) for word in line], cwd=runs.parent, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                env=mpi_run.clean_environment(open_mpi_settings(crowded=True)),
            )  # fmt: skip
        self.began = time.monotonic()

    def killed_after(self, seconds: float, draw: random.Random) -> Command:
        """One of the launcher, its proxies and the ranks, or all of them."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            alive = sorted(started())
            for pid in alive if draw.random() < 0.3 else alive and [draw.choice(alive)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return self

    def end(self) -> tuple[int, str]:
        """Exit code and words, when it and all it has started are gone."""
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None or started():
            if time.monotonic() > deadline:
                left = "\n".join(f"{_state(pid)} {said}" for pid, said in started().items())
                raise Defect("hung", f"after {LIMIT} s there are\n{left}\n{self.said.read_text()}")
            time.sleep(0.05)
        words = self.said.read_text(errors="replace")
        if "Traceback" in words:
            raise Defect("tracebacks", words)
        return self.process.returncode, words


def _state(pid: int) -> str:
    """Of a process that is left: its parent, what it does, and where in the system it waits."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return f"{pid} (of {parent}) {state} {Path(f'/proc/{pid}/wchan').read_text()}"
    except OSError:
        return f"{pid} gone"


def trial(seed: int, folder: Path) -> None:
    draw = random.Random(seed)
    words, ranks, callbacks = plan(draw, folder)
    print(*words, callbacks, ranks)
    attack(draw, folder, words, ranks, callbacks)


def attack(
    draw: random.Random, folder: Path, words: list[str], ranks: list[int], callbacks: list[str]
) -> None:
    whole, runs = folder / "whole", folder / "runs"
    first = Command(words, callbacks, whole, draw.choice(ranks), resume=False)
    code, said = first.end()
    if code:
        raise Defect("lost", f"the run that nobody disturbs left with {code}:\n{said}")
    took, writes = time.monotonic() - first.began, int(first.book.read_text())
    slow = ["./net.py:Slow"] if (folder / "net.py").exists() and draw.random() < 0.5 else []
    for _ in range(draw.choice((1, 2, 2, 3))):
        size, now = draw.choice(ranks), [*callbacks, *slow]
        if draw.random() < 0.6:
            delay = draw.choice((0, draw.expovariate(2000)))
            Command(words, now, runs, size, draw.randint(1, writes), delay).end()
        else:
            Command(words, now, runs, size).killed_after(draw.uniform(0.3, 1.1) * took, draw).end()
    code, said = Command(words, callbacks, runs, draw.choice(ranks)).end()
    if code:
        raise Defect("lost", f"the resumed run left with {code}:\n{said}")
    compare(whole, runs, said)


def compare(whole: Path, runs: Path, said: str) -> None:
    """Defect unless a run that was killed left what one did that nobody disturbed."""
    (name,) = (path.name for path in whole.iterdir())
    expected, found = facts(newest_run(whole / name)), facts(newest_run(runs / name))
    parts = [key for key in expected if key != "checkpoints" and found[key] != expected[key]]
    if parts:
        shown = [f"{key}: {str(found[key])[:150]} for {str(expected[key])[:150]}" for key in parts]
        raise Defect("different", "\n".join([*shown, said]))


KIND = Kind(trial, limit=900)
