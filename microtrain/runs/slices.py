"""The arrays of a large checkpoint in several files, each written by another rank of a job.

Parameters and the states of their optimizer are equal on all ranks, so any rank can write any of
them: each copies and writes its share. Whole arrays go into a file, which is what readers of
safetensors expect; an index says where each is, as Hugging Face's tools have it. All else (buffers,
extra states, state.json) is rank 0's. In every other respect it is as in `checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import LaunchError
from ..files import json_bytes, make_directory
from .array_file import Content, array_content
from .checkpoint import (
    SLICED,
    clear_leftovers,
    made,
    name_of,
    partial_of,
    refusing,
    seal,
    write_files,
)

__all__ = [
    "SLICE", "Layout", "Slice", "cut", "prepare", "seal_slices", "take_slice", "write_slice",
    "writers",
]  # fmt: skip

# Bytes of a slice, on average and at least: a smaller state is one file, which takes a fast disk a
# tenth of a second and a copy some milliseconds.
SLICE = 2**24
KINDS = ("model", "optimizer")

Key = tuple[str, str]  # model or optimizer, and the name of an array
K = TypeVar("K", bound=Hashable)


def writers(size: int, ranks: int) -> list[int]:
    """The ranks that write a state of so many bytes, one slice each; rank 0 is the first."""
    slices = max(1, min(ranks, size // SLICE))
    return [number * ranks // slices for number in range(slices)]


def cut(sizes: Mapping[K, int], slices: int) -> list[list[K]]:
    """Whole arrays by slices that are as equal as can be had soon, in the order of `sizes`.

    The largest go first, each to the smallest slice (Graham, 1969): none is larger than an equal
    share and the largest array. A function of the sizes in their order: equal on all ranks.
    """
    smallest = [(0, number) for number in range(slices)]
    place = {}
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        size, place[key] = smallest[0]
        heapq.heapreplace(smallest, (size + sizes[key], place[key]))
    parts: list[list[K]] = [[] for _ in range(slices)]
    for key in sizes:
        parts[place[key]].append(key)
    return parts


@dataclass(frozen=True)
class Layout:
    """Which file has which arrays.

    Attributes:
        files: of each slice, by kind; a slice without arrays of a kind has no file of it, but the
            first has both.
        arrays: names of each slice by kind, without what is rank 0's own.
    """

    files: list[dict[str, str]]
    arrays: list[dict[str, list[str]]]

    @classmethod
    def of(cls, sizes: Mapping[Key, int], slices: int) -> Layout:
        """sizes: bytes of every array that all ranks have."""
        arrays = [
            {kind: [name for of, name in part if of == kind] for kind in KINDS}
            for part in cut(sizes, slices)
        ]
        files: list[dict[str, str]] = [{} for _ in arrays]
        for kind in KINDS:
            used = [at for at, part in enumerate(arrays) if part[kind] or at == 0]
            for number, at in enumerate(used, start=1):
                which = f"-{number:05}-of-{len(used):05}" if len(used) > 1 else ""
                files[at][kind] = f"{kind}{which}.safetensors"
        return cls(files, arrays)


@dataclass
class Slice:
    """What one rank writes of a checkpoint.

    Attributes:
        arrays: by kind and name; None on a rank that writes none.
        whole: on rank 0, the checkpoint's contents as `save_checkpoint` has them, but for arrays
            their sizes in bytes.
    """

    step: int
    layout: Layout
    number: int | None
    arrays: dict[str, dict[str, Any]]
    whole: dict[str, Any] | None = None


def take_slice(
    contents: Mapping[str, Any], shared: Sequence[str], slices: int, number: int | None
) -> Slice:
    """The slice of this number; the arrays are those of `contents`, not copied.

    Args:
        contents: as `save_checkpoint` takes them; on other ranks than the first without what is
            rank 0's own.
        shared: names of the model's arrays that all ranks have.
        slices: how many there are.
        number: None: none is this rank's; 0 is that of rank 0.
    """
    sizes = {("model", name): contents["model"][name].nbytes for name in shared}
    sizes |= {("optimizer", name): array.nbytes for name, array in contents["optimizer"].items()}
    layout = Layout.of(sizes, slices)
    arrays: dict[str, dict[str, Any]] = {}
    whole = None
    if number is not None:
        names = {kind: [*layout.arrays[number][kind]] for kind in KINDS}
        if number == 0:
            own = contents["model"].keys() - {*shared}
            names["model"] += [name for name in contents["model"] if name in own]
        arrays = {
            kind: {name: contents[kind][name] for name in names[kind]}
            for kind in layout.files[number]
        }
    if number == 0:
        bytes_of = {
            kind: {name: array.nbytes for name, array in contents[kind].items()} for kind in KINDS
        }
        whole = {**contents, **bytes_of}
    return Slice(contents["step"], layout, number, arrays, whole)


def write_slice(
    directory: Path, part: Slice, taken: Callable[[], None] = lambda: None
) -> dict[str, dict[str, Any]]:
    """Write the files of a slice, to disk; returns what the manifest says of each.

    taken: called once the system has all values.

    Raises LaunchError where the file system refuses.
    """
    if part.number is None:
        return {}
    files = part.layout.files[part.number]
    contents = {files[kind]: array_content(kind, arrays) for kind, arrays in part.arrays.items()}
    size = sum(content.size for content in contents.values())
    partial = partial_of(directory, part.step)
    with refusing(directory, part.step, size):
        partial.mkdir(exist_ok=True)
        return write_files(partial, contents, taken)


def seal_slices(
    directory: Path, part: Slice, entries: Sequence[Mapping[str, dict[str, Any]] | Exception]
) -> Path:
    """Make a checkpoint of the slices of all ranks; rank 0, whose slice is `part`.

    entries: of each rank what `write_slice` returned or raised; of several errors the first is
        raised here.

    Raises LaunchError also where a file that another rank has written is not there.
    """
    assert part.whole is not None
    whole, layout = part.whole, part.layout
    with made(directory, part.step) as partial:
        for found in entries:
            if isinstance(found, Exception):
                raise found
        files: dict[str, Any] = {}
        for found in entries:
            assert not isinstance(found, Exception)
            files |= found
        of = {
            kind: {
                name: layout.files[at][kind]
                for at, names in enumerate(layout.arrays)
                for name in names[kind]
            }
            for kind in KINDS
        }
        rest = {
            f"{kind}.safetensors.index.json": {
                "metadata": {"total_size": sum(whole[kind].values())},
                "weight_map": {
                    name: of[kind].get(name, layout.files[0][kind]) for name in whole[kind]
                },
            }
            for kind in KINDS
            if sum(kind in each for each in layout.files) > 1
        }
        contents = {name: Content.of(json_bytes(index)) for name, index in rest.items()}
        contents["state.json"] = Content.of(json_bytes(whole["state"]))
        contents["config.yaml"] = Content.of(whole["config_text"].encode())
        with refusing(directory, part.step, sum(each.size for each in contents.values())):
            for name in files:
                if not (partial / name).exists():
                    raise LaunchError(
                        f"cannot write the checkpoint {directory / name_of(part.step)}: {name}, "
                        "which another rank has written, is not there on the host of rank 0\n"
                        "all hosts must see one run directory: choose a shared place with "
                        "run_dir=PATH"
                    )
            clear_leftovers(directory, besides=partial)
            manifest = {
                "format": SLICED,
                "step": part.step,
                "files": {**files, **write_files(partial, contents)},
                "order": {kind: list(whole[kind]) for kind in KINDS},
            }
            return seal(directory, part.step, manifest)


def prepare(directory: Path) -> None:
    """Make the directory ready for all ranks to write in; rank 0, before any does."""
    with contextlib.suppress(OSError):  # told by the writing itself
        make_directory(directory, links=True)
        clear_leftovers(directory)
