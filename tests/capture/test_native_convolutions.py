"""convolution.c beside the kernels of NumPy: every geometry, its edges, numbers that are none."""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest
from compilers import needs_compiler, threads
from hypothesis import given
from hypothesis import strategies as st

import microtrain as mt
from microtrain.backend import NUMPY
from microtrain.capture import c_compiler, convolutions
from microtrain.capture.program import Line
from microtrain.ops.nn.convolution import _convolution, _convolution_input, _convolution_weight
from microtrain.ops.nn.windows import Geometry

KERNELS = {"convolution": _convolution, "convolution_input": _convolution_input,
           "convolution_weight": _convolution_weight}  # fmt: skip


class Case(NamedTuple):
    samples: int
    channels: int  # of a group
    outputs: int  # of a group
    sizes: tuple[int, ...]
    geometry: Geometry
    bias: bool

    def arrays(self, dtype: str) -> dict[str, tuple[Any, ...]]:
        """The arguments of each kernel."""
        rng, groups = np.random.default_rng(0), self.geometry.groups
        found = self.geometry.places(self.sizes)
        x = rng.standard_normal((self.samples, self.channels * groups, *self.sizes))
        shape = self.outputs * groups, self.channels, *self.geometry.kernel
        weight, bias = rng.standard_normal(shape), rng.standard_normal(shape[0])
        gradient = rng.standard_normal((self.samples, shape[0], *found))
        x, weight, bias, gradient = (a.astype(dtype) for a in (x, weight, bias, gradient))
        return {
            "convolution": (x, weight, bias) if self.bias else (x, weight),
            "convolution_input": (gradient, weight),
            "convolution_weight": (gradient, x),
        }

    def settings(self, name: str) -> dict[str, Any]:
        sizes = {"sizes": self.sizes} if name == "convolution_input" else {}
        return {"geometry": self.geometry, **sizes}


@st.composite
def cases(draw: Any) -> Case:
    dims = draw(st.integers(1, 3))

    def several(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    kernel, stride, dilation = several(1, 4), several(1, 3), several(1, 3)
    padding = tuple(zip(several(0, 3), several(0, 3), strict=True))
    sizes = tuple(
        max(1, d * (k - 1) + 1 - sum(p)) + more
        for d, k, p, more in zip(dilation, kernel, padding, several(0, 9), strict=True)
    )
    geometry = Geometry(kernel, stride, padding, dilation, draw(st.sampled_from([1, 1, 2, 3])))
    numbers = (draw(st.integers(1, n)) for n in (9, 5, 14))
    return Case(*numbers, sizes, geometry, draw(st.booleans()))


def native(name: str, arrays: tuple[Any, ...], out: Any, settings: dict[str, Any]) -> Any:
    """What convolution.c writes into `out`; it must write nowhere else."""
    plan = convolutions.plan(Line(name, arrays, out, settings, ""))
    a, b, *bias = arrays
    library, found = c_compiler.vectors("convolution", out.dtype.name), []
    function = library["convolution_weight" if name == "convolution_weight" else "convolution"]
    function.restype = None
    for count in (1, 3):
        size = (plan.packed + count * plan.room) * out.itemsize
        room = np.full(size + 2 * 64, 0x7F, np.uint8)
        start = room.ctypes.data + -room.ctypes.data % 64
        more = [] if name == "convolution_weight" else [bias[0].ctypes.data if bias else 0]
        words = np.array([plan.words.ctypes.data, start, plan.room, *more, 1 << 20], np.int64)
        with threads(count):
            addresses = (ctypes.c_void_p(array.ctypes.data) for array in (words, a, b, out))
            function(*addresses, ctypes.c_int64(-1))
        assert (room[start - room.ctypes.data + size :] == 0x7F).all()
        found.append(out.tobytes())
        if count == 1:
            out[...] = np.nan
    assert found[0] == found[1]
    return out


@given(case=cases())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_geometry_is_numpys(native_code: None, name: str, dtype: str, case: Case) -> None:
    needs_compiler()
    arrays, settings = case.arrays(dtype)[name], case.settings(name)
    wide = [a.astype(np.longdouble if dtype == "float64" else "float64") for a in arrays]
    expected = KERNELS[name](NUMPY, *wide, **settings)
    most = KERNELS[name](NUMPY, *map(abs, wide), **settings)
    out = native(name, arrays, np.full(expected.shape, np.nan, dtype), settings)
    terms = arrays[0].size + arrays[1].size  # more than any sum has
    assert (abs(out - expected) <= min(terms, 1000) * np.finfo(dtype).eps * most).all()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", KERNELS)
def test_numbers_that_are_none_go_where_they_go_in_numpy(
    native_code: None, name: str, value: float, stride: int
) -> None:
    """Also at an edge, which not every element of the kernel meets."""
    needs_compiler()
    pair = (stride, stride)
    case = Case(5, 2, 3, (6, 7), Geometry((3, 3), pair, ((1, 1), (1, 1)), (1, 1)), False)
    settings = case.settings(name)
    for which in (0, 1) if name == "convolution_weight" else (0,):
        for place in ((0, 1, 0, 0), (4, 0, -1, -1), (2, 1, 2, 0), (1, 1, 1, 2)):
            arrays = case.arrays("float32")[name]
            arrays[which][place] = value
            expected = KERNELS[name](NUMPY, *arrays, **settings)
            out = native(name, arrays, np.zeros_like(expected), settings)
            known = np.isfinite(expected)
            assert not known.all()
            np.testing.assert_array_equal(np.isfinite(out), known)
            np.testing.assert_array_equal(out[~known], expected[~known])


def test_many_samples_and_channels_are_done_in_parts(
    native_code: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of a weight, whose sums are kept between parts; a part may be the last."""
    needs_compiler()
    case = Case(13, 11, 7, (9, 8), Geometry((3, 2), (1, 1), ((1, 1), (0, 1)), (1, 1)), False)
    arrays, settings = case.arrays("float64")["convolution_weight"], case.settings("")
    expected = _convolution_weight(NUMPY, *arrays, **settings)
    for sums, copies in ((1, 1), (4096, 20_000), (1 << 20, 60_000)):
        monkeypatch.setattr(convolutions, "SUMS", sums)
        monkeypatch.setattr(convolutions, "COPIES", copies)
        out = native("convolution_weight", arrays, np.empty_like(expected), settings)
        np.testing.assert_allclose(out, expected, rtol=1e-11, atol=1e-12)


def test_a_captured_step_trains_as_the_eager_one(native_code: None) -> None:
    """Layers of one, two and three dimensions; in groups, strided, transposed, 1x1."""
    needs_compiler()
    nn = mt.nn

    def trained(wrap: Any) -> list[Any]:
        mt.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1, groups=2),
            nn.ReLU(), nn.ConvTranspose2d(12, 6, 3, 2), nn.Flatten(2), nn.Conv1d(6, 4, 1),
            nn.Unflatten(2, (3, 3, 9)), nn.Conv3d(4, 2, (2, 3, 3), bias=False), nn.Flatten(),
        )  # fmt: skip
        model.to(dtype=mt.float64)
        optimizer = mt.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        @wrap
        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        x = mt.tensor(np.random.default_rng(0).standard_normal((6, 3, 8, 8)))
        losses = [step(x).item() for _ in range(6)]
        assert losses[-1] < losses[0]
        return [*losses, *(p.detach().numpy() for p in model.parameters())]

    steps: list[Any] = []

    def captured(step: Any) -> Any:
        steps.append(mt.compile(step, executor="native"))
        return steps[0]

    for ours, theirs in zip(trained(captured), trained(lambda step: step), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    assert ", 0 of NumPy" in steps[0].explain()


def test_a_captured_step_keeps_no_memory_of_the_windows(native_code: None) -> None:
    """The capture itself computes as eagerly, with padded images; a replay needs none."""
    needs_compiler()
    nn = mt.nn
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1)

    @mt.compile(executor="native")
    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    x = mt.randn(64, 3, 32, 32)
    tracemalloc.start()
    try:
        for _ in range(4):
            step(x)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "share 8.91 MB" in step.explain()
    assert kept < 14e6
