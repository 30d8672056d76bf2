"""Gradient checkpointing: the gradients of the plain call, in less memory."""

import math
import tracemalloc

import numpy as np
import pytest
from compilers import needs_compiler

import microtrain as mt
from microtrain.distributed import DataParallel, in_process
from microtrain.utils.checkpoint import checkpoint, checkpoint_sequential

nn, F = mt.nn, mt.nn.functional


def numbers(*shape, seed=0):
    return mt.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def bits(tensors):
    return [None if t is None else t.detach().numpy().tobytes() for t in tensors]


class Block(nn.Module):
    """With several results and a parameter that is used twice."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 4)
        self.scale = nn.Parameter(mt.ones(4))

    def forward(self, x, y, power, *, shift=None, only=False):
        h = F.dropout(self.one(x).tanh(), 0.4, self.training)
        out = self.two(h) * self.scale + y**power * self.scale
        if shift is not None:
            out = out + shift
        return out if only else (out, h.detach(), h.sum(), None, 3)


CASES = {
    "all": lambda call, b, x, y: call(b, x, y, 2, shift=y * x),
    "one result": lambda call, b, x, y: call(b, x, y, 2, only=True),
    "one argument twice": lambda call, b, x, y: call(b, x, x, 3),
    "computed arguments": lambda call, b, x, y: call(b, x * y, (x + y).sin(), 2, only=True),
    "no argument requires grad": lambda call, b, x, y: call(b, x.detach(), y.detach(), 2),
    "one after the other": lambda call, b, x, y: call(b, call(b, x, y, 1, only=True), y, 2),
    "one in the other": lambda call, b, x, y: call(
        lambda p, q: call(b, p * q, q, 2, only=True) + call(b, p, q, 1, only=True), x, y
    ),
    "a list": lambda call, b, x, y: call(lambda both: both[0] * both[1], [x, y]),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_results_gradients_and_draws_are_those_of_the_plain_call(name, training):
    found = []
    for call in (lambda f, *args, **more: f(*args, **more), checkpoint):
        mt.manual_seed(3)
        block = Block().double().train(training)
        x, y = numbers(5, 4).requires_grad_(), numbers(5, 4, seed=1).requires_grad_()
        results = CASES[name](call, block, x, y)
        results = results if isinstance(results, tuple) else (results,)
        tensors = [r for r in results if isinstance(r, mt.Tensor)]
        assert [r for r in results if not isinstance(r, mt.Tensor)] in ([], [None, 3])
        needing = [t.requires_grad for t in tensors]
        sum((t * t).sum() for t in tensors if t.requires_grad).backward()
        after = F.dropout(mt.ones(20), 0.5), mt.rand(3)  # draws go on where they would
        grads = [x.grad, y.grad, *(p.grad for p in block.parameters())]
        found.append((needing, bits(tensors), grads, bits(after)))
    (needing, values, grads, after), (needing2, values2, grads2, after2) = found
    assert (needing, values, after) == (needing2, values2, after2)
    for a, b in zip(grads, grads2, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


def test_gradients_equal_torchs_checkpoint():
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint as theirs

    found = []
    for lib, call in ((mt, checkpoint), (torch, theirs)):
        x, w = (lib.from_numpy(numbers(3, 3, seed=n).numpy()).requires_grad_() for n in range(2))
        out, total = call(lambda a, w=w: ((a @ w).tanh(), a.sum()), x.sin(), use_reentrant=False)
        (out.sum() * total).backward()
        found.append([x.grad.numpy(), w.grad.numpy()])
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_autograd_grad_leaves_other_gradients_alone():
    block, x = nn.Linear(3, 2).double(), numbers(4, 3).requires_grad_()
    (found,) = mt.autograd.grad(checkpoint(block, x).sum(), x)
    np.testing.assert_allclose(
        found.numpy(), block.weight.detach().numpy().sum(0)[None].repeat(4, 0)
    )
    assert block.weight.grad is None


def test_gradcheck_and_gradgradcheck():
    w = numbers(3, 3, seed=2).requires_grad_()

    def function(x, y):
        return checkpoint(lambda a, b: ((a @ w).tanh() * b, (a * b).sum()), x, y)

    inputs = (numbers(2, 3).requires_grad_(), numbers(2, 3, seed=1).requires_grad_())
    assert mt.autograd.gradcheck(function, inputs)
    assert mt.autograd.gradgradcheck(function, inputs)


def test_a_gradient_penalty_reaches_the_parameters():
    found = []
    for call in (lambda f, *args: f(*args), checkpoint):
        mt.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        x = numbers(4, 3).requires_grad_()
        y = call(net, x.sin())
        (g,) = mt.autograd.grad(y.sum(), x, create_graph=True)
        (y.sum() + (g**2).sum()).backward()
        found.append([p.grad.numpy() for p in (x, *net.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def deep(layers=12, width=64):
    mt.manual_seed(0)
    parts = [
        nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(layers)
    ]
    return nn.Sequential(*parts)


@pytest.mark.parametrize("segments", [1, 3, 5, 12])
def test_a_sequence_in_segments(segments):
    found = []
    for split in (False, True):
        net, x = deep(), numbers(8, 64).float()
        out = checkpoint_sequential(net, segments, x) if split else net(x)
        (out**2).sum().backward()
        found.append(bits([out, *(p.grad for p in net.parameters())]))
    assert found[0] == found[1]


def test_memory_is_less():
    def peak(segments):
        net, x = deep(), numbers(4096, 64).float()
        mt.optim.SGD(net.parameters(), lr=0.1)
        tracemalloc.start()
        out = net(x) if segments is None else checkpoint_sequential(net, segments, x)
        loss = (out**2).mean()
        del out
        loss.backward()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    whole = peak(None)
    assert peak(4) < 0.6 * whole


@pytest.mark.daily("numpy")
@pytest.mark.parametrize("executor", ["numpy", "native"])
def test_a_captured_step_has_the_bits_of_the_eager_one(executor):
    if executor == "native":
        needs_compiler()

    def run(segments, wrap):
        net = deep(4, 8)
        optimizer = mt.optim.Adam(net.parameters())

        def step(x):
            optimizer.zero_grad()
            out = net(x) if segments is None else checkpoint_sequential(net, segments, x)
            loss = (out**2).mean()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        losses = [step(numbers(6, 8, seed=i).float()).item() for i in range(8)]
        return [np.array(losses), *(p.detach().numpy() for p in net.parameters())]

    plain = run(None, lambda step: step)
    eager = run(3, lambda step: step)
    captured = run(3, lambda step: mt.compile(step, executor=executor))
    for a, b, c in zip(plain, eager, captured, strict=True):
        np.testing.assert_array_equal(a, b)
        if executor == "numpy":
            np.testing.assert_array_equal(b, c)
        else:
            np.testing.assert_allclose(b, c, rtol=1e-4, atol=1e-6)


class Checkpointed(nn.Module):
    def __init__(self, split):
        super().__init__()
        self.split, self.parts, self.last = split, deep(3, 6), nn.Linear(6, 3)

    def forward(self, x):
        h = checkpoint_sequential(self.parts, 3, x) if self.split else self.parts(x)
        return self.last(h)


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_get_the_gradient_of_the_whole(ranks, overlap):
    def main(comm, split):
        mt.manual_seed(0)
        net = DataParallel(Checkpointed(split), comm, overlap=overlap)
        optimizer = mt.optim.SGD(net.parameters(), lr=0.1)
        rows = slice(comm.rank, None, comm.size)
        mt.random.begin_batch(0)
        for i in range(4):
            x = mt.from_numpy(numbers(9, 6, seed=i).float().numpy()[rows].copy())
            y = mt.from_numpy(np.arange(9)[rows] % 3)
            optimizer.zero_grad()
            F.cross_entropy(net(x), y, weight=mt.tensor([1.0, 2.0, 0.5])).backward()
            optimizer.step()
        return [p.detach().numpy().copy() for p in net.parameters()]

    plain = in_process.run(ranks, lambda comm: main(comm, False))
    split = in_process.run(ranks, lambda comm: main(comm, True))
    for mine, other in zip(plain, split, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_without_grad_it_is_the_plain_call():
    calls = []
    with mt.no_grad():
        out = checkpoint(lambda x: calls.append(1) or x * 2, mt.ones(2, requires_grad=True))
    assert (out.requires_grad, calls) == (False, [1])


def test_draws_may_differ_where_asked():
    mt.manual_seed(0)
    x = mt.ones(1000, requires_grad=True)
    out = checkpoint(lambda x: F.dropout(x, 0.5), x, preserve_rng_state=False)
    out.sum().backward()
    assert not mt.equal(x.grad, out.detach())
    again = mt.ones(1000, requires_grad=True)
    out = checkpoint(lambda x: F.dropout(x, 0.5), again)
    out.sum().backward()
    assert mt.equal(again.grad, out.detach())


def changing(*forms):
    """A function that is another one at every call."""
    calls = iter(forms)
    return lambda x: next(calls)(x)


class Twice(mt.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


MASK = mt.tensor([True, True, False])
CHANGES = {
    "a result of another shape": (lambda x: x * 2, lambda x: (x * 2).sum()),
    "one operation less": (lambda x: x.sin().exp().sin(), lambda x: x.sin().exp()),
    "one operation more": (lambda x: x.sin().exp(), lambda x: x.sin().exp().sin()),
    "another operation": (lambda x: x.sin(), lambda x: x.cos()),
    "arrays of another shape": (lambda x: x[MASK].exp().sum(), lambda x: x[~MASK].exp().sum()),
    "another factor": (lambda x: x * 2, lambda x: x * 3),
    "another sign": (lambda x: x.exp(), lambda x: (-x).exp()),
    "a Function in place of an operation": (lambda x: x * 2, Twice.apply),
    "a value that is not finite": (lambda x: x * 2, lambda x: x * mt.tensor(math.inf)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_does_not_compute_the_same_again_is_an_error(name):
    x = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    out = checkpoint(changing(*CHANGES[name]), x).sum()
    with pytest.raises(RuntimeError, match=r"did not compute the same again.*: expected .*, got "):
        out.backward()
    assert x.grad is None
    second = changing(*CHANGES[name])
    if "shape" not in name:  # whoever asks for it gets the gradient of the second form
        checkpoint(second, x, determinism_check="none").sum().backward()
        plain = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
        CHANGES[name][1](plain).sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), plain.grad.numpy())


@pytest.mark.parametrize("dtype", [mt.float16, mt.float32, mt.float64])
@pytest.mark.parametrize("value", [0.0, 1.0, -3e4, math.inf, -math.inf, math.nan])
def test_what_computes_the_same_again_is_no_error(value, dtype):
    x = mt.tensor([1.0, value, 3.0], dtype=dtype, requires_grad=True)
    checkpoint(lambda x: (x * 2, Twice.apply(x)), x)[0].sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def outside(x):
    scale = x.sum()
    return checkpoint(lambda y: y * scale, x)


def in_place(x):
    def function(y):
        with mt.no_grad():
            y.add_(1)
        return y * y

    return checkpoint(function, x * 1)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (outside, RuntimeError, "computed outside, by 'SumBackward0'; pass it as an argument"),
        (in_place, RuntimeError, "writes to an argument in place"),
        (
            lambda x: checkpoint(abs, x, use_reentrant=True),
            ValueError,
            "use_reentrant=True is not supported",
        ),
        (lambda x: checkpoint(abs, x, debug=True), ValueError, "debug=True is not supported"),
        (
            lambda x: checkpoint(abs, x, context_fn=abs),
            ValueError,
            "context_fn=.* is not supported",
        ),
        (
            lambda x: checkpoint(abs, x, determinism_check="values"),
            ValueError,
            "determinism_check is default or none",
        ),
        (
            lambda x: checkpoint(DataParallel(nn.Linear(3, 2)), x),
            RuntimeError,
            "inside the model that is wrapped",
        ),
        (lambda x: checkpoint_sequential([abs, abs], 3, x), ValueError, "from 1 to the number"),
        (lambda x: checkpoint_sequential([abs], 0, x), ValueError, "got 0"),
        (lambda x: checkpoint(lambda x: [x], x), TypeError, "return a Tensor or a tuple"),
    ],
)
def test_what_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(mt.ones(2, 3, requires_grad=True))


def test_a_loss_that_ranks_have_to_weigh_is_refused_inside():
    net = DataParallel(nn.Linear(3, 2))
    scores = net(mt.ones(4, 3))
    target, weight = mt.tensor([0, 1, 1, 0]), mt.tensor([1.0, 3.0])
    with pytest.raises(RuntimeError, match="compute the loss outside"):
        checkpoint(lambda s: F.cross_entropy(s, target, weight=weight), scores)


def test_a_written_parameter_is_found():
    layer = nn.Linear(3, 2)
    out = checkpoint(layer, mt.ones(4, 3)).sum()
    with mt.no_grad():
        layer.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_it_is_where_pytorch_has_it():
    assert mt.utils.checkpoint.checkpoint is checkpoint
    assert "checkpoint" in dir(mt.utils)
