"""A recurrent layer: what is done at one time step, and the loop over all of them.

LSTM: Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000. GRU: Cho et al.,
2014, with the reset gate behind the product, as in PyTorch. RNN: Elman, 1990.

One operation is one direction of one layer. The inputs of all steps are projected in one product;
the loop (`xp.loop`, one instruction of a captured step) does what depends on the step before. Its
gradient is a loop as well, backwards, with one product for each weight behind it. The derivative of
that is the derivative of the layer written step by step, in `cells`.

A sigmoid is taken as `(1 + tanh(z / 2)) / 2`, so that one call squashes all gates of a step: the
weights of such gates are halved first, which is exact.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ...autograd.differentiate import grad, messages_set_aside
from ...backend import XP
from ...numerics.sums import sum_rows
from ...tensor import TENSORS
from ..matrix.linear_algebra import linear
from ..pointwise.elementwise import relu, sigmoid, tanh, where
from ..registry import primitive
from ..shape.joining import cat, chunk, stack

# So many multiplications in one product OpenBLAS does without packing the matrices first.
SMALL = 1_000_000
# The gates that are sigmoids, by the number of their block of rows.
SIGMOIDS = {"lstm": (0, 1, 3), "gru": (0, 1), "tanh": (), "relu": ()}


def _blocks(xp, rows, size):
    """(samples, gates * size) as (gates, samples, size), a view."""
    samples, width = rows.shape
    return xp.transpose(xp.reshape(rows, (samples, width // size, size)), (1, 0, 2))


# One step ----------------------------------------------------------------------------------------
#
# Gates are (gates, samples, size): what is done to one gate is done along memory. The products of
# the gradient want rows (samples, gates * size), so what goes into these is copied once.


def _step(xp, parts, fixed):
    """The states behind a step from those before it; `work` is W h, `gates` is W x."""
    gates, before, after, cell, new_cell, kept, stopped = parts
    kind, weight, bias, n_bias, work = fixed
    xp.matmul(before, weight, out=work)
    if bias is not None:
        xp.add(gates, bias, out=gates)
    if kind == "gru":
        if n_bias is None:
            xp.copyto(kept, work[2])
        else:
            xp.add(work[2], n_bias, out=kept)
        _gru(xp, gates, work, before, kept, after)
    else:
        xp.add(gates, work, out=gates)
        if kind == "lstm":
            _lstm(xp, gates, cell, new_cell, kept, after)
        elif kind == "tanh":
            xp.tanh(gates[0], out=after)
        else:
            xp.maximum(gates[0], 0.0, out=after)
    if stopped is not None:
        xp.copyto(after, before, where=stopped)
        if cell is not None:
            xp.copyto(new_cell, cell, where=stopped)


def _squash(xp, gate):
    """Of a tanh of half an argument the sigmoid of it."""
    xp.multiply(gate, 0.5, out=gate)
    xp.add(gate, 0.5, out=gate)


def _lstm(xp, gates, cell, new_cell, kept, after):
    xp.tanh(gates, out=gates)
    i, f, g, o = gates[0], gates[1], gates[2], gates[3]
    for gate in (i, f, o):
        _squash(xp, gate)
    xp.multiply(f, cell, out=new_cell)
    xp.multiply(i, g, out=kept)
    xp.add(new_cell, kept, out=new_cell)
    xp.tanh(new_cell, out=kept)
    xp.multiply(o, kept, out=after)


def _gru(xp, gates, work, before, kept, after):
    both, r, z, n = gates[:2], gates[0], gates[1], gates[2]
    xp.add(both, work[:2], out=both)
    xp.tanh(both, out=both)
    _squash(xp, r)
    _squash(xp, z)
    xp.multiply(r, kept, out=after)
    xp.add(n, after, out=n)
    xp.tanh(n, out=n)
    xp.subtract(before, n, out=after)
    xp.multiply(after, z, out=after)
    xp.add(after, n, out=after)


# Its gradient ------------------------------------------------------------------------------------


def _step_back(xp, parts, fixed):
    """The gradients of W x (`into`) and W h (`through`) at a step, and of the states before it.

    `carried` and `cells` are the gradients of the states behind the step, then of those before it.
    """
    g, into, through, rows, gates, before, after, cell, kept, stopped = parts
    kind, weight, carried, cells, held, held_cells, d, dh, a = fixed
    xp.add(carried, g, out=dh)
    if stopped is not None:
        _hold(xp, dh, held, stopped)
        if cells is not None:
            _hold(xp, cells, held_cells, stopped)
    if kind == "lstm":
        _lstm_back(xp, dh, cells, d, gates, cell, kept, a)
    elif kind == "gru":
        _gru_back(xp, dh, d, gates, before, kept, a)
        xp.copyto(through[0], d[0])
        xp.copyto(through[1], d[1])
        xp.multiply(d[2], gates[0], out=through[2])
    elif kind == "tanh":
        xp.copyto(d[0], dh)
        _tanh_back(xp, d[0], after, a)
    else:
        xp.greater(after, 0.0, out=a)
        xp.multiply(a, dh, out=d[0])
    for gate in range(d.shape[0]):
        xp.copyto(into[gate], d[gate])
    half = len(rows) // 2
    if SMALL < len(rows) * weight.size <= 2 * SMALL:
        xp.matmul(rows[:half], weight, out=carried[:half])
        xp.matmul(rows[half:], weight, out=carried[half:])
    else:
        xp.matmul(rows, weight, out=carried)
    if kind == "gru":
        xp.multiply(dh, gates[1], out=a)
        xp.add(carried, a, out=carried)
    if stopped is not None:
        xp.add(carried, held, out=carried)
        if cells is not None:
            xp.add(cells, held_cells, out=cells)


def _hold(xp, gradient, held, stopped):
    """Move the rows that are `stopped` from `gradient` to `held`: their state is that before."""
    xp.copyto(held, 0.0)
    xp.copyto(held, gradient, where=stopped)
    xp.copyto(gradient, 0.0, where=stopped)


def _sigmoid_back(xp, gradient, gate, a):
    xp.subtract(1.0, gate, out=a)
    xp.multiply(a, gate, out=a)
    xp.multiply(gradient, a, out=gradient)


def _tanh_back(xp, gradient, gate, a):
    xp.multiply(gate, gate, out=a)
    xp.subtract(1.0, a, out=a)
    xp.multiply(gradient, a, out=gradient)


def _lstm_back(xp, dh, cells, d, gates, cell, kept, a):
    i, f, g, o = gates[0], gates[1], gates[2], gates[3]
    di, df, dg, do = d[0], d[1], d[2], d[3]
    xp.multiply(dh, o, out=do)
    _tanh_back(xp, do, kept, a)
    xp.add(cells, do, out=cells)
    xp.multiply(dh, kept, out=do)
    _sigmoid_back(xp, do, o, a)
    xp.multiply(cells, g, out=di)
    _sigmoid_back(xp, di, i, a)
    xp.multiply(cells, cell, out=df)
    _sigmoid_back(xp, df, f, a)
    xp.multiply(cells, i, out=dg)
    _tanh_back(xp, dg, g, a)
    xp.multiply(cells, f, out=cells)


def _gru_back(xp, dh, d, gates, before, kept, a):
    r, z, n = gates[0], gates[1], gates[2]
    dr, dz, dn = d[0], d[1], d[2]
    xp.subtract(before, n, out=dz)
    xp.multiply(dz, dh, out=dz)
    _sigmoid_back(xp, dz, z, a)
    xp.subtract(1.0, z, out=dn)
    xp.multiply(dn, dh, out=dn)
    _tanh_back(xp, dn, n, a)
    xp.multiply(dn, kept, out=dr)
    _sigmoid_back(xp, dr, r, a)


# All steps ---------------------------------------------------------------------------------------


def _forwards(xp, array, reverse):
    """`array`, whose first dimension is time, in the order of the loop."""
    if array is None or not reverse:
        return array
    return xp.getitem(array, slice(None, None, -1))


def _prepared(xp, weight, kind, size):
    """A weight or bias, transposed, with the rows of sigmoids halved; in memory of its own."""
    turned = xp.copy(xp.transpose(weight, tuple(reversed(range(len(weight.shape))))))
    for gate in SIGMOIDS[kind]:
        part = xp.getitem(turned, (..., slice(gate * size, (gate + 1) * size)))
        xp.multiply(part, 0.5, out=part)
    return turned


def _biases(xp, b_ih, b_hh, kind, size):
    """What is added to all gates, and what is added to W h where a reset gate comes between."""
    if b_ih is None:
        return None, None
    count = b_ih.shape[0] // size
    if kind != "gru":
        return xp.reshape(_prepared(xp, xp.add(b_ih, b_hh), kind, size), (count, 1, size)), None
    whole, other = _prepared(xp, b_ih, kind, size), _prepared(xp, b_hh, kind, size)
    gates = xp.getitem(whole, slice(0, 2 * size))
    xp.add(gates, xp.getitem(other, slice(0, 2 * size)), out=gates)
    return xp.reshape(whole, (count, 1, size)), xp.getitem(other, slice(2 * size, None))


def _projected(xp, rows, w_ih, kind, size, steps, samples):
    """W x of all steps, (gates, steps, samples, size), in one product for each gate."""
    blocks = _blocks(xp, _prepared(xp, w_ih, kind, size), size)
    gates = xp.empty((blocks.shape[0], steps, samples, size), rows.dtype)
    xp.matmul(rows, blocks, out=xp.reshape(gates, (blocks.shape[0], steps * samples, size)))
    return gates


def _recurrent(
    xp, input, hidden, w_ih, w_hh, b_ih=None, b_hh=None, cell=None, stopped=None, *, kind="lstm",
    reverse=False,
):  # fmt: skip
    """The states of one layer in one direction.

    Args:
        input: (steps, samples, features).
        hidden, cell: the states to begin with, (samples, size); `cell` of an LSTM.
        w_ih, w_hh, b_ih, b_hh: as the layer's; `b_ih` and `b_hh` both or neither.
        stopped: booleans (steps, samples, 1), True where a sample's state stays as it was.
        kind: "lstm", "gru", "tanh" or "relu".
        reverse: whether the loop begins at the last step.

    Returns (steps + 2, samples, size): the hidden state of every step between two further rows. In
    the order of the loop the first is `hidden`, the last the last cell state of an LSTM, else 0.
    """
    (steps, samples, features), size, width = input.shape, hidden.shape[1], w_ih.shape[0]
    dtype = input.dtype
    states = xp.empty((steps + 2, samples, size), dtype)
    given = xp.reshape(input, (steps * samples, features))
    gates = _projected(xp, given, w_ih, kind, size, steps, samples)
    gates = xp.transpose(gates, (1, 0, 2, 3))
    inner = cells = old = new = None
    if kind in ("lstm", "gru"):
        inner = xp.empty((steps, samples, size), dtype)
    line = _forwards(xp, states, reverse)
    xp.copyto(xp.getitem(line, 0), hidden)
    before, after = xp.getitem(line, slice(0, steps)), xp.getitem(line, slice(1, steps + 1))
    if kind == "lstm":
        cells = xp.empty((steps + 1, samples, size), dtype)
        of_cells = _forwards(xp, cells, reverse)
        xp.copyto(xp.getitem(of_cells, 0), cell)
        old, new = xp.getitem(of_cells, slice(0, steps)), xp.getitem(of_cells, slice(1, None))
    work = xp.empty((width // size, samples, size), dtype)
    weight = xp.copy(_blocks(xp, _prepared(xp, w_hh, kind, size), size))
    biases = _biases(xp, b_ih, b_hh, kind, size)
    gates_in_order, kept, stopped = (_forwards(xp, a, reverse) for a in (gates, inner, stopped))
    moving = gates_in_order, before, after, old, new, kept, stopped
    fixed = kind, weight, *biases, work
    out = gates, states, work, *(a for a in (cells, inner) if a is not None)
    xp.loop(_step, moving, fixed, out=out, scratch=(work,))
    last = xp.getitem(line, steps + 1)
    xp.copyto(last, 0.0 if cells is None else xp.getitem(of_cells, steps))
    return states, {"rows": given, "gates": gates, "cells": cells, "inner": inner}


def _loop_back(xp, g, result, w_hh, stopped, kind, reverse, kept):
    """The gradients of W x and W h at all steps, and of the states to begin with."""
    (steps, count, samples, size), dtype, backwards = kept["gates"].shape, g.dtype, not reverse
    whole, one = (steps * samples, count * size), (samples, size)
    into = xp.empty(whole, dtype)
    through = xp.empty(whole, dtype) if kind == "gru" else into
    scratch = [xp.empty((count, *one), dtype), xp.empty(one, dtype), xp.empty(one, dtype)]
    carried, cells, held = xp.zeros(one, dtype), None, list[Any]((None, None))
    g = _forwards(xp, g, backwards)
    if kind == "lstm":
        cells = xp.copy(xp.getitem(g, 0))
    if stopped is not None:
        held = [xp.empty(one, dtype), None if cells is None else xp.empty(one, dtype)]
    gradients = [
        xp.transpose(xp.reshape(array, (steps, samples, count, size)), (0, 2, 1, 3))
        for array in (into, through)
    ]
    rows = xp.reshape(through, (steps, samples, count * size))
    states = _forwards(xp, result, backwards)
    old = _forwards(xp, kept["cells"], backwards)
    moving = [xp.getitem(g, slice(1, steps + 1))]
    moving += [_forwards(xp, a, backwards) for a in (*gradients, rows, kept["gates"])]
    moving += [xp.getitem(states, slice(2, None)), xp.getitem(states, slice(1, steps + 1))]
    moving += [None if old is None else xp.getitem(old, slice(1, None))]
    moving += [_forwards(xp, a, backwards) for a in (kept["inner"], stopped)]
    fixed = kind, w_hh, carried, cells, *held, *scratch
    scratch += [a for a in held if a is not None]
    written = [into, through, carried, *scratch] + ([] if cells is None else [cells])
    xp.loop(_step_back, tuple(moving), fixed, out=tuple(written), scratch=tuple(scratch))
    first = xp.add(carried, xp.getitem(g, steps + 1))
    return into, through, first, cells


# Gradient rules ----------------------------------------------------------------------------------

NAMES = ("input", "hidden", "w_ih", "w_hh", "b_ih", "b_hh", "cell")


def _gradient(
    name, g, result, stopped, kind, reverse, kept, input, hidden, w_ih, w_hh, b_ih, b_hh, cell
):  # fmt: skip
    """The gradient of the input `name`.

    The first of the rules that a pass calls runs the loop, and every rule takes what that left.
    """
    if type(g) in TENSORS:
        inputs = dict(zip(NAMES, (input, hidden, w_ih, w_hh, b_ih, b_hh, cell), strict=True))
        states, last = unrolled(**inputs, stopped=stopped, kind=kind, reverse=reverse)
        rows = [hidden[None], states, (states[0] * 0 if last is None else last)[None]]
        whole = cat(rows[::-1] if reverse else rows)
        with messages_set_aside():
            return grad(whole, [inputs[name]], g, create_graph=True)[0]
    xp = XP[type(g)]
    memo = kept.setdefault("gradients", {})
    if name not in memo:
        found = _loop_back(xp, g, result, w_hh, stopped, kind, reverse, kept)
        memo.update(dict.fromkeys(NAMES, found))
    into, through, g_hidden, g_cell = memo.pop(name)
    if name in ("hidden", "cell"):
        return g_hidden if name == "hidden" else g_cell
    rows = through if name in ("w_hh", "b_hh") else into
    if name == "input":
        return xp.reshape(xp.matmul(rows, w_ih), input.shape)
    if name in ("b_ih", "b_hh"):
        return sum_rows(xp, rows)
    given = kept["rows"]
    if name == "w_hh":  # in time, not in the order of the loop
        given = xp.getitem(result, slice(2, None) if reverse else slice(0, input.shape[0]))
        given = xp.reshape(given, (rows.shape[0], given.shape[2]))
    # The small matrix on the left: OpenBLAS is up to a quarter slower the other way round.
    return xp.transpose(xp.matmul(xp.transpose(given, (1, 0)), rows), (1, 0))


_RULES: dict[str, Any] = {name: partial(_gradient, name) for name in NAMES}
recurrent = primitive(
    "recurrent",
    _recurrent,
    extras=("kept",),
    recompute={"kept": lambda: None},  # not for higher orders
    **_RULES,
)


# One step as a formula, and a layer step by step --------------------------------------------------


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
