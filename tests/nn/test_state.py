"""State dicts and copies of modules."""

import copy
import pickle

import numpy as np
import pytest
from test_nn import NAMES, Net

import microtrain as mt
from microtrain import nn


def test_state_dict_shares_memory_and_load_copies():
    net, other = Net(), Net()
    state = net.state_dict()
    assert not any(t.requires_grad for t in state.values())
    state["scale"][0] = 5
    assert net.scale[0].item() == 5
    assert other.load_state_dict(state) == ([], [])
    assert all(mt.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
    net.scale.data.zero_()
    assert other.scale[0].item() == 5


def test_loading_numpy_arrays_and_noticing_the_write():
    net = Net()
    loss = (net.scale * net.scale).sum()
    net.load_state_dict({name: t.numpy().copy() for name, t in net.state_dict().items()})
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


def test_all_that_does_not_fit_is_reported_at_once_and_nothing_is_changed():
    net = Net()
    before = {name: t.numpy().copy() for name, t in net.state_dict().items()}
    state = {name: t + 1 for name, t in net.state_dict().items()}
    del state["first.bias"], state["mean"]
    state |= {"extra": mt.ones(1), "scale": mt.ones(3), "body.0.bias": mt.ones(4, dtype=mt.float64)}
    with pytest.raises(RuntimeError) as error:
        net.load_state_dict(state)
    text = str(error.value)
    for part in (
        "loading state_dict for Net",
        "Missing key(s): first.bias, mean",
        "Unexpected key(s): extra",
        "Mismatch for scale: expected float32[2], got float32[3]",
        "Mismatch for body.0.bias: expected float32[4], got float64[4]",
    ):
        assert part in text
    for name, tensor in net.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), before[name])


def test_loading_without_strict():
    net = Net()
    keys = net.load_state_dict({"scale": mt.zeros(2), "extra": mt.ones(1)}, strict=False)
    assert keys.missing_keys == [*NAMES[1:3], "mean", *NAMES[3:]]
    assert keys.unexpected_keys == ["extra"]
    assert net.scale.tolist() == [0.0, 0.0]
    with pytest.raises(RuntimeError, match="Mismatch for scale"):
        net.load_state_dict({"scale": mt.zeros(3)}, strict=False)


def test_state_goes_to_torch_and_back():
    torch = pytest.importorskip("torch")
    ours = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict({n: torch.tensor(t.numpy()) for n, t in ours.state_dict().items()})
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(ours(mt.from_numpy(x)).detach().numpy(), expected, rtol=1e-5)
    ours.load_state_dict({n: t.numpy() * 2 for n, t in theirs.state_dict().items()})
    np.testing.assert_array_equal(
        ours[0].weight.detach().numpy(), theirs[0].weight.detach().numpy() * 2
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_of_models(copied):
    net = Net()
    optimizer = mt.optim.SGD(net.parameters(), lr=0.1)
    net(mt.ones(2, 3)).sum().backward()
    clone = copied(net)
    values = [p.tolist() for p in net.parameters()]
    assert [p.tolist() for p in clone.parameters()] == values
    assert all(type(p) is nn.Parameter and p.requires_grad for p in clone.parameters())
    assert all(p.grad is None for p in clone.parameters())
    optimizer.step()
    assert [p.tolist() for p in clone.parameters()] == values
    clone.double()  # nobody owns it
    mt.optim.SGD(clone.parameters(), lr=0.1)
    assert clone.first.weight.is_contiguous()


# State dicts with prefixes and hooks --------------------------------------------------------------


def blocks(lib):
    inner = lib.nn.Sequential(lib.nn.Linear(2, 3), lib.nn.BatchNorm1d(3))
    return lib.nn.Sequential(inner, lib.nn.PReLU())


def libraries():
    yield mt
    yield pytest.importorskip("torch")


def test_a_state_dict_with_a_prefix_and_of_the_tensors_themselves():
    net = blocks(mt)
    mine, kept = {"first": 1}, net.state_dict(keep_vars=True)
    assert net.state_dict(destination=mine, prefix="net.") is mine
    assert list(mine) == ["first", *(f"net.{name}" for name in net.state_dict())]
    assert all(kept[name] is parameter for name, parameter in net.named_parameters())
    assert all(kept[name] is buffer for name, buffer in net.named_buffers())
    assert not any(t.requires_grad for t in net.state_dict().values())
    assert mine["net.0.0.weight"].numpy() is not None
    whole = mt.distributed.DataParallel(net).state_dict(prefix="p.")
    assert list(whole) == [f"p.{name}" for name in kept]


def told_by_hooks(lib):
    """What hooks of a network see, in order, and the names that they leave."""
    net, told = blocks(lib), []
    for name, module in net.named_modules():
        module.register_state_dict_pre_hook(
            lambda m, prefix, keep_vars, name=name: told.append(("before", name, prefix, keep_vars))
        )
        module.register_state_dict_post_hook(
            lambda m, state, prefix, meta, name=name: told.append(("after", name, prefix))
        )
        module.register_load_state_dict_pre_hook(
            lambda m, state, prefix, meta, *rest, name=name: told.append((name, prefix, rest[0]))
        )
        module.register_load_state_dict_post_hook(
            lambda m, keys, name=name: told.append(("loaded", name, list(keys.missing_keys)))
        )

    def renamed(module, state, prefix, meta):
        state[prefix + "slope"] = state.pop(prefix + "weight")

    def named_back(module, state, prefix, meta, strict, missing, unexpected, errors):
        if prefix + "slope" in state:
            state[prefix + "weight"] = state.pop(prefix + "slope")

    handle = net[1].register_state_dict_post_hook(renamed)
    net[1].register_load_state_dict_pre_hook(named_back)
    state = net.state_dict(prefix="p.")
    names = sorted(state)
    state = {name[2:]: value * 0 + 2 for name, value in state.items()}
    keys = net.load_state_dict(state)
    assert all((p == 2).all() for p in net.parameters()), "not loaded"
    assert "1.slope" in state, "the dictionary that was given is changed"
    handle.remove()
    return told, names, sorted(net.state_dict()), list(keys.missing_keys)


def test_hooks_of_state_dicts():
    told, names, after, missing = told_by_hooks(mt)
    assert "p.1.slope" in names and "1.weight" in after and missing == []
    assert told[0] == ("before", "", "p.", False) and ("after", "0.1", "p.0.1.") in told
    assert told[-1][0] == "after" and ("loaded", "", []) in told


def test_hooks_of_state_dicts_are_called_as_in_torch():
    pytest.importorskip("torch")
    mine, theirs = (told_by_hooks(lib) for lib in libraries())
    assert mine[1:] == theirs[1:]
    # Which of two neighbors comes first is open: what belongs to a module comes behind its parts.
    assert sorted(map(str, mine[0])) == sorted(map(str, theirs[0]))


@pytest.mark.parametrize("strict", [True, False])
def test_a_hook_that_forgives_missing_names_and_one_that_finds_fault(strict):
    for lib in libraries() if strict else [mt]:
        net = blocks(lib)
        state = {name: value for name, value in net.state_dict().items() if "running" not in name}
        handle = net.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
        assert list(net.load_state_dict(state, strict).missing_keys) == []
        handle.remove()
        net.register_load_state_dict_pre_hook(lambda *args: args[-1].append("no good at all"))
        with pytest.raises(RuntimeError, match="no good at all"):
            net.load_state_dict(net.state_dict(), strict)


def test_what_a_hook_does_not_forgive_changes_nothing():
    net = blocks(mt)
    net.register_load_state_dict_post_hook(lambda module, keys: None)
    before = {name: value.tolist() for name, value in net.state_dict().items()}
    state = {name: value + 1 for name, value in net.state_dict().items() if name != "1.weight"}
    with pytest.raises(RuntimeError, match=r"Missing key\(s\): 1.weight"):
        net.load_state_dict(state)
    assert {name: value.tolist() for name, value in net.state_dict().items()} == before


def test_hooks_of_state_dicts_leave_calls_alone():
    net = blocks(mt)
    net.register_state_dict_pre_hook(lambda *args: None)
    assert not net._hooked and not net._any_hooks()
    step = mt.compile(lambda x: net(x).sum())  # hooks of calls are refused in a step
    assert step(mt.ones(4, 2)).shape == ()


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Buffer(mt.zeros(2))
        self.note = nn.Buffer(mt.ones(1), persistent=False)
        self.plain = 3


def test_a_buffer_by_assignment():
    net = Kept()
    assert [name for name, _ in net.named_buffers()] == ["mean", "note"]
    assert list(net.state_dict()) == ["mean"] and type(net.mean) is mt.Tensor
    data = mt.ones(3)
    for name in ("mean", "plain"):
        setattr(net, name, nn.Buffer(data))
    data.mul_(2)
    assert net.mean.tolist() == net.plain.tolist() == [2, 2, 2]
    assert list(net.state_dict()) == ["mean", "plain"]
    assert (nn.Buffer(mt.ones(2)) + 1).tolist() == [2, 2]
    net.weight = nn.Parameter(mt.ones(1))
    with pytest.raises(TypeError, match="parameter 'weight'"):
        net.weight = nn.Buffer(mt.ones(1))
