"""Components by name: what `type: sgd` or `type: ./net.py:Net` is, which arguments it takes.

A registered name stands for an import string and is imported when it is used, so that reading a
configuration loads neither scikit-learn nor MPI. The arguments of the YAML are checked against the
signature of what was imported: the one place where they are declared. `build` runs on every rank
and needs neither pydantic nor YAML.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import annotated_types

from ..common.files import nearby
from ..common.spelling import did_you_mean
from ..common.words import quoted
from ..errors import ConfigError
from .registered import PARTS, REGISTERED
from .schema import Component, Config

P = ParamSpec("P")
T = TypeVar("T")

# Where a target is numbers and classes are wanted.
CLASSES = (
    "a target is classes if a csv file has names there, or whole numbers under data.categorical: "
    "true, and where it is an array of integers of shape (rows,)"
)

# Where a function of two arguments, prediction and target or step and total, will do, and what it
# becomes.
_FUNCTIONS = {
    "loss": "",
    "metrics": "microtrain.train.metrics.base:FunctionMetric",
    "schedule": "microtrain.train.schedules:FunctionSchedule",
}

# Begins the type of a component that was an object in Python (see `library.py`).
GIVEN = "python:"

# What the YAML may leave out because the run knows it: `build(component, in_features=...)`.
FROM_DATA = ("in_features", "out_features", "classes", "categories")
FILLED_IN = {"data": ("seed",), "model": FROM_DATA, "optimizer": ("params",)}
# Arguments of optimizers for PyTorch's users: switches that can only be off, and what `adamw` says.
_NOT_FOR_YAML = ("foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay")


# Names of a first parameter that say that a function wants the target before the prediction.
_TARGET = ("y_true", "true", "truth", "target", "targets", "labels")


def own(path: str) -> str:
    """A hint for what is wrong at `optimizer` or `metrics.0`: where a part that works is found."""
    kind = path.partition(".")[0]
    if kind not in PARTS:
        return "hint: docs/your-loop.md"
    return f"hint: microtrain init --part {PARTS[kind]} writes one, docs/parts/{PARTS[kind]}.md"


def once(function: Callable[P, T]) -> Callable[P, T]:
    """Remembers what is found of a callable, which the members of a sweep ask for again and again.

    Nobody changes it.
    """
    kept: Callable[..., T] = functools.lru_cache(maxsize=200)(function)

    @functools.wraps(function)
    def found(*what: P.args, **more: P.kwargs) -> T:
        try:
            return kept(*what, **more)
        except TypeError:  # a callable that has no hash
            return function(*what, **more)

    return found


def is_import_path(name: str) -> bool:
    """Whether a `type` names Python code (`pkg.mod:Name`, `./file.py:Name`)."""
    return ":" in name and not name.startswith(GIVEN)


def import_paths(config: Config) -> list[str]:
    """All that a configuration names by import path: custom parts."""
    parts = [config.data, config.model, config.loss, config.optimizer, config.schedule]
    types = [part.type for part in (*parts, *config.metrics, *config.callbacks) if part]
    return [name for name in (*types, config.trainer or "") if is_import_path(name)]


def absolute(name: str, directory: Path) -> str:
    """An import path whose file, if it names one, is absolute; it was relative to `directory`."""
    module, colon, attribute = name.rpartition(":")
    if not colon or not _is_file(module):
        return name
    return f"{(directory / os.path.expanduser(module)).resolve()}:{attribute}"


def load(kind: str, name: str, arguments: Collection[str] = ()) -> Callable[..., Any]:
    """What a registered name of `kind` or an import path stands for, imported now.

    `arguments` are those that it will be called with: a function that without them waits for a
    prediction and a target is a loss or a metric, one that waits for a step and the number of all a
    schedule, and what makes it is returned.

    Raises ConfigError for an unknown name, and for a file, module or attribute that is missing,
    cannot be imported or cannot be called; the message says where it was looked for.
    """
    if name.startswith(GIVEN):
        return functools.partial(_refuse, f"{kind} {name.removeprefix(GIVEN)}", kind)
    if not is_import_path(name):
        if name not in REGISTERED[kind]:
            raise _unknown(kind, name)
        name = REGISTERED[kind][name]
    code: Callable[..., Any] = _import(kind, name)
    return _maker(kind, code, arguments)


def _unknown(kind: str, name: str) -> ConfigError:
    known = REGISTERED[kind]
    way_out = did_you_mean(name, known)
    if not way_out and "." in name and "/" not in name:
        way_out = f"; an import path has a colon: {':'.join(name.rsplit('.', 1))}"
    elif name.endswith(".py"):
        way_out = f"; an import path ends with what it names in the file: {name}:Name"
    there = ", ".join(known)
    choice = f"there are: {there}" if there else "expected ./file.py:Name or pkg.module:Name"
    noun = kind if kind == "loss" else kind.removesuffix("s")
    return ConfigError(f"no registered {noun} {quoted(name)}{way_out} ({choice})")


def _maker(kind: str, function: Any, arguments: Collection[str] = ()) -> Any:
    """What makes a part of the run from a custom function; anything else as it is."""
    if not inspect.isfunction(function):
        return function
    if kind == "optimizer":
        return _optimizer(function)
    if kind not in _FUNCTIONS:
        return function
    signature = inspect.signature(function)
    first, others = [*signature.parameters.values()][:2], [*signature.parameters.values()][2:]
    if others and (others[0].name, others[0].default) == ("weight", inspect.Parameter.empty):
        others = others[1:]  # of the rows, which the data give
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    waiting = [p for p in first if p.kind in positional and p.default is p.empty]
    if len(waiting) == 1 and waiting[0].name in ("prediction", *_TARGET):
        raise ConfigError(f"{function.__name__} takes one of prediction and target; expected both")
    if len(waiting) < 2 or any(p.name in arguments for p in waiting):
        return function

    called = _prediction_first(function)

    @functools.wraps(function)
    def make(**arguments: Any) -> Callable[..., Any]:
        made = functools.partial(called, **arguments)
        functools.update_wrapper(made, function)  # with its `reduction`
        return made if kind == "loss" else _import(kind, _FUNCTIONS[kind])(made)

    made: Any = make
    made.__signature__ = signature.replace(parameters=others)
    made.name, made.needs_end = function.__name__, True  # known before it is built
    return made


def _optimizer(function: Any) -> Any:
    """What makes an optimizer of a formula, with its options; of what makes one, that itself."""
    from ..optim.optimizers import Formula
    from ..optim.recorded import is_formula

    if not is_formula(function):
        return function

    def make(params: Any, **options: Any) -> Any:
        return Formula(params, function, **options)

    made: Any = make
    first, _ = inspect.signature(make).parameters.values()
    found = inspect.signature(function).parameters.values()
    options = [p for p in found if p.kind is p.KEYWORD_ONLY]
    made.__signature__ = inspect.Signature([first, *options])
    made.__wrapped__ = function  # where the names in their annotations are looked up
    return made


def _refuse(what: str, kind: str) -> NoReturn:
    """Build an object that Python gave, of which a run's configuration has the name alone."""
    raise ConfigError(
        f"{what} was given to Trainer(...) in Python; only that program can create it again"
        + ("; microtrain.load(run, model=...) takes it" if kind == "model" else "")
    )


def build(component: Component, **filled: Any) -> Any:
    """Make what a component of a configuration describes: an optimizer, a model, a data set ...

    `filled` holds what the run knows; it is used where the constructor has such a parameter and
    the configuration does not set it. Sizes that come from the data are noted in the component, so
    that the resolved configuration shows them. Raises ConfigError when a registered component
    refuses a value or an argument is still missing; errors in custom code are left as they
    are.

    Example:
        >>> optimizer = build(config.optimizer, params=model.parameters())
    """
    kind, name, instance = component.kind, component.type, component.instance
    if instance is not None:  # an object, or for an optimizer what makes it
        if kind == "optimizer":
            return _maker(kind, instance)(filled["params"])
        if kind == "loss":
            return _prediction_first(instance) if inspect.isfunction(instance) else instance
        make = _maker(kind, instance)
        return instance if make is instance else make()
    arguments = dict(component.arguments)
    target = load(kind, name, arguments)
    accepted = parameters(target)
    for key, value in filled.items():
        if key in accepted and key not in arguments:
            arguments[key] = value
            if key in FROM_DATA:
                component.arguments[key] = value
    missing = [key for key, p in accepted.items() if p.default is p.empty and key not in arguments]
    if missing:
        way_out = f"; {CLASSES}" if "classes" in missing else ""
        raise ConfigError(
            f"{kind}: {name} needs {', '.join(missing)}, which the data do not give{way_out}"
        )
    try:
        return target(**arguments)
    except (ValueError, MemoryError, OverflowError) as error:
        if is_import_path(name):
            raise
        refused = isinstance(error, ValueError)
        why = "refuses its arguments" if refused else "needs more memory than there is"
        raise ConfigError(f"{kind}: {name} {why}: {error}") from error


def parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a callable that can be given by name, those of `**` apart."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: p for key, p in _signature(target).items() if p.kind in named}


@once
def settable(target: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """The parameters of the component `name` that a configuration can set.

    Their annotations are evaluated one by one: `params: Iterable[Parameter]` with Parameter
    imported for type checkers only must not switch off the check of `lr: float` beside it.
    """
    apart = ("params",) if is_import_path(name) else ("params", *_NOT_FOR_YAML)
    if name in REGISTERED["data"]:
        apart = (*apart, "cache")  # a key of the section itself
    return {
        key: parameter.replace(annotation=_evaluated(parameter.annotation, target))
        for key, parameter in parameters(target).items()
        if key not in apart
    }


def _evaluated(annotation: Any, target: Any) -> Any:
    """What an annotation of `target` says; Any where it says nothing that can be evaluated."""
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    function = target.__init__ if isinstance(target, type) else target  # type: ignore[misc]
    if not hasattr(function, "__globals__"):
        function = type(target).__call__
    # microtrain's optimizers import these limits for type checkers only, to be imported fast.
    limits = vars(annotated_types)
    try:  # the annotation of code that was just imported, never a text of the YAML
        return eval(annotation, {**limits, **inspect.unwrap(function).__globals__})
    except Exception:
        return Any


@once
def is_open_ended(target: Callable[..., Any]) -> bool:
    """Whether a callable takes any argument by name."""
    return any(p.kind is p.VAR_KEYWORD for p in _signature(target).values())


def _signature(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(target).parameters
    except (TypeError, ValueError):  # some built-in callables
        return {}


def _is_file(module: str) -> bool:
    return module.endswith(".py") or "/" in module


def _import(kind: str, path: str) -> Any:
    module_name, _, attribute = path.rpartition(":")
    if not module_name or not all(part.isidentifier() for part in attribute.split(".")):
        raise ConfigError(
            f"{quoted(path)} is not an import path; write pkg.module:Name or ./file.py:Name"
        )
    target: Any = _import_module(module_name)
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [name for name in dir(target) if not name.startswith("_")]
            raise ConfigError(f"{module_name} has no {part}{did_you_mean(part, public)}")
        target = getattr(target, part)
    if kind == "callbacks":
        if not isinstance(target, type) and not any(name.startswith("on_") for name in dir(target)):
            raise ConfigError(
                f"{quoted(path)} is not a callback: expected a class with hooks such as on_step, "
                "or a function under @microtrain.train.every"
            )
    elif not callable(target):
        raise ConfigError(
            f"{attribute} in {module_name} is of type {type(target).__name__}, not a class or "
            "function"
        )
    return target


_IMPORTING = threading.RLock()


def _import_module(name: str) -> Any:
    """The module of a dotted name, or of a file."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # the console script looks where `python -m` does
    try:
        if _is_file(name):
            with _IMPORTING:  # ranks may be threads: none finds the module of another half made
                return _import_file(Path(name).absolute())
        return importlib.import_module(name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        message = f"{name} cannot be imported: {_in_one_line(error)}"
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            where = f"looked in {os.getcwd()} and the installed packages"
            message = f"there is no module {error.name} ({where})"
        raise ConfigError(message) from error


def _import_file(path: Path) -> Any:
    name = f"microtrain_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not os.path.isfile(path):
        raise ConfigError(f"there is no file {path}{nearby(path, '*.py')}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as for a script: files beside it can be imported
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _in_one_line(error: BaseException) -> str:
    """The kind of error, its message and the line of the user's file that raised it."""
    places = [
        f" ({frame.filename}:{frame.lineno})"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in (importlib.__file__, __file__) and frame.filename[0] != "<"
    ]
    text, place = str(error), "".join(places[-1:])
    if isinstance(error, SyntaxError):
        text, place = error.msg, f" ({error.filename}:{error.lineno})"
    return f"{type(error).__name__}: {' '.join(text.split())}{place}"


def _prediction_first(function: Any) -> Any:
    """A function of prediction and target of one that takes them the other way round, as those of
    scikit-learn and Keras do; others as they are.
    """
    first = next(iter(inspect.signature(function).parameters), "")
    if first not in _TARGET:
        return function

    @functools.wraps(function)
    def called(prediction: Any, target: Any, *weight: Any, **arguments: Any) -> Any:
        return function(target, prediction, *weight, **arguments)

    return called
