"""What repeats in a deep model is compiled once, and computes the same bits."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import interpreted
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtrain as mt
from microtrain import nn
from microtrain.compile import arrival, cache, pieces

numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ("", []),
        ("abcd", [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)]),
        ("aaaaa", [(0, 1, 5)]),
        ("xababababy", [(0, 1, 1), (1, 2, 4), (9, 1, 1)]),
        ("aabaabaab", [(0, 3, 3)]),
        ("abab", [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)]),  # a loop would save two
        ("abcdabcd", [(0, 4, 2)]),
    ],
)
def test_repeats(shapes: str, found: list[tuple[int, int, int]]) -> None:
    assert list(pieces.repeats([ord(letter) for letter in shapes])) == found


@given(st.lists(st.integers(0, 3), max_size=60))
def test_repeats_are_the_whole_in_order(shapes: list[int]) -> None:
    again: list[int] = []
    for start, period, turns in pieces.repeats(shapes):
        assert start == len(again)
        assert turns == 1 or (turns - 1) * period >= pieces.LEAST
        again += shapes[start : start + period] * turns
    assert again == shapes


def deep(layers: int, activation: Any) -> Any:
    mt.manual_seed(3)
    return nn.Sequential(
        nn.Linear(3, 5), *[part for _ in range(layers) for part in (activation(), nn.Linear(5, 5))]
    )


def trained(layers: int, activation: Any, executor: str = "numba") -> tuple[str, list[Any]]:
    """The text of a step, and the weights after some."""
    model = deep(layers, activation)
    optimizer = mt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @mt.compile(executor=executor)
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    random = np.random.default_rng(0)
    for _ in range(6):
        x, y = (mt.tensor(random.standard_normal((4, n)).astype("f")) for n in (3, 5))
        step(x, y)
    return step.source(), [p.detach().numpy().copy() for p in model.parameters()]


def by_python(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cache, "load", interpreted.load)
    patch.setattr(arrival, "_legible", lambda: False)


@numba
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_the_text_does_not_grow_with_equal_layers(
    activation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_python(monkeypatch)
    lengths = {}
    for layers in (8, 16):
        text, weights = trained(layers, activation)
        _, expected = trained(layers, activation, "numpy")
        for a, b in zip(weights, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
        lengths[layers] = text[text.index("@njit") :].count("\n")
    assert lengths[16] == lengths[8]


@pytest.mark.slow
@numba
def test_a_loop_over_layers_has_the_bits_of_its_units(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text, weights = trained(4, nn.ReLU)
    assert "for turn in range(" in text
    monkeypatch.setattr(pieces, "LEAST", 10**9)
    apart, expected = trained(4, nn.ReLU)
    assert "for turn in range(" not in apart
    for a, b in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(a, b)
