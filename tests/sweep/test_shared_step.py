"""Members of a sweep that share a captured step have the bits that they have alone."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import yaml

from microtrain.config.load import load_sweep
from microtrain.sweep.member import sharing, train_member
from microtrain.sweep.shared_step import Held
from microtrain.train.output import Output

PARTS = """\
import microtrain as mt
from microtrain import nn

def net(in_features, out_features, hidden=5, p=0.2):
    return nn.Sequential(
        nn.Linear(in_features, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(p),
        nn.Linear(hidden, out_features))

class Masked(nn.Module):
    def __init__(self, in_features, out_features, seed=0):
        super().__init__()
        self.net, self.shift = net(in_features, out_features), 0.5
        self.register_buffer("mask", (mt.rand(out_features) > 0.3).float())
        self.register_buffer("seen", mt.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen.add_(1.0)
        return self.net(x) * self.mask + self.shift

class Shifted(Masked):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.shift = mt.rand(1).item()

class Listed(Masked):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.shifts = [mt.rand(1).item()]

    def forward(self, x):
        return super().forward(x) + self.shifts[0]

class Counting(Masked):
    def __init__(self, in_features, out_features):
        super().__init__(in_features, out_features)
        self.calls = 0

    def forward(self, x):
        if not self.training:
            self.calls += 1
        return super().forward(x) + self.calls * 1e-3

class Nothing(mt.train.Callback):
    pass
"""
IRIS = {
    "name": "s",
    "data": {"type": "sklearn", "name": "iris", "standardize": True, "split": {"train": 1.0}},
    "model": {"type": "mlp", "hidden": [6]},
    "loss": "cross_entropy",
    "metrics": ["accuracy"],
    "optimizer": {"type": "adam", "lr": 0.02},
    "train": {"duration": "4 epochs", "batch_size": 32},
    "sweep": {"seeds": 3},
}


class Silent(Output):
    def warn(self, text: str) -> None:
        """Small runs never predict some classes."""


def trained(settings, shared):
    """What became of each member, without the clock; how many took over another's step."""
    with open("s.yaml", "w") as file:
        yaml.safe_dump(settings, file)
    taken, results = [], []

    def lend(held, parts, lend=Held.lend):
        found = lend(held, parts)
        taken.append(found[1] is not None)
        return found

    with pytest.MonkeyPatch.context() as patch, sharing() if shared else contextlib.nullcontext():
        patch.setattr(Held, "lend", lend)
        for member in load_sweep("s.yaml", []).members:
            result, arrays, data = train_member(member, Silent(0, progress="off"))
            own = {k: v for k, v in vars(result).items() if k != "seconds"}
            values = {name: array.tobytes() for name, array in arrays.items()}
            results.append((repr(own), values, repr(data)))
    return results, sum(taken)


def merged(changes):
    settings = {**IRIS}
    for key, value in changes.items():
        plain = isinstance(value, dict) and isinstance(settings.get(key), dict)
        settings[key] = {**settings[key], **value} if plain and "type" not in value else value
    return settings


SHARED = {
    "adam": {},
    "lr": {"sweep": {"grid": {"optimizer.lr": [0.1, 0.001]}}},
    "folds": {"sweep": {"folds": 3, "seeds": 2}},
    "tail batch dropped": {"train": {"drop_last": True}},
    "accumulate": {"train": {"accumulate": 2}},
    "clip": {"train": {"clip_norm": 1.0}, "sweep": {"grid": {"train.clip_norm": [0.1, 1.0]}}},
    "cosine": {"schedule": "cosine"},
    "sgd": {"optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}},
    "adagrad": {"optimizer": {"type": "adagrad", "lr": 0.1}},
    "nadam": {"optimizer": {"type": "nadam", "lr": 0.01}},
    "radam": {"optimizer": {"type": "radam", "lr": 0.01}},
    "rmsprop": {"optimizer": {"type": "rmsprop", "lr": 0.01, "momentum": 0.5}},
    "adadelta": {"optimizer": {"type": "adadelta"}},
    "adamax": {"optimizer": {"type": "adamax", "lr": 0.01}},
    "float64": {"dtype": "float64"},
    "asked for": {"train": {"compile": "numpy"}},
    "choosing": {"train": {"duration": "62 epochs", "eval_every": "20 epochs"}},
    "batch norm, dropout": {"model": {"type": "./parts.py:net"}},
    "buffers": {"model": {"type": "./parts.py:Masked"}},
    "as many classes as rows": {
        "model": {"type": "./parts.py:Masked"},
        "train": {"batch_size": 49},  # what is drawn for three of either must not be confused
    },
    "early stop": {
        "callbacks": [{"type": "early_stopping", "patience": 1}],
        "optimizer": {"type": "sgd", "lr": 1.0},
        "train": {"duration": "20 epochs"},
    },
    "skip": {"train": {"nan": "skip"}},
    "test data": {"data": {"split": {"train": 0.7, "test": 0.3, "stratify": True}}},
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts.py").write_text(PARTS)


@pytest.mark.parametrize("name", SHARED)
def test_what_differs_in_numbers_shares_a_step(name):
    settings = merged(SHARED[name])
    alone, nothing = trained(settings, shared=False)
    together, taken = trained(settings, shared=True)
    assert together == alone
    assert (nothing, taken > 0) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_native_code_is_shared_too(name):
    pytest.importorskip("numba")
    settings = merged(SHARED[name])
    settings["train"] = {**settings["train"], "compile": "numba"}
    alone, _ = trained(settings, shared=False)
    together, taken = trained(settings, shared=True)
    assert together == alone
    assert taken > 0


APART = {
    "off": {"train": {"compile": "off"}},
    "a callback": {"callbacks": ["./parts.py:Nothing"]},
    "a list": {"model": {"type": "./parts.py:Listed"}},
    "other numbers": {"model": {"type": "./parts.py:Shifted"}},
    "a count that goes on": {"model": {"type": "./parts.py:Counting"}},
    "shapes": {"sweep": {"seeds": 1, "grid": {"model.hidden": [[3], [4, 4], [5]]}}},
    "batches": {"sweep": {"seeds": 1, "grid": {"train.batch_size": [16, 25, 50]}}},
    "smoothing": {
        "loss": {"type": "cross_entropy", "label_smoothing": 0.1},
        "sweep": {"seeds": 1, "grid": {"loss.label_smoothing": [0.0, 0.1]}},
    },
}


@pytest.mark.parametrize("name", APART)
def test_what_differs_otherwise_shares_nothing(name):
    settings = merged(APART[name])
    alone, _ = trained(settings, shared=False)
    assert trained(settings, shared=True) == (alone, 0)


def test_members_after_one_that_diverged():
    grid = {"optimizer.lr": [0.1, 1e30, 0.05]}
    settings = merged({"optimizer": {"type": "sgd", "lr": 0.1}, "sweep": {"grid": grid}})
    alone, _ = trained(settings, shared=False)
    together, taken = trained(settings, shared=True)
    assert together == alone
    assert sum("diverged" in result for result, *_ in alone) == 3
    assert taken == 2 + 1 + 2  # nobody takes over from one that has diverged


def test_more_kinds_than_are_held(monkeypatch):
    monkeypatch.setattr("microtrain.sweep.shared_step.MOST", 1)
    grid = {"model.hidden": [[3], [4]], "optimizer.lr": [0.1, 0.01]}
    settings = merged({"sweep": {"seeds": 1, "grid": grid}})
    alone, _ = trained(settings, shared=False)
    together, taken = trained(settings, shared=True)
    assert together == alone
    assert taken == 2


def test_the_data_of_members_that_have_ended_are_not_kept():
    with open("s.yaml", "w") as file:
        yaml.safe_dump(merged({"sweep": {"grid": {"model.hidden": [[3], [4]]}}}), file)
    data = []

    def lend(held, parts, lend=Held.lend):
        gc.collect()
        assert [reference() for reference in data] == [None] * len(data)
        data.append(weakref.ref(parts.data.train))
        return lend(held, parts)

    with pytest.MonkeyPatch.context() as patch, sharing():
        patch.setattr(Held, "lend", lend)
        for member in load_sweep("s.yaml", []).members:
            train_member(member, Silent(0, progress="off"))
    assert len(data) == 6
