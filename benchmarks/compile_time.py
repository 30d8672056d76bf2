"""What compiling native code costs, and how it grows with depth.

Each row is a process of its own with an empty cache; figures are CPU seconds of the calls of
`mt.compile(step, executor="native")` until it is native code, with the compiler's. What every step
shares (runtime.c, once on a machine) is compiled before, and told apart.

    python benchmarks/compile_time.py             # by depth, and of other models
    python benchmarks/compile_time.py --ranks 4   # jobs: CPU seconds of all ranks, cold and warm
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEPTHS = 1, 12, 50, 500
# Seconds that so many equal layers must cost at most.
MUST = {12: "0.3 s", 500: "30 s"}
MODELS = (
    "linear", "mlp of 2 layers", "mlp of 3 layers", "12 equal layers", "12 widths", "24 widths",
    "convolutions", "norms", "1 encoder layer", "6 encoder layers", "lstm",
)  # fmt: skip
RUN = """\
name: compiled
data: {type: synthetic_random, samples: 8000, features: 8, targets: 1}
model: {type: mlp, hidden: [16, 16, 16, 16]}
loss: mse
optimizer: {type: adam, lr: 0.001}
train: {duration: 500 steps, batch_size: 64, compile: native}
distributed: {blas_threads: 1}
"""


def model(name: str) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """A module, and the shapes of its input and its target."""
    from microtrain import nn

    def mlp(*widths: int) -> Any:
        pairs = itertools.pairwise(widths)
        return nn.Sequential(*[part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())])

    def encoder(layers: int) -> Any:
        kind = nn.TransformerEncoderLayer
        parts = [kind(32, 4, 64, dropout=0.0, batch_first=True) for _ in range(layers)]
        return nn.Sequential(*parts), (4, 10, 32), (4, 10, 32)

    if name.endswith("equal layers"):
        return mlp(*[32] * (int(name.split()[0]) + 1)), (16, 32), (16, 32)
    if name.endswith("widths"):
        count = int(name.split()[0])
        return mlp(32, *range(20, 20 + 2 * (count - 1), 2), 32), (16, 32), (16, 32)
    if "encoder" in name:
        return encoder(int(name[0]))
    if name == "convolutions":
        parts = (
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 10),
        )  # fmt: skip
        return nn.Sequential(*parts), (8, 1, 28, 28), (8, 10)
    if name == "norms":
        more = (nn.Linear(64, 48), nn.LayerNorm(48), nn.Tanh(), nn.Linear(48, 32))
        parts = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.1), *more
        return nn.Sequential(*parts), (16, 32), (16, 32)
    if name == "lstm":

        class Reader(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.read, self.last = nn.LSTM(8, 16, 2), nn.Linear(16, 3)

            def forward(self, x: Any) -> Any:
                return self.last(self.read(x)[0])

        return Reader(), (12, 5, 8), (12, 5, 3)
    made = {
        "linear": (nn.Linear(9, 1), (256, 9), (256, 1)),
        "mlp of 2 layers": (mlp(8, 16, 1), (64, 8), (64, 1)),
        "mlp of 3 layers": (mlp(100, 64, 32, 10), (64, 100), (64, 10)),
    }
    return made[name]


def compiled(name: str) -> None:
    """Compile a step, and print what that took."""
    import numpy as np

    import microtrain as mt
    from microtrain.capture.c_compiler import runtime

    mt.manual_seed(0)
    net, inputs, targets = model(name)
    optimizer = mt.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    @mt.compile(executor="native")
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = mt.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    random = np.random.default_rng(0)
    x, y = (mt.tensor(random.standard_normal(s).astype("f")) for s in (inputs, targets))
    begin = sum(os.times()[:4])
    runtime()
    start = sum(os.times()[:4])
    while not step.captures:
        step(x, y)
    total = sum(os.times()[:4]) - start
    lines = step.source().count(";")
    print(json.dumps({"total": total, "lines": lines, "shared": start - begin}))


def apart(name: str) -> Any:
    """What `compiled` prints, in a process and with a cache of its own."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [sys.executable, __file__, "--model", name],
            env=os.environ | {"XDG_CACHE_HOME": home, "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return json.loads(done.stdout)


def by_depth() -> None:
    """CPU seconds until a step of equal layers is native code."""
    print(f"{'equal layers':<16}{'CPU s':>8}{'of 1 layer':>12}   must")
    one = 0.0
    for depth in DEPTHS:
        found = apart(f"{depth} equal layers")
        total = found["total"]
        if not one:
            print(f"{'runtime.c':<16}{found['shared']:>8.2f}")
        one = one or total
        must = MUST.get(depth, "")
        good = not must or total <= float(must.split()[0])
        mark = "" if not must else f"{must}: {'yes' if good else 'NO'}"
        print(f"{depth:<16}{total:>8.2f}{total / one:>12.2f}   {mark}", flush=True)


def of_models() -> None:
    """The same of models of other kinds."""
    print(f"\n{'model':<18}{'lines':>7}{'CPU s':>8}")
    for name in MODELS:
        found = apart(name)
        print(f"{name:<18}{found['lines']:>7}{found['total']:>8.2f}", flush=True)


def of_ranks(count: int) -> None:
    """CPU seconds of all ranks of jobs that compile, with an empty cache and with a full one."""
    mpirun = Path(sys.executable).with_name("mpirun")
    start = [str(mpirun) if mpirun.exists() else "mpirun", "-n", str(count), sys.executable]
    for name, more in (("a run", []), *((p.stem, [str(p)]) for p in configurations())):
        with tempfile.TemporaryDirectory() as home:
            (Path(home) / "run.yaml").write_text(RUN, encoding="utf-8")
            took = []
            for _ in ("cold", "warm"):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(
                    [*start, "-m", "microtrain", "train", *(more or ["run.yaml"]),
                     "--run-dir", f"{home}/runs", "train.compile=native"],
                    cwd=home if not more else ROOT,
                    env=os.environ | {"XDG_CACHE_HOME": home, "OMP_NUM_THREADS": "1"},
                    capture_output=True, check=True,
                )  # fmt: skip
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        print(f"{name:<18}{count} ranks: cold {took[0]:.1f}, warm {took[1]:.1f} CPU s", flush=True)


def configurations() -> list[Path]:
    """The configurations that come with the repository."""
    return sorted((ROOT / "configs").glob("*.yaml"))


def main() -> None:
    """Print the tables, or what one row needs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int)
    given = parser.parse_args()
    if given.model:
        compiled(given.model)
    elif given.ranks:
        of_ranks(given.ranks)
    else:
        by_depth()
        of_models()


if __name__ == "__main__":
    main()
