"""Writes down, as JSON, each distinct call that the project makes of the stand-in for CuPy.

A row is group, name, kinds of the arguments, of the keywords, of the result, and where it was. The
registry runs in three dtypes, and losses, optimizers and ranks; run by test_cupy_contract.py.
"""

from __future__ import annotations

import contextlib
import json
import operator
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import fakecupy
import numpy as np
from fakecupy import FakeArray

CALLS: dict[Any, tuple[str, str]] = {}


def kind(value: Any) -> str:
    if isinstance(value, FakeArray):
        flags = value._host.flags
        order = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "-"
        return f"array:{value.dtype.char}:{value.ndim}:{order}"
    if isinstance(value, np.ndarray | np.generic):
        return f"{'numpy' if isinstance(value, np.ndarray) else 'scalar'}:{value.dtype.char}"
    if isinstance(value, bool | int | float):
        return type(value).__name__
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}[{','.join(map(kind, value))}]"
    return type(value).__name__


def recorded(group: str, name: str, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        options = tuple((key, kind(value)) for key, value in kwargs.items())
        entry = (group, name, tuple(map(kind, args)), options)
        result = function(*args, **kwargs)
        code = sys._getframe(1)
        CALLS.setdefault(
            entry, (kind(result), f"{Path(code.f_code.co_filename).name}:{code.f_lineno}")
        )
        return result

    return call


def record() -> None:
    module, special = fakecupy.module, fakecupy.cupyx.scipy.special
    groups = {
        "function": (module, [*fakecupy.FUNCTIONS, *fakecupy.CREATION, "asarray", "argsort"]),
        "linalg": (module.linalg, fakecupy.LINEAR_ALGEBRA),
        "special": (special, fakecupy.SPECIAL),
        "method": (FakeArray, fakecupy.METHODS),
        "index": (FakeArray, ["__getitem__", "__setitem__"]),
    }
    for group, (home, names) in groups.items():
        for name in names:
            setattr(home, name, recorded(group, name, getattr(home, name)))
    for name in fakecupy.UFUNCS:
        one = getattr(module, name)
        ufunc = recorded("ufunc", name, one)
        ufunc.reduce, ufunc.at = one.reduce, recorded("at", name, one.at)
        setattr(module, name, ufunc)


def exercise() -> None:
    record()
    sys.modules.update({module.__name__: module for module in fakecupy.MODULES})
    import test_fakecupy as t

    from microtrain import backend
    from microtrain.distributed import in_process

    backend.cuda()
    for dtype in ("float64", "float32", "float16"):
        for name, samples in t.SAMPLES.items():
            for sample in samples:
                with contextlib.suppress(TypeError, RuntimeError):  # no linear algebra of float16
                    t.run(name, t.in_dtype(sample, dtype), "cuda")
    for name in t.OPTIMIZERS:
        t.train("cuda", name)
    t.losses_on("cuda")
    t.test_public_functions_stay_on_the_device()
    in_process.run(3, t.parallel, "cuda")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    exercise()
    rows = [[*entry, *found] for entry, found in CALLS.items()]
    json.dump(sorted(rows, key=operator.itemgetter(0, 1)), sys.stdout)
