"""Names of PyTorch that are not here: what the AttributeError says to write instead.

A module that people know from PyTorch ends with `namespace(globals())`. The message has the
replacement from `instead.txt`; else that this is a name of PyTorch's (`torch_names.txt`); else the
name here that was perhaps meant. `from microtrain.nn import LSTN` says the same as ImportError.
"""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from .spelling import did_you_mean

# Where else a name may be, the best known place first.
HOMES = (
    "", "nn", "optim", "optim.lr_scheduler", "data", "train", "distributed", "distributions",
    "linalg", "autograd", "func", "nn.utils", "nn.init",
)  # fmt: skip

_HERE = Path(__file__).parent


def _read_instead() -> dict[str, dict[str, str]]:
    """By module (also "Tensor", "Optimizer") the names that have another form here, and which.

    A test fails where one of them exists.
    """
    found: dict[str, dict[str, str]] = {}
    for line in (_HERE / "instead.txt").read_text(encoding="utf-8").splitlines():
        place, names, words = line.split(": ", 2)
        found.setdefault(place, {}).update(dict.fromkeys(names.split(), words))
    return found


INSTEAD = _read_instead()
INSTEAD["utils.data"] = INSTEAD["data"] | {"DataLoader": INSTEAD["data"]["Dataset"]}


@cache
def torch_names() -> dict[str, set[str]]:
    """The public names of PyTorch's modules, by what follows `torch.`."""
    found: dict[str, set[str]] = {}
    for line in (_HERE / "torch_names.txt").read_text(encoding="utf-8").splitlines():
        module, _, names = line.partition(":")
        found.setdefault(module, set()).update(names.split())
    return found


def hint(place: str, name: str, known: list[str]) -> str:
    """What to write instead of `place.name`, where `known` are the names that there are."""
    if name in INSTEAD.get(place, {}):
        return f"; {INSTEAD[place][name]}"
    package = __package__.partition(".")[0]
    for home in HOMES:
        if name in dir(import_module(f"{package}.{home}".rstrip("."))):
            return f"; write {'.'.join(filter(None, ('mt', home, name)))}"
    if name in torch_names().get({"data": "utils.data"}.get(place, place), ()):
        return "; it is one of PyTorch's names that microtrain lacks: docs/differences.md, Missing"
    return did_you_mean(name, known)


def missing(module: str, name: str) -> Exception:
    """The error for `module.name`, an ImportError where an import statement asked for it."""
    if name.startswith("_"):  # Python's own questions
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    place = module.partition(".")[2]
    said = hint(place, name, dir(sys.modules[module]))
    frame = sys._getframe(2)
    if frame.f_code.co_code[frame.f_lasti] == opcode.opmap["IMPORT_FROM"]:
        return ImportError(f"cannot import name {name!r} from {module!r}{said}", name=name)
    return AttributeError(f"module {module!r} has no attribute {name!r}{said}")


def say_instead(module: str) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module."""

    def __getattr__(name: str) -> NoReturn:
        raise missing(module, name)

    return __getattr__


def own_names(module: dict[str, Any]) -> list[str]:
    """The `__all__` of a module, of which these are the globals: the public names it defines."""
    place = f"{module['__name__']}."
    return [
        name
        for name, value in module.copy().items()
        if name[0] != "_" and f"{getattr(value, '__module__', '')}.".startswith(place)
    ]


def namespace(module: dict[str, Any]) -> None:
    """Let a module, of which these are the globals, show its `__all__` and say what it lacks."""
    module.setdefault("__all__", own_names(module))
    module["__getattr__"] = say_instead(module["__name__"])
    module["__dir__"] = lambda: module["__all__"]


class NoAttribute:
    """An attribute that a class has not: AttributeError that says what to write instead."""

    def __init__(self, name: str, kind: str = "Tensor") -> None:
        self.text = f"{kind!r} object has no attribute {name!r}; {INSTEAD[kind][name]}"

    def __get__(self, instance: Any, owner: Any) -> NoReturn:
        raise AttributeError(self.text)

    __set__ = __get__
