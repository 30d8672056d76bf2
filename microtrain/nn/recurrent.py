"""Recurrent layers: RNN (Elman, 1990), LSTM (Hochreiter and Schmidhuber, 1997), GRU (Cho et al.,

2014), in one or both directions, one above the other.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partialmethod
from typing import Any

from ..common.missing_names import namespace
from ..creation import empty, zeros
from ..errors import need
from ..ops.arguments import want_shape
from ..ops.nn.dropout import check_probability
from ..ops.nn.dropout import dropout as drop
from ..ops.nn.recurrent import GATES, gru_cell, lstm_cell, recurrent, rnn_cell, unrolled
from ..ops.shape.joining import cat, stack
from ..tensor import Tensor
from . import init
from .module import Module
from .parameter import Parameter
from .utils.rnn import PackedSequence, laid_out, packed_again


class RNNBase(Module):
    """What RNN, LSTM and GRU have in common; see there.

    Attributes:
        mode: which of them it is, a key of `MODES`.
    """

    _shown = ("*input_size", "*hidden_size")
    _unless: Mapping[str, Any] = {
        "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0,
        "bidirectional": False,
    }  # fmt: skip

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        place: Any = {"device": device, "dtype": dtype}
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._check()
        self.dropout = float(dropout)
        rows, outputs = GATES[MODES[self.mode]] * hidden_size, proj_size or hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, input_size), "weight_hh": (rows, outputs)
        }  # fmt: skip
        if bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if proj_size:
            shapes["weight_hr"] = (proj_size, hidden_size)
        self._kinds = tuple(shapes)
        for layer in range(num_layers):
            for suffix in self._suffixes(layer):
                for kind, shape in shapes.items():
                    setattr(self, kind + suffix, Parameter(empty(*shape, **place)))
            shapes["weight_ih"] = rows, outputs * (2 if bidirectional else 1)
        self.reset_parameters()

    def _check(self) -> None:
        name, number = type(self).__name__, type(self.dropout) in (int, float)
        need(self.mode in MODES, name, "Unrecognized RNN mode", self.mode, error=ValueError)
        for what in ("bias", "batch_first"):
            value, text = getattr(self, what), f"{what} should be of type bool"
            need(isinstance(value, bool), name, text, type(value), error=TypeError)
        for what in ("input_size", "hidden_size", "num_layers"):
            value, text = getattr(self, what), f"{what} should be of type int"
            need(isinstance(value, int), name, text, type(value), error=TypeError)
            need(value > 0, name, f"{what} must be greater than zero", value, error=ValueError)
        need(number, name, "dropout should be a number", self.dropout, error=ValueError)
        check_probability(name, self.dropout)
        if self.dropout and self.num_layers == 1:
            text = f"{name}: dropout lies between layers, so dropout={self.dropout} needs more than"
            warnings.warn(f"{text} num_layers=1", stacklevel=3)
        fits, text = 0 <= self.proj_size < self.hidden_size, "must be smaller than hidden_size"
        need(fits, name, f"proj_size {text}, or zero", self.proj_size, error=ValueError)
        fits = not self.proj_size or self.mode == "LSTM"
        need(fits, name, "proj_size is for an LSTM alone", self.proj_size, error=ValueError)

    def _suffixes(self, layer: int) -> list[str]:
        """The ends of the parameters' names, one for each direction."""
        return [f"_l{layer}", *([f"_l{layer}_reverse"] if self.bidirectional else [])]

    def reset_parameters(self) -> None:
        """Draw all parameters anew, uniform in +-1/sqrt(hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: what PyTorch does for cuDNN."""

    def _run(self, input: Any, *states: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """The output, and the last states as (layers * directions, batch, size).

        Batches of sequences of several lengths stay padded inside, in the order in which they were
        packed, so that a sample's mask of dropout does not depend on the lengths of others.
        """
        packed = isinstance(input, PackedSequence)
        x, stopped = laid_out(input) if packed else (input, None)
        batched = packed or x.ndim == 3
        name = type(self).__name__
        known = batched or x.ndim == 2
        need(known, name, "Expected input to be 2D or 3D, got {} instead", x, error=ValueError)
        for state in states:
            fits = state is None or state.ndim == (3 if batched else 2)
            need(fits, name, "For batched input states are 3-D, for unbatched 2-D", state)
        if not batched:
            x = x.unsqueeze(1)
            states = tuple(None if state is None else state.unsqueeze(1) for state in states)
        elif self.batch_first and not packed:
            x = x.transpose(0, 1)
        self._check_input(x)
        sizes = (self.proj_size or self.hidden_size, self.hidden_size)
        begin = [self._state(n, state, x, sizes[n]) for n, state in enumerate(states)]
        y, last = self._layers(x, begin, stopped)
        if packed:
            return packed_again(y, input), last
        if not batched:
            return y.squeeze(1), tuple(state.squeeze(1) for state in last)
        return (y.transpose(0, 1) if self.batch_first else y), last

    def _check_input(self, x: Tensor) -> None:
        weight = getattr(self, "weight_ih_l0")  # noqa: B009
        name, text = type(self).__name__, "RNN input dtype ({}) does not match weight dtype ({})"
        need(x.dtype == weight.dtype, name, text, x.dtype, weight.dtype, error=ValueError)
        text = "input.size(-1) must be equal to input_size. Expected {}, got {}"
        need(x.shape[-1] == self.input_size, name, text, self.input_size, x)
        need(x.shape[0], name, "Expected sequence length to be larger than 0 in RNN")

    def _state(self, number: int, given: Any, x: Tensor, size: int) -> Tensor:
        """The states to begin with, zeros where none are given."""
        shape = self.num_layers * (2 if self.bidirectional else 1), x.shape[1], size
        if given is None:
            return zeros(shape, dtype=x.dtype, device=x.device)
        name, what = type(self).__name__, f"hidden[{number}]" if self.mode == "LSTM" else "hidden"
        want_shape(name, what, given, shape)
        text = "input and hidden states must have one dtype"
        need(given.dtype == x.dtype, name, text, x.dtype, given.dtype)
        return given

    def _layers(
        self, x: Tensor, begin: list[Tensor], stopped: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All layers over (steps, samples, size)."""
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer and self.training and self.dropout:
                # Samples first, by which the masks of dropout are drawn.
                x = drop(x.transpose(0, 1), self.dropout).transpose(0, 1)
            outputs = []
            for reverse, suffix in enumerate(self._suffixes(layer)):
                states = [state[len(last)] for state in begin]
                y, *ends = self._direction(x, states, suffix, stopped, bool(reverse))
                outputs.append(y)
                last.append(tuple(ends))
            x = outputs[0] if len(outputs) == 1 else cat(outputs, -1)
        return x, tuple(stack(each) for each in zip(*last, strict=True))

    def _direction(
        self, x: Tensor, states: list[Tensor], suffix: str, stopped: Any, reverse: bool
    ) -> tuple[Tensor, ...]:
        """One layer in one direction: its outputs, and its last states."""
        given = {kind: getattr(self, kind + suffix) for kind in self._kinds}
        weights = [given.get(f"{kind}_{of}") for kind in ("weight", "bias") for of in ("ih", "hh")]
        hidden, cell = states if self.mode == "LSTM" else (*states, None)
        arguments = [x, hidden, *weights, cell, stopped, MODES[self.mode], reverse]
        if self.proj_size:
            y, last_cell = unrolled(*(*arguments, given["weight_hr"]))
        else:
            found = recurrent(*arguments)
            y, last_cell = found[1:-1], found[0 if reverse else -1]
        ends = y[0 if reverse else -1], last_cell
        return y, *ends[: len(states)]


MODES = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "tanh", "RNN_RELU": "relu"}


class _OfOneState(RNNBase):
    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """Run over `input` (steps, batch, input_size), or in the order of `batch_first`.

        Args:
            input: a sequence without a batch as well, or a PackedSequence.
            hx: the states to begin with, (layers * directions, batch, hidden_size), without batch
                where the input has none; None for zeros.

        Returns the outputs of the last layer at every step, and the last states of every layer.
        """
        output, (hidden,) = self._run(input, hx)
        return output, hidden


class RNN(_OfOneState):
    """`h = tanh(W_ih x + b_ih + W_hh h + b_hh)` over all steps of sequences.

    Args:
        input_size: the size of an input.
        hidden_size: the size of the state.
        num_layers: layers, each over the outputs of the one before it.
        nonlinearity: "tanh" or "relu".
        bias: False for products without added vectors.
        batch_first: whether inputs and outputs are (batch, steps, size), not (steps, batch, size).
        dropout: the probability of an output of any layer but the last to become 0 in training.
        bidirectional: whether every layer runs in both directions and gives both outputs.
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Parameters are named as in PyTorch (`weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`,
    `weight_ih_l0_reverse` ...) and start uniform in +-1/sqrt(hidden_size).

    Raises ValueError for sizes below 1, an unknown nonlinearity and a `dropout` that is no
    probability, TypeError for arguments of a wrong kind.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
        bidirectional: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        text = "Unknown nonlinearity. Select from 'tanh' or 'relu'"
        need(nonlinearity in ("tanh", "relu"), "RNN", text, nonlinearity, error=ValueError)
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first,
            dropout, bidirectional, device=device, dtype=dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


class GRU(_OfOneState):
    """Gated recurrent units: a reset gate, an update gate and a new state at every step.

    Arguments, parameters and errors are those of RNN, without `nonlinearity`. As in PyTorch the
    reset gate stands behind the product with the state: `n = tanh(W_in x + b_in + r (W_hn h +
    b_hn))`, `h = n + z (h - n)`. The rows of the weights are r, z and n.
    """

    __init__ = partialmethod(RNNBase.__init__, "GRU")


class LSTM(RNNBase):
    """Long short-term memory: a cell state that gates write to, forget and read.

    Arguments, parameters and errors are those of RNN, without `nonlinearity`. The rows of the
    weights are i, f, g and o: `c = sigmoid(f) c + sigmoid(i) tanh(g)`, `h = sigmoid(o) tanh(c)`.

    Args:
        proj_size: the size that outputs are projected to by `weight_hr_l0` ..., 0 for none. A layer
            with one runs as operations of single steps, several times slower.

    Example:
        >>> lstm = mt.nn.LSTM(3, 5, batch_first=True)
        >>> output, (h, c) = lstm(mt.randn(2, 7, 3))
        >>> output.shape, h.shape, c.shape
        ((2, 7, 5), (1, 2, 5), (1, 2, 5))
    """

    __init__ = partialmethod(RNNBase.__init__, "LSTM")

    def forward(
        self, input: Any, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Any, tuple[Tensor, Tensor]]:
        """As of RNN; `hx` and the last states are pairs: hidden states and cell states."""
        pair = hx is None or (type(hx) in (tuple, list) and len(hx) == 2)
        need(pair, "LSTM", "hx is a pair of Tensors, (h_0, c_0)", type(hx), error=TypeError)
        output, (hidden, cell) = self._run(input, *((None, None) if hx is None else hx))
        return output, (hidden, cell)


# Single steps, for loops of your own --------------------------------------------------------------


class RNNCellBase(Module):
    """What RNNCell, LSTMCell and GRUCell have in common; see there."""

    _gates = 1
    _shown = ("*input_size", "*hidden_size")
    _unless: Mapping[str, Any] = {"bias": True, "nonlinearity": "tanh"}

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = self._gates * hidden_size
        self.weight_ih = Parameter(empty(rows, input_size, **kind))
        self.weight_hh = Parameter(empty(rows, hidden_size, **kind))
        self.bias_ih = Parameter(empty(rows, **kind)) if bias else None
        self.bias_hh = Parameter(empty(rows, **kind)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew, uniform in +-1/sqrt(hidden_size)."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0.0
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def _weights(self) -> tuple[Any, ...]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh

    def _given(self, input: Tensor, *states: Tensor | None) -> tuple[Any, ...]:
        """Input and states, zeros where none are given, with a dimension of samples."""
        name = type(self).__name__
        text = "Expected input and hidden to be 1D or 2D, got {} instead"
        need(input.ndim in (1, 2), name, text, input, error=ValueError)
        batched = input.ndim == 2
        x = input if batched else input.unsqueeze(0)
        fits = x.shape[1] == self.input_size
        need(fits, name, f"expected input_size {self.input_size}", input)
        shape = x.shape[0], self.hidden_size
        found: list[Tensor] = [x]
        for state in states:
            if state is None:
                found.append(zeros(shape, dtype=x.dtype, device=x.device))
                continue
            need(state.ndim in (1, 2), name, text, state, error=ValueError)
            whole = state if batched else state.unsqueeze(0)
            want_shape(name, "a hidden state", whole, shape)
            found.append(whole)
        return tuple(found)


class _CellOfOneState(RNNCellBase):
    _step: Callable[..., Tensor]

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The state behind the step from `input` (batch, input_size) and the state before it.

        Both may be without a batch; no state is one of zeros. Raises ValueError and RuntimeError
        for shapes that do not fit.
        """
        x, hidden = self._given(input, hx)
        found = self._step(x, hidden, *self._weights())
        return found if input.ndim == 2 else found.squeeze(0)


class RNNCell(_CellOfOneState):
    """One step of an RNN: `h = tanh(W_ih x + b_ih + W_hh h + b_hh)`.

    Args:
        input_size: the size of an input.
        hidden_size: the size of the state.
        bias: False for products without added vectors.
        nonlinearity: "tanh" or "relu".
        device, dtype: of the parameters; None is the CPU, and the default float type.

    Raises, when it is called, RuntimeError for an unknown nonlinearity, as PyTorch does.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh",
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, device, dtype)
        self.nonlinearity = nonlinearity

    def _step(self, *given: Any) -> Any:
        known = self.nonlinearity in ("tanh", "relu")
        need(known, "RNNCell", "Unknown nonlinearity", self.nonlinearity)
        return rnn_cell(self.nonlinearity, *given)


class GRUCell(_CellOfOneState):
    """One step of a GRU; arguments as of RNNCell, formulas as of GRU."""

    _gates = 3
    _step = staticmethod(gru_cell)


class LSTMCell(RNNCellBase):
    """One step of an LSTM; arguments as of RNNCell, formulas as of LSTM."""

    _gates = 4

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As of RNNCell, for pairs of a hidden and a cell state."""
        x, hidden, cell = self._given(input, *((None, None) if hx is None else hx))
        hidden, cell = lstm_cell(x, hidden, cell, *self._weights())
        return (hidden, cell) if input.ndim == 2 else (hidden.squeeze(0), cell.squeeze(0))


namespace(globals())
