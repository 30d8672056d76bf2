"""Interpolation, pixel shuffles and unpooling against PyTorch's."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike  # noqa: E402

ANY = ("nearest", "nearest-exact", "area")
MODES = {1: (*ANY, "linear"), 2: (*ANY, "bilinear", "bicubic"), 3: (*ANY, "trilinear")}
SIZES = {1: (5,), 2: (4, 5), 3: (2, 3, 2)}
TO: list[dict[str, Any]] = [
    {"size": 1},
    {"size": 2},
    {"size": 7},
    {"scale_factor": 2},
    {"scale_factor": 3.0},
    {"scale_factor": 0.6},
    {"scale_factor": 1.7},
    {"scale_factor": 1.7, "recompute_scale_factor": True},
    {"scale_factor": 2.6, "align_corners": True},
    {"size": 6, "align_corners": True},
]


@pytest.mark.parametrize("to", TO, ids=str)
@pytest.mark.parametrize(("dims", "mode"), [(d, m) for d, ms in MODES.items() for m in ms])
def test_interpolate(dims: int, mode: str, to: dict[str, Any]) -> None:
    if mode in ANY and "align_corners" in to:
        refused_alike(
            lambda m: m.nn.functional.interpolate(m.ones(1, 1, *SIZES[dims]), mode=mode, **to)
        )
        return
    x = normal(2, 3, *SIZES[dims])
    compare(lambda m, x: m.nn.functional.interpolate(x, mode=mode, **to), x)


def test_the_nearest_are_pytorchs_at_every_size() -> None:
    """Where places fall on the border of pixels, single precision decides."""
    for size, found in itertools.product((3, 7, 10, 33), range(1, 70)):
        x = np.arange(size, dtype=np.float32)[None, None]
        for mode in ("nearest", "nearest-exact"):
            ours, theirs = (
                m.nn.functional.interpolate(m.tensor(x), found, mode=mode) for m in (mt, torch)
            )
            assert_same(ours, theirs)
            factor = found / 10
            if int(size * factor):
                ours, theirs = (
                    m.nn.functional.interpolate(m.tensor(x), scale_factor=factor, mode=mode)
                    for m in (mt, torch)
                )
                assert_same(ours, theirs)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_dtypes(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 200, (1, 2, 4, 5)).astype(dtype)
    modes = ("nearest", "nearest-exact") if dtype == "uint8" else ("nearest", "bilinear", "bicubic")
    for mode in modes:
        ours, theirs = (
            m.nn.functional.interpolate(m.tensor(x), scale_factor=2, mode=mode) for m in (mt, torch)
        )
        assert_same(ours, theirs, rtol=2e-3 if dtype == "float16" else 1e-5)


REFUSED = {
    "both": lambda F, x: F.interpolate(x, 3, 2),
    "none": lambda F, x: F.interpolate(x),
    "sizes": lambda F, x: F.interpolate(x, (3, 3, 3)),
    "factors": lambda F, x: F.interpolate(x, scale_factor=(2,)),
    "nothing": lambda F, x: F.interpolate(x, 0),
    "recompute": lambda F, x: F.interpolate(x, 3, recompute_scale_factor=True),
    "shuffle": lambda F, x: F.pixel_shuffle(x, 3),
    "shuffle 0": lambda F, x: F.pixel_shuffle(x, 0),
    "unshuffle": lambda F, x: F.pixel_unshuffle(x, 3),
    "unshuffle a matrix": lambda F, x: F.pixel_unshuffle(x[0, 0], 2),
    "channels": lambda F, x: F.channel_shuffle(x, 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    refused_alike(lambda m: REFUSED[name](m.nn.functional, m.ones(2, 4, 4, 2)))


@pytest.mark.parametrize(("shape", "mode"), [((4, 2), "nearest"), ((1, 1, 4, 4), "linear")])
def test_modes_go_with_dimensions(shape: Any, mode: str) -> None:
    for m in (mt, torch):
        with pytest.raises(NotImplementedError, match=r"3D|takes"):
            m.nn.functional.interpolate(m.ones(shape), 3, mode=mode)


def test_antialias_is_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match="antialias"):
        mt.nn.functional.interpolate(mt.ones(1, 1, 4, 4), 2, mode="bilinear", antialias=True)


def test_gradients_of_results_that_are_not_finite_stay_where_they_belong() -> None:
    x, y = both(np.arange(4.0)[None, None])
    seed = np.array([[[1.0, 2.0, np.nan, 3.0, 1.0, 1.0, 1.0, 1.0]]])
    for m, t in ((mt, x), (torch, y)):
        m.nn.functional.interpolate(t, scale_factor=2).backward(m.tensor(seed))
    assert_same(x.grad, y.grad)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("name, size", [("lp_pool1d", (7,)), ("lp_pool2d", (5, 6))])
def test_powers_of_negative_elements_in_a_norm_pool(name: str, size: Any, p: float) -> None:
    with np.errstate(invalid="ignore"):
        compare(lambda m, x: getattr(m.nn.functional, name)(x, p, 3, 2), normal(2, 3, *size))
