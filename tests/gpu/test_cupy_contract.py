"""The installed CuPy has what the project calls, under the same names, keywords and dtypes.

Needs CuPy's wheel, and no GPU.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fakecupy
import numpy as np
import pytest

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
special = importlib.import_module("cupyx.scipy.special")

pytestmark = pytest.mark.gpu
RANK = {"b": 0, "u": 1, "i": 1, "f": 2}


def test_the_lists_hold_for_the_real_cupy() -> None:
    for name in (*fakecupy.UFUNCS, *fakecupy.FUNCTIONS, *fakecupy.CREATION, "asarray"):
        assert hasattr(cupy, name), name
    assert all(hasattr(cupy.linalg, name) for name in fakecupy.LINEAR_ALGEBRA)
    assert all(isinstance(getattr(special, name), cupy.ufunc) for name in fakecupy.SPECIAL)
    assert callable(cupy.lib.stride_tricks.as_strided)
    assert callable(cupy.cuda.alloc_pinned_memory)
    for name in (*fakecupy.ATTRIBUTES, *fakecupy.METHODS, *fakecupy.CROSSINGS):
        assert hasattr(cupy.ndarray, name), name
    assert all(isinstance(getattr(cupy, name), cupy.ufunc) for name in fakecupy.UFUNCS)


def test_nccl_takes_what_gradients_are_added_up_with() -> None:
    nccl = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("CuPy has no NCCL here")
    documented = nccl.NcclCommunicator.allReduce.__doc__.splitlines()[0]
    arguments = [one.split()[-1] for one in documented.rstrip(")").split("(")[1].split(",")]
    assert arguments == ["self", "sendbuf", "recvbuf", "count", "datatype", "op", "stream"]
    made = re.findall(r"^ +(\w+) \(\w+\):", nccl.NcclCommunicator.__doc__, re.M)
    assert made[:3] == ["ndev", "commId", "rank"]
    assert callable(nccl.get_unique_id)
    for name in ("NCCL_FLOAT32", "NCCL_FLOAT64", "NCCL_SUM"):
        assert isinstance(getattr(nccl, name), int), name
    assert issubclass(nccl.NcclError, RuntimeError)
    assert callable(cupy.cuda.get_current_stream) and hasattr(cupy.cuda.Stream(null=True), "ptr")


def loop(ufunc: Any, kinds: list[str]) -> Any:
    """The first dtype that the first loop gives which takes the arguments; None where none does."""
    operands = []
    for one in kinds:
        name, _, rest = one.partition(":")
        python = {"bool": bool, "int": int, "float": float}.get(name)
        operands.append((np.dtype(python or rest.partition(":")[0]), python))
    strong = max((RANK[d.kind] for d, python in operands if not python), default=-1)
    weak = max((RANK[d.kind] for d, python in operands if python), default=-1)

    def takes(operand: tuple[Any, Any], char: str) -> bool:
        dtype, python = operand
        if np.can_cast(dtype, char):
            return True
        # A Python number takes the dtype of the arrays, if it is of their kind or a lower one.
        if not python or not strong >= weak > -1:
            return False
        return np.result_type(np.zeros(1, char), python(0)) == np.dtype(char)

    for types in ufunc.types:
        if "E" in types:  # bfloat16, which NumPy does not know
            continue
        takes_in, gives = types.split("->")
        if all(map(takes, operands, takes_in)):
            return np.dtype(gives[0])
    return None


def complaint(group: str, name: str, args: list[str], given: Any, result: str) -> str | None:
    """What the installed CuPy would say to a call that the stand-in took."""
    keywords = dict(given)
    if any(one.startswith("numpy") for one in (*args, *keywords.values())):
        return None if group == "function" and name == "asarray" else "an array of NumPy's"
    if group in ("ufunc", "special"):
        ufunc = getattr(special if group == "special" else cupy, name)
        if set(keywords) - {"out", "dtype", "casting"}:
            return f"keywords {set(keywords)}"
        found = loop(ufunc, args[: ufunc.nin])
        if found is None:
            return "no loop"
        out = args[ufunc.nin] if len(args) > ufunc.nin else keywords.get("out", "NoneType")
        if out.startswith("array"):
            return None if np.can_cast(found, out[6], "same_kind") else f"{found} into {out}"
        if "dtype" not in keywords and result.startswith("array") and np.dtype(result[6]) != found:
            return f"{found} where the stand-in gave {np.dtype(result[6])}"
    elif group in ("function", "linalg"):
        function = getattr(cupy.linalg if group == "linalg" else cupy, name)
        try:
            inspect.signature(function).bind(*args, **keywords)
        except TypeError as error:
            return str(error)
        out = keywords.get("out", "NoneType")
        if name == "dot" and out.startswith("array") and not out.endswith("C"):
            return f"out of order {out}"
    elif group == "method":
        signature = re.search(r"\((.*?)\)", getattr(cupy.ndarray, name).__doc__ or "")
        names = signature[1].split(",") if signature else []
        unknown = set(keywords) - {one.split("=")[0].strip().lstrip("*") for one in names}
        if unknown:
            return f"keywords {unknown}"
    elif group == "at" and args[0][6] not in "iefdIQ":
        return "no atomic addition"
    return None


def test_every_call_is_one_that_cupy_takes() -> None:
    script = Path(__file__).parent / "calls_of_cupy.py"
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) > 2000
    found = {
        f"{group} {name}({', '.join(args)}) at {where}: {words}"
        for group, name, args, keywords, result, where in rows
        if (words := complaint(group, name, args, keywords, result))
    }
    assert sorted(found) == []
