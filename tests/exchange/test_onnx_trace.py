"""The trace that an ONNX graph is made from; it does not need the package onnx."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import microtrain as mt
from microtrain.onnx.trace import Ref, trace


def test_a_trace_names_operations_their_inputs_and_layers():
    net = mt.nn.Sequential(mt.nn.Linear(4, 3), mt.nn.Softmax(1))
    with mt.no_grad():
        found = trace(net, (mt.ones(2, 4),))
    values = [(value.kind, value.name) for value in found.values[:3]]
    assert values == [("input", "0"), ("parameter", "0.weight"), ("parameter", "0.bias")]
    first, second = found.calls
    assert (first.operation, first.layer) == ("linear", "layer 0 (Linear)")
    assert first.inputs == {"input": Ref(0), "weight": Ref(1), "bias": Ref(2)}
    assert (second.operation, second.inputs) == ("softmax", {"x": Ref(first.result)})
    assert second.attributes == {"dim": 1}
    assert found.outputs == [second.result]


def test_threads_trace_at_once():
    """Which trace ends is not asked by comparing them: their arrays are neither equal nor not."""
    together = threading.Barrier(2)

    class Waits(mt.nn.Linear):
        def forward(self, x):
            together.wait(10)
            found = super().forward(x)
            together.wait(10)
            return found

    nets = [Waits(4, 3) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda net: trace(net, (mt.ones(2, 4),)), nets)
        assert [[call.operation for call in each.calls] for each in found] == [["linear"]] * 2


@pytest.mark.parametrize("look", [bool, float, lambda s: s.item(), lambda s: mt.equal(s, s)])
def test_a_trace_refuses_looks_at_what_depends_on_the_inputs(look):
    class Looks(mt.nn.Module):
        def forward(self, x):
            return x if look(x.sum()) else -x

    with pytest.raises(RuntimeError, match=r"cannot export Looks: .* looks at values"):
        trace(Looks(), (mt.ones(2),))
