"""Activations, reshaping modules and ModuleDict: arguments, text, copies, state."""

import copy
import inspect
import pickle

import numpy as np
import pytest

import microtrain as mt
from microtrain import nn

F = nn.functional

# text: the module, and the function with its arguments
MODULES = {
    "ReLU()": (lambda n: n.ReLU(), F.relu, {}),
    "ReLU(inplace=True)": (lambda n: n.ReLU(True), F.relu, {}),
    "Sigmoid()": (lambda n: n.Sigmoid(), F.sigmoid, {}),
    "Tanh()": (lambda n: n.Tanh(), F.tanh, {}),
    "GELU(approximate='none')": (lambda n: n.GELU(), F.gelu, {}),
    "GELU(approximate='tanh')": (lambda n: n.GELU("tanh"), F.gelu, {"approximate": "tanh"}),
    "SiLU()": (lambda n: n.SiLU(), F.silu, {}),
    "SiLU(inplace=True)": (lambda n: n.SiLU(inplace=True), F.silu, {}),
    "Mish()": (lambda n: n.Mish(), F.mish, {}),
    "Softplus(beta=1.0, threshold=20.0)": (lambda n: n.Softplus(), F.softplus, {}),
    "Softplus(beta=2, threshold=0.5)": (
        lambda n: n.Softplus(2, threshold=0.5), F.softplus, {"beta": 2, "threshold": 0.5},
    ),
    "LogSigmoid()": (lambda n: n.LogSigmoid(), F.logsigmoid, {}),
    "ELU(alpha=1.0)": (lambda n: n.ELU(), F.elu, {}),
    "ELU(alpha=2, inplace=True)": (lambda n: n.ELU(2, True), F.elu, {"alpha": 2}),
    "SELU()": (lambda n: n.SELU(), F.selu, {}),
    "CELU(alpha=0.5)": (lambda n: n.CELU(0.5), F.celu, {"alpha": 0.5}),
    "LeakyReLU(negative_slope=0.01)": (lambda n: n.LeakyReLU(), F.leaky_relu, {}),
    "LeakyReLU(negative_slope=0.2, inplace=True)": (
        lambda n: n.LeakyReLU(0.2, inplace=True), F.leaky_relu, {"negative_slope": 0.2},
    ),
    "Threshold(threshold=0.1, value=-3.0)": (
        lambda n: n.Threshold(0.1, -3.0), F.threshold, {"threshold": 0.1, "value": -3.0},
    ),
    "Hardtanh(min_val=-1.0, max_val=1.0)": (lambda n: n.Hardtanh(), F.hardtanh, {}),
    "Hardtanh(min_val=0, max_val=0.5)": (
        lambda n: n.Hardtanh(0, 0.5), F.hardtanh, {"min_val": 0, "max_val": 0.5},
    ),
    "ReLU6()": (lambda n: n.ReLU6(), F.relu6, {}),
    "Hardsigmoid()": (lambda n: n.Hardsigmoid(), F.hardsigmoid, {}),
    "Hardswish()": (lambda n: n.Hardswish(), F.hardswish, {}),
    "Softsign()": (lambda n: n.Softsign(), F.softsign, {}),
    "Tanhshrink()": (lambda n: n.Tanhshrink(), F.tanhshrink, {}),
    "Softmax(dim=0)": (lambda n: n.Softmax(0), F.softmax, {"dim": 0}),
    "LogSoftmax(dim=-1)": (lambda n: n.LogSoftmax(dim=-1), F.log_softmax, {"dim": -1}),
    "Softmin(dim=1)": (lambda n: n.Softmin(dim=1), F.softmin, {"dim": 1}),
    "GLU(dim=-1)": (lambda n: n.GLU(), F.glu, {}),
    "GLU(dim=0)": (lambda n: n.GLU(0), F.glu, {"dim": 0}),
    "PReLU(num_parameters=6)": (
        lambda n: n.PReLU(6, init=0.5), F.prelu, {"weight": mt.full((6,), 0.5)},
    ),
    "Identity()": (lambda n: n.Identity(3, anything="at all"), lambda x: x, {}),
    "Flatten(start_dim=1, end_dim=-1)": (lambda n: n.Flatten(), lambda x: x.reshape(4, 6), {}),
    "Flatten(start_dim=0, end_dim=1)": (lambda n: n.Flatten(0, 1), lambda x: x.reshape(24), {}),
    "Unflatten(dim=1, unflattened_size=(3, 2))": (
        lambda n: n.Unflatten(1, (3, 2)), lambda x: x.reshape(4, 3, 2), {},
    ),
    "Unflatten(dim=-2, unflattened_size=[2, -1])": (
        lambda n: n.Unflatten(-2, [2, -1]), lambda x: x.reshape(2, 2, 6), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", MODULES)
def test_module_is_its_function(text):
    make, function, options = MODULES[text]
    module = make(nn)
    assert repr(module) == text
    for twin in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert (type(twin), repr(twin), vars(twin).keys()) == (
            type(module), text, vars(module).keys(),
        )  # fmt: skip
        x = mt.randn(4, 6)
        expected = function(x, **options)
        out = twin(x)
        assert np.array_equal(out.detach().numpy(), expected.numpy())
        assert (out is x) == ("inplace=True" in text or text == "Identity()")


@pytest.mark.parametrize("text", MODULES)
def test_text_is_as_in_torch(text):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert repr(MODULES[text][0](torch.nn)) == text


def test_options_are_attributes_that_may_change():
    module = nn.LeakyReLU(0.5)
    x = mt.tensor([-2.0, 2.0])
    assert module(x).tolist() == [-1.0, 2.0]
    module.negative_slope = 0.25
    assert module(x).tolist() == [-0.5, 2.0]
    assert nn.LeakyReLU().negative_slope == 0.01
    assert list(inspect.signature(nn.Hardtanh).parameters) == ["min_val", "max_val", "inplace"]


def test_a_subclass_of_an_activation_is_an_ordinary_module():
    class Shifted(nn.ELU):
        shift: float

        def __init__(self, shift):
            super().__init__(alpha=2.0)
            self.shift = shift

        def forward(self, input):
            return super().forward(input) + self.shift

    module = Shifted(1.0)
    assert module(mt.zeros(2)).tolist() == [1.0, 1.0]
    assert repr(module) == "Shifted(alpha=2.0)"


@pytest.mark.parametrize("make", [nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Threshold])
def test_arguments_without_a_default_must_be_given(make):
    with pytest.raises(TypeError, match="missing"):
        make()
    with pytest.raises(TypeError, match="unexpected keyword"):
        nn.ReLU(slope=1)


def test_in_place_in_a_network_gives_the_same_gradients():
    mt.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.SiLU())
    written = nn.Sequential(plain[0], nn.ReLU(inplace=True), plain[2], nn.SiLU(inplace=True))
    x = mt.randn(5, 3)
    found = [mt.autograd.grad(n(x).sum(), list(plain.parameters())) for n in (plain, written)]
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a.numpy(), b.numpy())


def test_prelu_learns_its_weight():
    layer = nn.PReLU(2, init=1)
    assert (layer.weight.dtype, layer.weight.tolist()) == (mt.float32, [1.0, 1.0])
    assert list(layer.state_dict()) == ["weight"]
    layer(mt.tensor([[-3.0, 1.0], [-1.0, -2.0]])).sum().backward()
    assert layer.weight.grad.tolist() == [-4.0, -2.0]
    with mt.no_grad():
        layer.weight.fill_(7)
    layer.reset_parameters()
    assert layer.weight.tolist() == [1.0, 1.0]
    assert nn.PReLU(dtype=mt.float64).weight.dtype == mt.float64


def test_reshaping_gives_views_and_refuses_what_does_not_fit():
    x = mt.zeros(2, 12)
    nn.Unflatten(1, (3, 4))(x)[0, 0, 0] = 5
    assert x[0, 0].item() == 5
    assert nn.Unflatten(1, (3, -1))(mt.zeros(0, 12)).shape == (0, 3, 4)
    for sizes in ((5, 2), (5, -1), (-1, -1)):
        with pytest.raises(RuntimeError, match=r"multiply up to the size of dim 1 \(12\)"):
            nn.Unflatten(1, sizes)(x)
    with pytest.raises(IndexError, match="out of range"):
        nn.Unflatten(2, (3, 4))(x)
    with pytest.raises(TypeError, match="tuple of ints, got int"):
        nn.Unflatten(1, 12)


# ModuleDict ---------------------------------------------------------------------------------------


def test_moduledict_is_a_dictionary():
    a, b, c = nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)
    box = nn.ModuleDict({"z": a, "b": b})
    box["a"] = c
    assert (list(box), list(box.keys()), len(box)) == (["z", "b", "a"], ["z", "b", "a"], 3)
    assert (list(box.values()), list(box.items())) == ([a, b, c], [("z", a), ("b", b), ("a", c)])
    assert ("z" in box, "y" in box, "training" in box, 3 in box) == (True, False, False, False)
    box["z"] = b  # keeps its place
    assert list(box.items()) == [("z", b), ("b", b), ("a", c)]
    assert box.pop("b") is b
    del box["z"]
    box.update([("x", a)])
    box.update(nn.ModuleDict({"y": b}))
    assert list(box.items()) == [("a", c), ("x", a), ("y", b)]
    assert repr(nn.ModuleDict({"act": nn.ReLU()})) == "ModuleDict(\n  (act): ReLU()\n)"
    box.clear()
    assert (len(box), list(box), repr(box)) == (0, [], "ModuleDict()")
    assert len(nn.ModuleDict()) == 0


def test_moduledict_is_a_module():
    box = nn.ModuleDict([("two", nn.Linear(1, 2)), ("one", nn.Linear(1, 1, bias=False))])
    names = ["two.weight", "two.bias", "one.weight"]
    assert list(box.state_dict()) == [n for n, _ in box.named_parameters()] == names
    twin = pickle.loads(pickle.dumps(copy.deepcopy(box)))
    assert list(twin) == ["two", "one"]
    assert not box.eval()["one"].training
    with pytest.raises(NotImplementedError, match="must define forward"):
        box(1)


@pytest.mark.parametrize(
    ("name", "module", "error", "says"),
    [
        ("a", nn.ReLU, TypeError, "the class ReLU; did you mean an instance"),
        ("a", 3, TypeError, "takes Modules, got int"),
        (3, nn.ReLU(), TypeError, "names are text, got int"),
        ("a.b", nn.ReLU(), KeyError, "is empty, holds a dot"),
        ("", nn.ReLU(), KeyError, "is empty, holds a dot"),
        ("keys", nn.ReLU(), KeyError, "is an attribute"),
        ("training", nn.ReLU(), KeyError, "is an attribute"),
    ],
)
def test_moduledict_refuses(name, module, error, says):
    box = nn.ModuleDict({"first": nn.Tanh()})
    with pytest.raises(error, match=says):
        box[name] = module
    assert list(box) == ["first"]


def test_moduledict_names_what_there_is():
    box = nn.ModuleDict({"first": nn.Tanh(), "second": nn.Tanh()})
    for use in (lambda: box["third"], lambda: box.pop("third"), lambda: box["training"]):
        with pytest.raises(KeyError, match="there are first, second"):
            use()
