"""`mt.save` and `mt.load`: plain state in one file, a loop's checkpoints, a run's model.

Which of them is meant is said by the arguments: a state comes with the path of a file, a
checkpoint with a directory and a step; what is loaded is a file or a directory. In safetensors the
arrays of a state have names, and all else is JSON in the file's metadata.
"""

from __future__ import annotations

import io
import json
import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from ..backend import as_dtype
from ..common import files
from ..common.spelling import did_you_mean
from ..common.words import size
from ..errors import DataError
from ..runs.arrays import array_content, arrays_in, header_in
from ..runs.checkpoint import MANIFEST, list_checkpoints, peek_state
from ..runs.state import put_together, take_apart
from ..tensor import kind_of, wrap

if TYPE_CHECKING:
    from ..distributed.communicator import Communicator
    from ..nn import Module
    from ..optim import Optimizer

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
    format: `.safetensors` (read by others, such as PyTorch, as its Tensors by name) or `.npz`
    (arrays by name). `load(path)` reads both. `path` may be a file object that takes bytes, at its
    position: `format` is "safetensors" or "npz"; None is what its name says, if it has one, else
    safetensors.

    `save(directory, step, model=..., optimizer=None, state=None, keep=2, comm=None)` is
    collective: it writes `directory/step-000100`, whole or not at all, with the random state, and
    removes all but the newest `keep`. `state` is whatever else the loop needs, as JSON has it;
    `restore` goes on from there.

    Raises TypeError for what is not plain state or extra state, by its key, and for a file opened
    as text; ValueError for the name of a file that says neither format, and for a file that is
    closed; LaunchError where the file system refuses.

    Example:
        >>> mt.save({"model": model.state_dict(), "epoch": 3}, "last.safetensors")
        >>> mt.load("last.safetensors")["epoch"]
        3
        >>> mt.save("checkpoints", epoch, model=model, optimizer=optimizer, state={"epoch": epoch})
    """
    first = args[0] if args else None
    is_place = isinstance(first, str | os.PathLike)
    if is_place or "directory" in options:
        if len(args) <= 2 and "model" not in options:
            raise TypeError(
                f"save(): {str(first)!r} comes first: a state goes into a file by mt.save(obj, "
                "path), a model into a checkpoint by mt.save(directory, step, model=...)"
            )
        from ..train.model_state import save as save_checkpoint

        save_checkpoint(*args, **options)
        return
    _save_state(*args, **options)


def _save_state(obj: Any, path: Place | IO[bytes], *, format: str | None = None) -> None:
    stream = hasattr(path, "write")
    if not stream and not isinstance(path, str | os.PathLike):
        raise TypeError(f"save(): path: expected a path or a file object, got {kind_of(path)}")
    if not stream and format is not None:
        raise TypeError("save(): format= is for a file object; the name of a file says its format")
    suffix = Path(_name(path)).suffix.lower()
    if format is not None:
        suffix = f".{format}"
    elif stream and suffix not in (*WRITERS, *files.TORCH):
        suffix = ".safetensors"
    said = _named(path) if format is None else f"format={format!r}"
    if suffix in files.TORCH:
        raise ValueError(f"save(): {said}: {for_torch(_name(path) or 'net')}")
    if suffix not in WRITERS:
        raise ValueError(
            f"save(): {said}: a state is written as {' or '.join(WRITERS)}, which the end of the "
            f"name says{did_you_mean(suffix, WRITERS) if suffix else ''}"
        )
    content = WRITERS[suffix](obj)
    with files.refusing(f"cannot write to {_named(path)}"):
        if stream:
            _put(path, content)
            return
        file = Path(_name(path)).expanduser()
        if file.is_dir():
            raise IsADirectoryError(None, "a directory", str(path))
        files.write_whole(file.resolve(), content)  # what a link leads to is replaced, not the link


_save_state.__name__ = _save_state.__qualname__ = "save"  # in Python's words about the arguments


def _put(file: Any, content: Iterable[Any]) -> None:
    """Write to a file object, from its position on."""
    try:
        file.write(b"")
        for piece in content:
            rest = memoryview(piece)
            while len(rest):  # what is unbuffered may take a part
                taken = file.write(rest)
                rest = rest[len(rest) if taken is None else taken :]
        getattr(file, "flush", bool)()
    except TypeError as error:
        raise TypeError(f"save(): {_named(file)} does not take bytes; open it with 'wb'") from error


def _name(place: Any) -> str:
    """The name of a path or file object; empty where it has none."""
    name = place if isinstance(place, str | os.PathLike) else getattr(place, "name", None)
    return str(name) if isinstance(name, str | os.PathLike) else ""


def _named(place: Any) -> str:
    kind = "" if isinstance(place, str | os.PathLike) else f"the {type(place).__name__} "
    return f"{kind}{_name(place)}".rstrip()


def for_torch(path: Place) -> str:
    """What to write instead of a pickle of PyTorch, for messages."""
    name = f"{os.path.splitext(path)[0]}.safetensors"
    return (
        f"pickles of PyTorch are not written; write {name}, which PyTorch reads: "
        f'model.load_state_dict(safetensors.torch.load_file("{name}"))'
    )


def load(
    path: Any,
    *,
    trust: bool = False,
    checkpoint: str | int = "best",
    model: Module | None = None,
    bfloat16: Any = None,
) -> Any:
    """What a file holds, or the trained model of a run.

    A file is read as data, whatever its name: safetensors and `.npz` give what was saved, with
    Tensors on the CPU. A pickle of PyTorch is an error that says how to convert it. A directory is
    a run, or one checkpoint of one, and gives a `TrainedModel`: its model, with the preparation of
    its inputs. Of a sweep it is the best member. A list of runs gives a `TrainedEnsemble`: the mean
    of what they predict, and their spread.

    Args:
        path: a file; a run directory, `<runs>/<name>` or its `latest` for the newest run of that
            name; or one checkpoint directory. Or a file object with a file of safetensors or npz
            from its position to its end. Or a list of two runs or more.
        trust: run the code that the run's import paths name. Everything else is read without
            running anything: there is no pickle in a run.
        checkpoint: `best` (where that was not kept, the last, with a UserWarning), `last`, or a
            step.
        model: of the same architecture, whose values are replaced; instead of what the
            configuration describes, as for a run whose model was given to `Trainer` in Python.
        bfloat16: `mt.float32` widens Tensors of bfloat16 in a file to it, which is exact; without
            it they are an error, since NumPy has no such dtype.

    Raises ConfigError for import paths without `trust` and for runs that predict different things,
    DataError for what is missing, damaged or does not fit, TypeError for a `model` that is not a
    Module and arguments of the other form.

    Example:
        >>> mt.save(model.state_dict(), "weights.safetensors")
        >>> model.load_state_dict(mt.load("weights.safetensors"))
        LoadedKeys(missing_keys=[], unexpected_keys=[])
        >>> iris = mt.load("runs/iris")
        >>> iris.predict([[5.1, 3.5, 1.4, 0.2]])
        array(['setosa'], dtype='<U10')
        >>> flowers = mt.load([f"runs/iris-sweep/latest/members/{n}" for n in (0, 1)])
        >>> species, spread = flowers.predict([[5.1, 3.5, 1.4, 0.2]], spread=True)
    """
    if isinstance(path, list | tuple):
        from ..inference.mean import load_all

        if model is not None or bfloat16 is not None:
            raise TypeError("load(): model= and bfloat16= are for one model or file; omit them")
        return load_all(path, trust=trust, checkpoint=checkpoint)
    stream = hasattr(path, "read")
    if not stream and not isinstance(path, str | os.PathLike):
        way = "; wrap it: io.BytesIO(content)" if isinstance(path, bytes | bytearray) else ""
        raise TypeError(f"load(): expected a path or a file object, got {kind_of(path)}{way}")
    place = Path() if stream else Path(os.path.expanduser(path))
    if bfloat16 is not None and as_dtype(bfloat16) != np.float32:
        raise TypeError(f"load(): bfloat16: expected mt.float32 or None, got {bfloat16!r}")
    names_file = place.suffix.lower() in (*WRITERS, *files.TORCH) and not place.is_dir()
    if stream or place.is_file() or names_file:
        of_runs = {"trust": trust, "checkpoint": checkpoint != "best", "model": model is not None}
        for name in (name for name, given in of_runs.items() if given):
            what = f"{name}= is for a run, and {_named(path)} is a file; leave it out"
            raise TypeError(f"load(): {what}")
        return _read(path, bfloat16 is not None)
    if bfloat16 is not None:
        raise TypeError(f"load(): bfloat16= is for a file, and {path} is not one; leave it out")
    _refuse_loop(place, path)
    from ..inference.model import TrainedModel, warn_user
    from ..inference.saved import read_saved

    return TrainedModel(read_saved(path, checkpoint, trust=trust, warn=warn_user), model)


def _refuse_loop(place: Path, path: Place) -> None:
    """DataError for the checkpoints of your own loop, which `restore` reads."""
    found = [place] if os.path.isfile(place / MANIFEST) else list_checkpoints(place)
    if found and "loop" in peek_state(found[-1]):
        directory = place.parent if found == [place] else place
        raise DataError(
            f"{path} holds values of a model, not the model: it was written by a loop, and "
            f'mt.restore("{directory}", model=..., optimizer=...) takes it up'
        )


def _read(path: Any, bfloat16: bool) -> Any:
    try:
        if hasattr(path, "read"):
            content = _rest(path)
        else:
            with files.open_plain(os.path.expanduser(path)) as file:
                content = file.read()
        return parse(content, bfloat16, _name(path))
    except (OSError, ValueError) as error:
        why = files.reason(error) if isinstance(error, OSError) else error
        raise DataError(f"cannot read {_named(path)}: {why}") from error
    except MemoryError as error:
        raise DataError(f"{_named(path)} does not fit into memory") from error


def _rest(file: Any) -> bytes:
    """What is behind the position of a file object; ValueError where nothing is."""
    pieces: list[bytes] = []
    while piece := file.read():  # a part, of what is unbuffered
        if isinstance(piece, str):
            raise TypeError(f"load(): {_named(file)} gives text; open it with 'rb'")
        pieces.append(piece)
    if not pieces:
        raise ValueError("there is nothing after its position; file.seek(0) goes to the start")
    return b"".join(pieces)


# Formats -----------------------------------------------------------------------------------------


TREE = "microtrain"  # the metadata's key for the structure
LARGE = 2**28  # bytes below which an archive may be of any size unpacked
SMALLEST = 100  # times that a larger one may be compressed
# Arguments of numpy.savez, names that it takes for others, and those that an archive cuts off.
_NOT_IN_NPZ = re.compile(r"file|allow_pickle|.*\.npy|.*\0.*|.{10000,}", re.DOTALL)
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, tokenize.TokenError, OSError, EOFError, RuntimeError,
    SyntaxError, TypeError, KeyError,
)  # fmt: skip


def _safetensors(obj: Any) -> Iterator[Any]:
    tree, arrays = take_apart(obj)
    return array_content("obj", arrays, {TREE: json.dumps(tree)}).pieces


def _npz(obj: Any) -> Iterable[Any]:
    _, arrays = take_apart(obj)
    if not isinstance(obj, Mapping) or [*obj] != [*arrays]:
        raise TypeError("obj: an .npz file holds one dict of arrays; .safetensors holds all states")
    for name in filter(_NOT_IN_NPZ.fullmatch, arrays):
        raise ValueError(f"obj: an array of an .npz file cannot be named {name!r:.80}")
    try:
        _tensors(arrays)
    except ValueError as error:
        raise TypeError(f"obj: what is in an .npz file is loaded as Tensors; {error}") from error
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return [file.getvalue()]


# By the end of a file's name what makes its pieces; they raise TypeError and ValueError.
WRITERS: dict[str, Callable[[Any], Iterable[Any]]] = {".safetensors": _safetensors, ".npz": _npz}


def parse(content: bytes, bfloat16: bool, name: str = "") -> Any:
    """What was written, or of another program's file a dict of Tensors by name.

    bfloat16: whether it is widened. name: of the file, for messages.

    Raises ValueError for other formats, a damaged file, dtypes that Tensors do not have, and
    bfloat16 that is not asked to be widened.
    """
    if content[8:9] == b"{":
        return _parse_safetensors(np.frombuffer(content, np.uint8), bfloat16)
    if content[:2] == b"PK":
        found = _parse_npz(content)
        if found is not None:
            return found
    of_torch = content[:2] in (b"PK", b"\x80\x02") or Path(name).suffix.lower() in files.TORCH
    way_out = f"; {files.from_torch(name)}" if of_torch else ""
    raise ValueError(f"it is neither safetensors nor .npz{way_out}")


def _parse_safetensors(memory: NDArray[np.uint8], bfloat16: bool) -> Any:
    header, _ = header_in(memory)
    # Copied, or one of them would keep all of the file in memory.
    arrays = {name: np.array(array) for name, array in arrays_in(memory).items()}
    about = header.pop("__metadata__", None)
    for name in (name for name, entry in header.items() if entry["dtype"] == "BF16"):
        if not bfloat16:
            raise ValueError(
                f"{name} is of dtype bfloat16, which NumPy does not have; bfloat16=mt.float32 "
                "widens it, which is exact"
            )
        arrays[name] = (arrays[name].astype(np.uint32) << 16).view(np.float32)  # its upper half
    if isinstance(about, dict) and isinstance(about.get(TREE), str):
        return put_together(files.parse_json(about[TREE]), arrays)
    return _tensors(arrays)


def _parse_npz(content: bytes) -> dict[str, Any] | None:
    """None for an archive of other files than arrays."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            members = arrays.zip.infolist()
            if any(not member.filename.endswith(".npy") for member in members):
                return None
            if any(member.header_offset for member in members[:1]):
                raise EOFError("this file holds several, one after the other")
            whole = sum(member.file_size for member in members)
            if whole > max(LARGE, SMALLEST * len(content)):
                raise ValueError(
                    f"its {size(len(content))} would be {size(whole)} of arrays, more than "
                    f"{SMALLEST} times its size; write them with numpy.savez, uncompressed"
                )
            return _tensors({name: arrays[name] for name in arrays.files})
    except _UNREADABLE as error:
        raise ValueError(f"damaged: {error}") from error


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    found = {}
    for name, array in arrays.items():
        native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
        try:
            as_dtype(native.dtype)
        except TypeError as error:
            raise ValueError(f"{name}: {error}") from error
        found[name] = wrap(native)
    return found
