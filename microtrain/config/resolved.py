"""The resolved configuration as YAML: every value that the run uses, with where it came from.

It is written into the run directory, it is itself a configuration that `load_config` reads, and
`read_settings` reads it back as data, with the origins, which are comments.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..common.words import printable
from ..errors import ConfigError, DataError
from .components import FROM_DATA, is_import_path
from .schema import LISTS, OWN_KEYS, Component, Config, Split
from .tree import Node, Problem, Source, join

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*(?: [\w./-]+)*", re.ASCII)
_CODE = re.compile(r"[^\s\"']+\.py(?=:\w)")
_UNWRITABLE = "the configuration cannot be written down for a run"
_WORDS = ("null", "true", "false")
# A line with a whole number and a comment. Members of a sweep differ in such lines, so their texts
# are alike with 0 in place of the numbers, and to parse one takes as long as a hundred steps.
_COUNT = re.compile(r"^( *[a-z_]+: )([0-9]{1,15})(?= +# )", re.MULTILINE)


def resolved_yaml(config: Config) -> str:
    """`config` as YAML, one value a line, its origin (file and line, default ...) as a comment."""
    rows = list(_rows("", config, config.origins))
    width = min(max(len(text) for text, _ in rows), 60)
    # An origin is the path of a file, which may have any character.
    lines = [f"{text:<{width}}  # {printable(origin)}" if origin else text for text, origin in rows]
    return "# Every value of this run; the comments say where each came from.\n" + "".join(
        f"{line}\n" for line in lines
    )


def compared(config: Config) -> dict[str, str]:
    """What ranks of one run have in common: the lines without origins, and files of code by hash.

    A file that this rank cannot read is left out.
    """
    lines = [text for text, _ in _rows("", config, config.origins)]
    found = {
        f"line {n} of the ranks' configurations differs": text.strip()
        for n, text in enumerate(lines)
    }
    return found | hashes(_CODE.findall("\n".join(lines)))


def hashes(files: Iterable[str]) -> dict[str, str]:
    """What ranks have in common of files: each by a hash of its content."""
    found = {}
    for name in files:
        with contextlib.suppress(OSError):
            digest = hashlib.blake2b(Path(name).read_bytes(), digest_size=6).hexdigest()
            found[f"the ranks have different files {name}"] = f"one with the hash {digest}"
    return found


def whole_yaml(config: Config) -> str:
    """`resolved_yaml`, for a run to be read back by; ConfigError where that cannot be."""
    from .document import MAX_BYTES  # only where a run is begun

    text = resolved_yaml(config)
    try:
        size = len(text.encode())
        read_settings(text, Path("config.yaml"))
    except (DataError, UnicodeEncodeError) as error:
        raise ConfigError(f"{_UNWRITABLE}: {error}") from error
    if size > MAX_BYTES:
        raise ConfigError(
            f"{_UNWRITABLE}: it takes {size:,} bytes of YAML, of at most {MAX_BYTES:,}; "
            "name files instead of writing values out"
        )
    return text


def _rows(path: str, section: Any, origins: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each line of a section or component, and the origin of its value."""
    for key, value in entries(section).items():
        below = join(path, key)
        start = f"{_scalar(key)}:"
        if is_dataclass(value):
            yield start, ""
            for row, origin in _rows(below, value, origins):
                yield f"  {row}", origin
        elif key in LISTS and not path and value:
            yield start, ""
            for number, item in enumerate(value):
                for i, (row, origin) in enumerate(_rows(f"{below}.{number}", item, origins)):
                    yield f"    {row}" if i else f"  - {row}", origin
        else:
            default = "from the data" if path == "model" and key in FROM_DATA else "default"
            yield f"{start} {as_yaml(value)}", origins.get(below, default)


def entries(section: Any) -> dict[str, Any]:
    """What stands in a section or component."""
    values = vars(section)
    if isinstance(section, Component):
        own = {key: values[key] for key in OWN_KEYS.get(section.kind, ())}
        return {"type": section.type, **section.arguments, **own}
    if isinstance(section, Split):
        values = {
            k: value for k, value in values.items() if value is not None and value is not False
        }
    return {key: value for key, value in values.items() if key not in ("base", "origins")}


class Setting(NamedTuple):
    """A value of the configuration, its origin ("" where the file has none), and its line."""

    value: Any
    origin: str
    line: int = 0


def read_settings(text: str, path: Path) -> dict[str, Setting]:
    """The values of a resolved configuration by dotted key, with the comments behind them.

    Args:
        text: a config.yaml.
        path: where it is, for messages.

    Raises DataError for what is not YAML or not a mapping.
    """
    from .document import lines_of

    found = ((number, _COUNT.match(line)) for number, line in enumerate(lines_of(text), 1))
    counts = {number: int(count[2]) for number, count in found if count}
    with contextlib.suppress(DataError):  # which does not name the file
        known = _settings(_COUNT.sub(r"\g<1>0", text), Path("config.yaml"))
        own = {key: each for key, each in known.items() if each.line in counts and each.value == 0}
        if len(own) == len(counts):  # else a number is part of another value
            return known | {k: s._replace(value=counts[s.line]) for k, s in own.items()}
    return _settings(text, path)


@functools.lru_cache(8)
def _settings(text: str, path: Path) -> dict[str, Setting]:
    from .document import lines_of, parse  # only where a run is read

    problems: list[Problem] = []
    lines = lines_of(text)
    root = parse(text, Source(str(path), lines, path.parent), problems)
    if root is None or problems or not isinstance(root.value, dict):
        why = problems[0].message if problems else "expected keys and values"
        raise DataError(f"damaged file: {path}: {why}")
    settings: dict[str, Setting] = {}

    def walk(path: str, node: Node) -> None:
        if isinstance(node.value, dict) and (node.value or not path):
            for key, below in node.value.items():
                walk(join(path, key), below)
        else:
            at = node.place
            _, _, origin = lines[at.line - 1][at.column - 1 + at.width :].partition("# ")
            settings[path] = Setting(node.plain(), origin, at.line)

    walk("", root)
    return settings


def as_yaml(value: Any) -> str:
    """A value on one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {as_yaml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(as_yaml, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return str(value)
    return "".join(  # escapes that YAML shares with Python
        c if c.isprintable() else c.encode("unicode_escape").decode()
        for c in json.dumps(value, ensure_ascii=False)
    )


# What may be another after a resume: it does not change the mathematics of a step. The data
# themselves are compared, wherever they lie.
FREE = (
    "name", "run_dir", "base", "data.path", "data.cache", "train.duration", "train.max_time",
    "train.eval_every", "train.init_from", "log.", "checkpoint.", "callbacks", "device",
    "distributed.backend", "distributed.bucket_mb", "distributed.overlap", "distributed.warn_s",
    "distributed.timeout_s", "distributed.blas_threads", "distributed.share_gpu",
    "distributed.restarts",
)  # fmt: skip
# And what a model that has been trained is used without.
FREE_TRAINED = (*FREE, "metrics", "optimizer", "schedule", "train")


def compare_configs(
    stored: str,
    now: str,
    path: Path,
    free: tuple[str, ...] = FREE,
    *,
    before: str = "the run",
    refused: str = "cannot be resumed: these settings have changed",
    way_out: str = "start a new run, or restore the settings; you can change duration, max_time, "
    "eval_every, log, checkpoint, callbacks, the location of files, and how the ranks communicate",
    file: Path | None = None,
) -> None:
    """ConfigError naming every setting that must be as it was in the run at `path`.

    Args:
        stored, now: resolved configurations, as YAML.
        path: of the run.
        free: the settings and sections that may be others.
        before: where `stored` is.
        refused: what is not done with the run, and why.
        way_out: what to do.
        file: that has `now`, where its lines are to be named; else what its comments name is.
    """
    if stored == now:
        return
    was, is_now = (read_settings(text, path / "config.yaml") for text in (stored, now))
    freely = tuple(f"{each.rstrip('.')}." for each in free)
    lines = []
    for key in dict.fromkeys([*was, *is_now]):
        values = (each[key].value if key in each else None for each in (was, is_now))
        # A key that there was not then, and that is off now, has changed nothing.
        old, new = (None if value is False else value for value in values)
        if f"{key}.".startswith(freely) or _moved(old) == _moved(new):
            continue
        setting = is_now.get(key, Setting(None, ""))
        origin = setting.origin if file is None else f"{file}:{setting.line}"
        place = f" ({origin})" if key in is_now and origin not in ("", "default") else ""
        shown = (as_yaml(each[key].value) if key in each else "absent" for each in (was, is_now))
        lines.append("  {}: {} in {}, {} now{}".format(key, next(shown), before, *shown, place))
    if lines:
        raise ConfigError("\n".join([f"the run {path} {refused}", *lines, way_out]))


def _moved(value: Any) -> Any:
    """`value` with `/any/where/net.py:Net` as `net.py:Net`: a project may lie elsewhere now."""
    if isinstance(value, list):
        return [_moved(each) for each in value]
    if isinstance(value, dict):
        return {key: _moved(each) for key, each in value.items()}
    return value.rpartition("/")[2] if isinstance(value, str) and is_import_path(value) else value
