"""mt.onnx.export: onnxruntime gives what the model gives, at every number of rows."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from samples import SAMPLES

import microtrain as mt
import microtrain.nn.functional as F
from microtrain import nn
from microtrain.errors import ConfigError, LaunchError
from microtrain.onnx.exporter import RULES, graph_of
from microtrain.onnx.trace import trace
from microtrain.ops.coercion import REGISTRY

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


class Encoder(nn.Module):
    """A transformer encoder over word numbers."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.position = nn.Parameter(mt.randn(7, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x) + self.position).mean(1))


class Attention(nn.Module):
    """A class token before the sequence, a causal mask, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(mt.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        z = mt.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        mask = mt.triu(mt.ones(6, 6), diagonal=1).bool()
        attended, weights = self.attention(z, z, z, attn_mask=mask)
        return attended[:, 0], weights, F.scaled_dot_product_attention(z, z, z, is_causal=True)


class Function(nn.Module):
    """A function of Tensors as a model."""

    def __init__(self, function) -> None:
        super().__init__()
        self.weight = nn.Parameter(mt.randn(4, 4))
        self.function = function

    def forward(self, *inputs):
        return self.function(self.weight, *inputs)


def activations() -> nn.Module:
    names = """ReLU LeakyReLU ELU SELU CELU SiLU Sigmoid Tanh Softplus Hardtanh ReLU6 Hardsigmoid
    Hardswish Mish LogSigmoid Softsign Tanhshrink""".split()
    return nn.Sequential(nn.Linear(4, 5), *(getattr(nn, name)() for name in names))


def floats(*shape: int):
    return lambda: mt.randn(*shape)


MODELS = {
    "mlp": (
        lambda: nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.LayerNorm(8),
            nn.Linear(8, 3, bias=False), nn.Softmax(1),
        ),
        floats(1, 4),
    ),
    "activations": (activations, floats(2, 4)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 2, groups=2, bias=False), nn.GroupNorm(2, 6), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(6, 2),
        ),
        floats(2, 3, 16, 12),
    ),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 3, padding="same", dilation=2), nn.MaxPool1d(2), nn.Conv1d(3, 3, 4),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        ),
        floats(3, 2, 16),
    ),
    "pools": (
        lambda: nn.Sequential(
            nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 1, 1), nn.AvgPool2d(2, ceil_mode=True),
            nn.AdaptiveAvgPool2d(3), nn.AdaptiveMaxPool2d(2),
        ),
        floats(2, 3, 17, 13),
    ),
    "encoder": (Encoder, lambda: mt.randint(0, 11, (2, 7))),
    "encoder, norm first": (lambda: Encoder(norm_first=True), lambda: mt.randint(0, 11, (2, 7))),
    "attention": (Attention, floats(2, 5, 8)),
    "indices": (
        lambda: Function(
            lambda w, x: (
                x[:, 1:3] @ w, x[:, -1, ::2], x[:, [2, 0]], x[..., 1],
                x.flip(1), mt.cat(x.chunk(2, 1)[::-1], 1), mt.stack([x, x * 2], 1), x[:, None],
                x.transpose(1, 2), x.reshape(x.shape[0] * 4, 4),
                x.flatten(1), F.pad(x, (1, 2, -1, 0), value=3.0),
            )
        ),
        floats(2, 4, 4),
    ),
    "reductions": (
        lambda: Function(
            lambda w, x: (
                x.sum(), x.mean((1, 2)), x.var(1), x.std(2, keepdim=True), x.amax(1), x.argmax(1),
                x.norm(dim=1), x.logsumexp(2), x.cumsum(1), (x > 0).any(1), (x > -1).all(),
                F.normalize(x, dim=2), F.log_softmax(x, 2), x.amin((1, 2)),
            )
        ),
        floats(2, 4, 4),
    ),
    "arithmetic": (
        lambda: Function(
            lambda w, x: (
                1 / (x.abs() + 1), x**2, x.abs().sqrt(), 2 - x, -x, x.floor(),
                mt.where(x > 0, x, w), mt.maximum(x, w), x.clamp(-0.5, 0.5), x.exp().log1p(),
                ((x > 0) & ~(x > 1)).to(x.dtype), (x != x) | (x == w), x.to(mt.int64) * 2 + 0.5,
                x.detach() * 2, x + mt.arange(4), x + mt.zeros(x.shape[0], 4, 4),
                x.tril(), x.triu(1),
                mt.gather(x, 2, (x > 0).to(mt.int64)), x.expand(3, -1, -1, -1),
            )
        ),
        floats(2, 4, 4),
    ),
    "two inputs": (
        lambda: Function(lambda w, x, y: (x @ w, x + y.to(x.dtype))),
        lambda: (mt.randn(3, 4), mt.arange(12).reshape(3, 4)),
    ),
}  # fmt: skip


def run(path: Path, *inputs: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path))
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def check(model: nn.Module, example: tuple, path: Path, tolerance: float) -> None:
    """The graph against the model, at other numbers of rows and with other values."""
    mt.onnx.export(model, example, path)
    training = model.training
    model.eval()
    rng = np.random.default_rng(1)
    for rows in (1, 2, 5):
        arrays = [
            rng.permuted(np.resize(x.numpy(), (rows, *x.shape[1:]))).astype(x.numpy().dtype)
            for x in example
        ]
        with mt.no_grad():
            expected = model(*map(mt.from_numpy, arrays))
        expected = expected if isinstance(expected, tuple) else (expected,)
        for one, other in zip(run(path, *arrays), expected, strict=True):
            other = other.numpy()
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert np.abs(one.astype(float) - other).max() <= tolerance
    model.train(training)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODELS)
def test_onnxruntime_gives_what_the_model_gives(tmp_path: Path, name: str, dtype: str) -> None:
    mt.manual_seed(0)
    build, make = MODELS[name]
    model, example = build().to(mt.dtype(dtype)), make()
    example = example if isinstance(example, tuple) else (example,)
    example = tuple(x.to(mt.dtype(dtype)) if x.is_floating_point() else x for x in example)
    for module in model.modules():  # statistics that are not 0 and 1
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    check(model, example, tmp_path / "m.onnx", 2e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize(
    "model", [nn.GELU(), nn.GELU(approximate="tanh"), nn.ConvTranspose2d(2, 3, 3, 2, 1, 1)]
)
def test_what_onnxruntime_has_in_single_precision_alone(tmp_path: Path, model) -> None:
    check(model, (mt.randn(2, 2, 4, 5),), tmp_path / "m.onnx", 2e-6)


RECURRENT = [
    (kind, options)
    for kind in ("LSTM", "GRU", "RNN")
    for options in ({}, {"num_layers": 2, "bidirectional": True}, {"bias": False})
]


@pytest.mark.skipif(not hasattr(nn, "LSTM"), reason="needs the recurrent layers")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind, options", RECURRENT)
def test_recurrent_layers(tmp_path: Path, kind: str, options: dict, batch_first: bool) -> None:
    mt.manual_seed(0)
    layer = getattr(nn, kind)(3, 5, batch_first=True, **options)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x):
            output, state = self.layer(x)
            hidden = state[0] if isinstance(state, tuple) else state
            return (output, hidden.transpose(0, 1)) if batch_first else output[:, -1]

    check(Model(), (mt.randn(2, 7, 3),), tmp_path / "m.onnx", 2e-6)


def test_the_graph_has_names_and_a_size_for_the_batch(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    options = {"input_names": ["features"], "output_names": ["scores"]}
    mt.onnx.export(net, mt.randn(1, 4), tmp_path / "m.onnx", **options)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (given,), (found,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape) == ("features", ["batch", 4])
    assert (found.name, found.shape) == ("scores", ["batch", 3])
    weights = {one.name for one in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert weights == {"0.weight", "0.bias"}
    with pytest.raises(ValueError, match="input_names: expected 1 different names"):
        mt.onnx.export(net, mt.randn(1, 4), tmp_path / "m.onnx", input_names=["a", "b"])


def test_an_export_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    net[1].eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = mt.random.get_rng_state()
    mt.onnx.export(net, mt.randn(2, 4), tmp_path / "m.onnx")
    assert net.training
    assert not net[1].training
    assert all(mt.equal(before[name], value) for name, value in net.state_dict().items())
    assert not any(module._any_hooks() for module in net.modules())
    assert mt.random.get_rng_state() != state  # by the example alone
    assert (mt.ones(2) + mt.ones(2)).tolist() == [2, 2]
    x = mt.ones(2, requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_other_threads_compute_meanwhile(tmp_path: Path) -> None:
    stop, wrong = threading.Event(), []

    def compute() -> None:
        while not stop.is_set():
            x = mt.ones(3, requires_grad=True)
            (mt.cat([x, x]) * 2).sum().backward()
            if x.grad.tolist() != [4, 4, 4]:
                wrong.append(x.grad)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(3):
            check(MODELS["mlp"][0](), (mt.randn(1, 4),), tmp_path / "m.onnx", 2e-6)
    finally:
        stop.set()
        thread.join()
    assert not wrong


def _in_place(w, x):
    y = x * 2
    y.add_(1)
    return y


def test_nested_outputs_are_given_one_after_the_other(tmp_path: Path) -> None:
    model = Function(lambda w, x: {"a": x @ w, "more": (x + 1, None, [x.sum(1)])})
    mt.onnx.export(model, mt.ones(2, 4), tmp_path / "m.onnx")
    found = run(tmp_path / "m.onnx", np.ones((3, 4), np.float32))
    assert [one.shape for one in found] == [(3, 4), (3, 4), (3,)]


def test_numbers_of_other_dtypes_and_names_that_are_taken(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input = nn.Parameter(mt.ones(4))
            self.output = nn.Parameter(mt.ones(4))

        def forward(self, x):
            y = x * self.input * mt.tensor(0.1, dtype=mt.float64) + self.output
            return y, mt.arange(4) > 1.5, x > mt.tensor(1), (x > 0) * 2.5, mt.arange(4) / 2

    check(Model(), (mt.randn(2, 4),), tmp_path / "m.onnx", 1e-6)


REFUSED = {
    "if": (lambda w, x: x * 2 if x.sum() > 0 else x, r"bool\(\) looks at values.*mt.where"),
    "if on rows": (lambda w, x: x * 2 if x.shape[0] == 3 else x, "which operations run"),
    "squeeze": (lambda w, x: (x @ w[:1].T).squeeze(), r"for one row its outputs have shapes"),
    "item": (lambda w, x: x * x.max().item(), r"item\(\) looks at"),
    "numpy": (lambda w, x: x + mt.from_numpy(x.numpy() * 2), r"numpy\(\) looks at"),
    "memory": (lambda w, x: x + mt.from_numpy(x._array * 2), "a constant"),
    "the number of rows as a number": (lambda w, x: x.sum(0) / x.shape[0], "number of rows"),
    "rows in a slice": (lambda w, x: x.repeat(2, 1)[: x.shape[0]], "number of rows|repeat|no ONNX"),
    "random": (lambda w, x: x + mt.randn(4), "a constant"),
    "in place": (_in_place, "written to in place"),
    "no form": (lambda w, x: x.sort(1)[0] + x.cummax(1)[0], "has no ONNX form"),
    "no Tensor": (lambda w, x: (x, 3), "it returned int"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_graph_can_say_is_refused(tmp_path: Path, name: str) -> None:
    function, message = REFUSED[name]
    model = nn.Sequential(nn.Linear(4, 4), Function(function))
    with pytest.raises(RuntimeError, match=f"cannot export.*({message})"):
        mt.onnx.export(model, mt.ones(2, 4), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_an_operation_without_a_form_is_named_with_its_layer(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Function(lambda w, x: x @ w.inverse()))
    with pytest.raises(RuntimeError, match=r"layer 1 \(Function\): the operation inverse has no"):
        mt.onnx.export(model, mt.ones(2, 4), tmp_path / "m.onnx")


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    with pytest.raises(TypeError, match="model: expected a Module"):
        mt.onnx.export(F.relu, mt.ones(1, 4), tmp_path / "m.onnx")
    with pytest.raises(TypeError, match="args: expected Tensors, got ndarray"):
        mt.onnx.export(net, np.ones((1, 4)), tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="the first dimension of every input is the batch"):
        mt.onnx.export(net, mt.ones(0, 4), tmp_path / "m.onnx")
    with pytest.raises(LaunchError, match="cannot write"):
        mt.onnx.export(net, mt.ones(1, 4), tmp_path / "nowhere" / "m.onnx")


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"\.\[onnx\]"):
        mt.onnx.export(nn.Linear(4, 1), mt.ones(1, 4), tmp_path / "m.onnx")


# Operation by operation ---------------------------------------------------------------------------

CALLS = [
    pytest.param(name, sample, id=f"{name} {sample}")
    for name in sorted(RULES)
    for sample in SAMPLES.get(name, ())
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name, sample", CALLS)
def test_the_nodes_of_an_operation_give_its_values(monkeypatch, name: str, sample) -> None:
    """Every sample of the operator database, in single precision and as it is: no batch."""

    def tensor(value):
        array = np.asarray(value)
        return mt.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)

    given = [value for value in sample.arrays if isinstance(value, np.ndarray)]

    def function(_, *tensors):
        left = iter(tensors)
        arguments = [next(left) if isinstance(v, np.ndarray) else v for v in sample.arrays]
        several = (tuple(arguments),) if name == "cat" else arguments
        return REGISTRY[name].apply(*several, **sample.attrs)

    def traced(model, inputs, run):
        with mt.no_grad():
            return trace(model, inputs)

    monkeypatch.setattr("microtrain.onnx.exporter._traced", traced)
    inputs = tuple(map(tensor, given))
    if not inputs or not all(x.numel() for x in inputs):
        pytest.skip("no elements")
    with mt.no_grad():
        expected = function(None, *inputs).numpy()
    try:
        proto = graph_of(Function(function), inputs)
        session = onnxruntime.InferenceSession(proto.SerializeToString())
    except RuntimeError as error:
        if "cannot export" not in str(error):
            raise
        pytest.skip(str(error))
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        pytest.skip(str(error))
    names = [value.name for value in session.get_inputs()]
    feeds = {n: x.numpy() for n, x in zip(names, inputs, strict=True)}
    (found,) = session.run(None, feeds)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
