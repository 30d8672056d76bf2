"""`microtrain show [NAME]`: what can be written into a configuration, or what one comes to."""

from __future__ import annotations

import inspect
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from microtrain.errors import ConfigError

from ..config.components import REGISTERED, is_import_path, settable
from ..spelling import did_you_mean

if TYPE_CHECKING:
    from ..config.reference import Component, Key


@click.command()
@click.argument("name", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def show(name: str | None, overrides: tuple[str, ...]) -> None:
    """Show what a configuration can say, or what a YAML file comes to.

    NAME is a component (sgd), a section (train), a key (train.batch_size), an import path, or a
    YAML file or run, of which every value is shown with its origin. Without NAME: what there is.

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
        raise ConfigError(f'overrides go with a YAML file, and "{name}" is none')
    else:
        text = _named(name)
    click.echo(text.rstrip("\n"))


def _resolved(name: str, overrides: tuple[str, ...]) -> str:
    from microtrain.files import read_plain

    from ..config.compose import belongs_to_a_run, unreadable
    from ..config.load import load_config, resolved_yaml
    from ..runs.record import newest_run
    from ..words import printable

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
    with page.section("Components (microtrain show NAME)"):
        page.write_dl([(kind, ", ".join(names)) for kind, names in REGISTERED.items() if names])
    with page.section("Keys (microtrain show SECTION or SECTION.KEY)"):
        page.write_dl(
            [(name or "a file", ", ".join(settable(s, ""))) for name, s in SECTIONS.items()]
        )
    return page.getvalue()


def _named(name: str) -> str:
    from ..config import reference

    keys = reference.every_key()
    page = _page()
    if is_import_path(name):
        _write_component(page, reference.component("model", name), "")
        return page.getvalue()
    kinds = [kind for kind, names in REGISTERED.items() if name in names]
    for kind in kinds:
        _write_component(page, reference.component(kind, name), f"{kind}: ")
    by_last = [key for path, key in keys.items() if name in (path, path.rpartition(".")[2])]
    whole = [key for key in by_last if key.path == name]
    for key in whole or by_last:
        _write_key(page, key)
    below = [key for path, key in keys.items() if path.rpartition(".")[0] == name]
    if below:
        with page.section("Keys"):
            page.write_dl([_line(key, key.path.rpartition(".")[2]) for key in below])
    if REGISTERED.get(name):
        with page.section("Registered"):
            page.write_dl([(part.name, part.summary) for part in reference.registered(name)])
    if not page.getvalue():
        names = [each for registry in REGISTERED.values() for each in registry]
        known = dict.fromkeys([*names, *keys, *(path.rpartition(".")[2] for path in keys)])
        raise ConfigError(
            f'there is no component, section or key "{name}"{did_you_mean(name, known)}\n'
            "hint: microtrain show"
        )
    return page.getvalue()


def _write_component(page: click.HelpFormatter, part: Component, title: str) -> None:
    page.write(f"{title}{part.name}\n")
    about = inspect.cleandoc(part.text).partition("\nArgs:\n")[0].partition("\nExample:\n")[0]
    page.write("".join(f"  {line}".rstrip() + "\n" for line in about.rstrip().splitlines()))
    if part.arguments:
        with page.section("Arguments"):
            page.write_dl([_line(key, key.path) for key in part.arguments])
    page.write("\n")


def _write_key(page: click.HelpFormatter, key: Key) -> None:
    page.write(f"{key.path}\n")
    with page.indentation():
        page.write_text(key.meaning)
        page.write_dl([("expects", key.expects), ("default", key.default)])
    page.write("\n")


def _line(key: Key, name: str) -> tuple[str, str]:
    from ..config.reference import NEEDED

    default = key.default if key.default == NEEDED else f"default {key.default}"
    return name, f"{key.meaning} ({key.expects}; {default})"


def _page() -> click.HelpFormatter:
    return click.HelpFormatter(width=min(100, shutil.get_terminal_size((100, 24)).columns))
