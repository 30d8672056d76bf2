"""What a notebook shows of a module."""

import contextlib
import re

import pytest

import microtrain as mt


def cells(page):
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]


def test_a_tied_parameter_counts_once_and_a_frozen_one_is_named():
    class Tied(mt.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = mt.nn.Linear(3, 3, bias=False)
            self.second = mt.nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.scale = mt.nn.Parameter(mt.ones(()))
            self.scale.requires_grad_(False)

    page = Tied()._repr_html_()
    assert "<caption>Tied: 13 parameters, 1 of them frozen, 52 B</caption>" in page
    rows = cells(page)[1:]
    assert [row[0] for row in rows] == ["(itself)", "first", "second"]
    assert rows[0][1:] == ["Tied", "1", "0"]
    assert rows[2][1:] == ["Linear", "12", "12"]


def test_names_are_text_and_a_deep_module_is_cut():
    layers = mt.nn.Sequential(*(mt.nn.ReLU() for _ in range(1000)))
    layers.add_module("<b>", mt.nn.Linear(1, 1))
    page = layers._repr_html_()
    assert "<b>" not in page
    assert cells(page)[-1][1] == "801 more layers"
    assert "2 parameters" in page


class Shared(mt.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = mt.nn.Embedding(10, 4)
        self.norm = mt.nn.BatchNorm1d(4)
        self.act = mt.nn.ReLU()
        self.pair = mt.nn.Sequential(mt.nn.Linear(4, 2), mt.nn.Linear(2, 2))
        self.unused = mt.nn.Linear(2, 2)
        self.unused.weight.requires_grad_(False)

    def forward(self, tokens):
        x = self.act(self.norm(self.act(self.embed(tokens)).transpose(1, 2)))
        return {"out": self.pair(x.transpose(1, 2)), "x": x}


def test_a_summary_has_shapes_counts_and_bytes():
    net = Shared()
    found = mt.summary(net, mt.zeros(3, 5, dtype=mt.int64))
    rows = {row[0]: row[1:] for row in found.rows[1:]}
    assert rows["embed"] == ["Embedding", "3 × 5 × 4", "40", "40"]
    assert rows["act"] == ["ReLU", "3 × 5 × 4, 2 calls", "", ""]
    assert rows["pair.1"] == ["Linear", "3 × 5 × 2", "6", "6"]
    assert rows["unused"] == ["Linear", "not called", "6", "2"]
    assert "pair" not in rows
    assert found.parameters == sum(p.numel() for p in net.parameters()) == 70
    assert found.trainable == 66 and found.parameter_bytes == 280
    assert found.output_bytes == 4 * (4 * 60 + 2 * 30)
    assert found.title == "Shared: 70 parameters, 4 of them frozen, 280 B, outputs 1.2 KB"
    lines = str(found).splitlines()
    assert lines[0].split() == ["layer", "type", "output", "parameters", "trainable"]
    assert lines[-1] == found.title and repr(found) == str(found)
    assert cells(found._repr_html_())[1] == ["embed", "Embedding", "3 × 5 × 4", "40", "40"]


def test_a_summary_changes_nothing():
    net = Shared().train()
    net.act.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    for call in (lambda: mt.summary(net, mt.zeros(3, 5, dtype=mt.int64)),
                 lambda: mt.summary(net, mt.zeros(3, 5))):  # fmt: skip
        with contextlib.suppress(RuntimeError):  # the second is no index
            call()
        assert net.training and not net.act.training and net.norm.training
        assert not net.act._forward_hooks
        assert all(mt.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_summary_of_shapes_and_of_nothing():
    net = mt.nn.Sequential(mt.nn.Linear(4, 2)).double()
    assert mt.summary(net, (7, 4)).rows[1][2] == "7 × 2"
    assert mt.summary(net).rows == [["layer", "type", "parameters", "trainable"],
                                    ["0", "Linear", "10", "10"]]  # fmt: skip
    with pytest.raises(TypeError, match="expected a Module, got Tensor"):
        mt.summary(mt.ones(2))
