"""How long a command takes before it does anything: processes from their start to their end.

`microtrain --help` beside `python -c "import microtrain"`, and that beside the import of NumPy, on
which it stands. They take turns; the first round, which fills caches, is left out.

    python benchmarks/start.py                    # the table
    python benchmarks/start.py --json start.json  # and its numbers
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "import numpy": ["-c", "import numpy"],
    "import microtrain": ["-c", "import microtrain"],
    "microtrain --help": ["-m", "microtrain", "--help"],
}
# row -> over which other, and what it may be at most
RATIOS = {
    "import microtrain": ("import numpy", None),
    "microtrain --help": ("import microtrain", 1.3),
}


def measure(rounds: int) -> dict[str, float]:
    """Median milliseconds of each command."""
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(rounds + 1):
        for name, arguments in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, *arguments], env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, check=True,
            )  # fmt: skip
            found[name].append((time.perf_counter() - began) * 1e3)
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Start-up time of microtrain.")
    parser.add_argument("--rounds", type=int, default=20, help="default 20")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, medians in ms")
    ms = measure(options.rounds)
    ratios = {}
    for name, value in ms.items():
        line = f"{name:<20}{value:>8.1f}"
        if name in RATIOS:
            other, most = RATIOS[name]
            ratios[f"{name} / {other}"] = ratio = value / ms[other]
            line += f"   {ratio:.2f} x {other}" + (f"   must {most:g}" if most else "")
        print(line)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"ms": ms, "ratios": ratios}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
