"""Convolution, pooling and padding as layers: text, state, initialization, training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import microtrain as mt
from microtrain import nn

LAYERS: list[tuple[str, str, Any]] = [  # constructor, text, input and output shape
    (
        "Conv2d(1, 16, 3, padding=1)",
        "Conv2d(1, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))",
        ((2, 1, 5, 4), (2, 16, 5, 4)),
    ),
    (
        "Conv2d(4, 6, (3, 2), stride=2, dilation=(1, 2), groups=2, bias=False)",
        "Conv2d(4, 6, kernel_size=(3, 2), stride=(2, 2), dilation=(1, 2), groups=2, bias=False)",
        ((4, 7, 7), (6, 3, 3)),
    ),
    (
        "Conv2d(2, 3, 3, padding='same', padding_mode='reflect')",
        "Conv2d(2, 3, kernel_size=(3, 3), stride=(1, 1), padding=same, padding_mode=reflect)",
        ((2, 2, 5, 4), (2, 3, 5, 4)),
    ),
    (
        "Conv2d(2, 3, 2, padding='valid', padding_mode='circular')",
        "Conv2d(2, 3, kernel_size=(2, 2), stride=(1, 1), padding=valid, padding_mode=circular)",
        ((2, 2, 5, 4), (2, 3, 4, 3)),
    ),
    (
        "Conv1d(3, 4, 5, 2)",
        "Conv1d(3, 4, kernel_size=(5,), stride=(2,))",
        ((2, 3, 9), (2, 4, 3)),
    ),
    (
        "ConvTranspose2d(3, 4, 3, 2, output_padding=1)",
        "ConvTranspose2d(3, 4, kernel_size=(3, 3), stride=(2, 2), output_padding=(1, 1))",
        ((2, 3, 4, 4), (2, 4, 10, 10)),
    ),
    (
        "ConvTranspose1d(4, 2, 3, padding=1, groups=2)",
        "ConvTranspose1d(4, 2, kernel_size=(3,), stride=(1,), padding=(1,), groups=2)",
        ((4, 5), (2, 5)),
    ),
    (
        "MaxPool2d(2)",
        "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)",
        ((2, 3, 4, 5), (2, 3, 2, 2)),
    ),
    (
        "MaxPool1d(3, 2, 1, ceil_mode=True)",
        "MaxPool1d(kernel_size=3, stride=2, padding=1, dilation=1, ceil_mode=True)",
        ((3, 6), (3, 4)),
    ),
    (
        "AvgPool2d((2, 1))",
        "AvgPool2d(kernel_size=(2, 1), stride=(2, 1), padding=0)",
        ((1, 4, 3), (1, 2, 3)),
    ),
    ("AvgPool1d(2)", "AvgPool1d(kernel_size=(2,), stride=(2,), padding=(0,))", ((1, 4), (1, 2))),
    ("AdaptiveAvgPool2d(1)", "AdaptiveAvgPool2d(output_size=1)", ((2, 3, 4, 5), (2, 3, 1, 1))),
    ("AdaptiveAvgPool1d(2)", "AdaptiveAvgPool1d(output_size=2)", ((2, 3, 5), (2, 3, 2))),
    (
        "AdaptiveMaxPool2d((2, None))",
        "AdaptiveMaxPool2d(output_size=(2, None))",
        ((3, 4, 5), (3, 2, 5)),
    ),
    ("AdaptiveMaxPool1d(2)", "AdaptiveMaxPool1d(output_size=2)", ((2, 3, 5), (2, 3, 2))),
    (
        "Unfold(2)",
        "Unfold(kernel_size=2, dilation=1, padding=0, stride=1)",
        ((2, 3, 4, 4), (2, 12, 9)),
    ),
    (
        "Fold((4, 4), 2)",
        "Fold(output_size=(4, 4), kernel_size=2, dilation=1, padding=0, stride=1)",
        ((2, 12, 9), (2, 3, 4, 4)),
    ),
    ("ZeroPad2d(1)", "ZeroPad2d((1, 1, 1, 1))", ((1, 2, 2), (1, 4, 4))),
    ("ZeroPad1d((1, 2))", "ZeroPad1d((1, 2))", ((1, 2), (1, 5))),
    (
        "ConstantPad2d(1, 3.5)",
        "ConstantPad2d(padding=(1, 1, 1, 1), value=3.5)",
        ((1, 2, 2), (1, 4, 4)),
    ),
    ("ConstantPad1d(1, 2)", "ConstantPad1d(padding=(1, 1), value=2)", ((1, 2), (1, 4))),
    ("ReflectionPad2d((1, 0, 0, 1))", "ReflectionPad2d((1, 0, 0, 1))", ((1, 2, 2), (1, 3, 3))),
    ("ReflectionPad1d(1)", "ReflectionPad1d((1, 1))", ((1, 2), (1, 4))),
    ("ReplicationPad2d(3)", "ReplicationPad2d((3, 3, 3, 3))", ((1, 2, 2), (1, 8, 8))),
    ("ReplicationPad1d(3)", "ReplicationPad1d((3, 3))", ((1, 2), (1, 8))),
    ("CircularPad2d(2)", "CircularPad2d((2, 2, 2, 2))", ((1, 2, 2), (1, 6, 6))),
    ("CircularPad1d(2)", "CircularPad1d((2, 2))", ((1, 2), (1, 6))),
]


def made(text: str, library: Any) -> Any:
    name, _, arguments = text.partition("(")
    return eval(f"f({arguments}", {"f": getattr(library, name)})


@pytest.mark.parametrize(("text", "shown", "shapes"), LAYERS, ids=[one[0] for one in LAYERS])
def test_text_and_shape(text: str, shown: str, shapes: Any) -> None:
    layer = made(text, nn)
    assert repr(layer) == shown
    assert repr(layer.eval()) == shown
    assert layer(mt.ones(*shapes[0])).shape == shapes[1]


@pytest.mark.parametrize("text", [one[0] for one in LAYERS])
def test_layer_is_torchs(text: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ours, theirs = made(text, nn), made(text, torch.nn)
    assert repr(ours) == repr(theirs)
    state = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    assert not any(ours.load_state_dict(state))
    shape = next(shapes for one, _, shapes in LAYERS if one == text)[0]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    a, b = mt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = ours(a), theirs(b)
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=1e-4, atol=1e-5)
    (y * y).sum().backward()
    (z * z).sum().backward()
    pairs = [(a, b), *zip(ours.parameters(), theirs.parameters(), strict=True)]
    for mine, other in pairs:
        np.testing.assert_allclose(mine.grad.numpy(), other.grad.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        (lambda: nn.Conv2d(8, 64, (3, 2)), 1 / math.sqrt(48)),
        (lambda: nn.Conv1d(8, 64, 5, groups=2), 1 / math.sqrt(20)),
        (lambda: nn.ConvTranspose2d(8, 64, 3), 1 / math.sqrt(64 * 9)),
    ],
)
def test_initialization_is_uniform_between_torchs_bounds(layer: Any, bound: float) -> None:
    mt.manual_seed(0)
    made = layer()
    for values in (made.weight.detach().numpy(), made.bias.detach().numpy()):
        assert np.abs(values).max() <= bound
        assert np.abs(values).max() > 0.9 * bound
        assert abs(values.mean()) < 0.3 * bound
    mt.manual_seed(0)
    assert mt.equal(layer().weight, made.weight)


@pytest.mark.parametrize(
    "call",
    [
        lambda: nn.Conv2d(3, 4, 3, groups=2),
        lambda: nn.Conv2d(4, 3, 3, groups=2),
        lambda: nn.Conv2d(4, 4, 3, groups=0),
        lambda: nn.Conv2d(4, 4, 3, padding="full"),
        lambda: nn.Conv2d(4, 4, 3, padding="same", stride=2),
        lambda: nn.Conv2d(4, 4, 3, padding_mode="mirror"),
        lambda: nn.ConvTranspose2d(4, 4, 3, padding_mode="reflect"),
    ],
)
def test_refused_arguments(call: Any) -> None:
    with pytest.raises(ValueError):
        call()


def test_dtype_and_memory() -> None:
    layer = nn.Conv2d(2, 3, 3, dtype=mt.float64)
    assert layer.weight.dtype == layer.bias.dtype == mt.float64
    assert layer.weight.is_contiguous()
    assert layer(mt.zeros(1, 2, 4, 4, dtype=mt.float64)).is_contiguous()
    assert layer.float().weight.dtype == mt.float32


def test_indices_of_maxima() -> None:
    values, places = nn.MaxPool2d(2, return_indices=True)(mt.arange(16.0).reshape(1, 4, 4))
    assert values.tolist() == [[[5.0, 7.0], [13.0, 15.0]]]
    assert places.tolist() == [[[5, 7], [13, 15]]]
    assert nn.AdaptiveMaxPool1d(1, return_indices=True)(mt.ones(1, 3))[1].tolist() == [[0]]


def test_a_small_network_learns_where_the_bright_half_is() -> None:
    mt.manual_seed(0)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 64)
    x = rng.random((64, 1, 8, 8)).astype(np.float32)
    x[np.arange(64), :, :, :4] += y[:, None, None, None] * 1.0
    x[np.arange(64), :, :, 4:] += 1.0 - y[:, None, None, None]
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 8, 3, padding="same"), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(8, 2, 2), nn.AdaptiveAvgPool2d(1),
    )  # fmt: skip
    optimizer = mt.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    inputs, target = mt.tensor(x), mt.tensor(y)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs).flatten(1), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert all(p.grad._array.base is not None for p in net.parameters())


# Initializers -------------------------------------------------------------------------------------

WIDE = (400, 30, 2)  # fan in 60, fan out 800


@pytest.mark.parametrize(
    ("name", "args", "deviation"),
    [
        ("kaiming_uniform_", {}, math.sqrt(2 / 60)),
        ("kaiming_uniform_", {"a": math.sqrt(5)}, math.sqrt(1 / 180)),
        ("kaiming_uniform_", {"mode": "fan_out", "nonlinearity": "relu"}, math.sqrt(2 / 800)),
        ("kaiming_normal_", {}, math.sqrt(2 / 60)),
        ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "tanh"}, 5 / 3 / math.sqrt(800)),
        ("xavier_uniform_", {}, math.sqrt(2 / 860)),
        ("xavier_normal_", {"gain": 3.0}, 3 * math.sqrt(2 / 860)),
        ("trunc_normal_", {"std": 0.02}, 0.02),
        ("trunc_normal_", {}, 0.8796),
        ("trunc_normal_", {"mean": 1.0, "a": 1.0, "b": 9.0}, math.sqrt(1 - 2 / math.pi)),
    ],
)
def test_deviation_of_an_initializer(name: str, args: Any, deviation: float) -> None:
    mt.manual_seed(1)
    x = mt.empty(*WIDE)
    assert getattr(nn.init, name)(x, **args) is x
    values = x.numpy()
    assert values.std() == pytest.approx(deviation, rel=0.02)
    if "uniform" in name:
        assert np.abs(values).max() == pytest.approx(math.sqrt(3) * deviation, rel=1e-3)
        assert np.abs(values).max() <= math.sqrt(3) * deviation * (1 + 1e-6)
    if name == "trunc_normal_":
        assert values.min() >= args.get("a", -2)
        assert values.max() <= args.get("b", 2)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (4, 2, 3), (3, 3)])
def test_orthogonal(shape: Any) -> None:
    x = nn.init.orthogonal_(mt.empty(*shape, dtype=mt.float64), gain=2.0).numpy()
    flat = x.reshape(shape[0], -1)
    product = flat @ flat.T if len(flat) <= flat.shape[1] else flat.T @ flat
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-12)


def test_gains_are_torchs() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for name in ("linear", "conv2d", "conv_transpose1d", "sigmoid", "tanh", "relu", "selu"):
        assert nn.init.calculate_gain(name) == torch.nn.init.calculate_gain(name)
    for slope in (None, 0.2, 1):
        ours = nn.init.calculate_gain("leaky_relu", slope)
        assert ours == torch.nn.init.calculate_gain("leaky_relu", slope)


@pytest.mark.parametrize(
    "call",
    [
        lambda: nn.init.calculate_gain("swish"),
        lambda: nn.init.calculate_gain("leaky_relu", "0.1"),
        lambda: nn.init.kaiming_normal_(mt.ones(3)),
        lambda: nn.init.xavier_uniform_(mt.ones(3)),
        lambda: nn.init.orthogonal_(mt.ones(3)),
        lambda: nn.init.kaiming_uniform_(mt.ones(3, 3), mode="fan"),
        lambda: nn.init.trunc_normal_(mt.ones(3), a=5.0, b=6.0),
        lambda: nn.init.trunc_normal_(mt.ones(3), std=0.0),
    ],
)
def test_initializers_refuse(call: Any) -> None:
    with pytest.raises(ValueError):
        call()
