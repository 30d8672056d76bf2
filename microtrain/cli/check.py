"""`microtrain check CFG [k=v ...]`: every mistake of a configuration, or what it will do."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ..config.components import import_paths, is_import_path
from ..config.load import load_sweep
from ..config.resolved import as_yaml
from ..config.schema import Component
from ..config.sweep import Members
from ..errors import DataError
from ..words import plural
from . import options

LIMITS = ("clip_norm", "max_time")


@click.command()
@options.config
@options.overrides
@options.trust
def check(config: str, overrides: tuple[str, ...], trust: bool) -> None:
    """Validate the YAML file CONFIG, with overrides such as optimizer.lr=0.01, without training.

    Writes nothing. Parts of your own are called once, on the first rows of the data, where these
    can be read; without such parts no data is read. Exit code 2 if anything is wrong.
    """
    given = load_sweep(config, overrides, trust=trust or None)
    run = given.config
    train = run.train
    cut = f" in {train.accumulate} micro-batches" if train.accumulate > 1 else ""
    split = run.data.split
    shares = {part: f"{share:g}" for part, share in split.shares.items()}
    for part, keys in split.files.items():
        shares[part] = ", ".join(as_yaml(value).strip('"') for value in keys.values())
    drawn = f", drawn with seed {split.seed}" if split.seed else ""
    drawn += ", stratified" * split.stratify + f", grouped by {split.group}" * bool(split.group)
    drawn += f", in order of {split.time}" * bool(split.time)

    def in_words(path: str, component: Component) -> str:
        """Its name, and the arguments that are not the defaults."""
        name = component.type
        if is_import_path(name):
            name = Path(name).name
        arguments = [
            f"{key} {as_yaml(value)}"
            for key, value in component.arguments.items()
            if f"{path}.{key}" in run.origins
        ]
        return f"{name} ({', '.join(arguments)})" if arguments else name

    def all_in_words(path: str, components: list[Component]) -> str:
        return ", ".join(in_words(f"{path}.{i}", each) for i, each in enumerate(components))

    rows = {
        "name": run.name,
        "sweep": _sweep_in_words(given),
        "data": in_words("data", run.data) + ", standardized" * run.data.standardize,
        "split": ", ".join(f"{part} {share}" for part, share in shares.items()) + drawn,
        "model": in_words("model", run.model),
        "loss": in_words("loss", run.loss),
        "metrics": all_in_words("metrics", run.metrics) or "none besides the loss",
        "optimizer": in_words("optimizer", run.optimizer),
        "schedule": in_words("schedule", run.schedule) if run.schedule else "",
        "train": f"{train.duration}, {train.batch_size} samples a step over all ranks{cut}",
        "limits": ", ".join(f"{k} {v}" for k in LIMITS if (v := getattr(train, k)) is not None),
        "trainer": run.trainer or "",
        "callbacks": all_in_words("callbacks", run.callbacks),
        "start": f"parameters of {train.init_from}" if train.init_from else "",
        "numbers": f"{run.dtype}, device {run.device}, seed {run.seed}",
    }
    looked = "the data were not read"
    if import_paths(run):
        from ..train.rehearsal import try_step  # builds a run, which needs more than a check

        try:
            tried = try_step(given.members[0].config if given.members else run)
            looked = f"parts of your own were tried on {tried} rows"
        except DataError as error:  # they may lie where the run is to train
            if is_import_path(run.data.type):
                raise
            looked = f"parts of your own were not tried: {error}"
    click.echo(f"{config}: no problems found ({looked})")
    for title, text in rows.items():
        if text:
            click.echo(f"  {title:<9}  {text}")
    click.echo(f"next: microtrain train {shlex.join([config, *overrides])}")


def _sweep_in_words(given: Members) -> str:
    """How many members there are, of what; empty for a run. ConfigError for what no sweep has."""
    sweep = given.config.sweep
    if sweep is None:
        return ""
    from ..sweep.runner import check as check_sweep  # it brings tables, and a check starts fast

    check_sweep(given.members)
    settings = len({member.setting for member in given.members})
    seeds = len(given.members) // (settings * (sweep.folds or 1))
    parts = [plural(settings, "setting"), plural(seeds, "seed")]
    if sweep.folds:
        parts.insert(1, plural(sweep.folds, "fold"))
    halving = ", stopped by halving" * (sweep.stop is not None)
    return f"{plural(len(given.members), 'member')}: {' x '.join(parts)}{halving}; below the first"
