"""`microtrain show [NAME]`: what can be written into a configuration, or what one comes to."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterable
from pathlib import Path

import click

from microtrain.errors import ConfigError

from ..common.spelling import did_you_mean
from ..config.components import is_import_path, settable
from ..config.registered import REGISTERED
from . import options


@click.command()
@click.argument("name", required=False)
@options.overrides
def show(name: str | None, overrides: tuple[str, ...]) -> None:
    """Show the keys and components of configurations, or a resolved YAML file.

    NAME is a component (sgd), a section (train), a key (train.batch_size) or an import path; or a
    YAML file or run, to show every value with its origin. Without NAME: list everything.

    \b
    microtrain show
    microtrain show adamw
    microtrain show configs/linreg.yaml optimizer.lr=0.5
    """
    if name is None:
        text = _everything()
    elif Path(name).suffix in (".yaml", ".yml") or (name and os.path.isdir(name)):
        text = _resolved(name, overrides)
    elif overrides:
        raise ConfigError(f'overrides go with a YAML file, and "{name}" is not one')
    else:
        text = _named(name)
    click.echo(text.rstrip("\n"))


def _resolved(name: str, overrides: tuple[str, ...]) -> str:
    from microtrain.common.files import read_plain

    from ..common.words import printable
    from ..config.load import belongs_to_a_run, load_config, resolved_yaml, unreadable
    from ..runs.directory import newest_run

    path = Path(name)
    if os.path.isdir(path):
        run = path if os.path.lexists(path / "config.yaml") else newest_run(path)
        path = path if run is None else run / "config.yaml"
    if belongs_to_a_run(path):
        # A run's own file is resolved already. It may be someone else's: nothing in it is run.
        if overrides:
            raise ConfigError(f"{name} belongs to a run, which overrides cannot change")
        try:
            lines = read_plain(path).decode().splitlines()
        except (OSError, ValueError) as error:
            raise ConfigError(unreadable(path, str(path), error)) from error
        return "\n".join(printable(line) for line in lines)
    return resolved_yaml(load_config(name, overrides))


def _everything() -> str:
    from ..config.schema import SECTIONS

    page = _page()
    kinds = [(kind, ", ".join(names)) for kind, names in REGISTERED.items() if names]
    keys = [(name or "a file", ", ".join(settable(s, ""))) for name, s in SECTIONS.items()]
    _write_rows(page, "Components (microtrain show NAME)", kinds)
    _write_rows(page, "Keys (microtrain show SECTION or SECTION.KEY)", keys)
    return page.getvalue()


def _named(name: str) -> str:
    from ..config import reference

    def line(key: reference.Key) -> tuple[str, str]:
        default = key.default if key.default == reference.NEEDED else f"default {key.default}"
        return key.name, f"{key.meaning} ({key.expects}; {default})"

    page, keys = _page(), reference.every_key()
    own_code = is_import_path(name)
    for kind in ["model"] if own_code else [k for k, names in REGISTERED.items() if name in names]:
        part = reference.component(kind, name)
        page.write(f"{name}\n" if own_code else f"{kind}: {name}\n")
        about = re.split(r"\n(?:Args|Example):\n", part.text)[0].rstrip()
        page.write(textwrap.indent(f"{about}\n", "  "))
        _write_rows(page, "Arguments", map(line, part.arguments))
        page.write("\n")
    by_last = [key for path, key in keys.items() if name in (path, key.name)]
    for key in [keys[name]] if name in keys else by_last:
        page.write(f"{key.path}\n")
        with page.indentation():
            page.write_text(key.meaning)
            page.write_dl([("expects", key.expects), ("default", key.default)])
        page.write("\n")
    below = [key for path, key in keys.items() if path.rpartition(".")[0] == name]
    _write_rows(page, "Keys", map(line, below))
    if name in REGISTERED:
        parts = reference.registered(name)
        _write_rows(page, "Registered", ((part.name, part.summary) for part in parts))
    if not page.getvalue():
        names = [each for registry in REGISTERED.values() for each in registry]
        known = dict.fromkeys([*names, *keys, *(key.name for key in keys.values())])
        raise ConfigError(
            f'there is no component, section or key "{name}"{did_you_mean(name, known)}\n'
            "hint: microtrain show"
        )
    return page.getvalue()


def _write_rows(page: click.HelpFormatter, title: str, rows: Iterable[tuple[str, str]]) -> None:
    if rows := [*rows]:
        with page.section(title):
            page.write_dl(rows)


def _page() -> click.HelpFormatter:
    return click.HelpFormatter(width=min(100, shutil.get_terminal_size((100, 24)).columns))
