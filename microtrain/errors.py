"""The errors that end a run with one readable message and an exit code of their own.

Everything a user can get wrong raises a subclass of `UserError`; the command line prints its text
without a traceback and leaves with `exit_code`. Any other exception is a bug or the user's own
code and keeps its traceback (exit code 1). Standard library only.

A wrong argument of an operation or layer is refused by `need`, in one form of words.
"""

from itertools import zip_longest
from pathlib import Path


def install(extra: str) -> str:
    """How to install an extra, for messages: into a checkout, or a package as it was installed."""
    if (Path(__file__).parents[1] / "pyproject.toml").exists():
        return f"pip install -e '.[{extra}]' in the microtrain checkout"
    return f"pip install 'microtrain[{extra}]'"


def absent(package: str, extra: str, error: ImportError) -> str:
    """Why a package cannot be imported, and the way out: it may be there, and memory is not."""
    if isinstance(error, ModuleNotFoundError):
        return f"{package} is not installed; {install(extra)}"
    return f"{package} is installed, but cannot be imported: {error}"


class UserError(Exception):
    """Something outside the program is wrong; the message says what, where and the way out.

    Attributes:
        exit_code: what the process leaves with.
        agreed: whether every rank raises it, so that the job may end without an abort.
    """

    exit_code = 1
    agreed = False


class ConfigError(UserError):
    """The YAML file, an override, a flag or an import path is wrong (exit code 2)."""

    exit_code = 2


class DataError(UserError):
    """A data file or checkpoint is missing, unreadable or wrong (exit code 3)."""

    exit_code = 3


class DivergedError(UserError):
    """The loss or a gradient is not finite (exit code 4)."""

    exit_code = 4


class LaunchError(UserError):
    """MPI, a GPU or a writable run directory is absent, or the launcher does not match (5)."""

    exit_code = 5


class CaptureError(RuntimeError):
    """A step cannot be captured by `mt.compile`: it would silently do something else on replay."""


# Wrong arguments ----------------------------------------------------------------------------------


def wrong(name: str, text: str, *found: object, error: type[Exception] = RuntimeError) -> Exception:
    """The error of a call of `name`: "name(): text, got found", of a Tensor its shape.

    A name that is not a function's stands without brackets. Each `{}` in the text stands for one of
    what was found, where that is not to be said at the end.
    """
    said = [_said(x) for x in found]
    if said and "{}" not in text:
        text += f", got {', '.join('{}' for _ in said)}"
    parts = zip_longest(text.split("{}"), said, fillvalue="")
    call = f"{name}()" if name.replace(".", "_").isidentifier() else name
    return error(f"{call}: " + "".join(part for pair in parts for part in pair))


def noun_of(value: object) -> str:
    """What a value is: `a list`, `an ndarray`."""
    name = type(value).__name__
    return f"{'an' if name == 'ndarray' or name[0] in 'aeioAEIO' else 'a'} {name}"


def _said(x: object) -> str:
    if isinstance(x, type):
        return x.__name__
    if hasattr(x, "shape") and hasattr(x, "__setitem__"):
        return f"shape {tuple(x.shape)}"
    return repr(x) if isinstance(x, str) else str(x)


def need(
    holds: object, name: str, text: str, *found: object, error: type[Exception] = RuntimeError
) -> None:
    """`error` in the words of `wrong` unless `holds`."""
    if not holds:
        raise wrong(name, text, *found, error=error)
