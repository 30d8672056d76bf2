"""ParameterList, ParameterDict, and what `nn.init` fills weights with."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtrain as mt

nn = mt.nn


class Polynomial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.ParameterList(mt.full((), float(k)) for k in range(3))
        self.named = nn.ParameterDict({"shift": mt.zeros(2)})

    def forward(self, x: Any) -> Any:
        powers = (p * x**k for k, p in enumerate(self.factors))
        return sum(powers, self.named["shift"])


def test_they_are_found_trained_and_captured() -> None:
    net = Polynomial()
    names = ["factors.0", "factors.1", "factors.2", "named.shift"]
    assert [name for name, _ in net.named_parameters()] == names
    assert list(net.state_dict()) == names
    assert net(mt.tensor([1.0, 2.0])).tolist() == [3.0, 10.0]
    eager, captured = losses(False), losses(True)
    assert eager == captured
    assert eager[-1] < eager[0]


def losses(compiled: bool) -> list[float]:
    net = Polynomial()
    optimizer = mt.optim.SGD(net.parameters(), lr=0.01)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (net(x) - 1).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = mt.compile(step) if compiled else step
    return [run(mt.tensor([1.0, 0.5])).item() for _ in range(4)]


def test_a_list() -> None:
    some = nn.ParameterList([mt.ones(2)])
    some += [mt.zeros(3), nn.Parameter(mt.ones(1), requires_grad=False)]
    some.append(mt.ones(4))
    assert [tuple(p.shape) for p in some] == [(2,), (3,), (1,), (4,)]
    assert len(some) == 4 and some[-1] is some[3]
    assert not some[2].requires_grad and some[0].requires_grad
    some[1] = mt.ones(5)
    assert type(some[1]) is nn.Parameter and some[1].shape == (5,)
    part = some[1:3]
    assert type(part) is nn.ParameterList and part[0] is some[1]
    assert repr(part) == (
        "ParameterList(\n"
        "  (0): Parameter containing: [float32 of size 5]\n"
        "  (1): Parameter containing: [float32 of size 1]\n)"
    )


def test_a_dictionary() -> None:
    some = nn.ParameterDict([("a", mt.ones(2)), ("b", nn.Parameter(mt.zeros(1)))])
    assert list(some) == some.keys() == ["a", "b"]
    assert len(some) == 2 and "a" in some and "c" not in some
    assert some.get("c") is None and dict(some.items())["b"] is some["b"] is some.values()[1]
    some.update({"c": mt.ones(3), "a": mt.zeros(2)})
    assert list(some) == ["a", "b", "c"] and some["a"].tolist() == [0.0, 0.0]
    assert some.pop("b").shape == (1,)
    del some["c"]
    assert nn.ParameterDict(some)["a"] is some["a"]
    some.clear()
    assert not len(some) and repr(some) == "ParameterDict()"


WRONG: list[tuple[type[Exception], Callable[[], Any]]] = [
    (TypeError, lambda: nn.ParameterList([1.0])),
    (TypeError, lambda: nn.ParameterList(mt.ones(2))),
    (IndexError, lambda: nn.ParameterList()[0]),
    (KeyError, lambda: nn.ParameterDict()["a"]),
    (KeyError, lambda: nn.ParameterDict({"a.b": mt.ones(1)})),
    (KeyError, lambda: nn.ParameterDict({"keys": mt.ones(1)})),
    (TypeError, lambda: nn.ParameterDict({"a": [1.0]})),
    (ValueError, lambda: nn.init.eye_(mt.ones(2))),
    (ValueError, lambda: nn.init.dirac_(mt.ones(2, 2))),
    (ValueError, lambda: nn.init.dirac_(mt.ones(3, 2, 1), groups=2)),
    (ValueError, lambda: nn.init.sparse_(mt.ones(2), 0.5)),
    (ValueError, lambda: nn.InstanceNorm1d(3, track_running_stats=True)),
    (ValueError, lambda: nn.InstanceNorm2d(3)(mt.ones(2, 3, 4, 4, 4))),
    (ValueError, lambda: nn.InstanceNorm2d(3)(mt.ones(2, 4, 4, 4))),
    (ValueError, lambda: nn.EmbeddingBag(3, 2, mode="median")(mt.tensor([[1]]))),
    (ValueError, lambda: nn.EmbeddingBag(3, 2, max_norm=1.0)),
    (ValueError, lambda: nn.EmbeddingBag(3, 2)(mt.tensor([1, 2]))),
    (ValueError, lambda: nn.EmbeddingBag(3, 2)(mt.tensor([[1, 2]]), mt.tensor([0]))),
    (RuntimeError, lambda: nn.EmbeddingBag(3, 2)(mt.tensor([1, 2]), mt.tensor([1]))),
    (RuntimeError, lambda: nn.EmbeddingBag(3, 2)(mt.tensor([1, 2]), mt.tensor([0, 3]))),
    (IndexError, lambda: nn.EmbeddingBag(3, 2)(mt.tensor([[1, 3]]))),
    (NotImplementedError, lambda: mt.nn.functional.embedding_bag(
        mt.tensor([[1]]), mt.ones(2, 2), per_sample_weights=mt.ones(1, 1)
    )),
    (ValueError, lambda: mt.nn.functional.max_unpool1d(
        mt.ones(1, 1, 2), mt.tensor([[[0, 1]]]), 2, output_size=(9,)
    )),
    (RuntimeError, lambda: mt.nn.functional.max_unpool1d(
        mt.ones(1, 1, 2), mt.tensor([[[0, 4]]]), 2
    )),
    (RuntimeError, lambda: nn.Bilinear(2, 3, 4)(mt.ones(2), mt.ones(2))),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call"), WRONG)
def test_what_is_wrong(kind: type[Exception], call: Callable[[], Any]) -> None:
    with pytest.raises(kind) as error:
        call()
    assert error.type is kind or kind is RuntimeError
    assert str(error.value)


def test_weights_that_hand_on() -> None:
    x = mt.randn(2, 3, 5)
    layer = nn.Conv1d(3, 3, 3, padding=1, bias=False)
    nn.init.dirac_(layer.weight)
    np.testing.assert_array_equal(layer(x).detach().numpy(), x.numpy())
    groups = nn.init.dirac_(mt.ones(4, 2, 3, 3), groups=2)
    assert groups.sum().item() == 4 and groups[3, 1, 1, 1].item() == 1
    assert mt.equal(nn.init.eye_(mt.ones(3, 3)), mt.eye(3))
    sparse = nn.init.sparse_(mt.ones(20, 50), 0.33, 2.0).numpy()
    assert ((sparse == 0).sum(0) == 7).all()
    assert abs(sparse[sparse != 0].std() - 2) < 0.2


def test_unpooling_brings_maxima_back() -> None:
    x = mt.arange(24.0).reshape(1, 2, 3, 4).requires_grad_()
    values, at = mt.nn.functional.max_pool2d(x, (1, 2), return_indices=True)
    back = nn.MaxUnpool2d((1, 2))(values, at)
    given = x.detach().numpy()
    np.testing.assert_array_equal(back.detach().numpy(), np.where(given % 2, given, 0))
    (g,) = mt.autograd.grad((back * back).sum(), [x])
    np.testing.assert_array_equal(g.numpy(), 2 * back.detach().numpy())


WITH_WEIGHTS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(3, 5),
    "Bilinear": lambda: nn.Bilinear(2, 3, 4),
    "Embedding": lambda: nn.Embedding(5, 3),
    "EmbeddingBag": lambda: nn.EmbeddingBag(5, 3),
    "Conv1d": lambda: nn.Conv1d(4, 6, 3),
    "Conv2d": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "Conv3d": lambda: nn.Conv3d(2, 3, 2),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(4, 6, 3),
    "LayerNorm": lambda: nn.LayerNorm((2, 3)),
    "RNN": lambda: nn.RNN(3, 4),
    "LSTM": lambda: nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2),
    "GRU": lambda: nn.GRU(3, 4),
    "LSTMCell": lambda: nn.LSTMCell(3, 4),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2),
    "MultiheadAttention, three weights": lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(4, 2, 8),
    "TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(4, 2, 8),
}


@pytest.mark.parametrize("owned", [False, True], ids=["alone", "with an optimizer"])
@pytest.mark.parametrize("layer", WITH_WEIGHTS)
def test_a_flat_weight_is_a_view_of_the_weight(layer: str, owned: bool) -> None:
    made = WITH_WEIGHTS[layer]()
    copied, loaded = copy.deepcopy(made), WITH_WEIGHTS[layer]()
    loaded.load_state_dict(made.state_dict())
    for net in (made, copied, loaded):
        if owned:
            mt.optim.SGD(net.parameters(), lr=0.1)
        for name, weight in net.named_parameters():
            for k, flat in enumerate((weight.data.flatten(), weight.data.reshape(-1))):
                flat[-1] = k + 5.0
                assert weight.view(-1)[-1] == k + 5.0, name
            (weight.flatten() * mt.arange(weight.numel())).sum().backward()
            assert weight.grad is not None
            assert weight.grad.view(-1).tolist() == list(range(weight.numel())), name


def test_a_transposed_parameter_keeps_its_memory_order() -> None:
    start = mt.randn(2, 3).T
    weight = nn.Parameter(start.clone())
    optimizer = mt.optim.SGD([weight], lr=0.5)
    (mt.arange(15.0).reshape(5, 3) @ weight).sum().backward()
    assert weight.grad is not None
    assert weight.stride() == weight.grad.stride() == (1, 3)
    optimizer.step()
    assert optimizer.storage.buffers[0].data.tolist() == weight.T.reshape(6).tolist()
    expected = start - 0.5 * mt.tensor([[30.0], [35.0], [40.0]])
    assert mt.allclose(weight.detach(), expected.expand(3, 2))


@pytest.mark.parametrize("place", [mt.tensor(1), mt.tensor([1]), np.int32(1), np.array(-1), -1])
def test_a_place_in_a_list_is_a_number_whatever_its_type(place: Any) -> None:
    some, new = nn.ParameterList([mt.zeros(1), mt.zeros(1)]), nn.Parameter(mt.ones(1))
    some[place] = new
    assert list(some.state_dict()) == ["0", "1"] and some[place] is some[1] is new
    with pytest.raises(TypeError):
        some[1.0]  # type: ignore[index]


def test_a_plain_dictionary_is_put_in_by_its_sorted_names() -> None:
    given = {"b": mt.ones(1), "a": mt.ones(1)}
    assert list(nn.ParameterDict(given)) == ["a", "b"]
    for ordered in (OrderedDict(given), [*given.items()], nn.ParameterDict([*given.items()])):
        assert list(nn.ParameterDict(ordered)) == ["b", "a"]
    torch = pytest.importorskip("torch")
    other = {name: torch.nn.Parameter(torch.ones(1)) for name in given}
    assert list(torch.nn.ParameterDict(other)) == list(nn.ParameterDict(given))
