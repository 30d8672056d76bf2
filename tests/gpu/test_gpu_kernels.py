"""Kernels of captured steps: every expression has CuPy's bits, every text is CUDA's C++."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import PROGRAMS
from real_cupy import cupy
from test_gpu_capture import MAKE, Training

from microtrain.backend import LIBRARIES
from microtrain.capture.cuda_kernels import HEAD
from microtrain.capture.elements import FLOATS as FUNCTIONS
from microtrain.capture.elements import NUMBERS, TRUTHS, literal
from microtrain.capture.executors import EXECUTORS
from microtrain.capture.program import Line, Program

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

INTEGERS = "int64", "int32", "uint8"
FLOATS = "float32", "float64"
# Floating functions of integers go through float16, which native code does not have.
CASES = [
    *((name, dtype) for name in sorted(FUNCTIONS) for dtype in FLOATS),
    *((name, dtype) for name in sorted(NUMBERS) for dtype in INTEGERS),
    *((name, "bool") for name in sorted(TRUTHS)),
]
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.75, 1e-30, -80.0, 88.5, np.inf, -np.inf, np.nan]


def operand(dtype: str, turned: bool = False) -> Any:
    """All pairs of edges, of which this is one side."""
    values = np.array(EDGES) if dtype.startswith("float") else np.array([0, 1, 2, 3, 100, 7])
    if dtype in ("int32", "int64"):
        values = np.array([0, 1, -1, 5, -7, 2**31 - 1])
    pairs = np.repeat(values, len(values)) if turned else np.tile(values, len(values))
    if dtype in FLOATS:  # most of what is rounded in two ways differs in few places only
        pairs = np.append(pairs, np.random.default_rng(int(turned)).uniform(0.01, 9, 2000))
    return cupy.asarray(pairs.astype(dtype))


def program_of(name: str, *args: Any) -> Program | None:
    """One instruction over inputs, as a capture would write it down; None where CuPy has none."""
    xp = LIBRARIES[cupy.ndarray]
    try:
        out = getattr(xp, name)(*args)
    except (TypeError, AttributeError):
        return None
    program = Program(xp, inputs=[a for a in args if type(a) is cupy.ndarray], outputs=[out])
    program.kinds = {id(a): "input" for a in program.inputs} | {id(out): "made"}
    program.memory = [*program.inputs, out]
    program.lines.append(Line(name, args, out, {}, "test.py:1"))
    return program


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_an_expression_has_the_bits_of_cupys_kernel(name: str, dtype: str) -> None:
    function = getattr(LIBRARIES[cupy.ndarray], name, None)
    if function is None:
        pytest.skip("no instruction")
    x, y = operand(dtype), operand(dtype, turned=True)
    two = getattr(function, "nin", 1) == 2
    number = 2 if dtype in INTEGERS else True if dtype == "bool" else 0.3
    tried = [(x, y), (x, number), (number, x)] if two else [(x,)]
    done = 0
    for args in tried:
        program = program_of(name, *args)
        if program is None:
            continue
        expected = program.outputs[0].get()
        run, text = EXECUTORS["cupy"](program)
        program.outputs[0].view("u1").fill(7)
        run()
        found = program.outputs[0].get()
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        if found.dtype.kind == "f":  # the bits of a NaN are the compiler's
            found[np.isnan(found)] = expected[np.isnan(expected)] = np.nan
        assert found.tobytes() == expected.tobytes()
        done += bool(text.native)
    if not done:
        pytest.skip("left to CuPy")


@pytest.mark.parametrize("value", [0, 1, -3, 0.1, 1e-45, 3e38, 1e300, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_literals(value: float, dtype: str) -> None:
    if dtype == "int64" and not (abs(value) < 2**63 and value == int(value)):
        pytest.skip("no integer")
    with np.errstate(over="ignore"):
        expected = np.dtype(dtype).type(value)
    text = f'{HEAD}extern "C" __global__ void f({dtype}* p) {{ *p = '
    text += f"{literal(expected, np.dtype(dtype))}; }}"
    out = cupy.zeros(1, dtype)
    cupy.RawKernel(text, "f")((1,), (1,), (out,))
    np.testing.assert_array_equal(out.get()[0], expected)


# NVRTC, which needs no GPU ------------------------------------------------------------------------


def nvrtc() -> Any:
    found = importlib.util.find_spec("nvidia")
    for place in found.submodule_search_locations or () if found else ():
        for path in Path(place).glob("cuda_nvrtc/lib/libnvrtc.so.*"):
            return ctypes.CDLL(str(path))
    pytest.skip("NVIDIA's compiler is not installed (pip install nvidia-cuda-nvrtc-cu12)")


def compiled(library: Any, source: str, *options: str) -> str:
    """Empty, or what the compiler says against `source`."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"step.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = library.nvrtcCompileProgram(program, len(options), given)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return log.value.decode() or "refused" if code else ""


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_nvidias_compiler_takes_the_kernels(machine: str) -> None:
    library, sources = nvrtc(), set()
    for name in PROGRAMS:
        training = Training(name, MAKE["AdamW"], captured=True)
        for i in range(3):
            training(i)
        sources |= {text for capture in training.run.captures for text in capture.text.native}
    for name, dtype in CASES:
        function, x = getattr(LIBRARIES[cupy.ndarray], name, None), operand(dtype)
        args = (x, x) if getattr(function, "nin", 1) == 2 else (x,)
        program = program_of(name, *args) if function else None
        sources |= set(EXECUTORS["cupy"](program)[1].native) if program else set()
    assert len(sources) > 150
    options = f"--gpu-architecture={machine}", "--fmad=false", "-ftz=true", "--std=c++17"
    problems = {text: said for text in sources if (said := compiled(library, text, *options))}
    assert not problems, next(iter(problems.items()))
    assert compiled(library, "nonsense", *options)
