"""`microtrain train CFG [k=v ...]`: one run, on as many ranks as the launcher started."""

from __future__ import annotations

import click


@click.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--run-dir", metavar="DIR", help="Where runs go, instead of the file's run_dir.")
@click.option("--trace", is_flag=True, help="Write a timeline of each rank, for chrome://tracing.")
def train(config: str, overrides: tuple[str, ...], run_dir: str | None, trace: bool) -> None:
    """Train what the YAML file CONFIG describes, with overrides such as optimizer.lr=0.01.

    Under mpirun or srun all ranks train one model together; batch_size is that of all of them.
    """
    import json

    from microtrain.distributed import connect, world
    from microtrain.distributed.agreement import together
    from microtrain.train.config import load_config_everywhere
    from microtrain.train.trainer import Trainer

    if run_dir is not None:
        overrides = (*overrides, f"run_dir={json.dumps(run_dir)}")  # quoted: it is no YAML
    ranks = world()
    settings = load_config_everywhere(ranks, config, overrides)
    comm = together(ranks, lambda: connect(settings.distributed.backend))
    Trainer(settings, comm, trace=trace).train()
