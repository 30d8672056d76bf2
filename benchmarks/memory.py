"""Peak memory of training steps against PyTorch eager, each measured in a fresh process.

Two numbers for zero_grad, forward, loss, backward, SGD with momentum, over 20 steps from the
building of the network on:

    resident   growth of the peak resident memory over the state after the import (Linux)
    allocated  peak of the bytes of arrays and Tensors alive at one time, the data left out:
               tracemalloc for microtrain (with all Python objects), torch.profiler for PyTorch

The compiled steps are microtrain's with an executor; torch is loaded before.
`allocated` is reported only. It is higher here because gradients live in flat memory that stays
between steps: PyTorch frees them in zero_grad, and activations take their place until backward has
used them up. `resident` is what a machine has to have.

The second table is about the memory of intermediate results in a compiled step: what an eager step
that frees nothing would have (the capture has), and what a replay has, where results share.

    python benchmarks/memory.py                      # the table
    python benchmarks/memory.py --json memory.json   # and its numbers
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

from step import NETS, machine, training_step  # first: it pins the process and limits threads

# isort: split

from peers import arrays

ROWS = ("seed 64x1000x100x10", "large 1024x1024x1024x10")
# Ratios to torch that must be reached, by kind and row; what is not here is reported only.
MUST = {("resident", ROWS[0]): 0.4, ("resident", ROWS[1]): 1.0}
KINDS = ("resident", "allocated")
# name -> (what it is imported as, executor)
SIDES = {
    "eager": ("microtrain", None),
    "numpy": ("microtrain", "numpy"),
    "native": ("microtrain", "native"),
    "torch": ("torch", None),
}
STEPS = 20


def status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def train(library: Any, row: str, executor: str | None) -> None:
    if executor is None:
        step = training_step(library, NETS[row]).step
    else:
        wrap = functools.partial(library.compile, executor=executor)
        step = training_step(library, NETS[row], wrap).step
    for _ in range(STEPS):
        step()


def resident(library: Any, row: str, executor: str | None) -> int:
    """The growth of the peak; what the import itself took at its peak is forgotten first."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status("VmRSS")
    train(library, row, executor)
    return status("VmHWM") - before


def allocated(library: Any, row: str, executor: str | None) -> int:
    """The peak of the bytes in use."""
    if library.__name__ == "torch":
        return allocated_by_torch(library, row)
    data = sum(array.nbytes for array in arrays(NETS[row]))
    tracemalloc.start()
    train(library, row, executor)
    return tracemalloc.get_traced_memory()[1] - data


def allocated_by_torch(torch: Any, row: str) -> int:
    """The highest running total that the profiler reports."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        train(torch, row, None)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
    return int(max(totals))


def measure(kind: str, side: str, row: str) -> int:
    """The number of bytes that a fresh process finds."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", kind, side, row],
        stdin=subprocess.DEVNULL,
        capture_output=True,  # torch's profiler announces itself
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return int(done.stdout.splitlines()[-1])


def child(kind: str, side: str, row: str) -> None:
    name, executor = SIDES[side]
    library: Any = importlib.import_module(name)
    if name == "torch":
        library.set_num_threads(1)
    print({"resident": resident, "allocated": allocated}[kind](library, row, executor))


# Intermediate results -----------------------------------------------------------------------------


def networks() -> dict[str, tuple[Any, Any, Any]]:
    """Networks as people train them: model, batch, targets."""
    import microtrain as mt

    nn = mt.nn
    found: dict[str, tuple[Any, Any, Any]] = {}
    for row in ROWS:
        batch, widths = NETS[row]
        layers = [nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Linear(widths[1], widths[2])]
        found[row] = nn.Sequential(*layers), mt.randn(batch, widths[0]), mt.randn(batch, widths[2])
    layers = [
        layer
        for inputs, outputs in ((1, 16), (16, 32))
        for layer in (nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    ]
    convolutional = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 49, 10))
    found["convolutional 64x1x28x28"] = convolutional, mt.randn(64, 1, 28, 28), mt.randn(64, 10)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    shape = 16, 64, 128
    transformer = nn.TransformerEncoder(layer, 4)
    found["transformer 4 layers 16x64x128"] = transformer, mt.randn(*shape), mt.randn(*shape)
    return found


def buffers(model: Any, x: Any, y: Any) -> tuple[int, int]:
    """Bytes of what a compiled step makes: every result with memory of its own, and as it is."""
    import microtrain as mt

    optimizer = mt.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        mt.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    compiled = mt.compile(step, executor="numpy")
    while not compiled.programs:
        compiled(x, y)
    _, before, _, after = compiled.programs[0].buffers
    return before, after


def main() -> int:
    from microtrain.capture.c_compiler import absent

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    missing = ["torch"] * (not importlib.util.find_spec("torch"))
    missing += ["native"] * bool(absent())
    sides = [name for name in SIDES if name not in missing]
    results: dict[str, dict[str, dict[str, int]]] = {}
    print(f"peak memory in MB of {STEPS} steps, float32")
    columns = "".join(f"{name:>10}" for name in SIDES)
    ratios = "".join(f"{f'{name}/torch':>13}" for name in SIDES if name != "torch")
    print(f"{'step':<26}{'':<11}{columns}{ratios}{'must':>6}")
    below = True
    for row in (name for name in ROWS if options.only in name):
        for kind in KINDS:
            found = {name: measure(kind, name, row) for name in sides}
            results.setdefault(row, {})[kind] = found
            line = "".join(
                f"{found[name] / 1e6:>10,.2f}" if name in found else f"{'-':>10}" for name in SIDES
            )
            must = MUST.get((kind, row))
            for name in (name for name in SIDES if name != "torch"):
                if name not in found or "torch" not in found:
                    line += f"{'-':>13}"
                    continue
                ratio = found[name] / found["torch"]
                line += f"{ratio:>13.3f}"
                # What compiling to native code needs goes with a full cache.
                below = below and (must is None or name == "native" or ratio <= must)
            limit = "-" if must is None else f"{must:.2f}"
            print(f"{row:<26}{kind:<11}{line}{limit:>6}", flush=True)
    print(f"\n{'results of a compiled step, MB':<32}{'apart':>10}{'shared':>10}{'saved':>8}")
    shared: dict[str, tuple[int, int]] = {}
    for row, (model, x, y) in networks().items():
        if options.only in row:
            apart, together = shared[row] = buffers(model, x, y)
            line = f"{apart / 1e6:>10,.2f}{together / 1e6:>10,.2f}{1 - together / apart:>8.0%}"
            print(f"{row:<32}{line}", flush=True)
    for name in missing:
        print(f"left out: {name} is not installed")
    if options.json:
        data = {"versions": machine(), "bytes": results, "results apart and shared": shared}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=2)
    return 0 if below else 1


if __name__ == "__main__":
    sys.exit(main())
