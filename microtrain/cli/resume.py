"""`microtrain resume RUN [k=v ...]`: go on with a run, in its own directory."""

from __future__ import annotations

from typing import Any

import click

from ..config.load import load_sweep
from ..distributed import world
from ..distributed.agreement import from_root
from ..errors import ConfigError
from ..runs.run import Run
from .train import progress_option, train_run


@click.command()
@click.argument("run")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--trust", is_flag=True, help="Run the code that the run's import paths name.")
@click.option("--trace", is_flag=True, help="Write a timeline of each rank for chrome://tracing.")
@progress_option
def resume(run: str, overrides: tuple[str, ...], trust: bool, **options: Any) -> int:
    """Resume RUN (a run directory, or runs/NAME for the newest) where it was interrupted.

    The result is the same as without the interruption. Settings that do not change the mathematics
    of a step can be overridden, such as train.duration='40 epochs' or checkpoint.every='5 min'.
    """

    def find() -> str:
        for override in overrides:
            if override.startswith(("name=", "run_dir=")):
                raise ConfigError(f"the name and directory of a run cannot change; omit {override}")
        return str(Run.read(run).path)

    path = from_root(world(), find)
    settings = from_root(world(), lambda: load_sweep(f"{path}/config.yaml", overrides, trust=trust))
    return train_run(settings, resume=path, **options)
