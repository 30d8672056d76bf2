"""embedding and one_hot as users call them, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, compare, normal, refused_alike  # noqa: E402

ROWS = {
    "matrix": np.array([[1, 1, 4], [0, 1, 3]]),
    "int32": np.array([1, 1, 4], np.int32),
    "one": np.array(2),
    "turned": np.arange(5).repeat(2).reshape(2, 5).T,
}


@pytest.mark.parametrize("padding", [None, 1, -1])
@pytest.mark.parametrize("name", ROWS)
def test_embedding(name: str, padding: int | None) -> None:
    def call(m: Any, weight: Any) -> Any:
        rows = m.tensor(ROWS[name])
        y = m.nn.functional.embedding(rows, weight, padding_idx=padding)
        return y * y

    compare(call, normal(5, 3))


def test_no_rows_are_chosen() -> None:
    rows = np.zeros((0, 2), np.int64)
    compare(lambda m, w: m.nn.functional.embedding(m.tensor(rows), w), normal(5, 3), second=False)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_many_repeats_add_up(dtype: str) -> None:
    rows = np.random.default_rng(0).integers(0, 7, (40, 5))
    w, t = both(normal(7, 4).astype(dtype))
    ours = mt.nn.functional.embedding(mt.tensor(rows), w)
    theirs = torch.nn.functional.embedding(torch.tensor(rows), t)
    assert_same(ours, theirs)
    seed = np.random.default_rng(1).integers(-2, 3, ours.shape).astype(dtype)
    ours.backward(mt.tensor(seed))
    theirs.backward(torch.tensor(seed))
    assert_same(w.grad, t.grad)


def test_integer_table() -> None:
    table = np.arange(6).reshape(3, 2)
    compare(lambda m, w: m.nn.functional.embedding(m.tensor([2, 0]), w), table)


def test_gradient_goes_straight_into_the_memory_of_an_optimizer() -> None:
    rows, table = np.array([1, 1, 2]), normal(4, 3)
    found = []
    for m in (mt, torch):
        weight = m.nn.Parameter(m.tensor(table))
        optimizer = m.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            m.nn.functional.embedding(m.tensor(rows), weight).pow(2).sum().backward()
            optimizer.step()
        found.append(weight.detach())
    assert_same(*found)


@pytest.mark.parametrize(
    ("numbers", "classes"),
    [([0, 2, 1], -1), ([[0, 2], [1, 1]], 5), (1, 3), (0, -1), ([], 3), ([[0, 0]], 1)],
    ids=str,
)
def test_one_hot(numbers: Any, classes: int) -> None:
    array = np.array(numbers, np.int64)
    compare(lambda m, t: m.nn.functional.one_hot(t, num_classes=classes), array)


REFUSED: dict[str, Callable[..., Any]] = {
    "no list": lambda m, f: f.embedding([0], m.ones(3, 2)),
    "no weight": lambda m, f: f.embedding(m.tensor([0]), [[1.0]]),
    "too large": lambda m, f: f.embedding(m.tensor([3]), m.ones(3, 2)),
    "negative": lambda m, f: f.embedding(m.tensor([-1]), m.ones(3, 2)),
    "float": lambda m, f: f.embedding(m.tensor([1.0]), m.ones(3, 2)),
    "bool": lambda m, f: f.embedding(m.tensor([True]), m.ones(3, 2)),
    "uint8": lambda m, f: f.embedding(m.tensor([1], dtype=m.uint8), m.ones(3, 2)),
    "vector": lambda m, f: f.embedding(m.tensor([1]), m.ones(3)),
    "padding": lambda m, f: f.embedding(m.tensor([1]), m.ones(3, 2), padding_idx=3),
    "padding negative": lambda m, f: f.embedding(m.tensor([1]), m.ones(3, 2), padding_idx=-4),
    "one_hot int32": lambda m, f: f.one_hot(m.tensor([0], dtype=m.int32)),
    "one_hot float": lambda m, f: f.one_hot(m.tensor([0.0])),
    "one_hot nothing": lambda m, f: f.one_hot(m.zeros(0).long()),
    "one_hot negative": lambda m, f: f.one_hot(m.tensor([-1])),
    "one_hot too large": lambda m, f: f.one_hot(m.tensor([3]), 3),
    "one_hot no classes": lambda m, f: f.one_hot(m.tensor([0]), 0),
    "one_hot -2": lambda m, f: f.one_hot(m.tensor([0]), -2),
    "one_hot list": lambda m, f: f.one_hot([0], 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_in_torch(name: str) -> None:
    refused_alike(lambda m: REFUSED[name](m, m.nn.functional))


@pytest.mark.parametrize(
    "option",
    [{"max_norm": 1.0}, {"norm_type": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}],
)
def test_options_that_are_not_here_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"embedding.* not supported"):
        mt.nn.functional.embedding(mt.tensor([0]), mt.ones(3, 2), **option)


def test_a_layer_over_a_table_that_there_is():
    table = np.arange(12.0).reshape(4, 3)
    rows, offsets = np.array([1, 2, 3, 0]), np.array([0, 2])
    for options in ({}, {"mode": "sum"}, {"mode": "max"}, {"mode": "sum", "padding_idx": -1},
                    {"include_last_offset": True, "freeze": False}):  # fmt: skip
        found = []
        for lib in (mt, torch):
            layer = lib.nn.EmbeddingBag.from_pretrained(lib.from_numpy(table.copy()), **options)
            out = layer(lib.from_numpy(rows), lib.from_numpy(offsets))
            found.append((out.detach().numpy().tolist(), layer.weight.requires_grad,
                          layer.num_embeddings, layer.padding_idx))  # fmt: skip
        assert found[0] == found[1]
    given = mt.ones(4, 3)
    before = mt.random.get_rng_state()
    layer = mt.nn.Embedding.from_pretrained(given, True, 2)
    assert mt.random.get_rng_state() == before and layer.padding_idx == 2
    given.mul_(3)
    assert layer(mt.tensor([2])).tolist() == [[3, 3, 3]]
    with pytest.raises(AssertionError):
        mt.nn.EmbeddingBag.from_pretrained(given, padding_idx=4)
