"""`microtrain resume RUN [k=v ...]`: go on with a run, in its own directory."""

from __future__ import annotations

from typing import Any

import click

from ..config.load import load_sweep
from ..distributed import world
from ..distributed.agreement import from_root
from ..errors import ConfigError
from ..runs.run import Run
from . import options
from .train import train_run


@click.command()
@click.argument("run")
@options.overrides
@options.trust
@options.trace
@options.progress
def resume(run: str, overrides: tuple[str, ...], trust: bool, **how: Any) -> int:
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
    return train_run(settings, resume=path, **how)
