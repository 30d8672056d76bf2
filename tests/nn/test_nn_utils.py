"""Clipping of gradients, parameters as one vector: torch's numbers, flat storage or not."""

import math

import numpy as np
import pytest

import microtrain as mt
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
