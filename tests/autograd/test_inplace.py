"""Writing into Tensors: values, histories, versions, views, and what is refused."""

import gc
import random
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
    x %= 5
    x[0] %= 3
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
        gradients = [None if t.grad is None else t.grad.numpy() for t in (x, y)]
        found.append([*results, *gradients])
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


# What PyTorch leaves in memory for 7, 8 and 3; and for True, False and True.
INTEGERS = {"//=": [2, 2], "%=": [1, 2], "&=": [3, 0], "|=": [7, 11], "^=": [4, 11],
            "+=": [10, 11], "-=": [4, 5], "*=": [21, 24], "**=": [343, 512]}  # fmt: skip
BOOLEANS = {"&=": [True, False], "|=": [True, True], "^=": [False, True]}
AUGMENTED = [(o, [7, 8], 3, r) for o, r in INTEGERS.items()]
AUGMENTED += [(o, [True, False], True, r) for o, r in BOOLEANS.items()]


@pytest.mark.parametrize("operand", ["number", "tensor"])
@pytest.mark.parametrize(("operator", "values", "other", "result"), AUGMENTED)
def test_augmented_assignment_writes_into_the_tensor(operator, values, other, result, operand):
    x = y = mt.tensor(values)
    scope = {"x": x, "other": other if operand == "number" else mt.tensor(other)}
    exec(f"x {operator} other", scope)
    assert scope["x"] is y
    assert y.tolist() == result
    part = mt.tensor([values, values])
    scope["x"] = part
    exec(f"x[0] {operator} other", scope)
    assert part.tolist() == [result, values]


def test_augmented_assignment_keeps_the_dtype():
    mask, numbers = mt.tensor([True]), mt.tensor([7])
    with pytest.raises(RuntimeError, match="int64 can't be cast to the desired output type bool"):
        mask &= mt.tensor([1])
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type int64"):
        numbers //= 2.5
    x = leaf(7.0)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x %= 3
    y = x * 2
    y %= 3
    y.backward()
    assert (y.item(), x.grad.item()) == (2.0, 2.0)


def test_a_captured_step_writes_into_the_mask():
    mask = mt.tensor([True, True, False])
    step = mt.compile(lambda x: mask.__iand__(x > 0).sum(), state=[mask])
    batches = [1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0]
    assert [step(mt.tensor(x)).item() for x in batches] == [2, 2, 1, 0]
    assert mask.tolist() == [False] * 3


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


@pytest.mark.parametrize("written", ["base", "view", "other view"])
@pytest.mark.parametrize("graph", ["before", "by the write"])
def test_a_write_renews_the_history_of_base_and_views(written, graph):
    x, w = leaf(1.0, 2.0, 3.0), leaf(2.0)
    base = x * 1 if graph == "before" else mt.tensor([1.0, 2.0, 3.0], dtype=mt.float64)
    view, other = base[:2], base.view(3, 1)
    target = {"base": base, "view": view, "other view": other}[written]
    target *= w
    factors = [2.0, 2.0, 1.0 if written == "view" else 2.0]
    for tensor, n in ((base, 3), (view, 2), (other, 3)):
        found = mt.autograd.grad(tensor.sum(), [w, x], retain_graph=True, allow_unused=True)
        changed = min(n, 2 if written == "view" else 3)
        assert found[0].tolist() == [sum([1.0, 2.0, 3.0][:changed])]
        if graph == "before":
            assert found[1].tolist() == [f if i < n else 0.0 for i, f in enumerate(factors)]


# Random programs: each step takes two of the Tensors alive and two random numbers.
STEPS = {
    "mul": lambda t, o, r: t * 1.5,
    "add": lambda t, o, r: t + o if t.shape == o.shape else t + 1,
    "exp": lambda t, o, r: (t * 0.1).exp(),
    "reshape": lambda t, o, r: t.reshape(-1),
    "row": lambda t, o, r: t[0] if len(t.shape) > 1 else t[1:],
    "slice": lambda t, o, r: t[1:] if t.shape[0] > 1 else t,
    "transpose": lambda t, o, r: t.T if len(t.shape) == 2 else t,
    "detach": lambda t, o, r: t.detach()[:1] if r < 0.3 else None,
    "+=": lambda t, o, r: done(t.add_(o.clone() if t.shape == o.shape else 1.5)),
    "*=": lambda t, o, r: done(t.mul_(o.clone() if t.shape == o.shape and r < 0.5 else 1.5)),
    "[0] +=": lambda t, o, r: t.__setitem__(
        0, t[0].add_(o[0].clone() if t.shape == o.shape else 2)
    ),
    "[0] =": lambda t, o, r: t.__setitem__(0, o[0] * 2 if t.shape == o.shape else 3.0),
    "copy_": lambda t, o, r: done(t.copy_(o.clone()) if t.shape == o.shape else t.zero_()),
}


def done(tensor) -> None:
    """A step that wrote and made nothing new."""


def run_program(lib, steps, arrays):
    x, y = (lib.from_numpy(a.copy()).requires_grad_() for a in arrays)
    alive = [x * 1, y * 2, lib.from_numpy(arrays[0].copy())]
    for name, i, j, r in steps:
        made = STEPS[name](alive[int(i * len(alive))], alive[int(j * len(alive))], r)
        alive += [] if made is None else [made]
    loss = sum(((k + 1) * t * t).sum() for k, t in enumerate(alive))
    if loss.requires_grad:
        loss.backward()
    return [loss.detach().numpy(), *(p.grad if p.grad is None else p.grad.numpy() for p in (x, y))]


def test_random_programs_of_views_and_writes_equal_torch():
    """Where both run. A saved value that is gone is an error in both, but they save differently."""
    torch = pytest.importorskip("torch")
    rng = random.Random(0)
    arrays = [np.linspace(0.5, 1.5, 6).reshape(3, 2), np.linspace(1.5, 0.7, 6).reshape(3, 2)]
    compared = 0
    for _ in range(400):
        steps = [
            (rng.choice(list(STEPS)), rng.random(), rng.random(), rng.random())
            for _ in range(rng.randint(2, 9))
        ]
        try:
            theirs = run_program(torch, steps, arrays)
        except RuntimeError:
            continue
        ours = run_program(mt, steps, arrays)
        compared += 1
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None), steps
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-11, err_msg=str(steps))
    assert compared > 300


def test_a_view_of_a_base_that_is_gone():
    x = leaf(1.0, 2.0)
    h = (x * 2).view(2, 1)
    h *= 3
    part = h[0]
    part += 1
    h.sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]
    one, two = (x * 2).view(2, 1)
    one *= two.detach().clone()
    (one + two).backward()
    assert x.grad.tolist() == [14.0, 8.0]


def test_a_view_taken_under_no_grad_is_outside_the_graph():
    x = leaf(1.0, 2.0)
    h = x * 2
    with mt.no_grad():
        view = h.view(2, 1)
    h *= 3
    assert not view.requires_grad
    assert view.tolist() == h.view(2, 1).tolist()


def views_under_no_grad():
    """A computed Tensor, and views of it that were taken outside the graph."""
    a = leaf(1.0, 2.0, 3.0) * 2
    with mt.no_grad():
        view = a[:2]
    with mt.inference_mode():
        inferred = a[:2]
    return a, {"view": view, "view of it": view[:1], "inferred": inferred}


LOST_WRITES = {
    "a number": lambda v: v.mul_(3),
    "a Tensor that requires grad": lambda v: v.mul_(mt.ones(1, requires_grad=True)),
    "an index": lambda v: v.__setitem__(0, 5.0),
    "an index, a Tensor": lambda v: v.__setitem__(0, mt.tensor(5.0, requires_grad=True)),
    "augmented": lambda v: v.__iadd__(1),
    "zero_": lambda v: v.zero_(),
}


@pytest.mark.parametrize("which", ["view", "view of it", "inferred"])
@pytest.mark.parametrize("write", LOST_WRITES)
def test_a_recorded_write_to_a_view_taken_under_no_grad(write, which):
    a, views = views_under_no_grad()
    with pytest.raises(RuntimeError, match="created in no_grad mode"):
        LOST_WRITES[write](views[which])
    assert a.tolist() == [2.0, 4.0, 6.0]
    with mt.no_grad():  # all of it outside the graph is in order, and counted
        saved = a._version.n
        LOST_WRITES["a number"](views[which])
    assert a.tolist()[0] == 6.0
    assert a._version.n == saved + 1


def test_a_write_through_a_view_taken_under_inference_mode_is_seen():
    a = leaf(1.0, 2.0) * 2
    y = (a * a).sum()
    with mt.inference_mode():
        a[:1].mul_(5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_leaf_that_is_a_view_taken_under_no_grad():
    x = mt.tensor([1.0, 2.0])
    with mt.no_grad():
        y = x.view(2)
    y.requires_grad_()
    for view in (y, y.view(2)):
        with pytest.raises(RuntimeError, match="created in no_grad mode"):
            view *= 3
    assert y.tolist() == [1.0, 2.0]
    del x  # now y is the base
    with pytest.raises(RuntimeError, match="a view of a leaf"):
        y.view(2).mul_(3)


def test_writing_to_a_view_that_a_function_returned():
    class View(mt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view(-1)

        @staticmethod
        def backward(ctx, g):
            return g

    a = leaf(1.0, 2.0) * 2
    with pytest.raises(RuntimeError, match="or by a Function"):
        View.apply(a).mul_(3)


def test_gradients_of_aliases_after_a_write_to_one_of_them():
    def aliases():
        base = leaf(1.0, 2.0) * 1
        return base, base[:], base[:]

    base, one, two = aliases()
    for x in (base, one, two):
        x.retain_grad()
    one.mul_(2)
    (one + two).sum().backward()
    # Each of the two is one summand; the base is both.
    assert [x.grad.tolist() for x in (one, two, base)] == [[1.0] * 2, [1.0] * 2, [2.0] * 2]
    base, one, two = aliases()
    one.mul_(2)
    found = mt.autograd.grad((one + two).sum(), (one, two, base))
    assert [g.tolist() for g in found] == [[1.0] * 2, [1.0] * 2, [2.0] * 2]
    base, one, two = aliases()
    base.mul_(2)
    found = mt.autograd.grad((one + two).sum(), (one, two, base))
    assert [g.tolist() for g in found] == [[1.0] * 2, [1.0] * 2, [2.0] * 2]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.arange(6.0).reshape(2, 3).T,
        np.arange(6.0).reshape(3, 2)[::-1],
        np.arange(6.0).reshape(3, 2)[:, ::-1],
        np.arange(12.0).reshape(3, 2, 2)[::-1, :, 1],
        np.arange(6.0).reshape(1, 3, 2, 1)[0, :, :, 0],
    ],
)
def test_views_of_memory_in_any_order(array):
    base, w = mt.from_numpy(array.copy("K") if array.base is None else array), leaf(2.0)
    old = base.numpy().copy()
    row, column = base[1], base.T[0]
    row *= w
    weights = mt.tensor([[1.0, 10.0], [100.0, 1000.0], [1e4, 1e5]], dtype=mt.float64)
    (found,) = mt.autograd.grad((base * weights).sum(), w, retain_graph=True)
    assert found.tolist() == [100 * old[1, 0] + 1000 * old[1, 1]]
    (found,) = mt.autograd.grad((column * weights[:, 0]).sum(), w)
    assert found.tolist() == [100 * old[1, 0]]


def test_views_of_a_number():
    x = leaf(2.0)[0]
    for view in (lambda y: y.unsqueeze(0), lambda y: y.view(1, 1)[0], lambda y: y[...]):
        y = x * 3
        seen = view(y)
        y *= 5
        assert mt.autograd.grad(seen.sum(), x, retain_graph=True)[0].item() == 15
        seen *= x * x
        assert (y.item(), y.shape) == (120.0, ())
        assert mt.autograd.grad(y, x)[0].item() == 15 * 3 * 2**2
    y = x * 3
    seen = y.expand(4)
    y *= 5
    assert mt.autograd.grad(seen.sum(), x)[0].item() == 60


def test_a_function_that_returned_its_input():
    class Same(mt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, g):
            return g

    h = leaf(1.0) * 1
    with pytest.raises(RuntimeError, match="a Function that returned its input"):
        Same.apply(h).add_(1)


def test_thousands_of_views_stay_cheap():
    x = mt.zeros(20_000)
    views = [x[i : i + 1] for i in range(20_000)]
    assert len(x.version.viewers) == 20_000
    del views
    for _ in range(20_000):
        x[:1]
    assert len(x.version.viewers) < 40_000


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
        (lambda x: x.add_(mt.ones(3, 2)), RuntimeError, r"shape \(2,\).*\(3, 2\)"),
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


@pytest.mark.parametrize("mode", [mt.no_grad, mt.inference_mode])
@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.transpose_(0, 1),
        lambda v: v.t_(),
        lambda v: v.unsqueeze_(0),
        lambda v: v.squeeze_(0),
        lambda v: v.mul_(2),
        lambda v: v.zero_(),
    ],
)
def test_a_view_that_the_graph_does_not_know_is_not_changed(mode, change):
    base = mt.ones(1, 3, requires_grad=True) * 1
    with mode():
        view = base[:]
    with pytest.raises(RuntimeError, match="was created in no_grad mode"):
        change(view)
    assert view.shape == (1, 3) and base.tolist() == [[1, 1, 1]]
    plain = mt.ones(1, 3)
    with mode():
        view = plain[:]
    change(view)  # nothing is recorded
