"""Modules: the tree, its state, its text; layers and losses; initialization."""

import copy
import inspect
import math
from collections import OrderedDict

import numpy as np
import pytest

import microtrain as mt
from microtrain import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(mt.ones(2))
        self.first = nn.Linear(3, 2)
        self.register_buffer("mean", mt.zeros(2))
        self.register_buffer("cache", mt.zeros(1), persistent=False)
        self.act = nn.ReLU()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1, bias=False))

    def forward(self, x):
        return self.body(self.act(self.first(x)) * self.scale)


NAMES = ["scale", "first.weight", "first.bias", "body.0.weight", "body.0.bias", "body.2.weight"]


# The tree -----------------------------------------------------------------------------------------


def test_everything_comes_in_definition_order():
    net = Net()
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert [id(p) for p in net.parameters()] == [id(p) for _, p in net.named_parameters()]
    assert [name for name, _ in net.named_buffers()] == ["mean", "cache"]
    assert [name for name, _ in net.named_children()] == ["first", "act", "body"]
    assert [name for name, _ in net.named_modules()] == [
        "", "first", "act", "body", "body.0", "body.1", "body.2",
    ]  # fmt: skip
    assert [n for n, _ in net.named_parameters("net")] == [f"net.{name}" for name in NAMES]
    assert [n for n, _ in net.named_parameters(recurse=False)] == ["scale"]
    assert list(net.state_dict()) == [*NAMES[:3], "mean", *NAMES[3:]]


def test_tied_parameters_are_listed_once_and_stored_by_every_name():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    assert [n for n, _ in net.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert list(net.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    net.load_state_dict(net.state_dict())
    clone = copy.deepcopy(net)
    assert clone[1].weight is clone[0].weight is not net[0].weight


def test_a_module_used_twice():
    shared = nn.Linear(2, 2)
    net = nn.Sequential(shared, nn.ReLU(), shared)
    assert [n for n, _ in net.named_parameters()] == ["0.weight", "0.bias"]
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [n for n, _ in net.named_modules()] == ["", "0", "1"]


def test_a_module_that_knows_its_parent():
    net = Net()
    net.body.parent = net
    assert list(net.state_dict()) == [*NAMES[:3], "mean", *NAMES[3:]]
    assert len(list(net.parameters())) == 6


def test_modules_in_a_plain_list_are_not_found_and_in_a_modulelist_they_are():
    class Plain(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.layers = kind([nn.Linear(2, 2), nn.Linear(2, 2)])

    assert list(Plain(list).parameters()) == []
    assert list(Plain(nn.ModuleList).state_dict()) == [
        "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
    ]  # fmt: skip


def test_forgetting_super_init_works():
    class Forgetful(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x)

    net = Forgetful()
    assert len(list(net.parameters())) == 2
    assert net.training
    assert not net.eval().training
    assert net(mt.ones(3, 2)).shape == (3, 1)
    calls = []
    net.register_forward_hook(lambda *_: calls.append(1))
    net(mt.ones(3, 2))
    Forgetful()(mt.ones(3, 2))
    assert calls == [1]


@pytest.mark.parametrize("value", [mt.ones(2), 3, [1.0]])
def test_only_a_parameter_or_none_takes_the_place_of_a_parameter(value):
    layer = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"parameter 'bias'.*bias\.data"):
        layer.bias = value
    layer.bias = nn.Parameter(mt.zeros(2))
    layer.bias = None
    assert [n for n, _ in layer.named_parameters()] == ["weight"]


def test_registering():
    net = nn.Module()
    net.register_parameter("w", nn.Parameter(mt.ones(1)))
    net.register_parameter("none", None)
    net.register_buffer("b", None)
    net.b = mt.ones(1)
    assert list(net.state_dict()) == ["w", "b"]
    for wrong in ("w", "a.b", "forward"):
        with pytest.raises(KeyError):
            net.register_buffer(wrong, mt.ones(1))
    with pytest.raises(TypeError, match="expected a Tensor"):
        net.register_buffer("c", np.ones(1))
    with pytest.raises(TypeError, match="expected a Parameter"):
        net.register_parameter("c", mt.ones(1))
    with pytest.raises(TypeError, match="cannot assign float as buffer 'b'"):
        net.b = 1.0
    net.b = nn.Parameter(mt.ones(2))
    assert [name for name, _ in net.named_parameters()] == ["w", "b"]
    assert not list(net.buffers())


@pytest.mark.parametrize(
    "name", ["plain", "none", "forward", "buffer", "param", "child", "", "a.b"]
)
@pytest.mark.parametrize("kind", ["buffer", "param", "child"])
def test_what_may_be_registered_under_a_name(kind, name):
    net = nn.Module()
    net.plain = 3
    net.register_parameter("none", None)
    net.register_buffer("buffer", mt.zeros(1))
    net.register_parameter("param", nn.Parameter(mt.zeros(1)))
    net.add_module("child", nn.ReLU())
    put = {
        "buffer": lambda: net.register_buffer(name, mt.ones(1), persistent=False),
        "param": lambda: net.register_parameter(name, nn.Parameter(mt.ones(1))),
        "child": lambda: net.add_module(name, nn.Tanh()),
    }[kind]
    if name == kind or (name == "none" and kind != "buffer"):
        put()
        assert ("buffer" in net.state_dict()) == (kind != "buffer")
        assert type(vars(net)[name]) is {
            "buffer": mt.Tensor, "param": nn.Parameter, "child": nn.Tanh,
        }[kind]  # fmt: skip
    else:
        before = dict(vars(net))
        with pytest.raises(KeyError, match="taken"):
            put()
        assert vars(net) == before


def test_a_shared_child_is_a_child_once():
    shared = nn.Linear(1, 1)
    net = nn.Sequential(shared, shared, nn.ReLU())
    assert [name for name, _ in net.named_children()] == ["0", "2"]
    assert list(net.children()) == [shared, net[2]]
    # As a container it has three modules nevertheless, and as a state four names.
    assert (len(net), list(net), len(net[:2])) == (3, [shared, shared, net[2]], 2)
    assert list(net.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert repr(net).count("Linear") == 2
    both = nn.ModuleDict({"a": shared, "b": shared})
    assert (len(both), list(both.items())) == (2, [("a", shared), ("b", shared)])
    calls = []
    net.apply(lambda module: calls.append(type(module).__name__))
    assert calls == ["Linear", "ReLU", "Sequential"]
    net.insert(0, nn.Tanh())
    assert [type(m).__name__ for m in net] == ["Tanh", "Linear", "Linear", "ReLU"]


def test_hooks_of_modules():
    layer = nn.Linear(1, 1)
    before = layer.register_forward_pre_hook(lambda module, args: args[0] * 0)
    after = layer.register_forward_hook(lambda module, args, out: (args[0], out))
    seen, out = layer(mt.ones(1, 1))
    assert (seen.item(), out.item()) == (0.0, layer.bias.item())
    before.remove()
    after.remove()
    assert layer(mt.ones(1, 1)).shape == (1, 1)


class Two(nn.Module):
    """Two outputs of two inputs and a number."""

    def forward(self, x, y, factor):
        return x * y * factor, x + y


def backward_hooks(m, seen):
    """What module hooks see and do in library `m`: gradients by hook."""
    net = type("Two", (m.nn.Module,), {"forward": Two.forward})()
    before = net.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 2, grads[1]))

    def hook(module, grad_input, grad_output):
        assert module is net
        seen.append([None if g is None else g.tolist() for g in (*grad_input, *grad_output)])
        return tuple(None if g is None else g * 10 for g in grad_input)

    after = net.register_full_backward_hook(hook)
    x = m.tensor([1.0, 2.0], requires_grad=True)
    for y in (m.tensor([3.0, 4.0], requires_grad=True), m.tensor([5.0, 6.0])):
        a, b = net(x, y, 3)
        (a.sum() + 2 * b.sum()).backward()
        seen.append([x.grad.tolist(), None if y.grad is None else y.grad.tolist()])
    w = m.tensor([1.0, 1.0], requires_grad=True)
    a, b = net(m.ones(2), w * 1, 2)  # only one output is used
    a.sum().backward()
    seen.append([w.grad.tolist()])
    with m.no_grad():
        net(x, x, 1)
    before.remove()
    after.remove()
    count = len(seen)
    net(x, x, 1)[0].sum().backward()
    assert len(seen) == count


def test_backward_hooks_of_modules_are_torchs():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ours, theirs = [], []
    backward_hooks(mt, ours)
    backward_hooks(torch, theirs)
    assert ours == theirs
    assert len(ours) == 6


def test_a_backward_hook_in_a_second_derivative():
    """The second pass reaches the input past the output, where there is nothing to show."""
    net = nn.Tanh()
    calls = []
    net.register_full_backward_hook(lambda module, gi, go: calls.append((gi, go)))
    x = mt.tensor([0.5, -1.0], dtype=mt.float64, requires_grad=True)
    (first,) = mt.autograd.grad(net(x).sum(), x, create_graph=True)
    assert len(calls) == 1
    (second,) = mt.autograd.grad(first.sum(), x)
    assert len(calls) == 1
    t = np.tanh(x.detach().numpy())
    np.testing.assert_allclose(second.numpy(), -2 * t * (1 - t * t))
    net(x).sum().backward()
    assert len(calls) == 2


def test_a_backward_hook_of_a_module_without_differentiable_inputs():
    seen = []
    layer = nn.Linear(1, 1)
    layer.register_full_backward_hook(lambda module, *grads: seen.append(grads))
    layer(mt.ones(2, 1)).sum().backward()
    ((inputs, outputs),) = seen
    assert inputs == (None,)
    assert outputs[0].tolist() == [[1.0], [1.0]]
    assert layer.weight.grad.tolist() == [[2.0]]


def test_what_backward_hooks_of_modules_cannot_do():
    x = mt.ones(2, requires_grad=True)
    net = type("Dictionary", (nn.Module,), {"forward": lambda self, x: {"y": x}})()
    net.register_full_backward_hook(lambda *_: None)
    with pytest.raises(TypeError, match="Tensor or a tuple of Tensors, got dict"):
        net(x)
    layer = nn.ReLU()
    layer.register_full_backward_hook(lambda module, i, o: (i[0], i[0]))
    with pytest.raises(RuntimeError, match="returned 2 gradients, expected 1"):
        layer(x).sum().backward()


def test_modules_and_parameters_by_name():
    net = Net()
    assert net.get_submodule("") is net
    assert net.get_submodule("body.2") is net.body[2]
    assert net.get_parameter("body.0.bias") is net.body[0].bias
    for get, name in ((net.get_submodule, "body.9"), (net.get_parameter, "mean")):
        with pytest.raises(AttributeError, match=f"has no .* '{name}'"):
            get(name)
    net.add_module("extra", nn.Tanh())
    net.register_module("extra", None)
    assert net.extra is None
    for name, value, error in (("a.b", nn.Tanh(), KeyError), ("forward", nn.Tanh(), KeyError),
                               ("a", mt.ones(1), TypeError)):  # fmt: skip
        with pytest.raises(error):
            net.add_module(name, value)


def test_a_module_without_forward():
    with pytest.raises(NotImplementedError, match=r"Module Module must define forward"):
        nn.Module()(1)


# Modes --------------------------------------------------------------------------------------------


def test_train_and_eval_reach_all_modules():
    net = Net()
    assert all(module.training for module in net.modules())
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    net.train()
    assert all(module.training for module in net.modules())
    with pytest.raises(ValueError, match="expected True or False"):
        net.train(3)


def test_requires_grad_and_apply_and_zero_grad():
    net = Net()
    net.body.requires_grad_(False)
    net(mt.ones(2, 3)).sum().backward()
    assert [p.grad is not None for p in net.parameters()] == [True] * 3 + [False] * 3
    net.zero_grad(set_to_none=False)
    assert net.scale.grad.tolist() == [0.0, 0.0]
    net.zero_grad()
    assert net.scale.grad is None
    names = []
    assert net.apply(lambda module: names.append(type(module).__name__)) is net
    assert names == ["Linear", "ReLU", "Linear", "Tanh", "Linear", "Sequential", "Net"]


# dtype and device ---------------------------------------------------------------------------------


def test_to_converts_floats_in_place_with_their_gradients():
    net = Net()
    net.register_buffer("count", mt.zeros(1, dtype=mt.int64))
    net(mt.ones(2, 3)).sum().backward()
    params = list(net.parameters())
    assert net.double() is net
    assert [id(p) for p in params] == [id(p) for p in net.parameters()]
    assert all(p.dtype == p.grad.dtype == mt.float64 for p in params)
    assert (net.mean.dtype, net.count.dtype) == (mt.float64, mt.int64)
    assert net.first.weight.is_contiguous()
    assert net.float().scale.dtype == mt.float32
    assert net.half().scale.dtype == mt.float16
    assert net.to("cpu", mt.float64).scale.dtype == mt.float64
    assert net.to(mt.zeros(1)).scale.dtype == mt.float32
    with pytest.raises(TypeError, match="floating point dtype, got int64"):
        net.to(mt.int64)


def test_to_after_an_owner_exists():
    net = Net()
    optimizer = mt.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="move the model first"):
        net.double()
    assert all(p.dtype == mt.float32 for p in net.parameters())
    assert net.mean.dtype == mt.float32
    net.float()  # changes nothing
    optimizer.step()


# Text ---------------------------------------------------------------------------------------------


def models(lib):
    module = lib.nn

    class Inner(module.Module):
        def __init__(self):
            super().__init__()
            self.one = module.Linear(1, 2)
            self.seq = module.Sequential(module.Tanh(), module.Sequential(module.Linear(2, 2)))

        def extra_repr(self):
            return "size=3"

    class Empty(module.Module):
        pass

    yield module.Linear(3, 4, bias=False)
    yield module.Sequential()
    yield module.Sequential(module.Linear(1, 2), module.ReLU(), module.Sigmoid())
    yield Inner()
    yield Empty()
    yield module.MSELoss()
    yield module.CrossEntropyLoss()


def test_text_is_as_in_torch():
    torch = pytest.importorskip("torch")
    for ours, theirs in zip(models(mt), models(torch), strict=True):
        assert repr(ours) == repr(theirs)


def test_text():
    assert repr(nn.Sequential(nn.Linear(2, 1), nn.ReLU())) == (
        "Sequential(\n  (0): Linear(in_features=2, out_features=1, bias=True)\n  (1): ReLU()\n)"
    )


# Parameter ----------------------------------------------------------------------------------------


def test_parameter():
    x = mt.ones(2)
    p = nn.Parameter(x)
    assert (p.requires_grad, p.is_leaf, type(p)) == (True, True, nn.Parameter)
    x[0] = 3
    assert p.tolist() == [3.0, 1.0]
    assert type(p * 1) is type(p.detach()) is mt.Tensor
    assert not nn.Parameter(mt.ones(1, dtype=mt.int64), requires_grad=False).requires_grad
    assert nn.Parameter(mt.ones(2, requires_grad=True) * 2).is_leaf
    assert repr(nn.Parameter(mt.ones(1))) == (
        "Parameter containing:\ntensor([1.], requires_grad=True)"
    )


@pytest.mark.parametrize("name", ["scale", "first", "mean"])
@pytest.mark.parametrize("value", [3, "ones", None])
def test_what_may_be_assigned_is_as_in_torch(name, value):
    torch = pytest.importorskip("torch")

    def outcome(lib):
        net = lib.nn.Module()
        net.scale = lib.nn.Parameter(lib.ones(2))
        net.first = lib.nn.Linear(3, 2)
        net.register_buffer("mean", lib.zeros(2))
        try:
            setattr(net, name, lib.ones(2) if value == "ones" else value)
        except TypeError:
            return "TypeError"
        return sorted(net.state_dict()), [type(m).__name__ for m in net.modules()]

    assert outcome(mt) == outcome(torch)


# Containers ---------------------------------------------------------------------------------------


CONTAINERS = {
    "named": lambda m: m.Sequential(OrderedDict(a=m.Linear(2, 3), b=m.ReLU())),
    "a named part": lambda m: m.Sequential(OrderedDict(a=m.Tanh(), b=m.Linear(2, 3)))[1:],
    "a part keeps numbers": lambda m: m.Sequential(m.Tanh(), m.ReLU(), m.Linear(2, 3))[1:],
    "no part": lambda m: m.Sequential(m.Tanh())[1:],
    "a part of a list": lambda m: m.ModuleList([m.Tanh(), m.Linear(2, 3)])[1:],
    "longer": lambda m: m.Sequential(m.Tanh()).append(m.ReLU()).extend([m.Linear(2, 3)]),
    "longer list": lambda m: m.ModuleList().extend(m.Linear(2, n) for n in (3, 4)),
    "in front": lambda m: m.Sequential(m.Tanh(), m.ReLU()).insert(0, m.Linear(2, 3)),
    "before the last": lambda m: m.Sequential(m.Tanh(), m.ReLU()).insert(-1, m.Linear(2, 3)),
}


def _changed(make):
    def change(m):
        found = make(m)
        found[-1] = m.Linear(2, 5)
        del found[0]
        return found.extend([m.Linear(5, 2)])

    return change


CONTAINERS["changed"] = _changed(lambda m: m.Sequential(m.Tanh(), m.ReLU(), m.Sigmoid()))


CONTAINERS["changed names"] = _changed(
    lambda m: m.Sequential(OrderedDict(a=m.Tanh(), b=m.ReLU(), c=m.Sigmoid()))
)


CONTAINERS["changed list"] = _changed(lambda m: m.ModuleList([m.Tanh(), m.ReLU(), m.Sigmoid()]))


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_change_as_in_torch(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ours, theirs = (CONTAINERS[name](lib.nn) for lib in (mt, torch))
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_a_part_that_is_continued_overwrites_nothing():
    part = nn.Sequential(nn.Tanh(), nn.ReLU(), nn.Sigmoid())[1:].append(nn.Linear(1, 1))
    assert [type(module).__name__ for module in part] == ["ReLU", "Sigmoid", "Linear"]


@pytest.mark.parametrize("make", [lambda *m: nn.Sequential(*m), lambda *m: nn.ModuleList(m)])
def test_containers(make):
    a, b, c = nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)
    box = make(a, b)
    assert box.append(c) is box
    assert (len(box), list(box), box[0], box[-1]) == (3, [a, b, c], a, c)
    assert type(box[:2]) is type(box)
    assert list(box[1:]) == [b, c]
    with pytest.raises(IndexError, match="3 modules, no 3"):
        box[3]
    with pytest.raises(TypeError, match="takes Modules, got int"):
        box.append(3)
    with pytest.raises(TypeError, match="the class ReLU; did you mean an instance"):
        box.append(nn.ReLU)


# Linear and initialization ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (3,), (2, 4, 3), (0, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    layer = nn.Linear(3, 2, bias=bias, dtype=mt.float64)
    x = mt.randn(*shape, dtype=mt.float64)
    expected = x.numpy() @ layer.weight.detach().numpy().T
    if bias:
        expected = expected + layer.bias.detach().numpy()
    out = layer(x)
    assert out.shape == (*shape[:-1], 2)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-13)


def test_linear_starts_as_in_torch():
    mt.manual_seed(0)
    layer = nn.Linear(400, 300)
    bound = 1 / math.sqrt(400)
    for param in layer.parameters():
        assert param.abs().max().item() <= bound
        assert param.abs().max().item() > 0.98 * bound
    weight = layer.weight.detach()
    assert abs(weight.mean().item()) < 0.01 * bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_initial_values_do_not_depend_on_the_memory_order():
    mt.manual_seed(0)
    layer = nn.Linear(3, 2)
    mt.manual_seed(0)
    weight, bias = mt.empty(2, 3), mt.empty(2)
    nn.init.kaiming_uniform_(weight, math.sqrt(5))
    nn.init.uniform_(bias, -1 / math.sqrt(3), 1 / math.sqrt(3))
    assert mt.equal(layer.weight, weight)
    assert mt.equal(layer.bias, bias)


def test_initializers():
    mt.manual_seed(0)
    x = mt.empty(200, 200)
    assert nn.init.normal_(x, 3.0, 2.0) is x
    assert (x.mean().item(), x.std().item()) == pytest.approx((3.0, 2.0), abs=0.05)
    nn.init.uniform_(x, -1, 3)
    assert -1 <= x.min().item() < x.max().item() < 3
    nn.init.kaiming_uniform_(x)
    assert x.abs().max().item() <= math.sqrt(6 / 200)
    assert nn.init.zeros_(x).abs().max().item() == 0
    assert nn.init.ones_(x).min().item() == 1
    assert nn.init.constant_(x, 2.5).max().item() == 2.5
    w = nn.Parameter(mt.ones(2))
    nn.init.zeros_(w)  # a leaf that requires grad
    assert w.tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        nn.init.kaiming_uniform_(mt.ones(3))


def test_linear_refuses():
    with pytest.raises(ValueError, match="must not be negative"):
        nn.Linear(-1, 2)
    with pytest.raises(RuntimeError, match="linear"):
        nn.Linear(2, 3)(mt.ones(3))
    with pytest.raises(RuntimeError, match="dtype"):
        nn.Linear(2, 3)(mt.ones(1, 2, dtype=mt.float64))
    assert nn.Linear(0, 2)(mt.ones(3, 0)).shape == (3, 2)


# Activations and losses ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ReLU", "Sigmoid", "Tanh"])
def test_activations_are_the_functions(name):
    x = mt.linspace(-2, 2, 9)
    assert mt.equal(getattr(nn, name)()(x), getattr(nn.functional, name.lower())(x))


@pytest.mark.parametrize("name, function", [("MSELoss", "mse_loss"),
                                            ("CrossEntropyLoss", "cross_entropy")])  # fmt: skip
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_are_the_functions(name, function, reduction):
    x = mt.randn(4, 3)
    y = mt.randn(4, 3) if name == "MSELoss" else mt.tensor([0, 2, 1, 1])
    ours = getattr(nn, name)(reduction=reduction)(x, y)
    assert mt.equal(ours, getattr(nn.functional, function)(x, y, reduction=reduction))
    with pytest.raises(ValueError, match="reduction"):
        getattr(nn, name)(reduction="average")


# Where and in which dtype layers are made ---------------------------------------------------------

PLACED = {
    "Linear": (3, 4), "Bilinear": (2, 3, 4), "PReLU": (3, 0.5), "LayerNorm": (3,),
    "RMSNorm": (3,), "GroupNorm": (2, 4), "BatchNorm1d": (3,), "BatchNorm2d": (3,),
    "BatchNorm3d": (3,), **{f"InstanceNorm{n}d": (3, 1e-5, 0.1, True) for n in (1, 2, 3)},
    "Conv1d": (2, 3, 2), "Conv2d": (2, 3, 2), "Conv3d": (2, 3, 2),
    "ConvTranspose1d": (2, 3, 2), "ConvTranspose2d": (2, 3, 2), "ConvTranspose3d": (2, 3, 2),
    "Embedding": (5, 2), "EmbeddingBag": (5, 2), "RNN": (3, 4), "LSTM": (3, 4), "GRU": (3, 4),
    "RNNCell": (3, 4), "LSTMCell": (3, 4), "GRUCell": (3, 4),
    "MultiheadAttention": (4, 2), "TransformerEncoderLayer": (4, 2, 8),
    "TransformerDecoderLayer": (4, 2, 8), "Transformer": (4, 2, 1, 1, 8),
}  # fmt: skip


def with_values(module):
    return {name: (t.dtype.name, str(t.device), tuple(t.shape))
            for name, t in (*module.named_parameters(), *module.named_buffers())}  # fmt: skip


@pytest.mark.parametrize("name", PLACED)
def test_every_layer_takes_a_device_and_a_dtype(name):
    make, sizes = getattr(mt.nn, name), PLACED[name]
    default = with_values(make(*sizes))
    for device in (None, "cpu", mt.device("cpu"), mt.zeros(1).device):
        assert with_values(make(*sizes, device=device, dtype=None)) == default
        found = with_values(make(*sizes, device=device, dtype=mt.float64))
        kinds = {"float32": "float64"}
        assert found == {n: (kinds.get(d, d), *rest) for n, (d, *rest) in default.items()}
    names = list(inspect.signature(make).parameters)
    assert names.index("device") + 1 == names.index("dtype")
    with pytest.raises(RuntimeError, match=r"device|GPU"):
        make(*sizes, device="gpu")


def test_no_layer_with_parameters_is_left_out():
    for name in dir(mt.nn):
        made = getattr(mt.nn, name)
        if isinstance(made, type) and "dtype" in inspect.signature(made).parameters:
            assert name in PLACED or name in ("RNNBase", "RNNCellBase"), name


@pytest.mark.parametrize("name", PLACED)
def test_the_place_of_device_and_dtype_is_torchs(name):
    torch = pytest.importorskip("torch")
    theirs = list(inspect.signature(getattr(torch.nn, name)).parameters)
    mine = inspect.signature(getattr(mt.nn, name)).parameters
    if "dtype" in theirs and mine["dtype"].kind is not inspect.Parameter.KEYWORD_ONLY:
        assert [*mine].index("device") == theirs.index("device"), theirs


def test_options_that_a_model_hands_on():
    class Own(mt.nn.Linear):
        def __init__(self, n, m, bias=True, device=None, dtype=None):
            super().__init__(n, m, bias, device, dtype)
            self.scale = mt.nn.Parameter(mt.ones(m, device=device, dtype=dtype))

    assert {p.dtype for p in Own(2, 3, dtype=mt.float64).parameters()} == {mt.float64}
    with pytest.raises(RuntimeError, match="device"):
        mt.nn.Linear(2, 3, True, mt.float64)  # where the device stands
