"""What a notebook shows of a module."""

import re

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
    assert rows[0][2:] == ["scale scalar", "1"]
    assert rows[2][2:] == ["weight 3 × 3, bias 3", "12"]


def test_names_are_text_and_a_deep_module_is_cut():
    layers = mt.nn.Sequential(*(mt.nn.ReLU() for _ in range(1000)))
    layers.add_module("<b>", mt.nn.Linear(1, 1))
    page = layers._repr_html_()
    assert "<b>" not in page
    assert cells(page)[-1][1] == "801 more layers"
    assert "2 parameters" in page
