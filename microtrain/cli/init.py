"""`microtrain init TEMPLATE DIR`: a small working run to change into your own."""

from __future__ import annotations

import os
import shlex
from importlib.resources import files
from pathlib import Path

import click

from microtrain.errors import ConfigError

from ..common.files import writing
from ..common.spelling import did_you_mean
from ..config import registered

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet")  # of a table
# Name, what it is, and what to type next with its file.
TEMPLATES = {
    "linreg": ("a line through points: the smallest whole run", "microtrain train {}/linreg.yaml"),
    "mlp": ("a network with hidden layers", "microtrain train {}/mlp.yaml"),
    "digits": ("handwritten digits, read by a small network", "microtrain train {}/digits.yaml"),
    "csv": ("your own table, with an example to begin with", "microtrain train {}/csv.yaml"),
    "custom": ("your own model in Python", "microtrain train {}/custom.yaml"),
    "library": ("your own training loop in Python, no YAML", "python {}/train.py"),
}
PARTS = tuple(registered.PARTS.values())


@click.command()
@click.option(
    "--part",
    type=click.Choice(PARTS),
    help="Write a part of your own instead, and a YAML file that uses it.",
)
@click.argument("template", required=False)
@click.argument("directory", required=False)
@click.option("--target", metavar="NAME", help="With init csv FILE: the column to predict.")
@click.option("--output", metavar="FILE", help="With init csv FILE: where to write.")
@click.option(
    "--try",
    "attempt",
    is_flag=True,
    help="With init csv FILE: train a linear model and a network, write the better one.",
)
def init(
    template: str | None,
    directory: str | None,
    part: str | None,
    target: str | None,
    output: str | None,
    attempt: bool,
) -> None:
    """Write the files of TEMPLATE into DIRECTORY, created if it does not exist.

    Nothing is ever overwritten. Without arguments, lists the templates. `init csv FILE` looks at
    your own table FILE and proposes a configuration. With --part, the only argument is a
    directory, or the Python file to write.

    \b
    microtrain init digits my_digits
    microtrain init csv customers.csv --target churned
    microtrain init --part metric my_metric.py
    """
    if part is not None:
        write_part(part, *filter(None, (template, directory)))
        return
    if template is None:
        for name, (about, _) in TEMPLATES.items():
            click.echo(f"  {name:<8}  {about}")
        click.echo("next: microtrain init TEMPLATE DIRECTORY")
        return
    if template not in TEMPLATES:
        near = did_you_mean(template, TEMPLATES)
        text = f'there is no template "{template}"{near} (there are: {", ".join(TEMPLATES)})'
        if Path(template).suffix.lower() in SUFFIXES:
            text += f"\nhint: microtrain init csv {shlex.quote(template)}"
        raise ConfigError(text)
    place = Path(directory or "")
    if template == "csv" and (place.suffix.lower() in SUFFIXES or place.is_file()):
        from .init_table import propose_configuration

        propose_configuration(place, target, output, attempt)
        return
    if target or output or attempt:
        raise ConfigError("--target, --output and --try go with a table: microtrain init csv FILE")
    if not directory:
        raise ConfigError(f"name a directory: microtrain init {template} my_{template}")
    sources = files("microtrain").joinpath("templates", template).iterdir()
    write({place / s.name: s.read_bytes() for s in sorted(sources, key=str) if s.is_file()}, place)
    click.echo(f"next: {TEMPLATES[template][1].format(shlex.quote(directory.rstrip('/') or '/'))}")


def write_part(part: str, place: str = ".", *others: str) -> None:
    """Write the files of a part of your own."""
    if others:
        raise ConfigError(f"expected one place: microtrain init --part {part} my_{part}.py")
    path = Path(place) if place.endswith(".py") else Path(place, f"{part}.py")
    directory, name = path.parent, path.stem
    sources = files("microtrain").joinpath("templates", "parts")
    code, yaml = (sources.joinpath(f"{part}.{end}").read_text() for end in ("py", "yaml"))
    yaml = yaml.replace(f"{part}.py", f"{name}.py").replace(f"name: {part}", f"name: {name}")
    texts = {directory / f"{name}.py": code, directory / f"{name}.yaml": yaml}
    write({path: text.encode() for path, text in texts.items()}, directory)
    click.echo(f"next: microtrain check {shlex.quote(str(directory / f'{name}.yaml'))}")


def write(contents: dict[Path, bytes], directory: Path) -> None:
    """Write these files, and say so; none of them where one is there already."""
    for path in contents:
        if os.path.lexists(path):
            raise ConfigError(f"{path} already exists; choose another directory")
    with writing(f"into {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            with path.open("xb") as file:  # x: not even if it came in between
                file.write(content)
    for path in contents:
        click.echo(f"wrote {path}")
