"""Clipping of gradients, parameters as one vector: torch's numbers, flat storage or not."""

import copy
import math
import pickle

import numpy as np
import pytest

import microtrain as mt
from microtrain.distributed import DataParallel, in_process
from microtrain.nn import utils
from microtrain.optim import SGD

SHAPES = [(3, 2), (2,), (), (0,), (2, 2)]


def parameters(lib, owner, dtype=np.float64, without=(1,)):
    """Parameters with gradients, but for those named, in flat storage or not."""
    rng = np.random.default_rng(4)
    params = [
        lib.tensor(np.asarray(rng.standard_normal(s), dtype)).requires_grad_() for s in SHAPES
    ]
    optimizer = lib.optim.SGD(params, lr=0.1) if owner else None
    for n, param in enumerate(params):
        if n not in without:
            (param * param * (n + 1)).sum().backward()
    return params, optimizer


def grads(params):
    return [None if p.grad is None else p.grad.numpy().copy() for p in params]


def both(owner, call, **options):
    torch = pytest.importorskip("torch")
    found = []
    for lib in (mt, torch):
        params, _optimizer = parameters(lib, owner, **options)
        result = call(lib, params)
        found.append((result, grads(params)))
    (ours, mine), (theirs, others) = found
    rtol = 1e-12 if options.get("dtype", np.float64) == np.float64 else 1e-5
    if theirs is not None:
        assert type(ours) is mt.Tensor
        assert (ours.shape, str(ours.dtype)) == ((), str(theirs.dtype).removeprefix("torch."))
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=rtol)
    for a, b in zip(mine, others, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=rtol)


@pytest.mark.parametrize("without", [(), (1,), (0, 1, 2, 3, 4)], ids=str)
@pytest.mark.parametrize("norm_type", [2, 2.0, 1, 3.5, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 1e6, 0])
@pytest.mark.parametrize("owner", [True, False])
def test_clip_grad_norm(owner, max_norm, norm_type, without):
    def call(lib, params):
        return lib.nn.utils.clip_grad_norm_(params, max_norm, norm_type)

    if norm_type == math.inf:
        without = (*without, 3)  # torch refuses an empty gradient then
    both(owner, call, without=without)


@pytest.mark.parametrize("owner", [True, False])
def test_clip_grad_norm_of_other_arguments(owner):
    both(owner, lambda lib, p: lib.nn.utils.clip_grad_norm_(p[0], 0.5))
    both(owner, lambda lib, p: lib.nn.utils.clip_grad_norm_(iter(p[2:]), max_norm=0.5))
    both(owner, lambda lib, p: lib.nn.utils.clip_grad_norm_([], 0.5))
    both(owner, lambda lib, p: lib.nn.utils.clip_grad_norm_(p, 0.5), dtype=np.float32)
    both(owner, lambda lib, p: lib.nn.utils.get_total_norm([q.detach() for q in p]))
    both(owner, lambda lib, p: lib.nn.utils.clip_grads_with_norm_(p, 0.5, lib.tensor(3.0)))
    with pytest.warns(UserWarning, match="empty generator"):
        assert utils.clip_grad_norm_((p for p in []), 1.0).item() == 0


@pytest.mark.parametrize("without", [(), (1,)], ids=str)
@pytest.mark.parametrize("owner", [True, False])
def test_clip_grad_value(owner, without):
    both(owner, lambda lib, p: lib.nn.utils.clip_grad_value_(p, 0.7), without=without)
    both(owner, lambda lib, p: lib.nn.utils.clip_grad_value_(p[0], clip_value=1), without=without)


def test_a_part_of_the_parameters_leaves_the_others_alone():
    params, _optimizer = parameters(mt, True, without=())
    before = grads(params)
    utils.clip_grad_norm_(params[:2], 0.1)
    after = grads(params)
    assert not np.array_equal(before[0], after[0])
    for a, b in zip(before[2:], after[2:], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("owner", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_norms_that_are_not_finite(owner, bad):
    params, _optimizer = parameters(mt, owner)
    params[0].grad[0, 0] = bad
    before = grads(params)
    with pytest.raises(RuntimeError, match=r"norm of order 2.0 .* is non-finite"):
        utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    for a, b in zip(before, grads(params), strict=True):
        np.testing.assert_array_equal(a, b)
    with np.errstate(invalid="ignore"):
        both(owner, _clip_with(bad))


def _clip_with(bad):
    def call(lib, params):
        params[0].grad[0, 0] = bad
        return lib.nn.utils.clip_grad_norm_(params, 1.0)

    return call


def test_flat_gradients_are_one_array():
    params, optimizer = parameters(mt, True, without=())
    (buffer,) = optimizer.storage.buffers
    pieces = utils.clip_grad._pieces(params)
    assert len(pieces) == 1 and pieces[0] is buffer.grad
    params[1].grad = None
    assert len(utils.clip_grad._pieces(params)) == 4


def test_parameters_of_several_dtypes():
    a = mt.ones(2, dtype=mt.float32, requires_grad=True)
    b = mt.ones(2, dtype=mt.float64, requires_grad=True)
    optimizer = SGD([a, b], lr=1.0)
    (a.sum() * 3 + b.sum() * 4).backward()
    norm = utils.clip_grad_norm_([a, b], 1.0)
    assert norm.item() == pytest.approx(math.sqrt(50))
    assert (a.grad.dtype, b.grad.dtype) == (mt.float32, mt.float64)
    optimizer.step()
    assert a.tolist() == pytest.approx([1 - 3 / math.sqrt(50)] * 2, rel=1e-6)


def test_a_graph_that_saved_a_gradient_notices():
    x = mt.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    y = (x.grad * mt.ones(2, requires_grad=True)).sum()
    utils.clip_grad_norm_(x, 0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_parameters_to_vector_and_back():
    both(False, lambda lib, p: lib.nn.utils.parameters_to_vector(p).sum().detach())
    for owner in (True, False):
        params, _optimizer = parameters(mt, owner)
        vector = utils.parameters_to_vector(params)
        assert vector.requires_grad and vector.shape == (13,)
        utils.vector_to_parameters(mt.arange(13, dtype=mt.float64), params)
        assert [p.shape for p in params] == SHAPES
        assert utils.parameters_to_vector(params).tolist() == list(range(13))
        with pytest.raises(RuntimeError, match=r"13 elements, got shape \(12,\)"):
            utils.vector_to_parameters(mt.zeros(12), params)


def test_what_is_refused():
    x = mt.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="expected Tensors, got int"):
        utils.clip_grad_norm_([x, 3], 1.0)
    with pytest.raises(ValueError, match="foreach=True is not supported"):
        utils.clip_grad_norm_([x], 1.0, foreach=True)
    with pytest.raises((TypeError, ValueError)):
        utils.clip_grad_norm_([x], "big")


# Weights that are computed from other parameters --------------------------------------------------

COMPUTED = {
    "linear": (lambda lib: lib.nn.Linear(3, 4), "weight", (5, 3)),
    "conv": (lambda lib: lib.nn.Conv2d(2, 3, 2), "weight", (5, 2, 4, 4)),
    "transposed": (lambda lib: lib.nn.ConvTranspose1d(2, 3, 2), "weight", (5, 2, 4)),
    "recurrent": (lambda lib: lib.nn.GRU(3, 2), "weight_hh_l0", (4, 5, 3)),
    "embedding": (lambda lib: lib.nn.Embedding(4, 3), "weight", None),
}
NORMS = {
    "weight": lambda u, *args: u.weight_norm(*args),
    "weight dim 1": lambda u, *args: u.weight_norm(*args, dim=1),
    "weight dim -1": lambda u, *args: u.weight_norm(*args, dim=-1),
    "weight whole": lambda u, *args: u.weight_norm(*args, dim=None),
    "spectral": lambda u, *args: u.spectral_norm(*args),
    "spectral dim 1": lambda u, *args: u.spectral_norm(*args, n_power_iterations=3, dim=1),
}


def steps_with(lib, name, norm, state):
    make, weight, shape = COMPUTED[name]
    layer = make(lib).double()
    layer = NORMS[norm](lib.nn.utils, layer, weight)
    state = state or {k: v.detach().numpy().copy() for k, v in layer.state_dict().items()}
    layer.load_state_dict({k: lib.tensor(v, dtype=lib.float64) for k, v in state.items()})
    optimizer = lib.optim.SGD(layer.parameters(), lr=0.1)
    rows = np.random.default_rng(0).standard_normal(shape or (1,))
    x = lib.tensor([1, 3, 1]) if shape is None else lib.tensor(rows, dtype=lib.float64)
    losses = []
    for training in (True, True, False, True):
        layer.train(training)
        optimizer.zero_grad()
        out = layer(x)
        loss = sum((o * o).sum() for o in (out if isinstance(out, tuple) else (out,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    names = [n for n, _ in layer.named_parameters()], [n for n, _ in layer.named_buffers()]
    after = {k: v.detach().numpy() for k, v in layer.state_dict().items()}
    remove = lib.nn.utils.remove_weight_norm if "weight" in norm else None
    remove = remove or lib.nn.utils.remove_spectral_norm
    plain = remove(layer, weight)
    return state, losses, names, after, getattr(plain, weight).detach().numpy()


@pytest.mark.filterwarnings("ignore")  # torch calls its own old
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", COMPUTED)
def test_computed_weights_are_torchs(name, norm):
    torch = pytest.importorskip("torch")
    state, *mine = steps_with(mt, name, norm, None)
    _, *theirs = steps_with(torch, name, norm, state)
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, dict):
            assert sorted(a) == sorted(b)
            a, b = [a[k] for k in sorted(a)], [b[k] for k in sorted(b)]
        if isinstance(a, tuple):
            assert [sorted(names) for names in a] == [sorted(names) for names in b]
        else:
            for x, y in zip(a, b, strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def test_a_weight_norm_keeps_the_weight_and_its_direction():
    layer = mt.nn.Linear(3, 4)
    before = layer.weight.detach().numpy().copy()
    assert utils.weight_norm(layer) is layer and type(layer).__name__ == "Linear"
    np.testing.assert_allclose(layer.weight.detach().numpy(), before, rtol=1e-6)
    lengths = np.linalg.norm(before, axis=1, keepdims=True)
    np.testing.assert_allclose(layer.weight_g.detach().numpy(), lengths, rtol=1e-6)
    with mt.no_grad():
        layer.weight_g.fill_(2.0)
    lengths = np.linalg.norm(layer.weight.detach().numpy(), axis=1)
    np.testing.assert_allclose(lengths, 2.0, rtol=1e-6)
    utils.remove_weight_norm(layer)
    assert type(layer) is mt.nn.Linear and type(layer.weight) is mt.nn.Parameter
    assert sorted(layer.state_dict()) == ["bias", "weight"]


def test_a_spectral_norm_divides_by_the_largest_singular_value():
    mt.manual_seed(0)
    layer = utils.spectral_norm(mt.nn.Linear(6, 5).double(), n_power_iterations=50)
    for _ in range(3):
        layer(mt.ones(1, 6, dtype=mt.float64))
    before = layer.weight_u.tolist()
    np.testing.assert_allclose(np.linalg.norm(layer.weight.detach().numpy(), 2), 1, rtol=1e-6)
    layer.eval()(mt.ones(1, 6, dtype=mt.float64))
    assert layer.weight_u.tolist() == before  # nothing moves in evaluation, nor where it is read


@pytest.mark.parametrize("norm", [utils.weight_norm, utils.spectral_norm])
def test_computed_weights_in_copies_pickles_and_two_calls(norm):
    layer = norm(mt.nn.Linear(3, 4))
    net = mt.nn.Sequential(layer, mt.nn.Linear(4, 1))
    x = mt.ones(2, 3)
    (net(x).sum() + net(2 * x).sum()).backward()  # the graph of the first call stays whole
    net.eval()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert repr(other) == repr(net)
        np.testing.assert_array_equal(other(x).detach().numpy(), net(x).detach().numpy())
        assert list(other.state_dict()) == list(net.state_dict())
        with mt.no_grad():
            for parameter in other.parameters():
                parameter.add_(1.0)
    assert len({p.shape for p in net.parameters()}) > 1 and isinstance(layer, mt.nn.Linear)


@pytest.mark.parametrize("norm", [utils.weight_norm, utils.spectral_norm])
def test_a_captured_step_of_computed_weights_has_the_bits_of_the_eager_one(norm):
    def run(wrap):
        mt.manual_seed(3)
        net = mt.nn.Sequential(norm(mt.nn.Linear(3, 8)), mt.nn.Tanh(), mt.nn.Linear(8, 1))
        optimizer = mt.optim.Adam(net.parameters(), lr=0.01)

        def step(x):
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        rng = np.random.default_rng(0)
        for _ in range(6):
            step(mt.from_numpy(rng.standard_normal((4, 3)).astype(np.float32)))
        return [t.detach().numpy().tobytes() for t in net.state_dict().values()]

    assert run(lambda step: step) == run(lambda step: mt.compile(step, executor="numpy"))


@pytest.mark.parametrize("norm", [utils.weight_norm, utils.spectral_norm])
def test_computed_weights_on_several_ranks_are_those_of_one(norm):
    def main(comm):
        mt.manual_seed(3)
        net = mt.nn.Sequential(norm(mt.nn.Linear(3, 8).double()), mt.nn.Tanh())
        net = DataParallel(net, comm)
        optimizer = SGD(net.parameters(), lr=0.1)
        rows = np.random.default_rng(0).standard_normal((5, 3))[comm.rank :: comm.size]
        for _ in range(3):
            optimizer.zero_grad()
            (net(mt.from_numpy(rows.copy())) ** 2).mean().backward()
            optimizer.step()
        return [t.detach().numpy().copy() for t in net.state_dict().values()]

    (one,) = in_process.run(1, main)
    for found in in_process.run(3, main):
        for a, b in zip(one, found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (RuntimeError, lambda net: utils.weight_norm(net, "waight")),
        (RuntimeError, lambda net: utils.weight_norm(utils.weight_norm(net))),
        (RuntimeError, lambda net: utils.spectral_norm(mt.nn.Linear(2, 2, bias=False), "bias")),
        (ValueError, lambda net: utils.spectral_norm(net, n_power_iterations=0)),
        (ValueError, lambda net: utils.remove_weight_norm(net)),
        (ValueError, lambda net: utils.remove_weight_norm(utils.spectral_norm(net))),
        (IndexError, lambda net: utils.weight_norm(net, dim=2)),
        (IndexError, lambda net: utils.spectral_norm(net, dim=2)),
    ],
)
def test_weights_that_cannot_be_computed(kind, call):
    net = mt.nn.Linear(2, 3)
    before = type(net), list(net.state_dict())
    with pytest.raises(kind):
        call(net)
    utils.remove_weight_norm(net) if "weight_g" in net.state_dict() else None
    utils.remove_spectral_norm(net) if "weight_u" in net.state_dict() else None
    assert (type(net), sorted(net.state_dict())) == (before[0], sorted(before[1]))
