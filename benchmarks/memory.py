"""Peak memory of training steps against PyTorch eager, each measured in a fresh process.

Two numbers for zero_grad, forward, loss, backward, SGD with momentum, over 20 steps from the
building of the network on:

    resident   growth of the peak resident memory over the state after the import (Linux)
    allocated  peak of the bytes of arrays and Tensors alive at one time, the data left out:
               tracemalloc for microtrain (with all Python objects), torch.profiler for PyTorch

The second is reported only. It is higher here because gradients live in flat memory that stays
between steps: PyTorch frees them in zero_grad, and activations take their place until backward has
used them up. `resident` is what a machine has to have.

    python benchmarks/memory.py                      # the table
    python benchmarks/memory.py --json memory.json   # and its numbers
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

from step import NETS, arrays, training_step  # first: it pins the process and limits threads

ROWS = ("seed 64x1000x100x10", "large 1024x1024x1024x10")
MUST = {"resident": 1.0, "allocated": None}  # ratios that must be reached; None: reported only
LIBRARIES = ("microtrain", "torch")
STEPS = 20


def status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def train(library: Any, row: str) -> None:
    step = training_step(library, *NETS[row])
    for _ in range(STEPS):
        step()


def resident(library: Any, row: str) -> int:
    """The growth of the peak; what the import itself took at its peak is forgotten first."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = status("VmRSS")
    train(library, row)
    return status("VmHWM") - before


def allocated(library: Any, row: str) -> int:
    """The peak of the bytes in use."""
    if library.__name__ == "torch":
        return allocated_by_torch(library, row)
    data = sum(array.nbytes for array in arrays(*NETS[row]))
    tracemalloc.start()
    train(library, row)
    return tracemalloc.get_traced_memory()[1] - data


def allocated_by_torch(torch: Any, row: str) -> int:
    """The highest running total that the profiler reports."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        train(torch, row)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
    return int(max(totals))


def measure(kind: str, library: str, row: str) -> int:
    """The number of bytes that a fresh process finds."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", kind, library, row],
        stdin=subprocess.DEVNULL,
        capture_output=True,  # torch's profiler announces itself
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return int(done.stdout.splitlines()[-1])


def child(kind: str, name: str, row: str) -> None:
    library: Any = importlib.import_module(name)
    if name == "torch":
        library.set_num_threads(1)
    print({"resident": resident, "allocated": allocated}[kind](library, row))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--only", default="", help="rows whose name contains this text")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return 0
    libraries = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    results: dict[str, dict[str, dict[str, int]]] = {}
    print(f"peak memory in MB of {STEPS} steps, float32")
    print(f"{'step':<26}{'':<12}{'microtrain eager':>18}{'torch eager':>14}{'ratio':>8}{'must':>7}")
    below = True
    for row in (name for name in ROWS if options.only in name):
        for kind, must in MUST.items():
            found = {name: measure(kind, name, row) for name in libraries}
            results.setdefault(row, {})[kind] = found
            mine, peer = found["microtrain"], found.get("torch")
            ratio, peer_text = "-", "-"
            if peer is not None:
                ratio, peer_text = f"{mine / peer:.3f}", f"{peer / 1e6:,.2f}"
                below = below and (must is None or mine / peer < must)
            limit = "-" if must is None else f"{must:.2f}"
            line = f"{row:<26}{kind:<12}{mine / 1e6:>18,.2f}{peer_text:>14}{ratio:>8}{limit:>7}"
            print(line, flush=True)
    if len(libraries) < len(LIBRARIES):
        print("left out: torch (pip install torch==2.13.0) is not installed")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"python": platform.python_version(), "bytes": results}, file, indent=2)
    return 0 if below else 1


if __name__ == "__main__":
    sys.exit(main())
