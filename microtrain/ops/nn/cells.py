"""Recurrent cells as formulas: one step of an RNN, an LSTM or a GRU, and a layer step by step."""

from __future__ import annotations

from typing import Any

from ..matrix.linear_algebra import linear
from ..pointwise.elementwise import relu, sigmoid, tanh, where
from ..shape.joining import stack
from ..shape.splitting import chunk

# How many blocks of rows the weights of a cell have.
GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}


def rnn_cell(
    kind: str, input: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """The hidden state behind a step: `kind` (tanh or relu) of W x + b + W h + b."""
    both = linear(input, w_ih, b_ih) + linear(hidden, w_hh, b_hh)
    return tanh(both) if kind == "tanh" else relu(both)


def lstm_cell(
    input: Any, hidden: Any, cell: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[Any, Any]:
    """The hidden and the cell state behind a step."""
    i, f, g, o = chunk(linear(input, w_ih, b_ih) + linear(hidden, w_hh, b_hh), 4, 1)
    cell = sigmoid(f) * cell + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(cell), cell


def gru_cell(
    input: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """The hidden state behind a step."""
    r, z, n = chunk(linear(input, w_ih, b_ih), 3, 1)
    hr, hz, hn = chunk(linear(hidden, w_hh, b_hh), 3, 1)
    n = tanh(n + sigmoid(r + hr) * hn)
    return n + sigmoid(z + hz) * (hidden - n)


def unrolled(
    input: Any, hidden: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any, cell: Any, stopped: Any,
    kind: str, reverse: bool, w_hr: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """A layer out of operations of single steps: the states of all steps, and the last cell's.

    The arguments are those of the operation `recurrent`; `w_hr` projects the states of an LSTM.
    """
    weights = w_ih, w_hh, b_ih, b_hh
    times = range(input.shape[0])
    states = []
    for t in reversed(times) if reverse else times:
        before, before_cell = hidden, cell
        if kind == "lstm":
            hidden, cell = lstm_cell(input[t], hidden, cell, *weights)
            hidden = hidden if w_hr is None else linear(hidden, w_hr)
        elif kind == "gru":
            hidden = gru_cell(input[t], hidden, *weights)
        else:
            hidden = rnn_cell(kind, input[t], hidden, *weights)
        if stopped is not None:
            hidden = where(stopped[t], before, hidden)
            cell = cell if cell is None else where(stopped[t], before_cell, cell)
        states.append(hidden)
    return stack(states[::-1] if reverse else states), cell
