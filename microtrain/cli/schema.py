"""`microtrain schema`: the JSON Schema of a configuration, for editors."""

from __future__ import annotations

import json

import click


@click.command()
def schema() -> None:
    """Print the JSON Schema of a configuration, for completion and validation in editors.

    \b
    microtrain schema > microtrain.schema.json
    # first line of the YAML, for the YAML language server:
    # yaml-language-server: $schema=microtrain.schema.json
    """
    from ..config.reference import json_schema

    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
