"""A module, or what a run's model does, as files of C99 for programs without Python.

The text is that of native code (`capture/standalone.py`): one function, which is given its inputs,
room for what it gives, and a workspace. Beside it are a header, a module of Fortran, test vectors,
a program that tries them, and a makefile (`c_files.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..backend import to_host
from ..capture.standalone import recorded, standalone
from ..creation import from_numpy
from ..errors import CaptureError, need
from ..nn import Module
from ..tensor import TENSORS, kind_of
from ..train.evaluation import evaluating
from ..train.models_and_losses import leaves
from .c_files import Written, files_of, pieces, write_files

VECTORS, MOST = 8, 100_000  # test vectors, and numbers in all of them


def export(
    module: Module, example: Any, path: str | os.PathLike[str], *, weights_file: bool = False
) -> None:
    """Write a module in evaluation mode as C99, with a header and a program that tests it.

    Beside `net.c` are `net.h`, `net.f90` (a module of Fortran), `net_vectors.h` and `test_net.c`
    (test vectors, and a program that returns 0 where C gives what Python gave), and `net.mk` (a
    makefile). The C needs no library but that of mathematics and no memory but its arguments; it
    is for inputs of the shapes and dtypes of the example, the number of rows included. Files of
    these names are replaced.

    Args:
        module: it runs in evaluation mode and is left in the mode it is in.
        example: an input Tensor, or a tuple of them. The test vectors are made of it.
        path: the file, whose name ends in `.c`; names in C begin with the rest of it.
        weights_file: write the weights to `net.weights`, whose bytes are then an argument, and not
            into the text.

    Raises CaptureError naming the line for what has no form in C (random numbers, `solve`, a
    branch on values), ValueError for another name, TypeError for what is not a Module or a Tensor,
    LaunchError where the file system refuses.

    Example:
        >>> net = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 3))
        >>> mt.export(net, mt.randn(1, 4), "net.c")
    """
    need(isinstance(module, Module), "export", "module: expected a Module", kind_of(module),
         error=TypeError)  # fmt: skip
    vectors = [variants(array) for array in arrays_of(example, "export")]
    name = name_of(path)
    found = written(name, "forward", module, vectors, type(module).__name__, weights=weights_file)
    write_files(path, files_of(found))


def arrays_of(example: Any, name: str) -> list[Any]:
    """The arrays of an example, which is a Tensor or a tuple of them; else TypeError."""
    inputs = example if isinstance(example, tuple) else (example,)
    for x in inputs:
        need(type(x) in TENSORS, name, "example: expected Tensors", kind_of(x), error=TypeError)
        need(x.numel(), name, "example: an input without elements", x, error=ValueError)
    return [np.array(to_host(x._array), order="C") for x in inputs]


def name_of(path: Any) -> str:
    """What names in a file of C begin with, its own; ValueError where that cannot be."""
    place = Path(os.path.expanduser(path))
    text = "path: expected a name that ends in .c (mt.onnx.export writes .onnx)"
    need(place.suffix == ".c", "export", text, str(path), error=ValueError)
    fits = re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]{0,30}", place.stem)
    text = "path: names in C begin with that of the file, which must be a letter and then at most "
    text += "30 letters, digits and underscores"
    need(fits, "export", text, place.stem, error=ValueError)
    return place.stem


def variants(array: Any) -> Any:
    """Arrays like an example: of its numbers in another order, floats made smaller."""
    count = max(1, min(VECTORS, MOST // array.size))
    flat = [np.roll(array, n) for n in range(count)]
    if array.dtype.kind == "f":
        flat = [each * array.dtype.type(1 - n / (2 * count)) for n, each in enumerate(flat)]
    return np.stack(flat)


def written(
    name: str, verb: str, function: Any, vectors: Sequence[Any], title: str,
    about: tuple[Sequence[str], Sequence[str]] = ((), ()), **more: Any,
) -> Written:  # fmt: skip
    """A function of Tensors, in evaluation mode, as C.

    Args:
        vectors: of each input some examples.
        about: what each input and each output is.
    """
    first = tuple(from_numpy(np.array(each[0])) for each in vectors)
    with evaluating(function), np.errstate(all="ignore"):
        program = recorded(title, lambda *args: tuple(leaves(function(*args))), *first).program
        code = standalone(program)
        results = [
            [to_host(y._array) for y in leaves(function(*map(from_numpy, map(np.copy, each))))]
            for each in zip(*vectors, strict=True)
        ]
    expected = [np.stack(each) for each in zip(*results, strict=True)]
    if not expected or not all(each.size for each in expected):
        raise CaptureError(f"{title} returns no Tensor, or one without elements")
    given, gives = pieces("input", vectors, about[0], 1), pieces("output", expected, about[1], 1)
    return Written(name, verb, code, given, gives, title, vectors, expected, **more)
