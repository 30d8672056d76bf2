"""Single steps of recurrent layers, for loops of your own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..creation import empty, zeros
from ..errors import need
from ..ops.arguments import want_shape
from ..ops.nn.cells import gru_cell, lstm_cell, rnn_cell
from ..tensor import Tensor
from . import init
from .module import Module
from .parameter import Parameter

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "RNNCellBase"]


class RNNCellBase(Module):
    """What RNNCell, LSTMCell and GRUCell have in common; see there."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = num_chunks * hidden_size
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

    def extra_repr(self) -> str:
        """The arguments that are not the defaults."""
        bias = "" if self.bias is True else f", bias={self.bias}"
        kind = getattr(self, "nonlinearity", "tanh")
        return f"{self.input_size}, {self.hidden_size}{bias}" + (
            "" if kind == "tanh" else f", nonlinearity={kind}"
        )

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
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def _step(self, *given: Any) -> Any:
        known = self.nonlinearity in ("tanh", "relu")
        need(known, "RNNCell", "Unknown nonlinearity", self.nonlinearity)
        return rnn_cell(self.nonlinearity, *given)


class GRUCell(_CellOfOneState):
    """One step of a GRU; arguments as of RNNCell, formulas as of GRU."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    _step = staticmethod(gru_cell)


class LSTMCell(RNNCellBase):
    """One step of an LSTM; arguments as of RNNCell, formulas as of LSTM."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """As of RNNCell, for pairs of a hidden and a cell state."""
        x, hidden, cell = self._given(input, *((None, None) if hx is None else hx))
        hidden, cell = lstm_cell(x, hidden, cell, *self._weights())
        return (hidden, cell) if input.ndim == 2 else (hidden.squeeze(0), cell.squeeze(0))
