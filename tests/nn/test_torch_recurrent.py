"""Recurrent layers and packed sequences with PyTorch's state: outputs, gradients, text, errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch", reason="torch is not installed")
from parity import assert_same, both, normal, numpy_of  # noqa: E402

LAYERS = ("RNN", "LSTM", "GRU")
TWICE = (False, True)


def pair(name: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    ours, theirs = (getattr(m.nn, name)(*args, **options).double() for m in (mt, torch))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    ours.load_state_dict({name: t.numpy() for name, t in theirs.state_dict().items()})
    return ours, theirs


def flat(found: Any) -> list[Any]:
    return [t for part in found for t in (part if isinstance(part, tuple) else (part,))]


def compared(ours: Any, theirs: Any, found: Any, expected: Any, leaves: Any) -> None:
    """Outputs, and the gradients of all that went in."""
    seeds = np.random.default_rng(5)
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b, scale=1e-13)
    weights = [seeds.standard_normal(tuple(a.shape)) for a in found]
    sum((a * mt.tensor(w)).sum() for a, w in zip(found, weights, strict=True)).backward()
    sum((b * torch.tensor(w)).sum() for b, w in zip(expected, weights, strict=True)).backward()
    named = dict(theirs.named_parameters())
    leaves += [(p, named[name]) for name, p in ours.named_parameters()]
    for x, t in leaves:
        np.testing.assert_allclose(numpy_of(x.grad), numpy_of(t.grad), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("given", TWICE, ids=["zeros", "states given"])
@pytest.mark.parametrize("lengths", [None, (5, 3, 3, 1), (3, 1, 5, 3)], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_layer_with_torchs_state(name: str, lengths: Any, given: bool) -> None:
    for layers, bias, bidirectional, first in itertools.product((1, 2), TWICE, TWICE, TWICE):
        ours, theirs = pair(
            name, 3, 4, layers, bias=bias, bidirectional=bidirectional, batch_first=first
        )
        x = both(normal(4, 6, 3) if first else normal(6, 4, 3))
        states = [both(normal(layers * (1 + bidirectional), 4, 4)) for _ in range(2)]
        found, leaves = [], [x, *(states if name == "LSTM" else states[:1]) * given]
        for side, (m, net) in enumerate(((mt, ours), (torch, theirs))):
            begin: Any = tuple(state[side] for state in states) if given else None
            begin = begin if name == "LSTM" or not given else begin[0]
            rnn = m.nn.utils.rnn
            ordered = lengths is None or list(lengths) == sorted(lengths)[::-1]
            one = x[side]
            if lengths is not None:
                one = rnn.pack_padded_sequence(one, list(lengths), first, enforce_sorted=ordered)
            y, last = net(one, begin)
            more: tuple[Any, ...] = ()
            if lengths is not None:
                more = (y.data,)
                y, lens = rnn.pad_packed_sequence(y, first, padding_value=-1.0, total_length=7)
                assert lens.tolist() == list(lengths)
            found.append(flat((y, last, *more)))
        compared(ours, theirs, *found, leaves)


@pytest.mark.parametrize("options", [{"nonlinearity": "relu"}, {"nonlinearity": "tanh"}])
def test_nonlinearities(options: Any) -> None:
    ours, theirs = pair("RNN", 3, 4, **options)
    x = both(normal(5, 2, 3))
    compared(ours, theirs, flat(ours(x[0])), flat(theirs(x[1])), [x])


@pytest.mark.parametrize("bidirectional", TWICE)
def test_projections(bidirectional: bool) -> None:
    ours, theirs = pair("LSTM", 3, 4, 2, proj_size=2, bidirectional=bidirectional)
    x = both(normal(5, 2, 3))
    compared(ours, theirs, flat(ours(x[0])), flat(theirs(x[1])), [x])


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("given", TWICE)
@pytest.mark.parametrize("name", LAYERS)
def test_cell_with_torchs_state(name: str, given: bool, shape: Any) -> None:
    ours, theirs = pair(f"{name}Cell", 3, 4)
    x, states = both(normal(*shape)), [both(normal(*shape[:-1], 4)) for _ in range(2)]
    found = []
    for side, net in enumerate((ours, theirs)):
        begin: Any = tuple(state[side] for state in states)
        begin = None if not given else begin if name == "LSTM" else begin[0]
        result = net(x[side], begin)
        found.append(list(result) if name == "LSTM" else [result])
    compared(ours, theirs, *found, [x])


def test_parameters_start_within_the_same_bounds() -> None:
    layer = mt.nn.LSTM(3, 16)
    for parameter in layer.parameters():
        values = np.abs(parameter.detach().numpy())
        assert 0.2 < values.max() <= 0.25


def test_text() -> None:
    for name, options in (
        ("LSTM", {"num_layers": 2, "bias": False, "dropout": 0.5, "bidirectional": True}),
        ("LSTM", {"proj_size": 2, "batch_first": True}),
        ("RNNCell", {"bias": False, "nonlinearity": "relu"}),
    ):
        pair(name, 3, 4, **options)


PACKED = {
    "sorted": (True, [3, 2, 2]),
    "not sorted": (False, [2, 3, 2]),
}


@pytest.mark.parametrize("case", PACKED)
def test_packing(case: str) -> None:
    ordered, lengths = PACKED[case]
    arrays = [normal(n, 2) for n in lengths]
    found = []
    for m in (mt, torch):
        rnn = m.nn.utils.rnn
        tensors = [m.tensor(a) for a in arrays]
        packed = rnn.pack_sequence(tensors, enforce_sorted=ordered)
        padded, lens = rnn.pad_packed_sequence(packed, batch_first=True, padding_value=7.0)
        assert list(lens.tolist()) == lengths
        left = rnn.pad_sequence(tensors, padding_value=2.0, padding_side="left")
        again = rnn.unpack_sequence(packed)
        some = [t for t in packed if t is not None]
        found.append([*some, padded, left, *again])
    for a, b in zip(*found, strict=True):
        assert_same(a, b)


ERRORS: dict[str, Any] = {
    "no hidden size": lambda m: m.nn.LSTM(3, 0),
    "hidden size of another type": lambda m: m.nn.LSTM(3, 2.0),
    "no layers": lambda m: m.nn.GRU(3, 2, 0),
    "a dropout above 1": lambda m: m.nn.GRU(3, 2, 2, dropout=1.5),
    "a bias that is no bool": lambda m: m.nn.LSTM(3, 2, bias=1.0),
    "a projection as large as the state": lambda m: m.nn.LSTM(3, 2, proj_size=2),
    "an unknown nonlinearity": lambda m: m.nn.RNN(3, 2, nonlinearity="sine"),
    "four dimensions": lambda m: m.nn.LSTM(3, 2)(m.ones(1, 1, 1, 3)),
    "another input size": lambda m: m.nn.LSTM(3, 2)(m.ones(1, 1, 4)),
    "no steps": lambda m: m.nn.LSTM(3, 2)(m.ones(0, 1, 3)),
    "another dtype": lambda m: m.nn.GRU(3, 2)(m.ones(1, 1, 3, dtype=m.float64)),
    "states of another shape": lambda m: m.nn.GRU(3, 2)(m.ones(1, 1, 3), m.ones(1, 2, 2)),
    "states without a batch": lambda m: m.nn.GRU(3, 2)(m.ones(1, 1, 3), m.ones(1, 2)),
    "cells of another shape": lambda m: m.nn.LSTM(3, 2)(
        m.ones(1, 1, 3), (m.ones(1, 1, 2), m.ones(1, 1, 3))
    ),
    "a cell's input of three dimensions": lambda m: m.nn.GRUCell(3, 2)(m.ones(1, 1, 3)),
    "a cell's other input size": lambda m: m.nn.LSTMCell(3, 2)(m.ones(1, 4)),
    "a cell's other state": lambda m: m.nn.GRUCell(3, 2)(m.ones(1, 3), m.ones(1, 3)),
    "lengths that rise": lambda m: m.nn.utils.rnn.pack_padded_sequence(m.ones(3, 2), [1, 2]),
    "too few steps": lambda m: m.nn.utils.rnn.pad_packed_sequence(
        m.nn.utils.rnn.pack_sequence([m.ones(3)]), total_length=2
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_of_torchs_kinds(case: str) -> None:
    with pytest.raises(Exception) as theirs:
        ERRORS[case](torch)
    with pytest.raises(theirs.type):
        ERRORS[case](mt)
