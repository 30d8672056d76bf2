"""Reading files that may be someone else's, and writing where links may lie.

What is read is a plain file of a bounded size, never a pipe that makes a program wait or a device
without an end. What a run writes appears whole or not at all, and through no link that lies in its
directory: such a directory may have come from someone else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ..errors import DataError, LaunchError, UserError, absent
from .spelling import did_you_mean

Place = str | os.PathLike[str]
T = TypeVar("T")

PIECE = 2**20
MOST = 64 * 2**20  # bytes of a file that is read whole and of which nothing tells the length
YOUNG = 60.0  # seconds in which a file may not be locked by its writer yet
TORCH = (".pt", ".pth", ".bin", ".ckpt")  # how the names of PyTorch's pickles end
DEEPEST = 100  # levels of JSON: what goes through it level by level must come to an end
_WAITS = [True]


@contextlib.contextmanager
def without_syncing() -> Iterator[None]:
    """Write without waiting for the disk: a kill loses none of it, a power cut may."""
    before = _WAITS[0]
    try:
        _WAITS[0] = False
        yield
    finally:
        _WAITS[0] = before


def to_disk(descriptor: int) -> None:
    """Wait until the disk has an open file."""
    if _WAITS[0]:
        os.fsync(descriptor)


def sync_file(path: Place) -> None:
    """Wait until the disk has a file, also where nothing else is waited for."""
    with open_plain(path) as file:
        os.fsync(file.fileno())


def open_plain(path: Place) -> BufferedReader:
    """A plain file, open for reading; OSError for all else, also where opening would wait."""
    return open(path, "rb", opener=_plain)


def open_to_write(path: Place, flags: int) -> int:
    """An `opener` of plain files of a run, made where they are absent; OSError for a link."""
    refuse_link(path)
    return _plain(path, flags | os.O_CREAT | os.O_NOFOLLOW)


def _plain(path: Place, flags: int) -> int:
    # Without waiting for the other end of a pipe; for a plain file that changes nothing.
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # open() refuses a directory itself
        os.close(handle)
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device"
        raise OSError(errno.EINVAL, f"{kind}, not a file", str(path))
    return handle


def read_plain(path: Place, most: int = MOST) -> bytes:
    """The content of a plain file; OSError for all else, and for more than `most` bytes."""
    content = b""
    with open_plain(path) as file:
        # In pieces: a read takes memory for all that it may return.
        while len(content) <= most and (piece := file.read(min(PIECE, most + 1 - len(content)))):
            content += piece
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most:,} bytes", str(path))
    return content


def beginning(path: Place, length: int) -> hashlib._Hash:
    """The sha256 of the first bytes of a plain file, of all where it has not so many; OSError."""
    digest = hashlib.sha256()
    with open_plain(path) as file:
        while length > 0 and (block := file.read(min(PIECE, length))):
            digest.update(block)
            length -= len(block)
    return digest


def read_object(path: Place) -> dict[str, Any]:
    """The object in a file of JSON; OSError as `read_plain`, ValueError as `parse_object`."""
    return parse_object(read_plain(path))


def is_unicode(text: str) -> bool:
    """Whether UTF-8 has it: no half of a surrogate pair, as in names of files that are no UTF-8."""
    return text.encode(errors="ignore").decode() == text


def parse_object(text: bytes) -> dict[str, Any]:
    """The object that JSON says; ValueError for all else."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ValueError(f"not a JSON object: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return content


def parse_json(text: bytes | str) -> Any:
    """What JSON says; ValueError for all else, also for a hundred levels or digits without end."""
    with contextlib.suppress(RecursionError):
        content = json.loads(text, parse_int=_whole)
        if _within(content, DEEPEST):
            return content
    raise ValueError(f"nested deeper than {DEEPEST} levels")


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """A file of strict JSON; TypeError and ValueError, naming the key, for what it would change."""
    try:
        return _json_bytes(dict(content))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{_culprit(dict(content))}{error}") from None


def _json_bytes(content: Any) -> bytes:
    text = json.dumps(content, indent=2, allow_nan=False)
    if parse_json(text.encode()) != content:
        raise TypeError("the state changes on its way through JSON: use text keys and lists")
    if "\\ud" in text and not is_unicode(json.dumps(content, ensure_ascii=False)):
        raise ValueError("its text is not valid UTF-8")
    return (text + "\n").encode()


def _culprit(content: Any) -> str:
    """The keys that lead to the innermost part which cannot be written."""
    for key, part in content.items() if isinstance(content, dict) else enumerate(content):
        try:
            _json_bytes(part)
        except (TypeError, ValueError):
            return f"{key}: {_culprit(part) if isinstance(part, dict | list) else ''}"
    return ""


def _within(content: Any, levels: int) -> bool:
    """Whether lists and objects lie at most so many levels deep in each other."""
    if not isinstance(content, dict | list):
        return True
    inner = content.values() if isinstance(content, dict) else content
    return levels > 0 and all(_within(each, levels - 1) for each in inner)


def _whole(digits: str) -> int:
    if len(digits) > 300:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def from_torch(path: Place) -> str:
    """How a pickle of PyTorch becomes a file that is read, for messages."""
    name = str(path) or "net.pt"
    target = os.path.splitext(name)[0] + ".safetensors"
    code = (
        "import torch; from safetensors.torch import save_file; "
        f'state = torch.load({json.dumps(name)}, map_location="cpu", weights_only=True); '
        "save_file({k: v.contiguous().clone() for k, v in state.items()}, "
        f"{json.dumps(target)})"
    )
    return (
        "pickles of PyTorch can run code and are not read. Where torch and safetensors are "
        f"installed, convert it:\npython -c {shlex.quote(code)}\n"
        "If it holds more than the weights, extract them first: "
        'torch.load(...)["model_state_dict"]. They go into a model by\n'
        f"model.load_state_dict(mt.load({json.dumps(target)}))"
    )


def refuse_link(path: Place) -> None:
    """OSError where there is a link inside a run: what is written through it lies elsewhere."""
    if os.path.islink(path):
        text = f"a link to {os.readlink(path)}, and nothing is written through a link inside a run"
        raise OSError(errno.ELOOP, text, str(path))


def make_directory(path: Place, links: bool = False) -> None:
    """Make a directory where it is absent, so that it outlives a power cut.

    OSError without what it is to be in, and for a link unless there may be `links`.
    """
    if not links:
        refuse_link(path)
    try:
        os.mkdir(path)
    except FileExistsError:
        pass
    except OSError:
        if not os.path.isdir(path):  # what is there may be in a place where one cannot write
            raise
    else:
        with contextlib.suppress(PermissionError):  # one may write where one may not read
            sync_directory(os.path.dirname(os.path.abspath(path)))


def write_whole(
    path: Path, content: bytes | Iterable[Any], *, sync: bool = True, mode: int | None = None
) -> None:
    """Write a file beside and rename it: a reader never sees half of it, a link is replaced.

    Two that write one file at the same time do not meet: the last one's is there, whole. What a
    writer of the same file has left that was killed is removed.

    Without `sync` a power cut may leave it empty. `mode`: its permissions, None: the usual ones.
    `content`: bytes, or what they come from, piece by piece.
    """
    partial = path.with_name(f".{path.name}.{os.urandom(4).hex()}.partial")
    clear_partials(path)
    try:
        with open(partial, "xb") as file:  # x: not what a link leads to
            with contextlib.suppress(OSError):  # where the file system has no locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            pieces: Any = [content] if isinstance(content, bytes) else content
            file.writelines(pieces)
            file.flush()
            if sync:
                to_disk(file.fileno())
        partial.replace(path)
    except BaseException:  # also of what makes the content
        partial.unlink(missing_ok=True)  # on a full disk its space is wanted
        raise
    if sync:
        sync_directory(path.parent)


def clear_partials(path: Path, young: float = YOUNG) -> None:
    """Remove what writers of a file have left that were killed, so many seconds ago."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.partial")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if name.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > young:
                with open_plain(entry.path) as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its writer is gone
                    os.unlink(entry.path)


def sync_directory(path: Place) -> None:
    """Wait until the disk has the directory's names (a rename is not durable before)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        to_disk(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a directory and all that is in it; of a link the link alone, of a pipe the pipe."""
    if path.is_symlink() or not path.is_dir():  # rmtree opens what it is given
        path.unlink()
    else:
        shutil.rmtree(path)


def reason(error: OSError) -> str:
    """The system's words and the path they are about: `No space left on device: runs/x`."""
    where = f": {error.filename}" if error.filename is not None else ""
    return f"{error.strerror or error}{where}"


@contextlib.contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """A file that is read meanwhile; DataError where that fails."""
    try:
        with open_plain(path) as file:
            yield file
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" (looked for {path.absolute()})"
        raise DataError(f"there is no file {path}{where}{nearby(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DataError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error


@contextlib.contextmanager
def refusing(what: str, way_out: str = "", kind: type[UserError] = LaunchError) -> Iterator[None]:
    """What the file system refuses meanwhile is a `kind`: what failed, the reason, a way out."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            way_out = "\nremove the link, or replace it with what it points to"
        raise kind(f"{what}: {reason(error)}{way_out}") from error


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """DataError, on one line, for whatever a library raises of a file; `what` begins it."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{what}: {' '.join(str(error).split()):.300}") from error


@contextlib.contextmanager
def writing(what: object, way_out: str = "") -> Iterator[None]:
    """What a user asked for is written meanwhile; LaunchError where that fails."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = reason(error) if isinstance(error, OSError) else error
        raise LaunchError(f"cannot write {what}: {why}{way_out}") from error


def nearby(path: Path, pattern: str = "*") -> str:
    """`; did you mean NAME?`, of what lies where a file is looked for that is not there."""
    return did_you_mean(path.name, sorted(other.name for other in path.parent.glob(pattern)))


def library(name: str, path: Path, extra: str) -> Any:
    """A library that reads a kind of file; DataError that says how to install it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(f"{path} is read by {name}: {absent(name, extra, error)}") from error


def point(link: Path, target: Path) -> None:
    """Let a link lead to `target` beside it, whatever it led to; where there are links at all."""
    partial = link.with_name(f".{link.name}.partial")
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
        partial.symlink_to(target.name)
        partial.replace(link)


def typed(kind: type[T], content: Any) -> T:
    """`content`, which is JSON, as a `kind`; ValueError naming the first key that is of no use."""
    from pydantic import ValidationError  # where runs are read, not where they train

    hashable: Any = kind
    try:
        return _adapter(hashable).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@functools.cache
def _adapter(kind: Any) -> Any:
    """What checks a `kind`: made once, which takes longer than to check with it."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def set_aside(path: Path, name: str) -> Path:
    """Give what is damaged another name, in place of what had it; returns the new path.

    Raises LaunchError where the file system refuses.
    """
    aside = path.with_name(name)
    with refusing("cannot move the damaged file aside"):
        if os.path.lexists(aside):
            remove(aside)
        return path.rename(aside)
