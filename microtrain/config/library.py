"""Configurations made in Python: `Trainer(model, data, loss=..., optimizer=..., ...)`.

They go through the one schema that YAML goes through, so a run from Python is refused, resumed and
reported like any other. What is given as an object stands in its place in the configuration by the
name `python:Type`; only Python can make it again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..distributed.agreement import from_root
from ..errors import ConfigError
from .components import GIVEN
from .resolved import as_yaml
from .section import Section

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator

__all__ = ["library_config"]

_GIVEN = "microtrain.config.library:given"
_KINDS = ("data", "model", "loss", "optimizer", "schedule")
_LISTS = ("metrics", "callbacks")
NAME = "Trainer(...)"


def given() -> NoReturn:
    """Stands for an object while a configuration is checked."""
    raise AssertionError("an object that was given is not built")


given.on_step = given  # type: ignore[attr-defined] # so it stands for a callback, too


def library_config(comm: Communicator, settings: Mapping[str, Any]) -> Section:
    """The whole configuration of a run; collective.

    Args:
        comm: the ranks of the run; the first one checks for all.
        settings: the keys of the YAML. Components are names, dicts with a `type`, or objects. Keys
            of `train` may stand at the top, and `split` and `standardize`, which are `data`'s.

    Raises ConfigError with all problems at once, on every rank.
    """
    values, objects = _apart(settings)
    config = from_root(comm, lambda: _validated(values))
    for (key, number), value in objects.items():
        component = config[key] if number is None else config[key][number]
        component.given = value
        name = getattr(value, "__name__", None) or type(value).__name__
        component.fill("type", f"{GIVEN}{name}", NAME)
    return config


def _apart(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[Any, Any]]:
    """The settings with a name in place of each object, and the objects by key and number."""
    objects: dict[Any, Any] = {}

    def named(key: str, number: int | None, value: Any) -> Any:
        if value is None or isinstance(value, str | Mapping):
            return value
        if key in ("loss", "optimizer") and not callable(value):
            ways = {
                "loss": "a function of prediction and target",
                "optimizer": "what makes one of the parameters, lambda params: SGD(params, lr=0.1)",
            }
            raise ConfigError(
                f"{NAME}: {key} is a {type(value).__name__}; expected a name, a dict such as "
                f'{{"type": ...}}, or {ways[key]}'
            )
        objects[key, number] = value
        return {"type": _GIVEN}

    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key in _KINDS:
            values[key] = named(key, None, value)
        elif key in _LISTS:
            values[key] = [named(key, number, each) for number, each in enumerate(value)]
        else:
            values[key] = value
    data = values["data"]
    parts = {key: values.pop(key) for key in ("split", "standardize") if key in values}
    values["data"] = {**({"type": data} if isinstance(data, str) else data), **parts}
    return values, objects


def _validated(values: dict[str, Any]) -> Section:
    from .document import lines_of, parse
    from .overrides import with_components  # these import pydantic: the first rank alone
    from .problems import Problem, Source, report
    from .schema import Config, Train
    from .validate import validate

    train = dict(values.pop("train", {}))
    for key in [*values]:
        if key in Train.model_fields and key not in Config.model_fields:
            if key in train:
                raise ConfigError(f"{NAME}: {key} is given twice, at the top and in train")
            train[key] = values.pop(key)
    text = ""
    for key, value in {**values, "train": train}.items():
        try:
            text += f"{key}: {as_yaml(value)}\n"
        except TypeError as error:
            raise ConfigError(f"{NAME}: {key} is no plain value: {error}") from error
    problems: list[Problem] = []
    root = parse(text, Source(NAME, lines_of(text), Path(os.getcwd())), problems)
    config = None if root is None else validate(with_components(root), problems, trust=True)
    if config is None:
        raise ConfigError(report(problems, NAME, "the keys are those of a YAML file"))
    return config
