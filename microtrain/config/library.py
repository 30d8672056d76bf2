"""Configurations made in Python: `Trainer(model, data, loss=..., optimizer=..., ...)`.

They go through the one check that YAML goes through, so a run from Python is refused, resumed and
reported like any other. What is given as an object stands in its place in the configuration by the
name `python:Type`; only Python can make it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..distributed.agreement import from_root, same
from ..errors import ConfigError, noun_of
from .components import GIVEN
from .schema import COMPONENTS, LISTS, OWN_KEYS, Config, Train

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = ["library_config"]

NAME = "Trainer(...)"
_OTHERWISE = {
    "loss": "a function of prediction and target",
    "optimizer": "a function that creates one: lambda params: SGD(params, lr=0.1)",
}


def library_config(comm: Communicator, settings: Mapping[str, Any]) -> Config:
    """The whole configuration of a run; collective.

    Args:
        comm: the ranks of the run, which give the same settings; the first one checks for all.
        settings: the keys of the YAML. Components are names, dicts with a `type`, or objects. Keys
            of `train` may stand at the top, and those of `data` that every component has, such as
            `split` and `standardize`.

    Raises ConfigError with all problems at once, on every rank.
    """
    values, objects = _apart(settings)
    given = {f"{NAME}: {key} differs": repr(value) for key, value in values.items()}
    same(comm, given, "all ranks of a run have the same settings")
    config = from_root(comm, lambda: _checked(values))
    for (key, number), value in objects.items():
        component = vars(config)[key]
        component = component if number is None else component[number]
        component.instance = value
    return config


def _apart(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[Any, Any]]:
    """The settings with a name in place of each object, and the objects by key and number."""
    objects: dict[Any, Any] = {}

    def named(key: str, number: int | None, value: Any) -> Any:
        if value is None or isinstance(value, str | Mapping):
            return value
        if key in _OTHERWISE and not callable(value):
            raise ConfigError(
                f"{NAME}: {key} is of type {type(value).__name__}; expected a name, a dict such as "
                f'{{"type": ...}}, or {_OTHERWISE[key]}'
            )
        objects[key, number] = value
        return {"type": GIVEN + (getattr(value, "__name__", None) or type(value).__name__)}

    values = dict(settings)
    for key in values.keys() & {*COMPONENTS}:
        values[key] = named(key, None, values[key])
    for key in values.keys() & {*LISTS}:
        if isinstance(values[key], str):
            continue  # the check says that a list is expected
        values[key] = [named(key, number, each) for number, each in enumerate(values[key])]
    data = values["data"]
    own = {key: values.pop(key) for key in OWN_KEYS["data"] if key in values}
    values["data"] = {**({"type": data} if isinstance(data, str) else data), **own}
    train = dict(values.pop("train", {}))
    for key in [*values]:
        if key in Train.__dataclass_fields__:
            if key in train:
                raise ConfigError(f"{NAME}: {key} is given twice, at the top and in train")
            train[key] = values.pop(key)
    return {**values, "train": train}, objects


def _checked(values: dict[str, Any]) -> Config:
    from .check import checked  # these import pydantic: the first rank alone
    from .tree import Node, Place, Problem, Source, report, with_components

    place = Place(Source(NAME, (), Path.cwd(), is_file=False), 1, 1)

    def tree(key: str, value: Any) -> Node:
        if isinstance(value, Mapping):
            value = {str(name): tree(key, below) for name, below in value.items()}
        elif isinstance(value, list | tuple):
            value = [tree(key, each) for each in value]
        elif value is not None and not isinstance(value, bool | int | float | str):
            way_out = "; arrays are given in a tuple: (x, y)" if key == "data" else ""
            raise ConfigError(f"{NAME}: {key} is not a plain value: {noun_of(value)}{way_out}")
        return Node(value, place, place)

    problems: list[Problem] = []
    root = Node({key: tree(key, value) for key, value in values.items()}, place)
    config = checked(with_components(root), problems, trust=True)
    if config is None:
        raise ConfigError(report(problems, NAME, "the keys are those of a YAML file"))
    return config
