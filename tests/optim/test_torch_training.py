"""The two examples of the tutorials, step by step beside torch, from the same initial arrays."""

import numpy as np
import pytest

import microtrain as mt

torch = pytest.importorskip("torch")

STEPS = 500


def linear_regression(lib, *, flat):
    """y = 2 x + 3 with noise, by a module, a loss module and an optimizer."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 1))
    y = 2 * x + 3 + 0.5 * rng.standard_normal((100, 1))
    x, y = lib.from_numpy(x), lib.from_numpy(y)
    model = lib.nn.Linear(1, 1).double()
    with lib.no_grad():
        model.weight.copy_(lib.from_numpy(rng.standard_normal((1, 1))))
        model.bias.copy_(lib.from_numpy(rng.standard_normal(1)))
    criterion = lib.nn.MSELoss()
    optimizer = lib.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) if flat else None
    for _ in range(STEPS):
        loss = criterion(model(x), y)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            model.zero_grad()
            loss.backward()
            with lib.no_grad():
                for p in model.parameters():
                    p -= 0.05 * p.grad
        yield loss.item(), *(p.detach().numpy().copy() for p in model.parameters())


def two_layer_relu(lib, *, flat):
    """64 samples, 1000 features, 100 hidden units, 10 outputs; the summed squared error."""
    rng = np.random.default_rng(1)
    x, y, a, b = (
        lib.from_numpy(rng.standard_normal(shape))
        for shape in ((64, 1000), (64, 10), (1000, 100), (100, 10))
    )
    w1, w2 = a.requires_grad_(), b.requires_grad_()
    optimizer = lib.optim.SGD([w1, w2], lr=1e-6) if flat else None
    for _ in range(STEPS):
        loss = (x.mm(w1).clamp(min=0).mm(w2) - y).pow(2).sum()
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            loss.backward()
            with lib.no_grad():
                w1 -= 1e-6 * w1.grad
                w2 -= 1e-6 * w2.grad
                w1.grad.zero_()
                w2.grad.zero_()
        yield loss.item(), w1.detach().numpy().copy(), w2.detach().numpy().copy()


@pytest.mark.parametrize("flat", [True, False], ids=["optimizer", "by hand"])
@pytest.mark.parametrize("example", [linear_regression, two_layer_relu])
def test_trajectories_equal_torch(example, flat):
    first = last = None
    for ours, theirs in zip(example(mt, flat=flat), example(torch, flat=flat), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
        first, last = first or ours[0], ours[0]
    if example is linear_regression:
        assert ours[1:] == pytest.approx((2, 3), abs=0.15)
    else:
        assert last < first / 1e3
