"""Checkpoints: a directory that is there whole or not at all, and that notices damage.

`checkpoints/step-000500/` holds model.safetensors and optimizer.safetensors (arrays by parameter
name), state.json, config.yaml and manifest.json with the size and sha256 of the others. It is
written under a name of its own beside, every file and the directory are synced, and one rename
makes it a checkpoint: a run killed at any moment leaves either the old state or the new one.
No pickle: reading someone else's checkpoint runs no code.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Ge, Gt, Len, Lt
from numpy.typing import NDArray

from ..common import files
from ..errors import DataError, LaunchError
from .arrays import Content, array_content, arrays_in

Array = NDArray[Any]
Count = Annotated[int, Ge(0), Lt(2**53)]
Number = Annotated[float, Gt(-(2.0**1023)), Lt(2.0**1023)]
FORMAT = 4
File = Literal["model.safetensors", "optimizer.safetensors", "state.json", "config.yaml"]
FILES: tuple[File, ...] = get_args(File)
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)|\.step-(\d+)\.replaced")
_WAS = re.compile(r"(damaged-)?step-\d+|\.step-\d+\.replaced")


class OtherFormat(DataError):
    """A checkpoint that another version of microtrain has written: whole, but not for this one."""


class OtherRun(DataError):
    """A checkpoint that another run has written: whole, but not of this one."""


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint holds; arrays are writable, C-ordered and in definition order."""

    path: Path
    step: int
    model: dict[str, Array]
    optimizer: dict[str, Array]
    state: dict[str, Any]
    config_text: str


def save_checkpoint(
    directory: str | Path,
    step: int,
    *,
    model: Mapping[str, Array],
    optimizer: Mapping[str, Array],
    state: Mapping[str, Any],
    config_text: str,
) -> Path:
    """Write `directory/step-<step>` and return its path; a checkpoint of that step is replaced.

    One process at a time may write in a directory (a run's rank 0, which holds its lock).

    Args:
        directory: the run's `checkpoints`; made if absent, in one that is there.
        step: optimizer steps taken, 0 or more.
        model, optimizer: arrays of numbers or bool by name, of any device, layout and byte order:
            values count. They are read in blocks as they are written, and no copy is made.
        state: what JSON gives back unchanged (text keys, lists rather than tuples, finite floats).
        config_text: the resolved configuration, as YAML.

    Raises:
        TypeError, ValueError: an array or the state cannot be stored; nothing was written.
        LaunchError: the file system refused (disk full, no permission); no half checkpoint stays.
    """
    if step < 0:
        raise ValueError(f"a checkpoint's step is 0 or more, got {step}")
    contents = {
        "model.safetensors": array_content("model", model),
        "optimizer.safetensors": array_content("optimizer", optimizer),
        "state.json": Content.of(files.json_bytes(state)),
        "config.yaml": Content.of(config_text.encode()),
    }
    directory = Path(directory)
    final, partial = directory / name_of(step), directory / f".{name_of(step)}.partial"
    replaced = directory / f".{final.name}.replaced"
    try:
        files.make_directory(directory, links=True)  # where a run was removed it is not made anew
        clear_leftovers(directory)
        partial.mkdir()
        manifest = {
            "format": FORMAT,
            "step": step,
            "files": _write(partial, contents),
            # safetensors has an order of its own; that of the definition is kept here.
            "order": {"model": list(model), "optimizer": list(optimizer)},
        }
        _write(partial, {MANIFEST: Content.of(files.json_bytes(manifest))})
        files.sync_directory(partial)
        # rename cannot replace a directory that has files: between the two renames the old
        # checkpoint is found under its second name (see list_checkpoints).
        if final.exists():
            final.rename(replaced)
        partial.rename(final)
        files.sync_directory(directory)
        with contextlib.suppress(OSError):
            files.remove(replaced)
        return final
    except OSError as error:
        size, before = sum(each.size for each in contents.values()), list_checkpoints(directory)
        good = f"the last one is {before[-1]}" if before else "there is none before it"
        raise LaunchError(
            f"cannot write the checkpoint {final} ({size:,} bytes): {files.reason(error)}\n{good}; "
            "make room or choose another place with run_dir=PATH"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # where it has become the checkpoint, it is gone
            files.remove(partial)


def _write(place: Path, contents: Mapping[str, Content]) -> dict[str, dict[str, Any]]:
    """New files, on disk; returns size and sha256 by name."""
    entries = {}
    with contextlib.ExitStack() as opened:
        targets = {name: opened.enter_context(open(place / name, "xb")) for name in contents}
        for name, file in targets.items():  # all are with the system before the disk is waited for
            digest = hashlib.sha256()
            for piece in contents[name].pieces:
                digest.update(piece)
                file.write(piece)
            file.flush()
            entries[name] = {"size": contents[name].size, "sha256": digest.hexdigest()}
        for file in targets.values():
            files.to_disk(file.fileno())
    return entries


def name_of(step: int) -> str:
    """The name of the checkpoint of a step."""
    return f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint that `list_checkpoints` has found."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1] or match[2])


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint directory after checking every file against the manifest.

    Raises DataError naming the file and the difference when anything is missing, cut short,
    changed, or written by a newer format.
    """
    path = Path(path)
    if not os.path.isdir(path):
        names = [p.name for p in list_checkpoints(path.parent)]
        beside = f"there are {', '.join(names)}" if names else "and none beside it"
        raise DataError(f"no checkpoint at {path}: {beside}")
    manifest = _read_manifest(path)
    with damaged(path):
        contents = {name: _read_verified(path, name, e) for name, e in manifest.files.items()}
        if _NAME.fullmatch(path.name) and (step := step_of(path)) != manifest.step:
            raise ValueError(f"its name says step {step}, its {MANIFEST} step {manifest.step}")
        order = manifest.order
        model = _arrays(contents["model.safetensors"], "model", order["model"])
        optimizer = _arrays(contents["optimizer.safetensors"], "optimizer", order["optimizer"])
        state = files.parse_object(contents["state.json"].tobytes())
        text = contents["config.yaml"].tobytes().decode()
        return Checkpoint(path, manifest.step, model, optimizer, state, text)


def list_checkpoints(directory: str | Path) -> list[Path]:
    """The complete checkpoints in a run's `checkpoints` directory, oldest step first."""
    try:
        entries = sorted(Path(directory).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"cannot look for checkpoints: {files.reason(error)}") from error
    by_step: dict[int, Path] = {}
    for entry in entries:  # ".step-x.replaced" sorts before "step-x", so a whole "step-x" wins
        if _NAME.fullmatch(entry.name) and (entry / MANIFEST).is_file():
            by_step[step_of(entry)] = entry
    return [by_step[step] for step in sorted(by_step)]


def had_checkpoints(directory: Path) -> bool:
    """Whether there is, or was, a checkpoint in a directory, whole or damaged."""
    try:
        names = os.listdir(directory)
        links = [os.readlink(directory / n) for n in names if (directory / n).is_symlink()]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DataError(f"cannot look for checkpoints: {files.reason(error)}") from error
    return any(map(_WAS.fullmatch, [*names, *links]))  # `last` leads to what was removed


def load_newest_checkpoint(
    directory: str | Path,
    warn: Callable[[str], None],
    check: Callable[[Checkpoint], None] | None = None,
) -> Checkpoint:
    """The newest checkpoint that is whole; `warn` gets the text of each damaged one passed over.

    `check` raises DataError for one whose state is of no use. Raises DataError when there is none.
    """
    for path in reversed(list_checkpoints(directory)):
        try:
            checkpoint = load_checkpoint(path)
            if check is not None:
                check(checkpoint)
            return checkpoint
        except (OtherFormat, OtherRun):
            raise
        except DataError as error:
            warn(str(error))
    there = "" if Path(directory).is_dir() else " (there is no such directory)"
    raise DataError(
        f"no usable checkpoint in {Path(directory)}{there}: a run writes one at its last step, a "
        "loop of your own where it calls mt.save"
    )


def config_of(path: Path) -> str:
    """The config.yaml of a checkpoint; DataError where it is not as it was written."""
    manifest = _read_manifest(path)
    with damaged(path):
        return _read_verified(path, "config.yaml", manifest.files["config.yaml"]).tobytes().decode()


@contextlib.contextmanager
def damaged(path: Path, where: str = "") -> Iterator[None]:
    """A ValueError about what is in a checkpoint is a DataError that names it."""
    try:
        yield
    except ValueError as error:
        raise DataError(f"damaged checkpoint {path}: {where}{error}") from error
    except MemoryError as error:
        raise DataError(f"the checkpoint {path} does not fit into memory") from error


def peek_state(path: Path) -> dict[str, Any]:
    """The state of a checkpoint without checking it; empty where it cannot be read."""
    try:
        return files.read_object(path / "state.json")
    except (OSError, ValueError):
        return {}


def _arrays(content: NDArray[np.uint8], kind: str, order: list[str]) -> dict[str, Array]:
    try:
        arrays = arrays_in(content)
    except ValueError as error:
        raise ValueError(f"{kind}.safetensors: its contents do not fit: {error}") from error
    if sorted(arrays) != sorted(order):
        raise ValueError(f"its {kind} has arrays {sorted(arrays)}, the manifest {sorted(order)}")
    return {name: arrays[name] for name in order}


@dataclass
class _Entry:
    size: Count
    sha256: str


@dataclass
class _Manifest:
    """manifest.json: what the files are, and the names of their arrays in definition order."""

    step: Count
    files: Annotated[dict[File, _Entry], Len(len(FILES), len(FILES))]
    order: Annotated[dict[Literal["model", "optimizer"], list[str]], Len(2, 2)]


def _read_manifest(path: Path) -> _Manifest:
    with damaged(path, f"{MANIFEST} cannot be understood: "):
        try:
            content = files.read_object(path / MANIFEST)
        except FileNotFoundError:
            raise DataError(f"{path} is not a checkpoint: it has no {MANIFEST}") from None
        except OSError as error:
            raise DataError(f"cannot read the checkpoint: {files.reason(error)}") from error
        if (its := content.get("format", FORMAT)) == FORMAT:
            return files.typed(_Manifest, content)
    raise OtherFormat(
        f"{path} has checkpoint format {its}; this microtrain reads format {FORMAT}\n"
        "use it with the version that wrote it (see its run.json), or train the model anew"
    )


def _read_verified(path: Path, name: str, expected: _Entry) -> NDArray[np.uint8]:
    """The content of a file that is as the manifest says; ValueError for all else."""
    try:
        with files.open_plain(path / name) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                raise ValueError(f"{name} has {size:,} bytes, the manifest says {expected.size:,}")
            memory = np.empty(size, np.uint8)
            if file.readinto(memory.data) != size:
                raise ValueError(f"{name} became shorter while it was read")
    except OSError as error:
        raise ValueError(f"cannot read {name}: {error.strerror}") from error
    found, wanted = hashlib.sha256(memory.data).hexdigest(), expected.sha256
    if found != wanted:
        raise ValueError(
            f"{name} was changed: its sha256 starts {found[:12]}, the manifest says {wanted[:12]}"
        )
    return memory


def clear_leftovers(directory: Path) -> None:
    """Finish or undo what a killed writer left: only this process does so."""
    for entry in directory.glob(".step-*.replaced"):
        final = directory / entry.name.removeprefix(".").removesuffix(".replaced")
        if final.exists():
            files.remove(entry)
        else:
            entry.rename(final)
    for entry in directory.glob(".step-*.partial"):
        files.remove(entry)


def prune(directory: Path, keep_last: int, keep_best: int, monitor: Sequence[str]) -> None:
    """Remove what is neither among the newest nor the best; point `last` and `best` at these.

    A directory that cannot be removed or linked is no reason to end a run.
    """
    paths = list_checkpoints(directory)
    values = {path: value for path in paths if (value := monitored(path, monitor)) is not None}
    sign = 1.0 if monitor[1] == "min" else -1.0
    ranked = sorted(values, key=lambda path: sign * values[path])  # of equal ones the first
    kept = {*paths[-keep_last:], *ranked[:keep_best]}
    for path in paths:
        if path not in kept:
            # Without its name first, so that nobody meets half of it.
            hidden = path.with_name(f".{path.name}.partial")
            with contextlib.suppress(OSError):
                path.rename(hidden)
                files.remove(hidden)
    for name, target in (("last", paths[-1:]), ("best", ranked[: min(keep_best, 1)])):
        if target:
            files.point(directory / name, target[0])


def monitored(path: Path, monitor: Sequence[str]) -> float | None:
    """The value of the monitored metric at a checkpoint, if that was measured there."""
    state = peek_state(path)
    value = state.get("monitored") if state.get("monitor") == list(monitor) else None
    return value if isinstance(value, float) else None
