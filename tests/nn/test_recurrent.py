"""Recurrent layers: what holds without PyTorch beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pace import daily

import microtrain as mt
from microtrain.distributed import DataParallel, in_process
from microtrain.errors import CaptureError
from microtrain.random import begin_batch

nn, rnn = mt.nn, mt.nn.utils.rnn
LAYERS = ("RNN", "LSTM", "GRU")


def hidden_of(states: Any) -> Any:
    return states[0] if isinstance(states, tuple) else states


# Layers and cells ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_its_cell_step_by_step(name: str, bias: bool) -> None:
    layer = getattr(nn, name)(3, 4, bias=bias, dtype=mt.float64)
    cell = getattr(nn, f"{name}Cell")(3, 4, bias=bias, dtype=mt.float64)
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    x = mt.randn(5, 2, 3, dtype=mt.float64)
    output, last = layer(x)
    state: Any = None
    for t in range(5):
        state = cell(x[t], state)
        assert mt.allclose(output[t], hidden_of(state), atol=1e-14)
    for found, expected in zip(
        last if name == "LSTM" else [last], state if name == "LSTM" else [state], strict=True
    ):
        assert mt.allclose(found[0], expected, atol=1e-14)


@pytest.mark.parametrize("name", LAYERS)
def test_the_other_direction_is_the_sequence_turned_round(name: str) -> None:
    both = getattr(nn, name)(3, 4, bidirectional=True, dtype=mt.float64)
    one = getattr(nn, name)(3, 4, dtype=mt.float64)
    state = both.state_dict()
    one.load_state_dict({k: state[f"{k}_reverse"] for k in one.state_dict()})
    x = mt.randn(5, 2, 3, dtype=mt.float64)
    found, last = both(x)
    expected, end = one(x.flip(0))
    assert mt.equal(found[:, :, 4:], expected.flip(0))
    assert mt.equal(hidden_of(last)[1], hidden_of(end)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", daily(LAYERS, "RNN", "GRU"))
def test_second_derivatives(name: str) -> None:
    layer = getattr(nn, name)(2, 3, 2, bidirectional=True, dtype=mt.float64)
    weights = dict(layer.named_parameters())

    def output(x: Any) -> Any:
        return layer(x)[0]

    x = mt.randn(3, 2, 2, dtype=mt.float64, requires_grad=True)
    assert mt.autograd.gradcheck(output, [x])
    assert mt.autograd.gradgradcheck(output, [x])
    (g,) = mt.autograd.grad(output(x).sum(), [x], create_graph=True)
    g.pow(2).sum().backward()
    assert all(p.grad is not None for k, p in weights.items() if "weight" in k)


def test_writing_to_the_outputs_before_backward_is_an_error() -> None:
    output, _ = nn.GRU(2, 3)(mt.randn(4, 1, 2))
    loss = (output * 1).sum()
    with mt.no_grad():
        output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_two_passes_over_one_graph_give_each_its_gradient() -> None:
    layer = nn.LSTM(2, 3)
    output, _ = layer(mt.randn(4, 1, 2))
    g = mt.ones(4, 1, 3)
    first = mt.autograd.grad(output, list(layer.parameters()), g, retain_graph=True)
    g.mul_(2)
    second = mt.autograd.grad(output, list(layer.parameters()), g)
    for a, b in zip(first, second, strict=True):
        assert mt.equal(a * 2, b)


def test_the_biases_have_gradients_of_their_own() -> None:
    layer = nn.LSTM(2, 3)
    layer(mt.randn(4, 1, 2))[0].sum().backward()
    before = layer.bias_hh_l0.grad.clone()
    layer.bias_ih_l0.grad.zero_()
    assert mt.equal(layer.bias_hh_l0.grad, before)


# Sequences of several lengths ---------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_packed_batch_is_each_sequence_alone(name: str, bidirectional: bool) -> None:
    layer = getattr(nn, name)(3, 4, 2, bidirectional=bidirectional, dtype=mt.float64)
    sequences = [mt.randn(n, 3, dtype=mt.float64) for n in (2, 5, 1, 5)]
    output, last = layer(rnn.pack_sequence(sequences, enforce_sorted=False))
    for number, (sequence, found) in enumerate(
        zip(sequences, rnn.unpack_sequence(output), strict=True)
    ):
        expected, end = layer(sequence)
        assert mt.allclose(found, expected, atol=1e-14)
        assert mt.allclose(hidden_of(last)[:, number], hidden_of(end), atol=1e-14)


def test_padding_has_no_part_in_the_gradient() -> None:
    layer = nn.LSTM(3, 4, 2, bidirectional=True, dtype=mt.float64)
    x = mt.randn(2, 6, 3, dtype=mt.float64, requires_grad=True)
    packed = rnn.pack_padded_sequence(x, [4, 2], batch_first=True)
    output, _ = layer(packed)
    rnn.pad_packed_sequence(output, True)[0].sum().backward()
    assert not x.grad[0, 4:].any() and not x.grad[1, 2:].any()
    assert x.grad[0, :4].all() and x.grad[1, :2].all()


def test_packed_sequences_made_of_another_ones_lengths() -> None:
    packed = rnn.pack_sequence([mt.randn(3, 2), mt.randn(1, 2)])
    doubled = rnn.PackedSequence(packed.data * 2, *packed[1:])
    assert mt.equal(rnn.pad_packed_sequence(doubled)[0], rnn.pad_packed_sequence(packed)[0] * 2)
    assert packed.double().data.dtype == mt.float64


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: rnn.pack_padded_sequence(mt.ones(3, 2), [1, 2]), "sorted in decreasing order"),
        (lambda: rnn.pack_padded_sequence(mt.ones(3, 2), [3, 0]), "greater than 0"),
        (lambda: rnn.pack_padded_sequence(mt.ones(3, 2), [3]), "equal to batch_size"),
        (lambda: rnn.pack_padded_sequence(mt.ones(3, 2), [4, 1]), "at most 3"),
        (lambda: rnn.pad_sequence([]), "empty list"),
        (lambda: rnn.pad_sequence([mt.ones(2)], padding_side="top"), "left or right"),
    ],
)
def test_lengths_that_do_not_fit(call: Any, match: str) -> None:
    with pytest.raises(RuntimeError, match=match):
        call()


# Captured -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_a_captured_layer_is_one_loop_each_way(name: str) -> None:
    layer = getattr(nn, name)(3, 4)
    optimizer = mt.optim.SGD(layer.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = layer(x)[0].pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss

    captured = mt.compile(step)
    for _ in range(4):
        captured(mt.randn(30, 2, 3))
    lines = [line for line in captured.source().splitlines() if line.startswith("loop(")]
    assert len(lines) == 2
    assert len(captured.source().splitlines()) < 150


# On several ranks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch_first", "packed"), [(False, False), (True, False), (False, True)])
def test_gradients_and_masks_do_not_depend_on_the_ranks(batch_first: bool, packed: bool) -> None:
    x = np.random.default_rng(0).standard_normal((4, 5, 3))
    lengths = [5, 2, 5, 3]

    def gradients(comm: Any) -> Any:
        mt.manual_seed(3)
        layer = nn.LSTM(3, 4, 2, dropout=0.5, batch_first=batch_first, dtype=mt.float64)
        model = DataParallel(layer, comm)
        ends = {1: [0, 4], 2: [0, 1, 4], 4: [0, 1, 2, 3, 4]}[comm.size]
        mine = slice(*ends[comm.rank : comm.rank + 2])
        begin_batch(mine.start)
        given: Any = mt.tensor(x[mine] if batch_first else x[mine].swapaxes(0, 1))
        if packed:
            given = rnn.pack_padded_sequence(given, lengths[mine], batch_first, False)
        _, (last, _) = model(given)
        model.count(mine.stop - mine.start)  # it cannot tell which dimension is samples
        last.pow(2).sum(0).mean(1).mean().backward()
        return [p.grad.numpy().copy() for p in layer.parameters()]

    (whole,) = in_process.run(1, gradients)
    for size in (2, 4) if not packed else (2,):  # the longest sequence is on every rank
        for found in in_process.run(size, gradients):
            for a, b in zip(found, whole, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


def test_dropout_lies_between_the_layers_alone() -> None:
    with pytest.warns(UserWarning, match="needs more than num_layers=1"):
        one = nn.GRU(3, 4, dropout=0.9)
    two = nn.GRU(3, 4, 2, dropout=0.9)
    x = mt.randn(3, 2, 3)
    assert mt.equal(one(x)[0], one(x)[0])
    assert not mt.equal(two(x)[0], two(x)[0])
    two.eval()
    assert mt.equal(two(x)[0], two(x)[0])


def test_a_state_that_is_no_pair_and_captured_lengths_are_refused() -> None:
    x, lengths = mt.ones(5, 2, 3), mt.tensor([5, 2])
    with pytest.raises(TypeError, match=r"hx is a pair of Tensors, \(h_0, c_0\), got Tensor"):
        mt.nn.LSTM(3, 4)(x, mt.zeros(1, 2, 4))
    rnn = mt.nn.GRU(3, 4)
    pack = mt.nn.utils.rnn.pack_padded_sequence
    step = mt.compile(lambda x, lengths: rnn(pack(x, lengths))[1].sum())
    with pytest.raises(CaptureError, match=r"pack_padded_sequence.* takes them as numbers"):
        step(x, lengths)


@pytest.mark.parametrize("dropout", [True, "0.5", None])
def test_dropout_of_a_layer_is_a_number(dropout: Any) -> None:
    with pytest.raises(ValueError, match="dropout should be a number"):
        nn.LSTM(3, 4, 2, dropout=dropout)


def test_a_layer_of_ones_own_names_its_mode() -> None:
    class Mine(nn.RNNBase):
        def __init__(self, size: int) -> None:
            super().__init__("GRU", size, 4)

    assert [p.shape for p in Mine(3).parameters()] == [p.shape for p in nn.GRU(3, 4).parameters()]
    with pytest.raises(ValueError, match="Unrecognized RNN mode"):
        nn.RNNBase("CNN", 3, 4)
