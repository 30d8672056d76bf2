"""The models that a configuration can name; sizes it leaves out come from the data."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from ...backend import to_host
from ...nn import Embedding, Linear, Module, ModuleList, ReLU, Sequential, Sigmoid, Tanh, init
from ...ops import cat
from ...tensor import Tensor

if TYPE_CHECKING:
    from ...data import Prepared

Count = Annotated[int, Ge(1)]
_ACTIVATIONS: dict[str, type[Module]] = {"relu": ReLU, "tanh": Tanh, "sigmoid": Sigmoid}


def linear_regression(in_features: Count, out_features: Count = 1, bias: bool = True) -> Linear:
    """`y = x @ weight.T + bias`: (n, in_features) to (n, out_features).

    Args:
        in_features: columns of the input.
        out_features: columns of the output.
        bias: whether to add a bias; without it the line goes through 0.
    """
    return Linear(in_features, out_features, bias)


def logistic_regression(in_features: Count, classes: Count) -> Linear:
    """One linear score a class, for `loss: cross_entropy`: (n, in_features) to (n, classes).

    Args:
        in_features: columns of the input.
        classes: number of classes.
    """
    return Linear(in_features, classes)


def mlp(
    in_features: Annotated[int, Ge(0)],
    hidden: list[Count],
    out_features: Count,
    activation: Literal["relu", "tanh", "sigmoid"] = "relu",
    categories: list[Count] | None = None,
    embedding: Count | None = None,
) -> Sequential | WithEmbeddings:
    """Linear layers with an activation between: (n, in_features) to (n, out_features).

    Args:
        in_features: columns of the input.
        hidden: the width of each hidden layer, such as [64, 64].
        out_features: columns of the output, the number of classes in a classification.
        activation: between the layers.
        categories: the codes of each column of a table that is encoded as an embedding; null: none.
        embedding: numbers that stand for one such category; null: half as many as there are
            categories, at most 50.
    """
    if categories:
        widths = [embedding or min(50, (count + 1) // 2) for count in categories]
        return WithEmbeddings(
            categories, widths, mlp(in_features + sum(widths), hidden, out_features, activation)
        )
    widths = [in_features, *hidden, out_features]
    layers: list[Module] = []
    for before, after in pairwise(widths):
        layers += [Linear(before, after), _ACTIVATIONS[activation]()]
    return Sequential(*layers[:-1])


class WithEmbeddings(Module):
    """Numbers of shape (n, features), if any, and codes (n, columns): the columns are looked up.

    Code 0, an unknown category, stays at zeros.

    Args:
        categories: the codes of each column.
        widths: numbers that a code of each column becomes.
        network: takes the numbers and all of these, side by side.
    """

    def __init__(self, categories: list[int], widths: list[int], network: Module) -> None:
        super().__init__()
        pairs = zip(categories, widths, strict=True)
        self.embeddings = ModuleList([Embedding(*pair, padding_idx=0) for pair in pairs])
        self.network = network

    def forward(self, *inputs: Tensor) -> Tensor:
        """Numbers and codes to (n, out_features)."""
        *numbers, codes = inputs
        looked_up = [table(codes[:, i]) for i, table in enumerate(self.embeddings)]
        return self.network(cat([*numbers, *looked_up], 1))  # type: ignore[no-any-return]


# The network of PyTorch's tutorial.
class TwoLayerReLU(Module):
    """`relu(x @ w1) @ w2` with weights from N(0, 1): (n, in_features) to (n, out_features).

    Args:
        in_features: columns of the input.
        hidden: width of the hidden layer.
        out_features: columns of the output.
    """

    def __init__(self, in_features: Count, hidden: Count, out_features: Count) -> None:
        super().__init__()
        self.linear1 = Linear(in_features, hidden, False)
        self.linear2 = Linear(hidden, out_features, False)
        init.normal_(self.linear1.weight)
        init.normal_(self.linear2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(n, in_features) to (n, out_features)."""
        return self.linear2(self.linear1(x).relu())  # type: ignore[no-any-return]


def learned_line(model: Any, data: Prepared) -> tuple[list[float], float] | None:
    """Weights and bias of a linear model with one output, in the units of the data; else None."""
    if not isinstance(model, Linear) or model.out_features != 1:
        return None
    mean, scale = data.preprocessing.mean, data.preprocessing.scale
    weight = to_host(model.weight._array).astype(np.float64)[0] / scale
    bias = 0.0 if model.bias is None else float(to_host(model.bias._array)[0])
    return weight.tolist(), bias - float((weight * mean).sum())
