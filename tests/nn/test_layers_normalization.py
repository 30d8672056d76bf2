"""Normalizing layers, embedding and attention: what they keep, change and refuse."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain import nn

X = np.random.default_rng(3).standard_normal((8, 3, 4)) * 2 + 5


@pytest.mark.parametrize("momentum", [0.1, 1.0, 0.0, None])
def test_running_statistics_follow_the_batches(momentum: float | None) -> None:
    layer = nn.BatchNorm1d(3, momentum=momentum).double()
    mean, var = np.zeros(3), np.ones(3)
    for n in range(1, 4):
        batch = X * n
        layer(mt.tensor(batch))
        step = 1 / n if momentum is None else momentum
        mean = (1 - step) * mean + step * batch.mean((0, 2))
        var = (1 - step) * var + step * batch.var((0, 2), ddof=1)
        assert layer.num_batches_tracked.item() == n
    np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-12)
    np.testing.assert_allclose(layer.running_var.numpy(), var, rtol=1e-12)
    if momentum is None:
        np.testing.assert_allclose(mean, X.mean((0, 2)) * 2)


def test_evaluation_uses_the_running_statistics_and_leaves_them() -> None:
    layer = nn.BatchNorm1d(3).double()
    layer.load_state_dict(
        layer.state_dict() | {"running_mean": mt.tensor([1.0, 2, 3]).double(),
                              "running_var": mt.tensor([4.0, 9, 16]).double()}
    )  # fmt: skip
    layer.eval()
    before = {name: b.numpy().copy() for name, b in layer.named_buffers()}
    found = layer(mt.tensor(X)).detach().numpy()
    expected = (X - np.array([[1.0], [2], [3]])) / np.sqrt([[4 + 1e-5], [9 + 1e-5], [16 + 1e-5]])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    for name, b in layer.named_buffers():
        assert (b.numpy() == before[name]).all()


def test_a_variance_of_minus_infinity_has_no_root() -> None:
    layer = nn.BatchNorm1d(2, affine=False).eval()
    layer.running_var.copy_(mt.tensor([-math.inf, math.inf]))
    with np.errstate(invalid="ignore"):
        assert str(layer(mt.ones(1, 2)).tolist()) == "[[nan, 0.0]]"


def test_a_batch_of_no_rows_changes_no_statistics_but_counts() -> None:
    layer = nn.BatchNorm2d(3)
    out = layer(mt.zeros(0, 3, 2, 2))
    out.sum().backward()
    assert out.shape == (0, 3, 2, 2)
    assert (layer.weight.grad == 0).all()
    assert (layer.running_var == 1).all()
    assert layer.num_batches_tracked.item() == 1


def test_without_tracking_the_batch_is_used_in_evaluation_as_well() -> None:
    layer = nn.BatchNorm1d(3, track_running_stats=False)
    assert list(layer.state_dict()) == ["weight", "bias"]
    x = mt.tensor(X, dtype=mt.float32)
    assert (layer(x) == layer.eval()(x)).all()


def test_running_statistics_are_kept_off_the_graph_under_every_mode() -> None:
    layer = nn.BatchNorm1d(3)
    x = mt.tensor(X, dtype=mt.float32)
    first = layer(x)
    layer(x)  # writes to the buffers while the first graph is alive
    first.sum().backward()
    assert not layer.running_mean.requires_grad
    for mode in (mt.no_grad, mt.inference_mode):
        with mode():
            layer(x)
    assert layer.num_batches_tracked.item() == 4
    layer(x).sum().backward()


def test_reset_running_stats() -> None:
    layer = nn.BatchNorm1d(3)
    layer(mt.tensor(X, dtype=mt.float32))
    layer.reset_parameters()  # which resets them as well
    assert [b.tolist() for b in layer.buffers()] == [[0, 0, 0], [1, 1, 1], 0]
    nn.BatchNorm1d(3, track_running_stats=False).reset_running_stats()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm1d(3),
        lambda: nn.Embedding(4, 3, padding_idx=0),
        lambda: nn.MultiheadAttention(4, 2),
    ],
)
def test_copies_and_pickles(make: Any) -> None:
    layer = make()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(twin) == repr(layer)
        state = layer.state_dict()
        assert list(twin.state_dict()) == list(state)
        for name, t in twin.state_dict().items():
            assert (t == state[name]).all()


def test_half_precision_layers_compute_in_single() -> None:
    layer = nn.LayerNorm(4).half()
    x = mt.tensor(X * 100 + 5000).half()  # whose squares half precision cannot hold
    found = layer(x)
    assert found.dtype == mt.float16
    assert found.isfinite().all()
    wide = nn.LayerNorm(4)(x.float())
    assert (found.float() - wide).abs().max() < 2e-3


def test_embedding_from_pretrained_shares_memory_and_is_frozen() -> None:
    table = mt.tensor([[1.0, 2], [3, 4], [5, 6]])
    layer = nn.Embedding.from_pretrained(table, padding_idx=-1)
    assert repr(layer) == "Embedding(3, 2, padding_idx=2)"
    assert not layer.weight.requires_grad
    table[1] = 7.0
    assert layer(mt.tensor([1, 2])).tolist() == [[7, 7], [5, 6]]
    learned = nn.Embedding.from_pretrained(table, freeze=False)
    learned(mt.tensor([0, 0])).sum().backward()
    assert learned.weight.grad.tolist() == [[2, 2], [0, 0], [0, 0]]
    with pytest.raises(TypeError, match="must be a Tensor"):
        nn.Embedding.from_pretrained([[1.0]])


def test_embedding_padding_starts_as_zeros_and_stays() -> None:
    layer = nn.Embedding(5, 3, padding_idx=-2)
    optimizer = mt.optim.SGD(layer.parameters(), lr=1.0)
    assert (layer.weight[3] == 0).all()
    layer(mt.tensor([3, 3, 1])).sum().backward()
    optimizer.step()
    assert (layer.weight[3] == 0).all()
    assert not (layer.weight[[0, 1, 2, 4]] == 0).any()


def test_attention_learns_with_an_optimizer_as_by_hand() -> None:
    mt.manual_seed(1)
    layer = nn.MultiheadAttention(6, 2, batch_first=True).double()
    twin = copy.deepcopy(layer)
    optimizer = mt.optim.SGD(layer.parameters(), lr=0.1)
    x = mt.tensor(np.random.default_rng(0).standard_normal((2, 4, 6)))
    for _ in range(3):
        optimizer.zero_grad()
        layer(x, x, x)[0].square().sum().backward()
        optimizer.step()
        twin.zero_grad()
        twin(x, x, x)[0].square().sum().backward()
        with mt.no_grad():
            for p in twin.parameters():
                p -= 0.1 * p.grad
    for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-13)


@pytest.mark.skipif(not hasattr(nn, "Dropout"), reason="there is no dropout")
def test_attention_drops_weights_in_training_only() -> None:
    layer = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
    x = mt.randn(3, 20, 4)
    for need_weights in (True, False):
        assert not (layer(x, x, x, need_weights=need_weights)[0] == layer.eval()(x, x, x)[0]).all()
        np.testing.assert_allclose(
            layer(x, x, x)[0].detach().numpy(),
            layer(x, x, x, need_weights=False)[0].detach().numpy(),
            rtol=1e-5,
            atol=1e-6,
        )
        layer.train()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: nn.Embedding(3, 2, max_norm=1.0), ValueError, "Embedding.*not supported"),
        (lambda: nn.Embedding(3, 2, sparse=True), ValueError, "Embedding.*not supported"),
        (lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True), ValueError, "not supported"),
        (lambda: nn.MultiheadAttention(4, 2, add_zero_attn=True), ValueError, "not supported"),
        (
            lambda: nn.functional.instance_norm(mt.ones(2, 3, 4), mt.ones(3), mt.ones(3)),
            ValueError,
            "running statistics are not supported",
        ),
    ],
)
def test_what_is_not_here_is_refused(make: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("eps", [-1.0, -1e-5, 0.0, 1e-5])
@pytest.mark.parametrize("training", [True, False])
def test_an_eps_that_batch_norm_cannot_divide_by(eps: float, training: bool) -> None:
    layer = nn.BatchNorm1d(2, eps=eps).train(training)
    x = mt.tensor([[1.0, 2.0], [3.0, 5.0]])
    if eps > 0 or (eps == 0 and not training):
        assert layer(x).isfinite().all()
        return
    with pytest.raises(ValueError, match=rf"batch_norm eps: must be .*, but got {eps}"):
        layer(x)
    with pytest.raises(ValueError, match="batch_norm eps: must be"):
        mt.distributed.DataParallel(layer)(x)
