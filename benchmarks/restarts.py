#!/usr/bin/env python3
"""What a killed rank costs: seconds from the kill to the first new step, and a job without kills.

    .venv/bin/python benchmarks/restarts.py [--ranks 4] [--deaths 8] [--only NAME] [--in-place]

csv and digits are configurations of this repository under `microtrain launch --restarts`, whose
ranks are killed with SIGKILL one at a time, at random. torchrun is a perceptron of the size of
digits under `torchrun --max-restarts` with gloo and a checkpoint every 50 steps, as its users write
them; it is left out where torch is not installed. Steps are written down as they are taken, so a
death costs from the kill to the next line. "again" are the steps that were taken twice; the bits
are those of the parameters at the end, beside a run that nobody disturbed.

"overhead" is what the state in memory costs of the CPU time of a step, on one rank. A state costs
what steps take more with one every 50 than without, in turns of 100 steps; it is laid to as many
steps as lie between two by the run's own choice.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy  # noqa: F401  before `step`, which would pin all ranks to one core
from step import processor

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ("csv", "digits")
LIMIT = 300.0  # seconds for one job
PATIENCE = 90.0  # seconds from a kill to the next step

# A callback that writes down each step of rank 0, and steps that last a while.
NOTE = """
import os, time
import microtrain as mt

class Note(mt.train.Callback):
    interval = "1 step"

    def __init__(self, file):
        self.file = file

    def on_step(self, trainer):
        time.sleep(0.002)
        if trainer.comm.rank == 0:
            with open(self.file, "a") as file:
                file.write(f"{time.time()} {trainer.step}\\n")
"""

# A callback that lets a run keep a state every 50 steps or none, in turns, and adds up CPU seconds.
TURNS = """
import json, time
import microtrain as mt
from microtrain.train.callbacks.checkpoints import InMemory

class Turns(mt.train.Callback):
    interval = "25 steps"

    def __init__(self, file):
        self.file, self.memory, self.since, self.turns = file, None, None, []

    def on_step(self, trainer):
        if self.memory is None:
            (self.memory,) = (each for each in trainer.callbacks if isinstance(each, InMemory))
        memory, now = self.memory, (trainer.step, time.process_time())
        if memory._copy is not None or now[1] < 20:  # the run chooses meanwhile
            return
        if self.since is None:
            self.since, self.chosen, memory.every = now, memory.every, 50
            memory._decide = lambda *_: None
        elif now[0] - self.since[0] >= 100 and now[0] % 50 == 25:
            a_step = (now[1] - self.since[1]) / (now[0] - self.since[0])
            keeps, self.since = memory in trainer.callbacks, now
            self.turns.append((keeps, a_step))
            (trainer.callbacks.remove if keeps else trainer.callbacks.append)(memory)

    def on_stop(self, trainer):
        with open(self.file, "w") as file:
            json.dump([self.chosen, self.turns], file)
"""

TORCH = """
import hashlib, os, sys, time
from datetime import timedelta
import numpy as np
import torch
import torch.distributed as dist

file, steps, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=20))
rank, size = dist.get_rank(), dist.get_world_size()
rng = np.random.default_rng(0)
x = torch.tensor(rng.standard_normal((1437, 64)), dtype=torch.float32)
y = torch.tensor(rng.integers(0, 10, 1437))
torch.manual_seed(0)
layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 10)
net = torch.nn.Sequential(*layers)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters())
sampler = torch.utils.data.DistributedSampler(range(len(x)), size, rank)
step = epoch = 0
if os.path.exists(place):
    state = torch.load(place)
    net.load_state_dict(state["net"]); optimizer.load_state_dict(state["optimizer"])
    step, epoch = state["step"], state["epoch"]
while step < steps:
    sampler.set_epoch(epoch)
    for rows in torch.tensor(list(sampler)).split(16):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        step += 1
        time.sleep(0.002)
        if rank == 0:
            with open(file, "a") as out:
                out.write(f"{time.time()} {step}\\n")
            if step % 50 == 0:
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(),
                            "step": step, "epoch": epoch}, place + ".new")
                os.replace(place + ".new", place)
        if step == steps:
            break
    epoch += 1
if rank == 0:
    values = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
    print("sha256", hashlib.sha256(values).hexdigest(), flush=True)
dist.destroy_process_group()
"""


class Job:
    """One job under its launcher, and the steps that it has written down."""

    def __init__(self, line: list[str], folder: Path) -> None:
        self.notes, self.said = folder / "steps.txt", folder / "said.txt"
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # else torchrun's workers find the addresses of those before and never meet (pytorch#135712)
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with open(self.said, "wb") as out:
            self.process = subprocess.Popen(
                line, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                env=environment, start_new_session=True,
            )  # fmt: skip

    def steps(self) -> list[tuple[float, int]]:
        with contextlib.suppress(FileNotFoundError):
            lines = self.notes.read_text().splitlines()
            return [(float(at), int(step)) for at, step in (line.split() for line in lines)]
        return []

    def ranks(self) -> list[int]:
        """Its ranks' processes: what the launchers' variables are in."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (place / "environ").read_bytes().split(b"\0")
                names = {word.partition(b"=")[0] for word in words}
                own = os.getsid(int(place.name)) == self.process.pid
                program = (place / "cmdline").read_bytes()
                if (own or names & {b"MICROTRAIN_JOB", b"TORCHELASTIC_RUN_ID"}) and (
                    names & {b"PMI_RANK", b"OMPI_COMM_WORLD_RANK", b"TORCHELASTIC_RUN_ID"}
                    and b"process_monitor" not in program and b"python" in program
                ):  # fmt: skip
                    found.append(int(place.name))
        return found

    def end(self) -> str:
        try:
            if self.process.wait(LIMIT):
                raise RuntimeError(self.said.read_text()[-3000:])
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.said.read_text(errors="replace")


def deaths(job: Job, count: int, draw: random.Random) -> tuple[list[float], int]:
    """Kill ranks one after the other; seconds from each kill to the next new step."""
    costs = []
    for _ in range(count):
        seen = len(job.steps())
        while len(job.steps()) < seen + 150:  # a second or so after the last one
            if job.process.poll() is not None:
                raise RuntimeError(job.said.read_text()[-3000:])
            time.sleep(0.05)
        now = time.time()
        os.kill(draw.choice(job.ranks()), signal.SIGKILL)
        time.sleep(0.25)  # what is on its way is none of the new ones
        while not (new := [at for at, _ in job.steps() if at > now + 0.25]):
            if time.time() > now + PATIENCE:
                raise TimeoutError(f"no step within {PATIENCE:g} s of death {len(costs) + 1}")
            time.sleep(0.02)
        costs.append(new[0] - now)
    return costs, len(job.steps())


def measured(name: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Deaths of one kind of job, and whether they changed anything."""
    draw = random.Random(0)
    steps = 400 + 300 * given.deaths
    hashes, result = [], {}
    for killed in (False, True):
        place = folder / f"{name}-{killed}"
        place.mkdir()
        job = Job(_line(name, given, place, steps, killed), place)
        if killed:
            costs, _ = deaths(job, given.deaths, draw)
        said = job.end()
        hashes.append(_sha256(said, place))
        if killed:
            taken = [step for _, step in job.steps()]
            result = {
                "name": name, "deaths": given.deaths, "median_s": statistics.median(costs),
                "worst_s": max(costs), "again": len(taken) - len(set(taken)),
            }  # fmt: skip
    return {**result, "same": hashes[0] == hashes[1]}


def _line(name: str, given: argparse.Namespace, place: Path, steps: int, killed: bool) -> list[str]:
    count = str(given.ranks)
    if name == "torchrun":
        (place / "net.py").write_text(TORCH)
        line = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            count,
        ]
        line += ["--max-restarts", "99", "net.py"]
        return [*line, "steps.txt", str(steps), str(place / "state.pt")]
    (place / "note.py").write_text(NOTE)
    line = [sys.executable, "-m", "microtrain", "launch", "-n", count]
    line += ["--restarts", "99"] if killed else []
    line += ["--in-place", "--spares", str(given.deaths)] if killed and given.in_place else []
    line += ["train", str(ROOT / "configs" / f"{name}.yaml"), f"train.duration={steps} steps"]
    return [*line, "run_dir=runs", f"callbacks=[{{type: ./note.py:Note, file: {place}/steps.txt}}]"]


def _sha256(said: str, place: Path) -> str:
    if found := re.search(r"sha256 (\w+)", said):
        return found[1]
    (info,) = (json.loads(path.read_text()) for path in place.glob("runs/*/2*/run.json"))
    return str(info["params_sha256"])


def overhead(name: str, folder: Path) -> float:
    """What the state in memory costs of the CPU time of a step, by the median of turns."""
    place = folder / f"over-{name}"
    place.mkdir()
    (place / "turns.py").write_text(TURNS)
    line = ["launch", "-n", "1", "--restarts", "1", "train", str(ROOT / "configs" / f"{name}.yaml")]
    line += ["train.duration=1.5 min", "run_dir=runs"]
    line += [f"callbacks=[{{type: ./turns.py:Turns, file: {place}/turns.json}}]"]
    Job([sys.executable, "-m", "microtrain", *line], place).end()
    chosen, turns = json.loads((place / "turns.json").read_text())
    kept, plain = (statistics.median(s for on, s in turns if on == which) for which in (1, 0))
    return float(50 * (kept - plain) / (chosen * plain))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--deaths", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=(*CONFIGS, "torchrun"))
    parser.add_argument("--in-place", action="store_true", help="with a spare a death; Open MPI 5")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = given.only or [*CONFIGS, "torchrun"]
    if "torchrun" in names and importlib.util.find_spec("torch") is None:
        names.remove("torchrun")
        print("torchrun is left out: torch is not installed")
    print(f"{processor()}, {os.cpu_count()} cores, {given.ranks} ranks")
    folder = Path(tempfile.mkdtemp(prefix="microtrain-restarts-"))
    rows = []
    try:
        for name in names:
            row = measured(name, given, folder)
            row["overhead"] = overhead(name, folder) if name in CONFIGS else None
            rows.append(row)
            more = "" if row["overhead"] is None else f", overhead {row['overhead']:.2%}"
            print(
                f"{name:9} {row['deaths']} deaths: median {row['median_s']:.2f} s, worst "
                f"{row['worst_s']:.2f} s, {row['again']} steps again, "
                f"{'the same' if row['same'] else 'other'} bits{more}", flush=True,
            )  # fmt: skip
    finally:
        shutil.rmtree(folder)
    if given.json:
        given.json.write_text(json.dumps({"processor": processor(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
