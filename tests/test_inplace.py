"""Writing into Tensors: values, histories, versions, views, and what is refused."""

import gc
import weakref

import numpy as np
import pytest

import microtrain as mt


def leaf(*values: float) -> mt.Tensor:
    return mt.tensor(list(values), dtype=mt.float64, requires_grad=True)


# Values -------------------------------------------------------------------------------------------

WRITES = {
    "add_": lambda x, y: x.add_(y),
    "add_ alpha": lambda x, y: x.add_(y, alpha=2),
    "sub_": lambda x, y: x.sub_(y),
    "mul_": lambda x, y: x.mul_(y),
    "div_": lambda x, y: x.div_(y),
    "pow_": lambda x, y: x.pow_(3),
    "neg_": lambda x, y: x.neg_(),
    "abs_": lambda x, y: x.abs_(),
    "exp_": lambda x, y: x.exp_(),
    "log_": lambda x, y: x.log_(),
    "sqrt_": lambda x, y: x.sqrt_(),
    "tanh_": lambda x, y: x.tanh_(),
    "sigmoid_": lambda x, y: x.sigmoid_(),
    "relu_": lambda x, y: x.relu_(),
    "clamp_": lambda x, y: x.clamp_(min=1.5, max=2.5),
    "zero_": lambda x, y: x.zero_(),
    "fill_": lambda x, y: x.fill_(7),
    "copy_": lambda x, y: x.copy_(y),
    "copy_ row": lambda x, y: x.copy_(y[0]),
    "own view": lambda x, y: x.mul_(x[0].clone()),
    "x[0] = number": lambda x, y: x.__setitem__(0, 5.0),
    "x[0] = y[1]": lambda x, y: x.__setitem__(0, y[1]),
    "x[:, 1] = y[:, 0]": lambda x, y: x.__setitem__((slice(None), 1), y[:, 0]),
    "x[mask] = 0": lambda x, y: x.__setitem__(x > 2, 0.0),
    "x[list] = row": lambda x, y: x.__setitem__([0, 2], y[1]),
    "x[:-1] = x[1:]": lambda x, y: x.__setitem__(slice(0, 2), x[1:].clone()),
    "view": lambda x, y: x.view(-1)[1:4].mul_(3),
    "view, operand": lambda x, y: x[1].mul_(y[2]),
    "transposed view": lambda x, y: x.T[1].add_(y[:, 0]),
    "twice": lambda x, y: x.mul_(y).add_(1).mul_(y),
}


def augmented(x, y):
    x += y
    x -= 1
    x *= y
    x /= 2
    x **= 2
    x[0] += y[0]
    x[:, 1] *= 3
    x[1, 1] -= y[2, 1]
    row = x[2]
    row *= 2
    return x


WRITES["augmented"] = augmented


@pytest.mark.parametrize("recorded", ["nothing", "x", "y", "both"])
@pytest.mark.parametrize("name", WRITES)
def test_values_and_gradients_equal_torch(name, recorded):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(1, 3, (3, 2)) for _ in range(2)]
    found = []
    for lib in (torch, mt):
        x, y = (lib.from_numpy(a.copy()) for a in arrays)
        x.requires_grad_(recorded in ("x", "both"))
        y.requires_grad_(recorded in ("y", "both"))
        written = x.clone() / 2
        before = written.detach().numpy()
        WRITES[name](written, y)
        assert np.shares_memory(before, written.detach().numpy())
        result = (written * written).sum()
        results = [written.detach().numpy()]
        if result.requires_grad:
            result.backward()
        for tensor in (x, y):
            results.append(None if tensor.grad is None else tensor.grad.numpy())
        found.append(results)
    for theirs, ours in zip(*found, strict=True):
        assert (theirs is None) == (ours is None)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-13)


def test_a_tensor_as_its_own_operand():
    """Where torch raises at backward, because the value it saved is gone."""
    x = leaf(1.0, 2.0)
    h = x * 3
    node = weakref.ref(h.grad_fn)
    h.mul_(h)
    h.sum().backward()
    assert x.grad.tolist() == [18.0, 36.0]
    del h
    assert node() is None


def test_in_place_methods_return_the_tensor_itself():
    x = mt.ones(2)
    assert x.add_(1) is x
    assert x.copy_(mt.zeros(2)) is x
    assert x.fill_(3).zero_() is x
    same = x
    same += 1
    assert same is x


def test_a_loop_that_fills_rows_of_a_result():
    x = leaf(1.0, 2.0, 3.0)
    out = mt.zeros(3, dtype=mt.float64)
    for i in range(3):
        out[i] += x[i] * (i + 1)
        out[i] *= x[i]
    out.sum().backward()
    assert x.grad.tolist() == [2.0, 8.0, 18.0]


def test_a_write_in_the_dtype_of_the_tensor():
    x = mt.ones(2, requires_grad=True)
    h = x * 1
    h += mt.ones(2, dtype=mt.float64)
    assert h.dtype == mt.float32
    h.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


# Leaves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.add_(1),
        lambda w: w.zero_(),
        lambda w: w.__iadd__(1),
        lambda w: w.__setitem__(0, 1.0),
        lambda w: w[0].add_(1),
        lambda w: w.view(-1).zero_(),
    ],
)
def test_a_leaf_that_requires_grad_is_written_to_only_outside_recording(write):
    w = leaf(1.0, 2.0)
    with pytest.raises(RuntimeError, match=r"leaf Variable that requires grad.*no_grad\(\)"):
        write(w)
    assert w.tolist() == [1.0, 2.0]
    assert w.version.n == 0
    with mt.no_grad():
        write(w)
    assert w.is_leaf
    assert w.requires_grad
    assert w.version.n == 1
    write(w.data)
    write(w.detach())


def test_sgd_by_hand():
    w = leaf(2.0)
    for _ in range(3):
        (w * w).sum().backward()
        with mt.no_grad():
            w -= 0.25 * w.grad
            w.grad = None
    assert w.tolist() == [0.25]
    for _ in range(2):
        (w * w).sum().backward()
        w.data -= 0.25 * w.grad
        w.grad.zero_()
    assert w.tolist() == [0.0625]


# Saved values -------------------------------------------------------------------------------------


def test_a_saved_input_that_is_written_to():
    x, w = leaf(1.0, 2.0), leaf(3.0, 4.0)
    h = x * 2
    loss = (h * w).sum()
    h.add_(1)
    h.add_(1)
    with pytest.raises(
        RuntimeError, match=r"MulBackward0 saved x, which is at version 2; expected version 0"
    ):
        loss.backward()


def test_a_saved_result_that_is_written_to():
    x = leaf(1.0, 2.0)
    h = x.exp()
    loss = (h * 1).sum()
    h.mul_(2)
    with pytest.raises(RuntimeError, match="ExpBackward0 saved its result"):
        loss.backward()


def test_a_write_that_nothing_saved_is_harmless():
    x = leaf(1.0, 2.0)
    h = x + 1
    loss = (h + 1).sum()
    h.mul_(0)
    loss.backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_an_optimizer_step_between_forward_and_backward():
    w = mt.ones(2, 2, dtype=mt.float64, requires_grad=True)
    optimizer = mt.optim.SGD([w], lr=0.1)
    x = leaf(1.0, 2.0)
    loss = (x.view(1, 2) @ w).sum()
    (w * 1).sum().backward()
    optimizer.step()
    with pytest.raises(
        RuntimeError, match=r"MmBackward0 saved .*modified by|modified by an inplace"
    ):
        loss.backward()


# Views --------------------------------------------------------------------------------------------


def test_a_write_to_a_base_with_a_view_in_the_graph_is_refused():
    x = leaf(1.0, 2.0)
    h = x * 2
    view = h[0]
    with pytest.raises(RuntimeError, match="a view of the same memory is part of a graph"):
        h.mul_(2)
    del view
    h.mul_(2)
    h.sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]


def test_a_view_of_a_base_that_is_gone_is_an_ordinary_tensor():
    x = leaf(1.0, 2.0)
    h = (x * 2).view(2, 1)
    h *= 3
    h.sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]


def test_writing_a_detached_tensor_records_nothing_in_its_origin():
    x, w = mt.ones(2, dtype=mt.float64), leaf(1.0, 2.0)
    cut = x.detach()
    cut.mul_(w)
    assert cut.requires_grad
    assert not x.requires_grad
    assert x.tolist() == [1.0, 2.0]


def test_memory_with_several_elements_in_one_place():
    x = mt.zeros(1).expand(3)
    with pytest.raises(RuntimeError, match="single memory location"):
        x.add_(1)


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write, error, text",
    [
        (lambda x: x.add_(mt.ones(3, 2)), RuntimeError, r"shape \[2\].*\[3, 2\]"),
        (lambda x: x.long().add_(1.5), RuntimeError, "float32 can't be cast.*int64"),
        (lambda x: x.copy_(np.ones(2)), TypeError, "expected a Tensor, got ndarray"),
        (lambda x: x.copy_(mt.ones(3)), RuntimeError, "shape"),
        (lambda x: x.__setitem__(0, np.ones(1)), TypeError, "mt.from_numpy"),
        (lambda x: x.__setitem__(0, [1.0]), TypeError, "a Tensor or a number, got list"),
        (lambda x: x.__setitem__(0, None), TypeError, "a Tensor or a number, got NoneType"),
        (
            lambda x: x.__setitem__(slice(None), mt.ones(3)),
            RuntimeError,
            "shape mismatch|broadcast",
        ),
        (lambda x: x.__setitem__(5, 1.0), IndexError, None),
        (lambda x: x.__setitem__("a", 1.0), IndexError, None),
    ],
)
@pytest.mark.parametrize("graph", [False, True])
def test_what_cannot_be_written(write, error, text, graph):
    x = leaf(1.0, 2.0).float() * 1 if graph else mt.ones(2)
    values, history, version = x.tolist(), x.grad_fn, x.version.n
    with pytest.raises(error, match=text):
        write(x)
    assert (x.tolist(), x.grad_fn, x.version.n) == (values, history, version)


# Memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITES)
def test_a_tensor_that_was_written_to_is_in_no_cycle(name):
    gc.disable()
    try:
        x, y = (mt.ones(3, 2, dtype=mt.float64, requires_grad=True) for _ in range(2))
        written = x * 2
        WRITES[name](written, y)
        tensor, node = weakref.ref(written), weakref.ref(written.grad_fn)
        del written
        assert tensor() is node() is None
    finally:
        gc.enable()
