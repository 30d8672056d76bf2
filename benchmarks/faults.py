"""How long a job takes to end after one rank fails: from the fault to the return of mpirun.

Each fault is a real job of 4 ranks that train; the limits of the watchdog are 2 and 5 seconds. The
last column is what was promised: at once, or after the time-out.

    python benchmarks/faults.py
    python benchmarks/faults.py --json faults.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WARN, TIMEOUT = 2.0, 5.0
JOB = """
import os, signal, sys, time
import microtrain as mt
comm = mt.distributed.world()
model = mt.distributed.DataParallel(mt.nn.Linear(2, 1), comm)
optimizer = mt.optim.SGD(model.parameters(), lr=0.1)
for number in range(200):
    if number == 100 and comm.rank == 1:
        with open({mark!r}, "w") as file:
            file.write(repr(time.time()))
        {fault}
    optimizer.zero_grad()
    mt.nn.functional.mse_loss(model(mt.ones(3, 2)), mt.zeros(3, 1)).backward()
    optimizer.step()
"""
# what rank 1 does; seconds that were promised
FAULTS = {
    "raises": ("raise ValueError", 5.0),
    "sys.exit(3)": ("sys.exit(3)", 5.0),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", 5.0),
    "os._exit(0)": ("os._exit(0)", 5.0),
    "leaves": ("sys.exit(0)", 10.0),
    "skips a collective": ("continue", 10.0),
    "SIGSTOP": ("os.kill(os.getpid(), signal.SIGSTOP)", TIMEOUT + 5),
    "loops": ("while True: pass", TIMEOUT + 5),
    "calls another": ("comm.barrier()", TIMEOUT + 5),
}


def once(fault: str, ranks: int) -> tuple[float, int]:
    """Seconds from the fault to the end of the job, and its exit code."""
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else "mpirun"
    with tempfile.TemporaryDirectory() as folder:
        mark = Path(folder) / "mark"
        script = Path(folder) / "job.py"
        script.write_text(JOB.format(mark=str(mark), fault=fault))
        done = subprocess.run(
            [mpirun, "-n", str(ranks), sys.executable, script],
            env=os.environ | {
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
                "MICROTRAIN_WARN_S": str(WARN),
                "MICROTRAIN_TIMEOUT_S": str(TIMEOUT),
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                "OMPI_MCA_mpi_yield_when_idle": "1",
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=10 * (TIMEOUT + 5),
        )  # fmt: skip
        return time.time() - float(mark.read_text()), done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4, metavar="N")
    parser.add_argument("--repeat", type=int, default=3, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args()
    print(f"{options.ranks} ranks, rank 1 fails; medians of {options.repeat} jobs")
    print(f"{'rank 1':<22}{'seconds':>9}{'exit code':>11}{'promised':>10}")
    results = {}
    for name, (fault, promised) in FAULTS.items():
        found = [once(fault, options.ranks) for _ in range(options.repeat)]
        seconds = statistics.median(took for took, _ in found)
        codes = sorted({code for _, code in found})
        results[name] = {"seconds": seconds, "codes": codes}
        shown = ",".join(map(str, codes))
        print(f"{name:<22}{seconds:>9.2f}{shown:>11}{promised:>10.0f}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
