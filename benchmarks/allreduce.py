"""all_reduce of this package against mpi4py's own call and PyTorch's over gloo.

One job, rounds that take turns. What "ours" takes beyond "mpi4py" is the price of the checks of
arguments and of what the watchdog sees.

    python benchmarks/allreduce.py                    # 2 and 4 ranks
    python benchmarks/allreduce.py --json allreduce.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ranks  # first: it limits threads

import numpy as np  # isort: skip

SIZES = (4, 4096, 524_288, 4_194_304)  # bytes
COLUMNS = ("ours", "mpi4py", "torch")


def worker(seconds: float) -> ranks.Results | None:
    """What each rank does."""
    import microtrain as mt

    comm: Any = mt.distributed.world()
    torch = ranks.torch_distributed(comm)
    results = {}
    for size in SIZES:
        array = np.ones(size // 4, "f4")
        if not (comm.all_reduce(array) == comm.size).all():
            raise RuntimeError("all_reduce gave a wrong sum")
        array[...] = 0
        steps: dict[str, Callable[[], Any]] = {
            "ours": lambda array=array: comm.all_reduce(array),
            "mpi4py": lambda array=array: comm._comm.Allreduce(comm._in_place, array),
        }
        if torch is not None:
            tensor = torch.zeros(size // 4)
            steps["torch"] = lambda tensor=tensor: torch.distributed.all_reduce(tensor)
        results[f"{size:,} B"] = ranks.measure(comm, steps, seconds)
    if torch is not None:
        torch.distributed.destroy_process_group()
    return results if comm.rank == 0 else None


if __name__ == "__main__":
    sys.exit(ranks.main(__doc__.splitlines()[0], __file__, worker, COLUMNS, ("ours",), {}))
