"""What a graph keeps, and when it lets go of it: seen on the arrays themselves."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import microtrain as mt
import microtrain.optim.optimizer as optimizer_module
from microtrain.autograd import Function, grad

SIZE = 100_000  # elements: 800 kB, so that arrays stand out from everything else


@pytest.fixture(autouse=True)
def no_cyclic_collector() -> Iterator[None]:
    """Everything here has to go by reference counting alone."""
    gc.disable()
    yield
    gc.enable()


def leaf(n: int = 4) -> mt.Tensor:
    return mt.ones(n, dtype=mt.float64, requires_grad=True)


class Watched:
    """A chain of operations that each keep an array, and weak references to those arrays."""

    def __init__(self, x: mt.Tensor, steps: int = 6) -> None:
        self.arrays: list[weakref.ref[Any]] = []
        y = x
        for _ in range(steps):
            y = y.exp()  # keeps its result
            self.arrays.append(weakref.ref(y._array))
            y = y / 10
        self.loss = y.sum()

    def alive(self) -> list[bool]:
        return [one() is not None for one in self.arrays]


class Doubled(Function):
    """Keeps its input, its output and an array of its own."""

    @staticmethod
    def forward(ctx: Any, x: mt.Tensor) -> mt.Tensor:
        result = x * 2
        ctx.save_for_backward(x, result, x + 1)
        return result

    @staticmethod
    def backward(ctx: Any, g: mt.Tensor) -> mt.Tensor:
        assert len(ctx.saved_tensors) == 3
        return g * 2


def test_backward_frees_what_was_saved_while_it_runs() -> None:
    """When the gradient reaches the first operation, what the later ones kept is gone already."""
    x = leaf()
    early = x * 1
    seen: list[list[bool]] = []
    early.register_hook(lambda g: seen.append(chain.alive()))
    chain = Watched(early)
    assert chain.alive() == [True] * 6
    chain.loss.backward()
    # The node before the hook's is the oldest exp; its array is still being differentiated with.
    assert [alive[1:] for alive in seen] == [[False] * 5]
    assert chain.alive() == [False] * 6


@pytest.mark.parametrize("run", ["backward", "grad", "inputs"])
def test_without_retain_graph_nothing_saved_survives(run: str) -> None:
    x = leaf()
    chain = Watched(x)
    if run == "backward":
        chain.loss.backward()
    elif run == "grad":
        grad(chain.loss, x)
    else:
        chain.loss.backward(inputs=[x])
    assert chain.alive() == [False] * 6
    assert chain.loss.grad_fn is not None
    with pytest.raises(RuntimeError, match=r"second time .*retain_graph=True"):
        chain.loss.backward()


def test_retain_graph_keeps_what_was_saved_until_a_pass_without_it() -> None:
    x = leaf()
    chain = Watched(x)
    chain.loss.backward(retain_graph=True)
    grad(chain.loss, x, retain_graph=True)
    assert chain.alive() == [True] * 6
    chain.loss.backward()
    assert chain.alive() == [False] * 6


def test_a_pass_towards_one_input_leaves_the_others_what_they_need() -> None:
    x, y = leaf(), leaf()
    left, right = Watched(x), Watched(y)
    loss = left.loss + right.loss
    del left.loss, right.loss
    grad(loss, x)
    assert (left.alive(), right.alive()) == ([False] * 6, [True] * 6)
    grad(loss, y)
    assert right.alive() == [False] * 6


def test_a_function_frees_what_it_saved() -> None:
    y = leaf() * 1
    out = Doubled.apply(y)
    arrays = [weakref.ref(a._array if type(a) is mt.Tensor else a) for a, *_ in out.grad_fn._saved]
    loss = out.sum()
    del y, out
    assert all(one() is not None for one in arrays)
    loss.backward(retain_graph=True)
    assert all(one() is not None for one in arrays)
    loss.backward()
    assert all(one() is None for one in arrays)


def test_a_rule_keeps_only_what_it_reads() -> None:
    """Sums, additions and products with numbers keep nothing; a product keeps what it must."""
    constant = mt.ones(4, dtype=mt.float64)
    x = leaf()
    kept: list[weakref.ref[Any]] = []
    y = x
    for step in (lambda t: t + constant, lambda t: t * 2.0, lambda t: -t, lambda t: t * constant):
        y = step(y)
        kept.append(weakref.ref(y._array))
    loss = y.sum()
    del y
    assert [one() for one in kept] == [None] * 4
    loss.backward()
    assert x.grad.tolist() == [-2.0] * 4


def test_nothing_is_kept_where_nothing_is_recorded() -> None:
    x = leaf()
    with mt.no_grad():
        assert Watched(x).alive() == [False] * 6
    assert Watched(x.detach()).alive() == [False] * 6


@pytest.mark.parametrize("steps", [2, 20])
def test_the_peak_of_a_chain_without_saved_arrays_does_not_grow_with_it(steps: int) -> None:
    """Gradients on their way are dropped as soon as the next one is there."""
    x = leaf(SIZE)
    peak = traced(lambda: chain_of_sums(x, steps))
    assert peak < 3.5 * 8 * SIZE


def chain_of_sums(x: mt.Tensor, steps: int) -> None:
    y = x
    for _ in range(steps):
        y = y * 0.5
    y.sum().backward()


def test_the_peak_of_backward_is_no_higher_than_that_of_forward_and_a_few_arrays() -> None:
    """What forward saved is given back as backward goes: the two do not add up."""
    x, steps = leaf(SIZE), 20

    def run() -> None:
        y = x
        for _ in range(steps):
            y = y.tanh()
        y.sum().backward()

    peak = traced(run)
    assert steps * 8 * SIZE < peak < (steps + 3.5) * 8 * SIZE


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}],
    ids=["plain", "momentum", "all"],
)
def test_an_update_in_blocks_gives_the_same_bits(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for block in (10**9, 7, 1):
        monkeypatch.setattr(optimizer_module, "BLOCK", block)
        mt.manual_seed(0)
        first, *others = (mt.randn(n, requires_grad=True) for n in (10, 3, 1, 20))
        groups = [{"params": [first], "lr": 0.5}, {"params": others}]
        optimizer = mt.optim.SGD(groups, lr=0.1, **options)
        for step in range(3):
            optimizer.zero_grad()
            used = (first, *others) if step else others  # the first starts a step later
            sum((p**3).sum() for p in used).backward()
            optimizer.step()
        found.append([p.detach().numpy().tobytes() for p in (first, *others)])
    assert found[1:] == found[:1] * 2


def test_an_optimizer_takes_no_memory_but_its_states_and_a_block() -> None:
    def update() -> None:
        p = leaf(SIZE)
        optimizer = mt.optim.SGD([p], lr=0.1, momentum=0.9)
        p.sum().backward()
        optimizer.step()
        optimizer.step()

    block = optimizer_module.BLOCK / SIZE
    assert block < 0.7
    assert traced(update) < (3.1 + block) * 8 * SIZE  # the parameter, its gradient, its momentum


def traced(function: Any) -> int:
    """The peak of the bytes that are allocated at one time while `function` runs."""
    function()  # what is made once is made
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        function()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_gradients_own_their_memory_and_no_more() -> None:
    """A gradient that is a view would keep all of another array alive."""
    x = leaf(10)
    (x.reshape(2, 5)[:, :2].sum() + x.expand(3, 10).sum()).backward()
    array = x.grad._array
    assert array.base is None
    assert array.nbytes == 10 * 8
    (found,) = grad(x.sum(), x)
    assert found._array.base is None or found._array.base.nbytes == found._array.nbytes
    assert 0 not in found._array.strides
    assert np.asarray(found.tolist()).tolist() == [1.0] * 10
