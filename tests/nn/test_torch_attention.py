"""Attention as users call it, against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import compare, normal, refused_alike  # noqa: E402

# Only PyTorch's own formula has a second derivative.
pytestmark = pytest.mark.usefixtures("formula")


@pytest.fixture
def formula() -> Any:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


def attend(m: Any, *arguments: Any, **options: Any) -> Any:
    return m.nn.functional.scaled_dot_product_attention(*arguments, **options)


SHAPES = {
    "heads": ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7)),
    "matrices": ((4, 5), (6, 5), (6, 5)),
    "batch": ((3, 4, 5), (3, 4, 5), (3, 4, 5)),
    "broadcast": ((2, 3, 4, 5), (1, 3, 6, 5), (1, 1, 6, 5)),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
    "no sources": ((2, 4, 3), (2, 0, 3), (2, 0, 5)),
    "no targets": ((2, 0, 3), (2, 4, 3), (2, 4, 5)),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "scale 1": {"scale": 1, "is_causal": True},
}


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("options", OPTIONS)
def test_attention(shapes: str, options: str) -> None:
    compare(lambda m, *t: attend(m, *t, **OPTIONS[options]), *(normal(*s) for s in SHAPES[shapes]))


BLIND = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], bool)
MASKS = {
    "rows": BLIND,
    "sources": np.array([True, False, True]),
    "batch": np.stack([BLIND, ~BLIND])[:, None],
    "nothing": np.zeros((4, 3), bool),
    "everything": np.ones((4, 3), bool),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("kind", ["bool", "float64", "float32"])
def test_masks(name: str, kind: str) -> None:
    mask = MASKS[name]
    if kind != "bool":
        mask = np.where(mask, normal(*mask.shape).round(1), -math.inf).astype(kind)
    arrays = [normal(2, 2, n, 5) for n in (4, 3, 3)]
    compare(lambda m, q, k, v: attend(m, q, k, v, attn_mask=m.tensor(mask)), *arrays)


def test_a_mask_may_be_learned() -> None:
    arrays = [normal(2, 2, n, 5) for n in (4, 3, 3)]
    compare(lambda m, q, k, v, b: attend(m, q, k, v, b), *arrays, normal(2, 1, 4, 3))


def test_several_heads_share_one_of_the_keys() -> None:
    arrays = [normal(2, 4, 3, 5), normal(2, 2, 3, 5), normal(2, 1, 3, 5)]
    compare(lambda m, q, k, v: attend(m, q, k, v, enable_gqa=True, is_causal=True), *arrays)


def test_not_contiguous() -> None:
    compare(
        lambda m, q, k: attend(m, q.transpose(1, 2), k.transpose(1, 2), k.transpose(1, 2)),
        normal(2, 4, 3, 5),
        normal(2, 6, 3, 5),
    )


@pytest.mark.skipif(not hasattr(mt.nn.functional, "dropout"), reason="there is no dropout")
def test_dropout_of_the_weights() -> None:
    q, v = mt.zeros(2, 3, 50, 4), mt.ones(2, 3, 40, 1)
    assert (attend(mt, q, q[:, :, :40], v, dropout_p=1.0) == 0).all()
    found = attend(mt, q, q[:, :, :40], v, dropout_p=0.5).numpy()
    # Every value is the number of weights that are left, of 40, over 20.
    np.testing.assert_allclose(found * 20, np.round(found * 20), atol=1e-4)
    assert found.std() > 0.1
    assert abs(found.mean() - 1) < 0.05


X, Y = (2, 3, 4, 5), (2, 3, 4, 6)
REFUSED: dict[str, Callable[..., Any]] = {
    "list": lambda m: attend(m, [1.0], m.ones(*X), m.ones(*X)),
    "list as key": lambda m: attend(m, m.ones(*X), [1.0], m.ones(*X)),
    "vectors": lambda m: attend(m, m.ones(3), m.ones(3), m.ones(3)),
    "sizes": lambda m: attend(m, m.ones(*X), m.ones(*Y), m.ones(*X)),
    "sources": lambda m: attend(m, m.ones(*X), m.ones(*X), m.ones(2, 3, 5, 5)),
    "dtypes": lambda m: attend(m, m.ones(*X), m.ones(*X).double(), m.ones(*X)),
    "integers": lambda m: attend(m, *[m.ones(*X).long()] * 3),
    "mask of integers": lambda m: attend(m, *[m.ones(*X)] * 3, m.ones(4, 4).long()),
    "wide mask": lambda m: attend(m, *[m.ones(*X)] * 3, m.ones(4, 4).double()),
    "mask shape": lambda m: attend(m, *[m.ones(*X)] * 3, m.ones(3, 4).bool()),
    "mask list": lambda m: attend(m, *[m.ones(*X)] * 3, [[True]]),
    "mask and causal": lambda m: attend(m, *[m.ones(*X)] * 3, m.ones(4, 4).bool(), is_causal=True),
    "probability": lambda m: attend(m, *[m.ones(*X)] * 3, dropout_p=1.5),
    "heads": lambda m: attend(
        m, m.ones(2, 4, 3, 5), m.ones(2, 3, 3, 5), m.ones(2, 3, 3, 5), enable_gqa=True
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_torch(name: str) -> None:
    refused_alike(REFUSED[name])
