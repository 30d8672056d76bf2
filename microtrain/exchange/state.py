"""`mt.save` and `mt.load`: plain state in one file, a loop's checkpoints, a run's model.

Which of them is meant is said by the arguments: a state comes with the path of a file, a
checkpoint with a directory and a step; what is loaded is a file or a directory.
"""

from __future__ import annotations

import io
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, overload

import numpy as np

from ..backend import as_dtype
from ..errors import DataError, LaunchError
from ..files import open_plain, reason, write_whole
from ..runs.checkpoint import MANIFEST, list_checkpoints, peek_state
from ..runs.members import SEVERAL
from ..runs.tree import take_apart
from ..spelling import did_you_mean
from ..tensor import kind_of, wrap
from ..words import size
from . import safetensors_file, torch_file

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator
    from ..nn import Module
    from ..optim import Optimizer

__all__ = ["load", "read_state", "save", "write_state"]

Place = str | os.PathLike[str]


@overload
def save(obj: Any, path: Place | IO[bytes], *, format: str | None = None) -> None: ...


@overload
def save(
    directory: Place, step: int, *, model: Module, optimizer: Optimizer | None = None,
    state: Mapping[str, Any] | None = None, keep: int = 2, comm: Communicator | Any = None,
) -> None: ...  # fmt: skip


def save(*args: Any, **options: Any) -> None:
    """Write a state to one file, or a checkpoint of a training loop.

    `save(obj, path)` writes a state dict, or dicts, lists and tuples of Tensors, arrays and plain
    values, on the rank that calls it; the file appears whole or not at all. Its name says the
    format: `.safetensors` (read by others as its Tensors by name), `.pt` or `.pth` (as torch.load
    reads it), `.npz` (arrays by name). `load(path)` reads each. `path` may be a file object that
    takes bytes, at its position: `format` is "safetensors" or "npz"; None is what its name says, if
    it has one, else safetensors.

    `save(directory, step, model=..., optimizer=None, state=None, keep=2, comm=None)` is
    collective: it writes `directory/step-000100`, whole or not at all, with the random state, and
    removes all but the newest `keep`. `state` is whatever else the loop needs, as JSON has it;
    `restore` goes on from there.

    Raises TypeError for what is no plain state or extra state, by its key, and for a file opened as
    text; ValueError for the name of a file that says no format, and for a file that is closed;
    LaunchError where the file system refuses.

    Example:
        >>> mt.save({"model": model.state_dict(), "epoch": 3}, "last.safetensors")
        >>> mt.load("last.safetensors")["epoch"]
        3
        >>> mt.save("checkpoints", epoch, model=model, optimizer=optimizer, state={"epoch": epoch})
    """
    first = args[0] if args else None
    is_place = isinstance(first, str | os.PathLike)
    if is_place or "directory" in options:
        if len(args) == 2 and "model" not in options and not isinstance(args[1], int):
            raise TypeError(
                f"save(): {str(first)!r} is a path, and {kind_of(args[1])} comes second; write "
                "mt.save(obj, path)"
            )
        if len(args) <= 2 and "model" not in options:
            raise TypeError(
                "save(): a checkpoint is of a model: mt.save(directory, step, model=...); a state "
                "goes into a file: mt.save(model.state_dict(), path)"
            )
        from ..train.custom_loop import save as save_checkpoint

        save_checkpoint(*args, **options)
        return
    _save_state(*args, **options)


def _save_state(obj: Any, path: Place | IO[bytes], *, format: str | None = None) -> None:
    if hasattr(path, "write"):
        _write_object(obj, path, format)
    elif format is not None:
        raise TypeError("save(): format= is of a file object; the name of a file says its format")
    else:
        write_state(obj, path)


_save_state.__name__ = _save_state.__qualname__ = "save"  # in Python's words about the arguments


def _npz(obj: Any) -> bytes:
    """The file of a flat dict; the arrays' names are its keys."""
    tree, arrays = take_apart(obj)
    if not isinstance(obj, Mapping) or any(
        key not in arrays or not isinstance(value, dict) for key, value in tree["dict"]
    ):
        raise TypeError("obj: a file .npz holds one dict of arrays; .safetensors holds all states")
    if taken := {"file", "allow_pickle"} & {*arrays}:  # arguments of numpy.savez
        raise ValueError(f"obj: an array of a file .npz cannot be named {taken.pop()}")
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


WRITERS: dict[str, Callable[[Any], bytes | Iterator[Any]]] = {
    ".safetensors": safetensors_file.dump,
    ".pt": torch_file.dump,
    ".pth": torch_file.dump,
    ".npz": _npz,
}


def _write_object(obj: Any, file: Any, format: str | None) -> None:
    """Write `obj` to a file object, from its position on."""
    name = getattr(file, "name", "")
    suffix = Path(name).suffix.lower() if isinstance(name, str) else ""
    chosen = f".{format}" if format is not None else suffix if suffix in WRITERS else ".safetensors"
    if chosen not in (".safetensors", ".npz"):
        raise ValueError(
            f"save(): {chosen} into a file object: expected format= safetensors or npz; a .pt is "
            "written by its name, mt.save(obj, path)"
        )
    content = WRITERS[chosen](obj)
    try:
        file.write(b"")
        for piece in [content] if isinstance(content, bytes) else content:
            rest = memoryview(piece)
            while len(rest):  # what is unbuffered may take a part
                taken = file.write(rest)
                rest = rest[len(rest) if taken is None else taken :]
        getattr(file, "flush", bool)()
    except TypeError as error:
        raise TypeError(f"save(): {_named(file)} takes no bytes; open it by 'wb'") from error
    except OSError as error:
        raise LaunchError(f"cannot write to {_named(file)}: {reason(error)}") from error


def _named(place: Any) -> str:
    """A place in words: a path, or a file object by its name or kind."""
    if isinstance(place, str | os.PathLike):
        return str(place)
    name = getattr(place, "name", None)
    return f"the {type(place).__name__}" + (f" {name}" if isinstance(name, str) else "")


def write_state(obj: Any, path: Any) -> None:
    """Write `obj` in the format that the name of `path` says; whole or not at all."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"save(): path: expected a path or a file object, got {kind_of(path)}")
    file = Path(os.path.expanduser(path))
    suffix = file.suffix.lower()
    if suffix not in WRITERS:
        near = did_you_mean(suffix, WRITERS) if suffix else ""
        raise ValueError(
            f"save(): {path}: the name of a file ends in one of {', '.join(WRITERS)}, which says "
            f"its format{near}"
        )
    content = WRITERS[suffix](obj)
    try:
        if file.is_dir():
            raise IsADirectoryError(None, "a directory", str(path))
        write_whole(file.resolve(), content)  # what a link leads to is replaced, not the link
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {reason(error)}") from error


def load(
    path: Any,
    *,
    trust: bool = False,
    checkpoint: str | int = "best",
    model: Module | None = None,
    bfloat16: Any = None,
    member: str | int | None = None,
) -> Any:
    """What a file holds, or the trained model of a run.

    A file is read as data, whatever its name: safetensors, PyTorch's `.pt` and `.pth` (Tensors,
    dicts, lists, tuples and plain values; nothing of its pickle is executed) and `.npz` give what
    was saved, with Tensors on the CPU. A directory is a run, or one checkpoint of one, and gives a
    `TrainedModel`: its model, with the preparation of its inputs. Of a sweep it is the best member;
    `member="all"` gives a `TrainedEnsemble`: the mean of all that have finished, and their spread;
    `"best-setting"` that of the members with the best mean over seeds and folds.

    Args:
        path: a file; a run directory, `<runs>/<name>` or its `latest` for the newest run of that
            name; or one checkpoint directory. Or a file object with a file of safetensors or npz
            from its position on, behind which it then stands: what was saved one behind the other
            is loaded so.
        trust: run the code that the run's import paths name. Everything else is read without
            running anything: there is no pickle in a run.
        checkpoint: `best` (where that was not kept, the last, with a UserWarning), `last`, or a
            step.
        model: of the same architecture, whose values are replaced; instead of what the
            configuration describes, as for a run whose model was given to `Trainer` in Python.
        bfloat16: `mt.float32` widens Tensors of bfloat16 in a file to it, which is exact; without
            it they are an error, since NumPy has no such dtype.
        member: of a sweep: `best` (where none is given), a number, `all` or `best-setting`.

    Raises ConfigError for import paths without `trust` and for a `member` of a run that is no
    sweep, DataError for what is missing, damaged or
    does not fit, TypeError for a `model` that is no Module and arguments of the other form.

    Example:
        >>> mt.save(model.state_dict(), "weights.pt")
        >>> model.load_state_dict(mt.load("weights.pt"))
        LoadedKeys(missing_keys=[], unexpected_keys=[])
        >>> iris = mt.load("runs/iris")
        >>> iris.predict([[5.1, 3.5, 1.4, 0.2]])
        array(['setosa'], dtype='<U10')
        >>> flowers = mt.load("runs/iris-sweep", member="all")
        >>> species, spread = flowers.predict([[5.1, 3.5, 1.4, 0.2]], spread=True)
    """
    stream = hasattr(path, "read")
    if not stream and not isinstance(path, str | os.PathLike):
        way = "; wrap it: io.BytesIO(content)" if isinstance(path, bytes | bytearray) else ""
        raise TypeError(f"load(): expected a path or a file object, got {kind_of(path)}{way}")
    place = Path() if stream else Path(os.path.expanduser(path))
    if bfloat16 is not None and as_dtype(bfloat16) != np.float32:
        raise TypeError(f"load(): bfloat16: expected mt.float32 or None, got {bfloat16!r}")
    names_file = place.suffix.lower() in WRITERS and not place.is_dir()
    if stream or place.is_file() or names_file:
        for name, given in {
            "trust": trust,
            "checkpoint": checkpoint != "best",
            "model": model,
            "member": member is not None,
        }.items():
            if given:
                raise TypeError(
                    f"load(): {name}= is of a run, and {_named(path)} is a file; leave it out"
                )
        return read_state(path, bfloat16 is not None)
    if bfloat16 is not None:
        raise TypeError(f"load(): bfloat16= is of a file, and {path} is none; leave it out")
    _refuse_loop(place, path)
    if member in SEVERAL:
        from ..inference.ensemble import load_all

        if checkpoint != "best" or model is not None:
            raise TypeError(
                f"load(): checkpoint= and model= are of one model; leave out member={member!r}"
            )
        return load_all(path, trust=trust, member=str(member))
    from ..inference.model import load as load_run

    return load_run(path, trust=trust, checkpoint=checkpoint, model=model, member=member)


def _refuse_loop(place: Path, path: Place) -> None:
    """DataError for the checkpoints of a loop of one's own, which `restore` reads."""
    found = [place] if os.path.isfile(place / MANIFEST) else list_checkpoints(place)
    if found and "loop" in peek_state(found[-1]):
        directory = place.parent if found == [place] else place
        raise DataError(
            f"{path} holds values of a model, not the model: it was written by a loop, and "
            f'mt.restore("{directory}", model=..., optimizer=...) takes it up'
        )


def read_state(path: Any, bfloat16: bool = False) -> Any:
    """What a file holds; DataError for one that cannot be read, is damaged or of other kinds."""
    place = _named(path)
    try:
        if hasattr(path, "read"):
            content = _first(path, _rest(path))
        else:
            with open_plain(os.path.expanduser(path)) as file:
                content = file.read()
        parse = _parser(content)
        if parse is torch_file.parse and hasattr(path, "read"):
            raise ValueError("a .pt is read by its name, mt.load(path)")
        return parse(content, bfloat16)
    except OSError as error:
        raise DataError(f"cannot read {place}: {reason(error)}") from error
    except ValueError as error:
        raise DataError(f"cannot read {place}: {error}") from error
    except MemoryError as error:
        raise DataError(f"{place} does not fit into memory") from error


def _rest(file: Any) -> bytes:
    """All bytes from the position of a file object on; ValueError where there are none."""
    pieces: list[bytes] = []
    while piece := file.read():  # a part, of what is unbuffered
        if isinstance(piece, str):
            raise TypeError(f"load(): {_named(file)} gives text; open it by 'rb'")
        pieces.append(piece)
    if not pieces:
        raise ValueError("there is nothing behind its position; file.seek(0) goes to the start")
    return b"".join(pieces)


def _first(file: Any, content: bytes) -> bytes:
    """The first of states that lie one behind the other; `file` stands behind it.

    ValueError where it cannot go there.
    """
    if content[8:9] == b"{":
        end = safetensors_file.length(content)
    else:  # an archive begins where the offset of its directory counts from
        marks = (mark.start() for mark in re.finditer(rb"PK\x05\x06(?=.{18})", content, re.DOTALL))
        found = ((i, *struct.unpack_from("<IIH", content, i + 12)) for i in marks)
        ends = (i + 22 + comment for i, length, start, comment in found if start + length == i)
        end = next(ends, len(content))
    if end < len(content):
        try:
            file.seek(end - len(content), os.SEEK_CUR)
        except (AttributeError, OSError) as error:
            raise ValueError("there is more behind it, and the file object cannot seek") from error
    return content[:end]


def _parser(content: bytes) -> Callable[[bytes, bool], Any]:
    """What reads a file that begins as this one; ValueError for none."""
    if content[:4] in (b"PK\3\4", b"PK\5\6"):
        return _read_npz if b".npy" in content[:200] else torch_file.parse
    if content[8:9] == b"{":
        return safetensors_file.parse
    if content[:1] == b"\x80" or content[257:262] == b"ustar":
        raise ValueError(
            "a pickle, or the format of PyTorch before 1.6, which is one; reading it would execute "
            "it. Where you trust it, load it in torch and save its state_dict with torch.save"
        )
    raise ValueError(
        "it is of no format that holds state: safetensors, .pt or .pth of torch.save, .npz"
    )


LARGE = 2**28  # bytes below which an archive may be of any size unpacked
SMALLEST = 100  # times that a larger one may be compressed
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, tokenize.TokenError, OSError, EOFError, RuntimeError,
    SyntaxError, TypeError, KeyError,
)  # fmt: skip


def _read_npz(content: bytes, bfloat16: bool) -> Any:
    """The arrays of an npz file as Tensors."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if any(entry.header_offset for entry in arrays.zip.infolist()[:1]):
                raise EOFError("there are several in this file, one behind the other")
            whole = sum(info.file_size for info in arrays.zip.infolist())
            if whole > max(LARGE, SMALLEST * len(content)):
                raise ValueError(
                    f"its {size(len(content))} would be {size(whole)} of arrays, more than "
                    f"{SMALLEST} times its size; write them with numpy.savez, uncompressed"
                )
            found = {name: arrays[name] for name in arrays.files}
            for array in found.values():
                as_dtype(array.dtype)
    except _UNREADABLE as error:
        raise ValueError(f"damaged, or no arrays of numbers: {error}") from error
    return {name: wrap(np.ascontiguousarray(a).reshape(a.shape)) for name, a in found.items()}
