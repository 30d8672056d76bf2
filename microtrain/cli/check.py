"""`microtrain check CFG [k=v ...]`: every mistake of a configuration, or what it will do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import click

from ..common.words import plural
from ..config.components import import_paths, is_import_path
from ..config.load import load_sweep
from ..config.resolved import as_yaml, entries
from ..config.schema import LISTS, Members
from ..errors import DataError
from . import options


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
    rows = {key: _in_words(key, value, run.origins) for key, value in entries(run).items()}
    rows["sweep"] = _sweep_in_words(given)
    looked = "the data were not read"
    if import_paths(run):
        from ..train.dry_run import try_step

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
            click.echo(f"  {title:<11}  {text}")
    click.echo(f"next: microtrain train {shlex.join([config, *overrides])}")


def _in_words(path: str, value: Any, origins: Mapping[str, str]) -> str:
    """What is given of a value: of a section its keys, of a component its name and arguments."""
    if isinstance(value, list) and path in LISTS:
        return ", ".join(_in_words(f"{path}.{i}", each, origins) for i, each in enumerate(value))
    if not any(f"{at}.".startswith(f"{path}.") for at in origins):
        return ""
    if not is_dataclass(value):
        return as_yaml(value).strip('"')
    parts = {key: _in_words(f"{path}.{key}", each, origins) for key, each in entries(value).items()}
    name = parts.pop("type", "")
    words = ", ".join(f"{key} {text}" for key, text in parts.items() if text)
    if "." not in path and not name:
        return words
    return f"{Path(name).name} ({words})".strip() if words else Path(name).name


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
