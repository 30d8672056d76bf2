"""Compressed gradients, and reductions beside the backward pass, over a slow network.

Two hosts in network namespaces with links of 100 Mbit/s, one rank each (`scripts/test_hosts` makes
them; needs root and iproute2). One job trains the same network in all ways, in rounds that take
turns. Medians over the rounds of the slower rank, in milliseconds a step.

    python benchmarks/slow_link.py
    python benchmarks/slow_link.py --rate 1gbit --batch 1024 --json slow_link.json
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import ranks  # first: it limits threads

ROOT = Path(__file__).resolve().parent.parent
WAYS: dict[str, dict[str, Any]] = {
    "one reduction": {"overlap": "off"},
    "buckets": {"overlap": "on", "bucket_mb": 0.25},
    "fp16": {"compression": "fp16"},
    "bf16": {"compression": "bf16"},
}
WIDTH = 512  # each layer has a megabyte of gradients


def worker(seconds: float, batch: int, depth: int, out: str) -> None:
    """What each rank does."""
    import warnings

    import microtrain as mt

    warnings.simplefilter("ignore")
    comm = mt.distributed.world()
    steps = {}
    for name, options in WAYS.items():
        mt.manual_seed(0)
        layers: list[Any] = []
        for _ in range(depth):
            layers += [mt.nn.Linear(WIDTH, WIDTH), mt.nn.ReLU()]
        model = mt.distributed.DataParallel(mt.nn.Sequential(*layers), comm, **options)
        optimizer = mt.optim.SGD(model.parameters(), lr=1e-3)
        x = mt.randn(batch, WIDTH)

        def step(model: Any = model, optimizer: Any = optimizer, x: Any = x) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        steps[name] = step
    found = ranks.measure(comm, steps, seconds)
    if comm.rank == 0:
        Path(out).write_text(json.dumps(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", default="100mbit", help="of each link, as tc writes it")
    parser.add_argument("--batch", type=int, default=64, help="rows of each rank (default 64)")
    parser.add_argument("--layers", type=int, default=3, help="of the network (default 3)")
    parser.add_argument("--seconds", type=float, default=30.0, help="for all rows (default 30)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--worker", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.seconds, options.batch, options.layers, options.worker)
        return 0
    loader = importlib.machinery.SourceFileLoader("test_hosts", str(ROOT / "scripts/test_hosts"))
    spec = importlib.util.spec_from_loader("test_hosts", loader)
    assert spec is not None
    hosts: Any = importlib.util.module_from_spec(spec)
    loader.exec_module(hosts)
    hosts.RANKS_A_HOST = 1
    os.environ["PATH"] += hosts.SBIN
    with tempfile.TemporaryDirectory() as folder:
        made = None
        try:
            hosts.check_here()
            made = hosts.Hosts(2, options.rate, Path(folder))
            made.make()
            out = Path(folder) / "out.json"
            arguments = (__file__, "--worker", str(out), "--seconds", str(options.seconds))
            arguments += ("--batch", str(options.batch), "--layers", str(options.layers))
            made.finished(*arguments, seconds=120 + 4 * options.seconds)
            found = json.loads(out.read_text())
        except hosts.Skip as reason:
            print(f"left out: {reason}")
            return 0
        finally:
            if made is not None:
                made.remove()
    size = f"{options.layers * WIDTH * (WIDTH + 1) * 4 / 1e6:.1f} MB a step"
    print(f"2 hosts, links of {options.rate}, {options.batch} rows a rank, {size}")
    for name, us in found.items():
        print(f"{name:<16}{us / 1e3:>9.1f} ms{us / found['one reduction']:>8.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps({"rate": options.rate, "us": found}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
