"""`mt.export(module, example, "net.c")`: C that gives what Python gives, in any strict compiler."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import microtrain as mt
from microtrain.capture.standalone import comment, numbers, string
from microtrain.errors import CaptureError, LaunchError
from microtrain.exchange.c_files import c_type

nn = mt.nn
STRICT = "-std=c99 -pedantic -Wall -Wextra -Wshadow -Werror".split()
SANITIZED = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all".split()
COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(not shutil.which(name), reason=f"no {name}"))
    for name in ("gcc", "clang")
]
CC = next(filter(shutil.which, ("gcc", "clang", "cc")), "")
pytestmark = pytest.mark.skipif(not CC, reason="no C compiler")


class Encoder(nn.Module):
    """A transformer over numbers of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        places = mt.arange(x.shape[1]).reshape(-1, 1) * 0.01
        return self.head(self.layers(self.words(x) + places).mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: Any, both: bool = False) -> None:
        super().__init__()
        self.layers = kind(6, 12, 2, batch_first=True, bidirectional=both)
        self.head = nn.Linear(24 if both else 12, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x)[0][:, -1])


class Several(nn.Module):
    """Several inputs and outputs, one of them of booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.both = nn.Linear(3, 4), nn.Bilinear(4, 2, 3)

    def forward(self, x: Any, y: Any) -> Any:
        z = mt.tanh(self.one(x))
        return z, self.both(z, y), x > 0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.words(x))


class Extremes(nn.Module):
    """Constants that are no finite numbers, and what goes along an axis."""

    def __init__(self) -> None:
        super().__init__()
        ends = [float("inf"), float("nan"), -float("inf"), 1.0, -0.0]
        self.register_buffer("table", mt.tensor(ends))

    def forward(self, x: Any) -> Any:
        y = mt.where(x > self.table, x, self.table)
        return x + self.table, y, y.argmax(1), x.cumsum(1), x.argmin(0), y.max(1)[0]


def mlp(dtype: Any = mt.float32) -> Any:
    layers = [nn.Linear(8, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(64, 3), nn.Softmax(1)).to(dtype)


def cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, groups=2), nn.Dropout(0.5), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10), nn.LogSoftmax(1),
    )  # fmt: skip


MODELS: dict[str, tuple[Any, Any]] = {
    "mlp": (mlp, lambda: mt.randn(1, 8)),
    "rows": (mlp, lambda: mt.randn(33, 8)),
    "float64": (lambda: mlp(mt.float64), lambda: mt.randn(2, 8, dtype=mt.float64)),
    "cnn": (cnn, lambda: mt.randn(1, 3, 16, 16)),
    "images": (cnn, lambda: mt.randn(3, 3, 16, 16)),
    "encoder": (Encoder, lambda: mt.randint(0, 50, (2, 12))),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: mt.randn(1, 9, 6)),
    "both_ways": (lambda: Recurrent(nn.LSTM, both=True), lambda: mt.randn(3, 9, 6)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: mt.randn(2, 9, 6)),
    "several": (Several, lambda: (mt.randn(2, 3), mt.randn(2, 2))),
    "tied": (Tied, lambda: mt.randint(0, 20, (2, 3))),
    "extremes": (Extremes, lambda: mt.randn(3, 5)),
    "upsampling": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3, dilation=2), nn.ConvTranspose1d(4, 2, 4, 2)),
        lambda: mt.randn(2, 2, 20),
    ),
}


def made(name: str) -> tuple[Any, Any]:
    mt.manual_seed(0)
    model, example = MODELS[name]
    return model(), example()


def sh(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def tried(folder: Path, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What the test program of `name` says, made by a compiler with flags."""
    built = sh(folder, *words, "-o", "try", f"{name}.c", f"test_{name}.c", "-lm")
    assert not built.returncode, built.stderr
    assert not built.stderr
    return sh(folder, "./try")


class Library:
    """The function of a file of C, called from here.

    Args:
        outputs: of each its dtype and shape.
    """

    def __init__(self, path: Path, verb: str, outputs: list[tuple[Any, Any]], *flags: str) -> None:
        name = path.stem
        words = [CC, "-std=c99", "-O2", "-shared", "-fPIC", *flags, "-o", f"{name}.so", path.name]
        built = sh(path.parent, *words, "-lm")
        assert not built.returncode, built.stderr
        self.library = ctypes.CDLL(str(path.with_name(f"{name}.so")))
        self.function = self.library[f"{name}_{verb}"]
        size = re.search(r"_WORKSPACE (\d+)", path.with_suffix(".h").read_text())
        self.workspace = np.full(int(size[1]) // 8, np.nan)  # type: ignore[index]
        self.outputs = outputs

    def __call__(self, *inputs: Any) -> list[Any]:
        found = [np.empty(shape, dtype) for dtype, shape in self.outputs]
        given = [np.ascontiguousarray(x) for x in inputs]
        self.status = self.function(
            *(ctypes.c_void_p(a.ctypes.data) for a in (*given, *found, self.workspace))
        )
        return found


def differ(found: Any, expected: Any) -> float:
    """The largest difference over the largest number."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.daily("mlp-gcc", "encoder-gcc", "images-gcc", "mlp-clang")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", MODELS)
def test_strict_and_sanitized_c_gives_what_python_gives(
    name: str, compiler: str, tmp_path: Path
) -> None:
    model, example = made(name)
    mt.export(model, example, tmp_path / f"{name}.c")
    done = tried(tmp_path, name, compiler, *STRICT, *SANITIZED)
    assert not done.returncode, done.stdout + done.stderr
    assert "8 vectors" in done.stdout
    assert not done.stderr


@pytest.mark.daily("mlp-100", "float64-100")
@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["mlp", "float64", "cnn", "encoder", "lstm"])
def test_many_inputs(name: str, count: int, tmp_path: Path) -> None:
    model, example = made(name)
    mt.export(model, example, tmp_path / "net.c")
    model.eval()
    with mt.no_grad():
        example_result = model(example).numpy()
        call = Library(
            tmp_path / "net.c", "forward", [(example_result.dtype, example_result.shape)]
        )
        worst = largest = 0.0
        for _ in range(count):
            if example.dtype == mt.int64:
                x = mt.randint(0, 50, tuple(example.shape))
            else:
                x = mt.randn(*example.shape, dtype=example.dtype)
            expected, (found,) = model(x).numpy(), call(x.numpy())
            assert call.status == 0
            worst = max(worst, np.abs(found - expected).max())
            largest = max(largest, np.abs(expected).max())
    assert worst <= (1e-10 if name == "float64" else 1e-5) * largest


EDGES = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 2.5, -7.0, 1e30, -1e-30, 1e-45]


@pytest.mark.daily("float32", "int64", "uint8")
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "int8", "int16", "int32", "int64", "uint8"]
)
def test_division_of_10_000_pairs_is_that_of_numpy(dtype: str, tmp_path: Path) -> None:
    """Of floats by 0 too; the bits, zeros with their sign."""
    rng, floats = np.random.default_rng(0), dtype[0] == "f"
    if floats:
        x = rng.standard_normal((2, 10_000)) * 10.0 ** rng.integers(-3, 6, (2, 10_000))
        edges = np.array(EDGES, dtype)
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        x = rng.integers(low, high, (2, 10_000), dtype, endpoint=True)
        x[1, ::2] = rng.integers(-9 if low else 0, 10, 5_000)
        edges = np.array([low, low + 1, 1, 2, 3, high - 1, high, *([-1, -3] if low else [])], dtype)
        x[x == 0], edges[edges == 0] = 5, 1  # an error in Python
    pairs = np.stack(np.meshgrid(edges, edges)).reshape(2, -1)
    x = x.astype(dtype)
    x[:, : pairs.shape[1]] = pairs
    names = {"fmod": "fmod", "remainder": "remainder", "floor_divide": "floor_divide"}
    names |= {"atan2": "arctan2", "hypot": "hypot"} if floats else {}
    with np.errstate(all="ignore"):
        net = Of(lambda _, x: [getattr(mt, name)(x[0], x[1]) for name in names])
        mt.export(net, mt.from_numpy(x[:, :300].copy()), tmp_path / "few.c")
        assert tried(tmp_path, "few", CC, *STRICT, *SANITIZED).returncode == 0
        mt.export(net, mt.from_numpy(x), tmp_path / "net.c")
        found = Library(tmp_path / "net.c", "forward", [(dtype, (10_000,))] * len(names))(x)
        expected = [getattr(np, name)(*x) for name in names.values()]
    for name, mine, right in zip(names, found, expected, strict=True):
        np.testing.assert_array_max_ulp(mine, right, 4 if name in ("atan2", "hypot") else 0)
        assert (np.signbit(mine) == np.signbit(right))[right == right].all(), name


@pytest.mark.daily("some")
@pytest.mark.parametrize("name", ["some", "none", "nan"])
def test_any_and_all(name: str, tmp_path: Path) -> None:
    def truths(_: Any, x: Any) -> list[Any]:
        given = [x, x > 0.5, x != 0]
        found = [each for t in given for each in (t.any(), t.any(0), t.all(1), t.all(), t.any(1))]
        return [*found, x[:, :0].any(1), x[:, :0].all(1), mt.logical_xor(x, x > 0)]

    x = {"some": mt.randn(3, 20), "none": mt.zeros(20, 3), "nan": mt.zeros(2, 2)}[name]
    mt.export(Of(truths), x, tmp_path / f"{name}.c")
    done = tried(tmp_path, name, CC, *STRICT, *SANITIZED)
    assert not done.returncode, done.stdout + done.stderr


def test_a_wrong_weight_is_found(tmp_path: Path) -> None:
    net = nn.Linear(2, 1)
    net.weight.data[...] = mt.tensor([[0.75, 2.5]])
    mt.export(net, mt.ones(1, 2), tmp_path / "net.c")
    assert tried(tmp_path, "net", CC).returncode == 0
    text = (tmp_path / "net.c").read_text()
    assert text.count(" 2.5f,") == 1
    (tmp_path / "net.c").write_text(text.replace(" 2.5f,", " 2.501f,"))
    done = tried(tmp_path, "net", CC)
    assert done.returncode == 1
    assert "bound 1e-05" in done.stdout


def test_the_mode_of_the_module_stays_and_the_file_is_of_evaluation(tmp_path: Path) -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    net[1].eval()
    before = net[0].running_mean.numpy().copy()
    mt.export(net, mt.randn(4, 3), tmp_path / "net.c")
    assert [part.training for part in net.modules()] == [True, True, False]
    np.testing.assert_array_equal(net[0].running_mean.numpy(), before)
    assert net[0].num_batches_tracked.item() == 0
    assert tried(tmp_path, "net", CC).returncode == 0


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    model, example = made("encoder")
    mt.export(model, example, tmp_path / "net.c", weights_file=True)
    size = sum(p.numel() * 4 for p in model.parameters())
    assert (tmp_path / "net.weights").stat().st_size >= size
    assert (tmp_path / "net.c").stat().st_size < size
    done = tried(tmp_path, "net", CC, *STRICT, *SANITIZED)
    assert not done.returncode, done.stdout + done.stderr
    assert "static const" not in (tmp_path / "net.c").read_text()


def test_an_index_out_of_bounds_is_a_status(tmp_path: Path) -> None:
    model, example = made("tied")
    mt.export(model, example, tmp_path / "net.c")
    call = Library(tmp_path / "net.c", "forward", [(np.float32, (2, 3, 20))])
    for wrong in (20, -1, 2**40, -(2**63)):
        call(np.full((2, 3), wrong, np.int64))
        assert call.status == 1
    call(np.zeros((2, 3), np.int64))
    assert call.status == 0


def test_nan_goes_through(tmp_path: Path) -> None:
    mt.export(mlp(), mt.randn(1, 8), tmp_path / "net.c")
    flags = ["-fsanitize=undefined", "-fno-sanitize-recover=all", "-static-libubsan"]
    flags = flags if CC == "gcc" else []
    call = Library(tmp_path / "net.c", "forward", [(np.float32, (1, 3))], *flags)
    (found,) = call(np.full((1, 8), np.nan, np.float32))
    assert np.isnan(found).all()
    assert call.status == 0


# Names and text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int", "y0", "main", "N" * 31])
def test_names_in_c_begin_with_that_of_the_file(name: str, tmp_path: Path) -> None:
    mt.export(nn.Linear(2, 1), mt.ones(1, 2), tmp_path / f"{name}.c")
    assert f"int {name}_forward(" in (tmp_path / f"{name}.h").read_text()
    assert tried(tmp_path, name, CC, *STRICT).returncode == 0


@pytest.mark.parametrize("name", ["7seas", "a-b", "çé", "_x", "n" * 32, "two words", 'a"b'])
def test_a_file_whose_name_no_name_in_c_has_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names in C begin with that of the file"):
        mt.export(nn.Linear(2, 1), mt.ones(1, 2), tmp_path / f"{name}.c")
    assert not [*tmp_path.iterdir()]


def test_a_layer_may_have_any_name(tmp_path: Path) -> None:
    net, names = nn.Module(), ("work", "kept", "state", "in0", "workspace", "int", "p0", "u0")
    for name in names:
        net.add_module(name, nn.ReLU())
    net.forward = lambda x: [part(x) for part in net.children()]  # type: ignore[method-assign]
    mt.export(net, mt.randn(2), tmp_path / "net.c")
    assert all(name in (tmp_path / "net.c").read_text() for name in names)
    assert tried(tmp_path, "net", CC, *STRICT, *SANITIZED).returncode == 0


def test_an_input_may_be_of_no_use(tmp_path: Path) -> None:
    mt.export(Of(lambda _, x: mt.ones(2)), mt.randn(3), tmp_path / "net.c")
    assert tried(tmp_path, "net", CC, *STRICT, *SANITIZED).returncode == 0


def test_the_header_is_also_one_of_cpp(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    mt.export(nn.Linear(2, 1), mt.ones(1, 2), tmp_path / "net.c")
    text = "float x[2] = {}, y[1]; double work[NET_WORKSPACE / 8];"
    text = f'#include "net.h"\nint main() {{ {text} return net_forward(x, y, work); }}\n'
    (tmp_path / "main.cpp").write_text(text)
    assert not sh(tmp_path, CC, "-c", "net.c").returncode
    done = sh(tmp_path, compiler, "-Wall", "-Werror", "main.cpp", "net.o", "-lm")
    assert not done.returncode, done.stderr
    assert not sh(tmp_path, "./a.out").returncode


@pytest.mark.skipif(not shutil.which("gfortran"), reason="no gfortran")
def test_fortran_calls_it(tmp_path: Path) -> None:
    mt.manual_seed(0)
    net = nn.Linear(2, 3)
    mt.export(net, mt.ones(1, 2), tmp_path / "net.c")
    (tmp_path / "main.f90").write_text(
        "program main\n  use, intrinsic :: iso_c_binding\n  use net\n  implicit none\n"
        "  real(c_float) :: x(2), y(3)\n  real(c_double) :: work(net_workspace)\n"
        "  x = [1.0, -2.0]\n  if (net_forward(x, y, work) /= 0) stop 1\n"
        '  print "(3es16.8)", y\nend program main\n'
    )
    assert not sh(tmp_path, CC, "-O2", "-c", "net.c").returncode
    words = ["gfortran", "-std=f2018", "-Wall", "-Werror", "net.f90", "main.f90", "net.o", "-lm"]
    built = sh(tmp_path, *words)
    assert not built.returncode, built.stderr
    found = np.array(sh(tmp_path, "./a.out").stdout.split(), np.float32)
    expected = net(mt.tensor([[1.0, -2.0]])).detach().numpy()[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_the_makefile_tests(tmp_path: Path) -> None:
    mt.export(nn.Linear(2, 1), mt.ones(1, 2), tmp_path / "net.c")
    done = sh(tmp_path, "make", "-f", "net.mk", "test")
    assert not done.returncode, done.stderr
    assert "net: 8 vectors" in done.stdout


_WIDTHS = {"f": np.uint32, "d": np.uint64}


@given(arrays(st.sampled_from([np.float32, np.float64]), 5))
def test_numbers_have_the_bits_that_they_had(array: Any) -> None:
    ends = {"NAN": "nan", "INFINITY": "inf", "-INFINITY": "-inf"}
    found = [float(ends.get(text, text.rstrip("f"))) for text in numbers(array)]
    again = np.array(found, array.dtype)
    same = again.view(_WIDTHS[array.dtype.char]) == array.view(_WIDTHS[array.dtype.char])
    assert (same | (np.isnan(again) & np.isnan(array))).all()


@given(st.text())
def test_a_string_of_c_has_the_bytes_of_the_text(text: str) -> None:
    written = string(text)
    inner = written[1:-1]
    assert written.isascii()
    assert written.isprintable()
    assert not re.search(r'\?|(?<!\\)"|\\(?![0-7]{3})', inner)
    found = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), inner)
    assert found.encode("latin-1") == text.encode()


@given(st.text())
def test_a_comment_has_no_end_and_no_trigraph(text: str) -> None:
    written = comment(f"*/ ??/ {text}")
    assert "*/" not in written
    assert "/*" not in written
    assert "??" not in written
    assert written.isascii()
    assert written.isprintable()


def test_types() -> None:
    kinds = ["float32", "float64", "int64", "int32", "bool", "uint8"]
    expected = ["float", "double", "int64_t", "int32_t", "uint8_t", "uint8_t"]
    assert [c_type(np.dtype(kind)) for kind in kinds] == expected


# What is refused ----------------------------------------------------------------------------------


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("count", mt.zeros(1))

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def counting(self: Any, x: Any) -> Any:
    self.count.add_(1)
    return x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda _, x: mt.linalg.solve(x, x), "solve of NumPy has no form in C"),
        (
            lambda _, x: mt.linalg.cholesky(x @ x.T + mt.eye(2)),
            "cholesky of NumPy has no form in C",
        ),
        (lambda _, x: x + mt.randn(2, 2), "random numbers have no form in C"),
        (lambda _, x: x * 2 if x.sum() > 0 else x, "looks at"),
        (lambda _, x: x.half() * 2, "float16"),
        (lambda _, x: mt.zeros(0, 2), "without elements"),
        (counting, "it writes into its own state"),
    ],
)
def test_what_has_no_form_in_c_is_refused(function: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=message):
        mt.export(Of(function), mt.eye(2), tmp_path / "net.c")
    assert not [*tmp_path.iterdir()]


def test_wrong_arguments(tmp_path: Path) -> None:
    net, x = nn.Linear(2, 1), mt.ones(1, 2)
    with pytest.raises(TypeError, match="expected a Module"):
        mt.export(lambda x: x, x, tmp_path / "net.c")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected Tensors, got 'ndarray'"):
        mt.export(net, np.ones((1, 2)), tmp_path / "net.c")
    with pytest.raises(ValueError, match=r"expected a name that ends in \.c .*net\.onnx"):
        mt.export(net, x, tmp_path / "net.onnx")
    with pytest.raises(ValueError, match="without elements"):
        mt.export(net, mt.ones(0, 2), tmp_path / "net.c")
    with pytest.raises(LaunchError, match="cannot write"):
        mt.export(net, x, tmp_path / "nowhere" / "net.c")
    assert not [*tmp_path.iterdir()]
