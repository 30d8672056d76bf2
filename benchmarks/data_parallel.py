"""A data-parallel step over MPI against the same step in PyTorch's DistributedDataParallel.

One job: every rank trains with both libraries, PyTorch over gloo, in rounds that take turns, so
that a busy neighbor slows both alike. A step is zero_grad, forward, MSE, backward with the
reduction, SGD with momentum; the batch is that of each rank. Both must have learned the same, or
there are no figures.

    python benchmarks/data_parallel.py                # 2 and 4 ranks
    python benchmarks/data_parallel.py --ranks 2 --json data_parallel.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import ranks  # first: it limits threads
from peers import arrays
from step import NETS  # after NumPy: it would pin all ranks to one core

import numpy as np  # isort: skip

MUST = {"linreg 32x1x1": 0.02, "small 16x8x16x1": 0.02, "seed 64x1000x100x10": 0.35}
OURS = ("eager", "numpy", "native")
CHECKED = 5  # steps after which the libraries must agree


def make(library: Any, row: str, wrap: Callable[[Any], Any], rank: int) -> tuple[Any, Any, Any]:
    """A model, its data-parallel wrapper, and a step; the same initial weights everywhere."""
    net = NETS[row]
    layers: list[Any] = []
    rng = np.random.default_rng(1)
    for inputs, outputs in pairwise(net.widths):
        layer = library.nn.Linear(inputs, outputs)
        with library.no_grad():
            for p in layer.parameters():
                values = rng.uniform(-1, 1, tuple(p.shape)) / inputs**0.5
                p.copy_(library.from_numpy(values.astype("f4")))
        layers += [layer, library.nn.ReLU()]
    model = library.nn.Sequential(*layers[:-1])
    parallel = wrap(model)
    optimizer = library.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = arrays(net)
    x, y = map(library.from_numpy, (x + np.float32(rank), y))
    mse_loss = library.nn.functional.mse_loss

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = mse_loss(parallel(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, step, (x, y)


def values(model: Any) -> np.ndarray:
    return np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()])


def worker(seconds: float) -> ranks.Results | None:
    """What each rank does."""
    import microtrain as mt
    from microtrain.capture.c_compiler import absent

    comm = mt.distributed.world()
    torch = ranks.torch_distributed(comm)
    names = [n for n in OURS if n != "native" or not absent()]
    results = {}
    for row in MUST:
        made = {}
        for name in names:
            model, step, batch = make(
                mt, row, lambda m: mt.distributed.DataParallel(m, comm), comm.rank
            )
            made[name] = model, step if name == "eager" else mt.compile(step, executor=name), batch
        if torch is not None:
            made["torch"] = make(torch, row, torch.nn.parallel.DistributedDataParallel, comm.rank)
        steps = {
            n: lambda step=step, batch=batch: step(*batch) for n, (_, step, batch) in made.items()
        }
        for step in steps.values():
            for _ in range(CHECKED):
                step()
        expected = values(made["torch" if torch is not None else "eager"][0])
        for name, (model, _, _) in made.items():
            np.testing.assert_allclose(values(model), expected, 1e-4, 1e-5, err_msg=name)
        results[row] = ranks.measure(comm, steps, seconds)
    if torch is not None:
        torch.distributed.destroy_process_group()
    return results if comm.rank == 0 else None


if __name__ == "__main__":
    columns = (*OURS, "torch")
    sys.exit(ranks.main(__doc__.splitlines()[0], __file__, worker, columns, OURS, MUST))
