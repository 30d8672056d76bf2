"""`microtrain init TEMPLATE DIR`: a small working run to change into one's own."""

from __future__ import annotations

import os
import shlex
from importlib.resources import files
from pathlib import Path

import click

from microtrain.errors import ConfigError, LaunchError

from ..spelling import did_you_mean

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")  # of a table
# Name, what it is, and what to type next with its file.
TEMPLATES = {
    "linreg": ("a line through points: the smallest whole run", "microtrain train {}/linreg.yaml"),
    "mlp": ("a network with hidden layers", "microtrain train {}/mlp.yaml"),
    "digits": ("handwritten digits, from scikit-learn", "microtrain train {}/digits.yaml"),
    "csv": ("your own table, with one to begin with", "microtrain train {}/csv.yaml"),
    "custom": ("a model of your own in Python", "microtrain train {}/custom.yaml"),
    "library": ("a loop of your own in Python, no YAML", "python {}/train.py"),
}


@click.command()
@click.argument("template", required=False)
@click.argument("directory", required=False)
@click.option("--target", metavar="NAME", help="Of init csv FILE: the column to predict.")
@click.option("--output", metavar="FILE", help="Of init csv FILE: where to write.")
def init(
    template: str | None, directory: str | None, target: str | None, output: str | None
) -> None:
    """Write the files of TEMPLATE into DIRECTORY, which is made if need be.

    Nothing is ever overwritten. Without arguments: the templates that there are. With a table of
    your own in place of a directory, `init csv FILE` looks at it and proposes a configuration.

    \b
    microtrain init digits my_digits
    microtrain init csv customers.csv --target churned
    """
    if template is None:
        for name, (about, _) in TEMPLATES.items():
            click.echo(f"  {name:<8}  {about}")
        click.echo("next: microtrain init TEMPLATE DIRECTORY")
        return
    if template not in TEMPLATES:
        near = did_you_mean(template, TEMPLATES)
        raise ConfigError(
            f'there is no template "{template}"{near} (there are: {", ".join(TEMPLATES)})'
        )
    if template == "csv" and directory and Path(directory).suffix.lower() in SUFFIXES:
        from .init_table import propose_configuration

        propose_configuration(Path(directory), target, output)
        return
    if target or output:
        raise ConfigError("--target and --output go with a table: microtrain init csv FILE")
    if not directory:
        raise ConfigError(f"name a directory: microtrain init {template} my_{template}")
    for path in _write(template, Path(directory)):
        click.echo(f"wrote {path}")
    click.echo(f"next: {TEMPLATES[template][1].format(shlex.quote(directory.rstrip('/') or '/'))}")


def _write(template: str, directory: Path) -> list[Path]:
    """Write the files of a template; none of them where one is there already."""
    contents = {
        directory / source.name: source.read_bytes()
        for source in sorted(files("microtrain").joinpath("templates", template).iterdir(), key=str)
        if source.is_file()
    }
    for path in contents:
        if os.path.lexists(path):
            raise ConfigError(f"{path} is there already; choose another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            with path.open("xb") as file:  # x: not even if it came in between
                file.write(content)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LaunchError(f"cannot write into {directory}: {reason}") from error
    return list(contents)
