"""`explain` counts the products of a step, in whatever instructions they are written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from compilers import NATIVE

import microtrain as mt

nn, F = mt.nn, mt.nn.functional
EXECUTORS = ["numpy", pytest.param("native", marks=NATIVE)]


def flops(function: Callable[..., Any], *arguments: Any, executor: str) -> int:
    """Those of `function` of Tensors and of the gradients of its weights and arguments."""
    seed = mt.randn(*function(*arguments).shape)

    @mt.compile(executor=executor)
    def step(seed: Any, *arguments: Any) -> Any:
        if isinstance(function, nn.Module):
            function.zero_grad()
        given = [x.detach().requires_grad_() for x in arguments]
        result = function(*given)
        result.backward(seed)
        return result, [x.grad for x in given]  # what nobody reads is not computed

    while not step.programs:
        step(seed, *arguments)
    found = re.search(r"([\d,]+) flops in products", step.explain(measure=True))
    assert found
    return int(found[1].replace(",", ""))


# Of a convolution of 4 images of 9 x 9: channels, outputs, kernel, stride, groups.
CONVOLUTIONS = {
    "1x1": (8, 12, 1, 1, 1),
    "1x1, strided": (8, 12, 1, 2, 1),
    "3x3": (8, 12, 3, 1, 1),
    "3x3, many channels": (32, 64, 3, 1, 1),
    "3x3, one channel": (1, 16, 3, 1, 1),
    "3x3, one output": (16, 1, 3, 1, 1),
    "3x3, strided": (8, 12, 3, 2, 1),
    "5x5": (8, 12, 5, 1, 1),
    "grouped": (8, 12, 3, 1, 4),
    "grouped, strided": (8, 12, 3, 2, 4),
    "depthwise": (8, 8, 3, 1, 8),
    "depthwise, two a channel": (8, 16, 3, 1, 8),
    "depthwise, strided": (8, 8, 3, 2, 8),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, dims: int, executor: str) -> None:
    channels, outputs, kernel, stride, groups = CONVOLUTIONS[name]
    kind: Any = nn.Conv1d if dims == 1 else nn.Conv2d
    padding = kernel // 2
    layer = kind(channels, outputs, kernel, stride, padding, groups=groups, bias=False)
    places = ((9 - 1) // stride + 1) ** dims
    forward = 4 * outputs * places * channels // groups * kernel**dims
    x = mt.randn(4, channels, *[9] * dims)
    # As much for the weight and for the input as forward.
    assert flops(layer, x, executor=executor) == 2 * 3 * forward


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_transposed_convolution(executor: str) -> None:
    layer = nn.ConvTranspose2d(8, 12, 3, stride=2, bias=False)
    x = mt.randn(4, 8, 5, 5)
    assert flops(layer, x, executor=executor) == 2 * 3 * 4 * 8 * 12 * 5**2 * 3**2


EQUATIONS = {
    "ij,jk->ik": ((4, 5), (5, 6)),
    "ij,kj->ki": ((4, 5), (6, 5)),
    "bij,bjk->bik": ((3, 4, 5), (3, 5, 6)),
    "bij,kj->bik": ((3, 4, 5), (6, 5)),
    "bhid,bhjd->bhij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bhij,bjhd->bihd": ((2, 3, 4, 6), (2, 6, 3, 5)),
    "ij,j->i": ((4, 5), (5,)),
    "ij,ij->i": ((4, 5), (4, 5)),
    "ij,ij->": ((4, 5), (4, 5)),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str, executor: str) -> None:
    shapes, sizes = EQUATIONS[equation], dict[str, int]()
    for labels, shape in zip(equation.partition("->")[0].split(","), shapes, strict=True):
        sizes |= dict(zip(labels, shape, strict=True))

    def function(*tensors: Any) -> Any:
        return mt.einsum(equation, *tensors)

    found = flops(function, *(mt.randn(*shape) for shape in shapes), executor=executor)
    assert found == 2 * 3 * math.prod(sizes.values())


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool, executor: str) -> None:
    """The scores, and the values that they weigh."""
    q, k, v = (mt.randn(2, 3, 5, 8) for _ in range(3))

    def function(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    assert flops(function, q, k, v, executor=executor) == 2 * 3 * 2 * (2 * 3) * 5 * 5 * 8


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_layer_of_attention(executor: str) -> None:
    layer = nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    part = nn.ModuleDict({"layer": layer})
    part.forward = lambda x: layer(x, x, x, need_weights=False)[0]
    projections, products = 4 * (2 * 5) * 16 * 16, 2 * (2 * 4) * 5 * 5 * 4
    assert flops(part, mt.randn(2, 5, 16), executor=executor) == 2 * 3 * (projections + products)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind, gates", [("RNN", 1), ("LSTM", 4), ("GRU", 3)])
def test_a_recurrent_layer(kind: str, gates: int, executor: str) -> None:
    """Most of its products are in a loop over time, which is one instruction."""
    layer = getattr(nn, kind)(8, 6, bias=False)
    part = nn.ModuleDict({"layer": layer})
    part.forward = lambda x: layer(x)[0]
    assert flops(part, mt.randn(7, 3, 8), executor=executor) == 2 * 3 * 7 * 3 * gates * 6 * (8 + 6)
