"""`microtrain verify CFG`: resume, numbers of ranks and gradients, proven for a configuration."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from ..common.threads import launch_environment
from ..config.load import load_config
from ..errors import ConfigError, LaunchError
from ..verify import Result, Verification
from . import mpirun, options


def _counts(ctx: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if len(counts) < 2 or min(counts) < 1 or len(set(counts)) < len(counts):
        raise click.BadParameter(f"expected different numbers such as 1,2,4, got {text!r}")
    return counts


@click.command()
@options.config
@options.overrides
@click.option("--resume", is_flag=True, help="Kill a run, resume it, and compare the bits.")
@click.option("--ranks", callback=_counts, metavar="1,2,4", help="Compare these numbers of ranks.")
@click.option("--grad", is_flag=True, help="Compare gradients with finite differences in float64.")
@click.option("--steps", type=click.IntRange(2), help="Steps of each run; default: at most 320.")
@options.trust
def verify(
    config: str,
    overrides: tuple[str, ...],
    resume: bool,
    ranks: list[int] | None,
    grad: bool,
    steps: int | None,
    trust: bool,
) -> int:
    """Test that runs of CONFIG resume exactly, and that ranks and gradients agree.

    Without options, runs all tests that can run here. The tests start short runs in a temporary
    directory and write nothing else. Exit code 1 if anything differs.

    \b
    microtrain verify configs/linreg.yaml
    microtrain verify configs/linreg.yaml --ranks 1,2,4 distributed.reproducible=world
    """
    mpirun.refuse_nested(launch_environment())
    settings = load_config(config, overrides, trust=trust or None)
    if settings.sweep is not None:
        raise ConfigError(f"{config} describes a sweep, but verify tests one run: leave out sweep")
    every = not (resume or ranks or grad)
    results: list[Result] = []

    def start_ranks(count: int, command: list[str]) -> mpirun.Line:
        return mpirun.plan(mpirun.find_mpirun(), count, command)

    def tell(result: Result) -> None:
        results.append(result)
        click.echo(f"{result.check:<8} {result.outcome:<9} {result.text}")

    with tempfile.TemporaryDirectory(prefix="microtrain-verify-") as directory:
        checks = Verification(settings, Path(directory), start_ranks, steps)
        if every or grad:
            tell(checks.gradients())
        if every or resume:
            tell(checks.resume())
        if every or ranks:
            try:
                tell(checks.ranks(ranks or [1, 2, 4]))
            except LaunchError as error:
                if ranks:
                    raise
                tell(Result("ranks", "left out", str(error).splitlines()[0]))
    return int(any(each.outcome == "FAILED" for each in results))
