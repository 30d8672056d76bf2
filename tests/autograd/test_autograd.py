"""The engine: what a backward pass does to graphs, gradients, hooks, modes and memory."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from inspect import signature

import numpy as np
import pytest

import microtrain as mt
from microtrain.autograd import backward, grad


def leaf(*values: float, dtype=mt.float64) -> mt.Tensor:
    return mt.tensor(list(values), dtype=dtype, requires_grad=True)


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Long graphs and memory ---------------------------------------------------------------------------

CHAIN = """
import sys, threading
import microtrain as mt
assert sys.getrecursionlimit() == 1000

def chain():
    x = mt.tensor(1.0, dtype=mt.float64, requires_grad=True)
    y = x
    for _ in range(50_000):
        y = y * 1.00001 + 0.0
    {use}
    del y
    print("done")

threading.stack_size(1024 * 1024)    # a recursion in C would not get far either
thread = threading.Thread(target=chain)
thread.start()
thread.join()
"""


@pytest.mark.daily("backward")
@pytest.mark.parametrize(
    "use",
    [
        pytest.param("pass", marks=pytest.mark.slow),
        "y.backward(); assert abs(x.grad.item() - 1.00001**50_000) < 1e-9",
        pytest.param("y.backward(retain_graph=True); y.backward()", marks=pytest.mark.slow),
        pytest.param(
            "(g,) = mt.autograd.grad(y, x); assert abs(g.item() - 1.00001**50_000) < 1e-9",
            marks=pytest.mark.slow,
        ),
        "(g,) = mt.autograd.grad(y, x, create_graph=True); del g",
        "y = mt.stack([y, y])",
    ],
    ids=["drop", "backward", "twice", "grad", "create_graph", "stack"],
)
def test_a_chain_of_100_000_operations_needs_no_recursion(use):
    assert run_python(CHAIN.format(use=use)) == "done\n"


MEMORY = """
import gc, tracemalloc
import microtrain as mt
from microtrain.autograd.graph import Node
from microtrain.tensor import TENSORS, Version

mt.manual_seed(0)
model = mt.nn.Sequential(mt.nn.Linear(4, 8), mt.nn.ReLU(), mt.nn.Linear(8, 2))
optimizer = mt.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = mt.randn(16, 4), mt.randn(16, 2)

def step():
    optimizer.zero_grad()
    loss = mt.nn.functional.mse_loss(model(x), y)
    {more}
    loss.backward()
    optimizer.step()

def counted():
    kinds = (*TENSORS, Node, Version)
    return sum(isinstance(thing, kinds) for thing in gc.get_objects())

gc.disable()
for _ in range(3000):     # until Python's own free lists (2,000 tuples of each length) are full
    step()
before = counted()
tracemalloc.start()
step()
start = tracemalloc.get_traced_memory()[0]
for _ in range(1000):
    step()
grown = tracemalloc.get_traced_memory()[0] - start
assert counted() == before, (before, counted())
assert grown < 20_000, grown
assert gc.collect() < 50
print("done")
"""


@pytest.mark.daily("in place", "create_graph")
@pytest.mark.parametrize(
    "more",
    [
        "pass",
        "loss *= 2",
        "h = x * model[0].weight[0]; h += h; h.mul_(h); h[0] = h[1] * 2; loss = loss + h.sum()",
        "v = (model(x) * 1)[0]; v *= v; loss = loss + v.sum()",
        "loss.backward(retain_graph=True, create_graph=True)",
        "g = mt.autograd.grad(loss, model.parameters(), create_graph=True); "
        "loss = loss + sum((p * p).sum() for p in g)",
        "p = model(x); p.retain_grad(); p.register_hook(lambda g: g * 2); loss = loss + p.sum()",
    ],
    ids=["plain", "in place", "own operand", "view", "create_graph", "penalty", "hooks"],
)
def test_1000_steps_do_not_grow_memory_without_the_cyclic_collector(more):
    assert run_python(MEMORY.format(more=more)) == "done\n"


def test_a_dropped_result_frees_its_graph_at_once():
    gc.disable()
    try:
        x = leaf(1.0, 2.0)
        hidden = x * 2
        node = weakref.ref(hidden.grad_fn)
        out = (hidden.exp() * hidden).sum()
        del hidden
        assert node() is not None
        del out
        assert node() is None
    finally:
        gc.enable()


# Freed graphs -------------------------------------------------------------------------------------


def test_second_backward_names_the_node_and_the_way_out():
    x = leaf(1.0, 2.0)
    loss = (x * x).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match=r"second time \(MulBackward0\).*retain_graph=True"):
        loss.backward()


def test_retain_graph_accumulates():
    x = leaf(1.0, 2.0)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad.tolist() == [6.0, 12.0]


def test_a_graph_that_saved_nothing_may_run_again():
    x = leaf(1.0, 2.0)
    loss = (x + x).sum()
    loss.backward()
    loss.backward()
    assert x.grad.tolist() == [4.0, 4.0]


def test_two_losses_share_a_retained_part():
    x = leaf(3.0)
    shared = x * x
    (shared * 2).backward(retain_graph=True)
    (shared * 3).backward()
    assert x.grad.tolist() == [30.0]


# Accumulation -------------------------------------------------------------------------------------


def test_gradients_of_all_uses_add_up_with_their_broadcast_shapes():
    x = leaf(2.0)
    rows = mt.ones(3, 4, dtype=mt.float64)
    ((x * rows).sum() + (rows + x).sum() + x.sum()).backward()
    assert x.grad.tolist() == [25.0]


def test_a_gradient_is_not_shared_with_another_leaf():
    x, y = leaf(1.0), leaf(1.0)
    (x + y).backward()
    x.grad.zero_()
    assert y.grad.item() == 1.0


def test_the_given_gradient_is_not_kept_as_the_result():
    x = leaf(1.0, 2.0)
    seed = mt.ones(2, dtype=mt.float64)
    x.backward(seed)
    x.backward(seed)
    assert (x.grad.tolist(), seed.tolist()) == ([2.0, 2.0], [1.0, 1.0])


def test_accumulating_is_seen_by_who_holds_the_gradient():
    x = leaf(1.0)
    x.sum().backward()
    held = x.grad
    x.sum().backward()
    assert held is x.grad
    assert held.item() == 2.0


def test_a_graph_over_a_gradient_that_was_added_to_is_stale():
    x, w = leaf(1.0), leaf(1.0)
    x.sum().backward()
    loss = (w * x.grad).sum()
    x.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_gradient_has_the_dtype_of_its_leaf():
    x = mt.ones(2, requires_grad=True)
    (x.double() * mt.ones(2, dtype=mt.float64)).sum().backward()
    assert x.grad.dtype == mt.float32
    half = mt.ones(2, dtype=mt.float16, requires_grad=True)
    (half * mt.ones(2)).sum().backward()
    assert half.grad.dtype == mt.float16


def test_many_roots_with_their_gradients():
    x = leaf(1.0, 2.0)
    backward([x * 2, (x * 3).sum()], [mt.tensor([1.0, 10.0], dtype=mt.float64), None])
    assert x.grad.tolist() == [5.0, 23.0]


def test_a_leaf_is_a_root():
    x = leaf(1.0)
    x.backward()
    assert x.grad.tolist() == [1.0]


# backward(inputs=...) -----------------------------------------------------------------------------


def test_backward_into_chosen_inputs_leaves_the_others_alone():
    x, y = leaf(1.0), leaf(2.0)
    hidden = x * y
    loss = (hidden * hidden).sum()
    loss.backward(inputs=[x], retain_graph=True)
    assert (x.grad.tolist(), y.grad) == ([8.0], None)
    loss.backward(inputs=hidden, retain_graph=True)
    assert (hidden.grad.tolist(), x.grad.tolist(), y.grad) == ([4.0], [8.0], None)
    loss.backward(inputs=[hidden, hidden, y])
    assert (hidden.grad.tolist(), y.grad.tolist()) == ([8.0], [4.0])


# autograd.grad ------------------------------------------------------------------------------------


def test_grad_returns_one_gradient_for_each_input_and_touches_none():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    hidden = x * y
    found = grad((hidden * x).sum(), [x, y, hidden])
    assert [g.tolist() for g in found] == [[6.0, 16.0], [1.0, 4.0], [1.0, 2.0]]
    assert x.grad is y.grad is hidden.grad is None
    assert not any(g.requires_grad for g in found)


def test_grad_of_several_outputs_adds_up():
    x = leaf(1.0, 2.0)
    (found,) = grad([(x * 2).sum(), x * 3], x, [None, mt.ones(2, dtype=mt.float64)])
    assert found.tolist() == [5.0, 5.0]


def test_grad_of_an_output_with_respect_to_itself_is_one():
    y = leaf(3.0) * 2
    assert grad(y, y)[0].tolist() == [1.0]
    x = leaf(3.0)
    assert grad(x, x)[0].tolist() == [1.0]


def test_unused_input():
    x, other = leaf(1.0), leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match=r"input 1 was not used.*allow_unused=True"):
        grad(x * 2, [x, other])
    found = grad(x * 2, [x, other], allow_unused=True)
    assert (found[0].tolist(), found[1]) == ([2.0], None)
    found = grad(x * 2, [x, other], materialize_grads=True)
    assert found[1].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="materialize_grads"):
        grad(x * 2, [x, other], materialize_grads=True, allow_unused=False)


def test_the_arguments_of_grad_stand_where_torch_has_them():
    torch = pytest.importorskip("torch")
    ours, theirs = signature(grad).parameters, signature(torch.autograd.grad).parameters
    assert list(ours) == list(theirs)
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]
    x = leaf(2.0)
    assert grad(x * x, x, only_inputs=True, is_grads_batched=False)[0].tolist() == [4.0]
    for unsupported in ({"only_inputs": False}, {"is_grads_batched": True}):
        with pytest.raises(NotImplementedError, match="only_inputs"):
            grad(x * x, x, **unsupported)


def test_grad_runs_only_what_leads_to_the_inputs():
    x, y = leaf(1.0), leaf(1.0)
    ran = []
    a, b = x * 2, y * 2
    a.grad_fn.register_hook(lambda *_: ran.append("a"))
    b.grad_fn.register_hook(lambda *_: ran.append("b"))
    grad(a + b, x)
    assert ran == ["a"]


def test_gradients_returned_are_memory_of_their_own():
    """A constant 1 is shared by all passes; writing to a result must not change it."""
    x, y = leaf(1.0, 2.0), leaf(1.0, 2.0)
    first, second = grad((x + y).sum(), [x, y])
    first += 5
    assert second.tolist() == [1.0, 1.0]
    assert grad((x + y).sum(), [x])[0].tolist() == [1.0, 1.0]


def test_grad_does_not_write_into_the_memory_of_an_optimizer():
    w = mt.ones(2, 2, dtype=mt.float64, requires_grad=True)
    mt.optim.SGD([w], lr=0.1)
    x = mt.tensor([[1.0, 2.0]], dtype=mt.float64)
    (found,) = grad((x @ w).sum() + (2 * x @ w).sum(), w)
    assert found.tolist() == [[3.0, 3.0], [6.0, 6.0]]
    (100 * x @ w).sum().backward()
    assert found.tolist() == [[3.0, 3.0], [6.0, 6.0]]


def test_higher_derivatives_of_a_polynomial():
    x = leaf(2.0)
    value = x**5
    for expected in (80.0, 160.0, 240.0, 240.0, 120.0):
        (value,) = grad(value, x, create_graph=True)
        assert value.item() == pytest.approx(expected, rel=1e-14)


def test_create_graph_backward_keeps_a_gradient_that_can_be_differentiated():
    x = leaf(2.0)
    (x * x * x).backward(create_graph=True)
    assert x.grad.requires_grad
    assert x.grad.item() == 12.0
    (second,) = grad(x.grad, x)
    assert second.item() == 12.0
    (x * 5).backward(create_graph=True)
    assert x.grad.item() == 17.0
    x.grad = None  # or leaf and graph keep each other alive


def test_a_gradient_from_create_graph_may_be_written_to():
    x = leaf(1.0, 2.0)
    x.sum().backward(create_graph=True)
    x.grad.zero_()
    (x * 1).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    x.grad = None


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run, error, text",
    [
        (lambda x, y: y.backward(), RuntimeError, "only for scalar outputs"),
        (lambda x, y: mt.ones(1).backward(), RuntimeError, "does not require grad"),
        (lambda x, y: y.backward(mt.ones(3)), RuntimeError, r"shape \(3,\).*shape \(2,\)"),
        (lambda x, y: y.backward(mt.ones(2)), RuntimeError, "dtype float32.*dtype float64"),
        (lambda x, y: y.backward(3), TypeError, None),
        (lambda x, y: backward([y, y], [None]), RuntimeError, "2 tensors and 1 gradients"),
        (lambda x, y: backward([3]), TypeError, "expected a Tensor, got int"),
        (lambda x, y: y.sum().backward(inputs=[]), RuntimeError, "must not be empty"),
        (lambda x, y: y.sum().backward(inputs=[mt.ones(1)]), RuntimeError, "not require grad"),
        (lambda x, y: grad(y.sum(), mt.ones(1)), RuntimeError, "does not require grad"),
        (lambda x, y: grad(y.sum(), [3]), TypeError, "got int"),
        (lambda x, y: grad(y, x), RuntimeError, "only for scalar outputs"),
    ],
)
def test_what_backward_and_grad_refuse(run, error, text):
    x = leaf(1.0, 2.0)
    with pytest.raises(error, match=text):
        run(x, x * 2)
    assert x.grad is None


# Threads ------------------------------------------------------------------------------------------


def test_threads_run_passes_and_modes_of_their_own():
    barrier = threading.Barrier(2, timeout=20)
    found: dict[int, object] = {}

    def work(number: int) -> None:
        x = leaf(float(number))
        with mt.set_grad_enabled(number == 1):
            barrier.wait()
            recorded = (x * x).requires_grad
            barrier.wait()
        for _ in range(200):
            x.grad = None
            ((x * x).sum() * 3).backward()
        found[number] = (recorded, x.grad.tolist())

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {1: (True, [6.0]), 2: (False, [12.0])}


# The same as torch --------------------------------------------------------------------------------


def network(lib, arrays):
    """Uses most of the engine: broadcasting, shared parts, views, several outputs, unused parts."""
    x, w, b = (lib.from_numpy(a.copy()).requires_grad_() for a in arrays)
    h = (x @ w + b).tanh()
    top, _ = h.max(1)
    parts = lib.cat([h[:, :2], h[:, 2:] * b[2:]], 1)
    h.exp()
    loss = (parts * h).mean() + (top.reshape(-1, 1) * h).sum() / 10 + (w * w).sum() ** 0.5
    return loss, (x, w, b)


def test_gradients_and_second_derivatives_equal_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s) for s in ((5, 3), (3, 4), (4,))]
    found = []
    for lib in (torch, mt):
        loss, leaves = network(lib, arrays)
        first = lib.autograd.grad(loss, leaves, create_graph=True)
        sum((g * g).sum() for g in first).backward()
        found.append([t.detach().numpy() for t in (*first, *(p.grad for p in leaves))])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)


CASES = {
    "twice": lambda L, x, y: [(x * y).sum().backward() for _ in [0]] + [(x * y).sum().backward()],
    "freed": lambda L, x, y: (lambda z: (z.backward(), z.backward()))((x * y).sum()),
    "not scalar": lambda L, x, y: (x * y).backward(),
    "no grad": lambda L, x, y: L.ones(1).sum().backward(),
    "shape": lambda L, x, y: (x * y).backward(L.ones(3)),
    "unused": lambda L, x, y: L.autograd.grad(x.sum(), [x, y]),
    "empty inputs": lambda L, x, y: x.sum().backward(inputs=[]),
    "hook kind": lambda L, x, y: (x.register_hook(lambda g: 3), x.sum().backward()),
    "hook shape": lambda L, x, y: (x.register_hook(lambda g: L.ones(3)), x.sum().backward()),
    "leaf in place": lambda L, x, y: x.mul_(2),
    "view of leaf in place": lambda L, x, y: x[0].mul_(2),
    "saved in place": lambda L, x, y: (lambda a: ((a * y).sum(), a.add_(1)))(x * 1)[0].backward(),
    "stale": lambda L, x, y: (lambda a: (a * y, a.add_(1))[0].sum().backward())(x * 1),
    "numpy": lambda L, x, y: x.numpy(),
    "deepcopy": lambda L, x, y: __import__("copy").deepcopy(x * 2),
    "requires_grad": lambda L, x, y: (x * 2).requires_grad_(False),
    "integer grad": lambda L, x, y: L.ones(2, dtype=L.int64).requires_grad_(),
    "retain": lambda L, x, y: L.ones(2).retain_grad(),
    "bool": lambda L, x, y: bool(x),
    "item": lambda L, x, y: x.item(),
    "len": lambda L, x, y: len(x.sum()),
    "iterate": lambda L, x, y: list(x.sum()),
    "index": lambda L, x, y: [1, 2, 3][x[0]],
    "format": lambda L, x, y: f"{x:.2f}",
    "setitem array": lambda L, x, y: L.zeros(2).__setitem__(0, np.ones(1)),
    "setitem shape": lambda L, x, y: L.zeros(2).__setitem__(slice(None), L.zeros(3)),
    "mix": lambda L, x, y: np.ones(2) * L.ones(2),
    "in place shape": lambda L, x, y: L.ones(2).add_(L.ones(3, 2)),
    "in place dtype": lambda L, x, y: L.ones(2, dtype=L.int64).add_(1.5),
    "grad shape": lambda L, x, y: setattr(x, "grad", L.ones(3)),
    "grad kind": lambda L, x, y: setattr(x, "grad", 3),
}


@pytest.mark.parametrize("name", CASES)
def test_errors_are_of_the_kind_that_torch_raises(name):
    torch = pytest.importorskip("torch")
    kinds = []
    for lib in (torch, mt):
        x, y = (lib.ones(2, requires_grad=True) for _ in range(2))
        try:
            CASES[name](lib, x, y)
            kinds.append(None)
        except Exception as error:
            kinds.append(type(error))
    assert kinds[0] == kinds[1]


# Modes in generators, and what was cut off since --------------------------------------------------


@pytest.mark.parametrize("end", ["close", "break", "throw", "return", "del"])
@pytest.mark.parametrize(("outer", "inner"), [(mt.enable_grad, mt.no_grad), (mt.no_grad,) * 2,
                                              (mt.no_grad, mt.enable_grad)])  # fmt: skip
def test_a_generator_ends_in_the_mode_of_its_decorator(outer, inner, end):
    seen = []

    @inner()
    def numbers():
        try:
            yield 1
        finally:
            seen.append(mt.is_grad_enabled())

    with outer():
        before, running = mt.is_grad_enabled(), numbers()
        if end == "break":
            for _ in running:
                break
            del running
        else:
            next(running)
            if end == "close":
                running.close()
            elif end == "throw":
                with pytest.raises(KeyError):
                    running.throw(KeyError)
            elif end == "return":
                assert next(running, None) is None
            else:
                del running
        gc.collect()
        assert mt.is_grad_enabled() is before
    assert seen == [inner is mt.enable_grad]


def test_what_is_frozen_before_backward_gets_no_gradient():
    for cut in (lambda x: x.requires_grad_(False), lambda x: x.detach_()):
        for flat in (False, True):
            x, w = leaf(1.0), leaf(2.0)
            optimizer = mt.optim.SGD([x, w], lr=1.0) if flat else None
            y = x.sin() * w
            cut(x)
            y.backward()
            assert x.grad is None
            np.testing.assert_allclose(w.grad.numpy(), np.sin([1.0]))
            if optimizer is not None:
                optimizer.step()
                assert x.tolist() == [1.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_saved_tensor_that_was_cut_from_its_graph_is_an_error(create_graph):
    w = leaf(1.0)
    for use in (lambda a: a.sin(), lambda a: a * a, lambda a: a**3):
        a = w * 1
        y = use(a)
        a.detach_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            grad(y, w, create_graph=create_graph)
    a = w * 1
    y = a + 2.0  # needs no value of a
    a.detach_()
    assert grad(y, w)[0].item() == 1


def test_a_tensor_is_not_its_own_gradient():
    for x in (leaf(1.0), mt.ones(2)):
        with pytest.raises(RuntimeError, match="its own gradient"):
            x.grad = x
        x.grad = x.detach()


def test_options_of_jacobian_and_hessian_that_choose_a_way():
    x = leaf(1.0, 2.0)
    jacobian, hessian = mt.autograd.functional.jacobian, mt.autograd.functional.hessian
    for vectorize in (False, True):
        found = jacobian(lambda x: x**3, x, vectorize=vectorize, strategy="reverse-mode")
        assert found.tolist() == [[3, 0], [0, 12]]
        found = hessian(lambda x: (x**3).sum(), x, vectorize=vectorize)
        assert found.tolist() == [[6, 0], [0, 12]]
    with pytest.raises(ValueError, match="strategy must be 'reverse-mode'"):
        jacobian(lambda x: x, x, vectorize=True, strategy="forward-mode")
    with pytest.raises(ValueError, match="strategy must be 'reverse-mode'"):
        hessian(lambda x: x.sum(), x, outer_jacobian_strategy="forward-mode")


def test_a_graph_has_the_values_and_gradients_of_what_lies_between():
    a, b = mt.tensor(2.0, requires_grad=True), mt.tensor([3.0, -1.0], requires_grad=True)
    product = a * b
    shifted = product + b
    loss = shifted.exp().sum()
    shown = mt.graph(loss, a=a, b=b, product=product, loss=loss)
    assert a.grad is b.grad is None
    for each in (product, shifted):
        each.retain_grad()
    loss.backward(retain_graph=True)
    found = {box.name: box for box in shown.boxes}
    assert [box.kind for box in shown.boxes] == ["sum", "exp", "add", "mul", "leaf", "leaf"]
    assert [box.inputs for box in shown.boxes][:4] == [[1], [2], [3, 4], [5, 4]]

    def numbers(text):
        return [float(each) for each in text.strip("[]").split(", ")]

    for name, tensor in {"a": a, "b": b, "product": product}.items():
        np.testing.assert_allclose(numbers(found[name].value), tensor.tolist(), rtol=1e-3)
        np.testing.assert_allclose(numbers(found[name].grad), tensor.grad.tolist(), rtol=1e-3)
    np.testing.assert_allclose(numbers(found["add"].grad), shifted.grad.tolist(), rtol=1e-3)
    np.testing.assert_allclose(numbers(found["exp"].value), shifted.exp().tolist(), rtol=1e-3)
    assert (numbers(found["loss"].grad), found["add"].value) == ([1.0], "")
    assert shown._repr_svg_().count("<rect") == 6
    loss.backward()
    freed = mt.graph(loss, a=a)
    assert "freed" in freed.note
    assert [box.grad != "" for box in freed.boxes] == [False] * 4 + [True] * 2


def test_a_large_graph_is_drawn_near_its_result_and_counts_the_rest():
    x = start = mt.ones((), requires_grad=True)
    for _ in range(80):
        x = x * start
    shown = mt.graph(x)
    assert (len(shown.boxes), shown.more) == (50, 31)
    assert "31 more nodes" in str(shown)
    with pytest.raises(RuntimeError, match="requires grad"):
        mt.graph(mt.ones(2))
    with pytest.raises(ValueError, match="does not require grad"):
        mt.graph(x, c=mt.ones(2))
