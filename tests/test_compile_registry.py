"""Every operation of the registry inside a captured step: value and gradients, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from samples import SAMPLES, Sample

import microtrain as mt
from microtrain.errors import CaptureError
from microtrain.ops import REGISTRY
from microtrain.ops.registry import Operation
from microtrain.tensor import TENSORS, wrap

# What they return has a shape that depends on values.
REFUSED = {"nonzero"}


def has_arrays(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(has_arrays, value))
    return isinstance(value, np.ndarray)


CASES = [
    pytest.param(name, sample, id=f"{name}-{number}-{sample}")
    for name, samples in SAMPLES.items()
    for number, sample in enumerate(samples)
    if not any(map(has_arrays, sample.attrs.values()))  # arrays of the call itself, not arguments
]


def wants_grad(name: str, number: int, array: Any) -> bool:
    op = REGISTRY[name]
    ruled = not isinstance(op, Operation) or op.inputs[number] in op.rules
    return ruled and isinstance(array, np.ndarray) and array.dtype.kind == "f"


def tensors(name: str, arrays: Any, factor: float) -> list[Any]:
    """The inputs, floats scaled a little so that calls differ."""
    found = []
    for number, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            found.append(array)
            continue
        value = array * factor if array.dtype.kind == "f" else array
        tensor = wrap(np.array(value, array.dtype, order="C"))
        found.append(tensor.requires_grad_() if wants_grad(name, number, array) else tensor)
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_a_replay_has_the_bits_of_the_eager_call(name: str, sample: Sample) -> None:
    op = REGISTRY[name]

    def step(*inputs: Any) -> Any:
        arguments = inputs if isinstance(op, Operation) else (inputs,)
        result = op.apply(*arguments, **sample.attrs)
        leaves = [x for x in inputs if type(x) in TENSORS and x.requires_grad]
        if not result.requires_grad:
            return [result]
        weight = mt.ones_like(result.detach()) * 0.5
        return [result.detach(), *mt.autograd.grad(result, leaves, weight)]

    compiled = mt.compile(step)
    for factor in (1.0, 1.001, 0.999, 1.002):
        try:
            found = compiled(*tensors(name, sample.arrays, factor))
        except CaptureError:
            assert name in REFUSED
            return
        expected = step(*tensors(name, sample.arrays, factor))
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert len(compiled.programs) == 1
    assert name not in REFUSED


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_operands_may_be_state(name: str, sample: Sample) -> None:
    """Parameters and buffers are plain arrays, whose values change in place between calls."""
    op, module = REGISTRY[name], mt.nn.Module()
    inputs = tensors(name, sample.arrays, 1.0)
    for number, tensor in enumerate(inputs):
        if type(tensor) in TENSORS:
            tensor = mt.nn.Parameter(tensor) if tensor.requires_grad else tensor
            inputs[number] = tensor
            setattr(module, f"input{number}", tensor)
    params = list(module.parameters())
    optimizer = mt.optim.SGD(params, lr=0.1) if params else None

    def step() -> Any:
        arguments = inputs if isinstance(op, Operation) else (inputs,)
        result = op.apply(*arguments, **sample.attrs)
        if result.requires_grad:
            optimizer.zero_grad()
            result.backward(mt.ones_like(result.detach()) * 0.5)
        return [result.detach(), *(p.grad for p in params if p.grad is not None)]

    compiled = mt.compile(step)
    for factor in (1.0, 1.0, 1.0, 1.001, 0.999):  # what is kept of the first calls would show
        for target, value in zip(inputs, tensors(name, sample.arrays, factor), strict=True):
            if type(target) in TENSORS:
                target.data.copy_(value.detach())
        try:
            found = [t.clone() for t in compiled()]
        except CaptureError:
            assert name in REFUSED
            return
        for a, b in zip(found, step(), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.detach().numpy())
    assert len(compiled.programs) == 1
